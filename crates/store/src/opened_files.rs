//! Notices that the database file, its log or its index was deleted, moved or replaced while it is open.
//!
//! Owns the identity of the files that were opened, and what is done with the log afterwards. SQLite continues with the old
//! inode in silence, and finds log and index by name: it would mix the logs of two databases. So nothing is written any
//! more, and a log that belongs to the old file is not left where the new one would take it for its own. Likewise, two
//! processes with two logs or two indexes of one database overwrite each other's transactions.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::error::{Error, Result};
use crate::paths::{display_path, with_suffix};

/// A file, whatever its name is.
type Identity = (u64, u64);

/// The file that was opened.
#[derive(Debug)]
pub(crate) struct OpenedFiles {
    /// As the user named it, for messages.
    path: PathBuf,
    /// Independent of the working folder.
    absolute: PathBuf,
    /// The file itself, if the path is a link.
    resolved: PathBuf,
    file: Option<Identity>,
    /// Beside the file itself, if the path is a link.
    wal: SidecarFile,
    shm: SidecarFile,
}

/// A file beside the database.
#[derive(Debug)]
struct SidecarFile {
    path: PathBuf,
    identity: Option<Identity>,
}

impl SidecarFile {
    fn state(&self) -> State {
        state(&self.path, self.identity)
    }
}

impl OpenedFiles {
    /// Records which files a connection works with. To be called once it has read something. `is_kept_open`: a
    /// connection to the log stays open, so SQLite does not delete it.
    pub(crate) fn of(path: &Path, is_kept_open: bool) -> Self {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        // SQLite puts log and index beside the file itself, not beside a link to it.
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

    /// Fails when the file is not under its name any more. One system call.
    pub(crate) fn check(&self) -> Result<()> {
        match state(&self.absolute, self.file) {
            State::Deleted => Err(Error::Deleted(self.path.clone())),
            State::Replaced => Err(Error::Replaced(self.path.clone())),
            State::Unchanged => Ok(()),
        }
    }

    /// Fails when the file, its log or its index is not under its name any more.
    pub(crate) fn check_all(&self) -> Result<()> {
        self.check()?;
        for sidecar in [&self.wal, &self.shm] {
            match sidecar.state() {
                State::Deleted => return Err(Error::Deleted(sidecar.path.clone())),
                State::Replaced => return Err(Error::Replaced(sidecar.path.clone())),
                State::Unchanged => {}
            }
        }
        Ok(())
    }

    /// Keeps a log from being mixed with one of another database or of another process. Called before the connection that
    /// writes is closed.
    pub(crate) fn before_close(&self, conn: &Connection) {
        // A link that leads elsewhere now says nothing about the file itself.
        match state(&self.resolved, self.file) {
            // What was acknowledged stays in a file that was moved away. No other database shares the log yet.
            State::Deleted => apply_wal(conn),
            State::Replaced => {}
            State::Unchanged => return self.preserve_foreign_wal(conn),
        }
        let is_unchanged = |file: &SidecarFile| file.identity.is_some() && file.state() == State::Unchanged;
        if is_unchanged(&self.wal) {
            let log = &self.wal.path;
            let is_empty = fs::metadata(log).is_ok_and(|found| found.len() == 0);
            let kept = with_suffix(log, ".replaced");
            let moved = if is_empty { fs::remove_file(log) } else { fs::rename(log, &kept) };
            match moved {
                Ok(()) if is_empty => {}
                Ok(()) => tracing::warn!(log = %display_path(&kept), "the log of the old database is kept"),
                Err(error) => tracing::error!(
                    %error,
                    log = %display_path(log),
                    "the log of the old database cannot be moved; delete it before a new one is opened"
                ),
            }
        }
        if is_unchanged(&self.shm) {
            drop(fs::remove_file(&self.shm.path));
        }
    }

    /// The file is the original one, but log or index may not be. SQLite would apply the log that it has open, and delete
    /// the one with its name.
    fn preserve_foreign_wal(&self, conn: &Connection) {
        let (log, index) = (self.wal.state(), self.shm.state());
        if (log, index) == (State::Unchanged, State::Unchanged) {
            return;
        }
        if log != State::Replaced && index != State::Replaced {
            // No other process has opened the database since.
            apply_wal(conn);
        } else if log == State::Replaced {
            tracing::error!(
                database = %display_path(&self.path),
                "another process has made a new log; transactions of the old one that were not applied to the database \
                 are lost"
            );
        }
        if let Err(error) = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
            tracing::error!(%error, "the log of another process may be deleted");
        }
    }
}

/// What a name refers to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unchanged,
    Deleted,
    Replaced,
}

/// Whether a path still refers to the file that it referred to. What else keeps it from being seen, the next read or write
/// reports.
fn state(path: &Path, opened: Option<Identity>) -> State {
    match identity(path) {
        _ if opened.is_none() => State::Unchanged,
        Err(ErrorKind::NotFound | ErrorKind::NotADirectory) => State::Deleted,
        Ok(found) if Some(found) != opened => State::Replaced,
        _ => State::Unchanged,
    }
}

fn apply_wal(conn: &Connection) {
    let apply = || {
        conn.busy_timeout(Duration::ZERO)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = apply() {
        tracing::warn!(%error, "the log of the old database could not be applied to it");
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> std::result::Result<Identity, ErrorKind> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|found| (found.dev(), found.ino())).map_err(|error| error.kind())
}

/// Other systems do not let an open file be deleted or replaced.
#[cfg(not(unix))]
fn identity(_: &Path) -> std::result::Result<Identity, ErrorKind> {
    Err(ErrorKind::Unsupported)
}
