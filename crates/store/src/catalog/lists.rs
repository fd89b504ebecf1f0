//! Rows for the lists of empty files, empty folders and broken links.
//!
//! Owns which rows exist on the disk as far as the catalog knows: an entry of a removed or excluded folder is not
//! listed. The caller decides which folders are empty.

use std::path::PathBuf;

use super::{Catalog, LinkKind};
use crate::error::Result;
use crate::paths;
use crate::sqlite::{Row, SqlResult};

/// A present file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Whether it was reached through a symbolic link, so that it is stored elsewhere.
    pub via_symlink: bool,
}

/// A broken symbolic link of a present folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLink {
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Text of the link.
    pub target: PathBuf,
}

/// A folder that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFolder {
    /// Id of the folder's row.
    pub id: i64,
    /// Row id of its parent; `None` for the folder of a root.
    pub parent: Option<i64>,
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Whether its last walk listed it completely, and it has neither files nor skipped entries. It may have
    /// subfolders.
    pub has_only_folders: bool,
}

/// Condition that a folder exists and is not excluded.
const IS_PRESENT: &str = "d.removed_at IS NULL AND d.excluded_at IS NULL";

/// Condition that a folder was listed completely, by a version that recorded skipped entries and broken links.
const IS_LISTED: &str = "d.walked_scan_id IS NOT NULL AND d.error_status IS NULL AND d.skipped_entries IS NOT NULL
    AND d.via_link IS NOT NULL";

impl Catalog<'_> {
    /// Returns the present files without content.
    pub fn empty_files(self) -> Result<Vec<ListedFile>> {
        let sql = "SELECT library_id, relative_path, mtime_ns, link_kind FROM library_files
            WHERE size_bytes = 0 AND is_missing = 0 AND excluded_at IS NULL";
        self.0.read(|db| {
            db.rows(sql, [], |row| {
                let (mtime_ns, via_symlink) = (row.get(2)?, LinkKind::from_code(row.get(3)?) == LinkKind::ViaSymlink);
                Ok(ListedFile { root: row.get(0)?, path: path(row, 1)?, mtime_ns, via_symlink })
            })
        })
    }

    /// Returns the broken symbolic links in present folders.
    pub fn broken_links(self) -> Result<Vec<ListedLink>> {
        let sql = format!(
            "SELECT l.library_id, l.relative_path, l.target FROM broken_links l JOIN folders d ON d.id = l.folder_id
                WHERE {IS_PRESENT}"
        );
        self.0.read(|db| {
            db.rows(&sql, [], |row| Ok(ListedLink { root: row.get(0)?, path: path(row, 1)?, target: path(row, 2)? }))
        })
    }

    /// Returns the folders that exist. An excluded folder counts as one with unknown entries.
    pub fn existing_folders(self) -> Result<Vec<ListedFolder>> {
        let sql = format!(
            "SELECT d.id, coalesce(d.parent_id, CASE WHEN d.relative_path <> '' THEN (SELECT p.id FROM folders p
                    WHERE p.library_id = d.library_id AND p.relative_path =
                        rtrim(rtrim(d.relative_path, replace(d.relative_path, '/', '')), '/')) END),
                d.library_id, d.relative_path,
                d.excluded_at IS NULL AND {IS_LISTED} AND d.skipped_entries = 0 AND d.via_link = 0
                    AND NOT EXISTS (SELECT 1 FROM library_files f WHERE f.folder_id = d.id AND f.is_missing = 0)
            FROM folders d WHERE d.removed_at IS NULL"
        );
        self.0.read(|db| {
            db.rows(&sql, [], |row| {
                Ok(ListedFolder {
                    id: row.get(0)?,
                    parent: row.get(1)?,
                    root: row.get(2)?,
                    path: path(row, 3)?,
                    has_only_folders: row.get(4)?,
                })
            })
        })
    }

    /// Returns the number of present folders that no walk has listed completely, or only one of an earlier version. A
    /// folder that could not be read is not counted.
    pub fn count_unlisted(self, root: i64) -> Result<u64> {
        let sql = format!(
            "SELECT count(*) FROM folders d WHERE d.library_id = ?1 AND {IS_PRESENT} AND d.error_status IS NULL
                AND NOT ({IS_LISTED})"
        );
        self.0.read(|db| db.count(&sql, [root]))
    }
}

fn path(row: &Row<'_>, column: usize) -> SqlResult<PathBuf> {
    Ok(paths::from_text(row.get_ref(column)?.as_str()?).into())
}
