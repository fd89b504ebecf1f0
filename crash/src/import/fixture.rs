//! The fixture of import rounds: files to load, the database before, and the result of an undisturbed import.
//!
//! Owns the files and the import modes. The rounds choose the faults.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use gristmill_check::Rng;

use super::dataset::Dataset;
use super::state::DatabaseState;
use crate::cli::Cli;
use crate::harness::Named;
use crate::sqlite::{Database, copy};
use crate::{Error, ErrorContext};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ImportMode {
    New,
    Append,
    Replace,
    Upsert,
}

pub(crate) struct Fixture {
    folder: PathBuf,
    pub(crate) scenarios: Vec<Scenario>,
}

/// An import and its expected result.
pub(crate) struct Scenario {
    pub(crate) mode: ImportMode,
    inputs: Vec<OsString>,
    /// The database before the import, if there is one.
    before: Option<PathBuf>,
    pub(crate) old: DatabaseState,
    pub(crate) new: DatabaseState,
    pub(crate) duration: Duration,
}

impl Fixture {
    pub(crate) fn new(cli: &Cli, folder: &Path, rng: Rng) -> Result<Self, Error> {
        cli.create_folder(folder)?;
        let dataset = Dataset::generate(folder, rng).context("cannot write files to import")?;
        let scenarios: Result<Vec<Scenario>, Error> =
            ImportMode::value_variants().iter().map(|mode| Scenario::new(cli, folder, &dataset, *mode)).collect();
        Ok(Fixture { folder: folder.to_path_buf(), scenarios: scenarios? })
    }

    pub(crate) fn clear(self) -> Result<(), Error> {
        std::fs::remove_dir_all(&self.folder).context("cannot remove a folder")
    }
}

impl Scenario {
    fn new(cli: &Cli, folder: &Path, dataset: &Dataset, mode: ImportMode) -> Result<Self, Error> {
        let (mut before, mut old) = (None, DatabaseState::default());
        if mode != ImportMode::New {
            let from = if mode == ImportMode::Upsert { &dataset.old_keyed } else { &dataset.old };
            let database = folder.join(format!("before-{}.db", mode.name()));
            cli.run(&folder.join("own.db"), &args(&[from.into()], &database))?.expect_done()?;
            old = read_undamaged(&database)?;
            before = Some(database);
        }
        // Upsert needs a primary key.
        let new = if mode == ImportMode::Upsert { dataset.new.join("keyed") } else { dataset.new.clone() };
        let mut inputs: Vec<OsString> = vec![new.into()];
        match mode {
            ImportMode::New => inputs.push(dataset.heavy.clone().into()),
            _ => inputs.push(format!("--{}", mode.name()).into()),
        }
        let mut scenario =
            Scenario { mode, inputs, before, old, new: DatabaseState::default(), duration: Duration::ZERO };
        let workdir = Workdir::create(cli, &folder.join(format!("undisturbed-{}", mode.name())))?;
        workdir.set_up(cli, &scenario, false)?;
        let began = Instant::now();
        cli.run(&folder.join("own.db"), &scenario.args(&workdir.database(), false))?.expect_done()?;
        scenario.duration = began.elapsed();
        scenario.new = read_undamaged(&workdir.database())?;
        Ok(scenario)
    }

    pub(crate) fn args(&self, database: &Path, resume: bool) -> Vec<OsString> {
        let mut args = args(&self.inputs, database);
        args.extend(resume.then(|| "--resume".into()));
        args
    }
}

fn args(inputs: &[OsString], database: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["import".into()];
    args.extend_from_slice(inputs);
    args.extend(["--into".into(), database.into()]);
    // The line of a file with a hole is longer than 1 MiB.
    args.extend(["--max-line", "1MiB", "--on-error", "skip", "--index", "group"].map(OsString::from));
    args
}

fn read_undamaged(database: &Path) -> Result<DatabaseState, Error> {
    let (state, damage) = DatabaseState::read(database)?;
    match damage.first() {
        Some(damage) => Err(Error::System(format!("a database is damaged without a fault: {damage}"))),
        None => Ok(state),
    }
}

/// A folder that contains only the database.
pub(crate) struct Workdir(pub(crate) PathBuf);

impl Workdir {
    pub(crate) fn create(cli: &Cli, folder: &Path) -> Result<Self, Error> {
        cli.create_folder(folder)?;
        Ok(Workdir(folder.to_path_buf()))
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("out.db")
    }

    /// Returns the path for `--db`, which an import does not use.
    pub(crate) fn own_db(&self) -> PathBuf {
        self.0.join("own.db")
    }

    /// Restores the database before the import, in WAL mode if `wal`.
    pub(crate) fn set_up(&self, cli: &Cli, scenario: &Scenario, wal: bool) -> Result<(), Error> {
        for name in self.files()? {
            std::fs::remove_file(self.0.join(name)).context("cannot remove a file")?;
        }
        let Some(before) = &scenario.before else { return Ok(()) };
        copy(cli, before, &self.database())?;
        if wal {
            Database::open_copy(&self.database())?.query("PRAGMA journal_mode = wal", [], |_| Ok(()))?;
        }
        Ok(())
    }

    pub(crate) fn files(&self) -> Result<BTreeSet<String>, Error> {
        let list = || -> std::io::Result<BTreeSet<String>> {
            std::fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        };
        list().context("cannot list a folder")
    }
}
