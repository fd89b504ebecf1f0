//! Recorded entries of a folder, with which a walk compares.
//!
//! Owns how the rows of one folder are read. A rescan reads the files of each folder that has changed, or has no
//! digest, so only the columns that most rows need are read; other columns are read through an index that contains only
//! the files with unusual values.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::LazyLock;

use super::{Catalog, FolderRef, Stat, hashes};
use crate::error::Result;
use crate::paths;
use crate::sqlite::schema;
use crate::sqlite::{Db, Row, SqlResult};

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
    /// Digest of its last listing; `None` if its rows may differ from that.
    pub digest: Option<ListingDigest>,
}

/// Digest of everything that the listing of a folder found. While a folder has one, its rows and those of the entries
/// in it are as that listing wrote them, so a walk that finds the same digest need not read them.
pub type ListingDigest = [u8; 16];

/// Columns of a [`KnownFolder`].
macro_rules! folder_columns {
    () => {
        "id, removed_at IS NOT NULL, excluded_at IS NOT NULL, filesystem_id, is_mount_point IS NOT NULL, listing_digest"
    };
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
        let files = self.known_files(folder, has_unusual)?;
        Ok(KnownEntries { files, folders: self.known_folders(folder)? })
    }

    /// Returns the recorded files of a folder by name, including missing ones. `has_unusual` as in
    /// [`Catalog::known_entries`].
    pub fn known_files(self, folder: &FolderRef, has_unusual: bool) -> Result<Vec<(OsString, KnownFile)>> {
        let Some(id) = folder.id else { return Ok(Vec::new()) };
        self.0.read_unchecked(|db| read_files(db, id, folder, has_unusual))
    }

    /// Returns the recorded subfolders of a folder by name, including removed ones.
    pub fn known_folders(self, folder: &FolderRef) -> Result<Vec<(OsString, KnownFolder)>> {
        let Some(id) = folder.id else { return Ok(Vec::new()) };
        let sql = concat!("SELECT ", folder_columns!(), ", relative_path FROM folders WHERE parent_id = ?1");
        let prefix = path_in_rows(folder).len();
        self.0.read_unchecked(|db| db.rows(sql, [id], |row| Ok((name(row, 6, prefix)?, known_folder(row)?))))
    }
}

/// Reads the columns of `folder_columns`.
fn known_folder(row: &Row<'_>) -> SqlResult<KnownFolder> {
    Ok(KnownFolder {
        id: row.get(0)?,
        removed: row.get(1)?,
        excluded: row.get(2)?,
        filesystem: row.get(3)?,
        mount_point: row.get(4)?,
        digest: row.get_ref(5)?.as_blob_or_null()?.and_then(|digest| digest.try_into().ok()),
    })
}

/// Returns the path of a folder with a slash, as the paths of its entries begin; empty for the folder of a root.
fn path_in_rows(folder: &FolderRef) -> String {
    let mut path = paths::to_text(folder.path.as_os_str());
    if !path.is_empty() {
        path.push('/');
    }
    path
}

/// Reads the name of an entry from its path, whose first `prefix` bytes are those of [`path_in_rows`].
fn name(row: &Row<'_>, column: usize, prefix: usize) -> SqlResult<OsString> {
    let text = row.get_ref(column)?.as_str()?;
    Ok(paths::from_text(text.get(prefix..).unwrap_or_default()))
}

/// Returns a folder by the text of its path.
pub(super) fn folder(db: &Db<'_>, root: i64, path: &str) -> Result<Option<KnownFolder>> {
    let sql = concat!("SELECT ", folder_columns!(), " FROM folders WHERE library_id = ?1 AND relative_path = ?2");
    db.first(sql, (root, path), known_folder)
}

struct UnusualFile {
    stat: Stat,
    excluded: bool,
    racy: bool,
}

fn read_files(db: &Db<'_>, id: i64, folder: &FolderRef, has_unusual: bool) -> Result<Vec<(OsString, KnownFile)>> {
    let prefix = path_in_rows(folder).len();
    let unusual = if has_unusual { read_unusual(db, id, folder.root)? } else { HashMap::new() };
    let sql = "SELECT id, relative_path, size_bytes, mtime_ns, ctime_ns, inode, device, is_missing
        FROM library_files WHERE folder_id = ?1";
    db.rows(sql, [id], |row| {
        let (id, name, missing) = (row.get(0)?, name(row, 1, prefix)?, row.get(7)?);
        let (stat, excluded, racy) = match unusual.get(&id) {
            Some(UnusualFile { stat, excluded, racy }) => (*stat, *excluded, *racy),
            None => (hashes::usual_stat(row, 2)?, false, false),
        };
        Ok((name, KnownFile { id, stat, missing, excluded, racy }))
    })
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
