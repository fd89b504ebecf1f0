//! Runs handlers on a pool: async handlers as tokio tasks, blocking handlers on threads.

use crate::{
    consumer::{ConsumerConfig, Handler},
    delivery::Delivery,
    error::Error,
    sink_gate::SinkGate,
    starts::{StartDecision, StartRecorded, StartStore},
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

/// Outcome of a handler run that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerOutcome {
    /// Handled by a run that started at this time of the sink clock.
    Done { started: u64 },
    /// Handled before, so no run was started.
    AlreadyDone,
    /// The handler found that it was handled before; the run started at this time of the sink clock.
    Duplicate { started: u64 },
    /// A message with the same id is being handled, perhaps by another process.
    InProgress,
    /// Not started: its channel is lost, or its consumer is paused or stopping.
    Skipped,
    /// Not started: this many earlier starts did not finish.
    OverLimit(u32),
}

#[derive(Clone)]
pub(crate) enum HandlerPool {
    Tasks(AsyncPool<HandlerOutcome>),
    Threads(Pool<HandlerOutcome>),
}

pub(crate) enum HandlerTask {
    Task(Task<HandlerOutcome, gristmill_pool::TokioTasks>),
    Thread(Task<HandlerOutcome>),
}

/// Prevents work that has not started from starting.
#[derive(Clone, Default)]
pub(crate) struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    pub(crate) fn cancel(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Skips messages whose id was handled within a window, by ids recorded in the store.
pub(crate) struct Deduplicator {
    pub(crate) store: Store,
    pub(crate) scope: String,
    pub(crate) window: Duration,
    /// Ids whose claims could not be released. While the process runs, only this list releases them.
    unreleased: Mutex<Vec<String>>,
}

impl Deduplicator {
    pub(crate) fn new(store: Store, scope: String, window: Duration) -> Self {
        Self { store, scope, window, unreleased: Mutex::default() }
    }

    /// Claims a message id, or returns why the message must not be handled.
    fn claim(self: &Arc<Self>, id: String) -> TaskResult<Result<ClaimedId, HandlerOutcome>> {
        self.release_pending().map_err(TaskError::unavailable)?;
        let claim = self.store.processed_ids().claim(&self.scope, &id, self.window);
        Ok(match claim.map_err(TaskError::unavailable)? {
            ClaimResult::Claimed => Ok(ClaimedId { dedup: Arc::clone(self), id: Some(id) }),
            ClaimResult::AlreadyProcessed => Err(HandlerOutcome::AlreadyDone),
            ClaimResult::InProgress => Err(HandlerOutcome::InProgress),
        })
    }

    /// Releases a claim, or keeps its id to retry. Blocks.
    fn release(&self, id: String) {
        if let Err(error) = self.store.processed_ids().release(&self.scope, &id) {
            tracing::warn!(id, %error, "cannot release the claim on a message id; retried before the next claim");
            self.unreleased().push(id);
        }
    }

    /// Releases the claims that could not be released before; holds the lock, so no claim is made meanwhile. Blocks.
    pub(crate) fn release_pending(&self) -> Result<(), gristmill_store::Error> {
        let mut unreleased = self.unreleased();
        while let Some(id) = unreleased.last() {
            self.store.processed_ids().release(&self.scope, id)?;
            unreleased.pop();
        }
        Ok(())
    }

    fn unreleased(&self) -> MutexGuard<'_, Vec<String>> {
        self.unreleased.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim on a message id. It is released when dropped before [`complete`](Self::complete).
struct ClaimedId {
    dedup: Arc<Deduplicator>,
    id: Option<String>,
}

impl ClaimedId {
    fn complete(mut self) -> TaskResult<()> {
        let Some(id) = self.id.take() else { return Ok(()) };
        let recorded = self.dedup.store.processed_ids().record(&self.dedup.scope, vec![id.clone()]);
        if recorded.is_err() {
            self.id = Some(id);
        }
        recorded.map_err(TaskError::unavailable)
    }
}

impl Drop for ClaimedId {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let dedup = Arc::clone(&self.dedup);
        let release = move || dedup.release(id);
        // The store blocks, so an async caller releases on another thread.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(release)),
            Err(_) => release(),
        }
    }
}

impl HandlerPool {
    pub(crate) fn start(config: &ConsumerConfig) -> Result<(Self, Results<HandlerOutcome>), Error> {
        let mut builder = Pool::builder()
            .name(config.name.clone())
            .workers(config.sizing.workers)
            .queue_capacity(config.sizing.queue)
            // The dispatcher reads failures from the results; the pool keeps none.
            .keep_failures(0);
        if let Some(limit) = config.timeout {
            builder = builder.timeout(limit);
        }
        Ok(match config.handler {
            Handler::Async(_) => {
                let (pool, results) = builder.build_async_with_results(Order::AsCompleted)?;
                (Self::Tasks(pool), results)
            }
            Handler::Blocking(_) => {
                let (pool, results) = builder.build_with_results(Order::AsCompleted)?;
                (Self::Threads(pool), results)
            }
        })
    }

