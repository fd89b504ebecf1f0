//! Reports a message that is not acknowledged long after it was delivered, before the broker's `consumer_timeout` is over.
//!
//! Deliveries are numbered, and the last number is noted with the time now and then, so that no delivery needs a time of its
//! own.

use super::Dispatcher;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// How often it is looked for one.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);
/// The part of the `consumer_timeout` after which a message is reported.
const REPORTED_AFTER: f64 = 2.0 / 3.0;
/// Notes in the time after which a message is reported, about.
const NOTES: u32 = 8;

pub(super) struct Overdue {
    /// A message is reported after this time; none where the broker waits without limit.
    limit: Option<Duration>,
    /// The last delivery at these times, of the channel there is.
    notes: VecDeque<(Instant, u64)>,
    observed: Option<Instant>,
    is_reported: bool,
}

impl Overdue {
    pub(super) fn new(broker_timeout: Option<Duration>) -> Self {
        let limit = broker_timeout.map(|timeout| timeout.mul_f64(REPORTED_AFTER));
        Self { limit, notes: VecDeque::new(), observed: None, is_reported: false }
    }

    /// Deliveries are numbered anew: there is another channel.
    pub(super) fn restart(&mut self) {
        self.notes.clear();
    }

    /// Whether it is time to look.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.limit.is_some()
            && !self.is_reported
            && self.observed.is_none_or(|before| now.duration_since(before) >= OBSERVE_INTERVAL);
        if is_due {
            self.observed = Some(now);
        }
        is_due
    }

    /// Whether the oldest delivery that is not done is to be reported, which happens once. `last` is the latest delivery.
    fn observe(&mut self, now: Instant, last: u64, oldest: Option<u64>) -> bool {
        let Some(limit) = self.limit.filter(|_| !self.is_reported) else { return false };
        if self.notes.back().is_none_or(|(then, _)| now.duration_since(*then) >= limit / NOTES) {
            self.notes.push_back((now, last));
        }
        // The latest note that is old enough counts.
        let is_old = |(then, _): &(Instant, u64)| now.duration_since(*then) >= limit;
        while self.notes.get(1).is_some_and(is_old) {
            self.notes.pop_front();
        }
        let noted = self.notes.front().filter(|note| is_old(note)).map(|(_, tag)| *tag);
        self.is_reported = noted.zip(oldest).is_some_and(|(noted, oldest)| oldest <= noted);
        self.is_reported
    }
}

impl Dispatcher {
    /// Reports a message whose handler has run for two thirds of the broker's consumer timeout. In a pause no handler runs.
    pub(super) fn report_overdue(&mut self) {
        let now = Instant::now();
        if !self.overdue.is_due(now) || self.pause.is_paused() {
            return;
        }
        let Some(session) = &self.session else { return };
        let oldest = session.ledger.oldest();
        if !self.overdue.observe(now, session.ledger.last(), oldest) {
            return;
        }
        let is_it = |tag: u64| Some(tag) == oldest;
        let running = self.flights.values().find(|flight| is_it(flight.tag) && !flight.leave.is_revoked());
        tracing::warn!(
            consumer = self.set.name,
            queue = &*self.set.queue,
            id = running.and_then(|flight| flight.delivery.message_id()),
            consumer_timeout = ?self.set.broker_timeout.unwrap_or_default(),
            "a message is not acknowledged after two thirds of the broker's consumer_timeout. At its end the broker takes the \
             messages of this consumer back and delivers them again; what runs continues, and its outcome is used then. Raise \
             consumer_timeout at the broker, and give the consumer the new value, or lower the handler's timeout"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_that_is_not_done_after_two_thirds_of_the_timeout_is_reported_once() {
        let start = Instant::now();
        let minutes = |count: u64| start + Duration::from_secs(count * 60);
        // At each minute: the latest delivery, and the oldest that is not done.
        for (steps, expected) in [
            (vec![(0, 1, Some(1)), (19, 1, Some(1))], 0),
            (vec![(0, 1, Some(1)), (20, 1, Some(1)), (21, 1, Some(1)), (50, 1, Some(1))], 1),
            // It came later than the note.
            (vec![(0, 1, Some(1)), (10, 5, Some(2)), (20, 5, Some(2)), (29, 9, Some(2))], 0),
            (vec![(0, 1, Some(1)), (10, 5, Some(2)), (20, 5, Some(2)), (30, 9, Some(2))], 1),
            // Others are delivered and done meanwhile.
            (vec![(0, 1, Some(1)), (10, 500, Some(400)), (20, 900, Some(890)), (30, 1_000, None)], 0),
        ] {
            let mut overdue = Overdue::new(Some(Duration::from_secs(30 * 60)));
            let reported =
                steps.iter().filter(|(at, last, oldest)| overdue.observe(minutes(*at), *last, *oldest));
            assert_eq!(reported.count(), expected, "{steps:?}");
        }
        let mut unlimited = Overdue::new(None);
        assert!(!unlimited.observe(minutes(0), 1, Some(1)) && !unlimited.observe(minutes(900), 1, Some(1)));
    }
}
