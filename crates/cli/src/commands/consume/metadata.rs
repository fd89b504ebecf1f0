//! Properties and headers of a message as names and text values, for `--exec` and `--http`.
//!
//! Owns which fields there are, and omits those that exceed the limits of an action.

use gristmill_amqp::{Delivery, FieldValue, header};

/// Size limits of the fields that an action passes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldLimits {
    /// Bytes of a value; a field with a longer value is omitted.
    pub(super) max_value: usize,
    /// Bytes of all fields together; fields beyond it are omitted.
    pub(super) max_total: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessageField {
    /// Property with a fixed name, such as `QUEUE` or `MESSAGE_ID`.
    Property(&'static str, String),
    /// Header with its name in the message.
    Header(String, String),
}

/// Returns properties, then headers. Omits values that are too long or that `is_allowed` rejects.
pub(super) fn message_fields(
    delivery: &Delivery,
    limits: FieldLimits,
    is_allowed: fn(&str) -> bool,
) -> Vec<MessageField> {
    let known = PROPERTIES.iter().filter_map(|(name, value)| Some(MessageField::Property(name, value(delivery)?)));
    let headers =
        delivery.headers().iter().map(|(name, value)| MessageField::Header(name.to_owned(), value.to_string()));
    let mut left = limits.max_total;
    let mut all = Vec::new();
    for one in known.chain(headers) {
        let (name, value) = match &one {
            MessageField::Property(name, value) => (*name, value),
            MessageField::Header(name, value) => (name.as_str(), value),
        };
        // 32 bytes for a prefix, a separator and a terminator.
        let size = name.len() + value.len() + 32;
        if value.len() <= limits.max_value && size <= left && is_allowed(value) {
            left -= size;
            all.push(one);
        }
    }
    all
}

/// Returns the W3C trace context headers of a message; names are in lower case.
pub(super) fn trace_headers(delivery: &Delivery) -> impl Iterator<Item = (&'static str, &str)> {
    let names = [header::TRACEPARENT, header::TRACESTATE];
    let value = |name: &'static str| delivery.headers().get(name).and_then(FieldValue::as_str);
    names.into_iter().filter_map(move |name| Some((name, value(name)?)))
}

/// Normalizes a name for a variable or an HTTP header: ASCII letters in upper case and digits; others become `filler`.
pub(super) fn normalize_name(name: &str, filler: char) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { filler };
    name.chars().map(plain).collect()
}

type PropertyValue = fn(&Delivery) -> Option<String>;

/// Properties of a message that actions pass on.
const PROPERTIES: &[(&str, PropertyValue)] = &[
    ("QUEUE", |delivery| Some(delivery.queue().to_owned())),
    ("EXCHANGE", |delivery| Some(delivery.exchange().to_owned())),
    ("ROUTING_KEY", |delivery| Some(delivery.routing_key().to_owned())),
    ("ATTEMPT", |delivery| Some(delivery.attempt().to_string())),
    ("REDELIVERED", |delivery| Some(u8::from(delivery.is_redelivered()).to_string())),
    ("MESSAGE_ID", |delivery| delivery.properties().message_id.clone()),
    ("CONTENT_TYPE", |delivery| delivery.properties().content_type.clone()),
    ("CONTENT_ENCODING", |delivery| delivery.properties().content_encoding.clone()),
    ("TYPE", |delivery| delivery.properties().kind.clone()),
    ("CORRELATION_ID", |delivery| delivery.properties().correlation_id.clone()),
    ("REPLY_TO", |delivery| delivery.properties().reply_to.clone()),
    ("APP_ID", |delivery| delivery.properties().app_id.clone()),
    ("TIMESTAMP", |delivery| delivery.properties().timestamp.map(|seconds| seconds.to_string())),
];

/// Returns true if a variable, without the prefix `GRISTMILL_`, describes a message or a batch.
pub(in crate::commands) fn is_message_variable(name: &str) -> bool {
    name == "BATCH" || PROPERTIES.iter().any(|(known, _)| *known == name)
}
