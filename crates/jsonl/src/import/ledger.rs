//! What was loaded, when and from where: the table `_imports`.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};

use super::layout::Path;
use super::names::LEDGER;
use super::summary::{FileSummary, Outcome};
use crate::source::Print;

const CREATE: &str = r#"CREATE TABLE IF NOT EXISTS "_imports" (
  "id" INTEGER PRIMARY KEY,
  "table" TEXT NOT NULL,
  "source" TEXT NOT NULL,
  "bytes" INTEGER,
  "modified_ns" INTEGER,
  "blake3" TEXT,
  "mode" TEXT NOT NULL,
  "options" TEXT NOT NULL,
  "rows" INTEGER NOT NULL,
  "errors" INTEGER NOT NULL,
  "error" TEXT,
  "renamed" TEXT,
  "started_at" TEXT NOT NULL,
  "finished_at" TEXT NOT NULL
)"#;

/// A file that was loaded before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) print: Print,
    pub(crate) options: String,
    pub(crate) rows: u64,
    pub(crate) errors: u64,
}

pub(crate) struct Record<'a> {
    pub(crate) file: &'a FileSummary,
    pub(crate) print: Option<&'a Print>,
    pub(crate) mode: &'a str,
    pub(crate) options: &'a str,
    pub(crate) renamed: &'a [(Vec<String>, String)],
    pub(crate) started: jiff::Timestamp,
}

pub(crate) fn is_there(conn: &Connection) -> rusqlite::Result<bool> {
    let found = conn.query_row(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1",
        [LEDGER],
        |_| Ok(()),
    );
    found.optional().map(|found| found.is_some())
}

pub(crate) fn make(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(CREATE)
}

pub(crate) fn write(conn: &Connection, record: &Record<'_>) -> rusqlite::Result<()> {
    let renamed =
        (!record.renamed.is_empty()).then(|| serde_json::to_string(record.renamed).unwrap_or_default());
    let error = match &record.file.outcome {
        Outcome::Failed(why) => Some(why.as_str()),
        _ => None,
    };
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    conn.prepare_cached(
        r#"INSERT INTO "_imports" ("table", "source", "bytes", "modified_ns", "blake3", "mode", "options", "rows",
           "errors", "error", "renamed", "started_at", "finished_at") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"#,
    )?
    .execute(rusqlite::params![
        record.file.table,
        record.file.source,
        record.print.map(|print| number(print.bytes)),
        record.print.and_then(|print| print.modified),
        record.print.map(|print| &print.hash),
        record.mode,
        record.options,
        number(record.file.rows),
        number(record.file.rejected),
        error,
        renamed,
        record.started.to_string(),
        jiff::Timestamp::now().to_string(),
    ])?;
    Ok(())
}

/// Notes which keys have which columns, where no file brought them.
pub(crate) fn rename(conn: &Connection, table: &str, keys: &[(Vec<String>, String)]) -> rusqlite::Result<()> {
    make(conn)?;
    let now = jiff::Timestamp::now().to_string();
    let keys = serde_json::to_string(keys).unwrap_or_default();
    let sql = r#"INSERT INTO "_imports" ("table", "source", "mode", "options", "rows", "errors", "renamed",
        "started_at", "finished_at") VALUES (?1, 'messages', 'append', '', 0, 0, ?2, ?3, ?3)"#;
    conn.prepare_cached(sql)?.execute([table, &keys, &now]).map(drop)
}

/// The last time that this file was loaded into this table, if that went well.
pub(crate) fn last(conn: &Connection, table: &str, source: &str) -> rusqlite::Result<Option<Entry>> {
    if !is_there(conn)? {
        return Ok(None);
    }
    conn.query_row(
        r#"SELECT "bytes", "modified_ns", "blake3", "options", "rows", "errors" FROM "_imports"
           WHERE lower("table") = lower(?1) AND "source" = ?2 AND "error" IS NULL AND "blake3" IS NOT NULL
           AND "id" > coalesce((SELECT max("id") FROM "_imports" WHERE lower("table") = lower(?1) AND "source" <> ?2
                                AND "mode" IN ('create', 'replace') AND "error" IS NULL), 0)
           ORDER BY "id" DESC LIMIT 1"#,
        [table, source],
        |row| {
            let print = Print {
                bytes: row.get::<_, i64>(0)?.unsigned_abs(),
                modified: row.get(1)?,
                hash: row.get(2)?,
            };
            Ok(Entry {
                print,
                options: row.get(3)?,
                rows: row.get::<_, i64>(4)?.unsigned_abs(),
                errors: row.get::<_, i64>(5)?.unsigned_abs(),
            })
        },
    )
    .optional()
}

/// Whether we made the table.
pub(crate) fn is_ours(conn: &Connection, table: &str) -> rusqlite::Result<bool> {
    let sql = r#"SELECT 1 FROM "_imports" WHERE lower("table") = lower(?1) AND "mode" IN ('create', 'replace') AND "error" IS NULL"#;
    Ok(is_there(conn)? && conn.prepare(sql)?.exists([table])?)
}

/// Columns of a table that are not named as their keys, and those whose keys were noted.
pub(crate) fn renamed(conn: &Connection, table: &str) -> rusqlite::Result<HashMap<String, Path>> {
    let mut columns = HashMap::new();
    if !is_there(conn)? {
        return Ok(columns);
    }
    let mut statement = conn.prepare(
        r#"SELECT "renamed" FROM "_imports" WHERE lower("table") = lower(?1) AND "renamed" IS NOT NULL ORDER BY "id""#,
    )?;
    for text in statement.query_map([table], |row| row.get::<_, String>(0))? {
        let pairs: Vec<(Vec<String>, String)> = serde_json::from_str(&text?).unwrap_or_default();
        for (path, column) in pairs {
            columns.insert(column, path.into_iter().map(|key| key.into_bytes().into()).collect());
        }
    }
    Ok(columns)
}
