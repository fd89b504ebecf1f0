//! Notifies waiting threads of writes by their own process.
//!
//! Owns the counter and the condition variable. `change_watcher` polls for commits of other processes.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

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

    /// Waits until the generation exceeds `seen` or `limit` has passed.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) {
        let generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(generation, limit, |generation| *generation <= seen));
    }
}
