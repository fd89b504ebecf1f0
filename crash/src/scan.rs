//! Kills scans at random moments and resumes them. The catalog must equal that of an undisturbed scan, row for row, and
//! committed work must not be repeated.
//!
//! Run as `cargo xtask crash scan`. Owns the choice of faults and the checks. `fixture` has the trees and the
//! undisturbed scans, `catalog_diff` compares catalogs.

mod catalog_diff;
mod fixture;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use gristmill_check::Rng;
use serde_json::Value;

use self::catalog_diff::{CatalogPair, Phase, RemainingWork};
use self::fixture::{Fixture, Variant, dupes};
use crate::args::ProgramArgs;
use crate::cli::{Cli, CliExit};
use crate::faults::{Estimates, Fault};
use crate::harness::{self, Named, Resumable, Round, Run, Workload, disturb_and_resume};
use crate::sqlite::{copy, restore};
use crate::{Error, ErrorContext};

/// Rounds with one tree.
const ROUNDS_PER_TREE: u32 = 6;
/// Round of a tree, counted from 0, before which the tree changes.
const CHANGE_ROUND: u32 = 2;
/// Round of a tree from which on the tree is the same as in the scan before.
const UNCHANGED_ROUND: u32 = 5;

/// Rounds from which on a run must have killed scans during and after their walk.
const MIN_CONCLUSIVE_ROUNDS: u32 = 20;

/// Differing rows that are printed for each table.
const MAX_SHOWN_ROWS: usize = 4;

/// Extra duration of a scan with `--io-limit`. With `CRAWL_DELAY` a scan commits several times while it walks one
/// folder, and is always killed early, because a kill comes at most `MAX_KILL_DELAY` later than without the limit.
const SLOW_DELAY: Duration = Duration::from_millis(250);
const CRAWL_DELAY: Duration = Duration::from_secs(6);
const MAX_KILL_DELAY: Duration = Duration::from_millis(700);

/// System calls at which scans are killed, and about how many of them a scan makes.
const SYNC: (&str, u64) = ("fsync,fdatasync", 20);
const WRITE: (&str, u64) = ("pwrite64", 900);

/// Returns whether no violation was found.
pub(crate) fn run(args: &ProgramArgs) -> Result<bool, Error> {
    harness::run_commands("scan", args, |cli, strace| {
        Ok(Scans { cli, strace, fixture: None, estimates: Estimates::new(), kills: BTreeMap::new() })
    })
}

struct Scans {
    cli: Cli,
    strace: bool,
    fixture: Option<Fixture>,
    /// By whether there was a catalog before the scan.
    estimates: Estimates<bool>,
    kills: BTreeMap<Phase, u32>,
}

impl Scans {
    /// Generates or changes the tree of a round.
    fn prepare(&mut self, run: &Run, round: u32) -> Result<Fixture, Error> {
        let (number, index) = ((round - 1) / ROUNDS_PER_TREE, (round - 1) % ROUNDS_PER_TREE);
        match (self.fixture.take(), index) {
            (Some(mut fixture), 1..) => {
                match index {
                    CHANGE_ROUND => fixture.change()?,
                    UNCHANGED_ROUND => fixture.keep_unchanged()?,
                    _ => {}
                }
                Ok(fixture)
            }
            (earlier, _) => {
                earlier.map_or(Ok(()), Fixture::clear)?;
                let variant = Variant::ALL[number as usize % Variant::ALL.len()];
                let folder = run.folder.join(format!("fixture{number}"));
                // A later scan may rely on the catalog only if everything could be read.
                let locked = number.is_multiple_of(2);
                Fixture::new(&self.cli, &folder, run.rng_of(number), variant, locked)
            }
        }
    }

    fn count(&self, phase: Phase) -> u32 {
        self.kills.get(&phase).copied().unwrap_or(0)
    }
}

