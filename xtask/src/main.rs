//! Development commands, run as `cargo xtask`: tests, model checking, randomised checkers, crash runs, fuzzing,
//! benchmarks.
//!
//! `main` only translates a result into an exit code. Nothing here is part of the product: no crate under `crates/` may
//! depend on it.

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

use args::Command;
use error::Error;
use workspace::Workspace;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<ExitCode, Error> {
    let command = args::parse(std::env::args_os().skip(1))?;
    let workspace = Workspace::find()?;
    match command {
        Command::Help(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Command::Test(options) => Ok(suite::run(&workspace, options)),
        Command::Prove(options) => Ok(model_check::run(&workspace, options)),
        Command::Check(options) => Ok(check::run(&workspace, options)),
        Command::Crash(options) => Ok(crash::run(&workspace, options)),
        Command::Fuzz(options) => Ok(fuzz::run(&workspace, options)),
        Command::Bench(arguments) => bench::run(&workspace, &arguments),
    }
}
