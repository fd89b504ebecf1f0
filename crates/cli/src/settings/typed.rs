//! Typed AMQP values: headers of messages and arguments of queues.
//!
//! Owns their syntax, `NAME=VALUE` and `NAME:TYPE=VALUE`, and the types of the arguments that RabbitMQ knows.

use gristmill_amqp::FieldValue;
use jiff::Timestamp;

use crate::units;

const TYPES: &str = "text, int, int8, uint8, int16, uint16, int32, uint32, float, double, bool, time, bytes or void";

pub(crate) type Typed = (String, FieldValue);

/// Queue arguments that RabbitMQ knows, without their prefix `x-`, and their types.
const ARGUMENTS: &[(&str, Kind)] = &[
    ("max-length", Kind::Count),
    ("max-length-bytes", Kind::Size),
    ("message-ttl", Kind::Milliseconds),
    ("expires", Kind::Milliseconds),
    ("delivery-limit", Kind::Count),
    ("max-priority", Kind::Count),
    ("single-active-consumer", Kind::Bool),
    ("overflow", Kind::Text),
    ("dead-letter-exchange", Kind::Text),
    ("dead-letter-routing-key", Kind::Text),
    ("dead-letter-strategy", Kind::Text),
    ("max-in-memory-length", Kind::Count),
    ("quorum-initial-group-size", Kind::Count),
    ("queue-leader-locator", Kind::Text),
    ("queue-mode", Kind::Text),
    ("queue-version", Kind::Count),
    ("consumer-timeout", Kind::Milliseconds),
    ("max-age", Kind::Text),
    ("stream-max-segment-size-bytes", Kind::Size),
    ("initial-cluster-size", Kind::Count),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Count,
    Size,
    Milliseconds,
    Bool,
    Text,
}

impl Kind {
    fn read(self, text: &str) -> Option<FieldValue> {
        let count = || text.parse::<i64>().ok().filter(|count| *count >= 0);
        Some(match self {
            Kind::Count => FieldValue::Int(count()?),
            Kind::Size => FieldValue::Int(count().or_else(|| i64::try_from(units::size(text)?).ok())?),
            Kind::Milliseconds => {
                let duration = || i64::try_from(units::duration(text)?.as_millis()).ok();
                FieldValue::Int(count().or_else(duration)?)
            }
            Kind::Bool => FieldValue::Bool(text.parse().ok()?),
            Kind::Text => text.into(),
        })
    }

    fn expected(self) -> &'static str {
        match self {
            Kind::Count => "a whole number",
            Kind::Size => "a number of bytes, or a size such as 10MiB",
            Kind::Milliseconds => "a number of milliseconds, or a duration such as 30s",
            Kind::Bool => "true or false",
            Kind::Text => "a text",
        }
    }
}

/// Parses a header of a message: `NAME=VALUE` is text, `NAME:TYPE=VALUE` has that type.
pub(crate) fn header(text: &str) -> Result<Typed, String> {
    let expected = || format!("expected: NAME=VALUE or NAME:TYPE=VALUE, where TYPE is {TYPES}");
    let (name, text) = text.split_once('=').ok_or_else(expected)?;
    let (name, value) = named(name, text).ok_or_else(expected)?;
    if !(1..=255).contains(&name.len()) {
        return Err(expected());
    }
    Ok((name.to_owned(), value))
}

/// Parses an argument of a queue: one that RabbitMQ knows, with or without `x-`, or any other with a type.
pub(crate) fn argument(text: &str) -> Result<Typed, String> {
    let names = || ARGUMENTS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let expected = || {
        format!("expected: NAME=VALUE, where NAME is one of {}; or x-NAME:TYPE=VALUE, where TYPE is {TYPES}", names())
    };
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    let bare = name.strip_prefix("x-").unwrap_or(name);
    if bare == "queue-type" {
        return Err("--declare sets the type of the queue".to_owned());
    }
    if let Some((known, kind)) = ARGUMENTS.iter().find(|(known, _)| *known == bare) {
        let value = kind.read(value).ok_or_else(|| format!("{known} is {value:?}; expected: {}", kind.expected()))?;
        return Ok((format!("x-{known}"), value));
    }
    match named(name, value) {
        Some((name, value)) if name.starts_with("x-") && name.len() <= 255 => Ok((name.to_owned(), value)),
        _ => Err(expected()),
    }
}

/// Returns the name without its type, and the value. Text after the last colon is part of the name unless it is a type.
fn named<'a>(name: &'a str, text: &str) -> Option<(&'a str, FieldValue)> {
    match name.rsplit_once(':') {
        Some((name, kind)) if TYPES.split([',', ' ']).any(|known| known == kind && known != "or") => {
            Some((name, read(kind, text)?))
        }
        _ => Some((name, text.into())),
    }
}

fn read(kind: &str, text: &str) -> Option<FieldValue> {
    Some(match kind {
        "text" => text.into(),
        "int" => FieldValue::Int(text.parse().ok()?),
        "int8" => FieldValue::Int8(text.parse().ok()?),
        "uint8" => FieldValue::UInt8(text.parse().ok()?),
        "int16" => FieldValue::Int16(text.parse().ok()?),
        "uint16" => FieldValue::UInt16(text.parse().ok()?),
        "int32" => FieldValue::Int32(text.parse().ok()?),
        "uint32" => FieldValue::UInt32(text.parse().ok()?),
        "float" => FieldValue::Float(text.parse().ok()?),
        "double" => FieldValue::Double(text.parse().ok()?),
        "bool" => FieldValue::Bool(text.parse().ok()?),
        "time" => FieldValue::Time(seconds(text)?),
        "bytes" => FieldValue::Bytes(bytes(text)?.into()),
        "void" if text.is_empty() => FieldValue::Void,
        _ => return None,
    })
}

/// Parses a time as seconds since 1970: a number, an RFC 3339 time or `now`.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    if text == "now" {
        return u64::try_from(Timestamp::now().as_second()).ok();
    }
    let timestamp = || u64::try_from(text.parse::<Timestamp>().ok()?.as_second()).ok();
    text.parse().ok().or_else(timestamp)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    hex.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_rabbitmq_knows_have_their_types() {
        for (text, name, value) in [
            ("max-length=10", "x-max-length", FieldValue::Int(10)),
            ("x-max-length=10", "x-max-length", FieldValue::Int(10)),
            ("max-length-bytes=1KiB", "x-max-length-bytes", FieldValue::Int(1024)),
            ("message-ttl=30s", "x-message-ttl", FieldValue::Int(30_000)),
            ("message-ttl=5", "x-message-ttl", FieldValue::Int(5)),
            ("single-active-consumer=true", "x-single-active-consumer", FieldValue::Bool(true)),
            ("overflow=reject-publish", "x-overflow", FieldValue::Text("reject-publish".to_owned())),
            ("x-other:int=3", "x-other", FieldValue::Int(3)),
        ] {
            assert_eq!(argument(text), Ok((name.to_owned(), value)), "{text}");
        }
    }
}
