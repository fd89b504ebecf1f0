//! The task as its handler sees it.
//!
//! Owns access to the payload, the attempt, cancellation, checkpoints and the result. The handler's return value
//! decides the outcome.

use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gristmill_pool::{CancelCallback, CancelToken, Context, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::tasks::{ClaimedTask, check_json};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::in_flight::InFlight;
use crate::signals::DispatcherSignals;

/// A running task, passed to its handler.
///
/// A long handler must call [`is_cancelled`](Self::is_cancelled) regularly, and return [`TaskError::cancelled`] if its
/// lease is lost, its timeout has expired, or the worker stops.
pub struct TaskContext<'a> {
    pub(crate) claim: &'a InFlight,
    pub(crate) context: &'a Context<Option<String>>,
    pub(crate) signals: &'a DispatcherSignals,
    pub(crate) task_result: RefCell<Option<String>>,
    /// Token of the claim and of the pool's run, if the handler has used it.
    pub(crate) linked: OnceCell<(CancelToken, CancelCallback)>,
}

impl TaskContext<'_> {
    fn task(&self) -> &ClaimedTask {
        &self.claim.task
    }

    /// Number of the task in the store. It is the same in every attempt, so it can key effects that must happen once.
    pub fn id(&self) -> i64 {
        self.task().id
    }

    /// Name of the task's kind.
    pub fn kind(&self) -> &str {
        &self.task().kind
    }

    /// Payload of the task, as JSON text.
    pub fn payload(&self) -> &str {
        &self.task().payload
    }

    /// Parses the payload. An error is permanent and names the position in the payload.
    pub fn parse<T: DeserializeOwned>(&self) -> TaskResult<T> {
        serde_json::from_str(self.payload())
            .map_err(|error| TaskError::permanent(format!("cannot parse the payload: {error}")))
    }

    /// Id of the document that the task belongs to, if it was enqueued with one.
    pub fn document_id(&self) -> Option<&str> {
        self.task().document_id.as_deref()
    }

    /// Number of this start of the task, from 1. Counts failed attempts, and starts by workers that died or stopped if
    /// these were recorded.
    pub fn attempt(&self) -> u32 {
        self.task().starts.saturating_add(1)
    }

    /// Whether the task was or may have been started before.
    pub fn is_redelivered(&self) -> bool {
        self.task().was_started()
    }

    /// Number of starts by workers that died.
    pub fn crashes(&self) -> u32 {
        self.task().crashes
    }

    /// Step at which the last attempt failed, if its error named one.
    pub fn failed_step(&self) -> Option<&str> {
        self.task().failed_step.as_deref()
    }

    /// Whether the handler should return: the lease is lost, the timeout has expired, the task was cancelled, or the
    /// worker stops.
    pub fn is_cancelled(&self) -> bool {
        self.claim.is_cancelled() || self.context.is_cancelled()
    }

    /// Token that is cancelled when the handler should return, for work that waits or runs elsewhere.
    pub fn cancel_token(&self) -> CancelToken {
        let (token, _) = self.linked.get_or_init(|| {
            let token = self.claim.cancel_token().child();
            let of_handler = token.clone();
            (token, self.context.cancel_token().on_cancel(move || of_handler.cancel()))
        });
        token.clone()
    }

    /// Waits up to `limit` until the task is cancelled. Returns whether it is.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        self.cancel_token().wait_timeout(limit)
    }

    /// How long a command has to end after SIGTERM: five seconds, or half a second if the task was cancelled, but at
    /// most half of the time until the deadline of a stop.
    pub(crate) fn grace(&self) -> Duration {
        let usual = Duration::from_millis(if self.claim.cancel_requested.load(SeqCst) { 500 } else { 5_000 });
        let left =
            self.signals.deadlines().map(|deadlines| deadlines.release.saturating_duration_since(Instant::now()));
        left.map_or(usual, |left| usual.min(left / 2))
    }

    /// Time left until the timeout, if the kind has one.
    pub fn remaining(&self) -> Option<Duration> {
        self.context.remaining()
    }

    /// Loads the data that an earlier attempt, or this one, saved for `step`.
    pub fn checkpoint<T: DeserializeOwned>(&self, step: &str) -> TaskResult<Option<T>> {
        // Checks the claim too: after the next owner has completed the task, it has no checkpoints, as if it were new.
        let saved = self
            .store()
            .checkpoints()
            .list_for_claim(self.id(), &self.task().token)
            .map_err(|error| self.checkpoint_error(error))?;
        if !saved.is_empty() {
            self.claim.checkpointed.store(true, SeqCst);
        }
        let Some(found) = saved.into_iter().find(|checkpoint| checkpoint.step == step) else {
            return Ok(None);
        };
        serde_json::from_str(&found.data)
            .map(Some)
            .map_err(|error| TaskError::permanent(format!("cannot parse the checkpoint of step {step:?}: {error}")))
    }

    /// Saves `data` for `step`. It is on disk when this returns, so the next attempt, on any worker, can continue from
    /// there.
    pub fn save_checkpoint<T: Serialize + ?Sized>(&self, step: &str, data: &T) -> TaskResult<()> {
        let data = serde_json::to_string(data)?;
        self.claim.checkpointed.store(true, SeqCst);
        let saved = self.store().checkpoints().save(self.id(), &self.task().token, step, &data);
        saved.map_err(|error| self.checkpoint_error(error))
    }

    fn checkpoint_error(&self, error: gristmill_store::Error) -> TaskError {
        match error {
            // The claim is lost: the store will refuse the outcome of this attempt.
            gristmill_store::Error::Conflict(_) => {
                self.claim.cancel();
                TaskError::cancelled()
            }
            error => TaskError::transient(error),
        }
    }

    /// Sets the result that is stored with the task, as JSON, when it is completed.
    pub fn set_result<T: Serialize + ?Sized>(&self, result: &T) -> TaskResult<()> {
        let text = serde_json::to_string(result)?;
        check_json("the result", &text).map_err(TaskError::permanent)?;
        *self.task_result.borrow_mut() = Some(text);
        Ok(())
    }

    /// The store that the task was claimed from, for example to enqueue further tasks.
    pub fn store(&self) -> &Store {
        &self.signals.store
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
