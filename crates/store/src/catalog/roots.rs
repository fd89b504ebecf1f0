//! Roots: the folders that are scanned, each with everything below it.
//!
//! Owns the table `library_roots`, and which root a file belongs to: the innermost one that contains it. So roots may
//! be nested, and no file is counted twice. Removing a root deletes its records and touches no file.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::maintenance::ROOT_TOTALS;
use super::record::{PLACED_BELOW, UNPLACED_BELOW};
use crate::Store;
use crate::error::{Error, Result};
use crate::paths;
use crate::paths::display_path;
use crate::rows::column;
use crate::sqlite::{Db, Row, SqlResult, WriteKind};
use crate::time::UtcTime;

/// A folder that is scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Root {
    /// Id of the root.
    pub id: i64,
    /// Short name, unique among roots.
    pub name: String,
    /// Absolute path of the folder.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub path: PathBuf,
    /// Whether scans follow symbolic links below it.
    pub follow_links: bool,
    /// When it was registered.
    pub created_at: UtcTime,
    /// When its last scan was completed.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_scanned_at: Option<UtcTime>,
    /// Number of folders at its last scan, itself included.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub folders: Option<i64>,
    /// Number of files at its last scan.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub files: Option<i64>,
    /// Total size of the files in bytes.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub bytes: Option<i64>,
    /// Filters of the last scan that walked it, as JSON.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub filters: Option<String>,
    /// Identity of the filesystem that its folder was on at its last scan.
    #[serde(skip)]
    pub filesystem: Option<String>,
}

/// Number of records deleted with a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedRoot {
    /// Number of deleted folder records.
    pub folders: usize,
    /// Number of deleted file records.
    pub files: usize,
}

/// Roots of a store.
#[derive(Clone, Copy, Debug)]
pub struct Roots<'a>(pub(crate) &'a Store);

const COLUMNS: &str = "id, name, root_path, created_at, last_scanned_at, traverse_links, folder_count, file_count,
    total_size, filters, filesystem";

impl Roots<'_> {
    /// Lists all roots by path.
    pub fn list(self) -> Result<Vec<Root>> {
        self.0.read(list)
    }

    /// Returns the root at exactly this path.
    pub fn find(self, path: &Path) -> Result<Option<Root>> {
        let text = paths::to_text(path.as_os_str());
        self.0.read(|db| find(db, &text))
    }

    /// Registers a folder by its absolute path. Records of an enclosing root below the path move to the new root. A
    /// registered root is returned unchanged.
    pub fn register(self, path: &Path) -> Result<Root> {
        if !path.is_absolute() {
            return Err(Error::Invalid(format!("a root must be an absolute path, not {}", display_path(path))));
        }
        let path = path.to_path_buf();
        self.0.write(WriteKind::Compound, move |db| register(db, &path))
    }

    /// Sets whether scans follow symbolic links below a root.
    pub fn follow_links(self, id: i64, follow: bool) -> Result<()> {
        self.0.write(WriteKind::Statement, move |db| {
            let sql = "UPDATE library_roots SET traverse_links = ?2, updated_at = ?3
                WHERE id = ?1 AND traverse_links <> ?2";
            db.execute(sql, (id, follow, db.now())).map(drop)
        })
    }

    /// Deletes a root and its records. No file is touched.
    pub fn remove(self, id: i64) -> Result<RemovedRoot> {
        self.0.write(WriteKind::Compound, move |db| {
            crate::scans::check_not_scanning(db, id)?;
            crate::scans::clear_settled(db)?;
            // An enclosing root has no records below this folder.
            if let Some((enclosing, relative_path)) = enclosing(db, id)? {
                crate::catalog::mark_folder_unscanned(db, enclosing, &paths::to_text(relative_path.as_os_str()))?;
                recount(db, enclosing)?;
            }
            let files = db.execute("DELETE FROM library_files WHERE library_id = ?1", [id])?;
            // Counted before, because the statement does not count rows deleted by a cascade.
            let folders = db.number("SELECT count(*) FROM folders WHERE library_id = ?1", [id])?;
            let folders = usize::try_from(folders).unwrap_or(0);
            db.execute("DELETE FROM folders WHERE library_id = ?1", [id])?;
            match db.execute("DELETE FROM library_roots WHERE id = ?1", [id])? {
                0 => Err(Error::NotFound(format!("there is no root {id}"))),
                _ => Ok(RemovedRoot { folders, files }),
            }
        })
    }
}

