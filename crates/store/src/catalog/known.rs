//! Recorded entries of a folder, with which a walk compares.
//!
//! Owns how the rows of one folder are read. A rescan reads every row of the catalog here, so only the columns that
//! most rows need are read; other columns are read through an index that contains only the files with unusual values.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::LazyLock;

use super::{Catalog, FolderRef, Stat, hashes};
use crate::error::Result;
use crate::paths;
use crate::sqlite::schema;
use crate::sqlite::{Db, Row, SqlResult, ValueRef};

/// Recorded entries of a folder.
#[derive(Clone, Debug, Default)]
pub struct KnownEntries {
    /// Files by name, including missing ones.
    pub files: Vec<(OsString, KnownFile)>,
    /// Folders by name, including removed ones.
    pub folders: Vec<(OsString, KnownFolder)>,
}

/// A file as the catalog recorded it.
#[derive(Clone, Copy, Debug)]
pub struct KnownFile {
    /// Id of the file's row.
    pub id: i64,
    /// Metadata when it was last seen; `ctime_ns` is 0 if another program recorded it.
    pub stat: Stat,
    /// Whether it was missing.
    pub missing: bool,
    /// Whether filters excluded it.
    pub excluded: bool,
    /// Whether it was read so shortly after a change that it must be read again.
    pub racy: bool,
}

/// A subfolder as the catalog recorded it.
#[derive(Clone, Copy, Debug)]
pub struct KnownFolder {
    /// Id of the folder's row.
    pub id: i64,
    /// Whether it was removed.
    pub removed: bool,
    /// Whether filters excluded it.
    pub excluded: bool,
    /// Id of the filesystem it was on.
    pub filesystem: Option<i64>,
    /// Whether its filesystem differed from its parent's.
    pub mount_point: bool,
}

impl Catalog<'_> {
    /// Returns whether any file of a root has unusual values. Called once for a walk: the folders of a root without any
    /// are read faster.
    pub fn has_unusual(self, root: i64) -> Result<bool> {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM library_files INDEXED BY ix_library_files_unusual
                WHERE library_id = ?1 AND {})",
            schema::UNUSUAL
        );
        self.0.read(|db| Ok(db.number(&sql, [root])? > 0))
    }

    /// Returns the recorded entries of a folder; none if it has no row. `has_unusual`: the result of
    /// [`Catalog::has_unusual`] for its root; true is always correct.
    pub fn known_entries(self, folder: &FolderRef, has_unusual: bool) -> Result<KnownEntries> {
        let Some(id) = folder.id else { return Ok(KnownEntries::default()) };
        self.0.read_unchecked(|db| read_known(db, id, folder, has_unusual))
    }
}

/// Returns a folder by the text of its path.
pub(super) fn folder(db: &Db<'_>, root: i64, path: &str) -> Result<Option<KnownFolder>> {
    let sql = "SELECT id, removed_at IS NOT NULL, excluded_at IS NOT NULL, filesystem_id, is_mount_point IS NOT NULL
        FROM folders WHERE library_id = ?1 AND relative_path = ?2";
    db.first(sql, (root, path), |row| {
        Ok(KnownFolder {
            id: row.get(0)?,
            removed: row.get(1)?,
            excluded: row.get(2)?,
            filesystem: row.get(3)?,
            mount_point: row.get(4)?,
        })
    })
}

struct UnusualFile {
    stat: Stat,
    excluded: bool,
    racy: bool,
}

fn read_known(db: &Db<'_>, id: i64, folder: &FolderRef, has_unusual: bool) -> Result<KnownEntries> {
    // A name follows the folder's path and a slash; the length is in bytes of the encoded text.
    let path = paths::to_text(folder.path.as_os_str());
    let prefix_length = if path.is_empty() { 0 } else { path.len() + 1 };
    let name = |row: &Row<'_>| -> SqlResult<OsString> {
        let text = row.get_ref(1)?.as_str()?;
        Ok(paths::from_text(text.get(prefix_length..).unwrap_or_default()))
    };
    let unusual = if has_unusual { read_unusual(db, id, folder.root)? } else { HashMap::new() };
    // One statement for both tables: SQLite locks the file for each, which costs more than a few rows.
    let sql = "SELECT id, relative_path, size_bytes, mtime_ns, ctime_ns, inode, device, is_missing
            FROM library_files WHERE folder_id = ?1
        UNION ALL SELECT id, relative_path, NULL, filesystem_id, excluded_at IS NOT NULL,
                is_mount_point IS NOT NULL, NULL,
                removed_at IS NOT NULL
            FROM folders WHERE parent_id = ?1";
    let mut known = KnownEntries::default();
    db.rows(sql, [id], |row| {
        let (id, name, is_missing) = (row.get(0)?, name(row)?, row.get(7)?);
        match row.get_ref(2)? {
            ValueRef::Null => {
                let (filesystem, excluded, mount_point) = (row.get(3)?, row.get(4)?, row.get(5)?);
                let folder = KnownFolder { id, removed: is_missing, excluded, filesystem, mount_point };
                known.folders.push((name, folder));
            }
            _ => {
                let (stat, excluded, racy) = match unusual.get(&id) {
                    Some(UnusualFile { stat, excluded, racy }) => (*stat, *excluded, *racy),
                    None => (hashes::usual_stat(row, 2)?, false, false),
                };
                known.files.push((name, KnownFile { id, stat, missing: is_missing, excluded, racy }));
            }
        }
        Ok(())
    })?;
    Ok(known)
}

fn read_unusual(db: &Db<'_>, folder: i64, root: i64) -> Result<HashMap<i64, UnusualFile>> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT id, size_bytes, mtime_ns, ctime_ns, inode, device, allocated_bytes, link_kind,
                excluded_at IS NOT NULL, hash_racy IS NOT NULL
            FROM library_files INDEXED BY ix_library_files_unusual
            WHERE library_id = ?1 AND folder_id = ?2 AND {}",
            schema::UNUSUAL
        )
    });
    let rows = db.rows(&SQL, (root, folder), |row| {
        let (stat, excluded, racy) = (hashes::stat(row, 1)?, row.get(8)?, row.get(9)?);
        Ok((row.get(0)?, UnusualFile { stat, excluded, racy }))
    })?;
    Ok(rows.into_iter().collect())
}
