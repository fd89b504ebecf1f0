//! Resolution of one setting after the other: picks the value with precedence, checks it and records its origin.
//!
//! `keys` lists the settings with their formats.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::format::{Format, Invalid};
use super::keys::{self, Key};
use super::{
    Environment, Flags, Origin, Raw, ResolvedSetting, absolute, config_path, consumers, file, non_empty, under_home,
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

    /// Returns the value with the highest precedence and its origin.
    fn given(&self, key: &Key) -> (Raw, Origin) {
        if let Some((flag, raw)) = self.flags.values.get(key.name) {
            return (raw.clone(), Origin::Flag(flag));
        }
        if let Some(value) = non_empty(self.env, key.variable) {
            return (Raw::One(value), Origin::Variable(key.variable));
        }
        match self.file_content.values.get(key.name) {
            Some((raw, line)) => (raw.clone(), Origin::File(self.file.clone(), *line)),
            None => (Raw::One(key.default.unwrap_or_default().into()), Origin::Default),
        }
    }

    pub(super) fn resolve<T: 'static>(&mut self, key: &'static Key, format: &Format<T>) -> Result<T, Error> {
        let (raw, origin) = self.given(key);
        let value = format.read(&raw).map_err(|invalid| match invalid {
            Invalid::Value => self.invalid(key),
            Invalid::Because(why) => {
                Error::Setting(format!("{} ({origin}) is not allowed: {why}\n\nexpected: {}", key.name, key.expected))
            }
        })?;
        self.resolved.push(ResolvedSetting { key, value: format.show(&value), origin });
        Ok(value)
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

    /// Resolves the path of the database. Its default depends on the environment, and a path of the settings file is
    /// relative to the file.
    pub(super) fn database(&mut self) -> Result<PathBuf, Error> {
        let key = &keys::DATABASE;
        let (path, origin) = match self.given(key) {
            (_, Origin::Default) => {
                let folder = under_home(self.env, "XDG_DATA_HOME", ".local/share")?;
                (folder.join("gristmill/gristmill.db"), Origin::Default)
            }
            (Raw::One(path), Origin::File(file, line)) if !path.is_empty() => {
                (self.relative_to_file(&file, path)?, Origin::File(file, line))
            }
            (Raw::One(path), origin) if !path.is_empty() => (PathBuf::from(path), origin),
            _ => return Err(self.invalid(key)),
        };
        let path = absolute(&path)?;
        self.resolved.push(ResolvedSetting { key, value: path.display().to_string(), origin });
        Ok(path)
    }

    /// Resolves a path of the settings file: relative to the folder of the file, or to the home folder after `~/`.
    fn relative_to_file(&self, file: &Path, path: OsString) -> Result<PathBuf, Error> {
        let path = PathBuf::from(path);
        if let Ok(rest) = path.strip_prefix("~") {
            let home = non_empty(self.env, "HOME").ok_or_else(|| self.invalid(&keys::DATABASE))?;
            return Ok(PathBuf::from(home).join(rest));
        }
        Ok(absolute(file)?.parent().unwrap_or(Path::new("/")).join(path))
    }

    /// Returns the error for a value that is not allowed: key, value, origin and what is expected.
    pub(super) fn invalid(&self, key: &Key) -> Error {
        let (raw, origin) = self.given(key);
        let place = if origin == Origin::Default { "by default".to_owned() } else { origin.to_string() };
        Error::Setting(format!("{} is {raw} ({place}), which is not allowed\n\nexpected: {}", key.name, key.expected))
    }
}