pub(super) fn list(db: &Db<'_>) -> Result<Vec<Root>> {
    db.rows(&format!("SELECT {COLUMNS} FROM library_roots ORDER BY root_path"), [], root)
}

fn find(db: &Db<'_>, text: &str) -> Result<Option<Root>> {
    db.first(&format!("SELECT {COLUMNS} FROM library_roots WHERE root_path = ?1"), [text], root)
}

fn register(db: &Db<'_>, path: &Path) -> Result<Root> {
    let text = paths::to_text(path.as_os_str());
    if let Some(root) = find(db, &text)? {
        return Ok(root);
    }
    let name = unused_name(db, path)?;
    let sql = "INSERT INTO library_roots (name, root_path, created_at, updated_at, traverse_links)
        VALUES (?1, ?2, ?3, ?3, 0)";
    db.execute(sql, (&name, &text, db.now()))?;
    let root = find(db, &text)?.ok_or_else(|| Error::Internal("the row of a root vanished".to_owned()))?;
    if let Some((enclosing, relative_path)) = enclosing(db, root.id)? {
        move_from_enclosing(db, root.id, enclosing, &paths::to_text(relative_path.as_os_str()))?;
    }
    Ok(root)
}

/// Returns the innermost root that contains a root, and the path in it.
fn enclosing(db: &Db<'_>, id: i64) -> Result<Option<(i64, PathBuf)>> {
    let roots = list(db)?;
    let Some(root) = roots.iter().find(|root| root.id == id) else { return Ok(None) };
    let relative_path = |other: &Root| Some((other.id, root.path.strip_prefix(&other.path).ok()?.to_path_buf()));
    let enclosing = roots.iter().filter(|other| other.id != id).filter_map(relative_path);
    // The innermost root has the shortest remaining path.
    Ok(enclosing.min_by_key(|(_, path)| path.as_os_str().len()))
}

/// Moves everything at and below `folder` of the root `from` to the root `to`, whose own folder it becomes.
fn move_from_enclosing(db: &Db<'_>, to: i64, from: i64, folder: &str) -> Result<()> {
    crate::scans::check_not_scanning(db, from)?;
    crate::scans::clear_settled(db)?;
    let (low, high) = paths::descendant_range(folder);
    // In characters, as SQLite's substr counts.
    let skipped = i64::try_from(folder.chars().count()).unwrap_or(i64::MAX) + 2;
    let moved = "library_id = ?1, relative_path = substr(relative_path, ?6)";
    for below in [PLACED_BELOW, UNPLACED_BELOW] {
        let sql = format!("UPDATE library_files SET {moved} WHERE {below}");
        db.execute(&sql, (to, from, &low, &high, folder, skipped))?;
    }
    let below = "library_id = ?2 AND relative_path > ?3 AND relative_path < ?4 AND ?5 IS NOT NULL";
    for table in ["folders", "broken_links"] {
        db.execute(&format!("UPDATE {table} SET {moved} WHERE {below}"), (to, from, &low, &high, folder, skipped))?;
    }
    let sql = "UPDATE folders SET library_id = ?1, relative_path = '', parent_id = NULL
        WHERE library_id = ?2 AND relative_path = ?3";
    db.execute(sql, (to, from, folder))?;
    recount(db, from)
}

fn recount(db: &Db<'_>, root: i64) -> Result<()> {
    let sql = format!(
        "UPDATE library_roots SET (folder_count, file_count, total_size) = {ROOT_TOTALS}
         WHERE id = ?1 AND file_count IS NOT NULL"
    );
    db.execute(&sql, [root]).map(drop)
}

/// Returns the folder's name, with a number if it is taken.
fn unused_name(db: &Db<'_>, path: &Path) -> Result<String> {
    let base = path.file_name().map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned());
    let taken = |name: &str| Ok(db.number("SELECT count(*) FROM library_roots WHERE name = ?1", [name])? > 0);
    let mut name = base.clone();
    let mut number = 1;
    while taken(&name)? {
        number += 1;
        name = format!("{base} {number}");
    }
    Ok(name)
}

fn root(row: &Row<'_>) -> SqlResult<Root> {
    Ok(Root {
        id: row.get("id")?,
        name: row.get("name")?,
        path: paths::from_text(&row.get::<_, String>("root_path")?).into(),
        follow_links: row.get("traverse_links")?,
        created_at: column(row, "created_at")?,
        last_scanned_at: column(row, "last_scanned_at")?,
        folders: row.get("folder_count")?,
        files: row.get("file_count")?,
        bytes: row.get("total_size")?,
        filters: row.get("filters")?,
        filesystem: row.get("filesystem")?,
    })
}
