//! Advice for a damaged file.
//!
//! Results of scans can be found again: a file that contains only those is deleted and the folders are scanned again.
//! Tasks and dead letters can only be restored from a backup.

use std::path::Path;

use crate::StoreOptions;
use crate::error::Result;
use crate::sqlite::db::Db;
use crate::sqlite::read_only;

/// Tables whose rows a scan cannot restore, and what the rows are called.
const IRREPLACEABLE_TABLES: &[(&str, &str)] = &[
    ("tasks", "tasks"),
    ("dead_letter_queue", "dead letters"),
    ("jobs", "jobs"),
    ("seen_messages", "ids of messages"),
];

const DELETE_ADVICE: &str =
    "delete it, with its -wal and -shm files if they exist, and scan again (`gristmill scan FOLDER`)";
const RESTORE_ADVICE: &str =
    "stop all workers, keep a copy of the file and its -wal file, and restore the latest backup";

/// Returns what to do about the damaged file at `path`, as a sentence without a full stop.
pub fn advice(path: &Path) -> String {
    match irreplaceable(path) {
        Ok(irreplaceable) if irreplaceable.is_empty() => {
            format!("it contains only results of scans: {DELETE_ADVICE}")
        }
        Ok(irreplaceable) => format!(
            "{RESTORE_ADVICE}: it contains {} besides results of scans. Without a backup these are lost: {DELETE_ADVICE}",
            irreplaceable.join(", ")
        ),
        Err(_) => format!(
            "if it contains only results of scans, {DELETE_ADVICE}; if it also contains tasks or dead letters, {RESTORE_ADVICE}"
        ),
    }
}

/// Counts the rows that a scan cannot restore, by table.
fn irreplaceable(path: &Path) -> Result<Vec<String>> {
    let file = StoreOptions::default().file(path);
    let (file, conn) = read_only::open(&file)?;
    count_rows(&file.db(&conn))
}

fn count_rows(db: &Db<'_>) -> Result<Vec<String>> {
    let mut irreplaceable = Vec::new();
    for (table, rows) in IRREPLACEABLE_TABLES {
        if !db.has_table(table)? {
            continue;
        }
        let number = db.number(&format!("SELECT count(*) FROM {table}"), [])?;
        if number > 0 {
            irreplaceable.push(format!("{rows} ({number})"));
        }
    }
    Ok(irreplaceable)
}
