//! What can keep a scan, or an answer, from being given.

use gristmill_store::display_path;
use std::fmt;
use std::path::PathBuf;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done. What concerns one file or folder is no error: it is kept with its row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A root, or what was to become one, cannot be scanned.
    Root(PathBuf, String),
    /// What was asked for makes no sense. Says what, and what would.
    Invalid(String),
    /// The store failed.
    Store(gristmill_store::Error),
    /// The system failed.
    System(String),
}

impl Error {
    /// Whether the person who runs the program can put it right, rather than the system having failed.
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
            Error::Root(path, why) => write!(f, "{}: {why}", display_path(path)),
            Error::Invalid(why) | Error::System(why) => f.write_str(why),
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
