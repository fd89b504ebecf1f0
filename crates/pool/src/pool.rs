//! The handle of a pool: submit, close, cancel, join and shutdown.

use crate::{
    builder::PoolBuilder,
    cancel::CancelToken,
    context::Context,
    core::Core,
    error::TaskResult,
    panics,
    report::Report,
    stats::PoolStats,
    sync::{Arc, block_on},
    task::{SubmitError, SubmitErrorKind, Task, TaskId},
    waiting::{Limit, SubmitFuture},
    worker::{Threads, Worker},
};
use std::{fmt, time::Duration};

/// A bounded worker pool. Clones are handles of the same pool.
///
/// Dropping the last handle closes the pool: it finishes the tasks it has, and its workers exit. The drop does not wait
/// for that; [`join`](Self::join) does, and reports the outcome.
///
/// Workers are [`Threads`], or tokio tasks in an `AsyncPool` (feature `tokio`), whose methods are `async`.
pub struct Pool<T: Send + 'static = (), W: Worker = Threads>(Arc<Handle<T, W>>);

struct Handle<T: Send + 'static, W: Worker> {
    core: Arc<Core<T, W>>,
}

impl<T: Send + 'static, W: Worker> Drop for Handle<T, W> {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl<T: Send + 'static, W: Worker> Clone for Pool<T, W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Pool {
    /// Returns a builder with the default settings.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::new()
    }
}

impl<T: Send + 'static, W: Worker> Pool<T, W> {
    pub(crate) fn new(core: Arc<Core<T, W>>) -> Self {
        Self(Arc::new(Handle { core }))
    }

    pub(crate) fn core(&self) -> &Arc<Core<T, W>> {
        &self.0.core
    }

    /// Submits a task if the queue has room. Otherwise returns it with [`SubmitErrorKind::Full`].
    pub fn try_submit(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        self.core().try_submit(task)
    }

    /// Rejects new tasks and finishes those that are queued, running, spawned or waiting for a retry. Returns at once,
    /// and releases waiting submitters.
    pub fn close(&self) {
        self.core().close();
    }

    /// Starts no more tasks and cancels running ones. Returns at once, and releases waiting submitters.
    pub fn cancel(&self) {
        self.core().cancel();
    }

    /// Whether the pool has ended: it was closed or cancelled, and every worker has exited.
    pub fn is_finished(&self) -> bool {
        self.core().has_ended()
    }

    /// Returns a snapshot of the pool's counters.
    pub fn stats(&self) -> PoolStats {
        self.core().stats()
    }

    /// Submits a task without waiting. On a worker of the pool it is spawned.
    pub(crate) fn submit_now(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        match panics::current_worker(self.core().address()) {
            Some(worker_id) => self.core().submit_from_worker(worker_id, task),
            None => self.core().try_submit(task),
        }
    }

    /// Whether the caller is a task or the callback of this pool, which cannot wait for the pool. Logs an error if so.
    pub(crate) fn is_called_from_own_task(&self) -> bool {
        let inside = panics::current_worker(self.core().address()).is_some();
        if inside {
            tracing::error!(
                "a task or callback waited for its own pool in join, shutdown or wait_idle; the call returns without waiting"
            );
        }
        inside
    }
}

