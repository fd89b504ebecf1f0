//! Settles tasks that did not succeed: schedules retries, records failures and tasks never started.

use super::{Core, Delayed, State};
use crate::{
    error::{Cause, TaskError},
    outcome::Outcome,
    panics,
    report::Failure,
    sync::Arc,
    task::Task,
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
        self.update_hints(&state);
        self.unlock_and_wake(state);
    }

    /// Records and delivers the final failure of a task, whose last attempt took `duration`.
    pub(crate) fn fail(&self, task: Task<T, W>, error: TaskError, duration: Duration) {
        let ran = !matches!(error.cause(), Cause::BreakerOpen);
        let attempts = task.failed_attempts().max(u32::from(ran));
        let failure = Failure { task: task.task_ref(), attempts, error: Arc::new(error) };
        tracing::debug!(task = %failure.task, attempts = failure.attempts, error = %failure.error, "task failed");
        // The values that the closure owns are dropped before the failure is delivered.
        panics::discard(task);
        self.keep_failure(&mut self.lock(), &failure);
        self.deliver(Outcome::failed(failure, duration));
    }

    pub(super) fn keep_failure(&self, state: &mut State<T, W>, failure: &Failure) {
        if state.failures.len() < self.config.keep_failures {
            state.failures.push(failure.clone());
        }
    }

    pub(crate) fn deliver(&self, outcome: Outcome<T>) {
        self.outcomes.deliver(self.address(), outcome);
    }

    /// Settles a task that will not be started again: never started, or failed with its last attempt's error.
    pub(crate) fn mark_never_started(&self, mut task: Task<T, W>) {
        let last_attempt = task.meta_mut().extras.as_mut().and_then(|extras| extras.last_attempt.take());
        if let Some((error, duration)) = last_attempt {
            self.lock().failed_outside_workers += 1;
            return self.fail(task, error, duration);
        }
        self.lock().never_started.push(task.task_ref());
        self.skip_sequence(task.meta().id);
        panics::discard(task);
    }
}
