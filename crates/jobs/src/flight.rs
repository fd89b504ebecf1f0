//! Tasks in the air: claimed, and not yet settled.
//!
//! Owns what one claim has come to: whether its handler was started, whether that is recorded, when its lease was last
//! renewed; and the signal by which it is told to stop. Who claims and who settles is known elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::UtcTime;
use gristmill_store::tasks::ClaimedTask;

/// One claimed task.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) task: ClaimedTask,
    pub(crate) stop: Stop,
    pub(crate) claimed_at: Instant,
    /// When the lease began or was last renewed, by both clocks.
    renewed: Mutex<(Instant, UtcTime)>,
    started: OnceLock<Instant>,
    ended: AtomicBool,
    recorded: AtomicBool,
    /// Whether its task is to be cancelled.
    cancelled: AtomicBool,
}

impl Flight {
    /// A task that was claimed just now.
    pub(crate) fn new(task: ClaimedTask, now: (Instant, UtcTime)) -> Self {
        Flight {
            task,
            stop: Stop::default(),
            claimed_at: now.0,
            renewed: Mutex::new(now),
            started: OnceLock::new(),
            ended: AtomicBool::new(false),
            recorded: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Whether a worker died that had claimed the task: then its next start must be known for certain.
    pub(crate) fn may_have_crashed(&self) -> bool {
        self.task.crashes > 0 || self.task.abandoned > 0
    }

    /// Stops it because its task is to be cancelled.
    pub(crate) fn cancel(&self) {
        if !self.cancelled.swap(true, Ordering::SeqCst) {
            tracing::info!(task = self.task.id, "the task is to be cancelled; its run is stopped");
            self.stop.set();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// How long ago the lease was last renewed, by the clock that shows more.
    pub(crate) fn lease_age(&self, now: (Instant, UtcTime)) -> Duration {
        let (instant, time) = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        now.0.saturating_duration_since(instant).max(now.1.since(time))
    }

    pub(crate) fn renew(&self, now: (Instant, UtcTime)) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Its handler is started now.
    pub(crate) fn start(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// Its handler has ended. Returns how long it took.
    pub(crate) fn end(&self) -> Option<Duration> {
        self.ended.store(true, Ordering::SeqCst);
        self.started().map(|start| start.elapsed())
    }

    /// When its handler was started.
    pub(crate) fn started(&self) -> Option<Instant> {
        self.started.get().copied()
    }

    /// Whether its handler has ended, or will not be started.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether the store knows that it was started.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::SeqCst)
    }

    pub(crate) fn set_recorded(&self) {
        self.recorded.store(true, Ordering::SeqCst);
    }
}

/// A signal that is given once: stop, this is not wanted any more.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    set: AtomicBool,
    lock: Mutex<()>,
    given: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::SeqCst);
        // Whoever has looked and is about to wait holds the lock: this waits for it, so that the call is heard.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.given.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// Waits for the signal, at most so long. Says whether it was given.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now().checked_add(limit);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_set() {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            guard = self.given.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
