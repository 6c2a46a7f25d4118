//! The end of `demo` and `eval`: page, table or JSON, and the check that every certificate held.
use super::args::Common;
use crate::{
    error::CliError,
    output::{print, write_file},
    report::{self, ReportData, data::Kind},
};
use std::{io::Write, path::Path};

/// Prints the table or the JSON, writes the page to `page` if one is wanted, and fails if an output was beyond its bound. What took minutes is on the screen when a page cannot
/// be written.
///
/// # Errors
/// [`CliError::Input`] when the page cannot be written, [`CliError::Check`] when a certificate did not hold.
pub fn finish(data: &ReportData, common: &Common, page: Option<&Path>, out: &mut dyn Write) -> Result<(), CliError> {
    if common.json {
        let text = serde_json::to_string_pretty(data).map_err(|e| CliError::Internal(Box::new(e)))?;
        print(out, &(text + "\n"))?;
    } else {
        print(out, &report::table::render(data))?;
    }
    if let Some(path) = page {
        write_file(path, &report::page(data))?;
        if !common.json {
            print(out, &format!("Page: {}\n", path.display()))?;
        }
    }
    // Only our own certificate is promised; what the published bound misses is shown, not failed.
    let violations: u64 = data.modes.iter().filter(|m| m.kind == Kind::Certified).map(|m| m.violations).sum();
    if violations > 0 {
        return Err(CliError::Check(format!("{violations} outputs were farther from the truth than their bound")));
    }
    Ok(())
}
