//! Errors of imports, exports and sinks.

use std::fmt;
use std::io;
use std::path::Path;

use rusqlite::ErrorCode;

/// Result type of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation as a whole failed. A problem with one line or one file is reported in the summary instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid. The text says what is wrong and what to do instead.
    Invalid(String),
    /// Another program kept the database locked for longer than the busy timeout of 10 seconds.
    Busy(String),
    /// The system failed: a full disk, a damaged database.
    System(String),
    /// The database file was deleted, moved or replaced while it was open. Nothing more is written to it.
    Replaced(String),
    /// The caller cancelled the operation.
    Cancelled,
}

impl Error {
    /// Whether the user can fix the cause, as opposed to a failure of the system.
    pub fn is_user_error(&self) -> bool {
        matches!(self, Error::Invalid(_) | Error::Busy(_))
    }

    /// Whether a retry may succeed: the database may be unlocked or the disk may have room again.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Busy(_) | Error::System(_))
    }

    pub(crate) fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        let text = format!("cannot {action} {}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists => Error::Invalid(text),
            _ => Error::System(text),
        }
    }

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
                Error::System(format!("{path}: the disk is full; no incomplete data is left in it"))
            }
            // For some calls SQLite reports a full disk as an I/O error.
            Some(ErrorCode::SystemIoFailure) => {
                Error::System(format!("{path}: the disk is full, or failed: {error}; no incomplete data is left in it"))
            }
            _ => Error::System(format!("{path}: {error}")),
        }
    }
}

/// Whether a statement failed because it does not match the table, as opposed to a failure of the system.
pub(crate) fn is_table_mismatch(error: &rusqlite::Error) -> bool {
    // rusqlite returns the second variant for the same code if SQLite knows the position in the statement.
    error.sqlite_error_code() == Some(ErrorCode::Unknown) || matches!(error, rusqlite::Error::SqlInputError { .. })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(text) | Error::Busy(text) | Error::System(text) | Error::Replaced(text) => f.write_str(text),
            Error::Cancelled => f.write_str("cancelled before it was complete"),
        }
    }
}

impl std::error::Error for Error {}
