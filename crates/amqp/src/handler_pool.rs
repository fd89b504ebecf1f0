//! Runs handlers on a pool: async handlers as tokio tasks, blocking and batch handlers on threads.

use crate::{
    consumer::{AsyncHandler, BatchHandler, ConsumerConfig, Handler},
    dedup::{Claims, Deduplicator},
    delivery::Delivery,
    error::Error,
    sink_gate::SinkGate,
    starts::RunStart,
    store::Claim,
};
use gristmill_pool::{
    AsyncPool, CancelToken, Pool, PoolStats, ResultOrder as Order, Results, Task, TaskError, TaskResult,
    error::{Cause, SubmitErrorKind},
    task::TaskId,
};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tracing::Instrument;

/// Outcome of a run that did not fail.
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

/// Output of a pool task.
pub(crate) enum JobOutput {
    One(HandlerOutcome),
    /// Results of the messages of a batch that were passed to the handler, in order.
    Batch(Vec<TaskResult<HandlerOutcome>>),
}

#[derive(Clone)]
pub(crate) enum HandlerPool {
    Tasks(AsyncPool<JobOutput>),
    Threads(Pool<JobOutput>),
}

pub(crate) enum HandlerTask {
    Task(Task<JobOutput, gristmill_pool::TokioTasks>),
    Thread(Task<JobOutput>),
}

impl HandlerPool {
    pub(crate) fn start(config: &ConsumerConfig) -> Result<(Self, Results<JobOutput>), Error> {
        let mut builder = Pool::builder()
            .name(config.name.clone())
            .workers(config.sizing.workers)
            .queue_capacity(config.sizing.queue)
            // The dispatcher reads failures from the results; the pool keeps none.
            .keep_failures(0);
        if let Some(limit) = config.declared.timeout {
            builder = builder.timeout(limit);
        }
        Ok(match config.handler {
            Handler::Async(_) => {
                let (pool, results) = builder.build_async_with_results(Order::AsCompleted).map_err(Error::Pool)?;
                (Self::Tasks(pool), results)
            }
            Handler::Batch(_) => {
                let (pool, results) = builder.build_with_results(Order::AsCompleted).map_err(Error::Pool)?;
                (Self::Threads(pool), results)
            }
        })
    }

