//! Paths of the files of a run.
//!
//! The database has its own folder, because some runs mount a small disk there. The logs that the harness relies on are
//! outside of it.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub(crate) struct RunPaths {
    root: PathBuf,
}

impl RunPaths {
    pub(crate) fn new(root: &Path) -> Self {
        RunPaths { root: root.to_path_buf() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Mount point of the small disk, if the run has one.
    pub(crate) fn disk(&self) -> PathBuf {
        self.root.join("disk")
    }

    /// The database under test.
    pub(crate) fn database(&self) -> PathBuf {
        self.disk().join("work.db")
    }

    pub(crate) fn wal(&self) -> PathBuf {
        self.disk().join("work.db-wal")
    }

    /// Database of the effects that tasks have applied.
    pub(crate) fn effects(&self) -> PathBuf {
        self.root.join("effects.db")
    }

    /// Log with one line for each acknowledged task.
    pub(crate) fn acks(&self) -> PathBuf {
        self.root.join("acks.log")
    }

    /// Log with one line for each event in a handler.
    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join("runs.log")
    }

    /// Log with one line for each write of a producer that failed.
    pub(crate) fn refusals(&self) -> PathBuf {
        self.root.join("refusals.log")
    }

    /// Standard error of a process.
    pub(crate) fn stderr_of(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.stderr"))
    }

    /// File that a process creates when it is ready.
    pub(crate) fn ready_flag_of(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.ready"))
    }

    /// Trace of the calls that strace made to fail in a process.
    pub(crate) fn strace_log_of(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.strace"))
    }
}
