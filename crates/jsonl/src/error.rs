//! What can keep an import, or a sink, from doing what it is asked for.

use std::fmt;
use std::io;
use std::path::Path;

use rusqlite::ErrorCode;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done. What concerns one line or one file is no error: it is in the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for cannot be done so. Says what, and what would be right.
    Invalid(String),
    /// Another program kept the database to itself for longer than we wait.
    Busy(String),
    /// The system failed: a full disk, a damaged database.
    System(String),
    /// The database was deleted, moved or replaced while it was open. Nothing is written any more.
    Replaced(String),
    /// It was told to stop.
    Cancelled,
}

impl Error {
    /// Whether the person who runs the program can put it right, rather than the system having failed.
    pub fn is_user_error(&self) -> bool {
        matches!(self, Error::Invalid(_) | Error::Busy(_))
    }

    /// Whether the same may succeed later: another program is done with the database, the disk has room again.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Busy(_) | Error::System(_))
    }

    pub(crate) fn io(doing: &str, path: &Path, error: &io::Error) -> Self {
        let text = format!("cannot {doing} {}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists => Error::Invalid(text),
            _ => Error::System(text),
        }
    }

    /// What the database says.
    pub(crate) fn sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.display();
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Error::Cancelled,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy(format!(
                "{path}: another program kept it locked for more than 10 seconds; try again when it is done"
            )),
            Some(ErrorCode::NotADatabase) => {
                Error::Invalid(format!("{path} is not an SQLite database; name another file"))
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                Error::Invalid(format!("{path} cannot be written: {error}"))
            }
            Some(ErrorCode::CannotOpen) => Error::Invalid(format!("{path} cannot be opened: {error}")),
            Some(ErrorCode::DiskFull) => {
                Error::System(format!("{path}: the disk is full; nothing half-done was left in it"))
            }
            // Of some calls SQLite does not know that the disk is full; of none whether it is broken.
            Some(ErrorCode::SystemIoFailure) => Error::System(format!(
                "{path}: the disk is full, or failed: {error}; nothing half-done was left in it"
            )),
            _ => Error::System(format!("{path}: {error}")),
        }
    }
}

/// Whether a statement does not go with the table that it is for, rather than the system having failed.
pub(crate) fn is_table_mismatch(error: &rusqlite::Error) -> bool {
    // The second is the same code, of a statement in which SQLite knows the place.
    error.sqlite_error_code() == Some(ErrorCode::Unknown)
        || matches!(error, rusqlite::Error::SqlInputError { .. })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(text) | Error::Busy(text) | Error::System(text) | Error::Replaced(text) => {
                f.write_str(text)
            }
            Error::Cancelled => f.write_str("stopped before it was done"),
        }
    }
}

impl std::error::Error for Error {}
