//! The dispatcher: the one thread that claims and settles.
//!
//! Owns the loop. It asks each line in the order of the protocol, sleeps until there is something to do, and
//! ends when it is told to. What a line does with its rows is the line's affair.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gristmill_store::{Time, Watch};

use crate::error::Error;
use crate::hub::Hub;
use crate::line::{Line, Look, Turned};

/// An idle runner looks by itself this often, at most: nothing should make it miss work, but clocks and
/// disks have been known to.
const IDLE: Duration = Duration::from_secs(30);

/// How often a line may care for what is old.
const CARE: Duration = Duration::from_secs(60);

/// The thread that claims and settles.
pub(crate) struct Dispatcher {
    hub: Arc<Hub>,
    lines: Vec<Box<dyn Line>>,
    watch: Watch,
    recovery: Duration,
    next_recovery: Instant,
    next_care: Instant,
    next_look: Instant,
    /// Failures of the store in a row.
    failures: u32,
    cancelled: bool,
    /// The question that the last look is an answer to, once every line has taken it and found nothing.
    looked_for: u64,
    /// When the clock was last seen, and what it said.
    clock: (Instant, Time),
}

impl Dispatcher {
    pub(crate) fn new(hub: Arc<Hub>, lines: Vec<Box<dyn Line>>, watch: Watch, recovery: Duration) -> Self {
        let now = Instant::now();
        let clock = (now, hub.store.now());
        Dispatcher {
            clock,
            hub,
            lines,
            watch,
            recovery,
            next_recovery: now,
            next_care: now,
            next_look: now,
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
                return Ok(());
            }
            look = match round {
                Ok(Round { still, settled }) => {
                    self.failures = 0;
                    if still && self.in_air() == 0 {
                        self.hub.answer(self.looked_for);
                    }
                    // A place may have become free that nobody has looked to fill.
                    settled && !look
                }
                // What was to be done is still to be done.
                Err(error) => self.trouble(&error).map(|()| true)?,
            };
            if self.is_over() {
                return self.leave();
            }
            if !look {
                look = match self.sleep() {
                    Ok(look) => look,
                    Err(error) => self.trouble(&error).map(|()| true)?,
                };
            }
        }
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
        if now >= self.next_recovery && !stopping {
            self.next_recovery = now + jittered(self.recovery);
            self.lines.iter_mut().try_for_each(|line| line.recover())?;
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
        if !error.may_pass() {
            tracing::error!(%error, "the store has failed; the runner ends");
            // Its own failure would add nothing.
            drop(self.leave());
            return Err(error.clone().into());
        }
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(%error, failures = self.failures, "the store fails; nothing is lost, trying again");
        self.hub.pause(jittered(Duration::from_millis(50) * 2u32.saturating_pow(self.failures.min(7))));
        Ok(())
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

    /// Gives back whatever is in the air, in every line, even if one of them fails.
    fn leave(&mut self) -> Result<(), Error> {
        let left = self.in_air();
        if left > 0 {
            tracing::warn!(left, "handlers did not stop in time; their tasks go back to the queue");
        }
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
        let mut end = self.next_recovery.min(self.next_look);
        for line in &self.lines {
            if let Some(linger) = line.linger() {
                end = end.min(now + linger);
            }
            if let Some(due) = line.next_due() {
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
        Ok(changed || due || now >= self.next_look || now >= self.next_recovery)
    }
}

/// What came of a round.
struct Round {
    /// Every line has looked, if it was to, and nothing at all has happened.
    still: bool,
    /// Something was written down.
    settled: bool,
}

/// How far a clock that said `last` some time ago has been set back, if it now says `time`. Small steps are how a clock
/// is kept right, and not worth a word.
fn set_back(passed: Duration, last: Time, time: Time) -> Option<Duration> {
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
    fn a_clock_set_back_is_noticed_and_small_steps_are_not() {
        let check = |passed: u64, last: i64, time: i64, expected: Option<u64>| {
            let at = |seconds: i64| Time::from_micros(seconds * 1_000_000);
            let found = set_back(Duration::from_secs(passed), at(last), at(time));
            assert_eq!(found, expected.map(Duration::from_secs), "{passed} s, from {last} to {time}");
        };
        check(10, 100, 110, None);
        check(10, 100, 5_000, None);
        check(0, 100, 99, None);
        check(10, 5_000, 1_400, Some(3_610));
    }
}
