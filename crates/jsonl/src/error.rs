//! Errors of imports, exports and sinks.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;

/// Result type of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation as a whole failed. A problem with one line or one file is reported in the summary instead.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// An option is invalid, or options contradict each other. The text names them and what to do instead.
    Options(String),
    /// The schema file is not valid TOML, or has settings that do not exist.
    Schema(PathBuf, Arc<toml::de::Error>),
    /// There is no file to load. The text says where files were looked for.
    NoInput(String),
    /// A file cannot be used for this purpose, such as a folder as a database. The text says why and what to do.
    Path(PathBuf, String),
    /// The folder of the database does not exist.
    NoFolder(PathBuf),
    /// A file with the name of the output exists and was not replaced. The text says why.
    Exists(PathBuf, &'static str),
    /// Another import writes to the database.
    ImportRunning(PathBuf),
    /// Another import writes to the file for rejects.
    RejectsInUse(PathBuf),
    /// A table of the database cannot be used as requested.
    Table {
        /// Name of the table.
        table: String,
        /// The whole message, with what to do instead.
        message: String,
    },
    /// JSON has no equivalent for a value of the exported table.
    Value {
        /// Name of the table.
        table: String,
        /// Name of the column.
        column: String,
        /// Number of the row, from 1.
        row: u64,
        /// Kind of the value.
        found: &'static str,
    },
    /// The system failed to read or write a file.
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The rows of an export could not be written.
    Output(Arc<io::Error>),
    /// Another program kept the database locked for longer than the busy timeout of 10 seconds.
    Busy(PathBuf),
    /// The database cannot be opened or written, or is not a database.
    Access(PathBuf, Arc<rusqlite::Error>),
    /// SQLite failed: a full disk, a damaged database.
    Database(PathBuf, Arc<rusqlite::Error>),
    /// SQLite failed in the temporary database that finds duplicate keys.
    KeyCheck(Arc<rusqlite::Error>),
    /// SQLite rolled back the transaction, so nothing of it was kept.
    RolledBack(PathBuf),
    /// The database file was deleted or moved while it was open. Nothing more is written to it.
    Deleted(PathBuf),
    /// The database file was replaced by another file while it was open. Nothing more is written to it.
    Replaced(PathBuf),
    /// A worker thread could not be started, or failed.
    Worker(Arc<dyn std::error::Error + Send + Sync>),
    /// The caller cancelled the operation.
    Cancelled,
}

