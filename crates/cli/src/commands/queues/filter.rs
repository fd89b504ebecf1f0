//! `--where`: conditions that select messages.

use gristmill_amqp::{Delivery, header};

/// Keys of `--where`, for errors.
const KEYS: &str = "reason, error, consumer, queue, id, type, correlation-id, routing-key or header:NAME";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    field: Field,
    value: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Id,
    Type,
    CorrelationId,
    RoutingKey,
    /// Header whose value equals the text.
    Header(String),
    /// Header whose value contains the text.
    HeaderContains(&'static str),
}

pub(crate) fn condition(text: &str) -> Result<Condition, String> {
    let expected = || format!("expected: KEY=VALUE, where KEY is {KEYS}");
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    let field = match key {
        "id" => Field::Id,
        "type" => Field::Type,
        "correlation-id" => Field::CorrelationId,
        "routing-key" => Field::RoutingKey,
        "reason" => Field::Header(header::REASON.to_owned()),
        "consumer" => Field::Header(header::CONSUMER.to_owned()),
        "queue" => Field::Header(header::QUEUE.to_owned()),
        "error" => Field::HeaderContains(header::ERROR),
        other => match other.strip_prefix("header:") {
            Some(name) if !name.is_empty() => Field::Header(name.to_owned()),
            _ => return Err(expected()),
        },
    };
    Ok(Condition { field, value: value.to_owned() })
}

pub(crate) fn matches(conditions: &[Condition], delivery: &Delivery) -> bool {
    conditions.iter().all(|condition| condition.holds(delivery))
}

impl Condition {
    fn holds(&self, delivery: &Delivery) -> bool {
        let properties = delivery.properties();
        let header = |name: &str| delivery.headers().get(name).map(ToString::to_string);
        let found = match &self.field {
            Field::Id => properties.message_id.clone(),
            Field::Type => properties.kind.clone(),
            Field::CorrelationId => properties.correlation_id.clone(),
            // The original routing key, if Gristmill has moved the message since.
            Field::RoutingKey => header(header::ROUTING_KEY).or_else(|| Some(delivery.routing_key().to_owned())),
            Field::Header(name) => header(name),
            Field::HeaderContains(name) => {
                return header(name).is_some_and(|found| found.contains(&self.value));
            }
        };
        found.as_deref() == Some(self.value.as_str())
    }
}
