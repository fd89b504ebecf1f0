//! Why a run ended early, and whose turn it is.
//!
//! Owns the exit codes and how an error reaches the terminal.

use std::io::{self, Write};

/// What stopped the run.
#[derive(Debug)]
pub(crate) enum Error {
    /// The command line was not understood; clap knows where and what would be right.
    Usage(clap::Error),
    /// A setting is wrong. The text names it, its value and what is legal.
    Setting(String),
    /// Standard output could not be written.
    Output(io::Error),
}

impl Error {
    /// 1 the user can put it right, 2 the system failed. An interrupt ends the process itself, which shells
    /// show as 130.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Setting(_) => 1,
            Error::Output(_) => 2,
        }
    }

    /// Tells the user, on standard error. That it cannot be told is no reason for another exit code.
    pub(crate) fn report(&self) {
        let told = match self {
            Error::Usage(error) => error.print(),
            Error::Setting(text) => writeln!(io::stderr(), "error: {text}"),
            Error::Output(error) => writeln!(io::stderr(), "error: cannot write to standard output: {error}"),
        };
        drop(told);
    }
}
