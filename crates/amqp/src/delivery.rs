//! A delivered message as its handler sees it, and the headers that Gristmill sets.

use crate::{
    net::Received,
    wire::{properties::Properties, table::Headers},
};
use bytes::Bytes;
use gristmill_pool::TaskError;
use serde::de::DeserializeOwned;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

/// Names of headers that Gristmill sets on messages that it republishes.
pub mod header {
    /// Number of failed attempts.
    pub const FAILED: &str = "x-gristmill-failed";
    /// When a message with an `expiration` expires, in milliseconds since 1970; set when it is retried.
    pub const EXPIRES_AT: &str = "x-gristmill-expires-at";
    /// When the sink began to fail for a message that was postponed for it, in milliseconds since 1970.
    pub const SINK_FAILED_SINCE: &str = "x-gristmill-sink-failed-since";
    /// 1 on a message that is retried, if the sink failed for it and worked for another message that started later.
    pub const FAILED_ALONE: &str = "x-gristmill-failed-alone";
    /// Name of the queue that delivered the message.
    pub const QUEUE: &str = "x-gristmill-queue";
    /// Exchange to which the message was first published.
    pub const EXCHANGE: &str = "x-gristmill-exchange";
    /// Routing key with which the message was first published.
    pub const ROUTING_KEY: &str = "x-gristmill-routing-key";
    /// Name of the consumer that republished the message.
    pub const CONSUMER: &str = "x-gristmill-consumer";
    /// On a message in a retry queue: the run of the consumer that expects it back, and its number there.
    pub const POSTPONED: &str = "x-gristmill-postponed";
    /// On a dead letter: `permanent`, `attempts`, `starts` or `unreadable`.
    pub const REASON: &str = "x-gristmill-reason";
    /// Text of the last error, at most 2,000 bytes.
    pub const ERROR: &str = "x-gristmill-error";
    /// Time of the last failure, in UTC.
    pub const FAILED_AT: &str = "x-gristmill-failed-at";
    /// The `user_id` property of the original: the broker refuses it on a message of another user.
    pub const USER: &str = "x-gristmill-user-id";
    /// True on a message whose own headers were dropped, because they left no room for these.
    pub const HEADERS_DROPPED: &str = "x-gristmill-headers-dropped";
    /// The original `x-death` header: with it, the broker would drop a message that has expired in its queue before.
    pub const DEATH: &str = "x-gristmill-x-death";
    /// W3C trace context of the message.
    pub const TRACEPARENT: &str = "traceparent";
    /// Vendor-specific part of the W3C trace context.
    pub const TRACESTATE: &str = "tracestate";
}

/// A delivered message. Clones share it.
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    queue: Arc<str>,
    received: Box<Received>,
    failed: u32,
    deliveries: u32,
    expires_at: Option<u64>,
    unreadable: Option<String>,
    is_duplicate: AtomicBool,
}

