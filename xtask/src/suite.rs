//! The whole test run: its steps and their order.
//!
//! Owns the list and its cargo commands. Set-up, model checks, crash runs, fuzzing, the HTTP API and
//! cargo-deny have own modules.

use std::process::ExitCode;

use crate::args::{ApiOptions, FuzzOptions, ProveOptions, TestOptions};
use crate::error::Error;
use crate::step::{Outcome, Step, program, run_all};
use crate::workspace::Workspace;
use crate::{api, crash, deny, fuzz, model_check, tools};

pub(crate) fn run(workspace: &Workspace, options: TestOptions) -> ExitCode {
    run_all(steps(workspace, options), options.fail_fast)
}

fn steps(workspace: &Workspace, options: TestOptions) -> Vec<Step<'_>> {
    let everyday = vec![
        Step::new("format", || cargo(workspace, "fmt --all --check")),
        Step::new("lints", || cargo(workspace, "clippy --workspace --all-targets --all-features -- -D warnings")),
        Step::new("tests", || tests(workspace)),
        Step::new("doc tests", || cargo(workspace, "test --workspace --all-features --doc")),
    ];
    if options.fast {
        return everyday;
    }
    let mut all = vec![Step::new("set-up", || tools::set_up(workspace))];
    all.extend(everyday);
    all.push(Step::new("docs", || docs(workspace)));
    all.extend(model_check::steps(workspace, ProveOptions::default()));
    all.extend(crash::steps(workspace));
    all.push(fuzz::step(workspace, FuzzOptions { short: true, executions: None }));
    all.push(api::step(workspace, ApiOptions::default()));
    all.push(Step::new("dependencies", || deny::rules(workspace)));
    all.push(Step::new("advisories", || deny::advisories(workspace)));
    all
}

fn cargo(workspace: &Workspace, line: &str) -> Result<Outcome, Error> {
    program(&mut workspace.cargo(line.split(' ')))
}

/// Runs all tests, ignored ones included. A failing test does not stop the others.
fn tests(workspace: &Workspace) -> Result<Outcome, Error> {
    // Not with nextest, which runs every test in its own process: the tests of one file share a RabbitMQ.
    let kinds = "--lib --bins --tests --no-fail-fast";
    cargo(workspace, &format!("test --workspace --all-features {kinds} -- --include-ignored"))
}

fn docs(workspace: &Workspace) -> Result<Outcome, Error> {
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
    fn fast_run_has_only_the_everyday_steps() {
        let everyday = ["format", "lints", "tests", "doc tests"];
        let model_checks = ["docs", "shuttle", "loom", "miri"];
        let crashes = ["crash jobs", "crash enospc", "crash eio", "crash scan", "crash import", "crash consume"];
        let rest = ["fuzz", "api", "dependencies", "advisories"];
        check(true, &everyday);
        check(false, &[&["set-up"], &everyday[..], &model_checks[..], &crashes[..], &rest[..]].concat());
    }
}
