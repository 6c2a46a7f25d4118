//! The `certkv` program. Exit codes: 0 success, 1 a check failed, 2 usage, 3 bad input, 4 internal error.
#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    match certkv_cli::run(std::env::args_os(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("certkv: {e}");
            ExitCode::from(e.code())
        }
    }
}
