//! The folder of a case: its files, its database and the results of an import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, OnError, Target};
use gristmill_jsonl::import::schema::Schema;
use gristmill_jsonl::import::summary::{FileSummary, ImportSummary};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

use crate::case::{File, Import, Mode};
use crate::json::Sql;

/// A file system in memory, used if it exists: nothing here depends on the disk, and fsync would take most of the time.
const MEMORY: &str = "/dev/shm";

pub(crate) struct Workspace {
    folder: TempDir,
}

/// Observed result of an import.
pub(crate) struct Observed {
    pub(crate) result: Result<ImportSummary, String>,
    /// Numbers of the rejected lines by file, read from the file for rejects.
    pub(crate) rejected: BTreeMap<&'static str, BTreeSet<usize>>,
    pub(crate) tables: Tables,
    root: PathBuf,
}

impl Observed {
    /// Summary of a file.
    pub(crate) fn of_file(&self, file: &File) -> Result<&FileSummary, String> {
        let files = self.result.as_ref().map_or(&[][..], |summary| &summary.files);
        let found = files.iter().find(|found| Path::new(&found.source) == self.root.join(file.path));
        found.ok_or_else(|| format!("{} is not in the summary", file.path))
    }
}

pub(crate) type Tables = BTreeMap<String, ObservedTable>;

/// A table as it is in the database.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedTable {
    /// Name and type.
    pub(crate) columns: Vec<(String, String)>,
    pub(crate) key: Vec<String>,
    pub(crate) rows: Vec<Vec<Sql>>,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        let in_memory = tempfile::tempdir_in(MEMORY);
        Workspace { folder: in_memory.or_else(|_| tempfile::tempdir()).unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder as summaries show it.
    fn root(&self) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap()
    }

    fn database(&self) -> PathBuf {
        self.path("out.db")
    }

    /// Runs SQL as another program would.
    pub(crate) fn execute(&self, sql: &str) {
        Connection::open(self.database()).unwrap().execute_batch(sql).unwrap();
    }

    pub(crate) fn import(&self, import_case: &Import) -> Result<Observed, String> {
        let paths: Vec<PathBuf> = import_case.files.iter().map(|file| self.write(file)).collect();
        let rejects = self.path(&import_case.rejects_path());
        let before = fs::read_to_string(&rejects).unwrap_or_default();
        let mut options = ImportOptions::default();
        options.workers = 2;
        options.existing = match import_case.mode {
            Mode::Create => ExistingTable::Refuse,
            Mode::Append => ExistingTable::Append,
            Mode::Upsert => ExistingTable::Upsert,
            Mode::Replace => ExistingTable::Replace,
        };
        options.on_error = import_case.max_errors.map_or(OnError::Skip, OnError::FailAfter);
        options.flatten = import_case.flatten;
        options.primary_key = import_case.primary_key.iter().map(|&key| key.to_owned()).collect();
        options.exact_numbers = import_case.exact;
        options.schema = self.schema(import_case);
        options.table = import_case.table.map(str::to_owned);
        options.resume = import_case.resume;
        options.rejects = Some(rejects.clone());
        options.block = import_case.block;
        let target = Target::Database(self.database());
        let result = import(&paths, &target, &options, &ImportHandle::default().into());
        let after = fs::read_to_string(&rejects).unwrap_or_default();
        let Some(new) = after.strip_prefix(before.as_str()) else {
            return Err("the file for rejects has lost the lines of earlier imports".to_owned());
        };
        let rejected = self.rejected(import_case, new)?;
        let (result, tables) = (result.map_err(|error| error.to_string()), self.tables()?);
        Ok(Observed { result, rejected, tables, root: self.root() })
    }

    fn write(&self, file: &File) -> PathBuf {
        let (path, text) = (self.path(file.path), file.text());
        let bytes = match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(text.as_bytes()).unwrap();
                encoder.finish().unwrap()
            }
            Some("zst") => zstd::encode_all(text.as_bytes(), 1).unwrap(),
            _ => text.into_bytes(),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn schema(&self, import_case: &Import) -> Schema {
        let Some(schema) = &import_case.schema else { return Schema::default() };
        let path = self.path("schema.toml");
        fs::write(&path, schema.toml(&import_case.tables())).unwrap();
        Schema::read(&path).unwrap()
    }

    fn rejected(&self, import_case: &Import, new: &str) -> Result<BTreeMap<&'static str, BTreeSet<usize>>, String> {
        let mut rejected: BTreeMap<&'static str, BTreeSet<usize>> = BTreeMap::new();
        let root = self.root();
        for line in new.lines() {
            let entry: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let (path, line) = (entry["file"].as_str().unwrap_or(""), entry["line"].as_u64().unwrap_or(0));
            let is_it = |file: &&File| Path::new(path) == root.join(file.path);
            let file = import_case.files.iter().find(is_it).ok_or(format!("a reject of the file {path}"))?;
            if !rejected.entry(file.path).or_default().insert(line as usize) {
                return Err(format!("{path}: line {line} is among the rejects twice"));
            }
        }
        Ok(rejected)
    }

    fn tables(&self) -> Result<Tables, String> {
        if !self.database().exists() {
            return Ok(Tables::new());
        }
        let conn = Connection::open(self.database()).map_err(|error| error.to_string())?;
        self.read(&conn).map_err(|error| format!("the database cannot be read: {error}"))
    }

    fn read(&self, conn: &Connection) -> rusqlite::Result<Tables> {
        let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        assert_eq!(check, "ok");
        let mut names = conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> '_imports'")?;
        let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        names.into_iter().map(|name| Ok((name.clone(), table(conn, &name)?))).collect()
    }
}

fn table(conn: &Connection, name: &str) -> rusqlite::Result<ObservedTable> {
    let mut table = ObservedTable::default();
    let mut info = conn.prepare("SELECT name, type, pk FROM pragma_table_info(?1)")?;
    let mut key: Vec<(i64, String)> = Vec::new();
    let mut rows = info.query([name])?;
    while let Some(row) = rows.next()? {
        let (name, sql_type, key_position): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if key_position > 0 {
            key.push((key_position, name.clone()));
        }
        table.columns.push((name, if sql_type == "INT" { "INTEGER".to_owned() } else { sql_type }));
    }
    key.sort();
    table.key = key.into_iter().map(|(_, name)| name).collect();
    let mut select = conn.prepare(&format!("SELECT * FROM \"{name}\" NOT INDEXED ORDER BY rowid"))?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let cells = (0..table.columns.len()).map(|index| {
            Ok(match row.get_ref(index)? {
                ValueRef::Null => Sql::Null,
                ValueRef::Integer(value) => Sql::Int(value),
                ValueRef::Real(value) => Sql::Real(value),
                ValueRef::Text(text) => Sql::Text(String::from_utf8_lossy(text).into_owned()),
                ValueRef::Blob(_) => Sql::Text("a blob".to_owned()),
            })
        });
        table.rows.push(cells.collect::<rusqlite::Result<_>>()?);
    }
    Ok(table)
}
