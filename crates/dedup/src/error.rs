//! Errors of scans and queries.

use gristmill_store::display_path;
use std::fmt;
use std::path::PathBuf;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a scan or query failed. An error that concerns one file or folder is stored with its row instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A root, or a folder to be registered, cannot be scanned.
    Root(PathBuf, String),
    /// The request is invalid. The text says what is wrong and what is allowed.
    Invalid(String),
    /// The store reported an error.
    Store(gristmill_store::Error),
    /// The operating system reported an error.
    System(String),
}

impl Error {
    /// Whether the user can fix the cause, as opposed to a failure of the system.
    pub fn is_user_error(&self) -> bool {
        match self {
            Error::Root(..) | Error::Invalid(_) => true,
            Error::Store(error) => error.is_user_error(),
            Error::System(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Root(path, reason) => write!(f, "{}: {reason}", display_path(path)),
            Error::Invalid(reason) | Error::System(reason) => f.write_str(reason),
            Error::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<gristmill_store::Error> for Error {
    fn from(error: gristmill_store::Error) -> Self {
        Error::Store(error)
    }
}
