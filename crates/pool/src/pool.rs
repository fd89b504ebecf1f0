//! The handle that users hold.

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

/// A bounded worker pool.
///
/// Clones are handles of one pool. When the last handle is dropped the pool is closed: it finishes what it
/// has, and its workers end. Nothing waits for that, though; [`join`](Self::join) does, and says how it went.
///
/// Workers are [`Threads`] unless the type says `Tasks` (see [`AsyncPool`](crate::AsyncPool)): the same
/// semantics, awaited.
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
    /// Settings for a new pool.
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

    /// Gives the pool a task if there is room right now; otherwise hands it back as [`Refusal::Full`].
    pub fn try_submit(&self, task: Task<T, W>) -> Result<TaskId, SubmitError<T, W>> {
        self.core().try_submit(task)
    }

    /// Takes nothing new; what is queued, running, spawned and retried is finished. Returns at once, and
    /// releases submitters that wait.
    pub fn close(&self) {
        self.core().close();
    }

    /// Stops now: starts nothing more, and tells running tasks through their [`Context`] to stop. Returns at
    /// once, and releases submitters that wait.
    pub fn cancel(&self) {
        self.core().cancel();
    }

    /// Whether the pool has ended: closed or cancelled, and every worker gone.
    pub fn is_finished(&self) -> bool {
        self.core().has_ended()
    }

    /// The counters at this moment.
    pub fn stats(&self) -> PoolStats {
        self.core().stats()
    }

    /// Inside a task of this very pool one cannot wait for its end.
    pub(crate) fn is_called_from_own_task(&self) -> bool {
        let inside = panics::current_worker(self.core().address()).is_some();
        if inside {
            tracing::error!("a task waits for the end of its own pool, which cannot come; it does not wait");
        }
        inside
    }
}

/// How [`Pool::shutdown`] divides its time: most of it to finish, the rest to stop. A tenth, and at most a
/// second, is enough for tasks that look at their context.
pub(crate) fn split_deadline(deadline: Duration) -> (Duration, Duration) {
    let stop = (deadline / 10).min(Duration::from_secs(1));
    (deadline - stop, stop)
}

impl<T: Send + 'static> Pool<T> {
    /// Gives the pool a closure; waits while the queue is full. [`submit_task`](Self::submit_task) takes a
    /// [`Task`] with more to it.
    pub fn submit(
        &self,
        body: impl FnOnce(&Context<T>) -> TaskResult<T> + Send + 'static,
    ) -> Result<TaskId, SubmitError<T>> {
        self.submit_task(Task::new(body))
    }

    /// Gives the pool a task; waits while the queue is full. Waiting submitters are served in order, and
    /// released when the pool is closed or cancelled. Called inside one of the pool's own tasks it does not
    /// wait, but [spawns](Context::spawn_task). (On the task's own thread, that is, and not from a task of
    /// another pool inside of it.) A thread that also reads the pool's results can wait for itself here: see
    /// [`Results`](crate::Results).
    pub fn submit_task(&self, task: Task<T>) -> Result<TaskId, SubmitError<T>> {
        self.submit_until(task, None)
    }

    /// [`submit_task`](Self::submit_task), but waits no longer than this.
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
        // With a limit, nothing is waited for that never comes.
        let result_queue = core.result_queue.as_ref().filter(|_| limit.is_none());
        let _submitting = result_queue.and_then(|result_queue| result_queue.enter_submit());
        let parker = Parker::new();
        loop {
            if let Poll::Ready(done) = core.poll_submit(&mut task, &mut ticket, || parker.waker().clone()) {
                return done;
            }
            core.check_reader();
            if deadline.as_ref().is_some_and(|deadline| deadline.has_passed(parker.waker())) {
                ticket.into_iter().for_each(|ticket| core.cancel_ticket(ticket));
                let task = task.expect("a task that waits is still ours");
                return Err(SubmitError::new(SubmitErrorKind::TimedOut, task));
            }
            parker.park();
        }
    }

    /// Closes the pool, waits for its end and reports what became of every task. Can be called from any
    /// thread, as often as one likes. (Results that nobody reads keep the pool from its end: read or drop
    /// them.)
    pub fn join(&self) -> Report {
        self.close();
        if !self.is_called_from_own_task() {
            self.wait_for_end(None);
        }
        self.core().report()
    }

    /// Closes the pool and gives it time to finish; cancels what has not finished, and reports. Returns
    /// within the deadline: the last tenth of it (at most a second) is for cancelled tasks to stop in. What
    /// has not even stopped by then is left behind: it is [named](Report::unstopped), and its result, if it
    /// ever comes, is discarded. (What tasks hold is dropped meanwhile, by workers and by the caller; a drop
    /// that blocks is waited for.)
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
                // A worker that is between two tasks goes by itself, or, if it saw the cancel too late, starts
                // one more and is given up the next time round. Both are a matter of microseconds, unless
                // what it is dropping blocks.
                while !self.core().abandon_running() {
                    thread::yield_now();
                }
            }
        }
        self.core().report()
    }

    /// False: it has not ended in time.
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
        // They have ended all but formally: this waits for the system to be done with them.
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
