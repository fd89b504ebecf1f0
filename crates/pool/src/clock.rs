//! Clocks and timers. Only this module reads the system clock and waits for it. A [`ManualClock`] makes the same code
//! deterministic in tests.
//!
//! Timers count nanoseconds from an arbitrary start, which never decrease. [`Clock::unix_micros`] is the wall time, which
//! may be set back.

use crate::{
    cancel::{CancelToken, Cancelled},
    sync::{Arc, Condvar, Mutex, lock, wait},
};
use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

/// Source of time for a pool, a breaker or a store.
///
/// [`Clock::system`] is the default. Tests use a [`ManualClock`] and advance it themselves.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    #[cfg(not(any(shuttle, loom)))]
    System,
    Manual(Arc<Manual>),
}

/// Called when a timer is due, on the thread that found it due, so it must be short.
type TimerCallback = Box<dyn FnOnce() + Send>;

/// Identifies a timer, so that it can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at: u64,
    sequence: u64,
}

#[derive(Default)]
struct Timers {
    due: BTreeMap<TimerKey, TimerCallback>,
    last_sequence: u64,
}

impl Timers {
    fn add(&mut self, at: u64, callback: TimerCallback) -> TimerKey {
        self.last_sequence += 1;
        let key = TimerKey { at, sequence: self.last_sequence };
        self.due.insert(key, callback);
        key
    }

    fn pop_due(&mut self, now: u64) -> Option<TimerCallback> {
        let first = self.due.first_entry()?;
        (first.key().at <= now).then(|| first.remove())
    }
}

impl Clock {
    /// The system's monotonic clock. All pools share one timer thread, started by the first pool.
    #[cfg(not(any(shuttle, loom)))]
    pub fn system() -> Self {
        Self(Source::System)
    }

    #[cfg(any(shuttle, loom))]
    pub(crate) fn system() -> Self {
        ManualClock::new().into()
    }

    /// Starts the timer thread, unless it runs already.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::start(),
            Source::Manual(_) => Ok(()),
        }
    }

    /// Nanoseconds since the start of the clock.
    pub(crate) fn now(&self) -> u64 {
        match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::now(),
            Source::Manual(manual) => lock(&manual.state).now,
        }
    }

    /// Wall time: microseconds since 1970-01-01 00:00:00 UTC. The system's wall clock may be set back at any time.
    pub fn unix_micros(&self) -> i64 {
        match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::unix_micros(),
            Source::Manual(manual) => lock(&manual.state).unix_micros(),
        }
    }

    /// Calls `callback` once, `delay` from now. With a delay of 584 years or more it is never called.
    pub(crate) fn call_after(&self, delay: Duration, callback: impl FnOnce() + Send + 'static) -> TimerKey {
        let at = self.now().saturating_add(nanos(delay));
        match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::add(at, Box::new(callback)),
            Source::Manual(manual) => {
                let key = lock(&manual.state).timers.add(at, Box::new(callback));
                manual.changed.notify_all();
                key
            }
        }
    }

    /// Cancels a timer. If there is none with this key, its callback has run or is running.
    pub(crate) fn cancel_timer(&self, key: TimerKey) {
        // Dropped after the lock is released: the callback may own a value whose drop calls back into the clock.
        let _callback = match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::remove(key),
            Source::Manual(manual) => lock(&manual.state).timers.due.remove(&key),
        };
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => "Clock::system",
            Source::Manual(_) => "ManualClock",
        })
    }
}

/// A point in time that wakes a waiting thread or task. Its timer is cancelled on drop.
pub(crate) struct Deadline {
    clock: Clock,
    at: u64,
    key: TimerKey,
    timer_due: Cancelled,
}

impl Deadline {
    pub(crate) fn new(clock: &Clock, after: Duration) -> Self {
        let at = clock.now().saturating_add(nanos(after));
        let token = CancelToken::new();
        let timer_due = token.cancelled();
        Self { clock: clock.clone(), at, key: clock.call_after(after, move || token.cancel()), timer_due }
    }

    /// Whether the deadline has passed. If pending, `cx` is woken when it does.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.at { Poll::Ready(()) } else { Pin::new(&mut self.timer_due).poll(cx) }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.clock.cancel_timer(self.key);
    }
}

/// A [`Duration`] in nanoseconds, capped at `u64::MAX` (584 years).
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock for tests that moves only when [`advance`](Self::advance) is called.
///
/// ```
/// use gristmill_pool::{Breaker, clock::ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let breaker = Breaker::new(1, Duration::from_secs(30)).clock(&clock);
/// breaker.acquire().unwrap().failure();
/// assert!(breaker.acquire().is_err(), "open");
/// clock.advance(Duration::from_secs(30));
/// assert!(breaker.acquire().is_ok(), "the probe");
/// ```
///
/// It also has a wall time, which `advance` moves too and [`set_unix_micros`](Self::set_unix_micros) sets.
///
/// ```
/// use gristmill_pool::clock::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let manual = ManualClock::at(1_700_000_000_000_000);
/// let clock = Clock::from(&manual);
/// manual.advance(Duration::from_micros(5));
/// assert_eq!(clock.unix_micros(), 1_700_000_000_000_005);
/// manual.set_unix_micros(1_000); // a wall clock may be set back; timers are not affected
/// assert_eq!(clock.unix_micros(), 1_000);
/// ```
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Manual>);

#[derive(Default)]
struct Manual {
    state: Mutex<ManualState>,
    changed: Condvar,
}

