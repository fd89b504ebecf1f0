//! The concurrency proofs of crates/pool: shuttle, loom and miri.
//!
//! Owns how each is built and run, every one in a folder of its own under the target folder because their
//! flags would throw away the ordinary build. What is proved stands with the pool's tests. No
//! ThreadSanitizer: the standard library handed out with a toolchain is not instrumented, and the sanitizer
//! then reports races in plain uses of a Mutex.

use std::process::{Command, ExitCode};

use crate::args::ProveOptions;
use crate::fault::Fault;
use crate::step::{Outcome, Step, run_all};
use crate::workspace::{Workspace, answers, rustflags_with, shown, watched};

/// Schedules for each shuttle test.
const SHORT: u32 = 200;
const FULL: u32 = 20_000;

/// A kind of proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Shuttle,
    Loom,
    Miri,
}

impl Proof {
    pub(crate) const ALL: [Proof; 3] = [Proof::Shuttle, Proof::Loom, Proof::Miri];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Proof::Shuttle => "shuttle",
            Proof::Loom => "loom",
            Proof::Miri => "miri",
        }
    }

    fn run(self, workspace: &Workspace, full: bool) -> Result<Outcome, Fault> {
        match self {
            Proof::Shuttle => shuttle(workspace, if full { FULL } else { SHORT }),
            Proof::Loom => loom(workspace),
            Proof::Miri => miri(workspace),
        }
    }
}

/// The command `cargo xtask prove`.
pub(crate) fn run(workspace: &Workspace, options: ProveOptions) -> ExitCode {
    run_all(steps(workspace, options), false)
}

/// The wanted proofs as steps of a run.
pub(crate) fn steps(workspace: &Workspace, options: ProveOptions) -> Vec<Step<'_>> {
    let wanted = Proof::ALL.into_iter().filter(|proof| options.only.is_none_or(|only| only == *proof));
    wanted.map(|proof| Step::new(proof.name(), move || proof.run(workspace, options.full))).collect()
}

fn shuttle(workspace: &Workspace, schedules: u32) -> Result<Outcome, Fault> {
    println!("{schedules} schedules per test");
    let arguments = ["test", "-p", "gristmill-pool", "--release", "--features", "tokio", "--test", "shuttle"];
    let mut command = apart(workspace, &arguments, Proof::Shuttle);
    proved(command.env("GRISTMILL_SCHEDULES", schedules.to_string()))
}

fn loom(workspace: &Workspace) -> Result<Outcome, Fault> {
    let arguments = ["test", "-p", "gristmill-pool", "--release", "--lib", "loom"];
    proved(&mut apart(workspace, &arguments, Proof::Loom))
}

fn miri(workspace: &Workspace) -> Result<Outcome, Fault> {
    let Some(mut command) = miri_command(workspace) else {
        let why = "component not installed (rustup +nightly component add miri)";
        return Ok(Outcome::NotDone("NOT RUN", why.to_owned()));
    };
    proved(command.args(["test", "-p", "gristmill-pool", "--lib"]))
}

/// `cargo miri` of our own toolchain, else of the nightly one.
fn miri_command(workspace: &Workspace) -> Option<Command> {
    let ours = || workspace.cargo(["miri"]);
    // Only the cargo of rustup, the one on the PATH, understands `+nightly`.
    let nightly = || workspace.program("cargo", ["+nightly", "miri"]);
    // Asking whether a toolchain is there must not install it.
    let there = |mut command: Command| answers(command.arg("--version").env("RUSTUP_AUTO_INSTALL", "0"));
    if there(ours()) {
        Some(ours())
    } else if there(nightly()) {
        Some(nightly())
    } else {
        None
    }
}

/// Cargo with `--cfg <proof>`, in a target folder of that name.
fn apart(workspace: &Workspace, arguments: &[&str], proof: Proof) -> Command {
    let mut command = workspace.cargo(arguments);
    command.arg("--target-dir").arg(workspace.target().join(proof.name()));
    command.env("RUSTFLAGS", rustflags_with(&format!("--cfg {}", proof.name())));
    command
}

/// A proof without a test proves nothing: a wrong filter or a lost `cfg` must not look like success.
fn proved(command: &mut Command) -> Result<Outcome, Fault> {
    let line = shown(command);
    println!("{line}");
    let mut passed = 0;
    let success = watched(command, |line| passed += tests_passed(line))?.success();
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
    fn counting_tests() {
        let line =
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s";
        assert_eq!(tests_passed(line), 12);
        assert_eq!(tests_passed("test result: FAILED. 12 passed; 1 failed; 0 ignored;"), 0);
        assert_eq!(tests_passed("running 4 tests"), 0);
    }

    #[track_caller]
    fn check(script: &str, expected: &str) {
        let mut command = Command::new("sh");
        let outcome = proved(command.args(["-c", script])).unwrap();
        assert!(format!("{outcome:?}").contains(expected), "{script}: {outcome:?}");
    }

    #[test]
    fn a_proof_needs_tests_and_success() {
        check("echo 'test result: ok. 0 passed; 0 failed'", "ran no test");
        check("echo 'test result: ok. 0 passed;'; echo 'test result: ok. 2 passed;'", "Passed");
        check("echo 'test result: ok. 2 passed;'; exit 101", "Failed");
    }

    #[test]
    fn only_the_wanted_proofs_run() {
        let workspace = Workspace::find().unwrap();
        let count = |only| steps(&workspace, ProveOptions { full: false, only }).len();
        assert_eq!(count(None), 3);
        assert_eq!(count(Some(Proof::Loom)), 1);
    }
}
