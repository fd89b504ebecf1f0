//! One kind of task in a runner: its claims, what its workers do with them, and the counts of its outcomes.
//!
//! Owns which disposition follows from the end of a task: the pool has decided whether it failed, panicked, exceeded its
//! timeout or was rejected by the breaker. When dispositions are stored is decided in `task_source`.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Context, Outcome, TaskError, TaskResult};
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{ClaimedTask, Disposition, TaskUpdate};

use crate::claims::Claims;
use crate::in_flight::InFlight;
use crate::kind::TaskKind;
use crate::signals::DispatcherSignals;
use crate::source::EndedQueue;
use crate::stats::RunSummary;
use crate::task_context::TaskContext;

/// Shortest time for which the open breaker postpones a task.
const MIN_BREAKER_DELAY: Duration = Duration::from_millis(100);

thread_local! {
    /// The task whose handler this thread runs. The pool calls back on the thread that ran the handler.
    static TAKEN: Cell<Option<Arc<InFlight>>> = const { Cell::new(None) };
}

/// The outcome of a task, which the dispatcher has yet to store.
pub(crate) struct PendingUpdate {
    /// Index of the kind's [`KindRunner`].
    pub(crate) runner: usize,
    pub(crate) claim: Arc<InFlight>,
    pub(crate) update: TaskUpdate,
    /// How long the pool ran the task, with the check before its start; `None` if it was not started or was cancelled.
    pub(crate) run_time: Option<Duration>,
}

pub(crate) struct KindRunner {
    pub(crate) index: usize,
    pub(crate) kind: Arc<TaskKind>,
    pub(crate) lease: Duration,
    pub(crate) signals: Arc<DispatcherSignals>,
    pub(crate) ended: Arc<EndedQueue<PendingUpdate>>,
    pub(crate) start_log: Arc<StartLog>,
    pub(crate) claims: Mutex<Claims>,
    pub(crate) summary: Mutex<RunSummary>,
}

impl KindRunner {
    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn summary(&self) -> MutexGuard<'_, RunSummary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.claims().all().len()
    }

    /// Body of a placeholder in the pool: runs the handler with the most urgent task, and returns the task's result.
    /// A placeholder that starts no task returns "cancelled", which does not concern the breaker.
    pub(crate) fn run_next(&self, context: &Context<Option<String>>) -> TaskResult<Option<String>> {
        let _inside = self.signals.enter();
        let Some(claim) = self.claims().next() else { return Err(TaskError::cancelled()) };
        match self.may_start(&claim) {
            Ok(now) => claim.start(now),
            Err(disposition) => {
                self.claims().count_unused_placeholder();
                self.complete(claim, disposition, Duration::ZERO);
                // The check may have taken longer than the timeout: that is no failure of the service either.
                context.withdraw_from_breaker();
                return Err(TaskError::cancelled());
            }
        }
        TAKEN.set(Some(claim.clone()));
        let (task_result, linked) = (RefCell::default(), OnceCell::new());
        let task = TaskContext { claim: &claim, context, signals: &self.signals, task_result, linked };
        (self.kind.handler)(&task).map(|()| task.task_result.take())
    }

    /// Callback of the pool: queues the outcome of a placeholder's task.
    pub(crate) fn on_outcome(&self, outcome: Outcome<Option<String>>) {
        let is_rejected =
            matches!(&outcome.result, Err(failure) if matches!(failure.error.cause(), Cause::BreakerOpen));
        // The open breaker rejects a placeholder before it takes a task.
        let claim = if is_rejected { self.claims().next() } else { TAKEN.take() };
        let Some(claim) = claim else { return };
        if is_rejected {
            self.claims().count_unused_placeholder();
        }
        let now = || self.signals.store.now();
        let disposition = match outcome.result {
            Ok(task_result) => Disposition::Completed(task_result),
            // An error after cancellation does not count as an attempt.
            Err(_) if claim.is_cancelled() => Disposition::Released,
            Err(_) if is_rejected && self.signals.is_stopping() => Disposition::Released,
            Err(failure) if is_rejected => {
                let delay = failure.error.retry_after().unwrap_or_default().max(MIN_BREAKER_DELAY);
                Disposition::Postponed(now().plus(delay))
            }
            Err(failure) => self.kind.classify(&claim.task, &failure.error, now()),
        };
        self.complete(claim, disposition, outcome.duration);
    }

    fn pending(&self, claim: Arc<InFlight>, disposition: Disposition) -> PendingUpdate {
        let ClaimedTask { id, token, .. } = &claim.task;
        let update =
            TaskUpdate { id: *id, token: token.clone(), disposition, checkpointed: claim.checkpointed.load(SeqCst) };
        PendingUpdate { runner: self.index, update, run_time: None, claim }
    }

    /// Releases a task: another worker may claim it at once, and no attempt is counted.
    pub(crate) fn released(&self, claim: Arc<InFlight>) -> PendingUpdate {
        self.pending(claim, Disposition::Released)
    }

    fn complete(&self, claim: Arc<InFlight>, disposition: Disposition, run_time: Duration) {
        claim.end();
        // A cancelled run does not show how long handlers take.
        let is_complete = claim.started().is_some() && disposition != Disposition::Released;
        let pending = self.pending(claim, disposition);
        if self.ended.put(PendingUpdate { run_time: is_complete.then_some(run_time), ..pending }) {
            self.signals.wake();
        }
    }

    /// Returns the time of the start, or the disposition of a task that must not be started. Checks the claim in the
    /// store if the lease is more than half over, because this process may have been suspended. Writes the start to the
    /// start log if it must be known before the handler runs.
    fn may_start(&self, claim: &InFlight) -> Result<Instant, Disposition> {
        if self.signals.is_stopping() || claim.is_cancelled() {
            return Err(Disposition::Released);
        }
        let store = &self.signals.store;
        let ClaimedTask { id, token, .. } = &claim.task;
        let now = (Instant::now(), store.now());
        let logs = self.kind.logs_starts || claim.may_have_crashed();
        let is_fresh = claim.lease_age(now) < self.lease / 2;
        if is_fresh && (!logs || self.start_log.write(*id, token).is_ok()) {
            return Ok(now.0);
        }
        match store.tasks().start(*id, token) {
            Ok(true) => {
                claim.recorded.store(true, SeqCst);
                Ok(now.0)
            }
            // The claim is lost: the store refuses this outcome, and the task is counted as lost then.
            Ok(false) => Err(Disposition::Released),
            Err(error) => {
                tracing::warn!(task = id, %error, "cannot record the start of a task; retrying in 1 s");
                Err(Disposition::Postponed(now.1.plus(Duration::from_secs(1))))
            }
        }
    }
}
