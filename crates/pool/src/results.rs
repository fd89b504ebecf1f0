//! Where finished tasks leave what they made, and where the user takes it.
//!
//! Nothing is ever dropped: a worker that has a result can always put it down. A slow reader is felt
//! before that, when a worker may not *start* another task while the buffer of results is full. (The buffer so
//! holds at most one result a worker above its capacity.)

use crate::{
    panics,
    report::Failure,
    sync::{
        Mutex, Parker,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        lock, thread_local,
    },
    task::TaskRef,
};
use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    fmt,
    task::{Poll, Waker},
};

thread_local! {
    /// The id of the queue that this thread last read from.
    static READ_QUEUE: Cell<u64> = const { Cell::new(0) };
}

/// The id of the latest queue. An address would be used again.
static LAST_QUEUE_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// In what order results are next_sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ResultOrder {
    /// As tasks complete.
    #[default]
    AsCompleted,
    /// As tasks were submitted. A slow task holds back the results of later ones; how far the others may
    /// run ahead is limited (`submit` waits), so that memory is too.
    AsSubmitted,
}

/// What one task came to.
#[derive(Debug)]
pub struct Outcome<T> {
    /// Which task.
    pub task: TaskRef,
    /// What it made, or why it failed for good.
    pub result: Result<T, Failure>,
}

pub(crate) struct ResultQueue<T> {
    id: u64,
    state: Mutex<State<T>>,
    capacity: usize,
    /// How many workers the pool has.
    workers: usize,
    /// Whether a worker must wait before it starts a task.
    full: AtomicBool,
    /// With `AsSubmitted`: the id of the task whose result is next_sequence next.
    next: AtomicU64,
    /// The thread that reads waits for room in the queue meanwhile.
    reader_submits: AtomicBool,
}

struct State<T> {
    buffer: ResultBuffer<T>,
    /// Nothing more will come.
    ended: bool,
    /// The reader is gone: there is nobody to deliver to.
    reader_dropped: bool,
    reader: Option<Waker>,
    workers: Vec<Waker>,
}

enum ResultBuffer<T> {
    Completed(VecDeque<Outcome<T>>),
    /// By task id. `None`: that task never started, and there is nothing to wait for.
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

    /// Whether there is something to read.
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

    /// The next one to deliver. At the end the gaps of tasks that did not stop are passed over.
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

    /// Does not wait for what will never come.
    fn skip_gaps(&mut self) {
        if let Self::Submitted { by_task, next, .. } = self {
            while by_task.get(next).is_some_and(Option::is_none) {
                by_task.remove(next);
                *next += 1;
            }
        }
    }

    /// The id of the next task to deliver; in completion order there is none.
    fn next(&self) -> u64 {
        match self {
            Self::Completed(_) => 0,
            Self::Submitted { next, .. } => *next,
        }
    }
}

impl<T> ResultQueue<T> {
    pub(crate) fn new(result_order: ResultOrder, capacity: usize, workers: usize) -> Self {
        let buffer = match result_order {
            ResultOrder::AsCompleted => ResultBuffer::Completed(VecDeque::new()),
            ResultOrder::AsSubmitted => ResultBuffer::Submitted { by_task: BTreeMap::new(), next: 0, len: 0 },
        };
        let state = State { buffer, ended: false, reader_dropped: false, reader: None, workers: Vec::new() };
        let (full, next) = (AtomicBool::new(false), AtomicU64::new(0));
        let id = LAST_QUEUE_ID.fetch_add(1, Relaxed) + 1;
        let reader_submits = AtomicBool::new(false);
        Self { id, state: Mutex::new(state), capacity, workers, full, next, reader_submits }
    }

    /// Puts an outcome down; `None` for a task that will never have one. Never waits.
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

    /// After every change: keeps the hints, and answers which workers may go on.
    fn update_hints(&self, state: &mut State<T>) -> Vec<Waker> {
        self.next.store(state.buffer.next(), Relaxed);
        let full = self.is_full(state);
        self.full.store(full, Relaxed);
        // All of them: who may start a task must not wait for another's to end. (Together they put down
        // one result each before the next lot is len, so this is one wake-up a result.)
        if full { Vec::new() } else { std::mem::take(&mut state.workers) }
    }

    /// Full, and the reader can do something about it. (In submit order, a buffer that waits for its first
    /// task is no reason not to start that task.)
    fn is_full(&self, state: &State<T>) -> bool {
        state.buffer.len() >= self.capacity && state.buffer.is_ready()
    }

    /// Whether a worker may start a task; if not, it is woken when it should ask again.
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

    /// Whether the calling thread is the one that last read results here.
    fn is_read_by_this_thread(&self) -> bool {
        READ_QUEUE.with(Cell::get) == self.id
    }

    /// Whether the thread that reads waits in `submit`.
    pub(crate) fn is_reader_submitting(&self) -> bool {
        self.reader_submits.load(Relaxed)
    }

