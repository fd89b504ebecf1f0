//! The house's own chores, run as `cargo xtask`: the whole test run, the concurrency proofs, the crash runs,
//! fuzzing, the benchmarks.
//!
//! `main` owns the translation of a verdict into an exit code. It decides nothing itself, and nothing here is
//! part of the product: no crate under `crates/` may depend on it.

mod args;
mod bench;
mod check;
mod crash;
mod deny;
mod fault;
mod fuzz;
mod needs;
mod proofs;
mod step;
mod suite;
mod table;
mod workspace;

use std::process::ExitCode;

use args::Command;
use fault::Fault;
use workspace::Workspace;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(fault) => {
            eprintln!("xtask: {fault}");
            ExitCode::from(fault.exit_code())
        }
    }
}

fn run() -> Result<ExitCode, Fault> {
    let command = args::parse(std::env::args_os().skip(1))?;
    let workspace = Workspace::find()?;
    match command {
        Command::Help(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Command::Test(options) => Ok(suite::run(&workspace, options)),
        Command::Prove(options) => Ok(proofs::run(&workspace, options)),
        Command::Check(options) => Ok(check::run(&workspace, options)),
        Command::Crash(options) => Ok(crash::run(&workspace, options)),
        Command::Fuzz(options) => Ok(fuzz::run(&workspace, options)),
        Command::Bench(arguments) => bench::run(&workspace, &arguments),
    }
}
