//! How many tasks to claim ahead of the workers.
//!
//! Owns the estimate. Enough that workers do not wait for the disk, no more than they do in a moment: what one
//! process holds, another cannot have.

use std::time::{Duration, Instant};

/// So much work is held ready, by time.
const AHEAD: Duration = Duration::from_millis(50);

/// And so much at most, by number: a turn of this size takes some ten milliseconds.
const MOST: usize = 2_048;

/// What workers get done, from one turn to the next.
#[derive(Debug)]
pub(crate) struct Pace {
    workers: usize,
    /// Tasks a second.
    rate: f64,
    last: Instant,
    /// Whether workers had enough to do since then.
    busy: bool,
}

impl Pace {
    pub(crate) fn new(workers: usize) -> Self {
        Pace { workers, rate: 0.0, last: Instant::now(), busy: false }
    }

    /// How many may be in the air: one for each worker, and what they will do next.
    pub(crate) fn capacity(&self) -> usize {
        let ahead = (self.rate * AHEAD.as_secs_f64()) as usize;
        self.workers + ahead.min(MOST)
    }

    /// The most that can ever be.
    pub(crate) fn limit(&self) -> usize {
        self.workers + MOST
    }

    /// A turn is over: so many were done since the last one, so many are in the air now.
    pub(crate) fn turned(&mut self, done: usize, in_air: usize) {
        let now = Instant::now();
        let took = now.duration_since(self.last).as_secs_f64().max(1e-6);
        if self.busy && done > 0 {
            let seen = done as f64 / took;
            self.rate = if self.rate == 0.0 { seen } else { (self.rate + seen) / 2.0 };
        }
        self.last = now;
        self.busy = in_air >= self.workers;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_work_is_not_hoarded() {
        let mut pace = Pace::new(2);
        assert_eq!(pace.capacity(), 2);
        pace.turned(0, 2);
        pace.last = Instant::now() - Duration::from_secs(2);
        pace.turned(2, 2);
        assert_eq!(pace.capacity(), 2);
    }

    #[test]
    fn quick_work_is_held_ready_up_to_a_limit() {
        let mut pace = Pace::new(2);
        pace.turned(0, 2);
        pace.last = Instant::now() - Duration::from_millis(1);
        pace.turned(2, 2);
        let first = pace.capacity();
        assert!((20..=110).contains(&first), "{first}");
        for _ in 0..20 {
            pace.turned(1_000, 1_000);
        }
        assert_eq!(pace.capacity(), pace.limit());
    }

    #[test]
    fn idle_time_says_nothing_about_the_pace() {
        let mut pace = Pace::new(1);
        pace.turned(0, 1);
        pace.last = Instant::now() - Duration::from_millis(1);
        pace.turned(1, 0);
        let before = pace.rate;
        pace.last = Instant::now() - Duration::from_secs(3_600);
        pace.turned(1, 0);
        assert_eq!(pace.rate, before);
    }
}
