//! What the catalog knows about the contents of files, for questions that compare files without reading them.
//!
//! Owns two passes over all present files, each in one snapshot: [`Catalog::known_contents`] compares many files with
//! each other, and [`Catalog::files_like`] finds the files that can equal a few given ones. There is no index on sizes:
//! a pass that selects rows by size takes a fraction of a second for a million files, and such an index would slow down
//! every scan.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::links::{SharedName, shared_names, unstable_filesystems};
use super::tree::shared;
use super::{Algorithm, Catalog, Stat, hashes, prefix, signed};
use crate::error::Result;
use crate::paths;
use crate::rows::column;
use crate::sqlite::{Connection, Row, SqlResult, ValueRef};

/// A present file, and what is known about its content. 72 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownContent {
    /// Id of the file's row.
    pub id: i64,
    /// Lowest row id among the names of its file; its own one if it has no other name.
    pub file: i64,
    /// Size in bytes.
    pub size: u64,
    /// Hash over a few blocks of the content. For a small file these are the first eight bytes of its BLAKE3 hash.
    pub samples: Option<i64>,
    /// Algorithm of its hash, if it was hashed.
    pub algorithm: Option<Algorithm>,
    /// First eight bytes of its hash; 0 if it was not hashed.
    pub prefix: u64,
    /// Number of its content if other files have the same hash. The number is valid for one pass.
    pub group: Option<u32>,
    /// Whether its last read failed.
    pub failed: bool,
    /// What the caller's selection returned for it.
    pub label: u8,
}

/// A present file that can equal a given one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LikeFile {
    /// Id of the file's row.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Metadata when it was last seen.
    pub stat: Stat,
    /// Hash over a few blocks of the content.
    pub samples: Option<i64>,
    /// Hash of the content.
    pub hash: Option<(Algorithm, Vec<u8>)>,
    /// Whether it was read so shortly after a change that what is known about its content may be outdated.
    pub racy: bool,
}

/// Algorithm and bytes of a file's hash, whether or not other files have it.
const HASH_COLUMNS: &str = "coalesce(CASE WHEN f.needs_hash = 0 AND f.content_hash IS NOT NULL
        THEN f.hash_algorithm END, f.read_algorithm) AS algorithm,
    coalesce(CASE WHEN f.needs_hash = 0 THEN f.content_hash END, f.read_hash)";

const PRESENT: &str = "f.is_missing = 0 AND f.excluded_at IS NULL";

impl Catalog<'_> {
    /// Returns present files of at least `min_size` bytes with what is known about their contents, in row order.
    /// `select` gets the root and the relative path of a file, and returns its label, or `None` to leave it out. Names
    /// of one file know what any of them knows. A small file is one of at most `max_small` bytes. Of a file that was
    /// read shortly after a change nothing is known, because what was read may be outdated.
    pub fn known_contents(
        self,
        min_size: u64,
        max_small: u64,
        mut select: impl FnMut(i64, &Path) -> Option<u8>,
    ) -> Result<Vec<KnownContent>> {
        // One snapshot for all queries; it ends with the transaction, which changes nothing.
        self.0.read(|db| {
            db.with_conn(|conn| known_contents(&*conn.unchecked_transaction()?, (min_size, max_small), &mut select))
        })
    }

    /// Returns the present files that have one of these sizes or one of these inode numbers, in row order.
    pub fn files_like(self, sizes: &[u64], inodes: &[u64]) -> Result<Vec<LikeFile>> {
        let sizes = sizes.iter().map(|size| signed(*size));
        let inodes = inodes.iter().filter(|inode| **inode != 0).map(|inode| inode.cast_signed());
        let sql = format!(
            "SELECT f.id, f.library_id, f.relative_path, f.edges, {HASH_COLUMNS}, f.hash_racy IS NOT NULL,
                f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device, f.allocated_bytes, f.link_kind
            FROM library_files f NOT INDEXED
            WHERE (f.size_bytes IN ({}) OR f.inode IN ({})) AND {PRESENT} ORDER BY f.id",
            listed(sizes),
            listed(inodes)
        );
        self.0.read(|db| {
            db.rows(&sql, [], |row| {
                let algorithm = algorithm(row, 4)?;
                let hash = row.get_ref(5)?.as_blob_or_null()?.map(<[u8]>::to_vec);
                Ok(LikeFile {
                    id: row.get(0)?,
                    root: row.get(1)?,
                    path: paths::from_text(row.get_ref(2)?.as_str()?).into(),
                    stat: hashes::stat(row, 7)?,
                    samples: row.get(3)?,
                    hash: algorithm.zip(hash),
                    racy: row.get(6)?,
                })
            })
        })
    }

    /// Returns whether the last scan of a root found this folder, whose path is relative to the root.
    pub fn has_folder(self, root: i64, path: &Path) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM folders WHERE library_id = ?1 AND relative_path = ?2
            AND removed_at IS NULL AND excluded_at IS NULL)";
        self.0.read(|db| Ok(db.number(sql, (root, paths::to_text(path.as_os_str())))? > 0))
    }
}

