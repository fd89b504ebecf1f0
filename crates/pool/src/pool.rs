//! The handle of a pool: submit, close, cancel, join and shutdown.

use crate::{
    builder::PoolBuilder,
    clock::Deadline,
    context::Context,
    core::Core,
    error::TaskResult,
    panics,
    report::Report,
    stats::PoolStats,
    sync::{Arc, Parker, thread},
    task::{SubmitError, SubmitErrorKind, Task, TaskId},
    worker::{Threads, Worker},
};
use std::{fmt, task::Poll, time::Duration};

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

    /// Whether the caller is a task of this pool, which cannot wait for the pool's end. Logs an error if so.
    pub(crate) fn is_called_from_own_task(&self) -> bool {
        let inside = panics::current_worker(self.core().address()).is_some();
        if inside {
            tracing::error!("a task called join or shutdown on its own pool; the call returns without waiting");
        }
        inside
    }
}

/// Splits the deadline of [`Pool::shutdown`] into the time to finish and the time to stop. A tenth, at most one second,
/// is enough to stop for tasks that check their context.
pub(crate) fn split_deadline(deadline: Duration) -> (Duration, Duration) {
    let stop = (deadline / 10).min(Duration::from_secs(1));
    (deadline - stop, stop)
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
        self.submit_until(task, None)
    }

    /// Submits a task like [`submit_task`](Self::submit_task), but waits at most `limit`.
    pub fn submit_timeout(&self, task: Task<T>, limit: Duration) -> Result<TaskId, SubmitError<T>> {
        self.submit_until(task, Some(limit))
    }

    fn submit_until(&self, task: Task<T>, limit: Option<Duration>) -> Result<TaskId, SubmitError<T>> {
        let core = self.core();
        if let Some(worker_id) = panics::current_worker(core.address()) {
            return core.submit_from_worker(worker_id, task);
        }
        match core.try_submit(task) {
            Err(full) if full.kind == SubmitErrorKind::Full => self.wait_for_room(full.into_task(), limit),
            done => done,
        }
    }

    #[cold]
    fn wait_for_room(&self, mut task: Task<T>, limit: Option<Duration>) -> Result<TaskId, SubmitError<T>> {
        let core = self.core();
        if core.spin_for_room() {
            match core.try_submit(task) {
                Err(full) if full.kind == SubmitErrorKind::Full => task = full.into_task(),
                done => return done,
            }
        }
        let (mut task, mut ticket) = (Some(task), None);
        let deadline = limit.map(|limit| Deadline::new(core.clock(), limit));
        // With a limit no deadlock is possible.
        let results = core.outcomes.queue().filter(|_| limit.is_none());
        let _submitting = results.and_then(|results| results.enter_submit());
        let parker = Parker::new();
        loop {
            if let Poll::Ready(done) = core.poll_submit(&mut task, &mut ticket, || parker.waker().clone()) {
                return done;
            }
            core.check_reader();
            if deadline.as_ref().is_some_and(|deadline| deadline.has_passed(parker.waker())) {
                ticket.into_iter().for_each(|ticket| core.cancel_ticket(ticket));
                let task = task.expect("a waiting submitter still has its task");
                return Err(SubmitError::new(SubmitErrorKind::TimedOut, task));
            }
            parker.park();
        }
    }

    /// Closes the pool, waits for its end and reports the outcome of every task. Can be called from any thread, any
    /// number of times. Unread [`Results`](crate::Results) can keep the pool from ending: read or drop them.
    pub fn join(&self) -> Report {
        self.close();
        if !self.is_called_from_own_task() {
            self.wait_for_end(None);
        }
        self.core().report()
    }

    /// Closes the pool, waits for it to finish, cancels unfinished tasks and reports. Returns within `deadline`,
    /// of which the last tenth (at most one second) is for cancelled tasks to stop. A task that still runs then is
    /// listed in [`Report::abandoned`], and its result is discarded if it ever returns. Workers and the caller drop
    /// the values that tasks own meanwhile, and a drop that blocks delays the return.
    pub fn shutdown(&self, deadline: Duration) -> Report {
        self.close();
        if self.is_called_from_own_task() {
            self.cancel();
            return self.core().report();
        }
        let (finish, stop) = split_deadline(deadline);
        if !self.wait_for_end(Some(finish)) {
            self.cancel();
            if !self.wait_for_end(Some(stop)) {
                // A worker between two tasks exits or, if it saw the cancel too late, starts one more task and is
                // abandoned in the next iteration. Both take microseconds, unless a drop blocks.
                while !self.core().abandon_running() {
                    thread::yield_now();
                }
            }
        }
        self.core().report()
    }

    /// Waits at most `limit` for the end of the pool. Returns whether the pool has ended.
    fn wait_for_end(&self, limit: Option<Duration>) -> bool {
        let core = self.core();
        let deadline = limit.map(|limit| Deadline::new(core.clock(), limit));
        let parker = Parker::new();
        while core.poll_ended(parker.waker()).is_pending() {
            if deadline.as_ref().is_some_and(|deadline| deadline.has_passed(parker.waker())) {
                return false;
            }
            parker.park();
        }
        // All workers have left the pool: this waits for the system to end their threads.
        for (_, handle) in core.take_handles() {
            let _ = handle.join();
        }
        true
    }
}

impl<T: Send + 'static, W: Worker> fmt::Debug for Pool<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.core().config.name).field("stats", &self.stats()).finish()
    }
}
