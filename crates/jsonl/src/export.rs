//! Exports a SQLite table as JSONL.
//!
//! Owns the mapping from SQLite values to JSON, so that an import of the export creates the same table. Rows are read
//! and written one by one, in one read transaction.

mod file;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};
use serde::Serialize;

pub use self::file::export_to_file;
use crate::database::read_only;
use crate::error::{Error, Failure, Result};
use crate::import::handle::{ImportHandle, add};
use crate::lexer::Cursor;
use crate::sql::{Sql, TableColumn, columns_where_all, primary_key, quoted, quoted_names, table_columns, values};
use crate::types::Type;

/// Result of an export.
#[derive(Clone, Debug, Serialize)]
pub struct ExportSummary {
    /// Name of the table, as the database spells it.
    pub table: String,
    /// Number of rows written.
    pub rows: u64,
    /// Number of columns in each row.
    pub columns: u64,
    /// Bytes of JSONL, before compression.
    pub bytes: u64,
    /// Duration of the export.
    pub seconds: f64,
}

/// Writes a table as JSONL, one row per line, in order of the rowid. A table without rowid is ordered by its key.
///
/// Keys are the names of the columns, and every row has all of them. BOOLEAN columns are written as `true` and `false`.
/// A column in which every text is a JSON object or array on one line is written as JSON. All other values keep their
/// type. (Booleans that share a column with numbers are stored as numbers, so they are written as numbers.) A value
/// that JSON cannot represent (a BLOB, an infinite number, text that is not UTF-8) is an error. Generated columns are
/// left out.
///
/// ```
/// # use gristmill_jsonl::export::export;
/// # let folder = tempfile::tempdir()?;
/// # let database = folder.path().join("ores.db");
/// # rusqlite::Connection::open(&database)?.execute_batch(
/// #     "CREATE TABLE ores (id INTEGER PRIMARY KEY, rare BOOLEAN); INSERT INTO ores VALUES (34, 0)")?;
/// let mut lines = Vec::new();
/// let exported = export(&database, "ores", &mut lines, &Default::default())?;
/// assert_eq!((exported.rows, lines.as_slice()), (1, &b"{\"id\":34,\"rare\":false}\n"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export(
    database: &Path,
    table: &str,
    output: &mut dyn Write,
    handle: &Arc<ImportHandle>,
) -> Result<ExportSummary> {
    let started = Instant::now();
    let conn = read_only(database, handle.cancel_token())?;
    let mut writer = RowWriter { output, line: Vec::new(), rows: 0, bytes: 0 };
    let mut export = || {
        let transaction = conn.unchecked_transaction()?;
        let table = ExportTable::read(&transaction, database, table)?;
        writer.write(&transaction, &table, handle)?;
        Ok(table)
    };
    let table = export().map_err(|failure: Failure| failure.at(database))?;
    let (rows, bytes) = (writer.rows, writer.bytes);
    let columns = table.columns.len() as u64;
    Ok(ExportSummary { table: table.table, rows, columns, bytes, seconds: started.elapsed().as_secs_f64() })
}

struct ExportTable {
    table: String,
    columns: Vec<Column>,
    /// The `ORDER BY` clause.
    order: String,
}

struct Column {
    /// The name as a JSON key, with its colon.
    key: Vec<u8>,
    name: String,
    is_boolean: bool,
    is_key: bool,
    /// All its texts are JSON, and it is not in the primary key: an import never makes a column of JSON the key.
    is_json: bool,
}

impl ExportTable {
    /// Reads the definition of the table. The inner error says why it cannot be exported.
    fn read(conn: &Connection, database: &Path, name: &str) -> Result<Self, Failure> {
        let refused = |why: String| Err(Error::table(name, format!("{}: {why}", database.display())).into());
        let sql = "SELECT name, type, wr FROM pragma_table_list
            WHERE schema = 'main' AND lower(name) = lower(?1) AND type <> 'shadow'";
        let found = conn.query_row(sql, [name], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?))
        });
        let (table, has_rowid) = match found.optional()? {
            None => return refused(missing(conn, name)?),
            Some((table, kind, _)) if kind == "view" => {
                return refused(format!("{table:?} is a view, which has no row order; export a table"));
            }
            Some((table, _, without_rowid)) => (table, !without_rowid),
        };
        let mut found = table_columns(conn, &table)?;
        found.retain(|column| !column.is_hidden);
        let order = if has_rowid {
            // Any of the three names of the rowid that is not the name of a column.
            let is_free = |name: &&str| !found.iter().any(|column| column.name.eq_ignore_ascii_case(name));
            ["rowid", "_rowid_", "oid"].iter().find(|name| is_free(name)).map(|name| (*name).to_owned())
        } else {
            Some(quoted_names(primary_key(&found).iter().map(|index| found[*index].name.as_str())))
        };
        let order = order.map(|order| format!(" ORDER BY {order}")).unwrap_or_default();
        let columns = found.into_iter().map(|TableColumn { name, kind, key, .. }| {
            let mut quoted_key = serde_json::to_vec(&name).unwrap_or_default();
            quoted_key.push(b':');
            let is_boolean = Type::declared(&kind) == Some(Type::Boolean);
            Column { key: quoted_key, name, is_boolean, is_key: key > 0, is_json: false }
        });
        let mut table = ExportTable { table, columns: columns.collect(), order };
        table.find_json(conn)?;
        Ok(table)
    }

    /// Finds the columns whose texts are all JSON.
    fn find_json(&mut self, conn: &Connection) -> Sql<()> {
        let candidates = (0..self.columns.len()).filter(|index| !self.columns[*index].is_key).collect();
        let mut has_text = vec![false; self.columns.len()];
        let all_json = columns_where_all(conn, &self.select(), candidates, |index, value| match value {
            ValueRef::Text(text) => {
                has_text[index] = true;
                is_json(text)
            }
            _ => true,
        })?;
        all_json.into_iter().for_each(|index| self.columns[index].is_json = has_text[index]);
        Ok(())
    }

    fn select(&self) -> String {
        let names = quoted_names(self.columns.iter().map(|column| column.name.as_str()));
        format!("SELECT {names} FROM {}{}", quoted(&self.table), self.order)
    }
}

