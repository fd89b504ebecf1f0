//! Reports how complete the catalog is.
//!
//! Owns the counts of files that can have a duplicate and were not compared, and the list of roots whose scan did not
//! finish. After a scan that compared everything, which the store records, no file has to be counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;

use gristmill_store::catalog::{Algorithm, FileRow};
use gristmill_store::roots::Root;
use gristmill_store::{Store, display_path};
use serde::Serialize;

use crate::error::Result;
use crate::read::MAX_SMALL_SIZE;
use crate::roots;
use crate::scan::{inode_of, newly_shared};

/// States how complete the catalog is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Whether every file that can be a duplicate was compared, and the last scan of every root has finished.
    pub complete: bool,
    /// Files that have the size of another one and were not compared with it, or were read and are in no group yet.
    pub unread_files: u64,
    /// Part of `unread_files`: files that could not be read when they were last tried.
    pub unreadable_files: u64,
    /// Part of `unread_files`: files in roots that cannot be reached now.
    pub unreachable_files: u64,
    /// Folders that could not be read when they were last walked.
    pub unreadable_folders: u64,
    /// Folders that were nested roots until they were removed, and have not been scanned since.
    pub unscanned_folders: Vec<PathBuf>,
    /// Roots whose last scan has not finished, or that were never scanned.
    pub unfinished_roots: Vec<PathBuf>,
    /// Roots that cannot be reached now. The catalog keeps their files as their last scan found them.
    pub absent_roots: Vec<PathBuf>,
    /// Row ids of the roots that cannot be reached.
    #[serde(skip)]
    pub absent_ids: HashSet<i64>,
}

/// Determines how complete the catalog is for the roots `only`, or for all roots if `only` is empty.
pub fn coverage(store: &Store, only: &[i64]) -> Result<Coverage> {
    let is_selected = |root: &Root| only.is_empty() || only.contains(&root.id);
    let unfinished = store.scans().unfinished()?;
    let absent = roots::absent(store)?;
    let mut coverage = Coverage {
        absent_ids: absent.iter().map(|root| root.id).collect(),
        absent_roots: absent.into_iter().filter(is_selected).map(|root| root.path).collect(),
        ..Coverage::default()
    };
    for root in store.roots().list()?.into_iter().filter(is_selected) {
        let unreadable = store.catalog().count_unreadable(root.id)?;
        coverage.unreadable_folders += u64::try_from(unreadable).unwrap_or(0);
        let unscanned = store.catalog().unscanned(root.id)?;
        coverage.unscanned_folders.extend(unscanned.into_iter().map(|path| root.path.join(path)));
        if unfinished.contains(&root.id) {
            coverage.unfinished_roots.push(root.path);
        }
    }
    if !store.scans().is_fully_compared(&[])? {
        coverage.count(store, only)?;
    }
    coverage.complete = coverage.unread_files == 0
        && coverage.unreadable_folders == 0
        && coverage.unscanned_folders.is_empty()
        && coverage.unfinished_roots.is_empty();
    Ok(coverage)
}

/// A file that can be a duplicate. In sorted order, files of equal size are adjacent, and among them those with equal
/// samples.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PossibleDuplicate {
    size: u64,
    samples: Option<i64>,
    inode: (u64, u64, i64),
    algorithm: Option<Algorithm>,
    root: i64,
    failed: bool,
    id: i64,
    /// Whether it was read, has the hash of another file, and is not in a group yet.
    ungrouped: bool,
}

/// Copies the samples of a file to its other names that lack them.
fn fill_in_samples(candidates: &mut [PossibleDuplicate]) {
    let lacks_samples = |file: &PossibleDuplicate| file.size > MAX_SMALL_SIZE && file.samples.is_none();
    if !candidates.iter().any(lacks_samples) {
        return;
    }
    let known = candidates.iter().filter_map(|file| Some(((file.inode, file.size), file.samples?)));
    let known: HashMap<_, _> = known.collect();
    for file in candidates.iter_mut().filter(|file| lacks_samples(file)) {
        file.samples = known.get(&(file.inode, file.size)).copied();
    }
}

