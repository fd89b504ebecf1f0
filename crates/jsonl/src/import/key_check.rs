//! Finds lines with a duplicate key in a dry run, without writing to the database.
//!
//! The keys are inserted into a temporary table, which compares them as the real table would.

use rusqlite::Connection;

use super::key::cell_of;
use super::names::quoted;
use super::table::{BoundCell, Table};
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Cell, ParsedBlock};

type Sql<T> = rusqlite::Result<T>;

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
        let of_key: Vec<&str> = columns.iter().map(|index| table.layout.columns[*index].name.as_str()).collect();
        let name = quoted(&table.name);
        let names: Vec<String> = of_key.iter().map(|name| quoted(name)).collect();
        let (list, marks) = (names.join(","), vec!["?"; names.len()].join(","));
        let definition = if table.is_old {
            format!("CREATE TABLE {KEYS} AS SELECT {list} FROM main.{name} LIMIT 0")
        } else {
            let types = columns.iter().map(|index| table.layout.columns[*index].column_type().sql());
            let typed: Vec<String> = names.iter().zip(types).map(|(name, kind)| format!("{name} {kind}")).collect();
            format!("CREATE TABLE {KEYS} ({})", typed.join(","))
        };
        let index = "CREATE UNIQUE INDEX temp.gristmill_import_key ON gristmill_import_keys";
        conn.execute_batch(&format!("{definition}; {index} ({list})"))?;
        let equal: Vec<String> = names.iter().map(|name| format!("{name}=?")).collect();
        let find = format!("SELECT 1 FROM main.{name} WHERE {}", equal.join(" AND "));
        let full: Vec<String> = of_key.iter().map(|column| format!("{}.{column}", table.name)).collect();
        Ok(KeyCheck {
            conn,
            columns,
            find: table.is_old.then_some(find),
            add: format!("INSERT OR IGNORE INTO {KEYS} VALUES ({marks})"),
            duplicate: ParseErrorKind::key_exists(&format!("UNIQUE constraint failed: {}", full.join(", "))),
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
