//! `gristmill publish`: lines and files to RabbitMQ, each confirmed.
//!
//! Owns the arguments and the summary. `source` reads messages, `sending` sends them. A message is in memory only while it is
//! in flight.

mod sending;
mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gristmill_amqp::{Exchange, Message, Queue};
use serde_json::json;

use self::sending::{Counts, End, NAMED, Sending};
use self::source::Way;
use super::amqp_common::{self, BrokerArgs};
use super::progress::{ProgressLine, ProgressReporter, RateMeter, Segment};
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{count_of, format_duration, note, thousands};
use crate::settings::consumers::{DECLARE, kind};
use crate::settings::typed::{self, Typed};
use crate::settings::value::{self, DURATIONS};

const EXAMPLES: &str = "\
Each line of standard input is a message, without its end; empty lines are none. A file that is named is one message as \
it is, whatever is in it. --lines takes lines of files, --whole all of standard input as one.

A message counts when the broker has confirmed it: on disk, for a queue that is durable. One that no queue takes is \
named with its line or file, and costs only itself; the exit code is 1 then. When the connection is lost, what was not \
confirmed is sent again, so that a message may arrive twice. A broker that confirms nothing for as long as \
--confirm-within says ends it: what it names then may have arrived, or not. Ctrl-C ends it after the messages that are on their way.

Exit codes:
  0    all are confirmed
  1    a wrong argument; no entry at the broker; messages that no queue took, or could not be read
  2    the system failed: no broker, or one that does not confirm
  130  interrupted; what it says is published is

Examples:
  echo '{\"id\": 17}' | gristmill publish --queue orders
  gristmill publish --exchange shop --routing-key order.created --ids --lines orders.jsonl
  gristmill publish --queue orders --header retries:int=3 --priority 5 --expiration 1h order.json
  gristmill publish --queue orders --declare quorum --argument max-length=100000 --argument delivery-limit=20 order.json
  gristmill publish --queue pictures --content-type image/png *.png
  zcat dump.jsonl.gz | gristmill publish --queue events --header source=dump";

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "gristmill publish [OPTIONS] --queue <QUEUE> [FILE]...\n       \
                      gristmill publish [OPTIONS] --exchange <EXCHANGE> [--routing-key <KEY>] [FILE]..."
)]
#[command(group(clap::ArgGroup::new("to").required(true).args(["queue", "exchange"])))]
pub(crate) struct Args {
    /// Files, each a message; - for standard input [default: the lines of standard input]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Straight to this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// To this exchange
    #[arg(long, value_name = "EXCHANGE")]
    exchange: Option<String>,

    /// With this routing key
    #[arg(long, value_name = "KEY", requires = "exchange", conflicts_with = "queue")]
    routing_key: Option<String>,

    /// Each line of a file is a message
    #[arg(long, conflicts_with = "whole")]
    lines: bool,

    /// All of standard input is one message
    #[arg(long)]
    whole: bool,

    /// A header for each message, as text or, with NAME:TYPE=VALUE, of a type: int, double, bool, time, bytes (in hexadecimal)
    /// and so on; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = typed::header, help_heading = "What messages carry")]
    header: Vec<Typed>,

    /// Give each message an id of its own, by which consumers can tell that they have seen it
    #[arg(long, help_heading = "What messages carry")]
    ids: bool,

    /// Give each message this id
    #[arg(long, value_name = "ID", conflicts_with = "ids", help_heading = "What messages carry")]
    id: Option<String>,

    /// A priority; the queue needs the argument max-priority to regard it
    #[arg(long, value_name = "NUMBER", help_heading = "What messages carry")]
    priority: Option<u8>,

    /// How long the broker keeps a message waiting, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = any_duration, help_heading = "What messages carry")]
    expiration: Option<Duration>,

    /// Which request or conversation messages belong to
    #[arg(long, value_name = "ID", help_heading = "What messages carry")]
    correlation_id: Option<String>,

    /// The queue for answers
    #[arg(long, value_name = "QUEUE", help_heading = "What messages carry")]
    reply_to: Option<String>,

    /// When they were made: seconds since 1970, a moment such as 2026-01-31T12:00:00Z, or now
    #[arg(long, value_name = "TIME", value_parser = timestamp, help_heading = "What messages carry")]
    timestamp: Option<u64>,

    /// What they are, such as application/json
    #[arg(long, value_name = "TYPE", help_heading = "What messages carry")]
    content_type: Option<String>,

    /// What happened, such as order.created
    #[arg(long = "type", value_name = "NAME", help_heading = "What messages carry")]
    kind: Option<String>,

    /// The broker need not keep them through a restart
    #[arg(long, help_heading = "What messages carry")]
    transient: bool,

    #[command(flatten)]
    place: BrokerArgs,

    /// Make the queue if it does not exist: quorum, classic or stream
    #[arg(long, value_name = "KIND", requires = "queue", help_heading = "The broker")]
    declare: Option<String>,

    /// With --declare: an argument of the queue, such as max-length=1000, single-active-consumer=true, delivery-limit=20,
    /// max-priority=5 or x-other:int=3; may be given several times
    #[arg(long, value_name = "NAME=VALUE", requires = "declare", value_parser = typed::argument, help_heading = "The broker")]
    argument: Vec<Typed>,

    /// How many messages may be on their way at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "The broker")]
    in_flight: u32,

