//! The folder of a run: which file is where.
//!
//! The database has a folder of its own, because a small disk is mounted there in some runs. All that the referee
//! relies on lies outside of it.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub(crate) struct Site {
    root: PathBuf,
}

impl Site {
    pub(crate) fn new(root: &Path) -> Self {
        Site { root: root.to_path_buf() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the small disk is mounted, if there is one.
    pub(crate) fn disk(&self) -> PathBuf {
        self.root.join("disk")
    }

    /// The database everything is about.
    pub(crate) fn database(&self) -> PathBuf {
        self.disk().join("work.db")
    }

    pub(crate) fn log_of_database(&self) -> PathBuf {
        self.disk().join("work.db-wal")
    }

    /// What tasks have done in the world outside.
    pub(crate) fn effects(&self) -> PathBuf {
        self.root.join("effects.db")
    }

    /// One line for each acknowledged task.
    pub(crate) fn acks(&self) -> PathBuf {
        self.root.join("acks.log")
    }

    /// One line for each thing that happened in a handler.
    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join("runs.log")
    }

    /// One line for each write that a customer was refused.
    pub(crate) fn refusals(&self) -> PathBuf {
        self.root.join("refusals.log")
    }

    /// What a member of the crew had to say.
    pub(crate) fn words_of(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.stderr"))
    }

    /// There as soon as the member is at work.
    pub(crate) fn flag_of(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.ready"))
    }

    /// What strace did to a member.
    pub(crate) fn injections_of(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.strace"))
    }
}
