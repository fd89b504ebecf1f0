//! Warns about a message that is still unacknowledged when two thirds of the broker's `consumer_timeout` have passed.
//!
//! Delivery tags are sequential, so the latest tag is sampled with the time, and no delivery needs a timestamp.

use super::Dispatcher;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Fraction of the `consumer_timeout` after which a message is reported.
const WARN_FRACTION: f64 = 2.0 / 3.0;
/// Approximate number of samples within the limit.
const SAMPLES_PER_LIMIT: u32 = 8;

pub(super) struct AckTimeout {
    /// Age at which a message is reported; none if the broker waits without limit.
    limit: Option<Duration>,
    /// Latest delivery tag of the current channel at these times.
    pub(super) samples: VecDeque<(Instant, u64)>,
    observed: Option<Instant>,
    is_reported: bool,
}

impl AckTimeout {
    pub(super) fn new(consumer_timeout: Option<Duration>) -> Self {
        let limit = consumer_timeout.map(|timeout| timeout.mul_f64(WARN_FRACTION));
        Self { limit, samples: VecDeque::new(), observed: None, is_reported: false }
    }

    /// Whether the next check is due; if so, records its time.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.limit.is_some()
            && !self.is_reported
            && self.observed.is_none_or(|before| now.duration_since(before) >= CHECK_INTERVAL);
        if is_due {
            self.observed = Some(now);
        }
        is_due
    }

    /// Whether the oldest unfinished delivery is to be reported, which happens once. `last` is the latest delivery.
    fn observe(&mut self, now: Instant, last: u64, oldest: Option<u64>) -> bool {
        let Some(limit) = self.limit.filter(|_| !self.is_reported) else { return false };
        if self.samples.back().is_none_or(|(then, _)| now.duration_since(*then) >= limit / SAMPLES_PER_LIMIT) {
            self.samples.push_back((now, last));
        }
        // The latest sample that is old enough counts.
        let is_old = |(then, _): &(Instant, u64)| now.duration_since(*then) >= limit;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        let sampled_tag = self.samples.front().filter(|sample| is_old(sample)).map(|(_, tag)| *tag);
        self.is_reported = sampled_tag.zip(oldest).is_some_and(|(sampled_tag, oldest)| oldest <= sampled_tag);
        self.is_reported
    }
}

impl Dispatcher {
    /// Warns about a message whose handler has run for two thirds of the consumer timeout, unless consuming is paused.
    pub(super) fn warn_before_ack_timeout(&mut self) {
        let now = Instant::now();
        if !self.ack_timeout.is_due(now) || self.pause.is_paused() {
            return;
        }
        let Some(session) = &self.session else { return };
        let oldest = session.acks.oldest_unfinished();
        if !self.ack_timeout.observe(now, session.acks.last_tag(), oldest) {
            return;
        }
        let is_oldest = |tag: u64| Some(tag) == oldest;
        let running = self.in_pool.values().find(|message| is_oldest(message.tag) && !message.cancel.is_cancelled());
        tracing::warn!(
            consumer = self.config.name,
            queue = &*self.config.queue,
            id = running.and_then(|message| message.delivery.message_id()),
            consumer_timeout = ?self.config.declared.consumer_timeout.unwrap_or_default(),
            "a message is unacknowledged after two thirds of the broker's consumer_timeout. When it expires, the broker redelivers \
             the messages of this consumer; running handlers continue and their outcome is used then. Raise consumer_timeout at \
             the broker and state the new value for the consumer, or lower the handler's timeout"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_delivery_is_reported_once_after_two_thirds_of_the_timeout() {
        let start = Instant::now();
        let minutes = |count: u64| start + Duration::from_secs(count * 60);
        // At each minute: the latest delivery, and the oldest unfinished one.
        for (samples, expected) in [
            (vec![(0, 1, Some(1)), (19, 1, Some(1))], 0),
            (vec![(0, 1, Some(1)), (20, 1, Some(1)), (21, 1, Some(1)), (50, 1, Some(1))], 1),
            // Delivered after the sample.
            (vec![(0, 1, Some(1)), (10, 5, Some(2)), (20, 5, Some(2)), (29, 9, Some(2))], 0),
            (vec![(0, 1, Some(1)), (10, 5, Some(2)), (20, 5, Some(2)), (30, 9, Some(2))], 1),
            // Other messages are delivered and finished meanwhile.
            (vec![(0, 1, Some(1)), (10, 500, Some(400)), (20, 900, Some(890)), (30, 1_000, None)], 0),
        ] {
            let mut ack_timeout = AckTimeout::new(Some(Duration::from_secs(30 * 60)));
            let reported =
                samples.iter().filter(|(at, last, oldest)| ack_timeout.observe(minutes(*at), *last, *oldest));
            assert_eq!(reported.count(), expected, "{samples:?}");
        }
        let mut unlimited = AckTimeout::new(None);
        assert!(!unlimited.observe(minutes(0), 1, Some(1)) && !unlimited.observe(minutes(900), 1, Some(1)));
    }
}
