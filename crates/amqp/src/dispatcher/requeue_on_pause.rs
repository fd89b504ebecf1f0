//! Gives messages back to the queue that would only wait while consuming is paused.
//!
//! In a long pause a consumer holds one message, for its probes. Other consumers can have the rest, and the broker's
//! `consumer_timeout` does not run for it. The channel is closed, which returns everything to its place in the queue, and
//! another is opened with a prefetch of one. Where order is kept the messages stay: no other consumer is to have them.

use super::{Dispatcher, session::Session};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// How long a quorum queue has to take in acknowledgements before their channel is closed.
pub(super) const ACK_SETTLE_TIME: Duration = Duration::from_millis(250);

impl Dispatcher {
    /// The channel to be closed, when a long pause has begun and more than one message waits. Nothing runs then.
    pub(super) fn requeue_on_long_pause(&mut self) -> Option<Session> {
        let is_idle = self.in_pool.is_empty() && self.follow_ups.len() == 0;
        if !is_idle || !self.holds_one_message() || self.waiting() <= 1 {
            return None;
        }
        self.session
            .as_ref()
            .filter(|session| session.prefetch > 1 && session.is_settled(ACK_SETTLE_TIME))?;
        let session = self.session.take()?;
        session.cancel.cancel();
        tracing::info!(
            consumer = self.config.name,
            queue = &*self.config.queue,
            messages = self.waiting(),
            "the pause is long; messages that wait go back to the queue, and one is kept for probes"
        );
        self.discard_waiting();
        self.counters.consuming.store(false, Relaxed);
        Some(session)
    }

    /// Whether one message in hand is enough: consuming is paused, and has been for as long as probes are apart at most.
    pub(super) fn holds_one_message(&self) -> bool {
        let is_long = self.pause.since().is_some_and(|since| since.elapsed() >= self.config.probe_delay.1);
        is_long && !self.config.is_stream && !self.config.has_fixed_prefetch()
    }

    /// Messages in hand that wait for a worker or for the sink.
    pub(super) fn waiting(&self) -> usize {
        self.keyed_queue.len()
            + self.suspects.len()
            + usize::from(self.overflow.is_some())
            + self.pause.waiting()
    }
}

impl Session {
    /// Whether the broker knows of everything that is done, and for long enough.
    fn is_settled(&self, for_long: Duration) -> bool {
        self.acks.pending() == 0 && self.acked_at.is_none_or(|acked| acked.elapsed() >= for_long)
    }
}
