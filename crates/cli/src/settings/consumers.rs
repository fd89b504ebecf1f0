//! Consumers of queues, as the settings file or the command line declares them.
//!
//! Owns the one place where declared values become a checked [`Consumer`]. `options` declares the options; the command
//! `consume` implements the actions.

mod flags;
mod options;
mod retry;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use self::flags::ConsumerFlags;
use self::options::ACTIONS;
pub(crate) use self::options::{ALL, ARGUMENTS, Consumer, ConsumerOption, DECLARE, NAME, QUEUE};
use self::options::{DEAD_LETTERS, INTO};
pub(crate) use self::values::{HttpStatuses, QUEUE_KINDS, QueueKind, url};
use super::file::{Values, wrap};
use super::format::{Format, Invalid};
use super::{Origin, Raw, absolute, keys};
use crate::error::Error;

pub(crate) const SECTION: &str = "consumers";
/// Error about `consumers` that is not an array of tables.
pub(crate) const EXPECTED: &str = "consumers are tables, each under [[consumers]]";

const DEFAULT_LINGER: Duration = Duration::from_secs(1);

/// Declared consumer: values by name, each with its origin.
pub(crate) type Declared = BTreeMap<&'static str, (Raw, Origin)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(Vec<String>),
    Http(String),
    Enqueue { kind: String, queue: Option<String> },
    Into { database: PathBuf, table: String },
}

impl Consumer {
    /// Whether the queue is known to be a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.declare == Some(QueueKind::Stream) || self.offset.is_some()
    }

    /// Maximum size of a batch, and how long it waits to fill.
    pub(crate) fn batch(&self) -> Option<(usize, Duration)> {
        Some((self.batch?, self.linger.unwrap_or(DEFAULT_LINGER)))
    }
}

/// Whether these options select an action.
pub(crate) fn have_action(declared: &Declared) -> bool {
    ACTIONS.iter().any(|action| declared.contains_key(action.name))
}

/// Finds the option of this name, or returns an error with a suggestion.
pub(crate) fn known(name: &str) -> Result<&'static ConsumerOption, String> {
    let is_named = |option: &&&ConsumerOption| {
        option.name == name || option.former.is_some_and(|former| former.replace('-', "_") == name)
    };
    ALL.iter().find(is_named).copied().ok_or_else(|| {
        let hint = match keys::nearest(name, ALL.iter().map(|option| option.name)) {
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
    for option in ALL {
        lines.push(String::new());
        lines.extend(wrap(option.about, 100).into_iter().map(|line| format!("# {line}")));
        lines.push(format!("# Expected: {}.", option.expected));
        let indent = if is_of_other_action(option) { " " } else { "" };
        lines.push(format!("#{indent}{} = {}", option.name, option.example));
    }
    lines
}

/// Whether an option is not part of the example in the commented file, which uses the first action. Its line has a
/// space after `#`.
pub(super) fn is_of_other_action(option: &ConsumerOption) -> bool {
    let is_other = |option: &ConsumerOption| ACTIONS.iter().skip(1).any(|action| action.name == option.name);
    is_other(option) || matches!(option.requires, [only] if is_other(only))
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
    if !declared.contains_key(QUEUE.name) {
        return Err(of.missing_value(&QUEUE));
    }
    let action = of.action()?;
    of.check_requirements()?;
    let mut consumer = Consumer::read(&of, action)?;
    if consumer.name.is_empty() {
        consumer.name.clone_from(&consumer.queue);
    }
    // A queue whose dead letters return to it would never be empty.
    if consumer.dead_letters.as_ref().is_some_and(|(exchange, key)| exchange.is_empty() && *key == consumer.queue) {
        return Err(of.invalid_value(&DEAD_LETTERS));
    }
    Ok(consumer)
}

struct ConsumerResolver<'a> {
    declared: &'a Declared,
    declared_in: &'a str,
}

impl ConsumerResolver<'_> {
    fn has(&self, option: &ConsumerOption) -> bool {
        self.declared.contains_key(option.name)
    }

    fn get<T: 'static>(&self, option: &ConsumerOption, format: &Format<T>) -> Result<Option<T>, Error> {
        let Some((raw, _)) = self.declared.get(option.name) else { return Ok(None) };
        format.read(raw).map(Some).map_err(|invalid| match invalid {
            Invalid::Value => self.invalid_value(option),
            Invalid::Because(why) => {
                Error::Setting(format!("{}: {why} ({})", self.display_name(option), self.declared_in))
            }
        })
    }

    fn require<T: 'static>(&self, option: &ConsumerOption, format: &Format<T>) -> Result<T, Error> {
        self.get(option, format)?.ok_or_else(|| self.missing_value(option))
    }

    fn action(&self) -> Result<Action, Error> {
        let given: Vec<&ConsumerOption> = ACTIONS.iter().copied().filter(|action| self.has(action)).collect();
        let names = |options: &[&ConsumerOption], separator: &str| self.display_names(options, separator);
        let place = self.declared_in;
        match given.as_slice() {
            [action] => Action::read(self, action),
            [] => Err(Error::Setting(format!(
                "no action for messages ({place}); expected: one of {}",
                names(ACTIONS, ", ")
            ))),
            [first, second, ..] => Err(Error::Setting(format!(
                "a consumer has {} ({place}); only one action is allowed",
                names(&[*first, *second], " and ")
            ))),
        }
    }

    /// Refuses options that have no effect without others.
    fn check_requirements(&self) -> Result<(), Error> {
        for option in ALL.iter().filter(|option| self.has(option) && !option.requires.is_empty()) {
            if !option.requires.iter().any(|required| self.has(required)) {
                let (name, required) = (self.display_name(option), self.display_names(option.requires, " or "));
                return Err(Error::Setting(format!("{name} requires {required} ({})", self.declared_in)));
            }
        }
        Ok(())
    }

    /// Returns the name of an option as it is written where the consumer is declared.
    fn display_name(&self, option: &ConsumerOption) -> &'static str {
        let by_file = self.declared.values().any(|(_, origin)| matches!(origin, Origin::File(..)));
        if by_file { option.name } else { option.flag }
    }

    fn display_names(&self, options: &[&ConsumerOption], separator: &str) -> String {
        options.iter().map(|option| self.display_name(option)).collect::<Vec<_>>().join(separator)
    }

    fn missing_value(&self, option: &ConsumerOption) -> Error {
        let (name, expected) = (self.display_name(option), option.expected);
        Error::Setting(format!("{name} is missing ({})\n\nexpected: {expected}", self.declared_in))
    }

    /// Names the option, its value, its origin and what is expected.
    fn invalid_value(&self, option: &ConsumerOption) -> Error {
        let expected = option.expected;
        let Some((raw, origin)) = self.declared.get(option.name) else { return self.missing_value(option) };
        let (name, origin) = match origin {
            Origin::Flag(flag) => ((*flag).to_owned(), String::new()),
            origin => (format!("consumers.{}", option.name), format!(" ({origin})")),
        };
        Error::Setting(match option.is_secret {
            true => format!("{name}{origin} is not {expected}"),
            false => format!("{name} is {raw}{origin}, which is not allowed\n\nexpected: {expected}"),
        })
    }
}
