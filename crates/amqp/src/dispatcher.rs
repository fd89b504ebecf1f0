//! One consumer at work: takes deliveries in, hands them to workers, and tells the broker what became of them.
//!
//! One task owns all of a consumer's state and puts everything that happens in order: deliveries, results, moves, the
//! loss of a channel, the end. Workers share nothing with it but their results.

mod ack_timeout;
mod errors;
mod expiry;
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
    consumer::{ConsumerConfig, OrderBy},
    delivery::Delivery,
    error::Error,
    fingerprint::Fingerprint,
    handler_pool::{CancelToken, Deduplicator, HandlerOutcome, HandlerPool, Job, RunStart, job},
    keyed_queue::{Key, KeyedQueue},
    net::Received,
    orphans::Orphans,
    positions::PositionWriter,
    reconnect::ManagedConnection,
    republish::{Reason, Republisher},
    sink_gate::SinkGate,
    starts::{DeferredStart, StartRecorded, Starts},
    stats::Counters,
    topology::Topology,
};
use ack_timeout::AckTimeout;
use errors::{error_text, is_timeout};
use follow_up::{FollowUp, FollowUps};
use gristmill_pool::{ErrorClass, Outcome, Results, TaskError, error::Cause};
use gristmill_store::message_runs::RunKey;
use offsets::{Offsets, offset_of};
use pause::{Pause, SinkFailures};
use redelivery::{RunOutcome, RunPlace};
use session::Session;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use suspects::Suspects;

/// How often is looked whether another consumer is done with a message of the same id.
const IN_PROGRESS_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct Dispatcher {
    config: Arc<ConsumerConfig>,
    broker: ManagedConnection,
    topology: Arc<Topology>,
    republisher: Republisher,
    dedup: Option<Arc<Deduplicator>>,
    pool: HandlerPool,
    results: Results<HandlerOutcome>,
    counters: Arc<Counters>,
    session: Option<Session>,
    keyed_queue: KeyedQueue<InFlight>,
    suspects: Suspects,
    /// Made ready for a worker when there was no room for it.
    overflow: Option<(Job, InFlight)>,
    /// In the pool, by their numbers there.
    in_pool: HashMap<u64, InFlight>,
    /// Being moved, or waiting for another attempt in their place.
    follow_ups: FollowUps,
    /// Whether the sink works, and what waits for it.
    pause: Pause<InFlight>,
    /// Those of a lost channel.
    orphans: Orphans<RunPlace, RunOutcome>,
    starts: Starts,
    /// In a stream: what is not done, and what comes next.
    offsets: Offsets,
    adaptive_prefetch: AdaptivePrefetch,
    ack_timeout: AckTimeout,
    /// When it was last looked at how fast handlers are.
    measured_at: Instant,
    /// Consumers of the queue beside this one: the fewest of all times that it began.
    other_consumers: Option<u32>,
    position_writer: Option<PositionWriter>,
    /// Nothing more is to be started.
    stopping: CancelToken,
}

/// A delivery between the broker and its end.
#[derive(Clone)]
struct InFlight {
    delivery: Delivery,
    tag: u64,
    key: Option<Key>,
    offset: Option<u64>,
    /// Revoked when its channel is lost: it can then not be acknowledged through it.
    cancel: CancelToken,
    /// Its row among the starts that are counted, where it may have been started before.
    run: Option<RunKey>,
    recorded: Option<StartRecorded>,
    /// What it is known by; computed when it is delivered again, or its channel is lost.
    fingerprint: Option<Fingerprint>,
    /// It may be what ended a process.
    suspect: bool,
    sink_failures: SinkFailures,
}

