//! Kills or interrupts imports at random moments and resumes them. Each table must be in its old or its new state,
//! never between, and at the end the database must equal that of an undisturbed import.
//!
//! Run as `cargo xtask crash import`. Owns the choice of faults. `fixture` has the files and the undisturbed imports,
//! `round` checks what an import leaves, `trials` are the rounds without a kill.

mod dataset;
mod fixture;
mod round;
mod state;
mod trials;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use gristmill_check::Rng;
use serde_json::Value;

use self::fixture::{Fixture, ImportMode, Workdir};
use self::round::{Import, ImportEnd};
use self::trials::Trial;
use crate::args::ProgramArgs;
use crate::cli::{Cli, CliExit, INTERRUPTED};
use crate::faults::{Estimates, Fault};
use crate::harness::{self, Named, Resumable, Round, Run, Workload, disturb_and_resume};
use crate::{Error, ErrorContext};

/// Rounds with one set of files: each import mode twice, and each trial.
const ROUNDS_PER_FIXTURE: u32 = 12;

/// System calls at which imports are killed (names of files, disk writes), and about how many of them an import makes.
const CALLS: [(&str, u64); 4] = [
    ("?link,linkat,?rename,?renameat,?unlink,unlinkat", 12),
    ("fsync,fdatasync", 30),
    ("pwrite64", 400),
    ("ftruncate", 10),
];

/// Returns whether no violation was found.
pub(crate) fn run(args: &ProgramArgs) -> Result<bool, Error> {
    harness::run_commands("import", args, |cli, strace| {
        Ok(Imports { cli, strace, fixture: None, estimates: Estimates::new(), counters: Counters::default() })
    })
}

/// Counts of what happened, to detect a run that tested nothing.
#[derive(Debug, Default)]
struct Counters {
    /// Kills before the first table was loaded, between, and after the last.
    kills: [u32; 3],
    interrupted: u32,
    failed: u32,
    too_late: u32,
    /// Trials in which the intended situation occurred.
    trials: BTreeMap<Trial, u32>,
}

struct Imports {
    cli: Cli,
    strace: bool,
    fixture: Option<Fixture>,
    estimates: Estimates<ImportMode>,
    counters: Counters,
}

impl Workload for Imports {
    fn round(&mut self, run: &mut Run, round: &mut Round) -> Result<(), Error> {
        let index = (round.number - 1) % ROUNDS_PER_FIXTURE;
        let fixture_number = (round.number - 1) / ROUNDS_PER_FIXTURE;
        let fixture = match self.fixture.take() {
            Some(fixture) if index > 0 => fixture,
            earlier => {
                earlier.map_or(Ok(()), Fixture::clear)?;
                let folder = run.folder.join(format!("fixture{fixture_number}"));
                Fixture::new(&self.cli, &folder, run.rng_of(fixture_number))?
            }
        };
        // Every third round is a trial; the trial and the import mode alternate.
        let trial = (index % 3 == 2).then(|| Trial::ALL[(index / 3) as usize % Trial::ALL.len()]);
        let scenario = if trial.is_some() { fixture_number + index / 3 } else { index - index / 3 };
        let scenario = &fixture.scenarios[scenario as usize % fixture.scenarios.len()];
        let folder = run.round_folder(round.number);
        let (workdir, copy) = (Workdir::create(&self.cli, &folder)?, run.folder.join("dead.db"));
        let mut import = Import::new(&self.cli, scenario, &workdir, &copy);
        round.title = scenario.mode.name();
        if let Some(trial) = trial {
            round.title += &format!(": {}", trial.name());
            let happened = trial.run(&mut import, &mut run.rng, round)?;
            *self.counters.trials.entry(trial).or_default() += u32::from(happened);
        } else {
            let wal = run.rng.percent(30);
            workdir.set_up(&self.cli, scenario, wal)?;
            round.title += if wal && scenario.mode != ImportMode::New { ", wal" } else { "" };
            let (resume, attempts) = (run.rng.percent(30), run.rng.u64(1..4));
            let (estimates, counters, rng) = (&mut self.estimates, &mut self.counters, &mut run.rng);
            let mut work = Disturbed { import, strace: self.strace, estimates, counters, rng, resume };
            disturb_and_resume(&mut work, (&self.cli, &workdir.own_db()), attempts, round)?;
            round.event(if work.resume { "resumed" } else { "restarted" });
            if !round.has_violations() {
                work.import.inspect(ImportEnd::Done, round)?;
            }
        }
        if !round.has_violations() {
            std::fs::remove_dir_all(folder).context("cannot remove the folder of a round")?;
        }
        self.fixture = Some(fixture);
        Ok(())
    }

