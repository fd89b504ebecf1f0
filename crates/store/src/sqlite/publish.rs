//! Gives a complete file its final name, so that readers never see an incomplete one.
//!
//! Owns the order: write beside the target, fsync, rename or link, fsync the folder. After a failure the target is
//! unchanged.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::paths::with_suffix;

/// What to do if the target exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingFile {
    /// Keep the file and fail.
    Keep,
    /// Replace the file.
    Replace,
    /// Replace an empty file, which is an empty database, and keep any other.
    ReplaceEmpty,
}

/// Why a file did not get its name.
#[derive(Debug)]
pub enum PublishError {
    /// A file with the target's name exists and was kept.
    Exists,
    /// The file could not be synced or renamed.
    Io(io::Error),
}

impl From<io::Error> for PublishError {
    fn from(error: io::Error) -> Self {
        PublishError::Io(error)
    }
}

/// Name of a file that is being written beside its target. Dropping it deletes the file, with the WAL and the journal
/// of a database.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    target: PathBuf,
}

impl Draft {
    /// Chooses a hidden name that no other file has. The caller creates the file.
    pub fn beside(target: &Path) -> Self {
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.part", uuid::Uuid::new_v4().simple()));
        Draft { path: folder_of(target).join(name), target: target.to_path_buf() }
    }

    /// Returns the path of the draft.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the complete draft the name of its target.
    pub fn publish(self, existing: ExistingFile) -> Result<(), PublishError> {
        publish(&self.path, &self.target, existing)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A published draft no longer exists.
        remove_database(&self.path);
    }
}

/// Removes a database with its journal, WAL and WAL index. Files that cannot be removed are left behind.
pub fn remove_database(path: &Path) {
    for ending in ["", "-journal", "-wal", "-shm"] {
        let _ = fs::remove_file(with_suffix(path, ending));
    }
}

/// Gives a complete draft in the same folder the name of its target, with an fsync before and after.
pub fn publish(draft: &Path, target: &Path, existing: ExistingFile) -> Result<(), PublishError> {
    File::open(draft)?.sync_all()?;
    let replaces = match existing {
        ExistingFile::Keep => false,
        ExistingFile::Replace => true,
        ExistingFile::ReplaceEmpty => fs::metadata(target).is_ok_and(|found| found.len() == 0),
    };
    if replaces {
        fs::rename(draft, target)?;
    } else {
        // Unlike a rename, a link does not replace a file created meanwhile. Some file systems have no links.
        match fs::hard_link(draft, target) {
            Ok(()) => drop(fs::remove_file(draft)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(PublishError::Exists),
            Err(_) if fs::symlink_metadata(target).is_ok() => return Err(PublishError::Exists),
            Err(_) => fs::rename(draft, target)?,
        }
    }
    sync_folder(folder_of(target)).map_err(PublishError::Io)
}

/// Returns the folder of a file; `.` for a bare file name.
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the folder, without which a new name may not survive a power cut.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
