//! `certkv conform DIR`.
use super::help;
use crate::{error::CliError, output::print};
use certkv_testkit::conform::{self, Report};
use std::{io::Write, path::PathBuf};

/// Replays the golden vectors of a folder.
///
/// # Errors
/// [`CliError::Input`] for an unreadable or malformed folder, [`CliError::Check`] when a quantity is past its limit.
pub fn run(mut parser: lexopt::Parser, out: &mut dyn Write) -> Result<(), CliError> {
    use lexopt::prelude::*;
    let (mut folder, mut json): (Option<PathBuf>, bool) = (None, false);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return print(out, help::CONFORM),
            Long("json") => json = true,
            Value(path) if folder.is_none() => folder = Some(path.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    let folder = folder.ok_or_else(|| CliError::Usage("conform: give the folder of the vectors".into()))?;
    let report = conform::replay(&folder).map_err(|e| CliError::Input(Box::new(e)))?;
    if report.files == 0 {
        return Err(CliError::input(format!("conform: {} holds no vectors that this build replays", folder.display())));
    }
    print(out, &if json { as_json(&report)? } else { format!("{report}\n") })?;
    if report.passed() {
        Ok(())
    } else {
        let (deviations, unknown) = (report.failures.len(), report.unknown.len());
        Err(CliError::Check(format!("{deviations} deviations past their limit, {unknown} files that nothing replays")))
    }
}

fn as_json(report: &Report) -> Result<String, CliError> {
    let quantities: Vec<_> = report
        .quantities
        .iter()
        .map(|q| {
            // JSON has no infinity; a text keeps what a null would hide.
            let worst = if q.worst.is_finite() { q.worst.into() } else { serde_json::Value::from(q.worst.to_string()) };
            serde_json::json!({
                "name": q.name, "kind": q.kind, "cases": q.cases, "worst": worst, "limit": q.limit, "passed": q.passed()
            })
        })
        .collect();
    let failures: Vec<String> = report.failures.iter().map(|f| format!("{}: {}", f.file, f.quantity)).collect();
    let value = serde_json::json!({
        "files": report.files, "passed": report.passed(), "quantities": quantities, "failures": failures,
        "unknown": report.unknown
    });
    Ok(serde_json::to_string_pretty(&value).map_err(|e| CliError::Internal(Box::new(e)))? + "\n")
}
