//! What can go wrong with a store, in words for the person who has to do something about it.
//!
//! Owns the translation of the database's errors. Nobody outside this crate sees them.

use crate::paths::display_path;
use std::fmt;
use std::path::{Path, PathBuf};

/// What a store's methods return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a SQLite database.
    NotADatabase(PathBuf),
    /// It is a database, and somebody else's.
    Foreign(PathBuf),
    /// The file was written by a newer version.
    Newer {
        /// The file.
        path: PathBuf,
        /// The migration we do not know.
        version: i64,
    },
    /// The library is too old to be trusted with a write-ahead log.
    OldLibrary(String),
    /// The file is damaged.
    Corrupt(PathBuf, String),
    /// The file, or its folder, cannot be opened.
    CannotOpen(PathBuf, String),
    /// The file, or its folder, cannot be written.
    ReadOnly(PathBuf),
    /// The disk is full.
    Full(PathBuf),
    /// Another process held the database for longer than we wait.
    Busy(PathBuf),
    /// The system failed to read or write.
    Io(PathBuf, String),
    /// The file was deleted or moved away while it was open. Nothing is written any more.
    Deleted(PathBuf),
    /// Another file took its place while it was open. Nothing is written any more.
    Replaced(PathBuf),
    /// There is no such row.
    NotFound(String),
    /// The row is not in a state that allows this, or is somebody else's now.
    Conflict(String),
    /// The queue has no room.
    QueueFull(String),
    /// A value is not legal. Says which, and what is.
    Invalid(String),
    /// A row holds what the protocol does not allow. Says which column, and what is legal.
    Malformed(String),
    /// The store was closed.
    Closed,
    /// A fault of ours.
    Internal(String),
}

impl Error {
    /// Whether the person who runs the program can put it right, rather than the system having failed.
    pub fn is_user_error(&self) -> bool {
        use Error::{
            CannotOpen, Conflict, Foreign, Invalid, Malformed, Newer, NotADatabase, NotFound, QueueFull,
            ReadOnly,
        };
        matches!(
            self,
            NotADatabase(_)
                | Foreign(_)
                | Newer { .. }
                | CannotOpen(..)
                | ReadOnly(_)
                | NotFound(_)
                | Conflict(_)
                | QueueFull(_)
                | Invalid(_)
                | Malformed(_)
        )
    }

    /// Whether the trouble may pass by itself: the same call can succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Full(_) | Error::Busy(_) | Error::Io(..))
    }

    /// Whether a transaction that met this cannot be trusted any further.
    pub(crate) fn breaks_transaction(&self) -> bool {
        matches!(
            self,
            Error::Full(_)
                | Error::Busy(_)
                | Error::Io(..)
                | Error::Corrupt(..)
                | Error::ReadOnly(_)
                | Error::Internal(_)
        )
    }

    pub(crate) fn not_found(what: &str, id: impl fmt::Display) -> Self {
        Error::NotFound(format!("there is no {what} {id}"))
    }

    /// What the database said, about the file at `path`.
    pub(crate) fn sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        let path = path.to_path_buf();
        let detail = error.to_string();
        let (code, extended) = match error {
            rusqlite::Error::SqliteFailure(failure, _) => (failure.code, failure.extended_code),
            rusqlite::Error::SqlInputError { error, .. } => (error.code, error.extended_code),
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..) => return Error::Malformed(detail),
            rusqlite::Error::QueryReturnedNoRows => {
                return Error::NotFound("there is no such row".to_owned());
            }
            _ => return Error::Internal(detail),
        };
        match code {
            // The log's shared memory finds no room either.
            Code::SystemIoFailure if extended == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => Error::Full(path),
            Code::NotADatabase => Error::NotADatabase(path),
            Code::DatabaseCorrupt => Error::Corrupt(path, detail),
            Code::CannotOpen | Code::PermissionDenied => Error::CannotOpen(path, detail),
            Code::ReadOnly => Error::ReadOnly(path),
            Code::DiskFull => Error::Full(path),
            Code::DatabaseBusy | Code::DatabaseLocked => Error::Busy(path),
            Code::SystemIoFailure | Code::FileLockingProtocolFailed | Code::NoLargeFileSupport => {
                Error::Io(path, detail)
            }
            Code::TooBig => Error::Invalid(format!("a value is too large for the database: {detail}")),
            Code::ConstraintViolation => Error::Conflict(format!("the database refused it: {detail}")),
            _ => Error::Internal(detail),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotADatabase(path) => write!(
                f,
                "{} is not a database: expected a SQLite file that Gristmill made, or no file at all",
                display_path(path)
            ),
            Error::Foreign(path) => write!(
                f,
                "{} is a SQLite database of another program; nothing in it was changed. Name a file that \
                 Gristmill made, or one that does not exist yet",
                display_path(path)
            ),
            Error::Newer { path, version } => write!(
                f,
                "{} was written by a newer version (its migration {version} is not known here); nothing in \
                 it was changed. Use that version, or another file",
                display_path(path)
            ),
            Error::OldLibrary(found) => write!(
                f,
                "SQLite {found} is too old: before 3.51.3 a write-ahead log can corrupt the database. Build \
                 with the bundled library, or a newer one"
            ),
            Error::Corrupt(path, detail) => write!(
                f,
                "{} is damaged, or its disk cannot be read: {detail}. `gristmill doctor` says how much, and \
                 whether to scan again or to restore a backup",
                display_path(path)
            ),
            Error::CannotOpen(path, detail) => write!(
                f,
                "cannot open {}: {detail}. The folder must exist and be writable, and the path must not be a folder",
                display_path(path)
            ),
            Error::ReadOnly(path) => {
                write!(
                    f,
                    "cannot write {}: the file or its folder is read-only. It can be read; to change it, copy it into \
                     a folder that can be written",
                    display_path(path)
                )
            }
            Error::Full(path) => write!(
                f,
                "the disk that holds {} is full; nothing that was acknowledged is lost. Make room and go on",
                display_path(path)
            ),
            Error::Busy(path) => write!(
                f,
                "{} is busy: another process held its write lock for too long. Try again, or see what it does",
                display_path(path)
            ),
            Error::Io(path, detail) => {
                write!(f, "reading or writing {} failed: {detail}", display_path(path))
            }
            Error::Deleted(path) => write!(
                f,
                "{} was deleted or moved away while it was in use; nothing was written after that was noticed. Put it \
                 back, or let a new one be made, and start again",
                display_path(path)
            ),
            Error::Replaced(path) => write!(
                f,
                "{} was replaced by another file while it was in use; nothing was written after that was noticed. Stop \
                 every program that uses a database before it is replaced; then start again",
                display_path(path)
            ),
            Error::NotFound(text) | Error::Conflict(text) | Error::QueueFull(text) | Error::Invalid(text) => {
                f.write_str(text)
            }
            Error::Malformed(detail) => {
                write!(
                    f,
                    "a row holds what is not legal there: {detail}. Somebody else wrote it; put it right, or delete it"
                )
            }
            Error::Closed => f.write_str("the store is closed"),
            Error::Internal(detail) => write!(f, "a fault inside the store: {detail}"),
        }
    }
}

impl std::error::Error for Error {}
