//! `certkv eval --sweep`: every method side by side, as a page and a file of figures.
use super::args::Common;
use crate::{
    error::CliError,
    evidence::{self, Setup, Sizes},
    output::{print, write_file},
};
use std::{io::Write, path::Path};

/// Measures, and writes `page` and the figures beside it.
///
/// # Errors
/// [`CliError::Usage`] for a page that would be its own figures; [`CliError::Check`] where an output was beyond its bound: nothing is written
/// then; others for a model, text or file that is refused.
pub(super) fn run(
    common: &Common,
    model: &Path,
    page: &Path,
    quick: bool,
    command: String,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let figures = page.with_extension("json");
    if figures == page {
        return Err(CliError::Usage(
            "--sweep: the figures go beside the page as .json; name the page otherwise".into(),
        ));
    }
    let sizes = if quick { Sizes::QUICK } else { Sizes::FULL };
    let (seed, threads) = (common.seed_or_default(), common.start_threads());
    let setup = Setup::new(model, common.assets.as_deref(), sizes, seed, threads, common.progress())?;
    let found = evidence::run(&setup, command)?;
    let text = serde_json::to_string_pretty(&found).map_err(|e| CliError::Internal(Box::new(e)))? + "\n";
    write_file(&figures, &text)?;
    write_file(page, &evidence::page(&found))?;
    if common.json {
        return print(out, &text);
    }
    let tables: usize = found.sections.iter().map(|s| s.tables.len()).sum();
    let said = format!(
        "{} sections, {tables} tables, {:.0} s\nPage: {}\nFigures: {}\n",
        found.sections.len(),
        found.seconds,
        page.display(),
        figures.display()
    );
    print(out, &said)
}
