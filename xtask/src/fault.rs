//! Why a chore could not be done, and whose turn it is.
//!
//! Owns the exit codes. A failing test is not a fault: it is a step's outcome, see `step`.

use std::fmt;

/// What stopped a chore. The text says what, where, and what would be right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The person at the keyboard can put it right: a wrong argument, a missing variable.
    User(String),
    /// The machine failed us: a program could not be started, a download broke off.
    System(String),
}

impl Fault {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Fault::User(_) => 1,
            Fault::System(_) => 2,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::User(text) | Fault::System(text) => f.write_str(text),
        }
    }
}
