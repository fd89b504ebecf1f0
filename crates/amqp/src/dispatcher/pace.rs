//! The prefetch of a consumer at work follows its handlers.

use super::Dispatcher;
use crate::error::Error;
use std::time::{Duration, Instant};

/// Between two looks at how fast handlers are.
const MEASURE_BETWEEN: Duration = Duration::from_millis(50);

impl Dispatcher {
    /// The prefetch of the next channel.
    pub(super) fn first_prefetch(&self) -> u16 {
        match self.set.is_stream {
            true => self.set.sizing.prefetch,
            false if self.holds_one_message() => 1,
            false => self.pacing.first(self.set.sizing.is_given || self.set.has_fixed_prefetch()),
        }
    }

    /// Changes the prefetch where another is much better.
    pub(super) fn adapt(&mut self) {
        // In a pause one message may be in hand. More would go back to the queue, and come again as if none had failed.
        if self.set.is_stream || self.flights.is_empty() || self.pause.is_paused() {
            return;
        }
        if self.measured.elapsed() >= MEASURE_BETWEEN {
            self.measured = Instant::now();
            let stats = self.crew.stats();
            let kind = stats.kinds.first();
            let (count, mean) = kind.map_or((0, 0), |kind| (kind.count, kind.mean_ns));
            self.pacing.measure(count, Duration::from_nanos(mean));
        }
        let Some(session) = self.session.as_mut().filter(|_| !self.set.has_fixed_prefetch()) else { return };
        if let Some(prefetch) = self.pacing.change(session.prefetch) {
            session.wish(prefetch);
        }
    }

    /// Says what can be done about a channel that the broker closed over a message that took too long.
    pub(super) fn explain(&self, error: &Error) {
        if !matches!(error, Error::Channel { code: 406, text } if text.contains("timed out")) {
            return;
        }
        match self.pause.is_paused() {
            true => tracing::info!(
                consumer = self.set.name,
                queue = &*self.set.queue,
                "consuming is paused for longer than the broker's consumer_timeout, so the broker took its messages back; it \
                 delivers them again, and they keep their attempts"
            ),
            false => tracing::warn!(
                consumer = self.set.name,
                queue = &*self.set.queue,
                "a message was not acknowledged within the broker's consumer_timeout, so the broker took its messages back; \
                 what runs continues, and its outcome is used when its message is delivered again. Raise consumer_timeout at \
                 the broker, or lower the handler's timeout or the prefetch"
            ),
        }
    }
}
