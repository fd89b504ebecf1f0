//! Runs the operations of a round and checks the catalog after each.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use gristmill_check::Rng;
use gristmill_dedup::ScanSummary;
use gristmill_store::roots::Root;
use gristmill_store::{Error, Store};

use crate::catalog::{self, ListedGroup};
use crate::disk::Disk;
use crate::model::{self, Files};
use crate::ops::{self, Op, ROOTS, ScanOp};
use crate::rules::Rules;

/// A failed check. Failures of one kind count as the same when a round is reduced.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

pub(crate) type Check<T = ()> = Result<T, Failure>;

pub(crate) fn fail<T>(kind: &'static str, text: impl Into<String>) -> Check<T> {
    Err(Failure { kind, text: text.into() })
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { kind: "store error", text: error.to_string() }
    }
}

/// The files that the catalog must have of a root.
#[derive(Clone, Debug, Default)]
pub(crate) enum Known {
    /// The root was never walked.
    #[default]
    Nothing,
    /// These files, as they were at the last walk.
    Exactly(Files),
    /// A mixture of two states, because a scan was stopped or covered only a part.
    Partly,
}

/// State of a registered root.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registered {
    pub(crate) known: Known,
    /// Filters and link setting of the last walk.
    pub(crate) rules: Rules,
    pub(crate) follow: bool,
    /// Whether a scan of the whole root has ended.
    pub(crate) was_walked: bool,
    /// Whether a scan of the whole root was stopped since one has ended.
    pub(crate) is_unfinished: bool,
}

pub(crate) struct Round {
    pub(crate) seed: u64,
    pub(crate) mounts: bool,
    pub(crate) disk: Disk,
    /// `None` only while the store is reopened.
    store: Option<Store>,
    pub(crate) registered: BTreeMap<PathBuf, Registered>,
    /// Whether a scan was killed. Its root cannot be removed for one minute.
    pub(crate) killed: bool,
    /// Descriptions of the applied operations.
    pub(crate) log: Vec<String>,
}

/// Runs operations, each with its number in the round, then scans until everything is known.
pub(crate) fn run(seed: u64, mounts: bool, ops: &[(usize, Op)]) -> Result<(), (Failure, Vec<String>)> {
    let disk = Disk::new(mounts);
    let store = Some(catalog::open(&disk.base().join("t.db")));
    let registered = BTreeMap::new();
    let mut round = Round { seed, mounts, disk, store, registered, killed: false, log: Vec::new() };
    let mut run = || {
        for (index, op) in ops {
            round.step(*index, op)?;
            round.check_sound()?;
        }
        round.converge()
    };
    run().map_err(|failure| (failure, std::mem::take(&mut round.log)))
}

