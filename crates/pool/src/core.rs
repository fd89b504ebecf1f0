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

use crate::{
    breaker::Breaker,
    builder::Config,
    clock::{Clock, TimerKey},
    error::{Cause, TaskError},
    panics,
    queue::Queue,
    report::{Failure, Report},
    results::{Outcome, Outlet},
    slot::Slot,
    stats::{Counts, Kinds, Stats},
    sync::{
        Apart, Arc, Mutex, MutexGuard,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
        lock, thread,
    },
    task::{Refusal, SubmitError, Task, TaskId, TaskRef},
    watch::Watched,
    worker::Worker,
};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    task::{Poll, Waker},
    time::Duration,
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
    error: TaskError,
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
        self.0.into_iter().for_each(Waker::wake);
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

    // ---- submitting ----

    fn has_room(&self, state: &State<T, W>) -> bool {
        let used = state.queue.len() + state.delayed.len() + state.reserved;
        used < self.config.queue && self.in_window(state)
    }

    /// In submit order, tasks may not run further ahead of the reader than this.
    fn in_window(&self, state: &State<T, W>) -> bool {
        let Some(outlet) = self.outlet.as_ref().filter(|_| self.config.in_submit_order) else { return true };
        let next = state.next_task.saturating_add(state.reserved as u64);
        next.saturating_sub(outlet.delivered()) < self.config.window() as u64
    }

    fn refusal(state: &State<T, W>) -> Option<Refusal> {
        if state.cancelled {
            return Some(Refusal::Cancelled);
        }
        state.closed.then_some(Refusal::Closed)
    }

    /// Takes a task in, unless there is no room for it.
    pub(crate) fn try_submit(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        let state = self.lock();
        if let Some(refusal) = Self::refusal(&state) {
            drop(state);
            return Err(SubmitError::new(refusal, task));
        }
        if state.submitters.is_empty() && self.has_room(&state) {
            return Ok(self.accept(state, task));
        }
        drop(state);
        Err(SubmitError::new(Refusal::Full, task))
    }

    fn accept(&self, mut state: MutexGuard<'_, State<T, W>>, mut task: Task<T, W>) -> TaskId {
        let id = state.next_task;
        state.next_task += 1;
        let meta = task.meta_mut();
        meta.id = id;
        let rank = meta.rank;
        state.queue.push(rank, task);
        state.submitted += 1;
        state.high_water = state.high_water.max(state.queue.len());
        let worker = self.call_worker(&mut state);
        self.hint_pushed(&state);
        drop(state);
        if let Some(worker) = worker {
            worker.wake();
        }
        TaskId(id)
    }

    /// A push changes what others look for only if it is the first, or the best: most need not touch the
    /// line that they look at.
    fn hint_pushed(&self, state: &State<T, W>) {
        if state.queue.len() == 1 {
            self.ready.0.store(1, Relaxed);
        }
        self.hint_best(state);
    }

    fn hint_best(&self, state: &State<T, W>) {
        if self.config.is_ranked() {
            let best = state.queue.best().map_or(0, |rank| rank.saturating_add(1));
            if self.best.0.load(Relaxed) != best {
                self.best.0.store(best, Relaxed);
            }
        }
    }

    fn hint(&self, state: &State<T, W>) {
        self.ready.0.store(state.queue.len(), Relaxed);
        self.hint_best(state);
    }

    /// Before a submitter sleeps it looks around for some microseconds: with tiny tasks the queue is half
    /// empty again before the system has put a thread to sleep and woken it. Not for the first free place,
    /// though: it would be back here with the next task.
    pub(crate) fn look_for_slack(&self) -> bool {
        look_around(|| self.ready.0.load(Relaxed) <= self.config.queue / 2)
    }

    /// Before a worker sleeps it looks around for some microseconds, for the same reason.
    pub(crate) fn look_for_work(&self) -> bool {
        look_around(|| self.looks_ready())
    }

    /// Waits in line for room: the first poll that finds none takes a ticket, later ones show it.
    pub(crate) fn poll_submit(
        &self,
        task: &mut Option<Task<T, W>>,
        ticket: &mut Option<u64>,
        waker: impl FnOnce() -> Waker,
    ) -> Poll<Result<TaskId, SubmitError<T, W>>> {
        let mut state = self.lock();
        if let Some(refusal) = Self::refusal(&state) {
            // Everybody in line was woken and the line is gone.
            *ticket = None;
            drop(state);
            let task = task.take().expect("polled after it was ready");
            return Poll::Ready(Err(SubmitError::new(refusal, task)));
        }
        let granted = match *ticket {
            None => state.submitters.is_empty() && self.has_room(&state),
            Some(mine) => match state.submitters.iter_mut().find(|(ticket, _)| *ticket == mine) {
                // Still in line: woken for nothing, or polled by another task.
                Some((_, waiting)) => {
                    waiting.clone_from(&waker());
                    return Poll::Pending;
                }
                None => {
                    state.reserved -= 1;
                    true
                }
            },
        };
        if granted {
            *ticket = None;
            let task = task.take().expect("polled after it was ready");
            return Poll::Ready(Ok(self.accept(state, task)));
        }
        state.tickets += 1;
        *ticket = Some(state.tickets);
        let entry = (state.tickets, waker());
        state.submitters.push_back(entry);
        Poll::Pending
    }

    /// A submitter gives up waiting. If room was promised to it, that goes to the next in line.
    pub(crate) fn leave_line(&self, ticket: u64) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        match state.submitters.iter().position(|(waiting, _)| *waiting == ticket) {
            Some(place) => drop(state.submitters.remove(place)),
            None => state.reserved -= 1,
        }
        let wakes = self.admit(&mut state);
        drop(state);
        wakes.wake();
    }

    /// Promises free room to those who have waited longest.
    fn admit(&self, state: &mut State<T, W>) -> Wakes {
        let mut wakes = Wakes::default();
        while !state.submitters.is_empty() && self.has_room(state) {
            state.reserved += 1;
            wakes.0.extend(state.submitters.pop_front().map(|(_, waker)| waker));
        }
        wakes
    }

    /// The reader has taken results: in submit order, that may make room.
    pub(crate) fn window_moved(&self) {
        if self.config.in_submit_order {
            let mut state = self.lock();
            let wakes = self.admit(&mut state);
            drop(state);
            wakes.wake();
        }
    }

    /// Takes a task in from the thread of worker `id`, inside one of its tasks: waiting for room there could
    /// be waiting for oneself.
    pub(crate) fn submit_inside(&self, id: usize, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        let state = self.lock();
        let slot = state.seats.iter().find(|seat| seat.slot.id == id).map(|seat| Arc::clone(&seat.slot));
        let refusal = Self::refusal(&state).or(slot.is_none().then_some(Refusal::Cancelled));
        drop(state);
        match (refusal, slot) {
            (None, Some(slot)) => self.spawn(&slot, task),
            (refusal, _) => Err(SubmitError::new(refusal.unwrap_or(Refusal::Cancelled), task)),
        }
    }

    /// Takes a task in from a task that runs on `slot`.
    pub(crate) fn spawn(&self, slot: &Slot<T, W>, mut task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        if panics::worker_of(self.address()) != Some(slot.id) {
            return self.spawn_elsewhere(slot, task);
        }
        let id = slot.next_id(|| self.number_tasks());
        task.meta_mut().id = id;
        if let Err(task) = slot.spawn(task) {
            self.pass_over(id);
            return Err(SubmitError::new(Refusal::Cancelled, task));
        }
        // See `park`: either we see the sleeper here, or it sees the task there.
        fence(SeqCst);
        if self.sleeping.0.load(Relaxed) > 0 {
            let mut state = self.lock();
            let worker = self.call_worker(&mut state);
            drop(state);
            if let Some(worker) = worker {
                worker.wake();
            }
        }
        Ok(TaskId(id))
    }

    /// A context was taken to another thread, or has outlived its task. Its worker may be asleep or gone, so
    /// the task goes into the queue, if the pool has not ended.
    fn spawn_elsewhere(&self, slot: &Slot<T, W>, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        let state = self.lock();
        if state.cancelled || state.finished || slot.is_given_up() {
            drop(state);
            return Err(SubmitError::new(Refusal::Cancelled, task));
        }
        Ok(self.accept(state, task))
    }

    /// A number that no outcome will come for.
    fn pass_over(&self, id: u64) {
        if let Some(outlet) = &self.outlet {
            outlet.push(id, None);
            self.window_moved();
        }
    }

    /// Numbers for tasks to be spawned: several, so that not each spawn comes for the lock; one by one where
    /// the order of results goes by them.
    fn number_tasks(&self) -> Range<u64> {
        let mut state = self.lock();
        let first = state.next_task;
        state.next_task += if self.config.in_submit_order { 1 } else { 64 };
        first..state.next_task
    }

    // ---- taking ----

    /// The worker to wake for new work, if any sleeps and none is on its way already.
    fn call_worker(&self, state: &mut State<T, W>) -> Option<Waker> {
        if state.searching > 0 {
            return None;
        }
        let (_, waker) = state.idle.pop()?;
        self.sleeping.0.store(state.idle.len(), Relaxed);
        state.searching += 1;
        state.awake += 1;
        Some(waker)
    }

    /// Whether the queue may hold something: a look without the lock.
    pub(crate) fn looks_ready(&self) -> bool {
        self.ready.0.load(Relaxed) > 0
    }

    /// Whether the queue's best task should go before one of this rank.
    pub(crate) fn has_better_than(&self, rank: u64) -> bool {
        self.best.0.load(Relaxed) > rank.saturating_add(1)
    }

    /// A worker whose shelf is empty looks for a task. It takes up to `batch` at once: one is returned, the
    /// rest goes on its shelf, where others can steal it.
    pub(crate) fn find(
        &self,
        slot: &Slot<T, W>,
        search: &mut Search,
        batch: usize,
        look_first: bool,
        waker: impl FnOnce() -> Waker,
    ) -> Found<Task<T, W>> {
        let mut state = self.lock();
        match *search {
            Search::Fresh => {}
            Search::Looking => state.searching -= 1,
            Search::Asleep => {
                if let Some((_, waiting)) = state.idle.iter_mut().find(|(id, _)| *id == slot.id) {
                    waiting.clone_from(&waker());
                    return Found::Nothing;
                }
                state.searching -= 1;
            }
        }
        let looked = std::mem::replace(search, Search::Fresh) != Search::Fresh;
        if state.finished || state.cancelled {
            return Found::End;
        }
        if let Some(job) = self.pull(&mut state, slot, batch) {
            let worker = if state.queue.len() > 0 { self.call_worker(&mut state) } else { None };
            let wakes = self.admit(&mut state);
            self.hint(&state);
            drop(state);
            if let Some(worker) = worker {
                worker.wake();
            }
            wakes.wake();
            return Found::Job(job);
        }
        // It came for the queue's sake, and somebody was quicker.
        if slot.shelved() > 0 {
            return Found::OwnShelf;
        }
        if look_first && !looked {
            *search = Search::Looking;
            state.searching += 1;
            return Found::Nothing;
        }
        self.park(state, slot, search, waker)
    }

    /// Up to `batch` tasks off the queue, but never more than this worker's share.
    fn pull(&self, state: &mut State<T, W>, slot: &Slot<T, W>, batch: usize) -> Option<Task<T, W>> {
        let job = state.queue.pop()?;
        let share = state.queue.len() / self.config.workers;
        let more = share.min(batch - 1);
        if more > 0 {
            let queue = &mut state.queue;
            slot.stock(std::iter::from_fn(|| queue.pop()).take(more));
        }
        Some(job)
    }

    /// Steals, or falls asleep, or finds that all is done.
    ///
    /// A task that is spawned is put on its worker's shelf without this lock, so the two could miss each
    /// other: the spawner sees nobody asleep while we see nothing to steal. Each therefore writes, passes a
    /// SeqCst fence, and looks: we write `sleeping` and look at the shelves; it writes its shelf and looks at
    /// `sleeping`. The fences have one order, and whoever passes second sees what the other wrote. (`loom` below tries them all.)
    fn park(
        &self,
        mut state: MutexGuard<'_, State<T, W>>,
        slot: &Slot<T, W>,
        search: &mut Search,
        waker: impl FnOnce() -> Waker,
    ) -> Found<Task<T, W>> {
        state.idle.push((slot.id, waker()));
        self.sleeping.0.store(state.idle.len(), Relaxed);
        fence(SeqCst);
        if let Some(mut stolen) = steal_from_any(&state, slot) {
            state.idle.pop();
            self.sleeping.0.store(state.idle.len(), Relaxed);
            let job = stolen.pop_front().expect("a theft is never empty");
            slot.stock(stolen.into_iter());
            // Who spawned it all woke only us.
            let more = state.seats.iter().any(|seat| seat.slot.shelved() > 0);
            let worker = if more { self.call_worker(&mut state) } else { None };
            drop(state);
            if let Some(worker) = worker {
                worker.wake();
            }
            return Found::Job(job);
        }
        state.awake -= 1;
        if self.finish_if_done(&mut state) {
            state.idle.pop();
            state.awake += 1;
            let wakes = self.dismiss(&mut state);
            drop(state);
            wakes.wake();
            return Found::End;
        }
        *search = Search::Asleep;
        Found::Nothing
    }

    /// Closed, nothing queued, nothing delayed, and nobody awake who could spawn: that was all.
    fn finish_if_done(&self, state: &mut State<T, W>) -> bool {
        state.finished |=
            state.closed && state.awake == 0 && state.queue.len() == 0 && state.delayed.is_empty();
        state.finished
    }

    /// Wakes every sleeper, to see that the pool has ended.
    fn dismiss(&self, state: &mut State<T, W>) -> Wakes {
        let sleepers = std::mem::take(&mut state.idle);
        self.sleeping.0.store(0, Relaxed);
        state.searching += sleepers.len();
        state.awake += sleepers.len();
        Wakes(sleepers.into_iter().map(|(_, waker)| waker).collect())
    }

    // ---- settling ----

    /// Puts a failed task off. It keeps its place in the capacity, so that a pool whose tasks all fail fills
    /// up and makes submitters wait, instead of collecting them without end.
    pub(crate) fn delay(
        self: &Arc<Self>,
        job: Task<T, W>,
        error: TaskError,
        delay: Duration,
    ) -> Result<(), (Task<T, W>, TaskError)> {
        let id = job.meta().id;
        let mut state = self.lock();
        if state.cancelled {
            return Err((job, error));
        }
        // Under the lock, which the alarm needs first: it cannot come before the task is there.
        let core = Arc::downgrade(self);
        let timer = self.clock().after(delay, move || {
            if let Some(core) = core.upgrade() {
                core.due(id);
            }
        });
        state.delayed.insert(id, Delayed { job, error, timer });
        Ok(())
    }

    fn due(&self, id: u64) {
        let mut state = self.lock();
        let Some(Delayed { mut job, error, .. }) = state.delayed.remove(&id) else { return };
        let meta = job.meta_mut();
        meta.extras().last_error = Some(error);
        let rank = meta.rank;
        state.queue.push(rank, job);
        let worker = self.call_worker(&mut state);
        self.hint(&state);
        drop(state);
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Records that a task failed for good, and delivers that.
    pub(crate) fn fail(&self, job: Task<T, W>, error: TaskError) {
        let ran = !matches!(error.cause(), Cause::BreakerOpen);
        let attempts = job.failed().max(u32::from(ran));
        let failure = Failure { task: job.name(), attempts, error: Arc::new(error) };
        tracing::debug!(task = %failure.task, attempts = failure.attempts, error = %failure.error, "task failed");
        // What the closure holds is gone before anybody hears of the end.
        panics::discard(job);
        self.keep_failure(&mut self.lock(), &failure);
        self.deliver(failure.task.clone(), Err(failure));
    }

    fn keep_failure(&self, state: &mut State<T, W>, failure: &Failure) {
        if state.failures.len() < self.config.keep_failures {
            state.failures.push(failure.clone());
        }
    }

    pub(crate) fn deliver(&self, task: TaskRef, result: Result<T, Failure>) {
        if let Some(outlet) = &self.outlet {
            outlet.push(task.id.0, Some(Outcome { task, result }));
        }
    }

    /// A task that will not be started any more. If it was, earlier, it has failed as it did then.
    pub(crate) fn skip(&self, mut job: Task<T, W>) {
        let tried = job.failed() > 0;
        let error = job.meta_mut().extras.as_mut().and_then(|extras| extras.last_error.take());
        if let Some(error) = error.filter(|_| tried) {
            self.lock().failed_unseen += 1;
            return self.fail(job, error);
        }
        self.lock().never_started.push(job.name());
        self.pass_over(job.meta().id);
        panics::discard(job);
    }

    // ---- stopping ----

    /// No new work; what is there is finished.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let mut wakes = self.close_door(&mut state);
        if !state.finished && self.finish_if_done(&mut state) {
            wakes.0.extend(self.dismiss(&mut state).0);
        }
        drop(state);
        wakes.wake();
    }

    fn close_door(&self, state: &mut State<T, W>) -> Wakes {
        if !state.closed {
            tracing::debug!(pool = %self.config.name, queued = state.queue.len(), "pool closed");
        }
        state.closed = true;
        state.reserved = 0;
        Wakes(std::mem::take(&mut state.submitters).into_iter().map(|(_, waker)| waker).collect())
    }

    /// Stop now: nothing more is started, and what runs is told to stop.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        if state.cancelled {
            return;
        }
        state.cancelled = true;
        state.busy += 1;
        let mut wakes = self.close_door(&mut state);
        wakes.0.extend(self.dismiss(&mut state).0);
        let mut dropped: Vec<Task<T, W>> = std::iter::from_fn(|| state.queue.pop()).collect();
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        dropped.extend(slots.iter().flat_map(|slot| slot.shut()));
        let delayed = std::mem::take(&mut state.delayed);
        self.hint(&state);
        drop(state);
        slots.iter().for_each(|slot| slot.cancel());
        if let Some(outlet) = &self.outlet {
            // After the slots know: a worker looks there once it has asked to be woken.
            outlet.release_workers();
        }
        wakes.wake();
        tracing::debug!(pool = %self.config.name, not_started = dropped.len(), "pool cancelled");
        for Delayed { mut job, error, timer } in delayed.into_values() {
            self.clock().forget(timer);
            job.meta_mut().extras().last_error = Some(error);
            self.skip(job);
        }
        dropped.into_iter().for_each(|job| self.skip(job));
        self.done();
    }

    /// The time to stop is over: whoever runs still is left behind and named. Answers whether the pool has
    /// ended with that.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = self.lock();
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        for slot in slots {
            // The run first: if it is still the same when it is given up, the name is its own.
            let Some((run, _)) = slot.running() else { continue };
            let name = slot.current();
            if slot.give_up(run) {
                state.unstopped.extend(name);
                self.vacate(&mut state, &slot);
            }
        }
        state.busy += 1;
        drop(state);
        self.done();
        self.has_ended()
    }

    /// Whoever has something to tell after the lock is `busy`, and done here. The pool ends when nobody is,
    /// and every worker is gone: nothing is told after the end.
    fn done(&self) {
        let mut state = self.lock();
        state.busy -= 1;
        if state.busy > 0 || !state.seats.is_empty() || state.ended {
            return;
        }
        state.ended = true;
        let wakes = Wakes(std::mem::take(&mut state.joiners));
        drop(state);
        if let Some(outlet) = &self.outlet {
            outlet.end();
        }
        wakes.wake();
    }

    // ---- workers ----

    /// Makes a place for a new worker. It counts from now on, so the pool cannot end before it has come.
    pub(crate) fn seat(self: &Arc<Self>) -> Arc<Slot<T, W>> {
        self.add_seat(&mut self.lock())
    }

    fn add_seat(self: &Arc<Self>, state: &mut State<T, W>) -> Arc<Slot<T, W>> {
        let slot = Arc::new(Slot::new(state.workers_made, Arc::clone(self)));
        state.workers_made += 1;
        state.awake += 1;
        state.seats.push(Seat { slot: Arc::clone(&slot), watched: Watched::default() });
        slot
    }

    pub(crate) fn keep_handle(&self, worker: usize, handle: W::Handle) {
        self.lock().handles.push((worker, handle));
    }

    pub(crate) fn take_handles(&self) -> Vec<(usize, W::Handle)> {
        std::mem::take(&mut self.lock().handles)
    }

    /// Takes an awake worker off the list, with its counts; it is not waited for any more.
    fn vacate(&self, state: &mut State<T, W>, slot: &Slot<T, W>) {
        state.seats.retain(|seat| seat.slot.id != slot.id);
        state.past.absorb(&slot.counts.0);
        state.awake -= 1;
        if let Some(place) = state.handles.iter().position(|(worker, _)| *worker == slot.id) {
            W::abort(&state.handles.swap_remove(place).1);
        }
    }

    /// A worker goes, for whatever reason. The last one ends the pool: if there was work left (a runtime was
    /// shut down around it), that is cancelled and named.
    pub(crate) fn leave(&self, slot: &Slot<T, W>, search: Search) {
        let mut state = self.lock();
        let Some(place) = state.seats.iter().position(|seat| seat.slot.id == slot.id) else { return };
        let asleep = state.idle.iter().position(|(id, _)| *id == slot.id);
        if let Some(asleep) = asleep {
            state.idle.remove(asleep);
            self.sleeping.0.store(state.idle.len(), Relaxed);
        } else {
            state.awake -= 1;
            state.searching -= usize::from(search != Search::Fresh);
        }
        // Under one lock with the snapshot, so that no count is seen twice or not at all.
        state.seats.swap_remove(place);
        state.past.absorb(&slot.counts.0);
        let abandoned = state.seats.is_empty() && !state.finished;
        state.busy += 1;
        drop(state);
        self.adopt(slot.shut());
        if abandoned {
            self.cancel();
        }
        self.done();
    }

    /// A worker goes in the middle of a task: its runtime was shut down.
    pub(crate) fn lose(&self, slot: &Slot<T, W>) {
        let (task, attempts) = (slot.current(), slot.attempt());
        let Some((task, (run, _))) = task.zip(slot.running()) else { return };
        if slot.give_up(run) {
            slot.counts.0.failed.add(1);
            let failure = Failure { task, attempts, error: Arc::new(TaskError::cancelled()) };
            self.keep_failure(&mut self.lock(), &failure);
            self.deliver(failure.task.clone(), Err(failure));
        }
    }

    /// Puts the tasks of a worker that is gone back into the queue, or gives them up with the pool.
    fn adopt(&self, orphans: Vec<Task<T, W>>) {
        if orphans.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.cancelled {
            drop(state);
            return orphans.into_iter().for_each(|job| self.skip(job));
        }
        for job in orphans {
            state.queue.push(job.meta().rank, job);
        }
        let worker = self.call_worker(&mut state);
        self.hint(&state);
        drop(state);
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Looks at every worker once. One that gave no heartbeat for too long is given up: its task has failed,
    /// its shelf goes back into the queue, and its place is taken by a new one, to be started by the caller.
    pub(crate) fn replace_stalled(self: &Arc<Self>, now: u64, limit: u64) -> Vec<Arc<Slot<T, W>>> {
        let mut state = self.lock();
        let seats = state.seats.iter_mut();
        let suspects: Vec<_> = seats
            .filter_map(|seat| {
                let run = seat.watched.look(seat.slot.running(), now, limit)?;
                Some((run, Arc::clone(&seat.slot)))
            })
            .collect();
        let (mut failures, mut replacements) = (Vec::new(), Vec::new());
        for (run, slot) in suspects {
            let Some(task) = slot.current() else { continue };
            if !slot.give_up(run) {
                continue;
            }
            tracing::warn!(pool = %self.config.name, worker = slot.id, %task, "worker stalled; replaced");
            let error = Arc::new(TaskError::stalled(Duration::from_nanos(limit)));
            let failure = Failure { task, attempts: slot.attempt(), error };
            self.keep_failure(&mut state, &failure);
            failures.push(failure);
            state.stalled += 1;
            state.failed_unseen += 1;
            self.vacate(&mut state, &slot);
            for job in slot.shut() {
                state.queue.push(job.meta().rank, job);
            }
            replacements.push(self.add_seat(&mut state));
        }
        self.hint(&state);
        drop(state);
        failures.into_iter().for_each(|failure| self.deliver(failure.task.clone(), Err(failure)));
        replacements
    }

    /// Whether the pool has ended.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.ended {
            return Poll::Ready(());
        }
        if !state.joiners.iter().any(|known| known.will_wake(waker)) {
            state.joiners.push(waker.clone());
        }
        Poll::Pending
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    // ---- telling ----

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        let counts = Counts::default();
        counts.absorb(&state.past);
        // The workers are added up after the lock. One that leaves meanwhile is in this list and not in
        // the past we copied, so it is counted once all the same.
        let slots: Vec<Arc<Slot<T, W>>> = state.seats.iter().map(|seat| Arc::clone(&seat.slot)).collect();
        let mut stats = Stats {
            workers: slots.len(),
            queued: state.queue.len(),
            waiting_retry: state.delayed.len(),
            queue_capacity: self.config.queue,
            queue_high_water: state.high_water,
            submitted: state.submitted,
            failed: state.failed_unseen,
            stalled: state.stalled,
            never_started: state.never_started.len() as u64,
            ..Stats::default()
        };
        drop(state);
        slots.iter().for_each(|slot| counts.absorb(&slot.counts.0));
        counts.fill(&self.kinds, &mut stats);
        stats.queued += slots.iter().map(|slot| slot.shelved()).sum::<usize>();
        stats.active = slots.iter().filter(|slot| slot.running().is_some()).count();
        stats.overdue = slots.iter().filter(|slot| slot.is_overdue()).count();
        stats.timed_out = self.timed_out.load(Relaxed);
        stats.late_discarded = self.late.load(Relaxed);
        stats.breaker = self.config.breaker.as_ref().map(Breaker::stats);
        stats
    }

    pub(crate) fn report(&self) -> Report {
        let stats = self.stats();
        let state = self.lock();
        let running = state.seats.iter().filter_map(|seat| seat.slot.current());
        Report {
            finished: stats.completed,
            failed: stats.failed,
            failures: state.failures.clone(),
            never_started: state.never_started.clone(),
            unstopped: state.unstopped.iter().cloned().chain(running).collect(),
            stats,
        }
    }
}

