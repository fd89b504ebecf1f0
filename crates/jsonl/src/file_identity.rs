//! Notices that the database of an import or a sink was deleted, moved or replaced while it is open.
//!
//! Owns the identity of the file that was opened, and what is done with its log afterwards. SQLite continues with the old
//! file and reports no error, so rows that were reported as written would be in no file; and it leaves the log where the
//! new file would take it for its own.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::error::{Error, Result};

/// A file, whatever its name is.
type Identity = (u64, u64);

/// The database file that was opened.
#[derive(Clone, Debug)]
pub struct FileIdentity {
    path: PathBuf,
    identity: Option<Identity>,
    /// The write-ahead log and its index, if it has them. SQLite puts them beside the file itself, not beside a link to it.
    log: (PathBuf, Option<Identity>),
    index: (PathBuf, Option<Identity>),
}

impl FileIdentity {
    /// Records which files a connection works with. To be called once the connection has read something.
    pub(crate) fn of(path: &Path) -> Self {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let scratch = |ending: &str| {
            let path = with_ending(&real, ending);
            let identity = identity(&path).ok();
            (path, identity)
        };
        FileIdentity {
            path: path.to_owned(),
            identity: identity(path).ok(),
            log: scratch("-wal"),
            index: scratch("-shm"),
        }
    }

    /// Fails with [`Error::Replaced`] when the file is not under its name any more. One system call.
    pub fn check(&self) -> Result<()> {
        let what = match self.state() {
            State::InPlace => return Ok(()),
            State::Deleted => "deleted or moved away",
            State::Replaced => "replaced by another file",
        };
        Err(Error::Replaced(format!(
            "{} was {what} while it was in use; nothing was written after that was noticed. Put the right file in its \
             place and start again",
            self.path.display()
        )))
    }

    fn state(&self) -> State {
        match identity(&self.path) {
            _ if self.identity.is_none() => State::InPlace,
            Err(ErrorKind::NotFound | ErrorKind::NotADirectory) => State::Deleted,
            Ok(found) if Some(found) != self.identity => State::Replaced,
            // What else keeps it from being seen, the next write reports.
            _ => State::InPlace,
        }
    }

    /// Takes log and index of a file that is not under its name any more out of the way. To be called before the connection
    /// is closed.
    pub(crate) fn before_close(&self, conn: &Connection) {
        match self.state() {
            State::InPlace => return,
            // What was committed stays in a file that was moved away. No other database shares the log yet.
            State::Deleted => apply_log(conn),
            State::Replaced => {}
        }
        let is_ours = |(path, expected): &(PathBuf, Option<Identity>)| {
            expected.is_some() && identity(path).ok() == *expected
        };
        let log = &self.log.0;
        if is_ours(&self.log) {
            let is_empty = fs::metadata(log).is_ok_and(|found| found.len() == 0);
            let kept = with_ending(log, ".replaced");
            let moved = if is_empty { fs::remove_file(log) } else { fs::rename(log, &kept) };
            match moved {
                Ok(()) if is_empty => {}
                Ok(()) => tracing::warn!(log = %kept.display(), "the log of the old database is kept"),
                Err(error) => tracing::error!(
                    %error,
                    log = %log.display(),
                    "the log of the old database cannot be moved; delete it before a new one is opened"
                ),
            }
        }
        if is_ours(&self.index) {
            drop(fs::remove_file(&self.index.0));
        }
    }
}

enum State {
    InPlace,
    Deleted,
    Replaced,
}

fn apply_log(conn: &Connection) {
    let apply = || {
        conn.busy_timeout(Duration::ZERO)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = apply() {
        tracing::warn!(%error, "the log of the old database could not be applied to it");
    }
}

/// A path with something behind its last name.
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
