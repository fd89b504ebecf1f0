//! Errors and outcomes of a run.
//!
//! Owns the exit statuses, and how an error is printed.

use std::io::{self, Write};
use std::path::Path;

use crate::hints::Hints;
use crate::output::{path, sanitize_lines};

/// Outcome of a run that was not stopped by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The user has to act: an item was refused, or a check found a problem. It has been reported.
    UserError,
    /// The system failed at a part of the work, or a file is damaged. It has been reported.
    Failed,
    /// Another program kept a database locked for too long. The same command may succeed later.
    Busy,
    /// The run was interrupted, and all state is saved.
    Interrupted,
}

impl Outcome {
    pub(crate) fn exit_status(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::UserError => 1,
            Outcome::Failed => 2,
            Outcome::Busy => 3,
            Outcome::Interrupted => 130,
        }
    }

    /// Returns the worse of the outcomes of two parts of a run.
    pub(crate) fn and(self, other: Outcome) -> Outcome {
        if other.exit_status() > self.exit_status() { other } else { self }
    }
}

#[derive(Debug)]
pub(crate) enum Error {
    /// The command line is invalid. clap names the argument and what is expected.
    Usage(clap::Error),
    /// A setting or an argument is wrong. The text names it, its value and what is expected.
    Setting(String),
    /// The store failed, or refused the request.
    Store(gristmill_store::Error),
    /// The operating system or a file failed.
    System(String),
    Busy(String),
    /// Standard output could not be written.
    Output(io::Error),
}

impl Error {
    /// Returns 1 for a user error, 2 for a system failure and 3 for a locked database.
    pub(crate) fn exit_status(&self) -> u8 {
        self.outcome().exit_status()
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Error::Usage(_) | Error::Setting(_) => Outcome::UserError,
            Error::Store(error) if error.is_user_error() => Outcome::UserError,
            Error::Store(_) | Error::System(_) | Error::Output(_) => Outcome::Failed,
            Error::Busy(_) => Outcome::Busy,
        }
    }

    /// Adds the global options of this run to the commands that the message suggests.
    pub(crate) fn complete_commands(self, hints: &Hints) -> Error {
        match self {
            Error::Setting(text) => Error::Setting(hints.complete_commands(&text)),
            Error::System(text) => Error::System(hints.complete_commands(&text)),
            Error::Busy(text) => Error::Busy(hints.complete_commands(&text)),
            Error::Store(gristmill_store::Error::Corrupt(file, detail)) => {
                let advice = gristmill_store::damage::advice(&file);
                let file = path(&file);
                let text = format!("{file} is damaged, or its disk cannot be read: {detail}. To fix it: {advice}");
                Error::System(hints.complete_commands(&text))
            }
            Error::Store(error) if error.is_user_error() => Error::Setting(hints.complete_commands(&error.to_string())),
            Error::Store(error) => Error::System(hints.complete_commands(&error.to_string())),
            other => other,
        }
    }

    /// Returns the error for a file that could not be written. A wrong path is a user error, for which `next` names the
    /// remedy; a full or broken disk is a system failure.
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
                Error::System(format!("{text}. Nothing was written; free some space and try again"))
            }
            _ => Error::System(format!("{text}. Nothing was written")),
        }
    }

    /// Prints the error on standard error. Failing to print it does not change the exit status.
    pub(crate) fn report(&self) {
        let printed = match self {
            Error::Usage(error) => error.print(),
            // It may contain file names with control characters.
            other => writeln!(io::stderr(), "error: {}", sanitize_lines(&other.to_string())),
        };
        drop(printed);
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
            error @ gristmill_jsonl::Error::Busy(_) => Error::Busy(error.to_string()),
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
        let error: Error = gristmill_jsonl::Error::Busy("x.db".into()).into();
        assert_eq!(error.exit_status(), 3);
        assert!(error.to_string().starts_with("x.db: another program kept it locked"), "{error}");
    }
}
