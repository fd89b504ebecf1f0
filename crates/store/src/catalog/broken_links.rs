//! Symbolic links whose target does not exist.
//!
//! Owns the rows of the table `broken_links`. A walk compares the links of each folder with the recorded ones, which it
//! reads once, so a folder without broken links needs no statement.

use std::collections::HashMap;
use std::ffi::OsString;

use super::Catalog;
use crate::error::Result;
use crate::paths;
use crate::sqlite::Db;

/// A symbolic link whose target does not exist, in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokenLink {
    /// Name in the folder.
    pub name: OsString,
    /// Text of the link.
    pub target: OsString,
}

impl Catalog<'_> {
    /// Returns the broken links of a root by the row id of their folder, sorted by name.
    pub fn broken_links_by_folder(self, root: i64) -> Result<HashMap<i64, Vec<BrokenLink>>> {
        let sql = "SELECT folder_id, relative_path, target FROM broken_links WHERE library_id = ?1";
        let mut links: HashMap<i64, Vec<BrokenLink>> = HashMap::new();
        self.0.read(|db| {
            db.rows(sql, [root], |row| {
                let (path, target) = (row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str()?);
                let name = paths::from_text(path.rsplit_once('/').map_or(path, |(_, name)| name));
                let link = BrokenLink { name, target: paths::from_text(target) };
                links.entry(row.get(0)?).or_default().push(link);
                Ok(())
            })
        })?;
        links.values_mut().for_each(|links| links.sort_unstable());
        Ok(links)
    }
}

/// Replaces the links of a folder, whose path with a slash is `prefix`.
pub(super) fn replace(
    db: &Db<'_>,
    (root, folder): (i64, i64),
    prefix: &mut String,
    links: &[BrokenLink],
) -> Result<()> {
    db.execute("DELETE FROM broken_links WHERE folder_id = ?1", [folder])?;
    let sql = "INSERT INTO broken_links (library_id, folder_id, relative_path, target) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (library_id, relative_path) DO UPDATE SET folder_id = excluded.folder_id, target = excluded.target";
    let length = prefix.len();
    for BrokenLink { name, target } in links {
        paths::push_text(prefix, name);
        let written = db.execute(sql, (root, folder, &*prefix, paths::to_text(target)));
        prefix.truncate(length);
        written?;
    }
    Ok(())
}
