//! Consumers of queues, as the settings file or the command line declares them.
//!
//! Owns the one place where what was given becomes what `gristmill consume` works with: checked, with its action. Which
//! settings there are is the affair of `keys`, what their values look like that of `values`; what an action does is the
//! command's affair.

mod keys;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_amqp::{Offset, OrderBy};

pub(crate) use self::keys::*;
pub(crate) use self::values::{Kind, Statuses, kind, url};
use self::values::{at_least_a_moment, binding, name, offset, order, place_for_letters};
use super::file::Values;
use super::typed::{self, Typed};
use super::{DAY, Origin, Raw, absolute};
use crate::error::Error;

/// How long the first message of a batch waits, unless it is said.
const LINGER_DEFAULT: Duration = Duration::from_secs(1);

/// A consumer as it was given: values by name, each with its place.
pub(crate) type Declared = BTreeMap<&'static str, (Raw, Origin)>;

/// A consumer, checked.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: String,
    pub(crate) name: String,
    pub(crate) event: Option<String>,
    pub(crate) action: Action,
    /// Messages of a batch, and how long the first one waits.
    pub(crate) batch: Option<(usize, Duration)>,
    /// 0 for as many as fit.
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) order_by: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) http_retry_status: Statuses,
    pub(crate) attempts: Option<u32>,
    pub(crate) retry_delay: Option<Duration>,
    pub(crate) retry_for: Option<Duration>,
    pub(crate) dead_letters: Option<(String, String)>,
    pub(crate) keep_letters: bool,
    pub(crate) once_within: Option<Duration>,
    pub(crate) max_starts: Option<u32>,
    /// How long the broker waits for an acknowledgement, if that is said; `Some(None)` for ever.
    pub(crate) consumer_timeout: Option<Option<Duration>>,
    pub(crate) declare: Option<Kind>,
    /// Arguments of the queue that `declare` makes.
    pub(crate) arguments: Vec<Typed>,
    pub(crate) bind: Vec<(String, String)>,
    pub(crate) offset: Option<Offset>,
    pub(crate) rewind: bool,
    pub(crate) exclusive: bool,
}

impl Consumer {
    /// Whether the queue is known to be a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.declare == Some(Kind::Stream) || self.offset.is_some()
    }
}

/// What is done with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(Vec<String>),
    Http(String),
    Enqueue { kind: String, queue: Option<String> },
    Into { database: PathBuf, table: String },
}

/// The consumer that a table of the file declares. A path in it is relative to the file's folder.
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

