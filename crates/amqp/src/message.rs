//! A message to be published.

use crate::{
    delivery::{Delivery, header},
    error::Error,
    json_form,
    wire::{
        properties::Properties,
        table::{FieldValue, Headers},
    },
};
use bytes::Bytes;
use serde::Serialize;

/// A message to be published: its route, body and properties.
///
/// ```
/// use gristmill_amqp::Message;
///
/// let message = Message::to_queue("orders", "{}")
///     .id("order-17")
///     .header("source", "shop");
/// # let _ = message;
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Message {
    pub(crate) exchange: String,
    pub(crate) key: String,
    /// Properties and headers. The default is persistent: the message survives a restart of the broker.
    pub properties: Properties,
    pub(crate) body: Bytes,
}

impl Message {
    /// Creates a message for an exchange and a routing key.
    pub fn new(exchange: impl Into<String>, key: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        Self { exchange: exchange.into(), key: key.into(), properties, body: body.into() }
    }

    /// Creates a message for a queue, through the default exchange.
    pub fn to_queue(queue: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self::new("", queue, body)
    }

    /// Creates a message for an exchange and a routing key, with a body encoded as JSON.
    pub fn json(exchange: impl Into<String>, key: impl Into<String>, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::Message(format!("cannot encode the body as JSON: {error}")))?;
        let mut message = Self::new(exchange, key, body);
        message.properties.content_type = Some("application/json".to_owned());
        Ok(message)
    }

    /// Sets the message id, by which a consumer recognises duplicates.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.properties.message_id = Some(id.into());
        self
    }

    /// Sets the type of the event.
    pub fn event(mut self, kind: impl Into<String>) -> Self {
        self.properties.kind = Some(kind.into());
        self
    }

    /// Sets a header, replacing one of that name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<FieldValue>) -> Self {
        self.properties.headers.set(name, value);
        self
    }

    /// Copies the trace context of the delivery that caused this message.
    pub fn in_trace_of(mut self, delivery: &Delivery) -> Self {
        for name in [header::TRACEPARENT, header::TRACESTATE] {
            if let Some(value) = delivery.headers().get(name) {
                self.properties.headers.set(name, value.clone());
            }
        }
        self
    }

    /// Checks lengths that the protocol limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.exchange.len() > 255 || self.key.len() > 255 {
            let what = "the exchange name or the routing key has more than 255 bytes";
            return Err(Error::Message(what.to_owned()));
        }
        match self.properties.too_long() {
            Some(what) => Err(Error::Message(format!("the message's {what} has more than 255 bytes"))),
            None => Ok(()),
        }
    }

    /// Reads a message that [`Delivery::to_json`] wrote, addressed to a queue, with its attempts reset.
    pub fn from_json(json: &serde_json::Value, queue: &str) -> Result<Self, Error> {
        let read = json_form::read(json).map_err(Error::Message)?;
        Ok(Self::requeued(queue, &read.exchange, &read.key, read.properties, read.body))
    }

    /// Copies a stored message or dead letter, addressed to a queue, without the headers in which Gristmill and the
    /// broker record failures. (By its `x-death` the broker would drop a message that expires twice in one queue.) Its
    /// first exchange and routing key stay visible to a consumer of that queue.
    pub(crate) fn requeued(queue: &str, exchange: &str, key: &str, mut properties: Properties, body: Bytes) -> Self {
        move_user_id_to_header(&mut properties);
        let headers = &mut properties.headers;
        let route = |name| headers.get(name).and_then(FieldValue::as_str).filter(|text| text.len() <= 255);
        let exchange = route(header::EXCHANGE).unwrap_or(exchange).to_owned();
        let key = route(header::ROUTING_KEY).unwrap_or(key).to_owned();
        headers.retain(is_publisher_header);
        if !exchange.is_empty() || key != queue {
            headers.set(header::QUEUE, queue);
            headers.set(header::EXCHANGE, exchange);
            headers.set(header::ROUTING_KEY, key);
        }
        Self { exchange: String::new(), key: queue.to_owned(), properties, body }
    }

    /// Copies a delivery for another route, without properties that would make the broker refuse or misroute it.
    pub(crate) fn republished(delivery: &Delivery, exchange: &str, key: &str) -> Self {
        let mut properties = delivery.properties().clone();
        move_user_id_to_header(&mut properties);
        // It must not expire in a retry queue: a header has its deadline. CC and BCC copies were delivered already.
        properties.expiration = None;
        let stale = [header::REASON, header::EXPIRES_AT, header::SINK_FAILED_SINCE, header::FAILED_ALONE];
        for name in ["CC", "BCC", "x-delivery-count", "x-stream-offset"].into_iter().chain(stale) {
            properties.headers.remove(name);
        }
        let headers: &mut Headers = &mut properties.headers;
        headers.set(header::QUEUE, delivery.queue());
        headers.set(header::EXCHANGE, delivery.exchange());
        headers.set(header::ROUTING_KEY, delivery.routing_key());
        properties.delivery_mode = Some(2);
        Self { exchange: exchange.to_owned(), key: key.to_owned(), properties, body: delivery.body().clone() }
    }
}

/// Moves the user id to a header, because the broker refuses a message whose user is not the connected one.
fn move_user_id_to_header(properties: &mut Properties) {
    if let Some(user) = properties.user_id.take() {
        properties.headers.set(header::USER, user);
    }
}

/// Whether a header is the publisher's: neither Gristmill's about a failure nor the broker's about deliveries.
fn is_publisher_header(name: &str) -> bool {
    const BROKER_HEADERS: [&str; 5] = ["CC", "BCC", "x-death", "x-delivery-count", "x-stream-offset"];
    let kept = [header::USER, header::HEADERS_DROPPED];
    let is_gristmill = name.starts_with("x-gristmill-") && !kept.contains(&name);
    let is_death = name.starts_with("x-first-death-") || name.starts_with("x-last-death-");
    !is_gristmill && !is_death && !BROKER_HEADERS.contains(&name)
}