impl Error {
    /// Whether the user can fix the cause, as opposed to a failure of the system.
    pub fn is_user_error(&self) -> bool {
        use Error::{
            Access, Busy, Exists, ImportRunning, NoFolder, NoInput, Options, Path, RejectsInUse, Schema, Table,
        };
        match self {
            Options(_) | Schema(..) | NoInput(_) | Path(..) | Exists(..) | ImportRunning(_) | RejectsInUse(_) => true,
            NoFolder(_) | Table { .. } | Error::Value { .. } | Busy(_) | Access(..) => true,
            Error::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::AlreadyExists
            ),
            _ => false,
        }
    }

    /// Whether a retry may succeed: the database may be unlocked or the disk may have room again.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Busy(_) => true,
            Error::Deleted(_) | Error::Replaced(_) | Error::Cancelled => false,
            other => !other.is_user_error(),
        }
    }

    pub(crate) fn path(path: &Path, problem: impl Into<String>) -> Self {
        Error::Path(path.to_owned(), problem.into())
    }

    pub(crate) fn table(table: &str, message: String) -> Self {
        Error::Table { table: table.to_owned(), message }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn sqlite(path: &Path, error: rusqlite::Error) -> Self {
        use ErrorCode as Code;
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(Code::OperationInterrupted) => Error::Cancelled,
            Some(Code::DatabaseBusy | Code::DatabaseLocked) => Error::Busy(path),
            Some(Code::NotADatabase | Code::ReadOnly | Code::PermissionDenied | Code::CannotOpen) => {
                Error::Access(path, Arc::new(error))
            }
            _ => Error::Database(path, Arc::new(error)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Options(text) | Error::NoInput(text) | Error::Table { message: text, .. } => f.write_str(text),
            Error::Schema(path, error) => {
                write!(f, "the schema {} is not valid: {}", path.display(), error.to_string().trim_end())
            }
            Error::Path(path, problem) => write!(f, "{} {problem}", path.display()),
            Error::NoFolder(path) => write!(f, "there is no folder {} for the database", path.display()),
            Error::Exists(path, problem) => write!(f, "{} {problem}", path.display()),
            Error::ImportRunning(path) => {
                write!(f, "another import into {} is running; try again when it is done", path.display())
            }
            Error::RejectsInUse(path) => {
                write!(f, "another import is writing its rejects to {}; name another file", path.display())
            }
            Error::Value { table, column, row, found } => {
                write!(f, "the table {table:?}: the column {column:?} of row {row} holds {found}, which JSON lacks")
            }
            Error::Io { action, path, source } => write!(f, "cannot {action} {}: {source}", path.display()),
            Error::Output(error) => write!(f, "cannot write the rows: {error}"),
            Error::Busy(path) => write!(
                f,
                "{}: another program kept it locked for more than 10 seconds; try again when it is done",
                path.display()
            ),
            Error::Access(path, error) | Error::Database(path, error) => {
                let path = path.display();
                match error.sqlite_error_code() {
                    Some(ErrorCode::NotADatabase) => write!(f, "{path} is not an SQLite database; name another file"),
                    Some(ErrorCode::CannotOpen) => write!(f, "{path} cannot be opened: {error}"),
                    Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                        write!(f, "{path} cannot be written: {error}")
                    }
                    Some(ErrorCode::DiskFull) => {
                        write!(f, "{path}: the disk is full; no incomplete data is left in it")
                    }
                    // For some calls SQLite reports a full disk as an I/O error.
                    Some(ErrorCode::SystemIoFailure) => {
                        write!(f, "{path}: the disk is full, or failed: {error}; no incomplete data is left in it")
                    }
                    _ => write!(f, "{path}: {error}"),
                }
            }
            Error::KeyCheck(error) => write!(f, "cannot check the keys: {error}"),
            Error::RolledBack(path) => {
                write!(f, "{}: SQLite rolled back the transaction; none of its rows were kept", path.display())
            }
            Error::Deleted(path) | Error::Replaced(path) => {
                let is_deleted = matches!(self, Error::Deleted(_));
                write!(
                    f,
                    "{} was {} while it was in use; nothing was written after this was detected. Restore the file \
                     and start again",
                    path.display(),
                    if is_deleted { "deleted or moved away" } else { "replaced by another file" }
                )
            }
            Error::Worker(error) => error.fmt(f),
            Error::Cancelled => f.write_str("cancelled before it was complete"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Schema(_, error) => Some(&**error),
            Error::Io { source, .. } | Error::Output(source) => Some(&**source),
            Error::Access(_, error) | Error::Database(_, error) | Error::KeyCheck(error) => Some(&**error),
            Error::Worker(error) => Some(&**error),
            _ => None,
        }
    }
}

/// A failure inside a database whose path the caller adds.
#[derive(Debug)]
pub(crate) enum Failure {
    Sqlite(rusqlite::Error),
    Other(Error),
}

impl Failure {
    pub(crate) fn at(self, path: &Path) -> Error {
        match self {
            Failure::Sqlite(error) => Error::sqlite(path, error),
            Failure::Other(error) => error,
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sqlite(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}

/// Whether a statement failed because it does not match the table, as opposed to a failure of the system.
pub(crate) fn is_table_mismatch(error: &rusqlite::Error) -> bool {
    // rusqlite returns the second variant for the same code if SQLite knows the position in the statement.
    error.sqlite_error_code() == Some(ErrorCode::Unknown) || matches!(error, rusqlite::Error::SqlInputError { .. })
}
