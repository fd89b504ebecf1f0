//! The whole test run: which steps, in which order.
//!
//! Owns the list and the cargo commands in it. Proofs, crash runs, fuzzing, dependencies and set-up have modules of their
//! own.

use std::process::ExitCode;

use crate::args::{FuzzOptions, ProveOptions, TestOptions};
use crate::fault::Fault;
use crate::step::{Outcome, Step, program, run_all};
use crate::workspace::Workspace;
use crate::{crash, deny, fuzz, needs, proofs};

/// The command `cargo xtask test`.
pub(crate) fn run(workspace: &Workspace, options: TestOptions) -> ExitCode {
    run_all(steps(workspace, options), options.fail_fast)
}

fn steps(workspace: &Workspace, options: TestOptions) -> Vec<Step<'_>> {
    let everyday = vec![
        Step::new("format", || cargo(workspace, "fmt --all --check")),
        Step::new("lints", || {
            cargo(workspace, "clippy --workspace --all-targets --all-features -- -D warnings")
        }),
        Step::new("tests", || tests(workspace)),
        Step::new("doc tests", || cargo(workspace, "test --workspace --all-features --doc")),
    ];
    if options.fast {
        return everyday;
    }
    let mut all = vec![Step::new("set-up", || needs::set_up(workspace))];
    all.extend(everyday);
    all.push(Step::new("docs", || docs(workspace)));
    all.extend(proofs::steps(workspace, ProveOptions::default()));
    all.extend(crash::steps(workspace));
    all.push(fuzz::step(workspace, FuzzOptions { short: true, executions: None }));
    all.push(Step::new("dependencies", || deny::rules(workspace)));
    all.push(Step::new("advisories", || deny::advisories(workspace)));
    all
}

fn cargo(workspace: &Workspace, line: &str) -> Result<Outcome, Fault> {
    program(&mut workspace.cargo(line.split(' ')))
}

/// Ignored tests run as well: a slow test may be left out by hand, never by the whole run. And one failing
/// test hides no other.
fn tests(workspace: &Workspace) -> Result<Outcome, Fault> {
    // Not nextest, which gives every test a process of its own: tests of one file share a RabbitMQ.
    let kinds = "--lib --bins --tests --no-fail-fast";
    cargo(workspace, &format!("test --workspace --all-features {kinds} -- --include-ignored"))
}

fn docs(workspace: &Workspace) -> Result<Outcome, Fault> {
    let mut command = workspace.cargo(["doc", "--workspace", "--no-deps", "--all-features"]);
    program(command.env("RUSTDOCFLAGS", "-D warnings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(fast: bool, expected: &[&str]) {
        let workspace = Workspace::find().unwrap();
        let steps = steps(&workspace, TestOptions { fast, fail_fast: false });
        assert_eq!(steps.iter().map(Step::name).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_steps_of_a_run() {
        let everyday = ["format", "lints", "tests", "doc tests"];
        let proofs = ["docs", "shuttle", "loom", "miri"];
        let crashes =
            ["crash jobs", "crash enospc", "crash eio", "crash scan", "crash import", "crash consume"];
        let rest = ["fuzz", "dependencies", "advisories"];
        check(true, &everyday);
        check(false, &[&["set-up"], &everyday[..], &proofs[..], &crashes[..], &rest[..]].concat());
    }
}
