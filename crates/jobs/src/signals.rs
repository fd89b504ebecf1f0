//! Signals between the dispatcher and the threads that run work or hold the handle.
//!
//! Owns waking the dispatcher, stopping it, and waiting until it is idle or has ended.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::CancelToken;
use gristmill_store::{ChangeWatcher, Store};

use crate::error::Error;

thread_local! {
    /// Address of the [`DispatcherSignals`] of the runner whose code this thread runs; 0 outside of handlers.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// State shared by the dispatcher, its sources, the handlers and the runner's handle.
pub(crate) struct DispatcherSignals {
    pub(crate) store: Store,
    /// The dispatcher sleeps, or is about to.
    asleep: AtomicBool,
    stopping: CancelToken,
    state: Mutex<State>,
    changed: Condvar,
    /// Cancelled when the dispatcher has ended.
    pub(crate) ended: CancelToken,
}

#[derive(Default)]
struct State {
    /// Number of the last wait request; requests are numbered from 1.
    last_request: u64,
    /// The last request for which nothing was due or running.
    no_due_tasks: u64,
    /// The last request for which no retry was waiting either.
    idle: u64,
    /// Number of callers that wait for [`WaitFor::Idle`].
    await_idle: usize,
    deadlines: Option<Deadlines>,
    result: Option<Result<(), Error>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// No claimable task is due, and none runs.
    NoDueTasks,
    /// In addition, no task waits for a retry.
    Idle,
}

/// Marks the calling thread as one that runs a runner's code, until it is dropped.
#[must_use]
pub(crate) struct Inside {
    outer: usize,
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.outer);
    }
}

/// Deadlines of a stop: when the handlers are cancelled, and when their tasks are released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    pub(crate) cancel: Instant,
    pub(crate) release: Instant,
}

impl DispatcherSignals {
    pub(crate) fn new(store: Store) -> Self {
        DispatcherSignals {
            store,
            asleep: AtomicBool::new(false),
            stopping: CancelToken::new(),
            ended: CancelToken::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            ChangeWatcher::wake(&self.store);
        }
    }

    /// Sets whether the dispatcher sleeps. While it does, `wake` notifies it.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    pub(crate) fn deadlines(&self) -> Option<Deadlines> {
        self.state().deadlines
    }

    /// Stops the runner: no handler is started any more, and running ones have until `deadline`. The earliest deadline
    /// of several calls applies.
    pub(crate) fn stop(&self, deadline: Duration) {
        let now = Instant::now();
        // As in a pool's shutdown: the last tenth, at most a second, is for cancelled handlers to end.
        let last = (deadline / 10).min(Duration::from_secs(1));
        let release = now.checked_add(deadline).unwrap_or(now + Duration::from_secs(86_400 * 365));
        let new = Deadlines { cancel: release - last, release };
        let mut state = self.state();
        state.deadlines = Some(state.deadlines.filter(|old| old.release <= new.release).unwrap_or(new));
        drop(state);
        self.stopping.cancel();
        self.asleep.store(false, Ordering::SeqCst);
        self.changed.notify_all();
        ChangeWatcher::wake(&self.store);
    }

    /// Waits for `limit`, or until the deadline of a stop if that is earlier.
    pub(crate) fn sleep_for(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.state();
        loop {
            let end = state.deadlines.map_or(end, |deadlines| end.min(deadlines.release));
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn last_request(&self) -> u64 {
        self.state().last_request
    }

    pub(crate) fn awaits_idle(&self) -> bool {
        self.state().await_idle > 0
    }

    /// Acknowledges the requests up to `request`: nothing is due or running; if `idle`, no retry waits either.
    pub(crate) fn ack_idle(&self, request: u64, idle: bool) {
        let mut state = self.state();
        if state.no_due_tasks < request || (idle && state.idle < request) {
            state.no_due_tasks = request;
            state.idle = if idle { request } else { state.idle };
            self.changed.notify_all();
        }
    }

    /// Makes a wait request and waits until it is acknowledged, or until the dispatcher has ended.
    pub(crate) fn wait_idle(&self, wait: WaitFor) -> Result<(), Error> {
        let mut state = self.state();
        state.last_request += 1;
        let request = state.last_request;
        state.await_idle += usize::from(wait == WaitFor::Idle);
        drop(state);
        self.asleep.store(false, Ordering::SeqCst);
        ChangeWatcher::wake(&self.store);
        let mut state = self.state();
        let acked = |state: &State| match wait {
            WaitFor::NoDueTasks => state.no_due_tasks >= request,
            WaitFor::Idle => state.idle >= request,
        };
        while !acked(&state) && state.result.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.await_idle -= usize::from(wait == WaitFor::Idle);
        state.result.clone().unwrap_or(Ok(()))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn enter(&self) -> Inside {
        Inside { outer: INSIDE.replace(self.address()) }
    }

    /// Fails in this runner's own handlers and threads, where `method` would deadlock.
    pub(crate) fn check_outside_handler(&self, method: &'static str) -> Result<(), Error> {
        if INSIDE.get() == self.address() { Err(Error::CalledInHandler(method)) } else { Ok(()) }
    }

    /// Stores the dispatcher's result and wakes the waiting callers.
    pub(crate) fn set_ended(&self, result: Result<(), Error>) {
        self.state().result = Some(result);
        self.changed.notify_all();
        self.ended.cancel();
    }

    /// Waits up to `limit` until the dispatcher has ended. Returns `None` if it has not.
    pub(crate) fn wait_ended(&self, limit: Duration) -> Option<Result<(), Error>> {
        self.ended.wait_timeout(limit);
        self.state().result.clone()
    }
}
