//! Model checking of crates/pool with shuttle, loom and miri.
//!
//! Owns how each is built and run, with its own target folder because its flags would invalidate the ordinary build.
//! The scenarios are in the pool's tests. ThreadSanitizer is not used: the standard library of a toolchain is
//! not instrumented, so the sanitizer reports races in correct uses of a Mutex.

use std::process::{Command, ExitCode};

use clap::ValueEnum;

use crate::args::ProveOptions;
use crate::error::Error;
use crate::step::{Outcome, Step, run_all};
use crate::workspace::{Workspace, display, runs, rustflags_with, watch_stdout};

/// Number of schedules for each shuttle test.
const SHORT_SCHEDULES: u32 = 200;
const FULL_SCHEDULES: u32 = 20_000;

/// A tool that checks the pool's concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelCheck {
    /// Run the pool's scenarios under random schedules
    Shuttle,
    /// Run its smallest building blocks under every schedule
    Loom,
    /// Run its unit tests and detect undefined behaviour; needs the component miri
    Miri,
}

impl ModelCheck {
    fn name(self) -> &'static str {
        match self {
            ModelCheck::Shuttle => "shuttle",
            ModelCheck::Loom => "loom",
            ModelCheck::Miri => "miri",
        }
    }

    fn run(self, workspace: &Workspace, full: bool) -> Result<Outcome, Error> {
        match self {
            ModelCheck::Shuttle => shuttle(workspace, if full { FULL_SCHEDULES } else { SHORT_SCHEDULES }),
            ModelCheck::Loom => loom(workspace),
            ModelCheck::Miri => miri(workspace),
        }
    }
}

pub(crate) fn run(workspace: &Workspace, options: ProveOptions) -> ExitCode {
    run_all(steps(workspace, options), false)
}

pub(crate) fn steps(workspace: &Workspace, options: ProveOptions) -> Vec<Step<'_>> {
    let selected =
        ModelCheck::value_variants().iter().copied().filter(|check| options.only.is_none_or(|only| only == *check));
    selected.map(|check| Step::new(check.name(), move || check.run(workspace, options.full))).collect()
}

fn shuttle(workspace: &Workspace, schedules: u32) -> Result<Outcome, Error> {
    println!("{schedules} schedules per test");
    let arguments = ["test", "-p", "gristmill-pool", "--release", "--features", "tokio", "--test", "shuttle"];
    let mut command = cargo_with_cfg(workspace, &arguments, ModelCheck::Shuttle);
    run_tests(command.env("GRISTMILL_SCHEDULES", schedules.to_string()))
}

fn loom(workspace: &Workspace) -> Result<Outcome, Error> {
    let arguments = ["test", "-p", "gristmill-pool", "--release", "--lib", "loom"];
    run_tests(&mut cargo_with_cfg(workspace, &arguments, ModelCheck::Loom))
}

fn miri(workspace: &Workspace) -> Result<Outcome, Error> {
    let Some(mut command) = miri_command(workspace) else {
        let why = "component not installed (rustup +nightly component add miri)";
        return Ok(Outcome::NotDone("NOT RUN", why.to_owned()));
    };
    run_tests(command.args(["test", "-p", "gristmill-pool", "--lib"]))
}

/// `cargo miri` of the same toolchain, or of the nightly one.
fn miri_command(workspace: &Workspace) -> Option<Command> {
    let same_toolchain = || workspace.cargo(["miri"]);
    // Only the cargo of rustup, the one on the PATH, supports `+nightly`.
    let nightly = || workspace.program("cargo", ["+nightly", "miri"]);
    // The check must not install a toolchain.
    let is_installed = |mut command: Command| runs(command.arg("--version").env("RUSTUP_AUTO_INSTALL", "0"));
    if is_installed(same_toolchain()) {
        Some(same_toolchain())
    } else if is_installed(nightly()) {
        Some(nightly())
    } else {
        None
    }
}

/// Cargo with `--cfg <check>` and a target folder of that name.
fn cargo_with_cfg(workspace: &Workspace, arguments: &[&str], check: ModelCheck) -> Command {
    let mut command = workspace.cargo(arguments);
    command.arg("--target-dir").arg(workspace.target.join(check.name()));
    command.env("RUSTFLAGS", rustflags_with(&format!("--cfg {}", check.name())));
    command
}

/// Runs tests. A run without a test fails, so that a wrong filter or a missing `cfg` is noticed.
fn run_tests(command: &mut Command) -> Result<Outcome, Error> {
    let line = display(command);
    println!("{line}");
    let mut passed = 0;
    let success = watch_stdout(command, |line| passed += tests_passed(line))?.success();
    Ok(match (success, passed) {
        (false, _) => Outcome::Failed(format!("`{line}`")),
        (true, 0) => Outcome::Failed(format!("`{line}` ran no test")),
        (true, _) => Outcome::Passed,
    })
}

/// The number in a line such as `test result: ok. 3 passed; 0 failed; …`; 0 for any other line.
fn tests_passed(line: &str) -> u64 {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split_once(" passed;"));
    count.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s";
        assert_eq!(tests_passed(line), 12);
        assert_eq!(tests_passed("test result: FAILED. 12 passed; 1 failed; 0 ignored;"), 0);
        assert_eq!(tests_passed("running 4 tests"), 0);
    }

    #[track_caller]
    fn check(script: &str, expected: &str) {
        let mut command = Command::new("sh");
        let outcome = run_tests(command.args(["-c", script])).unwrap();
        assert!(format!("{outcome:?}").contains(expected), "{script}: {outcome:?}");
    }

    #[test]
    fn run_without_tests_or_success_fails() {
        check("echo 'test result: ok. 0 passed; 0 failed'", "ran no test");
        check("echo 'test result: ok. 0 passed;'; echo 'test result: ok. 2 passed;'", "Passed");
        check("echo 'test result: ok. 2 passed;'; exit 101", "Failed");
    }

    #[test]
    fn only_selected_checks_run() {
        let workspace = Workspace::find().unwrap();
        let count = |only| steps(&workspace, ProveOptions { full: false, only }).len();
        assert_eq!(count(None), 3);
        assert_eq!(count(Some(ModelCheck::Loom)), 1);
    }
}
