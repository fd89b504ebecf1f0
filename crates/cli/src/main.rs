//! Entry point of the binary `gristmill`.
//!
//! Owns only the translation of a result into an exit status; `run` decides.

mod args;
mod commands;
mod context;
mod error;
mod files;
mod hints;
mod lines;
mod logging;
mod output;
mod progress;
mod run;
mod settings;
mod supervisor;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    let status = match run::run(std::env::args_os()) {
        Ok(outcome) => outcome.exit_status(),
        Err(error) => {
            error.report();
            error.exit_status()
        }
    };
    ExitCode::from(status)
}
