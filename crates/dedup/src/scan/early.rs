//! Runs the stages after the walk early: for new files, during the walk.
//!
//! Owns which new files are read while their folder is open and their inodes are cached: files with the size of another
//! new file and, if they are large, with equal samples. In the first scan of a tree, most reads happen here, while the
//! catalog is written, and on a cold disk the waits of the walk and of the reads overlap. Files that are deferred here
//! are found by the later stages.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gristmill_store::catalog::{FileHash, FileRef, LinkKind, Listing, ReadResult, Stat};

use super::candidates::HashRule;
use super::reader::{ListedFile, Reader};
use crate::lock;
use crate::progress::add;
use crate::read::{HashScope, MAX_SMALL_SIZE, ReadFile};
use crate::sys::Folder;

/// Number of maps by size, each with its own lock.
const SHARDS: usize = 64;

/// Maximum number of large files remembered by size or samples. Further ones are deferred.
const MAX_LARGE_FILES: usize = 65_536;

/// Maximum number of remembered names of files with several. Further ones are deferred.
const MAX_NAMES: usize = 65_536;

/// Maximum size of a file read in full during the walk. Larger ones are read after it, the largest first.
const MAX_FILE_SIZE: u64 = 16 << 20;

/// Maximum number of bytes of large files read in full during the walk. The rest is read after it, when the total is
/// known and the time left can be estimated.
const MAX_LARGE_BYTES: u64 = 4 << 30;

/// A new file that can be hashed before its row is written.
#[derive(Debug)]
pub(super) struct NewFile {
    /// Folder of the root, and whether symbolic links are followed there.
    root_folder: Arc<Folder>,
    follow_links: bool,
    /// Path of its folder, relative to the root.
    folder: Arc<Path>,
    name: OsString,
    stat: Stat,
    file: FileRef,
}

impl ListedFile for NewFile {
    fn name(&self) -> &OsStr {
        &self.name
    }

    fn stat(&self) -> &Stat {
        &self.stat
    }
}

/// The first file with each key. `None` once there are several.
type FirstFiles<K> = HashMap<K, Option<NewFile>>;

/// Files to be read after their folder was visited.
#[derive(Default)]
pub(super) struct FollowUps {
    /// Files in folders visited earlier.
    elsewhere: Vec<NewFile>,
    /// Large files to be read in full.
    pub(super) whole: Vec<NewFile>,
}

pub(super) struct EarlyStages {
    rule: HashRule,
    reader: Arc<Reader>,
    by_size: Vec<Mutex<FirstFiles<u64>>>,
    by_samples: Mutex<FirstFiles<(u64, i64)>>,
    /// Files with several names, by device, inode and change time.
    by_inode: Mutex<HashMap<(u64, u64, i64), Names>>,
    names: AtomicUsize,
    large_files: AtomicUsize,
    large_bytes: AtomicU64,
    /// Large files that are read in full after the walk.
    after_walk: Mutex<Vec<NewFile>>,
    deferred: AtomicU64,
}

/// The names of a file with several. The first one is read.
#[derive(Default)]
struct Names {
    others: Vec<(FileRef, Stat)>,
    /// Results of reading the first one.
    results: Vec<ReadResult>,
}

impl EarlyStages {
    pub(super) fn new(rule: HashRule, reader: Arc<Reader>) -> Self {
        EarlyStages {
            rule,
            reader,
            by_size: (0..SHARDS).map(|_| Mutex::default()).collect(),
            by_samples: Mutex::default(),
            by_inode: Mutex::default(),
            names: AtomicUsize::new(0),
            large_files: AtomicUsize::new(0),
            large_bytes: AtomicU64::new(0),
            after_walk: Mutex::default(),
            deferred: AtomicU64::new(0),
        }
    }

    /// Whether no file was left for the later stages.
    pub(super) fn is_complete(&self) -> bool {
        self.deferred.load(Ordering::Relaxed) == 0
    }

