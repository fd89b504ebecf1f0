//! Finds lines with a duplicate key in a dry run, without writing to the database.
//!
//! The keys are inserted into a temporary table, which compares them as the real table would.

use rusqlite::Connection;

use super::key::cell_of;
use super::table::{BoundCell, Table};
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Cell, ParsedBlock};
use crate::sql::{Sql, all_equal, marks, quoted, quoted_names};

/// Temporary table with the keys of the lines so far.
const KEYS: &str = "temp.gristmill_import_keys";

#[derive(Debug)]
pub(crate) struct KeyCheck {
    conn: Connection,
    columns: Vec<usize>,
    /// Query that finds a key in the existing table; `None` for a new table.
    find: Option<String>,
    add: String,
    duplicate: ParseErrorKind,
}

impl KeyCheck {
    /// Creates the check for a table with a key. `conn` is a connection to the database of an existing table, which may
    /// be read-only.
    pub(crate) fn new(conn: Connection, table: &Table) -> Sql<Self> {
        let columns = table.plan.columns().to_vec();
        let names = || table.layout.names(&columns);
        let (name, list, marks) = (quoted(&table.name), quoted_names(names()), marks(columns.len()));
        let definition = if table.is_old {
            format!("CREATE TABLE {KEYS} AS SELECT {list} FROM main.{name} LIMIT 0")
        } else {
            let of_key = columns.iter().map(|index| &table.layout.columns[*index]);
            let typed = of_key.map(|column| format!("{} {}", quoted(&column.name), column.column_type().sql()));
            format!("CREATE TABLE {KEYS} ({})", typed.collect::<Vec<_>>().join(","))
        };
        let index = "CREATE UNIQUE INDEX temp.gristmill_import_key ON gristmill_import_keys";
        conn.execute_batch(&format!("{definition}; {index} ({list})"))?;
        let find = format!("SELECT 1 FROM main.{name} WHERE {}", all_equal(names()));
        let full: Vec<String> = names().map(|column| format!("{}.{column}", table.name)).collect();
        let duplicate = ParseErrorKind::key_exists(&format!("UNIQUE constraint failed: {}", full.join(", ")));
        Ok(KeyCheck {
            conn,
            find: table.is_old.then_some(find),
            add: format!("INSERT OR IGNORE INTO {KEYS} VALUES ({marks})"),
            duplicate,
            columns,
        })
    }

    /// Adds the key of a row. Returns an error if the key is a duplicate. A row without a complete key is never one.
    pub(crate) fn add(&self, block: &ParsedBlock, cells: &[(u32, Cell)], map: &[u32]) -> Sql<Option<ParseErrorKind>> {
        let value = |column: &usize| {
            let cell = cell_of(cells, map, *column).filter(|cell| *cell != Cell::Null)?;
            Some(BoundCell(block, cell))
        };
        let Some(key) = self.columns.iter().map(value).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let key = || rusqlite::params_from_iter(&key);
        let exists = match &self.find {
            Some(find) => self.conn.prepare_cached(find)?.exists(key())?,
            None => false,
        };
        let is_duplicate = exists || self.conn.prepare_cached(&self.add)?.execute(key())? == 0;
        Ok(is_duplicate.then(|| self.duplicate.clone()))
    }
}
