//! Every setting of a consumer: its name, its flag, its description and the values that it accepts.
//!
//! The commented settings file and the errors about invalid values are made from this list.

use super::super::file::wrap;
use super::super::keys;

pub(crate) const SECTION: &str = "consumers";
/// Error about `consumers` that is not an array of tables.
pub(crate) const EXPECTED: &str = "consumers are tables, each under [[consumers]]";

#[derive(Debug)]
pub(crate) struct Key {
    /// Name in the settings file.
    pub(crate) name: &'static str,
    pub(crate) flag: &'static str,
    pub(crate) about: &'static str,
    pub(crate) expected: &'static str,
    /// Example value in TOML.
    example: &'static str,
}

macro_rules! keys {
    ($($id:ident = $name:literal, $flag:literal, $about:literal, $expected:literal, $example:literal;)*) => {
        $(pub(crate) static $id: Key =
            Key { name: $name, flag: $flag, about: $about, expected: $expected, example: $example };)*
        /// All settings, in the order of the commented file.
        pub(crate) static ALL: &[&Key] = &[$(&$id),*];
    };
}

keys! {
    QUEUE = "queue", "QUEUE", "Queue to consume.", "a name", "\"orders\"";
    NAME = "name", "--name", "Name in logs, in statistics and at the broker. Default: the name of the queue.", "a name", "\"shipping\"";
    EVENT = "event", "--event", "Label of the messages in statistics.", "a text", "\"order\"";
    EXEC = "exec", "--exec", "Action; exactly one of exec, http, enqueue and into. Runs a command for each message.", "a list: the program and its arguments", "[\"./ship-order\", \"--fast\"]";
    HTTP = "http", "--http", "Action: POSTs each message to this URL.", "a URL with http:// or https://", "\"https://shop.example/orders\"";
    HTTP_RETRY_STATUS = "http_retry_status", "--http-retry-status", "For http: statuses that are failures of the server and pause consuming. Any other status except 2xx makes a dead letter. Default: 408,425,429,5xx.", "statuses from 300 to 599 separated by commas; 3xx, 4xx and 5xx are whole classes", "\"401,404,408,425,429,5xx\"";
    ENQUEUE = "enqueue", "--enqueue", "Action: enqueues a task of this kind for each message.", "the kind of a task, such as exec", "\"exec\"";
    TASK_QUEUE = "task_queue", "--task-queue", "For enqueue: queue of the tasks, which decides which workers run them. Default: default.", "a name", "\"default\"";
    INTO = "into", "--into", "Action: inserts each message, which must be a JSON object, into a table of this SQLite database.", "a path; in the settings file relative to its folder", "\"orders.db\"";
    TABLE = "table", "--table", "For into: the table.", "a name", "\"orders\"";
    BATCH = "batch", "--batch", "For exec and http: passes up to this many messages at once, as JSON lines. A batch succeeds as a whole; if it fails, each message is tried alone.", "a whole number from 1 to 200", "100";
    LINGER = "linger", "--linger", "For batch: how long a batch waits to fill. Default: 1s.", "a duration of at least 1ms, such as 200ms or 1s", "\"1s\"";
    WORKERS = "workers", "--workers", "Number of messages handled at once. 1 keeps the order of the queue if this is its only consumer. Default: 0, which is 4 per core, or 200 for into and enqueue.", "a whole number from 0 to 200", "8";
    PREFETCH = "prefetch", "--prefetch", "Maximum number of messages that the broker sends ahead; fewer if actions are slow or messages large. Default: 0, which is 10 per worker, at most 500.", "a whole number from 0 to 1000", "80";
    ORDER_BY = "order_by", "--order-by", "Keeps the order of messages with the same value of a header, or the same routing key.", "header:NAME or routing-key", "\"header:customer\"";
    TIMEOUT = "timeout", "--timeout", "Time limit of one attempt; for into and enqueue: of the wait until the transaction of a message begins, after which consuming pauses. Default: the setting exec.timeout for exec, 30s for http, none for into and enqueue.", "a duration of at least 1ms, such as 30s or 5m", "\"30s\"";
    ATTEMPTS = "attempts", "--attempts", "Number of attempts before a message becomes a dead letter. Default: 12, or 5 if retried in place.", "a whole number from 1 to 1000", "12";
    RETRY_DELAY = "retry_delay", "--retry-delay", "Delay after the first failed attempt; it doubles with each further one, up to 1h. Unless retried in place, it is rounded up to 1/8 s times a power of 2. Default: 1m, or 1s if retried in place.", "a duration from 1ms to 1d, such as 500ms or 1m", "\"1m\"";
    RETRY_FOR = "retry_for", "--retry-for", "Upper bound of the sum of all retry delays of a message. Allows as many attempts as fit, unless attempts allows fewer.", "a duration of at least 1ms, such as 1h or 24h", "\"24h\"";
    DEAD_LETTERS = "dead_letters", "--dead-letters", "Where dead letters are published. Default: the queue with .dead appended to its name, which is declared.", "EXCHANGE or EXCHANGE:KEY, of an exchange that exists, or :QUEUE, of another queue that exists", "\"graveyard:orders\"";
    STORE_DEAD_LETTERS = "store_dead_letters", "--store-dead-letters", "Also stores dead letters in the database, for `gristmill dead`.", "true or false", "true";
    DEDUP_WINDOW = "dedup_window", "--dedup-window", "Skips a message whose id was handled with success within this time.", "a duration of at least 1ms, such as 1h or 7d", "\"1d\"";
    MAX_STARTS = "max_starts", "--max-starts", "How often a message may be restarted whose process ended before the message was finished. Then it becomes a dead letter. Counted in the database. Default: 15.", "a whole number from 1 to 1000000", "15";
    CONSUMER_TIMEOUT = "consumer_timeout", "--consumer-timeout", "How long the broker waits for an acknowledgement: its consumer_timeout, or that of the queue. A longer timeout causes a warning. Default: 30m.", "a duration of at least 1ms, or none", "\"30m\"";
    DECLARE = "declare", "--declare", "Declares the queue if it does not exist. Without it the queue must exist.", "quorum, classic or stream", "\"quorum\"";
    ARGUMENTS = "arguments", "--argument", "Arguments of the queue that declare creates. An existing queue must have the same.", "a list of NAME=VALUE such as max-length=1000, single-active-consumer=true, delivery-limit=20 or max-priority=5; or x-NAME:TYPE=VALUE", "[\"max-length=100000\"]";
    BIND = "bind", "--bind", "Bindings of the queue to existing exchanges.", "a list of EXCHANGE:KEY", "[\"shop:order.*\"]";
    OFFSET = "offset", "--offset", "Offset of a stream to start at the first time. Later runs resume at the position that is stored in the database under the name of the consumer. Default: next.", "first, last, next or the offset of a message", "\"next\"";
    REWIND = "rewind", "--rewind", "Starts at offset even if a position is stored.", "true or false", "false";
    EXCLUSIVE = "exclusive", "--exclusive", "Be the only consumer of the queue; the broker enforces this for classic queues only.", "true or false", "false";
}