    fn finish(self, run: &Run) -> Result<Vec<String>, Error> {
        let Counters { kills: [early, between, late], interrupted, failed, too_late, trials } = self.counters;
        println!(
            "{} kills: {early} before the first table was loaded, {between} between, {late} after the last; \
             {interrupted} interrupted, {failed} failed, {too_late} too late",
            early + between + late
        );
        let trials: Vec<String> = trials.iter().map(|(trial, count)| format!("{}: {count}", trial.name())).collect();
        println!("trials: {}", trials.join(", "));
        let idle =
            run.rounds >= 2 * ROUNDS_PER_FIXTURE && run.bad_rounds == 0 && [early, between, interrupted].contains(&0);
        let text = "no import was killed early, or none between, or none interrupted: the run tested nothing";
        Ok(if idle { vec![text.to_owned()] } else { Vec::new() })
    }
}

/// The import of a round with kills.
struct Disturbed<'a> {
    import: Import<'a>,
    strace: bool,
    estimates: &'a mut Estimates<ImportMode>,
    counters: &'a mut Counters,
    rng: &'a mut Rng,
    /// Whether the next attempt resumes the import.
    resume: bool,
}

impl Disturbed<'_> {
    fn choose_fault(&mut self) -> Fault {
        let (scenario, rng) = (self.import.scenario, &mut *self.rng);
        if self.strace && rng.percent(50) {
            // A new database gets its name in few calls, so these are chosen more often.
            let naming = scenario.mode == ImportMode::New && rng.percent(30);
            let call = if naming { CALLS[0] } else { *rng.pick(&CALLS) };
            let number = self.estimates.call(scenario.mode, call, rng);
            // An import cannot handle a file that cannot be removed, so these calls do not fail.
            let fails = call != CALLS[0] && rng.percent(30);
            return if fails { Fault::FailCall(call.0, number) } else { Fault::KillAtCall(call.0, number) };
        }
        let duration = self.estimates.duration(scenario.mode, scenario.duration);
        // Early and late moments are more frequent.
        let tenths = *rng.pick(&[3, 10, 12]);
        let max = u64::try_from(duration.as_micros()).unwrap_or(0) * tenths / 10 + 1;
        let min = if tenths == 12 { max * 3 / 4 } else { 0 };
        let time = Duration::from_micros(rng.u64(min..max));
        if rng.percent(40) { Fault::InterruptAfter(time) } else { Fault::KillAfter(time) }
    }
}

impl Resumable for Disturbed<'_> {
    fn next_attempt(&mut self) -> (Vec<OsString>, Fault) {
        let fault = self.choose_fault();
        let mut args = self.resume_args();
        args.extend(["--workers".into(), self.rng.u64(1..4).to_string().into()]);
        (args, fault)
    }

    fn check_attempt(&mut self, fault: Fault, exit: CliExit, round: &mut Round) -> Result<bool, Error> {
        let end = match (exit, fault) {
            (CliExit::Killed, _) => ImportEnd::Killed,
            (CliExit::Failed { code: INTERRUPTED, .. }, Fault::InterruptAfter(_))
            | (CliExit::Failed { code: Some(2), .. }, Fault::FailCall(..)) => {
                ImportEnd::Stopped { resume: self.resume }
            }
            (CliExit::Done(summary), _) => {
                round.event(format!("{fault} too late"));
                self.counters.too_late += 1;
                self.estimates.too_late(self.import.scenario.mode, fault);
                self.import.check_summary(&summary, round);
                if !matches!(fault, Fault::FailCall(..)) {
                    return Ok(true);
                }
                // The failed call may have been the WAL checkpoint at the end; the next import does that.
                ImportEnd::DiskFull
            }
            (CliExit::Failed { message, .. }, _) => {
                round.violation(format!("import failed ({fault}): {message}"));
                return Ok(false);
            }
        };
        self.import.inspect(end, round)?;
        let loaded = &self.import.loaded;
        match end {
            ImportEnd::Killed => {
                let stage = if self.import.is_complete() { 2 } else { usize::from(!loaded.is_empty()) };
                self.counters.kills[stage] += 1;
            }
            ImportEnd::Stopped { .. } if matches!(fault, Fault::FailCall(..)) => self.counters.failed += 1,
            ImportEnd::Stopped { .. } => self.counters.interrupted += 1,
            ImportEnd::DiskFull | ImportEnd::Done => {}
        }
        if end != ImportEnd::DiskFull {
            round.event(format!("{fault}, {} tables loaded", loaded.len()));
        }
        // An existing database can only be resumed.
        self.resume = self.import.scenario.mode != ImportMode::New || self.import.is_complete() || self.rng.percent(60);
        Ok(false)
    }

    fn resume_args(&self) -> Vec<OsString> {
        self.import.scenario.args(&self.import.workdir.database(), self.resume)
    }

    fn check_summary(&mut self, summary: &Value, round: &mut Round) {
        self.import.check_summary(summary, round);
    }
}
