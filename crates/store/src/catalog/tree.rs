//! Reads the whole catalog in one pass, for queries over folder trees.
//!
//! Owns how present folders and files are read, in one snapshot and without keeping them in memory. Contents are
//! numbers that are valid for this pass only, because equal hashes are adjacent in the index. Names to display are read
//! separately.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::hashes::SHARED_HASHES_SQL;
use super::links::{SharedName, SharedNameFinder, unstable_filesystems};
use super::{Catalog, Skipped, Stat, hashes, skipped};
use crate::error::Result;
use crate::paths;
use crate::sqlite::{Connection, SqlResult};

/// An element of the pass, in this order: size, folders, files, shared names.
#[derive(Clone, Debug)]
pub enum Node<'a> {
    /// Approximate number of folders and files, for reserving memory.
    Extent {
        /// Number of present folders.
        folders: usize,
        /// Number of present files.
        files: usize,
    },
    /// A folder that is not removed or excluded.
    Folder(TreeFolder<'a>),
    /// A file that is not missing or excluded.
    File(TreeFile<'a>),
    /// All rows of files with several names, ordered by row.
    SharedNames(&'a [SharedName]),
}

/// A folder that is not removed or excluded.
#[derive(Clone, Debug)]
pub struct TreeFolder<'a> {
    /// Id of the folder's row.
    pub id: i64,
    /// Row id of its parent; `None` for a root's own folder.
    pub parent: Option<i64>,
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: Cow<'a, Path>,
    /// Whether its last walk read it completely.
    pub whole: bool,
    /// Entries that its last walk skipped. `None` if it was never walked, or by a version that did not record them.
    pub skipped: Option<Skipped>,
}

/// A file that is not missing or excluded.
#[derive(Clone, Debug)]
pub struct TreeFile<'a> {
    /// Id of the file's row.
    pub id: i64,
    /// Row id of its folder.
    pub folder: i64,
    /// Id of its root.
    pub root: i64,
    /// Name in the folder.
    pub name: Cow<'a, OsStr>,
    /// Metadata when it was last seen.
    pub stat: Stat,
    /// Whether its content is shared with other files.
    pub content: Content,
}

/// Location and metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAt {
    /// Id of the file's row.
    pub id: i64,
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Metadata when it was last seen.
    pub stat: Stat,
}

/// Whether a file's content is shared with other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The file is empty.
    Empty,
    /// Several files have the same hash. The number is valid for one pass.
    Shared(u32),
    /// No other file has its hash, or it did not need to be hashed. (Another name of its inode may exist.)
    Unique,
    /// The file could not be read.
    Unknown,
}

/// Folders, with the parent from the path if another program recorded none.
const FOLDERS_SQL: &str =
    "SELECT id, coalesce(parent_id, CASE WHEN relative_path <> '' THEN (SELECT p.id FROM folders p
            WHERE p.library_id = folders.library_id AND p.relative_path =
                rtrim(rtrim(folders.relative_path, replace(folders.relative_path, '/', '')), '/')) END),
        library_id, relative_path, error_status IS NULL, skipped_entries, skipped_unknown, skipped_digest,
        filesystem_id
    FROM folders WHERE removed_at IS NULL AND excluded_at IS NULL ORDER BY id";

/// Files, with the folder from the path if another program recorded none.
const FILES_SQL: &str =
    "SELECT id, library_id, size_bytes, mtime_ns, ctime_ns, inode, device, allocated_bytes, link_kind,
        relative_path, hash_last_error IS NOT NULL, coalesce(folder_id, (SELECT f.id FROM folders f
            WHERE f.library_id = library_files.library_id AND f.relative_path =
                rtrim(rtrim(library_files.relative_path, replace(library_files.relative_path, '/', '')), '/')))
    FROM library_files WHERE is_missing = 0 AND excluded_at IS NULL ORDER BY id";

impl Catalog<'_> {
    /// Visits every present folder and file, in one snapshot.
    pub fn tree(self, mut visit: impl FnMut(Node<'_>)) -> Result<()> {
        // One snapshot for all queries; it ends with the transaction, which changes nothing.
        self.0.read(|db| db.with_conn(|conn| tree(&*conn.unchecked_transaction()?, &mut visit)))
    }

    /// Returns the root of a folder and its path in it.
    pub fn folder_at(self, id: i64) -> Result<Option<(i64, PathBuf)>> {
        let sql = "SELECT library_id, relative_path FROM folders WHERE id = ?1";
        self.0
            .read(|db| db.first(sql, [id], |row| Ok((row.get(0)?, paths::from_text(row.get_ref(1)?.as_str()?).into()))))
    }

    /// Returns location and metadata of files. Ids without a row are skipped.
    pub fn files_at(self, ids: &[i64]) -> Result<Vec<FileAt>> {
        let sql = "SELECT library_id, relative_path, size_bytes, mtime_ns, ctime_ns, inode, device,
                allocated_bytes, link_kind
            FROM library_files WHERE id = ?1";
        self.0.read(|db| {
            let mut found = Vec::with_capacity(ids.len());
            for &id in ids {
                let file = db.first(sql, [id], |row| {
                    let path = paths::from_text(row.get_ref(1)?.as_str()?).into();
                    Ok(FileAt { id, root: row.get(0)?, path, stat: hashes::stat(row, 2)? })
                })?;
                found.extend(file);
            }
            Ok(found)
        })
    }
}