impl Delivery {
    pub(crate) fn new(queue: &Arc<str>, mut received: Box<Received>) -> Self {
        let unreadable = received.malformed.as_ref().map(|malformed| format!("unreadable properties: {malformed}"));
        let headers = &received.properties.headers;
        let has_returned_here = has_returned(headers, queue);
        let count =
            |name| headers.get(name).and_then(crate::FieldValue::as_int).unwrap_or(0).clamp(0, u32::MAX.into()) as u32;
        let failed = if has_returned_here { count(header::FAILED) } else { 0 };
        // Only from the broker: on a first delivery the publisher may have set it.
        let deliveries = if received.redelivered { count("x-delivery-count") } else { 0 };
        let expires_at = expires_at(&received.properties, queue);
        if has_returned_here {
            // It came through a retry queue; its original route is in its headers.
            let text = |name| {
                let text = headers.get(name).and_then(crate::FieldValue::as_str);
                // Names of exchanges and routing keys are never longer, so Gristmill did not write such a header.
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
        }))
    }

    /// Body of the message.
    pub fn body(&self) -> &Bytes {
        &self.0.received.body
    }

    /// Decodes the body from JSON. A failure is a permanent error.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        serde_json::from_slice(self.body())
            .map_err(|error| TaskError::permanent(format!("cannot decode the payload: {error}")))
    }

    /// Properties of the message, including its headers.
    pub fn properties(&self) -> &Properties {
        &self.0.received.properties
    }

    /// Headers of the message.
    pub fn headers(&self) -> &Headers {
        &self.0.received.properties.headers
    }

    /// Message id set by the publisher; an empty one counts as none.
    pub fn message_id(&self) -> Option<&str> {
        self.0.received.properties.message_id.as_deref().filter(|id| !id.is_empty())
    }

    /// Name of the queue that delivered it.
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// Exchange to which it was published.
    pub fn exchange(&self) -> &str {
        &self.0.received.exchange
    }

    /// Routing key with which it was published.
    pub fn routing_key(&self) -> &str {
        &self.0.received.key
    }

    /// Number of this attempt, counting from 1.
    pub fn attempt(&self) -> u32 {
        self.0.failed.saturating_add(1)
    }

    /// Whether it was delivered before and not acknowledged.
    pub fn is_redelivered(&self) -> bool {
        self.0.received.redelivered
    }

    /// Number of earlier deliveries by a quorum queue, whether started or not. Other queues do not count.
    pub fn deliveries_before(&self) -> u32 {
        self.0.deliveries
    }

    /// W3C trace context in the headers.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers().get(header::TRACEPARENT).and_then(crate::FieldValue::as_str)
    }

    /// Formats the message as JSON: exchange, routing key, every property, every header with its type, and the body.
    /// [`Message::from_json`](crate::Message::from_json) reads it.
    pub fn to_json(&self) -> serde_json::Value {
        crate::json_form::write(self)
    }

    /// Why its properties cannot be read, if they cannot.
    pub fn unreadable_properties(&self) -> Option<&str> {
        self.0.unreadable.as_deref()
    }

    /// Marks the message as handled before: it counts as skipped.
    pub fn set_duplicate(&self) {
        self.0.is_duplicate.store(true, Relaxed);
    }

    pub(crate) fn is_duplicate(&self) -> bool {
        self.0.is_duplicate.load(Relaxed)
    }

    /// Message id for deduplication. An id that is not UTF-8 is marked, so that it differs from the text it shows.
    pub fn identity(&self) -> Option<String> {
        let id = self.message_id()?;
        Some(if self.0.received.properties.has_non_utf8_id() { format!("\u{1a}{id}") } else { id.to_owned() })
    }

    pub(crate) fn failed_attempts(&self) -> u32 {
        self.0.failed
    }

    /// When it expires, in milliseconds since 1970.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.0.expires_at
    }

    /// Whether it had expired when it was delivered, as far as is known: it was in a retry queue with a deadline. Other
    /// messages get their time from this delivery: the broker did not expire them, so they have at least one attempt.
    pub(crate) fn expired_on_arrival(&self) -> bool {
        self.expires_within(Duration::ZERO) && deadline_from_headers(self.headers(), self.queue()).is_some()
    }

    pub(crate) fn expires_within(&self, wait: Duration) -> bool {
        self.0.expires_at.is_some_and(|at| u128::from(at) <= u128::from(now()) + wait.as_millis())
    }

    /// When the sink began to fail for it, in milliseconds since 1970, if it was postponed for that.
    pub(crate) fn sink_failed_since(&self) -> Option<u64> {
        let since = self.headers().get(header::SINK_FAILED_SINCE)?;
        let since = since.as_int().filter(|_| has_returned(self.headers(), self.queue()))?;
        u64::try_from(since).ok()
    }

    /// Whether the sink failed for it and worked for another message, before it was republished.
    pub(crate) fn failed_alone(&self) -> bool {
        let value = self.headers().get(header::FAILED_ALONE).and_then(crate::FieldValue::as_int);
        value == Some(1) && has_returned(self.headers(), self.queue())
    }

    /// Copies the message with this number of failed attempts.
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
        }))
    }
}

/// Whether a message came from a retry queue of this queue. A dead letter that is read or requeued starts over.
fn has_returned(headers: &Headers, queue: &str) -> bool {
    let from = headers.get(header::QUEUE).and_then(crate::FieldValue::as_str);
    from == Some(queue) && headers.get(header::REASON).is_none()
}

/// When a message expires. A retried message carries its deadline; for others the time starts now, because the time in
/// the queue is unknown.
fn expires_at(properties: &Properties, queue: &str) -> Option<u64> {
    deadline_from_headers(&properties.headers, queue).or_else(|| {
        let ttl_ms: u64 = properties.expiration.as_ref()?.parse().ok()?;
        now().checked_add(ttl_ms)
    })
}

/// Deadline in the headers of a message that returned from a retry queue.
fn deadline_from_headers(headers: &Headers, queue: &str) -> Option<u64> {
    let at = headers.get(header::EXPIRES_AT).filter(|_| has_returned(headers, queue))?;
    u64::try_from(at.as_int()?).ok()
}

/// Current time in milliseconds since 1970.
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
