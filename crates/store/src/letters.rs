//! Dead letters: tasks that were given up, with all it takes to understand them and to try again.
//!
//! Owns the table `dead_letter_queue`. A letter is made in the transaction that gives its task up, and goes in the
//! one that puts the task back: at no moment are there both, or neither.

use rusqlite::{Row, params};
use serde::Serialize;

use crate::checkpoints;
use crate::db::{Db, some_time};
use crate::error::{Error, Result};
use crate::tasks::{self, DEFAULT_QUEUE, Enqueued, Failure, NewTask};
use crate::time::Time;
use crate::writer::Shape;
use crate::{Page, Store};

/// A dead letter as it stands in the table. Letters that other programs wrote have no payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "each field is the column of its name")]
pub struct DeadLetter {
    pub id: i64,
    pub task_id: String,
    pub task_type: String,
    pub document_id: String,
    pub failure_reason: String,
    pub attempt_count: u32,
    pub first_failure: Time,
    pub last_failure: Time,
    pub error_details: Option<String>,
    pub checkpoint: Option<String>,
    pub created_at: Time,
    pub queue: Option<String>,
    pub payload: Option<String>,
    pub priority: Option<i32>,
    pub max_attempts: Option<u32>,
    pub unique_key: Option<String>,
}

impl DeadLetter {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(DeadLetter {
            id: row.get("id")?,
            task_id: row.get("task_id")?,
            task_type: row.get("task_type")?,
            document_id: row.get("document_id")?,
            failure_reason: row.get("failure_reason")?,
            attempt_count: row.get("attempt_count")?,
            first_failure: some_time(row, "first_failure")?,
            last_failure: some_time(row, "last_failure")?,
            error_details: row.get("error_details")?,
            checkpoint: row.get("checkpoint")?,
            created_at: some_time(row, "created_at")?,
            queue: row.get("queue")?,
            payload: row.get("payload")?,
            priority: row.get("priority")?,
            max_attempts: row.get("max_attempts")?,
            unique_key: row.get("unique_key")?,
        })
    }

    /// The task as it was, if the letter says.
    pub fn task(&self) -> Option<NewTask> {
        let mut task = NewTask::new(self.task_type.clone(), self.payload.clone()?);
        task.queue = self.queue.clone().unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
        task.priority = self.priority.unwrap_or(0);
        task.max_attempts = self.max_attempts;
        task.unique_key.clone_from(&self.unique_key);
        task.document_id = Some(self.document_id.clone()).filter(|document| !document.is_empty());
        Some(task)
    }
}

/// Which letters to list.
#[derive(Clone, Debug, Default)]
pub struct LetterFilter {
    /// Only of this kind of task.
    pub kind: Option<String>,
    /// Only about this document.
    pub document_id: Option<String>,
    /// Only with this in their reason.
    pub reason: Option<String>,
    /// Only of this task.
    pub task_id: Option<String>,
}

/// The dead letters of a store.
#[derive(Clone, Copy, Debug)]
pub struct Letters<'a>(pub(crate) &'a Store);

