//! The queue of the writer thread, and the handles of queued writes.
//!
//! Owns the order of writes, the limit of the queue, and how each write's result reaches its caller. Urgent writes wake
//! the writer thread at once. A write with a linger time leaves it asleep until that time is over, so that more writes
//! join its transaction; an urgent write takes it along.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::WriteKind;
use crate::error::{Error, Result};
use crate::sqlite::db::Db;

/// Maximum number of queued writes. Callers block while the queue is full, which is the backpressure.
const QUEUE_CAPACITY: usize = 4_096;

/// Maximum number of times the writer yields for further writes; about ten microseconds when no other thread runs.
const MAX_GATHER_YIELDS: u32 = 32;

/// Writes of one transaction.
pub(super) type Group = Vec<Box<dyn PendingWrite>>;

/// Set once for all writes of a group, so that one call wakes every caller.
pub(super) type Latch = OnceLock<()>;

#[derive(Default)]
pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    /// Number of queued writes, readable without the lock.
    pub(super) count: AtomicUsize,
    /// Signalled when the first write or the first urgent write enters the queue.
    work: Condvar,
    /// Signalled when a full queue was emptied.
    not_full: Condvar,
}

#[derive(Default)]
struct QueueState {
    writes: Group,
    latch: Arc<Latch>,
    /// Whether the next transaction begins at once.
    is_urgent: bool,
    /// End of the earliest linger time.
    due: Option<Instant>,
    closed: bool,
}

impl QueueState {
    /// Makes the next transaction begin at once. Returns whether the writer must be woken.
    fn make_urgent(&mut self) -> bool {
        !mem::replace(&mut self.is_urgent, true)
    }
}

impl WriteQueue {
    /// Queues a write, and returns the latch that is set when it is done. Blocks while the queue is full. `linger`: how
    /// long its transaction waits for more writes.
    pub(super) fn push(&self, write: Box<dyn PendingWrite>, linger: Duration) -> Result<Arc<Latch>> {
        let mut state = lock(&self.state);
        while state.writes.len() >= QUEUE_CAPACITY && !state.closed {
            state = self.not_full.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Error::Closed);
        }
        state.writes.push(write);
        self.count.store(state.writes.len(), Ordering::Relaxed);
        let wakes = if linger.is_zero() || state.writes.len() == QUEUE_CAPACITY {
            state.make_urgent()
        } else {
            let due = Instant::now().checked_add(linger);
            let is_earlier = due.is_some_and(|due| state.due.is_none_or(|earliest| due < earliest));
            if is_earlier {
                state.due = due;
            }
            is_earlier && !state.is_urgent
        };
        if wakes {
            self.work.notify_one();
        }
        Ok(state.latch.clone())
    }

    /// Takes all queued writes and their latch; `None` when the queue is closed and empty. If fewer than
    /// `previous_len` writes are queued, yields so that the callers of the previous group can return: of 64 callers that
    /// wake at the same time, the first would otherwise get a separate commit while the others wait for it.
    pub(super) fn take(&self, previous_len: usize) -> Option<(Group, Arc<Latch>)> {
        let mut state = lock(&self.state);
        while !state.is_urgent {
            if state.closed && state.writes.is_empty() {
                return None;
            }
            let left = state.due.map(|due| due.saturating_duration_since(Instant::now()));
            state = match left {
                _ if state.closed => break,
                Some(left) if left.is_zero() => break,
                Some(left) => self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        if state.writes.len() < previous_len {
            drop(state);
            for _ in 0..MAX_GATHER_YIELDS {
                std::thread::yield_now();
                if self.count.load(Ordering::Relaxed) >= previous_len {
                    break;
                }
            }
            state = lock(&self.state);
        }
        let was_full = state.writes.len() >= QUEUE_CAPACITY;
        // Reserves the same capacity, because a queue that grows does so under the contended lock.
        let next = Vec::with_capacity(state.writes.len());
        let group = mem::replace(&mut state.writes, next);
        self.count.store(0, Ordering::Relaxed);
        (state.is_urgent, state.due) = (false, None);
        let latch = mem::take(&mut state.latch);
        drop(state);
        if was_full {
            self.not_full.notify_all();
        }
        Some((group, latch))
    }

    /// Refuses further writes. Queued ones can still be taken.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_all();
        self.not_full.notify_all();
    }
}

