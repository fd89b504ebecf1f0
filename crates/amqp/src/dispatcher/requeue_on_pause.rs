//! Returns messages to the queue that would only wait while consuming is paused.
//!
//! In a long pause a consumer holds one message, for its probes. Other consumers can receive the rest, and the broker's
//! `consumer_timeout` does not run for them. The channel is closed, which requeues everything in place, and another is
//! opened with a prefetch of one. Where order is kept the messages stay, because no other consumer may handle them.

use super::{Dispatcher, session::Session};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// Time that a quorum queue gets to process acknowledgements before their channel is closed.
pub(super) const ACK_SETTLE_TIME: Duration = Duration::from_millis(250);

impl Dispatcher {
    /// Takes the session to be closed when a long pause has begun and more than one message waits while nothing runs.
    pub(super) fn requeue_on_long_pause(&mut self) -> Option<Session> {
        let is_idle = self.in_pool.is_empty() && self.follow_ups.messages.is_empty();
        if !is_idle || !self.holds_one_message() || self.waiting() <= 1 {
            return None;
        }
        self.session.as_ref().filter(|session| session.prefetch > 1 && session.is_settled(ACK_SETTLE_TIME))?;
        let session = self.session.take()?;
        session.cancel.cancel();
        tracing::info!(
            consumer = self.config.name,
            queue = &*self.config.queue,
            messages = self.waiting(),
            "the pause is long; waiting messages go back to the queue, and one is kept for probes"
        );
        self.discard_waiting();
        self.counters.consuming.store(false, Relaxed);
        Some(session)
    }

    /// Whether to hold one message only: consuming has been paused for at least the longest probe delay.
    pub(super) fn holds_one_message(&self) -> bool {
        let is_long = self.pause.since.is_some_and(|since| since.elapsed() >= self.config.declared.probe_delay.1);
        is_long && !self.config.is_stream && !self.config.has_fixed_prefetch()
    }
}

impl Session {
    /// Whether no acknowledgement is pending, and the last was sent at least `settle_time` ago.
    fn is_settled(&self, settle_time: Duration) -> bool {
        self.acks.pending == 0 && self.acked_at.is_none_or(|acked| acked.elapsed() >= settle_time)
    }
}
