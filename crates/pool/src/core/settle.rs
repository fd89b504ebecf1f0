//! What becomes of a task that did not simply succeed: put off, failed, never started.

use super::{Core, Delayed, State};
use crate::{
    error::{Cause, TaskError},
    panics,
    report::Failure,
    results::Outcome,
    sync::Arc,
    task::{Task, TaskRef},
    worker::Worker,
};
use std::time::Duration;

impl<T: Send + 'static, W: Worker> Core<T, W> {
    /// Puts a failed task off. It keeps its place in the capacity, so that a pool whose tasks all fail fills
    /// up and makes submitters wait, instead of collecting them without end.
    pub(crate) fn delay(self: &Arc<Self>, job: Task<T, W>, delay: Duration) -> Result<(), Task<T, W>> {
        let id = job.meta().id;
        let mut state = self.lock();
        if state.cancelled {
            return Err(job);
        }
        // Under the lock, which the alarm needs first: it cannot come before the task is there.
        let core = Arc::downgrade(self);
        let timer = self.clock().after(delay, move || {
            if let Some(core) = core.upgrade() {
                core.due(id);
            }
        });
        state.delayed.insert(id, Delayed { job, timer });
        Ok(())
    }

    pub(super) fn due(&self, id: u64) {
        let mut state = self.lock();
        let Some(Delayed { job, .. }) = state.delayed.remove(&id) else { return };
        state.queue.push(job.meta().rank, job);
        let worker = self.call_worker(&mut state);
        self.hint(&state);
        drop(state);
        worker.into_iter().for_each(panics::wake);
    }

    /// Records that a task failed for good, and delivers that.
    pub(crate) fn fail(&self, job: Task<T, W>, error: TaskError) {
        let ran = !matches!(error.cause(), Cause::BreakerOpen);
        let attempts = job.failed().max(u32::from(ran));
        let failure = Failure { task: job.name(), attempts, error: Arc::new(error) };
        tracing::debug!(task = %failure.task, attempts = failure.attempts, error = %failure.error, "task failed");
        // What the closure holds is gone before anybody hears of the end.
        panics::discard(job);
        self.keep_failure(&mut self.lock(), &failure);
        self.deliver(failure.task.clone(), Err(failure));
    }

    pub(super) fn keep_failure(&self, state: &mut State<T, W>, failure: &Failure) {
        if state.failures.len() < self.config.keep_failures {
            state.failures.push(failure.clone());
        }
    }

    pub(crate) fn deliver(&self, task: TaskRef, result: Result<T, Failure>) {
        match &self.outlet {
            Some(outlet) => outlet.push(task.id.0, Some(Outcome { task, result })),
            None => panics::discard(result),
        }
    }

    /// A task that will not be started any more. If it was, earlier, it has failed as it did then.
    pub(crate) fn skip(&self, mut job: Task<T, W>) {
        let tried = job.failed() > 0;
        let error = job.meta_mut().extras.as_mut().and_then(|extras| extras.last_error.take());
        if let Some(error) = error.filter(|_| tried) {
            self.lock().failed_unseen += 1;
            return self.fail(job, error);
        }
        self.lock().never_started.push(job.name());
        self.pass_over(job.meta().id);
        panics::discard(job);
    }
}