/// Spins for some microseconds. Lets others run as it does: they may be who is waited for.
fn look_around(found: impl Fn() -> bool) -> bool {
    const ROUNDS: u32 = if cfg!(any(shuttle, loom)) { 1 } else { 6 };
    const SPINS: u32 = if cfg!(any(shuttle, loom)) { 1 } else { 64 };
    for _ in 0..ROUNDS {
        for _ in 0..SPINS {
            if found() {
                return true;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
    false
}

fn steal_from_any<T: Send + 'static, W: Worker>(
    state: &State<T, W>,
    thief: &Slot<T, W>,
) -> Option<VecDeque<Task<T, W>>> {
    let others = state.seats.iter().map(|seat| &seat.slot).filter(|slot| slot.id != thief.id);
    others.filter(|slot| slot.shelved() > 0).map(|slot| slot.steal()).find(|stolen| !stolen.is_empty())
}

/// The protocols that do not go through the one lock, on the real code, under every order of memory that the
/// language allows. Run by `cargo xtask prove`.
#[cfg(all(test, loom))]
mod loom {
    use super::*;
    use crate::{Builder, worker::Threads};
    use ::loom::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };
    use std::task::Wake;

    struct Bell(AtomicBool);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }

    fn core() -> Arc<Core<(), Threads>> {
        Arc::new(Core::new(Builder::new().workers(2).queue(2).check(None).unwrap(), (), None))
    }

    /// See `park`: a worker that falls asleep while another spawns either finds the task or is woken.
    #[test]
    fn a_spawn_and_a_sleeper_do_not_miss_each_other() {
        ::loom::model(|| {
            let core = core();
            let (spawner, sleeper) = (core.seat(), core.seat());
            let bell = Arc::new(Bell(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&bell));
            let asleep = thread::spawn({
                let core = Arc::clone(&core);
                move || {
                    let mut search = Search::Fresh;
                    let found = core.find(&sleeper, &mut search, 1, false, || waker);
                    matches!(found, Found::Nothing)
                }
            });
            let inside = panics::enter(core.address(), spawner.id);
            assert!(core.spawn(&spawner, Task::new(|_| Ok(()))).is_ok());
            drop(inside);
            let asleep = asleep.join().unwrap();
            assert_eq!(asleep, bell.0.load(Relaxed), "asleep, but not woken; or woken for nothing");
            core.cancel();
        });
    }

    /// See `Slot::run`: of the worker that finishes and the watch that gives up, exactly one settles; and
    /// a watch that wins names the task it gave up.
    #[test]
    fn a_run_is_settled_once() {
        ::loom::model(|| {
            let core = core();
            let slot = core.seat();
            let watch = thread::spawn({
                let slot = Arc::clone(&slot);
                move || {
                    slot.running().is_some_and(|(run, _)| {
                        let name = slot.current();
                        let given_up = slot.give_up(run);
                        if given_up {
                            let id = if run == 1 { 7 } else { 0 };
                            assert_eq!(name.map(|name| name.id), Some(TaskId(id)), "named after another run");
                        }
                        given_up
                    })
                }
            });
            let mut first = Task::new(|_| Ok(()));
            first.meta_mut().id = 7;
            let run = slot.begin(&first, 0);
            let mut finished = slot.finish(run, &first);
            if finished {
                let second = Task::new(|_| Ok(()));
                let run = slot.begin(&second, 0);
                finished = slot.finish(run, &second);
            }
            assert_eq!(watch.join().unwrap(), !finished);
            core.cancel();
        });
    }

    /// See `Slot::listen`: who waits to be told to stop is told, whichever comes first.
    #[test]
    fn a_cancellation_is_heard() {
        ::loom::model(|| {
            let core = core();
            let slot = core.seat();
            let bell = Arc::new(Bell(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&bell));
            let canceller = thread::spawn({
                let core = Arc::clone(&core);
                move || core.cancel()
            });
            slot.listen(&waker);
            let seen = slot.is_stopped(1);
            canceller.join().unwrap();
            assert!(seen || bell.0.load(Relaxed), "neither seen nor told");
        });
    }
}
