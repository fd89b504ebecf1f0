//! Every option of a consumer, declared once: setting, flag, help, default, accepted values and effect.
//!
//! The flags of `gristmill consume`, the commented settings file, the errors about invalid values and the type
//! [`Consumer`] are made from this list.

use std::path::PathBuf;
use std::time::Duration;

use gristmill_amqp::{Consumer as AmqpConsumer, Offset, OrderBy};

use self::Takes::{Nothing, Number, Repeated, Rest, Value};
use super::super::format::{Format, Invalid, choice, duration, list, number, parsed, text};
use super::super::typed::{self, Typed};
use super::super::{DAY, MILLISECOND};
use super::values::{
    HttpStatuses, QUEUE_KINDS, QueueKind, binding, command, dead_letter_target, name, offset, order_by, url,
};
use super::{Action, ConsumerResolver};
use crate::error::Error;

/// An option of a consumer, as a setting in `[[consumers]]` and as a flag of `gristmill consume`.
pub(crate) struct ConsumerOption {
    /// Name in the settings file.
    pub(crate) name: &'static str,
    /// Flag, or the name of the positional argument.
    pub(crate) flag: &'static str,
    /// Former name of the flag and the setting, without dashes.
    pub(super) former: Option<&'static str>,
    pub(super) takes: Takes,
    /// Heading in the help.
    pub(super) heading: Option<&'static str>,
    /// Is listed after the other options of its heading.
    pub(super) is_late: bool,
    pub(crate) help: &'static str,
    /// Description in the settings file.
    pub(super) about: &'static str,
    pub(crate) expected: &'static str,
    /// Example value in TOML.
    pub(super) example: &'static str,
    /// One of these options must be given too.
    pub(super) requires: &'static [&'static ConsumerOption],
    /// May contain a password, which errors do not repeat.
    pub(super) is_secret: bool,
    /// Sets the option on the consumer of the client. Actions implement the options without an effect.
    effect: fn(AmqpConsumer, &Consumer) -> AmqpConsumer,
}