/// A queued write, with its result once it has run.
pub(super) trait PendingWrite: Send {
    fn kind(&self) -> WriteKind;
    fn notifies(&self) -> bool;
    /// Runs the write in the open transaction and keeps its result. Returns the error, if any. May be called again.
    fn run(&mut self, db: &Db<'_>) -> Option<Error>;
    /// Keeps `error` as the result, because the transaction failed.
    fn fail(&mut self, error: &Error);
    /// Hands the result to the caller. Called once, after the commit.
    fn finish(self: Box<Self>);
}

pub(super) struct Request<T, F, D> {
    pub(super) body: F,
    pub(super) result: Option<Result<T>>,
    pub(super) kind: WriteKind,
    pub(super) notifies: bool,
    /// Receives the result.
    pub(super) deliver: D,
}

impl<T, F, D> PendingWrite for Request<T, F, D>
where
    T: Send,
    F: FnMut(&Db<'_>) -> Result<T> + Send,
    D: FnOnce(Result<T>) + Send,
{
    fn kind(&self) -> WriteKind {
        self.kind
    }

    fn notifies(&self) -> bool {
        self.notifies
    }

    fn run(&mut self, db: &Db<'_>) -> Option<Error> {
        let result = self.result.insert((self.body)(db));
        result.as_ref().err().cloned()
    }

    fn fail(&mut self, error: &Error) {
        self.result = Some(Err(error.clone()));
    }

    fn finish(self: Box<Self>) {
        let Request { result, deliver, .. } = *self;
        deliver(result.unwrap_or_else(|| Err(Error::Internal("a write panicked".to_owned()))));
    }
}

/// Where the result of a write is left for its caller.
pub(super) struct Slot<T>(Mutex<Reply<T>>);

enum Reply<T> {
    Pending,
    /// The caller does not wait for the result.
    Abandoned,
    Ready(Result<T>),
}

impl<T> Slot<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Slot(Mutex::new(Reply::Pending)))
    }

    pub(super) fn put(&self, result: Result<T>) {
        let mut reply = lock(&self.0);
        match *reply {
            Reply::Abandoned => log_failure(&result),
            _ => *reply = Reply::Ready(result),
        }
    }

    /// Takes the result after the latch of its group was set.
    pub(super) fn take(&self) -> Result<T> {
        match mem::replace(&mut *lock(&self.0), Reply::Abandoned) {
            Reply::Ready(result) => result,
            // Only a panic keeps the writer from leaving a result.
            _ => Err(Error::Internal("the callback of a write panicked".to_owned())),
        }
    }

    fn abandon(&self) {
        if let Reply::Ready(result) = mem::replace(&mut *lock(&self.0), Reply::Abandoned) {
            log_failure(&result);
        }
    }
}

fn log_failure<T>(result: &Result<T>) {
    if let Err(error) = result {
        tracing::error!(%error, "a queued write failed");
    }
}

/// A write that is queued, running or done. Dropping the handle does not cancel the write; if it fails, that is logged.
#[must_use = "without the handle it is not known whether the write succeeds"]
pub struct WriteHandle<T> {
    pub(super) queue: Arc<WriteQueue>,
    pub(super) latch: Arc<Latch>,
    pub(super) slot: Arc<Slot<T>>,
}

impl<T> WriteHandle<T> {
    /// Waits until the write is on disk or has failed, and returns its result. A write with a linger time is started.
    pub fn wait(self) -> Result<T> {
        self.start();
        self.latch.wait();
        self.slot.take()
    }

    /// Returns whether the write is on disk or has failed.
    pub fn is_done(&self) -> bool {
        self.latch.get().is_some()
    }

    /// Ends the linger time of a write that is still queued.
    pub fn start(&self) {
        let mut state = lock(&self.queue.state);
        if Arc::ptr_eq(&state.latch, &self.latch) && state.make_urgent() {
            self.queue.work.notify_one();
        }
    }
}

impl<T> Drop for WriteHandle<T> {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}

impl<T> fmt::Debug for WriteHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHandle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// Ignores poisoning: no data under these locks is left half-changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
