//! What is in force: flags over variables over the file over defaults.
//!
//! Owns the one place where what was typed becomes what the program uses: checked, absolute, with its defaults, and
//! with a note of where each value came from. A wrong value ends the program before it has done anything.

pub(crate) mod consumers;
mod file;
pub(crate) mod keys;
pub(crate) mod value;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_amqp::Endpoint;
use gristmill_store::Durability;
use gristmill_store::catalog::Algorithm;

pub(crate) use self::file::template;
use self::keys::Key;
use crate::error::Error;

/// A value as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    One(OsString),
    Many(Vec<String>),
    /// What is no string in the file, as it is written there: a number, say.
    Bare(String),
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf, usize),
    Variable(&'static str),
    Flag(&'static str),
}

/// What flags said: the settings that have one, and where the file is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// The flag's name, and what was given.
    pub(crate) values: BTreeMap<&'static str, (&'static str, Raw)>,
}

/// What is in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) database: PathBuf,
    /// Whether the database is where it is by default, so that its folder is ours to make.
    pub(crate) database_by_default: bool,
    pub(crate) durability: Durability,
    pub(crate) busy_timeout: Duration,
    pub(crate) scan: Scan,
    /// 0 for one a core.
    pub(crate) import_workers: usize,
    pub(crate) worker: Worker,
    pub(crate) exec: Exec,
    pub(crate) amqp: Amqp,
    /// As the file has them, and found to be legal.
    pub(crate) consumers: Vec<consumers::Declared>,
    /// Every key with its value and origin, for people.
    pub(crate) shown: Vec<Shown>,
}

#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) algorithm: Algorithm,
    /// As many as it likes when there is no number.
    pub(crate) workers: Option<usize>,
    /// Bytes a second.
    pub(crate) io_limit: Option<u64>,
    /// Its folders are roots.
    pub(crate) libraries: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) queues: Vec<String>,
    pub(crate) lease: Duration,
    pub(crate) shutdown: Duration,
    pub(crate) max_crashes: u32,
    pub(crate) keep_finished: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) struct Exec {
    pub(crate) workers: usize,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_output: usize,
    pub(crate) attempts: u32,
    pub(crate) backoff_base: Duration,
    pub(crate) backoff_cap: Duration,
}

#[derive(Clone)]
pub(crate) struct Amqp {
    /// With their passwords: not to be shown.
    pub(crate) uris: Vec<String>,
    pub(crate) connect_within: Duration,
    pub(crate) shutdown: Duration,
    pub(crate) metrics: Option<SocketAddr>,
}

impl std::fmt::Debug for Amqp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Amqp").field("shutdown", &self.shutdown).finish_non_exhaustive()
    }
}

/// A setting in force, for people.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) key: &'static Key,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// The environment: everything of it that settings depend on.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What is in force for a run with these flags.
pub(crate) fn resolve(flags: &Flags, env: Environment<'_>) -> Result<Settings, Error> {
    let mut reading = Reading::new(flags, env)?;
    let database = reading.database()?;
    let settings = Settings {
        database_by_default: reading.shown.iter().any(|shown| shown.origin == Origin::Default),
        database,
        durability: reading.durability()?,
        busy_timeout: reading.duration(&keys::BUSY_TIMEOUT, (Duration::ZERO, HOUR))?,
        scan: Scan {
            algorithm: reading.algorithm()?,
            workers: reading.number_or(&keys::SCAN_WORKERS, "auto", 1..=1_024)?,
            io_limit: reading.rate_or_none(&keys::SCAN_IO_LIMIT)?,
            libraries: reading.folder_or_none(&keys::SCAN_LIBRARIES)?,
        },
        import_workers: reading.number_or(&keys::IMPORT_WORKERS, "cores", 0..=32)?.unwrap_or(0),
        worker: Worker {
            queues: reading.names(&keys::QUEUES)?,
            lease: reading.duration(&keys::LEASE, (Duration::from_millis(100), DAY))?,
            shutdown: reading.duration(&keys::SHUTDOWN, (Duration::ZERO, DAY))?,
            max_crashes: reading.count(&keys::MAX_CRASHES, 1_000)?,
            keep_finished: reading.duration_or(&keys::KEEP_FINISHED, "forever", Duration::ZERO)?,
        },
        exec: Exec {
            workers: reading.workers()?,
            timeout: reading.duration_or(&keys::EXEC_TIMEOUT, "none", MOMENT)?,
            max_output: usize::try_from(reading.size(&keys::EXEC_MAX_OUTPUT, 4 << 20)?).unwrap_or(4 << 20),
            attempts: reading.count(&keys::EXEC_ATTEMPTS, 1_000)?,
            backoff_base: reading.duration(&keys::EXEC_BACKOFF_BASE, (MOMENT, DAY))?,
            backoff_cap: reading.duration(&keys::EXEC_BACKOFF_CAP, (MOMENT, 30 * DAY))?,
        },
        amqp: Amqp {
            uris: reading.uris()?,
            connect_within: reading
                .duration(&keys::AMQP_CONNECT_WITHIN, (Duration::from_millis(100), DAY))?,
            shutdown: reading.duration(&keys::AMQP_SHUTDOWN, (Duration::ZERO, DAY))?,
            metrics: reading.address_or_none(&keys::AMQP_METRICS)?,
        },
        consumers: reading.consumers()?,
        shown: Vec::new(),
    };
    if settings.exec.backoff_cap < settings.exec.backoff_base {
        return Err(reading.wrong(&keys::EXEC_BACKOFF_CAP));
    }
    Ok(Settings { shown: reading.shown, ..settings })
}

