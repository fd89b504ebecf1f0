//! Passes the outcomes of tasks from the workers to the reader.
//!
//! No outcome is dropped: a worker that has one can always push it. A slow reader holds workers up earlier, before they
//! *start* another task while the result queue is full. The queue therefore holds at most one outcome per worker above
//! its capacity.

use crate::{
    outcome::Outcome,
    panics,
    sync::{
        Mutex, Parker,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        lock, thread_local,
    },
};
use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    fmt,
    task::{Poll, Waker},
};

thread_local! {
    /// Id of the [`ResultQueue`] that this thread last read from.
    static READ_QUEUE: Cell<u64> = const { Cell::new(0) };
}

/// Id of the newest [`ResultQueue`]. An address would be reused.
static LAST_QUEUE_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Order in which [`Results`] delivers outcomes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ResultOrder {
    /// In the order in which tasks complete.
    #[default]
    AsCompleted,
    /// In the order in which tasks were submitted. A slow task holds back the results of later ones.
    /// `submit` waits when tasks are too far ahead of the reader, which bounds memory.
    AsSubmitted,
}

pub(crate) struct ResultQueue<T> {
    id: u64,
    state: Mutex<State<T>>,
    pub(crate) order: ResultOrder,
    capacity: usize,
    workers: usize,
    /// Whether workers must wait before they start a task. Read without the lock.
    full: AtomicBool,
    /// With `AsSubmitted`, the id of the task to deliver next. Read without the lock.
    next: AtomicU64,
    /// Whether the thread that reads the results waits in `submit` for room.
    reader_submits: AtomicBool,
}

struct State<T> {
    buffer: ResultBuffer<T>,
    /// No more outcomes are pushed.
    ended: bool,
    /// [`Results`] was dropped: outcomes are discarded.
    reader_dropped: bool,
    reader: Option<Waker>,
    workers: Vec<Waker>,
}

enum ResultBuffer<T> {
    Completed(VecDeque<Outcome<T>>),
    /// Outcomes by task id. `None` marks a task that never started and has no outcome.
    Submitted {
        by_task: BTreeMap<u64, Option<Outcome<T>>>,
        next: u64,
        len: usize,
    },
}

impl<T> ResultBuffer<T> {
    fn len(&self) -> usize {
        match self {
            Self::Completed(outcomes) => outcomes.len(),
            Self::Submitted { len, .. } => *len,
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            Self::Completed(outcomes) => !outcomes.is_empty(),
            Self::Submitted { by_task, next, .. } => by_task.contains_key(next),
        }
    }

    fn push(&mut self, task: u64, outcome: Option<Outcome<T>>) {
        match self {
            Self::Completed(outcomes) => outcomes.extend(outcome),
            Self::Submitted { by_task, len, .. } => {
                *len += usize::from(outcome.is_some());
                by_task.insert(task, outcome);
            }
        }
    }

    /// Takes the next outcome to deliver. Once `ended`, the gaps of abandoned tasks are skipped.
    fn pop(&mut self, ended: bool) -> Option<Outcome<T>> {
        match self {
            Self::Completed(outcomes) => outcomes.pop_front(),
            Self::Submitted { by_task, next, len } => loop {
                let first = by_task.first_entry()?;
                if *first.key() != *next && !ended {
                    return None;
                }
                *next = *first.key() + 1;
                if let Some(outcome) = first.remove() {
                    *len -= 1;
                    self.skip_gaps();
                    return Some(outcome);
                }
            },
        }
    }

    /// Skips the ids of tasks that have no outcome.
    fn skip_gaps(&mut self) {
        if let Self::Submitted { by_task, next, .. } = self {
            while by_task.get(next).is_some_and(Option::is_none) {
                by_task.remove(next);
                *next += 1;
            }
        }
    }

    /// Id of the next task to deliver; 0 in completion order.
    fn next(&self) -> u64 {
        match self {
            Self::Completed(_) => 0,
            Self::Submitted { next, .. } => *next,
        }
    }
}

impl<T> ResultQueue<T> {
    pub(crate) fn new(order: ResultOrder, capacity: usize, workers: usize) -> Self {
        let buffer = match order {
            ResultOrder::AsCompleted => ResultBuffer::Completed(VecDeque::new()),
            ResultOrder::AsSubmitted => ResultBuffer::Submitted { by_task: BTreeMap::new(), next: 0, len: 0 },
        };
        let state = State { buffer, ended: false, reader_dropped: false, reader: None, workers: Vec::new() };
        let (full, next) = (AtomicBool::new(false), AtomicU64::new(0));
        let id = LAST_QUEUE_ID.fetch_add(1, Relaxed) + 1;
        let reader_submits = AtomicBool::new(false);
        Self { id, state: Mutex::new(state), order, capacity, workers, full, next, reader_submits }
    }

