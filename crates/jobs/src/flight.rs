//! Tasks in the air: claimed, and not yet settled.
//!
//! Owns the signal by which one of them is told to stop. Who claims and who settles is known elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::tasks::ClaimedTask;

/// One claimed task.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) task: ClaimedTask,
    pub(crate) since: Instant,
    pub(crate) stop: Stop,
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
