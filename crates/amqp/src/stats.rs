//! Statistics of a client and its consumers, as a snapshot and in the Prometheus text format.

use crate::{consumer::ConsumerConfig, handler_pool::HandlerPool, postponed::Postponed, reconnect::ConnectionState};
use gristmill_pool::{
    prometheus::{
        MetricType::{self, Counter, Gauge},
        MetricsText,
    },
    stats::KindStats,
};
use serde::Serialize;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use tokio::sync::watch;

/// Statistics of a [`Client`](crate::Client) at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClientStats {
    /// Whether the client is connected to a broker.
    pub connected: bool,
    /// Number of connections so far, including the current one.
    pub connections: u64,
    /// Why the broker has blocked publishing, while it has.
    pub blocked: Option<String>,
    /// Statistics of each consumer, in the order of declaration.
    pub consumers: Vec<ConsumerStats>,
}

/// Statistics of one consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Name of the consumer.
    pub name: String,
    /// Name of its queue.
    pub queue: String,
    /// Type of its messages, as declared with [`Consumer::event`](crate::Consumer::event).
    pub event: Option<String>,
    /// Whether it consumes from the broker now.
    pub consuming: bool,
    /// Maximum number of messages handled at a time.
    pub workers: usize,
    /// Current prefetch; it follows how long handlers take.
    pub prefetch: u16,
    /// Number of deliveries, including redeliveries.
    pub received: u64,
    /// Deliveries that were delivered before and not acknowledged.
    pub redelivered: u64,
    /// Messages whose handler succeeded.
    pub handled: u64,
    /// Messages acknowledged, whatever their outcome.
    pub acknowledged: u64,
    /// Failed attempts that are retried.
    pub retried: u64,
    /// Messages that became dead letters.
    pub dead_lettered: u64,
    /// Messages skipped because they were handled before.
    pub skipped: u64,
    /// Error of the sink, while consuming is paused.
    pub paused: Option<String>,
    /// Number of pauses so far.
    pub pauses: u64,
    /// Attempts that failed because of the sink.
    pub sink_failures: u64,
    /// Messages that expired before their next attempt.
    pub expired: u64,
    /// Number of handler runs that panicked.
    pub panicked: u64,
    /// Handler runs that timed out, by the consumer's timeout or with an [`std::io::Error`] of the kind `TimedOut`.
    pub timed_out: u64,
    /// Number of times that its channel was lost.
    pub channel_losses: u64,
    /// Messages in retry queues that are expected back.
    pub postponed: u64,
    /// Messages that did not return within ten minutes after their delay, at most 100,000: another consumer of the
    /// queue received them, or the broker cannot return them.
    pub overdue: u64,
    /// Messages with a worker, or being republished.
    pub in_flight: u64,
    /// Delivered messages that wait for a worker.
    pub waiting: u64,
    /// Lowest unfinished offset, for a consumer of a stream.
    pub position: Option<u64>,
    /// Offset where a consumer of a stream began, if it was known before the first message.
    #[serde(skip)]
    pub began_at: Option<u64>,
    /// Messages ready in the queue when the broker was last queried.
    pub lag: Option<u64>,
    /// Duration statistics of its handler.
    pub handler: Option<KindStats>,
}

/// Reads the statistics of a [`Client`](crate::Client), also while it shuts down.
#[derive(Clone)]
pub struct StatsHandle {
    pub(crate) consuming: watch::Receiver<ConnectionState>,
    pub(crate) publishing: watch::Receiver<ConnectionState>,
    pub(crate) consumers: Vec<ConsumerView>,
}

impl StatsHandle {
    /// Takes a snapshot of the statistics.
    pub fn stats(&self) -> ClientStats {
        let (connected, connections) = match &*self.consuming.borrow() {
            ConnectionState::Connected(connection, count) => (!connection.has_ended(), *count),
            ConnectionState::Disconnected(_, _, count) => (false, *count),
        };
        let blocked = match &*self.publishing.borrow() {
            ConnectionState::Connected(connection, _) => connection.blocked().borrow().clone(),
            ConnectionState::Disconnected(..) => None,
        };
        ClientStats {
            connected,
            connections,
            blocked,
            consumers: self.consumers.iter().map(ConsumerView::stats).collect(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) consuming: AtomicBool,
    pub(crate) prefetch: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) redelivered: AtomicU64,
    pub(crate) handled: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// Handler runs that reported their own timeout.
    pub(crate) timed_out: AtomicU64,
    paused: Mutex<Option<String>>,
    pauses: AtomicU64,
    pub(crate) sink_failures: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) channel_losses: AtomicU64,
    pub(crate) postponed: Arc<Postponed>,
    pub(crate) in_flight: AtomicU64,
    pub(crate) waiting: AtomicU64,
    /// One more than the lowest unfinished offset; 0: unknown.
    pub(crate) position: AtomicU64,
    /// One more than the offset where it began; 0: unknown.
    pub(crate) began_at: AtomicU64,
    /// One more than the lag; 0: unknown.
    pub(crate) lag: AtomicU64,
}

