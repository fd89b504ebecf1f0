//! `--where`: which messages are meant.
//!
//! Owns the names of what can be compared, and how. All conditions must hold.

use gristmill_amqp::{Delivery, header};

/// The keys that `--where` takes.
const KEYS: &str = "reason, error, consumer, queue, id, type, correlation-id, routing-key or header:NAME";

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    key: Key,
    value: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    Id,
    Type,
    CorrelationId,
    /// The routing key.
    Route,
    /// The value of a header is this text.
    Header(String),
    /// The value of a header has this text in it.
    HeaderHas(&'static str),
}

/// Reads KEY=VALUE.
pub(crate) fn condition(text: &str) -> Result<Condition, String> {
    let expected = || format!("expected: KEY=VALUE, where KEY is {KEYS}");
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    let key = match key {
        "id" => Key::Id,
        "type" => Key::Type,
        "correlation-id" => Key::CorrelationId,
        "routing-key" => Key::Route,
        "reason" => Key::Header(header::REASON.to_owned()),
        "consumer" => Key::Header(header::CONSUMER.to_owned()),
        "queue" => Key::Header(header::QUEUE.to_owned()),
        "error" => Key::HeaderHas(header::ERROR),
        other => match other.strip_prefix("header:") {
            Some(name) if !name.is_empty() => Key::Header(name.to_owned()),
            _ => return Err(expected()),
        },
    };
    Ok(Condition { key, value: value.to_owned() })
}

/// Whether all conditions hold.
pub(crate) fn matches(conditions: &[Condition], delivery: &Delivery) -> bool {
    conditions.iter().all(|condition| condition.holds(delivery))
}

impl Condition {
    fn holds(&self, delivery: &Delivery) -> bool {
        let properties = delivery.properties();
        let header = |name: &str| delivery.headers().get(name).map(ToString::to_string);
        let found = match &self.key {
            Key::Id => properties.message_id.clone(),
            Key::Type => properties.kind.clone(),
            Key::CorrelationId => properties.correlation_id.clone(),
            // The one it was first published with, where Gristmill has moved it since.
            Key::Route => header(header::ROUTING_KEY).or_else(|| Some(delivery.routing_key().to_owned())),
            Key::Header(name) => header(name),
            Key::HeaderHas(name) => {
                return header(name).is_some_and(|found| found.contains(&self.value));
            }
        };
        found.as_deref() == Some(self.value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_there_are_not_are_refused_with_those_there_are() {
        for text in ["reason", "colour=red", "header:=1", "=1", ""] {
            assert!(condition(text).unwrap_err().contains(KEYS), "{text}");
        }
        for text in ["reason=attempts", "header:tenant=", "error=a=b"] {
            condition(text).unwrap();
        }
    }
}
