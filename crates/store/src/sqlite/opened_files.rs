//! Detects that the database file, its WAL or its WAL index (`-shm`) was deleted, moved or replaced while it is open.
//!
//! Owns the identities of the opened files, and the handling of the WAL afterwards. SQLite silently continues with the
//! old inode, and finds WAL and WAL index by name, so it would mix the WALs of two databases. Therefore nothing more is
//! written, and the WAL of the old file is not left where the new file would use it. For the same reason two processes
//! with separate WALs or WAL indexes of one database would overwrite each other's transactions.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::error::{Error, Result};
use crate::paths::{display_path, with_suffix};

/// Device and inode number of a file.
type Identity = (u64, u64);

/// The database file, its WAL and its WAL index, as they were opened.
#[derive(Clone, Debug)]
pub struct OpenedFiles {
    /// Path as the user wrote it, for messages.
    path: PathBuf,
    /// Absolute path, independent of the working folder.
    absolute: PathBuf,
    /// Path with symbolic links resolved.
    resolved: PathBuf,
    file: Option<Identity>,
    /// Beside the resolved file.
    wal: SidecarFile,
    shm: SidecarFile,
}

/// The WAL or the WAL index of the database.
#[derive(Clone, Debug)]
struct SidecarFile {
    path: PathBuf,
    identity: Option<Identity>,
}

impl SidecarFile {
    fn state(&self) -> FileState {
        state(&self.path, self.identity)
    }
}

impl OpenedFiles {
    /// Records the files of an open connection, which must have read something. `is_kept_open`: a connection keeps the
    /// WAL open, so SQLite does not delete it.
    pub fn record(path: &Path, is_kept_open: bool) -> Self {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        // SQLite creates WAL and WAL index beside the resolved file, not beside a link to it.
        let resolved = fs::canonicalize(&absolute).unwrap_or_else(|_| absolute.clone());
        let sidecar = |ending: &str| {
            let path = with_suffix(&resolved, ending);
            SidecarFile { identity: identity(&path).ok().filter(|_| is_kept_open), path }
        };
        OpenedFiles {
            path: path.to_path_buf(),
            file: identity(&absolute).ok(),
            wal: sidecar("-wal"),
            shm: sidecar("-shm"),
            absolute,
            resolved,
        }
    }

    /// Returns the path as the caller wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the path still leads to the opened database file. One system call.
    pub fn state(&self) -> FileState {
        state(&self.absolute, self.file)
    }

    /// Fails if another file, or none, has the name of the database file. One system call.
    pub fn check(&self) -> Result<()> {
        self.state().check(&self.path)
    }

    /// Fails if the database file, its WAL or its WAL index was deleted or replaced.
    pub fn check_all(&self) -> Result<()> {
        self.check()?;
        [&self.wal, &self.shm].iter().try_for_each(|sidecar| sidecar.state().check(&sidecar.path))
    }

    /// Keeps the WAL from being mixed with that of another database or process. Call it before the connection closes.
    pub fn before_close(&self, conn: &Connection) {
        // The resolved path is checked: a link that was retargeted does not affect the file.
        match state(&self.resolved, self.file) {
            // Acknowledged writes are kept in a file that was moved. No other database uses this WAL yet.
            FileState::Deleted => apply_wal(conn),
            FileState::Replaced => {}
            FileState::Unchanged => return self.preserve_foreign_wal(conn),
        }
        let is_unchanged = |file: &SidecarFile| file.identity.is_some() && file.state() == FileState::Unchanged;
        if is_unchanged(&self.wal) {
            let wal = &self.wal.path;
            let is_empty = fs::metadata(wal).is_ok_and(|found| found.len() == 0);
            let kept = with_suffix(wal, ".replaced");
            let moved = if is_empty { fs::remove_file(wal) } else { fs::rename(wal, &kept) };
            match moved {
                Ok(()) if is_empty => {}
                Ok(()) => tracing::warn!(log = %display_path(&kept), "kept the WAL of the old database"),
                Err(error) => tracing::error!(
                    %error,
                    log = %display_path(wal),
                    "cannot move the WAL of the old database; delete it before a new one is opened"
                ),
            }
        }
        if is_unchanged(&self.shm) {
            drop(fs::remove_file(&self.shm.path));
        }
    }

    /// Handles an unchanged file with a deleted or replaced WAL or WAL index. SQLite would apply its open WAL and
    /// delete the new one.
    fn preserve_foreign_wal(&self, conn: &Connection) {
        let (wal, shm) = (self.wal.state(), self.shm.state());
        if (wal, shm) == (FileState::Unchanged, FileState::Unchanged) {
            return;
        }
        if wal != FileState::Replaced && shm != FileState::Replaced {
            // No other process has opened the database since.
            apply_wal(conn);
        } else if wal == FileState::Replaced {
            tracing::error!(
                database = %display_path(&self.path),
                "another process has created a new WAL; transactions of the old one that were not checkpointed are lost"
            );
        }
        if let Err(error) = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
            tracing::error!(%error, "the WAL of another process may be deleted");
        }
    }
}

/// What has become of an opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// The path leads to the opened file, or that cannot be determined.
    Unchanged,
    /// The file was deleted or moved away.
    Deleted,
    /// The path leads to another file.
    Replaced,
}

impl FileState {
    fn check(self, path: &Path) -> Result<()> {
        match self {
            FileState::Unchanged => Ok(()),
            FileState::Deleted => Err(Error::Deleted(path.to_path_buf())),
            FileState::Replaced => Err(Error::Replaced(path.to_path_buf())),
        }
    }
}

/// Compares a path with the identity it had. Other errors are left to the next read or write.
fn state(path: &Path, opened: Option<Identity>) -> FileState {
    match identity(path) {
        _ if opened.is_none() => FileState::Unchanged,
        Err(ErrorKind::NotFound | ErrorKind::NotADirectory) => FileState::Deleted,
        Ok(found) if Some(found) != opened => FileState::Replaced,
        _ => FileState::Unchanged,
    }
}

fn apply_wal(conn: &Connection) {
    let apply = || {
        conn.busy_timeout(Duration::ZERO)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = apply() {
        tracing::warn!(%error, "cannot checkpoint the WAL of the old database");
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> std::result::Result<Identity, ErrorKind> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|found| (found.dev(), found.ino())).map_err(|error| error.kind())
}

/// Other systems do not allow that an open file is deleted or replaced.
#[cfg(not(unix))]
fn identity(_: &Path) -> std::result::Result<Identity, ErrorKind> {
    Err(ErrorKind::Unsupported)
}
