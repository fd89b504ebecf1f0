//! Where the dispatcher is woken and told to stop.
//!
//! Owns the signals between whoever runs work and the one thread that claims and settles it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::{ChangeWatcher, Store};

use crate::error::Error;

thread_local! {
    /// The hub, as an address, of the runner whose code this thread runs.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Shared by the dispatcher, its lines and the handle.
pub(crate) struct Hub {
    pub(crate) store: Store,
    /// The dispatcher waits, or is about to.
    asleep: AtomicBool,
    stopping: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often a caller asked whether all is done.
    asked: u64,
    /// The last question for which nothing was due or ran; and the last for which nothing waited for a retry either.
    caught_up: u64,
    idle: u64,
    /// How many callers wait for the latter.
    await_idle: usize,
    deadlines: Option<Deadlines>,
    ended: Option<Result<(), Error>>,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing is due and nothing runs.
    CaughtUp,
    /// And nothing waits for a retry.
    Idle,
}

/// The calling thread runs a runner's code.
#[must_use]
pub(crate) struct Inside {
    outer: usize,
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.outer);
    }
}

/// When a worker that stops tells its handlers to stop too, and when it gives them up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub(crate) cancel: Instant,
    pub(crate) leave: Instant,
}

impl Hub {
    pub(crate) fn new(store: Store) -> Self {
        Hub {
            store,
            asleep: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the dispatcher if it sleeps.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            ChangeWatcher::wake(&self.store);
        }
    }

    /// The dispatcher is about to wait: from now on it has to be woken.
    pub(crate) fn going_to_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn deadlines(&self) -> Option<Deadlines> {
        self.state().deadlines
    }

    /// Nothing new is started; what runs has until `deadline`. An earlier call with a shorter one holds.
    pub(crate) fn stop(&self, deadline: Duration) {
        let now = Instant::now();
        // As in a pool's shutdown: the last tenth, at most a second, is for handlers that were told to stop.
        let last = (deadline / 10).min(Duration::from_secs(1));
        let leave = now.checked_add(deadline).unwrap_or(now + Duration::from_secs(86_400 * 365));
        let new = Deadlines { cancel: leave - last, leave };
        let mut state = self.state();
        state.deadlines = Some(state.deadlines.filter(|old| old.leave <= new.leave).unwrap_or(new));
        drop(state);
        self.stopping.store(true, Ordering::SeqCst);
        self.asleep.store(false, Ordering::SeqCst);
        self.changed.notify_all();
        ChangeWatcher::wake(&self.store);
    }

    /// Waits so long, but no further than the deadline of a stop, and not at all once that is over.
    pub(crate) fn pause(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.state();
        loop {
            let end = state.deadlines.map_or(end, |deadlines| end.min(deadlines.leave));
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of the last question whether all is done.
    pub(crate) fn asked(&self) -> u64 {
        self.state().asked
    }

    /// Whether a caller waits until nothing is left to do, retries included.
    pub(crate) fn awaits_idle(&self) -> bool {
        self.state().await_idle > 0
    }

    /// All that was due when this question was asked, or since, is done; if `idle`, no retry waits either.
    pub(crate) fn answer(&self, question: u64, idle: bool) {
        let mut state = self.state();
        if state.caught_up < question || (idle && state.idle < question) {
            state.caught_up = question;
            state.idle = if idle { question } else { state.idle };
            self.changed.notify_all();
        }
    }

    /// Asks whether all is done and waits until it is, or until the dispatcher has ended.
    pub(crate) fn ask(&self, wait: Wait) -> Result<(), Error> {
        let mut state = self.state();
        state.asked += 1;
        let question = state.asked;
        state.await_idle += usize::from(wait == Wait::Idle);
        drop(state);
        self.asleep.store(false, Ordering::SeqCst);
        ChangeWatcher::wake(&self.store);
        let mut state = self.state();
        let answered = |state: &State| match wait {
            Wait::CaughtUp => state.caught_up >= question,
            Wait::Idle => state.idle >= question,
        };
        while !answered(&state) && state.ended.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.await_idle -= usize::from(wait == Wait::Idle);
        state.ended.clone().unwrap_or(Ok(()))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Marks the calling thread as one that runs this runner's code, until the guard is dropped.
    pub(crate) fn enter(&self) -> Inside {
        Inside { outer: INSIDE.replace(self.address()) }
    }

    /// Fails inside this runner's own handlers and threads: what `waits` for its end there waits for itself.
    pub(crate) fn must_be_outside(&self, waits: &'static str) -> Result<(), Error> {
        if INSIDE.get() == self.address() { Err(Error::Inside(waits)) } else { Ok(()) }
    }

    /// The dispatcher has ended.
    pub(crate) fn end(&self, result: Result<(), Error>) {
        self.state().ended = Some(result);
        self.changed.notify_all();
    }

    /// Waits until the dispatcher has ended, at most so long. Nothing when it has not.
    pub(crate) fn ended(&self, limit: Option<Duration>) -> Option<Result<(), Error>> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state();
        while state.ended.is_none() {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.ended.clone()
    }
}
