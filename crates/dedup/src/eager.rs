//! Reading while walking.
//!
//! Owns which new files are read at once: those of a size that another new file has, too, and of the large ones those
//! that are alike at their edges. They are duplicates as likely as any that a plan would find, their folder is open,
//! and their inodes are still in memory. On a tree that is scanned for the first time this is most of the reading;
//! it goes on while the catalog is written, and on a cold disk the walk and the reading wait for it together. What it
//! passes over, the plan finds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::fs::File;
use std::hash::Hash;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_store::catalog::{Algorithm, FileHash, FileRef, LinkKind, ReadResult, Stat};

use crate::progress::{ScanHandle, add};
use crate::read::{self, Goal, ReadFile, SMALL};
use crate::reader::{Budget, Paced};
use crate::sys::Folder;

/// A lock for each of so many parts.
const PARTS: usize = 64;

/// So many large files are remembered, each of a size or with edges of its own.
const MOST_LARGE: usize = 65_536;

/// Files beyond this size are left to the plan: it has them all, and begins with the largest.
const MOST_SIZE: u64 = 16 << 20;

/// After so many bytes of large files the rest is left to the plan. It knows how much there is, and so how long it will
/// take; a walk does not.
const MOST_BYTES: u64 = 4 << 30;

/// So many files that are not in memory are asked for before the first is waited for, by all workers together, each at
/// least one: the disk is given many at once, and a worker sleeps once for all of its own.
const AHEAD: usize = 256;

/// A new file that can be read when its row is on its way.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// Its root, open, and whether links are followed there.
    pub(crate) top: Arc<Folder>,
    pub(crate) follow: bool,
    /// Its folder's path in the root.
    pub(crate) folder: Arc<Path>,
    pub(crate) name: OsString,
    pub(crate) stat: Stat,
    pub(crate) file: FileRef,
}

/// What is known of files that are alike: their only one so far, or that there are several.
type Alike<K> = HashMap<K, Option<Fresh>>;

pub(crate) struct Eager {
    algorithm: Algorithm,
    /// Read all, whatever their size.
    every: bool,
    control: Arc<ScanHandle>,
    budget: Arc<Budget>,
    ahead: usize,
    sizes: Vec<Mutex<Alike<u64>>>,
    /// Large files, by their sizes and their edges.
    edges: Mutex<Alike<(u64, i64)>>,
    large: AtomicUsize,
    bytes: AtomicU64,
    /// How many files were left for the plan.
    passed: AtomicU64,
}

impl Eager {
    pub(crate) fn new(
        (algorithm, every): (Algorithm, bool),
        control: Arc<ScanHandle>,
        budget: Arc<Budget>,
        workers: usize,
    ) -> Self {
        let sizes = (0..PARTS).map(|_| Mutex::default()).collect();
        // Whoever is to read slowly asks for nothing that it may not read yet.
        let ahead = if budget.is_limited() { 1 } else { (AHEAD / workers.max(1)).max(1) };
        Eager {
            algorithm,
            every,
            control,
            budget,
            ahead,
            sizes,
            edges: Mutex::default(),
            large: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        }
    }

    /// Whether nothing was left for the plan.
    pub(crate) fn is_complete(&self) -> bool {
        self.passed.load(Ordering::Relaxed) == 0
    }

    fn pass(&self) {
        add(&self.passed, 1);
    }

    /// Whether a new file is one to be met. Which of its names is read, if there are several, only the plan can say; and
    /// when all is read, edges tell nothing.
    pub(crate) fn takes(&self, stat: &Stat) -> bool {
        if stat.size == 0 {
            return false;
        }
        let is_for_the_plan = stat.links != LinkKind::Single || self.every && stat.size > SMALL;
        if is_for_the_plan {
            self.pass();
        }
        !is_for_the_plan
    }

    /// Meets a new file, and gives back what is to be read now: nothing, the file, or the file and the one before.
    pub(crate) fn meet(&self, fresh: Fresh) -> (Option<Fresh>, Option<Fresh>) {
        let size = fresh.stat.size;
        if self.every {
            return (Some(fresh), None);
        }
        let Some(sizes) = self.sizes.get((size as usize) % PARTS) else { return (None, None) };
        self.among(sizes, size, fresh)
    }

    /// Takes a large file whose edges are known, and gives back what is to be read through.
    pub(crate) fn compare(&self, fresh: Fresh, edges: i64) -> Vec<Fresh> {
        let like = (fresh.stat.size, edges);
        let (own, other) = self.among(&self.edges, like, fresh);
        own.into_iter().chain(other).filter(|fresh| self.may_read_through(fresh)).collect()
    }

    fn may_read_through(&self, fresh: &Fresh) -> bool {
        let size = fresh.stat.size;
        let may = size <= MOST_SIZE && self.bytes.fetch_add(size, Ordering::Relaxed) < MOST_BYTES;
        if !may {
            self.pass();
        }
        may
    }

