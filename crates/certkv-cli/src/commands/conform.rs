//! `certkv conform`.
use crate::error::CliError;
use std::io::Write;
/// x
pub fn run(_parser: lexopt::Parser, _out: &mut dyn Write) -> Result<(), CliError> {
    Ok(())
}
