//! The catalog: every folder and file that scans have recorded, with metadata and hashes.
//!
//! Owns the tables `folders`, `library_files` and `broken_links`. The entries that a walk finds in a folder are written
//! as a [`Listing`], in parts if there are many. The last part also marks the folder as walked, in the same
//! transaction. A resumed scan walks every folder again. A present file was last seen when its folder was: a scan that
//! finds nothing new writes one row for each folder and none for a file. The row of a missing file keeps the last scan
//! that saw it.
//!
//! This module does not read the disk: the walk decides which entries are missing, changed or excluded by filters.
//! Every write that changes a file's row also clears the settled mark of the last scan, in the same transaction, and
//! the digest of the file's folder, unless a listing writes both.

mod broken_links;
mod contents;
mod folder_page;
mod groups;
mod hashes;
mod known;
mod links;
mod lists;
mod maintenance;
mod new_files;
mod record;
pub mod roots;
pub mod scans;
mod skipped;
mod tree;

pub use broken_links::BrokenLink;
pub use contents::{KnownContent, LikeFile};
pub use folder_page::{EntryType, FolderEntry};
pub use groups::{
    FileFilter, FileType, Group, GroupFile, GroupKey, GroupMarks, GroupPage, GroupQuery, GroupState, GroupSummary,
    Groups, Ignored, MarksCache, Member, PathTest, Refreshed, SortBy,
};
pub use hashes::{Algorithm, Digest, FileHash, FileRef, FileRow, HashUse, ReadResult, SharedFile, prefix};
pub use known::{KnownEntries, KnownFile, KnownFolder, ListingDigest};
pub use links::{LinkKind, SharedName, UNSTABLE_INODES};
pub use lists::{ListedFile, ListedFolder, ListedLink};
pub use maintenance::{Check, Purged};
pub(crate) use record::mark_folder_unscanned;
pub use skipped::Skipped;
pub use tree::{Content, FileAt, Node, TreeFile, TreeFolder};

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::new_files::FileInserter;
use self::record::{Recorded, SET_MISSING};
use crate::Store;
use crate::error::{Error, Result};
use crate::paths;
use crate::sqlite::{Db, WriteHandle, WriteKind};

/// Metadata of a file. If it is unchanged, so is the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// File size in bytes.
    pub size: u64,
    /// Allocated bytes on disk: less than the size if the file is sparse.
    pub allocated: u64,
    /// Time of the last content change in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or metadata in nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Inode number, which all hard links of a file share.
    pub inode: u64,
    /// Device number. It changes between mounts, so it is not compared.
    pub device: u64,
    /// Whether other paths may lead to the same inode.
    pub links: LinkKind,
}

impl Stat {
    /// Returns whether the content can be assumed unchanged: size, times and inode are equal.
    pub fn is_same(&self, other: &Stat) -> bool {
        let parts = |stat: &Stat| (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode);
        parts(self) == parts(other)
    }

    /// Returns the allocated bytes, unless they are the size in whole blocks. Only those are stored.
    fn unusual_allocation(&self) -> Option<i64> {
        (self.allocated != whole_blocks(self.size) || self.links == LinkKind::Unknown).then(|| signed(self.allocated))
    }
}

/// A folder of a root, by its relative path; empty for the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderRef {
    /// Id of the root.
    pub root: i64,
    /// Id of the folder's row, if it has one.
    pub id: Option<i64>,
    /// Path relative to the root.
    pub path: PathBuf,
}

/// A file that differs from its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    /// Id of the file's row.
    pub id: i64,
    /// Metadata as the walk found it.
    pub stat: Stat,
    /// Whether its hash is kept if size, times and inode are equal.
    pub keeps_hash: bool,
}

/// Entries that a walk found in a folder or in a part of it.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Id of the scan.
    pub scan: i64,
    /// Folder whose entries are listed.
    pub folder: FolderRef,
    /// Files without a row.
    pub new_files: Vec<(OsString, Stat)>,
    /// Digests of new files that were already read, by index in `new_files`, ascending.
    pub contents: Vec<(u32, Digest)>,
    /// Files that changed or reappeared.
    pub changed_files: Vec<ChangedFile>,
    /// Ids of files that no longer exist.
    pub missing_files: Vec<i64>,
    /// Ids of files that the scan's filters exclude.
    pub excluded_files: Vec<i64>,
    /// Ids of folders that reappeared or are no longer excluded.
    pub returned_folders: Vec<i64>,
    /// Folders that no longer exist, with everything below them.
    pub missing_folders: Vec<OsString>,
    /// Folders that the scan's filters exclude, with everything below them.
    pub excluded_folders: Vec<OsString>,
    /// Folders that belong to another root or contain no user data: their rows are deleted, with everything below them.
    pub foreign_folders: Vec<OsString>,
    /// Skipped entries: all of them if the folder was listed completely, otherwise additional ones.
    pub skipped: Skipped,
    /// Id of its filesystem, from [`Catalog::filesystem_id`].
    pub filesystem: Option<i64>,
    /// Whether its filesystem differs from its parent's.
    pub mount_point: bool,
    /// Whether the folder was reached through a symbolic link.
    pub via_link: bool,
    /// Its symbolic links whose target does not exist, which replace the recorded ones; `None` if these are unchanged.
    pub broken_links: Option<Vec<BrokenLink>>,
    /// Digest of everything that was found, if the folder was listed completely in one part and a later walk may rely
    /// on it.
    pub digest: Option<ListingDigest>,
    /// Digest in the row of the folder when the walk read it, before it read the rows of its entries.
    pub known_digest: Option<ListingDigest>,
    /// How the listing ended.
    pub status: ListingStatus,
}

