//! The result of an import.

use serde::Serialize;

/// Result of an import, with the results of all files.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImportSummary {
    /// Results of the files, in the order in which they were found.
    pub files: Vec<FileSummary>,
    /// Number of loaded rows in all tables.
    pub rows: u64,
    /// Number of rejected lines in all files.
    pub rejected: u64,
    /// Bytes of the loaded files.
    pub bytes: u64,
    /// The first rejected lines, at most 10.
    pub examples: Vec<RejectedLine>,
    /// Columns requested as key, for an index or by `--columns` that no table has.
    pub unmatched: Vec<String>,
    /// The line at which the import stopped because of too many bad lines.
    pub stopped_by: Option<RejectedLine>,
    /// Whether the import was cancelled.
    pub interrupted: bool,
    /// Whether the database exists; false for a new one that is not complete.
    pub is_published: bool,
    /// Duration of the import.
    pub seconds: f64,
}

/// Result of one file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FileSummary {
    /// Path of the file.
    pub source: String,
    /// Name of its table.
    pub table: String,
    /// Whether it was loaded.
    #[serde(flatten)]
    pub outcome: FileOutcome,
    /// How its table is written: create, replace, append or upsert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<&'static str>,
    /// Number of rows from this file in its table.
    pub rows: u64,
    /// Number of rejected lines.
    pub rejected: u64,
    /// Number of blank lines.
    pub blank: u64,
    /// Size of the file.
    pub bytes: u64,
    /// Columns of its table: name and SQL type.
    pub columns: Vec<(String, String)>,
    /// Columns of its table's primary key, separated by commas.
    pub primary_key: Option<String>,
    /// The `CREATE TABLE` statement of a new table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
    /// Columns for which the schema has an index and that its table does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// Notes for the user, such as renamed columns.
    pub notes: Vec<String>,
}

/// Outcome of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "error")]
pub enum FileOutcome {
    /// The file was loaded.
    Loaded,
    /// The file was only checked, because the target is not a database.
    Checked,
    /// The file was loaded before and has not changed.
    Unchanged,
    /// The file was not reached, or was rolled back with all others.
    #[default]
    #[serde(rename = "not loaded")]
    Waiting,
    /// The file was not loaded, for this reason.
    Failed(String),
}

/// A rejected line and the position of the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedLine {
    /// Path of the file.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// Column in bytes, from 1.
    pub column: u64,
    /// Error at this position.
    pub reason: String,
}

impl ImportSummary {
    /// Whether a file could not be loaded.
    pub fn has_failures(&self) -> bool {
        self.files.iter().any(|file| matches!(file.outcome, FileOutcome::Failed(_)))
    }
}
