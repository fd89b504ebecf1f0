//! What the dispatcher asks of each source of work.
//!
//! The order in which it asks is the order of the protocol: scan and hash jobs, thumbnails, their clean-up, care
//! of the log, then tasks.

use std::time::{Duration, Instant};

use gristmill_store::{Error, UtcTime};

/// A source of work: claims rows, runs them on its pools, settles them.
pub(crate) trait Line: Send {
    /// Frees rows whose worker has gone silent.
    fn recover(&mut self) -> Result<(), Error>;

    /// Writes down what has come in; as `look` says, claims as much as there is room for.
    fn turn(&mut self, look: Look) -> Result<Turned, Error>;

    /// Now and then: forgets what is old, does what was left undone. Says whether there is more of it.
    fn care(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Whether anything waits to be done again, or is due and cannot be claimed yet. What is scheduled for a first run
    /// later does not count.
    fn has_waiting(&self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Rows claimed and not yet settled.
    fn in_air(&self) -> usize;

    /// Rows claimed whose handler has not ended.
    fn running(&self) -> usize;

    /// Stops the handlers of rows that are to be cancelled, or were. Called within a moment of every write.
    fn stop_cancelled(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// How long what has come in may wait for more to come, before it is written down.
    fn linger(&self) -> Option<Duration>;

    /// Tells every handler to stop.
    fn cancel(&mut self);

    /// Gives up waiting for handlers: frees their rows.
    fn leave(&mut self) -> Result<(), Error>;

    /// The next time at which something is known to become due.
    fn next_due(&self) -> Option<UtcTime> {
        None
    }

    /// How long its leases are.
    fn lease(&self) -> Duration;
}

/// Whether to look for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// There is no reason to.
    No,
    /// There may be some. Others are busy, so a line that seldom has any may put it off a little.
    Soon,
    /// There may be some, and nobody has anything to do.
    Now,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turned {
    /// Rows settled.
    pub(crate) settled: usize,
    /// Rows claimed.
    pub(crate) claimed: usize,
    /// Whether it has looked for work, if it was to: a line may put it off a little.
    pub(crate) looked: bool,
}

/// Prolongs the leases of a line, from a thread that does nothing else.
pub(crate) trait Beats: Send {
    /// When it has to be done next.
    fn due(&self) -> Instant;

    /// Does it.
    fn beat(&mut self) -> Result<(), Error>;
}
