//! `gristmill publish`: publishes lines and files to RabbitMQ with confirmation.
//!
//! Owns the arguments and the summary. `source` reads messages, `sender` publishes them. A message is in memory only
//! while it is in flight.

mod sender;
mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gristmill_amqp::{Exchange, Message};
use serde_json::json;

use self::sender::{MAX_REPORTED, MessageSender, PublishCounts, PublishEnd};
use self::source::Splitting;
use super::amqp_common::{self, BrokerArgs};
use super::value_parsers::{duration, positive_duration};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::note;
use crate::progress::{ProgressLine, ProgressReporter, RateMeter};
use crate::settings::consumers::{ARGUMENTS, DECLARE, QUEUE_KINDS, QueueKind};
use crate::settings::typed::{self, Typed};
use crate::supervisor::Supervisor;
use crate::units::{self, count_of, in_seconds, thousands};

const HELP: &str = "\
Each line of standard input is a message, without its line end; empty lines are skipped. Each FILE is one message with \
unchanged contents.

A message counts as published once the broker has confirmed it, which for a durable queue means that it is on disk. A \
message that no queue accepts is reported with its line or file; the others are published, and the exit status is 1. \
If the connection is lost, unconfirmed messages are sent again, so a message may arrive twice. If the broker confirms \
nothing for --confirm-timeout, publishing stops, and the reported messages may or may not have arrived. Ctrl-C stops \
publishing after the messages in flight are confirmed.

`gristmill consume --help` describes TLS, client certificates and heartbeats of the URI.

Exit status:
  0    all messages are confirmed
  1    invalid argument; access refused by the broker; messages that no queue
       accepted or that could not be read
  2    system failure: no broker, or a broker that does not confirm
  130  interrupted; the messages counted as published are confirmed

Examples:
  echo '{\"id\": 17}' | gristmill publish --queue orders
  gristmill publish --exchange shop --routing-key order.created --lines orders
  gristmill publish --queue orders --header retries:int=3 --expiration 1h a.json
  gristmill publish --queue jobs --declare quorum --argument max-length=99 a.json
  gristmill publish --queue pictures --content-type image/png *.png
  zcat dump.jsonl.gz | gristmill publish --queue events --generate-ids";

#[derive(Debug, clap::Args)]
#[command(
    after_help = HELP,
    override_usage = "gristmill publish [OPTIONS] --queue <QUEUE> [FILE]...\n       \
                      gristmill publish [OPTIONS] --exchange <EXCHANGE> [--routing-key <KEY>] [FILE]..."
)]
#[command(group(clap::ArgGroup::new("to").required(true).args(["queue", "exchange"])))]
pub(crate) struct Args {
    /// Files to publish, each as one message; - is standard input [default: the lines of standard input]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Publish to this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// Publish to this exchange
    #[arg(long, value_name = "EXCHANGE")]
    exchange: Option<String>,

    /// With --exchange: routing key of the messages [default: empty]
    #[arg(long, value_name = "KEY", requires = "exchange", conflicts_with = "queue")]
    routing_key: Option<String>,

    /// Publish each line of a file as a message
    #[arg(long, conflicts_with = "whole")]
    lines: bool,

    /// Publish all of standard input as one message
    #[arg(long)]
    whole: bool,

    /// Add a header to each message: text, or with NAME:TYPE=VALUE a value of type int, double, bool, time, bytes
    /// (hexadecimal) and others; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = typed::header, help_heading = "Message options")]
    header: Vec<Typed>,

    /// Give each message its own id, by which consumers can recognise duplicates
    #[arg(long, help_heading = "Message options")]
    generate_ids: bool,

    /// Give each message this id
    #[arg(long, value_name = "ID", conflicts_with = "generate_ids", help_heading = "Message options")]
    id: Option<String>,

    /// Set the priority, 0 to 255; the queue needs the argument max-priority
    #[arg(long, value_name = "NUMBER", help_heading = "Message options")]
    priority: Option<u8>,

    /// Let the broker drop a message that waits longer than this, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Message options")]
    expiration: Option<Duration>,

    /// Set the id of the request or conversation that the messages belong to
    #[arg(long, value_name = "ID", help_heading = "Message options")]
    correlation_id: Option<String>,

    /// Set the queue for replies
    #[arg(long, value_name = "QUEUE", help_heading = "Message options")]
    reply_to: Option<String>,

    /// Set the time of creation: seconds since 1970, a time such as 2026-01-31T12:00:00Z, or now
    #[arg(long, value_name = "TIME", value_parser = timestamp, help_heading = "Message options")]
    timestamp: Option<u64>,

    /// Set the content type, such as application/json
    #[arg(long, value_name = "TYPE", help_heading = "Message options")]
    content_type: Option<String>,

    /// Set the message type, such as order.created
    #[arg(long = "type", value_name = "NAME", help_heading = "Message options")]
    kind: Option<String>,

    /// Publish messages that the broker may lose when it restarts
    #[arg(long, help_heading = "Message options")]
    transient: bool,

    #[command(flatten)]
    broker: BrokerArgs,

    #[arg(long, value_name = "KIND", requires = "queue", value_parser = queue_kind, help = DECLARE.help,
          help_heading = "Broker options")]
    declare: Option<QueueKind>,

    #[arg(long, value_name = "NAME=VALUE", requires = "declare", value_parser = typed::argument,
          help = ARGUMENTS.help, help_heading = "Broker options")]
    argument: Vec<Typed>,

    /// Allow this many unconfirmed messages at once, 1 to 100000
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Broker options")]
    max_in_flight: u32,

    /// Stop if the broker does not confirm a message within this time; includes restarts of the broker
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = positive_duration, help_heading = "Broker options")]
    confirm_timeout: Duration,
}

