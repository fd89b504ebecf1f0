//! One round, as far as it has come: what is looked at after each blow, and at the end.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::field::{Place, Stage, Way};
use super::state::State;
use crate::Trouble;
use crate::database::{copy, remove};
use crate::mill::Mill;

/// How an import that is looked at has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It could not clean up.
    Killed,
    /// It had time to. One that is to be gone on with may keep what it has.
    Gently { resume: bool },
    /// It had time to, but no room, or a bad disk: a log cannot be brought into its database.
    Full,
    /// It did all there was to do.
    Done,
}

pub(crate) struct Game<'a> {
    pub(crate) mill: &'a Mill,
    pub(crate) stage: &'a Stage,
    pub(crate) place: &'a Place,
    /// For a copy of the database, so that whoever goes on finds it as it was.
    pub(crate) copy: &'a Path,
    pub(crate) findings: Vec<String>,
    /// Tables whose file is in.
    pub(crate) loaded: BTreeSet<String>,
    /// An import before could not clean up; one that is stopped before it writes cannot either.
    was_killed: bool,
}

impl<'a> Game<'a> {
    pub(crate) fn new(mill: &'a Mill, stage: &'a Stage, place: &'a Place, copy: &'a Path) -> Self {
        Game { mill, stage, place, copy, findings: Vec::new(), loaded: BTreeSet::new(), was_killed: false }
    }

    pub(crate) fn found(&mut self, what: impl Into<String>) {
        self.findings.push(what.into());
    }

    /// Whether all of it is in.
    pub(crate) fn is_complete(&self) -> bool {
        self.loaded == self.stage.new.since(&self.stage.old)
    }

    /// Looks at what an import has left.
    pub(crate) fn look(&mut self, end: End) -> Result<(), Trouble> {
        self.strays(end)?;
        let is_there = self.place.database().exists();
        let mut state = State::default();
        if is_there {
            copy(self.mill, &self.place.database(), self.copy)?;
            let (found, damage) = State::read(self.copy)?;
            remove(self.copy)?;
            state = found;
            self.findings.extend(damage.iter().map(|line| format!("integrity: {line}")));
        }
        let judgement = state.between(&self.stage.old, &self.stage.new);
        self.findings.extend(judgement.findings);
        let before = std::mem::replace(&mut self.loaded, judgement.loaded);
        if !before.is_subset(&self.loaded) {
            let gone: Vec<_> = before.difference(&self.loaded).collect();
            self.findings.push(format!("was loaded, and is no more: {gone:?}"));
        }
        match (self.stage.way, is_there) {
            (Way::New, true) if !self.is_complete() => {
                let loaded =
                    format!("of {:?} only {:?} is in it", self.stage.new.since(&self.stage.old), self.loaded);
                self.findings.push(format!("a new database is there before it is complete: {loaded}"));
            }
            (Way::New, _) | (_, true) => {}
            (_, false) => self.found("the database is gone"),
        }
        if end == End::Done && !self.is_complete() {
            let wanted = self.stage.new.since(&self.stage.old);
            let missing: Vec<_> = wanted.difference(&self.loaded).collect();
            self.findings.push(format!("not loaded in the end: {missing:?}"));
        }
        Ok(())
    }

    /// Nothing lies beside the database that need not.
    fn strays(&mut self, end: End) -> Result<(), Trouble> {
        let files = self.place.files()?;
        let is_log = |name: &str| ["out.db-journal", "out.db-wal", "out.db-shm"].contains(&name);
        let may_stay = |name: &str| match end {
            _ if name == "out.db" => true,
            End::Killed => name.starts_with(".out.db.import") || is_log(name),
            End::Gently { resume } => {
                let draft = name.starts_with(".out.db.import") && name != ".out.db.import-lock";
                (resume && self.stage.way == Way::New && draft) || (self.was_killed && is_log(name))
            }
            End::Full => ["out.db-wal", "out.db-shm"].contains(&name),
            End::Done => false,
        };
        let strays: Vec<_> = files.iter().filter(|name| !may_stay(name)).collect();
        if !strays.is_empty() {
            self.findings.push(format!("{end:?}, and these files are left: {strays:?}"));
        }
        self.was_killed |= end == End::Killed;
        Ok(())
    }

    /// One that goes on loads what was not loaded, and nothing else. Of a new database nobody knows what was.
    pub(crate) fn work(&mut self, summary: &Value) {
        if self.stage.way == Way::New {
            return;
        }
        let files = summary["files"].as_array().map_or(&[][..], Vec::as_slice);
        for file in files {
            let (table, outcome) =
                (file["table"].as_str().unwrap_or(""), file["outcome"].as_str().unwrap_or(""));
            let expected = if self.loaded.contains(table) { "unchanged" } else { "loaded" };
            if outcome != expected {
                self.findings
                    .push(format!("the file of {table} is said to be {outcome}, and should be {expected}"));
            }
        }
    }
}
