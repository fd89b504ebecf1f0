//! Hashes new files during the walk.
//!
//! Owns which new files are read during the walk, while their folder is open and their inodes are cached: files with
//! the size of another new file and, if they are large, with equal samples. In the first scan of a tree, most reads
//! happen here, while the catalog is written, and on a cold disk the waits of the walk and of the reads overlap. Files
//! that are deferred here are found by the plan.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::fs::File;
use std::hash::Hash;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_store::catalog::{Algorithm, FileHash, FileRef, LinkKind, ReadResult, Stat};

use crate::hash_stage::{RateLimiter, ScanThrottle};
use crate::progress::{ScanHandle, add};
use crate::read::{self, HashScope, MAX_SMALL_SIZE, ReadFile};
use crate::sys::Folder;

/// Number of maps by size, each with its own lock.
const SHARDS: usize = 64;

/// Maximum number of large files remembered by size or samples. Further ones are deferred to the plan.
const MAX_LARGE_FILES: usize = 65_536;

/// Maximum size of a file read in full here. Larger ones are deferred to the plan, which starts with the largest.
const MAX_FILE_SIZE: u64 = 16 << 20;

/// Maximum number of bytes of large files read in full here. The rest is deferred to the plan, which knows the total
/// and can estimate the time left.
const MAX_LARGE_BYTES: u64 = 4 << 30;

/// Maximum number of uncached files that all workers together request from the disk before they wait for the first; at
/// least one per worker. The disk gets many requests at once, and a worker sleeps once for all its files.
const MAX_PREFETCHED: usize = 256;

/// A new file that can be hashed before its row is written.
#[derive(Debug)]
pub(crate) struct NewFile {
    /// Folder of the root, and whether symbolic links are followed there.
    pub(crate) root_folder: Arc<Folder>,
    pub(crate) follow_links: bool,
    /// Path of its folder, relative to the root.
    pub(crate) folder: Arc<Path>,
    pub(crate) name: OsString,
    pub(crate) stat: Stat,
    pub(crate) file: FileRef,
}

/// The first file with each key. `None` once there are several.
type FirstFiles<K> = HashMap<K, Option<NewFile>>;

pub(crate) struct WalkHasher {
    algorithm: Algorithm,
    /// Whether all files are hashed, whatever their size.
    every_file: bool,
    handle: Arc<ScanHandle>,
    rate_limiter: Arc<RateLimiter>,
    max_prefetched: usize,
    by_size: Vec<Mutex<FirstFiles<u64>>>,
    by_samples: Mutex<FirstFiles<(u64, i64)>>,
    large_files: AtomicUsize,
    large_bytes: AtomicU64,
    deferred: AtomicU64,
}

impl WalkHasher {
    pub(crate) fn new(
        (algorithm, every_file): (Algorithm, bool),
        handle: Arc<ScanHandle>,
        rate_limiter: Arc<RateLimiter>,
        workers: usize,
    ) -> Self {
        // With a rate limit, only the file that is read next is prefetched.
        let max_prefetched = if rate_limiter.is_limited() { 1 } else { (MAX_PREFETCHED / workers.max(1)).max(1) };
        WalkHasher {
            algorithm,
            every_file,
            handle,
            rate_limiter,
            max_prefetched,
            by_size: (0..SHARDS).map(|_| Mutex::default()).collect(),
            by_samples: Mutex::default(),
            large_files: AtomicUsize::new(0),
            large_bytes: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
        }
    }

    /// Whether no file was left for the plan.
    pub(crate) fn is_complete(&self) -> bool {
        self.deferred.load(Ordering::Relaxed) == 0
    }

    fn defer(&self) {
        add(&self.deferred, 1);
    }

    /// Whether a new file is handled here. Files with several names are left to the plan, which chooses one name. Large
    /// files are too if every file is hashed, because samples are not needed then.
    pub(crate) fn accepts(&self, stat: &Stat) -> bool {
        if stat.size == 0 {
            return false;
        }
        let is_deferred = stat.links != LinkKind::Single || self.every_file && stat.size > MAX_SMALL_SIZE;
        if is_deferred {
            self.defer();
        }
        !is_deferred
    }