    /// Adds the outcome of a task, or `None` for a task that will have none. Never waits.
    pub(crate) fn push(&self, task: u64, outcome: Option<Outcome<T>>) {
        let mut state = lock(&self.state);
        if state.reader_dropped {
            drop(state);
            return panics::discard(outcome);
        }
        state.buffer.push(task, outcome);
        state.buffer.skip_gaps();
        let reader = if state.buffer.is_ready() { state.reader.take() } else { None };
        let workers = self.update_hints(&mut state);
        drop(state);
        reader.into_iter().chain(workers).for_each(panics::wake);
    }

    /// Updates the hints after a change and returns the wakers of workers that may continue.
    fn update_hints(&self, state: &mut State<T>) -> Vec<Waker> {
        self.next.store(state.buffer.next(), Relaxed);
        let full = self.is_full(state);
        self.full.store(full, Relaxed);
        // Wakes all of them: a worker that may start a task must not wait for another's to end. Each pushes one outcome
        // before the queue is full again, so this costs about one wake-up per outcome.
        if full { Vec::new() } else { std::mem::take(&mut state.workers) }
    }

    /// Whether the queue is full and the reader can make room. In submit order, a queue that waits for its first task
    /// must not keep that task from starting.
    fn is_full(&self, state: &State<T>) -> bool {
        state.buffer.len() >= self.capacity && state.buffer.is_ready()
    }

    /// Returns `Ready` if a worker may start a task. If pending, registers `waker` to be woken when there may be room.
    pub(crate) fn poll_room(&self, waker: &Waker) -> Poll<()> {
        if !self.full.load(Relaxed) {
            return Poll::Ready(());
        }
        let mut state = lock(&self.state);
        if state.reader_dropped || !self.is_full(&state) {
            return Poll::Ready(());
        }
        if !state.workers.iter().any(|known| known.will_wake(waker)) {
            state.workers.push(waker.clone());
        }
        Poll::Pending
    }

    fn is_read_by_this_thread(&self) -> bool {
        READ_QUEUE.with(Cell::get) == self.id
    }

    pub(crate) fn is_reader_submitting(&self) -> bool {
        self.reader_submits.load(Relaxed)
    }

    /// Whether no worker runs a task until more results are read, given the number of idle workers.
    pub(crate) fn blocks_all_workers(&self, idle: usize) -> bool {
        let state = lock(&self.state);
        self.is_full(&state) && state.workers.len() + idle >= self.workers
    }

    /// Records until the guard is dropped that the calling thread waits in `submit`, if it is the reading thread.
    pub(crate) fn enter_submit(&self) -> Option<ReaderSubmitGuard<'_, T>> {
        self.is_read_by_this_thread().then(|| {
            self.reader_submits.store(true, Relaxed);
            ReaderSubmitGuard(self)
        })
    }

    /// Wakes workers that wait for room, after the pool was cancelled.
    pub(crate) fn release_workers(&self) {
        let workers = std::mem::take(&mut lock(&self.state).workers);
        workers.into_iter().for_each(panics::wake);
    }

    /// Ends the queue: the reader gets the outcomes that are left and then the end.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(panics::wake);
    }

    /// Id of the next task to deliver: all tasks before it are delivered or have no outcome.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Takes the next outcome, or `None` at the end. If pending, registers `waker` to be woken when there is more.
    fn poll_next(&self, waker: impl FnOnce() -> Waker) -> Poll<Option<Outcome<T>>> {
        let mut state = lock(&self.state);
        let ended = state.ended;
        let Some(outcome) = state.buffer.pop(ended) else {
            if ended {
                return Poll::Ready(None);
            }
            state.reader = Some(waker());
            return Poll::Pending;
        };
        let workers = self.update_hints(&mut state);
        drop(state);
        workers.into_iter().for_each(panics::wake);
        Poll::Ready(Some(outcome))
    }

    fn drop_reader(&self) {
        let mut state = lock(&self.state);
        state.reader_dropped = true;
        self.full.store(false, Relaxed);
        let workers = std::mem::take(&mut state.workers);
        let buffer = std::mem::replace(&mut state.buffer, ResultBuffer::Completed(VecDeque::new()));
        self.next.store(u64::MAX, Relaxed);
        drop(state);
        workers.into_iter().for_each(panics::wake);
        panics::discard(buffer);
    }
}