fn missing(conn: &Connection, name: &str) -> Sql<String> {
    let sql =
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
    let names: Vec<String> = values(conn, sql, [])?;
    let more = if names.len() > 10 { ", …" } else { "" };
    let listed: Vec<&str> = names.iter().take(10).map(String::as_str).collect();
    Ok(match listed.is_empty() {
        true => format!("there is no table {name:?}; the database has no tables"),
        false => format!("there is no table {name:?}; tables: {}{more}", listed.join(", ")),
    })
}

/// Whether a text is a JSON object or array on one line, as an import stores it.
fn is_json(text: &[u8]) -> bool {
    let mut cursor = Cursor::new(text);
    matches!(text.first(), Some(b'{' | b'['))
        && cursor.value(1).is_ok()
        && cursor.at() == text.len()
        && memchr::memchr(b'\n', text).is_none()
        && std::str::from_utf8(text).is_ok()
}

struct RowWriter<'a> {
    output: &'a mut dyn Write,
    line: Vec<u8>,
    rows: u64,
    bytes: u64,
}

impl RowWriter<'_> {
    fn write(&mut self, conn: &Connection, table: &ExportTable, handle: &ImportHandle) -> Result<(), Failure> {
        let mut statement = conn.prepare(&table.select())?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if handle.is_cancelled() {
                return Err(Error::Cancelled.into());
            }
            self.line.clear();
            for (index, column) in table.columns.iter().enumerate() {
                self.line.push(if index == 0 { b'{' } else { b',' });
                self.line.extend_from_slice(&column.key);
                self.value(table, column, row.get_ref(index)?)?;
            }
            self.line.extend_from_slice(b"}\n");
            self.output.write_all(&self.line).map_err(output_failed)?;
            self.rows += 1;
            self.bytes += self.line.len() as u64;
            add(&handle.rows, 1);
            add(&handle.bytes_read, self.line.len() as u64);
        }
        Ok(self.output.flush().map_err(output_failed)?)
    }

    fn value(&mut self, table: &ExportTable, column: &Column, value: ValueRef<'_>) -> Result<()> {
        let unsupported = |found: &'static str| {
            let (table, column) = (table.table.clone(), column.name.clone());
            Error::Value { table, column, row: self.rows + 1, found }
        };
        match value {
            ValueRef::Null => self.line.extend_from_slice(b"null"),
            ValueRef::Integer(value @ (0 | 1)) if column.is_boolean => {
                self.line.extend_from_slice(if value == 1 { b"true" } else { b"false" });
            }
            ValueRef::Integer(value) => self.line.extend_from_slice(value.to_string().as_bytes()),
            ValueRef::Real(value) if !value.is_finite() => return Err(unsupported("an infinite number")),
            ValueRef::Real(value) => serde_json::to_writer(&mut self.line, &value).map_err(output_failed)?,
            ValueRef::Text(text) if column.is_json => self.line.extend_from_slice(text),
            ValueRef::Text(text) => {
                let text = std::str::from_utf8(text).map_err(|_| unsupported("text that is not UTF-8"))?;
                serde_json::to_writer(&mut self.line, text).map_err(output_failed)?;
            }
            ValueRef::Blob(_) => return Err(unsupported("a BLOB")),
        }
        Ok(())
    }
}

/// The reader of a pipe, such as `head`, may have read enough.
fn output_failed(error: impl Into<io::Error>) -> Error {
    let error = error.into();
    match error.kind() {
        io::ErrorKind::BrokenPipe => Error::Cancelled,
        _ => Error::Output(Arc::new(error)),
    }
}
