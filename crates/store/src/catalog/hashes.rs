//! What is known of files' contents, and reading the catalog row by row.
//!
//! Owns the hash columns of `library_files`. A hash counts for the file as it was read: whoever writes one says
//! what the file system said about the file then.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::params;

use super::record::SET_MISSING;
use super::{Batch, Catalog, ChangedFile, LinkKind, NewFileIds, Stat};
use crate::db::Db;
use crate::error::{Error, Result};
use crate::paths;
use crate::string_enum::string_enum;
use crate::time::UtcTime;

string_enum! {
    "a hash algorithm",
    /// How contents are hashed.
    pub enum Algorithm {
        /// BLAKE3, 32 bytes.
        Blake3 = "blake3",
        /// SHA-256, 32 bytes.
        Sha256 = "sha256",
        /// SHA-512, 64 bytes.
        Sha512 = "sha512",
        /// SHA3-256, 32 bytes.
        Sha3 = "sha3-256",
    }
}

impl Algorithm {
    /// How many bytes a hash has.
    pub fn length(self) -> usize {
        if self == Algorithm::Sha512 { 64 } else { 32 }
    }
}

/// A file that is there, as the catalog knows it.
#[derive(Clone, Debug)]
pub struct FileRow {
    /// Its number.
    pub id: i64,
    /// Its root.
    pub root: i64,
    /// As it was seen.
    pub stat: Stat,
    /// What its content was hashed with.
    pub algorithm: Option<Algorithm>,
    /// A hash over a few blocks of it.
    pub samples: Option<i64>,
    /// Whether it could not be read when it was last tried.
    pub failed: bool,
    /// When that was.
    pub failed_at: Option<UtcTime>,
    /// Its path in its root, when that was asked for.
    pub path: PathBuf,
}

/// Which file is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// The one with this row.
    Row(i64),
    /// One that is written in the same batch: the number of its listing, and its place among the new files.
    New(u64, u32),
}

impl FileRef {
    /// The row, if it is known by now.
    pub fn row(self, ids: &NewFileIds) -> Option<i64> {
        match self {
            FileRef::Row(id) => Some(id),
            FileRef::New(listing, place) => ids.get(&listing)?.get(place as usize).copied(),
        }
    }
}

/// What a file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// What it was hashed with.
    pub algorithm: Algorithm,
    /// The hash.
    pub hash: Vec<u8>,
    /// Whether another file has the same: only then does it become part of a group.
    pub shared: bool,
}

/// What became of the reading of a file.
#[derive(Clone, Debug)]
pub struct FileHash {
    /// The file.
    pub file: FileRef,
    /// As it was when it was read.
    pub stat: Stat,
    /// What was found.
    pub result: ReadResult,
    /// Whether another file has the same content: only then does it become part of a group.
    pub shared: bool,
    /// Whether its row says otherwise: another size or time, or an error.
    pub differs: bool,
    /// Whether it was read so shortly after a change that a later one may have left the same time.
    pub racy: bool,
}

/// What reading a file found, of one that is a row.
#[derive(Clone, Debug)]
pub struct HashedFile {
    /// The file.
    pub id: i64,
    /// As it was when it was read.
    pub stat: Stat,
    /// What was found.
    pub result: ReadResult,
}

/// What reading a file found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// The hash of its content.
    Content(Algorithm, Vec<u8>),
    /// A hash over a few blocks of it.
    Samples(i64),
    /// It is gone. Counts if a scan that is under way has listed its folder.
    Gone,
    /// It could not be read, or would not hold still.
    Failed(String),
}

const COLUMNS: &str = "f.id, f.library_id, f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device, f.allocated_bytes,
    f.link_kind, f.edges,
    coalesce(CASE WHEN f.needs_hash = 0 AND f.content_hash IS NOT NULL THEN f.hash_algorithm END, f.read_algorithm)
        AS algorithm, f.hash_error_count > 0, CASE WHEN f.hash_error_count > 0 THEN f.hash_last_error_at END";

/// In the order of rows: an index would have each row looked up by itself.
const FILES: &str = "library_files f NOT INDEXED WHERE f.is_missing = 0 AND f.excluded_at IS NULL";

