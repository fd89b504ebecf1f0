//! Kills scans at random moments and resumes them. The catalog must equal that of an undisturbed scan, row for row, and
//! committed work must not be repeated.
//!
//! Run as `cargo xtask crash scan`. Owns the rounds, their checks, and the output.

mod catalog_diff;
mod fixture;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use gristmill_check::Rng;
use serde_json::Value;

use self::catalog_diff::{CatalogPair, Phase, RemainingWork};
use self::fixture::{Fixture, Scenario, Variant, dupes, reset_database};
use crate::args::ProgramSettings;
use crate::cli_process::{self, Cli, CliExit, Fault};
use crate::database::copy;
use crate::disk::Strace;
use crate::{Error, ErrorContext};

/// Rounds with one tree.
const ROUNDS_PER_TREE: u32 = 6;
/// Round of a tree, counted from 0, before which the tree changes.
const CHANGE_ROUND: u32 = 2;
/// Round of a tree from which on the tree is the same as in the scan before.
const UNCHANGED_ROUND: u32 = 5;

const MAX_SHOWN: usize = 12;
/// Rounds with violations after which the run stops.
const MAX_BAD_ROUNDS: usize = 3;

/// Differing rows that are printed for each table.
const MAX_SHOWN_ROWS: usize = 4;

/// Extra duration of a scan with `--io-limit`. With `CRAWL_DELAY` a scan commits several times while it walks one
/// folder, and is always killed early, because a kill comes at most `MAX_KILL_DELAY` later than without the limit.
const SLOW_DELAY: Duration = Duration::from_millis(250);
const CRAWL_DELAY: Duration = Duration::from_secs(6);
const MAX_KILL_DELAY: Duration = Duration::from_millis(700);

/// System calls at which scans are killed.
const SYNC: &str = "fsync,fdatasync";
const WRITE: &str = "pwrite64";