/// What a consumer is made of.
pub(crate) struct Parts {
    pub(crate) config: Arc<ConsumerConfig>,
    pub(crate) broker: ManagedConnection,
    pub(crate) topology: Arc<Topology>,
    pub(crate) republisher: Republisher,
    pub(crate) dedup: Option<Arc<Deduplicator>>,
    pub(crate) starts: Starts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pool: HandlerPool,
    pub(crate) results: Results<HandlerOutcome>,
    /// What keeps the position in a stream, and where that begins.
    pub(crate) position: Option<(PositionWriter, Option<u64>)>,
}

impl Dispatcher {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { config, broker, topology, republisher, dedup, starts, counters, pool, results, position } =
            parts;
        let adaptive_prefetch = AdaptivePrefetch::new(&config.sizing);
        let (position_writer, next) = position.unzip();
        let offsets = Offsets::from(next.flatten());
        let pause = Pause::new(config.probe_delay.0, config.probe_delay.1);
        let ack_timeout = AckTimeout::new(config.consumer_timeout);
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
            overflow: None,
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

    /// A delivery has come.
    fn on_delivery(&mut self, received: Box<Received>) -> Result<(), Error> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tag = received.tag;
        if !session.acks.track(tag) {
            let text = format!("the broker gave delivery {tag} a number that is not the next");
            return Err(Error::Channel { code: 541, text });
        }
        let cancel = session.cancel.clone();
        let delivery = Delivery::new(&self.config.queue, received);
        self.counters.received.fetch_add(1, Relaxed);
        self.counters.postponed.received(delivery.headers());
        if delivery.is_redelivered() {
            self.counters.redelivered.fetch_add(1, Relaxed);
        }
        // Only a stream's: anybody can put a header of that name on a message.
        let offset = self.config.is_stream.then(|| offset_of(&delivery)).flatten();
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

    /// It is to run, unless something speaks against it.
    fn admit(&mut self, message: InFlight) {
        // By a way of its own, and so without its lane: it never runs.
        if let Some(why) = message.delivery.unreadable().map(str::to_owned) {
            return self.dead_letter(InFlight { key: None, ..message }, Reason::Unreadable, why);
        }
        if message.delivery.expired_on_arrival() {
            return self.expire(&InFlight { key: None, ..message });
        }
        self.keyed_queue.push(message.key.clone(), message);
    }

    fn key_of(&self, delivery: &Delivery) -> Option<Key> {
        match &self.config.order {
            Some(OrderBy::RoutingKey) => Some(delivery.routing_key().into()),
            Some(OrderBy::Header(name)) => delivery.headers().get(name).map(|value| value.to_string().into()),
            // One worker: all in one line, also behind one that waits for its next attempt.
            None if self.config.sizing.workers == 1 => Some("".into()),
            // Two of the same id at once would both not have been seen before.
            None if self.config.dedup_window.is_some() => delivery.identity().map(Key::from),
            None => None,
        }
    }

    /// Hands workers what they have room for.
    fn dispatch(&mut self) {
        if self.pause.is_paused() {
            return self.dispatch_probe();
        }
        self.requeue_recovered();
        loop {
            let (job, message) = match self.overflow.take() {
                Some(overflow) => overflow,
                None => {
                    let Some(mut message) = self.suspects.next(&mut self.keyed_queue) else { return };
                    (self.job(&mut message, self.pause.gate().clone()), message)
                }
            };
            match self.pool.submit(job) {
                Ok(number) => self.submitted(number, message),
                Err(Some(job)) => {
                    self.overflow = Some((job, message));
                    return;
                }
                // The pool is closed: it stays with the broker.
                Err(None) => self.release(&message),
            }
        }
    }

    fn submitted(&mut self, number: u64, message: InFlight) {
        self.suspects.started(&message);
        self.in_pool.insert(number, message);
    }