impl Catalog<'_> {
    /// Every file that is there, in the order of rows, without its path.
    pub fn for_each_file(self, mut visit: impl FnMut(&FileRow) -> ControlFlow<()>) -> Result<()> {
        let sql = format!("SELECT {COLUMNS} FROM {FILES}");
        self.0.read(|db| {
            let mut run = || {
                let mut statement = db.conn.prepare_cached(&sql)?;
                let mut rows = statement.query([])?;
                while let Some(found) = rows.next()? {
                    if visit(&row(found)?).is_break() {
                        break;
                    }
                }
                Ok(())
            };
            run().map_err(|error| db.file.error(&error))
        })
    }

    /// Some files that are there and not empty, after the row `after`, with their paths. Those that `wanted` does
    /// not want are passed over. Says up to which row it looked; nothing when that was the last.
    pub fn page(
        self,
        after: i64,
        limit: usize,
        mut filter: impl FnMut(&FileRow) -> bool,
    ) -> Result<(Vec<FileRow>, Option<i64>)> {
        let sql = format!(
            "SELECT {COLUMNS}, f.relative_path FROM {FILES} AND f.id > ?1 AND f.size_bytes > 0 ORDER BY f.id"
        );
        self.0.read(|db| {
            let mut files = Vec::new();
            let mut run = || {
                let mut statement = db.conn.prepare_cached(&sql)?;
                let mut rows = statement.query([after])?;
                while let Some(found) = rows.next()? {
                    let mut row = row(found)?;
                    let id = row.id;
                    if filter(&row) {
                        row.path = paths::from_text(found.get_ref(13)?.as_str()?).into();
                        files.push(row);
                        if files.len() >= limit {
                            return Ok(Some(id));
                        }
                    }
                }
                Ok(None)
            };
            let last = run().map_err(|error| db.file.error(&error))?;
            Ok((files, last))
        })
    }

    /// Writes what reading files found, as shared. Says how many are gone now.
    pub fn record_shared(self, hashed: Vec<HashedFile>) -> Result<usize> {
        let file_hash = |HashedFile { id, stat, result }| FileHash {
            file: FileRef::Row(id),
            stat,
            result,
            shared: true,
            differs: true,
            racy: false,
        };
        let hashes = hashed.into_iter().map(file_hash).collect();
        Ok(self.write(Batch { hashes, ..Batch::default() })?.missing)
    }

    /// Every hash of a file that is there: its row, the first eight bytes, and whether it counts as shared.
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
            let mut run = || {
                for (sql, is_shared) in [(shared, true), (unshared, false)] {
                    let mut statement = db.conn.prepare_cached(sql)?;
                    let mut rows = statement.query([algorithm.as_str()])?;
                    while let Some(row) = rows.next()? {
                        if visit(row.get(0)?, prefix(row.get_ref(1)?.as_blob()?), is_shared).is_break() {
                            return Ok(());
                        }
                    }
                }
                Ok(())
            };
            run().map_err(|error| db.file.error(&error))
        })
    }
}

