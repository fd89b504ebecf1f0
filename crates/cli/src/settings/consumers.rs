//! Consumers of queues, as the settings file or the command line declares them.
//!
//! Owns the list of what can be said about one, and the one place where that becomes what `gristmill consume` works
//! with: checked, with its action. What an action does is the command's affair.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_amqp::{Offset, OrderBy};

use super::file::{Values, wrap};
use super::{DAY, MOMENT, Origin, Raw, absolute, keys, value};
use crate::error::Error;

/// The tables of the file.
pub(crate) const SECTION: &str = "consumers";
pub(crate) const LEGAL: &str = "consumers are tables, each under [[consumers]]";

/// Something that can be said about a consumer.
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
    ENQUEUE = "enqueue", "--enqueue", "Or: a durable task of this kind for each message.", "the kind of a task, such as exec", "\"exec\"";
    TASK_QUEUE = "task_queue", "--task-queue", "For enqueue: which workers may take the tasks.", "a name", "\"default\"";
    INTO = "into", "--into", "Or: messages, which are JSON, into a table of this SQLite database.", "a path; in the settings file relative to its folder", "\"orders.db\"";
    TABLE = "table", "--table", "For into: the table.", "a name", "\"orders\"";
    WORKERS = "workers", "--workers", "How many messages at a time. 1 keeps the queue's order; 0 is as many as fit the action.", "a whole number from 0 to 200", "8";
    PREFETCH = "prefetch", "--prefetch", "How many messages the broker sends ahead; 0 is as many as fit the workers.", "a whole number from 0 to 1000", "80";
    ORDER_BY = "order_by", "--order-by", "Keeps the order of messages with the same key.", "header:NAME or routing-key", "\"header:customer\"";
    TIMEOUT = "timeout", "--timeout", "How long one attempt may take. Unless said: exec as the setting exec.timeout says, http 30s.", "a duration of at least 1ms, such as 30s or 5m", "\"30s\"";
    ATTEMPTS = "attempts", "--attempts", "How many attempts a message has before it is a dead letter.", "a whole number from 1 to 1000", "5";
    RETRY_DELAY = "retry_delay", "--retry-delay", "The wait after the first failed attempt; it doubles with each further one, up to 5m.", "a duration from 1ms to 1d, such as 500ms or 1s", "\"1s\"";
    DEAD_LETTERS = "dead_letters", "--dead-letters", "Where dead letters go. Unless said, to a queue that is named like the queue with .dead behind, and made.", "EXCHANGE or EXCHANGE:KEY, of an exchange that is there, or :QUEUE", "\"graveyard:orders\"";
    KEEP_LETTERS = "keep_letters", "--keep-letters", "Also keeps dead letters in the database, for `gristmill dead`.", "true or false", "true";
    ONCE_WITHIN = "once_within", "--once-within", "Skips a message whose id was done within this time.", "a duration of at least 1ms, such as 1h or 7d", "\"1d\"";
    MAX_DELIVERIES = "max_deliveries", "--max-deliveries", "How often a message may be delivered without getting to its end: it may be one that kills its workers.", "a whole number from 1 to 1000000", "15";
    DECLARE = "declare", "--declare", "Makes the queue if it is not there. Without this it must be.", "quorum, classic or stream", "\"quorum\"";
    BIND = "bind", "--bind", "What brings messages to the queue, of exchanges that are there.", "a list of EXCHANGE:KEY", "[\"shop:order.*\"]";
    OFFSET = "offset", "--offset", "Where in a stream to begin.", "first, last, next or the number of a message", "\"next\"";
    EXCLUSIVE = "exclusive", "--exclusive", "Nobody else may consume from the queue; the broker sees to that for classic queues only.", "true or false", "false";
}

/// What can be done with messages. Those but the first are not in the example of the file.
static ACTIONS: &[&Key] = &[&EXEC, &HTTP, &ENQUEUE, &INTO];
static OF_OTHER_ACTIONS: &[&Key] = &[&HTTP, &ENQUEUE, &TASK_QUEUE, &INTO, &TABLE];

/// A consumer as it was given: values by name, each with its place.
pub(crate) type Declared = BTreeMap<&'static str, (Raw, Origin)>;

