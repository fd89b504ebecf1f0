//! What a running task knows: whether to stop, how long it has, who runs it; and how it spawns more.

use crate::{
    error::TaskResult,
    sync::Arc,
    task::{SubmitError, Task, TaskId},
    worker::{Threads, Worker},
    worker_state::WorkerState,
};
use std::{
    fmt,
    pin::Pin,
    task::{self, Poll},
    time::Duration,
};

/// A task's view of its pool.
///
/// Long work polls [`is_cancelled`](Self::is_cancelled), which costs about as much as reading a variable, or
/// awaits [`cancelled`](Self::cancelled). Both answer for the pool's cancellation, the task's timeout and a
/// stalled worker alike: in each case, stop. (For a context that has outlived its task, too.)
pub struct Context<T: Send + 'static = (), W: Worker = Threads> {
    pub(crate) worker: Arc<WorkerState<T, W>>,
    pub(crate) run: u64,
    pub(crate) task_id: u64,
    /// What few tasks have. An async task is given its context by value, so it is kept small.
    pub(crate) extras: Option<Arc<ContextExtras>>,
}

pub(crate) struct ContextExtras {
    /// Attempts that have failed so far, and where.
    pub(crate) failed: u32,
    pub(crate) failed_step: Option<Arc<str>>,
    /// On the pool's clock.
    pub(crate) deadline: Option<u64>,
}

impl<T: Send + 'static, W: Worker> Context<T, W> {
    pub(crate) fn new(worker: Arc<WorkerState<T, W>>) -> Self {
        Self { worker, run: 0, task_id: 0, extras: None }
    }

    /// Whether the task should stop.
    pub fn is_cancelled(&self) -> bool {
        self.worker.should_stop(self.run)
    }

    /// Ends when the task should stop. Needs no particular runtime.
    pub fn cancelled(&self) -> Cancelled<'_, T, W> {
        Cancelled { context: self, key: None }
    }

    /// Says that the task is alive. Needed only in pools with a
    /// [`stall watch`](crate::Builder::stall_after), by tasks that run longer than its limit.
    pub fn heartbeat(&self) {
        self.worker.heartbeat(self.run);
    }

    /// How much of the task's timeout is left, if it has one.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.extras.as_ref()?.deadline?.saturating_sub(self.worker.core.clock().now());
        Some(Duration::from_nanos(left))
    }

    /// The number of the worker that runs the task. A stalled worker's replacement has a new one.
    pub fn worker(&self) -> usize {
        self.worker.id
    }

    /// The task's own number.
    pub fn task_id(&self) -> TaskId {
        TaskId(self.task_id)
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.extras.as_ref().map_or(1, |extras| extras.failed + 1)
    }

    /// The step that an earlier attempt named when it failed, the last one to name any: after a
    /// [partial failure](crate::TaskError::partial), go on from there.
    pub fn failed_step(&self) -> Option<&str> {
        self.extras.as_ref()?.failed_step.as_deref()
    }

    /// Adds a task to the pool from inside this one. Never waits, and the queue's capacity does not apply:
    /// spawned tasks are run newest first, before what waits in the queue, so a tree of tasks is walked
    /// deep before wide and takes memory for its depth, not for its size. (From another thread, or after
    /// the task is over, they go to the end of the queue.)
    ///
    /// Works while a closed pool drains. Refused once the pool is cancelled or this task was replaced as
    /// stalled.
    pub fn spawn_task(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        self.worker.core.spawn(&self.worker, task)
    }
}

impl<T: Send + 'static> Context<T> {
    /// [`spawn_task`](Self::spawn_task) for a plain closure.
    pub fn spawn(
        &self,
        body: impl FnOnce(&Context<T>) -> TaskResult<T> + Send + 'static,
    ) -> Result<TaskId, SubmitError<T>> {
        self.spawn_task(Task::new(body))
    }
}

impl<T: Send + 'static, W: Worker> Clone for Context<T, W> {
    fn clone(&self) -> Self {
        Self { worker: Arc::clone(&self.worker), extras: self.extras.clone(), ..*self }
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for Context<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("task", &self.task_id())
            .field("worker", &self.worker())
            .field("attempt", &self.attempt())
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// Future of [`Context::cancelled`].
#[must_use = "a future does nothing until it is awaited"]
pub struct Cancelled<'a, T: Send + 'static, W: Worker> {
    context: &'a Context<T, W>,
    /// Where it listens, once it has been polled.
    key: Option<u64>,
}

impl<T: Send + 'static, W: Worker> Future for Cancelled<'_, T, W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        if self.context.is_cancelled() {
            return Poll::Ready(());
        }
        let worker = &self.context.worker;
        let key = *self.key.get_or_insert_with(|| worker.new_listener_key());
        worker.listen(key, cx.waker());
        if self.context.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<T: Send + 'static, W: Worker> Drop for Cancelled<'_, T, W> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.context.worker.unlisten(key);
        }
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for Cancelled<'_, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancelled").field(self.context).finish()
    }
}
