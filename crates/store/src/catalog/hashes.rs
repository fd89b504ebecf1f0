//! Hashes of files, and reading the catalog row by row.
//!
//! Owns the hash columns of `library_files`. A hash is stored with the metadata for which it is valid.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use super::record::SET_MISSING;
use super::{Catalog, ChangedFile, LinkKind, NewFileIds, Stat, whole_blocks};
use crate::error::{Error, Result};
use crate::paths;
use crate::rows::{column, string_enum};
use crate::sqlite::{Db, Row, SqlResult, ValueRef, params};
use crate::time::UtcTime;

string_enum! {
    "a hash algorithm",
    /// Hash algorithm for contents.
    pub enum Algorithm {
        /// BLAKE3 with 32 bytes.
        Blake3 = "blake3",
        /// SHA-256 with 32 bytes.
        Sha256 = "sha256",
        /// SHA-512 with 64 bytes.
        Sha512 = "sha512",
        /// SHA3-256 with 32 bytes.
        Sha3 = "sha3-256",
    }
}

impl Algorithm {
    /// Returns the length of a hash in bytes.
    pub fn length(self) -> usize {
        if self == Algorithm::Sha512 { 64 } else { 32 }
    }
}

/// A present file in the catalog.
#[derive(Clone, Debug)]
pub struct FileRow {
    /// Id of the file's row.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// Metadata when it was last seen.
    pub stat: Stat,
    /// Algorithm of its hash, if it was hashed.
    pub algorithm: Option<Algorithm>,
    /// Hash over a few blocks of the content.
    pub samples: Option<i64>,
    /// First eight bytes of the hash of its content, if that is known and the samples are not.
    pub hash_prefix: Option<u64>,
    /// Whether its last read failed.
    pub failed: bool,
    /// When its last read failed.
    pub failed_at: Option<UtcTime>,
    /// Path relative to its root; empty if it was not requested.
    pub path: PathBuf,
}

/// Refers to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// The file with this row id.
    Row(i64),
    /// A file of the same batch: the number of its listing, and its index among the new files.
    New(u64, u32),
}

impl FileRef {
    /// Returns the row id, if the file has been inserted.
    pub fn row(self, ids: &NewFileIds) -> Option<i64> {
        match self {
            FileRef::Row(id) => Some(id),
            FileRef::New(listing, index) => ids.get(&listing)?.get(index as usize).copied(),
        }
    }
}

/// Hash of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Algorithm of the hash.
    pub algorithm: Algorithm,
    /// Hash of the content.
    pub hash: Vec<u8>,
    /// Samples of the content, if all of it was read for them.
    pub samples: Option<i64>,
    /// What the hash is stored for.
    pub used: HashUse,
}

impl Digest {
    /// Makes the hash of a file that is part of a group.
    pub fn shared(algorithm: Algorithm, hash: Vec<u8>) -> Self {
        Digest { algorithm, hash, samples: None, used: HashUse::Group }
    }

    /// Makes the hash of a file without a known duplicate.
    pub fn unshared(algorithm: Algorithm, hash: Vec<u8>) -> Self {
        Digest { used: HashUse::Kept, ..Digest::shared(algorithm, hash) }
    }
}

/// What a hash is stored for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashUse {
    /// Another file has the same hash: the file is part of a group.
    Group,
    /// No other file is known to have it, but another may be found without reading this file again.
    #[default]
    Kept,
    /// It is not stored, only the samples. The file is read again if another one has the same samples.
    Samples,
}

/// A file that was read earlier and now has a duplicate.
#[derive(Clone, Debug)]
pub struct SharedFile {
    /// The file.
    pub file: FileRef,
    /// Its hash, if it is not stored.
    pub digest: Option<Digest>,
}

/// Result of reading a file, to be written.
#[derive(Clone, Debug)]
pub struct FileHash {
    /// The file that was read.
    pub file: FileRef,
    /// Metadata when it was read.
    pub stat: Stat,
    /// Result of the read.
    pub result: ReadResult,
    /// Whether its row differs: another size or time, or an error.
    pub differs: bool,
    /// Whether it was read so shortly after a change that a later change may have left the same mtime.
    pub racy: bool,
}

impl FileHash {
    /// Makes the result of reading a file that has a row and may have changed.
    pub fn of_row(id: i64, stat: Stat, result: ReadResult) -> Self {
        FileHash { file: FileRef::Row(id), stat, result, differs: true, racy: false }
    }
}

