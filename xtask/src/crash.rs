//! Crash runs: real workers, scans, imports and consumers that are killed at random, on healthy and on faulty disks.
//!
//! Owns how `gristmill-crash` is built and called, and the number of rounds in the whole test run. `crash/` defines the
//! kills and the rules that must hold afterwards.

use std::process::{Command, ExitCode};

use crate::args::{CrashOptions, CrashTarget, Disk};
use crate::error::Error;
use crate::step::{Outcome, Step, program, run_all};
use crate::tools;
use crate::workspace::{Workspace, describe_exit, display, watch_stdout};

/// Exit code, and beginning of the line, by which a crash run reports that this machine does not support it.
const NOT_DONE_CODE: i32 = 3;
const NOT_DONE_PREFIX: &str = "NOT DONE: ";

/// Rounds in the whole test run, by target and disk.
const ROUNDS: [(CrashTarget, Disk, u32); 6] = [
    (CrashTarget::Jobs, Disk::Healthy, 50),
    (CrashTarget::Jobs, Disk::Full, 5),
    (CrashTarget::Jobs, Disk::Failing, 10),
    (CrashTarget::Scan, Disk::Healthy, 50),
    (CrashTarget::Import, Disk::Healthy, 36),
    (CrashTarget::Consume, Disk::Healthy, 6),
];

impl CrashOptions {
    fn step(self) -> &'static str {
        match (self.target, self.disk) {
            (CrashTarget::Jobs, Disk::Healthy) => "crash jobs",
            (CrashTarget::Jobs, Disk::Full) => "crash enospc",
            (CrashTarget::Jobs, Disk::Failing) => "crash eio",
            (CrashTarget::Scan, _) => "crash scan",
            (CrashTarget::Import, _) => "crash import",
            (CrashTarget::Consume, _) => "crash consume",
        }
    }
}

pub(crate) fn run(workspace: &Workspace, options: CrashOptions) -> ExitCode {
    let step = Step::new(options.step(), || crash(workspace, options));
    run_all(vec![step], false)
}

pub(crate) fn steps(workspace: &Workspace) -> Vec<Step<'_>> {
    let step = |(target, disk, rounds): (CrashTarget, Disk, u32)| {
        let options = CrashOptions { target, disk, rounds: Some(rounds), seed: None };
        Step::new(options.step(), move || crash(workspace, options))
    };
    ROUNDS.into_iter().map(step).collect()
}

fn crash(workspace: &Workspace, options: CrashOptions) -> Result<Outcome, Error> {
    if options.target != CrashTarget::Jobs {
        // The killed program must be in the same folder as the one that kills.
        let built = program(&mut workspace.cargo(["build", "--quiet", "-p", "gristmill"]))?;
        if built != Outcome::Passed {
            return Ok(built);
        }
    }
    if options.target == CrashTarget::Consume {
        tools::set_up_broker(workspace)?;
    }
    run_and_classify(&mut command(workspace, options))
}

fn command(workspace: &Workspace, options: CrashOptions) -> Command {
    let mut command = workspace.cargo(["run", "--quiet", "-p", "gristmill-crash", "--"]);
    match options.target {
        CrashTarget::Jobs => command.args(["run", "--fault", options.disk.name()]),
        CrashTarget::Scan => command.arg("scan"),
        CrashTarget::Import => command.arg("import"),
        CrashTarget::Consume => command.arg("consume"),
    };
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
    fn check(options: CrashOptions, expected: &str) {
        let workspace = Workspace::find().unwrap();
        assert_eq!(display(&command(&workspace, options)), expected);
    }

    #[test]
    fn only_given_options_are_passed_on() {
        let line = "cargo run --quiet -p gristmill-crash -- run --fault";
        check(CrashOptions::default(), &format!("{line} none"));
        let options = CrashOptions { target: CrashTarget::Jobs, disk: Disk::Full, rounds: Some(7), seed: Some(9) };
        check(options, &format!("{line} enospc --rounds 7 --seed 9"));
        let options = CrashOptions { target: CrashTarget::Scan, disk: Disk::Healthy, ..options };
        check(options, "cargo run --quiet -p gristmill-crash -- scan --rounds 7 --seed 9");
        let options = CrashOptions { target: CrashTarget::Import, seed: None, ..options };
        check(options, "cargo run --quiet -p gristmill-crash -- import --rounds 7");
        let options = CrashOptions { target: CrashTarget::Consume, rounds: None, ..options };
        check(options, "cargo run --quiet -p gristmill-crash -- consume");
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
