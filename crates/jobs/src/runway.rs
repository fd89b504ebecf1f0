//! One task's way through its pool, and the inbox where its verdict waits to be written.
//!
//! Owns what a handler's end means: `Ok`, an error, a panic, a breaker that is open, a worker that stops. When
//! verdicts are written is the line's affair.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gristmill_pool::breaker::Permit;
use gristmill_pool::error::Cause;
use gristmill_pool::{Class, Context, TaskError, TaskResult};
use gristmill_store::tasks::{ClaimedTask, Settlement, Verdict};

use crate::flight::Flight;
use crate::hub::Hub;
use crate::tasks::Bench;
use crate::work::Work;

/// A verdict on its way to the store.
pub(crate) struct Landed {
    pub(crate) bench: usize,
    pub(crate) settlement: Settlement,
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
        if self.hub.is_stopping() || self.flight.stop.is_set() {
            self.land(Verdict::Released, false);
            return Ok(());
        }
        let permit = match self.bench.kind.breaker.as_ref().map(gristmill_pool::Breaker::acquire).transpose()
        {
            Ok(permit) => permit,
            Err(open) => {
                let wait = open.retry_in.max(Duration::from_millis(100));
                self.land(Verdict::Postponed(self.hub.store.now().plus(wait)), false);
                return Ok(());
            }
        };
        let work = Work {
            flight: &self.flight,
            context,
            hub: &self.hub,
            store: &self.hub.store,
            kept: RefCell::default(),
            checkpointed: Cell::new(self.flight.task.attempts > 0 || self.flight.task.crashes > 0),
        };
        let ended = catch_unwind(AssertUnwindSafe(|| (self.bench.kind.handler)(&work)));
        let checkpointed = work.checkpointed.get();
        let kept = work.kept.take();
        match ended {
            Ok(result) => {
                let result = result.map_err(|error| in_time(error, context, self.bench.kind.timeout));
                tell(permit, &result);
                self.land(self.verdict(&result, kept), checkpointed);
                result
            }
            Err(panic) => {
                drop(permit);
                let error = TaskError::permanent(panicked(panic.as_ref()));
                self.land(self.verdict(&Err(error), None), checkpointed);
                // The pool counts it and logs it with its backtrace.
                resume_unwind(panic)
            }
        }
    }

    fn verdict(&self, result: &TaskResult<()>, kept: Option<String>) -> Verdict {
        match result {
            Ok(()) => Verdict::Completed(kept),
            // We told it to stop: whatever it says, this was no fair attempt.
            Err(_) if self.flight.stop.is_set() => Verdict::Released,
            Err(error) => self.bench.kind.judge(&self.flight.task, error, self.hub.store.now()),
        }
    }

    fn land(&self, verdict: Verdict, checkpointed: bool) {
        let ClaimedTask { id, token, .. } = &self.flight.task;
        let settlement = Settlement { id: *id, token: token.clone(), verdict, checkpointed };
        if self.inbox.put(Landed { bench: self.index, settlement }) {
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
            if let Some(step) = error.failed_step() {
                late = late.step(step);
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
        Err(error) if error.class() != Class::Permanent => permit.failure(),
        _ => permit.success(),
    }
}

/// What a panic said.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("without a message"))
}
