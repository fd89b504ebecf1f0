//! Where rounds are played: files to load, what was there before, and what an undisturbed import makes of both.
//!
//! Owns the files of a field and the ways of importing. Who is killed when, the rounds decide.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::grain::Grain;
use super::state::State;
use crate::chance::Chance;
use crate::database::copy;
use crate::mill::Mill;
use crate::{OrTrouble, Trouble};

/// What is there before, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Nothing: the database comes to be.
    New,
    Append,
    Replace,
    Upsert,
}

impl Way {
    pub(crate) const ALL: [Way; 4] = [Way::New, Way::Append, Way::Replace, Way::Upsert];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Way::New => "new",
            Way::Append => "append",
            Way::Replace => "replace",
            Way::Upsert => "upsert",
        }
    }
}

pub(crate) struct Field {
    folder: PathBuf,
    pub(crate) stages: Vec<Stage>,
}

/// An import, and what must come of it.
pub(crate) struct Stage {
    pub(crate) way: Way,
    inputs: Vec<OsString>,
    /// The database before, if there is one.
    before: Option<PathBuf>,
    pub(crate) old: State,
    pub(crate) new: State,
    pub(crate) took: Duration,
}

impl Field {
    pub(crate) fn new(mill: &Mill, folder: &Path, chance: Chance) -> Result<Self, Trouble> {
        std::fs::create_dir(folder).or_trouble("cannot make a folder")?;
        mill.give(folder)?;
        let grain = Grain::sow(folder, chance).or_trouble("cannot write files to import")?;
        let stages: Result<Vec<Stage>, Trouble> =
            Way::ALL.into_iter().map(|way| Stage::of(mill, folder, &grain, way)).collect();
        Ok(Field { folder: folder.to_path_buf(), stages: stages? })
    }

    pub(crate) fn clear(self) -> Result<(), Trouble> {
        std::fs::remove_dir_all(&self.folder).or_trouble("cannot remove a folder")
    }
}

impl Stage {
    fn of(mill: &Mill, folder: &Path, grain: &Grain, way: Way) -> Result<Self, Trouble> {
        let (mut before, mut old) = (None, State::default());
        if way != Way::New {
            let from = if way == Way::Upsert { &grain.old_keyed } else { &grain.old };
            let database = folder.join(format!("before-{}.db", way.word()));
            mill.run(&own(folder), &words(&[from.into()], &database))?.done()?;
            old = sound(&database)?;
            before = Some(database);
        }
        // Without a primary key there is no upsert.
        let new = if way == Way::Upsert { grain.new.join("keyed") } else { grain.new.clone() };
        let mut inputs: Vec<OsString> = vec![new.into()];
        match way {
            Way::New => inputs.push(grain.heavy.clone().into()),
            _ => inputs.push(format!("--{}", way.word()).into()),
        }
        let mut stage = Stage { way, inputs, before, old, new: State::default(), took: Duration::ZERO };
        let place = Place::make(mill, &folder.join(format!("undisturbed-{}", way.word())))?;
        place.set_up(mill, &stage, false)?;
        let began = Instant::now();
        mill.run(&own(folder), &stage.words(&place.database(), false))?.done()?;
        stage.took = began.elapsed();
        stage.new = sound(&place.database())?;
        Ok(stage)
    }

    /// The command.
    pub(crate) fn words(&self, database: &Path, resume: bool) -> Vec<OsString> {
        let mut words = words(&self.inputs, database);
        words.extend(resume.then(|| "--resume".into()));
        words
    }
}

fn words(inputs: &[OsString], database: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["import".into()];
    words.extend_from_slice(inputs);
    words.extend(["--into".into(), database.into()]);
    // A file with a hole in it has a line that is longer.
    words.extend(["--max-line", "1MiB", "--on-error", "skip", "--index", "group"].map(OsString::from));
    words
}

/// Gristmill's own database, which an import has no use for.
fn own(folder: &Path) -> PathBuf {
    folder.join("own.db")
}

fn sound(database: &Path) -> Result<State, Trouble> {
    let (state, damage) = State::read(database)?;
    match damage.first() {
        Some(damage) => Err(Trouble::System(format!("undisturbed, a database is damaged: {damage}"))),
        None => Ok(state),
    }
}

/// A folder with nothing in it but the database.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn make(mill: &Mill, folder: &Path) -> Result<Self, Trouble> {
        std::fs::create_dir_all(folder).or_trouble("cannot make a folder")?;
        mill.give(folder)?;
        Ok(Place(folder.to_path_buf()))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("out.db")
    }

    pub(crate) fn own(&self) -> PathBuf {
        self.0.join("own.db")
    }

    /// The database as it is before; with a log in place of a journal, if that is wanted.
    pub(crate) fn set_up(&self, mill: &Mill, stage: &Stage, wal: bool) -> Result<(), Trouble> {
        for name in self.files()? {
            std::fs::remove_file(self.0.join(name)).or_trouble("cannot remove a file")?;
        }
        let Some(before) = &stage.before else { return Ok(()) };
        copy(mill, before, &self.database())?;
        if wal {
            let set = || -> rusqlite::Result<String> {
                let conn = Connection::open(self.database())?;
                conn.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0))
            };
            set().or_trouble("cannot prepare a database")?;
        }
        Ok(())
    }

    /// What is in the folder.
    pub(crate) fn files(&self) -> Result<BTreeSet<String>, Trouble> {
        let list = || -> std::io::Result<BTreeSet<String>> {
            std::fs::read_dir(&self.0)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        list().or_trouble("cannot look into a folder")
    }
}