const MOMENT: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Where the settings file is, and whether somebody said so.
pub(crate) fn config_path(flags: &Flags, env: Environment<'_>) -> Result<(PathBuf, bool), Error> {
    let named = flags.config.clone().or_else(|| non_empty(env, "GRISTMILL_CONFIG").map(PathBuf::from));
    match named {
        Some(path) => Ok((path, true)),
        None => Ok((under_home(env, "XDG_CONFIG_HOME", ".config")?.join("gristmill/config.toml"), false)),
    }
}

/// Variables that look like settings and are none.
pub(crate) fn mistyped(names: impl Iterator<Item = OsString>) -> Vec<(String, &'static str)> {
    let known = || keys::ALL.iter().map(|key| key.variable).chain(keys::OTHER_VARIABLES.iter().copied());
    names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("GRISTMILL_") && known().all(|variable| variable != name))
        .filter_map(|name| {
            let meant = known().find(|variable| strsim::damerau_levenshtein(&name, variable) <= 2)?;
            Some((name, meant))
        })
        .collect()
}

fn non_empty(env: Environment<'_>, name: &str) -> Option<OsString> {
    env(name).filter(|value| !value.is_empty())
}

/// A folder of the XDG rules, which have a relative path ignored.
fn under_home(env: Environment<'_>, variable: &str, otherwise: &str) -> Result<PathBuf, Error> {
    let given = non_empty(env, variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(non_empty(env, "HOME")?).join(otherwise));
    given.or_else(home).ok_or_else(|| {
        Error::Setting(format!(
            "neither {variable} nor HOME is set, so there is no folder for it. Set one of them, or name the \
             files with --config and --db"
        ))
    })
}

struct Reading<'a> {
    flags: &'a Flags,
    env: Environment<'a>,
    file: PathBuf,
    found: file::File,
    shown: Vec<Shown>,
}

impl<'a> Reading<'a> {
    fn new(flags: &'a Flags, env: Environment<'a>) -> Result<Self, Error> {
        // Without a home there is no file; who needs one is told when it comes to that.
        let (file, named) = config_path(flags, env).unwrap_or_default();
        let found = match std::fs::read_to_string(&file) {
            Ok(text) => file::parse(&file, &text).map_err(Error::Setting)?,
            Err(error) if error.kind() == ErrorKind::NotFound && !named => file::File::default(),
            Err(error) => {
                let text = format!("cannot read the settings file {}: {error}", file.display());
                return Err(Error::Setting(text));
            }
        };
        Ok(Reading { flags, env, file, found, shown: Vec::new() })
    }

    /// The value that wins, and where it is from; nothing when nobody gave one.
    fn given(&self, key: &Key) -> Option<(Raw, Origin)> {
        if let Some((flag, raw)) = self.flags.values.get(key.name) {
            return Some((raw.clone(), Origin::Flag(flag)));
        }
        if let Some(value) = non_empty(self.env, key.variable) {
            return Some((Raw::One(value), Origin::Variable(key.variable)));
        }
        let (raw, line) = self.found.values.get(key.name)?;
        Some((raw.clone(), Origin::File(self.file.clone(), *line)))
    }

