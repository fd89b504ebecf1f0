//! The dispatcher: the one thread that claims and settles.
//!
//! Owns the loop. It asks each line in the order of the protocol, sleeps until there is something to do, and
//! ends when it is told to. What a line does with its rows is the line's affair.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gristmill_store::{ChangeWatcher, UtcTime};

use crate::error::Error;
use crate::hub::Hub;
use crate::line::{Line, Look, Turned};
use crate::renewal::Presence;

/// An idle runner looks by itself this often, at most: nothing should make it miss work, but clocks and
/// disks have been known to.
const IDLE: Duration = Duration::from_secs(30);

/// How often a line may care for what is old.
const CARE: Duration = Duration::from_secs(60);

/// Requests to cancel are looked for at most this often, and only after a write.
const CANCEL_POLL: Duration = Duration::from_millis(100);

/// How long handlers have to stop after the store has failed for good.
const LAST_STOP: Duration = Duration::from_secs(1);

/// How often it is checked whether the process of a worker has ended.
const LIVENESS: Duration = Duration::from_secs(1);

/// The thread that claims and settles.
pub(crate) struct Dispatcher {
    hub: Arc<Hub>,
    lines: Vec<Box<dyn Line>>,
    watch: ChangeWatcher,
    presence: Arc<Presence>,
    recovery: Duration,
    next_recovery: Instant,
    next_liveness: Instant,
    /// Workers whose process had ended when that was last checked.
    dead: BTreeSet<String>,
    next_care: Instant,
    next_look: Instant,
    /// Something was written since requests to cancel were last looked for.
    cancel_poll_due: bool,
    next_cancel_poll: Instant,
    /// Failures of the store in a row.
    failures: u32,
    cancelled: bool,
    /// The question that the last look is an answer to, once every line has taken it and found nothing.
    looked_for: u64,
    /// When the clock was last seen, and what it said.
    clock: (Instant, UtcTime),
}

