//! The pool that runs handlers: tokio tasks for those that await, threads for those that block.

use crate::{
    consumer::{Set, Work},
    delivery::Delivery,
    error::Error,
    sink_gate::SinkGate,
    starts::{Start, StartRecorded, StartStore},
};
use gristmill_pool::{
    AsyncPool, Pool, PoolStats, ResultOrder as Order, Results, Task, TaskError, TaskResult,
    error::{Cause, SubmitErrorKind},
    task::TaskId,
};
use gristmill_store::{Store, message_runs::RunKey, processed::ClaimResult};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tracing::Instrument;

/// What became of a message that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ran {
    /// It was handled by a run that was started at this time of the sink's clock.
    Done { started: u64 },
    /// It was done before, and is not done again. Nothing was started.
    Seen,
    /// The handler has found that it was done before, in a run that was started at this time of the sink's clock.
    Duplicate { started: u64 },
    /// One with the same id is being handled, perhaps by another process.
    InProgress,
    /// It was not started: its channel is lost, or its consumer pauses or stops.
    Skipped,
    /// It was not started: this many starts of it came to no end.
    OverLimit(u32),
}

#[derive(Clone)]
pub(crate) enum Crew {
    Tasks(AsyncPool<Ran>),
    Threads(Pool<Ran>),
}

/// A message on its way to a worker.
pub(crate) enum Job {
    Task(Task<Ran, gristmill_pool::TokioTasks>),
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
    /// Ids whose claims could not be released. The process lives, so that nothing else ends these claims.
    left: Mutex<Vec<String>>,
}

impl Once {
    pub(crate) fn new(store: Store, scope: String, window: Duration) -> Self {
        Self { store, scope, window, left: Mutex::default() }
    }

    /// Claims a message, or says why it is not to be handled.
    fn claim(self: &Arc<Self>, id: String) -> TaskResult<Result<ClaimedId, Ran>> {
        self.release_left().map_err(TaskError::unavailable)?;
        let claim = self.store.processed_ids().claim(&self.scope, &id, self.window);
        Ok(match claim.map_err(TaskError::unavailable)? {
            ClaimResult::Claimed => Ok(ClaimedId { once: Arc::clone(self), id: Some(id) }),
            ClaimResult::AlreadyProcessed => Err(Ran::Seen),
            ClaimResult::InProgress => Err(Ran::InProgress),
        })
    }

    /// Releases a claim, or keeps its id to try again. Blocks.
    fn release(&self, id: String) {
        if let Err(error) = self.store.processed_ids().release(&self.scope, &id) {
            tracing::warn!(id, %error, "the claim on a message cannot be released yet");
            self.left().push(id);
        }
    }

    /// Releases the claims that could not be released before. No other claim is made meanwhile. Blocks.
    pub(crate) fn release_left(&self) -> Result<(), gristmill_store::Error> {
        let mut left = self.left();
        while let Some(id) = left.last() {
            self.store.processed_ids().release(&self.scope, id)?;
            left.pop();
        }
        Ok(())
    }

    fn left(&self) -> MutexGuard<'_, Vec<String>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claim on a message's id. Dropped before the message is done, it is released.
struct ClaimedId {
    once: Arc<Once>,
    id: Option<String>,
}

impl ClaimedId {
    /// The message is done: its id is recorded.
    fn done(mut self) -> TaskResult<()> {
        let Some(id) = self.id.take() else { return Ok(()) };
        let recorded = self.once.store.processed_ids().record(&self.once.scope, vec![id.clone()]);
        if recorded.is_err() {
            self.id = Some(id);
        }
        recorded.map_err(TaskError::unavailable)
    }
}

impl Drop for ClaimedId {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let once = Arc::clone(&self.once);
        let release = move || once.release(id);
        // The store blocks.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(release)),
            Err(_) => release(),
        }
    }
}