    fn job(&self, message: &mut InFlight, gate: SinkGate) -> Job {
        let cancel = [message.cancel.clone(), self.stopping.clone()];
        let by_handler = self.config.handler_records_starts;
        let start = message.run.zip(self.starts.store().cloned()).map(|(key, store)| {
            let recorded = message.recorded.get_or_insert_default().clone();
            Box::new(RunStart { store, key, recorded, by_handler })
        });
        if let Some(start) = start.as_ref().filter(|_| by_handler) {
            let RunStart { store, key, recorded, .. } = RunStart::clone(start);
            message.delivery.defer_start(DeferredStart::new(store, key, recorded, message.suspect));
        }
        job(&self.config, message.delivery.clone(), cancel, gate, start, self.dedup.as_ref())
    }

    /// A worker is done with one.
    fn settle(&mut self, outcome: Outcome<HandlerOutcome>) {
        let number = outcome.task.id.get();
        let Some(mut message) = self.in_pool.remove(&number) else { return };
        self.suspects.ended(&message);
        match &outcome.result {
            Ok(HandlerOutcome::Done { started } | HandlerOutcome::Duplicate { started }) => {
                self.sink_worked(number, Some(*started));
            }
            Ok(
                HandlerOutcome::AlreadyDone
                | HandlerOutcome::InProgress
                | HandlerOutcome::Skipped
                | HandlerOutcome::OverLimit(_),
            ) => self.pause.run_skipped(number),
            Err(failure) => {
                if is_timeout(&failure.error) {
                    self.counters.timed_out.fetch_add(1, Relaxed);
                }
                if let Some(fault) = self.sink_failed(number, &mut message, &failure.error) {
                    return self.wait_for_sink(message, number, fault, &failure.error);
                }
            }
        }
        match outcome.result {
            Ok(HandlerOutcome::Skipped) => self.skipped(message, number),
            Ok(HandlerOutcome::InProgress) if self.will_be_redelivered(&message) => {
                self.skipped(message, number)
            }
            Ok(HandlerOutcome::InProgress) => self.wait_in_place(message, IN_PROGRESS_DELAY, None::<fn()>),
            Ok(HandlerOutcome::OverLimit(starts)) => self.over_limit(message, number, starts),
            Ok(
                ran @ (HandlerOutcome::Done { .. }
                | HandlerOutcome::Duplicate { .. }
                | HandlerOutcome::AlreadyDone),
            ) => {
                let is_done = matches!(ran, HandlerOutcome::Done { .. });
                let counter = if is_done { &self.counters.done } else { &self.counters.skipped };
                counter.fetch_add(1, Relaxed);
                self.keep_outcome(&message, RunPlace::Worker(number), || RunOutcome::Done);
                self.finish(&message);
            }
            Err(failure) if matches!(failure.error.cause(), Cause::Cancelled) => {
                self.interrupt(&message);
                self.release(&message);
            }
            Err(failure) => {
                let error = failure.error;
                let ended = || RunOutcome::Failed(Box::new(message.clone()), Arc::clone(&error));
                match self.keep_outcome(&message, RunPlace::Worker(number), ended) {
                    true => self.release(&message),
                    false => self.failed(message, &error),
                }
            }
        }
    }

    /// The consumer itself ended the run, as it stops, and gives the message back.
    fn interrupt(&mut self, message: &InFlight) {
        self.undo_start(message);
        self.starts.release_row(message.run);
    }

    /// The run has ended, by no fault of the message: its start does not count, if it has recorded one.
    fn undo_start(&mut self, message: &InFlight) {
        if message.recorded.as_ref().is_some_and(StartRecorded::take) {
            self.starts.undo_start(message.run);
        }
    }

    /// Whether the broker has the message back, or gets it back when this consumer has stopped.
    fn will_be_redelivered(&self, message: &InFlight) -> bool {
        message.cancel.is_cancelled() || self.stopping.is_cancelled()
    }

    /// It was not started: its channel was lost before a worker took it, or the consumer pauses or stops.
    fn skipped(&mut self, message: InFlight, number: u64) {
        if self.will_be_redelivered(&message) {
            self.forget_run(&message, RunPlace::Worker(number));
            self.starts.release_row(message.run);
            return self.release(&message);
        }
        // A new delivery has taken its place, or consuming was paused.
        self.keyed_queue.push_front(message);
    }

