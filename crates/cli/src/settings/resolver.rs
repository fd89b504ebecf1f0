//! Resolution of one setting after the other: picks the value with precedence, checks it and records its origin.
//!
//! Owns the syntax of each type of value. `keys` lists the settings.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_amqp::Endpoint;
use gristmill_store::Durability;
use gristmill_store::catalog::Algorithm;

use super::keys::{self, Key};
use super::{
    Environment, Flags, Origin, Raw, ResolvedSetting, absolute, config_path, consumers, file, non_empty, under_home,
    value,
};
use crate::error::Error;

/// Flags, variables and file, and the settings resolved so far.
pub(super) struct Resolver<'a> {
    flags: &'a Flags,
    env: Environment<'a>,
    file: PathBuf,
    file_content: file::File,
    pub(super) resolved: Vec<ResolvedSetting>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(flags: &'a Flags, env: Environment<'a>) -> Result<Self, Error> {
        // Without a home folder there is no file. Commands that need a default path report it.
        let (file, named) = config_path(flags, env).unwrap_or_default();
        let file_content = match std::fs::read_to_string(&file) {
            Ok(text) => file::parse(&file, &text).map_err(Error::Setting)?,
            Err(error) if error.kind() == ErrorKind::NotFound && !named => file::File::default(),
            Err(error) => {
                let text = format!("cannot read the settings file {}: {error}", file.display());
                return Err(Error::Setting(text));
            }
        };
        Ok(Resolver { flags, env, file, file_content, resolved: Vec::new() })
    }

    /// Returns the given value with the highest precedence and its origin, or none if only the default remains.
    pub(super) fn given(&self, key: &Key) -> Option<(Raw, Origin)> {
        if let Some((flag, raw)) = self.flags.values.get(key.name) {
            return Some((raw.clone(), Origin::Flag(flag)));
        }
        if let Some(value) = non_empty(self.env, key.variable) {
            return Some((Raw::One(value), Origin::Variable(key.variable)));
        }
        let (raw, line) = self.file_content.values.get(key.name)?;
        Some((raw.clone(), Origin::File(self.file.clone(), *line)))
    }

    pub(super) fn text<T>(
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
        let value = value.ok_or_else(|| self.invalid(key))?;
        self.resolved.push(ResolvedSetting { key, value: show(&value), origin });
        Ok(value)
    }

    pub(super) fn duration(&mut self, key: &'static Key, (min, max): (Duration, Duration)) -> Result<Duration, Error> {
        let read = |text: &str| value::duration(text).filter(|value| (min..=max).contains(value));
        self.text(key, read, |value| value::show_duration(*value))
    }

    /// Resolves a duration, or none for `word`.
    pub(super) fn duration_or(
        &mut self,
        key: &'static Key,
        word: &str,
        min: Duration,
    ) -> Result<Option<Duration>, Error> {
        let read = |text: &str| match text {
            text if text == word => Some(None),
            text => value::duration(text).filter(|value| *value >= min).map(Some),
        };
        self.text(key, read, |value| value.map_or_else(|| word.to_owned(), value::show_duration))
    }

    pub(super) fn count(&mut self, key: &'static Key, max: u32) -> Result<u32, Error> {
        let read = |text: &str| text.parse().ok().filter(|count| (1..=max).contains(count));
        self.text(key, read, u32::to_string)
    }

    pub(super) fn boolean(&mut self, key: &'static Key) -> Result<bool, Error> {
        self.text(key, |text| text.parse().ok(), bool::to_string)
    }

    pub(super) fn size(&mut self, key: &'static Key, max: u64) -> Result<u64, Error> {
        let read = |text: &str| value::size(text).filter(|size| *size <= max);
        self.text(key, read, |size| value::show_size(*size))
    }

    pub(super) fn workers(&mut self) -> Result<usize, Error> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let read = |text: &str| match text {
            "cores" => Some(cores()),
            text => text.parse().ok().filter(|count| (1..=1_024).contains(count)),
        };
        self.text(&keys::EXEC_WORKERS, read, usize::to_string)
    }

    pub(super) fn algorithm(&mut self) -> Result<Algorithm, Error> {
        self.text(&keys::SCAN_HASH, Algorithm::parse, |algorithm| algorithm.as_str().to_owned())
    }

    /// Resolves a number, or none for `word`.
    pub(super) fn number_or(
        &mut self,
        key: &'static Key,
        word: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Error> {
        let read = |text: &str| match text {
            text if text == word => Some(None),
            text => text.parse().ok().filter(|number| range.contains(number)).map(Some),
        };
        self.text(key, read, |number| number.map_or_else(|| word.to_owned(), |number| number.to_string()))
    }

    /// Resolves a rate in bytes per second, or none.
    pub(super) fn rate_or_none(&mut self, key: &'static Key) -> Result<Option<u64>, Error> {
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

    pub(super) fn folder_or_none(&mut self, key: &'static Key) -> Result<Option<PathBuf>, Error> {
        let read = |text: &str| match text {
            "none" => Some(None),
            text => Some(PathBuf::from(text)).filter(|path| path.is_absolute()).map(Some),
        };
        let show = |folder: &Option<PathBuf>| {
            folder.as_ref().map_or_else(|| "none".to_owned(), |folder| folder.display().to_string())
        };
        self.text(key, read, show)
    }

    /// Resolves the URIs of the broker. Neither the shown value nor an error contains a password.
    pub(super) fn uris(&mut self) -> Result<Vec<String>, Error> {
        let key = &keys::AMQP_URI;
        let default = || (Raw::One(key.default.unwrap_or_default().into()), Origin::Default);
        let (raw, origin) = self.given(key).unwrap_or_else(default);
        let invalid = |why: &str| {
            Error::Setting(format!("{} ({origin}) is not allowed: {why}\n\nexpected: {}", key.name, key.expected))
        };
        let uris: Vec<String> = match raw {
            Raw::Many(uris) => uris,
            Raw::One(text) => {
                let text = text.to_str().ok_or_else(|| invalid("it is not UTF-8"))?;
                text.split_whitespace().map(str::to_owned).collect()
            }
            Raw::Bare(_) => return Err(invalid("it is neither a string nor a list of strings")),
        };
        if uris.is_empty() {
            return Err(invalid("it is empty"));
        }
        let endpoints = uris.iter().map(|uri| uri.parse::<Endpoint>()).collect::<Result<Vec<_>, _>>();
        let endpoints = endpoints.map_err(|error| invalid(&error.to_string()))?;
        let shown = endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ");
        self.resolved.push(ResolvedSetting { key, value: shown, origin });
        Ok(uris)
    }

    /// Resolves an address to listen on, or none. A port alone means 127.0.0.1.
    pub(super) fn address_or_none(&mut self, key: &'static Key) -> Result<Option<SocketAddr>, Error> {
        let read = |text: &str| match text {
            "none" => Some(None),
            text => text
                .parse()
                .or_else(|_| text.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port))))
                .ok()
                .map(Some),
        };
        let show =
            |address: &Option<SocketAddr>| address.map_or_else(|| "none".to_owned(), |address| address.to_string());
        self.text(key, read, show)
    }

    /// Resolves a URL that may contain a password, or none.
    pub(super) fn url_or_none(&mut self, key: &'static Key) -> Result<Option<String>, Error> {
        let read = |text: &str| match text {
            "none" => Some(None),
            text => consumers::url(text).map(Some),
        };
        let show = |url: &Option<String>| if url.is_some() { "set" } else { "none" }.to_owned();
        self.text(key, read, show)
    }

    /// Returns the path of the settings file if a URL in it has a password.
    pub(super) fn file_with_password(&self) -> Result<Option<PathBuf>, Error> {
        self.file_content.has_password().then(|| absolute(&self.file)).transpose()
    }

    pub(super) fn consumers(&self) -> Result<Vec<consumers::Declared>, Error> {
        let mut declared = Vec::with_capacity(self.file_content.consumers.len());
        for (values, line) in &self.file_content.consumers {
            let place = format!("{}:{line}", self.file.display());
            let one = consumers::from_file(values, &self.file);
            consumers::resolve(&one, &place)?;
            declared.push(one);
        }
        Ok(declared)
    }

    pub(super) fn durability(&mut self) -> Result<Durability, Error> {
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

    pub(super) fn names(&mut self, key: &'static Key) -> Result<Vec<String>, Error> {
        let default = || (Raw::One(key.default.unwrap_or_default().into()), Origin::Default);
        let (raw, origin) = self.given(key).unwrap_or_else(default);
        let names: Vec<String> = match raw {
            Raw::Many(names) => names,
            Raw::One(text) => {
                let text = text.to_str().ok_or_else(|| self.invalid(key))?;
                text.split(',').map(|name| name.trim().to_owned()).collect()
            }
            Raw::Bare(_) => return Err(self.invalid(key)),
        };
        if names.is_empty() || names.iter().any(String::is_empty) {
            return Err(self.invalid(key));
        }
        self.resolved.push(ResolvedSetting { key, value: names.join(", "), origin });
        Ok(names)
    }

    pub(super) fn database(&mut self) -> Result<PathBuf, Error> {
        let key = &keys::DATABASE;
        let (path, origin) = match self.given(key) {
            None => {
                let folder = under_home(self.env, "XDG_DATA_HOME", ".local/share")?;
                (folder.join("gristmill/gristmill.db"), Origin::Default)
            }
            Some((Raw::One(path), Origin::File(file, line))) if !path.is_empty() => {
                (self.relative_to_file(&file, path)?, Origin::File(file, line))
            }
            Some((Raw::One(path), origin)) if !path.is_empty() => (PathBuf::from(path), origin),
            Some(_) => return Err(self.invalid(key)),
        };
        let path = absolute(&path)?;
        self.resolved.push(ResolvedSetting { key, value: path.display().to_string(), origin });
        Ok(path)
    }

    /// Resolves a path of the settings file: relative to the folder of the file, or to the home folder after `~/`.
    pub(super) fn relative_to_file(&self, file: &Path, path: OsString) -> Result<PathBuf, Error> {
        let path = PathBuf::from(path);
        if let Ok(rest) = path.strip_prefix("~") {
            let home = non_empty(self.env, "HOME").ok_or_else(|| self.invalid(&keys::DATABASE))?;
            return Ok(PathBuf::from(home).join(rest));
        }
        Ok(absolute(file)?.parent().unwrap_or(Path::new("/")).join(path))
    }

    /// Returns the error for a value that is not allowed: key, value, origin and what is expected.
    pub(super) fn invalid(&self, key: &Key) -> Error {
        let (raw, place) = match self.given(key) {
            Some((raw, origin)) => (raw, origin.to_string()),
            None => (Raw::One(key.default.unwrap_or_default().into()), "by default".to_owned()),
        };
        let value = match raw {
            Raw::One(text) => quoted(&text),
            Raw::Many(names) => format!("{names:?}"),
            Raw::Bare(text) => text,
        };
        Error::Setting(format!("{} is {value} ({place}), which is not allowed\n\nexpected: {}", key.name, key.expected))
    }
}

fn quoted(text: &OsStr) -> String {
    format!("{text:?}")
}
