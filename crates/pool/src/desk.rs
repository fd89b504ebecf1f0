//! What a worker does with one task: take it, start it, see how it went, and decide what becomes of it. The
//! same for threads and async tasks; only the running in between is theirs.

use crate::{
    breaker::{Open, Permit},
    clock::{TimerKey, nanos},
    context::{Context, Rare},
    core::{Core, Found, Search},
    error::{Cause, ErrorClass, TaskError, TaskResult},
    panics::{self, Panic},
    slot::{Origin, Slot},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Task,
    worker::Worker,
};
use std::{
    task::{Poll, Waker},
    time::Duration,
};

/// A worker that finds its tasks done sooner than this takes more of them at a time, so that tiny tasks do
/// not pay for the queue's lock each. Whoever takes that long for one task takes them one by one: order is
/// then exact, and nothing waits on a shelf behind it.
const BATCH_TIME: u64 = 20_000;
const BATCH_MAX: usize = 256;

/// Reading the clock takes as long as a trivial task. A worker whose tasks are that small reads it once for so
/// many of them.
const TIMED_TOGETHER: u32 = 8;

/// After so many spawned tasks in a row the queue has a turn, so that a task which spawns its successor for
/// ever does not starve it.
const SPAWNED_IN_A_ROW: u32 = 64;

/// A refused task comes back no sooner: while a probe is under way the breaker cannot say when.
const BREAKER_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Desk<T: Send + 'static, W: Worker> {
    pub(crate) slot: Arc<Slot<T, W>>,
    pub(crate) search: Search,
    /// The task in hand: found, or under way. Moved as little as possible: at this rate even the moving of
    /// some words from one place on the stack to another shows.
    hand: Option<Task<T, W>>,
    pub(crate) run: u64,
    kind: usize,
    /// How long it may take, and the timer that sees to it.
    limit: Option<(Duration, TimerKey)>,
    /// Whether the task in hand waits for its reader's sake.
    held_back: bool,
    batch: usize,
    batch_max: usize,
    /// Tasks since the worker was last at the queue, and when that was.
    since_pull: usize,
    pulled_at: u64,
    spawned_in_a_row: u32,
    /// When the clock was last read: for the next task on the shelf, when it starts.
    now: u64,
    /// Tasks of the kind `untimed_kind` that have ended since then.
    untimed: u32,
    untimed_kind: usize,
    kinds: Vec<(&'static str, usize)>,
}

