//! What was asked of `gristmill consume`, in words.

use std::time::Duration;

use super::super::amqp_common::BrokerArgs;
use super::drain::TIMEOUT;
use crate::context::Context;
use crate::error::Error;
use crate::settings::consumers::{self, Consumer, Declared, Key};
use crate::settings::value::{self, DURATIONS};
use crate::settings::{Origin, Raw, Settings, keys};

const EXAMPLES: &str = "\
With an action (--exec, --http, --enqueue or --into) one consumer of QUEUE is run, as flags say. Without, those of the \
settings file are: all, or those of QUEUE, or of that name; flags go over what the file says.

A message is acknowledged when its action is done, and not before: killed at any instant, it loses none, and may do \
one twice. A message that fails and may succeed later is tried again, later and later, while others are handled. One \
that cannot be done, or failed too often, goes to QUEUE.dead with the reason in its headers (x-gristmill-reason, \
x-gristmill-error). Where order is kept (--workers 1, --order-by, streams) a message is tried again in its place.

When the action itself fails, whatever the message (a server that is down, a full disk, a locked database, a command \
that cannot be started), consuming is paused: messages keep their places and their attempts, and one at a time is \
tried, after 1 s at first, then up to a minute apart, until one is done. A message with which alone a server fails, \
while others are done, uses its attempts. Databases that are locked at the start are waited for, too.

Actions:
  --exec     the message on standard input; 0 is done; 69, 126, 127 or a command that cannot be
             started: consuming is paused; 64 to 78 but 69 and 75 are for ever; any other exit code,
             a signal or the timeout: tried again. Variables: GRISTMILL_QUEUE,
             _EXCHANGE, _ROUTING_KEY, _MESSAGE_ID, _ATTEMPT, _REDELIVERED, _CONTENT_TYPE, _TYPE,
             _CORRELATION_ID, _REPLY_TO, _TIMESTAMP, TRACEPARENT, TRACESTATE, and for each header
             GRISTMILL_HEADER_NAME. Headers beyond 32 KiB, or with a NUL in them, are left out
  --http     2xx is done; a status of --http-retry-status, no connection or no answer in time:
             consuming is paused, at least until Retry-After; any other answer, a redirect too, is for
             ever. Headers: X-Gristmill-Queue and so on, traceparent; what is not plain ASCII in them
             is encoded as in a URL
  --enqueue  a task for each message, which is its payload and must be JSON. While a task with the
             message's id as its key is unfinished, no second one is made
  --batch    with --exec or --http: up to N messages at a time, one JSON object a line: on standard
             input, or as application/x-ndjson. A line has queue, exchange, routing_key, attempt,
             redelivered, headers (as texts), message_id, type, content_type and so on where they
             are set, and body where the body is JSON, else text, or hex. All of a batch succeed
             together. When a batch fails, each of its messages is tried alone at once, and only
             those that fail alone have used an attempt: a handler may see a message twice. Messages
             that failed before are handed over alone. --workers is the number of batches at a time
             (1); order is kept by --order-by only. GRISTMILL_BATCH (X-Gristmill-Batch) has the
             number of lines
  --into     a row for each message, which must be a JSON object; many in one transaction

--drain ends it when nothing waits in the queue, nor for another attempt, and nothing runs, for half a second, and \
every message that was postponed has come back. It exits with 2 if messages are left and nothing changes for 5 minutes \
(--drain-timeout): one that was postponed has not come back, consuming is paused and no message can be finished, or the \
broker does not answer. A stream is drained when all of it is done up to the message that was its last at the start.

Messages that an earlier run postponed, and that the broker could not return to their full queue, are counted by the \
management API only (setting amqp.management). Where they cannot be counted, --drain says so; it exits with 2 if the \
queue is declared with overflow=reject-publish, and so may have been full.

A consumer of a stream keeps its position in the database, by its name, and continues there after a restart: with the \
first message that was not done. After a kill the messages of the last moments come again. A queue that exists is \
recognised as a stream by itself.

The first Ctrl-C (or SIGTERM, or SIGHUP, which counts once) has it take nothing more and finish what runs, for as long as --shutdown says; the rest \
goes back to the queue. The second ends commands and gives messages back within a second; the third ends it at once. SIGQUIT \
(Ctrl-\\) ends it at once too, with a core dump where the system makes one; the next run ends commands that are left.

