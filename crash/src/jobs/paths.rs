//! Paths of the files of a run.
//!
//! The database has its own folder, because some runs mount a small disk there. The log that the harness relies on is
//! outside of it.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub(crate) struct RunPaths(pub(crate) PathBuf);

impl RunPaths {
    /// Mount point of the small disk, if the run has one.
    pub(crate) fn disk(&self) -> PathBuf {
        self.0.join("disk")
    }

    /// The database under test.
    pub(crate) fn database(&self) -> PathBuf {
        self.disk().join("work.db")
    }

    pub(crate) fn wal(&self) -> PathBuf {
        self.disk().join("work.db-wal")
    }

    /// Log of all processes.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("events.log")
    }

    /// File that a process creates when it is ready.
    pub(crate) fn ready_flag_of(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.ready"))
    }

    /// Log of the calls that strace made to fail in a process.
    pub(crate) fn strace_log_of(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.strace"))
    }
}
