//! The harness of all runs: the folder, the seed, the rounds, their output, and the result.
//!
//! A [`Workload`] says what differs: how work is produced, which processes run and are killed, and how the state that
//! they leave is checked. Faults are in `faults` and `disk`, processes in `process` and `cli`.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use gristmill_check::Rng;
use serde_json::Value;

use crate::args::{ProgramArgs, RunArgs};
use crate::cli::{Cli, CliExit};
use crate::disk::Strace;
use crate::faults::Fault;
use crate::{Error, ErrorContext};

/// Violations of a round that are printed; the rest is counted.
const MAX_SHOWN: usize = 12;

/// Rounds with violations after which the run stops.
const MAX_BAD_ROUNDS: u32 = 3;

/// What a run does in its rounds.
pub(crate) trait Workload {
    /// Runs one round. Adds what happened and the violations to `round`.
    fn round(&mut self, run: &mut Run, round: &mut Round) -> Result<(), Error>;

    /// Ends the work after the last round, prints the counts, and returns violations by the run as a whole, such as that
    /// it tested nothing.
    fn finish(self, run: &Run) -> Result<Vec<String>, Error>;
}

/// A run, as its rounds see it.
pub(crate) struct Run {
    /// Folder that is removed at the end, unless there are violations. All users can read it.
    pub(crate) folder: PathBuf,
    pub(crate) rounds: u32,
    pub(crate) seed: u64,
    /// Random choices, which follow from the seed.
    pub(crate) rng: Rng,
    /// Whether the files are kept in any case.
    pub(crate) keep: bool,
    pub(crate) bad_rounds: u32,
}

impl Run {
    /// Returns a generator of random choices for one part of the run, which do not depend on those of other parts.
    pub(crate) fn rng_of(&self, part: u32) -> Rng {
        Rng::new(self.seed.wrapping_add(u64::from(part) * 1_000_003))
    }

    /// Returns the folder of a round.
    pub(crate) fn round_folder(&self, number: u32) -> PathBuf {
        self.folder.join(format!("round{number}"))
    }
}

/// A choice with a name in the output.
pub(crate) trait Named: ValueEnum {
    fn name(&self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl<T: ValueEnum> Named for T {}

/// What happened in a round.
#[derive(Default)]
pub(crate) struct Round {
    /// Number from 1.
    pub(crate) number: u32,
    /// Description in the output, before the events.
    pub(crate) title: String,
    pub(crate) events: Vec<String>,
    pub(crate) violations: Vec<String>,
}

impl Round {
    pub(crate) fn event(&mut self, what: impl Into<String>) {
        self.events.push(what.into());
    }

    pub(crate) fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Adds what SQLite's checks report.
    pub(crate) fn damage(&mut self, damage: &[String]) {
        self.violations.extend(damage.iter().map(|line| format!("integrity: {line}")));
    }

    pub(crate) fn has_violations(&self) -> bool {
        !self.violations.is_empty()
    }

    pub(crate) fn summary(&self) -> String {
        let events = if self.events.is_empty() { "no fault".to_owned() } else { self.events.join("; ") };
        if self.title.is_empty() { events } else { format!("{}: {events}", self.title) }
    }
}

/// Runs a workload; `title` begins the output, `details` ends its first line. Returns whether no violation was found.
pub(crate) fn run<W: Workload>(
    title: &str,
    details: &str,
    args: &RunArgs,
    start: impl FnOnce(&Run) -> Result<W, Error>,
) -> Result<bool, Error> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.context("cannot create a folder for the run")?;
    let readable = std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755));
    readable.context("cannot make the folder of the run readable")?;
    let seed = args.seed.unwrap_or_else(gristmill_check::random_seed);
    println!("crash {title}: {} rounds, seed {seed}{details}", args.rounds);
    let (path, rng) = (folder.path().to_path_buf(), Rng::new(seed));
    let mut run = Run { folder: path, rounds: args.rounds, seed, rng, keep: args.keep, bad_rounds: 0 };
    let mut workload = start(&run)?;
    for number in 1..=args.rounds {
        let mut round = Round { number, ..Round::default() };
        workload.round(&mut run, &mut round)?;
        println!("round {number:3}: {}", round.summary());
        print_violations(&format!("seed {seed}, round {number}: "), &round.violations);
        run.bad_rounds += u32::from(round.has_violations());
        if run.bad_rounds == MAX_BAD_ROUNDS {
            println!("{MAX_BAD_ROUNDS} rounds had violations: stopping");
            break;
        }
    }
    let violations = workload.finish(&run)?;
    print_violations("", &violations);
    println!("{:.1} s", began.elapsed().as_secs_f64());
    let passed = run.bad_rounds == 0 && violations.is_empty();
    if args.keep || !passed {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if passed { "no violations found" } else { "VIOLATIONS FOUND" });
    Ok(passed)
}

fn print_violations(prefix: &str, violations: &[String]) {
    for violation in violations.iter().take(MAX_SHOWN) {
        println!("VIOLATION: {prefix}{violation}");
    }
    if violations.len() > MAX_SHOWN {
        println!("… and {} more", violations.len() - MAX_SHOWN);
    }
}

/// Runs a workload of `gristmill` commands; `start` also learns whether `strace` can be used. Faults at system calls are
/// left out if not.
pub(crate) fn run_commands<W: Workload>(
    title: &str,
    args: &ProgramArgs,
    start: impl FnOnce(Cli, bool) -> Result<W, Error>,
) -> Result<bool, Error> {
    run(title, "", &args.run, |run| {
        let cli = Cli::new(args.program.as_deref(), &run.folder)?;
        let strace = Strace::detect().is_ok();
        if !strace {
            println!("strace cannot be used here: processes are killed by time only");
        }
        start(cli, strace)
    })
}

/// A command that is disturbed by faults and then resumed.
pub(crate) trait Resumable {
    /// Chooses the arguments of the next attempt, and its fault.
    fn next_attempt(&mut self) -> (Vec<OsString>, Fault);

    /// Checks what a disturbed attempt has left. Returns whether the work is complete.
    fn check_attempt(&mut self, fault: Fault, exit: CliExit, round: &mut Round) -> Result<bool, Error>;

    /// Returns the arguments that complete the work.
    fn resume_args(&self) -> Vec<OsString>;

    /// Checks the output of an attempt that completed the work.
    fn check_summary(&mut self, summary: &Value, round: &mut Round);
}

/// Runs a command with a fault up to `attempts` times, until it is complete or a violation is found, and then to its end.
pub(crate) fn disturb_and_resume(
    work: &mut impl Resumable,
    (cli, database): (&Cli, &Path),
    attempts: u64,
    round: &mut Round,
) -> Result<(), Error> {
    for _ in 0..attempts {
        let (args, fault) = work.next_attempt();
        let exit = cli.run_with_fault(database, &args, fault)?;
        if work.check_attempt(fault, exit, round)? || round.has_violations() {
            return Ok(());
        }
    }
    match cli.run(database, &work.resume_args())? {
        CliExit::Done(summary) => work.check_summary(&summary, round),
        other => round.violation(format!("cannot resume the work: {other:?}")),
    }
    Ok(())
}
