//! Randomised checkers: random sequences of operations, compared with a model in memory.
//!
//! Owns the list of checkers and how rounds and seed are passed to them. A checker is an integration test that defines
//! the operations and the rules: `cargo test` runs a few rounds with fixed seeds, and this command runs many.

use std::process::{Command, ExitCode};

use gristmill_check::{ROUNDS_VARIABLE, SEED_VARIABLE, random_seed};

use crate::args::CheckOptions;
use crate::error::Error;
use crate::step::{Outcome, Step, program, run_all};
use crate::workspace::Workspace;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Checker {
    /// Name after `cargo xtask check`.
    pub(crate) name: &'static str,
    /// Name of its step in the table at the end.
    step: &'static str,
    package: &'static str,
    test: &'static str,
    /// Default number of rounds: a few minutes in a dev build.
    rounds: u64,
}

pub(crate) const CHECKERS: &[Checker] = &[
    Checker { name: "import", step: "check import", package: "gristmill-jsonl", test: "import_model", rounds: 5_000 },
    Checker { name: "dedup", step: "check dedup", package: "gristmill-dedup", test: "dedup_model", rounds: 3_000 },
    Checker { name: "runner", step: "check runner", package: "gristmill-jobs", test: "runner_model", rounds: 150 },
];

pub(crate) fn run(workspace: &Workspace, options: CheckOptions) -> ExitCode {
    let seed = options.seed.unwrap_or_else(random_seed);
    let step = Step::new(options.checker.step, move || check(workspace, options, seed));
    run_all(vec![step], false)
}

fn check(workspace: &Workspace, options: CheckOptions, seed: u64) -> Result<Outcome, Error> {
    let rounds = options.rounds.unwrap_or(options.checker.rounds);
    println!("{rounds} rounds from seed {seed}");
    let mut command = command(workspace, options.checker);
    program(command.env(ROUNDS_VARIABLE, rounds.to_string()).env(SEED_VARIABLE, seed.to_string()))
}

fn command(workspace: &Workspace, checker: &Checker) -> Command {
    let Checker { package, test, .. } = checker;
    workspace.cargo(["test", "--quiet", "-p", package, "--test", test, "--", "--nocapture"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::display;

    #[test]
    fn every_checker_is_a_test_of_its_package() {
        let workspace = Workspace::find().unwrap();
        for checker in CHECKERS {
            let line = display(&command(&workspace, checker));
            let expected = format!("cargo test --quiet -p {} --test {} -- --nocapture", checker.package, checker.test);
            assert_eq!(line, expected);
            assert_eq!(checker.step, format!("check {}", checker.name));
            let folder = checker.package.trim_start_matches("gristmill-");
            let tests = workspace.root.join("crates").join(folder).join("tests");
            let exists = tests.join(checker.test).join("main.rs").is_file()
                || tests.join(checker.test).with_extension("rs").is_file();
            assert!(exists, "no test {} in {}", checker.test, tests.display());
        }
    }
}