impl Letters<'_> {
    /// Letters, newest first. `after`: the last id of the page before.
    pub fn list(self, filter: &LetterFilter, after: Option<i64>, limit: usize) -> Result<Page<DeadLetter>> {
        let from = after.unwrap_or(i64::MAX);
        let letters = self.0.read(|db| {
            db.rows(
                "SELECT * FROM dead_letter_queue WHERE id < ?1 AND (?2 IS NULL OR task_type = ?2)
                    AND (?3 IS NULL OR document_id = ?3) AND (?4 IS NULL OR instr(failure_reason, ?4) > 0)
                    AND (?5 IS NULL OR task_id = ?5)
                 ORDER BY id DESC LIMIT ?6",
                params![
                    from,
                    filter.kind,
                    filter.document_id,
                    filter.reason,
                    filter.task_id,
                    crate::one_more(limit)
                ],
                DeadLetter::read,
            )
        })?;
        Ok(Page::cut(letters, limit, |letter| letter.id.to_string()))
    }

    /// A letter.
    pub fn get(self, id: i64) -> Result<DeadLetter> {
        self.0.read(|db| letter(db, id))
    }

    /// Puts `task` in with the letter's checkpoints, and throws the letter away.
    pub fn retry(self, id: i64, task: NewTask) -> Result<Enqueued> {
        task.check()?;
        self.0.write_and_ring(Shape::Compound, move |db| {
            let letter = letter(db, id)?;
            let enqueued = tasks::insert(db, &task)?;
            if !enqueued.created {
                return Err(Error::Conflict(format!(
                    "task {} with the same key {:?} is not finished; dead letter {id} stays",
                    enqueued.id,
                    task.unique_key.as_deref().unwrap_or_default()
                )));
            }
            if let Some(kept) = &letter.checkpoint {
                checkpoints::restore(db, enqueued.id, kept)?;
            }
            remove(db, id)?;
            Ok(enqueued)
        })
    }

    /// Throws a letter away.
    pub fn discard(self, id: i64) -> Result<()> {
        self.0.write(Shape::Compound, move |db| {
            letter(db, id)?;
            remove(db, id)
        })
    }

    /// Up to `limit` letters of these kinds whose workload has not cleaned up yet.
    pub fn uncleaned(self, kinds: &[String], limit: usize) -> Result<Vec<DeadLetter>> {
        let kinds = serde_json::to_string(kinds).map_err(|error| Error::Internal(error.to_string()))?;
        self.0.read(|db| {
            let sql = "SELECT * FROM dead_letter_queue WHERE cleaned_at IS NULL AND payload IS NOT NULL
                AND task_type IN (SELECT value FROM json_each(?1)) ORDER BY id LIMIT ?2";
            db.rows(sql, params![kinds, crate::as_limit(limit)], DeadLetter::read)
        })
    }

    /// A letter, if it is still there and its workload has not cleaned up yet.
    pub fn to_clean(self, id: i64) -> Result<Option<DeadLetter>> {
        self.0.read(|db| {
            let sql = "SELECT * FROM dead_letter_queue WHERE id = ?1 AND cleaned_at IS NULL";
            db.first(sql, [id], DeadLetter::read)
        })
    }

    /// Notes that the workload has cleaned up after a letter's task.
    pub fn cleaned(self, id: i64) -> Result<()> {
        self.0.write(Shape::Statement, move |db| {
            let sql = "UPDATE dead_letter_queue SET cleaned_at = ?2 WHERE id = ?1";
            db.execute(sql, params![id, db.now()]).map(drop)
        })
    }

    /// How many there are.
    pub fn count(self) -> Result<u64> {
        let count = self.0.read(|db| db.number("SELECT count(*) FROM dead_letter_queue", []))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

fn letter(db: &Db<'_>, id: i64) -> Result<DeadLetter> {
    let found = db.first("SELECT * FROM dead_letter_queue WHERE id = ?1", [id], DeadLetter::read)?;
    found.ok_or_else(|| Error::not_found("dead letter", id))
}

fn remove(db: &Db<'_>, id: i64) -> Result<()> {
    db.execute("DELETE FROM dead_letter_queue WHERE id = ?1", [id]).map(drop)
}

/// Writes the letter of a task that was just given up. Its checkpoints go into the letter.
pub(crate) fn bury(db: &Db<'_>, task: i64, failure: &Failure) -> Result<i64> {
    let sql = "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count,
            first_failure, last_failure, error_details, checkpoint, created_at, queue, payload, priority,
            max_attempts, unique_key)
        SELECT CAST(id AS TEXT), kind, coalesce(document_id, ''), ?2, attempts, coalesce(first_failed_at, ?3),
            coalesce(last_failed_at, ?3), ?4,
            nullif((SELECT json_group_object(step, json(data)) FROM task_checkpoints WHERE task_id = tasks.id), '{}'),
            ?3, queue, CAST(payload AS TEXT), max(-2147483648, min(2147483647, CAST(priority AS INTEGER))),
            max_attempts, unique_key
        FROM tasks WHERE id = ?1";
    db.execute(sql, params![task, failure.reason, db.now(), failure.details])?;
    let letter = db.conn.last_insert_rowid();
    checkpoints::forget(db, task)?;
    Ok(letter)
}