Exit codes:
  0    told to stop, once, and stopped; or with --drain or --for: that is reached.
       Messages that failed are no failure of the consumer
  1    a wrong argument or setting; a queue that is not there; no entry at the broker
  2    the system failed: no broker; with --drain or --for: consuming was paused at the
       end, or messages that were postponed did not come back or cannot be counted, or
       the broker did not answer
  130  told to stop before it was done (--drain, --for), or told so more than once

Examples:
  gristmill consume orders --exec ./ship-order
  gristmill consume orders --declare quorum --bind shop:order.* --http https://ship.example/orders
  gristmill consume clicks --batch 100 --linger 1s --http https://stats.example/clicks
  gristmill consume events --into events.db --table events --drain
  gristmill consume jobs --enqueue exec && gristmill worker --once
  gristmill consume --metrics 9419";

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "gristmill consume [OPTIONS] <QUEUE> --exec <COMMAND>...\n       \
                      gristmill consume [OPTIONS] <QUEUE> --http <URL>\n       \
                      gristmill consume [OPTIONS] <QUEUE> --enqueue <KIND>\n       \
                      gristmill consume [OPTIONS] <QUEUE> --into <DATABASE> --table <TABLE>\n       \
                      gristmill consume [OPTIONS] [QUEUE]"
)]
pub(crate) struct Args {
    /// The queue to take messages from; without an action, which of the settings file's consumers to run
    queue: Option<String>,

