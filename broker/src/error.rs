//! Errors of this crate.
//!
//! Each names the operation, the file or program, and what to do; a failed start shows the last output of the broker.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of starting or controlling a broker.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// RabbitMQ is not installed and was not downloaded.
    Missing,
    /// Neither XDG_CACHE_HOME nor HOME names a folder for tools.
    NoToolsFolder,
    /// RabbitMQ could not be downloaded, with the reason.
    DownloadFailed(String),
    /// RabbitMQ lacks a plugin.
    NoPlugin {
        /// Name of the plugin.
        name: String,
        /// Folder that should contain it.
        folder: PathBuf,
    },
    /// A call of the operating system failed.
    System {
        /// The failed operation, as in "cannot ...".
        action: String,
        /// The system's error.
        error: io::Error,
    },
    /// The broker exited or did not answer when it was started.
    NotStarted {
        /// The observed reason: an exit, a timeout, or no answer.
        why: String,
        /// Last lines of its log and output.
        log: String,
    },
    /// A call of `rabbitmqctl` failed.
    Ctl {
        /// Its arguments.
        args: String,
        /// What the program printed.
        output: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing => f.write_str(
                "RabbitMQ is not installed: run `cargo xtask test`, which downloads it, or install the Debian package \
                 rabbitmq-server",
            ),
            Error::NoToolsFolder => f.write_str("no folder for tools: set XDG_CACHE_HOME or HOME to an absolute path"),
            Error::DownloadFailed(why) => {
                write!(f, "cannot download RabbitMQ: {why}; alternatively install the Debian package rabbitmq-server")
            }
            Error::NoPlugin { name, folder } => write!(
                f,
                "RabbitMQ has no plugin {name} in {}: install the Debian package rabbitmq-server, which has it, or \
                 remove the installed RabbitMQ",
                folder.display()
            ),
            Error::System { action, error } => write!(f, "cannot {action}: {error}"),
            Error::NotStarted { why, log } => {
                write!(f, "RabbitMQ did not start: {why}. Its last output:\n{log}")
            }
            Error::Ctl { args, output } => write!(f, "`rabbitmqctl {args}` failed:\n{output}"),
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

pub(crate) trait IoContext<T> {
    fn context(self, action: &str) -> Result<T, Error>;
    fn context_at(self, action: &str, path: &Path) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &str) -> Result<T, Error> {
        self.map_err(|error| Error::System { action: action.to_owned(), error })
    }

    fn context_at(self, action: &str, path: &Path) -> Result<T, Error> {
        self.map_err(|error| Error::System { action: format!("{action} {}", path.display()), error })
    }
}