impl Counters {
    /// Sets why consuming is paused, or that it is not.
    pub(crate) fn set_paused(&self, why: Option<String>) {
        if why.is_some() {
            self.pauses.fetch_add(1, Relaxed);
        }
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn paused(&self) -> Option<String> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Parts of a consumer that its statistics are read from.
#[derive(Clone)]
pub(crate) struct ConsumerView {
    pub(crate) config: Arc<ConsumerConfig>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pool: HandlerPool,
}

impl ConsumerView {
    pub(crate) fn stats(&self) -> ConsumerStats {
        let Self { config, counters, pool } = self;
        let pool = pool.stats();
        let (postponed, overdue) = counters.postponed.count();
        ConsumerStats {
            name: config.name.clone(),
            queue: config.queue.to_string(),
            event: config.declared.event.clone(),
            consuming: counters.consuming.load(Relaxed),
            workers: config.sizing.messages(),
            prefetch: counters.prefetch.load(Relaxed) as u16,
            received: counters.received.load(Relaxed),
            redelivered: counters.redelivered.load(Relaxed),
            handled: counters.handled.load(Relaxed),
            acknowledged: counters.acknowledged.load(Relaxed),
            retried: counters.retried.load(Relaxed),
            dead_lettered: counters.dead_lettered.load(Relaxed),
            skipped: counters.skipped.load(Relaxed),
            paused: counters.paused(),
            pauses: counters.pauses.load(Relaxed),
            sink_failures: counters.sink_failures.load(Relaxed),
            expired: counters.expired.load(Relaxed),
            panicked: pool.panicked,
            timed_out: pool.timed_out + counters.timed_out.load(Relaxed),
            channel_losses: counters.channel_losses.load(Relaxed),
            postponed,
            overdue,
            in_flight: counters.in_flight.load(Relaxed),
            waiting: counters.waiting.load(Relaxed),
            position: counters.position.load(Relaxed).checked_sub(1),
            began_at: counters.began_at.load(Relaxed).checked_sub(1),
            lag: counters.lag.load(Relaxed).checked_sub(1),
            handler: pool.kinds.into_iter().next(),
        }
    }
}

impl ClientStats {
    /// Formats the statistics in the Prometheus text format.
    pub fn prometheus(&self) -> String {
        type Value = fn(&ConsumerStats) -> Option<f64>;
        let of_consumers: &[(&str, MetricType, &str, Value)] = &[
            ("consuming", Gauge, "Whether the consumer consumes.", |one| flag(one.consuming)),
            ("workers", Gauge, "Maximum number of messages handled at a time.", |one| Some(one.workers as f64)),
            ("prefetch", Gauge, "Current prefetch.", |one| Some(f64::from(one.prefetch))),
            ("messages_total", Counter, "Deliveries, including redeliveries.", |one| count(one.received)),
            ("redelivered_total", Counter, "Redeliveries.", |one| count(one.redelivered)),
            ("handled_total", Counter, "Messages handled.", |one| count(one.handled)),
            ("acks_total", Counter, "Messages acknowledged.", |one| count(one.acknowledged)),
            ("retries_total", Counter, "Retried attempts.", |one| count(one.retried)),
            ("dead_lettered_total", Counter, "Dead letters.", |one| count(one.dead_lettered)),
            ("duplicates_skipped_total", Counter, "Skipped duplicates.", |one| count(one.skipped)),
            ("paused", Gauge, "Whether consuming is paused because the sink fails.", |one| flag(one.paused.is_some())),
            ("pauses_total", Counter, "Pauses because the sink failed.", |one| count(one.pauses)),
            ("sink_failures_total", Counter, "Attempts that failed because of the sink.", |one| {
                count(one.sink_failures)
            }),
            ("expired_total", Counter, "Messages that expired between attempts.", |one| count(one.expired)),
            ("panics_total", Counter, "Handler runs that panicked.", |one| count(one.panicked)),
            ("timeouts_total", Counter, "Handler runs that timed out.", |one| count(one.timed_out)),
            ("channel_losses_total", Counter, "Lost channels.", |one| count(one.channel_losses)),
            ("postponed", Gauge, "Messages in retry queues.", |one| count(one.postponed)),
            ("overdue", Gauge, "Messages that did not return from a retry queue in time.", |one| count(one.overdue)),
            ("in_flight", Gauge, "Messages in flight.", |one| count(one.in_flight)),
            ("waiting", Gauge, "Messages waiting for a worker.", |one| count(one.waiting)),
            ("lag", Gauge, "Messages ready in the queue.", |one| count(one.lag?)),
            ("handler_seconds_p50", Gauge, "Median handler duration in seconds.", |one| {
                seconds(one.handler.as_ref()?.p50_ns)
            }),
            ("handler_seconds_p95", Gauge, "95th percentile of handler durations in seconds.", |one| {
                seconds(one.handler.as_ref()?.p95_ns)
            }),
            ("handler_seconds_p99", Gauge, "99th percentile of handler durations in seconds.", |one| {
                seconds(one.handler.as_ref()?.p99_ns)
            }),
        ];
        let mut text = MetricsText::new("gristmill_amqp_");
        for (name, kind, help, value) in of_consumers {
            let mut metric = text.metric(name, *kind, help);
            for one in &self.consumers {
                if let Some(value) = value(one) {
                    metric.sample(&[("consumer", &one.name), ("queue", &one.queue)], value);
                }
            }
        }
        for (name, kind, help, value) in [
            ("connected", Gauge, "Whether the client is connected.", flag(self.connected)),
            ("blocked", Gauge, "Whether the broker blocks publishing.", flag(self.blocked.is_some())),
            ("connections_total", Counter, "Connections so far.", count(self.connections)),
        ] {
            text.metric(name, kind, help).sample(&[], value.unwrap_or_default());
        }
        text.to_string()
    }
}

fn count(value: u64) -> Option<f64> {
    Some(value as f64)
}

fn flag(is_set: bool) -> Option<f64> {
    Some(f64::from(u8::from(is_set)))
}

fn seconds(nanos: u64) -> Option<f64> {
    Some(nanos as f64 / 1e9)
}