    /// Run a command for each message. All that follows is the command: the last on the line
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, help_heading = "What to do with a message")]
    exec: Vec<String>,

    /// POST each message
    #[arg(long, value_name = "URL", help_heading = "What to do with a message")]
    http: Option<String>,

    /// For --http: which statuses are the server's fault, not the message's [default: 408,425,429,5xx]
    #[arg(long, value_name = "STATUSES", help_heading = "What to do with a message")]
    http_retry_status: Option<String>,

    /// Hand up to N messages at a time to --exec or --http, as JSON lines
    #[arg(long, value_name = "N", help_heading = "What to do with a message", allow_hyphen_values = true)]
    batch: Option<String>,

    /// With --batch: how long the first message of a batch waits for others [default: 1s]
    #[arg(long, value_name = "DURATION", help_heading = "What to do with a message")]
    linger: Option<String>,

    /// Make a durable task of each message
    #[arg(long, value_name = "KIND", help_heading = "What to do with a message")]
    enqueue: Option<String>,

    /// For --enqueue: which workers may take the tasks [default: default]
    #[arg(long, value_name = "QUEUE", help_heading = "What to do with a message")]
    task_queue: Option<String>,

    /// Put each message into a table of this SQLite database; made if it is not there
    #[arg(long, value_name = "DATABASE", help_heading = "What to do with a message")]
    into: Option<String>,

    /// For --into: the table; made if it is not there
    #[arg(long, value_name = "TABLE", help_heading = "What to do with a message")]
    table: Option<String>,

    /// End when nothing is left to do, instead of waiting for more
    #[arg(long)]
    drain: bool,

    /// With --drain: exit with 2 if messages are left and nothing changes for this long [default: 5m]
    #[arg(long, value_name = "DURATION", requires = "drain")]
    drain_timeout: Option<String>,

    /// End after this time
    #[arg(long = "for", value_name = "DURATION")]
    limit: Option<String>,

    /// How long what runs may go on after it was told to stop [default: the setting amqp.shutdown]
    #[arg(long, value_name = "DURATION")]
    shutdown: Option<String>,

    /// Tell Prometheus how it goes, at http://ADDRESS/metrics; a port alone is for this machine only
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,

    /// How many messages at a time, 0 to 200; 1 keeps the queue's order [default: four a core; 200 for --into and
    /// --enqueue]
    #[arg(
        long,
        value_name = "NUMBER",
        help_heading = "How messages are handled",
        allow_hyphen_values = true
    )]
    workers: Option<String>,

    /// At most how many messages the broker sends ahead, 0 to 1000; fewer with slow actions and large messages [default: ten a
    /// worker, at most 500]
    #[arg(
        long,
        value_name = "NUMBER",
        help_heading = "How messages are handled",
        allow_hyphen_values = true
    )]
    prefetch: Option<String>,

    /// Keep the order of messages with the same header, or routing key
    #[arg(long, value_name = "header:NAME|routing-key", help_heading = "How messages are handled")]
    order_by: Option<String>,

    /// How long one attempt may take; for --into and --enqueue: how long a message waits until its transaction begins, after
    /// which consuming is paused [default: the setting exec.timeout; 30s for --http; no limit for --into and --enqueue]
    #[arg(long, value_name = "DURATION", help_heading = "How messages are handled")]
    timeout: Option<String>,

    /// How many attempts a message has [default: 12; 5 where order is kept]
    #[arg(
        long,
        value_name = "NUMBER",
        help_heading = "How messages are handled",
        allow_hyphen_values = true
    )]
    attempts: Option<String>,

    /// The wait after the first failed attempt; it doubles with each further one, up to 1h [default: 1m; 1s where order is
    /// kept]
    #[arg(long, value_name = "DURATION", help_heading = "How messages are handled")]
    retry_delay: Option<String>,

    /// For how long a message is tried again, all waits together: as many attempts as fit
    #[arg(long, value_name = "DURATION", help_heading = "How messages are handled")]
    retry_for: Option<String>,

    /// Where dead letters go: an exchange that is there, and a routing key; :QUEUE is straight to a queue [default: a queue
    /// QUEUE.dead, which is made]
    #[arg(long, value_name = "EXCHANGE[:KEY]", help_heading = "How messages are handled")]
    dead_letters: Option<String>,

    /// Keep dead letters in the database too, for `gristmill dead`
    #[arg(long, help_heading = "How messages are handled")]
    keep_letters: bool,

    /// Skip a message whose id was done within this time
    #[arg(long, value_name = "DURATION", help_heading = "How messages are handled")]
    once_within: Option<String>,

    /// How often a message may be started again without getting to its end; counted in the database [default: 15]
    #[arg(
        long,
        alias = "max-deliveries",
        value_name = "NUMBER",
        help_heading = "How messages are handled",
        allow_hyphen_values = true
    )]
    max_starts: Option<String>,

    /// How long the broker waits for an acknowledgement, or none; a longer --timeout is warned of [default: 30m]
    #[arg(long, value_name = "DURATION", help_heading = "How messages are handled")]
    consumer_timeout: Option<String>,

    #[command(flatten)]
    place: BrokerArgs,

    /// Make the queue if it is not there: quorum, classic or stream
    #[arg(long, value_name = "KIND", help_heading = "The broker")]
    declare: Option<String>,

    /// With --declare: an argument of the queue, such as max-length=1000, single-active-consumer=true, delivery-limit=20,
    /// max-priority=5 or x-other:int=3; may be given several times
    #[arg(long, value_name = "NAME=VALUE", help_heading = "The broker")]
    argument: Vec<String>,

    /// Bring messages of an exchange that is there to the queue; may be given several times
    #[arg(long, value_name = "EXCHANGE:KEY", help_heading = "The broker")]
    bind: Vec<String>,

    /// Where in a stream to begin the first time; after that, it continues where it was [default: next]
    #[arg(
        long,
        value_name = "first|last|next|NUMBER",
        help_heading = "The broker",
        allow_hyphen_values = true
    )]
    offset: Option<String>,

    /// Begin where --offset says, though a position is stored
    #[arg(long, help_heading = "The broker")]
    rewind: bool,

    /// Be the only consumer of the queue; the broker enforces it for classic queues only
    #[arg(long, help_heading = "The broker")]
    exclusive: bool,

    /// What it is called in logs, in statistics and at the broker [default: as the queue]
    #[arg(long, help_heading = "The broker")]
    name: Option<String>,

    /// What the messages are about: a label in statistics
    #[arg(long, value_name = "TEXT", help_heading = "The broker")]
    event: Option<String>,
}

/// When it ends by itself.
pub(super) struct Limits {
    /// Ends when nothing is left, or nothing has changed for this long while messages are left.
    pub(super) drain: Option<Duration>,
    pub(super) limit: Option<Duration>,
}

impl Args {
    /// The settings that flags give.
    pub(super) fn note(&self, context: &mut Context) {
        self.place.note(context);
        for (key, flag, value) in [
            (&keys::AMQP_SHUTDOWN, "--shutdown", &self.shutdown),
            (&keys::AMQP_METRICS, "--metrics", &self.metrics),
        ] {
            if let Some(text) = value {
                context.flags.values.insert(key.name, (flag, Raw::One(text.into())));
            }
        }
    }

