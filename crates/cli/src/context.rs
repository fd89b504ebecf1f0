//! What every command has at hand: settings, the store, and a way to speak.
//!
//! Owns when the database is opened and who may create it.

use std::cell::Cell;
use std::path::PathBuf;

use gristmill_store::{Store, StoreOptions, private};

use crate::error::Error;
use crate::hints::Hints;
use crate::output::{Output, path as path_text};
use crate::settings::{self, Flags, Settings};

pub(crate) struct Context {
    pub(crate) flags: Flags,
    pub(crate) output: Output,
    pub(crate) hints: Hints,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// Whether variables that mean nothing have been named.
    pub(crate) has_warned: Cell<bool>,
}

impl Context {
    /// What is in force. The settings file is read now.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        if !self.has_warned.replace(true) {
            for (name, meant) in settings::misspelled_variables(std::env::vars_os().map(|(name, _)| name)) {
                tracing::warn!("the variable {name} means nothing here; did you mean {meant}?");
            }
        }
        settings::resolve(&self.flags, &|name| std::env::var_os(name))
    }

    /// Where the settings file is, or would be.
    pub(crate) fn config_path(&self) -> Result<PathBuf, Error> {
        let (path, _) = settings::config_path(&self.flags, &|name| std::env::var_os(name))?;
        settings::absolute(&path)
    }

    /// For commands that look at work, or change it: a mistyped name must not become an empty database.
    pub(crate) fn open_store(&self) -> Result<Store, Error> {
        let settings = self.settings()?;
        require_database(&settings, CREATED_BY_WORK)?;
        Ok(store_options(&settings).allow_read_only().open(&settings.database)?)
    }

    /// The same for commands about what scans have found.
    pub(crate) fn open_catalog(&self) -> Result<(Store, Settings), Error> {
        let settings = self.settings()?;
        require_database(&settings, CREATED_BY_SCAN)?;
        Ok((store_options(&settings).allow_read_only().open(&settings.database)?, settings))
    }
}

pub(crate) fn store_options(settings: &Settings) -> StoreOptions {
    Store::options().durability(settings.durability).busy_timeout(settings.busy_timeout)
}

/// What makes a database.
pub(crate) const CREATED_BY_WORK: &str = "`gristmill enqueue` and `gristmill worker` make one";
pub(crate) const CREATED_BY_SCAN: &str = "`gristmill scan FOLDER` makes one";
pub(crate) const CREATED_BY_ANY: &str =
    "`gristmill scan FOLDER`, `gristmill enqueue` and `gristmill worker` make one";

pub(crate) fn require_database(settings: &Settings, maker: &str) -> Result<(), Error> {
    let path = &settings.database;
    match path.try_exists() {
        Ok(false) => Err(Error::Setting(format!(
            "there is no database {}; {maker}, --db names another",
            path_text(path)
        ))),
        // What else is in the way, opening it says better.
        _ => Ok(()),
    }
}

/// For commands that bring work, or wait for it. Only the default folder is ours to make.
pub(crate) fn open_or_create(settings: &Settings) -> Result<Store, Error> {
    create_data_folder(settings)?;
    Ok(store_options(settings).open(&settings.database)?)
}

/// Creates the folder of the database, if that is where it is by default.
pub(crate) fn create_data_folder(settings: &Settings) -> Result<(), Error> {
    if settings.database_by_default
        && let Some(folder) = settings.database.parent()
    {
        private::create_folder(folder).map_err(|error| {
            Error::Setting(format!(
                "cannot make the folder {}: {error}. Name another file with --db or GRISTMILL_DB",
                path_text(folder)
            ))
        })?;
    }
    Ok(())
}