    /// Hashes those new files of a listing that can be duplicates of other new files. `folder` is the listed folder,
    /// `root` the folder of its root, and whether links are followed there. Adds contents to the listing, and returns
    /// the results that are written after it: samples of large files, and files that changed after they were listed.
    pub(super) fn hash_listing(
        &self,
        folder: &Folder,
        root: (&Arc<Folder>, bool),
        (number, listing): (u64, &mut Listing),
        next: &mut FollowUps,
    ) -> Vec<FileHash> {
        let mut in_folder = Vec::new();
        for new_file in self.new_files(root, number, listing) {
            let (own, other) = self.match_size(new_file);
            in_folder.extend(own);
            match other {
                Some(other) if matches!(other.file, FileRef::New(of, _) if of == number) => in_folder.push(other),
                other => next.elsewhere.extend(other),
            }
        }
        let mut hashes = Vec::new();
        for (new_file, hash) in self.hash_first(folder, in_folder) {
            match (new_file.file, hash) {
                // Unchanged since it was listed: the hash is written with the row.
                (
                    FileRef::New(_, position),
                    FileHash { result: ReadResult::Content(digest), differs: false, racy: false, .. },
                ) => listing.contents.push((position, digest)),
                (_, hash) => {
                    self.match_samples(new_file, &hash, next);
                    hashes.push(hash);
                }
            }
        }
        listing.contents.sort_unstable_by_key(|(position, _)| *position);
        hashes
    }

    /// Hashes files whose folders were visited earlier.
    pub(super) fn hash_elsewhere(&self, next: &mut FollowUps) -> Vec<FileHash> {
        let mut hashes = Vec::new();
        for new_file in std::mem::take(&mut next.elsewhere) {
            if self.reader.is_cancelled() {
                break;
            }
            let Some(folder) = self.open_folder(&new_file) else { continue };
            for (new_file, hash) in self.hash_first(&folder, vec![new_file]) {
                self.match_samples(new_file, &hash, next);
                hashes.push(hash);
            }
        }
        hashes
    }

    /// Returns the large files that are read in full after the walk, the largest first.
    pub(super) fn take_large_files(&self) -> Vec<NewFile> {
        let mut files = std::mem::take(&mut *lock(&self.after_walk));
        files.sort_by_key(|new_file| Reverse(new_file.stat.size));
        files
    }

    /// Returns the results for other names of the files that were read.
    pub(super) fn take_other_names(&self) -> Vec<FileHash> {
        let by_inode = std::mem::take(&mut *lock(&self.by_inode));
        let mut hashes = Vec::new();
        for Names { others, results } in by_inode.into_values() {
            for (file, stat) in others {
                let hash =
                    |result: &ReadResult| FileHash { file, stat, result: result.clone(), differs: false, racy: false };
                hashes.extend(results.iter().map(hash));
            }
        }
        hashes
    }

    /// Hashes the content of a large file that shares its samples with another one.
    pub(super) fn hash_whole(&self, new_file: NewFile) -> Option<FileHash> {
        let folder = self.open_folder(&new_file)?;
        let scope = Some(self.rule.full_scope());
        self.hash_all(&folder, vec![new_file], |_| scope).pop().map(|(_, hash)| hash)
    }

    /// Lists the new files that can be hashed during the walk.
    fn new_files(
        &self,
        (root_folder, follow_links): (&Arc<Folder>, bool),
        number: u64,
        listing: &Listing,
    ) -> Vec<NewFile> {
        if listing.new_files.is_empty() {
            return Vec::new();
        }
        let folder: Arc<Path> = Arc::from(listing.folder.path.as_path());
        let files = (0..).zip(&listing.new_files);
        let accepted = files.filter(|(position, (_, stat))| self.accepts(FileRef::New(number, *position), stat));
        let new_file = accepted.map(|(position, (name, stat))| NewFile {
            root_folder: root_folder.clone(),
            follow_links,
            folder: folder.clone(),
            name: name.clone(),
            stat: *stat,
            file: FileRef::New(number, position),
        });
        new_file.collect()
    }

