//! A temporary folder with input files and the database that is imported from them.
#![allow(dead_code)]

use std::fs;
use std::path::PathBuf;

use gristmill_jsonl::Result;
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ImportOptions, Target};
use gristmill_jsonl::import::summary::ImportSummary;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

/// Changes some options: `options! { block: 64, resume, ..ImportOptions::default() }`.
macro_rules! options {
    ($($field:ident $(: $value:expr)?,)* ..$base:expr $(,)?) => {{
        let mut options = $base;
        $(options.$field = options!(@value $field $($value)?);)*
        options
    }};
    (@value $field:ident $value:expr) => { $value };
    (@value $field:ident) => { $field };
}

pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Fixture { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let fixture = Fixture::new();
        for (name, text) in files {
            fixture.write(name, text.as_bytes());
        }
        fixture
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("out.db")
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.data().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn import(&self, options: &ImportOptions) -> Result<ImportSummary> {
        self.import_of(&[self.data()], options)
    }

    pub(crate) fn import_of(&self, paths: &[PathBuf], options: &ImportOptions) -> Result<ImportSummary> {
        import(paths, &Target::Database(self.database()), options, &ImportHandle::default().into())
    }

    /// Imports the data folder and checks the integrity of the database.
    #[track_caller]
    pub(crate) fn load(&self, options: &ImportOptions) -> ImportSummary {
        let summary = self.import(options).unwrap();
        self.check_integrity();
        summary
    }

    #[track_caller]
    pub(crate) fn check_integrity(&self) {
        assert_eq!(self.one("PRAGMA integrity_check"), "ok");
        assert_eq!(self.leftovers(), Vec::<String>::new(), "files are left next to the database");
    }

    /// Names of files other than the data and the database.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "data" && name != "out.db");
        names.sort();
        names
    }

    pub(crate) fn open(&self) -> Connection {
        Connection::open(self.database()).unwrap()
    }

    /// First row of a query, as text.
    #[track_caller]
    pub(crate) fn one(&self, sql: &str) -> String {
        self.all(sql).lines().next().unwrap_or_default().to_owned()
    }

    /// All rows of a query as text, with columns separated by |.
    #[track_caller]
    pub(crate) fn all(&self, sql: &str) -> String {
        rows(&self.open(), sql)
    }

    /// The `CREATE TABLE` statement of a table.
    #[track_caller]
    pub(crate) fn schema(&self, table: &str) -> String {
        self.one_text("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1", table)
    }

    #[track_caller]
    fn one_text(&self, sql: &str, of: &str) -> String {
        self.open().query_row(sql, [of], |row| row.get(0)).unwrap()
    }
}

#[track_caller]
pub(crate) fn rows(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(sql).unwrap();
    let count = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let cells: Vec<String> = (0..count).map(|index| formatted(row.get_ref(index).unwrap())).collect();
        lines.push(cells.join("|"));
    }
    lines.join("\n")
}

/// Formats a value so that integers and reals differ.
fn formatted(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "∅".to_owned(),
        ValueRef::Integer(value) => value.to_string(),
        ValueRef::Real(value) => format!("{value:?}r"),
        ValueRef::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        ValueRef::Blob(_) => "a blob".to_owned(),
    }
}

/// Joins lines, each with a line end.
pub(crate) fn lines(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

pub(crate) fn small_blocks() -> ImportOptions {
    options! { block: 64, ..ImportOptions::default() }
}