impl<T: Send + 'static> Pool<T> {
    /// Submits a closure. Waits while the queue is full. [`submit_task`](Self::submit_task) takes a [`Task`] with a
    /// priority, a timeout or a retry policy.
    pub fn submit(
        &self,
        body: impl FnOnce(&Context<T>) -> TaskResult<T> + Send + 'static,
    ) -> Result<TaskId, SubmitError<T>> {
        self.submit_task(Task::new(body))
    }

    /// Submits a task. Waits while the queue is full: submitters are served in order, and released when the pool is
    /// closed or cancelled.
    ///
    /// Called on the thread of one of the pool's own tasks it does not wait but [spawns](Context::spawn_task). A task
    /// of another pool that runs there waits as usual. A thread that also reads the pool's results can deadlock here:
    /// see [`Results`](crate::Results).
    pub fn submit_task(&self, task: Task<T>) -> Result<TaskId, SubmitError<T>> {
        self.submit_limited(task, Limit::default)
    }

    /// Submits a task like [`submit_task`](Self::submit_task), but waits at most `limit`.
    pub fn submit_timeout(&self, task: Task<T>, limit: Duration) -> Result<TaskId, SubmitError<T>> {
        self.submit_limited(task, || Limit::new(Some(limit), None))
    }

    /// Submits a task like [`submit_task`](Self::submit_task), but waits until `token` is cancelled. Then the task is
    /// rejected with [`SubmitErrorKind::Cancelled`], also if there is room.
    ///
    /// ```
    /// use gristmill_pool::{CancelToken, Pool, Task, error::SubmitErrorKind};
    ///
    /// let pool = Pool::builder().workers(1).build()?;
    /// let stop = CancelToken::new();
    /// pool.submit_until(Task::new(|_| Ok(())), &stop)?;
    /// stop.cancel();
    /// let rejected = pool.submit_until(Task::new(|_| Ok(())), &stop).unwrap_err();
    /// assert_eq!(rejected.kind, SubmitErrorKind::Cancelled);
    /// assert_eq!(pool.join().finished, 1); // the pool itself is not cancelled
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_until(&self, task: Task<T>, token: &CancelToken) -> Result<TaskId, SubmitError<T>> {
        if token.is_cancelled() {
            return Err(SubmitError::new(SubmitErrorKind::Cancelled, task));
        }
        self.submit_limited(task, || Limit::new(None, Some(token)))
    }

    fn submit_limited(&self, task: Task<T>, limit: impl FnOnce() -> Limit) -> Result<TaskId, SubmitError<T>> {
        match self.submit_now(task) {
            Err(full) if full.kind == SubmitErrorKind::Full => self.wait_for_room(full.into_task(), limit()),
            done => done,
        }
    }

    #[cold]
    fn wait_for_room(&self, mut task: Task<T>, limit: Limit) -> Result<TaskId, SubmitError<T>> {
        let core = self.core();
        if core.spin_for_room() && !limit.is_cancelled() {
            match core.try_submit(task) {
                Err(full) if full.kind == SubmitErrorKind::Full => task = full.into_task(),
                done => return done,
            }
        }
        // With a timeout no deadlock is possible.
        let results = core.outcomes.queue().filter(|_| limit.timeout.is_none());
        let _submitting = results.and_then(|results| results.enter_submit());
        block_on(SubmitFuture::new(core, task, limit))
    }

    /// Waits until at one moment the pool has nothing to do: no task is queued, waits for a retry or runs, and the
    /// callbacks for all tasks before have returned. The pool stays open, so further tasks can follow at once. Spawned
    /// tasks count; tasks that were abandoned as stalled do not. Any number of threads can wait.
    ///
    /// Unread [`Results`](crate::Results) can keep the pool from becoming idle. Called inside a task or the callback of
    /// the pool, this logs an error and returns at once.
    ///
    /// ```
    /// use gristmill_pool::Pool;
    ///
    /// let pool = Pool::builder().workers(2).build()?;
    /// for round in 1..=3 {
    ///     for _ in 0..10 {
    ///         pool.submit(|_| Ok(()))?;
    ///     }
    ///     pool.wait_idle();
    ///     assert_eq!(pool.stats().completed, 10 * round);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_idle(&self) {
        block_on(self.until_idle(Limit::default()));
    }

    /// Waits like [`wait_idle`](Self::wait_idle), but at most `limit`, and only until `token` is cancelled. Returns
    /// whether the pool was idle.
    pub fn wait_idle_until(&self, token: &CancelToken, limit: Duration) -> bool {
        block_on(self.until_idle(Limit::new(Some(limit), Some(token))))
    }

    /// Closes the pool, waits for its end and reports the outcome of every task. Can be called from any thread, any
    /// number of times. Unread [`Results`](crate::Results) can keep the pool from ending: read or drop them.
    pub fn join(&self) -> Report {
        block_on(self.end())
    }

    /// Closes the pool, waits for it to finish, cancels unfinished tasks and reports. Returns within `deadline`,
    /// of which the last tenth (at most one second) is for cancelled tasks to stop. A task that still runs then is
    /// listed in [`Report::abandoned`], and its result is discarded if it ever returns. Workers and the caller drop
    /// the values that tasks own meanwhile, and a drop that blocks delays the return, as a callback that blocks does.
    pub fn shutdown(&self, deadline: Duration) -> Report {
        block_on(self.end_within(deadline))
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for Pool<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.core().config.name).field("stats", &self.stats()).finish()
    }
}
