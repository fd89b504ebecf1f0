//! The shared state of one worker: its local queue, its running task and its counters. The worker writes it; other
//! workers, the stall detector and snapshots read it.
//!
//! One compare-and-swap on [`WorkerState::run`] decides whether the worker finishes a run or the stall detector
//! abandons it. Exactly one of them settles the task.

use crate::{
    breaker::Permit,
    cancel::CancelToken,
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
use std::{collections::VecDeque, ops::Range, task::Waker, time::Duration};

/// Value of `WorkerState::run` once the run was abandoned.
const ABANDONED: u64 = u64::MAX;

pub(crate) struct WorkerState<T: Send + 'static, W: Worker> {
    /// Number of the worker, counted from 0. A replacement gets a new number.
    pub(crate) id: usize,
    pub(crate) core: Arc<Core<T, W>>,
    pub(crate) counters: CachePadded<WorkerCounters>,
    /// Length of `local_queue`, read without its lock: see `Core::park`.
    local_len: CachePadded<AtomicUsize>,
    local_queue: Mutex<LocalQueue<Task<T, W>>>,
    /// Reserved ids for tasks to be spawned here.
    spare_ids: Mutex<Range<u64>>,
    /// Number of the run. Grows by 1 when a task starts (odd: running) and by 1 when it ends (even: idle).
    run: CachePadded<AtomicU64>,
    heartbeats: AtomicU64,
    task_id: AtomicU64,
    attempt: AtomicU64,
    /// When the run started, by the pool's clock. A tiny task may have started a few microseconds later.
    started_at: AtomicU64,
    kind_number: AtomicUsize,
    label: Mutex<Option<Arc<str>>>,
    /// Breaker permit of the run. Kept here so that an abandoned run is reported to the breaker.
    permit: Mutex<Option<Permit>>,
    /// Number of the run that exceeded its timeout.
    expired: AtomicU64,
    cancelled: AtomicBool,
    /// A run and its token, if a context has asked for it.
    token: Mutex<Option<(u64, CancelToken)>>,
    /// Whether `token` is set, read without its lock: see [`WorkerState::token`].
    has_token: AtomicBool,
    /// Waker of the future that runs, if it has a timeout.
    timeout_waker: Mutex<Option<Waker>>,
}

/// Tasks that a worker runs next, unless other workers steal them.
struct LocalQueue<T> {
    /// Spawned tasks, run newest first: a tree is walked depth first and keeps at most depth × children waiting.
    spawned: VecDeque<T>,
    /// Tasks popped from the shared queue or stolen, run oldest first.
    batch: VecDeque<T>,
    closed: bool,
}

