//! Scans killed at random instants and gone on with: the catalog must be that of a scan which nobody disturbed, row
//! for row, and what was committed must not be done again.
//!
//! Run as `cargo xtask crash scan`. Owns the rounds, what is checked in them, and what is printed.

mod field;
mod rows;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::field::{Field, Stage, Way, dupes, start};
use self::rows::{Beside, Left, Phase};
use crate::args::ProgramSettings;
use crate::chance::Chance;
use crate::database::copy;
use crate::disk::Strace;
use crate::mill::{self, Blow, Ended, Mill};
use crate::{OrTrouble, Trouble};

/// Rounds with one tree; before which of them it changes, and from which on it does no more.
const ROUNDS: u32 = 6;
const CHANGED: u32 = 2;
const RESTED: u32 = 5;

/// So many findings of a round are shown, and after so many bad rounds no more are played.
const SHOWN: usize = 12;
const ENOUGH: usize = 3;

/// So many differing rows of each table.
const ROWS: usize = 4;

/// How much longer a scan takes that is slowed down. One that crawls commits several times while it looks at one
/// folder, and is always killed before it has come far.
const SLOW: Duration = Duration::from_millis(250);
const CRAWL: Duration = Duration::from_secs(6);
const LONGEST: Duration = Duration::from_millis(700);

/// Calls at which scans are killed.
const SYNC: &str = "fsync,fdatasync";
const WRITE: &str = "pwrite64";

/// Says whether all was well.
pub(crate) fn run(settings: &ProgramSettings) -> Result<bool, Trouble> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.or_trouble("cannot make a folder for the run")?;
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).or_trouble("cannot open the folder of the run")?;
    let seed = settings.seed.unwrap_or_else(Chance::seed);
    println!("crash scan: {} rounds, seed {seed}", settings.rounds);
    let program = settings.program.clone().map_or_else(mill::beside_us, Ok)?;
    let mill = Mill::new(&program, folder.path())?;
    let strace = Strace::find().is_ok();
    if !strace {
        println!("strace cannot be used here: all kills are by the clock");
    }
    let mut rounds = Rounds {
        mill: &mill,
        folder: folder.path(),
        chance: Chance::new(seed),
        strace,
        calls: BTreeMap::new(),
        kills: BTreeMap::new(),
        bad: 0,
    };
    rounds.play(settings.rounds, seed)?;
    let well = rounds.verdict(settings.rounds);
    println!("{:.1} s", began.elapsed().as_secs_f64());
    if settings.keep || !well {
        folder.disable_cleanup(true);
        println!("the files of the run are kept in {}", folder.path().display());
    }
    println!("{}", if well { "all is well" } else { "NOT WELL" });
    Ok(well)
}

struct Rounds<'a> {
    mill: &'a Mill,
    folder: &'a Path,
    chance: Chance,
    strace: bool,
    /// About how many calls of a name a scan of a kind makes.
    calls: BTreeMap<(bool, &'static str), u64>,
    kills: BTreeMap<Phase, u32>,
    /// Rounds in which something was found.
    bad: usize,
}

impl<'a> Rounds<'a> {
    fn play(&mut self, rounds: u32, seed: u64) -> Result<(), Trouble> {
        let mut field: Option<Field<'a>> = None;
        for round in 1..=rounds {
            let (number, turn) = ((round - 1) / ROUNDS, (round - 1) % ROUNDS);
            if turn == 0 {
                field.take().map_or(Ok(()), Field::clear)?;
                let chance = Chance::new(seed.wrapping_add(u64::from(number) * 1_000_003));
                let way = Way::ALL[number as usize % Way::ALL.len()];
                let folder = self.folder.join(format!("field{number}"));
                // Only where everything can be read, a later scan may take what is known for all there is.
                let locked = number % 2 == 0;
                field = Some(Field::new(self.mill, &folder, chance, (way, locked))?);
            }
            let Some(field) = field.as_mut() else { continue };
            match turn {
                CHANGED => field.change()?,
                RESTED => field.rest()?,
                _ => {}
            }
            self.round(round, field)?;
            if self.bad >= ENOUGH {
                println!("enough was found: no more rounds");
                break;
            }
        }
        // With findings, all is kept as it is.
        match field {
            Some(field) if self.bad == 0 => field.clear(),
            _ => Ok(()),
        }
    }

