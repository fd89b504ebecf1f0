//! Options of an import.

use std::path::PathBuf;

use super::schema::Schema;

/// What to do if the database already has the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingTable {
    /// Fail before anything is written.
    #[default]
    Refuse,
    /// Drop the table and create it again.
    Replace,
    /// Append the new rows.
    Append,
    /// Update rows with an existing primary key, and insert the others.
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

/// What to do after bad lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Skip them and continue.
    #[default]
    Skip,
    /// Stop at the first bad line.
    Fail,
    /// Stop when there are more bad lines than this.
    FailAfter(u64),
}

/// Where rows are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Write to this database.
    Database(PathBuf),
    /// Write nothing; only infer the tables.
    Schema,
    /// Write nothing; report what an import into this database would do.
    Preview(PathBuf),
    /// Write nothing; only check the lines.
    ValidateOnly,
}

/// Options of an import. Start with the default and set the fields that differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Number of worker threads that parse; 0 for the number of cores.
    pub workers: usize,
    /// What to do with existing tables.
    pub existing: ExistingTable,
    /// What to do after bad lines.
    pub on_error: OnError,
    /// Number of levels of objects that are flattened into columns.
    pub flatten: usize,
    /// Languages of localised objects to keep; all if empty.
    pub languages: Vec<String>,
    /// Columns of the primary key, for tables that have them; chosen by rule if empty.
    pub primary_key: Vec<String>,
    /// Columns to index, in tables that have them.
    pub indexes: Vec<String>,
    /// Types, names and keys that the user sets for tables.
    pub schema: Schema,
    /// Name of one table for all files; if not set, each file has its own table.
    pub table: Option<String>,
    /// Name of a column for the file name of each row.
    pub filename_column: Option<String>,
    /// Keys to load; all if empty.
    pub columns: Vec<String>,
    /// Maximum number of rows to load into each table, not counting rejected lines.
    pub limit: Option<u64>,
    /// Skip files that were loaded before and have not changed, and resume a cancelled import.
    pub resume: bool,
    /// File to which rejected lines are appended.
    pub rejects: Option<PathBuf>,
    /// Whether numbers with a fraction or an exponent that a double would round make their column TEXT, and are
    /// rejected in a column of a given type. If false, they are rounded.
    pub exact_numbers: bool,
    /// Maximum length of a line, in bytes.
    pub max_line: usize,
    /// Approximate number of bytes that a worker parses at a time.
    pub block: usize,
}

/// Default of `max_line`. A longer line is more likely a mistake than data.
const DEFAULT_MAX_LINE_BYTES: usize = 256 << 20;

/// Default of `block`: fits the cache of a core, and is large enough that the queue costs little.
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

/// Maximum number of worker threads.
pub const MAX_WORKERS: usize = 32;

/// Maximum of `max_line`, because SQLite holds no longer value.
pub const MAX_LINE_BYTES: usize = 900_000_000;

impl ImportOptions {
    pub(crate) fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(4, |cores| cores.get()).min(MAX_WORKERS),
            workers => workers,
        }
    }

    /// Requested columns of a table's primary key; empty if it is chosen by rule.
    pub(crate) fn key_of(&self, table: &str) -> &[String] {
        let schema = self.schema.tables.get(table).filter(|schema| schema.has_key());
        schema.map_or(&self.primary_key, |schema| &schema.primary_key)
    }

    /// The options that affect the layout of a table, as text for the import log; `--resume` compares it.
    pub(crate) fn layout_key(&self) -> String {
        let key = if self.primary_key.is_empty() { "by rule".to_owned() } else { self.primary_key.join(",") };
        let mut text = format!(
            "flatten={} languages={} key={key} schema={}",
            self.flatten,
            self.languages.join(","),
            self.schema.fingerprint()
        );
        // Omitted if unused, as in the records of earlier versions.
        if !self.columns.is_empty() {
            text.push_str(&format!(" columns={}", self.columns.join(",")));
        }
        if let Some(name) = &self.filename_column {
            text.push_str(&format!(" filename={name}"));
        }
        if self.exact_numbers {
            text.push_str(" exact");
        }
        text
    }
}
