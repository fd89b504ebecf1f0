//! Errors of this crate: why there is no broker, or why it did not do what was asked.
//!
//! Owns the words. Each says what, where, and what would be right; a start that failed shows what the broker said
//! last.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no RabbitMQ on this machine.
    Missing,
    /// There is no folder where tools could be kept.
    NoFolderForTools,
    /// RabbitMQ could not be got. Says why.
    NotGot(String),
    /// The RabbitMQ of this machine lacks a plugin.
    NoPlugin {
        /// The plugin that was asked for.
        name: String,
        /// The folder where it should be.
        folder: PathBuf,
    },
    /// The operating system refused something.
    System {
        /// What was tried.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
    /// The broker ended, or kept silent, instead of starting.
    NotStarted {
        /// What was seen of it from outside.
        why: String,
        /// The last lines of its log and of its output.
        log: String,
    },
    /// `rabbitmqctl` failed.
    Ctl {
        /// What it was asked.
        asked: String,
        /// What it said.
        said: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing => f.write_str(
                "RabbitMQ is not there: `cargo xtask test` gets it, or install the Debian package rabbitmq-server",
            ),
            Error::NoFolderForTools => {
                f.write_str("no place for tools: set XDG_CACHE_HOME or HOME to an absolute path")
            }
            Error::NotGot(why) => write!(
                f,
                "RabbitMQ could not be got: {why}. The Debian package rabbitmq-server, installed by hand, will do as well"
            ),
            Error::NoPlugin { name, folder } => write!(
                f,
                "RabbitMQ has no plugin {name} in {}: the Debian package rabbitmq-server has it; remove what is installed or install that",
                folder.display()
            ),
            Error::System { doing, error } => write!(f, "cannot {doing}: {error}"),
            Error::NotStarted { why, log } => {
                write!(f, "RabbitMQ did not start: {why}. The last it said:\n{log}")
            }
            Error::Ctl { asked, said } => write!(f, "`rabbitmqctl {asked}` failed:\n{said}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// An error of the system becomes a fault once it is known what was tried.
pub(crate) trait OrFault<T> {
    fn or_fault(self, doing: &str) -> Result<T, Error>;
    fn or_fault_at(self, doing: &str, path: &Path) -> Result<T, Error>;
}

impl<T> OrFault<T> for io::Result<T> {
    fn or_fault(self, doing: &str) -> Result<T, Error> {
        self.map_err(|error| Error::System { doing: doing.to_owned(), error })
    }

    fn or_fault_at(self, doing: &str, path: &Path) -> Result<T, Error> {
        self.map_err(|error| Error::System { doing: format!("{doing} {}", path.display()), error })
    }
}
