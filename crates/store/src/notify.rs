//! A bell that rings when there may be work.
//!
//! Owns the waiting of workers for writes of their own process. Other processes cannot ring it: for those the
//! store is asked whether the file has changed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts how often it rang, so that a ring between a look and a wait is not missed.
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

    /// Waits until it has rung more often than `seen`, or `limit` is over. Says how often it has.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) -> u64 {
        let end = Instant::now().checked_add(limit);
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        while *generation <= seen {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            generation =
                self.changed.wait_timeout(generation, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *generation
    }
}
