//! The fixture of scan rounds: a tree, its catalog before the scan, and the result of an undisturbed scan.
//!
//! Owns the files and the scan variants. The rounds choose the kills.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use gristmill_check::Rng;
use serde_json::Value;

use super::tree::Tree;
use crate::cli::Cli;
use crate::harness::Named;
use crate::sqlite::{Database, copy, restore};
use crate::{Error, ErrorContext};

/// Options with which a tree is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Variant {
    Plain,
    #[value(name = "a root in a root")]
    Nested,
    #[value(name = "links followed")]
    Links,
    /// In later scans.
    #[value(name = "another hash")]
    OtherHash,
    #[value(name = "every file")]
    Every,
}

impl Variant {
    pub(crate) const ALL: [Self; 6] =
        [Self::Plain, Self::Nested, Self::Links, Self::Plain, Self::OtherHash, Self::Every];
}

pub(crate) struct Fixture {
    cli: Cli,
    folder: PathBuf,
    tree: Tree,
    variant: Variant,
    pub(crate) scenario: Scenario,
}

/// A scan and its expected result.
pub(crate) struct Scenario {
    /// Description in the output.
    pub(crate) name: String,
    pub(crate) args: Vec<OsString>,
    /// Catalog before the scan, if there is one.
    pub(crate) before: Option<PathBuf>,
    /// Id of the last scan in that catalog.
    pub(crate) since: i64,
    /// Catalog after an undisturbed scan.
    pub(crate) undisturbed: PathBuf,
    /// Summary of the undisturbed scan.
    pub(crate) summary: Value,
    /// Output of `gristmill dupes` after it.
    pub(crate) dupes: Value,
    pub(crate) duration: Duration,
}

impl Fixture {
    /// Generates a tree without a catalog. With `locked`, parts of it cannot be read.
    pub(crate) fn new(cli: &Cli, folder: &Path, rng: Rng, variant: Variant, locked: bool) -> Result<Self, Error> {
        cli.create_folder(folder)?;
        let tree = Tree::generate(folder, rng, locked).context("cannot generate a tree")?;
        let scenario = Scenario::new(cli, folder, &tree, variant, None)?;
        Ok(Fixture { cli: cli.clone(), folder: folder.to_path_buf(), tree, variant, scenario })
    }

    /// Scans a copy of the catalog with some files stashed, then changes the tree for the next scan.
    pub(crate) fn change(&mut self) -> Result<(), Error> {
        let before = self.folder.join("before.db");
        copy(&self.cli, &self.scenario.undisturbed, &before)?;
        self.tree.stash_some().context("cannot change the tree")?;
        self.cli.run(&before, &self.scenario.args)?.expect_done()?;
        self.tree.change().context("cannot change the tree")?;
        self.scenario = Scenario::new(&self.cli, &self.folder, &self.tree, self.variant, Some(before))?;
        Ok(())
    }

    /// Leaves the tree unchanged for the next scan.
    pub(crate) fn keep_unchanged(&mut self) -> Result<(), Error> {
        let before = self.folder.join("before.db");
        copy(&self.cli, &self.scenario.undisturbed, &before)?;
        self.scenario = Scenario::new(&self.cli, &self.folder, &self.tree, self.variant, Some(before))?;
        self.scenario.name.insert_str(0, "tree unchanged, ");
        Ok(())
    }

    /// Returns the path of a database in the fixture's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn clear(self) -> Result<(), Error> {
        self.tree.unlock().context("cannot remove the tree")?;
        std::fs::remove_dir_all(&self.folder).context("cannot remove the tree")
    }
}

impl Scenario {
    fn new(cli: &Cli, folder: &Path, tree: &Tree, variant: Variant, before: Option<PathBuf>) -> Result<Self, Error> {
        let mut args: Vec<OsString> = vec!["scan".into(), "--yes".into(), tree.top.clone().into()];
        match variant {
            Variant::Nested => args.push(tree.inner().into()),
            Variant::Links => args.push("--follow-links".into()),
            Variant::OtherHash if before.is_some() => args.extend(["--hash".into(), "sha256".into()]),
            Variant::Every => args.push("--every-file".into()),
            Variant::OtherHash | Variant::Plain => {}
        }
        let undisturbed = folder.join("undisturbed.db");
        restore(cli, before.as_deref(), &undisturbed)?;
        let began = Instant::now();
        let summary = cli.run(&undisturbed, &args)?.expect_done()?;
        let duration = began.elapsed();
        let kind = if before.is_some() { "later scan" } else { "first scan" };
        Ok(Scenario {
            name: format!("{kind}, {}", variant.name()),
            args,
            since: before.as_deref().map_or(Ok(0), last_scan)?,
            before,
            dupes: dupes(cli, &undisturbed)?,
            undisturbed,
            summary,
            duration,
        })
    }
}

/// Returns the id of the last scan in a catalog.
fn last_scan(database: &Path) -> Result<i64, Error> {
    Database::open_copy(database)?.count("SELECT coalesce(max(id), 0) FROM scan_sessions", [])
}

/// Returns all duplicates of a catalog.
pub(crate) fn dupes(cli: &Cli, database: &Path) -> Result<Value, Error> {
    cli.run(database, &["dupes", "--limit", "all"].map(OsString::from))?.expect_done()
}
