//! Detects that the database of an import or a sink was deleted, moved or replaced while it is open.
//!
//! Owns the identity of the opened file, and moves its write-ahead log away afterwards. SQLite continues to write to
//! the old file and reports no error, so rows that were reported as written would be lost. It also leaves the log where
//! SQLite would apply it to the new file.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::error::{Error, Result};

/// Device and inode of a file.
type Identity = (u64, u64);

/// Identity of an open database file; detects that its path leads to another file or to none.
#[derive(Clone, Debug)]
pub struct FileIdentity {
    path: PathBuf,
    identity: Option<Identity>,
    /// The write-ahead log and its index, if any. SQLite creates them next to the file, not next to a link to it.
    log: (PathBuf, Option<Identity>),
    index: (PathBuf, Option<Identity>),
}

impl FileIdentity {
    /// Records the files that a connection uses. Call it after the first read of the connection.
    pub(crate) fn of(path: &Path) -> Self {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let sibling = |ending: &str| {
            let path = with_ending(&real, ending);
            let identity = identity(&path).ok();
            (path, identity)
        };
        FileIdentity {
            path: path.to_owned(),
            identity: identity(path).ok(),
            log: sibling("-wal"),
            index: sibling("-shm"),
        }
    }

    /// Fails with [`Error::Deleted`] or [`Error::Replaced`] if the path no longer leads to the opened file. Makes one
    /// system call.
    pub fn check(&self) -> Result<()> {
        match self.state() {
            State::InPlace => Ok(()),
            State::Deleted => Err(Error::Deleted(self.path.clone())),
            State::Replaced => Err(Error::Replaced(self.path.clone())),
        }
    }

    fn state(&self) -> State {
        match identity(&self.path) {
            _ if self.identity.is_none() => State::InPlace,
            Err(ErrorKind::NotFound | ErrorKind::NotADirectory) => State::Deleted,
            Ok(found) if Some(found) != self.identity => State::Replaced,
            // Other errors are reported by the next write.
            _ => State::InPlace,
        }
    }

    /// Moves the log and the index away if the path no longer leads to the opened file. Call it before the connection
    /// is closed.
    pub(crate) fn before_close(&self, conn: &Connection) {
        match self.state() {
            State::InPlace => return,
            // A file that was moved away keeps its commits. No other database uses the log yet.
            State::Deleted => checkpoint(conn),
            State::Replaced => {}
        }
        let is_own =
            |(path, expected): &(PathBuf, Option<Identity>)| expected.is_some() && identity(path).ok() == *expected;
        let log = &self.log.0;
        if is_own(&self.log) {
            let is_empty = fs::metadata(log).is_ok_and(|found| found.len() == 0);
            let kept = with_ending(log, ".replaced");
            let moved = if is_empty { fs::remove_file(log) } else { fs::rename(log, &kept) };
            match moved {
                Ok(()) if is_empty => {}
                Ok(()) => tracing::warn!(log = %kept.display(), "the old database's WAL was kept"),
                Err(error) => tracing::error!(
                    %error,
                    log = %log.display(),
                    "cannot move the WAL of the old database; delete it before a new database is opened"
                ),
            }
        }
        if is_own(&self.index) {
            drop(fs::remove_file(&self.index.0));
        }
    }
}

enum State {
    InPlace,
    Deleted,
    Replaced,
}

fn checkpoint(conn: &Connection) {
    let run = || {
        conn.busy_timeout(Duration::ZERO)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = run() {
        tracing::warn!(%error, "cannot checkpoint the WAL of the old database");
    }
}

/// Returns the path with `ending` appended to its last component.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
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
