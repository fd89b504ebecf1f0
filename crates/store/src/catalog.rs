//! The catalog: every folder and file that scans have seen, and what is known about each.
//!
//! Owns the tables `folders` and `library_files`. What a walk found in a folder is written as one [`Listing`], with
//! the mark that the folder was walked, so a scan that was killed goes on exactly where its last commit was.
//! A file that is there was last seen when its folder was: a scan that finds nothing new writes one row a
//! folder, none a file. When a file is gone its row keeps the last scan that saw it.
//!
//! It reads no disk and decides nothing: the walk reports what is gone, changed or excluded by filters. Every write that
//! changes a file's row also clears the mark of a settled scan, in the same transaction.

mod groups;
mod hashes;
mod known;
mod links;
mod maintenance;
mod new_files;
mod record;
mod skipped;
mod tree;

pub use groups::{Group, GroupQuery, Groups, Member, SortBy};
pub use hashes::{Algorithm, Digest, FileHash, FileRef, FileRow, HashedFile, ReadResult, prefix};
pub use known::{KnownEntries, KnownFile, KnownFolder};
pub use links::{LinkKind, SharedName, UNSTABLE_INODES};
pub use maintenance::{Check, Purged};
pub(crate) use record::mark_folder_unscanned;
pub use skipped::Skipped;
pub use tree::{Content, FileAt, Node, TreeFile, TreeFolder};

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use self::record::{Recorded, SET_MISSING};
use crate::Store;
use crate::error::Result;
use crate::paths;
use crate::writer::WriteKind;

/// What the file system says about a file. When all of it is as it was, so is the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// In bytes.
    pub size: u64,
    /// Bytes that the file takes on its disk: less than its size if it is sparse.
    pub allocated: u64,
    /// When the content last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// When anything about the file last changed.
    pub ctime_ns: i64,
    /// Which file of its device it is: hard links have this in common.
    pub inode: u64,
    /// Which device it is on. Numbers of devices change between two mounts, so this is no part of the comparison.
    pub device: u64,
    /// Whether other paths may lead to the same inode.
    pub links: LinkKind,
}

impl Stat {
    /// Whether the content can be taken to be the same.
    pub fn is_same(&self, other: &Stat) -> bool {
        let parts = |stat: &Stat| (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode);
        parts(self) == parts(other)
    }
}

/// A folder of a root, by its path in it; the root itself has an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderRef {
    /// The root.
    pub root: i64,
    /// The folder's row, when it has one.
    pub id: Option<i64>,
    /// The path in the root.
    pub path: PathBuf,
}

/// A file that is not as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    /// Its row.
    pub id: i64,
    /// As it is now.
    pub stat: Stat,
    /// Whether its hash still counts if size, times and inode are the same.
    pub keeps_hash: bool,
}

/// What a walk found in one folder, or in a part of it.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The scan that found it.
    pub scan: i64,
    /// The folder.
    pub folder: FolderRef,
    /// Files without a row.
    pub new_files: Vec<(OsString, Stat)>,
    /// What those contain that were read already, by their places among the new files, ascending.
    pub contents: Vec<(u32, Digest)>,
    /// Files that are not as they were, or are back.
    pub changed_files: Vec<ChangedFile>,
    /// Files that are gone.
    pub missing_files: Vec<i64>,
    /// Files that the scan's filters leave out.
    pub excluded_files: Vec<i64>,
    /// Folders without a row.
    pub new_folders: Vec<OsString>,
    /// Folders that are back, or no longer left out.
    pub returned_folders: Vec<i64>,
    /// Folders that are gone, and all below them.
    pub missing_folders: Vec<OsString>,
    /// Folders that the scan's filters leave out, with all below them.
    pub excluded_folders: Vec<OsString>,
    /// Folders that belong to another root or hold nothing of a user's: their rows are deleted, with all below them.
    pub foreign_folders: Vec<OsString>,
    /// Entries that were passed over: all of them, if the folder was listed to its end; otherwise, further ones.
    pub skipped: Skipped,
    /// The filesystem it is on, from [`Catalog::filesystem`].
    pub filesystem: Option<i64>,
    /// Whether that is another one than its parent's.
    pub mount_point: bool,
    /// How it ended.
    pub status: ListingStatus,
}

