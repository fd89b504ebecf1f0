//! The definition of a sink's table: its columns, and how objects for it are parsed.

use std::path::Path;

use rusqlite::Connection;

use crate::error::{Failure, Result};
use crate::import::existing::{self, TableShape, Widening};
use crate::import::import_log;
use crate::import::key::{KeyPlan, KeyTracker};
use crate::import::layout::Layout;
use crate::import::options::ImportOptions;
use crate::import::table::Table;
use crate::parse::{Decimals, ParseOptions, UnknownKeys};
use crate::parse_error::ParseErrorKind;
use crate::sql::{Sql, increase_schema_version, schema_version};

/// Definition of the table at this version of the database schema.
pub(super) struct CachedTable {
    pub(super) version: i64,
    pub(super) table: Table,
    pub(super) parse_options: ParseOptions,
    /// Number of keys with a column when `parse_options` was made.
    pub(super) key_count: usize,
    /// Why no columns can be added, if so.
    pub(super) columns_closed: Option<String>,
}

impl CachedTable {
    /// Reads the definition of the table; without a table, the first row creates it.
    pub(super) fn read(conn: &Connection, database: &Path, name: &str) -> Result<Self, Failure> {
        let version = schema_version(conn)?;
        let found = existing::find_object(conn, name)?;
        let object = found.as_ref().map(|found| found.as_table(database)).transpose()?;
        let shape = match object {
            Some(object) => existing::table_shape(conn, object, Widening::Refused)?,
            None => TableShape { plan: KeyPlan::Existing(Vec::new()), ..TableShape::default() },
        };
        let name = object.map_or(name, |object| &object.name).to_owned();
        let mut table = Table::new(name, shape, KeyTracker::new(Vec::new(), false));
        table.is_typed = true;
        let parse_options = parse_options(&table.layout, &ImportOptions::default());
        let key_count = table.layout.key_count();
        Ok(CachedTable { version, table, parse_options, key_count, columns_closed: None })
    }

    /// Rejects objects with unknown keys from now on.
    pub(super) fn without_new_columns(mut self, why: String) -> Self {
        self.parse_options.unknown_keys = UnknownKeys::Rejected;
        self.columns_closed = Some(why);
        self
    }

    /// Updates the parse options after the layout has changed.
    pub(super) fn apply_layout(&mut self, options: &ImportOptions) {
        self.table.layout.fix_as_untyped();
        self.key_count = self.table.layout.key_count();
        self.parse_options = parse_options(&self.table.layout, options);
        if self.columns_closed.is_some() {
            self.parse_options.unknown_keys = UnknownKeys::Rejected;
        }
    }

    /// Rewords the error for an unknown key: here the table is the cause, not a schema.
    pub(super) fn table_reason(&self, reason: &ParseErrorKind) -> ParseErrorKind {
        match (reason, &self.columns_closed) {
            (ParseErrorKind::UnknownKey(key), Some(why)) => {
                ParseErrorKind::Refused(format!("cannot add a column for the key {key:?}: {why}"))
            }
            (reason, _) => reason.clone(),
        }
    }

    /// Records new columns in the import log; `before` is the earlier number of keys with a column. The table does not
    /// show that the column `ID` is for the key `ID` and not for `id`, and which columns of doubles have whole numbers.
    pub(super) fn record_new_columns(&mut self, conn: &Connection, name: &str, before: usize) -> Sql<()> {
        let has_new_whole_numbers = self.table.layout.mark_whole_numbers();
        let has_new_columns = self.key_count != before;
        let layout = &self.table.layout;
        let keys = layout.keys_of_columns();
        if has_new_whole_numbers || (has_new_columns && !are_columns_recorded(conn, name, &keys)?) {
            import_log::record_columns(conn, name, keys, layout.columns_with_whole_numbers())?;
            // Other sinks on this table read its definition again.
            increase_schema_version(conn)?;
        }
        if has_new_whole_numbers || has_new_columns {
            self.version = schema_version(conn)?;
        }
        Ok(())
    }
}

/// Whether the import log has the key of every column.
fn are_columns_recorded(conn: &Connection, name: &str, keys: &[(Vec<String>, String)]) -> Sql<bool> {
    let recorded = import_log::columns(conn, name)?.unwrap_or_default();
    Ok(keys.iter().all(|(_, column)| recorded.contains_key(column)))
}

/// Returns the parse options of the table. Numbers in columns without a type keep their spelling.
fn parse_options(layout: &Layout, options: &ImportOptions) -> ParseOptions {
    ParseOptions { decimals: Decimals::Written, ..layout.parse_options(options, None) }
}
