//! Counts the handled messages and measures the time from the start of the first handler to the end of the last.
//!
//! The Rust peers include this file by its path, so that counting costs all of them the same. It runs in the consuming
//! process; the process that started it checks the result.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Number of digits of the message number at the start of a body.
const DIGITS: usize = 20;

/// Counts the messages handled by one process.
pub(crate) struct MessageCounter {
    /// How often each message was handled, by number. None in `watch` mode, where the reader of the output counts.
    seen: Option<Vec<AtomicU8>>,
    handled: AtomicUsize,
    started_at: OnceLock<Instant>,
    elapsed: OnceLock<Duration>,
}

impl MessageCounter {
    /// Counts up to this number of messages. With `watch` it prints a line for each message instead, without a limit.
    pub(crate) fn new(messages: &str) -> Result<Self, String> {
        let seen = match messages {
            "watch" => None,
            number => {
                let number =
                    number.parse().map_err(|error| format!("invalid number of messages `{messages}`: {error}"))?;
                Some(std::iter::repeat_with(|| AtomicU8::new(0)).take(number).collect())
            }
        };
        Ok(Self { seen, handled: AtomicUsize::new(0), started_at: OnceLock::new(), elapsed: OnceLock::new() })
    }

    /// Records that a handler starts.
    pub(crate) fn on_start(&self) {
        self.started_at.get_or_init(Instant::now);
    }

    /// Records that a handler is done with this message. Returns whether it was the last one.
    pub(crate) fn on_done(&self, body: &[u8]) -> bool {
        let Some(seen) = &self.seen else {
            println!("handled");
            return false;
        };
        if let Some(times) = number(body).and_then(|number| seen.get(number)) {
            times.fetch_add(1, Relaxed);
        }
        let last = self.handled.fetch_add(1, Relaxed) + 1 == seen.len();
        if last {
            let elapsed = self.started_at.get().map(Instant::elapsed).unwrap_or_default();
            self.elapsed.get_or_init(|| elapsed);
        }
        last
    }

    /// Returns the seconds, the number of handled messages and the number of different ones, separated by spaces.
    pub(crate) fn report(&self) -> String {
        let seconds = self.elapsed.get().map_or(f64::NAN, Duration::as_secs_f64);
        let different = self.seen.iter().flatten().filter(|times| times.load(Relaxed) > 0).count();
        format!("{seconds} {} {different}", self.handled.load(Relaxed))
    }
}

fn number(body: &[u8]) -> Option<usize> {
    std::str::from_utf8(body.get(..DIGITS)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(numbers: &[usize]) -> (bool, String) {
        let counter = MessageCounter::new("3").unwrap();
        let end = |number: &usize| {
            counter.on_start();
            counter.on_done(format!("{number:020} and the rest").as_bytes())
        };
        let last = numbers.iter().map(end).collect::<Vec<_>>().contains(&true);
        (last, counter.report())
    }

    #[test]
    fn on_done_returns_true_at_the_expected_count() {
        let (last, all) = report(&[2, 0, 1]);
        assert!(last && all.ends_with(" 3 3"), "{all}");
        let (last, two) = report(&[1, 0]);
        assert!(!last && two == "NaN 2 2", "{two}");
        for (numbers, ends) in [(&[0, 1, 1][..], " 3 2"), (&[0, 1, 3], " 3 2"), (&[0, 1, 2, 2], " 4 3")] {
            let (last, text) = report(numbers);
            assert!(last && text.ends_with(ends), "{numbers:?}: {text}");
        }
    }

    #[test]
    fn number_is_none_for_other_bodies() {
        assert_eq!(number(b"00000000000000000017 and the rest"), Some(17));
        assert_eq!(number(b"17"), None);
        assert_eq!(number(b"another message without digits"), None);
    }
}