fn queue_kind(text: &str) -> Result<QueueKind, String> {
    let found = QUEUE_KINDS.iter().find(|(word, _)| *word == text);
    found.map(|(_, kind)| *kind).ok_or_else(|| format!("expected: {}", DECLARE.expected))
}

fn timestamp(text: &str) -> Result<u64, String> {
    let expected = "expected: seconds since 1970, a time such as 2026-01-31T12:00:00Z, or now";
    typed::seconds(text).ok_or_else(|| expected.to_owned())
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.broker.apply(context);
    if args.whole && !args.files.is_empty() && args.files.iter().all(|file| file != "-") {
        return Err(Error::Setting("--whole applies to standard input only; a file is always one message".to_owned()));
    }
    let settings = context.settings()?;
    let mut builder = amqp_common::builder(&settings.amqp, "gristmill publish")
        .max_in_flight(args.max_in_flight.try_into().unwrap_or(1))
        .confirm_timeout(args.confirm_timeout);
    if let Some(queue) = &args.queue {
        builder = builder.queue(amqp_common::queue(queue, args.declare, &args.argument));
    }
    if let Some(exchange) = args.exchange.as_ref().filter(|exchange| !exchange.is_empty()) {
        builder = builder.exchange(Exchange::existing(exchange));
    }
    builder.check().map_err(amqp_common::failed)?;
    let supervisor = Supervisor::with_stop(context.quiet)?;
    let stop = &supervisor.stop;
    let runtime = amqp_common::runtime(2)?;
    let started = Instant::now();
    let counts = Arc::new(PublishCounts::default());
    let ended = runtime.block_on(async {
        let client = tokio::select! {
            client = builder.start() => client.map_err(amqp_common::failed)?,
            () = stop.cancelled() => return Ok(PublishEnd::Interrupted),
        };
        let inputs = source::read(&args.files, args.splitting())?;
        let progress = start_progress(&counts, context.quiet);
        let end = MessageSender::new(args, client.publisher(), &counts).send_all(inputs, stop).await;
        drop(progress);
        amqp_common::close(client).await;
        Ok::<_, Error>(end)
    });
    runtime.shutdown_background();
    let end = ended?;
    let (published, failed) = (counts.published.load(Relaxed), counts.failed.load(Relaxed));
    let seconds = started.elapsed().as_secs_f64();
    if failed > MAX_REPORTED {
        note(&format!("and {} more failed", thousands(failed - MAX_REPORTED)));
    }
    let value = json!({
        "published": published,
        "failed": failed,
        "seconds": seconds,
        "interrupted": end == PublishEnd::Interrupted,
        "confirm_timed_out": end == PublishEnd::Unconfirmed,
    });
    let outcome = match end {
        PublishEnd::All => Outcome::Done,
        PublishEnd::Interrupted => Outcome::Interrupted,
        PublishEnd::Unconfirmed => Outcome::Failed,
    };
    let outcome = if failed > 0 { outcome.and(Outcome::UserError) } else { outcome };
    context.output.summary(&value, outcome, |_| {
        let took = in_seconds(published, seconds, thousands);
        let mut text = format!("{} published {took}", count_of(published, "message"));
        if failed > 0 {
            text.push_str(&format!(", {} failed", thousands(failed)));
        }
        match end {
            PublishEnd::All => {}
            PublishEnd::Interrupted => text.push_str("; interrupted"),
            PublishEnd::Unconfirmed => text.push_str("; stopped: the broker does not confirm"),
        }
        text
    })
}

impl Args {
    fn splitting(&self) -> Splitting {
        Splitting { lines_of_files: self.lines, whole_input: self.whole }
    }

    fn message(&self, body: Vec<u8>) -> Message {
        let mut message = match (&self.queue, &self.exchange) {
            (Some(queue), _) => Message::to_queue(queue, body),
            (None, exchange) => {
                Message::new(exchange.clone().unwrap_or_default(), self.routing_key.clone().unwrap_or_default(), body)
            }
        };
        for (name, value) in &self.header {
            message = message.header(name, value.clone());
        }
        if self.generate_ids {
            message = message.id(uuid::Uuid::new_v4().to_string());
        }
        if let Some(kind) = &self.kind {
            message = message.event(kind);
        }
        if let Some(id) = &self.id {
            message = message.id(id);
        }
        let properties = &mut message.properties;
        properties.content_type.clone_from(&self.content_type);
        properties.priority = self.priority;
        properties.expiration = self.expiration.map(|limit| limit.as_millis().to_string());
        properties.correlation_id.clone_from(&self.correlation_id);
        properties.reply_to.clone_from(&self.reply_to);
        properties.timestamp = self.timestamp;
        if self.transient {
            message.properties.delivery_mode = Some(1);
        }
        message
    }
}

fn start_progress(counts: &Arc<PublishCounts>, quiet: bool) -> ProgressReporter {
    let counts = Arc::clone(counts);
    let mut rate = RateMeter::default();
    ProgressReporter::start(quiet, move |_| {
        let (published, failed) = (counts.published.load(Relaxed), counts.failed.load(Relaxed));
        let mut line = ProgressLine::new(format!("{} published", thousands(published)));
        line.push(8, format!("{}/s", thousands(rate.rate(published) as u64)));
        line.push(6, units::bytes(counts.bytes.load(Relaxed)));
        if failed > 0 {
            line.push(7, format!("{} failed", thousands(failed)));
        }
        line
    })
}
