//! Checkpoints: the finished steps of a task, and the data to continue after them.
//!
//! Owns the table `task_checkpoints`. Only the current owner of a task can write them, and they are deleted when the
//! task is finished. Their contents belong to the handler.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::Store;
use crate::error::{Error, Result};
use crate::json;
use crate::lease::Token;
use crate::rows::table_row;
use crate::sqlite::{Db, WriteKind, params};
use crate::time::UtcTime;

table_row! {
    /// Data that a task saved for one step.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct Checkpoint {
        /// Name of the step.
        pub step: String,
        /// Saved data as JSON.
        pub data: String as Value,
        /// When the data was last saved.
        pub updated_at: UtcTime,
    }
}

/// Checkpoints of a store.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoints<'a>(pub(crate) &'a Store);

impl Checkpoints<'_> {
    /// Saves a step of a claimed task. It is on disk when this returns.
    pub fn save(self, task: i64, token: &Token, step: &str, data: &str) -> Result<()> {
        json::check(&format!("the checkpoint of step {step:?}"), data)?;
        let (token, step, data) = (token.clone(), step.to_owned(), data.to_owned());
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = "INSERT INTO task_checkpoints (task_id, step, data, created_at, updated_at)
                SELECT id, ?3, ?4, ?5, ?5 FROM tasks WHERE id = ?1 AND status = 'running' AND worker_id = ?2
                ON CONFLICT (task_id, step) DO UPDATE SET data = excluded.data, updated_at = excluded.updated_at";
            match db.execute(sql, params![task, token.as_str(), step, data, db.now()])? {
                0 => Err(not_owned(task)),
                _ => Ok(()),
            }
        })
    }

    /// Lists the checkpoints of a task, oldest first.
    pub fn list(self, task: i64) -> Result<Vec<Checkpoint>> {
        self.0.read(|db| {
            let sql =
                "SELECT step, data, updated_at FROM task_checkpoints WHERE task_id = ?1 ORDER BY created_at, step";
            db.rows(sql, [task], Checkpoint::read)
        })
    }

    /// Lists the checkpoints of a claimed task, oldest first. [`Error::Conflict`] if the caller no longer owns it: the
    /// next owner may have completed it, which deletes the checkpoints.
    pub fn list_for_claim(self, task: i64, token: &Token) -> Result<Vec<Checkpoint>> {
        self.0.read(|db| {
            let sql = "SELECT step, data, task_checkpoints.updated_at FROM tasks
                LEFT JOIN task_checkpoints ON task_id = tasks.id
                WHERE tasks.id = ?1 AND status = 'running' AND worker_id = ?2 ORDER BY task_checkpoints.created_at, step";
            let found = db.rows(sql, params![task, token.as_str()], |row| {
                row.get::<_, Option<String>>("step")?.map(|_| Checkpoint::read(row)).transpose()
            })?;
            match found.is_empty() {
                true => Err(not_owned(task)),
                false => Ok(found.into_iter().flatten().collect()),
            }
        })
    }

    /// Deletes checkpoints last written before a time whose task is finished or deleted. Returns how many.
    pub fn delete_orphans(self, before: UtcTime) -> Result<usize> {
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = format!("DELETE FROM task_checkpoints WHERE updated_at <= ?1 AND {IS_ORPHANED}");
            db.execute(&sql, [before.to_string()])
        })
    }
}

fn not_owned(task: i64) -> Error {
    Error::Conflict(format!("this worker no longer owns task {task}"))
}

const IS_ORPHANED: &str = "NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = task_id
    AND status IN ('pending', 'scheduled', 'running'))";

/// Counts checkpoints of finished or deleted tasks.
pub(crate) fn count_orphans(db: &Db<'_>) -> Result<u64> {
    db.count(&format!("SELECT count(*) FROM task_checkpoints WHERE {IS_ORPHANED}"), [])
}

pub(crate) fn delete(db: &Db<'_>, task: i64) -> Result<()> {
    db.execute("DELETE FROM task_checkpoints WHERE task_id = ?1", [task]).map(drop)
}

/// Restores the checkpoints of a dead letter, a JSON object of steps. Copies the texts, because SQLite would change
/// numbers.
pub(crate) fn restore(db: &Db<'_>, task: i64, saved: &str) -> Result<()> {
    let steps: BTreeMap<String, Box<RawValue>> = serde_json::from_str(saved).map_err(|error| {
        Error::Invalid(format!("the dead letter's checkpoint is not a JSON object of steps: {error}"))
    })?;
    let sql = "INSERT INTO task_checkpoints (task_id, step, data, created_at, updated_at)
        VALUES (?1, ?2, ?3, ?4, ?4)";
    steps.iter().try_for_each(|(step, data)| db.execute(sql, params![task, step, data.get(), db.now()]).map(drop))
}
