//! Runs a worker's tasks: takes one, starts it, classifies its result and settles it. Threads and tokio tasks share
//! this code; only the call of the task's body differs.

use crate::{
    breaker::{Open, Permit},
    clock::{TimerKey, nanos},
    context::{Context, ContextExtras},
    core::{Core, Found, SearchState},
    error::{Cause, ErrorClass, TaskError, TaskResult},
    outcome::{Outcome, Outcomes},
    panics::{self, Panic},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Task,
    worker::Worker,
    worker_state::{Origin, WorkerState},
};
use std::{
    task::{Poll, Waker},
    time::Duration,
};

/// Target duration of one batch in nanoseconds. A worker whose tasks take less pops several at once, so that tiny tasks
/// do not each pay for the queue's lock. A worker whose tasks take longer pops them one by one: their order is then
/// exact, and none waits in a local queue behind a long one.
const BATCH_TIME_NS: u64 = 20_000;
const MAX_BATCH: usize = 256;

/// Number of tiny tasks for which the clock is read once. Reading it takes as long as a trivial task.
const TASKS_PER_CLOCK_READ: u32 = 8;

/// Number of spawned tasks in a row after which the queue has its turn: an endless chain must not starve it.
const MAX_SPAWNED_IN_A_ROW: u32 = 64;

/// Shortest delay of a task that an open breaker rejected: during a probe the breaker does not know how long to wait.
const MIN_BREAKER_DELAY: Duration = Duration::from_millis(10);

pub(crate) struct Executor<T: Send + 'static, W: Worker> {
    pub(crate) worker: Arc<WorkerState<T, W>>,
    pub(crate) search: SearchState,
    /// The task that was found or is running. Moved as little as possible: even copying a few words on the stack is
    /// measurable.
    current: Option<Task<T, W>>,
    pub(crate) run: u64,
    kind: usize,
    /// Timeout of the running task, and the timer that enforces it.
    timeout: Option<(Duration, TimerKey)>,
    /// Whether the current task waits for room for results.
    waits_for_reader: bool,
    batch: usize,
    max_batch: usize,
    /// Tasks run since the last pop from the shared queue, and the time of that pop.
    tasks_since_pop: usize,
    popped_at: u64,
    spawned_in_a_row: u32,
    /// Last reading of the clock. The next task of the local queue starts at this time.
    clock_read_at: u64,
    /// Number of tasks of kind `untimed_kind` that have ended since then.
    untimed_tasks: u32,
    untimed_kind: usize,
    /// Whether each outcome has the duration of its own attempt, so that the clock is read for each task.
    times_each_task: bool,
    /// Duration of the last attempt in nanoseconds, or the mean of the last tiny ones.
    duration: u64,
    kind_numbers: Vec<(&'static str, usize)>,
}

