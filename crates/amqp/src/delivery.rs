//! A message as its handler sees it.

use crate::{
    net::Received,
    starts::DeferredStart,
    wire::{properties::Properties, table::Headers},
};
use bytes::Bytes;
use gristmill_pool::TaskError;
use serde::de::DeserializeOwned;
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

/// Headers that Gristmill sets on messages that it moves.
pub mod header {
    /// How often a handler has failed on it.
    pub const FAILED: &str = "x-gristmill-failed";
    /// When a message that has an `expiration` expires, in milliseconds since 1970; set when it is tried again.
    pub const EXPIRES_AT: &str = "x-gristmill-expires-at";
    /// Since when the sink has failed with a message that was postponed for that, in milliseconds since 1970.
    pub const SINK_FAILED_SINCE: &str = "x-gristmill-sink-failed-since";
    /// 1 on a message that is tried again, if the sink failed with it and worked for another message that was started later.
    pub const FAILED_ALONE: &str = "x-gristmill-failed-alone";
    /// The queue it was taken from.
    pub const QUEUE: &str = "x-gristmill-queue";
    /// The exchange it was first published to.
    pub const EXCHANGE: &str = "x-gristmill-exchange";
    /// The routing key it was first published with.
    pub const ROUTING_KEY: &str = "x-gristmill-routing-key";
    /// The consumer that gave it up or put it off.
    pub const CONSUMER: &str = "x-gristmill-consumer";
    /// Of a message that waits for another attempt: the run of the consumer that expects it back, and its number there.
    pub const POSTPONED: &str = "x-gristmill-postponed";
    /// Of a dead letter: `permanent`, `attempts`, `starts` or `unreadable`.
    pub const REASON: &str = "x-gristmill-reason";
    /// What the last failure said.
    pub const ERROR: &str = "x-gristmill-error";
    /// When the last failure was, in UTC.
    pub const FAILED_AT: &str = "x-gristmill-failed-at";
    /// Who the broker had checked it was published by. (It refuses one that is not who moves it.)
    pub const USER: &str = "x-gristmill-user-id";
    /// Its own headers were so many that there was no room for ours: they are gone.
    pub const HEADERS_DROPPED: &str = "x-gristmill-headers-dropped";
    /// The `x-death` that a message had before it waited for another attempt: with it, the broker would drop a message
    /// that has expired in its queue before.
    pub const DEATH: &str = "x-gristmill-x-death";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C trace context, what vendors add.
    pub const TRACESTATE: &str = "tracestate";
}

/// A message that was delivered. Clones share it.
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    queue: Arc<str>,
    received: Box<Received>,
    failed: u32,
    deliveries: u32,
    /// When it expires, in milliseconds since 1970.
    expires_at: Option<u64>,
    unreadable: Option<String>,
    is_duplicate: AtomicBool,
    /// Set where the handler records its start.
    start: OnceLock<Box<DeferredStart>>,
}

impl Delivery {
    pub(crate) fn new(queue: &Arc<str>, mut received: Box<Received>) -> Self {
        let unreadable = received.malformed.as_ref().map(|malformed| format!("its properties: {malformed}"));
        let headers = &received.properties.headers;
        let has_returned_here = has_returned(headers, queue);
        let count = |name| {
            headers.get(name).and_then(crate::FieldValue::as_int).unwrap_or(0).clamp(0, u32::MAX.into())
                as u32
        };
        let failed = if has_returned_here { count(header::FAILED) } else { 0 };
        // Only the broker's: on a first delivery it is what the publisher wrote.
        let deliveries = if received.redelivered { count("x-delivery-count") } else { 0 };
        let expires_at = expires_at(&received.properties, queue);
        if has_returned_here {
            // It comes by the way of a queue of Gristmill; its own way is in its headers.
            let text = |name| {
                let text = headers.get(name).and_then(crate::FieldValue::as_str);
                // Names of exchanges and routing keys are never longer: Gristmill did not write such a header.
                text.filter(|text| text.len() <= 255).map(str::to_owned)
            };
            let (exchange, key) = (text(header::EXCHANGE), text(header::ROUTING_KEY));
            received.exchange = exchange.unwrap_or(received.exchange);
            received.key = key.unwrap_or(received.key);
        }
        Self(Arc::new(Inner {
            queue: Arc::clone(queue),
            received,
            failed,
            deliveries,
            expires_at,
            unreadable,
            is_duplicate: AtomicBool::new(false),
            start: OnceLock::new(),
        }))
    }

    /// What it says.
    pub fn body(&self) -> &Bytes {
        &self.0.received.body
    }

