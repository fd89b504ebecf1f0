//! The import log: the table `_imports`, which records what was loaded, when and from where.

use std::collections::{HashMap, HashSet};

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension};

use super::layout::Path;
use super::names::IMPORT_LOG;
use super::summary::{FileOutcome, FileSummary};
use crate::source::Fingerprint;
use crate::sql::{Sql, column_names, values};

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
  "finished_at" TEXT NOT NULL,
  "table_rows" INTEGER,
  "whole_numbers" TEXT
)"#;

/// Columns that were added to the table in later versions.
const ADDED_COLUMNS: [(&str, &str); 2] = [("table_rows", "INTEGER"), ("whole_numbers", "TEXT")];

/// Keeps the queries for one table fast when the log has many tables.
const INDEX: &str = r#"CREATE INDEX IF NOT EXISTS "_imports_by_table" ON "_imports" ("table" COLLATE NOCASE, "id")"#;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) options: String,
    pub(crate) rows: u64,
    pub(crate) errors: u64,
    /// Start of the load; `None` if the recorded time cannot be parsed.
    pub(crate) started: Option<jiff::Timestamp>,
}

impl LogEntry {
    /// Whether the file may have changed although size and time are the same: it was written so shortly before the load
    /// that a later change may have the same time.
    pub(crate) fn is_racy(&self) -> bool {
        let started = self.started.and_then(|started| i64::try_from(started.as_nanosecond()).ok());
        match (self.fingerprint.modified, started) {
            (Some(modified), Some(started)) => modified.saturating_add(TIME_GRANULARITY_NS) > started,
            _ => true,
        }
    }
}

/// Coarsest resolution of file times: 2 s on FAT.
const TIME_GRANULARITY_NS: i64 = 2_000_000_000;

pub(crate) struct Record<'a> {
    pub(crate) file: &'a FileSummary,
    pub(crate) fingerprint: Option<&'a Fingerprint>,
    pub(crate) mode: &'a str,
    pub(crate) options: &'a str,
    /// Columns of the table, with the path of the key for which each was created.
    pub(crate) columns: Option<Vec<(Vec<String>, String)>>,
    /// Columns of doubles that have numbers written without a fraction.
    pub(crate) whole_numbers: Option<Vec<&'a str>>,
    pub(crate) table_rows: Option<u64>,
    pub(crate) started: jiff::Timestamp,
}

pub(crate) fn exists(conn: &Connection) -> Sql<bool> {
    Ok(!column_names(conn, IMPORT_LOG)?.is_empty())
}

fn has_column(conn: &Connection, name: &str) -> Sql<bool> {
    Ok(column_names(conn, IMPORT_LOG)?.iter().any(|column| column == name))
}

