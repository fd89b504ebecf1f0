//! Runs one consumer: receives deliveries, dispatches them to workers, and acknowledges, retries or dead-letters them.
//!
//! One task owns all state of a consumer and orders all events: deliveries, results, republications, a lost channel,
//! the stop. Workers share only their results with it.

mod ack_timeout;
mod batch;
mod errors;
mod follow_up;
mod offsets;
mod pause;
mod prefetch;
mod redelivery;
mod requeue_on_pause;
mod run_loop;
mod session;
mod settle_on_stop;
mod sink;
mod suspects;

use crate::{
    adaptive_prefetch::AdaptivePrefetch,
    consumer::{AsyncHandler, ConsumerConfig, Handler, OrderBy},
    dedup::Deduplicator,
    delivery::Delivery,
    error::Error,
    fingerprint::Fingerprint,
    handler_pool::{HandlerOutcome, HandlerPool, JobOutput, Run, RunContext},
    keyed_queue::{Key, KeyedQueue},
    net::Received,
    orphans::Orphans,
    positions::{PositionWriter, offset_of},
    reconnect::ManagedConnection,
    republish::{Reason, Republisher},
    sink_gate::SinkGate,
    starts::{RunStart, StartRecorded, Starts},
    stats::Counters,
    store::RunKey,
    topology::Topology,
};
use ack_timeout::AckTimeout;
use batch::Batches;
use errors::{error_text, is_timeout};
use follow_up::{FollowUp, FollowUps};
use gristmill_pool::{
    CancelToken, ErrorClass, Outcome, Results, TaskError,
    error::{Cause, SubmitErrorKind},
};
use offsets::Offsets;
use pause::{Pause, SinkFailures};
use redelivery::{RunOutcome, RunPlace};
use session::Session;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use suspects::Suspects;

/// Delay before a message is retried whose id another consumer is handling.
const IN_PROGRESS_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct Dispatcher {
    config: Arc<ConsumerConfig>,
    broker: ManagedConnection,
    topology: Arc<Topology>,
    republisher: Republisher,
    dedup: Option<Arc<Deduplicator>>,
    pool: HandlerPool,
    results: Results<JobOutput>,
    counters: Arc<Counters>,
    session: Option<Session>,
    keyed_queue: KeyedQueue<InFlight>,
    suspects: Suspects,
    batches: Batches,
    /// Messages in the pool, by the numbers of their runs.
    in_pool: HashMap<u64, InFlight>,
    /// Messages being republished, or waiting in place for another attempt.
    follow_ups: FollowUps,
    /// Whether the sink works, and the messages that wait for it.
    pause: Pause<InFlight>,
    orphans: Orphans<RunPlace, RunOutcome>,
    starts: Starts,
    /// Of a stream: unfinished offsets, and the next offset.
    offsets: Offsets,
    adaptive_prefetch: AdaptivePrefetch,
    ack_timeout: AckTimeout,
    /// When handler durations were last measured.
    measured_at: Instant,
    /// Other consumers of the queue: the smallest count seen when a channel was opened.
    other_consumers: Option<u32>,
    position_writer: Option<PositionWriter>,
    /// Cancelled when the consumer stops: no more runs start.
    stopping: CancelToken,
}

/// A delivery that has not been settled.
#[derive(Clone)]
struct InFlight {
    delivery: Delivery,
    tag: u64,
    key: Option<Key>,
    offset: Option<u64>,
    /// Cancelled when its channel is lost, because it then cannot be acknowledged.
    cancel: CancelToken,
    /// Row of its counted starts, if it may have been started before.
    run: Option<RunKey>,
    recorded: Option<StartRecorded>,
    /// Computed when it is redelivered or its channel is lost.
    fingerprint: Option<Fingerprint>,
    /// Whether it may have crashed a process.
    suspect: bool,
    sink_failures: SinkFailures,
}

/// Parts that a [`Dispatcher`] is built from.
pub(crate) struct Parts {
    pub(crate) config: Arc<ConsumerConfig>,
    pub(crate) broker: ManagedConnection,
    pub(crate) topology: Arc<Topology>,
    pub(crate) republisher: Republisher,
    pub(crate) dedup: Option<Arc<Deduplicator>>,
    pub(crate) starts: Starts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pool: HandlerPool,
    pub(crate) results: Results<JobOutput>,
    /// Writes the position in a stream, and the offset to start from.
    pub(crate) position: Option<(PositionWriter, Option<u64>)>,
}

