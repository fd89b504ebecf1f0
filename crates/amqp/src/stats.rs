//! How it goes: one snapshot for people, programs and Prometheus.

use crate::{
    consumer::ConsumerConfig, handler_pool::HandlerPool, postponed::Postponed, reconnect::ConnectionState,
};
use gristmill_pool::stats::KindStats;
use serde::Serialize;
use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::watch;

/// How a [`Client`](crate::Client) goes, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClientStats {
    /// Whether there is a connection.
    pub connected: bool,
    /// Connections so far.
    pub connections: u64,
    /// Why the broker takes no messages from us, while it does not.
    pub blocked: Option<String>,
    /// Each consumer.
    pub consumers: Vec<ConsumerStats>,
}

/// How one consumer goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConsumerStats {
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// What its messages are about.
    pub event: Option<String>,
    /// Whether it is consuming now.
    pub consuming: bool,
    /// How many messages at a time.
    pub workers: usize,
    /// How many the broker sends ahead now; it follows how long handlers take.
    pub prefetch: u16,
    /// Messages delivered.
    pub received: u64,
    /// Of these, delivered before to somebody who did not get to their end.
    pub redelivered: u64,
    /// Messages whose handler was done with them.
    pub done: u64,
    /// Messages acknowledged, whatever became of them.
    pub acknowledged: u64,
    /// Attempts that failed and are made again.
    pub retried: u64,
    /// Messages given up.
    pub rejected: u64,
    /// Messages that were done before and not done again.
    pub skipped: u64,
    /// Why consuming is paused, while it is: how the sink fails.
    pub paused: Option<String>,
    /// Times that consuming was paused.
    pub pauses: u64,
    /// Attempts that failed because of the sink.
    pub sink_failures: u64,
    /// Messages whose `expiration` was over before their next attempt.
    pub expired: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Handlers that took too long, by the consumer's timeout or by one of their own: an [`std::io::Error`] of the kind
    /// `TimedOut`.
    pub timed_out: u64,
    /// Times that its channel was lost.
    pub interrupted: u64,
    /// Messages that were moved to wait for another attempt, and are expected back.
    pub postponed: u64,
    /// Those that did not come back within ten minutes after their wait, at most 100,000: another consumer of the queue has
    /// received them, or the broker cannot return them.
    pub overdue: u64,
    /// Messages with a worker, or on their way elsewhere.
    pub in_flight: u64,
    /// Messages here that wait for a worker.
    pub waiting: u64,
    /// Of a consumer of a stream: the lowest offset that is not finished.
    pub position: Option<u64>,
    /// Of a consumer of a stream: the offset where it began, if that was known before the first message.
    #[serde(skip)]
    pub began_at: Option<u64>,
    /// Messages at the broker that wait to be delivered, when it last was asked.
    pub lag: Option<u64>,
    /// How long handlers take.
    pub handler: Option<KindStats>,
}

/// Tells how a [`Client`](crate::Client) goes, also while it is being shut down.
#[derive(Clone)]
pub struct StatsHandle {
    pub(crate) consuming: watch::Receiver<ConnectionState>,
    pub(crate) publishing: watch::Receiver<ConnectionState>,
    pub(crate) consumers: Vec<ConsumerView>,
}

impl StatsHandle {
    /// How it goes now.
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

/// What a consumer counts.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) consuming: AtomicBool,
    pub(crate) prefetch: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) redelivered: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// Handlers that reported a timeout of their own.
    pub(crate) timed_out: AtomicU64,
    paused: Mutex<Option<String>>,
    pauses: AtomicU64,
    pub(crate) sink_failures: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) postponed: Arc<Postponed>,
    pub(crate) in_flight: AtomicU64,
    pub(crate) waiting: AtomicU64,
    /// One more than the lowest offset that is not finished; 0: not known.
    pub(crate) position: AtomicU64,
    /// One more than the offset where it began.
    pub(crate) began_at: AtomicU64,
    /// One more than the lag; 0: not asked yet.
    pub(crate) lag: AtomicU64,
}