    fn over_limit(&mut self, message: InFlight, number: u64, starts: u32) {
        if message.cancel.is_cancelled() {
            self.forget_run(&message, RunPlace::Worker(number));
            self.starts.release_row(message.run);
            return self.release(&message);
        }
        let why = format!(
            "started again {starts} times without getting to its end: it may end the process that runs it"
        );
        self.dead_letter(message, Reason::Starts, why);
    }

    /// It is done here: to be acknowledged, and the next of its lane may start.
    fn finish(&mut self, message: &InFlight) {
        self.release(message);
        self.starts.finish(message.run);
        if let Some(offset) = message.offset {
            self.offsets.finish(offset);
        }
        match &mut self.session {
            Some(session) if !message.cancel.is_cancelled() => session.acks.mark_done(message.tag),
            // The broker has it back, and will send it again.
            _ => {}
        }
    }

    fn release(&mut self, message: &InFlight) {
        self.keyed_queue.release_key(message.key.as_ref());
    }

    fn failed(&mut self, message: InFlight, error: &TaskError) {
        let why = error_text(error);
        let is_transient = matches!(error.class(), ErrorClass::Transient | ErrorClass::Partial);
        let failed = message.delivery.failed().saturating_add(1);
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
            again_after = ?delay,
            error = why,
            "a message failed; it is tried again"
        );
        match self.retries_in_place(&message) {
            true => self.retry_in_place(message, why, delay),
            false => self.start_follow_up(message, FollowUp::RetryLater { why, delay }),
        }
    }

    /// Whether a message waits here for another attempt, and not in a queue. What falls back into a stream would come to all who
    /// read it; a queue that was there already may be one.
    fn retries_in_place(&self, message: &InFlight) -> bool {
        let maybe_stream = || self.config.kind.is_none() && offset_of(&message.delivery).is_some();
        self.config.in_place || maybe_stream()
    }

    fn dead_letter(&mut self, message: InFlight, reason: Reason, why: String) {
        tracing::error!(
            consumer = self.config.name,
            id = message.delivery.message_id(),
            attempt = message.delivery.attempt(),
            ?reason,
            error = why,
            "a message is given up; it goes to the dead letters"
        );
        self.start_follow_up(message, FollowUp::DeadLetter { reason, why });
    }

    /// The channel is lost: what waits is the broker's again, what runs continues and is known when it comes again.
    fn on_channel_lost(&mut self, error: &Error) {
        let Some(session) = self.session.take() else { return };
        session.cancel.cancel();
        self.discard_waiting();
        self.orphan_all();
        self.counters.lost.fetch_add(1, Relaxed);
        self.counters.consuming.store(false, Relaxed);
        tracing::warn!(consumer = self.config.name, %error, running = self.in_pool.len(), "consuming was interrupted");
    }

    fn discard_waiting(&mut self) {
        if let Some((_, message)) = self.overflow.take() {
            self.starts.release_row(message.run);
            self.release(&message);
        }
        for message in self.suspects.clear().into_iter().chain(self.pause.take_waiting()) {
            self.starts.release_row(message.run);
            self.release(&message);
        }
        let starts = &mut self.starts;
        self.keyed_queue
            .discard_waiting(|message| message.key.clone(), |message| starts.release_row(message.run));
    }

    fn update_gauges(&self) {
        self.counters.waiting.store(self.waiting() as u64, Relaxed);
        let under_way = self.in_pool.len() + self.follow_ups.len();
        self.counters.in_flight.store(under_way as u64, Relaxed);
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
    /// Ended without a word: nothing more is begun. What was not acknowledged the broker delivers again.
    fn drop(&mut self) {
        self.stopping.cancel();
        self.pool.cancel();
    }
}
