//! The context of a running task: cancellation, timeout, heartbeat, attempt, and spawning.

use crate::{
    breaker::Permit,
    cancel::{CancelToken, Cancelled},
    error::TaskResult,
    sync::Arc,
    task::{SubmitError, Task, TaskId},
    worker::{Threads, Worker},
    worker_state::WorkerState,
};
use std::{fmt, time::Duration};

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
    pub fn cancelled(&self) -> Cancelled {
        self.cancel_token().cancelled()
    }

    /// Returns the token of this run, for work that blocks or runs elsewhere. It is cancelled when the task should stop,
    /// and when the run has ended, so a [callback](CancelToken::on_cancel) is unregistered before the task returns.
    ///
    /// ```
    /// use gristmill_pool::{Pool, TaskError};
    /// use std::time::Duration;
    ///
    /// let pool = Pool::builder().workers(1).timeout(Duration::from_millis(5)).build()?;
    /// pool.submit(|context| match context.cancel_token().wait_timeout(Duration::from_secs(3_600)) {
    ///     true => Err(TaskError::cancelled()),
    ///     false => Ok(()),
    /// })?;
    /// println!("{}", pool.join().failures[0]); // task #0: timed out after 5ms
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_token(&self) -> CancelToken {
        self.worker.token(self.run)
    }

    /// Reports that the task makes progress. Only needed in pools with a
    /// [`stall_timeout`](crate::PoolBuilder::stall_timeout), by tasks that run longer than it.
    pub fn heartbeat(&self) {
        self.worker.heartbeat(self.run);
    }

    /// Withdraws this run from the pool's [breaker](crate::PoolBuilder::breaker): its result is no evidence about the
    /// service. For a task that ends before it has called the service.
    pub fn withdraw_from_breaker(&self) {
        if self.worker.current_run().is_some_and(|(run, _)| run == self.run) {
            self.worker.take_permit().into_iter().for_each(Permit::withdraw);
        }
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
