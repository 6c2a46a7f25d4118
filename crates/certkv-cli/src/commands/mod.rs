//! The commands of the program.
pub mod args;
pub mod bench;
pub mod calibrate;
mod codebooks;
pub mod conform;
pub mod demo;
pub mod eval;
pub mod finish;
pub mod help;
pub mod inspect;
pub mod plan;
mod scales;
mod sweep;

use crate::{error::CliError, output::print};
use std::{ffi::OsString, io::Write};

/// Runs the command line `args`, whose first element is the program's name; results go to `out`.
///
/// # Errors
/// [`CliError`], whose [`CliError::code`] is the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write) -> Result<(), CliError> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_iter(args);
    let command = match parser.next()? {
        Some(Value(name)) => name.string()?,
        Some(Short('h') | Long("help")) => return print(out, help::MAIN),
        Some(Short('V') | Long("version")) => {
            return print(out, concat!("certkv ", env!("CARGO_PKG_VERSION"), "\n"));
        }
        Some(other) => return Err(other.unexpected().into()),
        None => return Err(CliError::Usage(format!("no command given\n\n{}", help::MAIN))),
    };
    match command.as_str() {
        "demo" => demo::run(parser, out),
        "eval" => eval::run(parser, out),
        "calibrate" => calibrate::run(parser, out),
        "bench" => bench::run(parser, out),
        "conform" => conform::run(parser, out),
        "inspect" => inspect::run(parser, out),
        "plan" => plan::run(parser, out),
        "help" => print(out, help::MAIN),
        other => Err(CliError::Usage(format!("there is no command `{other}`\n\n{}", help::MAIN))),
    }
}