/// Formats numbers for `IN`. They are part of the statement, because the number of parameters is limited.
fn listed(numbers: impl Iterator<Item = i64>) -> String {
    let mut text = String::new();
    for number in numbers {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{number}", if text.is_empty() { "" } else { "," });
    }
    text
}

fn algorithm(row: &Row<'_>, index: usize) -> SqlResult<Option<Algorithm>> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        _ => column(row, "algorithm").map(Some),
    }
}

fn known_contents(
    conn: &Connection,
    (min_size, max_small): (u64, u64),
    select: &mut dyn FnMut(i64, &Path) -> Option<u8>,
) -> SqlResult<Vec<KnownContent>> {
    let shared = shared(conn)?;
    let sql = format!(
        "SELECT f.id, f.library_id, f.relative_path, f.size_bytes, f.inode, f.edges, {HASH_COLUMNS},
            f.hash_error_count > 0, f.hash_racy IS NOT NULL
        FROM library_files f NOT INDEXED WHERE f.size_bytes >= ?1 AND {PRESENT} ORDER BY f.id"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([signed(min_size)])?;
    // Both are ordered by row id.
    let mut groups = shared.iter().peekable();
    let mut files: Vec<KnownContent> = Vec::new();
    while let Some(row) = rows.next()? {
        let text = row.get_ref(2)?.as_str()?;
        let path = match paths::is_plain(text) {
            true => Cow::Borrowed(Path::new(text)),
            false => Cow::Owned(paths::from_text(text).into()),
        };
        let Some(label) = select(row.get(1)?, &path) else { continue };
        let id = row.get(0)?;
        while groups.next_if(|(other, _)| *other < id).is_some() {}
        let size = u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0);
        // The inode number, until the names of files are known.
        let file = row.get::<_, Option<i64>>(4)?.unwrap_or(0);
        let mut known = KnownContent { id, file, size, failed: row.get(8)?, label, ..KnownContent::default() };
        let is_racy: bool = row.get(9)?;
        if !is_racy {
            known.algorithm = algorithm(row, 6)?;
            known.prefix = row.get_ref(7)?.as_blob_or_null()?.map_or(0, prefix);
            let is_sample = size <= max_small && known.algorithm == Some(Algorithm::Blake3);
            known.samples = row.get::<_, Option<i64>>(5)?.or(is_sample.then_some(known.prefix.cast_signed()));
            known.group = groups.peek().filter(|(other, _)| *other == id).map(|(_, number)| *number);
        }
        files.push(known);
    }
    drop(shared);
    join_names(conn, &mut files)?;
    Ok(files)
}

/// Sets the file of each row, and copies what is known about one name of a file to its other names.
fn join_names(conn: &Connection, files: &mut [KnownContent]) -> SqlResult<()> {
    let mut inodes: Vec<(i64, u64, i64)> = Vec::with_capacity(files.len());
    inodes.extend(files.iter().filter(|file| file.file != 0).map(|file| (file.file, file.size, file.id)));
    inodes.sort_unstable();
    // Names of one file have one size, unless a row is outdated.
    let names = inodes.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).filter(|names| names.len() > 1);
    let mut rows: Vec<i64> = names.flatten().map(|(.., id)| *id).collect();
    rows.sort_unstable();
    drop(inodes);
    files.iter_mut().for_each(|file| file.file = file.id);
    let unstable = unstable_filesystems(conn)?;
    let mut names: Vec<(SharedName, u64, usize)> = Vec::new();
    for name in shared_names(conn, &unstable, &rows)? {
        let Ok(at) = files.binary_search_by_key(&name.row, |file| file.id) else { continue };
        if let Some(file) = files.get_mut(at) {
            file.file = name.file;
            names.push((name, file.size, at));
        }
    }
    names.sort_unstable_by_key(|(name, size, _)| (name.file, *size, name.ctime_ns));
    let is_one_state = |a: &(SharedName, u64, usize), b: &(SharedName, u64, usize)| {
        (a.0.file, a.1, a.0.ctime_ns) == (b.0.file, b.1, b.0.ctime_ns)
    };
    for names in names.chunk_by(is_one_state) {
        let known = || names.iter().filter_map(|(.., at)| files.get(*at));
        let samples = known().find_map(|file| file.samples);
        let hashed = known().filter(|file| file.algorithm.is_some()).max_by_key(|file| file.group.is_some());
        let hash = hashed.map(|file| (file.algorithm, file.prefix, file.group));
        for (.., at) in names {
            let Some(file) = files.get_mut(*at) else { continue };
            file.samples = file.samples.or(samples);
            if let Some(hash) = hash.filter(|_| file.group.is_none()) {
                (file.algorithm, file.prefix, file.group) = hash;
            }
        }
    }
    Ok(())
}