    /// What it says, as JSON. What cannot be decoded can never be: the error is permanent.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        serde_json::from_slice(self.body())
            .map_err(|error| TaskError::permanent(format!("the payload cannot be decoded: {error}")))
    }

    /// Everything beside the body.
    pub fn properties(&self) -> &Properties {
        &self.0.received.properties
    }

    /// Its headers.
    pub fn headers(&self) -> &Headers {
        &self.0.received.properties.headers
    }

    /// The id its publisher gave it; an empty one is none.
    pub fn message_id(&self) -> Option<&str> {
        self.0.received.properties.message_id.as_deref().filter(|id| !id.is_empty())
    }

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// The exchange it was published to.
    pub fn exchange(&self) -> &str {
        &self.0.received.exchange
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> &str {
        &self.0.received.key
    }

    /// The how-manieth attempt this is: 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.0.failed.saturating_add(1)
    }

    /// Whether it was delivered before, to a consumer that did not get to its end.
    pub fn is_redelivered(&self) -> bool {
        self.0.received.redelivered
    }

    /// How often a quorum queue has delivered it before, whether it was started or not. Other queues do not count.
    pub fn deliveries_before(&self) -> u32 {
        self.0.deliveries
    }

    /// The W3C trace context that it carries.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers().get(header::TRACEPARENT).and_then(crate::FieldValue::as_str)
    }

    /// All of it as JSON: exchange, routing key, every property, every header with its type, and the body.
    /// [`Message::from_json`](crate::Message::from_json) reads it.
    pub fn to_json(&self) -> serde_json::Value {
        crate::json_form::write(self)
    }

    /// Why its properties cannot be read, if they cannot.
    pub fn unreadable_properties(&self) -> Option<&str> {
        self.unreadable()
    }

    /// The handler has found that the message was handled before, and has not done it again: it counts as skipped.
    pub fn set_duplicate(&self) {
        self.0.is_duplicate.store(true, Relaxed);
    }

    /// Records that the work on these messages of one consumer begins, for a handler that
    /// [records starts](crate::Consumer::handler_records_starts). Blocks. Of each message whether it may be handled; one that
    /// may not has been started too often, and its handler returns `Ok` without doing anything.
    pub fn record_starts(deliveries: &[Delivery]) -> Vec<bool> {
        let starts: Vec<_> = deliveries.iter().filter_map(|one| one.0.start.get().map(Box::as_ref)).collect();
        DeferredStart::record_all(&starts);
        deliveries.iter().map(|one| one.over_limit().is_none()).collect()
    }

    /// Whether no other message should be handled together with this one: it failed before, or may have ended its process.
    pub fn runs_alone(&self) -> bool {
        self.attempt() > 1 || self.0.start.get().is_some_and(|start| start.is_suspect)
    }

    /// Has the handler record the start.
    pub(crate) fn defer_start(&self, start: DeferredStart) {
        // The same as before, if it is handled again.
        let _ = self.0.start.set(Box::new(start));
    }

    pub(crate) fn over_limit(&self) -> Option<u32> {
        self.0.start.get().and_then(|start| start.over_limit())
    }

    pub(crate) fn is_duplicate(&self) -> bool {
        self.0.is_duplicate.load(Relaxed)
    }

    /// The id that distinguishes it from other messages: bytes that are no UTF-8 are not the text that they are shown as.
    pub fn identity(&self) -> Option<String> {
        let id = self.message_id()?;
        Some(if self.0.received.properties.has_non_utf8_id() { format!("\u{1a}{id}") } else { id.to_owned() })
    }

    pub(crate) fn failed(&self) -> u32 {
        self.0.failed
    }

    pub(crate) fn unreadable(&self) -> Option<&str> {
        self.0.unreadable.as_deref()
    }

    /// When it expires, in milliseconds since 1970.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.0.expires_at
    }

    /// Whether its time was over when it came, as far as that is known: it was put off, and its time began before. The time of
    /// another begins with this delivery. The broker has not let it expire, so it has one attempt at least.
    pub(crate) fn expired_on_arrival(&self) -> bool {
        self.expires_within(Duration::ZERO) && deadline_from_headers(self.headers(), self.queue()).is_some()
    }

    /// Whether its time is over after this wait.
    pub(crate) fn expires_within(&self, wait: Duration) -> bool {
        self.0.expires_at.is_some_and(|at| u128::from(at) <= u128::from(now()) + wait.as_millis())
    }

    /// Since when the sink has failed with it, in milliseconds since 1970, if it was postponed for that.
    pub(crate) fn sink_failed_since(&self) -> Option<u64> {
        let since = self.headers().get(header::SINK_FAILED_SINCE)?;
        let since = since.as_int().filter(|_| has_returned(self.headers(), self.queue()))?;
        u64::try_from(since).ok()
    }

    /// Whether the sink failed with it and worked for another message, before it was moved to be tried again.
    pub(crate) fn failed_alone(&self) -> bool {
        let note = self.headers().get(header::FAILED_ALONE).and_then(crate::FieldValue::as_int);
        note == Some(1) && has_returned(self.headers(), self.queue())
    }

    /// The same message with this many failed attempts behind it.
    pub(crate) fn with_failures(&self, failed: u32) -> Self {
        let Inner { queue, received, deliveries, expires_at, unreadable, .. } = &*self.0;
        Self(Arc::new(Inner {
            queue: Arc::clone(queue),
            received: received.clone(),
            failed,
            deliveries: *deliveries,
            expires_at: *expires_at,
            unreadable: unreadable.clone(),
            is_duplicate: AtomicBool::new(false),
            start: OnceLock::new(),
        }))
    }
}

/// Whether a message was put off from this very queue and is on its way through it again. A dead letter that is read or
/// put back begins anew.
fn has_returned(headers: &Headers, queue: &str) -> bool {
    let from = headers.get(header::QUEUE).and_then(crate::FieldValue::as_str);
    from == Some(queue) && headers.get(header::REASON).is_none()
}

/// When a message expires. One that was put off carries that; for another its time begins now, because how long it was in
/// its queue is not known.
fn expires_at(properties: &Properties, queue: &str) -> Option<u64> {
    deadline_from_headers(&properties.headers, queue).or_else(|| {
        let ttl_ms: u64 = properties.expiration.as_ref()?.parse().ok()?;
        now().checked_add(ttl_ms)
    })
}

/// When a message expires that was put off from this queue.
fn deadline_from_headers(headers: &Headers, queue: &str) -> Option<u64> {
    let at = headers.get(header::EXPIRES_AT).filter(|_| has_returned(headers, queue))?;
    u64::try_from(at.as_int()?).ok()
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("queue", &self.queue())
            .field("message_id", &self.message_id())
            .field("attempt", &self.attempt())
            .field("bytes", &self.body().len())
            .finish_non_exhaustive()
    }
}
