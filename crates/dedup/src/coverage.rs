//! Reports how complete the catalog is.
//!
//! Owns the counts of files that can have a duplicate and were not compared, and the list of roots whose scan did not
//! finish. After a scan that compared everything, which the store records, no file has to be counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{Algorithm, FileRow};
use gristmill_store::roots::Root;
use gristmill_store::{Store, display_path};
use serde::Serialize;

use crate::error::Result;
use crate::location;
use crate::roots;
use crate::scan::{inode_of, newly_shared, samples_of};

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
    #[serde(serialize_with = "location::paths_of")]
    pub unscanned_folders: Vec<PathBuf>,
    /// Roots whose last scan has not finished, or that were never scanned completely.
    #[serde(serialize_with = "location::paths_of")]
    pub unfinished_roots: Vec<PathBuf>,
    /// Part of `unfinished_roots`: roots of which only named files were scanned, with the number of files.
    #[serde(skip)]
    pub partly_scanned: Vec<(PathBuf, u64)>,
    /// Roots that cannot be reached now. The catalog keeps their files as their last scan found them.
    #[serde(serialize_with = "location::paths_of")]
    pub absent_roots: Vec<PathBuf>,
    /// Row ids of the roots that cannot be reached.
    #[serde(skip)]
    pub absent_ids: HashSet<i64>,
}

/// Determines how complete the catalog is for the roots `only`, or for all roots if `only` is empty.
pub fn coverage(store: &Store, only: &[i64]) -> Result<Coverage> {
    let mut coverage = gaps(store, |root| only.is_empty() || only.contains(&root.id), |_| true)?;
    if !store.scans().is_fully_compared(&[])? {
        coverage.count(store, only)?;
    }
    coverage.conclude();
    Ok(coverage)
}

/// Determines which of these roots, and which folders in them, were not scanned completely. Counts no files.
pub(crate) fn gaps(
    store: &Store,
    is_selected: impl Fn(&Root) -> bool,
    is_inside: impl Fn(&Path) -> bool,
) -> Result<Coverage> {
    let unfinished = store.scans().unfinished()?;
    let partly_scanned: HashMap<i64, u64> = store.scans().partly_scanned()?.into_iter().collect();
    let absent = roots::absent(store)?;
    let mut coverage = Coverage {
        absent_ids: absent.iter().map(|root| root.id).collect(),
        absent_roots: absent.into_iter().filter(&is_selected).map(|root| root.path).collect(),
        ..Coverage::default()
    };
    for root in store.roots().list()?.into_iter().filter(&is_selected) {
        let inside = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
            let paths = folders.into_iter().map(|folder| join(&root.path, &folder));
            paths.filter(|path| is_inside(path)).collect()
        };
        let unreadable = match store.catalog().count_unreadable(root.id)? {
            0 => Vec::new(),
            _ => store.catalog().unreadable(root.id, usize::MAX)?.into_iter().map(|(folder, _)| folder).collect(),
        };
        coverage.unreadable_folders += inside(unreadable).len() as u64;
        coverage.unscanned_folders.extend(inside(store.catalog().unscanned(root.id)?));
        if unfinished.contains(&root.id) {
            let files = partly_scanned.get(&root.id).copied();
            coverage.partly_scanned.extend(files.map(|files| (root.path.clone(), files)));
            coverage.unfinished_roots.push(root.path);
        }
    }
    coverage.conclude();
    Ok(coverage)
}

/// Joins the path of a root and a path in it, which is empty for the root itself.
pub(crate) fn join(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_path_buf() } else { root.join(path) }
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
    let lacks_samples = |file: &PossibleDuplicate| file.samples.is_none();
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
    /// Decides whether the catalog is complete, from the other fields.
    pub(crate) fn conclude(&mut self) {
        self.complete = self.unread_files == 0
            && self.unreadable_folders == 0
            && self.unscanned_folders.is_empty()
            && self.unfinished_roots.is_empty();
    }

    fn count(&mut self, store: &Store, only: &[i64]) -> Result<()> {
        let mut candidates = Vec::new();
        let mut algorithms = BTreeSet::new();
        store.catalog().for_each_file(|row: &FileRow| {
            if row.stat.size > 0 {
                algorithms.extend(row.algorithm);
                candidates.push(PossibleDuplicate {
                    size: row.stat.size,
                    samples: samples_of(row),
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
            // Samples do not distinguish files from one whose hash is known but not its samples.
            if alike.iter().any(|file| file.samples.is_none() && file.algorithm.is_some()) {
                self.count_unread(alike, only);
                continue;
            }
            let is_one_file = alike.iter().all(|file| Some(file.inode) == alike.first().map(|first| first.inode));
            for same in alike.chunk_by(|a, b| a.samples == b.samples) {
                match same {
                    [PossibleDuplicate { samples: None, .. }, ..] if !is_one_file => self.add_unread(same, only),
                    _ => self.count_unread(same, only),
                }
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
        self.add_unread(alike.iter().filter(is_unread), only);
    }

    fn add_unread<'a>(&mut self, files: impl IntoIterator<Item = &'a PossibleDuplicate>, only: &[i64]) {
        for file in files.into_iter().filter(|file| only.is_empty() || only.contains(&file.root)) {
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
        let partly = |root: &PathBuf| self.partly_scanned.iter().find(|(path, _)| path == root);
        let unfinished = self.unfinished_roots.iter().map(|root| match partly(root) {
            Some((_, 1)) => format!("only 1 named file of {} has been scanned", display_path(root)),
            Some((_, files)) => format!("only {files} named files of {} have been scanned", display_path(root)),
            None => format!("{} has not been scanned completely", display_path(root)),
        });
        let absent = self.absent_roots.iter().map(|root| {
            let root = display_path(root);
            format!("{root} cannot be reached now; its files are listed as of its last scan")
        });
        counts.into_iter().flatten().chain(unscanned).chain(unfinished).chain(absent).collect()
    }
}
