//! Estimates how many tasks to claim ahead of the workers.
//!
//! The estimate follows the duration of handlers: enough tasks are claimed that workers do not wait for the disk, and
//! no more than they start within 50 ms. Other processes cannot run a task that this process holds, and a more urgent
//! task claimed by another process cannot overtake it.

use std::time::Duration;

/// As many tasks are claimed ahead as the workers start within this time.
const CLAIM_AHEAD_TIME: Duration = Duration::from_millis(50);

/// Maximum number of tasks claimed ahead: a transaction of this size takes about ten milliseconds.
const MAX_CLAIMED_AHEAD: usize = 2_048;

/// Weight of one handler's duration in the moving mean.
const MEAN_WEIGHT: f64 = 1.0 / 8.0;

/// Moving mean of the duration of a kind's handlers, and the number of claims that follows from it.
#[derive(Debug, Default)]
pub(crate) struct ClaimAhead {
    pub(crate) workers: usize,
    claims_ahead: bool,
    /// In seconds; `None` until the first handler has ended.
    mean: Option<f64>,
}

impl ClaimAhead {
    /// `claims_ahead`: whether more tasks may be claimed than there are workers.
    pub(crate) fn new(workers: usize, claims_ahead: bool) -> Self {
        ClaimAhead { workers, claims_ahead, mean: None }
    }

    /// How many tasks may be claimed and unsettled: one for each worker, and those claimed ahead. `busy_for`: how long
    /// all workers have been busy.
    pub(crate) fn capacity(&self, busy_for: Duration) -> usize {
        let Some(mean) = self.mean.filter(|_| self.claims_ahead) else { return self.workers };
        let duration = mean.max(busy_for.as_secs_f64()).max(1e-9);
        let ahead = self.workers as f64 * CLAIM_AHEAD_TIME.as_secs_f64() / duration;
        self.workers + (ahead as usize).min(MAX_CLAIMED_AHEAD)
    }

    /// Tasks above this number are released. It exceeds a large capacity by half, because the capacity is an estimate
    /// and each released task costs two writes.
    pub(crate) fn release_above(&self, capacity: usize) -> usize {
        if capacity > 2 * self.workers { capacity + capacity / 2 } else { capacity }
    }

    /// Maximum number of claimed and unsettled tasks, counting those that will be released.
    pub(crate) fn max_claimed(&self) -> usize {
        2 * (self.workers + MAX_CLAIMED_AHEAD)
    }

    pub(crate) fn record_duration(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.mean = Some(self.mean.map_or(time, |mean| mean + (time - mean) * MEAN_WEIGHT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(workers: usize, times: &[Duration]) -> ClaimAhead {
        let mut claim_ahead = ClaimAhead::new(workers, true);
        times.iter().for_each(|time| claim_ahead.record_duration(*time));
        claim_ahead
    }

    #[test]
    fn nothing_is_claimed_ahead_until_a_duration_is_known() {
        assert_eq!(ClaimAhead::new(8, true).capacity(Duration::ZERO), 8);
    }

    #[test]
    fn capacity_follows_the_duration_of_handlers() {
        let check = |workers: usize, duration: Duration, expected: usize| {
            let claim_ahead = after(workers, &[duration; 50]);
            assert_eq!(claim_ahead.capacity(Duration::ZERO), expected, "{workers} workers, {duration:?} per task");
        };
        check(8, Duration::from_secs(10), 8);
        check(8, Duration::from_millis(500), 8);
        check(8, Duration::from_millis(100), 12);
        check(8, Duration::from_millis(1), 8 + 400);
        check(2, Duration::from_millis(5), 2 + 20);
        check(2, Duration::from_micros(1), 2 + MAX_CLAIMED_AHEAD);
        check(2, Duration::ZERO, 2 + MAX_CLAIMED_AHEAD);
    }

    #[test]
    fn capacity_falls_while_all_workers_are_busy() {
        let claim_ahead = after(4, &[Duration::from_micros(10); 9]);
        assert_eq!(claim_ahead.capacity(Duration::ZERO), 4 + MAX_CLAIMED_AHEAD);
        assert_eq!(claim_ahead.capacity(Duration::from_secs(1)), 4);
    }

    #[test]
    fn one_slow_task_lowers_the_capacity_until_fast_ones_follow() {
        let mut claim_ahead = after(2, &[Duration::from_millis(1); 9]);
        claim_ahead.record_duration(Duration::from_secs(1));
        assert_eq!(claim_ahead.capacity(Duration::ZERO), 2);
        (0..200).for_each(|_| claim_ahead.record_duration(Duration::from_millis(1)));
        assert!(claim_ahead.capacity(Duration::ZERO) >= 90, "{claim_ahead:?}");
    }

    #[test]
    fn kinds_with_a_limit_across_processes_are_not_claimed_ahead() {
        let mut claim_ahead = ClaimAhead::new(2, false);
        claim_ahead.record_duration(Duration::from_micros(1));
        assert_eq!(claim_ahead.capacity(Duration::ZERO), 2);
    }
}
