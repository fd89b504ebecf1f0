//! Messages that a consumer has moved to wait for another attempt, until they come back to it.
//!
//! Owns the mark that such a message carries. The broker counts a message in no queue while it hands it over from the queue
//! where it waited, so that only the consumer itself knows that it is still to come.

use crate::{delivery::header, link::later, wire::table::Headers};
use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;

/// A message that has not come back for this long after its wait went to another consumer of the queue. The broker itself tries
/// again after three minutes to return a message to a queue that was full.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// How often is looked for such messages.
const LOOK_EVERY: Duration = Duration::from_secs(60);

pub(crate) struct Postponed {
    /// Distinguishes the messages of this run from those of others.
    run: String,
    last: AtomicU64,
    count: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// By their numbers, when they are not expected any more.
    until: HashMap<u64, Instant>,
    looked_at: Option<Instant>,
}

impl Default for Postponed {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self {
            run: format!("{}-{now:x}", std::process::id()),
            last: AtomicU64::new(0),
            count: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }
}

impl Postponed {
    /// Marks a message that is moved, and expects it back after this time. Its number is for [`cancel`](Self::cancel).
    pub(crate) fn mark(&self, headers: &mut Headers, delay: Duration) -> u64 {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        headers.set(header::POSTPONED, format!("{}:{number}", self.run));
        let until = later(delay.saturating_add(FORGET_AFTER));
        self.update(|waiting| {
            waiting.insert(number, until);
        });
        number
    }

    /// The message was not moved.
    pub(crate) fn cancel(&self, number: u64) {
        self.update(|waiting| {
            waiting.remove(&number);
        });
    }

    /// A message has come: it may be one that is expected.
    pub(crate) fn received(&self, headers: &Headers) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mark = headers.get(header::POSTPONED).and_then(crate::Value::as_str);
        let number = mark.and_then(|mark| mark.strip_prefix(&self.run)?.strip_prefix(':')?.parse().ok());
        if let Some(number) = number {
            self.update(|waiting| {
                waiting.remove(&number);
            });
        }
    }

    /// How many have not come back.
    pub(crate) fn count(&self) -> u64 {
        self.update(|_| ());
        self.count.load(Relaxed)
    }

    fn update(&self, change: impl FnOnce(&mut HashMap<u64, Instant>)) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { until, looked_at } = &mut *waiting;
        change(until);
        let now = Instant::now();
        if looked_at.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY) {
            *looked_at = Some(now);
            until.retain(|_, until| *until > now);
        }
        self.count.store(until.len() as u64, Relaxed);
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
        assert_eq!((one.count(), other.count()), (2, 1));
        for headers in [&foreign, &Headers::new(), &Headers::new().with(header::POSTPONED, "7")] {
            one.received(headers);
            assert_eq!(one.count(), 2);
        }
        // Also if it comes twice.
        one.received(&first);
        one.received(&first);
        assert_eq!(one.count(), 1);
        one.cancel(number);
        one.received(&second);
        assert_eq!((one.count(), other.count()), (0, 1));
    }
    /// Another consumer of the queue has received it.
    #[tokio::test(start_paused = true)]
    async fn message_that_does_not_come_back_is_not_expected_for_ever() {
        let (postponed, minute) = (Postponed::default(), Duration::from_secs(60));
        let advance = |minutes: u32| tokio::time::advance(minute * minutes);
        postponed.mark(&mut Headers::new(), 5 * minute);
        advance(14).await;
        assert_eq!(postponed.count(), 1);
        advance(2).await;
        assert_eq!(postponed.count(), 0);
        // Also where the count is never asked for.
        for _ in 0..100 {
            postponed.mark(&mut Headers::new(), minute);
            advance(1).await;
        }
        let kept = postponed.waiting.lock().unwrap().until.len();
        assert!((10..=13).contains(&kept), "{kept}");
    }
}