/// How the listing of a folder ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListingStatus {
    /// More entries of the folder follow.
    #[default]
    Part,
    /// The folder was listed completely.
    Whole,
    /// The folder was listed completely, with the digest of its last listing.
    Unchanged,
    /// All recorded entries were checked, and new ones were skipped. An error of an earlier walk is kept.
    Known,
    /// Only named files were examined. Other entries, and the result of the last walk, are kept.
    Named,
    /// The folder could not be read, or not completely.
    Failed(String),
}

impl Listing {
    /// Returns an empty listing of a folder.
    pub fn new(scan: i64, folder: FolderRef) -> Self {
        Listing { scan, folder, ..Listing::default() }
    }

    /// Returns the approximate number of rows that the listing writes.
    pub fn weight(&self) -> usize {
        1 + self.new_files.len()
            + self.changed_files.len()
            + self.missing_files.len()
            + self.excluded_files.len()
            + self.broken_links.as_ref().map_or(0, Vec::len)
    }

    fn changes_files(&self) -> bool {
        !(self.new_files.is_empty()
            && self.changed_files.is_empty()
            && self.missing_files.is_empty()
            && self.excluded_files.is_empty()
            && self.missing_folders.is_empty()
            && self.excluded_folders.is_empty()
            && self.foreign_folders.is_empty())
    }

    /// Returns whether the listing changes other rows than that of its folder.
    pub fn changes_entries(&self) -> bool {
        self.changes_files() || !self.returned_folders.is_empty() || self.broken_links.is_some()
    }
}

/// Results of a scan, written in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Listings, each with a number to which the hashes of its new files refer.
    pub listings: Vec<(u64, Listing)>,
    /// Results of reading files.
    pub hashes: Vec<FileHash>,
    /// Files that were read earlier and now have a duplicate.
    pub shared: Vec<SharedFile>,
    /// The process that writes it. The batch is refused if another one has taken over a scan that it lists.
    pub holder: Option<String>,
}

impl Batch {
    fn changes_files(&self) -> bool {
        !self.hashes.is_empty()
            || !self.shared.is_empty()
            || self.listings.iter().any(|(_, listing)| listing.changes_files())
    }
}

/// Result of writing a batch.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Number of files that are now missing.
    pub missing: usize,
    /// Number of files that are now excluded by filters.
    pub excluded: usize,
    /// Number of new files that already had a row. Their digests are not written.
    pub conflicts: usize,
    /// Ids of each listing's new files, in order.
    pub ids: NewFileIds,
}

/// Ids of new files, by the number of their listing.
pub type NewFileIds = HashMap<u64, Vec<i64>>;

/// Catalog of a store.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a>(pub(crate) &'a Store);

