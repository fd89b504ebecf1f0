//! Every setting of a consumer: its name, its flag, what it is for and what is legal.
//!
//! Owns the list, from which come the commented file and the messages about wrong values. It reads nothing.

use super::super::file::wrap;
use super::super::keys;

/// The tables of the file.
pub(crate) const SECTION: &str = "consumers";
pub(crate) const LEGAL: &str = "consumers are tables, each under [[consumers]]";

/// A setting of a consumer.
#[derive(Debug)]
pub(crate) struct Key {
    /// As in the file.
    pub(crate) name: &'static str,
    pub(crate) flag: &'static str,
    pub(crate) about: &'static str,
    pub(crate) legal: &'static str,
    /// As one would write it in the file.
    example: &'static str,
}

macro_rules! keys {
    ($($id:ident = $name:literal, $flag:literal, $about:literal, $legal:literal, $example:literal;)*) => {
        $(pub(crate) static $id: Key =
            Key { name: $name, flag: $flag, about: $about, legal: $legal, example: $example };)*
        /// All of them, in the order of the file.
        pub(crate) static ALL: &[&Key] = &[$(&$id),*];
    };
}

keys! {
    QUEUE = "queue", "QUEUE", "The queue to take messages from.", "a name", "\"orders\"";
    NAME = "name", "--name", "What it is called in logs, in statistics and at the broker; as its queue, unless said.", "a name", "\"shipping\"";
    EVENT = "event", "--event", "What its messages are about: a label in statistics.", "a text", "\"order\"";
    EXEC = "exec", "--exec", "Its action; exactly one of exec, http, enqueue and into. A command for each message.", "a list: the program and its words", "[\"./ship-order\", \"--fast\"]";
    HTTP = "http", "--http", "Or: a POST of each message.", "a URL with http:// or https://", "\"https://shop.example/orders\"";
    HTTP_RETRY_STATUS = "http_retry_status", "--http-retry-status", "For http: which statuses are the server's fault: consuming is paused. Any other status but 2xx is the message's.", "statuses from 300 to 599 with commas between them; 4xx and 5xx stand for all of their kind", "\"401,404,408,425,429,5xx\"";
    ENQUEUE = "enqueue", "--enqueue", "Or: a durable task of this kind for each message.", "the kind of a task, such as exec", "\"exec\"";
    TASK_QUEUE = "task_queue", "--task-queue", "For enqueue: which workers may take the tasks.", "a name", "\"default\"";
    INTO = "into", "--into", "Or: messages, which are JSON, into a table of this SQLite database.", "a path; in the settings file relative to its folder", "\"orders.db\"";
    TABLE = "table", "--table", "For into: the table.", "a name", "\"orders\"";
    BATCH = "batch", "--batch", "For exec and http: up to this number of messages at a time, as JSON lines. They succeed together; after a failure each is tried alone.", "a whole number from 1 to 200", "100";
    LINGER = "linger", "--linger", "For batch: how long the first message of a batch waits for others.", "a duration of at least 1ms, such as 200ms or 1s", "\"1s\"";
    WORKERS = "workers", "--workers", "How many messages at a time. 1 keeps the queue's order; 0 is as many as fit the action.", "a whole number from 0 to 200", "8";
    PREFETCH = "prefetch", "--prefetch", "At most how many messages the broker sends ahead, fewer with slow actions and large messages; 0 is as many as fit the workers.", "a whole number from 0 to 1000", "80";
    ORDER_BY = "order_by", "--order-by", "Keeps the order of messages with the same key.", "header:NAME or routing-key", "\"header:customer\"";
    TIMEOUT = "timeout", "--timeout", "How long one attempt may take; for into and enqueue: how long a message waits until its transaction begins, after which consuming is paused. Default: the setting exec.timeout for exec, 30s for http, no limit for into and enqueue.", "a duration of at least 1ms, such as 30s or 5m", "\"30s\"";
    ATTEMPTS = "attempts", "--attempts", "How many attempts a message has before it is a dead letter. Default: 12, or 5 where order is kept.", "a whole number from 1 to 1000", "12";
    RETRY_DELAY = "retry_delay", "--retry-delay", "The wait after the first failed attempt; it doubles with each further one, up to 1h. Default: 1m, or 1s where order is kept.", "a duration from 1ms to 1d, such as 500ms or 1m", "\"1m\"";
    RETRY_FOR = "retry_for", "--retry-for", "For how long a message is tried again, all waits together: as many attempts as fit, unless attempts allows fewer.", "a duration of at least 1ms, such as 1h or 24h", "\"24h\"";
    DEAD_LETTERS = "dead_letters", "--dead-letters", "Where dead letters go. Default: a queue named after the queue with .dead appended, which is declared.", "EXCHANGE or EXCHANGE:KEY, of an exchange that exists, or :QUEUE, of another queue that exists", "\"graveyard:orders\"";
    KEEP_LETTERS = "keep_letters", "--keep-letters", "Also keeps dead letters in the database, for `gristmill dead`.", "true or false", "true";
    ONCE_WITHIN = "once_within", "--once-within", "Skips a message whose id was done within this time.", "a duration of at least 1ms, such as 1h or 7d", "\"1d\"";
    MAX_STARTS = "max_starts", "--max-starts", "How often a message may be started again without getting to its end, before it is taken for one that ends its process. Counted in the database.", "a whole number from 1 to 1000000", "15";
    CONSUMER_TIMEOUT = "consumer_timeout", "--consumer-timeout", "How long the broker waits for an acknowledgement: its consumer_timeout, or that of the queue. A longer timeout is warned of.", "a duration of at least 1ms, or none", "\"30m\"";
    DECLARE = "declare", "--declare", "Makes the queue if it is not there. Without this it must be.", "quorum, classic or stream", "\"quorum\"";
    ARGUMENTS = "arguments", "--argument", "Arguments of a queue that declare makes; one that exists must have the same.", "a list of NAME=VALUE such as max-length=1000, single-active-consumer=true, delivery-limit=20 or max-priority=5; or x-NAME:TYPE=VALUE", "[\"max-length=100000\"]";
    BIND = "bind", "--bind", "What brings messages to the queue, of exchanges that are there.", "a list of EXCHANGE:KEY", "[\"shop:order.*\"]";
    OFFSET = "offset", "--offset", "Where in a stream to begin the first time; after that, it continues where it was. The position is kept in the database, by the name of the consumer.", "first, last, next or the number of a message", "\"next\"";
    REWIND = "rewind", "--rewind", "Begins in a stream where offset says, though a position is stored.", "true or false", "false";
    EXCLUSIVE = "exclusive", "--exclusive", "Be the only consumer of the queue; the broker enforces it for classic queues only.", "true or false", "false";
}