/// The first eight bytes of a hash: enough to tell which files to look at together.
pub fn prefix(hash: &[u8]) -> u64 {
    hash.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

pub(super) fn record_hash(db: &Db<'_>, hashed: &FileHash, ids: &NewFileIds) -> Result<usize> {
    let FileHash { file, stat, result, shared, differs, racy } = hashed;
    let Some(id) = file.row(ids) else {
        return Err(Error::Internal("a reading came before its file".to_owned()));
    };
    let is_read = !matches!(result, ReadResult::Gone | ReadResult::Failed(_));
    if *differs && is_read {
        update_stat(db, id, stat)?;
    }
    if *racy && is_read {
        db.execute("UPDATE library_files SET hash_racy = 1 WHERE id = ?1", [id])?;
    }
    match result {
        ReadResult::Content(algorithm, hash) => {
            let sql = "UPDATE library_files SET read_algorithm = ?2, read_hash = ?3 WHERE id = ?1";
            db.execute(sql, params![id, algorithm.as_str(), hash])?;
            if *shared {
                mark_row_shared(db, id)?;
            } else {
                // What another algorithm said would keep it from being found by this one.
                let sql =
                    "UPDATE library_files SET needs_hash = 1, hash_algorithm = NULL, content_hash = NULL,
                        hashed_size_bytes = NULL, hashed_mtime_ns = NULL, hashed_at = NULL
                    WHERE id = ?1 AND content_hash IS NOT NULL";
                db.execute(sql, [id])?;
            }
        }
        ReadResult::Samples(samples) => {
            // Another reading may have found the file changed, and be written already.
            let sql = "UPDATE library_files SET edges = ?2
                WHERE id = ?1 AND size_bytes = ?3 AND mtime_ns = ?4 AND ctime_ns IS ?5";
            db.execute(sql, (id, samples, super::signed(stat.size), stat.mtime_ns, stat.ctime_ns))?;
        }
        // Only a scan that has listed the file's folder knows: a disk may have been unmounted.
        ReadResult::Gone => {
            let sql = format!(
                "UPDATE library_files SET {SET_MISSING} WHERE id = ?2 AND is_missing = 0 AND EXISTS (SELECT 1 FROM folders f
                    JOIN scan_sessions s ON s.id = f.walked_scan_id
                    WHERE f.id = folder_id AND f.error_status IS NULL AND s.status = 'running')"
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

/// The row is to say what the file system said when the file was read, and that it could be. What was known of another
/// content goes.
fn update_stat(db: &Db<'_>, id: i64, stat: &Stat) -> Result<()> {
    let scan = "SELECT last_seen_scan_id FROM library_files WHERE id = ?1";
    let scan = db.first(scan, [id], |row| row.get(0))?.flatten();
    super::record::update_changed_file(db, &ChangedFile { id, stat: *stat, keeps_hash: true }, scan)?;
    let sql =
        "UPDATE library_files SET hash_error_count = 0, hash_last_error = NULL, hash_last_error_at = NULL,
            hash_retry_after = NULL, hash_claim_token = NULL, hash_claimed_at = NULL
        WHERE id = ?1 AND hash_error_count > 0";
    db.execute(sql, [id]).map(drop)
}

/// Makes a file that was read before part of a group.
pub(super) fn mark_shared(db: &Db<'_>, file: FileRef, ids: &NewFileIds) -> Result<()> {
    match file.row(ids) {
        Some(id) => mark_row_shared(db, id),
        None => Err(Error::Internal("a shared file came before its row".to_owned())),
    }
}

/// What was read becomes the hash that others see. It is of the file as its row has it.
pub(super) fn mark_row_shared(db: &Db<'_>, id: i64) -> Result<()> {
    let sql =
        "UPDATE library_files SET needs_hash = 0, hash_algorithm = read_algorithm, content_hash = read_hash,
            hashed_size_bytes = size_bytes, hashed_mtime_ns = mtime_ns, hashed_at = ?2, updated_at = ?2,
            read_algorithm = NULL, read_hash = NULL
        WHERE id = ?1 AND read_hash IS NOT NULL AND is_missing = 0 AND excluded_at IS NULL";
    db.execute(sql, (id, db.now())).map(drop)
}

/// From half a minute to an hour. A scan tries again whenever it comes by; others of this file's programs wait.
fn backoff(failures: i64) -> Duration {
    let doublings = u32::try_from(failures.clamp(0, 7)).unwrap_or(0);
    Duration::from_secs((30 << doublings).min(3_600))
}

/// Columns by number, as [`COLUMNS`] names them: looking names up took a third of reading a row.
fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<FileRow> {
    let algorithm = match row.get_ref(10)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(Algorithm::read(row, "algorithm")?),
    };
    let (id, root, samples, failed) = (row.get(0)?, row.get(1)?, row.get(9)?, row.get(11)?);
    let failed_at = row.get_ref(12)?.as_str_or_null()?.and_then(UtcTime::parse);
    Ok(FileRow { id, root, stat: stat(row, 2)?, algorithm, samples, failed, failed_at, path: PathBuf::new() })
}

/// Size, times, inode, device, allocated bytes and kind of link, from the columns that begin at `first`. The size stands
/// for allocated bytes that are not known.
pub(super) fn stat(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Stat> {
    let stat = usual_stat(row, first)?;
    let allocated = row.get::<_, Option<i64>>(first + 5)?.and_then(|bytes| bytes.try_into().ok());
    let links = LinkKind::from_code(row.get(first + 6)?);
    Ok(Stat { allocated: allocated.unwrap_or(stat.size), links, ..stat })
}

/// Size, times, inode and device, from the columns that begin at `first`, of a file that is not unusual. What another
/// program left out is 0, which no file has.
pub(super) fn usual_stat(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Stat> {
    let size = row.get::<_, i64>(first)?.try_into().unwrap_or(0);
    Ok(Stat {
        size,
        // As in `schema::UNUSUAL`.
        allocated: size.saturating_add(4095) & !4095,
        links: LinkKind::Single,
        mtime_ns: row.get(first + 1)?,
        ctime_ns: row.get::<_, Option<i64>>(first + 2)?.unwrap_or(0),
        inode: row.get::<_, Option<i64>>(first + 3)?.unwrap_or(0).cast_unsigned(),
        device: row.get::<_, Option<i64>>(first + 4)?.unwrap_or(0).cast_unsigned(),
    })
}
