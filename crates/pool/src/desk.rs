//! What a worker does with one task: take it, start it, see how it went, and decide what becomes of it. The
//! same for threads and async tasks; only the running in between is theirs.

use crate::{
    breaker::{Open, Permit},
    clock::TimerKey,
    context::Context,
    core::{Core, Found, Search},
    error::{Cause, Class, TaskError, TaskResult},
    panics::{self, Panic},
    slot::{Origin, Slot},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Job,
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

/// After so many spawned tasks in a row the queue has a turn, so that a task which spawns its successor for
/// ever does not starve it.
const SPAWNED_IN_A_ROW: u32 = 64;

/// A refused task comes back no sooner: while a probe is under way the breaker cannot say when.
const BREAKER_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Desk<T: Send + 'static, W: Worker> {
    pub(crate) slot: Arc<Slot<T, W>>,
    pub(crate) search: Search,
    hand: Option<Job<T, W>>,
    batch: usize,
    batch_max: usize,
    /// Tasks since the worker was last at the queue, and when that was.
    since_pull: usize,
    pulled_at: u64,
    spawned_in_a_row: u32,
    /// When the last task ended: for the next on the shelf, when it starts.
    now: u64,
    kinds: Vec<(&'static str, usize)>,
}

/// A task under way.
pub(crate) struct Running<T: Send + 'static, W: Worker> {
    pub(crate) job: Job<T, W>,
    pub(crate) run: u64,
    kind: usize,
    limit: Option<Duration>,
    timer: Option<TimerKey>,
    permit: Option<Permit>,
}

impl<T: Send + 'static, W: Worker> Running<T, W> {
    #[cfg(feature = "tokio")]
    pub(crate) fn is_timed(&self) -> bool {
        self.limit.is_some()
    }
}