    /// Registers a new file. Returns the files to read now: none, this one, or this one and the earlier file of the
    /// same size.
    pub(crate) fn observe(&self, new_file: NewFile) -> (Option<NewFile>, Option<NewFile>) {
        let size = new_file.stat.size;
        if self.every_file {
            return (Some(new_file), None);
        }
        let Some(sizes) = self.by_size.get((size as usize) % SHARDS) else { return (None, None) };
        self.match_or_insert(sizes, size, new_file)
    }

    /// Registers a large file by its samples. Returns the files to read in full.
    pub(crate) fn match_samples(&self, new_file: NewFile, samples: i64) -> Vec<NewFile> {
        let key = (new_file.stat.size, samples);
        let (own, other) = self.match_or_insert(&self.by_samples, key, new_file);
        own.into_iter().chain(other).filter(|new_file| self.may_hash_whole(new_file)).collect()
    }

    fn may_hash_whole(&self, new_file: &NewFile) -> bool {
        let size = new_file.stat.size;
        let is_allowed = size <= MAX_FILE_SIZE && self.large_bytes.fetch_add(size, Ordering::Relaxed) < MAX_LARGE_BYTES;
        if !is_allowed {
            self.defer();
        }
        is_allowed
    }

    fn match_or_insert<K: Eq + Hash>(
        &self,
        first_files: &Mutex<FirstFiles<K>>,
        key: K,
        new_file: NewFile,
    ) -> (Option<NewFile>, Option<NewFile>) {
        let is_large = new_file.stat.size > MAX_SMALL_SIZE;
        let mut first_files = first_files.lock().unwrap_or_else(PoisonError::into_inner);
        match first_files.entry(key) {
            Entry::Occupied(mut known) => (Some(new_file), known.get_mut().take()),
            // Small files have at most `MAX_SMALL_SIZE` different sizes, so they need no limit.
            Entry::Vacant(_) if is_large && self.large_files.fetch_add(1, Ordering::Relaxed) >= MAX_LARGE_FILES => {
                self.defer();
                (None, None)
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Some(new_file));
                (None, None)
            }
        }
    }

    fn scope(&self, file: &NewFile) -> HashScope {
        if file.stat.size > MAX_SMALL_SIZE { HashScope::Samples } else { HashScope::Content(self.algorithm) }
    }

    /// Hashes files of a folder: small ones in full, samples of large ones. Cached files are read at once; the others
    /// are requested together and then awaited. Omits files that could not be read, and all files if the folder could
    /// not be opened.
    pub(crate) fn hash_all(&self, folder: Option<&Folder>, files: Vec<NewFile>) -> Vec<(NewFile, FileHash)> {
        let Some(folder) = folder else {
            add(&self.deferred, files.len() as u64);
            return Vec::new();
        };
        let throttle = ScanThrottle { handle: &self.handle, rate_limiter: &self.rate_limiter };
        let mut done = Vec::with_capacity(files.len());
        let mut pending = Vec::new();
        for new_file in files {
            if self.handle.is_cancelled() {
                break;
            }
            let scope = self.scope(&new_file);
            self.count_planned(&new_file, scope);
            let file = folder.open_file(&new_file.name).ok();
            match file.as_ref().and_then(|file| read::read_if_cached(file, &new_file.stat, scope, &throttle)) {
                Some(found) => done.extend(self.record_result(new_file, Some(found))),
                None => {
                    if let Some(file) = &file {
                        read::prefetch(file, new_file.stat.size, scope);
                    }
                    pending.push((new_file, file));
                }
            }
            if pending.len() >= self.max_prefetched {
                self.hash_pending(folder, &mut pending, &mut done);
            }
        }
        self.hash_pending(folder, &mut pending, &mut done);
        done
    }

    fn hash_pending(
        &self,
        folder: &Folder,
        pending: &mut Vec<(NewFile, Option<File>)>,
        done: &mut Vec<(NewFile, FileHash)>,
    ) {
        let throttle = ScanThrottle { handle: &self.handle, rate_limiter: &self.rate_limiter };
        for (new_file, file) in pending.drain(..) {
            let scope = self.scope(&new_file);
            let found = read::read_file(file, || folder.open_file(&new_file.name), &new_file.stat, scope, &throttle);
            done.extend(self.record_result(new_file, found));
        }
    }

    pub(crate) fn hash_whole(&self, folder: Option<&Folder>, new_file: NewFile) -> Option<FileHash> {
        let throttle = ScanThrottle { handle: &self.handle, rate_limiter: &self.rate_limiter };
        let scope = HashScope::Content(self.algorithm);
        self.count_planned(&new_file, scope);
        let found = folder.and_then(|folder| {
            read::read_file(None, || folder.open_file(&new_file.name), &new_file.stat, scope, &throttle)
        });
        self.record_result(new_file, found).map(|(_, hash)| hash)
    }

    fn count_planned(&self, new_file: &NewFile, scope: HashScope) {
        add(&self.handle.to_read, 1);
        add(&self.handle.bytes_to_read, scope.bytes(new_file.stat.size));
    }

    /// Returns the result to be written. A file that cannot be read is left to the plan, which tries once more and
    /// records the error.
    fn record_result(&self, new_file: NewFile, found: Option<ReadFile>) -> Option<(NewFile, FileHash)> {
        let Some(ReadFile { stat, result, racy }) =
            found.filter(|found| !matches!(found.result, ReadResult::Failed(_)))
        else {
            self.defer();
            return None;
        };
        add(&self.handle.read, u64::from(result != ReadResult::Gone));
        add(&self.handle.hashed_whole, u64::from(matches!(result, ReadResult::Content(..))));
        let differs = !stat.is_same(&new_file.stat);
        if differs || result == ReadResult::Gone {
            add(&self.handle.changed_during_scan, 1);
        }
        let hash = FileHash { file: new_file.file, stat, result, shared: false, differs, racy };
        Some((new_file, hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk_hasher() -> WalkHasher {
        WalkHasher::new((Algorithm::Blake3, false), Arc::default(), Arc::new(RateLimiter::new(None)), 16)
    }

    fn new_file(root: &Arc<Folder>, size: u64) -> NewFile {
        NewFile {
            root_folder: root.clone(),
            follow_links: false,
            folder: Path::new("").into(),
            name: "a".into(),
            stat: Stat { size, inode: 1, device: 1, links: LinkKind::Single, ..Stat::default() },
            file: FileRef::New(0, 0),
        }
    }

    #[test]
    fn files_beyond_the_limits_are_deferred_to_the_plan() {
        let folder = tempfile::tempdir().unwrap();
        let root = Arc::new(Folder::open(folder.path()).unwrap());
        let sizes = walk_hasher();
        for size in 1..=MAX_SMALL_SIZE + MAX_LARGE_FILES as u64 {
            assert!(sizes.observe(new_file(&root, size)).0.is_none());
        }
        assert!(sizes.is_complete());
        assert!(sizes.observe(new_file(&root, 1 << 40)).0.is_none() && !sizes.is_complete());
        assert!(sizes.observe(new_file(&root, 1 << 40)).0.is_none(), "it was not remembered");

        let files = MAX_LARGE_BYTES / MAX_FILE_SIZE;
        let bytes = walk_hasher();
        let read: usize = (0..files).map(|_| bytes.match_samples(new_file(&root, MAX_FILE_SIZE), 1).len()).sum();
        assert!(read as u64 == files && bytes.is_complete());
        assert!(bytes.match_samples(new_file(&root, MAX_FILE_SIZE), 1).is_empty() && !bytes.is_complete());

        let large = walk_hasher();
        let read = [1, 1].map(|samples| large.match_samples(new_file(&root, MAX_FILE_SIZE + 1), samples).len());
        assert!(read == [0, 0] && !large.is_complete());
    }
}
