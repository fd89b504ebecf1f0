//! Crash tests: kill real processes at random moments, then check the database and the results they leave.
//!
//! `cargo xtask crash jobs` kills task workers; `cargo xtask crash scan`, `… import` and `… consume` kill the
//! `gristmill` commands of these names. `main` maps the outcome to an exit code. Unix only: needs signals, `mount` and
//! `strace`.

mod args;
mod cli;
mod consume;
mod disk;
mod faults;
mod harness;
mod import;
mod jobs;
mod process;
mod scan;
mod sqlite;

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
        Command::Run(args) => jobs::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Consume(args) => consume::run(&args),
        Command::Worker(args) => jobs::worker::run(&args).map(|()| true),
        Command::Producer(args) => jobs::producer::run(&args).map(|()| true),
    }
}
