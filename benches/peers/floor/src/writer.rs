//! Writes to a new file with one connection and one transaction per table. At the end the file is synced and renamed.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
};

use rusqlite::{
    Connection,
    types::{Null, ToSqlOutput, ValueRef},
};

use crate::block::{Cell, Rows};

/// Exclusive and without syncs: no other process reads the file before it is renamed.
const SETTINGS: &str = "PRAGMA page_size = 16384; PRAGMA locking_mode = EXCLUSIVE; \
    PRAGMA journal_mode = DELETE; PRAGMA synchronous = OFF;";

pub struct Writer {
    connection: Connection,
    database: PathBuf,
    part: PathBuf,
    /// Table of the open transaction.
    table: String,
}

impl Writer {
    pub fn new(database: &Path) -> Writer {
        let mut part = OsString::from(database);
        part.push(".part");
        let part = PathBuf::from(part);
        let connection = Connection::open(&part).expect("the database can be created");
        connection.execute_batch(SETTINGS).expect("the settings are valid");
        connection.set_prepared_statement_cache_capacity(1);
        Writer { connection, database: database.to_path_buf(), part, table: String::new() }
    }

    pub fn write(&mut self, rows: &Rows) {
        let table = &rows.block.table;
        if self.table != table.name {
            self.commit();
            self.connection.execute_batch("BEGIN").expect("a transaction starts");
            self.connection.execute_batch(&table.create()).expect("the table is new");
            self.table.clone_from(&table.name);
        }
        let mut insert = self.connection.prepare_cached(&table.insert()).expect("the statement is valid");
        for row in rows.cells.chunks_exact(table.columns.len()) {
            for (nth, cell) in row.iter().enumerate() {
                let bound = match *cell {
                    Cell::Null => insert.raw_bind_parameter(nth + 1, Null),
                    Cell::Integer(number) => insert.raw_bind_parameter(nth + 1, number),
                    Cell::Real(number) => insert.raw_bind_parameter(nth + 1, number),
                    Cell::Raw(start, end) => {
                        insert.raw_bind_parameter(nth + 1, unchecked(&rows.block.lines[start..end]))
                    }
                    Cell::Unescaped(start, end) => {
                        insert.raw_bind_parameter(nth + 1, unchecked(&rows.unescaped.as_bytes()[start..end]))
                    }
                };
                bound.expect("the value can be bound");
            }
            insert.raw_execute().expect("the row can be inserted");
        }
    }

    fn commit(&self) {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("COMMIT").expect("the transaction commits");
        }
    }

    pub fn finish(self) {
        self.commit();
        self.connection.close().expect("the database closes");
        let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all()).expect("the file can be synced");
        sync(&self.part);
        fs::rename(&self.part, &self.database).expect("the database can be renamed");
        let folder = self.database.parent().filter(|folder| !folder.as_os_str().is_empty());
        sync(folder.unwrap_or(Path::new(".")));
    }
}

/// Binds text without a check: the parser has validated the UTF-8.
fn unchecked(text: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(text))
}
