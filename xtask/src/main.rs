//! Development commands, run as `cargo xtask`: tests, model checking, randomised checkers, crash runs, fuzzing,
//! checks of the HTTP API, benchmarks.
//!
//! `main` only translates a result into an exit code. Nothing here is part of the product: no crate under `crates/` may
//! depend on it.

mod api;
mod args;
mod bench;
mod check;
mod crash;
mod deny;
mod error;
mod fuzz;
mod model_check;
mod step;
mod suite;
mod table;
mod tools;
mod workspace;

use std::process::ExitCode;

use args::{Arguments, Command};
use clap::Parser;
use clap::error::ErrorKind;
use error::Error;
use workspace::Workspace;

fn main() -> ExitCode {
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => {
            // If the message cannot be printed, the exit status still tells.
            let _ = error.print();
            let wrong = error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            return ExitCode::from(u8::from(wrong));
        }
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Error> {
    let workspace = Workspace::find()?;
    match command {
        Command::Test(options) => Ok(suite::run(&workspace, options)),
        Command::Prove(options) => Ok(model_check::run(&workspace, options)),
        Command::Check(options) => Ok(check::run(&workspace, options)),
        Command::Crash(crash) => Ok(crash::run(&workspace, crash)),
        Command::Fuzz(options) => Ok(fuzz::run(&workspace, options)),
        Command::Api(options) => Ok(api::run(&workspace, options)),
        Command::Bench { args } => bench::run(&workspace, &args),
    }
}
