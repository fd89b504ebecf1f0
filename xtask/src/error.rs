//! Errors of a command and their exit codes.
//!
//! A failing test is not an error but the outcome of a step, see `step`.

use std::fmt;

/// An error that stopped a command. The text names the operation, its object, and what is expected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// A user error, such as a wrong argument or a missing variable.
    User(String),
    /// An error of the system: a program could not be started, or a download failed.
    System(String),
}

impl Error {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::User(_) => 1,
            Error::System(_) => 2,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::User(text) | Error::System(text) => f.write_str(text),
        }
    }
}
