//! `gristmill queues peek`: shows the first messages of a queue without removing them.

use gristmill_amqp::Delivery;
use serde_json::Value;

use super::super::amqp_common::{BrokerArgs, unless_cancelled, with_client};
use super::super::paging;
use super::failed;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::Output;

pub(super) const HELP: &str = "\
Shows the properties, the headers with their types, and the body, in hexadecimal if it is not text. The messages stay \
in the queue, but their order may change. The broker marks them as redelivered, and a quorum queue counts a delivery \
of each: a queue with a delivery limit drops or dead-letters a message that was shown too often. A stream has no peek; \
use `gristmill consume QUEUE --offset first`.

Exit status:
  0    done
  1    missing queue; access refused by the broker
  2    system failure: no broker

Examples:
  gristmill queues peek orders.dead
  gristmill queues peek orders.dead --limit 1 --json | jq '.items[0].headers'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Queue to show messages of
    queue: String,

    /// Show at most N messages, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,

    #[command(flatten)]
    broker: BrokerArgs,
}

pub(super) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.broker.apply(context);
    let settings = context.settings()?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let found = with_client(&settings, "gristmill queues peek", async |client, stop| {
        unless_cancelled(stop, client.peek(&args.queue, limit)).await
    })?;
    let Some(found) = found.flatten() else { return Ok(Outcome::Interrupted) };
    let found = found.map_err(failed)?;
    let items: Vec<Value> = found.iter().map(message_json).collect();
    let text = |output: &Output| match found.is_empty() {
        true => format!("no ready messages in {}", args.queue),
        false => {
            found.iter().enumerate().map(|(at, one)| message_text(output, at + 1, one)).collect::<Vec<_>>().join("\n")
        }
    };
    context.output.print(&paging::whole(&items), text)
}

fn message_json(delivery: &Delivery) -> Value {
    let mut item = delivery.to_json();
    item["redelivered"] = delivery.is_redelivered().into();
    item["bytes"] = delivery.body().len().into();
    item["unreadable"] = delivery.unreadable_properties().into();
    item
}

fn message_text(output: &Output, number: usize, delivery: &Delivery) -> String {
    let json = delivery.to_json();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut fields: Vec<(String, Option<String>)> = vec![
        ("message".to_owned(), Some(number.to_string())),
        ("exchange".to_owned(), Some(delivery.exchange().to_owned())),
        ("routing key".to_owned(), Some(delivery.routing_key().to_owned())),
        ("redelivered".to_owned(), Some(delivery.is_redelivered().to_string())),
        ("unreadable".to_owned(), delivery.unreadable_properties().map(str::to_owned)),
    ];
    let properties = json["properties"].as_object().into_iter().flatten();
    fields.extend(properties.map(|(name, value)| (name.replace('_', " "), Some(text(value)))));
    for header in json["headers"].as_array().into_iter().flatten() {
        let name = format!("header {} ({})", text(&header["name"]), text(&header["type"]));
        fields.push((name, Some(text(&header["value"]))));
    }
    let (name, body) = match (&json["payload"], &json["payload_hex"]) {
        (Value::String(body), _) => ("body", body),
        (_, Value::String(hex)) => ("body (hex)", hex),
        _ => ("body", &String::new()),
    };
    fields.push((format!("{name}, {} bytes", delivery.body().len()), Some(body.clone())));
    output.fields(&fields.iter().map(|(name, value)| (name.as_str(), value.clone())).collect::<Vec<_>>())
}