    /// Whether a new file is handled here. Of a file with several names only the first one is. A target of a symbolic
    /// link is deferred to the plan, because its other names may be outside the root.
    fn accepts(&self, file: FileRef, stat: &Stat) -> bool {
        let is_accepted =
            matches!(stat.links, LinkKind::Single | LinkKind::HardLinked) && self.rule.first_scope(stat.size).is_some();
        self.defer(u64::from(!is_accepted && stat.size > 0));
        is_accepted && (stat.links == LinkKind::Single || self.is_first_name(file, stat))
    }

    fn is_first_name(&self, file: FileRef, stat: &Stat) -> bool {
        if self.names.fetch_add(1, Ordering::Relaxed) >= MAX_NAMES {
            self.defer(1);
            return false;
        }
        match lock(&self.by_inode).entry(inode_key(stat)) {
            Entry::Occupied(mut names) => {
                names.get_mut().others.push((file, *stat));
                false
            }
            Entry::Vacant(first) => {
                first.insert(Names::default());
                true
            }
        }
    }

    fn defer(&self, files: u64) {
        add(&self.deferred, files);
    }

    /// Keeps a result for the other names of a file. If the file changes, the plan reads it again.
    fn record_for_other_names(&self, stat: &Stat, result: &ReadResult, is_changing: bool) {
        if is_changing {
            self.defer(1);
        } else if let Some(names) = lock(&self.by_inode).get_mut(&inode_key(stat)) {
            names.results.push(result.clone());
        }
    }

    /// Registers a new file. Returns the files to read now: none, this one, or this one and the earlier file of the
    /// same size.
    fn match_size(&self, new_file: NewFile) -> (Option<NewFile>, Option<NewFile>) {
        let size = new_file.stat.size;
        if self.rule.every_file {
            return (Some(new_file), None);
        }
        let Some(sizes) = self.by_size.get((size as usize) % SHARDS) else { return (None, None) };
        self.match_or_insert(sizes, size, new_file)
    }

    /// Adds the large files that can be duplicates of a file whose samples were read.
    fn match_samples(&self, new_file: NewFile, hash: &FileHash, next: &mut FollowUps) {
        let FileHash { result: ReadResult::Samples(samples), differs: false, .. } = hash else { return };
        let key = (new_file.stat.size, *samples);
        let (own, other) = self.match_or_insert(&self.by_samples, key, new_file);
        for new_file in own.into_iter().chain(other) {
            let size = new_file.stat.size;
            if size <= MAX_FILE_SIZE && self.large_bytes.fetch_add(size, Ordering::Relaxed) < MAX_LARGE_BYTES {
                next.whole.push(new_file);
            } else if new_file.stat.links == LinkKind::Single {
                lock(&self.after_walk).push(new_file);
            } else {
                self.defer(1);
            }
        }
    }