impl Round {
    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().expect("a store")
    }

    pub(crate) fn roots(&self) -> Check<Vec<Root>> {
        Ok(self.store().roots().list()?)
    }

    fn step(&mut self, index: usize, op: &Op) -> Check {
        let text = match op {
            Op::Scan(op) => return self.scan(Some(index), op).map(drop),
            Op::Register(number) => self.register(*number)?,
            Op::Unregister(number) => self.unregister(*number)?,
            Op::FollowLinks(number, follow) => self.follow_links(*number, *follow)?,
            Op::ReopenStore => {
                self.store = None;
                self.store = Some(catalog::open(&self.disk.base().join("t.db")));
                Some("open the store again".to_owned())
            }
            Op::Purge => {
                // All missing files went missing before the year 2100.
                let before = gristmill_store::UtcTime::from_micros(4_102_444_800_000_000);
                self.store().catalog().purge(true, true, before)?;
                Some("purge".to_owned())
            }
            op => self.disk.apply(op),
        };
        self.log.extend(text);
        Ok(())
    }

    fn register(&mut self, number: usize) -> Check<Option<String>> {
        let path = self.disk.root(number);
        if !path.is_dir() || self.registered.contains_key(&path) {
            return Ok(None);
        }
        match self.store().roots().register(&path) {
            Err(Error::Conflict(_)) if self.killed => return Ok(None),
            result => drop(result?),
        }
        let outer = self.registered.iter_mut().rev().find(|(outer, _)| path.starts_with(outer));
        let mut inner = Registered::default();
        if let Some((outer_path, outer)) = outer {
            let inside = path.strip_prefix(outer_path).expect("inside").to_path_buf();
            match &mut outer.known {
                Known::Nothing => {}
                // Files that the filters of the last scan excluded are not known here.
                Known::Exactly(files) if outer.rules == Rules::default() && !outer.follow => {
                    let (inside_files, left) =
                        std::mem::take(files).into_iter().partition(|(path, _)| path.starts_with(&inside));
                    *files = left;
                    let inside_files: Files = inside_files;
                    let short = |path: PathBuf| path.strip_prefix(&inside).expect("inside").to_path_buf();
                    inner.known =
                        Known::Exactly(inside_files.into_iter().map(|(path, file)| (short(path), file)).collect());
                }
                Known::Exactly(_) | Known::Partly => {
                    (outer.known, inner.known) = (Known::Partly, Known::Partly);
                }
            }
        }
        self.registered.insert(path, inner);
        Ok(Some(format!("roots add {}", ROOTS[number])))
    }

    fn unregister(&mut self, number: usize) -> Check<Option<String>> {
        let path = self.disk.root(number);
        let Some(root) = self.roots()?.into_iter().find(|root| root.path == path) else { return Ok(None) };
        match self.store().roots().remove(root.id) {
            Err(Error::Conflict(_)) if self.killed => return Ok(None),
            result => drop(result?),
        }
        self.registered.remove(&path);
        let outer = self.registered.iter().rev().find(|(outer, _)| path.starts_with(outer));
        if let Some((outer, Registered { known: Known::Exactly(_), rules, .. })) = outer
            && *rules == Rules::default()
            && outer.is_dir()
        {
            let coverage = gristmill_dedup::coverage(self.store(), &[])
                .map_err(|error| Failure { kind: "coverage failed", text: error.to_string() })?;
            if coverage.complete {
                return fail("removed root leaves a folder that counts as known", format!("{coverage:?}"));
            }
        }
        Ok(Some(format!("roots remove {}", ROOTS[number])))
    }

    fn follow_links(&mut self, number: usize, follow: bool) -> Check<Option<String>> {
        let path = self.disk.root(number);
        let Some(root) = self.roots()?.into_iter().find(|root| root.path == path) else { return Ok(None) };
        self.store().roots().follow_links(root.id, follow)?;
        Ok(Some(format!("follow links in {}: {follow}", ROOTS[number])))
    }

    /// Checks, after any operation, that the rows are consistent, and that unchanged files in one group are equal.
    fn check_sound(&self) -> Check {
        for check in self.store().catalog().verify()? {
            if check.broken > 0 {
                return fail("verify finds broken rows", format!("{}: {} rows", check.name, check.broken));
            }
        }
        let roots = self.roots()?;
        for listed in catalog::groups(self.store(), &roots, &[])? {
            self.is_equal(&roots, &listed)?;
        }
        Ok(())
    }

    fn is_equal(&self, roots: &[Root], listed: &ListedGroup) -> Check {
        let mut first: Option<(PathBuf, Vec<u8>)> = None;
        for member in &listed.group.members {
            let Some(root) = roots.iter().find(|root| root.id == member.root) else {
                return fail("group has a file of no root", format!("{member:?}"));
            };
            let path = root.path.join(&member.path);
            if model::inode_if_same(&path, &member.stat).is_none() {
                continue;
            }
            let Ok(bytes) = fs::read(&path) else { continue };
            match &first {
                Some((other, content)) if *content != bytes => {
                    let text = format!("{} and {}", other.display(), path.display());
                    return fail("files of one group differ", text);
                }
                Some(_) => {}
                None => first = Some((path, bytes)),
            }
        }
        Ok(())
    }

    /// Checks, at the end of a round, that one complete scan lists everything and the next one reads nothing.
    fn converge(&mut self) -> Check {
        for number in 0..ROOTS.len() {
            self.log.extend(self.disk.move_back(number));
        }
        for number in 0..ROOTS.len() {
            // A folder may have been replaced by a file, or be inside a missing one.
            if !self.disk.root(number).is_dir() {
                let text = self.unregister(number)?;
                self.log.extend(text);
            }
        }
        if self.registered.is_empty() || self.registered.keys().any(|path| !path.is_dir()) {
            return Ok(());
        }
        let first = self.complete_scan(Rules::default())?;
        let again = self.complete_scan(Rules::default())?;
        let numbers = (again.new_files, again.changed_files, again.removed_files, again.returned_files);
        if numbers != (0, 0, 0, 0) {
            return fail("second scan finds changes", format!("{again:?}"));
        }
        if first.duplicate_groups != again.duplicate_groups {
            return fail("second scan counts other groups", format!("{first:?}\n{again:?}"));
        }
        self.reads_nothing(&again)?;
        // Excluded files keep their hashes until the filters are removed.
        let filtered = self.complete_scan(ops::rules(&mut Rng::new(self.seed)))?;
        self.reads_nothing(&filtered)?;
        let unfiltered = self.complete_scan(Rules::default())?;
        self.reads_nothing(&unfiltered)
    }

    fn complete_scan(&mut self, rules: Rules) -> Check<ScanSummary> {
        match self.scan(None, &ScanOp::complete(rules))? {
            Some(summary) => Ok(summary),
            None => fail("complete scan did not finish", ""),
        }
    }

    fn reads_nothing(&self, summary: &ScanSummary) -> Check {
        let read = (summary.read_files, summary.sampled_files, summary.read_bytes);
        // With timestamps in whole seconds, files that have just changed are read again.
        if read != (0, 0, 0) && !self.disk.has_coarse_times() {
            return fail("unchanged files are read again", format!("{summary:?}"));
        }
        Ok(())
    }
}
