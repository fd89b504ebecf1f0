//! One task's way through its pool, and the inbox where its verdict waits to be written.
//!
//! Owns what a handler's end means: `Ok`, an error, a panic, a breaker that is open, a worker that stops. When
//! verdicts are written is the line's affair.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::breaker::Permit;
use gristmill_pool::error::{Cause, catch_panic};
use gristmill_pool::{Context, ErrorClass, TaskError, TaskResult};
use gristmill_store::tasks::{ClaimedTask, Disposition, TaskUpdate};

use crate::bench::Bench;
use crate::flight::Flight;
use crate::hub::Hub;
use crate::work::TaskContext;

/// A verdict on its way to the store.
pub(crate) struct Landed {
    pub(crate) bench: usize,
    pub(crate) flight: Arc<Flight>,
    pub(crate) settlement: TaskUpdate,
    /// How long the handler took; nothing if it was not started.
    pub(crate) ran: Option<Duration>,
}

impl Landed {
    fn new(bench: usize, flight: Arc<Flight>, verdict: Disposition, checkpointed: bool) -> Self {
        let ClaimedTask { id, token, .. } = &flight.task;
        let settlement = TaskUpdate { id: *id, token: token.clone(), disposition: verdict, checkpointed };
        Landed { bench, settlement, ran: None, flight }
    }

    /// A task that is given back.
    pub(crate) fn released(bench: usize, flight: Arc<Flight>) -> Self {
        Self::new(bench, flight, Disposition::Released, false)
    }
}

/// Where verdicts wait for the dispatcher.
#[derive(Default)]
pub(crate) struct Inbox {
    landed: Mutex<Vec<Landed>>,
    pub(crate) threshold: AtomicUsize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Vec<Landed>> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn take(&self) -> Vec<Landed> {
        std::mem::take(&mut *self.lock())
    }

    pub(crate) fn put_back(&self, mut landed: Vec<Landed>) {
        let mut lock = self.lock();
        landed.append(&mut lock);
        *lock = landed;
    }

    /// Puts one in. Says whether the dispatcher should come for it now.
    fn put(&self, landed: Landed) -> bool {
        let mut lock = self.lock();
        lock.push(landed);
        let len = lock.len();
        len == 1 || len >= self.threshold.load(Ordering::SeqCst)
    }
}

/// One task on its way through its pool.
pub(crate) struct Runway {
    pub(crate) hub: Arc<Hub>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) bench: Arc<Bench>,
    pub(crate) index: usize,
    pub(crate) flight: Arc<Flight>,
}

impl Runway {
    /// Runs the handler, puts its verdict into the inbox, and tells the pool how it went.
    pub(crate) fn run(self, context: &Context) -> TaskResult<()> {
        let _inside = self.hub.enter();
        if self.hub.is_stopping() || self.flight.stop.is_set() {
            self.land(Disposition::Released, false);
            return Ok(());
        }
        let permit = match self.bench.kind.breaker.as_ref().map(gristmill_pool::Breaker::acquire).transpose()
        {
            Ok(permit) => permit,
            Err(open) => {
                let wait = open.retry_in.max(Duration::from_millis(100));
                self.land(Disposition::Postponed(self.hub.store.now().plus(wait)), false);
                return Ok(());
            }
        };
        if !self.may_start() {
            if let Some(permit) = permit {
                permit.withdraw();
            }
            return Ok(());
        }
        self.flight.start();
        let work = TaskContext {
            flight: &self.flight,
            context,
            hub: &self.hub,
            store: &self.hub.store,
            kept: RefCell::default(),
            checkpointed: Cell::new(self.flight.task.was_started()),
        };
        let result = catch_panic(|| (self.bench.kind.handler)(&work))
            .map_err(|error| in_time(error, context, self.bench.kind.timeout));
        let checkpointed = work.checkpointed.get();
        let kept = work.kept.take();
        tell(permit, &result);
        self.land(self.verdict(&result, kept), checkpointed);
        // The pool counts a panic, and logs it with its backtrace.
        result
    }

    /// Whether the handler may be started. Asks the store where the claim may have been lost unnoticed, because this
    /// process was stopped; the verdict of a task that may not be started is on its way. Where the start must be known
    /// for certain, it is logged.
    fn may_start(&self) -> bool {
        let (flight, store) = (&self.flight, &self.hub.store);
        let ClaimedTask { id, token, .. } = &flight.task;
        let now = (Instant::now(), store.now());
        let logs = self.bench.kind.logs_starts || flight.may_have_crashed();
        let is_fresh = flight.lease_age(now) < self.bench.lease / 2;
        if is_fresh && (!logs || self.bench.start_log.write(*id, token).is_ok()) {
            return true;
        }
        match store.tasks().start(*id, token) {
            Ok(true) => {
                flight.set_recorded();
                true
            }
            // Refused again when it is settled, and counted there.
            Ok(false) => {
                self.land(Disposition::Released, false);
                false
            }
            Err(error) => {
                tracing::warn!(task = id, %error, "a start could not be recorded; trying again later");
                self.land(Disposition::Postponed(now.1.plus(Duration::from_secs(1))), false);
                false
            }
        }
    }

    fn verdict(&self, result: &TaskResult<()>, kept: Option<String>) -> Disposition {
        match result {
            Ok(()) => Disposition::Completed(kept),
            // We told it to stop: whatever it says, this was no fair attempt.
            Err(_) if self.flight.stop.is_set() => Disposition::Released,
            Err(error) => self.bench.kind.judge(&self.flight.task, error, self.hub.store.now()),
        }
    }

    fn land(&self, verdict: Disposition, checkpointed: bool) {
        // A run that was stopped says nothing about how long others take.
        let ran = self.flight.end().filter(|_| verdict != Disposition::Released);
        let landed = Landed { ran, ..Landed::new(self.index, self.flight.clone(), verdict, checkpointed) };
        if self.inbox.put(landed) {
            self.hub.wake();
        }
    }
}

/// A handler that stopped because its time was over failed for that reason, not because somebody stopped it.
fn in_time(error: TaskError, context: &Context, timeout: Option<Duration>) -> TaskError {
    let over = context.remaining().is_some_and(|left| left.is_zero());
    match timeout {
        Some(limit) if over && matches!(error.cause(), Cause::Cancelled) => {
            let mut late = TaskError::transient(format!("the attempt took longer than its {limit:?}"));
            if let Some(step) = error.step() {
                late = late.with_step(step);
            }
            late
        }
        _ => error,
    }
}

/// Failures of what a task calls open the breaker; what was wrong with the task itself does not.
fn tell(permit: Option<Permit>, result: &TaskResult<()>) {
    let Some(permit) = permit else { return };
    match result {
        Err(error) if matches!(error.cause(), Cause::Cancelled) => permit.withdraw(),
        Err(error) if error.class() != ErrorClass::Permanent => permit.failure(),
        Err(error) if matches!(error.cause(), Cause::Panic { .. }) => permit.failure(),
        _ => permit.success(),
    }
}
