//! Kills or interrupts imports at random moments and resumes them. Each table must be in its old or its new state,
//! never between, and at the end the database must equal that of an undisturbed import.
//!
//! Run as `cargo xtask crash import`. Owns the sequence of rounds and the output. `round` checks one round.

mod dataset;
mod fixture;
mod round;
mod state;
mod trials;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use gristmill_check::Rng;

use self::fixture::{Fixture, ImportMode, Scenario, Workdir};
use self::round::{ImportEnd, ImportRound};
use self::trials::Trial;
use crate::args::ProgramSettings;
use crate::cli_process::{self, Cli, CliExit, Fault, INTERRUPTED};
use crate::disk::Strace;
use crate::{Error, ErrorContext};

/// Rounds with one set of files: each import mode twice, and each trial.
const ROUNDS_PER_FIXTURE: u32 = 12;

const MAX_SHOWN: usize = 12;
/// Rounds with violations after which the run stops.
const MAX_BAD_ROUNDS: usize = 3;

/// System calls at which imports are killed (names of files, disk writes), and about how many of them an import makes.
const CALLS: [(&str, u64); 4] = [
    ("?link,linkat,?rename,?renameat,?unlink,unlinkat", 12),
    ("fsync,fdatasync", 30),
    ("pwrite64", 400),
    ("ftruncate", 10),
];

/// Returns whether no violation was found.
pub(crate) fn run(settings: &ProgramSettings) -> Result<bool, Error> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.context("cannot create a folder for the run")?;
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).context("cannot make the folder of the run readable")?;
    let seed = settings.seed.unwrap_or_else(gristmill_check::random_seed);
    println!("crash import: {} rounds, seed {seed}", settings.rounds);
    let program = settings.program.clone().map_or_else(cli_process::default_program, Ok)?;
    let cli = Cli::new(&program, folder.path())?;
    let strace = Strace::detect().is_ok();
    if !strace {
        println!("strace cannot be used here: processes are killed by time only");
    }
    let mut rounds = ImportRounds {
        cli: &cli,
        folder: folder.path(),
        rng: Rng::new(seed),
        strace,
        calls: BTreeMap::new(),
        times: BTreeMap::new(),
        counters: Counters::default(),
        bad_rounds: 0,
    };
    rounds.run_all(settings.rounds, seed)?;
    let passed = rounds.summarize(settings.rounds);
    println!("{:.1} s", began.elapsed().as_secs_f64());
    if settings.keep || !passed {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if passed { "no violations found" } else { "VIOLATIONS FOUND" });
    Ok(passed)
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

struct ImportRounds<'a> {
    cli: &'a Cli,
    folder: &'a Path,
    rng: Rng,
    strace: bool,
    /// About how many system calls of a name an import of a mode makes.
    calls: BTreeMap<(ImportMode, &'static str), u64>,
    /// About how long an import of a mode takes.
    times: BTreeMap<ImportMode, Duration>,
    counters: Counters,
    bad_rounds: usize,
}

