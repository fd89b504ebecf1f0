//! One worker's place: the tasks it has taken or spawned but not started, what it is running, and its
//! counters. The worker writes here; thieves, the stall watch and snapshots look in.
//!
//! Who owns a running task is decided by one compare-and-swap on [`WorkerState::run`]: the worker that finishes it,
//! or the watch that gives it up. Exactly one of them settles the task.

use crate::{
    breaker::Permit,
    core::Core,
    panics,
    stats::WorkerCounters,
    sync::{
        Arc, CachePadded, Mutex,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
            fence,
        },
        lock,
    },
    task::{Task, TaskId, TaskRef},
    worker::Worker,
};
use std::{collections::VecDeque, ops::Range, task::Waker};

/// `WorkerState::run` of a worker that was given up.
const ABANDONED: u64 = u64::MAX;

pub(crate) struct WorkerState<T: Send + 'static, W: Worker> {
    /// The worker's number; a replacement gets a new one.
    pub(crate) id: usize,
    pub(crate) core: Arc<Core<T, W>>,
    pub(crate) counters: CachePadded<WorkerCounters>,
    /// How many tasks lie in `local`: see `Core::park`.
    local_len: CachePadded<AtomicUsize>,
    local_queue: Mutex<LocalQueue<Task<T, W>>>,
    /// Numbers for tasks to be spawned here.
    spare_ids: Mutex<Range<u64>>,
    /// WorkerCounters up by one when a task starts (odd: running) and by one when it ends (even: not).
    run: CachePadded<AtomicU64>,
    heartbeats: AtomicU64,
    task_id: AtomicU64,
    attempt: AtomicU64,
    kind_number: AtomicUsize,
    label: Mutex<Option<Arc<str>>>,
    /// The breaker's leave for the run. Here, so that a run that is given up is told to the breaker.
    permit: Mutex<Option<Permit>>,
    /// The run that was told to stop, because its time is up.
    expired: AtomicU64,
    cancelled: AtomicBool,
    /// Who awaits `Context::cancelled`, and whether anybody does.
    listeners: Mutex<Vec<(u64, Waker)>>,
    last_listener_key: AtomicU64,
    has_listeners: AtomicBool,
}

/// Tasks that belong to one worker until somebody steals them.
struct LocalQueue<J> {
    /// Spawned here: the newest first, so that a tree is walked deep before wide and the local holds at most
    /// depth × children of it.
    spawned: VecDeque<J>,
    /// Taken from the queue in one go: the oldest first.
    batch: VecDeque<J>,
    closed: bool,
}

impl<J> LocalQueue<J> {
    fn len(&self) -> usize {
        self.spawned.len() + self.batch.len()
    }
}