    fn match_or_insert<K: Eq + Hash>(
        &self,
        first_files: &Mutex<FirstFiles<K>>,
        key: K,
        new_file: NewFile,
    ) -> (Option<NewFile>, Option<NewFile>) {
        let is_large = new_file.stat.size > MAX_SMALL_SIZE;
        match lock(first_files).entry(key) {
            Entry::Occupied(mut known) => (Some(new_file), known.get_mut().take()),
            // Small files have at most `MAX_SMALL_SIZE` different sizes, so they need no limit.
            Entry::Vacant(_) if is_large && self.large_files.fetch_add(1, Ordering::Relaxed) >= MAX_LARGE_FILES => {
                self.defer(1);
                (None, None)
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Some(new_file));
                (None, None)
            }
        }
    }

    fn open_folder(&self, new_file: &NewFile) -> Option<Folder> {
        let folder = new_file.root_folder.open_below(&new_file.folder, new_file.follow_links);
        self.defer(u64::from(folder.is_err()));
        folder.ok()
    }

    fn hash_first(&self, folder: &Folder, files: Vec<NewFile>) -> Vec<(NewFile, FileHash)> {
        self.hash_all(folder, files, |size| self.rule.first_scope(size))
    }

    /// Hashes files of a folder. A file that cannot be read is deferred to the later stages, which try once more and
    /// record the error.
    fn hash_all(
        &self,
        folder: &Folder,
        files: Vec<NewFile>,
        scope: impl Fn(u64) -> Option<HashScope>,
    ) -> Vec<(NewFile, FileHash)> {
        let handle = self.reader.handle();
        add(&handle.to_read, files.len() as u64);
        let bytes = files.iter().filter_map(|file| Some(scope(file.stat.size)?.bytes(file.stat.size)));
        add(&handle.bytes_to_read, bytes.sum());
        // Accepted files are not symbolic links.
        let read = self.reader.read_all(folder, false, files, scope);
        let hashed = read.into_iter().filter_map(|(new_file, read)| {
            if matches!(read.result, ReadResult::Failed(_)) {
                self.defer(1);
                return None;
            }
            let differs = !self.reader.count(&new_file.stat, &read);
            let ReadFile { stat, result, racy } = read;
            if new_file.stat.links == LinkKind::HardLinked {
                self.record_for_other_names(&new_file.stat, &result, differs || racy);
            }
            let hash = FileHash { file: new_file.file, stat, result, differs, racy };
            Some((new_file, hash))
        });
        hashed.collect()
    }
}

pub(super) fn inode_key(stat: &Stat) -> (u64, u64, i64) {
    (stat.device, stat.inode, stat.ctime_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_store::catalog::Algorithm;

    fn early_stages() -> EarlyStages {
        let rule = HashRule { algorithm: Algorithm::Blake3, every_file: false };
        EarlyStages::new(rule, Arc::new(Reader::new(Arc::default(), None, 16)))
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

    /// Number of files that are read in full after a file with these samples.
    fn matched(early: &EarlyStages, new_file: NewFile, samples: i64) -> usize {
        let (file, stat, result) = (new_file.file, new_file.stat, ReadResult::Samples(samples));
        let hash = FileHash { file, stat, result, differs: false, racy: false };
        let mut next = FollowUps::default();
        early.match_samples(new_file, &hash, &mut next);
        next.whole.len()
    }

    #[test]
    fn files_beyond_the_limits_are_read_after_the_walk() {
        let folder = tempfile::tempdir().unwrap();
        let root = Arc::new(Folder::open(folder.path()).unwrap());
        let sizes = early_stages();
        for size in 1..=MAX_SMALL_SIZE + MAX_LARGE_FILES as u64 {
            assert!(sizes.match_size(new_file(&root, size)).0.is_none());
        }
        assert!(sizes.is_complete());
        assert!(sizes.match_size(new_file(&root, 1 << 40)).0.is_none() && !sizes.is_complete());
        assert!(sizes.match_size(new_file(&root, 1 << 40)).0.is_none(), "it was not remembered");

        let files = MAX_LARGE_BYTES / MAX_FILE_SIZE;
        let bytes = early_stages();
        let read: usize = (0..files).map(|_| matched(&bytes, new_file(&root, MAX_FILE_SIZE), 1)).sum();
        assert!(read as u64 == files && bytes.is_complete());
        assert!(matched(&bytes, new_file(&root, MAX_FILE_SIZE), 1) == 0 && bytes.take_large_files().len() == 1);

        let large = early_stages();
        let read = [1, 1].map(|samples| matched(&large, new_file(&root, MAX_FILE_SIZE + 1), samples));
        assert!(read == [0, 0] && large.take_large_files().len() == 2 && large.is_complete());
        let hard_link = || {
            let mut linked = new_file(&root, MAX_FILE_SIZE + 1);
            linked.stat.links = LinkKind::HardLinked;
            linked
        };
        assert!(matched(&large, hard_link(), 1) == 0 && !large.is_complete());
    }
}
