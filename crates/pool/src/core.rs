//! The heart of a pool: the queue, who waits for it, and the rules by which tasks move. Runs no user code
//! under its lock and starts no worker of its own accord; `executor` runs tasks, `worker` starts workers.
//!
//! # Who may wait for what
//! - Submitters wait for room, first come first served. Room is reserved for the one that is woken, so
//!   nobody overtakes it, and one that gives up passes its room on.
//! - Workers wait for tasks in `idle`. A worker that was woken, or spins before it sleeps, counts as
//!   `searching`; while there is one, nobody else is woken: a push does not cost a system call each.
//! - Everything above is decided under the one lock, so a wake-up cannot be lost. The exception is a spawned
//!   task, which must not take that lock: see [`Core::park`].

mod dispatch;
#[cfg(all(test, loom))]
mod loom;
mod settle;
mod shutdown;
mod snapshot;
mod submit;
mod workers;

use crate::{
    builder::Config,
    clock::{Clock, TimerKey},
    panics,
    queue::Queue,
    report::Failure,
    results::ResultQueue,
    stall::StallDetector,
    stats::{KindNames, WorkerCounters},
    sync::{
        Arc, CachePadded, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize},
        lock,
    },
    task::{Task, TaskRef},
    worker::Worker,
    worker_state::WorkerState,
};
use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

pub(crate) struct Core<T: Send + 'static, W: Worker> {
    pub(crate) config: Config,
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "threads need none"))]
    pub(crate) runtime: W::Runtime,
    pub(crate) kinds: KindNames,
    pub(crate) result_queue: Option<Arc<ResultQueue<T>>>,
    /// Attempts whose time ran out, and results of given-up runs: extras, and not the worker's to count.
    pub(crate) timed_out: AtomicU64,
    pub(crate) late_discarded: AtomicU64,
    /// Hints, to look at without the lock: how many tasks the queue holds, and the rank of the best plus one.
    queued_hint: CachePadded<AtomicUsize>,
    best_rank_hint: CachePadded<AtomicU64>,
    /// How many workers sleep: see `park`.
    sleeping_workers: CachePadded<AtomicUsize>,
    state: CachePadded<Mutex<State<T, W>>>,
}

/// What every submit and take touches comes first, on as few cache lines as it needs.
#[repr(C)]
struct State<T: Send + 'static, W: Worker> {
    queue: Queue<Task<T, W>>,
    high_water: usize,
    submitted: u64,
    /// The number of the next task.
    next_task_id: u64,
    /// Room promised to submitters that were woken and have not come yet.
    reserved: usize,
    searching: usize,
    /// No new work.
    closed: bool,
    /// Stop now.
    cancelled: bool,
    /// Nothing left to do: workers go home.
    finished: bool,
    /// Asleep, the last to fall asleep last: it is the one that is woken, its caches are warm.
    idle: Vec<(usize, Waker)>,
    submitters: VecDeque<(u64, Waker)>,
    delayed: BTreeMap<u64, Delayed<T, W>>,
    last_ticket: u64,
    /// Every worker is gone or was left behind, and all that they left is settled.
    ended: bool,
    /// See `done`.
    delivering: usize,
    workers: Vec<WorkerEntry<T, W>>,
    handles: Vec<(usize, W::Handle)>,
    /// Workers that are not asleep: each may still spawn.
    awake: usize,
    next_worker_id: usize,
    joiners: Vec<Waker>,
    never_started: Vec<TaskRef>,
    abandoned: Vec<TaskRef>,
    failures: Vec<Failure>,
    /// Failures that no worker counts: of stalled tasks, and of those that wait for a retry that does not
    /// come.
    failed_outside_workers: u64,
    stalled: u64,
    /// The counts of workers that are gone.
    exited_workers: WorkerCounters,
}

/// A worker that is at work.
struct WorkerEntry<T: Send + 'static, W: Worker> {
    state: Arc<WorkerState<T, W>>,
    stall_detector: StallDetector,
}

/// A task that waits for its next attempt.
struct Delayed<T: Send + 'static, W: Worker> {
    task: Task<T, W>,
    timer: TimerKey,
}

/// Where a worker is in its search for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SearchState {
    #[default]
    NotStarted,
    /// Found nothing and looks around for a moment before it sleeps.
    Spinning,
    Asleep,
}

/// What a worker that looks for a task finds.
pub(crate) enum Found<T> {
    Task(T),
    /// Nothing but what lies on the worker's own shelf.
    LocalQueue,
    /// Nothing yet. With [`SearchState::Spinning`]: come back soon; with [`SearchState::Asleep`]: you will be woken.
    Nothing,
    /// The pool has ended.
    PoolEnded,
}

/// Woken after the lock is gone: a waker is somebody else's code.
#[derive(Default)]
#[must_use]
pub(crate) struct WakeList(Vec<Waker>);

impl WakeList {
    fn wake(self) {
        self.0.into_iter().for_each(panics::wake);
    }
}

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(crate) fn new(
        config: Config,
        runtime: W::Runtime,
        result_queue: Option<Arc<ResultQueue<T>>>,
    ) -> Self {
        let state = State {
            queue: Queue::new(config.order),
            high_water: 0,
            submitted: 0,
            next_task_id: 0,
            delayed: BTreeMap::new(),
            reserved: 0,
            submitters: VecDeque::new(),
            last_ticket: 0,
            closed: false,
            cancelled: false,
            finished: false,
            ended: false,
            delivering: 0,
            workers: Vec::new(),
            handles: Vec::new(),
            idle: Vec::new(),
            searching: 0,
            awake: 0,
            next_worker_id: 0,
            joiners: Vec::new(),
            never_started: Vec::new(),
            abandoned: Vec::new(),
            failures: Vec::new(),
            failed_outside_workers: 0,
            stalled: 0,
            exited_workers: WorkerCounters::default(),
        };
        Self {
            config,
            runtime,
            kinds: KindNames::default(),
            result_queue,
            timed_out: AtomicU64::new(0),
            late_discarded: AtomicU64::new(0),
            queued_hint: CachePadded(AtomicUsize::new(0)),
            best_rank_hint: CachePadded(AtomicU64::new(0)),
            sleeping_workers: CachePadded(AtomicUsize::new(0)),
            state: CachePadded(Mutex::new(state)),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.config.clock
    }

    /// Tells this pool from others.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn lock(&self) -> MutexGuard<'_, State<T, W>> {
        lock(&self.state.0)
    }
}
