//! The one way to ask work to stop: a flag that is cheap to poll, can be awaited, and calls back.

use crate::{
    panics,
    sync::{
        Arc, Condvar, Mutex, OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
        lock, wait,
    },
};
use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::PoisonError,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// Asks work to stop. Clones share one state; a cancelled token stays cancelled.
///
/// Work polls [`is_cancelled`](Self::is_cancelled), which costs as much as reading a variable, sleeps in
/// [`wait_timeout`](Self::wait_timeout), or awaits [`cancelled`](Self::cancelled) on any async runtime. Work that blocks
/// elsewhere registers with [`on_cancel`](Self::on_cancel) what ends its wait. A [child](Self::child) is cancelled with
/// its parent, and can be cancelled alone.
///
/// ```
/// use gristmill_pool::CancelToken;
/// use std::time::Duration;
///
/// let all = CancelToken::new();
/// let one = all.child();
/// let sleeper = std::thread::spawn({
///     let one = one.clone();
///     move || one.wait_timeout(Duration::from_secs(3_600))
/// });
/// all.cancel();
/// assert!(sleeper.join().unwrap(), "it was cancelled before the hour was over");
/// assert!(one.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_cancelled: AtomicBool,
    listeners: Mutex<Listeners>,
    changed: Condvar,
    /// Registration of a child with its parent, which ends when the child is dropped.
    parent: OnceLock<CancelCallback>,
}

#[derive(Default)]
struct Listeners {
    last_key: u64,
    by_key: BTreeMap<u64, Listener>,
}

enum Listener {
    Waker(Waker),
    Callback(Box<dyn FnOnce() + Send>),
}

impl Listener {
    fn call(self) {
        match self {
            Listener::Waker(waker) => panics::wake(waker),
            Listener::Callback(callback) => panics::call(callback),
        }
    }
}

impl Shared {
    /// Cancels the token, then calls the listeners in the order in which they were registered.
    fn cancel(&self) {
        let mut listeners = lock(&self.listeners);
        self.is_cancelled.store(true, Release);
        let called = std::mem::take(&mut listeners.by_key);
        drop(listeners);
        self.changed.notify_all();
        called.into_values().for_each(Listener::call);
    }

    /// Registers a listener, or returns it if the token is cancelled.
    fn listen(&self, listener: Listener) -> Result<u64, Listener> {
        let mut listeners = lock(&self.listeners);
        if self.is_cancelled.load(Acquire) {
            return Err(listener);
        }
        listeners.last_key += 1;
        let key = listeners.last_key;
        listeners.by_key.insert(key, listener);
        Ok(key)
    }

    fn unlisten(&self, key: u64) {
        // Dropped after the lock is released: a callback may own a value whose drop uses this token.
        let _listener = lock(&self.listeners).by_key.remove(&key);
    }
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a token that is cancelled with this one. Cancelling the child does not cancel this one.
    #[must_use]
    pub fn child(&self) -> Self {
        let child = Self::new();
        let weak = Arc::downgrade(&child.0);
        let registered = self.on_cancel(move || weak.upgrade().iter().for_each(|child| child.cancel()));
        // Set once: this is the only place that sets it.
        let _ = child.0.parent.set(registered);
        child
    }

    /// Cancels the token and its children, and calls the callbacks on this thread. Further calls do nothing.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Acquire)
    }

    /// Blocks until the token is cancelled.
    pub fn wait(&self) {
        let mut listeners = lock(&self.0.listeners);
        while !self.is_cancelled() {
            listeners = wait(&self.0.changed, listeners);
        }
    }

    /// Blocks until the token is cancelled, for at most `limit`. Returns whether it is cancelled.
    pub fn wait_timeout(&self, limit: Duration) -> bool {
        match Instant::now().checked_add(limit) {
            Some(deadline) => self.wait_deadline(deadline),
            None => {
                self.wait();
                true
            }
        }
    }

    /// Blocks until the token is cancelled or `deadline` has passed. Returns whether it is cancelled.
    pub fn wait_deadline(&self, deadline: Instant) -> bool {
        let mut listeners = lock(&self.0.listeners);
        while !self.is_cancelled() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            listeners = self.0.changed.wait_timeout(listeners, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Completes when the token is cancelled. Works on any async runtime.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled(Registration { token: self.clone(), key: None })
    }

    /// Calls `callback` when the token is cancelled: on the thread that cancels it, or at once if it is cancelled. It
    /// must be short. Dropping the returned value unregisters it; a call that has begun on another thread continues.
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) -> CancelCallback {
        let registered = self.0.listen(Listener::Callback(Box::new(callback)));
        let key = registered.map_err(Listener::call).ok();
        CancelCallback { _registration: Registration { token: self.clone(), key } }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_cancelled()).finish()
    }
}

/// A listener of a token, which is unregistered on drop.
#[derive(Debug)]
struct Registration {
    token: CancelToken,
    /// Key of the listener, once it is registered.
    key: Option<u64>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.key.into_iter().for_each(|key| self.token.0.unlisten(key));
    }
}

/// Registration of a callback with [`CancelToken::on_cancel`]. Dropping it unregisters the callback.
#[must_use = "the callback is unregistered when this is dropped"]
#[derive(Debug)]
pub struct CancelCallback {
    _registration: Registration,
}

/// Future returned by [`CancelToken::cancelled`].
#[must_use = "a future does nothing until it is awaited"]
#[derive(Debug)]
pub struct Cancelled(Registration);

impl Cancelled {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.token.is_cancelled()
    }
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Registration { token, key } = &mut self.0;
        if let Some(key) = key {
            // The earlier waker is replaced, unless the cancellation has taken it.
            let mut listeners = lock(&token.0.listeners);
            if let Some(Listener::Waker(waker)) = listeners.by_key.get_mut(key) {
                let replaced = std::mem::replace(waker, cx.waker().clone());
                // Dropped after the lock is released: a waker may own a future whose drop uses this token.
                drop(listeners);
                drop(replaced);
                return Poll::Pending;
            }
        }
        *key = token.0.listen(Listener::Waker(cx.waker().clone())).ok();
        if key.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use super::*;

    #[test]
    fn dropped_children_and_futures_are_unregistered() {
        let parent = CancelToken::new();
        for _ in 0..100 {
            let mut dropped = parent.cancelled();
            assert!(Pin::new(&mut dropped).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(parent.child());
        }
        assert!(lock(&parent.0.listeners).by_key.is_empty());
    }
}
