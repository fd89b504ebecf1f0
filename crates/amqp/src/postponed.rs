//! Counts messages that a consumer has moved to a retry queue until they return.
//!
//! Owns the header that marks such a message. While the broker moves a message from its retry queue back, it counts it
//! in no queue, so only the consumer knows of it.

use crate::{delivery::header, reconnect::deadline_after, wire::table::Headers};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;

/// A message that has not returned this long after its delay is overdue: another consumer of the queue received it, or
/// the broker cannot return it. If the queue was full, the broker retries after three minutes.
const OVERDUE_AFTER: Duration = Duration::from_secs(600);
/// Interval between checks for overdue messages.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of overdue messages that are kept, the latest.
const MAX_OVERDUE: usize = 100_000;

pub(crate) struct Postponed {
    /// Identifies this run of the consumer in the header.
    run: String,
    last: AtomicU64,
    is_empty: AtomicBool,
    outstanding: Mutex<Outstanding>,
}

/// Messages that have not returned, by number.
#[derive(Default)]
struct Outstanding {
    /// With the time at which they become overdue.
    expected: HashMap<u64, Instant>,
    overdue: BTreeSet<u64>,
    checked_at: Option<Instant>,
}

impl Outstanding {
    fn remove(&mut self, number: u64) {
        if self.expected.remove(&number).is_none() {
            self.overdue.remove(&number);
        }
    }

    fn move_overdue(&mut self) {
        let now = Instant::now();
        if self.checked_at.is_some_and(|at| now.duration_since(at) < OVERDUE_CHECK_INTERVAL) {
            return;
        }
        self.checked_at = Some(now);
        self.overdue.extend(self.expected.extract_if(|_, until| *until <= now).map(|(number, _)| number));
        while self.overdue.len() > MAX_OVERDUE {
            self.overdue.pop_first();
        }
    }
}

impl Default for Postponed {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self {
            run: format!("{}-{now:x}", std::process::id()),
            last: AtomicU64::new(0),
            is_empty: AtomicBool::new(true),
            outstanding: Mutex::default(),
        }
    }
}

impl Postponed {
    /// Marks a message that is moved and expects it back after `delay`. Returns its number, for `cancel`.
    pub(crate) fn mark(&self, headers: &mut Headers, delay: Duration) -> u64 {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        headers.set(header::POSTPONED, format!("{}:{number}", self.run));
        let until = deadline_after(delay.saturating_add(OVERDUE_AFTER));
        self.update(|outstanding| outstanding.expected.insert(number, until));
        number
    }

    /// Removes a message that was not moved after all.
    pub(crate) fn cancel(&self, number: u64) {
        self.update(|outstanding| outstanding.remove(number));
    }

    /// Removes a received message if it is an outstanding one.
    pub(crate) fn received(&self, headers: &Headers) {
        if self.is_empty.load(Relaxed) {
            return;
        }
        let mark = headers.get(header::POSTPONED).and_then(crate::FieldValue::as_str);
        let number = mark.and_then(|mark| mark.strip_prefix(&self.run)?.strip_prefix(':')?.parse().ok());
        if let Some(number) = number {
            self.update(|outstanding| outstanding.remove(number));
        }
    }

    /// Returns the number of expected and of overdue messages.
    pub(crate) fn count(&self) -> (u64, u64) {
        self.update(|outstanding| (outstanding.expected.len() as u64, outstanding.overdue.len() as u64))
    }

    fn update<T>(&self, change: impl FnOnce(&mut Outstanding) -> T) -> T {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        outstanding.move_overdue();
        let changed = change(&mut outstanding);
        self.is_empty.store(outstanding.expected.is_empty() && outstanding.overdue.is_empty(), Relaxed);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_expected_until_it_returns_or_was_not_moved() {
        let (one, other) = (Postponed::default(), Postponed { run: "other".to_owned(), ..Postponed::default() });
        let marked = |postponed: &Postponed| {
            let mut headers = Headers::new();
            let number = postponed.mark(&mut headers, Duration::ZERO);
            (headers, number)
        };
        let ((first, _), (second, number)) = (marked(&one), marked(&one));
        let (foreign, _) = marked(&other);
        assert_eq!((one.count(), other.count()), ((2, 0), (1, 0)));
        for headers in [&foreign, &Headers::new(), &Headers::new().with(header::POSTPONED, "7")] {
            one.received(headers);
            assert_eq!(one.count(), (2, 0));
        }
        one.received(&first);
        one.received(&first);
        assert_eq!(one.count(), (1, 0));
        one.cancel(number);
        one.received(&second);
        assert_eq!((one.count(), other.count()), ((0, 0), (1, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn message_that_does_not_return_becomes_overdue() {
        let (postponed, minute) = (Postponed::default(), Duration::from_secs(60));
        let advance = |minutes: u32| tokio::time::advance(minute * minutes);
        let mut headers = Headers::new();
        postponed.mark(&mut headers, 5 * minute);
        advance(14).await;
        assert_eq!(postponed.count(), (1, 0));
        advance(2).await;
        assert_eq!(postponed.count(), (0, 1));
        // A message can return late.
        postponed.received(&headers);
        assert_eq!(postponed.count(), (0, 0));
        // The number kept is bounded.
        for _ in 0..MAX_OVERDUE + 5 {
            postponed.mark(&mut Headers::new(), minute);
        }
        advance(12).await;
        assert_eq!(postponed.count(), (0, MAX_OVERDUE as u64));
    }
}
