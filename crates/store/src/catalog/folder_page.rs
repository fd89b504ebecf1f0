//! The entries of one folder, page by page.
//!
//! Owns their order and its cursors. A page reads the rows of all entries of the folder, because no index has their
//! names: the indexes of files would otherwise be larger than the rows.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use super::groups::{BASE64, GroupKey};
use super::roots::{self, Root};
use super::{Algorithm, Catalog, FileAt, Stat};
use crate::Page;
use crate::error::{Error, Result};
use crate::paths::{self, descendant_range, display_path};
use crate::rows::string_enum;
use crate::sqlite::{Row, SqlResult, params};
use crate::time::UtcTime;

string_enum! {
    "an entry's type",
    /// Type of an entry of a folder.
    pub enum EntryType {
        /// A subfolder.
        Folder = "folder",
        /// A file.
        File = "file",
    }
}

/// A present entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderEntry {
    /// Id of the row, of the folder or of the file.
    pub id: i64,
    /// Whether it is a folder or a file.
    pub entry_type: EntryType,
    /// Name in the folder, encoded as in the database.
    pub name: String,
    /// Path relative to the root, encoded as in the database.
    pub relative_path: String,
    /// Size of a file in bytes.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub size_bytes: Option<u64>,
    /// Modification time of a file.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub modified_at: Option<UtcTime>,
    /// Modification time of a file in nanoseconds since 1970, which JavaScript cannot represent exactly.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub mtime_ns: Option<i64>,
    /// Key of the file's duplicate group, if it has a copy and is not empty.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub group_key: Option<String>,
}

/// Position after an entry. As text base64url of JSON, like the cursors of groups.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct EntryCursor {
    is_file: bool,
    name: String,
}

