//! What a handler sees of the task it runs.
//!
//! Owns the view and nothing else: whether to stop, which attempt this is, what earlier ones saved, what to
//! keep. The handler's disposition is its return value.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::{Duration, Instant};

use gristmill_pool::{Context, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::tasks::{ClaimedTask, check_json};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::in_flight::InFlight;
use crate::signals::DispatcherSignals;

/// A task, while it runs.
///
/// A long handler asks [`is_cancelled`](Self::is_cancelled) from time to time: its lease may be lost, its time over,
/// or the worker about to stop. It then returns [`TaskError::cancelled`].
pub struct TaskContext<'a> {
    pub(crate) claim: &'a InFlight,
    pub(crate) context: &'a Context,
    pub(crate) signals: &'a DispatcherSignals,
    pub(crate) store: &'a Store,
    pub(crate) task_result: RefCell<Option<String>>,
    pub(crate) checkpointed: Cell<bool>,
}

impl TaskContext<'_> {
    fn task(&self) -> &ClaimedTask {
        &self.claim.task
    }

    /// The task's number in the store. The same in every attempt: a key for effects that must happen once.
    pub fn id(&self) -> i64 {
        self.task().id
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        &self.task().kind
    }

    /// Its payload, JSON.
    pub fn payload(&self) -> &str {
        &self.task().payload
    }

    /// Its payload, decoded. One that does not fit is a permanent failure that says where.
    pub fn parse<T: DeserializeOwned>(&self) -> TaskResult<T> {
        serde_json::from_str(self.payload())
            .map_err(|error| TaskError::permanent(format!("the payload does not fit: {error}")))
    }

    /// What it is about, if it says.
    pub fn document_id(&self) -> Option<&str> {
        self.task().document_id.as_deref()
    }

    /// Which start of the task this is, from 1: after failed attempts, after workers that died with it and workers that
    /// stopped, as far as their starts were recorded.
    pub fn attempt(&self) -> u32 {
        self.task().starts.saturating_add(1)
    }

    /// Whether the task was, or may have been, started before.
    pub fn is_redelivered(&self) -> bool {
        self.task().was_started()
    }

    /// How often it was started by a worker that died.
    pub fn crashes(&self) -> u32 {
        self.task().crashes
    }

    /// The step at which the last attempt failed, if it named one.
    pub fn failed_step(&self) -> Option<&str> {
        self.task().failed_step.as_deref()
    }

    /// Whether to stop: the lease is lost, the time is over, or the worker stops.
    pub fn is_cancelled(&self) -> bool {
        self.claim.cancel_token.is_cancelled() || self.context.is_cancelled()
    }

    /// Waits until the task should stop, at most so long. Says whether it should. For handlers that have
    /// nothing to do but wait; the task's timeout ends the wait too, if a moment late.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let mut left = limit;
        while !self.context.is_cancelled() && !left.is_zero() {
            let part = left.min(POLL_INTERVAL);
            if self.claim.cancel_token.wait(part) {
                break;
            }
            left -= part;
        }
        self.is_cancelled()
    }

    /// How long something that was asked to end may take before it is made to: half of what a stop leaves us, else
    /// five seconds, and half a second for a task that is to be cancelled.
    pub(crate) fn grace(&self) -> Duration {
        let usual = Duration::from_millis(if self.claim.is_cancel_requested() { 500 } else { 5_000 });
        let left = self
            .signals
            .deadlines()
            .map(|deadlines| deadlines.release.saturating_duration_since(Instant::now()));
        left.map_or(usual, |left| usual.min(left / 2))
    }

    /// How much of the task's time is left, if its kind has a limit.
    pub fn remaining(&self) -> Option<Duration> {
        self.context.remaining()
    }

    /// What an earlier attempt, or this one, saved at a step.
    pub fn checkpoint<T: DeserializeOwned>(&self, step: &str) -> TaskResult<Option<T>> {
        // A claim that is lost finds no checkpoints once the next owner has completed the task: that is no beginning.
        let saved = self
            .store
            .checkpoints()
            .of_claim(self.id(), &self.task().token)
            .map_err(|error| self.checkpoint_error(error))?;
        self.checkpointed.set(self.checkpointed.get() || !saved.is_empty());
        let Some(found) = saved.into_iter().find(|checkpoint| checkpoint.step == step) else {
            return Ok(None);
        };
        serde_json::from_str(&found.data).map(Some).map_err(|error| {
            TaskError::permanent(format!("the checkpoint of step {step:?} does not fit: {error}"))
        })
    }

    /// Notes that a step is done. When this returns, it is on disk: the next attempt, whoever makes it,
    /// can go on from here.
    pub fn save_checkpoint<T: Serialize + ?Sized>(&self, step: &str, data: &T) -> TaskResult<()> {
        let data = serde_json::to_string(data)?;
        self.checkpointed.set(true);
        let saved = self.store.checkpoints().save(self.id(), &self.task().token, step, &data);
        saved.map_err(|error| self.checkpoint_error(error))
    }

    /// What an error of a checkpoint means for the handler.
    fn checkpoint_error(&self, error: gristmill_store::Error) -> TaskError {
        match error {
            // The row is not ours any more: whatever this attempt comes to will be checkpoint_error.
            gristmill_store::Error::Conflict(_) => {
                self.claim.cancel_token.cancel();
                TaskError::cancelled()
            }
            error => TaskError::transient(error),
        }
    }

    /// Keeps something with the task when it is completed, as JSON.
    pub fn set_result<T: Serialize + ?Sized>(&self, result: &T) -> TaskResult<()> {
        let text = serde_json::to_string(result)?;
        check_json("the result", &text).map_err(TaskError::permanent)?;
        *self.task_result.borrow_mut() = Some(text);
        Ok(())
    }

    /// The store the task came from: to enqueue what follows, say.
    pub fn store(&self) -> &Store {
        self.store
    }
}

impl fmt::Debug for TaskContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext")
            .field("id", &self.id())
            .field("kind", &self.kind())
            .field("attempt", &self.attempt())
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