    /// Reads a key whose value is text, and notes what it came to.
    fn text<T>(
        &mut self,
        key: &'static Key,
        read: impl Fn(&str) -> Option<T>,
        show: impl Fn(&T) -> String,
    ) -> Result<T, Error> {
        let default = || (Raw::One(key.default.unwrap_or_default().into()), Origin::Default);
        let (raw, origin) = self.given(key).unwrap_or_else(default);
        let value = match &raw {
            Raw::One(text) => text.to_str().and_then(read),
            Raw::Bare(text) => read(text),
            Raw::Many(_) => None,
        };
        let value = value.ok_or_else(|| self.wrong(key))?;
        self.shown.push(Shown { key, value: show(&value), origin });
        Ok(value)
    }

    fn duration(
        &mut self,
        key: &'static Key,
        (least, most): (Duration, Duration),
    ) -> Result<Duration, Error> {
        let read = |text: &str| value::duration(text).filter(|value| (least..=most).contains(value));
        self.text(key, read, |value| value::show_duration(*value))
    }

    /// A duration, or a word for having none.
    fn duration_or(
        &mut self,
        key: &'static Key,
        word: &str,
        least: Duration,
    ) -> Result<Option<Duration>, Error> {
        let read = |text: &str| match text {
            text if text == word => Some(None),
            text => value::duration(text).filter(|value| *value >= least).map(Some),
        };
        self.text(key, read, |value| value.map_or_else(|| word.to_owned(), value::show_duration))
    }

    fn count(&mut self, key: &'static Key, most: u32) -> Result<u32, Error> {
        let read = |text: &str| text.parse().ok().filter(|count| (1..=most).contains(count));
        self.text(key, read, u32::to_string)
    }

    fn size(&mut self, key: &'static Key, most: u64) -> Result<u64, Error> {
        let read = |text: &str| value::size(text).filter(|size| *size <= most);
        self.text(key, read, |size| value::show_size(*size))
    }