/// The actions. All but the first are left out of the example in the commented file, with the settings that go with them.
pub(super) static ACTIONS: &[&Key] = &[&EXEC, &HTTP, &ENQUEUE, &INTO];
static OF_OTHER_ACTIONS: &[&Key] = &[&HTTP, &HTTP_RETRY_STATUS, &ENQUEUE, &TASK_QUEUE, &INTO, &TABLE];

/// The setting of this name, or why there is none.
pub(crate) fn known(name: &str) -> Result<&'static Key, String> {
    // As it was called when deliveries were counted.
    let name = if name == "max_deliveries" { MAX_STARTS.name } else { name };
    ALL.iter().copied().find(|key| key.name == name).ok_or_else(|| {
        let hint = match keys::nearest(name, ALL.iter().map(|key| key.name)) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`gristmill config init --config FILE` writes a file with all there are".to_owned(),
        };
        format!("consumers have no setting {name}; {hint}")
    })
}

/// The part of the commented file that is about consumers.
pub(crate) fn template() -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "# Consumers of RabbitMQ's queues, which `gristmill consume` runs: a table each. The defaults are in"
            .to_owned(),
        "# `gristmill consume --help`.".to_owned(),
        "#[[consumers]]".to_owned(),
    ];
    for key in ALL {
        lines.push(String::new());
        lines.extend(wrap(key.about, 100).into_iter().map(|line| format!("# {line}")));
        lines.push(format!("# Legal: {}.", key.legal));
        let apart = if OF_OTHER_ACTIONS.iter().any(|other| other.name == key.name) { " " } else { "" };
        lines.push(format!("#{apart}{} = {}", key.name, key.example));
    }
    lines
}

#[cfg(test)]
pub(crate) fn template_leaves_out() -> usize {
    OF_OTHER_ACTIONS.len()
}
