//! What a message carries beside its body, for programs that know no AMQP: names and values, clean and bounded.
//!
//! Owns which there are, and what is left out. How they are handed over is the action's affair.

use gristmill_amqp::{Delivery, FieldValue, header};

/// How much of it an action can hand over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// A header with a longer value is left out.
    pub(super) each: usize,
    /// When all together are longer, those behind are left out.
    pub(super) total: usize,
}

/// Something about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessageField {
    /// In words of ours: `QUEUE`, `MESSAGE_ID`.
    Property(&'static str, String),
    /// A header of the message by its own name.
    Header(String, String),
}

/// All there is to say about a message, in order. What cannot stand in `may_stand` is left out, and never more than
/// this costs the message.
pub(super) fn about(delivery: &Delivery, bounds: Bounds, may_stand: fn(&str) -> bool) -> Vec<MessageField> {
    let properties = delivery.properties();
    let number = |number: u32| Some(number.to_string());
    let given = [
        ("QUEUE", Some(delivery.queue().to_owned())),
        ("EXCHANGE", Some(delivery.exchange().to_owned())),
        ("ROUTING_KEY", Some(delivery.routing_key().to_owned())),
        ("ATTEMPT", number(delivery.attempt())),
        ("REDELIVERED", Some(if delivery.is_redelivered() { "1" } else { "0" }.to_owned())),
        ("MESSAGE_ID", properties.message_id.clone()),
        ("CONTENT_TYPE", properties.content_type.clone()),
        ("CONTENT_ENCODING", properties.content_encoding.clone()),
        ("TYPE", properties.kind.clone()),
        ("CORRELATION_ID", properties.correlation_id.clone()),
        ("REPLY_TO", properties.reply_to.clone()),
        ("APP_ID", properties.app_id.clone()),
        ("TIMESTAMP", properties.timestamp.map(|seconds| seconds.to_string())),
    ];
    let known = given.into_iter().filter_map(|(name, value)| Some(MessageField::Property(name, value?)));
    let headers = delivery
        .headers()
        .iter()
        .map(|(name, value)| MessageField::Header(name.to_owned(), value.to_string()));
    let mut room = bounds.total;
    let mut all = Vec::new();
    for one in known.chain(headers) {
        let (name, value) = match &one {
            MessageField::Property(name, value) => (*name, value),
            MessageField::Header(name, value) => (name.as_str(), value),
        };
        // With what stands around it: a prefix, a `=`, an end.
        let size = name.len() + value.len() + 32;
        if value.len() <= bounds.each && size <= room && may_stand(value) {
            room -= size;
            all.push(one);
        }
    }
    all
}

/// The trace that a message belongs to, as W3C has it: names in lower case.
pub(super) fn trace(delivery: &Delivery) -> impl Iterator<Item = (&'static str, &str)> {
    let names = [header::TRACEPARENT, header::TRACESTATE];
    let value = |name: &'static str| delivery.headers().get(name).and_then(FieldValue::as_str);
    names.into_iter().filter_map(move |name| Some((name, value(name)?)))
}

/// A name as it may stand in a variable, or, with another filler, in a header of HTTP.
pub(super) fn plain(name: &str, filler: char) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { filler };
    name.chars().map(plain).collect()
}

/// Names of the variables about one message, without `GRISTMILL_`.
pub(in crate::commands) const MESSAGE_VARIABLES: &[&str] = &[
    "QUEUE",
    "EXCHANGE",
    "ROUTING_KEY",
    "ATTEMPT",
    "REDELIVERED",
    "MESSAGE_ID",
    "CONTENT_TYPE",
    "CONTENT_ENCODING",
    "TYPE",
    "CORRELATION_ID",
    "REPLY_TO",
    "APP_ID",
    "TIMESTAMP",
    "BATCH",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_kind_become_plain() {
        for (name, expected) in
            [("tenant-id", "TENANT_ID"), ("a=b\0c", "A_B_C"), ("größe", "GR__E"), ("", "")]
        {
            assert_eq!(plain(name, '_'), expected, "{name:?}");
        }
    }
}
