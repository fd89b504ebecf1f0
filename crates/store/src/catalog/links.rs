//! Decides which paths lead to one file.
//!
//! Two rows are names of one file if they have the same inode number on the same filesystem. A link count is not used:
//! a bind mount or a symbolic link leads to a file whose count is 1, and a count is as old as its row. If the
//! filesystem is unknown, or its inode numbers are unstable, the device number replaces it. That is not an identity,
//! because disks that are attached in turn get the same number: then the change time must also be equal, or the inode
//! must be known to have several names.

use super::{Stat, hashes};
use crate::sqlite::{Connection, SqlResult};

/// Prefix of the identity of a filesystem whose inode numbers change with every mount or belong to the layers below it.
pub const UNSTABLE_INODES: &str = "unstable inodes, ";

/// Whether other paths may lead to a file's inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Unknown: another program, or an earlier version, recorded the file.
    #[default]
    Unknown,
    /// Its link count is 1.
    Single,
    /// Its link count is above 1.
    HardLinked,
    /// It was reached through a symbolic link.
    ViaSymlink,
}

impl LinkKind {
    /// Kinds by the code that is stored in the database.
    const BY_CODE: [LinkKind; 3] = [LinkKind::Single, LinkKind::HardLinked, LinkKind::ViaSymlink];

    pub(super) fn code(self) -> Option<i64> {
        (0..).zip(Self::BY_CODE).find(|(_, kind)| *kind == self).map(|(code, _)| code)
    }

    pub(super) fn from_code(code: Option<i64>) -> Self {
        code.and_then(|code| Self::BY_CODE.get(usize::try_from(code).ok()?).copied()).unwrap_or_default()
    }
}

/// A name of a file with several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedName {
    /// Row id of this name.
    pub row: i64,
    /// Lowest row id among the names of the file.
    pub file: i64,
    /// Change time of the inode when this name was seen.
    pub ctime_ns: i64,
}

/// The filesystem or device of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Volume {
    filesystem: Option<i64>,
    has_stable_inodes: bool,
    device: u64,
}

/// A row that may be a name of the same file as another.
struct NameRow {
    inode: u64,
    row: i64,
    ctime_ns: i64,
    /// Index of its volume in `volumes`.
    volume: u32,
    links: LinkKind,
}

/// Finds the rows that are names of one file.
pub(super) struct SharedNameFinder<'a> {
    /// Ids of filesystems with unstable inode numbers.
    unstable: &'a [i64],
    /// Few elements, searched linearly.
    volumes: Vec<Volume>,
    names: Vec<NameRow>,
}

/// Returns the ids of filesystems with unstable inode numbers.
pub(super) fn unstable_filesystems(conn: &Connection) -> SqlResult<Vec<i64>> {
    let sql = "SELECT id FROM filesystems WHERE substr(identity, 1, length(?1)) = ?1";
    conn.prepare_cached(sql)?.query_map([UNSTABLE_INODES], |row| row.get(0))?.collect()
}

/// Returns which of these rows are names of one file, ordered by row. `unstable`: ids of filesystems with unstable
/// inode numbers.
pub(super) fn shared_names(conn: &Connection, unstable: &[i64], rows: &[i64]) -> SqlResult<Vec<SharedName>> {
    let mut names = SharedNameFinder::new(unstable);
    let sql = "SELECT f.size_bytes, f.mtime_ns, f.ctime_ns, f.inode, f.device, f.allocated_bytes, f.link_kind,
            d.filesystem_id
        FROM library_files f LEFT JOIN folders d ON d.id = f.folder_id WHERE f.id = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    for id in rows {
        let mut found = statement.query([id])?;
        if let Some(row) = found.next()? {
            names.add(*id, &hashes::stat(row, 0)?, row.get(7)?);
        }
    }
    Ok(names.shared())
}

impl<'a> SharedNameFinder<'a> {
    pub(super) fn new(unstable: &'a [i64]) -> Self {
        SharedNameFinder { unstable, volumes: Vec::new(), names: Vec::new() }
    }