impl<T: Send + 'static, W: Worker> WorkerState<T, W> {
    pub(crate) fn new(id: usize, core: Arc<Core<T, W>>) -> Self {
        Self {
            id,
            core,
            counters: CachePadded::default(),
            local_len: CachePadded::default(),
            local_queue: Mutex::new(LocalQueue {
                spawned: VecDeque::new(),
                batch: VecDeque::new(),
                closed: false,
            }),
            spare_ids: Mutex::new(0..0),
            run: CachePadded::default(),
            heartbeats: AtomicU64::new(0),
            task_id: AtomicU64::new(0),
            attempt: AtomicU64::new(1),
            kind_number: AtomicUsize::new(0),
            label: Mutex::new(None),
            permit: Mutex::new(None),
            expired: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            last_listener_key: AtomicU64::new(0),
            has_listeners: AtomicBool::new(false),
        }
    }

    // ---- the local ----

    pub(crate) fn local_len(&self) -> usize {
        self.local_len.0.load(Relaxed)
    }

    /// A number for a task to be spawned; `more` gives further ones.
    pub(crate) fn next_id(&self, more: impl FnOnce() -> Range<u64>) -> u64 {
        let mut spare_ids = lock(&self.spare_ids);
        if spare_ids.is_empty() {
            *spare_ids = more();
        }
        spare_ids.start += 1;
        spare_ids.start - 1
    }

    /// Adds a spawned task, unless the pool or this worker's run has been stopped.
    pub(crate) fn push_spawned(&self, task: Task<T, W>) -> Result<(), Task<T, W>> {
        let mut local = lock(&self.local_queue);
        if local.closed {
            return Err(task);
        }
        local.spawned.push_back(task);
        self.counters.0.spawned.add(1);
        self.local_len.0.store(local.len(), Relaxed);
        Ok(())
    }

    /// Adds tasks taken from the queue.
    pub(crate) fn push_batch(&self, tasks: impl Iterator<Item = Task<T, W>>) {
        let mut local = lock(&self.local_queue);
        local.batch.extend(tasks);
        self.local_len.0.store(local.len(), Relaxed);
    }

    /// The owner's next task: a spawned one first, unless it is the batch's turn. None where the queue has a
    /// `better` one than the local.
    pub(crate) fn pop_local(
        &self,
        better: impl FnOnce(&Task<T, W>) -> bool,
        batch_first: bool,
    ) -> Option<(Task<T, W>, Origin)> {
        if self.local_len.0.load(Relaxed) == 0 {
            return None;
        }
        let mut local = lock(&self.local_queue);
        let from_batch = local.spawned.is_empty() || (batch_first && !local.batch.is_empty());
        let head = if from_batch { local.batch.front() } else { local.spawned.back() };
        if better(head?) {
            return None;
        }
        let (task, origin) = if from_batch {
            (local.batch.pop_front(), Origin::Batch)
        } else {
            (local.spawned.pop_back(), Origin::Spawned)
        };
        self.local_len.0.store(local.len(), Relaxed);
        task.map(|task| (task, origin))
    }

    /// How many spawned tasks, and how many of the queue's, lie here.
    pub(crate) fn local_counts(&self) -> (usize, usize) {
        let local = lock(&self.local_queue);
        (local.spawned.len(), local.batch.len())
    }

    /// Takes the older half of what lies here, for another worker: the queue's tasks before spawned ones,
    /// and of those the ones nearest the root.
    pub(crate) fn steal(&self) -> VecDeque<Task<T, W>> {
        let mut local = lock(&self.local_queue);
        let victim = if local.batch.is_empty() { &mut local.spawned } else { &mut local.batch };
        let kept = victim.split_off(victim.len().div_ceil(2));
        let stolen = std::mem::replace(victim, kept);
        self.local_len.0.store(local.len(), Relaxed);
        stolen
    }

    /// Empties the local for good: nothing can be spawned here any more.
    pub(crate) fn close_and_drain(&self) -> Vec<Task<T, W>> {
        let mut local = lock(&self.local_queue);
        local.closed = true;
        self.local_len.0.store(0, Relaxed);
        let mut tasks: Vec<_> = local.batch.drain(..).collect();
        tasks.extend(local.spawned.drain(..));
        tasks
    }

    // ---- the run ----

    /// The worker starts a task. Answers the run's number.
    pub(crate) fn begin_run(&self, task: &Task<T, W>, kind: usize) -> u64 {
        self.task_id.store(task.meta().id, Relaxed);
        self.kind_number.store(kind, Relaxed);
        if let Some(extras) = &task.meta().extras {
            self.attempt.store(u64::from(extras.failed) + 1, Relaxed);
            lock(&self.label).clone_from(&extras.label);
        }
        let run = self.run.0.load(Relaxed) + 1;
        self.run.0.store(run, Release);
        run
    }

    /// The worker has finished a run. False: it was given up meanwhile, and this worker is not needed.
    pub(crate) fn finish_run(&self, run: u64, task: &Task<T, W>) -> bool {
        let won = self.run.0.compare_exchange(run, run + 1, AcqRel, Relaxed).is_ok();
        if won && task.meta().extras.is_some() {
            self.attempt.store(1, Relaxed);
            *lock(&self.label) = None;
        }
        // A context that outlives its task hears that it is over, and its waker is forgotten.
        if self.has_listeners.load(Relaxed) {
            self.wake_listeners();
        }
        won
    }

    /// The watch gives a run up. False: it has ended meanwhile. Followed by `release`.
    pub(crate) fn abandon_run(&self, run: u64) -> bool {
        self.run.0.compare_exchange(run, ABANDONED, AcqRel, Relaxed).is_ok()
    }

    pub(crate) fn store_permit(&self, permit: Permit) {
        *lock(&self.permit) = Some(permit);
    }

    pub(crate) fn take_permit(&self) -> Option<Permit> {
        lock(&self.permit).take()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.run.0.load(Acquire) == ABANDONED
    }

    /// The run under way, with its number of heartbeats.
    pub(crate) fn current_run(&self) -> Option<(u64, u64)> {
        let run = self.run.0.load(Acquire);
        is_running(run).then(|| (run, self.heartbeats.load(Relaxed)))
    }

    /// The task under way, by name.
    pub(crate) fn current_task(&self) -> Option<TaskRef> {
        let run = self.run.0.load(Acquire);
        let label = lock(&self.label).clone();
        let kind = self.core.kinds.name(self.kind_number.load(Relaxed));
        let name = TaskRef { id: TaskId(self.task_id.load(Relaxed)), kind, label };
        // Unchanged, so all of it was of one run.
        fence(Acquire);
        (is_running(run) && self.run.0.load(Acquire) == run).then_some(name)
    }

    /// Which attempt of the current task this is.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt.load(Relaxed) as u32
    }

    /// A sign of life of one run; of one that is over, it is none.
    pub(crate) fn heartbeat(&self, run: u64) {
        if self.run.0.load(Relaxed) == run {
            self.heartbeats.fetch_add(1, Relaxed);
        }
    }

    // ---- stopping ----

    /// Told to stop, given up, or over.
    pub(crate) fn should_stop(&self, run: u64) -> bool {
        self.cancelled.load(Relaxed) || self.expired.load(Relaxed) == run || self.run.0.load(Relaxed) != run
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Release);
        self.wake_listeners();
    }

    /// A run's time is up. False: it has ended meanwhile. (If it ends just now, no harm: a later run has
    /// another number.)
    pub(crate) fn expire(&self, run: u64) -> bool {
        let running = self.run.0.load(Acquire) == run;
        if running {
            self.expired.store(run, Release);
            self.wake_listeners();
        }
        running
    }

    pub(crate) fn has_expired(&self, run: u64) -> bool {
        self.expired.load(Acquire) == run
    }

    /// Past its time, and running still.
    pub(crate) fn is_overdue(&self) -> bool {
        let run = self.run.0.load(Acquire);
        is_running(run) && self.has_expired(run)
    }

    /// A key to listen with.
    pub(crate) fn new_listener_key(&self) -> u64 {
        self.last_listener_key.fetch_add(1, Relaxed) + 1
    }

    /// WakeList `waker` when anything tells this worker to stop. The caller looks again after it has has_listeners.
    pub(crate) fn listen(&self, key: u64, waker: &Waker) {
        let mut listeners = lock(&self.listeners);
        match listeners.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => known.clone_from(waker),
            None => listeners.push((key, waker.clone())),
        }
        self.has_listeners.store(true, Relaxed);
    }

    pub(crate) fn unlisten(&self, key: u64) {
        lock(&self.listeners).retain(|(known, _)| *known != key);
    }

    pub(crate) fn wake_listeners(&self) {
        self.has_listeners.store(false, Relaxed);
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        listeners.into_iter().for_each(|(_, waker)| panics::wake(waker));
    }
}

fn is_running(run: u64) -> bool {
    run % 2 == 1 && run != ABANDONED
}

/// Where a worker had its task from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Spawned,
    Batch,
}
