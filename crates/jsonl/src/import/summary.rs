//! How an import ended.

use serde::Serialize;

/// What became of all files.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImportSummary {
    /// By file, as they were found.
    pub files: Vec<FileSummary>,
    /// Rows in all tables together.
    pub rows: u64,
    /// Lines that were rejected.
    pub rejected: u64,
    /// Bytes of the files that were read.
    pub bytes: u64,
    /// The first lines that were rejected.
    pub examples: Vec<RejectedLine>,
    /// Columns that were to be a key or to have an index, and that no table has.
    pub unmatched: Vec<String>,
    /// What stopped it: more bad lines than were allowed.
    pub stopped_by: Option<RejectedLine>,
    /// It was told to stop.
    pub interrupted: bool,
    /// Whether the database is there: not, when it was to be a new one and is not complete.
    pub is_published: bool,
    /// How long it took.
    pub seconds: f64,
}

/// What became of one file.
#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    /// Its path.
    pub source: String,
    /// Its table.
    pub table: String,
    /// How it went.
    #[serde(flatten)]
    pub outcome: FileOutcome,
    /// What was done to its table, or would be: create, replace, append or upsert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<&'static str>,
    /// Rows in its table, of this file.
    pub rows: u64,
    /// Lines that were rejected.
    pub rejected: u64,
    /// Lines with nothing in them.
    pub blank: u64,
    /// Its size.
    pub bytes: u64,
    /// Its table's columns: name, and type as SQLite is told.
    pub columns: Vec<(String, String)>,
    /// Its table's primary key.
    pub primary_key: Option<String>,
    /// Its table as SQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
    /// Columns that the schema has an index for, and that its table does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// What is worth knowing about it.
    pub notes: Vec<String>,
}

/// How a file went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "error")]
pub enum FileOutcome {
    /// It is in.
    Loaded,
    /// It could be loaded, but the import was to write nothing.
    Checked,
    /// It was there already, unchanged.
    Unchanged,
    /// It was not reached, or taken back with all others.
    #[serde(rename = "not loaded")]
    Waiting,
    /// It is not in, and why.
    Failed(String),
}

/// A line that was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedLine {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: u64,
    /// From 1, in bytes.
    pub column: u64,
    /// What is wrong there.
    pub reason: String,
}

impl ImportSummary {
    /// Whether a file could not be loaded.
    pub fn has_failures(&self) -> bool {
        self.files.iter().any(|file| matches!(file.outcome, FileOutcome::Failed(_)))
    }
}
