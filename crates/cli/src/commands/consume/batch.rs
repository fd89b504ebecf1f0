//! `--batch`: several messages to one command or request, as JSON lines.
//!
//! Owns the line of a message, and what a failed batch means: each of its messages is tried alone, at once, so that only
//! those pay that fail alone. A message that failed before is not put into a batch again.

use std::time::Duration;

use gristmill_amqp::Delivery;
use gristmill_pool::error::Cause;
use gristmill_pool::{Dependency, TaskError, TaskResult};
use serde_json::{Map, Value, json};

use super::gather::{Gather, Limits, Written, again, starting};
use crate::error::Error;

/// How messages are put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batching {
    /// At most this number of messages.
    pub(super) size: usize,
    /// How long the first message of a batch waits for others.
    pub(super) linger: Duration,
    /// Batches at a time.
    pub(super) parallel: usize,
}

/// After this number of messages in a row that failed alone because of the server or command, the others of a batch are not
/// tried: it works for none of them.
const MAX_UNAVAILABLE: u32 = 3;

/// Collects messages and hands them to `run`, which is given their lines and their number.
pub(super) fn gather(
    name: &str,
    batching: Batching,
    run: impl Fn(&[Delivery], Vec<u8>) -> TaskResult<()> + Clone + Send + 'static,
) -> Result<Gather, Error> {
    let Batching { size, linger, parallel } = batching;
    let write = move |deliveries: &[Delivery]| -> Written {
        let run = |some: &[Delivery]| run(some, lines(some));
        let fresh: Vec<Delivery> = deliveries.iter().filter(|one| one.attempt() == 1).cloned().collect();
        let together = if fresh.len() > 1 { Some(run(&fresh)) } else { None };
        let mut unavailable = 0;
        let outcome = |one: &Delivery| outcome(one, together.as_ref(), &mut unavailable, &run);
        Ok(deliveries.iter().map(outcome).collect())
    };
    let limits = Limits { most: size, linger };
    let writers = std::iter::repeat_n(write, parallel).map(starting);
    Gather::start(name, limits, Delivery::runs_alone, writers)
}

/// What became of one message: what became of its batch, unless that failed.
fn outcome(
    delivery: &Delivery,
    together: Option<&TaskResult<()>>,
    unavailable: &mut u32,
    run: &impl Fn(&[Delivery]) -> TaskResult<()>,
) -> TaskResult<()> {
    match together.filter(|_| delivery.attempt() == 1) {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) if matches!(error.cause(), Cause::Cancelled) => return Err(TaskError::cancelled()),
        // No message is the cause: the same would happen to each alone.
        Some(Err(error)) if error.dependency() == Some(Dependency::Unavailable) => return Err(again(error)),
        Some(Err(error)) => {
            tracing::debug!(%error, "a batch failed; its messages are tried one by one");
        }
        None => {}
    }
    if *unavailable >= MAX_UNAVAILABLE {
        let text =
            format!("not tried: {MAX_UNAVAILABLE} messages in a row failed because of the server or command");
        return Err(TaskError::unavailable(text));
    }
    let result = run(std::slice::from_ref(delivery));
    let is_unavailable = result.as_ref().is_err_and(|error| error.dependency().is_some());
    *unavailable = if is_unavailable { *unavailable + 1 } else { 0 };
    result
}

/// One line for each message.
fn lines(deliveries: &[Delivery]) -> Vec<u8> {
    let mut lines = Vec::new();
    for delivery in deliveries {
        lines.extend_from_slice(&line(delivery));
        lines.push(b'\n');
    }
    lines
}

/// A message as one line of JSON: `body` has its body if that is JSON, as it was written; else `text`, or `hex` for bytes.
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
            // In JSON a line end stands only between values.
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
