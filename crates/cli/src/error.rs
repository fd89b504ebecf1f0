//! Why a run ended early, and whose turn it is.
//!
//! Owns the exit codes and how an error reaches the terminal.

use std::io::{self, Write};
use std::path::Path;

use crate::hints::Hints;
use crate::output::{path, sanitize_lines};

/// How a run ended that was not stopped by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is done.
    Done,
    /// Something is left for the user: an item that was refused, a finding. It has been told.
    UserError,
    /// The system failed at some of it, or is damaged. It has been told.
    Failed,
    /// Another program kept a database locked for too long; the same may succeed later.
    Busy,
    /// Interrupted, with all state saved.
    Interrupted,
}

impl Outcome {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::UserError => 1,
            Outcome::Failed => 2,
            Outcome::Busy => 3,
            Outcome::Interrupted => 130,
        }
    }

    /// Of two parts of a run, the worse one.
    pub(crate) fn and(self, other: Outcome) -> Outcome {
        if other.exit_code() > self.exit_code() { other } else { self }
    }
}

/// What stopped the run.
#[derive(Debug)]
pub(crate) enum Error {
    /// The command line was not understood; clap knows where and what would be right.
    Usage(clap::Error),
    /// A setting or an argument is wrong. The text names it, its value and what is legal.
    Setting(String),
    /// The store could not do it, or would not.
    Store(gristmill_store::Error),
    /// The system failed.
    System(String),
    /// Another program kept a database locked for too long.
    Busy(String),
    /// Standard output could not be written.
    Output(io::Error),
}

impl Error {
    /// 1 the user can put it right, 2 the system failed.
    pub(crate) fn exit_code(&self) -> u8 {
        self.outcome().exit_code()
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Error::Usage(_) | Error::Setting(_) => Outcome::UserError,
            Error::Store(error) if error.is_user_error() => Outcome::UserError,
            Error::Store(_) | Error::System(_) | Error::Output(_) => Outcome::Failed,
            Error::Busy(_) => Outcome::Busy,
        }
    }

    /// With the commands that the message suggests completed.
    pub(crate) fn complete_commands(self, hints: &Hints) -> Error {
        match self {
            Error::Setting(text) => Error::Setting(hints.complete_commands(&text)),
            Error::System(text) => Error::System(hints.complete_commands(&text)),
            Error::Busy(text) => Error::Busy(hints.complete_commands(&text)),
            Error::Store(gristmill_store::Error::Corrupt(file, detail)) => {
                let advice = gristmill_store::damage::advice(&file);
                let file = path(&file);
                let text =
                    format!("{file} is damaged, or its disk cannot be read: {detail}. What to do: {advice}");
                Error::System(hints.complete_commands(&text))
            }
            Error::Store(error) if error.is_user_error() => {
                Error::Setting(hints.complete_commands(&error.to_string()))
            }
            Error::Store(error) => Error::System(hints.complete_commands(&error.to_string())),
            other => other,
        }
    }

    /// A file could not be written. A full or broken disk is the system's failure; what is wrong with the path is the
    /// user's to put right: `next` says how.
    pub(crate) fn cannot_write(file: &Path, error: &io::Error, next: &str) -> Error {
        use io::ErrorKind as Kind;
        let text = format!("cannot write {}: {error}", path(file));
        match error.kind() {
            Kind::NotFound
            | Kind::PermissionDenied
            | Kind::AlreadyExists
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::ReadOnlyFilesystem
            | Kind::InvalidFilename
            | Kind::InvalidInput => Error::Setting(format!("{text}; {next}")),
            Kind::StorageFull | Kind::QuotaExceeded => {
                Error::System(format!("{text}. Nothing was written; make room and try again"))
            }
            _ => Error::System(format!("{text}. Nothing was written")),
        }
    }

    /// Tells the user, on standard error. That it cannot be told is no reason for another exit code.
    pub(crate) fn report(&self) {
        let told = match self {
            Error::Usage(error) => error.print(),
            // A path in it may be a stranger's.
            other => writeln!(io::stderr(), "error: {}", sanitize_lines(&other.to_string())),
        };
        drop(told);
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Usage(error) => error.fmt(f),
            Error::Setting(text) | Error::System(text) | Error::Busy(text) => f.write_str(text),
            Error::Store(error) => error.fmt(f),
            Error::Output(error) => write!(f, "cannot write to standard output: {error}"),
        }
    }
}

impl From<gristmill_store::Error> for Error {
    fn from(error: gristmill_store::Error) -> Self {
        Error::Store(error)
    }
}

impl From<gristmill_dedup::Error> for Error {
    fn from(error: gristmill_dedup::Error) -> Self {
        match error {
            gristmill_dedup::Error::Store(error) => Error::Store(error),
            error if error.is_user_error() => Error::Setting(error.to_string()),
            error => Error::System(error.to_string()),
        }
    }
}

impl From<gristmill_jsonl::Error> for Error {
    fn from(error: gristmill_jsonl::Error) -> Self {
        match error {
            gristmill_jsonl::Error::Busy(text) => Error::Busy(text),
            error if error.is_user_error() => Error::Setting(error.to_string()),
            error => Error::System(error.to_string()),
        }
    }
}

impl From<gristmill_jobs::Error> for Error {
    fn from(error: gristmill_jobs::Error) -> Self {
        match error {
            gristmill_jobs::Error::Store(error) => Error::Store(error),
            gristmill_jobs::Error::Setting(text) => Error::Setting(text),
            other => Error::System(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_that_stays_locked_has_its_own_exit_status() {
        let error: Error = gristmill_jsonl::Error::Busy("x.db is locked".to_owned()).into();
        assert_eq!((error.exit_code(), error.to_string().as_str()), (3, "x.db is locked"));
    }
}
