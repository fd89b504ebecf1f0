//! Dead letters: tasks that failed for good, with everything needed to diagnose and retry them; and messages of
//! external queues, with everything needed to publish them again.
//!
//! Owns the table `dead_letter_queue`. A dead letter is inserted in the transaction that ends its task, and deleted in
//! the one that enqueues the task again, so at any time exactly one of the two exists. The row of a message has a queue
//! and no payload; the row of a task has both; rows of other programs have neither.

mod bulk;
mod reason;

use serde::Serialize;

use crate::checkpoints;
use crate::error::{Error, Result};
use crate::json;
use crate::lease::sortable_time;
use crate::options::options;
use crate::rows::table_row;
use crate::sqlite::{Db, WriteKind, params};
use crate::tasks::{self, DEFAULT_QUEUE, Enqueued, NewTask, TaskFailure};
use crate::time::UtcTime;
use crate::{Page, Store};

pub use bulk::{BulkOutcome, DeadLetterSelection, NotDone};
pub(crate) use reason::add_function;
pub use reason::reason_group;

/// Maximum length of a message's checkpoint in bytes: the largest message of a broker in base64, with its metadata. A
/// message that could not be stored would be redelivered forever.
const MAX_CHECKPOINT_BYTES: usize = 256 << 20;

/// Condition for dead letters of messages.
const IS_MESSAGE: &str = "queue IS NOT NULL AND payload IS NULL";

/// A dead letter of a message, which came from a queue outside this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// Id of the message; empty if it has none.
    pub message_id: String,
    /// Kind of work, such as `amqp:orders`; the filter of `dead list --kind`.
    pub kind: String,
    /// Queue that the message came from.
    pub queue: String,
    /// Why it failed, for people.
    pub reason: String,
    /// Total number of attempts.
    pub attempts: u32,
    /// Time of the first failure.
    pub first_failure: UtcTime,
    /// Time of the last failure.
    pub last_failure: UtcTime,
    /// Further details of the failure.
    pub details: Option<String>,
    /// JSON with the message's payload and headers, for publishing it again. At most 256 MiB.
    pub checkpoint: Option<String>,
}

impl NewDeadLetter {
    fn check(&self) -> Result<()> {
        if self.kind.is_empty() || self.queue.is_empty() {
            return Err(Error::Invalid(
                "a dead letter needs the kind of its message and the queue it came from; neither may be empty"
                    .to_owned(),
            ));
        }
        let checkpoint = self.checkpoint.as_deref();
        checkpoint.map_or(Ok(()), |text| json::check_up_to("the dead letter's checkpoint", text, MAX_CHECKPOINT_BYTES))
    }
}

table_row! {
    /// A row of `dead_letter_queue`. Those of messages and of other programs have no payload.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct DeadLetter {
        pub id: i64,
        pub task_id: String,
        pub task_type: String,
        pub document_id: String,
        pub failure_reason: String,
        pub attempt_count: u32,
        pub first_failure: UtcTime,
        pub last_failure: UtcTime,
        pub error_details: Option<String>,
        pub checkpoint: Option<String> as Value,
        pub created_at: UtcTime,
        pub queue: Option<String>,
        pub payload: Option<String> as Value,
        pub priority: Option<i32>,
        pub max_attempts: Option<u32>,
        pub unique_key: Option<String>,
    }
}

impl DeadLetter {
    /// Returns the original task, if the row contains it.
    pub fn task(&self) -> Option<NewTask> {
        let mut task = NewTask::new(self.task_type.clone(), self.payload.clone()?);
        task.queue = self.queue.clone().unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
        task.priority = self.priority.unwrap_or(0);
        task.max_attempts = self.max_attempts;
        task.unique_key.clone_from(&self.unique_key);
        task.document_id = Some(self.document_id.clone()).filter(|document| !document.is_empty());
        Some(task)
    }

    /// Returns whether it belongs to a message, not to a task.
    pub fn is_message(&self) -> bool {
        self.queue.is_some() && self.payload.is_none()
    }

    /// Fails for a dead letter of a message, which cannot be retried as a task. The error names the command to use.
    pub fn require_task(&self) -> Result<()> {
        match &self.queue {
            Some(queue) if self.is_message() => Err(Error::Conflict(format!(
                "dead letter {0} is the message {1:?} from the queue {queue:?}, not a task: `gristmill dead retry {0}` \
                 publishes it there again",
                self.id, self.task_id
            ))),
            _ => Ok(()),
        }
    }
}

