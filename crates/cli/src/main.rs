//! The binary `gristmill`.
//!
//! `main` owns the translation of a result into an exit code, and nothing else: `run` decides.

mod args;
mod error;
mod logging;
mod run;

use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}