impl EntryCursor {
    fn encode(entry: &FolderEntry) -> String {
        let cursor = EntryCursor { is_file: entry.entry_type == EntryType::File, name: entry.name.clone() };
        // A struct of a bool and a string can be serialized.
        BASE64.encode(serde_json::to_string(&cursor).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Self> {
        let json = BASE64.decode(text).ok();
        json.and_then(|json| serde_json::from_slice(&json).ok()).ok_or_else(|| {
            Error::Invalid(format!("the cursor {text:?} is invalid: expected next_cursor of a page of the same folder"))
        })
    }
}

/// Entries of the folder ?2 with the path between ?3 and ?4, folders first, after the entry ?6 of the type ?5. Another
/// program records neither the parent of a folder nor the folder of a file. ?7: length of the folder's path in
/// characters, with a slash.
const ENTRIES: &str = "
    SELECT is_file, id, relative_path, entries.size_bytes, mtime_ns, g.hash_algorithm AS algorithm,
        g.content_hash AS hash
    FROM (
        SELECT * FROM (
            SELECT 0 AS is_file, id, relative_path, NULL AS size_bytes, NULL AS mtime_ns, NULL AS hash_algorithm,
                NULL AS content_hash
            FROM folders WHERE parent_id = ?2 AND removed_at IS NULL AND excluded_at IS NULL
            UNION ALL
            SELECT 0, id, relative_path, NULL, NULL, NULL, NULL
            FROM folders WHERE parent_id IS NULL AND library_id = ?1 AND relative_path > ?3 AND relative_path < ?4
                AND instr(substr(relative_path, ?7 + 1), '/') = 0 AND removed_at IS NULL AND excluded_at IS NULL
            UNION ALL
            SELECT 1, id, relative_path, size_bytes, mtime_ns, iif(needs_hash = 0, hash_algorithm, NULL), content_hash
            FROM library_files WHERE folder_id = ?2 AND is_missing = 0 AND excluded_at IS NULL
            UNION ALL
            SELECT 1, id, relative_path, size_bytes, mtime_ns, iif(needs_hash = 0, hash_algorithm, NULL), content_hash
            FROM library_files INDEXED BY ix_library_files_unplaced
            WHERE folder_id IS NULL AND library_id = ?1 AND relative_path > ?3 AND relative_path < ?4
                AND instr(substr(relative_path, ?7 + 1), '/') = 0 AND is_missing = 0 AND excluded_at IS NULL)
        WHERE is_file > ?5 OR (is_file = ?5 AND relative_path > ?6) ORDER BY is_file, relative_path LIMIT ?8) AS entries
    LEFT JOIN duplicate_groups g ON g.hash_algorithm = entries.hash_algorithm
        AND g.content_hash = entries.content_hash AND g.copies > 1 AND entries.size_bytes > 0
    ORDER BY is_file, relative_path";

impl Catalog<'_> {
    /// Lists the subfolders and files directly in a folder of a root, folders first, each by name. Missing and excluded
    /// entries are left out. `path`: relative to the root, empty for the root itself. [`Error::NotFound`] if the folder
    /// is not in the catalog, was removed or is excluded. Group keys are those of the last
    /// [`refresh_groups`](Catalog::refresh_groups).
    pub fn folder_page(self, root: i64, path: &Path, after: Option<&str>, limit: usize) -> Result<Page<FolderEntry>> {
        let after = after.map(EntryCursor::parse).transpose()?;
        let folder = paths::to_text(path.as_os_str());
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let (is_file, last) = match after {
            Some(EntryCursor { is_file, name }) => (i64::from(is_file), format!("{prefix}{name}")),
            None => (-1, String::new()),
        };
        let characters = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
        let (low, high) = descendant_range(&folder);
        let entries = self.0.read(|db| {
            let sql = "SELECT id FROM folders WHERE library_id = ?1 AND relative_path = ?2 AND removed_at IS NULL
                AND excluded_at IS NULL";
            let Some(id) = db.first(sql, (root, &folder), |row| row.get::<_, i64>(0))? else {
                let path = display_path(path);
                return Err(Error::NotFound(format!("the catalog has no folder {path:?} in root {root}")));
            };
            let limit = crate::limit_plus_one(limit);
            let params = params![root, id, low, high, is_file, last, characters, limit];
            db.rows(ENTRIES, params, |row| entry(row, prefix.len()))
        })?;
        Ok(Page::from_rows(entries, limit, EntryCursor::encode))
    }

    /// Returns the root of a present file, its path relative to the root, and its metadata when it was last seen.
    /// [`Error::NotFound`] if there is no such file, or it is missing or excluded.
    pub fn file_location(self, id: i64) -> Result<(Root, PathBuf, Stat)> {
        let sql = "SELECT count(*) FROM library_files WHERE id = ?1 AND is_missing = 0 AND excluded_at IS NULL";
        let is_present = self.0.read(|db| db.number(sql, [id]))? > 0;
        let found = if is_present { self.files_at(&[id])?.pop() } else { None };
        let located = found.map(|FileAt { root, path, stat, .. }| {
            let roots = self.0.read(roots::list)?;
            Ok(roots.into_iter().find(|found| found.id == root).map(|root| (root, path, stat)))
        });
        located.transpose()?.flatten().ok_or_else(|| Error::not_found("present file", id))
    }
}

/// Reads a row of [`ENTRIES`]. `prefix`: number of bytes before the name.
fn entry(row: &Row<'_>, prefix: usize) -> SqlResult<FolderEntry> {
    let relative_path: String = row.get("relative_path")?;
    let size: Option<i64> = row.get("size_bytes")?;
    let mtime_ns: Option<i64> = row.get("mtime_ns")?;
    let algorithm: Option<String> = row.get("algorithm")?;
    let hash: Option<Vec<u8>> = row.get("hash")?;
    let key = algorithm.as_deref().and_then(Algorithm::parse).zip(hash);
    Ok(FolderEntry {
        id: row.get("id")?,
        entry_type: if row.get("is_file")? { EntryType::File } else { EntryType::Folder },
        name: relative_path.get(prefix..).unwrap_or_default().to_owned(),
        relative_path,
        size_bytes: size.map(|size| u64::try_from(size).unwrap_or(0)),
        modified_at: mtime_ns.map(|mtime| UtcTime::from_micros(mtime.div_euclid(1_000))),
        mtime_ns,
        group_key: key.map(|(algorithm, hash)| GroupKey { algorithm, hash }.to_string()),
    })
}
