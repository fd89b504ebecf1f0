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
mod settle;
mod settle_on_stop;
mod sink;
mod submit;
mod suspects;

use crate::{
    adaptive_prefetch::AdaptivePrefetch,
    consumer::{ConsumerConfig, OrderBy},
    dedup::Deduplicator,
    delivery::Delivery,
    error::Error,
    fingerprint::Fingerprint,
    handler_pool::{HandlerPool, JobOutput},
    keyed_queue::{Key, KeyedQueue},
    net::Received,
    orphans::Orphans,
    positions::{PositionWriter, offset_of},
    reconnect::ManagedConnection,
    republish::{Reason, Republisher},
    starts::{StartRecorded, Starts},
    stats::Counters,
    store::RunKey,
    topology::Topology,
};
use ack_timeout::AckTimeout;
use batch::Batches;
use follow_up::FollowUps;
use gristmill_pool::{CancelToken, Results};
use offsets::Offsets;
use pause::{Pause, SinkFailures};
use redelivery::{RunOutcome, RunPlace};
use session::Session;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};
use suspects::Suspects;

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

    /// Number of messages that wait for a worker or for the sink.
    fn waiting(&self) -> usize {
        self.keyed_queue.len() + self.suspects.waiting.len() + self.batches.next.items.len() + self.pause.waiting.len()
    }

    /// Drops the messages that wait for a worker or for the sink. The broker redelivers them.
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
