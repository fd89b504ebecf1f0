//! Runs steps one after another, with a heading and the duration of each.
//!
//! Owns the order, the durations and the exit code of a run. The table at the end is in `table`.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::table;
use crate::workspace::{display, run_program};

/// Outcome of a step that ran without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The step passed; the text is a note for the reader.
    PassedBut(String),
    /// The step failed; the text names the reason, and details are in the output above.
    Failed(String),
    /// The step cannot be done on this machine, which is not a failure: a status in capitals, then the reason.
    NotDone(&'static str, String),
}

pub(crate) struct Step<'a> {
    name: &'static str,
    work: Box<dyn FnOnce() -> Result<Outcome, Error> + 'a>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(name: &'static str, work: impl FnOnce() -> Result<Outcome, Error> + 'a) -> Self {
        Step { name, work: Box::new(work) }
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

#[derive(Debug)]
pub(crate) struct FinishedStep {
    pub(crate) name: &'static str,
    pub(crate) result: Result<Outcome, Error>,
    pub(crate) duration: Duration,
}

impl FinishedStep {
    pub(crate) fn failed(&self) -> bool {
        matches!(self.result, Err(_) | Ok(Outcome::Failed(_)))
    }
}

/// Runs all steps, prints the table, and returns the exit code of the run.
pub(crate) fn run_all(steps: Vec<Step<'_>>, fail_fast: bool) -> ExitCode {
    let done = run_steps(steps, fail_fast);
    print!("\n{}", table::render(&done));
    ExitCode::from(exit_code(&done))
}

fn run_steps(steps: Vec<Step<'_>>, fail_fast: bool) -> Vec<FinishedStep> {
    let mut done: Vec<FinishedStep> = Vec::with_capacity(steps.len());
    for step in steps {
        let stop = fail_fast && done.iter().any(FinishedStep::failed);
        done.push(if stop { skipped(step.name) } else { run(step) });
    }
    done
}

fn run(step: Step<'_>) -> FinishedStep {
    println!("\n== {}", step.name);
    let start = Instant::now();
    let result = (step.work)();
    let done = FinishedStep { name: step.name, result, duration: start.elapsed() };
    println!("-- {}: {}, {:.1} s", done.name, table::status(&done), done.duration.as_secs_f64());
    done
}

fn skipped(name: &'static str) -> FinishedStep {
    let outcome = Outcome::NotDone("NOT RUN", "an earlier step failed (--fail-fast)".to_owned());
    FinishedStep { name, result: Ok(outcome), duration: Duration::ZERO }
}

/// The exit code of a failed test takes precedence over that of a system error.
fn exit_code(done: &[FinishedStep]) -> u8 {
    if done.iter().any(|step| matches!(step.result, Ok(Outcome::Failed(_)))) {
        return 1;
    }
    done.iter().filter_map(|step| step.result.as_ref().err()).map(Error::exit_code).max().unwrap_or(0)
}

/// A step that runs one program and passes if that exits with 0.
pub(crate) fn program(command: &mut Command) -> Result<Outcome, Error> {
    let line = display(command);
    println!("{line}");
    Ok(if run_program(command)? { Outcome::Passed } else { Outcome::Failed(format!("`{line}`")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(name: &'static str) -> Step<'static> {
        Step::new(name, || Ok(Outcome::Passed))
    }

    fn failing(name: &'static str) -> Step<'static> {
        Step::new(name, || Ok(Outcome::Failed("injected".to_owned())))
    }

    fn broken(name: &'static str) -> Step<'static> {
        Step::new(name, || Err(Error::System("injected".to_owned())))
    }

    fn not_done(name: &'static str) -> Step<'static> {
        Step::new(name, || Ok(Outcome::NotDone("NOT RUN", "injected".to_owned())))
    }

    #[track_caller]
    fn check(steps: Vec<Step<'_>>, fail_fast: bool, statuses: &[&str], code: u8) {
        let done = run_steps(steps, fail_fast);
        let found: Vec<&str> = done.iter().map(table::status).collect();
        assert_eq!(found, statuses);
        assert_eq!(exit_code(&done), code);
    }

    #[test]
    fn failure_stops_later_steps_only_with_fail_fast() {
        let steps = || vec![passing("a"), failing("b"), passing("c")];
        check(steps(), false, &["passed", "FAILED", "passed"], 1);
        check(steps(), true, &["passed", "FAILED", "NOT RUN"], 1);
        check(vec![broken("a"), passing("b")], true, &["BROKEN", "NOT RUN"], 2);
    }

    #[test]
    fn exit_code_is_1_after_a_failed_test_and_2_after_a_system_error() {
        check(vec![passing("a"), not_done("b")], false, &["passed", "NOT RUN"], 0);
        check(vec![broken("a"), failing("b")], false, &["BROKEN", "FAILED"], 1);
        check(vec![broken("a"), passing("b")], false, &["BROKEN", "passed"], 2);
    }

    #[test]
    fn step_that_is_not_done_does_not_stop_the_run() {
        check(vec![not_done("a"), passing("b")], true, &["NOT RUN", "passed"], 0);
    }

    #[test]
    fn program_passes_when_it_exits_with_0() {
        assert_eq!(program(&mut Command::new("true")), Ok(Outcome::Passed));
        assert_eq!(program(&mut Command::new("false")), Ok(Outcome::Failed("`false`".to_owned())));
    }
}
