//! What became of everything: the end of a pool, in full.

use crate::{error::TaskError, stats::PoolStats, sync::Arc, task::TaskRef};
use std::{error::Error, fmt};

/// A task that failed for good.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Which.
    pub task: TaskRef,
    /// After how many attempts.
    pub attempts: u32,
    /// Why, the last time.
    pub error: Arc<TaskError>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.task, self.error)?;
        if self.attempts > 1 { write!(f, " (after {} attempts)", self.attempts) } else { Ok(()) }
    }
}

impl Error for Failure {}

/// What became of every task a pool was given.
///
/// `finished + failed + never_started + unstopped + waiting` is the number of tasks submitted and spawned: each
/// is in exactly one of them. Only a report that was made inside a task of the pool has tasks that wait.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// How many tasks succeeded.
    pub finished: u64,
    /// How many tasks failed for good.
    pub failed: u64,
    /// Every failure, in order; at most [`keep_failures`](crate::Builder::keep_failures) of them.
    pub failures: Vec<Failure>,
    /// Tasks that a cancelled pool never started.
    pub never_started: Vec<TaskRef>,
    /// Tasks that were still running when the report was made: those that did not stop in time.
    pub abandoned: Vec<TaskRef>,
    /// How many tasks were neither running nor ended when the report was made: queued, waiting for a retry, or in
    /// the hands of a worker that was about to start or to settle them.
    pub waiting: u64,
    /// The pool's last counters.
    pub stats: PoolStats,
}

impl Report {
    /// Whether every task succeeded.
    pub fn is_clean(&self) -> bool {
        self.failed == 0 && self.never_started.is_empty() && self.abandoned.is_empty() && self.waiting == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} finished", self.finished)?;
        let counts = [
            (self.failed, "failed"),
            (self.never_started.len() as u64, "never started"),
            (self.abandoned.len() as u64, "did not stop"),
            (self.waiting, "waiting"),
        ];
        counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .try_for_each(|(count, what)| write!(f, ", {count} {what}"))
    }
}