    /// Submits a job and returns its number in the pool.
    pub(crate) fn submit(&self, job: HandlerTask) -> Result<u64, SubmitErrorKind> {
        let submitted = match (self, job) {
            (Self::Tasks(pool), HandlerTask::Task(task)) => pool.try_submit(task).map_err(|error| error.kind),
            (Self::Threads(pool), HandlerTask::Thread(task)) => pool.try_submit(task).map_err(|error| error.kind),
            _ => Err(SubmitErrorKind::Closed),
        };
        submitted.map(TaskId::get)
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

/// A message to be run.
pub(crate) struct Run {
    pub(crate) delivery: Delivery,
    /// Cancelled when its channel is lost.
    pub(crate) session: CancelToken,
    /// Set if it may have been started before. Boxed, because few messages have it and a job is moved several times.
    pub(crate) start: Option<Box<RunStart>>,
}

/// What the runs of a consumer share.
#[derive(Clone)]
pub(crate) struct RunContext {
    pub(crate) config: Arc<ConsumerConfig>,
    pub(crate) stopping: CancelToken,
    pub(crate) gate: SinkGate,
    pub(crate) dedup: Option<Arc<Deduplicator>>,
}

/// Outcomes of the messages of a batch that were not passed to the handler; not set if all were.
pub(crate) type Decided = OnceLock<Vec<Option<HandlerOutcome>>>;

impl RunContext {
    /// Builds the pool task that runs an async handler for one message.
    pub(crate) fn async_job(self, handler: Arc<AsyncHandler>, run: Run) -> HandlerTask {
        HandlerTask::Task(Task::future(move |context| async move {
            let is_cancelled = run.session.is_cancelled() || self.stopping.is_cancelled();
            let Some(started) = self.gate.start().filter(|_| !is_cancelled) else {
                return Ok(JobOutput::One(HandlerOutcome::Skipped));
            };
            let Run { delivery, start, .. } = run;
            let span = message_span(&self.config, &delivery, context.worker());
            // The closure that makes the future is part of the handler: it runs in the span, if the handler runs.
            let handler = async { handler(delivery.clone()).await };
            // A message without an id cannot be deduplicated.
            let dedup = self.dedup.and_then(|dedup| delivery.identity().map(|id| (dedup, id)));
            let result = match (start, dedup) {
                (None, None) => handler.instrument(span).await.map(|()| success_outcome(&delivery, started)),
                (start, dedup) => {
                    let run = run_async(handler, &delivery, started, start.map(|start| *start), dedup);
                    Box::pin(run.instrument(span)).await
                }
            };
            if let Err(error) = &result
                && !context.is_cancelled()
            {
                record_sink_failure(&self.gate, context.task_id().get(), error);
            }
            result.map(JobOutput::One)
        }))
    }

    /// Builds the pool task that runs a batch handler for one message.
    pub(crate) fn blocking_job(self, handler: Arc<BatchHandler>, run: Run) -> HandlerTask {
        HandlerTask::Thread(Task::new(move |context| {
            let _span = message_span(&self.config, &run.delivery, context.worker()).entered();
            let (runs, decided) = ((std::slice::from_ref(&run), context.task_id().get()), Decided::new());
            let results = self.run_batch(&*handler, runs, &decided, || context.is_cancelled())?;
            let decided = decided.into_inner().into_iter().flatten().flatten().map(Ok);
            decided.chain(results).next().unwrap_or(Ok(HandlerOutcome::Skipped)).map(JobOutput::One)
        }))
    }

    /// Builds the pool task that runs a batch handler. Messages that are not passed to the handler are in `decided`.
    /// The first message has the number `first`, by which the sink gate knows it.
    pub(crate) fn batch_job(
        self,
        handler: Arc<BatchHandler>,
        runs: Vec<Run>,
        first: u64,
        decided: Arc<Decided>,
    ) -> HandlerTask {
        HandlerTask::Thread(Task::new(move |context| {
            let _span = match &*runs {
                [run] => message_span(&self.config, &run.delivery, context.worker()),
                _ => tracing::info_span!(
                    "batch",
                    consumer = self.config.name,
                    worker = context.worker(),
                    messages = runs.len()
                ),
            }
            .entered();
            self.run_batch(&*handler, (&runs, first), &decided, || context.is_cancelled()).map(JobOutput::Batch)
        }))
    }

    fn run_batch(
        &self,
        handler: &BatchHandler,
        (runs, first): (&[Run], u64),
        decided: &Decided,
        is_cancelled: impl Fn() -> bool,
    ) -> TaskResult<Vec<TaskResult<HandlerOutcome>>> {
        let started = self.gate.start().filter(|_| !self.stopping.is_cancelled());
        let is_skipped = |run: &Run| started.is_none() || run.session.is_cancelled();
        let mut outcomes: Vec<Option<HandlerOutcome>> =
            runs.iter().map(|run| is_skipped(run).then_some(HandlerOutcome::Skipped)).collect();
        let claims = self.claim_and_start(runs, &mut outcomes);
        let passed: Vec<usize> = (0..runs.len()).filter(|at| outcomes[*at].is_none()).collect();
        if passed.len() < runs.len() {
            let _ = decided.set(outcomes);
        }
        let Some(started) = started.filter(|_| !passed.is_empty()) else { return Ok(Vec::new()) };
        let deliveries: Vec<Delivery> = passed.iter().map(|at| runs[*at].delivery.clone()).collect();
        let results = claims.and_then(|claims| {
            let mut results = handler(&deliveries)?;
            if results.len() != deliveries.len() {
                let (found, expected) = (results.len(), deliveries.len());
                let text = format!("the handler returned {found} results for a batch of {expected} messages");
                return Err(TaskError::permanent(text));
            }
            let handled = passed.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(at, _)| *at);
            if let Some(Err(error)) = claims.map(|mut claims| claims.complete(&handled.collect::<Vec<_>>())) {
                let handled = results.iter_mut().filter(|result| result.is_ok());
                handled.for_each(|result| *result = Err(TaskError::unavailable(error.to_string())));
            }
            Ok(results)
        });
        // After its timeout the pool replaces an error of the whole batch, unless it is permanent. Errors of single
        // messages stay; the dispatcher sets the end time of such failures when it reads them.
        if !is_cancelled() {
            let error = |at: usize| results.as_ref().map_or_else(Some, |results| results[at].as_ref().err());
            let failed = || passed.iter().enumerate().filter_map(|(at, place)| Some((*place, error(at)?)));
            let has_ended = failed().filter(|(_, error)| ended_itself(error));
            RunStart::undo_all(&has_ended.filter_map(|(place, _)| runs[place].start.as_deref()).collect::<Vec<_>>());
            failed().for_each(|(place, error)| record_sink_failure(&self.gate, first + place as u64, error));
        }
        let outcome =
            |(result, delivery): (TaskResult<()>, &Delivery)| result.map(|()| success_outcome(delivery, started));
        Ok(results?.into_iter().zip(&deliveries).map(outcome).collect())
    }

    /// Claims the ids and counts the starts of messages without an outcome. Sets the outcomes of those not to be run.
    fn claim_and_start(&self, runs: &[Run], outcomes: &mut [Option<HandlerOutcome>]) -> TaskResult<Option<Claims>> {
        let mut all_claims = None;
        if let Some(dedup) = &self.dedup {
            let id = |(run, outcome): (&Run, &Option<_>)| run.delivery.identity().filter(|_| outcome.is_none());
            let (results, claims) = dedup.claim(runs.iter().zip(&*outcomes).map(id).collect())?;
            all_claims = Some(claims);
            for (outcome, claim) in outcomes.iter_mut().zip(results) {
                *outcome = outcome.or(outcome_of_claim(claim));
            }
        }
        let is_starting = |(run, outcome): &(&Run, &mut Option<_>)| run.start.is_some() && outcome.is_none();
        let starting: Vec<_> = runs.iter().zip(outcomes).filter(is_starting).collect();
        let starts: Vec<&RunStart> = starting.iter().filter_map(|(run, _)| run.start.as_deref()).collect();
        for ((_, outcome), decision) in starting.into_iter().zip(RunStart::record_all(&starts)) {
            *outcome = decision.map(HandlerOutcome::OverLimit);
        }
        Ok(all_claims)
    }
}

fn outcome_of_claim(claim: Claim) -> Option<HandlerOutcome> {
    match claim {
        Claim::Claimed => None,
        Claim::AlreadyHandled => Some(HandlerOutcome::AlreadyDone),
        Claim::InProgress => Some(HandlerOutcome::InProgress),
    }
}

/// Records when a run failed because of the sink. Not called for a run that was cancelled or timed out.
fn record_sink_failure(gate: &SinkGate, number: u64, error: &TaskError) {
    if error.dependency().is_some() {
        gate.record(number);
    }
}

async fn run_async(
    handler: impl Future<Output = TaskResult<()>>,
    delivery: &Delivery,
    started: u64,
    start: Option<RunStart>,
    dedup: Option<(Arc<Deduplicator>, String)>,
) -> TaskResult<HandlerOutcome> {
    // The store blocks, so it runs on other threads; its group commit batches these writes.
    let mut claims = None;
    if let Some((dedup, id)) = dedup {
        let (results, claimed) = blocking(move || dedup.claim(vec![Some(id)])).await.flatten()?;
        if let Some(outcome) = results.into_iter().find_map(outcome_of_claim) {
            return Ok(outcome);
        }
        claims = Some(claimed);
    }
    if let Some(start) = start.clone()
        && let [Some(starts)] = blocking(move || RunStart::record_all(&[&start])).await?[..]
    {
        return Ok(HandlerOutcome::OverLimit(starts));
    }
    let mut result = handler.await;
    if let Some(mut claims) = claims.filter(|_| result.is_ok()) {
        result = blocking(move || claims.complete(&[0])).await.flatten();
    }
    if let Some(start) = start.filter(|_| result.as_ref().is_err_and(ended_itself)) {
        let _ = blocking(move || RunStart::undo_all(&[&start])).await;
    }
    result.map(|()| success_outcome(delivery, started))
}

/// Runs work that blocks on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> TaskResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(TaskError::transient)
}