    fn among<K: Eq + Hash>(
        &self,
        alike: &Mutex<Alike<K>>,
        like: K,
        fresh: Fresh,
    ) -> (Option<Fresh>, Option<Fresh>) {
        let is_large = fresh.stat.size > SMALL;
        let mut alike = alike.lock().unwrap_or_else(PoisonError::into_inner);
        match alike.entry(like) {
            Entry::Occupied(mut known) => (Some(fresh), known.get_mut().take()),
            // There are only so many sizes that a small file can have.
            Entry::Vacant(_) if is_large && self.large.fetch_add(1, Ordering::Relaxed) >= MOST_LARGE => {
                self.pass();
                (None, None)
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Some(fresh));
                (None, None)
            }
        }
    }

    /// How a file is read first.
    fn goal(&self, fresh: &Fresh) -> Goal {
        if fresh.stat.size > SMALL { Goal::Edges } else { Goal::Content(self.algorithm) }
    }

    /// Reads files of a folder: small ones, and the edges of large ones. What is in memory is read at once; the rest is
    /// asked for, and waited for together. Leaves out what could not be read, all if the folder could not be opened.
    pub(crate) fn read(&self, folder: Option<&Folder>, files: Vec<Fresh>) -> Vec<(Fresh, FileHash)> {
        let Some(folder) = folder else {
            add(&self.passed, files.len() as u64);
            return Vec::new();
        };
        let pace = Paced { control: &self.control, budget: &self.budget };
        let mut done = Vec::with_capacity(files.len());
        let mut waiting = Vec::new();
        for fresh in files {
            if self.control.is_cancelled() {
                break;
            }
            let goal = self.goal(&fresh);
            self.announce(&fresh, goal);
            let file = folder.file(&fresh.name).ok();
            match file.as_ref().and_then(|file| read::ready(file, &fresh.stat, goal, &pace)) {
                Some(found) => done.extend(self.found(fresh, Some(found))),
                None => {
                    if let Some(file) = &file {
                        read::ask_for(file, fresh.stat.size, goal);
                    }
                    waiting.push((fresh, file));
                }
            }
            if waiting.len() >= self.ahead {
                self.wait_for(folder, &mut waiting, &mut done);
            }
        }
        self.wait_for(folder, &mut waiting, &mut done);
        done
    }

    fn wait_for(
        &self,
        folder: &Folder,
        waiting: &mut Vec<(Fresh, Option<File>)>,
        done: &mut Vec<(Fresh, FileHash)>,
    ) {
        let pace = Paced { control: &self.control, budget: &self.budget };
        for (fresh, file) in waiting.drain(..) {
            let goal = self.goal(&fresh);
            let found = read::file(file, || folder.file(&fresh.name), &fresh.stat, goal, &pace);
            done.extend(self.found(fresh, found));
        }
    }

    /// Reads a large file to its end.
    pub(crate) fn read_through(&self, folder: Option<&Folder>, fresh: Fresh) -> Option<FileHash> {
        let pace = Paced { control: &self.control, budget: &self.budget };
        let goal = Goal::Content(self.algorithm);
        self.announce(&fresh, goal);
        let found =
            folder.and_then(|folder| read::file(None, || folder.file(&fresh.name), &fresh.stat, goal, &pace));
        self.found(fresh, found).map(|(_, reading)| reading)
    }

    fn announce(&self, fresh: &Fresh, goal: Goal) {
        add(&self.control.to_read, 1);
        add(&self.control.bytes_to_read, goal.cost(fresh.stat.size));
    }

    /// What was found, to be written. What cannot be read now, the plan tries once more, and records.
    fn found(&self, fresh: Fresh, found: Option<ReadFile>) -> Option<(Fresh, FileHash)> {
        let Some(ReadFile { stat, finding, racy }) =
            found.filter(|found| !matches!(found.finding, ReadResult::Failed(_)))
        else {
            self.pass();
            return None;
        };
        add(&self.control.read, u64::from(finding != ReadResult::Gone));
        add(&self.control.read_through, u64::from(matches!(finding, ReadResult::Content(..))));
        let differs = !stat.is_same(&fresh.stat);
        if differs || finding == ReadResult::Gone {
            add(&self.control.surprises, 1);
        }
        let reading = FileHash { file: fresh.file, stat, result: finding, shared: false, differs, racy };
        Some((fresh, reading))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eager() -> Eager {
        Eager::new((Algorithm::Blake3, false), Arc::default(), Arc::new(Budget::new(None)), 16)
    }

    fn fresh(top: &Arc<Folder>, size: u64) -> Fresh {
        Fresh {
            top: top.clone(),
            follow: false,
            folder: Path::new("").into(),
            name: "a".into(),
            stat: Stat { size, inode: 1, device: 1, links: LinkKind::Single, ..Stat::default() },
            file: FileRef::New(0, 0),
        }
    }

    /// What it remembers and what it reads is bounded; beyond, there is a plan.
    #[test]
    fn what_is_too_much_is_left_for_the_plan() {
        let folder = tempfile::tempdir().unwrap();
        let top = Arc::new(Folder::open(folder.path()).unwrap());
        let sizes = eager();
        for size in 1..=SMALL + MOST_LARGE as u64 {
            assert!(sizes.meet(fresh(&top, size)).0.is_none());
        }
        assert!(sizes.is_complete());
        assert!(sizes.meet(fresh(&top, 1 << 40)).0.is_none() && !sizes.is_complete());
        assert!(sizes.meet(fresh(&top, 1 << 40)).0.is_none(), "it was not remembered");

        let files = MOST_BYTES / MOST_SIZE;
        let bytes = eager();
        let read: usize = (0..files).map(|_| bytes.compare(fresh(&top, MOST_SIZE), 1).len()).sum();
        assert!(read as u64 == files && bytes.is_complete());
        assert!(bytes.compare(fresh(&top, MOST_SIZE), 1).is_empty() && !bytes.is_complete());

        let large = eager();
        let read = [1, 1].map(|edges| large.compare(fresh(&top, MOST_SIZE + 1), edges).len());
        assert!(read == [0, 0] && !large.is_complete());
    }
}