fn tree(conn: &Connection, visit: &mut dyn FnMut(Node<'_>)) -> SqlResult<()> {
    let count = |sql| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|n| usize::try_from(n).unwrap_or(0));
    let folders = count("SELECT count(*) FROM folders WHERE removed_at IS NULL AND excluded_at IS NULL")?;
    let files = count("SELECT count(*) FROM library_files WHERE is_missing = 0 AND excluded_at IS NULL")?;
    visit(Node::Extent { folders, files });

    let mut statement = conn.prepare_cached(FOLDERS_SQL)?;
    let mut rows = statement.query([])?;
    // Ordered by row id.
    let mut filesystems: Vec<(i64, i64)> = Vec::new();
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        filesystems.extend(row.get::<_, Option<i64>>(8)?.map(|filesystem| (id, filesystem)));
        visit(Node::Folder(TreeFolder {
            id,
            parent: row.get(1)?,
            root: row.get(2)?,
            path: match name(row.get_ref(3)?.as_str()?) {
                Cow::Borrowed(text) => Cow::Borrowed(Path::new(text)),
                Cow::Owned(text) => Cow::Owned(text.into()),
            },
            whole: row.get(4)?,
            skipped: skipped::read(row, 5)?,
        }));
    }

    let shared = shared(conn)?;
    let mut statement = conn.prepare_cached(FILES_SQL)?;
    let mut rows = statement.query([])?;
    // Both are ordered by row id.
    let mut next = shared.iter().peekable();
    let unstable = unstable_filesystems(conn)?;
    let mut names = SharedNameFinder::new(&unstable);
    names.reserve(files);
    // Most files are in the folder of the previous file.
    let mut last = (0, None);
    while let Some(row) = rows.next()? {
        let (id, stat, unreadable) = (row.get(0)?, hashes::stat(row, 2)?, row.get(10)?);
        let Some(folder) = row.get(11)? else { continue };
        while next.next_if(|(other, _)| *other < id).is_some() {}
        let content = match next.peek() {
            _ if stat.size == 0 => Content::Empty,
            _ if unreadable => Content::Unknown,
            Some((other, number)) if *other == id => Content::Shared(*number),
            _ => Content::Unique,
        };
        let text = row.get_ref(9)?.as_str()?;
        let name = name(text.rsplit_once('/').map_or(text, |(_, name)| name));
        if last.0 != folder {
            let at = filesystems.binary_search_by_key(&folder, |(folder, _)| *folder).ok();
            last = (folder, at.and_then(|at| filesystems.get(at)).map(|(_, filesystem)| *filesystem));
        }
        names.add(id, &stat, last.1);
        visit(Node::File(TreeFile { id, folder, root: row.get(1)?, name, stat, content }));
    }
    visit(Node::SharedNames(&names.shared()));
    Ok(())
}

/// Returns the rows of files with a shared content, and its number, ordered by row.
pub(super) fn shared(conn: &Connection) -> SqlResult<Vec<(i64, u32)>> {
    let mut shared: Vec<(i64, u32)> = Vec::new();
    let mut statement = conn.prepare_cached(SHARED_HASHES_SQL)?;
    let mut rows = statement.query([])?;
    let (mut algorithm, mut hash) = (String::new(), Vec::new());
    let (mut first, mut number, mut copies) = (0, 0, 0_u64);
    while let Some(row) = rows.next()? {
        let same = row.get_ref(1)?.as_blob()? == hash.as_slice() && row.get_ref(0)?.as_str()? == algorithm;
        let id = row.get(2)?;
        if same {
            if copies == 1 {
                number += 1;
                shared.push((first, number));
            }
            copies += 1;
            shared.push((id, number));
        } else {
            algorithm.clear();
            algorithm.push_str(row.get_ref(0)?.as_str()?);
            hash.clear();
            hash.extend_from_slice(row.get_ref(1)?.as_blob()?);
            (first, copies) = (id, 1);
        }
    }
    shared.sort_unstable();
    Ok(shared)
}

fn name(text: &str) -> Cow<'_, OsStr> {
    if paths::is_plain(text) { Cow::Borrowed(OsStr::new(text)) } else { Cow::Owned(paths::from_text(text)) }
}
