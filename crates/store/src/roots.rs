//! The folders that are scanned, each with everything below it.
//!
//! Owns the table `library_roots`, and which root a file belongs to: the innermost that contains it. So roots may
//! lie inside each other, and no file is counted twice. A root is a promise to look, not a copy: removing one
//! forgets what was seen there and touches no file.

use std::path::{Path, PathBuf};

use rusqlite::Row;
use serde::Serialize;

use crate::Store;
use crate::db::{Db, required_time, time};
use crate::error::{Error, Result};
use crate::paths;
use crate::paths::display_path;
use crate::time::UtcTime;
use crate::writer::WriteKind;

/// A folder that is scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Root {
    /// Its number.
    pub id: i64,
    /// A short name, of its own.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Whether links below it are followed.
    pub follow_links: bool,
    /// When it was registered.
    pub created_at: UtcTime,
    /// When a scan of it was last completed.
    pub last_scanned_at: Option<UtcTime>,
    /// Folders in it, itself included, when it was last scanned.
    pub folders: Option<i64>,
    /// Files in it, then.
    pub files: Option<i64>,
    /// Their size together, in bytes.
    pub bytes: Option<i64>,
    /// The filters of the last scan that walked it, as JSON.
    pub filters: Option<String>,
    /// The filesystem that its folder was on then.
    #[serde(skip)]
    pub filesystem: Option<String>,
}

/// What was forgotten with a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RemovedRoot {
    /// Folders.
    pub folders: usize,
    /// Files.
    pub files: usize,
}

/// The roots of a store.
#[derive(Clone, Copy, Debug)]
pub struct Roots<'a>(pub(crate) &'a Store);

const COLUMNS: &str =
    "id, name, root_path, created_at, last_scanned_at, traverse_links, folder_count, file_count,
    total_size, filters, filesystem";

