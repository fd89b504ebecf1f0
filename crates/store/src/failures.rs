//! Failed attempts of tasks: why each failed, and the end of what it wrote.
//!
//! Owns the table `task_failures`. A row is written in the transaction that settles the attempt, and goes with its task.

use rusqlite::params;
use serde::Serialize;

use crate::Store;
use crate::db::{Db, required_time};
use crate::error::Result;
use crate::tasks::TaskFailure;
use crate::time::UtcTime;

/// The latest failed attempts that are kept of one task.
const MAX_ATTEMPTS_KEPT: i64 = 20;

/// The longest output that is kept of one attempt, in bytes.
const MAX_OUTPUT_BYTES: usize = 8 << 10;

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedAttempt {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When it failed.
    pub failed_at: UtcTime,
    /// Why, in a line.
    pub reason: String,
    /// At which step of the task.
    pub step: Option<String>,
    /// The end of what it wrote, or the rest of its error.
    pub output: Option<String>,
}

/// The failed attempts of a store.
#[derive(Clone, Copy, Debug)]
pub struct Failures<'a>(pub(crate) &'a Store);

impl Failures<'_> {
    /// The latest failed attempts of a task, oldest first; at most 20 are kept.
    pub fn list(self, task: i64) -> Result<Vec<FailedAttempt>> {
        self.0.read(|db| {
            let sql = "SELECT attempt, failed_at, reason, step, output FROM task_failures WHERE task_id = ?1
                ORDER BY attempt";
            db.rows(sql, [task], |row| {
                Ok(FailedAttempt {
                    attempt: row.get(0)?,
                    failed_at: required_time(row, "failed_at")?,
                    reason: row.get(2)?,
                    step: row.get(3)?,
                    output: row.get(4)?,
                })
            })
        })
    }
}

/// Keeps an attempt that was just counted as failed.
pub(crate) fn record(db: &Db<'_>, task: i64, failure: &TaskFailure) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO task_failures (task_id, attempt, failed_at, reason, step, output)
        SELECT id, max(starts, attempts), ?2, ?3, ?4, ?5 FROM tasks WHERE id = ?1";
    let output = failure.output.as_deref().map(end_of);
    db.execute(sql, params![task, db.now(), failure.reason, failure.step, output])?;
    let sql = "DELETE FROM task_failures WHERE task_id = ?1
        AND attempt <= (SELECT max(attempt) FROM task_failures WHERE task_id = ?1) - ?2";
    db.execute(sql, (task, MAX_ATTEMPTS_KEPT)).map(drop)
}

/// The last bytes of a text, from the beginning of a character on.
fn end_of(text: &str) -> &str {
    let least = text.len().saturating_sub(MAX_OUTPUT_BYTES);
    let start = (least..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_an_output_begins_with_a_whole_character() {
        assert_eq!(end_of("short"), "short");
        let long = format!("é{}", "x".repeat(MAX_OUTPUT_BYTES - 1));
        assert_eq!(end_of(&long).len(), MAX_OUTPUT_BYTES - 1);
    }
}
