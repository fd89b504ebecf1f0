//! The report on every task of a pool, made when it is joined or shut down.

use crate::{error::TaskError, stats::PoolStats, sync::Arc, task::TaskRef};
use std::{error::Error, fmt};

/// A task whose last attempt failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The task, with its id, kind and label.
    pub task: TaskRef,
    /// Number of attempts, 0 if an open breaker rejected the task.
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: Arc<TaskError>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.task, self.error)?;
        if self.attempts > 1 { write!(f, " (after {} attempts)", self.attempts) } else { Ok(()) }
    }
}

impl Error for Failure {}

/// The outcome of every task of a pool.
///
/// `finished + failed + never_started + abandoned + waiting` is the number of tasks submitted and spawned: each task is
/// in exactly one of them. Only a report that was made inside a task of the pool has waiting tasks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Number of tasks that succeeded.
    pub finished: u64,
    /// Number of tasks whose last attempt failed.
    pub failed: u64,
    /// The failures in order, at most [`keep_failures`](crate::PoolBuilder::keep_failures) of them.
    pub failures: Vec<Failure>,
    /// Tasks that were not started before the pool was cancelled.
    pub never_started: Vec<TaskRef>,
    /// Tasks that did not stop in time and were still running when the report was made.
    pub abandoned: Vec<TaskRef>,
    /// Number of tasks that were neither running nor settled when the report was made: queued, waiting for a retry, or
    /// held by a worker about to start or settle them.
    pub waiting: u64,
    /// The pool's counters when the report was made.
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
        counts.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, state)| write!(f, ", {count} {state}"))
    }
}