    /// Submits a job and returns its number in the pool. The error has the job if the queue is full, none if closed.
    pub(crate) fn submit(&self, job: HandlerTask) -> Result<u64, Option<HandlerTask>> {
        let full = |kind: SubmitErrorKind| kind == SubmitErrorKind::Full;
        match (self, job) {
            (Self::Tasks(pool), HandlerTask::Task(task)) => match pool.try_submit(task) {
                Ok(id) => Ok(id.get()),
                Err(error) if full(error.kind) => Err(Some(HandlerTask::Task(error.into_task()))),
                Err(_) => Err(None),
            },
            (Self::Threads(pool), HandlerTask::Thread(task)) => match pool.try_submit(task) {
                Ok(id) => Ok(id.get()),
                Err(error) if full(error.kind) => Err(Some(HandlerTask::Thread(error.into_task()))),
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

    /// Starts no more runs and cancels those that can be cancelled.
    pub(crate) fn cancel(&self) {
        match self {
            Self::Tasks(pool) => pool.cancel(),
            Self::Threads(pool) => pool.cancel(),
        }
    }

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

/// A start to be counted, of a message that may have been started before.
#[derive(Clone)]
pub(crate) struct RunStart {
    pub(crate) store: StartStore,
    pub(crate) key: RunKey,
    pub(crate) recorded: StartRecorded,
    /// Whether the handler records the start itself.
    pub(crate) by_handler: bool,
}

impl RunStart {
    /// Commits the start, unless the handler does. Blocks.
    fn record(&self) -> StartDecision {
        if self.by_handler {
            return StartDecision::Allowed;
        }
        self.recorded.set();
        self.store.start(self.key)
    }

    /// Undoes the start. Blocks.
    fn undo(&self) {
        if self.recorded.take() {
            self.store.undo_starts(vec![self.key]);
        }
    }
}

/// Store operations of a run whose message may have been started or handled before.
struct StoreAccess {
    start: Option<Box<RunStart>>,
    dedup: Option<(Arc<Deduplicator>, String)>,
}

/// Builds the pool task that runs the handler for a message.
pub(crate) fn job(
    config: &Arc<ConsumerConfig>,
    delivery: Delivery,
    cancel: [CancelToken; 2],
    gate: SinkGate,
    start: Option<Box<RunStart>>,
    dedup: Option<&Arc<Deduplicator>>,
) -> HandlerTask {
    // A message without an id cannot be deduplicated.
    let dedup = dedup.and_then(|dedup| delivery.identity().map(|id| (Arc::clone(dedup), id)));
    // Boxed, because few messages have any and a job is moved several times.
    let access = (start.is_some() || dedup.is_some()).then(|| Box::new(StoreAccess { start, dedup }));
    match &config.handler {
        Handler::Async(handler) => {
            let (handler, config) = (Arc::clone(handler), Arc::clone(config));
            HandlerTask::Task(Task::future(move |context| async move {
                if cancel.iter().any(CancelToken::is_cancelled) {
                    return Ok(HandlerOutcome::Skipped);
                }
                let Some(started) = gate.start() else { return Ok(HandlerOutcome::Skipped) };
                let span = span(&config, &delivery, context.worker());
                // The closure that makes the future is part of the handler: it runs in the span, if the handler runs.
                let handler = async { handler(delivery.clone()).await };
                let result = match access {
                    None => handler.instrument(span).await.map(|()| success_outcome(&delivery, started)),
                    Some(access) => Box::pin(run_async(handler, &delivery, started, *access).instrument(span)).await,
                };
                if !context.is_cancelled() {
                    record_sink_failure(&gate, context.task_id(), &result);
                }
                result
            }))
        }
        Handler::Blocking(handler) => {
            let (handler, config) = (Arc::clone(handler), Arc::clone(config));
            HandlerTask::Thread(Task::new(move |context| {
                if cancel.iter().any(CancelToken::is_cancelled) {
                    return Ok(HandlerOutcome::Skipped);
                }
                let Some(started) = gate.start() else { return Ok(HandlerOutcome::Skipped) };
                let _guard = span(&config, &delivery, context.worker()).entered();
                let handler = || handler(&delivery);
                let result = match access {
                    None => handler().map(|()| success_outcome(&delivery, started)),
                    Some(access) => {
                        let StoreAccess { start, dedup } = *access;
                        let result = run_blocking(handler, &delivery, started, start.as_deref(), dedup);
                        if let Some(start) = start.filter(|_| !context.is_cancelled() && has_failed(&result)) {
                            start.undo();
                        }
                        result
                    }
                };
                if !context.is_cancelled() {
                    record_sink_failure(&gate, context.task_id(), &result);
                }
                result
            }))
        }
    }
}

/// Records when a run failed because of the sink. Not called for a run that the pool ended: the pool makes its result.
fn record_sink_failure(gate: &SinkGate, id: TaskId, result: &TaskResult<HandlerOutcome>) {
    if result.as_ref().is_err_and(|error| error.dependency().is_some()) {
        gate.record(id.get());
    }
}

fn run_blocking(
    handler: impl FnOnce() -> TaskResult<()>,
    delivery: &Delivery,
    started: u64,
    start: Option<&RunStart>,
    dedup: Option<(Arc<Deduplicator>, String)>,
) -> TaskResult<HandlerOutcome> {
    let claimed = match dedup.map(|(dedup, id)| dedup.claim(id)).transpose()? {
        Some(Err(outcome)) => return Ok(outcome),
        claimed => claimed.and_then(Result::ok),
    };
    if let Some(start) = start
        && let StartDecision::OverLimit(starts) = start.record()
    {
        return Ok(HandlerOutcome::OverLimit(starts));
    }
    handler()?;
    if let Some(starts) = delivery.over_limit() {
        return Ok(HandlerOutcome::OverLimit(starts));
    }
    claimed.map_or(Ok(()), ClaimedId::complete)?;
    Ok(success_outcome(delivery, started))
}

async fn run_async(
    handler: impl Future<Output = TaskResult<()>>,
    delivery: &Delivery,
    started: u64,
    StoreAccess { start, dedup }: StoreAccess,
) -> TaskResult<HandlerOutcome> {
    // The store blocks, so it runs on other threads; its group commit batches these writes.
    let claimed = match dedup {
        Some((dedup, id)) => {
            let claim = tokio::task::spawn_blocking(move || dedup.claim(id));
            match claim.await.map_err(TaskError::transient)?? {
                Ok(claimed) => Some(claimed),
                Err(outcome) => return Ok(outcome),
            }
        }
        None => None,
    };
    if let Some(start) = start.clone().filter(|start| !start.by_handler)
        && let Ok(StartDecision::OverLimit(starts)) = tokio::task::spawn_blocking(move || start.record()).await
    {
        return Ok(HandlerOutcome::OverLimit(starts));
    }
    let mut result = handler.await;
    if let Some(starts) = delivery.over_limit() {
        return Ok(HandlerOutcome::OverLimit(starts));
    }
    if let Some(claimed) = claimed.filter(|_| result.is_ok()) {
        let done = tokio::task::spawn_blocking(move || claimed.complete()).await;
        result = done.map_err(TaskError::transient).flatten();
    }
    if let Some(start) = start.filter(|_| has_failed(&result)) {
        let _ = tokio::task::spawn_blocking(move || start.undo()).await;
    }
    result.map(|()| success_outcome(delivery, started))
}

/// Whether the handler returned an error. Its start is undone before the error is acted on, because only a start
/// without an end counts. Starts of runs that the pool ended are undone by the dispatcher.
fn has_failed<T>(result: &TaskResult<T>) -> bool {
    let has_failed = |error: &TaskError| error.dependency().is_some() || matches!(error.cause(), Cause::Error(_));
    result.as_ref().is_err_and(has_failed)
}

fn success_outcome(delivery: &Delivery, started: u64) -> HandlerOutcome {
    if delivery.is_duplicate() { HandlerOutcome::Duplicate { started } } else { HandlerOutcome::Done { started } }
}

/// Adds consumer, worker, message id, attempt and trace to the log lines of the handler.
fn span(config: &ConsumerConfig, delivery: &Delivery, worker: usize) -> tracing::Span {
    tracing::info_span!(
        "message",
        consumer = config.name,
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
    fn failed_release_is_retried_before_the_next_claim() {
        let folder = tempfile::tempdir().unwrap();
        let (file, elsewhere) = (folder.path().join("dedup.db"), folder.path().join("elsewhere.db"));
        let store = Store::open(&file).unwrap();
        let dedup = || Arc::new(Deduplicator::new(store.clone(), "q".to_owned(), Duration::from_secs(60)));
        let (dedup, other) = (dedup(), dedup());
        let claim = |dedup: &Arc<Deduplicator>, id: &str| dedup.claim(id.to_owned()).unwrap();
        let (Ok(first), Ok(second)) = (claim(&dedup, "1"), claim(&dedup, "2")) else { panic!("ids in use") };
        // The store fails when the messages are completed.
        std::fs::rename(&file, &elsewhere).unwrap();
        assert!(first.complete().is_err() && second.complete().is_err());
        std::fs::rename(&elsewhere, &file).unwrap();
        let is_claimed = |claim: Result<ClaimedId, HandlerOutcome>| claim.is_ok();
        assert!(is_claimed(claim(&dedup, "1")));
        // Another deduplicator can claim the other message too.
        assert!(is_claimed(claim(&other, "2")));
    }
}