impl Catalog<'_> {
    /// Returns the root's own folder; its id is `None` if it was never walked.
    pub fn root_folder(self, root: i64) -> Result<FolderRef> {
        let sql = "SELECT id FROM folders WHERE library_id = ?1 AND relative_path = ''";
        let id = self.0.read(|db| db.first(sql, [root], |row| row.get(0)))?;
        Ok(FolderRef { root, id, path: PathBuf::new() })
    }

    /// Returns the id of the filesystem that a folder was on when it was last walked.
    pub fn filesystem_of(self, folder: i64) -> Result<Option<i64>> {
        let sql = "SELECT filesystem_id FROM folders WHERE id = ?1";
        self.0.read(|db| Ok(db.first(sql, [folder], |row| row.get(0))?.flatten()))
    }

    /// Returns the identity of the filesystem with this id.
    pub fn filesystem_identity(self, id: i64) -> Result<Option<String>> {
        let sql = "SELECT identity FROM filesystems WHERE id = ?1";
        self.0.read(|db| db.first(sql, [id], |row| row.get(0)))
    }

    /// Returns the id of a filesystem; a new identity is inserted.
    pub fn filesystem_id(self, identity: &str) -> Result<i64> {
        let sql = "SELECT id FROM filesystems WHERE identity = ?1";
        if let Some(id) = self.0.read(|db| db.first(sql, [identity], |row| row.get(0)))? {
            return Ok(id);
        }
        let identity = identity.to_owned();
        self.0.write(WriteKind::Compound, move |db| {
            db.execute("INSERT INTO filesystems (identity) VALUES (?1) ON CONFLICT DO NOTHING", [&identity])?;
            db.number(sql, [&identity])
        })
    }

    /// Writes the results of a scan in one transaction.
    pub fn write(self, batch: Batch) -> Result<Written> {
        self.0.write(WriteKind::Compound, move |db| write_batch(db, &batch))
    }

    /// Queues a batch and returns at once; blocks only while the write queue is full. Its transaction waits up to
    /// `linger` for more writes, or until [`WriteHandle::start`]. The writer thread calls `batch` when the transaction
    /// begins, so results that arrive until then belong to it, and `then` after the commit with what was written.
    ///
    /// Both must be short and must not wait for a write, and the caller must not hold a lock that they take.
    pub fn queue<R: Send + 'static>(
        self,
        linger: Duration,
        batch: impl FnOnce() -> Batch + Send + 'static,
        then: impl FnOnce(Result<Written>) -> Result<R> + Send + 'static,
    ) -> Result<WriteHandle<R>> {
        let (mut source, mut taken) = (Some(batch), None);
        let body = move |db: &Db<'_>| {
            if let Some(batch) = source.take() {
                taken = Some(batch());
            }
            // A write may be repeated, with the same batch; there is none if `batch` panicked.
            write_batch(db, taken.as_ref().ok_or_else(|| Error::Internal("a write panicked".to_owned()))?)
        };
        self.0.writer()?.queue(WriteKind::Compound, false, linger, body, then)
    }

    /// Writes listings. Returns the number of files that are now missing.
    pub fn record(self, listings: Vec<Listing>) -> Result<usize> {
        let listings = (0..).zip(listings).collect();
        Ok(self.write(Batch { listings, ..Batch::default() })?.missing)
    }

    /// Returns whether a root has any recorded file.
    pub fn has_files(self, root: i64) -> Result<bool> {
        self.has_files_where(root, "")
    }

    /// Returns whether a root has files that are not missing.
    pub fn has_present_files(self, root: i64) -> Result<bool> {
        self.has_files_where(root, "AND f.is_missing = 0")
    }

    fn has_files_where(self, root: i64, condition: &str) -> Result<bool> {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM folders d JOIN library_files f ON f.folder_id = d.id
                    WHERE d.library_id = ?1 {condition})
                OR EXISTS (SELECT 1 FROM library_files f WHERE f.folder_id IS NULL AND f.library_id = ?1 {condition})"
        );
        self.0.read(|db| Ok(db.number(&sql, [root])? > 0))
    }

    /// Returns whether another program has recorded files of a root that no walk has seen.
    pub fn has_unplaced(self, root: i64) -> Result<bool> {
        // The plus keeps SQLite from searching all files of the root: by `folder_id` there is mostly nothing to read.
        let sql = "SELECT EXISTS (SELECT 1 FROM library_files WHERE folder_id IS NULL AND +library_id = ?1)";
        self.0.read(|db| Ok(db.number(sql, [root])? > 0))
    }

    /// Marks files as missing that another program recorded and a complete walk has not seen. Returns how many.
    pub fn mark_unseen_missing(self, root: i64) -> Result<usize> {
        if !self.has_unplaced(root)? {
            return Ok(0);
        }
        self.0.write(WriteKind::Compound, move |db| {
            scans::clear_settled(db)?;
            let sql = format!(
                "UPDATE library_files SET {SET_MISSING} WHERE folder_id IS NULL AND +library_id = ?2 AND is_missing = 0"
            );
            db.execute(&sql, (db.now(), root))
        })
    }

    /// Returns number and total size of present files for each root. The size counts an inode with several names once.
    pub fn totals(self) -> Result<Vec<(i64, u64, u64)>> {
        let sql = "SELECT library_id, sum(files), sum(bytes) FROM (
                SELECT library_id, count(*) AS files, sum(size_bytes) AS bytes FROM library_files NOT INDEXED
                    WHERE is_missing = 0 AND excluded_at IS NULL AND coalesce(link_kind, 0) = 0 GROUP BY library_id
                UNION ALL SELECT library_id, count(*), max(size_bytes) FROM library_files NOT INDEXED
                    WHERE is_missing = 0 AND excluded_at IS NULL AND link_kind > 0
                    GROUP BY library_id, device, inode)
            GROUP BY library_id";
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        self.0.read(|db| db.rows(sql, [], |row| Ok((row.get(0)?, number(row.get(1)?), number(row.get(2)?)))))
    }

    /// Returns the number of present folders of a root.
    pub fn count_folders(self, root: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM folders WHERE library_id = ?1 AND removed_at IS NULL AND excluded_at IS NULL";
        self.0.read(|db| db.number(sql, [root]))
    }

    /// Returns the number of folders that could not be read.
    pub fn count_unreadable(self, root: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM folders WHERE library_id = ?1
            AND error_status IS NOT NULL AND error_status <> ?2 AND removed_at IS NULL AND excluded_at IS NULL";
        self.0.read(|db| db.number(sql, (root, record::UNSCANNED)))
    }

    /// Returns the folder of a root with this path, if it has a row.
    pub fn folder(self, root: i64, path: &Path) -> Result<Option<KnownFolder>> {
        let text = paths::to_text(path.as_os_str());
        self.0.read(|db| known::folder(db, root, &text))
    }

    /// Returns the files of a root whose last read failed, with their paths.
    pub fn failed_files(self, root: i64) -> Result<Vec<(i64, PathBuf)>> {
        let sql = "SELECT id, relative_path FROM library_files WHERE library_id = ?1 AND is_missing = 0
            AND excluded_at IS NULL AND hash_error_count > 0";
        self.0.read(|db| {
            db.rows(sql, [root], |row| Ok((row.get(0)?, paths::from_text(row.get_ref(1)?.as_str()?).into())))
        })
    }

    /// Returns the number of files of a root whose last read failed.
    pub fn count_failed(self, root: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM library_files WHERE library_id = ?1 AND is_missing = 0
            AND excluded_at IS NULL AND hash_error_count > 0";
        self.0.read(|db| db.number(sql, [root]))
    }

    /// Returns folders that could not be read when they were last walked, with the reason.
    pub fn unreadable(self, root: i64, limit: usize) -> Result<Vec<(PathBuf, String)>> {
        let sql = "SELECT relative_path, error_status FROM folders WHERE library_id = ?1
            AND error_status IS NOT NULL AND error_status <> ?3 AND removed_at IS NULL AND excluded_at IS NULL
            ORDER BY relative_path LIMIT ?2";
        self.0.read(|db| {
            db.rows(sql, (root, crate::sql_limit(limit), record::UNSCANNED), |row| {
                Ok((paths::from_text(&row.get::<_, String>(0)?).into(), row.get(1)?))
            })
        })
    }

    /// Returns folders of a root that were roots themselves until they were removed, and have not been walked since.
    pub fn unscanned(self, root: i64) -> Result<Vec<PathBuf>> {
        let sql = "SELECT relative_path FROM folders WHERE library_id = ?1
            AND error_status IS NOT NULL AND error_status = ?2 AND removed_at IS NULL AND excluded_at IS NULL
            ORDER BY relative_path";
        self.0.read(|db| {
            db.rows(sql, (root, record::UNSCANNED), |row| Ok(paths::from_text(&row.get::<_, String>(0)?).into()))
        })
    }
}

