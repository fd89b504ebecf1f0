//! Runs one task on its pool and queues its outcome for the dispatcher.
//!
//! Owns which outcome follows from the end of a handler: `Ok`, an error, a panic, an open breaker, a worker that stops.
//! When outcomes are stored is decided in `task_source`.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::breaker::Permit;
use gristmill_pool::error::{Cause, catch_panic};
use gristmill_pool::{Context, ErrorClass, TaskError, TaskResult};
use gristmill_store::tasks::{ClaimedTask, Disposition, TaskUpdate};

use crate::in_flight::InFlight;
use crate::kind_runner::KindRunner;
use crate::signals::DispatcherSignals;
use crate::task_context::TaskContext;

/// The outcome of a task, which the dispatcher has yet to store.
pub(crate) struct PendingUpdate {
    /// Index of the kind's [`KindRunner`].
    pub(crate) runner: usize,
    pub(crate) claim: Arc<InFlight>,
    pub(crate) update: TaskUpdate,
    /// How long the handler ran; `None` if it was not started or was cancelled.
    pub(crate) run_time: Option<Duration>,
}

impl PendingUpdate {
    fn new(runner: usize, claim: Arc<InFlight>, disposition: Disposition, checkpointed: bool) -> Self {
        let ClaimedTask { id, token, .. } = &claim.task;
        let update = TaskUpdate { id: *id, token: token.clone(), disposition, checkpointed };
        PendingUpdate { runner, update, run_time: None, claim }
    }

    /// Releases a task: another worker may claim it at once, and no attempt is counted.
    pub(crate) fn released(runner: usize, claim: Arc<InFlight>) -> Self {
        Self::new(runner, claim, Disposition::Released, false)
    }
}

#[derive(Default)]
pub(crate) struct CompletionQueue {
    pending: Mutex<Vec<PendingUpdate>>,
    /// At this length the dispatcher is woken and stores the outcomes without waiting for more.
    pub(crate) threshold: AtomicUsize,
}

impl CompletionQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<PendingUpdate>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn take(&self) -> Vec<PendingUpdate> {
        std::mem::take(&mut *self.lock())
    }

    pub(crate) fn put_back(&self, mut pending: Vec<PendingUpdate>) {
        let mut lock = self.lock();
        pending.append(&mut lock);
        *lock = pending;
    }

    /// Adds an outcome. Returns whether the dispatcher must be woken.
    fn put(&self, pending: PendingUpdate) -> bool {
        let mut lock = self.lock();
        lock.push(pending);
        let len = lock.len();
        len == 1 || len >= self.threshold.load(Ordering::SeqCst)
    }
}

pub(crate) struct Execution {
    pub(crate) signals: Arc<DispatcherSignals>,
    pub(crate) completions: Arc<CompletionQueue>,
    pub(crate) runner: Arc<KindRunner>,
    pub(crate) index: usize,
    pub(crate) claim: Arc<InFlight>,
}

impl Execution {
    /// Runs the handler, queues the outcome, and returns the handler's result to the pool.
    pub(crate) fn run(self, context: &Context) -> TaskResult<()> {
        let _inside = self.signals.enter();
        if self.signals.is_stopping() || self.claim.cancel_token.is_cancelled() {
            self.complete(Disposition::Released, false);
            return Ok(());
        }
        let permit = match self.runner.kind.breaker.as_ref().map(gristmill_pool::Breaker::acquire).transpose() {
            Ok(permit) => permit,
            Err(open) => {
                let wait = open.retry_in.max(Duration::from_millis(100));
                self.complete(Disposition::Postponed(self.signals.store.now().plus(wait)), false);
                return Ok(());
            }
        };
        if !self.may_start() {
            if let Some(permit) = permit {
                permit.withdraw();
            }
            return Ok(());
        }
        self.claim.start();
        let task = TaskContext {
            claim: &self.claim,
            context,
            signals: &self.signals,
            store: &self.signals.store,
            task_result: RefCell::default(),
            checkpointed: Cell::new(self.claim.task.was_started()),
        };
        let result = catch_panic(|| (self.runner.kind.handler)(&task))
            .map_err(|error| as_timeout(error, context, self.runner.kind.timeout));
        let checkpointed = task.checkpointed.get();
        let task_result = task.task_result.take();
        report_to_breaker(permit, &result);
        self.complete(self.outcome(&result, task_result), checkpointed);
        // The pool counts a panic, and logs it with its backtrace.
        result
    }

    /// Whether the handler may be started; if not, the outcome is queued. Checks the claim in the store if the lease is
    /// more than half over, because this process may have been suspended. Writes the start to the start log if it must
    /// be known before the handler runs.
    fn may_start(&self) -> bool {
        let (claim, store) = (&self.claim, &self.signals.store);
        let ClaimedTask { id, token, .. } = &claim.task;
        let now = (Instant::now(), store.now());
        let logs = self.runner.kind.logs_starts || claim.may_have_crashed();
        let is_fresh = claim.lease_age(now) < self.runner.lease / 2;
        if is_fresh && (!logs || self.runner.start_log.write(*id, token).is_ok()) {
            return true;
        }
        match store.tasks().start(*id, token) {
            Ok(true) => {
                claim.set_recorded();
                true
            }
            // The claim is lost: the store refuses this outcome, and the task is counted as lost then.
            Ok(false) => {
                self.complete(Disposition::Released, false);
                false
            }
            Err(error) => {
                tracing::warn!(task = id, %error, "cannot record the start of a task; retrying in 1 s");
                self.complete(Disposition::Postponed(now.1.plus(Duration::from_secs(1))), false);
                false
            }
        }
    }

    fn outcome(&self, result: &TaskResult<()>, task_result: Option<String>) -> Disposition {
        match result {
            Ok(()) => Disposition::Completed(task_result),
            // An error after cancellation does not count as an attempt.
            Err(_) if self.claim.cancel_token.is_cancelled() => Disposition::Released,
            Err(error) => self.runner.kind.classify(&self.claim.task, error, self.signals.store.now()),
        }
    }

    fn complete(&self, disposition: Disposition, checkpointed: bool) {
        // A cancelled run does not show how long handlers take.
        let run_time = self.claim.end().filter(|_| disposition != Disposition::Released);
        let pending = PendingUpdate::new(self.index, self.claim.clone(), disposition, checkpointed);
        if self.completions.put(PendingUpdate { run_time, ..pending }) {
            self.signals.wake();
        }
    }
}

/// Replaces the error of a handler that was cancelled by its timeout with one that names the timeout.
fn as_timeout(error: TaskError, context: &Context, timeout: Option<Duration>) -> TaskError {
    let is_expired = context.remaining().is_some_and(|left| left.is_zero());
    match timeout {
        Some(limit) if is_expired && matches!(error.cause(), Cause::Cancelled) => {
            let mut timed_out = TaskError::transient(format!("exceeded the timeout of {limit:?}"));
            if let Some(step) = error.step() {
                timed_out = timed_out.with_step(step);
            }
            timed_out
        }
        _ => error,
    }
}

/// Reports transient errors and panics as failures. Permanent errors have their cause in the task: they are successes.
fn report_to_breaker(permit: Option<Permit>, result: &TaskResult<()>) {
    let Some(permit) = permit else { return };
    match result {
        Err(error) if matches!(error.cause(), Cause::Cancelled) => permit.withdraw(),
        Err(error) if error.class() != ErrorClass::Permanent => permit.failure(),
        Err(error) if matches!(error.cause(), Cause::Panic { .. }) => permit.failure(),
        _ => permit.success(),
    }
}
