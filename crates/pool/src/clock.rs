//! Time: what it is now, and what is to happen later. The only place that reads the system clock and the
//! only one that waits for it. A [`ManualClock`] makes the same code deterministic in tests.
//!
//! Time is counted in nanoseconds since the clock was last_sequence; it never goes backwards.

use crate::sync::{Arc, Condvar, Mutex, lock, wait};
use std::{collections::BTreeMap, fmt, task::Waker, time::Duration};

/// Where a pool or a breaker takes its time from.
///
/// [`Clock::system`] is the default. Tests hand over a [`ManualClock`] and move it by hand.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    #[cfg(not(any(shuttle, loom)))]
    System,
    Manual(Arc<Manual>),
}

/// What a timer does when it is due. Runs on the thread that found it due, so it must be short.
type TimerCallback = Box<dyn FnOnce() + Send>;

/// Names a timer, so that it can be taken back.
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

    /// Makes sure that timers fire: starts the timer thread, unless it runs.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::start(),
            Source::Manual(_) => Ok(()),
        }
    }

    /// Nanoseconds since the clock was last_sequence.
    pub(crate) fn now(&self) -> u64 {
        match &self.0 {
            #[cfg(not(any(shuttle, loom)))]
            Source::System => system::now(),
            Source::Manual(manual) => lock(&manual.state).now,
        }
    }

    /// Calls `callback` once, `delay` from now. A delay beyond the end of time never comes.
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

    /// Takes a timer back. If it is gone already, its callback has run or is running.
    pub(crate) fn cancel_timer(&self, key: TimerKey) {
        // The callback is dropped after the lock: it may hold the last handle of something whose drop comes
        // back here.
        let _alarm = match &self.0 {
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

/// WakeList whoever waits, once a time is over. Forgotten when dropped.
pub(crate) struct Deadline {
    clock: Clock,
    at: u64,
    key: TimerKey,
    shared: Arc<Mutex<DeadlineState>>,
}

#[derive(Default)]
struct DeadlineState {
    over: bool,
    waker: Option<Waker>,
}

impl Deadline {
    pub(crate) fn new(clock: &Clock, after: Duration) -> Self {
        let at = clock.now().saturating_add(nanos(after));
        let shared = Arc::new(Mutex::new(DeadlineState::default()));
        let state = Arc::clone(&shared);
        let key = clock.call_after(after, move || {
            let mut state = lock(&state);
            state.over = true;
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        Self { clock: clock.clone(), at, key, shared }
    }

    /// Whether the time is over; if not, `waker` is woken when it is.
    pub(crate) fn has_passed(&self, waker: &Waker) -> bool {
        let over = self.clock.now() >= self.at;
        let mut state = lock(&self.shared);
        state.over |= over;
        if !state.over {
            state.waker = Some(waker.clone());
        }
        state.over
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.clock.cancel_timer(self.key);
    }
}

/// A [`Duration`] in nanoseconds; what does not fit in 64 bits (584 years) is the end of time.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that moves only when it is told to.
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
    timers: Timers,
}

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves time forward and runs everything that falls due, in order, on the calling thread.
    pub fn advance(&self, by: Duration) {
        let end = lock(&self.0.state).now.saturating_add(nanos(by));
        loop {
            let mut state = lock(&self.0.state);
            match state.timers.due.first_key_value().map(|(key, _)| key.at) {
                Some(at) if at <= end => {
                    // Each callback sees the instant it was set for, so what it schedules next is right too.
                    state.now = state.now.max(at);
                    let now = state.now;
                    let callback = state.timers.pop_due(now);
                    drop(state);
                    callback.expect("the timer just seen under the lock")();
                }
                _ => {
                    state.now = state.now.max(end);
                    return;
                }
            }
        }
    }

    /// Blocks until at least `count` timers wait for this clock: the signal that a task has reached its
    /// back-off, or a `submit_timeout` its wait.
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

/// The one timer thread of the process.
#[cfg(not(any(shuttle, loom)))]
mod system {
    use super::{TimerCallback, TimerKey, Timers};
    use crate::sync::{Condvar, Mutex, OnceLock, lock, thread, wait};
    use std::{
        sync::PoisonError,
        time::{Duration, Instant},
    };

    struct TimerThread {
        state: Mutex<State>,
        earlier_timer: Condvar,
    }

    #[derive(Default)]
    struct State {
        timers: Timers,
        running: bool,
        /// When the thread means to wake up. A timer for later need not disturb it, and one that is taken
        /// back leaves it be: task timeouts come and go by the thousand and almost none fires.
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

    /// Starts the timer thread. Without it no timer ever fires, so a pool that cannot have it is not built.
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
                // An callback may call a foreign waker; one that panics must not stop everybody's time.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback)).is_err() {
                    tracing::error!("a timer's callback panicked");
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
