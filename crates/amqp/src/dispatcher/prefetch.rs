//! The prefetch of a consumer at work follows its handlers.

use super::Dispatcher;
use crate::error::Error;
use std::time::{Duration, Instant};

/// Between two looks at how fast handlers are.
const MEASURE_INTERVAL: Duration = Duration::from_millis(50);

impl Dispatcher {
    /// The prefetch of the next channel.
    pub(super) fn initial_prefetch(&self) -> u16 {
        match self.config.is_stream {
            true => self.config.sizing.prefetch,
            false if self.holds_one_message() => 1,
            false => self
                .adaptive_prefetch
                .initial(self.config.sizing.is_explicit || self.config.has_fixed_prefetch()),
        }
    }

    /// Changes the prefetch where another is much better.
    pub(super) fn adapt_prefetch(&mut self) {
        // In a pause one message may be in hand. More would go back to the queue, and come again as if none had failed.
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

    /// Says what can be done about a channel that the broker closed over a message that took too long.
    pub(super) fn explain_timeout(&self, error: &Error) {
        if !matches!(error, Error::Channel { code: 406, text } if text.contains("timed out")) {
            return;
        }
        match self.pause.is_paused() {
            true => tracing::info!(
                consumer = self.config.name,
                queue = &*self.config.queue,
                "consuming is paused for longer than the broker's consumer_timeout, so the broker took its messages back; it \
                 delivers them again, and they keep their attempts"
            ),
            false => tracing::warn!(
                consumer = self.config.name,
                queue = &*self.config.queue,
                "a message was not acknowledged within the broker's consumer_timeout, so the broker took its messages back; \
                 what runs continues, and its outcome is used when its message is delivered again. Raise consumer_timeout at \
                 the broker, or lower the handler's timeout or the prefetch"
            ),
        }
    }
}
