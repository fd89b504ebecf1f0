//! Statistics of a database: its tables, their rows and sizes.

use std::collections::HashMap;
use std::path::Path;

use gristmill_pool::CancelToken;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde::Serialize;

pub use super::dates::DateKind;
use super::import_log;
use super::names::IMPORT_LOG;
use crate::database::read_only;
use crate::error::{Error, Result};
use crate::sql::{Sql, column_names, columns_where_all, count_rows, quoted, values};

/// Statistics of a database, read in one transaction.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseStats {
    /// Size of the database file.
    pub bytes: u64,
    /// All tables except `_imports`, sorted by name.
    pub tables: Vec<TableStats>,
}

/// Statistics of a table.
#[derive(Clone, Debug, Serialize)]
pub struct TableStats {
    /// Name of the table.
    pub table: String,
    /// Number of rows in the table.
    pub rows: u64,
    /// Number of columns in the table.
    pub columns: u64,
    /// Bytes on disk of its rows.
    pub bytes: u64,
    /// Bytes on disk of its indexes.
    pub index_bytes: u64,
    /// The file that was loaded into it last.
    pub source: Option<String>,
    /// Number of files that were loaded into it since it was created.
    pub sources: u64,
    /// Time at which the last file was loaded.
    pub loaded_at: Option<String>,
    /// Number of rejected lines in all loads of these files.
    pub errors: Option<u64>,
    /// Columns whose texts are all dates or times in the format of ISO 8601.
    pub dates: Vec<DateColumn>,
}

/// A column of dates or times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DateColumn {
    /// Name of the column.
    pub column: String,
    /// Kind of its texts: dates, dates with a time, or times.
    #[serde(rename = "type")]
    pub kind: DateKind,
}

/// Reads the statistics of a database.
pub fn stats(path: &Path) -> Result<DatabaseStats> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
    let conn = read_only(path, &CancelToken::new())?;
    let tables = tables(&conn).map_err(|error| Error::sqlite(path, error))?;
    Ok(DatabaseStats { bytes: metadata.len(), tables })
}

fn tables(conn: &Connection) -> Sql<Vec<TableStats>> {
    let transaction = conn.unchecked_transaction()?;
    let has_import_log = import_log::exists(&transaction)?;
    let (sizes, index_sizes) = sizes(&transaction)?;
    let names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
         AND name <> ?1 ORDER BY name";
    let mut tables = Vec::new();
    for table in values::<String>(&transaction, names, [IMPORT_LOG])? {
        let mut stats = TableStats {
            rows: count_rows(&transaction, &table)?,
            columns: column_names(&transaction, &table)?.len() as u64,
            bytes: sizes.get(&table).copied().unwrap_or(0),
            index_bytes: index_sizes.get(&table).copied().unwrap_or(0),
            source: None,
            sources: 0,
            loaded_at: None,
            errors: None,
            dates: dates(&transaction, &table)?,
            table,
        };
        if has_import_log {
            stats.add_log(&transaction)?;
        }
        tables.push(stats);
    }
    Ok(tables)
}

impl TableStats {
    /// Adds the data of the import log about the files that were loaded into the table since it was created.
    fn add_log(&mut self, conn: &Connection) -> Sql<()> {
        let creation_id = import_log::creation_id(conn, &self.table)?.unwrap_or(0);
        // SQLite takes the other columns of a query with max() from the row that has the maximum.
        let mut statement = conn.prepare_cached(
            r#"SELECT "source", "finished_at", sum("errors"), count(DISTINCT CASE WHEN "rows" > 0 THEN "source" END),
               max("id") FROM "_imports" WHERE "table" = ?1 COLLATE NOCASE AND "id" >= ?2 AND "error" IS NULL"#,
        )?;
        statement.query_row((&self.table, creation_id), |row| {
            self.source = row.get(0)?;
            self.loaded_at = row.get(1)?;
            self.errors = row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs);
            self.sources = number(row, 3)?;
            Ok(())
        })
    }
}

/// Finds the columns whose texts are all dates or times.
fn dates(conn: &Connection, table: &str) -> Sql<Vec<DateColumn>> {
    let sql = format!("SELECT * FROM {}", quoted(table));
    let names: Vec<String> = conn.prepare(&sql)?.column_names().map(str::to_owned).collect();
    let mut kinds: Vec<Option<DateKind>> = vec![None; names.len()];
    let columns = columns_where_all(conn, &sql, (0..names.len()).collect(), |index, value| match value {
        ValueRef::Null => true,
        ValueRef::Text(text) => {
            let known = kinds[index];
            let both = DateKind::of(text).and_then(|kind| known.map_or(Some(kind), |known| known.and(kind)));
            kinds[index] = both;
            both.is_some()
        }
        _ => false,
    })?;
    let column = |index: usize| Some(DateColumn { column: names[index].clone(), kind: kinds[index]? });
    Ok(columns.into_iter().filter_map(column).collect())
}

/// Bytes on disk by name of the table or index.
type Sizes = HashMap<String, u64>;

/// Returns the sizes of tables, and of the indexes by table. Reads all at once: a query for one takes as long.
fn sizes(conn: &Connection) -> Sql<(Sizes, Sizes)> {
    let mut statement = conn.prepare("SELECT name, pgsize FROM dbstat WHERE aggregate = 1")?;
    let sizes = statement.query_map([], |row| Ok((row.get(0)?, number(row, 1)?)))?;
    let sizes: Sizes = sizes.collect::<Sql<_>>()?;
    let mut statement = conn.prepare("SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index'")?;
    let mut index_sizes = Sizes::new();
    for index in statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))? {
        let (index, table) = index?;
        *index_sizes.entry(table).or_default() += sizes.get(&index).copied().unwrap_or(0);
    }
    Ok((sizes, index_sizes))
}

fn number(row: &rusqlite::Row<'_>, index: usize) -> Sql<u64> {
    row.get::<_, i64>(index).map(i64::unsigned_abs)
}