/// The actions. The example in the commented file uses the first; lines of the others have a space after `#`.
pub(super) static ACTIONS: &[&Key] = &[&EXEC, &HTTP, &ENQUEUE, &INTO];
static OF_OTHER_ACTIONS: &[&Key] = &[&HTTP, &HTTP_RETRY_STATUS, &ENQUEUE, &TASK_QUEUE, &INTO, &TABLE];

/// Finds the setting of this name, or returns an error with a suggestion.
pub(crate) fn known(name: &str) -> Result<&'static Key, String> {
    // Former name, from when deliveries were counted.
    let name = if name == "max_deliveries" { MAX_STARTS.name } else { name };
    ALL.iter().copied().find(|key| key.name == name).ok_or_else(|| {
        let hint = match keys::nearest(name, ALL.iter().map(|key| key.name)) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "list all with `gristmill config init --config FILE`".to_owned(),
        };
        format!("consumers have no setting {name}; {hint}")
    })
}

/// Returns the lines of the commented settings file about consumers.
pub(crate) fn template() -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "# Consumers of RabbitMQ queues, run by `gristmill consume`, one table each. See `gristmill consume --help`"
            .to_owned(),
        "# for details.".to_owned(),
        "#[[consumers]]".to_owned(),
    ];
    for key in ALL {
        lines.push(String::new());
        lines.extend(wrap(key.about, 100).into_iter().map(|line| format!("# {line}")));
        lines.push(format!("# Expected: {}.", key.expected));
        let indent = if OF_OTHER_ACTIONS.iter().any(|other| other.name == key.name) { " " } else { "" };
        lines.push(format!("#{indent}{} = {}", key.name, key.example));
    }
    lines
}

#[cfg(test)]
pub(crate) fn template_leaves_out() -> usize {
    OF_OTHER_ACTIONS.len()
}
