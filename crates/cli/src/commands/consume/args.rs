//! Flags of `gristmill consume`, their help, and the consumers that they select.

use std::time::Duration;

use super::super::amqp_common::BrokerArgs;
use super::super::value_parsers::positive_duration;
use super::drain::DEFAULT_DRAIN_TIMEOUT;
use crate::context::Context;
use crate::error::Error;
use crate::settings::consumers::{self, Consumer, ConsumerFlags, ConsumerOption, Declared};
use crate::settings::{Raw, Settings, keys};

const HELP: &str = "\
With an action (--exec, --http, --enqueue or --into), run one consumer of QUEUE as the flags describe. Without an \
action, run the consumers of the settings file: all of them, or those whose queue or name is QUEUE. Flags override the \
file.

A message is acknowledged only after its action has succeeded. If the process is killed at any time, no message is \
lost, and some may be handled twice.

A message that fails and may succeed later is retried after a delay, while others are handled. It waits in a queue \
QUEUE.retry.MILLISECONDS; there is one for each delay, so delays are rounded up to 1/8 s times a power of 2: 3 s \
becomes 4 s, 5 min becomes 8.5 min. With --workers 1 or --order-by, and in a stream, a message is retried in place, \
without rounding. A stream with several workers and no --order-by does not keep its order.

A message that can never succeed, or has used its attempts, becomes a dead letter: it is published to QUEUE.dead, a \
queue at the broker, with the reason in its headers (x-gristmill-reason, x-gristmill-error). `gristmill queues peek \
QUEUE.dead` shows it; `gristmill dead` lists it only with --store-dead-letters.

If the action fails for a reason other than the message (a server is down, a disk is full, a database is locked, a \
command cannot be started), consuming pauses. Messages keep their places and their attempts, and one at a time is \
tried, after 1 s at first and up to 1 min apart later, until one succeeds. A message that alone makes a server fail, \
while others succeed, uses its attempts. A database that is locked at the start is waited for.

Actions:
  --exec     Run the command with the message on standard input. Exit code 0 is
             success; 69, 126, 127 or a command that cannot be started pauses;
             other codes from 64 to 78 except 75 are permanent failures; any
             other code, a signal or the timeout is retried. The end of its output
             (1,500 bytes of each stream) is logged with -vv after success, and is
             in x-gristmill-error (2,000 bytes) after a failure. Variables:
             GRISTMILL_QUEUE, _EXCHANGE, _ROUTING_KEY, _MESSAGE_ID, _ATTEMPT,
             _REDELIVERED, _CONTENT_TYPE, _TYPE, _CORRELATION_ID, _REPLY_TO,
             _TIMESTAMP, TRACEPARENT, TRACESTATE, and GRISTMILL_HEADER_NAME for
             each header. Headers above 32 KiB or with a NUL are omitted.
  --http     POST the message. 2xx is success; a status of --http-retry-status, a
             failed connection or a timeout pauses, at least for Retry-After; any
             other status, also a redirect, is a permanent failure. Headers:
             X-Gristmill-Queue and so on, traceparent, tracestate; values that
             are not ASCII are percent-encoded.
  --enqueue  Enqueue a task whose payload is the message, which must be JSON. A
             message whose id is the key of an unfinished task adds no second one.
  --into     Insert a row for each message, which must be a JSON object. One
             transaction inserts many.
  --batch    Pass JSON lines on standard input, or as application/x-ndjson. A line
             has queue, exchange, routing_key, attempt, redelivered, headers (as
             text), message_id, type, content_type and so on if set, and body if
             the body is JSON, else text or hex. A batch succeeds as a whole. If it
             fails, each message is tried alone at once, and only those that fail
             alone use an attempt: a handler may see a message twice. A message
             that failed before is passed alone. --workers is the number of batches
             at once (default 1); only --order-by keeps an order. GRISTMILL_BATCH
             or X-Gristmill-Batch is the number of lines.

Broker:
  TLS          amqps://HOST checks the broker's certificate with the authorities
               of the system, or with those of ?cacertfile=FILE.
  Certificate  ?certfile=FILE&keyfile=FILE presents a client certificate;
               &auth_mechanism=external logs in with it instead of a password.
  Heartbeat    ?heartbeat=SECONDS, 1 to 3600 (default 10).
  Permissions  read on QUEUE, write on amq.default; configure and read on
               QUEUE.dead and QUEUE.retry.* unless these queues exist. The error
               about a missing permission names the rabbitmqctl command.

--drain ends consuming when the queue and its retry queues are empty, no action runs for half a second, and every \
postponed message has come back. --drain-timeout ends it when a postponed message does not come back, consuming is \
paused and no message can be finished, or the broker does not answer. A stream is drained when every message up to the \
one that was last at the start is finished.

A message that an earlier run postponed, and that the broker cannot return because its queue is full, is counted only \
by the management API (setting amqp.management). Without that --drain prints a warning, or exits with status 2 if the \
queue is declared with overflow=reject-publish, and so may have been full.

A consumer of a stream stores its position in the database under its name, and resumes with the first unfinished \
message. After a kill, the last few messages are handled again. An existing queue is recognised as a stream.

