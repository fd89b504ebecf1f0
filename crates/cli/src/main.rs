//! The binary `gristmill`.
//!
//! `main` owns the translation of a result into an exit code, and nothing else: `run` decides.

mod args;
mod commands;
mod context;
mod error;
mod files;
mod hints;
mod logging;
mod output;
mod run;
mod settings;
mod signals;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match run::run(std::env::args_os()) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            error.report();
            error.exit_code()
        }
    };
    ExitCode::from(code)
}