impl ImportRounds<'_> {
    fn run_all(&mut self, rounds: u32, seed: u64) -> Result<(), Error> {
        let mut fixture: Option<Fixture> = None;
        for number in 1..=rounds {
            let (fixture_number, index) = ((number - 1) / ROUNDS_PER_FIXTURE, (number - 1) % ROUNDS_PER_FIXTURE);
            if index == 0 {
                fixture.take().map_or(Ok(()), Fixture::clear)?;
                let rng = Rng::new(seed.wrapping_add(u64::from(fixture_number) * 1_000_003));
                fixture = Some(Fixture::new(self.cli, &self.folder.join(format!("fixture{fixture_number}")), rng)?);
            }
            let Some(fixture) = &fixture else { continue };
            let scenario = |index: u32| &fixture.scenarios[index as usize % fixture.scenarios.len()];
            match index % 3 {
                // Every third round is a trial; the trial and the import mode alternate.
                2 => self.run_trial(
                    number,
                    Trial::ALL[(index / 3) as usize % Trial::ALL.len()],
                    scenario(fixture_number + index / 3),
                )?,
                _ => self.run_round(number, scenario(index - index / 3))?,
            }
            if self.bad_rounds >= MAX_BAD_ROUNDS {
                println!("{MAX_BAD_ROUNDS} rounds had violations: stopping");
                break;
            }
        }
        // With violations, the files are kept.
        match fixture {
            Some(fixture) if self.bad_rounds == 0 => fixture.clear(),
            _ => Ok(()),
        }
    }

    fn run_round(&mut self, number: u32, scenario: &Scenario) -> Result<(), Error> {
        let folder = self.folder.join(format!("round{number}"));
        let workdir = Workdir::create(self.cli, &folder)?;
        let wal = self.rng.percent(30);
        workdir.set_up(self.cli, scenario, wal)?;
        let copy = self.folder.join("dead.db");
        let mut round = ImportRound::new(self.cli, scenario, &workdir, &copy);
        let mut events = Vec::new();
        let mut resume = self.rng.percent(30);
        let mut done = false;
        for _ in 0..self.rng.u64(1..4) {
            let fault = self.choose_fault(scenario);
            let mut args = scenario.args(&workdir.database(), resume);
            args.extend(["--workers".into(), self.rng.u64(1..4).to_string().into()]);
            match self.cli.run_with_fault(&workdir.own_db(), &args, fault)? {
                CliExit::Killed => {
                    round.inspect(ImportEnd::Killed)?;
                    let stage = if round.is_complete() { 2 } else { usize::from(!round.loaded.is_empty()) };
                    self.counters.kills[stage] += 1;
                    events.push(format!("{fault}, {} tables loaded", round.loaded.len()));
                }
                CliExit::Failed { code: INTERRUPTED, .. } if matches!(fault, Fault::InterruptAfter(_)) => {
                    round.inspect(ImportEnd::Stopped { resume })?;
                    self.counters.interrupted += 1;
                    events.push(format!("{fault}, {} tables loaded", round.loaded.len()));
                }
                CliExit::Failed { code: Some(2), .. } if matches!(fault, Fault::FailCall(..)) => {
                    round.inspect(ImportEnd::Stopped { resume })?;
                    self.counters.failed += 1;
                    events.push(format!("{fault}, {} tables loaded", round.loaded.len()));
                }
                CliExit::Done(summary) => {
                    events.push(format!("{fault} too late"));
                    self.too_late(scenario, fault);
                    round.check_summary(&summary);
                    // The failed call may have been the WAL checkpoint at the end; the next import does that.
                    done = !matches!(fault, Fault::FailCall(..));
                    if !done {
                        round.inspect(ImportEnd::DiskFull)?;
                    }
                }
                CliExit::Failed { message, .. } => round.add_violation(format!("import failed ({fault}): {message}")),
            }
            if done || !round.violations.is_empty() {
                break;
            }
            // An existing database can only be resumed.
            resume = scenario.mode != ImportMode::New || round.is_complete() || self.rng.percent(60);
        }
        if !done && round.violations.is_empty() {
            match self.cli.run(&workdir.own_db(), &scenario.args(&workdir.database(), resume))? {
                CliExit::Done(summary) => round.check_summary(&summary),
                other => round.add_violation(format!("cannot resume the import: {other:?}")),
            }
        }
        if round.violations.is_empty() {
            round.inspect(ImportEnd::Done)?;
        }
        let (events, wal) = (events.join("; "), if wal && scenario.mode != ImportMode::New { ", wal" } else { "" });
        let resumed = if resume { "resumed" } else { "restarted" };
        println!("round {number:3}: {}{wal}: {events}; {resumed}", scenario.mode.name());
        self.close(number, &folder, &round.violations)
    }

    fn run_trial(&mut self, number: u32, trial: Trial, scenario: &Scenario) -> Result<(), Error> {
        let folder = self.folder.join(format!("round{number}"));
        let workdir = Workdir::create(self.cli, &folder)?;
        let copy = self.folder.join("dead.db");
        let mut round = ImportRound::new(self.cli, scenario, &workdir, &copy);
        let (description, happened) = match trial.run(&mut round, &mut self.rng) {
            Err(Error::Unsupported(why)) => (format!("NOT DONE: {why}"), false),
            other => other?,
        };
        *self.counters.trials.entry(trial).or_default() += u32::from(happened);
        println!("round {number:3}: {}: {}: {description}", scenario.mode.name(), trial.name());
        self.close(number, &folder, &round.violations)
    }

    /// Prints the violations of a round. Removes its files if there are none.
    fn close(&mut self, number: u32, folder: &Path, violations: &[String]) -> Result<(), Error> {
        for violation in violations.iter().take(MAX_SHOWN) {
            println!("VIOLATION: round {number}: {violation}");
        }
        if violations.len() > MAX_SHOWN {
            println!("… and {} more", violations.len() - MAX_SHOWN);
        }
        if violations.is_empty() {
            return std::fs::remove_dir_all(folder).context("cannot remove the folder of a round");
        }
        self.bad_rounds += 1;
        Ok(())
    }

    fn choose_fault(&mut self, scenario: &Scenario) -> Fault {
        if self.strace && self.rng.percent(50) {
            // A new database gets its name in few calls, so these are chosen more often.
            let naming = scenario.mode == ImportMode::New && self.rng.percent(30);
            let (name, first) = if naming { CALLS[0] } else { CALLS[self.rng.usize(..CALLS.len())] };
            let max = *self.calls.entry((scenario.mode, name)).or_insert(first);
            let number = self.rng.u64(1..max + 1);
            // An import cannot handle a file that cannot be removed, so these calls do not fail.
            let fails = name != CALLS[0].0 && self.rng.percent(30);
            return if fails { Fault::FailCall(name, number) } else { Fault::KillAtCall(name, number) };
        }
        let duration = *self.times.entry(scenario.mode).or_insert(scenario.duration);
        // Early and late moments are more frequent.
        let tenths = [3, 10, 12][self.rng.usize(..3)];
        let max = u64::try_from(duration.as_micros()).unwrap_or(0) * tenths / 10 + 1;
        let min = if tenths == 12 { max * 3 / 4 } else { 0 };
        let time = Duration::from_micros(self.rng.u64(min..max));
        if self.rng.percent(40) { Fault::InterruptAfter(time) } else { Fault::KillAfter(time) }
    }

    /// Adjusts the estimated number of calls, or the estimated duration, after a fault that came too late.
    fn too_late(&mut self, scenario: &Scenario, fault: Fault) {
        self.counters.too_late += 1;
        match fault {
            Fault::KillAtCall(name, number) | Fault::FailCall(name, number) => {
                self.calls.insert((scenario.mode, name), (number * 4 / 5).max(4));
            }
            Fault::KillAfter(time) | Fault::InterruptAfter(time) => {
                self.times.entry(scenario.mode).and_modify(|duration| *duration = time.min(*duration));
            }
        }
    }

    fn summarize(&self, rounds: u32) -> bool {
        let Counters { kills: [early, between, late], interrupted, failed, too_late, trials } = &self.counters;
        println!(
            "{} kills: {early} before the first table was loaded, {between} between, {late} after the last; \
             {interrupted} interrupted, {failed} failed, {too_late} too late",
            early + between + late
        );
        let trials: Vec<String> = trials.iter().map(|(trial, count)| format!("{}: {count}", trial.name())).collect();
        println!("trials: {}", trials.join(", "));
        let idle = rounds >= 2 * ROUNDS_PER_FIXTURE
            && self.bad_rounds == 0
            && (*early == 0 || *between == 0 || *interrupted == 0);
        if idle {
            println!(
                "VIOLATION: no import was killed early, or none between, or none interrupted: the run tested nothing"
            );
        }
        self.bad_rounds == 0 && !idle
    }
}
