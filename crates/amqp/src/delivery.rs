//! A message as its handler sees it.

use crate::{
    net::Received,
    wire::{properties::Properties, table::Headers},
};
use bytes::Bytes;
use gristmill_pool::TaskError;
use serde::de::DeserializeOwned;
use std::{fmt, sync::Arc};

/// Headers that Gristmill sets on messages that it moves.
pub mod header {
    /// How often a handler has failed on it.
    pub const FAILED: &str = "x-gristmill-failed";
    /// How often it was delivered again on a queue that does not count that itself.
    pub const DELIVERIES: &str = "x-gristmill-deliveries";
    /// The queue it was taken from.
    pub const QUEUE: &str = "x-gristmill-queue";
    /// The exchange it was first published to.
    pub const EXCHANGE: &str = "x-gristmill-exchange";
    /// The routing key it was first published with.
    pub const ROUTING_KEY: &str = "x-gristmill-routing-key";
    /// The consumer that gave it up or put it off.
    pub const CONSUMER: &str = "x-gristmill-consumer";
    /// Of a dead letter: `permanent`, `attempts`, `deliveries` or `unreadable`.
    pub const REASON: &str = "x-gristmill-reason";
    /// What the last failure said.
    pub const ERROR: &str = "x-gristmill-error";
    /// When the last failure was, in UTC.
    pub const FAILED_AT: &str = "x-gristmill-failed-at";
    /// Who the broker had checked it was published by. (It refuses one that is not who moves it.)
    pub const USER: &str = "x-gristmill-user-id";
    /// Its own headers were so many that there was no room for ours: they are gone.
    pub const HEADERS_DROPPED: &str = "x-gristmill-headers-dropped";
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
    exchange: String,
    key: String,
    redelivered: bool,
    failed: u32,
    deliveries: u32,
    properties: Properties,
    unreadable: Option<String>,
    body: Bytes,
}

impl Delivery {
    /// `counts`: the queue counts deliveries itself. On one that does not, such a header is anybody's.
    pub(crate) fn new(queue: &Arc<str>, counts: bool, received: Received) -> Self {
        let Received { exchange, key, redelivered, properties, body, .. } = received;
        let (properties, unreadable) = match properties {
            Ok(properties) => (properties, None),
            Err(malformed) => (Properties::default(), Some(format!("its properties: {malformed}"))),
        };
        let headers = &properties.headers;
        // Only what was put off from this very queue is on its way through it again. A dead letter that somebody reads, or
        // puts back, begins anew.
        let from = headers.get(header::QUEUE).and_then(crate::Value::as_str);
        let again = from == Some(queue) && headers.get(header::REASON).is_none();
        let count = |name| {
            headers.get(name).and_then(crate::Value::as_int).unwrap_or(0).clamp(0, u32::MAX.into()) as u32
        };
        let own = |name| if again { count(name) } else { 0 };
        // Names of exchanges and routing keys are never longer; whoever wrote such a header was not us.
        let text = |name| {
            let text = headers.get(name).and_then(crate::Value::as_str);
            text.filter(|text| again && text.len() <= 255).map(str::to_owned)
        };
        // One that went through a queue of ours comes by the way of that queue; its own way stands in its headers.
        Self(Arc::new(Inner {
            queue: Arc::clone(queue),
            exchange: text(header::EXCHANGE).unwrap_or(exchange),
            key: text(header::ROUTING_KEY).unwrap_or(key),
            redelivered,
            failed: own(header::FAILED),
            deliveries: (if counts { count("x-delivery-count") } else { 0 }).max(own(header::DELIVERIES)),
            properties,
            unreadable,
            body,
        }))
    }

    /// What it says.
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// What it says, as JSON. What cannot be decoded can never be: the error is permanent.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        serde_json::from_slice(self.body())
            .map_err(|error| TaskError::permanent(format!("the payload cannot be decoded: {error}")))
    }

    /// Everything beside the body.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// Its headers.
    pub fn headers(&self) -> &Headers {
        &self.0.properties.headers
    }

    /// The id its publisher gave it; an empty one is none.
    pub fn message_id(&self) -> Option<&str> {
        self.0.properties.message_id.as_deref().filter(|id| !id.is_empty())
    }

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// The exchange it was published to.
    pub fn exchange(&self) -> &str {
        &self.0.exchange
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> &str {
        &self.0.key
    }

    /// The how-manieth attempt this is: 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.0.failed.saturating_add(1)
    }

    /// Whether it was delivered before, to a consumer that did not get to its end.
    pub fn is_redelivered(&self) -> bool {
        self.0.redelivered
    }

    /// How often it was delivered before without getting to its end, as far as that is counted.
    pub fn deliveries_before(&self) -> u32 {
        self.0.deliveries
    }

    /// The W3C trace context that it carries.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers().get(header::TRACEPARENT).and_then(crate::Value::as_str)
    }

    /// Its id for telling messages apart: bytes that are no UTF-8 are not the text that they are shown as.
    pub(crate) fn identity(&self) -> Option<String> {
        let id = self.message_id()?;
        Some(if self.0.properties.has_odd_id() { format!("\u{1a}{id}") } else { id.to_owned() })
    }

    pub(crate) fn failed(&self) -> u32 {
        self.0.failed
    }

    pub(crate) fn unreadable(&self) -> Option<&str> {
        self.0.unreadable.as_deref()
    }

    /// The same message with one more failure behind it, for another attempt in its place.
    pub(crate) fn after_failure(&self) -> Self {
        let Inner { queue, exchange, key, redelivered, failed, deliveries, properties, unreadable, body } =
            &*self.0;
        Self(Arc::new(Inner {
            queue: Arc::clone(queue),
            exchange: exchange.clone(),
            key: key.clone(),
            redelivered: *redelivered,
            failed: failed.saturating_add(1),
            deliveries: *deliveries,
            properties: properties.clone(),
            unreadable: unreadable.clone(),
            body: body.clone(),
        }))
    }
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
