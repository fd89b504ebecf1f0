//! What is known of files' contents, and reading the catalog row by row.
//!
//! Owns the hash columns of `library_files`. A hash counts for the file as it was read: whoever writes one says
//! what the file system said about the file then.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::params;

use super::{Catalog, GONE, Stat, signed};
use crate::db::Db;
use crate::error::Result;
use crate::paths;
use crate::values::values;
use crate::writer::Shape;

values! {
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
pub struct Row {
    /// Its number.
    pub id: i64,
    /// Its root.
    pub root: i64,
    /// As it was seen.
    pub stat: Stat,
    /// What its content was hashed with.
    pub algorithm: Option<Algorithm>,
    /// A hash over a few blocks of it.
    pub edges: Option<i64>,
    /// Its path in its root, when that was asked for.
    pub path: PathBuf,
}

/// What became of the reading of a file.
#[derive(Clone, Debug)]
pub struct Hashed {
    /// The file.
    pub id: i64,
    /// As it was when it was read.
    pub stat: Stat,
    /// What was found.
    pub finding: Finding,
}

/// What reading a file found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The hash of its content.
    Content(Algorithm, Vec<u8>),
    /// A hash over a few blocks of it.
    Edges(i64),
    /// It is gone.
    Gone,
    /// It could not be read, or would not hold still.
    Failed(String),
}

const COLUMNS: &str = "id, library_id, size_bytes, mtime_ns, ctime_ns, inode, device, edge_hash,
    CASE WHEN needs_hash = 0 AND content_hash IS NOT NULL THEN hash_algorithm END AS algorithm";

impl Catalog<'_> {
    /// Every file that is there, in the order of rows, without its path.
    pub fn each(self, mut visit: impl FnMut(&Row) -> ControlFlow<()>) -> Result<()> {
        let sql = format!("SELECT {COLUMNS} FROM library_files WHERE is_missing = 0");
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
    pub fn some(
        self,
        after: i64,
        limit: usize,
        mut wanted: impl FnMut(&Row) -> bool,
    ) -> Result<(Vec<Row>, Option<i64>)> {
        let sql = format!(
            "SELECT {COLUMNS}, relative_path FROM library_files WHERE id > ?1 AND is_missing = 0
                AND size_bytes > 0 ORDER BY id"
        );
        self.0.read(|db| {
            let mut some = Vec::new();
            let mut run = || {
                let mut statement = db.conn.prepare_cached(&sql)?;
                let mut rows = statement.query([after])?;
                while let Some(found) = rows.next()? {
                    let mut row = row(found)?;
                    let id = row.id;
                    if wanted(&row) {
                        row.path = paths::from_text(found.get_ref(9)?.as_str()?).into();
                        some.push(row);
                        if some.len() >= limit {
                            return Ok(Some(id));
                        }
                    }
                }
                Ok(None)
            };
            let last = run().map_err(|error| db.file.error(&error))?;
            Ok((some, last))
        })
    }

    /// Writes what reading files found, all in one transaction. Says how many are gone now.
    pub fn settle(self, hashed: Vec<Hashed>) -> Result<usize> {
        self.0.write(Shape::Compound, move |db| {
            hashed.iter().try_fold(0, |gone, hashed| {
                let changed = settle(db, hashed)?;
                Ok(gone + if hashed.finding == Finding::Gone { changed } else { 0 })
            })
        })
    }
}

fn settle(db: &Db<'_>, hashed: &Hashed) -> Result<usize> {
    let Hashed { id, stat, finding } = hashed;
    let now = db.now();
    let (size, inode, device) = (signed(stat.size), stat.inode.cast_signed(), stat.device.cast_signed());
    match finding {
        Finding::Content(algorithm, hash) => {
            let sql = "UPDATE library_files SET needs_hash = 0, hash_algorithm = ?2, content_hash = ?3,
                    size_bytes = ?4, mtime_ns = ?5, ctime_ns = ?6, inode = ?7, device = ?8,
                    hashed_size_bytes = ?4, hashed_mtime_ns = ?5, hashed_at = ?9, updated_at = ?9,
                    hash_error_count = 0, hash_last_error = NULL, hash_last_error_at = NULL,
                    hash_retry_after = NULL, hash_claim_token = NULL, hash_claimed_at = NULL
                WHERE id = ?1 AND is_missing = 0";
            let algorithm = algorithm.as_str();
            db.execute(
                sql,
                params![id, algorithm, hash, size, stat.mtime_ns, stat.ctime_ns, inode, device, now],
            )
        }
        Finding::Edges(edges) => {
            let sql =
                "UPDATE library_files SET edge_hash = ?2, size_bytes = ?3, mtime_ns = ?4, ctime_ns = ?5,
                inode = ?6, device = ?7 WHERE id = ?1 AND is_missing = 0";
            db.execute(sql, params![id, edges, size, stat.mtime_ns, stat.ctime_ns, inode, device])
        }
        Finding::Gone => {
            let sql = format!("UPDATE library_files SET {GONE} WHERE id = ?2 AND is_missing = 0");
            db.execute(&sql, (now, id))
        }
        Finding::Failed(error) => {
            let failures = db.number("SELECT hash_error_count FROM library_files WHERE id = ?1", [id])?;
            let retry_after = db.now.plus(back_off(failures)).to_string();
            let sql = "UPDATE library_files SET needs_hash = 1, hash_error_count = hash_error_count + 1,
                    hash_last_error = ?2, hash_last_error_at = ?3, hash_retry_after = ?4, updated_at = ?3
                WHERE id = ?1 AND is_missing = 0";
            db.execute(sql, params![id, error, now, retry_after])
        }
    }
}

/// From half a minute to an hour. A scan tries again whenever it comes by; others of this file's programs wait.
fn back_off(failures: i64) -> Duration {
    let doublings = u32::try_from(failures.clamp(0, 7)).unwrap_or(0);
    Duration::from_secs((30 << doublings).min(3_600))
}

/// Columns by number, as [`COLUMNS`] names them: looking names up took a third of reading a row.
fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let algorithm = match row.get_ref(8)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(Algorithm::read(row, "algorithm")?),
    };
    let (id, root, edges) = (row.get(0)?, row.get(1)?, row.get(7)?);
    Ok(Row { id, root, stat: stat(row, 2)?, algorithm, edges, path: PathBuf::new() })
}

/// What a row says about its file, in five columns. What another program left out is 0, which no file has.
pub(super) fn stat(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Stat> {
    Ok(Stat {
        size: row.get::<_, i64>(first)?.try_into().unwrap_or(0),
        mtime_ns: row.get(first + 1)?,
        ctime_ns: row.get::<_, Option<i64>>(first + 2)?.unwrap_or(0),
        inode: row.get::<_, Option<i64>>(first + 3)?.unwrap_or(0).cast_unsigned(),
        device: row.get::<_, Option<i64>>(first + 4)?.unwrap_or(0).cast_unsigned(),
    })
}