/// How the walk of a folder ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingStatus {
    /// More of the folder is to come.
    Part,
    /// That was all of it.
    Whole,
    /// All that is known of it was looked at, and what is new was passed over. An error of an earlier walk stays.
    Known,
    /// It could not be read, or not to its end.
    Failed(String),
}

impl Listing {
    /// Nothing yet of a folder.
    pub fn new(scan: i64, folder: FolderRef) -> Self {
        Listing {
            scan,
            folder,
            new_files: Vec::new(),
            contents: Vec::new(),
            changed_files: Vec::new(),
            missing_files: Vec::new(),
            excluded_files: Vec::new(),
            new_folders: Vec::new(),
            returned_folders: Vec::new(),
            missing_folders: Vec::new(),
            excluded_folders: Vec::new(),
            foreign_folders: Vec::new(),
            skipped: Skipped::default(),
            filesystem: None,
            mount_point: false,
            status: ListingStatus::Part,
        }
    }

    /// How many rows it writes, about.
    pub fn weight(&self) -> usize {
        1 + self.new_files.len()
            + self.changed_files.len()
            + self.missing_files.len()
            + self.excluded_files.len()
            + self.new_folders.len()
    }

    /// Whether it changes which files there are, or what is known of one.
    fn changes_files(&self) -> bool {
        !(self.new_files.is_empty()
            && self.changed_files.is_empty()
            && self.missing_files.is_empty()
            && self.excluded_files.is_empty()
            && self.missing_folders.is_empty()
            && self.excluded_folders.is_empty()
            && self.foreign_folders.is_empty())
    }
}

/// What a scan found, to be written together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Folders, each with a number by which readings of its new files refer to it.
    pub listings: Vec<(u64, Listing)>,
    /// What reading files found.
    pub hashes: Vec<FileHash>,
    /// Files that were read before and turn out to have a duplicate.
    pub shared: Vec<FileRef>,
}

impl Batch {
    fn changes_files(&self) -> bool {
        !self.hashes.is_empty()
            || !self.shared.is_empty()
            || self.listings.iter().any(|(_, listing)| listing.changes_files())
    }
}

/// What writing a batch came to.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// How many files are gone now.
    pub missing: usize,
    /// How many are left out by filters now.
    pub excluded: usize,
    /// How many files that were new to the walk had a row all the same. What was read of those is not written.
    pub conflicts: usize,
    /// The rows of each listing's new files, in their order.
    pub ids: NewFileIds,
}

/// Rows of new files, by the number of their listing.
pub type NewFileIds = HashMap<u64, Vec<i64>>;

/// The catalog of a store.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a>(pub(crate) &'a Store);