/// A consumer, checked.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: String,
    pub(crate) name: String,
    pub(crate) event: Option<String>,
    pub(crate) action: Action,
    /// 0 for as many as fit.
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) order_by: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) attempts: u32,
    pub(crate) retry_delay: Duration,
    pub(crate) dead_letters: Option<(String, String)>,
    pub(crate) keep_letters: bool,
    pub(crate) once_within: Option<Duration>,
    pub(crate) max_deliveries: Option<u32>,
    pub(crate) declare: Option<Kind>,
    pub(crate) bind: Vec<(String, String)>,
    pub(crate) offset: Option<Offset>,
    pub(crate) exclusive: bool,
}

/// What is done with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(Vec<String>),
    Http(String),
    Enqueue { kind: String, queue: Option<String> },
    Into { database: PathBuf, table: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Quorum,
    Classic,
    Stream,
}

pub(crate) fn known(name: &str) -> Result<&'static Key, String> {
    ALL.iter().copied().find(|key| key.name == name).ok_or_else(|| {
        let hint = match keys::nearest(name, ALL.iter().map(|key| key.name)) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "`gristmill config init --config FILE` writes a file with all there are".to_owned(),
        };
        format!("consumers have no setting {name}; {hint}")
    })
}

/// What the file says of one. A path in it is seen from the file's folder.
pub(crate) fn from_file(values: &Values, file: &Path) -> Declared {
    let mut declared = Declared::new();
    for (name, (raw, line)) in values {
        let raw = match raw {
            Raw::One(path) if *name == INTO.name => {
                let folder = absolute(file).ok().and_then(|file| file.parent().map(Path::to_owned));
                Raw::One(folder.unwrap_or_default().join(path).into_os_string())
            }
            raw => raw.clone(),
        };
        declared.insert(name, (raw, Origin::File(file.to_owned(), *line)));
    }
    declared
}

/// Checks one. `place` is where it is declared, for what is missing.
pub(crate) fn resolve(declared: &Declared, place: &str) -> Result<Consumer, Error> {
    let of = Reading { declared, place };
    let number = |text: &str| text.parse::<u32>().ok();
    let queue = of.text(&QUEUE, name)?.ok_or_else(|| of.missing(&QUEUE))?;
    Ok(Consumer {
        name: of.text(&NAME, name)?.unwrap_or_else(|| queue.clone()),
        event: of.text(&EVENT, |text| Some(text.to_owned()))?,
        action: of.action()?,
        workers: of.text(&WORKERS, |text| text.parse().ok().filter(|count| *count <= 200))?.unwrap_or(0),
        prefetch: of.text(&PREFETCH, |text| text.parse().ok().filter(|count| *count <= 1_000))?.unwrap_or(0),
        order_by: of.text(&ORDER_BY, order)?,
        timeout: of.text(&TIMEOUT, at_least_a_moment)?,
        attempts: of.text(&ATTEMPTS, |text| number(text).filter(|n| (1..=1_000).contains(n)))?.unwrap_or(5),
        retry_delay: of
            .text(&RETRY_DELAY, |text| at_least_a_moment(text).filter(|delay| *delay <= DAY))?
            .unwrap_or(Duration::from_secs(1)),
        dead_letters: of.text(&DEAD_LETTERS, place_for_letters)?,
        keep_letters: of.text(&KEEP_LETTERS, |text| text.parse().ok())?.unwrap_or(false),
        once_within: of.text(&ONCE_WITHIN, at_least_a_moment)?,
        max_deliveries: of
            .text(&MAX_DELIVERIES, |text| number(text).filter(|n| (1..=1_000_000).contains(n)))?,
        declare: of.text(&DECLARE, kind)?,
        bind: of.bindings()?,
        offset: of.text(&OFFSET, offset)?,
        exclusive: of.text(&EXCLUSIVE, |text| text.parse().ok())?.unwrap_or(false),
        queue,
    })
}

fn name(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|name| (1..=255).contains(&name.len()) && !name.contains('\0'))
}

fn at_least_a_moment(text: &str) -> Option<Duration> {
    value::duration(text).filter(|duration| *duration >= MOMENT)
}

fn order(text: &str) -> Option<OrderBy> {
    match text.split_once(':') {
        None if text == "routing-key" => Some(OrderBy::RoutingKey),
        Some(("header", name)) if !name.is_empty() => Some(OrderBy::Header(name.to_owned())),
        _ => None,
    }
}

pub(crate) fn kind(text: &str) -> Option<Kind> {
    match text {
        "quorum" => Some(Kind::Quorum),
        "classic" => Some(Kind::Classic),
        "stream" => Some(Kind::Stream),
        _ => None,
    }
}