#[derive(Default)]
struct ManualState {
    now: u64,
    /// Wall time in microseconds when `now` was zero.
    unix_start: i64,
    timers: Timers,
}

impl ManualState {
    fn elapsed_micros(&self) -> i64 {
        // At most 2⁶⁴ / 1,000.
        (self.now / 1_000) as i64
    }

    fn unix_micros(&self) -> i64 {
        self.unix_start.saturating_add(self.elapsed_micros())
    }
}

impl ManualClock {
    /// Creates a clock whose time is zero, and whose wall time is 1970-01-01 00:00:00 UTC.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a clock with this wall time: microseconds since 1970-01-01 00:00:00 UTC.
    pub fn at(unix_micros: i64) -> Self {
        let clock = Self::new();
        clock.set_unix_micros(unix_micros);
        clock
    }

    /// Sets the wall time, forwards or back. Timers are not affected.
    pub fn set_unix_micros(&self, unix_micros: i64) {
        let mut state = lock(&self.0.state);
        state.unix_start = unix_micros.saturating_sub(state.elapsed_micros());
    }

    /// Moves time forward, also the wall time, and runs the timers that become due, in order, on the calling thread.
    pub fn advance(&self, by: Duration) {
        let end = lock(&self.0.state).now.saturating_add(nanos(by));
        loop {
            let mut state = lock(&self.0.state);
            match state.timers.due.first_key_value().map(|(key, _)| key.at) {
                Some(at) if at <= end => {
                    // Each callback sees the instant it was set for, so that timers it sets are relative to that.
                    state.now = state.now.max(at);
                    let now = state.now;
                    let callback = state.timers.pop_due(now);
                    drop(state);
                    callback.expect("the timer was found under the same lock")();
                }
                _ => {
                    state.now = state.now.max(end);
                    return;
                }
            }
        }
    }

    /// Blocks until at least `count` timers wait for this clock, which shows that a task has reached its back-off or
    /// that a `submit_timeout` waits.
    pub fn wait_for_timers(&self, count: usize) {
        let mut state = lock(&self.0.state);
        while state.timers.due.len() < count {
            state = wait(&self.0.changed, state);
        }
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0.state);
        f.debug_struct("ManualClock")
            .field("now", &Duration::from_nanos(state.now))
            .field("timers", &state.timers.due.len())
            .finish()
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(Source::Manual(clock.0))
    }
}

impl From<&ManualClock> for Clock {
    fn from(clock: &ManualClock) -> Self {
        Self(Source::Manual(Arc::clone(&clock.0)))
    }
}

/// The timer thread, one for the whole process.
#[cfg(not(any(shuttle, loom)))]
mod system {
    use super::{TimerCallback, TimerKey, Timers};
    use crate::sync::{Condvar, Mutex, OnceLock, lock, thread, wait};
    use std::{
        sync::PoisonError,
        time::{Duration, Instant, SystemTime},
    };

    struct TimerThread {
        state: Mutex<State>,
        earlier_timer: Condvar,
    }

    #[derive(Default)]
    struct State {
        timers: Timers,
        running: bool,
        /// Time at which the thread wakes up next. Only an earlier timer notifies it. A cancelled timer does not: tasks
        /// set and cancel thousands of timeouts of which almost none fires.
        wakes_at: u64,
    }

    static TIMER: TimerThread = TimerThread {
        state: Mutex::new(State {
            timers: Timers { due: std::collections::BTreeMap::new(), last_sequence: 0 },
            running: false,
            wakes_at: u64::MAX,
        }),
        earlier_timer: Condvar::new(),
    };

    static START: OnceLock<Instant> = OnceLock::new();

    pub(super) fn now() -> u64 {
        super::nanos(START.get_or_init(Instant::now).elapsed())
    }

    pub(super) fn unix_micros() -> i64 {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => micros(since),
            Err(before) => -micros(before.duration()),
        }
    }

    /// Starts the timer thread. Without it no timer fires, so no pool is built if this fails.
    pub(super) fn start() -> std::io::Result<()> {
        let mut state = lock(&TIMER.state);
        if !state.running {
            thread::Builder::new().name("gristmill-clock".into()).spawn(run)?;
            state.running = true;
        }
        Ok(())
    }

    pub(super) fn add(at: u64, callback: TimerCallback) -> TimerKey {
        let mut state = lock(&TIMER.state);
        let key = state.timers.add(at, callback);
        if at < state.wakes_at {
            state.wakes_at = at;
            drop(state);
            TIMER.earlier_timer.notify_one();
        }
        key
    }

    pub(super) fn remove(key: TimerKey) -> Option<TimerCallback> {
        lock(&TIMER.state).timers.due.remove(&key)
    }

    fn run() {
        let mut state = lock(&TIMER.state);
        loop {
            let now = now();
            if let Some(callback) = state.timers.pop_due(now) {
                drop(state);
                // A callback may call a foreign waker, whose panic must not end the thread of all timers.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback)).is_err() {
                    tracing::error!("a timer callback panicked");
                }
                state = lock(&TIMER.state);
                continue;
            }
            let next = state.timers.due.first_key_value().map_or(u64::MAX, |(key, _)| key.at);
            state.wakes_at = next;
            state = if next == u64::MAX {
                wait(&TIMER.earlier_timer, state)
            } else {
                let pause = Duration::from_nanos(next - now);
                TIMER.earlier_timer.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}
