//! What a database has: tables, rows, sizes.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use super::ledger;
use super::names::{LEDGER, quoted};
use crate::error::{Error, Result};

/// A database at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Its size on disk.
    pub bytes: u64,
    /// All but the ledger, by name.
    pub tables: Vec<TableStats>,
}

/// A table.
#[derive(Clone, Debug, Serialize)]
pub struct TableStats {
    /// Its name.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// How many columns.
    pub columns: u64,
    /// What its rows take.
    pub bytes: u64,
    /// What its indexes take.
    pub index_bytes: u64,
    /// The file that was loaded into it last.
    pub source: Option<String>,
    /// When that was.
    pub loaded_at: Option<String>,
    /// Lines of it that were rejected.
    pub errors: Option<u64>,
}

/// Looks at all of a database.
pub fn stats(path: &Path) -> Result<Stats> {
    let metadata = std::fs::metadata(path).map_err(|error| Error::io("read", path, &error))?;
    let failed = |error: rusqlite::Error| Error::sqlite(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    let tables = tables(&conn).map_err(failed)?;
    Ok(Stats { bytes: metadata.len(), tables })
}

fn tables(conn: &Connection) -> rusqlite::Result<Vec<TableStats>> {
    let moment = conn.unchecked_transaction()?;
    let has_ledger = ledger::is_there(&moment)?;
    let mut statement = moment.prepare(
        "SELECT s.name, (SELECT count(*) FROM pragma_table_info(s.name)),
                coalesce((SELECT sum(pgsize) FROM dbstat d WHERE d.aggregate = 1 AND d.name = s.name), 0),
                coalesce((SELECT sum(pgsize) FROM dbstat d JOIN sqlite_schema i ON i.name = d.name
                          WHERE d.aggregate = 1 AND i.type = 'index' AND i.tbl_name = s.name), 0)
         FROM sqlite_schema s
         WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND s.name <> ?1 ORDER BY s.name",
    )?;
    let rows = statement.query_map([LEDGER], |row| {
        Ok(TableStats {
            table: row.get(0)?,
            rows: 0,
            columns: number(row, 1)?,
            bytes: number(row, 2)?,
            index_bytes: number(row, 3)?,
            source: None,
            loaded_at: None,
            errors: None,
        })
    })?;
    let mut tables: Vec<TableStats> = rows.collect::<rusqlite::Result<_>>()?;
    for table in &mut tables {
        let count = format!("SELECT count(*) FROM {}", quoted(&table.table));
        table.rows = moment.query_row(&count, [], |row| number(row, 0))?;
        if has_ledger {
            let mut last = moment.prepare_cached(
                r#"SELECT "source", "finished_at", "errors" FROM "_imports" WHERE lower("table") = lower(?1) ORDER BY "id" DESC LIMIT 1"#,
            )?;
            let mut found = last.query([&table.table])?;
            if let Some(row) = found.next()? {
                table.source = row.get(0)?;
                table.loaded_at = row.get(1)?;
                table.errors = Some(number(row, 2)?);
            }
        }
    }
    Ok(tables)
}

fn number(row: &rusqlite::Row<'_>, index: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(index).map(i64::unsigned_abs)
}