impl Counters {
    /// Consuming is paused for this reason, or is not any more.
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

/// A consumer as statistics see it.
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
            event: config.event.clone(),
            consuming: counters.consuming.load(Relaxed),
            workers: config.sizing.workers,
            prefetch: counters.prefetch.load(Relaxed) as u16,
            received: counters.received.load(Relaxed),
            redelivered: counters.redelivered.load(Relaxed),
            done: counters.done.load(Relaxed),
            acknowledged: counters.acknowledged.load(Relaxed),
            retried: counters.retried.load(Relaxed),
            rejected: counters.rejected.load(Relaxed),
            skipped: counters.skipped.load(Relaxed),
            paused: counters.paused(),
            pauses: counters.pauses.load(Relaxed),
            sink_failures: counters.sink_failures.load(Relaxed),
            expired: counters.expired.load(Relaxed),
            panicked: pool.panicked,
            timed_out: pool.timed_out + counters.timed_out.load(Relaxed),
            interrupted: counters.lost.load(Relaxed),
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
    /// The same in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str,
                          kind: &str,
                          help: &str,
                          values: &dyn Fn(&ConsumerStats) -> Option<f64>| {
            let _ =
                writeln!(text, "# HELP gristmill_amqp_{name} {help}\n# TYPE gristmill_amqp_{name} {kind}");
            for one in &self.consumers {
                if let Some(value) = values(one) {
                    let (consumer, queue) = (escaped(&one.name), escaped(&one.queue));
                    let _ = writeln!(
                        text,
                        "gristmill_amqp_{name}{{consumer=\"{consumer}\",queue=\"{queue}\"}} {value}"
                    );
                }
            }
        };
        let seconds = |pick: fn(&KindStats) -> u64| {
            move |one: &ConsumerStats| one.handler.as_ref().map(|handler| pick(handler) as f64 / 1e9)
        };
        metric("consuming", "gauge", "Whether it is consuming.", &|one| {
            Some(f64::from(u8::from(one.consuming)))
        });
        metric("workers", "gauge", "Messages at a time.", &|one| Some(one.workers as f64));
        metric("prefetch", "gauge", "Messages sent ahead.", &|one| Some(f64::from(one.prefetch)));
        metric("messages_total", "counter", "Messages delivered.", &|one| Some(one.received as f64));
        metric("redelivered_total", "counter", "Messages delivered again.", &|one| {
            Some(one.redelivered as f64)
        });
        metric("done_total", "counter", "Messages done.", &|one| Some(one.done as f64));
        metric("acks_total", "counter", "Messages acknowledged.", &|one| Some(one.acknowledged as f64));
        metric("retries_total", "counter", "Attempts made again.", &|one| Some(one.retried as f64));
        metric("rejects_total", "counter", "Messages given up.", &|one| Some(one.rejected as f64));
        metric("skipped_total", "counter", "Messages done before.", &|one| Some(one.skipped as f64));
        metric("paused", "gauge", "Whether consuming is paused because the sink fails.", &|one| {
            Some(f64::from(u8::from(one.paused.is_some())))
        });
        metric("pauses_total", "counter", "Pauses because the sink failed.", &|one| Some(one.pauses as f64));
        metric("sink_failures_total", "counter", "Attempts that failed because of the sink.", &|one| {
            Some(one.sink_failures as f64)
        });
        metric("expired_total", "counter", "Messages that expired between attempts.", &|one| {
            Some(one.expired as f64)
        });
        metric("panics_total", "counter", "Handlers that panicked.", &|one| Some(one.panicked as f64));
        metric("timeouts_total", "counter", "Handlers that took too long.", &|one| {
            Some(one.timed_out as f64)
        });
        metric("interruptions_total", "counter", "Channels lost.", &|one| Some(one.interrupted as f64));
        metric("postponed", "gauge", "Messages that wait for another attempt.", &|one| {
            Some(one.postponed as f64)
        });
        metric("overdue", "gauge", "Messages that did not come back for another attempt.", &|one| {
            Some(one.overdue as f64)
        });
        metric("in_flight", "gauge", "Messages under way.", &|one| Some(one.in_flight as f64));
        metric("waiting", "gauge", "Messages waiting for a worker.", &|one| Some(one.waiting as f64));
        metric("lag", "gauge", "Messages waiting at the broker.", &|one| one.lag.map(|lag| lag as f64));
        metric(
            "handler_seconds_p50",
            "gauge",
            "Half of the handlers took no longer.",
            &seconds(|one| one.p50_ns),
        );
        metric(
            "handler_seconds_p95",
            "gauge",
            "95 % of the handlers took no longer.",
            &seconds(|one| one.p95_ns),
        );
        metric(
            "handler_seconds_p99",
            "gauge",
            "99 % of the handlers took no longer.",
            &seconds(|one| one.p99_ns),
        );
        let connection = [
            ("connected", "gauge", "Whether there is a connection.", u64::from(self.connected)),
            ("blocked", "gauge", "Whether the broker takes no messages.", u64::from(self.blocked.is_some())),
            ("connections_total", "counter", "Connections made.", self.connections),
        ];
        for (name, kind, help, value) in connection {
            let _ = writeln!(
                text,
                "# HELP gristmill_amqp_{name} {help}\n# TYPE gristmill_amqp_{name} {kind}\ngristmill_amqp_{name} {value}"
            );
        }
        text
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
