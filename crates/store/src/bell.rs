//! A bell that rings when there may be work.
//!
//! Owns the waiting of workers for writes of their own process. Other processes cannot ring it: for those the
//! store is asked whether the file has changed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts how often it rang, so that a ring between a look and a wait is not missed.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<u64>,
    ringing: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.ringing.notify_all();
    }

    pub(crate) fn rung(&self) -> u64 {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has rung more often than `seen`, or `limit` is over. Says how often it has.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) -> u64 {
        let end = Instant::now().checked_add(limit);
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while *rung <= seen {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            rung = self.ringing.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *rung
    }
}
