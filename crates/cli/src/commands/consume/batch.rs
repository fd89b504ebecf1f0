//! `--batch`: passes several messages to one command or request as JSON lines.
//!
//! Owns the format of a line and the handling of a failed batch: each of its messages is tried alone at once, and
//! only those that fail alone use an attempt. A message that failed before is not put into a batch again.

use gristmill_amqp::{Delivery, TaskError, TaskResult};
use gristmill_pool::Dependency;
use gristmill_pool::error::Cause;
use serde_json::{Map, Value, json};

use super::batch_writer::BatchResult;

/// Number of consecutive messages that fail alone because of the server or command, after which the rest is skipped.
const MAX_CONSECUTIVE_UNAVAILABLE: u32 = 3;

/// Passes a batch with its JSON lines to `run`; if that fails, each of its messages alone.
pub(super) fn run_batch(deliveries: &[Delivery], run: impl Fn(&[Delivery], Vec<u8>) -> TaskResult<()>) -> BatchResult {
    let run = |batch: &[Delivery]| run(batch, lines(batch));
    if deliveries.len() > 1 {
        match run(deliveries) {
            Ok(()) => return Ok(deliveries.iter().map(|_| Ok(())).collect()),
            Err(error) if matches!(error.cause(), Cause::Cancelled) => return Err(error),
            // The server or command failed before it saw a message, so each message alone would fail too.
            Err(error) if error.dependency() == Some(Dependency::Unavailable) => return Err(error),
            Err(error) => tracing::debug!(%error, "the batch failed; trying its messages one by one"),
        }
    }
    let mut unavailable = 0;
    let run_alone = |delivery| {
        if unavailable >= MAX_CONSECUTIVE_UNAVAILABLE {
            let text = format!(
                "not tried: {MAX_CONSECUTIVE_UNAVAILABLE} consecutive messages failed because of the server or command"
            );
            return Err(TaskError::unavailable(text));
        }
        let result = run(std::slice::from_ref(delivery));
        let is_unavailable = result.as_ref().is_err_and(|error| error.dependency().is_some());
        unavailable = if is_unavailable { unavailable + 1 } else { 0 };
        result
    };
    Ok(deliveries.iter().map(run_alone).collect())
}

fn lines(deliveries: &[Delivery]) -> Vec<u8> {
    let mut lines = Vec::new();
    for delivery in deliveries {
        lines.extend_from_slice(&line(delivery));
        lines.push(b'\n');
    }
    lines
}

/// Returns a message as one line of JSON. Its body is in `body`, unchanged, if it is JSON, else in `text`, or in
/// `hex` if it is not UTF-8.
fn line(delivery: &Delivery) -> Vec<u8> {
    let properties = delivery.properties();
    let mut object = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(name.to_owned(), value);
        }
    };
    let text = |text: &Option<String>| text.clone().map(Value::from);
    set("queue", Some(delivery.queue().into()));
    set("exchange", Some(delivery.exchange().into()));
    set("routing_key", Some(delivery.routing_key().into()));
    set("attempt", Some(delivery.attempt().into()));
    set("redelivered", Some(delivery.is_redelivered().into()));
    set("message_id", text(&properties.message_id));
    set("content_type", text(&properties.content_type));
    set("content_encoding", text(&properties.content_encoding));
    set("type", text(&properties.kind));
    set("correlation_id", text(&properties.correlation_id));
    set("reply_to", text(&properties.reply_to));
    set("app_id", text(&properties.app_id));
    set("timestamp", properties.timestamp.map(Value::from));
    let headers = delivery.headers().iter().map(|(name, value)| (name.to_owned(), value.to_string().into()));
    set("headers", Some(Value::Object(headers.collect())));
    let body = &delivery.body()[..];
    match std::str::from_utf8(body) {
        Ok(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
            let mut line = json!(object).to_string().into_bytes();
            line.pop();
            line.extend_from_slice(b",\"body\":");
            // Line ends in JSON occur only between tokens.
            line.extend(body.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
            line.push(b'}');
            return line;
        }
        Ok(text) => object.insert("text".to_owned(), text.into()),
        Err(_) => {
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert("hex".to_owned(), hex.into())
        }
    };
    json!(object).to_string().into_bytes()
}
