//! Settings, database and output of a run, for every command.
//!
//! Owns when the database is opened, and which commands create it.

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
    /// Whether misspelled environment variables have been reported.
    pub(crate) has_warned: Cell<bool>,
}

impl Context {
    /// Reads the settings file and resolves all settings.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        if !self.has_warned.replace(true) {
            for (name, suggestion) in settings::misspelled_variables(std::env::vars_os().map(|(name, _)| name)) {
                tracing::warn!("unknown environment variable {name}; did you mean {suggestion}?");
            }
        }
        settings::resolve(&self.flags, &|name| std::env::var_os(name))
    }

    /// Returns the path of the settings file, which may not exist.
    pub(crate) fn config_path(&self) -> Result<PathBuf, Error> {
        let (path, _) = settings::config_path(&self.flags, &|name| std::env::var_os(name))?;
        settings::absolute(&path)
    }

    /// Opens the database for commands about tasks. It must exist, so that a misspelled name creates no empty database.
    pub(crate) fn open_store(&self) -> Result<Store, Error> {
        let settings = self.settings()?;
        require_database(&settings, CREATED_BY_WORK)?;
        Ok(store_options(&settings).allow_read_only().open(&settings.database)?)
    }

    /// Opens the database for commands about the catalog. It must exist.
    pub(crate) fn open_catalog(&self) -> Result<(Store, Settings), Error> {
        let settings = self.settings()?;
        require_database(&settings, CREATED_BY_SCAN)?;
        Ok((store_options(&settings).allow_read_only().open(&settings.database)?, settings))
    }
}

pub(crate) fn store_options(settings: &Settings) -> StoreOptions {
    Store::options().durability(settings.store.durability).busy_timeout(settings.store.busy_timeout)
}

/// Commands that create a database, for the error that there is none.
pub(crate) const CREATED_BY_WORK: &str = "`gristmill enqueue` and `gristmill worker` create it";
pub(crate) const CREATED_BY_SCAN: &str = "`gristmill scan FOLDER` creates it";
pub(crate) const CREATED_BY_ANY: &str = "`gristmill scan FOLDER`, `gristmill enqueue` and `gristmill worker` create it";

pub(crate) fn require_database(settings: &Settings, created_by: &str) -> Result<(), Error> {
    let path = &settings.database;
    match path.try_exists() {
        Ok(false) => Err(Error::Setting(format!(
            "there is no database {}; {created_by}, or choose another with --db",
            path_text(path)
        ))),
        // Opening it reports other errors with more detail.
        _ => Ok(()),
    }
}

/// Opens the database for commands that add tasks or wait for them, and creates it if need be. Of folders, only the
/// default one is created.
pub(crate) fn open_or_create(settings: &Settings) -> Result<Store, Error> {
    create_data_folder(settings)?;
    Ok(store_options(settings).open(&settings.database)?)
}

/// Creates the folder of the database if it is the default one.
pub(crate) fn create_data_folder(settings: &Settings) -> Result<(), Error> {
    if settings.database_by_default
        && let Some(folder) = settings.database.parent()
    {
        private::create_folder(folder).map_err(|error| {
            Error::Setting(format!(
                "cannot create the folder {}: {error}; choose another database with --db or GRISTMILL_DB",
                path_text(folder)
            ))
        })?;
    }
    Ok(())
}