impl<T: Send + 'static, W: Worker> Desk<T, W> {
    pub(crate) fn new(slot: Arc<Slot<T, W>>) -> Self {
        let config = &slot.core.config;
        // What workers take ahead lies outside of the queue: together they take at most half of it.
        let batch_max = (config.queue / (2 * config.workers)).clamp(1, BATCH_MAX);
        Self {
            search: Search::Fresh,
            hand: None,
            run: 0,
            kind: 0,
            limit: None,
            held_back: false,
            batch: 1,
            batch_max,
            since_pull: 0,
            pulled_at: 0,
            spawned_in_a_row: 0,
            now: 0,
            untimed: 0,
            untimed_kind: 0,
            kinds: Vec::new(),
            slot,
        }
    }

    fn core(&self) -> &Arc<Core<T, W>> {
        &self.slot.core
    }

    /// Whether there is a next task, now in hand; false when the pool has ended. Pending with
    /// [`Search::Looking`]: ask again soon.
    pub(crate) fn poll_job(&mut self, look_first: bool, waker: &Waker) -> Poll<bool> {
        if self.hand.is_none() {
            self.hand = self.take_from_shelf();
        }
        if self.hand.is_none() {
            match self.poll_find(look_first, waker) {
                Poll::Ready(true) => {}
                other => return other,
            }
        }
        if let Some(outlet) = &self.core().outlet {
            let room = outlet.poll_room(waker);
            if room.is_pending() && !self.slot.is_cancelled() {
                self.held_back = true;
                self.core().check_reader();
                return Poll::Pending;
            }
            if std::mem::take(&mut self.held_back) {
                // The reader's time, not the task's.
                self.read_clock();
                self.now = self.core().clock().now();
            }
        }
        Poll::Ready(true)
    }

    fn poll_find(&mut self, look_first: bool, waker: &Waker) -> Poll<bool> {
        if self.search == Search::Fresh {
            self.read_clock();
            self.choose_batch();
        }
        let core = &self.slot.core;
        match core.find(&self.slot, &mut self.search, self.batch, look_first, || waker.clone()) {
            Found::Job(job) => {
                self.hand = Some(job);
                self.now = core.clock().now();
                self.pulled_at = self.now;
                self.since_pull = 0;
                self.spawned_in_a_row = 0;
                Poll::Ready(true)
            }
            Found::OwnShelf => {
                self.hand = self.slot.next(|_| false, false).map(|(job, _)| job);
                if self.hand.is_some() { Poll::Ready(true) } else { self.poll_find(look_first, waker) }
            }
            Found::Nothing => {
                if self.search == Search::Asleep {
                    core.check_reader();
                }
                Poll::Pending
            }
            Found::End => Poll::Ready(false),
        }
    }

    fn take_from_shelf(&mut self) -> Option<Task<T, W>> {
        if self.search != Search::Fresh {
            return None;
        }
        let core = self.core();
        let others_turn = self.spawned_in_a_row >= SPAWNED_IN_A_ROW;
        if others_turn && core.looks_ready() {
            // Not while a large tree is being walked: each further root would add a tree to memory.
            let (spawned, batch) = self.slot.waiting();
            if batch == 0 && spawned <= core.config.queue.max(SPAWNED_IN_A_ROW as usize) {
                return None;
            }
        }
        // What was just taken is not put aside for something better: that would cost tiny tasks of mixed
        // priorities the queue's lock each, to save microseconds.
        let fresh = self.now.saturating_sub(self.pulled_at) < BATCH_TIME;
        let order = core.config.order;
        let better = |head: &Task<T, W>| !fresh && core.has_better_than(head.meta().rank.under(order));
        let (job, origin) = self.slot.next(better, others_turn)?;
        self.spawned_in_a_row = if origin == Origin::Spawned { self.spawned_in_a_row + 1 } else { 0 };
        Some(job)
    }

    fn choose_batch(&mut self) {
        if self.since_pull == 0 {
            return;
        }
        let took = (self.now - self.pulled_at).max(1);
        let fit = self.since_pull as u64 * BATCH_TIME / took;
        self.batch = fit.clamp(1, (self.batch * 2).min(self.batch_max) as u64) as usize;
    }

    /// Starts the task in hand. None: it did not come to that, and the task is settled.
    pub(crate) fn begin(&mut self, context: &mut Context<T, W>) -> Option<&mut W::Body<T>> {
        if self.slot.is_cancelled() {
            let job = self.hand.take()?;
            self.core().skip(job);
            return None;
        }
        if let Some(breaker) = &self.slot.core.config.breaker {
            match breaker.acquire() {
                Ok(permit) => self.slot.keep_permit(permit),
                Err(open) => {
                    self.refuse(open);
                    return None;
                }
            }
        }
        let kind = self.kind_number(self.hand.as_ref()?.meta().kind);
        let job = self.hand.as_ref()?;
        let extras = job.meta().extras.as_ref();
        let limit = extras.and_then(|extras| extras.timeout).or(self.slot.core.config.timeout);
        if self.untimed > 0 && (kind != self.untimed_kind || limit.is_some()) {
            self.read_clock();
        }
        let job = self.hand.as_ref()?;
        self.run = self.slot.begin(job, kind);
        self.kind = kind;
        context.run = self.run;
        context.task = job.meta().id;
        let extras = job.meta().extras.as_ref().filter(|extras| extras.failed > 0);
        context.rare = (limit.is_some() || extras.is_some()).then(|| {
            Arc::new(Rare {
                failed: extras.map_or(0, |extras| extras.failed),
                failed_step: extras.and_then(|extras| extras.failed_step.clone()),
                deadline: limit.map(|limit| self.now.saturating_add(nanos(limit))),
            })
        });
        self.limit = limit.map(|limit| (limit, self.set_timer(self.run, limit)));
        self.hand.as_mut().map(|job| &mut job.body)
    }

    /// The task under way.
    #[cfg(feature = "tokio")]
    pub(crate) fn body(&mut self) -> Option<&mut W::Body<T>> {
        self.hand.as_mut().map(|job| &mut job.body)
    }

    /// How long the task under way may take.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit.map(|(limit, _)| limit)
    }

    fn set_timer(&self, run: u64, limit: Duration) -> TimerKey {
        let slot = Arc::clone(&self.slot);
        self.core().clock().after(limit, move || {
            if slot.expire(run) {
                slot.core.timed_out.fetch_add(1, Relaxed);
                tracing::warn!(worker = slot.id, ?limit, "task past its timeout; told to stop");
            }
        })
    }

    /// The breaker is open: the task comes back later if it can be retried, without using up an attempt.
    fn refuse(&mut self, open: Open) {
        let Some(job) = self.hand.take() else { return };
        let policy = job.meta().extras.as_ref().and_then(|extras| extras.retry);
        match policy {
            // Whatever it failed of before is still why.
            Some(policy) => self.put_off(job, open.retry_in.max(policy.delay(1)).max(BREAKER_PAUSE)),
            None => self.fail(job, TaskError::breaker_open(open.retry_in)),
        }
    }

    fn kind_number(&mut self, kind: &'static str) -> usize {
        // The same literal is the same address: most look-ups compare no bytes.
        let known = self.kinds.iter().find(|(name, _)| std::ptr::eq(*name, kind));
        if let Some((_, number)) = known {
            return *number;
        }
        let number = self.core().kinds.number(kind);
        self.kinds.push((kind, number));
        number
    }

    /// The task under way has come to its end. False: it was given up meanwhile, and so is this worker.
    pub(crate) fn settle(&mut self, result: Result<TaskResult<T>, Panic>) -> bool {
        let Some(job) = self.hand.take() else { return true };
        if let Some((_, timer)) = self.limit {
            self.core().clock().forget(timer);
        }
        if !self.slot.finish(self.run, &job) {
            self.discard_late(job, result);
            return false;
        }
        self.since_pull += 1;
        self.untimed += 1;
        self.untimed_kind = self.kind;
        let tiny = self.batch >= 2 * TIMED_TOGETHER as usize && self.limit.is_none();
        if !tiny || self.untimed == TIMED_TOGETHER {
            self.read_clock();
        }
        let result = self.judge(&job, result);
        if self.core().config.breaker.is_some() {
            self.slot.take_permit().into_iter().for_each(|permit| tell_breaker(permit, &result));
        }
        match result {
            Ok(value) => self.complete(job, value),
            Err(error) => self.retry_or_fail(job, error),
        }
        true
    }

    /// Reads the clock and records the tasks that have ended since it was last read.
    fn read_clock(&mut self) {
        if self.untimed == 0 {
            return;
        }
        let now = self.slot.core.clock().now();
        let elapsed = now.saturating_sub(self.now);
        let usual = BATCH_TIME / self.batch as u64;
        self.slot.counts.0.record(self.untimed_kind, elapsed, self.untimed.into(), usual);
        self.now = now;
        self.untimed = 0;
    }

    fn discard_late(&self, job: Task<T, W>, result: Result<TaskResult<T>, Panic>) {
        self.core().late.fetch_add(1, Relaxed);
        tracing::warn!(worker = self.slot.id, task = %job.name(), "late result of a given-up task discarded");
        panics::discard((job, result));
    }

    /// What a result means: a panic is an error, and one that came from being told to stop is a timeout.
    fn judge(&self, job: &Task<T, W>, result: Result<TaskResult<T>, Panic>) -> TaskResult<T> {
        let error = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(panic) => panic.into(),
        };
        if let Cause::Panic { message, backtrace } = error.cause() {
            self.slot.counts.0.panicked.add(1);
            tracing::error!(worker = self.slot.id, task = %job.name(), message, %backtrace, "task panicked");
            return Err(error);
        }
        if self.slot.has_expired(self.run) {
            let timed_out = TaskError::timed_out(self.limit().unwrap_or_default()).instead_of(&error);
            panics::discard(error);
            return Err(timed_out);
        }
        Err(error)
    }

    fn complete(&mut self, job: Task<T, W>, value: T) {
        // Counted before it is delivered: who has the result sees it in the statistics.
        self.slot.counts.0.completed.add(1);
        if self.core().outlet.is_some() {
            let task = job.name();
            panics::discard(job);
            self.core().deliver(task, Ok(value));
        } else {
            panics::discard((job, value));
        }
    }

    fn retry_or_fail(&mut self, mut job: Task<T, W>, error: TaskError) {
        let Some(extras) = &mut job.meta_mut().extras else { return self.fail(job, error) };
        extras.failed += 1;
        // A later failure that names no step leaves the earlier one standing: what is done is done.
        extras.failed_step = error.shared_step().or(extras.failed_step.take());
        match extras.retry.and_then(|policy| policy.next(extras.failed, &error)) {
            Some(delay) => {
                self.slot.counts.0.retried.add(1);
                tracing::debug!(task = %job.name(), ?delay, %error, "task will be tried again");
                job.meta_mut().extras().last_error = Some(error);
                self.put_off(job, delay);
            }
            None => self.fail(job, error),
        }
    }

    /// The task waits for its next attempt, unless the pool has been cancelled meanwhile.
    fn put_off(&mut self, job: Task<T, W>, delay: Duration) {
        let core = Arc::clone(self.core());
        if let Err(job) = core.delay(job, delay) {
            core.skip(job);
        }
    }

    fn fail(&mut self, job: Task<T, W>, error: TaskError) {
        self.slot.counts.0.failed.add(1);
        self.core().fail(job, error);
    }
}

/// Failures of what a task calls open the breaker; what was wrong with the task itself does not.
fn tell_breaker<T>(permit: Permit, result: &TaskResult<T>) {
    match result {
        // It was told to stop: that says nothing.
        Err(error) if matches!(error.cause(), Cause::Cancelled) => permit.withdraw(),
        Err(error) if error.class() != ErrorClass::Permanent => permit.failure(),
        Err(error) if matches!(error.cause(), Cause::Panic { .. }) => permit.failure(),
        _ => permit.success(),
    }
}

impl<T: Send + 'static, W: Worker> Drop for Desk<T, W> {
    /// However a worker goes, it is seen to go: also when a runtime drops it in the middle of a task.
    fn drop(&mut self) {
        if let Some((_, timer)) = self.limit {
            self.core().clock().forget(timer);
        }
        if let Some(job) = self.hand.take() {
            if self.slot.running().is_some() {
                self.core().lose(&self.slot);
                panics::discard(job);
            } else if self.slot.is_given_up() {
                panics::discard(job);
            } else {
                self.core().skip(job);
            }
        }
        Arc::clone(self.core()).leave(&self.slot, self.search);
    }
}
