//! Settles tasks that did not succeed: schedules retries, records failures and tasks never started.

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
    /// Holds a failed task back for `delay`. It still counts against the queue's capacity, so a pool whose tasks all
    /// fail makes submitters wait instead of growing without bound. A cancelled pool returns the task.
    pub(crate) fn add_delayed(self: &Arc<Self>, task: Task<T, W>, delay: Duration) -> Result<(), Task<T, W>> {
        let id = task.meta().id;
        let mut state = self.lock();
        if state.cancelled {
            return Err(task);
        }
        // The callback takes this lock first, so it cannot run before the task is inserted.
        let core = Arc::downgrade(self);
        let timer = self.clock().call_after(delay, move || {
            if let Some(core) = core.upgrade() {
                core.on_retry_due(id);
            }
        });
        state.delayed.insert(id, Delayed { task, timer });
        Ok(())
    }

    pub(super) fn on_retry_due(&self, id: u64) {
        let mut state = self.lock();
        let Some(Delayed { task, .. }) = state.delayed.remove(&id) else { return };
        state.queue.push(task.meta().rank, task);
        let to_wake = self.wake_one(&mut state);
        self.update_hints(&state);
        drop(state);
        to_wake.into_iter().for_each(panics::wake);
    }

    /// Records and delivers the final failure of a task.
    pub(crate) fn fail(&self, task: Task<T, W>, error: TaskError) {
        let ran = !matches!(error.cause(), Cause::BreakerOpen);
        let attempts = task.failed_attempts().max(u32::from(ran));
        let failure = Failure { task: task.task_ref(), attempts, error: Arc::new(error) };
        tracing::debug!(task = %failure.task, attempts = failure.attempts, error = %failure.error, "task failed");
        // The values that the closure owns are dropped before the failure is delivered.
        panics::discard(task);
        self.keep_failure(&mut self.lock(), &failure);
        self.deliver(failure.task.clone(), Err(failure));
    }

    pub(super) fn keep_failure(&self, state: &mut State<T, W>, failure: &Failure) {
        if state.failures.len() < self.config.keep_failures {
            state.failures.push(failure.clone());
        }
    }

    pub(crate) fn deliver(&self, task: TaskRef, result: Result<T, Failure>) {
        match &self.results {
            Some(results) => results.push(task.id.0, Some(Outcome { task, result })),
            None => panics::discard(result),
        }
    }

    /// Settles a task that will not be started again: never started, or failed with its last attempt's error.
    pub(crate) fn mark_never_started(&self, mut task: Task<T, W>) {
        let tried = task.failed_attempts() > 0;
        let error = task.meta_mut().extras.as_mut().and_then(|extras| extras.last_error.take());
        if let Some(error) = error.filter(|_| tried) {
            self.lock().failed_outside_workers += 1;
            return self.fail(task, error);
        }
        self.lock().never_started.push(task.task_ref());
        self.skip_sequence(task.meta().id);
        panics::discard(task);
    }
}