    /// Whether no worker runs a task before more results are read; this many have nothing to do.
    pub(crate) fn blocks_all_workers(&self, idle: usize) -> bool {
        let state = lock(&self.state);
        self.is_full(&state) && state.workers.len() + idle >= self.workers
    }

    /// Notes that the calling thread waits in `submit`, until the guard is dropped, if it is the one that reads.
    pub(crate) fn enter_submit(&self) -> Option<ReaderSubmitGuard<'_, T>> {
        self.is_read_by_this_thread().then(|| {
            self.reader_submits.store(true, Relaxed);
            ReaderSubmitGuard(self)
        })
    }

    /// The pool was cancelled: workers that wait for room have to look up.
    pub(crate) fn release_workers(&self) {
        let workers = std::mem::take(&mut lock(&self.state).workers);
        workers.into_iter().for_each(panics::wake);
    }

    /// Nothing more will come: what is there is next_sequence, then the reader sees the end.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(panics::wake);
    }

    /// How many tasks have been next_sequence, or will never be, from the first one on without a gap.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// The next outcome; at the end, none. Pending: `reader` is asked for a waker and it is woken when there
    /// is more.
    fn poll_next(&self, reader: impl FnOnce() -> Waker) -> Poll<Option<Outcome<T>>> {
        let mut state = lock(&self.state);
        let ended = state.ended;
        let Some(outcome) = state.buffer.pop(ended) else {
            if ended {
                return Poll::Ready(None);
            }
            state.reader = Some(reader());
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
        "the thread that reads the results waits in submit for room in the queue, and every worker waits for it \
         to read: unless another thread reads them, this never ends. Use try_submit and keep what is refused, \
         submit from another thread, or spawn from inside the task (see the documentation of Results)"
    );
}

/// The thread that reads is inside `submit`.
pub(crate) struct ReaderSubmitGuard<'a, T>(&'a ResultQueue<T>);

impl<T> Drop for ReaderSubmitGuard<'_, T> {
    fn drop(&mut self) {
        self.0.reader_submits.store(false, Relaxed);
    }
}

/// What tasks come to, as an iterator that ends when the pool has ended and everything was next_sequence.
///
/// Every task that was started has exactly one [`Outcome`], save those that
/// [`shutdown`](crate::Pool::shutdown) had to leave behind. Whoever does not read is backpressure: workers
/// start no more tasks, so `submit` waits, and so does [`join`](crate::Pool::join). Read to the end, or drop
/// the results to say that nobody wants them.
///
/// # ReaderSubmitGuard while reading
/// A thread that reads results must not wait in [`submit`](crate::Pool::submit): when the queue is full and the results
/// are too, it waits for the workers and they wait for it. (The pool logs an error when that happens; it cannot know
/// that no other thread is about to read.) A task that leads to further tasks
/// [spawns](crate::Context::spawn) them from inside. Where only the reader can know what follows, it uses
/// [`try_submit`](crate::Pool::try_submit) and keeps what is refused until it has read more:
///
/// ```
/// use gristmill_pool::{Delivery, Pool, Task};
/// use std::collections::VecDeque;
///
/// let builder = Pool::builder().workers(2).queue(2).results(2);
/// let (pool, mut results) = builder.build_with_results::<u32>(Delivery::AsCompleted)?;
/// let halve = |n: u32| Task::new(move |_| Ok(n / 2));
/// let (mut refused, mut under_way, mut read) = (VecDeque::from([halve(64)]), 0, 0);
/// while under_way > 0 || !refused.is_empty() {
///     while let Some(task) = refused.pop_front() {
///         match pool.try_submit(task) {
///             Ok(_) => under_way += 1,
///             Err(full) => {
///                 refused.push_front(full.into_task());
///                 break;
///             }
///         }
///     }
///     let Some(outcome) = results.next() else { break };
///     under_way -= 1;
///     read += 1;
///     let half = outcome.result?;
///     refused.extend((0..2).filter(|_| half > 0).map(|_| halve(half)));
/// }
/// assert_eq!(read, 127);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Example
///
/// ```
/// use gristmill_pool::{Delivery, Pool};
///
/// let (pool, results) = Pool::builder().workers(2).build_with_results(Delivery::AsSubmitted)?;
/// for n in 1..=3u64 {
///     pool.submit(move |_| Ok(n * n))?;
/// }
/// pool.close();
/// let squares: Vec<u64> = results.map(|outcome| outcome.result.unwrap()).collect();
/// assert_eq!(squares, [1, 4, 9]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Results<T> {
    queue: std::sync::Arc<ResultQueue<T>>,
    /// Tells the pool that the window of submit order has on_read on.
    on_read: Box<dyn Fn() + Send + Sync>,
}

impl<T> Results<T> {
    pub(crate) fn new(queue: std::sync::Arc<ResultQueue<T>>, on_read: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { queue, on_read }
    }

    /// The next outcome, for async code; `None` at the end. Needs no particular runtime.
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
