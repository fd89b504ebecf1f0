//! Checks the keys of a dry run, and finds reasons not to create a table: no key, no column, no valid line.

use std::sync::Arc;

use rusqlite::Connection;

use super::super::file_load::FileLoad;
use super::super::key::{DEFAULT_KEY_NAMES, KeyPlan};
use super::super::key_check::KeyCheck;
use super::super::options::{ExistingTable, Target};
use super::super::schema::TableSchema;
use super::super::selection;
use super::super::table::Table;
use super::{Writer, quoted_list};
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
            _ => Connection::open("").map_err(|error| self.failed(error))?,
        };
        KeyCheck::new(conn, table).map(Some).map_err(|error| self.failed(error))
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

    pub(super) fn failed(&self, error: rusqlite::Error) -> Error {
        match (&self.tx, self.target) {
            (Some(tx), _) => tx.db.failed(error),
            (None, Target::Preview(path)) => Error::sqlite(path, error),
            _ => Error::KeyCheck(Arc::new(error)),
        }
    }

    fn has_one_table(&self) -> bool {
        self.first_files.iter().all(|leader| *leader == self.first_files[0])
    }

    /// Whether a new table lacks its required key. With several tables, `--primary-key` applies to those that have it.
    pub(super) fn lacks_key(&self, load: &FileLoad, rows: u64) -> bool {
        let (table, tracker) = (&load.table, &load.table.tracker);
        let key_applies = self.has_one_table() || self.schema(load.file.index).is_some_and(TableSchema::has_key);
        !table.is_old
            && *self.target != Target::ValidateOnly
            && rows > 0
            && tracker.columns.is_empty()
            && table.plan.columns().is_empty()
            && (tracker.upserts || (!tracker.requested.is_empty() && key_applies))
    }

    /// Whether the rows have none of the columns of `--columns`. Of several new tables, only those that have one count.
    pub(super) fn lacks_columns(&self, load: &FileLoad) -> bool {
        let layout = &load.table.layout;
        let columns_apply = self.has_one_table() || load.table.is_old || load.is_replaced;
        !self.options.columns.is_empty()
            && *self.target != Target::ValidateOnly
            && load.has_objects
            && columns_apply
            && !selection::is_in_lines(layout, self.options, self.schema(load.file.index))
    }

    /// Whether there are rows but no columns.
    pub(super) fn lacks_table(&self, load: &FileLoad, rows: u64) -> bool {
        *self.target != Target::ValidateOnly
            && rows > 0
            && self.options.columns.is_empty()
            && load.table.layout.columns.is_empty()
    }
}

pub(super) fn no_key_message(requested: &[String]) -> String {
    match requested {
        [] => format!(
            "no line has a key {}, so --upsert cannot know which rows are the same; name the key with --primary-key",
            DEFAULT_KEY_NAMES.join(", ").replace(", id", " or id")
        ),
        requested => format!(
            "its lines do not have the primary key {}; name keys that they have with --primary-key",
            quoted_list(requested)
        ),
    }
}

pub(super) fn no_columns_message(requested: &[String]) -> String {
    format!(
        "no line has a key that --columns names: {}; name keys that the lines have, in the same case",
        quoted_list(requested)
    )
}

pub(super) fn no_valid_line_message(rejected: u64) -> String {
    format!("no valid line ({rejected} of {rejected} rejected); first reasons below")
}
