//! How many tasks to claim ahead of the workers.
//!
//! Owns the estimate. It follows how long handlers take: enough is held ready that workers do not wait for the disk, and
//! no more than they start within a moment. What one process holds, another cannot have, and nothing more urgent
//! overtakes it in another process.

use std::time::Duration;

/// As much is held ready as the workers start within this time.
const AHEAD: Duration = Duration::from_millis(50);

/// The most tasks held ready: a visit to the store of this size takes some ten milliseconds.
const MOST: usize = 2_048;

/// The share of one handler's duration in the mean.
const WEIGHT: f64 = 1.0 / 8.0;

/// How long the handlers of a kind take.
#[derive(Debug)]
pub(crate) struct Pace {
    workers: usize,
    claims_ahead: bool,
    /// A moving mean, in seconds.
    mean: Option<f64>,
}

impl Pace {
    /// `claims_ahead`: whether more may be claimed than the workers run.
    pub(crate) fn new(workers: usize, claims_ahead: bool) -> Self {
        Pace { workers, claims_ahead, mean: None }
    }

    /// How many tasks may be claimed and unsettled: one for each worker, and what the workers start next. `busy_for`: no
    /// worker has become free for this long.
    pub(crate) fn capacity(&self, busy_for: Duration) -> usize {
        let Some(mean) = self.mean.filter(|_| self.claims_ahead) else { return self.workers };
        let each = mean.max(busy_for.as_secs_f64()).max(1e-9);
        let ahead = self.workers as f64 * AHEAD.as_secs_f64() / each;
        self.workers + (ahead as usize).min(MOST)
    }

    /// From how many tasks on some are given back. Above the capacity where that is large: it is an estimate, and each
    /// task that is given back costs two writes.
    pub(crate) fn give_back_above(&self, capacity: usize) -> usize {
        if capacity > 2 * self.workers { capacity + capacity / 2 } else { capacity }
    }

    /// The most tasks that may be claimed and unsettled, with those that will be given back.
    pub(crate) fn most_claimed(&self) -> usize {
        2 * (self.workers + MOST)
    }

    /// Records how long a handler took.
    pub(crate) fn ran(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.mean = Some(self.mean.map_or(time, |mean| mean + (time - mean) * WEIGHT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(workers: usize, times: &[Duration]) -> Pace {
        let mut pace = Pace::new(workers, true);
        times.iter().for_each(|time| pace.ran(*time));
        pace
    }

    #[test]
    fn only_the_workers_are_served_until_a_duration_is_known() {
        assert_eq!(Pace::new(8, true).capacity(Duration::ZERO), 8);
    }

    #[test]
    fn claims_follow_the_durations_of_handlers() {
        let check = |workers: usize, each: Duration, expected: usize| {
            let pace = after(workers, &[each; 50]);
            assert_eq!(pace.capacity(Duration::ZERO), expected, "{workers} workers, {each:?} each");
        };
        check(8, Duration::from_secs(10), 8);
        check(8, Duration::from_millis(500), 8);
        check(8, Duration::from_millis(100), 12);
        check(8, Duration::from_millis(1), 8 + 400);
        check(2, Duration::from_millis(5), 2 + 20);
        check(2, Duration::from_micros(1), 2 + MOST);
        check(2, Duration::ZERO, 2 + MOST);
    }

    #[test]
    fn busy_workers_count_before_their_handlers_end() {
        let pace = after(4, &[Duration::from_micros(10); 9]);
        assert_eq!(pace.capacity(Duration::ZERO), 4 + MOST);
        assert_eq!(pace.capacity(Duration::from_secs(1)), 4);
    }

    #[test]
    fn one_slow_task_among_fast_ones_lowers_the_estimate_for_a_while() {
        let mut pace = after(2, &[Duration::from_millis(1); 9]);
        pace.ran(Duration::from_secs(1));
        assert_eq!(pace.capacity(Duration::ZERO), 2);
        (0..200).for_each(|_| pace.ran(Duration::from_millis(1)));
        assert!(pace.capacity(Duration::ZERO) >= 90, "{pace:?}");
    }

    #[test]
    fn kinds_limited_over_all_processes_are_not_claimed_ahead() {
        let mut pace = Pace::new(2, false);
        pace.ran(Duration::from_micros(1));
        assert_eq!(pace.capacity(Duration::ZERO), 2);
    }
}