/// Result of reading a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// Hash of the content.
    Content(Digest),
    /// Hash over a few blocks of the content.
    Samples(i64),
    /// The file does not exist. Applied only if a running scan has listed its folder.
    Gone,
    /// The file could not be read, or changed while it was read.
    Failed(String),
}

const COLUMNS: &str = "f.id, f.library_id, f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device, f.allocated_bytes,
    f.link_kind, f.edges,
    coalesce(CASE WHEN f.needs_hash = 0 AND f.content_hash IS NOT NULL THEN f.hash_algorithm END, f.read_algorithm)
        AS algorithm, f.hash_error_count > 0, CASE WHEN f.hash_error_count > 0 THEN f.hash_last_error_at END,
    CASE WHEN f.edges IS NULL THEN coalesce(CASE WHEN f.needs_hash = 0 THEN f.content_hash END, f.read_hash) END";

/// Shared hashes in order, read from the index alone.
pub(super) const SHARED_HASHES_SQL: &str = "SELECT hash_algorithm, content_hash, id FROM library_files
    INDEXED BY ix_library_files_dedup_group
    WHERE is_missing = 0 AND needs_hash = 0 AND content_hash IS NOT NULL ORDER BY hash_algorithm, content_hash, id";

/// Reads in row order, because an index would look up each row separately.
const FILES: &str = "library_files f NOT INDEXED WHERE f.is_missing = 0 AND f.excluded_at IS NULL";