    fn workers(&mut self) -> Result<usize, Error> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let read = |text: &str| match text {
            "cores" => Some(cores()),
            text => text.parse().ok().filter(|count| (1..=1_024).contains(count)),
        };
        self.text(&keys::EXEC_WORKERS, read, usize::to_string)
    }

    fn algorithm(&mut self) -> Result<Algorithm, Error> {
        self.text(&keys::SCAN_HASH, Algorithm::parse, |algorithm| algorithm.as_str().to_owned())
    }

    /// A number, or a word for having none.
    fn number_or(
        &mut self,
        key: &'static Key,
        word: &str,
        legal: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Error> {
        let read = |text: &str| match text {
            text if text == word => Some(None),
            text => text.parse().ok().filter(|number| legal.contains(number)).map(Some),
        };
        self.text(key, read, |number| number.map_or_else(|| word.to_owned(), |number| number.to_string()))
    }

    /// Bytes a second, or none.
    fn rate_or_none(&mut self, key: &'static Key) -> Result<Option<u64>, Error> {
        let read = |text: &str| match text {
            "none" => Some(None),
            text => value::size(text.strip_suffix("/s").unwrap_or(text)).filter(|rate| *rate > 0).map(Some),
        };
        let show = |rate: &Option<u64>| match rate {
            None => "none".to_owned(),
            Some(rate) => format!("{}/s", value::show_size(*rate)),
        };
        self.text(key, read, show)
    }

    fn folder_or_none(&mut self, key: &'static Key) -> Result<Option<PathBuf>, Error> {
        let read = |text: &str| match text {
            "none" => Some(None),
            text => Some(PathBuf::from(text)).filter(|path| path.is_absolute()).map(Some),
        };
        let show = |folder: &Option<PathBuf>| {
            folder.as_ref().map_or_else(|| "none".to_owned(), |folder| folder.display().to_string())
        };
        self.text(key, read, show)
    }

    /// Where the broker is. What is shown, and what is said of a wrong one, never has a password in it.
    fn uris(&mut self) -> Result<Vec<String>, Error> {
        let key = &keys::AMQP_URI;
        let default = || (Raw::One(key.default.unwrap_or_default().into()), Origin::Default);
        let (raw, origin) = self.given(key).unwrap_or_else(default);
        let wrong = |why: &str| {
            Error::Setting(format!("{} ({origin}) is not legal: {why}\n\nlegal: {}", key.name, key.legal))
        };
        let uris: Vec<String> = match raw {
            Raw::Many(uris) => uris,
            Raw::One(text) => {
                let text = text.to_str().ok_or_else(|| wrong("it is not UTF-8"))?;
                text.split_whitespace().map(str::to_owned).collect()
            }
            Raw::Bare(_) => return Err(wrong("it is not a text, or a list of such")),
        };
        if uris.is_empty() {
            return Err(wrong("there is none"));
        }
        let endpoints = uris.iter().map(|uri| uri.parse::<Endpoint>()).collect::<Result<Vec<_>, _>>();
        let endpoints = endpoints.map_err(|error| wrong(&error.to_string()))?;
        let shown = endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ");
        self.shown.push(Shown { key, value: shown, origin });
        Ok(uris)
    }

    /// An address to listen on. A bare port is for this machine only.
    fn address_or_none(&mut self, key: &'static Key) -> Result<Option<SocketAddr>, Error> {
        let read = |text: &str| match text {
            "none" => Some(None),
            text => text
                .parse()
                .or_else(|_| text.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port))))
                .ok()
                .map(Some),
        };
        let show = |address: &Option<SocketAddr>| {
            address.map_or_else(|| "none".to_owned(), |address| address.to_string())
        };
        self.text(key, read, show)
    }

    fn consumers(&self) -> Result<Vec<consumers::Declared>, Error> {
        let mut declared = Vec::with_capacity(self.found.consumers.len());
        for (values, line) in &self.found.consumers {
            let place = format!("{}:{line}", self.file.display());
            let one = consumers::from_file(values, &self.file);
            consumers::resolve(&one, &place)?;
            declared.push(one);
        }
        Ok(declared)
    }

    fn durability(&mut self) -> Result<Durability, Error> {
        let read = |text: &str| match text {
            "full" => Some(Durability::Full),
            "normal" => Some(Durability::Normal),
            _ => None,
        };
        let show = |durability: &Durability| match durability {
            Durability::Full => "full".to_owned(),
            Durability::Normal => "normal".to_owned(),
        };
        self.text(&keys::SYNCHRONOUS, read, show)
    }

    fn names(&mut self, key: &'static Key) -> Result<Vec<String>, Error> {
        let default = || (Raw::One(key.default.unwrap_or_default().into()), Origin::Default);
        let (raw, origin) = self.given(key).unwrap_or_else(default);
        let names: Vec<String> = match raw {
            Raw::Many(names) => names,
            Raw::One(text) => {
                let text = text.to_str().ok_or_else(|| self.wrong(key))?;
                text.split(',').map(|name| name.trim().to_owned()).collect()
            }
            Raw::Bare(_) => return Err(self.wrong(key)),
        };
        if names.is_empty() || names.iter().any(String::is_empty) {
            return Err(self.wrong(key));
        }
        self.shown.push(Shown { key, value: names.join(", "), origin });
        Ok(names)
    }

    /// The database's path, absolute.
    fn database(&mut self) -> Result<PathBuf, Error> {
        let key = &keys::DATABASE;
        let (path, origin) = match self.given(key) {
            None => {
                let folder = under_home(self.env, "XDG_DATA_HOME", ".local/share")?;
                (folder.join("gristmill/gristmill.db"), Origin::Default)
            }
            Some((Raw::One(path), Origin::File(file, line))) if !path.is_empty() => {
                (self.seen_from(&file, path)?, Origin::File(file, line))
            }
            Some((Raw::One(path), origin)) if !path.is_empty() => (PathBuf::from(path), origin),
            Some(_) => return Err(self.wrong(key)),
        };
        let path = absolute(&path)?;
        self.shown.push(Shown { key, value: path.display().to_string(), origin });
        Ok(path)
    }

    fn seen_from(&self, file: &Path, path: OsString) -> Result<PathBuf, Error> {
        let path = PathBuf::from(path);
        if let Ok(rest) = path.strip_prefix("~") {
            let home = non_empty(self.env, "HOME").ok_or_else(|| self.wrong(&keys::DATABASE))?;
            return Ok(PathBuf::from(home).join(rest));
        }
        Ok(absolute(file)?.parent().unwrap_or(Path::new("/")).join(path))
    }

    /// The key, the value, where it stands and what is legal.
    fn wrong(&self, key: &Key) -> Error {
        let (raw, place) = match self.given(key) {
            Some((raw, origin)) => (raw, origin.to_string()),
            None => (Raw::One(key.default.unwrap_or_default().into()), "by default".to_owned()),
        };
        let value = match raw {
            Raw::One(text) => quoted(&text),
            Raw::Many(names) => format!("{names:?}"),
            Raw::Bare(text) => text,
        };
        Error::Setting(format!(
            "{} is {value} ({place}), which is not legal\n\nlegal: {}",
            key.name, key.legal
        ))
    }
}

