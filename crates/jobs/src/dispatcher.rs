//! The dispatcher: the only thread of a runner that claims and settles work.
//!
//! Owns the loop. It polls each source in the order of docs/protocol.md, sleeps until work is due, and ends when the runner
//! is stopped. The sources claim and settle the rows.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gristmill_store::{ChangeWatcher, UtcTime};

use crate::error::Error;
use crate::lease_renewal::Presence;
use crate::signals::DispatcherSignals;
use crate::source::{PollMode, PollResult, WorkSource};

/// An idle runner polls at least this often, in case it misses the notification of a change.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between two calls of [`WorkSource::maintain`].
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum interval between two polls for cancellation requests; polls happen only after a write.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long handlers have to stop after a permanent failure of the store.
const FATAL_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between two checks whether the processes of other workers have ended.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Dispatcher {
    signals: Arc<DispatcherSignals>,
    sources: Vec<Box<dyn WorkSource>>,
    watcher: ChangeWatcher,
    presence: Arc<Presence>,
    recovery_interval: Duration,
    next_recovery: Instant,
    next_liveness: Instant,
    /// Workers whose process had ended at the last liveness check.
    dead_workers: BTreeSet<String>,
    next_maintenance: Instant,
    next_poll: Instant,
    /// Something was written since the last poll for cancellation requests.
    cancel_poll_due: bool,
    next_cancel_poll: Instant,
    /// Number of consecutive failures of the store.
    failures: u32,
    handlers_cancelled: bool,
    /// The last wait-idle request made before the current poll; acknowledged when the poll finds nothing to do.
    idle_request: u64,
    /// The last reading of the wall clock, and when it was taken.
    clock: (Instant, UtcTime),
}

