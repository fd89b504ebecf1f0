//! Trials of another kind than a kill: a full disk, two imports at once, a database that somebody else keeps.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use rusqlite::Connection;

use super::field::{Place, Way};
use super::game::{End, Game};
use crate::chance::Chance;
use crate::crew::pause;
use crate::disk::SmallDisk;
use crate::mill::{self, Blow, Ended, INTERRUPTED};
use crate::{OrTrouble, Trouble};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trial {
    /// The disk is full before it is done.
    Full,
    /// Somebody else imports into the same database.
    Together,
    /// Somebody else has a transaction open, and then comes Ctrl-C.
    Kept,
}

/// Room that the full disk still has, at most.
const ROOM: u64 = 3 << 19;

impl Trial {
    pub(crate) const ALL: [Trial; 4] = [Trial::Full, Trial::Together, Trial::Kept, Trial::Full];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Trial::Full => "full disk",
            Trial::Together => "two at once",
            Trial::Kept => "kept by another",
        }
    }

    /// What happened, and whether that was what was wanted.
    pub(crate) fn run(self, game: &mut Game<'_>, chance: &mut Chance) -> Result<(String, bool), Trouble> {
        match self {
            Trial::Full => full(game, chance),
            Trial::Together => together(game, chance),
            Trial::Kept => kept(game, chance),
        }
    }
}

/// The import fails with the system's exit code and says why; when there is room again, it goes on.
fn full(game: &mut Game<'_>, chance: &mut Chance) -> Result<(String, bool), Trouble> {
    let folder = game.place.folder().join("disk");
    std::fs::create_dir(&folder).or_trouble("cannot make a folder")?;
    let disk = SmallDisk::mount(&folder)?;
    let place = Place::make(game.mill, &folder.join("place"))?;
    let mut inner = Game::new(game.mill, game.stage, &place, game.copy);
    place.set_up(game.mill, game.stage, chance.percent(30))?;
    let told = on_small_disk(&mut inner, &disk, chance);
    game.findings.append(&mut inner.findings);
    drop(disk);
    std::fs::remove_dir(&folder).or_trouble("cannot remove a folder")?;
    told
}

fn on_small_disk(
    game: &mut Game<'_>,
    disk: &SmallDisk,
    chance: &mut Chance,
) -> Result<(String, bool), Trouble> {
    let room = chance.within(0..ROOM);
    let spare = game.place.folder().join("spare");
    let reserve = || File::create(&spare)?.write_all(&vec![0; room as usize]);
    reserve().or_trouble("cannot write a file")?;
    disk.fill()?;
    std::fs::remove_file(&spare).or_trouble("cannot remove a file")?;
    let database = game.place.database();
    let failed = game.mill.run(&game.place.own(), &game.stage.words(&database, false))?;
    disk.free()?;
    let resume = game.stage.way != Way::New;
    let (told, happened) = match failed {
        Ended::Failed { code: Some(2), said } if said.contains("full") => {
            game.look(End::Full)?;
            let loaded = game.loaded.len();
            match game.mill.run(&game.place.own(), &game.stage.words(&database, resume))? {
                Ended::Done(summary) => game.work(&summary),
                other => game.found(format!("with room again, the import does not go on: {other:?}")),
            }
            (format!("room for {room} bytes, {loaded} in; gone on with"), true)
        }
        Ended::Done(_) => (format!("there was room, with {room} bytes"), false),
        other => {
            game.found(format!("on a full disk it ended so: {other:?}"));
            (format!("room for {room} bytes"), false)
        }
    };
    if game.findings.is_empty() {
        game.look(End::Done)?;
    }
    Ok((told, happened))
}

/// One is refused, or finds that all is done; the other does it.
fn together(game: &mut Game<'_>, chance: &mut Chance) -> Result<(String, bool), Trouble> {
    game.place.set_up(game.mill, game.stage, false)?;
    let words = game.stage.words(&game.place.database(), true);
    let first = game.mill.start(&game.place.own(), &words)?;
    pause(Duration::from_micros(
        chance.within(0..u64::try_from(game.stage.took.as_micros()).unwrap_or(0) / 2 + 1),
    ));
    let second = game.mill.start(&game.place.own(), &words)?;
    let ends = [mill::end(first)?, mill::end(second)?];
    let mut refused = 0;
    for end in &ends {
        match end {
            Ended::Done(_) => {}
            Ended::Failed { code: Some(1), said } if said.contains("another import") => refused += 1,
            other => game.found(format!("two at once, and one ended so: {other:?}")),
        }
    }
    if refused == ends.len() {
        game.found("two at once, and both were refused");
    }
    game.look(End::Done)?;
    Ok((format!("{refused} refused"), refused == 1))
}

/// Ctrl-C is heard while it waits for its turn.
fn kept(game: &mut Game<'_>, chance: &mut Chance) -> Result<(String, bool), Trouble> {
    if game.stage.way == Way::New {
        return Ok(("nobody can keep what is not there".to_owned(), false));
    }
    game.place.set_up(game.mill, game.stage, false)?;
    let database = game.place.database();
    let keep = || -> rusqlite::Result<Connection> {
        let conn = Connection::open(&database)?;
        conn.execute_batch("BEGIN IMMEDIATE")?;
        Ok(conn)
    };
    let conn = keep().or_trouble("cannot keep a database")?;
    let time = chance.millis(300..900);
    match game.mill.strike(&game.place.own(), &game.stage.words(&database, false), Blow::Interrupt(time))? {
        Ended::Failed { code: INTERRUPTED, .. } => {}
        other => game.found(format!("waiting for another program, and then Ctrl-C: {other:?}")),
    }
    drop(conn);
    game.look(End::Gently { resume: false })?;
    Ok((format!("Ctrl-C after {} ms", time.as_millis()), true))
}
