//! The synchronisation primitives of the crate: those of std, or those of a model checker that explores schedules
//! (`--cfg shuttle`, the whole pool) or memory orders (`--cfg loom`, its lock-free protocols). No other module uses
//! locks, atomics or threads of std, so the checker sees every blocking point.

#[cfg(not(any(shuttle, loom)))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};
#[cfg(loom)]
pub(crate) use std::thread_local;

pub(crate) use std::sync::{Arc, OnceLock, Weak};
use std::{
    pin::pin,
    sync::PoisonError,
    task::{Context, Poll, Wake, Waker},
};

/// Locks a mutex and ignores poisoning: no user code runs under a lock of this crate, so its value is consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition variable and ignores poisoning.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a value on its own cache lines, so that what one core writes often shares no line with what another reads
/// often. Aligned to 128 bytes, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// Waits for a millisecond at most. A model checker has no time: there the thread yields.
pub(crate) fn park_briefly() {
    #[cfg(any(loom, shuttle))]
    thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    thread::park_timeout(std::time::Duration::from_millis(1));
}

/// Puts the calling thread to sleep until its waker is called. A call before that is not lost. Threads and async tasks
/// wait in the same lists: a thread parks where a task returns `Pending`.
pub(crate) struct Parker {
    token: Arc<Token>,
    waker: Waker,
}

impl Parker {
    pub(crate) fn new() -> Self {
        let token = Arc::new(Token::new());
        Self { waker: Waker::from(Arc::clone(&token)), token }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn park(&self) {
        self.token.wait();
    }
}

/// Runs a future on the calling thread, which sleeps while the future waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let (parker, mut future) = (Parker::new(), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(parker.waker())) {
            return output;
        }
        parker.park();
    }
}

#[cfg(not(shuttle))]
struct Token(thread::Thread);

#[cfg(not(shuttle))]
impl Token {
    fn new() -> Self {
        Self(thread::current())
    }

    #[expect(clippy::unused_self, reason = "shuttle's variant uses self")]
    fn wait(&self) {
        thread::park();
    }

    fn notify(&self) {
        self.0.unpark();
    }
}

/// Shuttle's own `park` wakes spuriously, as the real one may. That would hide missing wake-ups, so this one does not.
#[cfg(shuttle)]
struct Token(Mutex<bool>, Condvar);

#[cfg(shuttle)]
impl Token {
    fn new() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }

    fn wait(&self) {
        let mut notified = lock(&self.0);
        while !*notified {
            notified = wait(&self.1, notified);
        }
        *notified = false;
    }

    fn notify(&self) {
        *lock(&self.0) = true;
        self.1.notify_one();
    }
}

impl Wake for Token {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
