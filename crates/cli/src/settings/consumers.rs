//! Consumers of queues, as the settings file or the command line declares them.
//!
//! Owns the one place where declared values become a checked [`Consumer`]. `keys` lists the settings, `values` parses
//! their values; the command `consume` implements the actions.

mod keys;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_amqp::{Offset, OrderBy};

pub(crate) use self::keys::*;
pub(crate) use self::values::{HttpStatuses, QueueKind, queue_kind, url};
use self::values::{binding, dead_letter_target, name, offset, order_by, positive_duration};
use super::file::Values;
use super::typed::{self, Typed};
use super::{DAY, Origin, Raw, absolute};
use crate::error::Error;

const DEFAULT_LINGER: Duration = Duration::from_secs(1);

/// Declared consumer: values by name, each with its origin.
pub(crate) type Declared = BTreeMap<&'static str, (Raw, Origin)>;

#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: String,
    pub(crate) name: String,
    pub(crate) event: Option<String>,
    pub(crate) action: Action,
    /// Maximum size of a batch, and how long it waits to fill.
    pub(crate) batch: Option<(usize, Duration)>,
    /// 0 chooses the number.
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) order_by: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) http_retry_status: HttpStatuses,
    pub(crate) attempts: Option<u32>,
    pub(crate) retry_delay: Option<Duration>,
    pub(crate) retry_for: Option<Duration>,
    pub(crate) dead_letters: Option<(String, String)>,
    pub(crate) store_dead_letters: bool,
    pub(crate) dedup_window: Option<Duration>,
    pub(crate) max_starts: Option<u32>,
    /// How long the broker waits for an acknowledgement, if given; `Some(None)` is without limit.
    pub(crate) consumer_timeout: Option<Option<Duration>>,
    pub(crate) declare: Option<QueueKind>,
    /// Arguments of the queue that `declare` creates.
    pub(crate) arguments: Vec<Typed>,
    pub(crate) bind: Vec<(String, String)>,
    pub(crate) offset: Option<Offset>,
    pub(crate) rewind: bool,
    pub(crate) exclusive: bool,
}

impl Consumer {
    /// Whether the queue is known to be a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.declare == Some(QueueKind::Stream) || self.offset.is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(Vec<String>),
    Http(String),
    Enqueue { kind: String, queue: Option<String> },
    Into { database: PathBuf, table: String },
}

/// Returns the consumer that a table of the settings file declares. A path in it is relative to the folder of the file.
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

/// Checks a consumer. `declared_in` is where it is declared, for errors about a missing setting.
pub(crate) fn resolve(declared: &Declared, declared_in: &str) -> Result<Consumer, Error> {
    let of = ConsumerResolver { declared, declared_in };
    let number = |text: &str| text.parse::<u32>().ok();
    let queue = of.text(&QUEUE, name)?.ok_or_else(|| of.missing_value(&QUEUE))?;
    Ok(Consumer {
        name: of.text(&NAME, name)?.unwrap_or_else(|| queue.clone()),
        event: of.text(&EVENT, |text| Some(text.to_owned()))?,
        action: of.action()?,
        batch: of.batch()?,
        workers: of.text(&WORKERS, |text| text.parse().ok().filter(|count| *count <= 200))?.unwrap_or(0),
        prefetch: of.text(&PREFETCH, |text| text.parse().ok().filter(|count| *count <= 1_000))?.unwrap_or(0),
        order_by: of.text(&ORDER_BY, order_by)?,
        timeout: of.text(&TIMEOUT, positive_duration)?,
        http_retry_status: of.text(&HTTP_RETRY_STATUS, HttpStatuses::read)?.unwrap_or_default(),
        attempts: of.text(&ATTEMPTS, |text| number(text).filter(|n| (1..=1_000).contains(n)))?,
        retry_delay: of.text(&RETRY_DELAY, |text| positive_duration(text).filter(|delay| *delay <= DAY))?,
        retry_for: of.text(&RETRY_FOR, positive_duration)?,
        // A queue whose dead letters return to it would never be empty.
        dead_letters: of.text(&DEAD_LETTERS, |text| {
            dead_letter_target(text).filter(|(exchange, key)| !exchange.is_empty() || *key != queue)
        })?,
        store_dead_letters: of.text(&STORE_DEAD_LETTERS, |text| text.parse().ok())?.unwrap_or(false),
        dedup_window: of.text(&DEDUP_WINDOW, positive_duration)?,
        consumer_timeout: of.text(&CONSUMER_TIMEOUT, |text| match text {
            "none" => Some(None),
            text => positive_duration(text).map(Some),
        })?,
        max_starts: of.text(&MAX_STARTS, |text| number(text).filter(|n| (1..=1_000_000).contains(n)))?,
        declare: of.text(&DECLARE, queue_kind)?,
        arguments: of.arguments()?,
        bind: of.bindings()?,
        offset: of.text(&OFFSET, offset)?,
        rewind: of.text(&REWIND, |text| text.parse().ok())?.unwrap_or(false),
        exclusive: of.text(&EXCLUSIVE, |text| text.parse().ok())?.unwrap_or(false),
        queue,
    })
}

