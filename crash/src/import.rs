//! Imports killed and interrupted at random instants and gone on with: each table is the old one or the new one, never
//! between, and in the end all is as an import makes it which nobody disturbed.
//!
//! Run as `cargo xtask crash import`. Owns the rounds and what is printed. What is checked in them, `game` knows.

mod field;
mod game;
mod grain;
mod state;
mod trials;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use self::field::{Field, Place, Stage, Way};
use self::game::{End, Game};
use self::trials::Trial;
use crate::args::ProgramSettings;
use crate::chance::Chance;
use crate::disk::Strace;
use crate::mill::{self, Blow, Ended, INTERRUPTED, Mill};
use crate::{OrTrouble, Trouble};

/// Rounds with one set of files: each way twice, and each of the trials.
const ROUNDS: u32 = 12;

/// So many findings of a round are shown, and after so many bad rounds no more are played.
const SHOWN: usize = 12;
const ENOUGH: usize = 3;

/// Calls at which imports are killed: what gives files their names, and what reaches the disk; and about how many there
/// are.
const CALLS: [(&str, u64); 4] = [
    ("?link,linkat,?rename,?renameat,?unlink,unlinkat", 12),
    ("fsync,fdatasync", 30),
    ("pwrite64", 400),
    ("ftruncate", 10),
];

/// Says whether all was well.
pub(crate) fn run(settings: &ProgramSettings) -> Result<bool, Trouble> {
    let began = Instant::now();
    let folder = tempfile::Builder::new().prefix("gristmill-crash-").tempdir();
    let mut folder = folder.or_trouble("cannot make a folder for the run")?;
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).or_trouble("cannot open the folder of the run")?;
    let seed = settings.seed.unwrap_or_else(Chance::seed);
    println!("crash import: {} rounds, seed {seed}", settings.rounds);
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
        times: BTreeMap::new(),
        tally: Tally::default(),
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

/// What happened, so that a run in which nothing did does not look like one in which all was well.
#[derive(Debug, Default)]
struct Tally {
    /// Killed before anything of it was to be seen; when some was; when all was.
    kills: [u32; 3],
    interrupted: u32,
    failed: u32,
    too_late: u32,
    /// Trials that did what they were to do.
    trials: BTreeMap<Trial, u32>,
}

struct Rounds<'a> {
    mill: &'a Mill,
    folder: &'a Path,
    chance: Chance,
    strace: bool,
    /// About how many calls of a name an import of a kind makes.
    calls: BTreeMap<(Way, &'static str), u64>,
    /// About how long it takes.
    times: BTreeMap<Way, Duration>,
    tally: Tally,
    /// Rounds in which something was found.
    bad: usize,
}

