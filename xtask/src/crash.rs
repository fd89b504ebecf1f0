//! Crash runs: real workers, scans, imports and consumers killed at random, on sound and on bad disks.
//!
//! Owns how `gristmill-crash` is built and called, and how much of it the whole test run has. What is killed when,
//! and what must be true afterwards, is known in `crash/` alone.

use std::process::{Command, ExitCode};

use crate::args::{CrashOptions, Disk, Victim};
use crate::fault::Fault;
use crate::needs;
use crate::step::{Outcome, Step, program, run_all};
use crate::workspace::{Workspace, ending, shown, watched};

/// How a crash run says that this machine does not allow it: this exit code, and a line that begins so.
const NOT_HERE: i32 = 3;
const NOT_DONE: &str = "NOT DONE: ";

/// Of each victim and disk, the rounds in the whole test run.
const ROUNDS: [(Victim, Disk, u32); 6] = [
    (Victim::Jobs, Disk::Sound, 50),
    (Victim::Jobs, Disk::Full, 5),
    (Victim::Jobs, Disk::Failing, 10),
    (Victim::Scan, Disk::Sound, 50),
    (Victim::Import, Disk::Sound, 36),
    (Victim::Consume, Disk::Sound, 6),
];

impl CrashOptions {
    fn step(self) -> &'static str {
        match (self.victim, self.disk) {
            (Victim::Jobs, Disk::Sound) => "crash jobs",
            (Victim::Jobs, Disk::Full) => "crash enospc",
            (Victim::Jobs, Disk::Failing) => "crash eio",
            (Victim::Scan, _) => "crash scan",
            (Victim::Import, _) => "crash import",
            (Victim::Consume, _) => "crash consume",
        }
    }
}

/// The commands `cargo xtask crash jobs`, and the same of `scan`, `import` and `consume`.
pub(crate) fn run(workspace: &Workspace, options: CrashOptions) -> ExitCode {
    let step = Step::new(options.step(), || crash(workspace, options));
    run_all(vec![step], false)
}

/// What the whole test run has of it.
pub(crate) fn steps(workspace: &Workspace) -> Vec<Step<'_>> {
    let step = |(victim, disk, rounds): (Victim, Disk, u32)| {
        let options = CrashOptions { victim, disk, rounds: Some(rounds), seed: None };
        Step::new(options.step(), move || crash(workspace, options))
    };
    ROUNDS.into_iter().map(step).collect()
}

fn crash(workspace: &Workspace, options: CrashOptions) -> Result<Outcome, Fault> {
    if options.victim != Victim::Jobs {
        // The program that is killed lies beside the one that kills.
        let built = program(&mut workspace.cargo(["build", "--quiet", "-p", "gristmill"]))?;
        if built != Outcome::Passed {
            return Ok(built);
        }
    }
    if options.victim == Victim::Consume {
        needs::set_up_broker(workspace)?;
    }
    judged(&mut command(workspace, options))
}

fn command(workspace: &Workspace, options: CrashOptions) -> Command {
    let mut command = workspace.cargo(["run", "--quiet", "-p", "gristmill-crash", "--"]);
    match options.victim {
        Victim::Jobs => command.args(["run", "--fault", options.disk.name()]),
        Victim::Scan => command.arg("scan"),
        Victim::Import => command.arg("import"),
        Victim::Consume => command.arg("consume"),
    };
    if let Some(rounds) = options.rounds {
        command.args(["--rounds", &rounds.to_string()]);
    }
    if let Some(seed) = options.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command
}

/// A run that could not be done here is neither passed nor failed, and says why.
fn judged(command: &mut Command) -> Result<Outcome, Fault> {
    let line = shown(command);
    println!("{line}");
    let mut why = None;
    let status = watched(command, |line| {
        why = why.take().or_else(|| line.strip_prefix(NOT_DONE).map(str::to_owned));
    })?;
    Ok(match (status.success(), status.code(), why) {
        (true, ..) => Outcome::Passed,
        (false, Some(NOT_HERE), Some(why)) => Outcome::NotDone("NOT DONE", why),
        _ => Outcome::Failed(format!("`{line}`: {}", ending(status))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(options: CrashOptions, expected: &str) {
        let workspace = Workspace::find().unwrap();
        assert_eq!(shown(&command(&workspace, options)), expected);
    }

    #[test]
    fn only_what_was_said_is_handed_over() {
        let line = "cargo run --quiet -p gristmill-crash -- run --fault";
        check(CrashOptions::default(), &format!("{line} none"));
        let options = CrashOptions { victim: Victim::Jobs, disk: Disk::Full, rounds: Some(7), seed: Some(9) };
        check(options, &format!("{line} enospc --rounds 7 --seed 9"));
        let options = CrashOptions { victim: Victim::Scan, disk: Disk::Sound, ..options };
        check(options, "cargo run --quiet -p gristmill-crash -- scan --rounds 7 --seed 9");
        let options = CrashOptions { victim: Victim::Import, seed: None, ..options };
        check(options, "cargo run --quiet -p gristmill-crash -- import --rounds 7");
        let options = CrashOptions { victim: Victim::Consume, rounds: None, ..options };
        check(options, "cargo run --quiet -p gristmill-crash -- consume");
    }

    #[track_caller]
    fn check_judged(script: &str, expected: &Outcome) {
        let outcome = judged(Command::new("sh").args(["-c", script])).unwrap();
        match (&outcome, expected) {
            (Outcome::Failed(_), Outcome::Failed(_)) => {}
            _ => assert_eq!(&outcome, expected, "{script}"),
        }
    }

    #[test]
    fn a_run_that_is_not_allowed_here_has_not_failed() {
        let failed = Outcome::Failed(String::new());
        check_judged("echo all is well", &Outcome::Passed);
        check_judged("echo NOT WELL; exit 1", &failed);
        check_judged(
            "echo NOT DONE: no strace; exit 3",
            &Outcome::NotDone("NOT DONE", "no strace".to_owned()),
        );
        check_judged("exit 3", &failed);
        check_judged("echo NOT DONE: no strace; exit 1", &failed);
    }
}