options! {
    /// Filter for listing dead letters.
    #[derive(Clone, Debug)]
    pub struct DeadLetterFilter {
        /// Only those of this kind.
        pub kind: Option<String> = None,
        /// Only those of this document.
        pub document_id: Option<String> = None,
        /// Only those whose reason contains this text.
        pub reason: Option<String> = None,
        /// Only those of this task; excludes messages with the same id.
        pub task_id: Option<String> = None,
        /// Only those whose reason has this [`reason_group`].
        pub reason_group: Option<String> = None,
    }
}

impl DeadLetterFilter {
    /// Returns the parameters of [`matches`].
    fn params(&self) -> [&Option<String>; 5] {
        [&self.kind, &self.document_id, &self.reason, &self.task_id, &self.reason_group]
    }
}

/// Returns the condition for dead letters that match a filter, whose values are ?1 to ?5.
fn matches() -> String {
    format!(
        "(?1 IS NULL OR task_type = ?1) AND (?2 IS NULL OR document_id = ?2)
            AND (?3 IS NULL OR instr(failure_reason, ?3) > 0) AND (?4 IS NULL OR (task_id = ?4 AND NOT ({IS_MESSAGE})))
            AND (?5 IS NULL OR reason_group(failure_reason) = ?5)"
    )
}

table_row! {
    /// Dead letters of one kind whose reasons differ only in numbers, ids and quoted values.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct DeadLetterGroup {
        /// Kind of the tasks or messages.
        pub kind: String,
        /// Their reason, with placeholders; the value for [`DeadLetterFilter::reason_group`].
        pub reason_group: String,
        /// Number of dead letters.
        pub count: u64,
        /// Earliest first failure.
        pub first_failure: UtcTime,
        /// Latest last failure.
        pub last_failure: UtcTime,
        /// Id of the newest dead letter.
        pub example_id: i64,
        /// Reason of the newest dead letter.
        pub example_reason: String,
    }
}

/// Dead letters of a store.
#[derive(Clone, Copy, Debug)]
pub struct DeadLetters<'a>(pub(crate) &'a Store);