impl Dispatcher {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { config, broker, topology, republisher, dedup, starts, counters, pool, results, position } = parts;
        let adaptive_prefetch = AdaptivePrefetch::new(&config.sizing);
        let (position_writer, next) = position.unzip();
        let offsets = Offsets::from(next.flatten());
        let pause = Pause::new(config.declared.probe_delay.0, config.declared.probe_delay.1);
        let ack_timeout = AckTimeout::new(config.declared.consumer_timeout);
        Self {
            config,
            broker,
            topology,
            republisher,
            dedup,
            pool,
            results,
            counters,
            session: None,
            keyed_queue: KeyedQueue::default(),
            suspects: Suspects::default(),
            batches: Batches::default(),
            in_pool: HashMap::new(),
            follow_ups: FollowUps::default(),
            pause,
            orphans: Orphans::default(),
            starts,
            offsets,
            position_writer,
            adaptive_prefetch,
            ack_timeout,
            measured_at: Instant::now(),
            other_consumers: None,
            stopping: CancelToken::default(),
        }
    }

    fn on_delivery(&mut self, received: Box<Received>) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tag = received.tag;
        if !session.acks.track(tag) {
            let text = format!("the broker sent delivery tag {tag} out of sequence");
            return Err(Error::Channel { code: 541, text });
        }
        let cancel = session.cancel.clone();
        let delivery = Delivery::new(&self.config.queue, received);
        self.counters.received.fetch_add(1, Relaxed);
        self.counters.postponed.received(delivery.headers());
        if delivery.is_redelivered() {
            self.counters.redelivered.fetch_add(1, Relaxed);
        }
        // Only of a stream, because a publisher can set a header of that name.
        let offset = self.config.is_stream.then(|| offset_of(delivery.headers())).flatten();
        let is_finished = offset.is_some_and(|offset| !self.offsets.deliver(offset));
        let key = self.key_of(&delivery);
        let sink_failures = SinkFailures::new(delivery.failed_alone());
        let message = InFlight {
            delivery,
            tag,
            key,
            offset,
            cancel,
            run: None,
            recorded: None,
            fingerprint: None,
            suspect: false,
            sink_failures,
        };
        if is_finished {
            self.finish(&InFlight { key: None, ..message });
            return Ok(());
        }
        if self.stopping.is_cancelled() {
            self.settle_if_known_run(message);
            return Ok(());
        }
        if let Some(message) = self.match_redelivery(message) {
            match self.remaining_retry_delay(&message) {
                Some(delay) => self.wait_in_place(message, delay, None::<fn()>),
                None => self.admit(message),
            }
        }
        Ok(())
    }

    /// Queues a message for a worker, unless it is unreadable or expired.
    fn admit(&mut self, message: InFlight) {
        // Without its key, because it never runs.
        if let Some(why) = message.delivery.unreadable_properties().map(str::to_owned) {
            return self.dead_letter(InFlight { key: None, ..message }, Reason::Unreadable, why);
        }
        if message.delivery.expired_on_arrival() {
            return self.expire(&InFlight { key: None, ..message });
        }
        self.keyed_queue.push(message.key.clone(), message);
    }

    fn key_of(&self, delivery: &Delivery) -> Option<Key> {
        match &self.config.declared.order {
            Some(OrderBy::RoutingKey) => Some(delivery.routing_key().into()),
            Some(OrderBy::Header(name)) => delivery.headers().get(name).map(|value| value.to_string().into()),
            // One worker: one order for all messages, also behind one that waits for a retry.
            None if self.config.sizing.messages() == 1 => Some("".into()),
            // Two messages with the same id must not run at once, or both would count as new.
            None if self.config.declared.dedup_window.is_some() => delivery.identity().map(Key::from),
            None => None,
        }
    }

    /// Submits messages as far as the pool has room.
    fn dispatch(&mut self) {
        if self.pause.is_paused() {
            return self.dispatch_probe();
        }
        self.requeue_recovered();
        let config = Arc::clone(&self.config);
        match &config.handler {
            Handler::Async(handler) => {
                while let Some(message) = self.suspects.next(&mut self.keyed_queue) {
                    if self.submit_task(handler, message, self.pause.gate.clone()).is_none() {
                        return;
                    }
                }
            }
            Handler::Batch(handler) => self.dispatch_batches(handler),
        }
    }

    /// Submits a message to an async handler and returns the number of its run; none if it was not submitted.
    fn submit_task(&mut self, handler: &Arc<AsyncHandler>, mut message: InFlight, gate: SinkGate) -> Option<u64> {
        let job = self.run_context(gate).async_job(Arc::clone(handler), self.run_of(&mut message));
        match self.pool.submit(job) {
            Ok(number) => {
                self.submitted(number, message);
                Some(number)
            }
            Err(kind) => self.not_submitted(kind, vec![message]),
        }
    }

    /// Keeps messages that the pool has no room for. Those that a closed pool rejects are redelivered.
    fn not_submitted(&mut self, kind: SubmitErrorKind, messages: Vec<InFlight>) -> Option<u64> {
        for message in messages.into_iter().rev() {
            match kind {
                SubmitErrorKind::Full => self.keyed_queue.push_front(message),
                _ => self.release(&message),
            }
        }
        None
    }

    fn submitted(&mut self, number: u64, message: InFlight) {
        self.suspects.running += usize::from(message.suspect);
        self.in_pool.insert(number, message);
    }

    fn run_context(&self, gate: SinkGate) -> RunContext {
        let (config, stopping, dedup) = (Arc::clone(&self.config), self.stopping.clone(), self.dedup.clone());
        RunContext { config, stopping, gate, dedup }
    }

    fn run_of(&self, message: &mut InFlight) -> Run {
        let start = message.run.zip(self.starts.store.clone()).map(|(key, store)| {
            let recorded = Arc::clone(message.recorded.get_or_insert_default());
            Box::new(RunStart { store, key, recorded })
        });
        Run { delivery: message.delivery.clone(), session: message.cancel.clone(), start }
    }

    fn settle(&mut self, outcome: Outcome<JobOutput>) {
        let id = outcome.task.id.get();
        if let Some(result) = self.settle_batch(id, outcome.result) {
            self.settle_run(id, result);
        }
    }

    fn settle_run(&mut self, number: u64, result: Result<HandlerOutcome, Arc<TaskError>>) {
        use HandlerOutcome::{AlreadyDone, Done, Duplicate, InProgress, OverLimit, Skipped};
        let Some(mut message) = self.in_pool.remove(&number) else { return };
        self.suspects.running -= usize::from(message.suspect);
        match &result {
            Ok(Done { started } | Duplicate { started }) => {
                self.sink_worked(number, Some(*started));
            }
            Ok(AlreadyDone | InProgress | Skipped | OverLimit(_)) => self.pause.run_skipped(number),
            Err(error) => {
                if is_timeout(error) {
                    self.counters.timed_out.fetch_add(1, Relaxed);
                }
                if let Some(fault) = self.sink_failed(number, &mut message, error) {
                    return self.wait_for_sink(message, number, fault, error);
                }
            }
        }
        match result {
            Ok(Skipped) => self.skipped(message, number),
            Ok(InProgress) if self.will_be_redelivered(&message) => self.skipped(message, number),
            Ok(InProgress) => self.wait_in_place(message, IN_PROGRESS_DELAY, None::<fn()>),
            Ok(OverLimit(starts)) => self.over_limit(message, number, starts),
            Ok(outcome @ (Done { .. } | Duplicate { .. } | AlreadyDone)) => {
                let is_done = matches!(outcome, Done { .. });
                let counter = if is_done { &self.counters.handled } else { &self.counters.skipped };
                counter.fetch_add(1, Relaxed);
                self.keep_outcome(&message, RunPlace::Worker(number), || RunOutcome::Done);
                self.finish(&message);
            }
            Err(error) if matches!(error.cause(), Cause::Cancelled) => {
                self.interrupt(&message);
                self.release(&message);
            }
            Err(error) => {
                let ended = || RunOutcome::Failed(Box::new(message.clone()), Arc::clone(&error));
                match self.keep_outcome(&message, RunPlace::Worker(number), ended) {
                    true => self.release(&message),
                    false => self.failed(message, &error),
                }
            }
        }
    }

    /// Undoes the start of a run that this consumer ended as it stops.
    fn interrupt(&mut self, message: &InFlight) {
        self.undo_start(message);
        self.starts.release_row(message.run);
    }

    /// Undoes the recorded start of a run that ended without a crash.
    fn undo_start(&mut self, message: &InFlight) {
        if message.recorded.as_ref().is_some_and(|recorded| recorded.swap(false, Relaxed)) {
            self.starts.undo_start(message.run);
        }
    }

    /// Whether the broker redelivers the message: its channel is lost, or this consumer is stopping.
    fn will_be_redelivered(&self, message: &InFlight) -> bool {
        message.cancel.is_cancelled() || self.stopping.is_cancelled()
    }

    /// Handles a run that was not started: its channel was lost first, or the consumer is paused or stopping.
    fn skipped(&mut self, message: InFlight, number: u64) {
        if self.will_be_redelivered(&message) {
            return self.leave_to_broker(&message, RunPlace::Worker(number));
        }
        // A redelivery has replaced it, or consuming was paused.
        self.keyed_queue.push_front(message);
    }

    fn over_limit(&mut self, message: InFlight, number: u64, starts: u32) {
        if message.cancel.is_cancelled() {
            return self.leave_to_broker(&message, RunPlace::Worker(number));
        }
        let why = format!("started {starts} times without finishing: it may crash the process that runs it");
        self.dead_letter(message, Reason::Starts, why);
    }

    /// Marks a message as done, to be acknowledged, and frees its key.
    fn finish(&mut self, message: &InFlight) {
        if let Some(session) = self.end(message) {
            session.acks.mark_done(message.tag);
        }
    }

    /// Ends the work on a message. Returns its session; none if that is lost, and the broker redelivers the message.
    fn end(&mut self, message: &InFlight) -> Option<&mut Session> {
        self.release(message);
        self.starts.finish(message.run);
        if let Some(offset) = message.offset {
            self.offsets.finish(offset);
        }
        self.session.as_mut().filter(|_| !message.cancel.is_cancelled())
    }

    /// Forgets an unfinished message that the broker redelivers.
    fn leave_to_broker(&mut self, message: &InFlight, place: RunPlace) {
        self.forget_run(message, place);
        self.starts.release_row(message.run);
        self.release(message);
    }

    fn release(&mut self, message: &InFlight) {
        self.keyed_queue.release_key(message.key.as_ref());
    }

    fn failed(&mut self, message: InFlight, error: &TaskError) {
        let why = error_text(error);
        let is_transient = matches!(error.class(), ErrorClass::Transient | ErrorClass::Partial);
        let failed = message.delivery.failed_attempts().saturating_add(1);
        if !is_transient {
            return self.dead_letter(message, Reason::Permanent, why);
        }
        if failed >= self.config.retry.max_attempts() {
            return self.dead_letter(message, Reason::Attempts, why);
        }
        let delay = error.retry_after().unwrap_or_default().max(self.config.retry.delay(failed));
        if message.delivery.expires_within(delay) {
            return self.expire(&message);
        }
        self.counters.retried.fetch_add(1, Relaxed);
        tracing::warn!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            of = self.config.retry.max_attempts(),
            retry_in = ?delay,
            error = why,
            "a message failed; it will be retried"
        );
        match self.retries_in_place(&message) {
            true => self.retry_in_place(message, why, delay),
            false => self.start_follow_up(message, FollowUp::RetryLater { why, delay }),
        }
    }

    /// Whether a message waits for its retry here and not in a retry queue. A message returned to a stream would reach
    /// all its readers, and a queue of unknown kind may be a stream.
    fn retries_in_place(&self, message: &InFlight) -> bool {
        let maybe_stream = || self.config.kind.is_none() && offset_of(message.delivery.headers()).is_some();
        self.config.in_place || maybe_stream()
    }

    fn dead_letter(&mut self, message: InFlight, reason: Reason, why: String) {
        tracing::error!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            ?reason,
            error = why,
            "message dead-lettered"
        );
        self.start_follow_up(message, FollowUp::DeadLetter { reason, why });
    }

    /// Rejects a message that expires before its next attempt. The broker treats it like a message that expires in the
    /// queue: it goes to the queue's dead-letter exchange, or is dropped.
    fn expire(&mut self, message: &InFlight) {
        let Some(session) = self.end(message) else { return };
        session.reject(message.tag);
        self.counters.expired.fetch_add(1, Relaxed);
        tracing::info!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            "a message expires before its next attempt"
        );
    }

    /// Handles a lost channel: drops waiting messages and continues running ones. The broker redelivers both.
    fn on_channel_lost(&mut self, error: &Error) {
        let Some(session) = self.session.take() else { return };
        session.cancel.cancel();
        self.discard_waiting();
        self.orphan_all();
        self.counters.channel_losses.fetch_add(1, Relaxed);
        self.counters.consuming.store(false, Relaxed);
        tracing::warn!(consumer = self.config.name, %error, running = self.in_pool.len(), "consuming was interrupted");
    }

    fn discard_waiting(&mut self) {
        let mut waiting = self.batches.next.take();
        waiting.extend(self.suspects.waiting.drain(..));
        waiting.extend(self.pause.waiting.drain(..));
        for message in waiting {
            self.starts.release_row(message.run);
            self.release(&message);
        }
        let starts = &mut self.starts;
        self.keyed_queue.clear(|message| message.key.clone(), |message| starts.release_row(message.run));
    }

    fn update_gauges(&self) {
        self.counters.waiting.store(self.waiting() as u64, Relaxed);
        let in_flight = self.in_pool.len() + self.follow_ups.messages.len();
        self.counters.in_flight.store(in_flight as u64, Relaxed);
        if self.config.is_stream {
            let position = self.offsets.position();
            self.counters.position.store(position.map_or(0, |at| at.saturating_add(1)), Relaxed);
            if let Some(position_writer) = &self.position_writer {
                position_writer.record(position);
            }
        }
    }
}

impl Drop for Dispatcher {
    /// Prevents further runs. The broker redelivers unacknowledged messages.
    fn drop(&mut self) {
        self.stopping.cancel();
        self.pool.cancel();
    }
}
