//! Writes trees directly into a store, so that folder queries can be tested without a disk.

#![allow(dead_code, reason = "each test file uses a part of this module")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gristmill_pool::clock::ManualClock;
use gristmill_store::catalog::{
    Algorithm, Batch, Digest, FileHash, FolderRef, LinkKind, Listing, ListingStatus, ReadResult, Skipped, Stat,
};
use gristmill_store::scans::{FinishedScan, ScanTotals};
use gristmill_store::{Durability, Store, UtcTime};

/// Content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileContent {
    Empty,
    /// Size and hash value.
    Hashed(u64, u8),
    /// Size of a file that was never hashed.
    Unique(u64),
    /// Size of a file that could not be read.
    Unknown(u64),
}

impl FileContent {
    pub(crate) fn size(self) -> u64 {
        match self {
            FileContent::Empty => 0,
            FileContent::Hashed(size, _) | FileContent::Unique(size) | FileContent::Unknown(size) => size,
        }
    }
}

/// A file to be recorded: path relative to its root, content, and inode (0 for a new one).
#[derive(Clone, Debug)]
pub(crate) struct TestFile {
    pub(crate) path: OsString,
    pub(crate) content: FileContent,
    pub(crate) inode: u64,
    pub(crate) ctime_ns: i64,
    /// Bytes allocated on the disk, if not equal to the size.
    pub(crate) allocated: Option<u64>,
    pub(crate) links: LinkKind,
}

pub(crate) fn file(path: impl Into<OsString>, content: FileContent) -> TestFile {
    TestFile { path: path.into(), content, inode: 0, ctime_ns: 1, allocated: None, links: LinkKind::Unknown }
}

/// A skipped entry: a link with a target, or without one an unknown entry.
pub(crate) fn skipped_entry(name: &str, target: Option<&str>) -> Skipped {
    let sum = |text: String| u128::from_str_radix(&blake3::hash(text.as_bytes()).to_hex()[..32], 16).expect("hex");
    let unknown = u64::from(target.is_none());
    let target = target.unwrap_or("?");
    Skipped { entries: 1, unknown, named: sum(format!("{name}/{target}")), unnamed: sum(target.to_owned()) }
}

/// A store in a temporary folder.
pub(crate) struct CatalogFixture {
    pub(crate) store: Store,
    pub(crate) clock: ManualClock,
    /// Skipped entries per folder for the roots written next. `None` means that they were not recorded.
    pub(crate) skipped: BTreeMap<PathBuf, Option<Skipped>>,
    _folder: tempfile::TempDir,
    next_inode: u64,
}

impl CatalogFixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = ManualClock::at(UtcTime::parse("2026-03-04 05:06:07").expect("a time").micros());
        let options = Store::options().durability(Durability::Normal).clock(clock.clone());
        let store = options.open(folder.path().join("t.db")).expect("a store");
        CatalogFixture { store, clock, skipped: BTreeMap::new(), _folder: folder, next_inode: 1 << 32 }
    }

    /// Records a root with these files, their folders, and also `folders`. The folders in `failed` could not be read
    /// completely.
    pub(crate) fn root(&mut self, root: &str, files: &[TestFile], folders: &[&str], failed: &[&str]) -> i64 {
        let root = self.store.roots().register(Path::new(root)).expect("a root").id;
        let request = gristmill_store::scans::ScanRequest {
            root,
            scope: gristmill_store::scans::ScanScope::Root,
            holder: "test".into(),
            settings: String::new(),
            restart: true,
            is_alive: |_| Some(false),
        };
        let scan = self.store.scans().begin(request).expect("a scan");
        let (began, scan) = (scan.clone(), scan.id);
        let mut listings: BTreeMap<PathBuf, Listing> = BTreeMap::new();
        let mut listing = |path: &Path| {
            for path in path.ancestors() {
                let folder = FolderRef { root, id: None, path: path.to_path_buf() };
                listings.entry(path.to_path_buf()).or_insert_with(|| Listing::new(scan, folder));
            }
        };
        listing(Path::new(""));
        folders.iter().for_each(|folder| listing(Path::new(folder)));
        for file in files {
            listing(Path::new(&file.path).parent().expect("a folder"));
        }
        let mut stats = BTreeMap::new();
        for file in files {
            let path = Path::new(&file.path);
            let inode = if file.inode == 0 { self.next_inode } else { file.inode };
            self.next_inode += 1;
            let size = file.content.size();
            let mtime_ns = 1_000_000_000 * size as i64;
            let (allocated, links) = (file.allocated.unwrap_or(size), file.links);
            let ctime_ns = file.ctime_ns;
            let stat = Stat { size, allocated, mtime_ns, ctime_ns, inode, device: 7, links };
            let listing = listings.get_mut(path.parent().expect("a folder")).expect("its listing");
            listing.new_files.push((path.file_name().expect("a name").to_owned(), stat));
            stats.insert(path.to_path_buf(), (stat, file.content));
        }
        for (path, listing) in &mut listings {
            let has_failed = failed.iter().any(|failed| Path::new(failed) == path);
            let skipped = self.skipped.get(path).copied().unwrap_or(Some(Skipped::default()));
            listing.status = match skipped {
                _ if has_failed => ListingStatus::Failed("no".into()),
                Some(_) => ListingStatus::Whole,
                // As if the folder was never walked.
                None => ListingStatus::Part,
            };
            listing.skipped = skipped.unwrap_or_default();
        }
        // Sorted by path, so a folder's row exists before those of its entries.
        self.store.catalog().record(listings.values().cloned().collect()).expect("recorded");
        let mut hashed = Vec::new();
        self.for_each_file(root, |path, id| {
            let (stat, content) = stats[path];
            let result = match content {
                FileContent::Hashed(size, value) => {
                    let mut hash = vec![value; 32];
                    hash[..8].copy_from_slice(&size.to_be_bytes());
                    ReadResult::Content(Digest::shared(Algorithm::Blake3, hash))
                }
                FileContent::Unknown(_) => ReadResult::Failed("no".into()),
                FileContent::Empty | FileContent::Unique(_) => return,
            };
            hashed.push(FileHash::of_row(id, stat, result));
        });
        self.store.catalog().write(Batch { hashes: hashed, ..Batch::default() }).expect("recorded");
        let bytes = files.iter().map(|file| file.content.size()).sum();
        let totals = ScanTotals { folders: listings.len() as u64, files: files.len() as u64, bytes, errors: 0 };
        let finished = FinishedScan { id: began.id, root, totals, walk: None };
        self.store.scans().finish(vec![finished], "test", None).expect("finished");
        root
    }

    fn for_each_file(&self, root: i64, mut visit: impl FnMut(&Path, i64)) {
        let mut next = vec![self.store.catalog().root_folder(root).expect("its root folder")];
        while let Some(folder) = next.pop() {
            let known = self.store.catalog().known_entries(&folder, true).expect("its files");
            known.files.iter().for_each(|(name, file)| visit(&folder.path.join(name), file.id));
            next.extend(known.folders.iter().map(|(name, inner)| FolderRef {
                root,
                id: Some(inner.id),
                path: folder.path.join(name),
            }));
        }
    }
}