impl Rounds<'_> {
    fn play(&mut self, rounds: u32, seed: u64) -> Result<(), Trouble> {
        let mut field: Option<Field> = None;
        for round in 1..=rounds {
            let (number, turn) = ((round - 1) / ROUNDS, (round - 1) % ROUNDS);
            if turn == 0 {
                field.take().map_or(Ok(()), Field::clear)?;
                let chance = Chance::new(seed.wrapping_add(u64::from(number) * 1_000_003));
                field = Some(Field::new(self.mill, &self.folder.join(format!("field{number}")), chance)?);
            }
            let Some(field) = &field else { continue };
            let stage = |turn: u32| &field.stages[turn as usize % field.stages.len()];
            match turn % 3 {
                // Every third round is a trial, of another kind and way each time.
                2 => self.trial(
                    round,
                    Trial::ALL[(turn / 3) as usize % Trial::ALL.len()],
                    stage(number + turn / 3),
                )?,
                _ => self.round(round, stage(turn - turn / 3))?,
            }
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

    fn round(&mut self, round: u32, stage: &Stage) -> Result<(), Trouble> {
        let folder = self.folder.join(format!("round{round}"));
        let place = Place::make(self.mill, &folder)?;
        let wal = self.chance.percent(30);
        place.set_up(self.mill, stage, wal)?;
        let copy = self.folder.join("dead.db");
        let mut game = Game::new(self.mill, stage, &place, &copy);
        let mut told = Vec::new();
        let mut resume = self.chance.percent(30);
        let mut done = false;
        for _ in 0..self.chance.within(1..4) {
            let blow = self.blow(stage);
            let mut words = stage.words(&place.database(), resume);
            words.extend(["--workers".into(), self.chance.within(1..4).to_string().into()]);
            match self.mill.strike(&place.own(), &words, blow)? {
                Ended::Killed => {
                    game.look(End::Killed)?;
                    let far = if game.is_complete() { 2 } else { usize::from(!game.loaded.is_empty()) };
                    self.tally.kills[far] += 1;
                    told.push(format!("{blow}, {} in", game.loaded.len()));
                }
                Ended::Failed { code: INTERRUPTED, .. } if matches!(blow, Blow::Interrupt(_)) => {
                    game.look(End::Gently { resume })?;
                    self.tally.interrupted += 1;
                    told.push(format!("{blow}, {} in", game.loaded.len()));
                }
                Ended::Failed { code: Some(2), .. } if matches!(blow, Blow::Fault(..)) => {
                    game.look(End::Gently { resume })?;
                    self.tally.failed += 1;
                    told.push(format!("{blow}, {} in", game.loaded.len()));
                }
                Ended::Done(summary) => {
                    told.push(format!("{blow} too late"));
                    self.too_late(stage, blow);
                    game.work(&summary);
                    // What failed may have been the last: a log that was not brought into its database. The next does it.
                    done = !matches!(blow, Blow::Fault(..));
                    if !done {
                        game.look(End::Full)?;
                    }
                }
                Ended::Failed { said, .. } => game.found(format!("struck {blow}, it failed: {said}")),
            }
            if done || !game.findings.is_empty() {
                break;
            }
            // A database that is there already can only be gone on with.
            resume = stage.way != Way::New || game.is_complete() || self.chance.percent(60);
        }
        if !done && game.findings.is_empty() {
            match self.mill.run(&place.own(), &stage.words(&place.database(), resume))? {
                Ended::Done(summary) => game.work(&summary),
                other => game.found(format!("the import does not go on: {other:?}")),
            }
        }
        if game.findings.is_empty() {
            game.look(End::Done)?;
        }
        let (told, wal) = (told.join("; "), if wal && stage.way != Way::New { ", wal" } else { "" });
        let resumed = if resume { "resumed" } else { "again" };
        println!("round {round:3}: {}{wal}: struck {told}; {resumed}", stage.way.word());
        self.close(round, &folder, &game.findings)
    }

    fn trial(&mut self, round: u32, trial: Trial, stage: &Stage) -> Result<(), Trouble> {
        let folder = self.folder.join(format!("round{round}"));
        let place = Place::make(self.mill, &folder)?;
        let copy = self.folder.join("dead.db");
        let mut game = Game::new(self.mill, stage, &place, &copy);
        let (told, happened) = match trial.run(&mut game, &mut self.chance) {
            Err(Trouble::NotHere(why)) => (format!("NOT DONE: {why}"), false),
            other => other?,
        };
        *self.tally.trials.entry(trial).or_default() += u32::from(happened);
        println!("round {round:3}: {}: {}: {told}", stage.way.word(), trial.word());
        self.close(round, &folder, &game.findings)
    }

    /// Tells what was found, and keeps the database for whoever looks into it.
    fn close(&mut self, round: u32, folder: &Path, findings: &[String]) -> Result<(), Trouble> {
        for finding in findings.iter().take(SHOWN) {
            println!("FOUND: round {round}: {finding}");
        }
        if findings.len() > SHOWN {
            println!("… and {} more", findings.len() - SHOWN);
        }
        if findings.is_empty() {
            return std::fs::remove_dir_all(folder).or_trouble("cannot remove a folder");
        }
        self.bad += 1;
        Ok(())
    }

    /// A moment at which something happens to an import.
    fn blow(&mut self, stage: &Stage) -> Blow {
        if self.strace && self.chance.percent(50) {
            // The moments in which a new database gets its name are few.
            let naming = stage.way == Way::New && self.chance.percent(30);
            let (name, first) = if naming { CALLS[0] } else { CALLS[self.chance.index(CALLS.len())] };
            let most = *self.calls.entry((stage.way, name)).or_insert(first);
            let number = self.chance.within(1..most + 1);
            // That a file cannot be removed is nothing that an import could do anything about.
            let fails = name != CALLS[0].0 && self.chance.percent(30);
            return if fails { Blow::Fault(name, number) } else { Blow::Call(name, number) };
        }
        let took = *self.times.entry(stage.way).or_insert(stage.took);
        // Often early, often at the end.
        let part = [3, 10, 12][self.chance.index(3)];
        let most = u64::try_from(took.as_micros()).unwrap_or(0) * part / 10 + 1;
        let least = if part == 12 { most * 3 / 4 } else { 0 };
        let time = Duration::from_micros(self.chance.within(least..most));
        if self.chance.percent(40) { Blow::Interrupt(time) } else { Blow::After(time) }
    }

    /// There were fewer calls than was thought, or it did not take so long.
    fn too_late(&mut self, stage: &Stage, blow: Blow) {
        self.tally.too_late += 1;
        match blow {
            Blow::Call(name, number) | Blow::Fault(name, number) => {
                self.calls.insert((stage.way, name), (number * 4 / 5).max(4));
            }
            Blow::After(time) | Blow::Interrupt(time) => {
                self.times.entry(stage.way).and_modify(|took| *took = time.min(*took));
            }
        }
    }

    fn verdict(&self, rounds: u32) -> bool {
        let Tally { kills: [early, between, late], interrupted, failed, too_late, trials } = &self.tally;
        println!(
            "{} kills: {early} before anything was in, {between} when some was, {late} when all was; \
             {interrupted} interrupted, {failed} failed, {too_late} too late",
            early + between + late
        );
        let told: Vec<String> =
            trials.iter().map(|(trial, count)| format!("{}: {count}", trial.word())).collect();
        println!("trials: {}", told.join(", "));
        let idle =
            rounds >= 2 * ROUNDS && self.bad == 0 && (*early == 0 || *between == 0 || *interrupted == 0);
        if idle {
            println!(
                "FOUND: no import was killed early, or none in between, or none interrupted: the run proves nothing"
            );
        }
        self.bad == 0 && !idle
    }
}