/// Checks a consumer. `place` is where it is declared, for messages about a setting that is missing.
pub(crate) fn resolve(declared: &Declared, place: &str) -> Result<Consumer, Error> {
    let of = ConsumerResolver { declared, place };
    let number = |text: &str| text.parse::<u32>().ok();
    let queue = of.text(&QUEUE, name)?.ok_or_else(|| of.missing(&QUEUE))?;
    Ok(Consumer {
        name: of.text(&NAME, name)?.unwrap_or_else(|| queue.clone()),
        event: of.text(&EVENT, |text| Some(text.to_owned()))?,
        action: of.action()?,
        batch: of.batch()?,
        workers: of.text(&WORKERS, |text| text.parse().ok().filter(|count| *count <= 200))?.unwrap_or(0),
        prefetch: of.text(&PREFETCH, |text| text.parse().ok().filter(|count| *count <= 1_000))?.unwrap_or(0),
        order_by: of.text(&ORDER_BY, order)?,
        timeout: of.text(&TIMEOUT, at_least_a_moment)?,
        http_retry_status: of.text(&HTTP_RETRY_STATUS, Statuses::read)?.unwrap_or_default(),
        attempts: of.text(&ATTEMPTS, |text| number(text).filter(|n| (1..=1_000).contains(n)))?,
        retry_delay: of.text(&RETRY_DELAY, |text| at_least_a_moment(text).filter(|delay| *delay <= DAY))?,
        retry_for: of.text(&RETRY_FOR, at_least_a_moment)?,
        // A queue whose dead letters go to itself would never end.
        dead_letters: of.text(&DEAD_LETTERS, |text| {
            place_for_letters(text).filter(|(exchange, key)| !exchange.is_empty() || *key != queue)
        })?,
        keep_letters: of.text(&KEEP_LETTERS, |text| text.parse().ok())?.unwrap_or(false),
        once_within: of.text(&ONCE_WITHIN, at_least_a_moment)?,
        consumer_timeout: of.text(&CONSUMER_TIMEOUT, |text| match text {
            "none" => Some(None),
            text => at_least_a_moment(text).map(Some),
        })?,
        max_starts: of.text(&MAX_STARTS, |text| number(text).filter(|n| (1..=1_000_000).contains(n)))?,
        declare: of.text(&DECLARE, kind)?,
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
    place: &'a str,
}

impl ConsumerResolver<'_> {
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

    /// Arguments are for a queue that is made.
    fn arguments(&self) -> Result<Vec<Typed>, Error> {
        let given = self.list(&ARGUMENTS)?.unwrap_or_default();
        if !given.is_empty() && !self.declared.contains_key(DECLARE.name) {
            let (key, needs) = (self.called(&ARGUMENTS), self.called(&DECLARE));
            return Err(Error::Setting(format!("{key} goes with {needs} only ({})", self.place)));
        }
        let wrong =
            |why: String| Error::Setting(format!("{}: {why} ({})", self.called(&ARGUMENTS), self.place));
        given.iter().map(|text| typed::argument(text).map_err(wrong)).collect()
    }

    fn batch(&self) -> Result<Option<(usize, Duration)>, Error> {
        let size = self.text(&BATCH, |text| text.parse().ok().filter(|size| (1..=200).contains(size)))?;
        let linger = self.text(&LINGER, at_least_a_moment)?;
        let has = |key: &Key| self.declared.contains_key(key.name);
        match size {
            Some(_) if !has(&EXEC) && !has(&HTTP) => {
                let (key, exec, http) = (self.called(&BATCH), self.called(&EXEC), self.called(&HTTP));
                Err(Error::Setting(format!("{key} goes with {exec} and {http} only ({})", self.place)))
            }
            Some(size) => Ok(Some((size, linger.unwrap_or(LINGER_DEFAULT)))),
            None if linger.is_some() => {
                let (key, needs) = (self.called(&LINGER), self.called(&BATCH));
                Err(Error::Setting(format!("{key} goes with {needs} only ({})", self.place)))
            }
            None => Ok(None),
        }
    }

    fn action(&self) -> Result<Action, Error> {
        let has = |key: &Key| self.declared.contains_key(key.name);
        let given: Vec<&Key> = ACTIONS.iter().copied().filter(|key| has(key)).collect();
        let can_run = |words: &Vec<String>| {
            words.first().is_some_and(|word| !word.is_empty())
                && !words.iter().any(|word| word.contains('\0'))
        };
        let command = self.list(&EXEC)?.filter(can_run);
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
        for (key, needs) in [(&TASK_QUEUE, &ENQUEUE), (&TABLE, &INTO), (&HTTP_RETRY_STATUS, &HTTP)] {
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

    /// The name of a setting as it is written where the consumer is declared.
    fn called(&self, key: &Key) -> &'static str {
        let by_file = self.declared.values().any(|(_, origin)| matches!(origin, Origin::File(..)));
        if by_file { key.name } else { key.flag }
    }

    fn missing(&self, key: &Key) -> Error {
        Error::Setting(format!("{} is missing ({})\n\nlegal: {}", self.called(key), self.place, key.legal))
    }

    /// The key, the value, where it stands and what is legal. A URL may hold a password, and is not repeated.
    fn wrong(&self, key: &Key) -> Error {
        let Key { name, legal, .. } = key;
        let (value, origin) = match self.declared.get(key.name) {
            Some((_, origin)) if key.name == HTTP.name => {
                return Error::Setting(format!("consumers.{name} ({origin}) is not legal\n\nlegal: {legal}"));
            }
            Some((Raw::One(text), origin)) => (format!("{text:?}"), origin.to_string()),
            Some((Raw::Many(items), origin)) => (format!("{items:?}"), origin.to_string()),
            Some((Raw::Bare(text), origin)) => (text.clone(), origin.to_string()),
            None => (String::new(), self.place.to_owned()),
        };
        Error::Setting(format!(
            "consumers.{name} is {value} ({origin}), which is not legal\n\nlegal: {legal}"
        ))
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
    fn what_is_wrong_is_named_with_what_is_legal() {
        refused(
            &[("workers", "201")],
            "consumers.workers is \"201\" (--flag), which is not legal\n\nlegal: a whole",
        );
        refused(&[("workers", "-1")], "from 0 to 200");
        refused(&[("prefetch", "1001")], "from 0 to 1000");
        refused(&[("order_by", "header:")], "header:NAME or routing-key");
        refused(&[("timeout", "0s")], "at least 1ms");
        refused(&[("timeout", "-1s")], "at least 1ms");
        refused(&[("exec", "ship a\0b")], "a list: the program and its words");
        refused(&[("attempts", "0")], "from 1 to 1000");
        refused(&[("declare", "lazy")], "quorum, classic or stream");
        refused(&[("bind", "shop")], "a list of EXCHANGE:KEY");
        refused(&[("dead_letters", ":")], "or :QUEUE");
        refused(&[("queue", "orders"), ("dead_letters", ":orders")], "of another queue");
        refused(&[("arguments", "max-length=1")], "--argument goes with --declare only");
        refused(&[("declare", "quorum"), ("arguments", "max-length=x")], "expected: a whole number");
        refused(&[("batch", "201")], "from 1 to 200");
        refused(&[("linger", "1s")], "--linger goes with --batch only");
        refused(&[("offset", "-1")], "first, last, next or the number");
        refused(&[("queue", "")], "consumers.queue is \"\"");
        refused(&[("http", "http://x")], "a consumer has --exec and --http (here)");
        refused(&[("table", "t")], "--table goes with --into only");
        refused(&[("http_retry_status", "404")], "--http-retry-status goes with --http only");
        refused(&[("retry_for", "0s")], "at least 1ms");
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
    fn a_wrong_url_is_not_repeated() {
        let wrong = declared(&[("queue", "q"), ("http", "ftp://me:secret@x")]);
        assert!(!resolve(&wrong, "here").unwrap_err().to_string().contains("secret"));
    }
}