impl Roots<'_> {
    /// All of them, by path.
    pub fn list(self) -> Result<Vec<Root>> {
        self.0.read(list)
    }

    /// The root at exactly this path.
    pub fn find(self, path: &Path) -> Result<Option<Root>> {
        let text = paths::to_text(path.as_os_str());
        self.0.read(|db| find(db, &text))
    }

    /// Registers a folder by its absolute path. What another root, around it, knew about it becomes its own. One
    /// that is registered already stays as it is.
    pub fn register(self, path: &Path) -> Result<Root> {
        if !path.is_absolute() {
            return Err(Error::Invalid(format!("a root is an absolute path, not {}", display_path(path))));
        }
        let path = path.to_path_buf();
        self.0.write(WriteKind::Compound, move |db| register(db, &path))
    }

    /// Whether links below a root are followed.
    pub fn follow_links(self, id: i64, follow: bool) -> Result<()> {
        self.0.write(WriteKind::Statement, move |db| {
            let sql = "UPDATE library_roots SET traverse_links = ?2, updated_at = ?3
                WHERE id = ?1 AND traverse_links <> ?2";
            db.execute(sql, (id, follow, db.now())).map(drop)
        })
    }

    /// Forgets a root and what was seen in it. No file is touched.
    pub fn remove(self, id: i64) -> Result<RemovedRoot> {
        self.0.write(WriteKind::Compound, move |db| {
            crate::scans::check_not_scanning(db, id)?;
            crate::scans::clear_settled(db)?;
            // A root around it knows nothing of what is there.
            if let Some((enclosing, relative_path)) = enclosing(db, id)? {
                crate::catalog::mark_folder_unscanned(
                    db,
                    enclosing,
                    &paths::to_text(relative_path.as_os_str()),
                )?;
                recount(db, enclosing)?;
            }
            let files = db.execute("DELETE FROM library_files WHERE library_id = ?1", [id])?;
            // Counted before: what goes with its folder is not counted by the statement.
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

fn list(db: &Db<'_>) -> Result<Vec<Root>> {
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
    let root = find(db, &text)?.ok_or_else(|| Error::Internal("a root vanished".to_owned()))?;
    if let Some((enclosing, relative_path)) = enclosing(db, root.id)? {
        move_from_enclosing(db, root.id, enclosing, &paths::to_text(relative_path.as_os_str()))?;
    }
    Ok(root)
}

/// The innermost root around a root, and the path in it.
fn enclosing(db: &Db<'_>, id: i64) -> Result<Option<(i64, PathBuf)>> {
    let roots = list(db)?;
    let Some(root) = roots.iter().find(|root| root.id == id) else { return Ok(None) };
    let relative_path =
        |other: &Root| Some((other.id, root.path.strip_prefix(&other.path).ok()?.to_path_buf()));
    let enclosing = roots.iter().filter(|other| other.id != id).filter_map(relative_path);
    // The innermost one leaves the shortest path.
    Ok(enclosing.min_by_key(|(_, path)| path.as_os_str().len()))
}

/// Everything at and below `folder` of the root `from` belongs to the root `to`, where it is the top.
fn move_from_enclosing(db: &Db<'_>, to: i64, from: i64, folder: &str) -> Result<()> {
    crate::scans::check_not_scanning(db, from)?;
    crate::scans::clear_settled(db)?;
    let (low, high) = paths::descendant_range(folder);
    // Characters, as substr counts.
    let skipped = i64::try_from(folder.chars().count()).unwrap_or(i64::MAX) + 2;
    for table in ["library_files", "folders"] {
        let sql = format!(
            "UPDATE {table} SET library_id = ?1, relative_path = substr(relative_path, ?2)
             WHERE library_id = ?3 AND relative_path > ?4 AND relative_path < ?5"
        );
        db.execute(&sql, (to, skipped, from, &low, &high))?;
    }
    let sql = "UPDATE folders SET library_id = ?1, relative_path = '', parent_id = NULL
        WHERE library_id = ?2 AND relative_path = ?3";
    db.execute(sql, (to, from, folder))?;
    // What is left to it.
    recount(db, from)
}

/// A root's numbers are those of its rows.
fn recount(db: &Db<'_>, root: i64) -> Result<()> {
    let sql = "UPDATE library_roots SET
            folder_count = (SELECT count(*) FROM folders WHERE library_id = ?1 AND removed_at IS NULL
                AND excluded_at IS NULL),
            file_count = (SELECT count(*) FROM library_files WHERE library_id = ?1 AND is_missing = 0
                AND excluded_at IS NULL),
            total_size = (SELECT coalesce(sum(bytes), 0) FROM (
                SELECT size_bytes AS bytes FROM library_files WHERE library_id = ?1
                    AND is_missing = 0 AND excluded_at IS NULL AND coalesce(link_kind, 0) = 0
                UNION ALL SELECT max(size_bytes) FROM library_files WHERE library_id = ?1
                    AND is_missing = 0 AND excluded_at IS NULL AND link_kind > 0 GROUP BY device, inode))
        WHERE id = ?1 AND file_count IS NOT NULL";
    db.execute(sql, [root]).map(drop)
}

/// The folder's own name, with a number when there is one of that name.
fn unused_name(db: &Db<'_>, path: &Path) -> Result<String> {
    let own = path.file_name().map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned());
    let taken = |name: &str| Ok(db.number("SELECT count(*) FROM library_roots WHERE name = ?1", [name])? > 0);
    let mut name = own.clone();
    let mut number = 1;
    while taken(&name)? {
        number += 1;
        name = format!("{own} {number}");
    }
    Ok(name)
}

fn root(row: &Row<'_>) -> rusqlite::Result<Root> {
    Ok(Root {
        id: row.get("id")?,
        name: row.get("name")?,
        path: paths::from_text(&row.get::<_, String>("root_path")?).into(),
        follow_links: row.get("traverse_links")?,
        created_at: required_time(row, "created_at")?,
        last_scanned_at: time(row, "last_scanned_at")?,
        folders: row.get("folder_count")?,
        files: row.get("file_count")?,
        bytes: row.get("total_size")?,
        filters: row.get("filters")?,
        filesystem: row.get("filesystem")?,
    })
}
