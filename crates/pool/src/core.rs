//! The shared state of a pool: its queue, its waiting submitters and workers, and the rules by which tasks move. Runs
//! no user code under its lock and starts no worker: `executor` runs tasks, `worker` starts workers.
//!
//! # Waiting and waking
//! - Submitters wait for room in the queue, first come first served. Room is reserved for a submitter that is woken, so
//!   no other submitter overtakes it. A submitter that gives up passes its room on.
//! - Workers wait for tasks in `idle`. A worker that was woken, or that spins before it sleeps, counts as `searching`.
//!   While one worker is searching no other is woken, so that not every push costs a system call.
//! - All of this is decided under one lock, so no wake-up is lost. The exception is a spawned task, which is queued
//!   without that lock: see [`Core::park`].

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
    outcome::Outcomes,
    panics,
    queue::Queue,
    report::Failure,
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
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only tokio workers use it"))]
    pub(crate) runtime: W::Runtime,
    pub(crate) kinds: KindNames,
    pub(crate) outcomes: Outcomes<T>,
    /// Attempts that ran past their timeout. Not in [`WorkerCounters`]: the timer counts these, not the worker.
    pub(crate) timed_out: AtomicU64,
    /// Results of abandoned runs. Not in [`WorkerCounters`]: those were merged when the run was abandoned.
    pub(crate) late_discarded: AtomicU64,
    /// Number of queued tasks, read without the lock.
    queued_hint: CachePadded<AtomicUsize>,
    /// Sort key of the best queued task plus 1 (0: none), read without the lock.
    best_sort_key_hint: CachePadded<AtomicU64>,
    /// Length of `State::idle`, read without the lock: see [`Core::park`].
    sleeping_workers: CachePadded<AtomicUsize>,
    state: CachePadded<Mutex<State<T, W>>>,
}

/// The fields that every submit and every pop touch come first, so that they share few cache lines.
#[repr(C)]
struct State<T: Send + 'static, W: Worker> {
    queue: Queue<Task<T, W>>,
    high_water: usize,
    submitted: u64,
    next_task_id: u64,
    /// Places reserved for submitters that were woken and have not submitted yet.
    reserved: usize,
    /// Workers that were woken or spin, and have not asked for a task since.
    searching: usize,
    /// Nothing more may be submitted.
    closed: bool,
    /// Nothing more is started.
    cancelled: bool,
    /// Nothing is left to do: workers exit.
    finished: bool,
    /// Sleeping workers. The one that fell asleep last is woken first: its caches are warm.
    idle: Vec<(usize, Waker)>,
    submitters: VecDeque<(u64, Waker)>,
    delayed: BTreeMap<u64, Delayed<T, W>>,
    last_ticket: u64,
    /// Every worker has exited or was abandoned, and every task is settled.
    ended: bool,
    /// Operations that still deliver outcomes after they released the lock: see `finish_delivering`.
    delivering: usize,
    workers: Vec<WorkerEntry<T, W>>,
    handles: Vec<(usize, W::Handle)>,
    /// Number of workers that are not asleep and so may still spawn.
    awake: usize,
    next_worker_id: usize,
    /// Callers that wait for the end of the pool.
    joiners: Vec<Waker>,
    /// Callers that wait until the pool is idle, by ticket.
    idle_waiters: Vec<(u64, Waker)>,
    never_started: Vec<TaskRef>,
    abandoned: Vec<TaskRef>,
    failures: Vec<Failure>,
    /// Failures that no worker counts: stalled tasks, and tasks whose retry was cancelled.
    failed_outside_workers: u64,
    stalled: u64,
    /// Sums of the counters of workers that have exited.
    exited_workers: WorkerCounters,
}

struct WorkerEntry<T: Send + 'static, W: Worker> {
    state: Arc<WorkerState<T, W>>,
    stall_detector: StallDetector,
}

/// A task that waits for its next attempt.
struct Delayed<T: Send + 'static, W: Worker> {
    task: Task<T, W>,
    timer: TimerKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SearchState {
    #[default]
    NotStarted,
    /// Found nothing and spins for some microseconds before it sleeps.
    Spinning,
    Asleep,
}

/// Result of [`Core::next_task`].
pub(crate) enum Found<T> {
    Task(T),
    /// The worker's own local queue holds tasks; the shared queue holds none.
    LocalQueue,
    /// No task yet. In [`SearchState::Spinning`] the worker asks again soon; in [`SearchState::Asleep`] it is woken.
    Nothing,
    /// The worker exits.
    Exit,
}

/// Wakers to call after the lock is released, because a waker runs foreign code.
#[derive(Default)]
#[must_use]
pub(crate) struct WakeList(Vec<Waker>);

impl WakeList {
    fn wake(self) {
        self.0.into_iter().for_each(panics::wake);
    }
}

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(crate) fn new(config: Config, runtime: W::Runtime, outcomes: Outcomes<T>) -> Self {
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
            idle_waiters: Vec::new(),
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
            outcomes,
            timed_out: AtomicU64::new(0),
            late_discarded: AtomicU64::new(0),
            queued_hint: CachePadded(AtomicUsize::new(0)),
            best_sort_key_hint: CachePadded(AtomicU64::new(0)),
            sleeping_workers: CachePadded(AtomicUsize::new(0)),
            state: CachePadded(Mutex::new(state)),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.config.clock
    }

    /// Address of the core, which identifies the pool in thread-local state.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn lock(&self) -> MutexGuard<'_, State<T, W>> {
        lock(&self.state.0)
    }
}
