//! The pool that runs handlers: tokio tasks for those that await, threads for those that block.

use crate::{
    consumer::{Set, Work},
    delivery::Delivery,
    error::Error,
};
use gristmill_pool::{
    AsyncPool, Delivery as Order, Pool, Results, Stats, Task, TaskError, TaskResult, error::Refusal,
};
use gristmill_store::Store;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tracing::Instrument;

/// What became of a message that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ran {
    Done,
    /// It was done before, and is not done again.
    Seen,
    /// It was not started: its channel is lost, or its consumer stops.
    Skipped,
}

#[derive(Clone)]
pub(crate) enum Crew {
    Tasks(AsyncPool<Ran>),
    Threads(Pool<Ran>),
}

/// A message on its way to a worker.
pub(crate) enum Job {
    Task(Task<Ran, gristmill_pool::Tasks>),
    Thread(Task<Ran>),
}

/// Whether work is still to be started.
#[derive(Clone, Default)]
pub(crate) struct Leave(Arc<AtomicBool>);

impl Leave {
    pub(crate) fn revoke(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Ids of messages that were done.
pub(crate) struct Once {
    pub(crate) store: Store,
    pub(crate) scope: String,
    pub(crate) window: Duration,
}

impl Once {
    fn knows(&self, id: &str) -> Result<bool, TaskError> {
        let known = self.store.seen().known(&self.scope, &[id.to_owned()], self.window);
        known.map(|known| known.first() == Some(&true)).map_err(TaskError::transient)
    }

    fn note(&self, id: &str) -> Result<(), TaskError> {
        self.store.seen().record(&self.scope, vec![id.to_owned()]).map_err(TaskError::transient)
    }
}

impl Crew {
    pub(crate) fn start(set: &Set) -> Result<(Self, Results<Ran>), Error> {
        let mut builder = Pool::builder()
            .name(set.name.clone())
            .workers(set.sizing.workers)
            .queue(set.sizing.queue)
            // What failed is read from its result, and kept nowhere else.
            .keep_failures(0);
        if let Some(limit) = set.timeout {
            builder = builder.timeout(limit);
        }
        Ok(match set.work {
            Work::Async(_) => {
                let (pool, results) = builder.build_async_with_results(Order::AsCompleted)?;
                (Self::Tasks(pool), results)
            }
            Work::Blocking(_) => {
                let (pool, results) = builder.build_with_results(Order::AsCompleted)?;
                (Self::Threads(pool), results)
            }
        })
    }

    /// Gives the pool a message, or the message back if there is no room. Its number in the pool.
    pub(crate) fn submit(&self, job: Job) -> Result<u64, Option<Job>> {
        let full = |refusal: Refusal| refusal == Refusal::Full;
        match (self, job) {
            (Self::Tasks(pool), Job::Task(task)) => match pool.try_submit(task) {
                Ok(id) => Ok(id.get()),
                Err(error) if full(error.refusal) => Err(Some(Job::Task(error.into_task()))),
                Err(_) => Err(None),
            },
            (Self::Threads(pool), Job::Thread(task)) => match pool.try_submit(task) {
                Ok(id) => Ok(id.get()),
                Err(error) if full(error.refusal) => Err(Some(Job::Thread(error.into_task()))),
                Err(_) => Err(None),
            },
            _ => Err(None),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        match self {
            Self::Tasks(pool) => pool.stats(),
            Self::Threads(pool) => pool.stats(),
        }
    }

    /// Starts nothing more, and stops what can be stopped.
    pub(crate) fn cancel(&self) {
        match self {
            Self::Tasks(pool) => pool.cancel(),
            Self::Threads(pool) => pool.cancel(),
        }
    }

    /// Lets what runs finish within the deadline.
    pub(crate) async fn shutdown(self, deadline: Duration) {
        match self {
            Self::Tasks(pool) => {
                pool.shutdown(deadline).await;
            }
            Self::Threads(pool) => {
                let _ = tokio::task::spawn_blocking(move || pool.shutdown(deadline)).await;
            }
        }
    }
}

/// Makes a message into what a worker runs.
pub(crate) fn job(set: &Arc<Set>, delivery: Delivery, leave: [Leave; 2], once: Option<Arc<Once>>) -> Job {
    // Looked up by id: what has none cannot have been seen before.
    let once = once.and_then(|once| delivery.identity().map(|id| (once, id)));
    match &set.work {
        Work::Async(work) => {
            let (work, set) = (Arc::clone(work), Arc::clone(set));
            Job::Task(Task::future(move |context| async move {
                if leave.iter().any(Leave::is_revoked) {
                    return Ok(Ran::Skipped);
                }
                let span = span(&set, &delivery, context.worker());
                // The handler's own closure is part of the work: it runs in the span, and only if anything does.
                run_async(async move { work(delivery).await }, once).instrument(span).await
            }))
        }
        Work::Blocking(work) => {
            let (work, set) = (Arc::clone(work), Arc::clone(set));
            Job::Thread(Task::new(move |context| {
                if leave.iter().any(Leave::is_revoked) {
                    return Ok(Ran::Skipped);
                }
                let _guard = span(&set, &delivery, context.worker()).entered();
                if let Some((once, id)) = &once
                    && once.knows(id)?
                {
                    return Ok(Ran::Seen);
                }
                work(&delivery)?;
                if let Some((once, id)) = &once {
                    once.note(id)?;
                }
                Ok(Ran::Done)
            }))
        }
    }
}

async fn run_async(
    work: impl Future<Output = TaskResult<()>>,
    once: Option<(Arc<Once>, String)>,
) -> TaskResult<Ran> {
    let Some((once, id)) = once else {
        work.await?;
        return Ok(Ran::Done);
    };
    // The store blocks; its group commit is what makes that bearable.
    let ask = {
        let (once, id) = (Arc::clone(&once), id.clone());
        move || once.knows(&id)
    };
    if tokio::task::spawn_blocking(ask).await.map_err(TaskError::transient)?? {
        return Ok(Ran::Seen);
    }
    work.await?;
    tokio::task::spawn_blocking(move || once.note(&id)).await.map_err(TaskError::transient)??;
    Ok(Ran::Done)
}

/// What a handler logs says which message, which worker and which trace it is about.
fn span(set: &Set, delivery: &Delivery, worker: usize) -> tracing::Span {
    tracing::info_span!(
        "message",
        consumer = set.name,
        worker,
        id = delivery.message_id(),
        attempt = delivery.attempt(),
        trace = delivery.traceparent(),
    )
}
