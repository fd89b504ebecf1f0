//! What an import is asked for.

use std::path::PathBuf;

use super::schema::Schema;

/// What to do when the database has the table already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingTable {
    /// Nothing: it is an error, found before anything is written.
    #[default]
    Refuse,
    /// The new rows take the place of the old ones.
    Replace,
    /// The new rows come behind the old ones.
    Append,
    /// Rows with a known primary key are updated, the others added.
    Upsert,
}

impl ExistingTable {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ExistingTable::Refuse => "create",
            ExistingTable::Replace => "replace",
            ExistingTable::Append => "append",
            ExistingTable::Upsert => "upsert",
        }
    }
}

/// What to do with the rest when lines are bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Leave them out, go on.
    #[default]
    Skip,
    /// Stop at the first.
    Fail,
    /// Stop when there are more than so many.
    FailAfter(u64),
}

/// Where rows go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Into this database.
    Database(PathBuf),
    /// Nowhere: the tables are only found out.
    Schema,
    /// Nowhere: what an import into this database would do is found out.
    Preview(PathBuf),
    /// Nowhere: lines are only checked.
    ValidateOnly,
}

/// How an import is done.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// How many workers parse; 0 for the number of cores.
    pub workers: usize,
    /// Tables that are there already.
    pub existing: ExistingTable,
    /// Bad lines.
    pub on_error: OnError,
    /// How many levels of objects become columns.
    pub flatten: usize,
    /// The languages to keep of localised objects; all when there are none.
    pub languages: Vec<String>,
    /// The columns of the primary key, where a table has them; found by rule when there are none.
    pub primary_key: Vec<String>,
    /// Columns to make an index for, where a table has them.
    pub indexes: Vec<String>,
    /// What is fixed beforehand.
    pub schema: Schema,
    /// The one table for all files; else each becomes its own.
    pub table: Option<String>,
    /// A column that gets the name of each row's file.
    pub filename_column: Option<String>,
    /// Load only these keys; all, when there are none.
    pub columns: Vec<String>,
    /// Load at most this many rows into each table, the first ones. Rejected lines do not count.
    pub limit: Option<u64>,
    /// Leave out files that were loaded before and have not changed since; go on where a stopped import was.
    pub resume: bool,
    /// A file for lines that are rejected.
    pub rejects: Option<PathBuf>,
    /// Numbers with a fraction or an exponent that a double would round make their column TEXT, and cost their line
    /// where the column's type is given; else they are rounded.
    pub exact_numbers: bool,
    /// The longest line that is read, in bytes.
    pub max_line: usize,
    /// About how many bytes a worker parses at a time.
    pub block: usize,
}

/// A line of 256 MiB is a mistake more often than a line.
const DEFAULT_MAX_LINE_BYTES: usize = 256 << 20;

/// Small enough to stay in a core's cache, large enough that handing it over costs nothing.
const DEFAULT_BLOCK_BYTES: usize = 512 << 10;

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            workers: 4,
            existing: ExistingTable::default(),
            on_error: OnError::default(),
            flatten: 0,
            languages: Vec::new(),
            primary_key: Vec::new(),
            indexes: Vec::new(),
            schema: Schema::default(),
            table: None,
            filename_column: None,
            columns: Vec::new(),
            limit: None,
            resume: false,
            rejects: None,
            exact_numbers: false,
            max_line: DEFAULT_MAX_LINE_BYTES,
            block: DEFAULT_BLOCK_BYTES,
        }
    }
}

/// The most workers there may be.
pub const MAX_WORKERS: usize = 32;

/// The longest line that can be asked for: SQLite holds no longer value.
pub const MAX_LINE_BYTES: usize = 900_000_000;

impl ImportOptions {
    pub(crate) fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(4, |cores| cores.get()).min(MAX_WORKERS),
            workers => workers,
        }
    }

    /// The columns that the primary key of a table is to have; none when it is found by rule.
    pub(crate) fn key_of(&self, table: &str) -> &[String] {
        let schema = self.schema.tables.get(table).filter(|schema| schema.has_key());
        schema.map_or(&self.primary_key, |schema| &schema.primary_key)
    }

    /// What decides on a table's shape, for a later import to compare with.
    pub(crate) fn layout_key(&self) -> String {
        let key = if self.primary_key.is_empty() { "by rule".to_owned() } else { self.primary_key.join(",") };
        let mut shape = format!(
            "flatten={} languages={} key={key} schema={}",
            self.flatten,
            self.languages.join(","),
            self.schema.fingerprint()
        );
        // Left out where they are not used, as in the records of earlier versions.
        if !self.columns.is_empty() {
            shape.push_str(&format!(" columns={}", self.columns.join(",")));
        }
        if let Some(name) = &self.filename_column {
            shape.push_str(&format!(" filename={name}"));
        }
        if self.exact_numbers {
            shape.push_str(" exact");
        }
        shape
    }
}