impl Coverage {
    fn count(&mut self, store: &Store, only: &[i64]) -> Result<()> {
        let mut candidates = Vec::new();
        let mut algorithms = BTreeSet::new();
        store.catalog().for_each_file(|row: &FileRow| {
            if row.stat.size > 0 {
                let samples = row.samples.filter(|_| row.stat.size > MAX_SMALL_SIZE);
                algorithms.extend(row.algorithm);
                candidates.push(PossibleDuplicate {
                    size: row.stat.size,
                    samples,
                    inode: inode_of(row),
                    algorithm: row.algorithm,
                    root: row.root,
                    failed: row.failed,
                    id: row.id,
                    ungrouped: false,
                });
            }
            ControlFlow::Continue(())
        })?;
        let mut ungrouped = HashSet::new();
        for algorithm in algorithms {
            ungrouped.extend(newly_shared(store, (algorithm, false), || false)?);
        }
        for file in candidates.iter_mut().filter(|file| ungrouped.contains(&file.id)) {
            file.ungrouped = true;
        }
        fill_in_samples(&mut candidates);
        candidates.sort_unstable();
        for alike in candidates.chunk_by(|a, b| a.size == b.size) {
            // Samples distinguish files only if all of them have samples.
            if alike.iter().all(|file| file.samples.is_some()) {
                for alike in alike.chunk_by(|a, b| a.samples == b.samples) {
                    self.count_unread(alike, only);
                }
            } else {
                self.count_unread(alike, only);
            }
        }
        Ok(())
    }

    /// Counts the files among `alike`, which can all be equal, that are not in a group yet or lack the hash that most
    /// of them have.
    fn count_unread(&mut self, alike: &[PossibleDuplicate], only: &[i64]) {
        let mut hashed: BTreeMap<Algorithm, u64> = BTreeMap::new();
        let inodes: HashSet<_> = alike.iter().map(|file| file.inode).collect();
        for file in alike {
            if let Some(algorithm) = file.algorithm {
                *hashed.entry(algorithm).or_default() += 1;
            }
        }
        let majority = hashed.into_iter().max_by_key(|(_, files)| *files).map(|(algorithm, _)| algorithm);
        let is_unread =
            |file: &&PossibleDuplicate| file.algorithm.is_none() || file.algorithm != majority || file.ungrouped;
        if inodes.len() < 2 {
            return;
        }
        for file in alike.iter().filter(is_unread).filter(|file| only.is_empty() || only.contains(&file.root)) {
            self.unread_files += 1;
            self.unreadable_files += u64::from(file.failed);
            self.unreachable_files += u64::from(self.absent_ids.contains(&file.root));
        }
    }

    /// Returns the reasons why the catalog is incomplete, and the roots that cannot be reached, one per line.
    pub fn reasons(&self) -> Vec<String> {
        let Coverage { unread_files, unreadable_files, unreachable_files, unreadable_folders, .. } = *self;
        let uncompared = unread_files.saturating_sub(unreadable_files).saturating_sub(unreachable_files);
        let counted = |number: u64, noun: &str, predicate: &str| {
            let (ending, verb) = if number == 1 { ("", "was") } else { ("s", "were") };
            (number > 0).then(|| format!("{number} {noun}{ending} {}", predicate.replace("{was}", verb)))
        };
        let counts = [
            counted(uncompared, "file", "that may have duplicates {was} not compared yet"),
            counted(unreadable_files, "file", "could not be read"),
            counted(unreachable_files, "file", "of roots that cannot be reached now {was} not compared"),
            counted(unreadable_folders, "folder", "could not be read, so files are missing here"),
        ];
        let unscanned = self
            .unscanned_folders
            .iter()
            .map(|folder| format!("{} has not been scanned since its root was removed", display_path(folder)));
        let unfinished = self.unfinished_roots.iter();
        let unfinished = unfinished.map(|root| format!("{} has not been scanned completely", display_path(root)));
        let absent = self.absent_roots.iter().map(|root| {
            let root = display_path(root);
            format!("{root} cannot be reached now; its files are listed as of its last scan")
        });
        counts.into_iter().flatten().chain(unscanned).chain(unfinished).chain(absent).collect()
    }
}