/// What follows a flag on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing: the flag sets true.
    Nothing,
    /// A value with this name in the help.
    Value(&'static str),
    /// A value that may begin with a hyphen, so that the error about a negative number says what is expected.
    Number(&'static str),
    /// One value each time the flag is given.
    Repeated(&'static str),
    /// All that follows.
    Rest(&'static str),
}

impl ConsumerOption {
    const DEFAULT: ConsumerOption = ConsumerOption {
        name: "",
        flag: "",
        former: None,
        takes: Nothing,
        heading: None,
        is_late: false,
        help: "",
        about: "",
        expected: "",
        example: "",
        requires: &[],
        is_secret: false,
        effect: |consumer, _| consumer,
    };
}

/// Declares each option: name, flag, what follows the flag, heading; then the field of [`Consumer`], whose value is the
/// given one or the default of its type.
macro_rules! consumer_options {
    ($(
        $id:ident = $name:literal, $flag:literal, $takes:expr, $heading:expr
        $(, $(#[$doc:meta])* $field:ident: $type:ty = $format:expr)? => { $($attribute:tt)* }
    )*) => {
        $(pub(crate) static $id: ConsumerOption = ConsumerOption {
            name: $name,
            flag: $flag,
            takes: $takes,
            heading: $heading,
            $($attribute)*
            ..ConsumerOption::DEFAULT
        };)*

        /// All options, in the order of the commented file.
        pub(crate) static ALL: &[&ConsumerOption] = &[$(&$id),*];

        /// A consumer with its checked options.
        #[derive(Clone, Debug)]
        pub(crate) struct Consumer {
            pub(crate) action: Action,
            $($($(#[$doc])* pub(crate) $field: $type,)?)*
        }

        impl Consumer {
            pub(super) fn read(of: &ConsumerResolver<'_>, action: Action) -> Result<Self, Error> {
                Ok(Consumer {
                    action,
                    $($($field: of.get(&$id, &$format)?.map(Into::into).unwrap_or_default(),)?)*
                })
            }
        }
    };
}

const ACTION: Option<&str> = Some("Action options");
const DELIVERY: Option<&str> = Some("Delivery options");
const RETRY: Option<&str> = Some("Retry options");
const BROKER: Option<&str> = Some("Broker options");
const STREAM: Option<&str> = Some("Stream options");

/// The actions. The example in the commented file uses the first.
pub(super) static ACTIONS: &[&ConsumerOption] = &[&EXEC, &HTTP, &ENQUEUE, &INTO];

consumer_options! {
    QUEUE = "queue", "QUEUE", Value("QUEUE"), None,
    queue: String = name() => {
        help: "Queue to consume; without an action: queue or name of consumers in the settings file",
        about: "Queue to consume.",
        expected: "a name",
        example: "\"orders\"",
    }
    NAME = "name", "--name", Value("NAME"), BROKER,
    /// The name of the queue, if none is given.
    name: String = name() => {
        is_late: true,
        help: "Name the consumer in logs, in statistics and at the broker [default: the name of the queue]",
        about: "Name in logs, in statistics and at the broker. Default: the name of the queue.",
        expected: "a name",
        example: "\"shipping\"",
    }
    EVENT = "event", "--event", Value("TEXT"), BROKER,
    event: Option<String> = parsed::<String>() => {
        is_late: true,
        help: "Label the messages with this text in statistics",
        about: "Label of the messages in statistics.",
        expected: "a text",
        example: "\"order\"",
        effect: |consumer, of| of.event.iter().fold(consumer, AmqpConsumer::event),
    }
    EXEC = "exec", "--exec", Rest("COMMAND"), ACTION => {
        help: "Run a command for each message; must be the last flag, all that follows belongs to the command",
        about: "Action; exactly one of exec, http, enqueue and into. Runs a command for each message.",
        expected: "a list: the program and its arguments",
        example: "[\"./ship-order\", \"--fast\"]",
    }
    HTTP = "http", "--http", Value("URL"), ACTION => {
        help: "POST each message to URL",
        about: "Action: POSTs each message to this URL.",
        expected: "a URL with http:// or https://",
        example: "\"https://shop.example/orders\"",
        is_secret: true,
    }
    HTTP_RETRY_STATUS = "http_retry_status", "--http-retry-status", Value("STATUSES"), ACTION,
    http_retry_status: HttpStatuses = HttpStatuses::format() => {
        help: "With --http: pause on these statuses; any other failure makes a dead letter [default: 408,425,429,5xx]",
        about: "For http: statuses that are failures of the server and pause consuming. Any other status except 2xx \
                makes a dead letter. Default: 408,425,429,5xx.",
        expected: "statuses from 300 to 599 separated by commas; 3xx, 4xx and 5xx are whole classes",
        example: "\"401,404,408,425,429,5xx\"",
        requires: &[&HTTP],
    }
    ENQUEUE = "enqueue", "--enqueue", Value("KIND"), ACTION => {
        is_late: true,
        help: "Enqueue a task of this kind for each message",
        about: "Action: enqueues a task of this kind for each message.",
        expected: "the kind of a task, such as exec",
        example: "\"exec\"",
    }
    TASK_QUEUE = "task_queue", "--task-queue", Value("QUEUE"), ACTION => {
        is_late: true,
        help: "With --enqueue: queue of the tasks, which decides which workers run them [default: default]",
        about: "For enqueue: queue of the tasks, which decides which workers run them. Default: default.",
        expected: "a name",
        example: "\"default\"",
        requires: &[&ENQUEUE],
    }
    INTO = "into", "--into", Value("DATABASE"), ACTION => {
        is_late: true,
        help: "Insert each message into a table of this SQLite database; created if missing",
        about: "Action: inserts each message, which must be a JSON object, into a table of this SQLite database.",
        expected: "a path; in the settings file relative to its folder",
        example: "\"orders.db\"",
    }
    TABLE = "table", "--table", Value("TABLE"), ACTION => {
        is_late: true,
        help: "With --into: table to insert into; created if missing",
        about: "For into: the table.",
        expected: "a name",
        example: "\"orders\"",
        requires: &[&INTO],
    }
    BATCH = "batch", "--batch", Number("N"), ACTION,
    /// Maximum size of a batch.
    batch: Option<usize> = number(1..=200_usize) => {
        help: "Pass up to N messages at once to --exec or --http as JSON lines, 1 to 200",
        about: "For exec and http: passes up to this many messages at once, as JSON lines. A batch succeeds as a \
                whole; if it fails, each message is tried alone.",
        expected: "a whole number from 1 to 200",
        example: "100",
        requires: &[&EXEC, &HTTP],
    }
    LINGER = "linger", "--linger", Value("DURATION"), ACTION,
    /// How long a batch waits to fill.
    linger: Option<Duration> = positive_duration() => {
        help: "With --batch: wait this long for a batch to fill [default: 1s]",
        about: "For batch: how long a batch waits to fill. Default: 1s.",
        expected: "a duration of at least 1ms, such as 200ms or 1s",
        example: "\"1s\"",
        requires: &[&BATCH],
    }
    WORKERS = "workers", "--workers", Number("NUMBER"), DELIVERY,
    /// 0 chooses the number.
    workers: usize = number(0..=200_usize) => {
        help: "Handle this many messages at once, 0 to 200. 1 keeps the order of the queue if this is its only consumer \
               (see single-active-consumer under --argument) [default: 0: 4 per core, 200 for --into and --enqueue]",
        about: "Number of messages handled at once. 1 keeps the order of the queue if this is its only consumer. \
                Default: 0, which is 4 per core, or 200 for into and enqueue.",
        expected: "a whole number from 0 to 200",
        example: "8",
        effect: |consumer, of| consumer.workers(of.workers),
    }
    PREFETCH = "prefetch", "--prefetch", Number("NUMBER"), DELIVERY,
    /// 0 chooses the number.
    prefetch: usize = number(0..=1_000_usize) => {
        help: "Let the broker send at most this many messages ahead, 0 to 1000; fewer are sent if actions are slow or \
               messages large [default: 0: 10 per worker, at most 500]",
        about: "Maximum number of messages that the broker sends ahead; fewer if actions are slow or messages large. \
                Default: 0, which is 10 per worker, at most 500.",
        expected: "a whole number from 0 to 1000",
        example: "80",
        effect: |consumer, of| consumer.prefetch(of.prefetch),
    }
    ORDER_BY = "order_by", "--order-by", Value("header:NAME|routing-key"), DELIVERY,
    order_by: Option<OrderBy> = order_by() => {
        help: "Keep the order of messages with the same value of a header, or the same routing key",
        about: "Keeps the order of messages with the same value of a header, or the same routing key.",
        expected: "header:NAME or routing-key",
        example: "\"header:customer\"",
        effect: |consumer, of| of.order_by.iter().cloned().fold(consumer, AmqpConsumer::order_by),
    }
    TIMEOUT = "timeout", "--timeout", Value("DURATION"), DELIVERY,
    timeout: Option<Duration> = positive_duration() => {
        help: "Limit the time of one attempt; for --into and --enqueue: the wait until the transaction of a message \
               begins, after which consuming pauses [default: setting exec.timeout, 1h; 30s for --http; none for --into \
               and --enqueue]",
        about: "Time limit of one attempt; for into and enqueue: of the wait until the transaction of a message begins, \
                after which consuming pauses. Default: the setting exec.timeout for exec, 30s for http, none for into \
                and enqueue.",
        expected: "a duration of at least 1ms, such as 30s or 5m",
        example: "\"30s\"",
    }
    ATTEMPTS = "attempts", "--attempts", Number("NUMBER"), RETRY,
    attempts: Option<u32> = number(1..=1_000_u32) => {
        help: "Try a message this often before it becomes a dead letter, 1 to 1000 [default: 12; 5 if retried in place]",
        about: "Number of attempts before a message becomes a dead letter. Default: 12, or 5 if retried in place.",
        expected: "a whole number from 1 to 1000",
        example: "12",
        effect: |consumer, of| consumer.retry(of.retry(false)).retry_in_place(of.retry(true)),
    }
    RETRY_DELAY = "retry_delay", "--retry-delay", Value("DURATION"), RETRY,
    retry_delay: Option<Duration> = duration(MILLISECOND..=DAY) => {
        help: "Wait this long after the first failed attempt; the delay doubles with each further one, up to 1h, and is \
               rounded up (see below) [default: 1m; 1s if retried in place]",
        about: "Delay after the first failed attempt; it doubles with each further one, up to 1h. Unless retried in \
                place, it is rounded up to 1/8 s times a power of 2. Default: 1m, or 1s if retried in place.",
        expected: "a duration from 1ms to 1d, such as 500ms or 1m",
        example: "\"1m\"",
    }
    RETRY_FOR = "retry_for", "--retry-for", Value("DURATION"), RETRY,
    retry_for: Option<Duration> = positive_duration() => {
        help: "Limit the sum of all retry delays of a message; allows as many attempts as fit",
        about: "Upper bound of the sum of all retry delays of a message. Allows as many attempts as fit, unless \
                attempts allows fewer.",
        expected: "a duration of at least 1ms, such as 1h or 24h",
        example: "\"24h\"",
    }
    DEAD_LETTERS = "dead_letters", "--dead-letters", Value("EXCHANGE[:KEY]"), RETRY,
    /// Exchange and routing key.
    dead_letters: Option<(String, String)> = dead_letter_target() => {
        help: "Publish dead letters to this existing exchange, or with :QUEUE to this existing queue [default: \
               QUEUE.dead, which is declared]",
        about: "Where dead letters are published. Default: the queue with .dead appended to its name, which is declared.",
        expected: "EXCHANGE or EXCHANGE:KEY, of an exchange that exists, or :QUEUE, of another queue that exists",
        example: "\"graveyard:orders\"",
        effect: |consumer, of| of.dead_letters.iter().fold(consumer, |consumer, (exchange, key)| {
            consumer.dead_letters(exchange, key)
        }),
    }
    STORE_DEAD_LETTERS = "store_dead_letters", "--store-dead-letters", Nothing, RETRY,
    store_dead_letters: bool = parsed::<bool>() => {
        help: "Also store dead letters in the database, for `gristmill dead`",
        about: "Also stores dead letters in the database, for `gristmill dead`.",
        expected: "true or false",
        example: "true",
        effect: |consumer, of| if of.store_dead_letters { consumer.store_dead_letters() } else { consumer },
    }
    DEDUP_WINDOW = "dedup_window", "--dedup-window", Value("DURATION"), DELIVERY,
    dedup_window: Option<Duration> = positive_duration() => {
        help: "Skip a message whose id was handled with success within this time",
        about: "Skips a message whose id was handled with success within this time.",
        expected: "a duration of at least 1ms, such as 1h or 7d",
        example: "\"1d\"",
        effect: |consumer, of| match of.action {
            // The table stores the ids of its rows itself.
            Action::Into { .. } => consumer,
            _ => of.dedup_window.into_iter().fold(consumer, AmqpConsumer::dedup_window),
        },
    }
    MAX_STARTS = "max_starts", "--max-starts", Number("NUMBER"), DELIVERY,
    max_starts: Option<u32> = number(1..=1_000_000_u32) => {
        // From when deliveries were counted.
        former: Some("max-deliveries"),
        help: "Restart a message whose process ended before the message was finished at most this often, 1 to 1000000; \
               counted in the database [default: 15]",
        about: "How often a message may be restarted whose process ended before the message was finished. Then it \
                becomes a dead letter. Counted in the database. Default: 15.",
        expected: "a whole number from 1 to 1000000",
        example: "15",
        effect: |consumer, of| of.max_starts.into_iter().fold(consumer, AmqpConsumer::max_starts),
    }
    CONSUMER_TIMEOUT = "consumer_timeout", "--consumer-timeout", Value("DURATION"), DELIVERY,
    /// How long the broker waits for an acknowledgement, if given; `Some(None)` is without limit.
    consumer_timeout: Option<Option<Duration>> = positive_duration().or("none") => {
        help: "Expect the broker to wait this long for an acknowledgement (its consumer_timeout), or none; a longer \
               --timeout causes a warning [default: 30m]",
        about: "How long the broker waits for an acknowledgement: its consumer_timeout, or that of the queue. A longer \
                timeout causes a warning. Default: 30m.",
        expected: "a duration of at least 1ms, or none",
        example: "\"30m\"",
        effect: |consumer, of| of.consumer_timeout.into_iter().fold(consumer, AmqpConsumer::consumer_timeout),
    }
    DECLARE = "declare", "--declare", Value("KIND"), BROKER,
    declare: Option<QueueKind> = choice(QUEUE_KINDS) => {
        help: "Declare the queue if it does not exist: quorum, classic or stream",
        about: "Declares the queue if it does not exist. Without it the queue must exist.",
        expected: "quorum, classic or stream",
        example: "\"quorum\"",
    }
    ARGUMENTS = "arguments", "--argument", Repeated("NAME=VALUE"), BROKER,
    /// Arguments of the queue that `declare` creates.
    arguments: Vec<Typed> = list(|text| typed::argument(text).map_err(Invalid::Because)) => {
        help: "With --declare: set an argument of the queue, such as max-length=1000, single-active-consumer=true, \
               delivery-limit=20, max-priority=5 or x-other:int=3; repeatable",
        about: "Arguments of the queue that declare creates. An existing queue must have the same.",
        expected: "a list of NAME=VALUE such as max-length=1000, single-active-consumer=true, delivery-limit=20 or \
                   max-priority=5; or x-NAME:TYPE=VALUE",
        example: "[\"max-length=100000\"]",
        requires: &[&DECLARE],
    }
    BIND = "bind", "--bind", Repeated("EXCHANGE:KEY"), BROKER,
    bind: Vec<(String, String)> = list(|text| binding(text).ok_or(Invalid::Value)) => {
        help: "Bind the queue to an existing exchange; repeatable",
        about: "Bindings of the queue to existing exchanges.",
        expected: "a list of EXCHANGE:KEY",
        example: "[\"shop:order.*\"]",
    }
    OFFSET = "offset", "--offset", Number("first|last|next|NUMBER"), STREAM,
    offset: Option<Offset> = offset() => {
        help: "Start at this offset the first time; later runs resume where the last one ended [default: next]",
        about: "Offset of a stream to start at the first time. Later runs resume at the position that is stored in the \
                database under the name of the consumer. Default: next.",
        expected: "first, last, next or the offset of a message",
        example: "\"next\"",
        effect: |consumer, of| of.offset.iter().cloned().fold(consumer, AmqpConsumer::offset),
    }
    REWIND = "rewind", "--rewind", Nothing, STREAM,
    rewind: bool = parsed::<bool>() => {
        help: "Start at --offset even if a position is stored",
        about: "Starts at offset even if a position is stored.",
        expected: "true or false",
        example: "false",
        effect: |consumer, of| if of.rewind { consumer.rewind() } else { consumer },
    }
    EXCLUSIVE = "exclusive", "--exclusive", Nothing, BROKER,
    exclusive: bool = parsed::<bool>() => {
        help: "Be the only consumer of the queue; the broker enforces this for classic queues only",
        about: "Be the only consumer of the queue; the broker enforces this for classic queues only.",
        expected: "true or false",
        example: "false",
        effect: |consumer, of| if of.exclusive { consumer.exclusive() } else { consumer },
    }
}

impl Consumer {
    /// Returns the consumer of the client with all options that are not part of the action.
    pub(crate) fn for_client(&self) -> AmqpConsumer {
        let consumer = AmqpConsumer::new(&self.queue, &self.name).store_position();
        ALL.iter().fold(consumer, |consumer, option| (option.effect)(consumer, self))
    }
}

impl Action {
    /// Reads the action that `given` selects, with the options that only it has.
    pub(super) fn read(of: &ConsumerResolver<'_>, given: &ConsumerOption) -> Result<Self, Error> {
        Ok(match given.name {
            "exec" => Action::Exec(of.require(&EXEC, &command())?),
            "http" => Action::Http(of.require(&HTTP, &text(url, String::clone))?),
            "enqueue" => Action::Enqueue { kind: of.require(&ENQUEUE, &name())?, queue: of.get(&TASK_QUEUE, &name())? },
            _ => Action::Into { database: of.require(&INTO, &path())?, table: of.require(&TABLE, &name())? },
        })
    }
}

fn positive_duration() -> Format<Duration> {
    duration(MILLISECOND..=Duration::MAX)
}

fn path() -> Format<PathBuf> {
    text(|path| Some(PathBuf::from(path)).filter(|_| !path.is_empty()), |path| path.display().to_string())
}
