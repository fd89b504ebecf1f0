//! Adapts the prefetch of a running consumer to how long its handlers take.

use super::Dispatcher;
use crate::error::Error;
use std::time::{Duration, Instant};

/// Interval between measurements of handler durations.
const MEASURE_INTERVAL: Duration = Duration::from_millis(50);

impl Dispatcher {
    pub(super) fn initial_prefetch(&self) -> u16 {
        match self.config.is_stream {
            true => self.config.sizing.prefetch,
            false if self.holds_one_message() => 1,
            false => self.adaptive_prefetch.initial(self.config.sizing.is_explicit || self.config.has_fixed_prefetch()),
        }
    }

    /// Requests another prefetch where it is much better.
    pub(super) fn adapt_prefetch(&mut self) {
        // In a pause one message is enough; more would be requeued, and return as if none had failed.
        if self.config.is_stream || self.in_pool.is_empty() || self.pause.is_paused() {
            return;
        }
        if self.measured_at.elapsed() >= MEASURE_INTERVAL {
            self.measured_at = Instant::now();
            let stats = self.pool.stats();
            let kind = stats.kinds.first();
            let (count, mean) = kind.map_or((0, 0), |kind| (kind.count, kind.mean_ns));
            self.adaptive_prefetch.measure(count, Duration::from_nanos(mean));
        }
        let Some(session) = self.session.as_mut().filter(|_| !self.config.has_fixed_prefetch()) else {
            return;
        };
        if let Some(prefetch) = self.adaptive_prefetch.adjusted(session.prefetch) {
            session.request_prefetch(prefetch);
        }
    }

    /// Logs what to do about a channel that the broker closed because a message was unacknowledged for too long.
    pub(super) fn explain_timeout(&self, error: &Error) {
        if !matches!(error, Error::Channel { code: 406, text } if text.contains("timed out")) {
            return;
        }
        match self.pause.is_paused() {
            true => tracing::info!(
                consumer = self.config.name,
                queue = &*self.config.queue,
                "consuming is paused for longer than the broker's consumer_timeout; the broker redelivers its messages, which keep \
                 their attempts"
            ),
            false => tracing::warn!(
                consumer = self.config.name,
                queue = &*self.config.queue,
                "a message was not acknowledged within the broker's consumer_timeout, so the broker redelivers this consumer's \
                 messages; running handlers continue and their outcome is used then. Raise consumer_timeout at the broker, \
                 or lower the handler's timeout or the prefetch"
            ),
        }
    }
}
