//! Where the dispatcher is woken and told to stop.
//!
//! Owns the signals between whoever runs work and the one thread that claims and settles it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_store::{Store, Watch};

use crate::error::Error;

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
    /// How often somebody asked whether all is done, and the last question that was answered with yes.
    asked: u64,
    answered: u64,
    deadlines: Option<Deadlines>,
    ended: Option<Result<(), Error>>,
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
            Watch::wake(&self.store);
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
        Watch::wake(&self.store);
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

    /// All that was due when this question was asked, or since, is done.
    pub(crate) fn answer(&self, question: u64) {
        let mut state = self.state();
        if state.answered < question {
            state.answered = question;
            self.changed.notify_all();
        }
    }

    /// Asks whether all is done and waits until it is, or until the dispatcher has ended.
    pub(crate) fn ask(&self) -> Result<(), Error> {
        let mut state = self.state();
        state.asked += 1;
        let question = state.asked;
        drop(state);
        self.asleep.store(false, Ordering::SeqCst);
        Watch::wake(&self.store);
        let mut state = self.state();
        while state.answered < question && state.ended.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.ended.clone().unwrap_or(Ok(()))
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
