//! The context of a running task: cancellation, timeout, heartbeat, attempt, and spawning.

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

/// The context of a running task.
///
/// Long work polls [`is_cancelled`](Self::is_cancelled), which costs about as much as reading a variable, or awaits
/// [`cancelled`](Self::cancelled). Both report when the task should stop: the pool was cancelled, the task exceeded its
/// timeout, or its worker was replaced as stalled. A context that has outlived its task is cancelled too.
pub struct Context<T: Send + 'static = (), W: Worker = Threads> {
    pub(crate) worker: Arc<WorkerState<T, W>>,
    pub(crate) run: u64,
    pub(crate) task_id: u64,
    /// Set for few tasks. Kept apart because an async task gets its context by value, so it should be small.
    pub(crate) extras: Option<Arc<ContextExtras>>,
}

pub(crate) struct ContextExtras {
    /// Number of attempts that have failed so far.
    pub(crate) failed: u32,
    pub(crate) failed_step: Option<Arc<str>>,
    /// End of the timeout, in nanoseconds of the pool's clock.
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

    /// Waits until the task should stop. Works on any async runtime.
    pub fn cancelled(&self) -> Cancelled<'_, T, W> {
        Cancelled { context: self, key: None }
    }

    /// Reports that the task makes progress. Only needed in pools with a
    /// [`stall_timeout`](crate::PoolBuilder::stall_timeout), by tasks that run longer than it.
    pub fn heartbeat(&self) {
        self.worker.heartbeat(self.run);
    }

    /// Time left of the task's timeout, if it has one.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.extras.as_ref()?.deadline?.saturating_sub(self.worker.core.clock().now());
        Some(Duration::from_nanos(left))
    }

    /// Number of the worker that runs the task. The replacement of a stalled worker has a new number.
    pub fn worker(&self) -> usize {
        self.worker.id
    }

    /// Id of the task in its pool.
    pub fn task_id(&self) -> TaskId {
        TaskId(self.task_id)
    }

    /// Number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.extras.as_ref().map_or(1, |extras| extras.failed + 1)
    }

    /// The last step that an earlier attempt named when it failed. After a [partial failure](crate::TaskError::partial)
    /// the task resumes there.
    pub fn failed_step(&self) -> Option<&str> {
        self.extras.as_ref()?.failed_step.as_deref()
    }

    /// Adds a task to the pool from inside this one. Never waits, and the queue's capacity does not apply. Spawned
    /// tasks run newest first and before the queue, so a tree of tasks is walked depth first and needs memory for its
    /// depth, not for its size. Called from another thread, or after the task has ended, this puts the task into
    /// the queue.
    ///
    /// Works while a closed pool drains. Rejected once the pool is cancelled or this task is abandoned as stalled.
    pub fn spawn_task(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        self.worker.core.spawn(&self.worker, task)
    }
}

impl<T: Send + 'static> Context<T> {
    /// Spawns a closure: [`spawn_task`](Self::spawn_task) without settings.
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

/// Future returned by [`Context::cancelled`].
#[must_use = "a future does nothing until it is awaited"]
pub struct Cancelled<'a, T: Send + 'static, W: Worker> {
    context: &'a Context<T, W>,
    /// Key of its waker, once it has been polled.
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
