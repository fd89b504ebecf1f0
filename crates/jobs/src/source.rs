//! The interface of a source of work, as the dispatcher uses it, and the queue of work that has ended.
//!
//! Sources are polled in the order of the protocol: scan and hash jobs, thumbnails, thumbnail clean-up, WAL
//! checkpoints, then tasks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::{Error, UtcTime};

use crate::lease_renewal::LeaseRenewer;

/// Claims rows, runs them on its pools, and settles them.
pub(crate) trait WorkSource: Send {
    /// Releases rows whose worker has died or has not renewed its lease.
    fn recover(&mut self) -> Result<(), Error>;

    /// Stores the outcomes of handlers that have ended, then claims as many rows as fit if `mode` asks for it.
    fn poll(&mut self, mode: PollMode) -> Result<PollResult, Error>;

    /// Deletes old rows and resumes unfinished clean-ups. Returns whether more is left to do.
    fn maintain(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Whether a row waits for a retry, or is due and cannot be claimed yet. Rows scheduled for a later first run do
    /// not count.
    fn has_waiting(&self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Number of rows that are claimed and not settled.
    fn in_flight(&self) -> usize;

    /// Waits until all handlers have ended, or until the deadline.
    fn wait_handlers(&self, deadline: Instant);

    /// Cancels the handlers of rows whose cancellation was requested. Called at most 100 ms after a write.
    fn apply_cancellations(&mut self) -> Result<(), Error>;

    /// How long the outcomes of ended handlers may wait, so that one transaction stores several.
    fn flush_after(&self) -> Option<Duration>;

    fn cancel_all(&mut self);

    /// Releases all claimed rows without waiting for their handlers.
    fn release_all(&mut self) -> Result<(), Error>;

    /// The next time at which a row becomes due, if one is known.
    fn next_due(&self) -> Option<UtcTime> {
        None
    }

    /// Duration of its shortest lease.
    fn lease(&self) -> Duration;

    /// Renews its leases. Called once, when the runner starts.
    fn lease_renewers(&self) -> Vec<LeaseRenewer>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollMode {
    /// Nothing is claimed.
    SettleOnly,
    /// Work may be due. Other sources are busy, so a source that seldom has work may defer its claim by 50 ms.
    ClaimSoon,
    /// Work may be due, and the runner is idle.
    ClaimNow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollResult {
    pub(crate) settled: usize,
    pub(crate) claimed: usize,
    /// False if a requested claim was deferred.
    pub(crate) polled: bool,
}

/// Work that has ended on its pool, which the dispatcher has yet to settle.
pub(crate) struct EndedQueue<E> {
    ended: Mutex<Vec<E>>,
    /// At this length the dispatcher is woken and settles without waiting for more.
    threshold: AtomicUsize,
}

impl<E> Default for EndedQueue<E> {
    fn default() -> Self {
        EndedQueue { ended: Mutex::default(), threshold: AtomicUsize::new(1) }
    }
}

impl<E> EndedQueue<E> {
    fn lock(&self) -> MutexGuard<'_, Vec<E>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn set_threshold(&self, length: usize) {
        self.threshold.store(length, Ordering::SeqCst);
    }

    pub(crate) fn is_due(&self, length: usize) -> bool {
        length >= self.threshold.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Vec<E> {
        std::mem::take(&mut *self.lock())
    }

    pub(crate) fn put_back(&self, mut ended: Vec<E>) {
        let mut lock = self.lock();
        ended.append(&mut lock);
        *lock = ended;
    }

    /// Adds an entry. Returns whether the dispatcher must be woken.
    pub(crate) fn put(&self, ended: E) -> bool {
        let mut lock = self.lock();
        lock.push(ended);
        let length = lock.len();
        length == 1 || self.is_due(length)
    }
}
