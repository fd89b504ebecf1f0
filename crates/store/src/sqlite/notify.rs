//! Notifies waiting threads of writes by their own process.
//!
//! Owns the counter and the condition variable. `change_watcher` polls for commits of other processes.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts notifications, so that one between a check and a wait is not missed.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    generation: Mutex<u64>,
    changed: Condvar,
}

impl Notifier {
    pub(crate) fn notify(&self) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    pub(crate) fn generation(&self) -> u64 {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the generation exceeds `seen` or `limit` has passed. Returns the generation.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) -> u64 {
        let end = Instant::now().checked_add(limit);
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        while *generation <= seen {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            generation = self.changed.wait_timeout(generation, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *generation
    }
}