impl<T> LocalQueue<T> {
    fn new() -> Self {
        Self { spawned: VecDeque::new(), batch: VecDeque::new(), closed: false }
    }

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
            local_queue: Mutex::new(LocalQueue::new()),
            spare_ids: Mutex::new(0..0),
            run: CachePadded::default(),
            heartbeats: AtomicU64::new(0),
            task_id: AtomicU64::new(0),
            attempt: AtomicU64::new(1),
            started_at: AtomicU64::new(0),
            kind_number: AtomicUsize::new(0),
            label: Mutex::new(None),
            permit: Mutex::new(None),
            expired: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            token: Mutex::new(None),
            has_token: AtomicBool::new(false),
            timeout_waker: Mutex::new(None),
        }
    }

    // ---- local queue ----

    pub(crate) fn local_len(&self) -> usize {
        self.local_len.0.load(Relaxed)
    }

    /// Returns an id for a task to be spawned. Calls `more` when the reserved ids are used up.
    pub(crate) fn next_id(&self, more: impl FnOnce() -> Range<u64>) -> u64 {
        let mut spare_ids = lock(&self.spare_ids);
        if spare_ids.is_empty() {
            *spare_ids = more();
        }
        spare_ids.start += 1;
        spare_ids.start - 1
    }

    /// Adds a spawned task, unless the pool was cancelled or this worker's run abandoned.
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

    /// Adds tasks popped from the shared queue or stolen.
    pub(crate) fn push_batch(&self, tasks: impl Iterator<Item = Task<T, W>>) {
        let mut local = lock(&self.local_queue);
        local.batch.extend(tasks);
        self.local_len.0.store(local.len(), Relaxed);
    }

    /// Pops the worker's next task: a spawned one, unless `batch_first`. Returns `None` if the shared queue has a
    /// `better` task than the head.
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

    /// Numbers of spawned and of batched tasks.
    pub(crate) fn local_counts(&self) -> (usize, usize) {
        let local = lock(&self.local_queue);
        (local.spawned.len(), local.batch.len())
    }

    /// Takes the older half of the batched tasks for another worker or, if there are none, of the spawned tasks: those
    /// nearest the root of their tree.
    pub(crate) fn steal(&self) -> VecDeque<Task<T, W>> {
        let mut local = lock(&self.local_queue);
        let victim = if local.batch.is_empty() { &mut local.spawned } else { &mut local.batch };
        let kept = victim.split_off(victim.len().div_ceil(2));
        let stolen = std::mem::replace(victim, kept);
        self.local_len.0.store(local.len(), Relaxed);
        stolen
    }

    /// Closes the local queue and returns its tasks. Nothing can be spawned here any more.
    pub(crate) fn close_and_drain(&self) -> Vec<Task<T, W>> {
        let mut local = lock(&self.local_queue);
        local.closed = true;
        self.local_len.0.store(0, Relaxed);
        let mut tasks: Vec<_> = local.batch.drain(..).collect();
        tasks.extend(local.spawned.drain(..));
        tasks
    }

    // ---- run ----

    /// Starts a run and returns its number.
    pub(crate) fn begin_run(&self, task: &Task<T, W>, kind: usize, now: u64) -> u64 {
        self.task_id.store(task.meta().id, Relaxed);
        self.started_at.store(now, Relaxed);
        self.kind_number.store(kind, Relaxed);
        if let Some(extras) = &task.meta().extras {
            self.attempt.store(u64::from(extras.failed) + 1, Relaxed);
            lock(&self.label).clone_from(&extras.label);
        }
        let run = self.run.0.load(Relaxed) + 1;
        self.run.0.store(run, Release);
        run
    }

    /// Finishes a run. Returns false if it was abandoned meanwhile: then this worker exits.
    pub(crate) fn finish_run(&self, run: u64, task: &Task<T, W>) -> bool {
        let won = self.run.0.compare_exchange(run, run + 1, AcqRel, Relaxed).is_ok();
        if won && task.meta().extras.is_some() {
            self.attempt.store(1, Relaxed);
            *lock(&self.label) = None;
        }
        // The token of a run that has ended is cancelled, so that a context that outlives its task keeps no waker.
        if self.has_token.load(Relaxed) {
            self.has_token.store(false, Relaxed);
            let token = lock(&self.token).take();
            token.iter().for_each(|(_, token)| token.cancel());
        }
        won
    }

    /// Abandons a run, after which the caller calls `cancel_token`. Returns false if the run has ended meanwhile.
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

    /// The current run and its number of heartbeats.
    pub(crate) fn current_run(&self) -> Option<(u64, u64)> {
        let run = self.run.0.load(Acquire);
        is_running(run).then(|| (run, self.heartbeats.load(Relaxed)))
    }

    /// Id, kind and label of the running task.
    pub(crate) fn current_task(&self) -> Option<TaskRef> {
        let run = self.run.0.load(Acquire);
        let label = lock(&self.label).clone();
        let kind = self.core.kinds.name(self.kind_number.load(Relaxed));
        let task = TaskRef { id: TaskId(self.task_id.load(Relaxed)), kind, label };
        // If `run` is unchanged, all fields were read from the same run.
        fence(Acquire);
        (is_running(run) && self.run.0.load(Acquire) == run).then_some(task)
    }

    /// Number of the running attempt, from 1.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt.load(Relaxed) as u32
    }

    /// Time since the run started, which the caller has abandoned.
    pub(crate) fn run_time(&self) -> Duration {
        Duration::from_nanos(self.core.clock().now().saturating_sub(self.started_at.load(Relaxed)))
    }

    /// Counts a heartbeat of `run`, unless the run has ended.
    pub(crate) fn heartbeat(&self, run: u64) {
        if self.run.0.load(Relaxed) == run {
            self.heartbeats.fetch_add(1, Relaxed);
        }
    }

    // ---- cancellation ----

    /// Whether `run` was cancelled, exceeded its timeout, was abandoned or has ended.
    pub(crate) fn should_stop(&self, run: u64) -> bool {
        self.is_asked_to_stop(run) || self.run.0.load(Relaxed) != run
    }

    fn is_asked_to_stop(&self, run: u64) -> bool {
        self.cancelled.load(Relaxed) || self.expired.load(Relaxed) == run
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Release);
        self.cancel_token(|_| true);
    }

    /// Marks a run as past its timeout. Returns false if it has ended meanwhile. If it ends during the call, the mark
    /// has no effect: the next run has another number.
    pub(crate) fn expire(&self, run: u64) -> bool {
        let running = self.run.0.load(Acquire) == run;
        if running {
            self.expired.store(run, Release);
            self.cancel_token(|owner| owner == run);
            let waker = lock(&self.timeout_waker).take();
            waker.into_iter().for_each(panics::wake);
        }
        running
    }

    pub(crate) fn has_expired(&self, run: u64) -> bool {
        self.expired.load(Acquire) == run
    }

    pub(crate) fn is_overdue(&self) -> bool {
        let run = self.run.0.load(Acquire);
        is_running(run) && self.has_expired(run)
    }

    /// Returns the token of `run`, and creates it on first use. It is cancelled if the run should stop or has ended.
    pub(crate) fn token(&self, run: u64) -> CancelToken {
        let mut slot = lock(&self.token);
        let token = match &*slot {
            Some((owner, token)) if *owner == run => token.clone(),
            // The slot belongs to a later run, so this one has ended.
            Some((owner, _)) if *owner > run => CancelToken::new(),
            _ => slot.insert((run, CancelToken::new())).1.clone(),
        };
        self.has_token.store(true, Relaxed);
        drop(slot);
        // `finish_run` reads `has_token` without the lock, after it has changed `run`. This writes `run` too, so one of
        // the two writes is first: then `finish_run` sees the flag, or this sees that the run has ended.
        let is_running = self.run.0.compare_exchange(run, run, AcqRel, Relaxed).is_ok();
        if !is_running || self.is_asked_to_stop(run) {
            token.cancel();
        }
        token
    }

    /// Cancels the token of a run, if it has one, after what the token stands for was stored.
    pub(crate) fn cancel_token(&self, is_run: impl FnOnce(u64) -> bool) {
        let token = lock(&self.token).as_ref().filter(|(run, _)| is_run(*run)).map(|(_, token)| token.clone());
        token.iter().for_each(CancelToken::cancel);
    }

    /// Registers the waker of the future of a run with a timeout. The caller then checks `has_expired`.
    #[cfg(feature = "tokio")]
    pub(crate) fn set_timeout_waker(&self, waker: &Waker) {
        let replaced = lock(&self.timeout_waker).replace(waker.clone());
        // Dropped after the lock is released.
        drop(replaced);
    }
}

fn is_running(run: u64) -> bool {
    run % 2 == 1 && run != ABANDONED
}

/// Part of the local queue that a task came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Spawned,
    Batch,
}