#[cold]
pub(crate) fn log_stuck_reader() {
    tracing::error!(
        "deadlock: the thread that reads the results waits in submit for room in the queue, and every worker waits \
         for it to read. It ends only if another thread reads the results. Use try_submit and keep rejected tasks, \
         submit from another thread, or spawn from inside a task (see the documentation of Results)"
    );
}

pub(crate) struct ReaderSubmitGuard<'a, T>(&'a ResultQueue<T>);

impl<T> Drop for ReaderSubmitGuard<'_, T> {
    fn drop(&mut self) {
        self.0.reader_submits.store(false, Relaxed);
    }
}

/// Iterator over the outcomes of tasks. It ends when the pool has ended and every outcome was delivered.
///
/// Every task that was started has exactly one [`Outcome`], except tasks that [`shutdown`](crate::Pool::shutdown) had
/// to abandon. A reader that does not read holds the pool up: workers start no more tasks, so `submit` waits, and so
/// does [`join`](crate::Pool::join). Read to the end, or drop the results if they are not needed.
///
/// # Submitting while reading
/// A thread that reads results must not wait in [`submit`](crate::Pool::submit): when both the queue and the results
/// are full, it waits for the workers and they wait for it. The pool logs an error when that happens; it cannot know
/// whether another thread is about to read. A task that leads to further tasks [spawns](crate::Context::spawn) them
/// from inside. Where only the reader knows what follows, it uses [`try_submit`](crate::Pool::try_submit) and keeps
/// rejected tasks until it has read more:
///
/// ```
/// use gristmill_pool::{Pool, ResultOrder, Task};
/// use std::collections::VecDeque;
///
/// let builder = Pool::builder().workers(2).queue_capacity(2).result_capacity(2);
/// let (pool, mut results) = builder.build_with_results::<u32>(ResultOrder::AsCompleted)?;
/// let halve = |n: u32| Task::new(move |_| Ok(n / 2));
/// let (mut rejected, mut in_flight, mut read) = (VecDeque::from([halve(64)]), 0, 0);
/// while in_flight > 0 || !rejected.is_empty() {
///     while let Some(task) = rejected.pop_front() {
///         match pool.try_submit(task) {
///             Ok(_) => in_flight += 1,
///             Err(full) => {
///                 rejected.push_front(full.into_task());
///                 break;
///             }
///         }
///     }
///     let Some(outcome) = results.next() else { break };
///     in_flight -= 1;
///     read += 1;
///     let half = outcome.result?;
///     rejected.extend((0..2).filter(|_| half > 0).map(|_| halve(half)));
/// }
/// assert_eq!(read, 127);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Results<T> {
    queue: std::sync::Arc<ResultQueue<T>>,
    /// Informs the pool that results were read, which in submit order makes room for submitters.
    on_read: Box<dyn Fn() + Send + Sync>,
}

impl<T> Results<T> {
    pub(crate) fn new(queue: std::sync::Arc<ResultQueue<T>>, on_read: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { queue, on_read }
    }

    /// Waits for the next outcome, or returns `None` at the end. Works on any async runtime.
    pub async fn next_async(&mut self) -> Option<Outcome<T>> {
        let outcome = std::future::poll_fn(|cx| self.queue.poll_next(|| cx.waker().clone())).await;
        (self.on_read)();
        outcome
    }
}

impl<T> Iterator for Results<T> {
    type Item = Outcome<T>;

    fn next(&mut self) -> Option<Outcome<T>> {
        READ_QUEUE.with(|reads| reads.set(self.queue.id));
        let mut parker = None;
        let outcome = loop {
            let waker = || parker.get_or_insert_with(Parker::new).waker().clone();
            if let Poll::Ready(outcome) = self.queue.poll_next(waker) {
                break outcome;
            }
            parker.iter().for_each(Parker::park);
        };
        (self.on_read)();
        outcome
    }
}

impl<T> Drop for Results<T> {
    fn drop(&mut self) {
        self.queue.drop_reader();
        (self.on_read)();
    }
}

impl<T> fmt::Debug for Results<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("waiting", &lock(&self.queue.state).buffer.len()).finish()
    }
}