fn offset(text: &str) -> Option<Offset> {
    Some(match text {
        "first" => Offset::First,
        "last" => Offset::Last,
        "next" => Offset::Next,
        number => Offset::Number(number.parse().ok()?),
    })
}

fn place_for_letters(text: &str) -> Option<(String, String)> {
    let (exchange, key) = text.split_once(':').unwrap_or((text, ""));
    match exchange {
        // The exchange without a name, which has every queue by its name.
        "" => Some((String::new(), name(key)?)),
        exchange => Some((name(exchange)?, key.to_owned())),
    }
}

fn binding(text: &str) -> Option<(String, String)> {
    let (exchange, key) = text.split_once(':')?;
    Some((name(exchange)?, key.to_owned()))
}

fn url(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let clean = text.bytes().all(|byte| byte.is_ascii_graphic());
    (clean && !host.is_empty() && !host.ends_with('@')).then(|| text.to_owned())
}

struct Reading<'a> {
    declared: &'a Declared,
    place: &'a str,
}

impl Reading<'_> {
    fn text<T>(&self, key: &Key, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Error> {
        let Some((raw, _)) = self.declared.get(key.name) else { return Ok(None) };
        let value = match raw {
            Raw::One(text) => text.to_str().and_then(read),
            Raw::Bare(text) => read(text),
            Raw::Many(_) => None,
        };
        value.map(Some).ok_or_else(|| self.wrong(key))
    }

    fn list(&self, key: &Key) -> Result<Option<Vec<String>>, Error> {
        match self.declared.get(key.name) {
            None => Ok(None),
            Some((Raw::Many(items), _)) if !items.is_empty() => Ok(Some(items.clone())),
            Some(_) => Err(self.wrong(key)),
        }
    }

    fn bindings(&self) -> Result<Vec<(String, String)>, Error> {
        let given = self.list(&BIND)?.unwrap_or_default();
        let read = given.iter().map(|text| binding(text)).collect::<Option<Vec<_>>>();
        read.ok_or_else(|| self.wrong(&BIND))
    }

    fn action(&self) -> Result<Action, Error> {
        let has = |key: &Key| self.declared.contains_key(key.name);
        let given: Vec<&Key> = ACTIONS.iter().copied().filter(|key| has(key)).collect();
        let command = self.list(&EXEC)?.filter(|words| words.first().is_some_and(|word| !word.is_empty()));
        let action = match given.as_slice() {
            [key] if key.name == EXEC.name => Action::Exec(command.ok_or_else(|| self.wrong(&EXEC))?),
            [key] if key.name == HTTP.name => {
                Action::Http(self.text(&HTTP, url)?.ok_or_else(|| self.missing(&HTTP))?)
            }
            [key] if key.name == ENQUEUE.name => Action::Enqueue {
                kind: self.text(&ENQUEUE, name)?.ok_or_else(|| self.missing(&ENQUEUE))?,
                queue: self.text(&TASK_QUEUE, name)?,
            },
            [_] => Action::Into {
                database: self
                    .text(&INTO, |path| Some(PathBuf::from(path)).filter(|_| !path.is_empty()))?
                    .ok_or_else(|| self.missing(&INTO))?,
                table: self.text(&TABLE, name)?.ok_or_else(|| self.missing(&TABLE))?,
            },
            [] => return Err(self.no_action()),
            [first, second, ..] => {
                let (first, second) = (self.called(first), self.called(second));
                let text =
                    format!("a consumer has {first} and {second} ({}); one of them is legal", self.place);
                return Err(Error::Setting(text));
            }
        };
        for (key, needs) in [(&TASK_QUEUE, &ENQUEUE), (&TABLE, &INTO)] {
            if has(key) && !has(needs) {
                let (key, needs) = (self.called(key), self.called(needs));
                return Err(Error::Setting(format!("{key} goes with {needs} only ({})", self.place)));
            }
        }
        Ok(action)
    }

    fn no_action(&self) -> Error {
        let names: Vec<&str> = ACTIONS.iter().map(|key| self.called(key)).collect();
        Error::Setting(format!(
            "nothing is said about what to do with messages ({}); one of {} is legal",
            self.place,
            names.join(", ")
        ))
    }

    /// As whoever declared it writes it.
    fn called(&self, key: &Key) -> &'static str {
        let by_file = self.declared.values().any(|(_, origin)| matches!(origin, Origin::File(..)));
        if by_file { key.name } else { key.flag }
    }

    fn missing(&self, key: &Key) -> Error {
        Error::Setting(format!("{} is missing ({})\n\nlegal: {}", self.called(key), self.place, key.legal))
    }

    /// The key, the value, where it stands and what is legal. A URL may hold a password, and is not repeated.
    fn wrong(&self, key: &Key) -> Error {
        let (value, origin) = match self.declared.get(key.name) {
            Some((_, origin)) if key.name == HTTP.name => ("what it is".to_owned(), origin.to_string()),
            Some((Raw::One(text), origin)) => (format!("{text:?}"), origin.to_string()),
            Some((Raw::Many(items), origin)) => (format!("{items:?}"), origin.to_string()),
            Some((Raw::Bare(text), origin)) => (text.clone(), origin.to_string()),
            None => (String::new(), self.place.to_owned()),
        };
        let Key { name, legal, .. } = key;
        Error::Setting(format!(
            "consumers.{name} is {value} ({origin}), which is not legal\n\nlegal: {legal}"
        ))
    }
}

