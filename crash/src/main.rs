//! Crash tests: kill real processes at random moments, then check the database and the results they leave.
//!
//! `cargo xtask crash jobs` kills task workers; `cargo xtask crash scan`, `… import` and `… consume` kill the
//! `gristmill` commands of these names. `main` maps the outcome to an exit code. Unix only: needs signals, `mount` and
//! `strace`.

mod args;
mod checker;
mod cli_process;
mod consume;
mod database;
mod disk;
mod effects;
mod harness;
mod history;
mod import;
mod paths;
mod processes;
mod producer;
mod record;
mod round;
mod scan;
mod task_kinds;
mod worker;

use std::fmt::Display;
use std::process::ExitCode;

use args::{Arguments, Command};
use clap::Parser;

/// Reason why a run ended without a result.
#[derive(Debug)]
enum Error {
    /// This machine does not allow the run; the text says what is missing.
    Unsupported(String),
    /// A system call, a file or a child process failed.
    System(String),
}

/// Adds the failed action to an error.
trait ErrorContext<T> {
    fn context(self, action: impl Display) -> Result<T, Error>;
}

impl<T, E: Display> ErrorContext<T> for Result<T, E> {
    fn context(self, action: impl Display) -> Result<T, Error> {
        self.map_err(|error| Error::System(format!("{action}: {error}")))
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Error::System(text)) => {
            eprintln!("gristmill-crash: {text}");
            ExitCode::from(2)
        }
        Err(Error::Unsupported(text)) => {
            // `cargo xtask` shows this line in its table.
            println!("NOT DONE: {text}");
            ExitCode::from(3)
        }
    }
}

/// Returns whether no violation was found.
fn run(command: Command) -> Result<bool, Error> {
    match command {
        Command::Run(settings) => harness::run(&settings),
        Command::Scan(settings) => scan::run(&settings),
        Command::Import(settings) => import::run(&settings),
        Command::Consume(settings) => consume::run(&settings),
        Command::Worker(args) => worker::run(&args).map(|()| true),
        Command::Producer(args) => producer::run(&args).map(|()| true),
    }
}
