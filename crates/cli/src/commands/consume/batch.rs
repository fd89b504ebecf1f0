//! `--batch`: passes several messages to one command or request as JSON lines.
//!
//! Owns the format of a line and the handling of a failed batch: each of its messages is tried alone at once, and
//! only those that fail alone use an attempt. A message that failed before is not put into a batch again.

use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_pool::error::Cause;
use gristmill_pool::{Dependency, TaskError, TaskResult};
use serde_json::{Map, Value, json};

use super::batch_writer::{BatchLimits, BatchResult, BatchWriter, copy_error, recording_starts};
use crate::error::Error;

/// Options of `--batch` and `--workers`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchOptions {
    /// Maximum number of messages in a batch.
    pub(super) size: usize,
    /// How long the first message of a batch waits for further ones.
    pub(super) linger: Duration,
    /// Number of batches that run at once.
    pub(super) parallel: usize,
}

/// Number of consecutive messages that fail alone because of the server or command, after which the rest is skipped.
const MAX_CONSECUTIVE_UNAVAILABLE: u32 = 3;

/// Starts a writer that collects messages and passes each batch with its JSON lines to `run`.
pub(super) fn batch_writer(
    name: &str,
    options: BatchOptions,
    run: impl Fn(&[Delivery], Vec<u8>) -> TaskResult<()> + Clone + Send + 'static,
) -> Result<BatchWriter, Error> {
    let BatchOptions { size, linger, parallel } = options;
    let write = move |deliveries: &[Delivery]| -> BatchResult {
        let run = |batch: &[Delivery]| run(batch, lines(batch));
        let first_attempts: Vec<Delivery> = deliveries.iter().filter(|one| one.attempt() == 1).cloned().collect();
        let batch_result = if first_attempts.len() > 1 { Some(run(&first_attempts)) } else { None };
        let mut unavailable = 0;
        let outcome = |one: &Delivery| outcome(one, batch_result.as_ref(), &mut unavailable, &run);
        Ok(deliveries.iter().map(outcome).collect())
    };
    let limits = BatchLimits { max_messages: size, linger };
    let writers = std::iter::repeat_n(write, parallel).map(recording_starts);
    BatchWriter::start(name, limits, Delivery::runs_alone, writers)
}

/// Result of one message: that of its batch, or of running it alone if the batch failed.
fn outcome(
    delivery: &Delivery,
    batch_result: Option<&TaskResult<()>>,
    unavailable: &mut u32,
    run: &impl Fn(&[Delivery]) -> TaskResult<()>,
) -> TaskResult<()> {
    match batch_result.filter(|_| delivery.attempt() == 1) {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) if matches!(error.cause(), Cause::Cancelled) => return Err(TaskError::cancelled()),
        // The server or command failed before it saw a message, so each message alone would fail too.
        Some(Err(error)) if error.dependency() == Some(Dependency::Unavailable) => {
            return Err(copy_error(error));
        }
        Some(Err(error)) => {
            tracing::debug!(%error, "the batch failed; trying its messages one by one");
        }
        None => {}
    }
    if *unavailable >= MAX_CONSECUTIVE_UNAVAILABLE {
        let text = format!(
            "not tried: {MAX_CONSECUTIVE_UNAVAILABLE} consecutive messages failed because of the server or command"
        );
        return Err(TaskError::unavailable(text));
    }
    let result = run(std::slice::from_ref(delivery));
    let is_unavailable = result.as_ref().is_err_and(|error| error.dependency().is_some());
    *unavailable = if is_unavailable { *unavailable + 1 } else { 0 };
    result
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