    /// How long the broker may take to confirm a message, a restart included; then it is stopped
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration, help_heading = "The broker")]
    confirm_within: Duration,
}

fn timestamp(text: &str) -> Result<u64, String> {
    let expected = "expected: seconds since 1970, a moment such as 2026-01-31T12:00:00Z, or now";
    typed::seconds(text).ok_or_else(|| expected.to_owned())
}

fn any_duration(text: &str) -> Result<Duration, String> {
    value::duration(text).ok_or_else(|| format!("expected: {DURATIONS}"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let found = value::duration(text).filter(|duration| !duration.is_zero());
    found.ok_or_else(|| format!("legal: more than 0s, written as {DURATIONS}"))
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    args.place.note(context);
    if args.whole && !args.files.is_empty() && args.files.iter().all(|file| file != "-") {
        return Err(Error::Setting(
            "--whole is about standard input; a file is one message anyway".to_owned(),
        ));
    }
    let settings = context.settings()?;
    let mut builder = amqp_common::builder(&settings.amqp, "gristmill publish")
        .max_in_flight(args.in_flight.try_into().unwrap_or(1))
        .confirm_timeout(args.confirm_within);
    if let Some(queue) = &args.queue {
        builder = builder.queue(args.declared(queue)?);
    }
    if let Some(exchange) = args.exchange.as_ref().filter(|exchange| !exchange.is_empty()) {
        builder = builder.exchange(Exchange::existing(exchange));
    }
    builder.check().map_err(amqp_common::failed)?;
    let (signals, mut cancelled) = amqp_common::signals(1)?;
    let runtime = amqp_common::runtime(2)?;
    let started = Instant::now();
    let counts = Arc::new(Counts::default());
    let ended = runtime.block_on(async {
        let client = tokio::select! {
            client = builder.start() => client.map_err(amqp_common::failed)?,
            Some(()) = cancelled.recv() => return Ok(End::Interrupted),
        };
        let inputs = source::read(&args.files, args.way())?;
        let shown = show(&counts, context.quiet);
        let end = Sending::new(args, client.publisher(), &counts).all(inputs, cancelled).await;
        shown.end();
        amqp_common::close(client).await;
        Ok::<_, Error>(end)
    });
    runtime.shutdown_background();
    let end = ended?;
    signals.stop();
    let (published, failed) = (counts.published.load(Relaxed), counts.failed.load(Relaxed));
    let seconds = started.elapsed().as_secs_f64();
    if failed > NAMED {
        note(&format!("and {} more that did not arrive", thousands(failed - NAMED)));
    }
    let value = json!({
        "published": published,
        "failed": failed,
        "seconds": seconds,
        "interrupted": end == End::Interrupted,
        "stuck": end == End::Stuck,
    });
    let outcome = match end {
        End::All => Outcome::Done,
        End::Interrupted => Outcome::Interrupted,
        End::Stuck => Outcome::Failed,
    };
    let outcome = if failed > 0 { outcome.and(Outcome::UserError) } else { outcome };
    context.output.summary(&value, outcome, |_| {
        let rate = if seconds > 0.0 { (published as f64 / seconds) as u64 } else { 0 };
        let mut text = format!(
            "{} published in {} ({}/s)",
            count_of(published, "message"),
            format_duration(seconds),
            thousands(rate)
        );
        if failed > 0 {
            text.push_str(&format!(", {} not", thousands(failed)));
        }
        match end {
            End::All => {}
            End::Interrupted => text.push_str("; interrupted"),
            End::Stuck => text.push_str("; stopped: the broker does not confirm"),
        }
        text
    })?;
    Ok(outcome)
}

impl Args {
    fn declared(&self, queue: &str) -> Result<Queue, Error> {
        let Some(text) = &self.declare else { return Ok(Queue::existing(queue)) };
        match kind(text) {
            Some(kind) => Ok(amqp_common::queue(queue, Some(kind), &self.argument)),
            None => {
                let legal = DECLARE.legal;
                Err(Error::Setting(format!("--declare is {text:?}, which is not legal\n\nlegal: {legal}")))
            }
        }
    }

    fn way(&self) -> Way {
        Way { lines_of_files: self.lines, whole_input: self.whole }
    }

    fn message(&self, body: Vec<u8>) -> Message {
        let mut message = match (&self.queue, &self.exchange) {
            (Some(queue), _) => Message::to_queue(queue, body),
            (None, exchange) => Message::new(
                exchange.clone().unwrap_or_default(),
                self.routing_key.clone().unwrap_or_default(),
                body,
            ),
        };
        for (name, value) in &self.header {
            message = message.header(name, value.clone());
        }
        if self.ids {
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

fn show(counts: &Arc<Counts>, quiet: bool) -> ProgressReporter {
    let counts = Arc::clone(counts);
    let mut pace = RateMeter::default();
    ProgressReporter::start(quiet, move |_| {
        let (published, failed) = (counts.published.load(Relaxed), counts.failed.load(Relaxed));
        let mut parts = vec![
            Segment(9, format!("{} published", thousands(published))),
            Segment(8, format!("{}/s", thousands(pace.rate(published) as u64))),
            Segment(6, crate::output::bytes(counts.bytes.load(Relaxed))),
        ];
        if failed > 0 {
            parts.push(Segment(7, format!("{} not", thousands(failed))));
        }
        ProgressLine { segments: parts, bar: None }
    })
}