impl DeadLetters<'_> {
    /// Lists dead letters, newest first. `after`: the last id of the previous page.
    pub fn list(self, filter: &DeadLetterFilter, after: Option<i64>, limit: usize) -> Result<Page<DeadLetter>> {
        let from = after.unwrap_or(i64::MAX);
        let rows = self.0.read(|db| {
            let sql =
                format!("SELECT * FROM dead_letter_queue WHERE {} AND id < ?6 ORDER BY id DESC LIMIT ?7", matches());
            let [kind, document, reason, task, group] = filter.params();
            let params = params![kind, document, reason, task, group, from, crate::limit_plus_one(limit)];
            db.rows(&sql, params, DeadLetter::read)
        })?;
        Ok(Page::from_rows(rows, limit, |dead_letter| dead_letter.id.to_string()))
    }

    /// Returns one dead letter.
    pub fn get(self, id: i64) -> Result<DeadLetter> {
        self.0.read(|db| row(db, id))
    }

    /// Inserts a dead letter of a message and returns its id; it is on disk when this returns. A message with a dead
    /// letter (same id, queue and kind) keeps that one, which is updated: it has the earliest first failure, the latest
    /// last failure and the highest number of attempts.
    pub fn insert(self, dead_letter: NewDeadLetter) -> Result<i64> {
        dead_letter.check()?;
        self.0.write(WriteKind::TaskCompound, move |db| match find_existing(db, &dead_letter)? {
            Some(id) => update(db, id, &dead_letter).map(|()| id),
            None => insert_message(db, &dead_letter),
        })
    }

    /// Enqueues `task` with the saved checkpoints and deletes the dead letter.
    pub fn retry(self, id: i64, task: NewTask) -> Result<Enqueued> {
        task.check()?;
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            let dead_letter = row(db, id)?;
            dead_letter.require_task()?;
            retry(db, &dead_letter, &task)
        })
    }

    /// Deletes a dead letter.
    pub fn discard(self, id: i64) -> Result<()> {
        self.0.write(WriteKind::TaskCompound, move |db| discard(db, id))
    }

    /// Deletes the dead letter of a message that was published again, and returns whether it did. It is kept if the
    /// message has failed again since it was read.
    pub fn remove_published(self, dead_letter: &DeadLetter) -> Result<bool> {
        let (id, last, attempts) = (dead_letter.id, dead_letter.last_failure.to_string(), dead_letter.attempt_count);
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = format!(
                "DELETE FROM dead_letter_queue WHERE id = ?1 AND last_failure = ?2 AND attempt_count = ?3
                    AND {IS_MESSAGE}"
            );
            Ok(db.execute(&sql, params![id, last, attempts])? > 0)
        })
    }

    /// Returns up to `limit` dead letters of these kinds whose handler has not cleaned up yet.
    pub fn list_cleanup_pending(self, kinds: &[String], limit: usize) -> Result<Vec<DeadLetter>> {
        let kinds = serde_json::to_string(kinds).map_err(|error| Error::Internal(error.to_string()))?;
        self.0.read(|db| {
            let sql = "SELECT * FROM dead_letter_queue WHERE cleaned_at IS NULL AND payload IS NOT NULL
                AND task_type IN (SELECT value FROM json_each(?1)) ORDER BY id LIMIT ?2";
            db.rows(sql, params![kinds, crate::sql_limit(limit)], DeadLetter::read)
        })
    }

    /// Returns a dead letter, if it exists and its handler has not cleaned up yet.
    pub fn get_cleanup_pending(self, id: i64) -> Result<Option<DeadLetter>> {
        self.0.read(|db| {
            let sql = "SELECT * FROM dead_letter_queue WHERE id = ?1 AND cleaned_at IS NULL";
            db.first(sql, [id], DeadLetter::read)
        })
    }

    /// Records that the handler has cleaned up after the task.
    pub fn mark_cleaned_up(self, id: i64) -> Result<()> {
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = "UPDATE dead_letter_queue SET cleaned_at = ?2 WHERE id = ?1";
            db.execute(sql, params![id, db.now()]).map(drop)
        })
    }

    /// Returns the number of dead letters that match the filter.
    pub fn count_matching(self, filter: &DeadLetterFilter) -> Result<u64> {
        let sql = format!("SELECT count(*) FROM dead_letter_queue WHERE {}", matches());
        self.0.read(|db| db.count(&sql, filter.params()))
    }

    /// Groups the dead letters that match the filter by kind and by [`reason_group`], the largest groups first. Reads
    /// all of them, without their payloads.
    pub fn groups(self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        // A bare column has the value of the row with the highest id.
        let sql = format!(
            "SELECT task_type AS kind, reason_group(failure_reason) AS reason_group, count(*) AS count,
                min({first}) AS first_failure, max({last}) AS last_failure, max(id) AS example_id,
                failure_reason AS example_reason
             FROM dead_letter_queue WHERE {} GROUP BY 1, 2 ORDER BY count(*) DESC, max(id) DESC LIMIT ?6",
            matches(),
            first = sortable_time("first_failure"),
            last = sortable_time("last_failure"),
        );
        let [kind, document, reason, task, group] = filter.params();
        let params = params![kind, document, reason, task, group, crate::sql_limit(limit)];
        self.0.read(|db| db.rows(&sql, params, DeadLetterGroup::read))
    }

    /// Returns how many of these dead letters are of a kind.
    pub fn count_of_kind(self, ids: &[i64], kind: &str) -> Result<u64> {
        let ids = serde_json::to_string(ids).map_err(|error| Error::Internal(error.to_string()))?;
        self.0.read(|db| {
            let sql = "SELECT count(*) FROM dead_letter_queue WHERE task_type = ?2
                AND id IN (SELECT value FROM json_each(?1))";
            db.count(sql, (ids, kind))
        })
    }

    /// Returns the number of dead letters.
    pub fn count(self) -> Result<u64> {
        self.0.read(|db| db.count("SELECT count(*) FROM dead_letter_queue", []))
    }
}

fn row(db: &Db<'_>, id: i64) -> Result<DeadLetter> {
    let found = db.first("SELECT * FROM dead_letter_queue WHERE id = ?1", [id], DeadLetter::read)?;
    found.ok_or_else(|| Error::not_found("dead letter", id))
}

