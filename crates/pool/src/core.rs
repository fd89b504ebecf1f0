//! The heart of a pool: the queue, who waits for it, and the rules by which tasks move. Runs no user code
//! under its lock and starts no worker of its own accord; `desk` runs tasks, `worker` starts workers.
//!
//! # Who may wait for what
//! - Submitters wait for room, first come first served. Room is reserved for the one that is woken, so
//!   nobody overtakes it, and one that gives up passes its room on.
//! - Workers wait for tasks in `idle`. A worker that was woken, or spins before it sleeps, counts as
//!   `searching`; while there is one, nobody else is woken: a push does not cost a system call each.
//! - Everything above is decided under the one lock, so a wake-up cannot be lost. The exception is a spawned
//!   task, which must not take that lock: see [`Core::park`].

#[cfg(all(test, loom))]
mod loom;
mod seats;
mod settle;
mod stop;
mod submit;
mod take;
mod tell;

use crate::{
    builder::Config,
    clock::{Clock, TimerKey},
    panics,
    queue::Queue,
    report::Failure,
    results::Outlet,
    slot::Slot,
    stats::{Counts, Kinds},
    sync::{
        Apart, Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize},
        lock,
    },
    task::{Task, TaskRef},
    watch::Watched,
    worker::Worker,
};
use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

pub(crate) struct Core<T: Send + 'static, W: Worker> {
    pub(crate) config: Config,
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "threads need none"))]
    pub(crate) runtime: W::Runtime,
    pub(crate) kinds: Kinds,
    pub(crate) outlet: Option<Arc<Outlet<T>>>,
    /// Attempts whose time ran out, and results of given-up runs: rare, and not the worker's to count.
    pub(crate) timed_out: AtomicU64,
    pub(crate) late: AtomicU64,
    /// Hints, to look at without the lock: how many tasks the queue holds, and the rank of the best plus one.
    ready: Apart<AtomicUsize>,
    best: Apart<AtomicU64>,
    /// How many workers sleep: see `park`.
    sleeping: Apart<AtomicUsize>,
    state: Apart<Mutex<State<T, W>>>,
}

/// What every submit and take touches comes first, on as few cache lines as it needs.
#[repr(C)]
struct State<T: Send + 'static, W: Worker> {
    queue: Queue<Task<T, W>>,
    high_water: usize,
    submitted: u64,
    /// The number of the next task.
    next_task: u64,
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
    tickets: u64,
    /// Every worker is gone or was left behind, and all that they left is settled.
    ended: bool,
    /// See `done`.
    busy: usize,
    seats: Vec<Seat<T, W>>,
    handles: Vec<(usize, W::Handle)>,
    /// Workers that are not asleep: each may still spawn.
    awake: usize,
    workers_made: usize,
    joiners: Vec<Waker>,
    never_started: Vec<TaskRef>,
    unstopped: Vec<TaskRef>,
    failures: Vec<Failure>,
    /// Failures that no worker counts: of stalled tasks, and of those that wait for a retry that does not
    /// come.
    failed_unseen: u64,
    stalled: u64,
    /// The counts of workers that are gone.
    past: Counts,
}

/// A worker that is at work.
struct Seat<T: Send + 'static, W: Worker> {
    slot: Arc<Slot<T, W>>,
    watched: Watched,
}

/// A task that waits for its next attempt.
struct Delayed<T: Send + 'static, W: Worker> {
    job: Task<T, W>,
    timer: TimerKey,
}

/// Where a worker is in its search for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Search {
    #[default]
    Fresh,
    /// Found nothing and looks around for a moment before it sleeps.
    Looking,
    Asleep,
}

/// What a worker that looks for a task finds.
pub(crate) enum Found<J> {
    Job(J),
    /// Nothing but what lies on the worker's own shelf.
    OwnShelf,
    /// Nothing yet. With [`Search::Looking`]: come back soon; with [`Search::Asleep`]: you will be woken.
    Nothing,
    /// The pool has ended.
    End,
}

/// Woken after the lock is gone: a waker is somebody else's code.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes(Vec<Waker>);

impl Wakes {
    fn wake(self) {
        self.0.into_iter().for_each(panics::wake);
    }
}

impl<T: Send + 'static, W: Worker> Core<T, W> {
    pub(crate) fn new(config: Config, runtime: W::Runtime, outlet: Option<Arc<Outlet<T>>>) -> Self {
        let state = State {
            queue: Queue::new(config.order),
            high_water: 0,
            submitted: 0,
            next_task: 0,
            delayed: BTreeMap::new(),
            reserved: 0,
            submitters: VecDeque::new(),
            tickets: 0,
            closed: false,
            cancelled: false,
            finished: false,
            ended: false,
            busy: 0,
            seats: Vec::new(),
            handles: Vec::new(),
            idle: Vec::new(),
            searching: 0,
            awake: 0,
            workers_made: 0,
            joiners: Vec::new(),
            never_started: Vec::new(),
            unstopped: Vec::new(),
            failures: Vec::new(),
            failed_unseen: 0,
            stalled: 0,
            past: Counts::default(),
        };
        Self {
            config,
            runtime,
            kinds: Kinds::default(),
            outlet,
            timed_out: AtomicU64::new(0),
            late: AtomicU64::new(0),
            ready: Apart(AtomicUsize::new(0)),
            best: Apart(AtomicU64::new(0)),
            sleeping: Apart(AtomicUsize::new(0)),
            state: Apart(Mutex::new(state)),
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