    fn round(&mut self, round: u32, field: &Field<'_>) -> Result<(), Trouble> {
        let stage = &field.stage;
        let database = field.file("disturbed.db");
        start(self.mill, stage.before.as_deref(), &database)?;
        let mut game = Game { mill: self.mill, field, findings: Vec::new(), left: None };
        game.look(&database)?;
        let wanted = self.chance.within(1..5);
        let mut told = Vec::new();
        let mut done = false;
        for _ in 0..wanted {
            let (words, blow) = self.blow(stage);
            match self.mill.strike(&database, &words, blow)? {
                Ended::Killed => {
                    let phase = game.autopsy(&database)?;
                    *self.kills.entry(phase).or_default() += 1;
                    told.push(format!("{blow} in {}", phase.word()));
                    done = phase == Phase::Done;
                }
                Ended::Done(summary) => {
                    told.push(format!("{blow} too late"));
                    self.too_late(stage, blow);
                    game.work(&summary);
                    done = true;
                }
                Ended::Failed { said, .. } => {
                    game.findings.push(format!("a scan that was not killed yet failed: {said}"));
                }
            }
            if done {
                break;
            }
        }
        if !done {
            match self.mill.run(&database, &stage.words)? {
                Ended::Done(summary) => game.work(&summary),
                other => game.findings.push(format!("the scan does not go on: {other:?}")),
            }
        }
        game.compare(&database)?;
        let told = told.join(", ");
        println!("round {round:3}: {}: killed {told}", stage.name);
        let findings = game.findings;
        if !findings.is_empty() {
            self.bad += 1;
            self.keep(round, field)?;
        }
        for finding in findings.iter().take(SHOWN) {
            println!("FOUND: round {round}: {finding}");
        }
        if findings.len() > SHOWN {
            println!("… and {} more", findings.len() - SHOWN);
        }
        Ok(())
    }

    /// A scan with a moment at which it is killed.
    fn blow(&mut self, stage: &Stage) -> (Vec<OsString>, Blow) {
        let mut words = stage.words.clone();
        if self.chance.percent(30) {
            words.extend(["--workers".into(), self.chance.within(1..4).to_string().into()]);
        }
        if self.strace && self.chance.percent(25) {
            let name = if self.chance.percent(70) { SYNC } else { WRITE };
            let most = *self.calls.entry(call(stage, name)).or_insert(if name == SYNC { 20 } else { 900 });
            return (words, Blow::Call(name, self.chance.within(1..most + 1)));
        }
        let mut time = stage.took;
        let bytes = stage.summary["read_bytes"].as_u64().unwrap_or(0);
        let slow = if self.chance.percent(50) { CRAWL } else { SLOW };
        if bytes > 0 && self.chance.percent(40) {
            let rate = (bytes as f64 / slow.as_secs_f64()) as u64 + 1;
            words.extend(["--io-limit".into(), format!("{rate}B/s").into()]);
            time += slow.min(LONGEST);
        }
        // Often early: the walk is the shorter part.
        let part = if self.chance.percent(40) { 5 } else { 12 };
        let most = u64::try_from(time.as_micros()).unwrap_or(0) * part / 10 + 1;
        (words, Blow::After(Duration::from_micros(self.chance.within(0..most))))
    }

    /// There were fewer calls than was thought.
    fn too_late(&mut self, stage: &Stage, blow: Blow) {
        if let Blow::Call(name, number) = blow {
            self.calls.insert(call(stage, name), (number * 4 / 5).max(6));
        }
    }

    /// The databases of a round, for whoever looks into it.
    fn keep(&self, round: u32, field: &Field<'_>) -> Result<(), Trouble> {
        let folder = self.folder.join(format!("round{round}"));
        std::fs::create_dir(&folder).or_trouble("cannot make a folder")?;
        for name in ["undisturbed.db", "disturbed.db", "dead.db"] {
            copy(self.mill, &field.file(name), &folder.join(name))?;
        }
        Ok(())
    }

    fn verdict(&self, rounds: u32) -> bool {
        let count = |phase: Phase| self.kills.get(&phase).copied().unwrap_or(0);
        let told: Vec<String> =
            Phase::ALL.into_iter().map(|phase| format!("{} in {}", count(phase), phase.word())).collect();
        println!("{} kills: {}", self.kills.values().sum::<u32>(), told.join(", "));
        // A run in which nothing happened must not look like one in which all was well.
        let reading =
            count(Phase::Edges) + count(Phase::Contents) + count(Phase::Share) + count(Phase::Finish);
        let idle = rounds >= 20 && (count(Phase::Walk) == 0 || reading == 0);
        if idle {
            println!("FOUND: no scan was killed while it walked, or none after: the run proves nothing");
        }
        self.bad == 0 && !idle
    }
}