/// Returns whether no violation was found.
pub(crate) fn run(settings: &ProgramSettings) -> Result<bool, Error> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.context("cannot create a folder for the run")?;
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).context("cannot make the folder of the run readable")?;
    let seed = settings.seed.unwrap_or_else(gristmill_check::random_seed);
    println!("crash scan: {} rounds, seed {seed}", settings.rounds);
    let program = settings.program.clone().map_or_else(cli_process::default_program, Ok)?;
    let cli = Cli::new(&program, folder.path())?;
    let strace = Strace::detect().is_ok();
    if !strace {
        println!("strace cannot be used here: processes are killed by time only");
    }
    let mut rounds = ScanRounds {
        cli: &cli,
        folder: folder.path(),
        rng: Rng::new(seed),
        strace,
        calls: BTreeMap::new(),
        kills: BTreeMap::new(),
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

struct ScanRounds<'a> {
    cli: &'a Cli,
    folder: &'a Path,
    rng: Rng,
    strace: bool,
    /// About how many calls of a name a first (false) or later (true) scan makes.
    calls: BTreeMap<(bool, &'static str), u64>,
    kills: BTreeMap<Phase, u32>,
    bad_rounds: usize,
}

impl<'a> ScanRounds<'a> {
    fn run_all(&mut self, rounds: u32, seed: u64) -> Result<(), Error> {
        let mut fixture: Option<Fixture<'a>> = None;
        for number in 1..=rounds {
            let (fixture_number, index) = ((number - 1) / ROUNDS_PER_TREE, (number - 1) % ROUNDS_PER_TREE);
            if index == 0 {
                fixture.take().map_or(Ok(()), Fixture::clear)?;
                let rng = Rng::new(seed.wrapping_add(u64::from(fixture_number) * 1_000_003));
                let variant = Variant::ALL[fixture_number as usize % Variant::ALL.len()];
                let folder = self.folder.join(format!("fixture{fixture_number}"));
                // A later scan may rely on the catalog only if everything could be read.
                let locked = fixture_number % 2 == 0;
                fixture = Some(Fixture::new(self.cli, &folder, rng, (variant, locked))?);
            }
            let Some(fixture) = fixture.as_mut() else { continue };
            match index {
                CHANGE_ROUND => fixture.change()?,
                UNCHANGED_ROUND => fixture.keep_unchanged()?,
                _ => {}
            }
            self.run_round(number, fixture)?;
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

    fn run_round(&mut self, number: u32, fixture: &Fixture<'_>) -> Result<(), Error> {
        let scenario = &fixture.scenario;
        let database = fixture.file("disturbed.db");
        reset_database(self.cli, scenario.before.as_deref(), &database)?;
        let mut round = ScanRound { cli: self.cli, fixture, violations: Vec::new(), remaining: None };
        round.inspect(&database)?;
        let max_kills = self.rng.u64(1..5);
        let mut events = Vec::new();
        let mut done = false;
        for _ in 0..max_kills {
            let (args, fault) = self.choose_fault(scenario);
            match self.cli.run_with_fault(&database, &args, fault)? {
                CliExit::Killed => {
                    let phase = round.check_after_kill(&database)?;
                    *self.kills.entry(phase).or_default() += 1;
                    events.push(format!("{fault} in {}", phase.name()));
                    done = phase == Phase::Done;
                }
                CliExit::Done(summary) => {
                    events.push(format!("{fault} too late"));
                    self.too_late(scenario, fault);
                    round.check_summary(&summary);
                    done = true;
                }
                CliExit::Failed { message, .. } => {
                    round.violations.push(format!("a scan failed before it was killed: {message}"));
                }
            }
            if done {
                break;
            }
        }
        if !done {
            match self.cli.run(&database, &scenario.args)? {
                CliExit::Done(summary) => round.check_summary(&summary),
                other => round.violations.push(format!("cannot resume the scan: {other:?}")),
            }
        }
        round.compare_with_undisturbed(&database)?;
        let events = events.join(", ");
        println!("round {number:3}: {}: {events}", scenario.name);
        let violations = round.violations;
        if !violations.is_empty() {
            self.bad_rounds += 1;
            self.keep(number, fixture)?;
        }
        for violation in violations.iter().take(MAX_SHOWN) {
            println!("VIOLATION: round {number}: {violation}");
        }
        if violations.len() > MAX_SHOWN {
            println!("… and {} more", violations.len() - MAX_SHOWN);
        }
        Ok(())
    }

    /// Chooses the arguments of a scan and the moment at which it is killed.
    fn choose_fault(&mut self, scenario: &Scenario) -> (Vec<OsString>, Fault) {
        let mut args = scenario.args.clone();
        if self.rng.percent(30) {
            args.extend(["--workers".into(), self.rng.u64(1..4).to_string().into()]);
        }
        if self.strace && self.rng.percent(25) {
            let name = if self.rng.percent(70) { SYNC } else { WRITE };
            let max = *self.calls.entry(call(scenario, name)).or_insert(if name == SYNC { 20 } else { 900 });
            return (args, Fault::KillAtCall(name, self.rng.u64(1..max + 1)));
        }
        let mut time = scenario.duration;
        let bytes = scenario.summary["read_bytes"].as_u64().unwrap_or(0);
        let slow = if self.rng.percent(50) { CRAWL_DELAY } else { SLOW_DELAY };
        if bytes > 0 && self.rng.percent(40) {
            let rate = (bytes as f64 / slow.as_secs_f64()) as u64 + 1;
            args.extend(["--io-limit".into(), format!("{rate}B/s").into()]);
            time += slow.min(MAX_KILL_DELAY);
        }
        // Early moments are more frequent, because the walk is short.
        let part = if self.rng.percent(40) { 5 } else { 12 };
        let max = u64::try_from(time.as_micros()).unwrap_or(0) * part / 10 + 1;
        (args, Fault::KillAfter(Duration::from_micros(self.rng.u64(0..max))))
    }

    /// Adjusts the estimated number of calls after a kill that came too late.
    fn too_late(&mut self, scenario: &Scenario, fault: Fault) {
        if let Fault::KillAtCall(name, number) = fault {
            self.calls.insert(call(scenario, name), (number * 4 / 5).max(6));
        }
    }

    /// Copies the databases of a round with violations.
    fn keep(&self, number: u32, fixture: &Fixture<'_>) -> Result<(), Error> {
        let folder = self.folder.join(format!("round{number}"));
        std::fs::create_dir(&folder).context("cannot create a folder")?;
        for name in ["undisturbed.db", "disturbed.db", "dead.db"] {
            copy(self.cli, &fixture.file(name), &folder.join(name))?;
        }
        Ok(())
    }

    fn summarize(&self, rounds: u32) -> bool {
        let count = |phase: Phase| self.kills.get(&phase).copied().unwrap_or(0);
        let phases: Vec<String> =
            Phase::ALL.into_iter().map(|phase| format!("{} in {}", count(phase), phase.name())).collect();
        println!("{} kills: {}", self.kills.values().sum::<u32>(), phases.join(", "));
        // A run without kills in both phases tested nothing.
        let reading = count(Phase::Samples) + count(Phase::Contents) + count(Phase::MarkShared) + count(Phase::Finish);
        let idle = rounds >= 20 && (count(Phase::Walk) == 0 || reading == 0);
        if idle {
            println!("VIOLATION: no scan was killed during its walk, or none after it: the run tested nothing");
        }
        self.bad_rounds == 0 && !idle
    }
}

fn call(scenario: &Scenario, name: &'static str) -> (bool, &'static str) {
    (scenario.before.is_some(), name)
}

struct ScanRound<'a> {
    cli: &'a Cli,
    fixture: &'a Fixture<'a>,
    violations: Vec<String>,
    /// Remaining work at the last inspection; `None` while there is no catalog.
    remaining: Option<RemainingWork>,
}

impl ScanRound<'_> {
    /// Checks what a killed scan has left, on a copy, so that the next scan finds the original unchanged.
    fn check_after_kill(&mut self, database: &Path) -> Result<Phase, Error> {
        let before = self.remaining;
        let dead = self.fixture.file("dead.db");
        copy(self.cli, database, &dead)?;
        self.inspect(&dead)?;
        let Some(remaining) = self.remaining else { return Ok(Phase::Start) };
        if remaining.running + remaining.ended > 0 {
            self.verify(&dead, "after a kill")?;
        }
        if remaining.walked && remaining.folders > 0 {
            self.violations
                .push(format!("a walk is marked as complete, but {} folders are not walked", remaining.folders));
        }
        // If one of two roots was complete, its next scan is a new one.
        if let Some(before) = before.filter(|before| before.ended == 0)
            && (remaining.folders > before.folders || remaining.reads > before.reads || remaining.phase < before.phase)
        {
            self.violations
                .push(format!("completed work was lost: {before:?} remained before, {remaining:?} remains now"));
        }
        Ok(remaining.phase)
    }

    fn inspect(&mut self, database: &Path) -> Result<(), Error> {
        if !database.exists() {
            return Ok(());
        }
        let pair = CatalogPair::open(&self.fixture.scenario.undisturbed, database)?;
        let damage = pair.damage()?;
        self.violations.extend(damage.iter().map(|line| format!("integrity: {line}")));
        if pair.has_catalog()? {
            self.remaining = Some(pair.remaining(self.fixture.scenario.since)?);
        }
        Ok(())
    }

    fn verify(&mut self, database: &Path, when: &str) -> Result<(), Error> {
        match self.cli.run(database, &["verify".into()])? {
            CliExit::Done(_) => {}
            other => self.violations.push(format!("`gristmill verify` {when}: {other:?}")),
        }
        Ok(())
    }

    /// Checks that a completed scan reports exactly the work that remained.
    fn check_summary(&mut self, summary: &Value) {
        let Some(remaining) = self.remaining.filter(|remaining| remaining.ended == 0) else { return };
        // A file that a followed link also leads to may be read once per name: a walk does not detect that.
        let reads = if self.fixture.scenario.restarts_walk { remaining.names } else { remaining.reads };
        // Every scan walks all folders, resumed or not.
        let folders = self.fixture.scenario.summary["folders"].as_i64().unwrap_or(0);
        for (what, expected) in [
            ("folders", folders..=folders),
            ("read_files", remaining.reads..=reads),
            ("sampled_files", remaining.samples..=remaining.samples + remaining.unreadable),
        ] {
            let found = &summary[what];
            if !found.as_i64().is_some_and(|found| expected.contains(&found)) {
                let remaining = format!("{} remained: {remaining:?}", expected.start());
                self.violations.push(format!("{what} of the last scan is {found}, but {remaining}"));
            }
        }
        if summary["resumed"].as_bool() != Some(remaining.running > 0) {
            self.violations.push(format!("resumed is {}: {remaining:?}", summary["resumed"]));
        }
    }

    fn compare_with_undisturbed(&mut self, database: &Path) -> Result<(), Error> {
        let scenario = &self.fixture.scenario;
        let pair = CatalogPair::open(&scenario.undisturbed, database)?;
        let damage = pair.damage()?;
        self.violations.extend(damage.iter().map(|line| format!("integrity: {line}")));
        if !pair.has_catalog()? {
            self.violations.push("there is no catalog".to_owned());
            return Ok(());
        }
        self.violations.extend(pair.differences(MAX_SHOWN_ROWS)?);
        let unmarked_folders = pair.unmarked_folders()?;
        if unmarked_folders > 0 {
            self.violations.push(format!("{unmarked_folders} folders are not marked by the scan that walked them"));
        }
        drop(pair);
        if dupes(self.cli, database)? != scenario.dupes {
            self.violations.push("`gristmill dupes` prints other duplicates than undisturbed".to_owned());
        }
        self.verify(database, "at the end")
    }
}
