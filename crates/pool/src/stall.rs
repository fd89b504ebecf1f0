//! Detects and replaces workers that make no progress. A worker does not read the clock for this: it counts
//! runs and heartbeats, and the detector records since when these have not changed.

use crate::{
    clock::nanos,
    core::Core,
    sync::{Arc, Weak},
    worker::Worker,
};
use std::time::Duration;

/// Last observed run and heartbeat count of one worker.
#[derive(Debug, Default)]
pub(crate) struct StallDetector {
    last_seen: Option<(u64, u64)>,
    unchanged_since: u64,
}

impl StallDetector {
    /// Records the worker's run and heartbeats. Returns the run if it has not progressed for `limit` nanoseconds.
    pub(crate) fn observe(&mut self, running: Option<(u64, u64)>, now: u64, limit: u64) -> Option<u64> {
        if running != self.last_seen {
            *self = Self { last_seen: running, unchanged_since: now };
            return None;
        }
        let (run, _) = running?;
        (now.saturating_sub(self.unchanged_since) >= limit).then_some(run)
    }
}

/// Starts the periodic check, which ends with the pool.
pub(crate) fn start<T: Send + 'static, W: Worker>(core: &Arc<Core<T, W>>, limit: Duration) {
    schedule_check(Arc::downgrade(core), limit);
}

/// Number of checks per stall timeout: a stall is detected at most a quarter of the timeout late.
const CHECKS_PER_TIMEOUT: u32 = 4;

fn schedule_check<T: Send + 'static, W: Worker>(core: Weak<Core<T, W>>, limit: Duration) {
    let Some(pool) = core.upgrade() else { return };
    pool.clock().call_after((limit / CHECKS_PER_TIMEOUT).max(Duration::from_nanos(1)), move || {
        let Some(pool) = core.upgrade().filter(|pool| !pool.has_ended()) else { return };
        for worker in pool.replace_stalled(pool.clock().now(), nanos(limit)) {
            W::start_or_exit(worker);
        }
        drop(pool);
        schedule_check(core, limit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_stalls_only_without_progress_for_the_whole_timeout() {
        let mut detector = StallDetector::default();
        let mut check = |running, now, want| assert_eq!(detector.observe(running, now, 100), want, "at {now}");
        check(None, 0, None);
        check(None, 500, None);
        check(Some((1, 0)), 600, None);
        check(Some((1, 0)), 699, None);
        check(Some((1, 1)), 700, None);
        check(Some((1, 1)), 799, None);
        check(Some((3, 1)), 800, None);
        check(Some((3, 1)), 899, None);
        check(Some((3, 1)), 900, Some(3));
    }
}