impl Crew {
    pub(crate) fn start(set: &Set) -> Result<(Self, Results<Ran>), Error> {
        let mut builder = Pool::builder()
            .name(set.name.clone())
            .workers(set.sizing.workers)
            .queue_capacity(set.sizing.queue)
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
        let full = |refusal: SubmitErrorKind| refusal == SubmitErrorKind::Full;
        match (self, job) {
            (Self::Tasks(pool), Job::Task(task)) => match pool.try_submit(task) {
                Ok(id) => Ok(id.get()),
                Err(error) if full(error.kind) => Err(Some(Job::Task(error.into_task()))),
                Err(_) => Err(None),
            },
            (Self::Threads(pool), Job::Thread(task)) => match pool.try_submit(task) {
                Ok(id) => Ok(id.get()),
                Err(error) if full(error.kind) => Err(Some(Job::Thread(error.into_task()))),
                Err(_) => Err(None),
            },
            _ => Err(None),
        }
    }

    pub(crate) fn stats(&self) -> PoolStats {
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

/// The start of a run of a message that may have been started before.
#[derive(Clone)]
pub(crate) struct RunStart {
    pub(crate) store: StartStore,
    pub(crate) key: RunKey,
    pub(crate) recorded: StartRecorded,
    /// The handler records it.
    pub(crate) by_handler: bool,
}

impl RunStart {
    /// Commits the start, unless the handler does. Blocks.
    fn begin(&self) -> Start {
        if self.by_handler {
            return Start::Allowed;
        }
        self.recorded.set();
        self.store.start(self.key)
    }

    /// Blocks.
    fn take_back(&self) {
        if self.recorded.take() {
            self.store.take_back(vec![self.key]);
        }
    }
}

/// What a run does in the store, for a message that may have been started or handled before.
struct Stored {
    start: Option<Box<RunStart>>,
    once: Option<(Arc<Once>, String)>,
}

/// Makes a message into what a worker runs.
pub(crate) fn job(
    set: &Arc<Set>,
    delivery: Delivery,
    leave: [Leave; 2],
    gate: SinkGate,
    start: Option<Box<RunStart>>,
    once: Option<&Arc<Once>>,
) -> Job {
    // Looked up by id: what has none cannot have been seen before.
    let once = once.and_then(|once| delivery.identity().map(|id| (Arc::clone(once), id)));
    // Boxed, because few messages have any of it and a job is moved several times.
    let stored = (start.is_some() || once.is_some()).then(|| Box::new(Stored { start, once }));
    match &set.work {
        Work::Async(work) => {
            let (work, set) = (Arc::clone(work), Arc::clone(set));
            Job::Task(Task::future(move |context| async move {
                if leave.iter().any(Leave::is_revoked) {
                    return Ok(Ran::Skipped);
                }
                let Some(started) = gate.start() else { return Ok(Ran::Skipped) };
                let span = span(&set, &delivery, context.worker());
                // The handler's own closure is part of the work: it runs in the span, and only if anything does.
                let work = async { work(delivery.clone()).await };
                let result = match stored {
                    None => work.instrument(span).await.map(|()| ran(&delivery, started)),
                    Some(stored) => {
                        Box::pin(run_async(work, &delivery, started, *stored).instrument(span)).await
                    }
                };
                if !context.is_cancelled() {
                    record(&gate, context.task_id(), &result);
                }
                result
            }))
        }
        Work::Blocking(work) => {
            let (work, set) = (Arc::clone(work), Arc::clone(set));
            Job::Thread(Task::new(move |context| {
                if leave.iter().any(Leave::is_revoked) {
                    return Ok(Ran::Skipped);
                }
                let Some(started) = gate.start() else { return Ok(Ran::Skipped) };
                let _guard = span(&set, &delivery, context.worker()).entered();
                let work = || work(&delivery);
                let result = match stored {
                    None => work().map(|()| ran(&delivery, started)),
                    Some(stored) => {
                        let Stored { start, once } = *stored;
                        let result = run_blocking(work, &delivery, started, start.as_deref(), once);
                        if let Some(start) = start.filter(|_| !context.is_cancelled() && has_failed(&result))
                        {
                            start.take_back();
                        }
                        result
                    }
                };
                if !context.is_cancelled() {
                    record(&gate, context.task_id(), &result);
                }
                result
            }))
        }
    }
}

/// Records when a run failed with the sink. Not for a run that the pool has ended: its result is the pool's.
fn record(gate: &SinkGate, id: TaskId, result: &TaskResult<Ran>) {
    if result.as_ref().is_err_and(|error| error.dependency().is_some()) {
        gate.record(id.get());
    }
}

fn run_blocking(
    work: impl FnOnce() -> TaskResult<()>,
    delivery: &Delivery,
    started: u64,
    start: Option<&RunStart>,
    once: Option<(Arc<Once>, String)>,
) -> TaskResult<Ran> {
    let claimed = match once.map(|(once, id)| once.claim(id)).transpose()? {
        Some(Err(ran)) => return Ok(ran),
        claimed => claimed.and_then(Result::ok),
    };
    if let Some(start) = start
        && let Start::OverLimit(starts) = start.begin()
    {
        return Ok(Ran::OverLimit(starts));
    }
    work()?;
    if let Some(starts) = delivery.over_limit() {
        return Ok(Ran::OverLimit(starts));
    }
    claimed.map_or(Ok(()), ClaimedId::done)?;
    Ok(ran(delivery, started))
}

async fn run_async(
    work: impl Future<Output = TaskResult<()>>,
    delivery: &Delivery,
    started: u64,
    Stored { start, once }: Stored,
) -> TaskResult<Ran> {
    // The store blocks; its group commit is what makes that bearable.
    let claimed = match once {
        Some((once, id)) => {
            let claim = tokio::task::spawn_blocking(move || once.claim(id));
            match claim.await.map_err(TaskError::transient)?? {
                Ok(claimed) => Some(claimed),
                Err(ran) => return Ok(ran),
            }
        }
        None => None,
    };
    if let Some(start) = start.clone().filter(|start| !start.by_handler)
        && let Ok(Start::OverLimit(starts)) = tokio::task::spawn_blocking(move || start.begin()).await
    {
        return Ok(Ran::OverLimit(starts));
    }
    let mut result = work.await;
    if let Some(starts) = delivery.over_limit() {
        return Ok(Ran::OverLimit(starts));
    }
    if let Some(claimed) = claimed.filter(|_| result.is_ok()) {
        let done = tokio::task::spawn_blocking(move || claimed.done()).await;
        result = done.map_err(TaskError::transient).flatten();
    }
    if let Some(start) = start.filter(|_| has_failed(&result)) {
        let _ = tokio::task::spawn_blocking(move || start.take_back()).await;
    }
    result.map(|()| ran(delivery, started))
}

/// Whether the handler has ended with an error. Its start is taken back before anything follows from the error, because only a
/// start without an end is counted. What the pool ended the consumer takes back.
fn has_failed<T>(result: &TaskResult<T>) -> bool {
    let has_failed =
        |error: &TaskError| error.dependency().is_some() || matches!(error.cause(), Cause::Error(_));
    result.as_ref().is_err_and(has_failed)
}

fn ran(delivery: &Delivery, started: u64) -> Ran {
    if delivery.is_duplicate() { Ran::Duplicate { started } } else { Ran::Done { started } }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_that_could_not_be_released_is_released_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (file, elsewhere) = (folder.path().join("once.db"), folder.path().join("elsewhere.db"));
        let store = Store::open(&file).unwrap();
        let once = || Arc::new(Once::new(store.clone(), "q".to_owned(), Duration::from_secs(60)));
        let (once, other) = (once(), once());
        let claim = |once: &Arc<Once>, id: &str| once.claim(id.to_owned()).unwrap();
        let (Ok(first), Ok(second)) = (claim(&once, "1"), claim(&once, "2")) else { panic!("both are free") };
        // The store fails when the messages are done.
        std::fs::rename(&file, &elsewhere).unwrap();
        assert!(first.done().is_err() && second.done().is_err());
        std::fs::rename(&elsewhere, &file).unwrap();
        let is_claimed = |claim: Result<ClaimedId, Ran>| claim.is_ok();
        assert!(is_claimed(claim(&once, "1")));
        // Also for those who handle the other message now.
        assert!(is_claimed(claim(&other, "2")));
    }
}