impl Catalog<'_> {
    /// The root's own folder, if it was ever walked.
    pub fn root_folder(self, root: i64) -> Result<FolderRef> {
        let sql = "SELECT id FROM folders WHERE library_id = ?1 AND relative_path = ''";
        let id = self.0.read(|db| db.first(sql, [root], |row| row.get(0)))?;
        Ok(FolderRef { root, id, path: PathBuf::new() })
    }

    /// The filesystem that a folder was on when it was last walked.
    pub fn filesystem_of(self, folder: i64) -> Result<Option<i64>> {
        let sql = "SELECT filesystem_id FROM folders WHERE id = ?1";
        self.0.read(|db| Ok(db.first(sql, [folder], |row| row.get(0))?.flatten()))
    }

    /// The identity of the filesystem with this number.
    pub fn filesystem_identity(self, number: i64) -> Result<Option<String>> {
        let sql = "SELECT identity FROM filesystems WHERE id = ?1";
        self.0.read(|db| db.first(sql, [number], |row| row.get(0)))
    }

    /// The number of a filesystem, which is given to it when it is first seen.
    pub fn filesystem_id(self, identity: &str) -> Result<i64> {
        let number = "SELECT id FROM filesystems WHERE identity = ?1";
        if let Some(id) = self.0.read(|db| db.first(number, [identity], |row| row.get(0)))? {
            return Ok(id);
        }
        let identity = identity.to_owned();
        self.0.write(WriteKind::Compound, move |db| {
            db.execute("INSERT INTO filesystems (identity) VALUES (?1) ON CONFLICT DO NOTHING", [&identity])?;
            db.number(number, [&identity])
        })
    }

    /// Writes what a scan found, all in one transaction.
    pub fn write(self, batch: Batch) -> Result<Written> {
        self.0.write(WriteKind::Compound, move |db| {
            let mut written = Written::default();
            // A scan that is stopped from now on leaves rows that the last complete one has not compared.
            if batch.changes_files() {
                crate::scans::clear_settled(db)?;
            }
            for (number, listing) in &batch.listings {
                let Recorded { missing, excluded, conflicts, ids } = record::write_listing(db, listing)?;
                written.conflicts += conflicts;
                written.missing += missing;
                written.excluded += excluded;
                written.ids.insert(*number, ids);
            }
            for hashed in &batch.hashes {
                written.missing += hashes::record_hash(db, hashed, &written.ids)?;
            }
            for file in &batch.shared {
                hashes::mark_shared(db, *file, &written.ids)?;
            }
            Ok(written)
        })
    }

    /// Writes what a walk found. Says how many files are gone now.
    pub fn record(self, listings: Vec<Listing>) -> Result<usize> {
        let listings = (0..).zip(listings).collect();
        Ok(self.write(Batch { listings, ..Batch::default() })?.missing)
    }

    /// Whether it knows any file of a root.
    pub fn has_files(self, root: i64) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM library_files WHERE library_id = ?1)";
        self.0.read(|db| Ok(db.number(sql, [root])? > 0))
    }

    /// Whether a root has files that are not gone, as far as is known.
    pub fn has_present_files(self, root: i64) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM library_files WHERE library_id = ?1 AND is_missing = 0)";
        self.0.read(|db| Ok(db.number(sql, [root])? > 0))
    }

    /// Files that another program recorded and a complete walk has not seen are gone. Says how many.
    pub fn mark_unseen_missing(self, root: i64) -> Result<usize> {
        // The plus keeps SQLite from looking through all files of the root for one without a folder: by its folder
        // there is mostly none to look at.
        let has_unplaced =
            "SELECT EXISTS (SELECT 1 FROM library_files WHERE folder_id IS NULL AND +library_id = ?1)";
        if self.0.read(|db| db.number(has_unplaced, [root]))? == 0 {
            return Ok(0);
        }
        self.0.write(WriteKind::Compound, move |db| {
            crate::scans::clear_settled(db)?;
            let sql = format!(
                "UPDATE library_files SET {SET_MISSING} WHERE folder_id IS NULL AND +library_id = ?2 AND is_missing = 0"
            );
            db.execute(&sql, (db.now(), root))
        })
    }

    /// Files that are there, and their size together, of every root. An inode with several names counts once in the size.
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

    /// How many folders of a root are there.
    pub fn count_folders(self, root: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM folders WHERE library_id = ?1 AND removed_at IS NULL AND excluded_at IS NULL";
        self.0.read(|db| db.number(sql, [root]))
    }

    /// How many of them could not be read.
    pub fn count_unreadable(self, root: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM folders WHERE library_id = ?1
            AND error_status IS NOT NULL AND error_status <> ?2 AND removed_at IS NULL AND excluded_at IS NULL";
        self.0.read(|db| db.number(sql, (root, record::UNSCANNED)))
    }

    /// How many files of a root could not be read when they were last tried.
    pub fn count_failed(self, root: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM library_files WHERE library_id = ?1 AND is_missing = 0
            AND excluded_at IS NULL AND hash_error_count > 0";
        self.0.read(|db| db.number(sql, [root]))
    }

    /// Folders that could not be read when they were last walked, and why.
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

    /// Folders of a root that were roots of their own until they were removed, and have not been walked since.
    pub fn unscanned(self, root: i64) -> Result<Vec<PathBuf>> {
        let sql = "SELECT relative_path FROM folders WHERE library_id = ?1
            AND error_status IS NOT NULL AND error_status = ?2 AND removed_at IS NULL AND excluded_at IS NULL
            ORDER BY relative_path";
        self.0.read(|db| {
            db.rows(sql, (root, record::UNSCANNED), |row| {
                Ok(paths::from_text(&row.get::<_, String>(0)?).into())
            })
        })
    }
}

/// Sizes are far below what SQLite can hold.
fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
