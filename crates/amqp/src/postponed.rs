//! Messages that a consumer has moved to wait for another attempt, until they come back to it.
//!
//! Owns the mark that such a message carries. The broker counts a message in no queue while it hands it over from the queue
//! where it waited, so that only the consumer itself knows that it is still to come.

use crate::{delivery::header, wire::table::Headers};
use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) struct Postponed {
    /// Distinguishes the messages of this run from those of others.
    run: String,
    last: AtomicU64,
    count: AtomicU64,
    waiting: Mutex<HashSet<u64>>,
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
    /// Marks a message that is moved, and expects it back. Its number is for [`cancel`](Self::cancel).
    pub(crate) fn mark(&self, headers: &mut Headers) -> u64 {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        headers.set(header::POSTPONED, format!("{}:{number}", self.run));
        self.update(|waiting| waiting.insert(number));
        number
    }

    /// The message was not moved.
    pub(crate) fn cancel(&self, number: u64) {
        self.update(|waiting| waiting.remove(&number));
    }

    /// A message has come: it may be one that is expected.
    pub(crate) fn received(&self, headers: &Headers) {
        if self.count() == 0 {
            return;
        }
        let mark = headers.get(header::POSTPONED).and_then(crate::Value::as_str);
        let number = mark.and_then(|mark| mark.strip_prefix(&self.run)?.strip_prefix(':')?.parse().ok());
        if let Some(number) = number {
            self.update(|waiting| waiting.remove(&number));
        }
    }

    /// How many have not come back.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn update(&self, change: impl FnOnce(&mut MutexGuard<'_, HashSet<u64>>) -> bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut waiting);
        self.count.store(waiting.len() as u64, Relaxed);
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
            let number = postponed.mark(&mut headers);
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
}