    pub(super) fn limits(&self) -> Result<Limits, Error> {
        let read = |flag: &str, text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let limit = value::duration(text).filter(|limit| !limit.is_zero());
            limit.map(Some).ok_or_else(|| {
                Error::Setting(format!(
                    "{flag} is {text:?}, which is not legal\n\nlegal: more than 0s, written as {DURATIONS}"
                ))
            })
        };
        let timeout = read("--drain-timeout", &self.drain_timeout)?.unwrap_or(TIMEOUT);
        Ok(Limits { drain: self.drain.then_some(timeout), limit: read("--for", &self.limit)? })
    }

    /// The consumers to be run.
    pub(super) fn choose(&self, settings: &Settings) -> Result<Vec<Consumer>, Error> {
        let said = self.said();
        let has_action =
            !self.exec.is_empty() || self.http.is_some() || self.enqueue.is_some() || self.into.is_some();
        if has_action {
            return Ok(vec![consumers::resolve(&said, "the command line")?]);
        }
        let is_meant = |one: &&Declared| {
            let text = |key: &Key| one.get(key.name).map(|(raw, _)| raw.clone());
            self.queue.as_ref().is_none_or(|queue| {
                let queue = Raw::One(queue.into());
                text(&consumers::QUEUE).as_ref() == Some(&queue) || text(&consumers::NAME) == Some(queue)
            })
        };
        let meant: Vec<&Declared> = settings.consumers.iter().filter(is_meant).collect();
        if meant.is_empty() {
            return Err(self.none(settings));
        }
        let over = |one: &&Declared| {
            let mut one = (*one).clone();
            let but_queue = said.iter().filter(|(name, _)| **name != consumers::QUEUE.name);
            one.extend(but_queue.map(|(name, value)| (*name, value.clone())));
            consumers::resolve(&one, "the settings file")
        };
        meant.iter().map(over).collect()
    }

    fn none(&self, settings: &Settings) -> Error {
        let actions = "--exec, --http, --enqueue or --into says what to do with messages";
        Error::Setting(match &self.queue {
            Some(queue) if settings.consumers.is_empty() => {
                format!("nothing is said about what to do with the messages of {queue}; {actions}")
            }
            Some(queue) => format!(
                "the settings file has no consumer of the queue {queue:?}, or of that name; {actions}"
            ),
            None => format!(
                "the settings file has no [[consumers]], and no queue is named; {actions}, and `gristmill config init` \
                 writes a file with an example"
            ),
        })
    }

    /// What flags say about a consumer.
    fn said(&self) -> Declared {
        let mut said = Declared::new();
        let texts = [
            (&consumers::QUEUE, &self.queue),
            (&consumers::NAME, &self.name),
            (&consumers::EVENT, &self.event),
            (&consumers::HTTP, &self.http),
            (&consumers::BATCH, &self.batch),
            (&consumers::LINGER, &self.linger),
            (&consumers::ENQUEUE, &self.enqueue),
            (&consumers::TASK_QUEUE, &self.task_queue),
            (&consumers::INTO, &self.into),
            (&consumers::TABLE, &self.table),
            (&consumers::WORKERS, &self.workers),
            (&consumers::PREFETCH, &self.prefetch),
            (&consumers::ORDER_BY, &self.order_by),
            (&consumers::TIMEOUT, &self.timeout),
            (&consumers::ATTEMPTS, &self.attempts),
            (&consumers::RETRY_DELAY, &self.retry_delay),
            (&consumers::RETRY_FOR, &self.retry_for),
            (&consumers::HTTP_RETRY_STATUS, &self.http_retry_status),
            (&consumers::DEAD_LETTERS, &self.dead_letters),
            (&consumers::ONCE_WITHIN, &self.once_within),
            (&consumers::MAX_STARTS, &self.max_starts),
            (&consumers::CONSUMER_TIMEOUT, &self.consumer_timeout),
            (&consumers::DECLARE, &self.declare),
            (&consumers::OFFSET, &self.offset),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                said.insert(key.name, (Raw::One(text.into()), Origin::Flag(key.flag)));
            }
        }
        for (key, given) in [
            (&consumers::KEEP_LETTERS, self.keep_letters),
            (&consumers::REWIND, self.rewind),
            (&consumers::EXCLUSIVE, self.exclusive),
        ] {
            if given {
                said.insert(key.name, (Raw::Bare("true".to_owned()), Origin::Flag(key.flag)));
            }
        }
        for (key, items) in [
            (&consumers::EXEC, &self.exec),
            (&consumers::ARGUMENTS, &self.argument),
            (&consumers::BIND, &self.bind),
        ] {
            if !items.is_empty() {
                said.insert(key.name, (Raw::Many(items.clone()), Origin::Flag(key.flag)));
            }
        }
        said
    }
}