struct ConsumerResolver<'a> {
    declared: &'a Declared,
    declared_in: &'a str,
}

impl ConsumerResolver<'_> {
    fn text<T>(&self, key: &Key, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Error> {
        let Some((raw, _)) = self.declared.get(key.name) else { return Ok(None) };
        let value = match raw {
            Raw::One(text) => text.to_str().and_then(read),
            Raw::Bare(text) => read(text),
            Raw::Many(_) => None,
        };
        value.map(Some).ok_or_else(|| self.invalid_value(key))
    }

    fn list(&self, key: &Key) -> Result<Option<Vec<String>>, Error> {
        match self.declared.get(key.name) {
            None => Ok(None),
            Some((Raw::Many(items), _)) if !items.is_empty() => Ok(Some(items.clone())),
            Some(_) => Err(self.invalid_value(key)),
        }
    }

    fn bindings(&self) -> Result<Vec<(String, String)>, Error> {
        let given = self.list(&BIND)?.unwrap_or_default();
        let read = given.iter().map(|text| binding(text)).collect::<Option<Vec<_>>>();
        read.ok_or_else(|| self.invalid_value(&BIND))
    }

    /// Returns the arguments of the queue; they require `declare`.
    fn arguments(&self) -> Result<Vec<Typed>, Error> {
        let given = self.list(&ARGUMENTS)?.unwrap_or_default();
        if !given.is_empty() && !self.declared.contains_key(DECLARE.name) {
            let (key, needs) = (self.display_name(&ARGUMENTS), self.display_name(&DECLARE));
            return Err(Error::Setting(format!("{key} requires {needs} ({})", self.declared_in)));
        }
        let wrong =
            |why: String| Error::Setting(format!("{}: {why} ({})", self.display_name(&ARGUMENTS), self.declared_in));
        given.iter().map(|text| typed::argument(text).map_err(wrong)).collect()
    }

    fn batch(&self) -> Result<Option<(usize, Duration)>, Error> {
        let size = self.text(&BATCH, |text| text.parse().ok().filter(|size| (1..=200).contains(size)))?;
        let linger = self.text(&LINGER, positive_duration)?;
        let has = |key: &Key| self.declared.contains_key(key.name);
        match size {
            Some(_) if !has(&EXEC) && !has(&HTTP) => {
                let (key, exec, http) = (self.display_name(&BATCH), self.display_name(&EXEC), self.display_name(&HTTP));
                Err(Error::Setting(format!("{key} requires {exec} or {http} ({})", self.declared_in)))
            }
            Some(size) => Ok(Some((size, linger.unwrap_or(DEFAULT_LINGER)))),
            None if linger.is_some() => {
                let (key, needs) = (self.display_name(&LINGER), self.display_name(&BATCH));
                Err(Error::Setting(format!("{key} requires {needs} ({})", self.declared_in)))
            }
            None => Ok(None),
        }
    }

    fn action(&self) -> Result<Action, Error> {
        let has = |key: &Key| self.declared.contains_key(key.name);
        let given: Vec<&Key> = ACTIONS.iter().copied().filter(|key| has(key)).collect();
        let can_run = |words: &Vec<String>| {
            words.first().is_some_and(|word| !word.is_empty()) && !words.iter().any(|word| word.contains('\0'))
        };
        let command = self.list(&EXEC)?.filter(can_run);
        let action = match given.as_slice() {
            [key] if key.name == EXEC.name => Action::Exec(command.ok_or_else(|| self.invalid_value(&EXEC))?),
            [key] if key.name == HTTP.name => {
                Action::Http(self.text(&HTTP, url)?.ok_or_else(|| self.missing_value(&HTTP))?)
            }
            [key] if key.name == ENQUEUE.name => Action::Enqueue {
                kind: self.text(&ENQUEUE, name)?.ok_or_else(|| self.missing_value(&ENQUEUE))?,
                queue: self.text(&TASK_QUEUE, name)?,
            },
            [_] => Action::Into {
                database: self
                    .text(&INTO, |path| Some(PathBuf::from(path)).filter(|_| !path.is_empty()))?
                    .ok_or_else(|| self.missing_value(&INTO))?,
                table: self.text(&TABLE, name)?.ok_or_else(|| self.missing_value(&TABLE))?,
            },
            [] => return Err(self.no_action()),
            [first, second, ..] => {
                let (first, second) = (self.display_name(first), self.display_name(second));
                let text =
                    format!("a consumer has {first} and {second} ({}); only one action is allowed", self.declared_in);
                return Err(Error::Setting(text));
            }
        };
        for (key, needs) in [(&TASK_QUEUE, &ENQUEUE), (&TABLE, &INTO), (&HTTP_RETRY_STATUS, &HTTP)] {
            if has(key) && !has(needs) {
                let (key, needs) = (self.display_name(key), self.display_name(needs));
                return Err(Error::Setting(format!("{key} requires {needs} ({})", self.declared_in)));
            }
        }
        Ok(action)
    }

    fn no_action(&self) -> Error {
        let names: Vec<&str> = ACTIONS.iter().map(|key| self.display_name(key)).collect();
        Error::Setting(format!("no action for messages ({}); expected: one of {}", self.declared_in, names.join(", ")))
    }

    /// Returns the name of a setting as it is written where the consumer is declared.
    fn display_name(&self, key: &Key) -> &'static str {
        let by_file = self.declared.values().any(|(_, origin)| matches!(origin, Origin::File(..)));
        if by_file { key.name } else { key.flag }
    }

    fn missing_value(&self, key: &Key) -> Error {
        Error::Setting(format!(
            "{} is missing ({})\n\nexpected: {}",
            self.display_name(key),
            self.declared_in,
            key.expected
        ))
    }

    /// Names the setting, its value, its origin and what is expected. A URL may hold a password and is not repeated.
    fn invalid_value(&self, key: &Key) -> Error {
        let expected = key.expected;
        let declared = self.declared.get(key.name);
        let (name, origin) = match declared {
            Some((_, Origin::Flag(flag))) => ((*flag).to_owned(), String::new()),
            Some((_, origin)) => (format!("consumers.{}", key.name), format!(" ({origin})")),
            None => (format!("consumers.{}", key.name), format!(" ({})", self.declared_in)),
        };
        let value = match declared {
            _ if key.name == HTTP.name => return Error::Setting(format!("{name}{origin} is not {expected}")),
            Some((Raw::One(text), _)) => format!("{text:?}"),
            Some((Raw::Many(items), _)) => format!("{items:?}"),
            Some((Raw::Bare(text), _)) => text.clone(),
            None => String::new(),
        };
        Error::Setting(format!("{name} is {value}{origin}, which is not allowed\n\nexpected: {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(pairs: &[(&'static str, &str)]) -> Declared {
        let raw = |name: &str, text: &str| match name {
            "exec" | "bind" | "arguments" => Raw::Many(text.split(' ').map(str::to_owned).collect()),
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
    fn invalid_values_are_reported_with_what_is_expected() {
        refused(&[("workers", "201")], "--flag is \"201\", which is not allowed\n\nexpected: a whole");
        refused(&[("workers", "-1")], "from 0 to 200");
        refused(&[("prefetch", "1001")], "from 0 to 1000");
        refused(&[("order_by", "header:")], "header:NAME or routing-key");
        refused(&[("timeout", "0s")], "at least 1ms");
        refused(&[("timeout", "-1s")], "at least 1ms");
        refused(&[("exec", "ship a\0b")], "a list: the program and its arguments");
        refused(&[("attempts", "0")], "from 1 to 1000");
        refused(&[("declare", "lazy")], "quorum, classic or stream");
        refused(&[("bind", "shop")], "a list of EXCHANGE:KEY");
        refused(&[("dead_letters", ":")], "or :QUEUE");
        refused(&[("queue", "orders"), ("dead_letters", ":orders")], "of another queue");
        refused(&[("arguments", "max-length=1")], "--argument requires --declare");
        refused(&[("declare", "quorum"), ("arguments", "max-length=x")], "expected: a whole number");
        refused(&[("batch", "201")], "from 1 to 200");
        refused(&[("linger", "1s")], "--linger requires --batch");
        refused(&[("offset", "-1")], "first, last, next or the offset");
        refused(&[("queue", "")], "--flag is \"\", which is not allowed\n\nexpected: a name");
        refused(&[("http", "http://x")], "a consumer has --exec and --http (here)");
        refused(&[("table", "t")], "--table requires --into");
        refused(&[("http_retry_status", "404")], "--http-retry-status requires --http");
        refused(&[("retry_for", "0s")], "at least 1ms");
    }

    #[test]
    fn missing_values_are_reported() {
        let none = resolve(&declared(&[("queue", "q")]), "here").unwrap_err().to_string();
        assert!(none.contains("expected: one of --exec, --http, --enqueue, --into"), "{none}");
        let queue = resolve(&declared(&[("exec", "true")]), "here").unwrap_err().to_string();
        assert!(queue.contains("QUEUE is missing (here)"), "{queue}");
        let table = resolve(&declared(&[("queue", "q"), ("into", "x.db")]), "here").unwrap_err().to_string();
        assert!(table.contains("--table is missing (here)"), "{table}");
    }

    #[test]
    fn invalid_url_is_not_repeated() {
        let wrong = declared(&[("queue", "q"), ("http", "ftp://me:secret@x")]);
        assert!(!resolve(&wrong, "here").unwrap_err().to_string().contains("secret"));
    }
}
