//! Resolution of settings: flags override environment variables, which override the settings file and the defaults.
//!
//! Owns the one place where values as given become values as used: checked, absolute, with defaults and with the origin
//! of each value. A wrong value ends the program before it does any work.

pub(crate) mod consumers;
mod file;
pub(crate) mod format;
pub(crate) mod keys;
mod resolver;
pub(crate) mod typed;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use self::file::template;
use self::keys::Key;
pub(crate) use self::keys::{Amqp, Database, Exec, Import, Scan, Serve, Worker};
use self::resolver::Resolver;
use crate::error::Error;

/// Value of a setting as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    One(OsString),
    Many(Vec<String>),
    /// A value of the file that is not a string, such as a number, as it is written there.
    Bare(String),
}

impl From<&OsStr> for Raw {
    fn from(text: &OsStr) -> Self {
        Raw::One(text.to_owned())
    }
}

impl From<&String> for Raw {
    fn from(text: &String) -> Self {
        Raw::One(text.into())
    }
}

impl From<&Vec<String>> for Raw {
    fn from(items: &Vec<String>) -> Self {
        Raw::Many(items.clone())
    }
}

/// Shows the value in errors.
impl std::fmt::Display for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Raw::One(text) => write!(f, "{text:?}"),
            Raw::Many(items) => write!(f, "{items:?}"),
            Raw::Bare(text) => f.write_str(text),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf, usize),
    Variable(&'static str),
    Flag(&'static str),
}

/// Settings that were given by flags, and the path of the settings file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// By the name of the setting: the flag and its value.
    pub(crate) values: BTreeMap<&'static str, (&'static str, Raw)>,
}

impl Flags {
    /// Adds the value of a flag, if it was given.
    pub(crate) fn add(&mut self, key: &Key, flag: &'static str, value: Option<impl Into<Raw>>) {
        if let Some(value) = value {
            self.values.insert(key.name, (flag, value.into()));
        }
    }
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) database: PathBuf,
    /// Whether the database has its default path, so that its folder is created if need be.
    pub(crate) database_by_default: bool,
    pub(crate) store: Database,
    pub(crate) scan: Scan,
    pub(crate) import: Import,
    pub(crate) worker: Worker,
    pub(crate) exec: Exec,
    pub(crate) serve: Serve,
    pub(crate) amqp: Amqp,
    /// The consumers of the file, checked.
    pub(crate) consumers: Vec<consumers::Declared>,
    /// The settings file, if a URL in it has a password.
    pub(crate) file_with_password: Option<PathBuf>,
    /// Every setting with its value and origin, for `config show`.
    pub(crate) resolved: Vec<ResolvedSetting>,
}

#[derive(Clone, Debug)]
pub(crate) struct ResolvedSetting {
    pub(crate) key: &'static Key,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// Lookup of environment variables.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

pub(crate) fn resolve(flags: &Flags, env: Environment<'_>) -> Result<Settings, Error> {
    let mut resolver = Resolver::new(flags, env)?;
    let database = resolver.database()?;
    let settings = Settings {
        database_by_default: resolver.resolved.iter().any(|setting| setting.origin == Origin::Default),
        database,
        store: Database::resolve(&mut resolver)?,
        scan: Scan::resolve(&mut resolver)?,
        import: Import::resolve(&mut resolver)?,
        worker: Worker::resolve(&mut resolver)?,
        exec: Exec::resolve(&mut resolver)?,
        serve: Serve::resolve(&mut resolver)?,
        amqp: Amqp::resolve(&mut resolver)?,
        consumers: resolver.consumers()?,
        file_with_password: resolver.file_with_password()?,
        resolved: Vec::new(),
    };
    if settings.exec.backoff_cap < settings.exec.backoff_base {
        return Err(resolver.invalid(&keys::EXEC_BACKOFF_CAP));
    }
    Ok(Settings { resolved: resolver.resolved, ..settings })
}

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns the path of the settings file, and whether a flag or a variable named it.
pub(crate) fn config_path(flags: &Flags, env: Environment<'_>) -> Result<(PathBuf, bool), Error> {
    let named = flags.config.clone().or_else(|| non_empty(env, "GRISTMILL_CONFIG").map(PathBuf::from));
    match named {
        Some(path) => Ok((path, true)),
        None => Ok((under_home(env, "XDG_CONFIG_HOME", ".config")?.join("gristmill/config.toml"), false)),
    }
}

/// Returns environment variables that look like misspelled settings, each with the name that was probably meant.
pub(crate) fn misspelled_variables(names: impl Iterator<Item = OsString>) -> Vec<(String, &'static str)> {
    let known = || keys::ALL.iter().map(|key| key.variable).chain(keys::OTHER_VARIABLES.iter().copied());
    names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("GRISTMILL_") && known().all(|variable| variable != name))
        .filter_map(|name| {
            let suggestion = known().find(|variable| strsim::damerau_levenshtein(&name, variable) <= 2)?;
            Some((name, suggestion))
        })
        .collect()
}

fn non_empty(env: Environment<'_>, name: &str) -> Option<OsString> {
    env(name).filter(|value| !value.is_empty())
}

/// Returns a folder by the XDG rules, which ignore a relative path in the variable.
fn under_home(env: Environment<'_>, variable: &str, default: &str) -> Result<PathBuf, Error> {
    let given = non_empty(env, variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(non_empty(env, "HOME")?).join(default));
    given.or_else(home).ok_or_else(|| {
        Error::Setting(format!(
            "neither {variable} nor HOME is set, so there is no default path; set one of them, or name the files \
             with --config and --db"
        ))
    })
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| {
        Error::System(format!("cannot find the current folder to resolve {}: {error}", path.display()))
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