    pub(super) fn reserve(&mut self, rows: usize) {
        self.names.reserve_exact(rows);
    }

    /// Adds a row. A row without an inode, recorded by another program, is a separate file.
    pub(super) fn add(&mut self, row: i64, stat: &Stat, filesystem: Option<i64>) {
        let Stat { inode, device, ctime_ns, links, .. } = *stat;
        if inode == 0 {
            return;
        }
        let has_stable_inodes = filesystem.is_some_and(|filesystem| !self.unstable.contains(&filesystem));
        let volume = Volume { filesystem, has_stable_inodes, device };
        // Usually the volume of the previous row.
        let index = self.volumes.iter().rposition(|known| *known == volume).unwrap_or_else(|| {
            self.volumes.push(volume);
            self.volumes.len() - 1
        });
        self.names.push(NameRow { inode, row, ctime_ns, volume: index as u32, links });
    }

    /// Returns the names of files with several names, ordered by row.
    pub(super) fn shared(mut self) -> Vec<SharedName> {
        self.names.sort_unstable_by_key(|name| (name.inode, name.volume, name.row));
        let mut shared = Vec::new();
        let mut resolved = Vec::new();
        for names in self.names.chunk_by(|a, b| a.inode == b.inode).filter(|names| names.len() > 1) {
            resolved.clear();
            self.find_files(names, &mut resolved);
            resolved.sort_unstable_by_key(|found| (found.name.file, found.name.row));
            for names in resolved.chunk_by(|a, b| a.name.file == b.name.file).filter(|names| names.len() > 1) {
                shared.extend(names.iter().map(|found| found.name));
            }
        }
        shared.sort_unstable();
        shared
    }

    /// Finds the file of each name. All have the same inode number.
    fn find_files(&self, names: &[NameRow], found: &mut Vec<ResolvedName>) {
        for names in names.chunk_by(|a, b| a.volume == b.volume) {
            let Some(volume) = names.first().and_then(|name| self.volumes.get(name.volume as usize)) else {
                continue;
            };
            let Volume { filesystem, has_stable_inodes, device } = *volume;
            let is_same_file = has_stable_inodes || names.iter().any(|name| name.links != LinkKind::Single);
            found.extend(names.iter().map(|name| ResolvedName {
                key: (
                    filesystem,
                    if has_stable_inodes { 0 } else { device },
                    if is_same_file { 0 } else { name.ctime_ns },
                ),
                name: SharedName { row: name.row, file: name.row, ctime_ns: name.ctime_ns },
                device,
                via_symlink: name.links == LinkKind::ViaSymlink,
            }));
        }
        found.sort_unstable_by_key(|found| (found.key, found.name.row));
        for names in found.chunk_by_mut(|a, b| a.key == b.key) {
            let file = names.first().map_or(0, |found| found.name.row);
            names.iter_mut().for_each(|found| found.name.file = file);
        }
        if found.iter().any(|found| found.via_symlink) {
            merge_symlink_targets(found);
        }
    }
}

struct ResolvedName {
    /// Filesystem, device and change time, as far as they are compared.
    key: (Option<i64>, u64, i64),
    name: SharedName,
    device: u64,
    via_symlink: bool,
}

/// Merges symlink targets with other names by device, because a link may lead to another filesystem than its folder's.
fn merge_symlink_targets(found: &mut [ResolvedName]) {
    let mut devices: Vec<u64> = found.iter().filter(|name| name.via_symlink).map(|name| name.device).collect();
    devices.sort_unstable();
    devices.dedup();
    for device in devices {
        let mut files: Vec<i64> =
            found.iter().filter(|found| found.device == device).map(|found| found.name.file).collect();
        files.sort_unstable();
        let Some(&file) = files.first() else { continue };
        for found in found.iter_mut().filter(|found| files.binary_search(&found.name.file).is_ok()) {
            found.name.file = file;
        }
    }
}
