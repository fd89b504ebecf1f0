//! Errors of starting, running and stopping a runner.

use std::fmt;
use std::sync::Arc;

use gristmill_pool::error::BuildError;

/// An error of a runner.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// An operation on the store failed.
    Store(gristmill_store::Error),
    /// A pool could not be built.
    Pool(Arc<BuildError>),
    /// A setting is invalid. The text names it and what is expected.
    Setting(String),
    /// A thread of the runner could not be started, or panicked.
    Thread(String),
    /// This method was called in a handler of the same runner, where it would deadlock.
    CalledInHandler(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store(error) => error.fmt(f),
            Error::Pool(error) => error.fmt(f),
            Error::Setting(text) => f.write_str(text),
            Error::Thread(text) => f.write_str(text),
            Error::CalledInHandler(method) => {
                write!(f, "{method} was called in a handler of the same runner, where it would deadlock")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Store(error) => Some(error),
            Error::Pool(error) => Some(error.as_ref()),
            Error::Setting(_) | Error::Thread(_) | Error::CalledInHandler(_) => None,
        }
    }
}

impl From<gristmill_store::Error> for Error {
    fn from(error: gristmill_store::Error) -> Self {
        Error::Store(error)
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Error::Pool(Arc::new(error))
    }
}
