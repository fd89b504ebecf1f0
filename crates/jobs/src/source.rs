//! The interface of a source of work, as the dispatcher uses it.
//!
//! Sources are polled in the order of the protocol: scan and hash jobs, thumbnails, thumbnail clean-up, WAL
//! checkpoints, then tasks.

use std::time::{Duration, Instant};

use gristmill_store::{Error, UtcTime};

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

    /// Number of rows that were dispatched to a worker and whose handler has not ended.
    fn running(&self) -> usize;

    /// Cancels the handlers of rows whose cancellation was requested. Called at most 100 ms after a write.
    fn apply_cancellations(&mut self) -> Result<(), Error> {
        Ok(())
    }

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

/// Renews the leases of one source, or the row of the worker in `workers`, on the thread `jobs-heartbeat`.
pub(crate) trait LeaseRenewer: Send {
    /// When [`renew`](Self::renew) must be called next.
    fn due(&self) -> Instant;

    /// Renews the leases in the store and cancels the handlers whose lease is lost.
    fn renew(&mut self) -> Result<(), Error>;
}