/// Enqueues the task of a dead letter and deletes the dead letter.
fn retry(db: &Db<'_>, dead_letter: &DeadLetter, task: &NewTask) -> Result<Enqueued> {
    let id = dead_letter.id;
    let enqueued = tasks::insert(db, task)?;
    if !enqueued.created {
        return Err(Error::Conflict(format!(
            "task {} with the same key {:?} is not finished; dead letter {id} is kept",
            enqueued.id,
            task.unique_key.as_deref().unwrap_or_default()
        )));
    }
    if let Some(saved) = &dead_letter.checkpoint {
        checkpoints::restore(db, enqueued.id, saved)?;
    }
    remove(db, id)?;
    Ok(enqueued)
}

/// Deletes a dead letter that must exist.
fn discard(db: &Db<'_>, id: i64) -> Result<()> {
    match db.execute("DELETE FROM dead_letter_queue WHERE id = ?1", [id])? {
        0 => Err(Error::not_found("dead letter", id)),
        _ => Ok(()),
    }
}

fn remove(db: &Db<'_>, id: i64) -> Result<()> {
    db.execute("DELETE FROM dead_letter_queue WHERE id = ?1", [id]).map(drop)
}

/// Returns the existing dead letter of a message. Messages without an id cannot be matched.
fn find_existing(db: &Db<'_>, new: &NewDeadLetter) -> Result<Option<i64>> {
    let sql = format!(
        "SELECT id FROM dead_letter_queue WHERE task_id = ?1 AND ?1 <> '' AND task_type = ?2 AND queue = ?3
            AND {IS_MESSAGE} ORDER BY id LIMIT 1"
    );
    db.first(&sql, params![new.message_id, new.kind, new.queue], |row| row.get(0))
}

fn insert_message(db: &Db<'_>, new: &NewDeadLetter) -> Result<i64> {
    let sql = "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count,
            first_failure, last_failure, error_details, checkpoint, created_at, queue)
        VALUES (?1, ?2, '', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let (first, last) = (new.first_failure.to_string(), new.last_failure.to_string());
    let params = params![
        new.message_id,
        new.kind,
        new.reason,
        new.attempts,
        first,
        last,
        new.details,
        new.checkpoint,
        db.now(),
        new.queue
    ];
    db.execute(sql, params)?;
    Ok(db.conn.last_insert_rowid())
}

fn update(db: &Db<'_>, id: i64, new: &NewDeadLetter) -> Result<()> {
    let sql = format!(
        "UPDATE dead_letter_queue SET failure_reason = ?2, attempt_count = max(attempt_count, ?3),
            first_failure = min(first_failure, ?4), last_failure = max(last_failure, ?5), error_details = ?6,
            checkpoint = ?7
        WHERE id = ?1 AND {IS_MESSAGE}"
    );
    let (first, last) = (new.first_failure.to_string(), new.last_failure.to_string());
    let params = params![id, new.reason, new.attempts, first, last, new.details, new.checkpoint];
    db.execute(&sql, params).map(drop)
}

/// Inserts the dead letter of a task that failed for good, and moves the task's checkpoints into it.
pub(crate) fn insert_for_task(db: &Db<'_>, task: i64, failure: &TaskFailure) -> Result<i64> {
    let sql = "INSERT INTO dead_letter_queue (task_id, task_type, document_id, failure_reason, attempt_count,
            first_failure, last_failure, error_details, checkpoint, created_at, queue, payload, priority,
            max_attempts, unique_key)
        SELECT CAST(id AS TEXT), kind, coalesce(document_id, ''), ?2, attempts + crashes, coalesce(first_failed_at, ?3),
            coalesce(last_failed_at, ?3), ?4,
            nullif((SELECT json_group_object(step, json(data)) FROM task_checkpoints WHERE task_id = tasks.id), '{}'),
            ?3, queue, CAST(payload AS TEXT), max(-2147483648, min(2147483647, CAST(priority AS INTEGER))),
            max_attempts, unique_key
        FROM tasks WHERE id = ?1";
    db.execute(sql, params![task, failure.reason, db.now(), failure.details])?;
    let dead_letter = db.conn.last_insert_rowid();
    checkpoints::delete(db, task)?;
    Ok(dead_letter)
}