fn write_batch(db: &Db<'_>, batch: &Batch) -> Result<Written> {
    let mut written = Written::default();
    // If this scan is stopped now, its rows have not been compared with the others.
    if batch.changes_files() {
        scans::clear_settled(db)?;
    }
    if let Some(holder) = &batch.holder {
        let mut listed: Vec<i64> = batch.listings.iter().map(|(_, listing)| listing.scan).collect();
        listed.sort_unstable();
        listed.dedup();
        listed.iter().try_for_each(|scan| scans::check_held(db, *scan, holder))?;
    }
    let new_files: usize = batch.listings.iter().map(|(_, listing)| listing.new_files.len()).sum();
    let _direct_writes =
        groups::DirectWrites::begin(db, (new_files, new_files + batch.hashes.len() + batch.shared.len()))?;
    let mut files = FileInserter::new(db)?;
    for (number, listing) in &batch.listings {
        let Recorded { missing, excluded, conflicts, ids } = record::write_listing(db, &mut files, listing)?;
        written.conflicts += conflicts;
        written.missing += missing;
        written.excluded += excluded;
        written.ids.insert(*number, ids);
    }
    for hashed in &batch.hashes {
        written.missing += hashes::record_hash(db, hashed, &written.ids)?;
    }
    for shared in &batch.shared {
        hashes::mark_shared(db, shared, &written.ids)?;
    }
    Ok(written)
}

/// Returns the allocation of most files of a size.
fn whole_blocks(size: u64) -> u64 {
    size.saturating_add(4095) & !4095
}

/// Converts a size, which is far below SQLite's maximum.
fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
