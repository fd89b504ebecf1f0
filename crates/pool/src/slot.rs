//! One worker's place: the tasks it has taken or spawned but not started, what it is running, and its
//! counts. The worker writes here; thieves, the stall watch and snapshots look in.
//!
//! Who owns a running task is decided by one compare-and-swap on [`Slot::run`]: the worker that finishes it,
//! or the watch that gives it up. Exactly one of them settles the task.

use crate::{
    breaker::Permit,
    core::Core,
    panics,
    stats::Counts,
    sync::{
        Apart, Arc, Mutex,
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

/// `Slot::run` of a worker that was given up.
const GIVEN_UP: u64 = u64::MAX;

pub(crate) struct Slot<T: Send + 'static, W: Worker> {
    /// The worker's number; a replacement gets a new one.
    pub(crate) id: usize,
    pub(crate) core: Arc<Core<T, W>>,
    pub(crate) counts: Apart<Counts>,
    /// How many tasks lie in `shelf`: see `Core::park`.
    shelved: Apart<AtomicUsize>,
    shelf: Mutex<Shelf<Task<T, W>>>,
    /// Numbers for tasks to be spawned here.
    ids: Mutex<Range<u64>>,
    /// Counts up by one when a task starts (odd: running) and by one when it ends (even: not).
    run: Apart<AtomicU64>,
    beat: AtomicU64,
    task: AtomicU64,
    attempt: AtomicU64,
    kind: AtomicUsize,
    label: Mutex<Option<Arc<str>>>,
    /// The breaker's leave for the run. Here, so that a run that is given up is told to the breaker.
    permit: Mutex<Option<Permit>>,
    /// The run that was told to stop, because its time is up.
    expired: AtomicU64,
    cancelled: AtomicBool,
    /// Who awaits `Context::cancelled`, and whether anybody does.
    listeners: Mutex<Vec<(u64, Waker)>>,
    keys: AtomicU64,
    listened: AtomicBool,
}

/// Tasks that belong to one worker until somebody steals them.
struct Shelf<J> {
    /// Spawned here: the newest first, so that a tree is walked deep before wide and the shelf holds at most
    /// depth × children of it.
    spawned: VecDeque<J>,
    /// Taken from the queue in one go: the oldest first.
    batch: VecDeque<J>,
    shut: bool,
}

impl<J> Shelf<J> {
    fn len(&self) -> usize {
        self.spawned.len() + self.batch.len()
    }
}

impl<T: Send + 'static, W: Worker> Slot<T, W> {
    pub(crate) fn new(id: usize, core: Arc<Core<T, W>>) -> Self {
        Self {
            id,
            core,
            counts: Apart::default(),
            shelved: Apart::default(),
            shelf: Mutex::new(Shelf { spawned: VecDeque::new(), batch: VecDeque::new(), shut: false }),
            ids: Mutex::new(0..0),
            run: Apart::default(),
            beat: AtomicU64::new(0),
            task: AtomicU64::new(0),
            attempt: AtomicU64::new(1),
            kind: AtomicUsize::new(0),
            label: Mutex::new(None),
            permit: Mutex::new(None),
            expired: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            keys: AtomicU64::new(0),
            listened: AtomicBool::new(false),
        }
    }

    // ---- the shelf ----

    pub(crate) fn shelved(&self) -> usize {
        self.shelved.0.load(Relaxed)
    }

    /// A number for a task to be spawned; `more` gives further ones.
    pub(crate) fn next_id(&self, more: impl FnOnce() -> Range<u64>) -> u64 {
        let mut ids = lock(&self.ids);
        if ids.is_empty() {
            *ids = more();
        }
        ids.start += 1;
        ids.start - 1
    }

    /// Adds a spawned task, unless the pool or this worker's run has been stopped.
    pub(crate) fn spawn(&self, job: Task<T, W>) -> Result<(), Task<T, W>> {
        let mut shelf = lock(&self.shelf);
        if shelf.shut {
            return Err(job);
        }
        shelf.spawned.push_back(job);
        self.counts.0.spawned.add(1);
        self.shelved.0.store(shelf.len(), Relaxed);
        Ok(())
    }

    /// Adds tasks taken from the queue.
    pub(crate) fn stock(&self, jobs: impl Iterator<Item = Task<T, W>>) {
        let mut shelf = lock(&self.shelf);
        shelf.batch.extend(jobs);
        self.shelved.0.store(shelf.len(), Relaxed);
    }

    /// The owner's next task: a spawned one first, unless it is the batch's turn. None where the queue has a
    /// `better` one than the shelf.
    pub(crate) fn next(
        &self,
        better: impl FnOnce(&Task<T, W>) -> bool,
        batch_first: bool,
    ) -> Option<(Task<T, W>, Origin)> {
        if self.shelved.0.load(Relaxed) == 0 {
            return None;
        }
        let mut shelf = lock(&self.shelf);
        let from_batch = shelf.spawned.is_empty() || (batch_first && !shelf.batch.is_empty());
        let head = if from_batch { shelf.batch.front() } else { shelf.spawned.back() };
        if better(head?) {
            return None;
        }
        let (job, origin) = if from_batch {
            (shelf.batch.pop_front(), Origin::Batch)
        } else {
            (shelf.spawned.pop_back(), Origin::Spawned)
        };
        self.shelved.0.store(shelf.len(), Relaxed);
        job.map(|job| (job, origin))
    }

    /// How many spawned tasks, and how many of the queue's, lie here.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let shelf = lock(&self.shelf);
        (shelf.spawned.len(), shelf.batch.len())
    }

    /// Takes the older half of what lies here, for another worker: the queue's tasks before spawned ones,
    /// and of those the ones nearest the root.
    pub(crate) fn steal(&self) -> VecDeque<Task<T, W>> {
        let mut shelf = lock(&self.shelf);
        let victim = if shelf.batch.is_empty() { &mut shelf.spawned } else { &mut shelf.batch };
        let kept = victim.split_off(victim.len().div_ceil(2));
        let stolen = std::mem::replace(victim, kept);
        self.shelved.0.store(shelf.len(), Relaxed);
        stolen
    }

    /// Empties the shelf for good: nothing can be spawned here any more.
    pub(crate) fn shut(&self) -> Vec<Task<T, W>> {
        let mut shelf = lock(&self.shelf);
        shelf.shut = true;
        self.shelved.0.store(0, Relaxed);
        let mut jobs: Vec<_> = shelf.batch.drain(..).collect();
        jobs.extend(shelf.spawned.drain(..));
        jobs
    }

    // ---- the run ----

    /// The worker starts a task. Answers the run's number.
    pub(crate) fn begin(&self, job: &Task<T, W>, kind: usize) -> u64 {
        self.task.store(job.meta().id, Relaxed);
        self.kind.store(kind, Relaxed);
        if let Some(extras) = &job.meta().extras {
            self.attempt.store(u64::from(extras.failed) + 1, Relaxed);
            lock(&self.label).clone_from(&extras.label);
        }
        let run = self.run.0.load(Relaxed) + 1;
        self.run.0.store(run, Release);
        run
    }

    /// The worker has finished a run. False: it was given up meanwhile, and this worker is not needed.
    pub(crate) fn finish(&self, run: u64, job: &Task<T, W>) -> bool {
        let ours = self.run.0.compare_exchange(run, run + 1, AcqRel, Relaxed).is_ok();
        if ours && job.meta().extras.is_some() {
            self.attempt.store(1, Relaxed);
            *lock(&self.label) = None;
        }
        // A context that outlives its task hears that it is over, and its waker is forgotten.
        if self.listened.load(Relaxed) {
            self.tell_listeners();
        }
        ours
    }

    /// The watch gives a run up. False: it has ended meanwhile. Followed by `release`.
    pub(crate) fn give_up(&self, run: u64) -> bool {
        self.run.0.compare_exchange(run, GIVEN_UP, AcqRel, Relaxed).is_ok()
    }

    /// After a run was given up, and without any lock: lets it know.
    pub(crate) fn release(&self) {
        self.tell_listeners();
    }

    pub(crate) fn keep_permit(&self, permit: Permit) {
        *lock(&self.permit) = Some(permit);
    }

    pub(crate) fn take_permit(&self) -> Option<Permit> {
        lock(&self.permit).take()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.run.0.load(Acquire) == GIVEN_UP
    }

    /// The run under way, with its number of heartbeats.
    pub(crate) fn running(&self) -> Option<(u64, u64)> {
        let run = self.run.0.load(Acquire);
        is_running(run).then(|| (run, self.beat.load(Relaxed)))
    }

    /// The task under way, by name.
    pub(crate) fn current(&self) -> Option<TaskRef> {
        let run = self.run.0.load(Acquire);
        let label = lock(&self.label).clone();
        let kind = self.core.kinds.name(self.kind.load(Relaxed));
        let name = TaskRef { id: TaskId(self.task.load(Relaxed)), kind, label };
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
            self.beat.fetch_add(1, Relaxed);
        }
    }

    // ---- stopping ----

    /// Told to stop, given up, or over.
    pub(crate) fn is_stopped(&self, run: u64) -> bool {
        self.cancelled.load(Relaxed) || self.expired.load(Relaxed) == run || self.run.0.load(Relaxed) != run
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Release);
        self.tell_listeners();
    }

    /// A run's time is up. False: it has ended meanwhile. (If it ends just now, no harm: a later run has
    /// another number.)
    pub(crate) fn expire(&self, run: u64) -> bool {
        let running = self.run.0.load(Acquire) == run;
        if running {
            self.expired.store(run, Release);
            self.tell_listeners();
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
    pub(crate) fn listener(&self) -> u64 {
        self.keys.fetch_add(1, Relaxed) + 1
    }

    /// Wakes `waker` when anything tells this worker to stop. The caller looks again after it has listened.
    pub(crate) fn listen(&self, key: u64, waker: &Waker) {
        let mut listeners = lock(&self.listeners);
        match listeners.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => known.clone_from(waker),
            None => listeners.push((key, waker.clone())),
        }
        self.listened.store(true, Relaxed);
    }

    pub(crate) fn unlisten(&self, key: u64) {
        lock(&self.listeners).retain(|(known, _)| *known != key);
    }

    fn tell_listeners(&self) {
        self.listened.store(false, Relaxed);
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        listeners.into_iter().for_each(|(_, waker)| panics::wake(waker));
    }
}

fn is_running(run: u64) -> bool {
    run % 2 == 1 && run != GIVEN_UP
}

/// Where a worker had its task from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Spawned,
    Batch,
}
