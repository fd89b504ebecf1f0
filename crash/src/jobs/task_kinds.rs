//! The kinds of tasks in a run, one for each course that a task can take.
//!
//! Owns the expected effects of each kind. `worker` runs them, `producer` enqueues them, `checker` checks them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Number of steps of [`TestKind::Steps`].
pub(crate) const STEPS: u32 = 4;

/// Kind of a task, by its behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestKind {
    /// Succeeds immediately.
    Fast,
    /// Fails twice with a transient error, then succeeds.
    Flaky,
    /// Fails permanently.
    Failing,
    /// Saves a checkpoint after each step; the first attempt fails in the middle.
    Steps,
    /// Enqueues a [`TestKind::Fast`] task.
    Parent,
    /// Takes about one lease; stops when it is cancelled.
    Slow,
    /// Takes about one lease and ignores cancellation, so its result is late if its process was suspended.
    Uncancellable,
    /// Kills its own process.
    Poison,
}

impl TestKind {
    /// Returns whether tasks of this kind complete if their workers are not killed too often.
    pub(crate) fn succeeds(self) -> bool {
        !matches!(self, TestKind::Failing | TestKind::Poison)
    }

    /// Returns the effects of a completed task with this key; each is applied once.
    pub(crate) fn effects(self, key: &str) -> Vec<String> {
        match self {
            TestKind::Failing | TestKind::Poison => Vec::new(),
            TestKind::Steps => (1..=STEPS).map(|step| step_key(key, step)).collect(),
            _ => vec![key.to_owned()],
        }
    }
}

pub(crate) fn step_key(key: &str, step: u32) -> String {
    format!("{key}/{step}")
}

/// Payload of every task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    /// Key of its effect, the same however often the task is enqueued or run.
    pub(crate) key: String,
    /// Duration of a slow task.
    pub(crate) millis: u64,
    /// Padding that makes a small disk fill up.
    pub(crate) padding: String,
}

/// Result of a completed task: the worker that completed it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CompletedBy {
    pub(crate) by: String,
}
