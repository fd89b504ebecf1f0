//! The waits of a pool's callers: for room, for an idle pool, and for its end. Each is a future, which async callers
//! await and threads block on.

use crate::{
    cancel::{CancelToken, Cancelled},
    clock::{Clock, Deadline},
    core::Core,
    panics,
    pool::Pool,
    report::Report,
    task::{SubmitError, SubmitErrorKind, Submitted, Task},
    worker::Worker,
};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// What ends a wait early: a timeout, a token, both or neither.
#[derive(Default)]
pub(crate) struct Limit {
    pub(crate) timeout: Option<Duration>,
    /// End of the timeout, once the caller waits.
    deadline: Option<Deadline>,
    cancelled: Option<Cancelled>,
}

impl Limit {
    pub(crate) fn new(timeout: Option<Duration>, token: Option<&CancelToken>) -> Self {
        Self { timeout, deadline: None, cancelled: token.map(CancelToken::cancelled) }
    }

    /// Whether the token is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.as_ref().is_some_and(Cancelled::is_cancelled)
    }

    /// Returns why a wait is over, as the error of a submitter. If pending, `cx` is woken when it is.
    fn poll(&mut self, clock: &Clock, cx: &mut Context<'_>) -> Poll<SubmitErrorKind> {
        if self.cancelled.as_mut().is_some_and(|cancelled| Pin::new(cancelled).poll(cx).is_ready()) {
            return Poll::Ready(SubmitErrorKind::Cancelled);
        }
        let Some(limit) = self.timeout else { return Poll::Pending };
        let deadline = self.deadline.get_or_insert_with(|| Deadline::new(clock, limit));
        deadline.poll(cx).map(|()| SubmitErrorKind::TimedOut)
    }
}

/// Submits a task, or waits for room with a ticket. If it is dropped before it is ready, the task was not submitted.
pub(crate) struct SubmitFuture<'a, T: Send + 'static, W: Worker> {
    core: &'a Core<T, W>,
    task: Option<Task<T, W>>,
    ticket: Option<u64>,
    limit: Limit,
}

impl<'a, T: Send + 'static, W: Worker> SubmitFuture<'a, T, W> {
    pub(crate) fn new(core: &'a Core<T, W>, task: Task<T, W>, limit: Limit) -> Self {
        Self { core, task: Some(task), ticket: None, limit }
    }
}

// No field is pinned.
impl<T: Send + 'static, W: Worker> Unpin for SubmitFuture<'_, T, W> {}

impl<T: Send + 'static, W: Worker> Future for SubmitFuture<'_, T, W> {
    type Output = Submitted<T, W>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(worker_id) = panics::current_worker(this.core.address()) {
            let task = this.task.take().expect("polled after it was ready");
            return Poll::Ready(this.core.submit_from_worker(worker_id, task));
        }
        // A cancelled token rejects the task even if there is room.
        if !this.limit.is_cancelled() {
            let polled = this.core.poll_submit(&mut this.task, &mut this.ticket, || cx.waker().clone());
            if polled.is_ready() {
                return polled;
            }
            this.core.check_reader();
        }
        this.limit.poll(this.core.clock(), cx).map(|why| {
            this.ticket.take().into_iter().for_each(|ticket| this.core.cancel_ticket(ticket));
            Err(SubmitError::new(why, this.task.take().expect("a waiting submitter still has its task")))
        })
    }
}

impl<T: Send + 'static, W: Worker> Drop for SubmitFuture<'_, T, W> {
    fn drop(&mut self) {
        self.ticket.take().into_iter().for_each(|ticket| self.core.cancel_ticket(ticket));
    }
}

/// A caller that waits for an idle pool. Its waker is unregistered on drop.
struct IdleWaiter<'a, T: Send + 'static, W: Worker> {
    core: &'a Core<T, W>,
    ticket: Option<u64>,
}

impl<T: Send + 'static, W: Worker> IdleWaiter<'_, T, W> {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.core.poll_idle(&mut self.ticket, waker)
    }
}

impl<T: Send + 'static, W: Worker> Drop for IdleWaiter<'_, T, W> {
    fn drop(&mut self) {
        self.ticket.take().into_iter().for_each(|ticket| self.core.cancel_idle_wait(ticket));
    }
}

impl<T: Send + 'static, W: Worker> Pool<T, W> {
    /// Waits until at one moment nothing is queued, delayed, running or being delivered. Returns false if the limit was
    /// reached before.
    pub(crate) async fn until_idle(&self, limit: Limit) -> bool {
        let mut waiter = IdleWaiter { core: self.core(), ticket: None };
        !self.is_called_from_own_task() && self.wait(limit, |waker| waiter.poll(waker)).await
    }

    /// Closes the pool, waits for its end and reports.
    pub(crate) async fn end(&self) -> Report {
        self.close();
        if !self.is_called_from_own_task() {
            self.until_ended(Limit::default()).await;
        }
        self.core().report()
    }

    /// Closes the pool, waits for its end, cancels and abandons what does not end before the deadline, and reports.
    pub(crate) async fn end_within(&self, deadline: Duration) -> Report {
        self.close();
        if self.is_called_from_own_task() {
            self.cancel();
            return self.core().report();
        }
        // Tasks that check their context stop within this time.
        let stop = (deadline / 10).min(Duration::from_secs(1));
        if !self.until_ended(Limit::new(Some(deadline - stop), None)).await {
            self.cancel();
            if !self.until_ended(Limit::new(Some(stop), None)).await {
                // A worker between two tasks exits or, if it saw the cancel too late, starts one more task and is
                // abandoned in the next iteration. Both take microseconds, unless a drop or the callback blocks.
                let mut attempt = 1_u32;
                while !self.core().abandon_running() {
                    W::pause(attempt).await;
                    attempt = attempt.saturating_add(1);
                }
            }
        }
        self.core().report()
    }

    /// Waits for the end of the pool. Returns false if the limit was reached before.
    async fn until_ended(&self, limit: Limit) -> bool {
        let ended = self.wait(limit, |waker| self.core().poll_ended(waker)).await;
        if ended {
            // All workers have left the pool: this waits for the system to end their threads.
            self.core().take_handles().into_iter().for_each(|(_, handle)| W::join(handle));
        }
        ended
    }

    async fn wait(&self, mut limit: Limit, mut poll: impl FnMut(&Waker) -> Poll<()>) -> bool {
        poll_fn(|cx| {
            if poll(cx.waker()).is_ready() {
                return Poll::Ready(true);
            }
            limit.poll(self.core().clock(), cx).map(|_| false)
        })
        .await
    }
}