impl Workload for Scans {
    fn round(&mut self, run: &mut Run, round: &mut Round) -> Result<(), Error> {
        let fixture = self.prepare(run, round.number)?;
        round.title.clone_from(&fixture.scenario.name);
        let database = fixture.file("disturbed.db");
        restore(&self.cli, fixture.scenario.before.as_deref(), &database)?;
        let attempts = run.rng.u64(1..5);
        let mut scan =
            Scan { workload: self, fixture: &fixture, database: &database, rng: &mut run.rng, remaining: None };
        scan.inspect(&database, round)?;
        let cli = scan.workload.cli.clone();
        disturb_and_resume(&mut scan, (&cli, &database), attempts, round)?;
        scan.compare_with_undisturbed(round)?;
        if round.has_violations() {
            let folder = run.round_folder(round.number);
            std::fs::create_dir(&folder).context("cannot create a folder")?;
            for name in ["undisturbed.db", "disturbed.db", "dead.db"] {
                copy(&self.cli, &fixture.file(name), &folder.join(name))?;
            }
        }
        self.fixture = Some(fixture);
        Ok(())
    }

    fn finish(mut self, run: &Run) -> Result<Vec<String>, Error> {
        // With violations, the files are kept.
        match self.fixture.take() {
            Some(fixture) if run.bad_rounds == 0 => fixture.clear()?,
            _ => {}
        }
        let phases: Vec<String> =
            Phase::value_variants().iter().map(|phase| format!("{} in {}", self.count(*phase), phase.name())).collect();
        println!("{} kills: {}", self.kills.values().sum::<u32>(), phases.join(", "));
        // A run without kills in both phases tested nothing.
        let reading =
            [Phase::Samples, Phase::Contents, Phase::MarkShared, Phase::Finish].map(|phase| self.count(phase));
        let idle = run.rounds >= MIN_CONCLUSIVE_ROUNDS && (self.count(Phase::Walk) == 0 || reading == [0; 4]);
        let text = "no scan was killed during its walk, or none after it: the run tested nothing";
        Ok(if idle { vec![text.to_owned()] } else { Vec::new() })
    }
}

/// The scan of a round.
struct Scan<'a> {
    workload: &'a mut Scans,
    fixture: &'a Fixture,
    database: &'a Path,
    rng: &'a mut Rng,
    /// Remaining work at the last inspection; `None` while there is no catalog.
    remaining: Option<RemainingWork>,
}

impl Resumable for Scan<'_> {
    fn next_attempt(&mut self) -> (Vec<OsString>, Fault) {
        let (scenario, rng) = (&self.fixture.scenario, &mut *self.rng);
        let mut args = scenario.args.clone();
        if rng.percent(30) {
            args.extend(["--workers".into(), rng.u64(1..4).to_string().into()]);
        }
        if self.workload.strace && rng.percent(25) {
            let call = if rng.percent(70) { SYNC } else { WRITE };
            let number = self.workload.estimates.call(scenario.before.is_some(), call, rng);
            return (args, Fault::KillAtCall(call.0, number));
        }
        let mut time = scenario.duration;
        let bytes = scenario.summary["read_bytes"].as_u64().unwrap_or(0);
        let slow = if rng.percent(50) { CRAWL_DELAY } else { SLOW_DELAY };
        if bytes > 0 && rng.percent(40) {
            let rate = (bytes as f64 / slow.as_secs_f64()) as u64 + 1;
            args.extend(["--io-limit".into(), format!("{rate}B/s").into()]);
            time += slow.min(MAX_KILL_DELAY);
        }
        // Early moments are more frequent, because the walk is short.
        let part = if rng.percent(40) { 5 } else { 12 };
        let max = u64::try_from(time.as_micros()).unwrap_or(0) * part / 10 + 1;
        (args, Fault::KillAfter(Duration::from_micros(rng.u64(0..max))))
    }

    fn check_attempt(&mut self, fault: Fault, exit: CliExit, round: &mut Round) -> Result<bool, Error> {
        match exit {
            CliExit::Killed => {
                let phase = self.check_after_kill(round)?;
                *self.workload.kills.entry(phase).or_default() += 1;
                round.event(format!("{fault} in {}", phase.name()));
                Ok(phase == Phase::Done)
            }
            CliExit::Done(summary) => {
                round.event(format!("{fault} too late"));
                self.workload.estimates.too_late(self.fixture.scenario.before.is_some(), fault);
                self.check_summary(&summary, round);
                Ok(true)
            }
            CliExit::Failed { message, .. } => {
                round.violation(format!("a scan failed before it was killed: {message}"));
                Ok(false)
            }
        }
    }

    fn resume_args(&self) -> Vec<OsString> {
        self.fixture.scenario.args.clone()
    }

    /// Checks that a completed scan reports exactly the work that remained.
    fn check_summary(&mut self, summary: &Value, round: &mut Round) {
        let Some(remaining) = self.remaining.filter(|remaining| remaining.ended == 0) else { return };
        // A file may be read once per name: a walk does not detect that a followed link also leads to it, and it reads
        // new hard links before the names that the catalog has.
        let reads = remaining.names;
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
                round.violation(format!("{what} of the last scan is {found}, but {remaining}"));
            }
        }
        if summary["resumed"].as_bool() != Some(remaining.running > 0) {
            round.violation(format!("resumed is {}: {remaining:?}", summary["resumed"]));
        }
    }
}