impl Dispatcher {
    pub(crate) fn new(
        hub: Arc<Hub>,
        lines: Vec<Box<dyn Line>>,
        watch: ChangeWatcher,
        presence: Arc<Presence>,
        recovery: Duration,
    ) -> Self {
        let now = Instant::now();
        let clock = (now, hub.store.now());
        Dispatcher {
            clock,
            hub,
            lines,
            watch,
            presence,
            recovery,
            next_recovery: now,
            next_liveness: now,
            dead: BTreeSet::new(),
            next_care: now,
            next_look: now,
            cancel_poll_due: false,
            next_cancel_poll: now,
            failures: 0,
            cancelled: false,
            looked_for: 0,
        }
    }

    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut look = true;
        loop {
            if look {
                // Before the look: what is asked during it is answered by the next one.
                self.looked_for = self.hub.asked();
            }
            let stopping = self.hub.is_stopping();
            let round = self.round(look, stopping);
            if stopping && round.is_ok() && self.in_air() == 0 {
                self.presence.remove();
                return Ok(());
            }
            look = match round {
                Ok(Round { still, settled }) => {
                    self.failures = 0;
                    let answered = if still && self.in_air() == 0 { self.answer() } else { Ok(()) };
                    match answered {
                        // A place may have become free that nobody has looked to fill.
                        Ok(()) => settled && !look,
                        Err(error) => self.trouble(&error).map(|()| true)?,
                    }
                }
                // What was to be done is still to be done.
                Err(error) => self.trouble(&error).map(|()| true)?,
            };
            if self.is_over() {
                return self.leave().inspect(|()| self.presence.remove());
            }
            if !look {
                look = match self.sleep() {
                    Ok(look) => look,
                    Err(error) => self.trouble(&error).map(|()| true)?,
                };
            }
        }
    }

    /// Answers callers that wait until all is done. Retries are looked for only if one of them waits for these.
    fn answer(&self) -> Result<(), gristmill_store::Error> {
        let mut idle = self.hub.awaits_idle();
        for line in self.lines.iter().filter(|_| idle) {
            if line.has_waiting()? {
                idle = false;
                break;
            }
        }
        self.hub.answer(self.looked_for, idle);
        Ok(())
    }

    /// Says so when the clock has been set back: leases and schedules go by it.
    fn watch_clock(&mut self) {
        let (now, time) = (Instant::now(), self.hub.store.now());
        let (last, last_time) = std::mem::replace(&mut self.clock, (now, time));
        if let Some(back) = set_back(now.duration_since(last), last_time, time) {
            tracing::warn!(
                ?back,
                "the clock was set back; leases of workers that are gone last longer by as much, and what is \
                 scheduled comes later. Nothing is lost"
            );
        }
    }

    /// One visit to every line.
    fn round(&mut self, look: bool, stopping: bool) -> Result<Round, gristmill_store::Error> {
        self.watch_clock();
        let now = Instant::now();
        if now >= self.next_liveness && !stopping {
            self.next_liveness = now + LIVENESS;
            let dead = self.hub.store.workers().dead()?;
            if !dead.is_subset(&self.dead) {
                self.next_recovery = now;
            }
            self.dead = dead;
        }
        if now >= self.next_recovery && !stopping {
            self.presence.register()?;
            self.lines.iter_mut().try_for_each(|line| line.recover())?;
            self.next_recovery = now + jittered(self.recovery);
        }
        self.cancel_poll_due = (self.cancel_poll_due || look) && self.in_air() > 0;
        if self.cancel_poll_due && now >= self.next_cancel_poll {
            self.lines.iter_mut().try_for_each(|line| line.stop_cancelled())?;
            self.cancel_poll_due = false;
            self.next_cancel_poll = now + CANCEL_POLL;
        }
        let look = match look && !stopping {
            false => Look::No,
            true if self.in_air() > 0 => Look::Soon,
            true => Look::Now,
        };
        let mut round = Round { still: true, settled: false };
        for line in &mut self.lines {
            let turned = line.turn(look)?;
            round.still &= turned == Turned { settled: 0, claimed: 0, looked: true };
            round.settled |= turned.settled > 0;
        }
        self.presence.set_busy(self.in_air() > 0)?;
        // When there is time for it; and if there never is, all the same.
        let due = if round.still { self.next_care } else { self.next_care + CARE };
        if now >= due && !stopping {
            let mut more = false;
            for line in &mut self.lines {
                more |= line.care()?;
            }
            self.next_care = now + if more { Duration::from_secs(1) } else { jittered(CARE) };
        }
        if look != Look::No {
            self.next_look = now + jittered(IDLE);
        }
        Ok(round)
    }

    /// The store failed. If it may pass, waits a little, longer each time, but not beyond a deadline; if not, this
    /// is the end, and what can be given back is.
    fn trouble(&mut self, error: &gristmill_store::Error) -> Result<(), Error> {
        if !error.is_transient() {
            tracing::error!(%error, "the store has failed; the runner ends");
            self.end_handlers();
            // Its own failure would add nothing.
            drop(self.give_back_all());
            return Err(error.clone().into());
        }
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(%error, failures = self.failures, "the store fails; nothing is lost, trying again");
        self.hub.pause(jittered(Duration::from_millis(50) * 2u32.saturating_pow(self.failures.min(7))));
        Ok(())
    }

    /// Stops all handlers and waits for them, so that no command outlives the process. Their outcomes cannot be written.
    fn end_handlers(&mut self) {
        self.hub.stop(LAST_STOP);
        self.lines.iter_mut().for_each(|line| line.cancel());
        let over = Instant::now() + LAST_STOP;
        while self.lines.iter().any(|line| line.running() > 0) && Instant::now() < over {
            self.hub.pause(Duration::from_millis(5));
        }
    }

    fn in_air(&self) -> usize {
        self.lines.iter().map(|line| line.in_air()).sum()
    }

    /// Whether the time to wait for handlers is over. Tells them to stop when that time has come.
    fn is_over(&mut self) -> bool {
        let Some(deadlines) = self.hub.deadlines() else { return false };
        let now = Instant::now();
        if now >= deadlines.cancel && !self.cancelled {
            self.cancelled = true;
            self.lines.iter_mut().for_each(|line| line.cancel());
        }
        now >= deadlines.leave
    }

    /// Ends with handlers that may still run: gives back what is claimed, in every line, even if one of them fails.
    fn leave(&mut self) -> Result<(), Error> {
        let left = self.in_air();
        if left > 0 {
            tracing::warn!(left, "handlers did not stop in time; their tasks go back to the queue");
        }
        self.give_back_all()
    }

    fn give_back_all(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for line in &mut self.lines {
            if let Err(error) = line.leave() {
                result = Err(error.into());
            }
        }
        result
    }

    /// Sleeps until there is something to do. Says whether to look for work.
    fn sleep(&mut self) -> Result<bool, gristmill_store::Error> {
        self.hub.going_to_sleep();
        let now = Instant::now();
        let stopping = self.hub.is_stopping();
        let mut end = wake_at(now, stopping, [self.next_recovery, self.next_look, self.next_liveness]);
        if self.cancel_poll_due {
            end = end.min(self.next_cancel_poll);
        }
        for line in &self.lines {
            if let Some(linger) = line.linger() {
                end = end.min(now + linger);
            }
            if let Some(due) = line.next_due().filter(|_| !stopping) {
                end = end.min(now + due.since(self.hub.store.now()));
            }
        }
        if let Some(deadlines) = self.hub.deadlines() {
            end = end.min(if self.cancelled { deadlines.leave } else { deadlines.cancel });
        }
        let changed = self.watch.wait(end.saturating_duration_since(now))?;
        self.hub.awake();
        let now = Instant::now();
        let store_now = self.hub.store.now();
        let due = self.lines.iter().any(|line| line.next_due().is_some_and(|due| due <= store_now));
        Ok(changed || !stopping && (due || now >= self.next_look || now >= self.next_recovery))
    }
}

