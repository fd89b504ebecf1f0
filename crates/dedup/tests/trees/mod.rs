//! Trees written straight into a store: no disk is needed to ask about folders.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gristmill_store::catalog::{
    Algorithm, FolderRef, HashedFile, LinkKind, Listing, ListingStatus, ReadResult, Skipped, Stat,
};
use gristmill_store::scans::{FinishedScan, ScanTotals};
use gristmill_store::{Durability, Store, UtcTime, WallClock};

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileContent {
    Empty,
    /// Of this size, hashed to this.
    Hashed(u64, u8),
    /// Of this size, never hashed.
    Unique(u64),
    /// Could not be read.
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

/// A file to be written: where it is in its root, what is in it, its inode (0 for one of its own).
#[derive(Clone, Debug)]
pub(crate) struct TestFile {
    pub(crate) path: OsString,
    pub(crate) what: FileContent,
    pub(crate) inode: u64,
    pub(crate) ctime_ns: i64,
    /// Bytes on the disk, if not its size.
    pub(crate) allocated: Option<u64>,
    pub(crate) links: LinkKind,
}

pub(crate) fn file(path: impl Into<OsString>, what: FileContent) -> TestFile {
    TestFile { path: path.into(), what, inode: 0, ctime_ns: 1, allocated: None, links: LinkKind::Unknown }
}

/// An entry that is passed over: a link with a target, or without one something that is not known.
pub(crate) fn skipped_entry(name: &str, target: Option<&str>) -> Skipped {
    let sum =
        |text: String| u128::from_str_radix(&blake3::hash(text.as_bytes()).to_hex()[..32], 16).expect("hex");
    let unknown = u64::from(target.is_none());
    let target = target.unwrap_or("?");
    Skipped { entries: 1, unknown, named: sum(format!("{name}/{target}")), unnamed: sum(target.to_owned()) }
}

/// A store that lives as long as its folder.
pub(crate) struct CatalogFixture {
    pub(crate) store: Store,
    pub(crate) clock: WallClock,
    /// Entries that are passed over in folders of the roots that are written next. With None nothing is recorded of them.
    pub(crate) skipped: BTreeMap<PathBuf, Option<Skipped>>,
    _folder: tempfile::TempDir,
    next_inode: u64,
}

impl CatalogFixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = WallClock::manual(UtcTime::parse("2026-03-04 05:06:07").expect("a time"));
        let options = Store::options().durability(Durability::Normal).clock(clock.clone());
        let store = options.open(folder.path().join("t.db")).expect("a store");
        CatalogFixture { store, clock, skipped: BTreeMap::new(), _folder: folder, next_inode: 1 << 32 }
    }

    /// Writes a root with these files, the folders they need, and `folders` besides. Those of `failed` could not
    /// be read to their end.
    pub(crate) fn root(&mut self, root: &str, files: &[TestFile], folders: &[&str], failed: &[&str]) -> i64 {
        let root = self.store.roots().register(Path::new(root)).expect("a root").id;
        let wanted = gristmill_store::scans::ScanRequest {
            root,
            holder: "test".into(),
            settings: String::new(),
            restart: true,
            is_alive: |_| Some(false),
        };
        let scan = self.store.scans().begin(wanted).expect("a scan");
        let (began, scan) = (scan.clone(), scan.id);
        let mut listings: BTreeMap<PathBuf, Listing> = BTreeMap::new();
        let mut listing = |path: &Path| {
            for above in path.ancestors() {
                let place = FolderRef { root, id: None, path: above.to_path_buf() };
                listings.entry(above.to_path_buf()).or_insert_with(|| Listing::new(scan, place));
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
            let size = file.what.size();
            let mtime_ns = 1_000_000_000 * size as i64;
            let (allocated, links) = (file.allocated.unwrap_or(size), file.links);
            let ctime_ns = file.ctime_ns;
            let stat = Stat { size, allocated, mtime_ns, ctime_ns, inode, device: 7, links };
            let listing = listings.get_mut(path.parent().expect("a folder")).expect("its listing");
            listing.new_files.push((path.file_name().expect("a name").to_owned(), stat));
            stats.insert(path.to_path_buf(), (stat, file.what));
        }
        for (path, listing) in &mut listings {
            let has_failed = failed.iter().any(|failed| Path::new(failed) == path);
            let skipped = self.skipped.get(path).copied().unwrap_or(Some(Skipped::default()));
            listing.status = match skipped {
                _ if has_failed => ListingStatus::Failed("no".into()),
                Some(_) => ListingStatus::Whole,
                // As if it was never walked.
                None => ListingStatus::Part,
            };
            listing.skipped = skipped.unwrap_or_default();
        }
        // Sorted by path, so a folder's row is there before those in it.
        self.store.catalog().record(listings.values().cloned().collect()).expect("recorded");
        let mut hashed = Vec::new();
        self.each_file(root, |path, id| {
            let (stat, what) = stats[path];
            let finding = match what {
                FileContent::Hashed(size, content) => {
                    let mut hash = vec![content; 32];
                    hash[..8].copy_from_slice(&size.to_be_bytes());
                    ReadResult::Content(Algorithm::Blake3, hash)
                }
                FileContent::Unknown(_) => ReadResult::Failed("no".into()),
                FileContent::Empty | FileContent::Unique(_) => return,
            };
            hashed.push(HashedFile { id, stat, result: finding });
        });
        self.store.catalog().record_shared(hashed).expect("settled");
        let bytes = files.iter().map(|file| file.what.size()).sum();
        let seen = ScanTotals { folders: listings.len() as u64, files: files.len() as u64, bytes, errors: 0 };
        let finished = FinishedScan { id: began.id, root, totals: seen, walk: None };
        self.store.scans().finish(vec![finished], None).expect("finished");
        root
    }

    fn each_file(&self, root: i64, mut visit: impl FnMut(&Path, i64)) {
        let mut next = vec![self.store.catalog().root_folder(root).expect("its top")];
        while let Some(place) = next.pop() {
            let known = self.store.catalog().known_entries(&place, true).expect("its files");
            known.files.iter().for_each(|(name, file)| visit(&place.path.join(name), file.id));
            next.extend(known.folders.iter().map(|(name, folder)| FolderRef {
                root,
                id: Some(folder.id),
                path: place.path.join(name),
            }));
        }
    }
}
