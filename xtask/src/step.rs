//! Steps, one after another: a heading, the work, how long it took.
//!
//! Owns the order, the clock and the exit code of a run. What a step does is its own affair, and the table
//! at the end belongs to `table`.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::table;
use crate::workspace::{shown, succeeds};

/// How a step ended when nothing broke under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// Passed, with something the reader should know.
    PassedBut(String),
    /// What failed, in a line; the details stand above the table.
    Failed(String),
    /// Could not be done here. It fails nothing and is said aloud: the verdict in capitals, then why.
    NotDone(&'static str, String),
}

/// A named piece of the run.
pub(crate) struct Step<'a> {
    name: &'static str,
    work: Box<dyn FnOnce() -> Result<Outcome, Fault> + 'a>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(name: &'static str, work: impl FnOnce() -> Result<Outcome, Fault> + 'a) -> Self {
        Step { name, work: Box::new(work) }
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// A step that is over.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) name: &'static str,
    pub(crate) result: Result<Outcome, Fault>,
    pub(crate) took: Duration,
}

impl Done {
    pub(crate) fn failed(&self) -> bool {
        matches!(self.result, Err(_) | Ok(Outcome::Failed(_)))
    }
}

/// Runs all steps, prints the table, and gives the exit code of the whole.
pub(crate) fn run_all(steps: Vec<Step<'_>>, fail_fast: bool) -> ExitCode {
    let done = in_order(steps, fail_fast);
    print!("\n{}", table::drawn(&done));
    ExitCode::from(exit_code(&done))
}

fn in_order(steps: Vec<Step<'_>>, fail_fast: bool) -> Vec<Done> {
    let mut done: Vec<Done> = Vec::with_capacity(steps.len());
    for step in steps {
        let stop = fail_fast && done.iter().any(Done::failed);
        done.push(if stop { passed_over(step.name) } else { run(step) });
    }
    done
}

fn run(step: Step<'_>) -> Done {
    println!("\n== {}", step.name);
    let start = Instant::now();
    let result = (step.work)();
    let done = Done { name: step.name, result, took: start.elapsed() };
    println!("-- {}: {}, {:.1} s", done.name, table::verdict(&done), done.took.as_secs_f64());
    done
}

fn passed_over(name: &'static str) -> Done {
    let outcome = Outcome::NotDone("NOT RUN", "an earlier step failed (--fail-fast)".to_owned());
    Done { name, result: Ok(outcome), took: Duration::ZERO }
}

/// A failing test outranks a broken machine: the first is surely for the reader to look at.
fn exit_code(done: &[Done]) -> u8 {
    if done.iter().any(|step| matches!(step.result, Ok(Outcome::Failed(_)))) {
        return 1;
    }
    done.iter().filter_map(|step| step.result.as_ref().err()).map(Fault::exit_code).max().unwrap_or(0)
}

/// The commonest step: one program that says by its exit code whether all is well.
pub(crate) fn program(command: &mut Command) -> Result<Outcome, Fault> {
    let line = shown(command);
    println!("{line}");
    Ok(if succeeds(command)? { Outcome::Passed } else { Outcome::Failed(format!("`{line}`")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(name: &'static str) -> Step<'static> {
        Step::new(name, || Ok(Outcome::Passed))
    }

    fn failing(name: &'static str) -> Step<'static> {
        Step::new(name, || Ok(Outcome::Failed("seeded".to_owned())))
    }

    fn broken(name: &'static str) -> Step<'static> {
        Step::new(name, || Err(Fault::System("seeded".to_owned())))
    }

    fn not_done(name: &'static str) -> Step<'static> {
        Step::new(name, || Ok(Outcome::NotDone("NOT RUN", "seeded".to_owned())))
    }

    #[track_caller]
    fn check(steps: Vec<Step<'_>>, fail_fast: bool, verdicts: &[&str], code: u8) {
        let done = in_order(steps, fail_fast);
        let said: Vec<&str> = done.iter().map(table::verdict).collect();
        assert_eq!(said, verdicts);
        assert_eq!(exit_code(&done), code);
    }

    #[test]
    fn a_failure_stops_later_steps_only_when_asked() {
        let steps = || vec![passing("a"), failing("b"), passing("c")];
        check(steps(), false, &["passed", "FAILED", "passed"], 1);
        check(steps(), true, &["passed", "FAILED", "NOT RUN"], 1);
        check(vec![broken("a"), passing("b")], true, &["BROKEN", "NOT RUN"], 2);
    }

    #[test]
    fn the_exit_code_tells_whose_turn_it_is() {
        check(vec![passing("a"), not_done("b")], false, &["passed", "NOT RUN"], 0);
        check(vec![broken("a"), failing("b")], false, &["BROKEN", "FAILED"], 1);
        check(vec![broken("a"), passing("b")], false, &["BROKEN", "passed"], 2);
    }

    #[test]
    fn a_step_not_done_does_not_stop_the_run() {
        check(vec![not_done("a"), passing("b")], true, &["NOT RUN", "passed"], 0);
    }

    #[test]
    fn a_program_is_judged_by_its_exit_code() {
        assert_eq!(program(&mut Command::new("true")), Ok(Outcome::Passed));
        assert_eq!(program(&mut Command::new("false")), Ok(Outcome::Failed("`false`".to_owned())));
    }
}