impl Dispatcher {
    pub(crate) fn new(
        signals: Arc<DispatcherSignals>,
        sources: Vec<Box<dyn WorkSource>>,
        watcher: ChangeWatcher,
        presence: Arc<Presence>,
        recovery_interval: Duration,
    ) -> Self {
        let now = Instant::now();
        let clock = (now, signals.store.now());
        Dispatcher {
            clock,
            signals,
            sources,
            watcher,
            presence,
            recovery_interval,
            next_recovery: now,
            next_liveness: now,
            dead_workers: BTreeSet::new(),
            next_maintenance: now,
            next_poll: now,
            cancel_poll_due: false,
            next_cancel_poll: now,
            failures: 0,
            handlers_cancelled: false,
            idle_request: 0,
        }
    }

    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut claim = true;
        loop {
            if claim {
                // Read before the poll: requests made during it are acknowledged by the next one.
                self.idle_request = self.signals.last_request();
            }
            let stopping = self.signals.is_stopping();
            let tick = self.tick(claim, stopping);
            if stopping && tick.is_ok() && self.in_flight() == 0 {
                self.presence.remove();
                return Ok(());
            }
            claim = tick.or_else(|error| self.on_store_error(&error))?;
            if self.advance_stop() {
                return self.release_all().inspect(|()| self.presence.remove());
            }
            if !claim {
                claim = self.sleep().or_else(|error| self.on_store_error(&error))?;
            }
        }
    }

    /// Acknowledges callers that wait until the runner is idle. Queries retries only if a caller waits for them.
    fn ack_idle(&self) -> Result<(), gristmill_store::Error> {
        let mut idle = self.signals.awaits_idle();
        for source in &self.sources {
            idle = idle && !source.has_waiting()?;
        }
        self.signals.ack_idle(self.idle_request, idle);
        Ok(())
    }

    /// Logs a warning when the wall clock has been set back, because leases and schedules depend on it.
    fn check_clock(&mut self) {
        let (now, time) = (Instant::now(), self.signals.store.now());
        let (last, last_time) = std::mem::replace(&mut self.clock, (now, time));
        if let Some(back) = clock_set_back(now.duration_since(last), last_time, time) {
            tracing::warn!(
                ?back,
                "the clock was set back; leases of dead workers expire later and scheduled tasks start later by \
                 that much; no task is lost"
            );
        }
    }

    /// Runs the steps that are due: liveness check, recovery, cancellations, one poll of every source, maintenance.
    /// Returns whether to claim next: a settled task may have freed a worker. A tick that claims does so after settling.
    fn tick(&mut self, claim: bool, stopping: bool) -> Result<bool, gristmill_store::Error> {
        self.check_clock();
        let now = Instant::now();
        if now >= self.next_liveness && !stopping {
            self.next_liveness = now + LIVENESS_INTERVAL;
            let dead_workers = self.signals.store.workers().dead()?;
            if !dead_workers.is_subset(&self.dead_workers) {
                self.next_recovery = now;
            }
            self.dead_workers = dead_workers;
        }
        if now >= self.next_recovery && !stopping {
            self.presence.register()?;
            self.sources.iter_mut().try_for_each(|source| source.recover())?;
            self.next_recovery = now + jittered(self.recovery_interval);
        }
        self.cancel_poll_due = (self.cancel_poll_due || claim) && self.in_flight() > 0;
        if self.cancel_poll_due && now >= self.next_cancel_poll {
            self.sources.iter_mut().try_for_each(|source| source.apply_cancellations())?;
            self.cancel_poll_due = false;
            self.next_cancel_poll = now + CANCEL_POLL_INTERVAL;
        }
        let mode = match claim && !stopping {
            false => PollMode::SettleOnly,
            true if self.in_flight() > 0 => PollMode::ClaimSoon,
            true => PollMode::ClaimNow,
        };
        let (mut is_idle, mut any_settled) = (true, false);
        for source in &mut self.sources {
            let polled = source.poll(mode)?;
            is_idle &= polled == PollResult { settled: 0, claimed: 0, polled: true };
            any_settled |= polled.settled > 0;
        }
        self.presence.set_busy(self.in_flight() > 0)?;
        // Maintenance waits for an idle tick, for at most one more interval.
        let due = if is_idle { self.next_maintenance } else { self.next_maintenance + MAINTENANCE_INTERVAL };
        if now >= due && !stopping {
            let mut more = false;
            for source in &mut self.sources {
                more |= source.maintain()?;
            }
            self.next_maintenance = now + if more { Duration::from_secs(1) } else { jittered(MAINTENANCE_INTERVAL) };
        }
        if mode != PollMode::SettleOnly {
            self.next_poll = now + jittered(IDLE_POLL_INTERVAL);
        }
        self.failures = 0;
        if is_idle && self.in_flight() == 0 {
            self.ack_idle()?;
        }
        Ok(any_settled && !claim)
    }

    /// Handles an error of the store. After a transient error it waits with a growing delay, but not beyond the
    /// deadline of a stop, and returns that work is claimed next. After any other error it cancels the handlers, releases
    /// the claims, and returns the error.
    fn on_store_error(&mut self, error: &gristmill_store::Error) -> Result<bool, Error> {
        if !error.is_transient() {
            tracing::error!(%error, "the store has failed permanently; the runner ends");
            self.cancel_handlers();
            // A second error would add nothing to the first.
            drop(self.release_sources());
            return Err(error.clone().into());
        }
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(%error, failures = self.failures, "an operation on the store failed; retrying, no task is lost");
        self.signals.sleep_for(jittered(Duration::from_millis(50) * 2u32.saturating_pow(self.failures.min(7))));
        Ok(true)
    }

    /// Cancels all handlers and waits up to `FATAL_STOP_TIMEOUT`, so that commands can end before the process. Outcomes are not stored.
    fn cancel_handlers(&mut self) {
        self.signals.stop(FATAL_STOP_TIMEOUT);
        self.sources.iter_mut().for_each(|source| source.cancel_all());
        let deadline = Instant::now() + FATAL_STOP_TIMEOUT;
        self.sources.iter().for_each(|source| source.wait_handlers(deadline));
    }

    fn in_flight(&self) -> usize {
        self.sources.iter().map(|source| source.in_flight()).sum()
    }

    /// Cancels the handlers at the first deadline of a stop. Returns whether the last deadline has passed.
    fn advance_stop(&mut self) -> bool {
        let Some(deadlines) = self.signals.deadlines() else { return false };
        let now = Instant::now();
        if now >= deadlines.cancel && !self.handlers_cancelled {
            self.handlers_cancelled = true;
            self.sources.iter_mut().for_each(|source| source.cancel_all());
        }
        now >= deadlines.release
    }

    /// Releases all claims while handlers may still run.
    fn release_all(&mut self) -> Result<(), Error> {
        let unreleased = self.in_flight();
        if unreleased > 0 {
            tracing::warn!(unreleased, "handlers did not stop before the deadline; their tasks are released");
        }
        self.release_sources()
    }

    /// Releases the claims of every source, even if one of them fails.
    fn release_sources(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for source in &mut self.sources {
            if let Err(error) = source.release_all() {
                result = Err(error.into());
            }
        }
        result
    }

    /// Sleeps until work may be due. Returns whether to claim work.
    fn sleep(&mut self) -> Result<bool, gristmill_store::Error> {
        self.signals.set_asleep(true);
        let now = Instant::now();
        let stopping = self.signals.is_stopping();
        let mut end = wake_at(now, stopping, [self.next_recovery, self.next_poll, self.next_liveness]);
        if self.cancel_poll_due {
            end = end.min(self.next_cancel_poll);
        }
        for source in &self.sources {
            if let Some(flush_after) = source.flush_after() {
                end = end.min(now + flush_after);
            }
            if let Some(due) = source.next_due().filter(|_| !stopping) {
                end = end.min(now + due.since(self.signals.store.now()));
            }
        }
        if let Some(deadlines) = self.signals.deadlines() {
            end = end.min(if self.handlers_cancelled { deadlines.release } else { deadlines.cancel });
        }
        let changed = self.watcher.wait(end.saturating_duration_since(now))?;
        self.signals.set_asleep(false);
        let now = Instant::now();
        let store_now = self.signals.store.now();
        let due = self.sources.iter().any(|source| source.next_due().is_some_and(|due| due <= store_now));
        Ok(changed || !stopping && (due || now >= self.next_poll || now >= self.next_recovery))
    }
}

