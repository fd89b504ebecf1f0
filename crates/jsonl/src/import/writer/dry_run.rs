//! Checks keys in a dry run.

use std::sync::Arc;

use rusqlite::Connection;

use super::super::file_load::FileLoad;
use super::super::key::KeyPlan;
use super::super::key_check::KeyCheck;
use super::super::options::{ExistingTable, Target};
use super::super::table::Table;
use super::Writer;
use crate::database::read_only;
use crate::error::{Error, Result};

impl Writer<'_> {
    /// Returns a duplicate key check once columns and types are known: from the second pass, and not for an upsert.
    pub(super) fn key_check(&self, table: &Table, passes: u32) -> Result<Option<KeyCheck>> {
        let is_known = match table.plan {
            KeyPlan::IndexFromStart(_) => true,
            KeyPlan::Existing(_) => passes > 1 && !table.plan.columns().is_empty(),
            _ => false,
        };
        if self.tx.is_some() || !is_known || self.options.existing == ExistingTable::Upsert {
            return Ok(None);
        }
        let conn = match self.target {
            Target::Preview(path) if table.is_old => read_only(path, self.handle.cancel_token())?,
            // SQLite's temporary database, in memory or in a temporary file.
            _ => Connection::open("").map_err(|error| self.failed_check(error))?,
        };
        KeyCheck::new(conn, table).map(Some).map_err(|error| self.failed_check(error))
    }

    /// Whether lines of a new table may be rejected because of its key, and this has not been checked yet.
    pub(super) fn is_key_unchecked(&self, load: &FileLoad) -> bool {
        let (table, tracker) = (&load.table, &load.table.tracker);
        let may_reject = match tracker.plan(&table.layout) {
            KeyPlan::IndexFromStart(_) => true,
            KeyPlan::IndexAtEnd(_) => !tracker.upserts,
            _ => false,
        };
        self.tx.is_none()
            && *self.target != Target::ValidateOnly
            && !table.is_old
            && tracker.is_needed()
            && may_reject
            && !matches!(table.plan, KeyPlan::IndexFromStart(_))
    }

    pub(super) fn failed_check(&self, error: rusqlite::Error) -> Error {
        match self.target {
            Target::Preview(path) => Error::sqlite(path, error),
            _ => Error::KeyCheck(Arc::new(error)),
        }
    }
}
