//! Crash runs: real workers, scans, imports and consumers that are killed at random, on healthy and on faulty disks.
//!
//! Owns how `gristmill-crash` is built and called, and the number of rounds in the whole test run. `crash/` defines the
//! kills and the rules that must hold afterwards.

use std::process::{Command, ExitCode};

use crate::args::{Crash, CrashOptions, Disk};
use crate::error::Error;
use crate::step::{Outcome, Step, program, run_all};
use crate::tools;
use crate::workspace::{Workspace, describe_exit, display, watch_stdout};

/// Exit code, and beginning of the line, by which a crash run reports that this machine does not support it.
const NOT_DONE_CODE: i32 = 3;
const NOT_DONE_PREFIX: &str = "NOT DONE: ";

/// Crash runs of the whole test run, with their rounds.
fn suite() -> [Crash; 6] {
    let options = |rounds| CrashOptions { rounds: Some(rounds), seed: None };
    let jobs = |fault, rounds| Crash::Jobs { options: options(rounds), fault };
    [
        jobs(Disk::None, 50),
        jobs(Disk::Enospc, 5),
        jobs(Disk::Eio, 10),
        Crash::Scan(options(50)),
        Crash::Import(options(36)),
        Crash::Consume(options(6)),
    ]
}

/// Returns the name of the step of a crash run, its arguments, and its options.
fn describe(crash: Crash) -> (&'static str, &'static str, CrashOptions) {
    match crash {
        Crash::Jobs { options, fault: Disk::None } => ("crash jobs", "run --fault none", options),
        Crash::Jobs { options, fault: Disk::Enospc } => ("crash enospc", "run --fault enospc", options),
        Crash::Jobs { options, fault: Disk::Eio } => ("crash eio", "run --fault eio", options),
        Crash::Scan(options) => ("crash scan", "scan", options),
        Crash::Import(options) => ("crash import", "import", options),
        Crash::Consume(options) => ("crash consume", "consume", options),
    }
}

pub(crate) fn run(workspace: &Workspace, crash: Crash) -> ExitCode {
    run_all(vec![step(workspace, crash)], false)
}

pub(crate) fn steps(workspace: &Workspace) -> Vec<Step<'_>> {
    suite().map(|crash| step(workspace, crash)).into()
}

fn step(workspace: &Workspace, crash: Crash) -> Step<'_> {
    Step::new(describe(crash).0, move || {
        if !matches!(crash, Crash::Jobs { .. }) {
            // The killed program must be in the same folder as the one that kills.
            let built = program(&mut workspace.cargo(["build", "--quiet", "-p", "gristmill"]))?;
            if built != Outcome::Passed {
                return Ok(built);
            }
        }
        if matches!(crash, Crash::Consume(_)) {
            tools::set_up_broker()?;
        }
        run_and_classify(&mut command(workspace, crash))
    })
}

fn command(workspace: &Workspace, crash: Crash) -> Command {
    let mut command = workspace.cargo(["run", "--quiet", "-p", "gristmill-crash", "--"]);
    let (_, args, options) = describe(crash);
    command.args(args.split(' '));
    if let Some(rounds) = options.rounds {
        command.args(["--rounds", &rounds.to_string()]);
    }
    if let Some(seed) = options.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command
}

/// Runs the command. A run that this machine does not support has neither passed nor failed.
fn run_and_classify(command: &mut Command) -> Result<Outcome, Error> {
    let line = display(command);
    println!("{line}");
    let mut why = None;
    let status = watch_stdout(command, |line| {
        why = why.take().or_else(|| line.strip_prefix(NOT_DONE_PREFIX).map(str::to_owned));
    })?;
    Ok(match (status.success(), status.code(), why) {
        (true, ..) => Outcome::Passed,
        (false, Some(NOT_DONE_CODE), Some(why)) => Outcome::NotDone("NOT DONE", why),
        _ => Outcome::Failed(format!("`{line}`: {}", describe_exit(status))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(crash: Crash, expected: &str) {
        let workspace = Workspace::find().unwrap();
        assert_eq!(display(&command(&workspace, crash)), format!("cargo run --quiet -p gristmill-crash -- {expected}"));
    }

    #[test]
    fn only_given_options_are_passed_on() {
        let options = |rounds, seed| CrashOptions { rounds, seed };
        check(Crash::Jobs { options: options(None, None), fault: Disk::None }, "run --fault none");
        let jobs = Crash::Jobs { options: options(Some(7), Some(9)), fault: Disk::Enospc };
        check(jobs, "run --fault enospc --rounds 7 --seed 9");
        check(Crash::Scan(options(Some(7), Some(9))), "scan --rounds 7 --seed 9");
        check(Crash::Import(options(Some(7), None)), "import --rounds 7");
        check(Crash::Consume(options(None, None)), "consume");
    }

    #[track_caller]
    fn check_classified(script: &str, expected: &Outcome) {
        let outcome = run_and_classify(Command::new("sh").args(["-c", script])).unwrap();
        match (&outcome, expected) {
            (Outcome::Failed(_), Outcome::Failed(_)) => {}
            _ => assert_eq!(&outcome, expected, "{script}"),
        }
    }

    #[test]
    fn unsupported_run_is_not_done_and_not_failed() {
        let failed = Outcome::Failed(String::new());
        check_classified("echo ok", &Outcome::Passed);
        check_classified("echo failed; exit 1", &failed);
        check_classified("echo NOT DONE: no strace; exit 3", &Outcome::NotDone("NOT DONE", "no strace".to_owned()));
        check_classified("exit 3", &failed);
        check_classified("echo NOT DONE: no strace; exit 1", &failed);
    }
}
