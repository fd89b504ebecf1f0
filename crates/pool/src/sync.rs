//! The synchronisation primitives the crate is built from: std's, or shuttle's when the schedules are
//! explored (`--cfg shuttle`). Nothing else in the crate names `std::sync` locks, atomics or threads, so
//! every blocking point is one that the model checker can see.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

pub(crate) use std::sync::{Arc, OnceLock, Weak};
use std::{
    sync::PoisonError,
    task::{Wake, Waker},
};

/// Locks, whatever happened to an earlier holder. No user code runs under any lock of this crate, so a
/// poisoned lock still guards a consistent value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition variable, whatever happened to an earlier holder.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a value on cache lines of its own: what one core writes often must not share a line with what
/// another reads often. 128, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker of the calling thread. Threads and async tasks wait in the same lists: a thread parks where a
/// task returns `Pending`.
pub(crate) fn thread_waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}
