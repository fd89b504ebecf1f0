//! Messages that a consumer has moved to wait for another attempt, until they come back to it.
//!
//! Owns the mark that such a message carries. The broker counts a message in no queue while it hands it over from the queue
//! where it waited, so that only the consumer itself knows that it is still to come.

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

/// A message that has not come back for this long after its wait is overdue: another consumer of the queue has received it, or
/// the broker cannot return it. The broker tries again after three minutes where the queue was full.
const OVERDUE_AFTER: Duration = Duration::from_secs(600);
/// How often is looked for such messages.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// At most this many of them are kept, the latest.
const MAX_OVERDUE: usize = 100_000;

pub(crate) struct Postponed {
    /// Distinguishes the messages of this run from those of others.
    run: String,
    last: AtomicU64,
    /// No message is out.
    is_empty: AtomicBool,
    outstanding: Mutex<Outstanding>,
}

/// Messages that have not come back, by their numbers.
#[derive(Default)]
struct Outstanding {
    /// With the time from which on they are overdue.
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
    /// Marks a message that is moved, and expects it back after this time. Its number is for [`cancel`](Self::cancel).
    pub(crate) fn mark(&self, headers: &mut Headers, delay: Duration) -> u64 {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        headers.set(header::POSTPONED, format!("{}:{number}", self.run));
        let until = deadline_after(delay.saturating_add(OVERDUE_AFTER));
        self.update(|outstanding| outstanding.expected.insert(number, until));
        number
    }

    /// The message was not moved.
    pub(crate) fn cancel(&self, number: u64) {
        self.update(|outstanding| outstanding.remove(number));
    }

    /// A message has come: it may be one that is out.
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

    /// How many are expected to come back, and how many are overdue.
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
    fn message_is_expected_until_it_comes_back_or_was_not_moved() {
        let (one, other) =
            (Postponed::default(), Postponed { run: "other".to_owned(), ..Postponed::default() });
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
        // Also if it comes twice.
        one.received(&first);
        one.received(&first);
        assert_eq!(one.count(), (1, 0));
        one.cancel(number);
        one.received(&second);
        assert_eq!((one.count(), other.count()), ((0, 0), (1, 0)));
    }

    /// Another consumer of the queue has received it.
    #[tokio::test(start_paused = true)]
    async fn message_that_does_not_come_back_is_overdue_after_a_while() {
        let (postponed, minute) = (Postponed::default(), Duration::from_secs(60));
        let advance = |minutes: u32| tokio::time::advance(minute * minutes);
        let mut headers = Headers::new();
        postponed.mark(&mut headers, 5 * minute);
        advance(14).await;
        assert_eq!(postponed.count(), (1, 0));
        advance(2).await;
        assert_eq!(postponed.count(), (0, 1));
        // It may come late.
        postponed.received(&headers);
        assert_eq!(postponed.count(), (0, 0));
        // What is kept of them is bounded.
        for _ in 0..MAX_OVERDUE + 5 {
            postponed.mark(&mut Headers::new(), minute);
        }
        advance(12).await;
        assert_eq!(postponed.count(), (0, MAX_OVERDUE as u64));
    }
}
