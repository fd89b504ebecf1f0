//! Tasks in flight: claimed, and not yet settled.
//!
//! Owns the state of one claim: whether its handler was started, whether that is recorded, when its lease was last
//! renewed, and the token that cancels it. Claiming and settling are in `task_source`.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::CancelToken;
use gristmill_store::UtcTime;
use gristmill_store::tasks::ClaimedTask;

#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) task: ClaimedTask,
    /// Created when it is needed: most tasks end without it, and the dispatcher would allocate one for each.
    cancel_token: OnceLock<CancelToken>,
    pub(crate) claimed_at: Instant,
    /// When the lease began or was last renewed, by both clocks.
    renewed: Mutex<(Instant, UtcTime)>,
    started: OnceLock<Instant>,
    /// Whether the handler has ended or will not be started.
    ended: AtomicBool,
    /// Whether the start is recorded in the store.
    pub(crate) recorded: AtomicBool,
    /// Whether the task may have checkpoints.
    pub(crate) checkpointed: AtomicBool,
    /// Whether the cancellation of the task was requested in the store.
    pub(crate) cancel_requested: AtomicBool,
}

impl InFlight {
    /// Creates the state of a task claimed at `now`, by both clocks.
    pub(crate) fn new(task: ClaimedTask, now: (Instant, UtcTime)) -> Self {
        InFlight {
            checkpointed: AtomicBool::new(task.was_started()),
            task,
            cancel_token: OnceLock::new(),
            claimed_at: now.0,
            renewed: Mutex::new(now),
            started: OnceLock::new(),
            ended: AtomicBool::new(false),
            recorded: AtomicBool::new(false),
            cancel_requested: AtomicBool::new(false),
        }
    }

    /// Whether a worker that had claimed the task died. If so, its next start must be recorded before the handler runs.
    pub(crate) fn may_have_crashed(&self) -> bool {
        self.task.crashes > 0 || self.task.abandoned > 0
    }

    /// Cancels the run because the cancellation of its task was requested.
    pub(crate) fn request_cancel(&self) {
        if !self.cancel_requested.swap(true, SeqCst) {
            tracing::info!(task = self.task.id, "cancellation was requested; the handler is cancelled");
            self.cancel();
        }
    }

    /// Asks the handler to stop. If it was not started, it will not be.
    pub(crate) fn cancel(&self) {
        self.cancel_token().cancel();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel_token.get().is_some_and(CancelToken::is_cancelled)
    }

    pub(crate) fn cancel_token(&self) -> &CancelToken {
        self.cancel_token.get_or_init(CancelToken::new)
    }

    /// Time since the lease was last renewed, by the clock that shows more.
    pub(crate) fn lease_age(&self, now: (Instant, UtcTime)) -> Duration {
        let (instant, time) = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        now.0.saturating_duration_since(instant).max(now.1.since(time))
    }

    pub(crate) fn set_renewed(&self, now: (Instant, UtcTime)) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    pub(crate) fn start(&self, now: Instant) {
        self.started.get_or_init(|| now);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(crate) fn started(&self) -> Option<Instant> {
        self.started.get().copied()
    }
}