/// The latest time to wake. A runner that stops neither recovers nor claims, so these times
/// are not moved forward, and waking for them would spin.
fn wake_at(now: Instant, stopping: bool, polls: [Instant; 3]) -> Instant {
    polls.into_iter().filter(|_| !stopping).min().unwrap_or(now + IDLE_POLL_INTERVAL)
}

/// How far the clock was set back, if it showed `last` a duration `passed` ago and shows `time` now. Steps of up to two
/// seconds are ignored, because time synchronisation makes them.
fn clock_set_back(passed: Duration, last: UtcTime, time: UtcTime) -> Option<Duration> {
    let back = last.since(time).saturating_add(passed);
    (last > time && back > Duration::from_secs(2)).then_some(back)
}

/// A random duration between 75% and 100% of `time`, so that workers do not all poll at the same moment.
fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) as u32;
    time.mul_f64(0.75 + 0.25 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_runner_does_not_wake_for_due_work() {
        let now = Instant::now();
        let due = [now, now + IDLE_POLL_INTERVAL, now + LIVENESS_INTERVAL];
        assert_eq!(wake_at(now, false, due), now);
        assert_eq!(wake_at(now, true, due), now + IDLE_POLL_INTERVAL);
    }

    #[test]
    fn clock_set_back_by_more_than_two_seconds_is_detected() {
        let check = |passed: u64, last: i64, time: i64, expected: Option<u64>| {
            let at = |seconds: i64| UtcTime::from_micros(seconds * 1_000_000);
            let found = clock_set_back(Duration::from_secs(passed), at(last), at(time));
            assert_eq!(found, expected.map(Duration::from_secs), "{passed} s, from {last} to {time}");
        };
        check(10, 100, 110, None);
        check(10, 100, 5_000, None);
        check(0, 100, 99, None);
        check(10, 5_000, 1_400, Some(3_610));
    }
}