/// What came of a round.
struct Round {
    /// Every line has looked, if it was to, and nothing at all has happened.
    still: bool,
    /// Something was written down.
    settled: bool,
}

/// When to wake at the latest. A runner that stops neither recovers nor looks for work, so these times do not move on.
fn wake_at(now: Instant, stopping: bool, looks: [Instant; 3]) -> Instant {
    looks.into_iter().filter(|_| !stopping).min().unwrap_or(now + IDLE)
}

/// How far a clock that said `last` some time ago has been set back, if it now says `time`. Small steps are how a clock
/// is kept right, and not worth a word.
fn set_back(passed: Duration, last: UtcTime, time: UtcTime) -> Option<Duration> {
    let back = last.since(time).saturating_add(passed);
    (last > time && back > Duration::from_secs(2)).then_some(back)
}

/// Between three quarters of it and all of it, so that many workers do not come at one moment.
fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) as u32;
    time.mul_f64(0.75 + 0.25 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_that_stops_does_not_wake_for_work_that_is_due() {
        let now = Instant::now();
        let due = [now, now + IDLE, now + LIVENESS];
        assert_eq!(wake_at(now, false, due), now);
        assert_eq!(wake_at(now, true, due), now + IDLE);
    }

    #[test]
    fn a_clock_set_back_is_noticed_and_small_steps_are_not() {
        let check = |passed: u64, last: i64, time: i64, expected: Option<u64>| {
            let at = |seconds: i64| UtcTime::from_micros(seconds * 1_000_000);
            let found = set_back(Duration::from_secs(passed), at(last), at(time));
            assert_eq!(found, expected.map(Duration::from_secs), "{passed} s, from {last} to {time}");
        };
        check(10, 100, 110, None);
        check(10, 100, 5_000, None);
        check(0, 100, 99, None);
        check(10, 5_000, 1_400, Some(3_610));
    }
}