impl Scan<'_> {
    /// Checks what a killed scan has left, on a copy, so that the next scan finds the original unchanged.
    fn check_after_kill(&mut self, round: &mut Round) -> Result<Phase, Error> {
        let before = self.remaining;
        let dead = self.fixture.file("dead.db");
        copy(&self.workload.cli, self.database, &dead)?;
        self.inspect(&dead, round)?;
        let Some(remaining) = self.remaining else { return Ok(Phase::Start) };
        if remaining.running + remaining.ended > 0 {
            self.verify(&dead, "after a kill", round)?;
        }
        if remaining.walked && remaining.folders > 0 {
            round.violation(format!("a walk is marked as complete, but {} folders are not walked", remaining.folders));
        }
        // If one of two roots was complete, its next scan is a new one.
        if let Some(before) = before.filter(|before| before.ended == 0)
            && (remaining.folders > before.folders || remaining.reads > before.reads || remaining.phase < before.phase)
        {
            round.violation(format!("completed work was lost: {before:?} remained before, {remaining:?} remains now"));
        }
        Ok(remaining.phase)
    }

    fn inspect(&mut self, database: &Path, round: &mut Round) -> Result<(), Error> {
        if !database.exists() {
            return Ok(());
        }
        let pair = CatalogPair::open(&self.fixture.scenario.undisturbed, database)?;
        round.damage(&pair.0.damage("other")?);
        if pair.has_catalog()? {
            self.remaining = Some(pair.remaining(self.fixture.scenario.since)?);
        }
        Ok(())
    }

    fn verify(&self, database: &Path, when: &str, round: &mut Round) -> Result<(), Error> {
        match self.workload.cli.run(database, &["verify".into()])? {
            CliExit::Done(_) => {}
            other => round.violation(format!("`gristmill verify` {when}: {other:?}")),
        }
        Ok(())
    }

    fn compare_with_undisturbed(&self, round: &mut Round) -> Result<(), Error> {
        let scenario = &self.fixture.scenario;
        let pair = CatalogPair::open(&scenario.undisturbed, self.database)?;
        round.damage(&pair.0.damage("other")?);
        if !pair.has_catalog()? {
            round.violation("there is no catalog");
            return Ok(());
        }
        round.violations.extend(pair.differences(MAX_SHOWN_ROWS)?);
        let unmarked_folders = pair.unmarked_folders()?;
        if unmarked_folders > 0 {
            round.violation(format!("{unmarked_folders} folders are not marked by the scan that walked them"));
        }
        drop(pair);
        if dupes(&self.workload.cli, self.database)? != scenario.dupes {
            round.violation("`gristmill dupes` prints other duplicates than undisturbed");
        }
        self.verify(self.database, "at the end", round)
    }
}