impl<T: Send + 'static, W: Worker> Executor<T, W> {
    pub(crate) fn new(worker: Arc<WorkerState<T, W>>) -> Self {
        let config = &worker.core.config;
        // Tasks popped ahead do not count against the queue's capacity: together they are at most half of it.
        let max_batch = (config.queue_capacity / (2 * config.workers)).clamp(1, MAX_BATCH);
        Self {
            search: SearchState::NotStarted,
            current: None,
            run: 0,
            kind: 0,
            timeout: None,
            waits_for_reader: false,
            batch: 1,
            max_batch,
            tasks_since_pop: 0,
            popped_at: 0,
            spawned_in_a_row: 0,
            clock_read_at: 0,
            untimed_tasks: 0,
            untimed_kind: 0,
            times_each_task: matches!(worker.core.outcomes, Outcomes::Callback(_)),
            duration: 0,
            kind_numbers: Vec::new(),
            worker,
        }
    }

    fn core(&self) -> &Arc<Core<T, W>> {
        &self.worker.core
    }

    /// Finds the next task and makes it current. Returns false when the pool has ended. When pending with
    /// [`SearchState::Spinning`], the caller polls again soon.
    pub(crate) fn poll_task(&mut self, spin_first: bool, waker: &Waker) -> Poll<bool> {
        if self.current.is_none() {
            self.current = self.take_local();
        }
        if self.current.is_none() {
            match self.poll_next_task(spin_first, waker) {
                Poll::Ready(true) => {}
                other => return other,
            }
        }
        if let Some(results) = self.core().outcomes.queue() {
            let room = results.poll_room(waker);
            if room.is_pending() && !self.worker.is_cancelled() {
                self.waits_for_reader = true;
                self.core().check_reader();
                return Poll::Pending;
            }
            if std::mem::take(&mut self.waits_for_reader) {
                // The time spent waiting for the reader does not count as the task's.
                self.read_clock();
                self.clock_read_at = self.core().clock().now();
            }
        }
        Poll::Ready(true)
    }

    fn poll_next_task(&mut self, spin_first: bool, waker: &Waker) -> Poll<bool> {
        if self.search == SearchState::NotStarted {
            self.read_clock();
            self.adapt_batch();
        }
        let core = &self.worker.core;
        match core.next_task(&self.worker, &mut self.search, self.batch, spin_first, || waker.clone()) {
            Found::Task(task) => {
                self.current = Some(task);
                self.clock_read_at = core.clock().now();
                self.popped_at = self.clock_read_at;
                self.tasks_since_pop = 0;
                self.spawned_in_a_row = 0;
                Poll::Ready(true)
            }
            Found::LocalQueue => {
                self.current = self.worker.pop_local(|_| false, false).map(|(task, _)| task);
                let found = self.current.is_some();
                if found { Poll::Ready(true) } else { self.poll_next_task(spin_first, waker) }
            }
            Found::Nothing => {
                if self.search == SearchState::Asleep {
                    core.check_reader();
                }
                Poll::Pending
            }
            Found::Exit => Poll::Ready(false),
        }
    }

    fn take_local(&mut self) -> Option<Task<T, W>> {
        if self.search != SearchState::NotStarted {
            return None;
        }
        let core = self.core();
        let is_queue_turn = self.spawned_in_a_row >= MAX_SPAWNED_IN_A_ROW;
        if is_queue_turn && core.may_have_queued() {
            // Not while a large tree is walked: each further root would add its tree to memory.
            let (spawned, batch) = self.worker.local_counts();
            if batch == 0 && spawned <= core.config.queue_capacity.max(MAX_SPAWNED_IN_A_ROW as usize) {
                return None;
            }
        }
        // A task popped just now is not deferred for a better one: tiny tasks of mixed priorities would each take the
        // queue's lock, to save microseconds.
        let fresh = self.clock_read_at.saturating_sub(self.popped_at) < BATCH_TIME_NS;
        let order = core.config.order;
        let better = |head: &Task<T, W>| !fresh && core.has_better_than(head.meta().rank.sort_key(order));
        let (task, origin) = self.worker.pop_local(better, is_queue_turn)?;
        self.spawned_in_a_row = if origin == Origin::Spawned { self.spawned_in_a_row + 1 } else { 0 };
        if self.times_each_task {
            // The callback for the task before this one took time.
            self.clock_read_at = self.core().clock().now();
        }
        Some(task)
    }

    fn adapt_batch(&mut self) {
        if self.tasks_since_pop == 0 {
            return;
        }
        let took = (self.clock_read_at - self.popped_at).max(1);
        let fit = self.tasks_since_pop as u64 * BATCH_TIME_NS / took;
        self.batch = fit.clamp(1, (self.batch * 2).min(self.max_batch) as u64) as usize;
    }

    /// Starts the current task. Returns `None` if it was settled without a start.
    pub(crate) fn begin(&mut self, context: &mut Context<T, W>) -> Option<&mut W::Body<T>> {
        if self.worker.is_cancelled() {
            let task = self.current.take()?;
            self.core().mark_never_started(task);
            return None;
        }
        if let Some(breaker) = &self.worker.core.config.breaker {
            match breaker.acquire() {
                Ok(permit) => self.worker.store_permit(permit),
                Err(open) => {
                    self.on_breaker_open(open);
                    return None;
                }
            }
        }
        let kind = self.kind_number(self.current.as_ref()?.meta().kind);
        let task = self.current.as_ref()?;
        let extras = task.meta().extras.as_ref();
        let limit = extras.and_then(|extras| extras.timeout).or(self.worker.core.config.timeout);
        if self.untimed_tasks > 0 && (kind != self.untimed_kind || limit.is_some()) {
            self.read_clock();
        }
        let task = self.current.as_ref()?;
        self.run = self.worker.begin_run(task, kind, self.clock_read_at);
        self.kind = kind;
        context.run = self.run;
        context.task_id = task.meta().id;
        let extras = task.meta().extras.as_ref().filter(|extras| extras.failed > 0);
        context.extras = (limit.is_some() || extras.is_some()).then(|| {
            Arc::new(ContextExtras {
                failed: extras.map_or(0, |extras| extras.failed),
                failed_step: extras.and_then(|extras| extras.failed_step.clone()),
                deadline: limit.map(|limit| self.clock_read_at.saturating_add(nanos(limit))),
            })
        });
        self.timeout = limit.map(|limit| (limit, self.start_timeout(self.run, limit)));
        self.current.as_mut().map(|task| &mut task.body)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn body(&mut self) -> Option<&mut W::Body<T>> {
        self.current.as_mut().map(|task| &mut task.body)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout.map(|(limit, _)| limit)
    }

    fn start_timeout(&self, run: u64, limit: Duration) -> TimerKey {
        let worker = Arc::clone(&self.worker);
        self.core().clock().call_after(limit, move || {
            if worker.expire(run) {
                worker.core.timed_out.fetch_add(1, Relaxed);
                tracing::warn!(worker = worker.id, ?limit, "task exceeded its timeout and was cancelled");
            }
        })
    }

    /// Settles a task that the open breaker rejected: fails it, or retries it later without using up an attempt.
    fn on_breaker_open(&mut self, open: Open) {
        let Some(task) = self.current.take() else { return };
        let policy = task.meta().extras.as_ref().and_then(|extras| extras.retry);
        match policy {
            // `last_attempt` stays: it is still the reason for the retry.
            Some(policy) => {
                let delay = open.retry_in.max(policy.delay(1)).max(MIN_BREAKER_DELAY);
                self.schedule_retry(task, delay);
            }
            None => self.fail(task, TaskError::breaker_open(open.retry_in), Duration::ZERO),
        }
    }

    fn kind_number(&mut self, kind: &'static str) -> usize {
        // Equal literals mostly share one address, so most look-ups compare no bytes.
        let known = self.kind_numbers.iter().find(|(name, _)| std::ptr::eq(*name, kind));
        if let Some((_, number)) = known {
            return *number;
        }
        let number = self.core().kinds.number(kind);
        self.kind_numbers.push((kind, number));
        number
    }

    /// Settles the finished task. Returns false if its run was abandoned meanwhile: then this worker exits.
    pub(crate) fn settle(&mut self, result: Result<TaskResult<T>, Panic>) -> bool {
        let Some(task) = self.current.take() else { return true };
        if let Some((_, timer)) = self.timeout {
            self.core().clock().cancel_timer(timer);
        }
        if !self.worker.finish_run(self.run, &task) {
            self.discard_late_result(task, result);
            return false;
        }
        self.tasks_since_pop += 1;
        self.untimed_tasks += 1;
        self.untimed_kind = self.kind;
        let tiny = self.batch >= 2 * TASKS_PER_CLOCK_READ as usize && self.timeout.is_none() && !self.times_each_task;
        if !tiny || self.untimed_tasks == TASKS_PER_CLOCK_READ {
            self.read_clock();
        }
        let result = self.classify(&task, result);
        if self.core().config.breaker.is_some() {
            self.worker.take_permit().into_iter().for_each(|permit| report_to_breaker(permit, &result));
        }
        match result {
            Ok(value) => self.complete(task, value),
            Err(error) => self.retry_or_fail(task, error, Duration::from_nanos(self.duration)),
        }
        true
    }

    /// Reads the clock and records the durations of tasks that have ended since the last reading.
    fn read_clock(&mut self) {
        if self.untimed_tasks == 0 {
            return;
        }
        let now = self.worker.core.clock().now();
        let elapsed = now.saturating_sub(self.clock_read_at);
        let typical = BATCH_TIME_NS / self.batch as u64;
        self.worker.counters.0.record(self.untimed_kind, elapsed, self.untimed_tasks.into(), typical);
        self.duration = elapsed / u64::from(self.untimed_tasks);
        self.clock_read_at = now;
        self.untimed_tasks = 0;
    }

    fn discard_late_result(&self, task: Task<T, W>, result: Result<TaskResult<T>, Panic>) {
        self.core().late_discarded.fetch_add(1, Relaxed);
        let task_ref = task.task_ref();
        tracing::warn!(worker = self.worker.id, task = %task_ref, "discarded the late result of an abandoned task");
        panics::discard((task, result));
    }

    /// Classifies a result: a panic becomes an error, and an error after the timeout becomes a timeout, unless it is
    /// permanent: then another attempt would fail too.
    fn classify(&self, task: &Task<T, W>, result: Result<TaskResult<T>, Panic>) -> TaskResult<T> {
        let error = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(panic) => panic.into(),
        };
        if let Cause::Panic { message, backtrace } = error.cause() {
            self.worker.counters.0.panicked.add(1);
            tracing::error!(worker = self.worker.id, task = %task.task_ref(), message, %backtrace, "task panicked");
            return Err(error);
        }
        let is_final = error.class() == ErrorClass::Permanent && !matches!(error.cause(), Cause::Cancelled);
        if self.worker.has_expired(self.run) && !is_final {
            let timed_out = TaskError::timed_out(self.timeout().unwrap_or_default()).with_details_of(&error);
            panics::discard(error);
            return Err(timed_out);
        }
        Err(error)
    }

    fn complete(&mut self, task: Task<T, W>, value: T) {
        // Counted before it is delivered, so that the reader of the result finds it in the statistics.
        self.worker.counters.0.completed.add(1);
        if matches!(self.core().outcomes, Outcomes::Discard) {
            return panics::discard((task, value));
        }
        let (task_ref, attempts) = (task.task_ref(), task.failed_attempts() + 1);
        panics::discard(task);
        let duration = Duration::from_nanos(self.duration);
        self.core().deliver(Outcome { task: task_ref, attempts, duration, result: Ok(value) });
    }

    fn retry_or_fail(&mut self, mut task: Task<T, W>, error: TaskError, duration: Duration) {
        let Some(extras) = &mut task.meta_mut().extras else { return self.fail(task, error, duration) };
        extras.failed += 1;
        // A failure that names no step keeps the earlier one: the steps before it are still done.
        extras.failed_step = error.shared_step().or(extras.failed_step.take());
        match extras.retry.and_then(|policy| policy.next_delay(extras.failed, &error)) {
            Some(delay) => {
                self.worker.counters.0.retried.add(1);
                tracing::debug!(task = %task.task_ref(), ?delay, %error, "task will be retried");
                task.meta_mut().extras().last_attempt = Some((error, duration));
                self.schedule_retry(task, delay);
            }
            None => self.fail(task, error, duration),
        }
    }

    /// Schedules the next attempt, unless the pool has been cancelled meanwhile.
    fn schedule_retry(&mut self, task: Task<T, W>, delay: Duration) {
        let core = Arc::clone(self.core());
        if let Err(task) = core.add_delayed(task, delay) {
            core.mark_never_started(task);
        }
    }

    fn fail(&mut self, task: Task<T, W>, error: TaskError, duration: Duration) {
        self.worker.counters.0.failed.add(1);
        self.core().fail(task, error, duration);
    }
}

/// Reports the result to the breaker: failures of a called service count, permanent errors of the task do not.
fn report_to_breaker<T>(permit: Permit, result: &TaskResult<T>) {
    match result {
        // A cancellation does not concern the service.
        Err(error) if matches!(error.cause(), Cause::Cancelled) => permit.withdraw(),
        Err(error) if error.class() != ErrorClass::Permanent => permit.failure(),
        Err(error) if matches!(error.cause(), Cause::Panic { .. }) => permit.failure(),
        _ => permit.success(),
    }
}

impl<T: Send + 'static, W: Worker> Drop for Executor<T, W> {
    /// Removes the worker from the pool however it exits, also when a runtime drops it during a task.
    fn drop(&mut self) {
        if let Some((_, timer)) = self.timeout {
            self.core().clock().cancel_timer(timer);
        }
        if let Some(task) = self.current.take() {
            if self.worker.current_run().is_some() {
                self.core().on_abort(&self.worker);
                panics::discard(task);
            } else if self.worker.is_abandoned() {
                panics::discard(task);
            } else {
                self.core().mark_never_started(task);
            }
        }
        Arc::clone(self.core()).on_exit(&self.worker, self.search);
    }
}
