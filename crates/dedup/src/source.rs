//! Opens a file of the catalog to be shown, as it is now.
//!
//! Owns the path check: the file is opened below the folder of its root without following any symbolic link, and it
//! must be the regular file that the last scan found.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use gristmill_store::Store;

use crate::error::{Error, Result};
use crate::roots::open_if_reachable;
use crate::sys::{self, EntryKind};

/// An open file of the catalog.
#[derive(Debug)]
#[non_exhaustive]
pub struct Source {
    /// The file, which is a regular one.
    pub file: File,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Device and inode number.
    pub identity: (u64, u64),
    /// Name of the file.
    pub name: OsString,
}

/// Opens the file with this row id. Fails if the catalog has no such file, if it cannot be reached now, or if it is not
/// the file that the last scan found. Never waits, as opening a FIFO would.
pub fn open(store: &Store, id: i64) -> Result<Source> {
    let missing = || Error::Store(gristmill_store::Error::NotFound(format!("there is no file {id} in the catalog")));
    let row = store.catalog().files_at(&[id])?.into_iter().next().ok_or_else(missing)?;
    let root = store.roots().list()?.into_iter().find(|root| root.id == row.root).ok_or_else(missing)?;
    let gone = |reason: &str| {
        let text = format!("file {id} {reason}; scan its root again");
        Error::Store(gristmill_store::Error::Conflict(text))
    };
    let folder = open_if_reachable(store, &root).ok_or_else(|| gone("is in a root that cannot be reached"))?;
    let folder = folder.open_below(row.path.parent().unwrap_or(Path::new("")), false);
    let folder = folder.map_err(|_| gone("is in a folder that cannot be opened"))?;
    let name = row.path.file_name().unwrap_or_default().to_owned();
    let file = folder.open_file(&name).map_err(|_| gone("cannot be opened"))?;
    let found = sys::file_stat(&file).map_err(|_| gone("cannot be examined"))?;
    if found.kind != EntryKind::File || !found.stat.is_same(&row.stat) {
        return Err(gone("is not the file that the last scan found"));
    }
    let identity = (found.stat.device, found.stat.inode);
    Ok(Source { file, size: found.stat.size, mtime_ns: found.stat.mtime_ns, identity, name })
}

impl Source {
    /// Whether a path leads to this file.
    pub fn is_at(&self, path: &Path) -> bool {
        sys::path_stat(path).is_ok_and(|found| (found.stat.device, found.stat.inode) == self.identity)
    }
}
