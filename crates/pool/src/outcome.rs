//! The outcome of a task, and the one place that decides where outcomes go.

use crate::{panics, report::Failure, results::ResultQueue, sync::Arc, task::TaskRef};
use std::time::Duration;

/// A settled task and its result.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The task, with its id, kind and label.
    pub task: TaskRef,
    /// Number of attempts, 0 if an open breaker rejected the task.
    pub attempts: u32,
    /// Run time of the last attempt, by the pool's clock. Zero if the task did not run. With [`Results`](crate::Results),
    /// tasks that take under a microsecond or so have the mean of the last eight; with a callback each is measured.
    pub duration: Duration,
    /// The value that the task returned, or its final failure.
    pub result: Result<T, Failure>,
}

impl<T> Outcome<T> {
    pub(crate) fn failed(failure: Failure, duration: Duration) -> Self {
        Self { task: failure.task.clone(), attempts: failure.attempts, duration, result: Err(failure) }
    }
}

/// Where the outcomes of a pool go.
pub(crate) enum Outcomes<T> {
    Discard,
    Queue(Arc<ResultQueue<T>>),
    Callback(Box<dyn Fn(Outcome<T>) + Send + Sync>),
}

impl<T> Outcomes<T> {
    pub(crate) fn queue(&self) -> Option<&Arc<ResultQueue<T>>> {
        if let Self::Queue(queue) = self { Some(queue) } else { None }
    }

    /// Delivers an outcome of the pool at address `pool`. Runs the callback as a part of that pool: the callback can
    /// submit without waiting, and does not wait for the end of its own pool.
    pub(crate) fn deliver(&self, pool: usize, outcome: Outcome<T>) {
        match self {
            Self::Discard => panics::discard(outcome),
            Self::Queue(queue) => queue.push(outcome.task.id.0, Some(outcome)),
            Self::Callback(callback) => {
                let _inside = panics::enter_worker(pool, panics::IN_CALLBACK);
                panics::call(|| callback(outcome));
            }
        }
    }
}
