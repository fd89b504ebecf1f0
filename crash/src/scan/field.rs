//! Where rounds are played: a tree, what was known of it before, and what an undisturbed scan makes of it.
//!
//! Owns the files of a field and the ways of scanning. Who is killed when, the rounds decide.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::rows::last_scan;
use super::tree::Tree;
use crate::chance::Chance;
use crate::database::{copy, remove};
use crate::mill::Mill;
use crate::{OrTrouble, Trouble};

/// How a field is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    /// A root inside another.
    Nested,
    /// Links are followed.
    Links,
    /// Later scans hash otherwise.
    OtherHash,
    /// Every file is hashed.
    Every,
}

impl Way {
    pub(crate) const ALL: [Way; 6] =
        [Way::Plain, Way::Nested, Way::Links, Way::Plain, Way::OtherHash, Way::Every];

    fn word(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::Nested => "a root in a root",
            Way::Links => "links followed",
            Way::OtherHash => "another hash",
            Way::Every => "every file",
        }
    }
}

pub(crate) struct Field<'a> {
    mill: &'a Mill,
    folder: PathBuf,
    tree: Tree,
    way: Way,
    pub(crate) stage: Stage,
}

/// What is scanned in a round, and what must come of it.
pub(crate) struct Stage {
    /// What it is, for people.
    pub(crate) name: String,
    /// The command.
    pub(crate) words: Vec<OsString>,
    /// What was known before, if anything.
    pub(crate) before: Option<PathBuf>,
    /// The last scan before.
    pub(crate) since: i64,
    /// What an undisturbed scan leaves.
    pub(crate) undisturbed: PathBuf,
    /// What that says of itself.
    pub(crate) summary: Value,
    /// What it finds.
    pub(crate) dupes: Value,
    pub(crate) took: Duration,
    /// Whether a walk that is gone on with begins anew: who was to follow which link is not kept.
    pub(crate) walks_anew: bool,
}

impl<'a> Field<'a> {
    /// A tree that nobody knows yet. `locked`: some of it may not be read.
    pub(crate) fn new(
        mill: &'a Mill,
        folder: &Path,
        chance: Chance,
        (way, locked): (Way, bool),
    ) -> Result<Self, Trouble> {
        std::fs::create_dir(folder).or_trouble("cannot make a folder")?;
        mill.give(folder)?;
        let tree = Tree::plant(folder, chance, locked).or_trouble("cannot plant a tree")?;
        let stage = Stage::of(mill, folder, &tree, way, None)?;
        Ok(Field { mill, folder: folder.to_path_buf(), tree, way, stage })
    }

    /// The tree is scanned, changes, is scanned, and changes once more.
    pub(crate) fn change(&mut self) -> Result<(), Trouble> {
        let before = self.folder.join("before.db");
        copy(self.mill, &self.stage.undisturbed, &before)?;
        self.tree.hide().or_trouble("cannot change the tree")?;
        self.mill.run(&before, &self.stage.words)?.done()?;
        self.tree.change().or_trouble("cannot change the tree")?;
        self.stage = Stage::of(self.mill, &self.folder, &self.tree, self.way, Some(before))?;
        Ok(())
    }

    /// Nothing happens to the tree before the next scan.
    pub(crate) fn rest(&mut self) -> Result<(), Trouble> {
        let before = self.folder.join("before.db");
        copy(self.mill, &self.stage.undisturbed, &before)?;
        self.stage = Stage::of(self.mill, &self.folder, &self.tree, self.way, Some(before))?;
        self.stage.name.insert_str(0, "nothing changed, ");
        Ok(())
    }

    /// A database of this name in the field.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn clear(self) -> Result<(), Trouble> {
        self.tree.unlock().or_trouble("cannot remove the tree")?;
        std::fs::remove_dir_all(&self.folder).or_trouble("cannot remove the tree")
    }
}

impl Stage {
    fn of(
        mill: &Mill,
        folder: &Path,
        tree: &Tree,
        way: Way,
        before: Option<PathBuf>,
    ) -> Result<Self, Trouble> {
        let mut words: Vec<OsString> = vec!["scan".into(), "--yes".into(), tree.top.clone().into()];
        match way {
            Way::Nested => words.push(tree.inner().into()),
            Way::Links => words.push("--follow-links".into()),
            Way::OtherHash if before.is_some() => words.extend(["--hash".into(), "sha256".into()]),
            Way::Every => words.push("--every-file".into()),
            Way::OtherHash | Way::Plain => {}
        }
        let undisturbed = folder.join("undisturbed.db");
        start(mill, before.as_deref(), &undisturbed)?;
        let began = Instant::now();
        let summary = mill.run(&undisturbed, &words)?.done()?;
        let took = began.elapsed();
        let kind = if before.is_some() { "later scan" } else { "first scan" };
        Ok(Stage {
            name: format!("{kind}, {}", way.word()),
            words,
            since: before.as_deref().map_or(Ok(0), last_scan)?,
            before,
            dupes: dupes(mill, &undisturbed)?,
            undisturbed,
            summary,
            took,
            walks_anew: way == Way::Links,
        })
    }
}

/// All that a catalog says of duplicates.
pub(crate) fn dupes(mill: &Mill, database: &Path) -> Result<Value, Trouble> {
    mill.run(database, &["dupes", "--limit", "all"].map(OsString::from))?.done()
}

/// A database as it was before a scan.
pub(crate) fn start(mill: &Mill, before: Option<&Path>, database: &Path) -> Result<(), Trouble> {
    remove(database)?;
    before.map_or(Ok(()), |before| copy(mill, before, database))
}
