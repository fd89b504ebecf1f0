//! Failed attempts of tasks: the reason and the last part of the output.
//!
//! Owns the table `task_failures`. A row is written with the update of its attempt, and deleted with its task.

use serde::Serialize;

use crate::Store;
use crate::error::Result;
use crate::rows::table_row;
use crate::sqlite::{Db, params};
use crate::tasks::TaskFailure;
use crate::time::UtcTime;

/// Maximum number of failed attempts kept for one task.
const MAX_ATTEMPTS_KEPT: i64 = 20;

/// Maximum length of the output kept for one attempt in bytes.
const MAX_OUTPUT_BYTES: usize = 8 << 10;

table_row! {
    /// A failed attempt of a task.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct FailedAttempt {
        /// Number of the attempt, from 1.
        pub attempt: u32,
        /// When the attempt failed.
        pub failed_at: UtcTime,
        /// Reason in one line.
        pub reason: String,
        /// Step of the task that failed.
        pub step: Option<String>,
        /// Last part of the attempt's output, or of its error beyond the reason.
        pub output: Option<String>,
    }
}

/// Failed attempts of a store.
#[derive(Clone, Copy, Debug)]
pub struct Failures<'a>(pub(crate) &'a Store);

impl Failures<'_> {
    /// Lists the latest failed attempts of a task, oldest first; at most 20 are kept.
    pub fn list(self, task: i64) -> Result<Vec<FailedAttempt>> {
        self.0.read(|db| {
            let sql = "SELECT attempt, failed_at, reason, step, output FROM task_failures WHERE task_id = ?1
                ORDER BY attempt";
            db.rows(sql, [task], FailedAttempt::read)
        })
    }
}

/// Stores an attempt that was just counted as failed.
pub(crate) fn record(db: &Db<'_>, task: i64, failure: &TaskFailure) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO task_failures (task_id, attempt, failed_at, reason, step, output)
        SELECT id, max(starts, attempts), ?2, ?3, ?4, ?5 FROM tasks WHERE id = ?1";
    let output = failure.output.as_deref().map(end_of);
    db.execute(sql, params![task, db.now(), failure.reason, failure.step, output])?;
    let sql = "DELETE FROM task_failures WHERE task_id = ?1
        AND attempt <= (SELECT max(attempt) FROM task_failures WHERE task_id = ?1) - ?2";
    db.execute(sql, (task, MAX_ATTEMPTS_KEPT)).map(drop)
}

/// Returns the last bytes of a text, starting at a character boundary.
fn end_of(text: &str) -> &str {
    let min_start = text.len().saturating_sub(MAX_OUTPUT_BYTES);
    let start = (min_start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}