fn quoted(text: &OsStr) -> String {
    format!("{text:?}")
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| {
        Error::System(format!("cannot tell the current folder for {}: {error}", path.display()))
    })
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the settings come to with variables as given, and a home that is empty.
    fn with(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        let env = |name: &str| {
            let home = (name == "HOME").then(|| OsString::from("/nowhere"));
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()).or(home)
        };
        resolve(&Flags::default(), &env)
    }

    #[track_caller]
    fn refused(variable: &str, value: &str, expected: &str) {
        match with(&[(variable, value)]) {
            Err(Error::Setting(text)) => assert!(text.contains(expected), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let settings = with(&[]).unwrap();
        assert_eq!(settings.database, Path::new("/nowhere/.local/share/gristmill/gristmill.db"));
        assert!(settings.database_by_default);
        assert_eq!(settings.worker.queues, ["default"]);
        assert_eq!(settings.worker.lease, Duration::from_secs(300));
        assert_eq!(settings.worker.keep_finished, Some(7 * DAY));
        assert_eq!(settings.exec.max_output, 65_536);
        assert_eq!(settings.shown.len(), keys::ALL.len());
        let order: Vec<_> = settings.shown.iter().map(|shown| shown.key.name).collect();
        assert_eq!(order, keys::ALL.iter().map(|key| key.name).collect::<Vec<_>>());
    }

    #[test]
    fn an_empty_variable_is_none_and_a_relative_xdg_folder_is_ignored() {
        let settings = with(&[("GRISTMILL_DB", ""), ("XDG_DATA_HOME", "data")]).unwrap();
        assert_eq!(settings.database, Path::new("/nowhere/.local/share/gristmill/gristmill.db"));
    }

    #[test]
    fn words_for_none() {
        let settings =
            with(&[("GRISTMILL_EXEC_TIMEOUT", "none"), ("GRISTMILL_WORKER_KEEP_FINISHED", "forever")])
                .unwrap();
        assert_eq!((settings.exec.timeout, settings.worker.keep_finished), (None, None));
    }

    #[test]
    fn wrong_values_are_named_with_what_is_legal() {
        refused(
            "GRISTMILL_WORKER_LEASE",
            "300",
            "worker.lease is \"300\" (GRISTMILL_WORKER_LEASE), which is not",
        );
        refused("GRISTMILL_WORKER_LEASE", "0s", "legal: a duration from 100ms to 1d");
        refused("GRISTMILL_SYNCHRONOUS", "off", "legal: full or normal");
        refused("GRISTMILL_WORKER_QUEUES", "a,,b", "worker.queues is \"a,,b\"");
        refused("GRISTMILL_EXEC_ATTEMPTS", "0", "legal: a whole number from 1");
        refused("GRISTMILL_EXEC_WORKERS", "-1", "or cores");
        refused("GRISTMILL_EXEC_MAX_OUTPUT", "5MiB", "from 0B to 4MiB");
        refused("GRISTMILL_EXEC_BACKOFF_CAP", "500ms", "not below exec.backoff_base");
    }

    #[test]
    fn a_mistyped_variable_is_noticed() {
        let names = ["GRISTMILL_WORKER_LEASES", "GRISTMILL_DB", "GRISTMILL_SOMETHING_ELSE", "PATH"];
        let found = mistyped(names.iter().map(OsString::from));
        assert_eq!(found, [("GRISTMILL_WORKER_LEASES".to_owned(), "GRISTMILL_WORKER_LEASE")]);
    }
}
