//! Detects that the database of an import or a sink was deleted, moved or replaced while it is open.

use std::path::Path;

use gristmill_store::sqlite::{FileState, OpenedFiles};
use rusqlite::Connection;

use crate::error::{Error, Result};

/// Identity of an open database file; detects that its path leads to another file or to none.
#[derive(Clone, Debug)]
pub struct FileIdentity(OpenedFiles);

impl FileIdentity {
    /// Records the files that a connection uses. Call it after the first read of the connection.
    pub(crate) fn of(path: &Path) -> Self {
        FileIdentity(OpenedFiles::record(path, true))
    }

    /// Fails with [`Error::Deleted`] or [`Error::Replaced`] if the path no longer leads to the opened file. Makes one
    /// system call.
    pub fn check(&self) -> Result<()> {
        match self.0.state() {
            FileState::Unchanged => Ok(()),
            FileState::Deleted => Err(Error::Deleted(self.0.path().to_owned())),
            FileState::Replaced => Err(Error::Replaced(self.0.path().to_owned())),
        }
    }

    /// Moves the WAL away if the path no longer leads to the opened file. Call it before the connection is closed.
    pub(crate) fn before_close(&self, conn: &Connection) {
        self.0.before_close(conn);
    }
}