/// The part of the commented file that is about consumers.
pub(crate) fn template() -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "# Consumers of RabbitMQ's queues, which `gristmill consume` runs: a table each. What is not said holds as".to_owned(),
        "# `gristmill consume --help` tells.".to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(pairs: &[(&'static str, &str)]) -> Declared {
        let raw = |name: &str, text: &str| match name {
            "exec" | "bind" => Raw::Many(text.split(' ').map(str::to_owned).collect()),
            _ => Raw::One(text.into()),
        };
        pairs.iter().map(|(name, text)| (*name, (raw(name, text), Origin::Flag("--flag")))).collect()
    }

    #[track_caller]
    fn refused(pairs: &[(&'static str, &str)], expected: &str) {
        let all = [&[("queue", "q"), ("exec", "true")], pairs].concat();
        match resolve(&declared(&all), "here") {
            Err(error) => assert!(error.to_string().contains(expected), "{error}"),
            Ok(consumer) => panic!("{consumer:?}"),
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_legal() {
        refused(
            &[("workers", "201")],
            "consumers.workers is \"201\" (--flag), which is not legal\n\nlegal: a whole",
        );
        refused(&[("workers", "-1")], "from 0 to 200");
        refused(&[("prefetch", "1001")], "from 0 to 1000");
        refused(&[("order_by", "header:")], "header:NAME or routing-key");
        refused(&[("timeout", "0s")], "at least 1ms");
        refused(&[("attempts", "0")], "from 1 to 1000");
        refused(&[("declare", "lazy")], "quorum, classic or stream");
        refused(&[("bind", "shop")], "a list of EXCHANGE:KEY");
        refused(&[("dead_letters", ":")], "or :QUEUE");
        refused(&[("offset", "-1")], "first, last, next or the number");
        refused(&[("queue", "")], "consumers.queue is \"\"");
        refused(&[("http", "http://x")], "a consumer has --exec and --http (here)");
        refused(&[("table", "t")], "--table goes with --into only");
    }

    #[test]
    fn what_is_missing_is_named() {
        let none = resolve(&declared(&[("queue", "q")]), "here").unwrap_err().to_string();
        assert!(none.contains("one of --exec, --http, --enqueue, --into is legal"), "{none}");
        let queue = resolve(&declared(&[("exec", "true")]), "here").unwrap_err().to_string();
        assert!(queue.contains("QUEUE is missing (here)"), "{queue}");
        let table = resolve(&declared(&[("queue", "q"), ("into", "x.db")]), "here").unwrap_err().to_string();
        assert!(table.contains("--table is missing (here)"), "{table}");
    }

    #[test]
    fn a_url_is_one_and_is_not_repeated() {
        for good in ["http://a", "https://u:p@a:1/b?c", "http://[::1]:80/"] {
            assert_eq!(url(good).as_deref(), Some(good));
        }
        for bad in ["", "ftp://a", "http://", "http:///x", "a", "http://a b", "http://u:p@"] {
            assert_eq!(url(bad), None, "{bad}");
        }
        let wrong = declared(&[("queue", "q"), ("http", "ftp://me:secret@x")]);
        assert!(!resolve(&wrong, "here").unwrap_err().to_string().contains("secret"));
    }
}