fn call(stage: &Stage, name: &'static str) -> (bool, &'static str) {
    (stage.before.is_some(), name)
}

/// One round, as far as it has come.
struct Game<'a> {
    mill: &'a Mill,
    field: &'a Field<'a>,
    findings: Vec<String>,
    /// What was left to do when somebody last looked; nothing while there is no catalog.
    left: Option<Left>,
}

impl Game<'_> {
    /// Looks at what a dead scan has left behind: at a copy, so that whoever goes on finds it as it was.
    fn autopsy(&mut self, database: &Path) -> Result<Phase, Trouble> {
        let before = self.left;
        let dead = self.field.file("dead.db");
        copy(self.mill, database, &dead)?;
        self.look(&dead)?;
        let Some(left) = self.left else { return Ok(Phase::Start) };
        if left.running + left.ended > 0 {
            self.verify(&dead, "after a kill")?;
        }
        if left.walked && left.folders > 0 {
            self.findings
                .push(format!("a walk counts as complete, and {} folders are not walked", left.folders));
        }
        // When one of two roots was complete, its next scan is a new one.
        if let Some(before) = before.filter(|before| before.ended == 0)
            && (left.folders > before.folders || left.reads > before.reads || left.phase < before.phase)
        {
            self.findings.push(format!("what was done is undone: {before:?} was left, and {left:?} is"));
        }
        Ok(left.phase)
    }

    fn look(&mut self, database: &Path) -> Result<(), Trouble> {
        if !database.exists() {
            return Ok(());
        }
        let beside = Beside::open(&self.field.stage.undisturbed, database)?;
        let damage = beside.damage()?;
        self.findings.extend(damage.iter().map(|line| format!("integrity: {line}")));
        if beside.is_made()? {
            self.left = Some(beside.left(self.field.stage.since)?);
        }
        Ok(())
    }

    fn verify(&mut self, database: &Path, when: &str) -> Result<(), Trouble> {
        match self.mill.run(database, &["verify".into()])? {
            Ended::Done(_) => {}
            other => self.findings.push(format!("`gristmill verify` {when}: {other:?}")),
        }
        Ok(())
    }

    /// What a scan that came to its end says it did must be what was left to do, no more and no less.
    fn work(&mut self, summary: &Value) {
        let Some(left) = self.left.filter(|left| left.ended == 0) else { return };
        // A file that is found behind a link, too, may be read by each of its names: that they are one is not seen
        // while walking.
        let reads = if self.field.stage.walks_anew { left.names } else { left.reads };
        // Every scan looks at all folders, resumed or not.
        let folders = self.field.stage.summary["folders"].as_i64().unwrap_or(0);
        for (what, expected) in [
            ("folders", folders..=folders),
            ("read_files", left.reads..=reads),
            ("probed_files", left.probes..=left.probes + left.unreadable),
        ] {
            let found = &summary[what];
            if !found.as_i64().is_some_and(|found| expected.contains(&found)) {
                let left = format!("{} were left: {left:?}", expected.start());
                self.findings.push(format!("{what} of the last scan is {found}, and {left}"));
            }
        }
        if summary["resumed"].as_bool() != Some(left.running > 0) {
            self.findings.push(format!("resumed is {}: {left:?}", summary["resumed"]));
        }
    }

    fn compare(&mut self, database: &Path) -> Result<(), Trouble> {
        let stage = &self.field.stage;
        let beside = Beside::open(&stage.undisturbed, database)?;
        let damage = beside.damage()?;
        self.findings.extend(damage.iter().map(|line| format!("integrity: {line}")));
        if !beside.is_made()? {
            self.findings.push("there is no catalog".to_owned());
            return Ok(());
        }
        self.findings.extend(beside.differences(ROWS)?);
        let unmarked = beside.unmarked()?;
        if unmarked > 0 {
            self.findings
                .push(format!("{unmarked} folders are there, and not marked by the scan that saw them"));
        }
        drop(beside);
        if dupes(self.mill, database)? != stage.dupes {
            self.findings.push("`gristmill dupes` answers otherwise than undisturbed".to_owned());
        }
        self.verify(database, "at the end")
    }
}
