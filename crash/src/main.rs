//! Real worker processes on one database, killed at random, and the referee that looks at what is left.
//!
//! Run as `cargo xtask crash jobs`, and as `cargo xtask crash scan`, `cargo xtask crash import` and `cargo xtask crash
//! consume` for scans, imports and consumers of RabbitMQ. `main` owns the translation of what came of it into an exit code.
//! Unix only: it speaks of signals, of `mount` and of `strace`.

mod args;
mod chance;
mod consume;
mod crew;
mod customer;
mod database;
mod disk;
mod errand;
mod import;
mod judge;
mod ledger;
mod mill;
mod record;
mod referee;
mod rounds;
mod scan;
mod site;
mod witness;
mod worker;

use std::fmt::Display;
use std::process::ExitCode;

use args::{Arguments, Command};
use clap::Parser;

/// Why a run came to no verdict.
#[derive(Debug)]
enum Trouble {
    /// This machine does not allow it: says what is missing.
    NotHere(String),
    /// Something broke under us.
    System(String),
}

/// Turns an error into trouble that says what was being done.
trait OrTrouble<T> {
    fn or_trouble(self, doing: impl Display) -> Result<T, Trouble>;
}

impl<T, E: Display> OrTrouble<T> for Result<T, E> {
    fn or_trouble(self, doing: impl Display) -> Result<T, Trouble> {
        self.map_err(|error| Trouble::System(format!("{doing}: {error}")))
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Trouble::System(text)) => {
            eprintln!("gristmill-crash: {text}");
            ExitCode::from(2)
        }
        Err(Trouble::NotHere(text)) => {
            // `cargo xtask` shows this line in its table.
            println!("NOT DONE: {text}");
            ExitCode::from(3)
        }
    }
}

/// Says whether all is well.
fn run(command: Command) -> Result<bool, Trouble> {
    match command {
        Command::Run(settings) => referee::run(&settings),
        Command::Scan(settings) => scan::run(&settings),
        Command::Import(settings) => import::run(&settings),
        Command::Consume(settings) => consume::run(&settings),
        Command::Worker(member) => worker::run(&member).map(|()| true),
        Command::Customer(member) => customer::run(&member).map(|()| true),
    }
}
