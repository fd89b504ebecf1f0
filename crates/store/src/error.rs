//! Errors of the store, worded for the user who has to act on them.
//!
//! Owns the translation of SQLite's errors, which are not exposed outside this crate.

use crate::paths::display_path;
use std::fmt;
use std::path::PathBuf;

/// Result of the store's methods.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a SQLite database.
    NotADatabase(PathBuf),
    /// The file is a SQLite database of another program.
    Foreign(PathBuf),
    /// The file was written by a newer version.
    Newer {
        /// Path of the database file.
        path: PathBuf,
        /// Version of the unknown migration.
        version: i64,
    },
    /// The SQLite library is older than 3.51.3, which can corrupt a database in WAL mode.
    OldLibrary(String),
    /// The file is damaged, or its disk cannot be read.
    Corrupt(PathBuf, String),
    /// The file, or its folder, cannot be opened.
    CannotOpen(PathBuf, String),
    /// The file, or its folder, cannot be written.
    ReadOnly(PathBuf),
    /// The disk that holds the file is full.
    Full(PathBuf),
    /// Another process held the write lock longer than the busy timeout.
    Busy(PathBuf),
    /// Reading or writing the file failed.
    Io(PathBuf, String),
    /// The file was deleted or moved while it was open. Nothing more is written.
    Deleted(PathBuf),
    /// The file was replaced while it was open. Nothing more is written.
    Replaced(PathBuf),
    /// The requested row does not exist.
    NotFound(String),
    /// The row is not in a state that allows the operation, or another worker owns it.
    Conflict(String),
    /// The queue has reached its capacity.
    QueueFull(String),
    /// An argument is invalid. The text names it and the expected values.
    Invalid(String),
    /// A row contains a value that the protocol does not allow. The text names the column and the expected values.
    Malformed(String),
    /// The store was closed.
    Closed,
    /// A bug in the store.
    Internal(String),
}

impl Error {
    /// Returns whether the user can fix the cause, as opposed to a failure of the system.
    pub fn is_user_error(&self) -> bool {
        use Error::{
            CannotOpen, Conflict, Foreign, Invalid, Malformed, Newer, NotADatabase, NotFound, QueueFull, ReadOnly,
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

    /// Returns whether the same call can succeed later without a change by the user.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Full(_) | Error::Busy(_) | Error::Io(..))
    }

    pub(crate) fn not_found(what: &str, id: impl fmt::Display) -> Self {
        Error::NotFound(format!("there is no {what} {id}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotADatabase(path) => write!(
                f,
                "{} is not a database: expected a SQLite file that Gristmill created, or no file",
                display_path(path)
            ),
            Error::Foreign(path) => write!(
                f,
                "{} is a SQLite database of another program; it was not changed. Choose a file that Gristmill created, \
                 or one that does not exist yet",
                display_path(path)
            ),
            Error::Newer { path, version } => write!(
                f,
                "{} was written by a newer version (unknown migration {version}); it was not changed. Use that version, \
                 or another file",
                display_path(path)
            ),
            Error::OldLibrary(found) => write!(
                f,
                "SQLite {found} is too old: before 3.51.3 the database can be corrupted in WAL mode. Build with the \
                 bundled library, or a newer one"
            ),
            Error::Corrupt(path, detail) => write!(
                f,
                "{} is damaged, or its disk cannot be read: {detail}. Run `gristmill doctor` to see the damage, and \
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
                    "cannot write {}: the file or its folder is read-only. To change it, copy it into a writable folder",
                    display_path(path)
                )
            }
            Error::Full(path) => write!(
                f,
                "the disk of {} is full; no acknowledged write is lost. Free disk space and continue",
                display_path(path)
            ),
            Error::Busy(path) => write!(
                f,
                "{} is busy: another process held the write lock too long. Try again, or stop that process",
                display_path(path)
            ),
            Error::Io(path, detail) => {
                write!(f, "cannot read or write {}: {detail}", display_path(path))
            }
            Error::Deleted(path) => write!(
                f,
                "{} was deleted or moved away while it was in use; nothing more is written. Restore it, or let Gristmill \
                 create a new one, and start again",
                display_path(path)
            ),
            Error::Replaced(path) => write!(
                f,
                "{} was replaced by another file while it was in use; nothing more is written. Stop every program that \
                 uses a database before it is replaced; then start again",
                display_path(path)
            ),
            Error::NotFound(text) | Error::Conflict(text) | Error::QueueFull(text) | Error::Invalid(text) => {
                f.write_str(text)
            }
            Error::Malformed(detail) => {
                write!(f, "a row has an invalid value: {detail}. Another program wrote it; correct or delete the row")
            }
            Error::Closed => f.write_str("the store is closed"),
            Error::Internal(detail) => write!(f, "internal error of the store: {detail}"),
        }
    }
}

impl std::error::Error for Error {}