After the first Ctrl-C, SIGTERM or SIGHUP (which counts once), no more messages are taken, and running actions have \
--shutdown to finish; unfinished messages return to the queue. The second signal kills commands and returns messages \
within 1 s, the third exits at once. SIGQUIT (Ctrl-\\) exits at once, with a core dump if the system writes one; the \
next run kills orphaned commands.

Exit status:
  0    stopped by one signal; or --drain or --for was reached. Failed messages
       do not change the exit status.
  1    invalid argument or setting; missing queue; access refused by the broker
  2    system failure: no broker; with --drain or --for: consuming was paused at
       the end, postponed messages did not come back or cannot be counted, or
       the broker did not answer
  130  interrupted before --drain or --for was reached, or by several signals

Examples:
  gristmill consume orders --exec ./ship-order
  gristmill consume orders --declare quorum --bind shop:order.* \\
      --http https://ship.example/orders
  gristmill consume clicks --batch 100 --http https://stats.example/clicks
  gristmill consume events --into events.db --table events --drain
  gristmill consume jobs --enqueue exec && gristmill worker --once
  gristmill consume orders --uri 'amqps://mq.example?cacertfile=ca.pem' \\
      --exec ./ship-order
  gristmill consume --metrics 9419";

#[derive(Debug, clap::Args)]
#[command(
    after_help = HELP,
    override_usage = "gristmill consume [OPTIONS] <QUEUE> --exec <COMMAND>...\n       \
                      gristmill consume [OPTIONS] <QUEUE> --http <URL>\n       \
                      gristmill consume [OPTIONS] <QUEUE> --enqueue <KIND>\n       \
                      gristmill consume [OPTIONS] <QUEUE> --into <DATABASE> --table <TABLE>\n       \
                      gristmill consume [OPTIONS] [QUEUE]"
)]
pub(crate) struct Args {
    #[command(flatten)]
    consumer: ConsumerFlags,

    /// Exit when no message is left, instead of waiting for more
    #[arg(long)]
    drain: bool,

    /// With --drain: exit with status 2 if messages are left and nothing changes for this long [default: 5m]
    #[arg(long, value_name = "DURATION", requires = "drain", value_parser = positive_duration)]
    drain_timeout: Option<Duration>,

    /// Exit after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    limit: Option<Duration>,

    /// Wait this long for running actions after a signal [default: setting amqp.shutdown, 30s]
    #[arg(long, value_name = "DURATION")]
    shutdown: Option<String>,

    /// Serve Prometheus metrics at http://ADDRESS/metrics; a port alone listens on 127.0.0.1 [default: setting
    /// amqp.metrics, none]
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,

    #[command(flatten)]
    broker: BrokerArgs,
}

/// Limits after which consuming ends without a signal.
pub(super) struct RunLimits {
    /// `--drain` with its timeout: how long nothing may change while messages are left.
    pub(super) drain: Option<Duration>,
    pub(super) limit: Option<Duration>,
}

impl Args {
    /// Applies the flags that override settings.
    pub(super) fn apply(&self, context: &mut Context) {
        self.broker.apply(context);
        context.flags.add(&keys::AMQP_SHUTDOWN, "--shutdown", self.shutdown.as_ref());
        context.flags.add(&keys::AMQP_METRICS, "--metrics", self.metrics.as_ref());
    }

    pub(super) fn limits(&self) -> RunLimits {
        let timeout = self.drain_timeout.unwrap_or(DEFAULT_DRAIN_TIMEOUT);
        RunLimits { drain: self.drain.then_some(timeout), limit: self.limit }
    }

    pub(super) fn choose(&self, settings: &Settings) -> Result<Vec<Consumer>, Error> {
        let ConsumerFlags(from_flags) = &self.consumer;
        if consumers::have_action(from_flags) {
            return Ok(vec![consumers::resolve(from_flags, "the command line")?]);
        }
        fn value<'a>(of: &'a Declared, option: &ConsumerOption) -> Option<&'a Raw> {
            of.get(option.name).map(|(raw, _)| raw)
        }
        let queue = value(from_flags, &consumers::QUEUE);
        let is_selected = |one: &&Declared| {
            queue.is_none() || value(one, &consumers::QUEUE) == queue || value(one, &consumers::NAME) == queue
        };
        let selected: Vec<&Declared> = settings.consumers.iter().filter(is_selected).collect();
        if selected.is_empty() {
            return Err(no_consumer_error(queue, settings));
        }
        let with_flags = |one: &&Declared| {
            let mut one = (*one).clone();
            let without_queue = from_flags.iter().filter(|(name, _)| **name != consumers::QUEUE.name);
            one.extend(without_queue.map(|(name, value)| (*name, value.clone())));
            consumers::resolve(&one, "the settings file")
        };
        selected.iter().map(with_flags).collect()
    }
}

fn no_consumer_error(queue: Option<&Raw>, settings: &Settings) -> Error {
    let actions = "choose one with --exec, --http, --enqueue or --into";
    Error::Setting(match queue {
        Some(Raw::One(queue)) if settings.consumers.is_empty() => {
            format!("no action for the messages of {}; {actions}", queue.display())
        }
        Some(queue) => format!(
            "the settings file has no consumer with the queue or name {queue}; for an action without it, {actions}"
        ),
        None => "no queue given, and the settings file has no [[consumers]]; name a queue and an action, or write a settings \
                 file with an example by `gristmill config init`"
            .to_owned(),
    })
}
