//! A message to be published.

use crate::{
    delivery::{Delivery, header},
    error::Error,
    wire::{
        properties::Properties,
        table::{Headers, Value},
    },
};
use bytes::Bytes;
use serde::Serialize;

/// A message to be published: where to, what it says, and what it carries beside.
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
    /// Everything beside the body. Kept through a restart of the broker, unless this says otherwise.
    pub properties: Properties,
    pub(crate) body: Bytes,
}

impl Message {
    /// To an exchange, with a routing key.
    pub fn new(exchange: impl Into<String>, key: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        Self { exchange: exchange.into(), key: key.into(), properties, body: body.into() }
    }

    /// Straight to a queue.
    pub fn to_queue(queue: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self::new("", queue, body)
    }

    /// To an exchange, with a routing key; what it says as JSON.
    pub fn json(
        exchange: impl Into<String>,
        key: impl Into<String>,
        body: &impl Serialize,
    ) -> Result<Self, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Message(format!("not JSON: {error}")))?;
        let mut message = Self::new(exchange, key, body);
        message.properties.content_type = Some("application/json".to_owned());
        Ok(message)
    }

    /// An id, by which a consumer can tell that it has seen it before.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.properties.message_id = Some(id.into());
        self
    }

    /// What happened: the type of the event.
    pub fn event(mut self, kind: impl Into<String>) -> Self {
        self.properties.kind = Some(kind.into());
        self
    }

    /// A header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.properties.headers.set(name, value);
        self
    }

    /// Carries the trace on of the message that this one comes of.
    pub fn in_trace_of(mut self, delivery: &Delivery) -> Self {
        for name in [header::TRACEPARENT, header::TRACESTATE] {
            if let Some(value) = delivery.headers().get(name) {
                self.properties.headers.set(name, value.clone());
            }
        }
        self
    }

    /// What the protocol cannot carry.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.exchange.len() > 255 || self.key.len() > 255 {
            let what = "the name of an exchange and a routing key have at most 255 bytes";
            return Err(Error::Message(what.to_owned()));
        }
        match self.properties.too_long() {
            Some(what) => Err(Error::Message(format!("the message's {what} has more than 255 bytes"))),
            None => Ok(()),
        }
    }

    /// A message that was delivered, on its way somewhere else: the same but for what would make the broker refuse
    /// it, or send it where nobody wants it.
    pub(crate) fn moved(delivery: &Delivery, exchange: &str, key: &str) -> Self {
        let mut properties = delivery.properties().clone();
        if let Some(user) = properties.user_id.take() {
            properties.headers.set(header::USER, user);
        }
        // In a queue where it waits it must not expire of itself, and copies for others it has had.
        properties.expiration = None;
        for name in ["CC", "BCC", "x-delivery-count", "x-stream-offset", header::REASON] {
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