impl Catalog<'_> {
    /// Visits every present file in row order, without its path.
    pub fn for_each_file(self, mut visit: impl FnMut(&FileRow) -> ControlFlow<()>) -> Result<()> {
        let sql = format!("SELECT {COLUMNS} FROM {FILES}");
        self.0.read(|db| db.visit(&sql, [], |found| Ok(visit(&row(found)?)))).map(drop)
    }

    /// Returns up to `limit` present, non-empty files after the row `after`, with their paths, that match `filter`.
    /// Also returns the last row that was examined; `None` at the end.
    pub fn page(
        self,
        after: i64,
        limit: usize,
        mut filter: impl FnMut(&FileRow) -> bool,
    ) -> Result<(Vec<FileRow>, Option<i64>)> {
        let sql =
            format!("SELECT {COLUMNS}, f.relative_path FROM {FILES} AND f.id > ?1 AND f.size_bytes > 0 ORDER BY f.id");
        self.0.read(|db| {
            let mut files = Vec::new();
            let last = db.visit(&sql, [after], |found| {
                let mut row = row(found)?;
                if filter(&row) {
                    row.path = paths::from_text(found.get_ref(14)?.as_str()?).into();
                    let id = row.id;
                    files.push(row);
                    if files.len() >= limit {
                        return Ok(ControlFlow::Break(id));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
            Ok((files, last))
        })
    }

    /// Visits every hash of a present file: its row, the first eight bytes, and whether it is shared.
    pub fn for_each_hash(
        self,
        algorithm: Algorithm,
        mut visit: impl FnMut(i64, u64, bool) -> ControlFlow<()>,
    ) -> Result<()> {
        let shared = "SELECT id, content_hash FROM library_files INDEXED BY ix_library_files_dedup_group
            WHERE is_missing = 0 AND needs_hash = 0 AND hash_algorithm = ?1 AND content_hash IS NOT NULL";
        let unshared = "SELECT id, read_hash FROM library_files NOT INDEXED
            WHERE is_missing = 0 AND excluded_at IS NULL AND needs_hash = 1 AND read_algorithm = ?1";
        self.0.read(|db| {
            for (sql, is_shared) in [(shared, true), (unshared, false)] {
                let visit_row = |row: &Row<'_>| Ok(visit(row.get(0)?, prefix(row.get_ref(1)?.as_blob()?), is_shared));
                if db.visit(sql, [algorithm.as_str()], visit_row)?.is_some() {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Returns the first eight bytes of a hash, by which candidates for a group are found.
pub fn prefix(hash: &[u8]) -> u64 {
    hash.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

pub(super) fn record_hash(db: &Db<'_>, hashed: &FileHash, ids: &NewFileIds) -> Result<usize> {
    let FileHash { file, stat, result, differs, racy } = hashed;
    let Some(id) = file.row(ids) else {
        return Err(Error::Internal("a hash refers to a file that was not written".to_owned()));
    };
    let is_read = !matches!(result, ReadResult::Gone | ReadResult::Failed(_));
    if *differs && is_read {
        update_stat(db, id, stat)?;
    }
    if *racy && is_read {
        db.execute("UPDATE library_files SET hash_racy = 1 WHERE id = ?1", [id])?;
    }
    if *differs || *racy || *result == ReadResult::Gone {
        let folder = db.first("SELECT folder_id FROM library_files WHERE id = ?1", [id], |row| row.get(0))?.flatten();
        folder.map_or(Ok(()), |folder| super::record::clear_digest(db, folder))?;
    }
    match result {
        ReadResult::Content(digest) => record_digest(db, id, digest)?,
        ReadResult::Samples(samples) => {
            // Another read may have found the file changed, and be written already.
            let sql = "UPDATE library_files SET edges = ?2
                WHERE id = ?1 AND size_bytes = ?3 AND mtime_ns = ?4 AND ctime_ns IS ?5";
            db.execute(sql, (id, samples, super::signed(stat.size), stat.mtime_ns, stat.ctime_ns))?;
        }
        // Only a scan that has listed the folder can confirm this: the disk may have been unmounted. One that is not
        // held was stopped, and another scan reads the file now.
        ReadResult::Gone => {
            let sql = format!(
                "UPDATE library_files SET {SET_MISSING} WHERE id = ?2 AND is_missing = 0 AND EXISTS (SELECT 1 FROM folders f
                    JOIN scan_sessions s ON s.id = f.walked_scan_id
                    WHERE f.id = folder_id AND f.error_status IS NULL AND s.status = 'running'
                        AND s.holder IS NOT NULL)"
            );
            return db.execute(&sql, (db.now(), id));
        }
        ReadResult::Failed(error) => {
            let failures = db.number("SELECT hash_error_count FROM library_files WHERE id = ?1", [id])?;
            let retry_after = db.now.plus(backoff(failures)).to_string();
            let sql = "UPDATE library_files SET needs_hash = 1, hash_error_count = hash_error_count + 1,
                    hash_last_error = ?2, hash_last_error_at = ?3, hash_retry_after = ?4, updated_at = ?3
                WHERE id = ?1 AND is_missing = 0";
            db.execute(sql, params![id, error, db.now(), retry_after])?;
        }
    }
    Ok(0)
}

/// Updates the row to the metadata of a successful read. A hash of another content is cleared.
fn update_stat(db: &Db<'_>, id: i64, stat: &Stat) -> Result<()> {
    let scan = "SELECT last_seen_scan_id FROM library_files WHERE id = ?1";
    let scan = db.first(scan, [id], |row| row.get(0))?.flatten();
    super::record::update_changed_file(db, &ChangedFile { id, stat: *stat, keeps_hash: true }, scan)?;
    let sql = "UPDATE library_files SET hash_error_count = 0, hash_last_error = NULL, hash_last_error_at = NULL,
            hash_retry_after = NULL, hash_claim_token = NULL, hash_claimed_at = NULL
        WHERE id = ?1 AND hash_error_count > 0";
    db.execute(sql, [id]).map(drop)
}

fn record_digest(db: &Db<'_>, id: i64, digest: &Digest) -> Result<()> {
    let Digest { algorithm, hash, samples, used } = digest;
    if *used == HashUse::Group {
        let sql = "UPDATE library_files SET edges = coalesce(?4, edges), needs_hash = 0, hash_algorithm = ?2,
                content_hash = ?3, hashed_size_bytes = size_bytes, hashed_mtime_ns = mtime_ns, hashed_at = ?5,
                read_algorithm = NULL, read_hash = NULL
            WHERE id = ?1 AND is_missing = 0 AND excluded_at IS NULL";
        let values = params![id, algorithm.as_str(), hash, samples, db.now_in_seconds()];
        if db.execute(sql, values)? > 0 {
            return Ok(());
        }
    }
    let (algorithm, hash) = match used {
        HashUse::Samples => (None, None),
        _ => (Some(algorithm.as_str()), Some(hash)),
    };
    let sql = "UPDATE library_files SET edges = coalesce(?4, edges), read_algorithm = ?2, read_hash = ?3
        WHERE id = ?1";
    db.execute(sql, params![id, algorithm, hash, samples])?;
    if *used == HashUse::Group {
        // A missing or excluded file keeps the hash, and is in no group.
        return Ok(());
    }
    // A hash of another algorithm would keep the file from being found by this one.
    let sql = "UPDATE library_files SET needs_hash = 1, hash_algorithm = NULL, content_hash = NULL,
            hashed_size_bytes = NULL, hashed_mtime_ns = NULL, hashed_at = NULL
        WHERE id = ?1 AND content_hash IS NOT NULL";
    db.execute(sql, [id]).map(drop)
}

/// Makes a file that was read earlier part of a group.
pub(super) fn mark_shared(db: &Db<'_>, shared: &SharedFile, ids: &NewFileIds) -> Result<()> {
    let Some(id) = shared.file.row(ids) else {
        return Err(Error::Internal("a shared file was not written".to_owned()));
    };
    match &shared.digest {
        Some(digest) => record_digest(db, id, digest),
        None => mark_row_shared(db, id),
    }
}

/// Publishes the hash that was read, which is valid for the row's metadata.
pub(super) fn mark_row_shared(db: &Db<'_>, id: i64) -> Result<()> {
    let sql = "UPDATE library_files SET needs_hash = 0, hash_algorithm = read_algorithm, content_hash = read_hash,
            hashed_size_bytes = size_bytes, hashed_mtime_ns = mtime_ns, hashed_at = ?2,
            read_algorithm = NULL, read_hash = NULL
        WHERE id = ?1 AND read_hash IS NOT NULL AND is_missing = 0 AND excluded_at IS NULL";
    db.execute(sql, (id, db.now_in_seconds())).map(drop)
}

/// Returns the retry delay, from 30 seconds to one hour. Scans ignore it; other programs on this file wait.
fn backoff(failures: i64) -> Duration {
    let doublings = u32::try_from(failures.clamp(0, 7)).unwrap_or(0);
    Duration::from_secs((30 << doublings).min(3_600))
}

/// Reads columns by number, in the order of [`COLUMNS`]: looking up names took a third of the time for a row.
fn row(row: &Row<'_>) -> SqlResult<FileRow> {
    let algorithm = match row.get_ref(10)? {
        ValueRef::Null => None,
        _ => Some(column(row, "algorithm")?),
    };
    let (id, root, samples, failed) = (row.get(0)?, row.get(1)?, row.get(9)?, row.get(11)?);
    let failed_at = row.get_ref(12)?.as_str_or_null()?.and_then(UtcTime::parse);
    let hash_prefix = row.get_ref(13)?.as_blob_or_null()?.map(prefix);
    let stat = stat(row, 2)?;
    Ok(FileRow { id, root, stat, algorithm, samples, hash_prefix, failed, failed_at, path: PathBuf::new() })
}

/// Reads size, times, inode, device, allocated bytes and link kind from the columns that begin at `first`.
pub(super) fn stat(row: &Row<'_>, first: usize) -> SqlResult<Stat> {
    let stat = usual_stat(row, first)?;
    let links = LinkKind::from_code(row.get(first + 6)?);
    Ok(Stat { allocated: allocated(stat.size, row.get(first + 5)?, links), links, ..stat })
}

/// Returns the allocated bytes of a row. An unknown allocation is replaced by the size.
pub(super) fn allocated(size: u64, stored: Option<i64>, links: LinkKind) -> u64 {
    match stored.and_then(|bytes| bytes.try_into().ok()) {
        Some(bytes) => bytes,
        None if links == LinkKind::Unknown => size,
        None => whole_blocks(size),
    }
}

/// Reads size, times, inode and device of a file without unusual values, from the columns that begin at `first`. Values
/// that another program left out are 0, which no file has.
pub(super) fn usual_stat(row: &Row<'_>, first: usize) -> SqlResult<Stat> {
    let size = row.get::<_, i64>(first)?.try_into().unwrap_or(0);
    Ok(Stat {
        size,
        allocated: whole_blocks(size),
        links: LinkKind::Single,
        mtime_ns: row.get(first + 1)?,
        ctime_ns: row.get::<_, Option<i64>>(first + 2)?.unwrap_or(0),
        inode: row.get::<_, Option<i64>>(first + 3)?.unwrap_or(0).cast_unsigned(),
        device: row.get::<_, Option<i64>>(first + 4)?.unwrap_or(0).cast_unsigned(),
    })
}
