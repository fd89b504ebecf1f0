//! Limits the rate of reading, and ends it when the scan is cancelled.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gristmill_pool::CancelToken;

use crate::lock;
use crate::progress::{ScanHandle, add};

/// Delays and counts the reads of all workers.
pub(crate) struct Throttle {
    pub(super) handle: Arc<ScanHandle>,
    /// Bytes per second. `None` means no limit.
    rate: Option<u64>,
    /// Time from which the next read is allowed.
    free_at: Mutex<Instant>,
}

impl Throttle {
    pub(crate) fn new(handle: Arc<ScanHandle>, rate: Option<u64>) -> Self {
        Throttle { handle, rate, free_at: Mutex::new(Instant::now()) }
    }

    pub(crate) fn token(&self) -> &CancelToken {
        self.handle.token()
    }

    /// Waits until `bytes` bytes may be read, and counts them. Returns false if the scan is cancelled.
    pub(crate) fn may_read(&self, bytes: u64) -> bool {
        let is_cancelled = match self.rate {
            None => self.token().is_cancelled(),
            Some(rate) => {
                let mut free_at = lock(&self.free_at);
                let from = (*free_at).max(Instant::now());
                *free_at = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
                drop(free_at);
                self.token().wait_deadline(from)
            }
        };
        if !is_cancelled {
            add(&self.handle.bytes_read, bytes);
        }
        !is_cancelled
    }
}