/// Whether the handler returned the error. Its start is undone before the error is acted on, because only a start
/// without an end counts. Starts of runs that the pool ended are undone by the dispatcher.
fn ended_itself(error: &TaskError) -> bool {
    error.dependency().is_some() || matches!(error.cause(), Cause::Error(_))
}

fn success_outcome(delivery: &Delivery, started: u64) -> HandlerOutcome {
    if delivery.is_duplicate() { HandlerOutcome::Duplicate { started } } else { HandlerOutcome::Done { started } }
}

/// Adds consumer, worker, message id, attempt and trace to the log lines of the handler.
fn message_span(config: &ConsumerConfig, delivery: &Delivery, worker: usize) -> tracing::Span {
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
    use crate::{Consumer, Queue, net::Received, topology::Topology};
    use HandlerOutcome::{Done, Duplicate, Skipped};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn context() -> RunContext {
        let mut topology = Topology { queues: vec![Queue::new("q")], ..Topology::default() };
        let consumer = Consumer::new("q", "c").handle_batch(9, Duration::ZERO, |_| Ok(Vec::new()));
        let config = Arc::new(consumer.resolve(&mut topology, false).unwrap());
        RunContext { config, stopping: CancelToken::new(), gate: SinkGate::default(), dedup: None }
    }

    /// Runs a batch of three messages, the second with a lost channel. Returns what the handler got, the outcomes of
    /// messages that it did not get, and the results of the others.
    #[expect(clippy::type_complexity)]
    fn run(
        context: &RunContext,
        handler: impl Fn(&[Delivery]) -> TaskResult<Vec<TaskResult<()>>> + Send + Sync + 'static,
    ) -> (usize, Vec<Option<HandlerOutcome>>, Result<Vec<Result<HandlerOutcome, String>>, String>) {
        let run = |at: u64| {
            let session = CancelToken::new();
            if at == 1 {
                session.cancel();
            }
            let received = Received { tag: at, ..Received::default() };
            Run { delivery: Delivery::new(&"q".into(), Box::new(received)), session, start: None }
        };
        let (runs, decided) = ([0, 1, 2].map(run), Decided::default());
        let passed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&passed);
        let handler = move |batch: &[Delivery]| {
            count.store(batch.len(), Relaxed);
            handler(batch)
        };
        let results = context.run_batch(&handler, (&runs, 100), &decided, || false);
        let text = |error: TaskError| error.to_string();
        let results = results.map(|all| all.into_iter().map(|one| one.map_err(text)).collect()).map_err(text);
        (passed.load(Relaxed), decided.get().cloned().unwrap_or_default(), results)
    }

    #[test]
    fn each_message_of_a_batch_has_its_outcome() {
        let (done, skipped) = (Ok(Done { started: 0 }), Some(Skipped));
        let (context, not_second) = (context(), vec![None, skipped, None]);
        let ok = |batch: &[Delivery]| Ok(batch.iter().map(|_| Ok(())).collect());
        assert_eq!(run(&context, ok), (2, not_second.clone(), Ok(vec![done.clone(), done.clone()])));
        let one_fails = |_: &[Delivery]| Ok(vec![Err(TaskError::unavailable("down")), Ok(())]);
        assert_eq!(run(&context, one_fails), (2, not_second.clone(), Ok(vec![Err("down".to_owned()), done])));
        // Its end is recorded by the number of its run.
        assert_eq!([100, 101, 102].map(|number| context.gate.take(number).is_some()), [true, false, false]);
        let duplicate = move |batch: &[Delivery]| {
            batch[1].set_duplicate();
            ok(batch)
        };
        let (one, two) = (Ok(Done { started: 1 }), Ok(Duplicate { started: 1 }));
        assert_eq!(run(&context, duplicate).2, Ok(vec![one, two]));
        let all_fail = |_: &[Delivery]| Err(TaskError::dependency_failed("503"));
        assert_eq!(run(&context, all_fail), (2, not_second.clone(), Err("503".to_owned())));
        assert_eq!([100, 101, 102].map(|number| context.gate.take(number).is_some()), [true, false, true]);
        let too_few = |_: &[Delivery]| Ok(vec![Ok(())]);
        let text = "the handler returned 1 results for a batch of 2 messages";
        assert_eq!(run(&context, too_few), (2, not_second, Err(text.to_owned())));
    }

    #[test]
    fn no_message_is_passed_while_the_consumer_is_paused_or_stopping() {
        let (paused, stopping) = (context(), context());
        paused.gate.close();
        stopping.stopping.cancel();
        for context in [paused, stopping] {
            assert_eq!(run(&context, |_| panic!("called")), (0, vec![Some(Skipped); 3], Ok(Vec::new())));
        }
    }
}