impl<T: Send + 'static, W: Worker> Desk<T, W> {
    pub(crate) fn new(slot: Arc<Slot<T, W>>) -> Self {
        let config = &slot.core.config;
        // What workers take ahead lies outside of the queue: together they take at most half of it.
        let batch_max = (config.queue / (2 * config.workers)).clamp(1, BATCH_MAX);
        Self {
            search: Search::Fresh,
            hand: None,
            batch: 1,
            batch_max,
            since_pull: 0,
            pulled_at: 0,
            spawned_in_a_row: 0,
            now: 0,
            kinds: Vec::new(),
            slot,
        }
    }

    fn core(&self) -> &Arc<Core<T, W>> {
        &self.slot.core
    }

    /// The next task to run; none when the pool has ended. Pending with [`Search::Looking`]: ask again soon.
    pub(crate) fn poll_job(&mut self, look_first: bool, waker: &Waker) -> Poll<Option<Job<T, W>>> {
        if self.hand.is_none() {
            self.hand = match self.poll_find(look_first, waker) {
                Poll::Ready(Some(job)) => Some(job),
                other => return other,
            };
        }
        if let Some(outlet) = &self.core().outlet {
            let room = outlet.poll_room(waker);
            if room.is_pending() && !self.slot.is_cancelled() {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.hand.take())
    }

    fn poll_find(&mut self, look_first: bool, waker: &Waker) -> Poll<Option<Job<T, W>>> {
        if self.search == Search::Fresh {
            if let Some(job) = self.take_from_shelf() {
                return Poll::Ready(Some(job));
            }
            self.choose_batch();
        }
        let core = Arc::clone(self.core());
        match core.find(&self.slot, &mut self.search, self.batch, look_first, || waker.clone()) {
            Found::Job(job) => {
                self.now = core.clock().now();
                self.pulled_at = self.now;
                self.since_pull = 0;
                self.spawned_in_a_row = 0;
                Poll::Ready(Some(job))
            }
            Found::Nothing => Poll::Pending,
            Found::End => Poll::Ready(None),
        }
    }

    fn take_from_shelf(&mut self) -> Option<Job<T, W>> {
        let core = self.core();
        if self.spawned_in_a_row >= SPAWNED_IN_A_ROW && core.looks_ready() {
            // Not while a large tree is being walked: each further root would add a tree to memory.
            if self.slot.spawned_waiting() <= core.config.queue {
                return None;
            }
        }
        let order = core.config.order;
        let (job, origin) = self.slot.next(|head| core.has_better_than(head.task.rank.under(order)))?;
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

    /// Starts a task. None: it did not come to that, and the task is settled.
    pub(crate) fn begin(&mut self, job: Job<T, W>, context: &mut Context<T, W>) -> Option<Running<T, W>> {
        let core = Arc::clone(self.core());
        if self.slot.is_cancelled() {
            core.skip(job);
            return None;
        }
        let permit = match core.config.breaker.as_ref().map(|breaker| breaker.acquire()).transpose() {
            Ok(permit) => permit,
            Err(open) => {
                self.refuse(job, open);
                return None;
            }
        };
        let kind = self.kind_number(job.task.kind);
        let run = self.slot.begin(&job, kind);
        let limit = job.task.extras.as_ref().and_then(|extras| extras.timeout).or(core.config.timeout);
        let timer = limit.map(|limit| self.set_timer(run, limit));
        context.run = run;
        context.task = job.id;
        context.deadline = limit.map(|limit| self.now.saturating_add(crate::clock::nanos(limit)));
        let extras = job.task.extras.as_ref();
        context.failed = extras.map_or(0, |extras| extras.failed);
        context.failed_step = extras.and_then(|extras| extras.failed_step.clone());
        Some(Running { job, run, kind, limit, timer, permit })
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
    fn refuse(&mut self, job: Job<T, W>, open: Open) {
        let policy = job.task.extras.as_ref().and_then(|extras| extras.retry);
        let error = TaskError::breaker_open(open.retry_in);
        match policy {
            Some(policy) => self.put_off(job, error, open.retry_in.max(policy.delay(1)).max(BREAKER_PAUSE)),
            None => self.fail(job, error),
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

    /// A task has come to its end. False: it was given up meanwhile, and so is this worker.
    pub(crate) fn settle(&mut self, running: Running<T, W>, result: Result<TaskResult<T>, Panic>) -> bool {
        let core = Arc::clone(self.core());
        let Running { job, run, kind, limit, timer, permit } = running;
        if let Some(timer) = timer {
            core.clock().forget(timer);
        }
        if !self.slot.finish(run, &job) {
            core.late.fetch_add(1, Relaxed);
            tracing::warn!(worker = self.slot.id, task = %job.name(), "late result of a given-up task discarded");
            panics::discard((job, result));
            return false;
        }
        let ended = core.clock().now();
        self.slot.counts.0.record(kind, ended.saturating_sub(self.now));
        self.now = ended;
        self.since_pull += 1;
        let result = self.judge(&job, run, limit, result);
        if let Some(permit) = permit {
            tell_breaker(permit, &result);
        }
        match result {
            Ok(value) => self.complete(job, value),
            Err(error) => self.retry_or_fail(job, error),
        }
        true
    }

    /// What a result means: a panic is an error, and so is one that came from being told to stop in time.
    fn judge(
        &mut self,
        job: &Job<T, W>,
        run: u64,
        limit: Option<Duration>,
        result: Result<TaskResult<T>, Panic>,
    ) -> TaskResult<T> {
        match result {
            Ok(Err(error)) if self.slot.has_expired(run) => {
                Err(TaskError::timed_out(limit.unwrap_or_default()).caused_by(&error))
            }
            Ok(result) => result,
            Err(Panic { message, backtrace }) => {
                self.slot.counts.0.panicked.add(1);
                let task = job.name();
                tracing::error!(worker = self.slot.id, %task, message, %backtrace, "task panicked");
                Err(TaskError::panic(message, backtrace))
            }
        }
    }

    fn complete(&mut self, job: Job<T, W>, value: T) {
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

    fn retry_or_fail(&mut self, mut job: Job<T, W>, error: TaskError) {
        let Some(extras) = &mut job.task.extras else { return self.fail(job, error) };
        extras.failed += 1;
        extras.failed_step = error.shared_step();
        match extras.retry.and_then(|policy| policy.next(extras.failed, &error)) {
            Some(delay) => self.put_off(job, error, delay),
            None => self.fail(job, error),
        }
    }

    fn put_off(&mut self, job: Job<T, W>, error: TaskError, delay: Duration) {
        tracing::debug!(task = %job.name(), ?delay, %error, "task will be tried again");
        self.slot.counts.0.retried.add(1);
        if let Err((job, error)) = Arc::clone(self.core()).delay(job, error, delay) {
            self.fail(job, error);
        }
    }

    fn fail(&mut self, job: Job<T, W>, error: TaskError) {
        self.slot.counts.0.failed.add(1);
        self.core().fail(job, error);
    }
}

/// Failures of what a task calls open the breaker; what was wrong with the task itself does not.
fn tell_breaker<T>(permit: Permit, result: &TaskResult<T>) {
    match result {
        Err(error) if error.class() != Class::Permanent => permit.failure(),
        Err(error) if matches!(error.cause(), Cause::Panic { .. }) => permit.failure(),
        _ => permit.success(),
    }
}

impl<T: Send + 'static, W: Worker> Drop for Desk<T, W> {
    /// However a worker goes, it is seen to go.
    fn drop(&mut self) {
        if let Some(job) = self.hand.take() {
            self.core().skip(job);
        }
        self.core().lose(&self.slot);
        Arc::clone(self.core()).leave(&self.slot, self.search);
    }
}
