//! The import of a round, and the checks after each fault and at the end.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::fixture::{ImportMode, Scenario, Workdir};
use super::state::DatabaseState;
use crate::Error;
use crate::cli::Cli;
use crate::harness::Round;
use crate::sqlite::{copy, remove};

/// How an import ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportEnd {
    /// Killed; it could not clean up.
    Killed,
    /// Stopped with time to clean up. With `resume`, it may keep a draft.
    Stopped {
        resume: bool,
    },
    /// Failed on a full or faulty disk, so that the WAL could not be checkpointed.
    DiskFull,
    Done,
}

pub(crate) struct Import<'a> {
    pub(crate) cli: &'a Cli,
    pub(crate) scenario: &'a Scenario,
    pub(crate) workdir: &'a Workdir,
    /// Path for a copy of the database; checks read the copy, so that the next import finds the original unchanged.
    pub(crate) copy: &'a Path,
    /// Tables whose file is loaded.
    pub(crate) loaded: BTreeSet<String>,
    /// Whether an earlier import was killed; one that stops before it writes does not clean up after it.
    was_killed: bool,
}

impl<'a> Import<'a> {
    pub(crate) fn new(cli: &'a Cli, scenario: &'a Scenario, workdir: &'a Workdir, copy: &'a Path) -> Self {
        Import { cli, scenario, workdir, copy, loaded: BTreeSet::new(), was_killed: false }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.loaded == self.scenario.new.loaded_since(&self.scenario.old)
    }

    /// Checks the database and the files that an import has left.
    pub(crate) fn inspect(&mut self, end: ImportEnd, round: &mut Round) -> Result<(), Error> {
        self.check_leftovers(end, round)?;
        let exists = self.workdir.database().exists();
        let mut state = DatabaseState::default();
        if exists {
            copy(self.cli, &self.workdir.database(), self.copy)?;
            let (found, damage) = DatabaseState::read(self.copy)?;
            remove(self.copy)?;
            state = found;
            round.damage(&damage);
        }
        let comparison = state.compare(&self.scenario.old, &self.scenario.new);
        round.violations.extend(comparison.violations);
        let before = std::mem::replace(&mut self.loaded, comparison.loaded);
        if !before.is_subset(&self.loaded) {
            let missing: Vec<_> = before.difference(&self.loaded).collect();
            round.violation(format!("no longer loaded: {missing:?}"));
        }
        match (self.scenario.mode, exists) {
            (ImportMode::New, true) if !self.is_complete() => {
                let expected = self.scenario.new.loaded_since(&self.scenario.old);
                let loaded = format!("of {expected:?} only {:?} are loaded", self.loaded);
                round.violation(format!("a new database exists before it is complete: {loaded}"));
            }
            (ImportMode::New, _) | (_, true) => {}
            (_, false) => round.violation("the database is gone"),
        }
        if end == ImportEnd::Done && !self.is_complete() {
            let expected = self.scenario.new.loaded_since(&self.scenario.old);
            let missing: Vec<_> = expected.difference(&self.loaded).collect();
            round.violation(format!("not loaded at the end: {missing:?}"));
        }
        Ok(())
    }

    /// Checks that no unnecessary file is beside the database.
    fn check_leftovers(&mut self, end: ImportEnd, round: &mut Round) -> Result<(), Error> {
        let files = self.workdir.files()?;
        let is_log = |name: &str| ["out.db-journal", "out.db-wal", "out.db-shm"].contains(&name);
        let may_stay = |name: &str| match end {
            _ if name == "out.db" => true,
            ImportEnd::Killed => name.starts_with(".out.db.import") || is_log(name),
            ImportEnd::Stopped { resume } => {
                let draft = name.starts_with(".out.db.import") && name != ".out.db.import-lock";
                (resume && self.scenario.mode == ImportMode::New && draft) || (self.was_killed && is_log(name))
            }
            ImportEnd::DiskFull => ["out.db-wal", "out.db-shm"].contains(&name),
            ImportEnd::Done => false,
        };
        let leftovers: Vec<_> = files.iter().filter(|name| !may_stay(name)).collect();
        if !leftovers.is_empty() {
            round.violation(format!("the import ended ({end:?}) and left files: {leftovers:?}"));
        }
        self.was_killed |= end == ImportEnd::Killed;
        Ok(())
    }

    /// Checks that a resumed import loaded only the missing tables. The progress of a new database is unknown.
    pub(crate) fn check_summary(&self, summary: &Value, round: &mut Round) {
        if self.scenario.mode == ImportMode::New {
            return;
        }
        let files = summary["files"].as_array().map_or(&[][..], Vec::as_slice);
        for file in files {
            let (table, outcome) = (file["table"].as_str().unwrap_or(""), file["outcome"].as_str().unwrap_or(""));
            let expected = if self.loaded.contains(table) { "unchanged" } else { "loaded" };
            if outcome != expected {
                round.violation(format!("the outcome of table {table} is {outcome:?}; expected {expected:?}"));
            }
        }
    }
}