pub(crate) fn create(conn: &Connection) -> Sql<()> {
    conn.execute_batch(CREATE)?;
    for (name, kind) in ADDED_COLUMNS {
        if !has_column(conn, name)? {
            conn.execute_batch(&format!(r#"ALTER TABLE "_imports" ADD COLUMN "{name}" {kind}"#))?;
        }
    }
    conn.execute_batch(INDEX)
}

pub(crate) fn write(conn: &Connection, record: &Record<'_>) -> Sql<()> {
    let columns = record.columns.as_ref().map(|columns| serde_json::to_string(columns).unwrap_or_default());
    let error = match &record.file.outcome {
        FileOutcome::Failed(why) => Some(why.as_str()),
        _ => None,
    };
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    conn.prepare_cached(
        r#"INSERT INTO "_imports" ("table", "source", "bytes", "modified_ns", "blake3", "mode", "options", "rows",
           "errors", "error", "renamed", "started_at", "finished_at", "table_rows", "whole_numbers")
           VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"#,
    )?
    .execute(rusqlite::params![
        record.file.table,
        record.file.source,
        record.fingerprint.map(|fingerprint| number(fingerprint.bytes)),
        record.fingerprint.and_then(|fingerprint| fingerprint.modified),
        record.fingerprint.map(|fingerprint| &fingerprint.hash),
        record.mode,
        record.options,
        number(record.file.rows),
        number(record.file.rejected),
        error,
        columns,
        record.started.to_string(),
        jiff::Timestamp::now().to_string(),
        record.table_rows.map(number),
        record.whole_numbers.as_ref().map(|columns| serde_json::to_string(columns).unwrap_or_default()),
    ])?;
    Ok(())
}

/// Records the columns that a sink created, with their keys.
pub(crate) fn record_columns(
    conn: &Connection,
    table: &str,
    keys: Vec<(Vec<String>, String)>,
    whole_numbers: Vec<&str>,
) -> Sql<()> {
    create(conn)?;
    let file = FileSummary { table: table.to_owned(), source: "messages".to_owned(), ..FileSummary::default() };
    write(
        conn,
        &Record {
            file: &file,
            fingerprint: None,
            mode: "append",
            options: "",
            columns: Some(keys),
            whole_numbers: Some(whole_numbers),
            table_rows: None,
            started: jiff::Timestamp::now(),
        },
    )
}

/// Returns the last successful load of this file into this table.
pub(crate) fn last_load(conn: &Connection, table: &str, source: &str) -> Sql<Option<LogEntry>> {
    if !exists(conn)? {
        return Ok(None);
    }
    conn.query_row(
        r#"SELECT "bytes", "modified_ns", "blake3", "options", "rows", "errors", "started_at" FROM "_imports"
           WHERE "table" = ?1 COLLATE NOCASE AND "source" = ?2 AND "error" IS NULL AND "blake3" IS NOT NULL
           AND "id" > coalesce((SELECT max("id") FROM "_imports" WHERE "table" = ?1 COLLATE NOCASE AND "source" <> ?2
                                AND "mode" IN ('create', 'replace') AND "error" IS NULL), 0)
           ORDER BY "id" DESC LIMIT 1"#,
        [table, source],
        |row| {
            let fingerprint =
                Fingerprint { bytes: row.get::<_, i64>(0)?.unsigned_abs(), modified: row.get(1)?, hash: row.get(2)? };
            Ok(LogEntry {
                fingerprint,
                options: row.get(3)?,
                rows: row.get::<_, i64>(4)?.unsigned_abs(),
                errors: row.get::<_, i64>(5)?.unsigned_abs(),
                started: row.get::<_, String>(6)?.parse().ok(),
            })
        },
    )
    .optional()
}

/// Whether an import created the table.
pub(crate) fn is_imported(conn: &Connection, table: &str) -> Sql<bool> {
    Ok(exists(conn)? && creation_id(conn, table)?.is_some())
}

/// Id of the record of the import that created the table, if one did.
pub(crate) fn creation_id(conn: &Connection, table: &str) -> Sql<Option<i64>> {
    let sql = r#"SELECT max("id") FROM "_imports" WHERE "table" = ?1 COLLATE NOCASE
        AND "mode" IN ('create', 'replace') AND "error" IS NULL"#;
    conn.prepare_cached(sql)?.query_row([table], |row| row.get(0))
}

/// Whether an import created the table, and since then rows were added only from these sources, once from each.
pub(crate) fn consists_of(conn: &Connection, table: &str, sources: &HashSet<&str>) -> Sql<bool> {
    let Some(creation_id) = creation_id(conn, table)? else { return Ok(false) };
    let sql = r#"SELECT "source" FROM "_imports" WHERE "table" = ?1 COLLATE NOCASE AND "id" >= ?2
        AND "error" IS NULL AND "rows" > 0"#;
    let found: Vec<String> = values(conn, sql, (table, creation_id))?;
    let mut seen = HashSet::new();
    Ok(found.iter().all(|source| sources.contains(source.as_str()) && seen.insert(source)))
}

/// Returns a value of the last successful record of a table in which the column `recorded` is set; `None` if there is
/// none, or if an earlier version created the log.
fn latest<T: FromSql>(conn: &Connection, table: &str, column: &str, recorded: &str) -> Sql<Option<T>> {
    if !has_column(conn, column)? {
        return Ok(None);
    }
    let sql = format!(
        r#"SELECT "{column}" FROM "_imports" WHERE "table" = ?1 COLLATE NOCASE AND "{recorded}" IS NOT NULL
           AND "error" IS NULL ORDER BY "id" DESC LIMIT 1"#
    );
    let found = conn.prepare_cached(&sql)?.query_row([table], |row| row.get::<_, Option<T>>(0)).optional()?;
    Ok(found.flatten())
}

/// Returns the columns of a table and the keys for which they were created, as recorded by the last import or sink.
pub(crate) fn columns(conn: &Connection, table: &str) -> Sql<Option<HashMap<String, Path>>> {
    let text: Option<String> = latest(conn, table, "renamed", "renamed")?;
    let pairs: Option<Vec<(Vec<String>, String)>> = text.and_then(|text| serde_json::from_str(&text).ok());
    let path = |keys: Vec<String>| keys.into_iter().map(|key| key.into_bytes().into()).collect();
    Ok(pairs.map(|pairs| pairs.into_iter().map(|(keys, column)| (column, path(keys))).collect()))
}

/// Returns the columns of doubles that have numbers written without a fraction, as recorded by the last import or sink.
pub(crate) fn columns_with_whole_numbers(conn: &Connection, table: &str) -> Sql<Option<HashSet<String>>> {
    let text: Option<String> = latest(conn, table, "whole_numbers", "renamed")?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Returns the recorded minimum number of rows of a table after the last import into it.
pub(crate) fn table_rows(conn: &Connection, table: &str) -> Sql<Option<u64>> {
    Ok(latest(conn, table, "table_rows", "table_rows")?.map(i64::unsigned_abs))
}
