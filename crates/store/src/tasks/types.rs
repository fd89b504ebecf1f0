//! Tasks in plain structs: what goes in, what stands in the table, what a worker is given and what it answers.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Row;
use serde::Serialize;

use super::DEFAULT_QUEUE;
use crate::db::{invalid_value, required_time, time};
use crate::error::{Error, Result};
use crate::json;
use crate::lease::Token;
use crate::time::UtcTime;

/// A task that nobody has seen yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// Which handler is to run it.
    pub kind: String,
    /// Which workers may take it.
    pub queue: String,
    /// What it is about: JSON, handed to the handler as it is.
    pub payload: String,
    /// Higher ones are claimed first, equal ones in the order they came.
    pub priority: i32,
    /// Not before this time.
    pub run_after: Option<UtcTime>,
    /// How many attempts may fail before it is given up; without it, as its handler says.
    pub max_attempts: Option<u32>,
    /// While a task of this kind with this key is unfinished, no second one is made.
    pub unique_key: Option<String>,
    /// The document, or other thing, that the task is about: for people, and for dead letters.
    pub document_id: Option<String>,
}

impl NewTask {
    /// A task of `kind` with a JSON payload.
    pub fn new(kind: impl Into<String>, payload: impl Into<String>) -> Self {
        NewTask {
            kind: kind.into(),
            queue: DEFAULT_QUEUE.to_owned(),
            payload: payload.into(),
            priority: 0,
            run_after: None,
            max_attempts: None,
            unique_key: None,
            document_id: None,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("kind", &self.kind)?;
        check_name("queue", &self.queue)?;
        if self.max_attempts == Some(0) {
            return Err(Error::Invalid("max_attempts is 0; 1 or more is legal".to_owned()));
        }
        json::check("the payload", &self.payload)
    }
}

fn check_name(what: &str, value: &str) -> Result<()> {
    let is_valid = !value.is_empty() && value.len() <= 200 && !value.chars().any(char::is_control);
    if is_valid {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the {what} {value:?} is not legal: 1 to 200 bytes without control characters are"
    )))
}

/// What enqueueing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The task.
    pub id: i64,
    /// False when an unfinished task with the same key was there already; `id` is that one.
    pub created: bool,
}

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// Due, and nobody has it.
    Pending,
    /// Waits for its time: it was asked for later, or an attempt failed.
    Scheduled,
    /// A worker has it.
    Running,
    /// Done.
    Completed,
    /// Given up; there is a dead letter.
    Failed,
    /// Cancelled; its run has ended, if there was one.
    Cancelled,
}

impl TaskStatus {
    /// All of them.
    pub const ALL: [TaskStatus; 6] = [
        TaskStatus::Pending,
        TaskStatus::Scheduled,
        TaskStatus::Running,
        TaskStatus::Completed,
        TaskStatus::Failed,
        TaskStatus::Cancelled,
    ];

    /// As the database writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskStatus::Pending => "pending",
            TaskStatus::Scheduled => "scheduled",
            TaskStatus::Running => "running",
            TaskStatus::Completed => "completed",
            TaskStatus::Failed => "failed",
            TaskStatus::Cancelled => "cancelled",
        }
    }

    /// Reads what the database, or a person, wrote.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether nothing can happen to it any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Cancelled)
    }
}

/// A task as it stands in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "each field is the column of its name")]
pub struct TaskRow {
    pub id: i64,
    pub queue: String,
    pub kind: String,
    pub status: TaskStatus,
    pub priority: i32,
    pub attempts: u32,
    pub max_attempts: Option<u32>,
    pub starts: u32,
    pub crashes: u32,
    pub abandoned: u32,
    pub run_after: Option<UtcTime>,
    pub worker_id: Option<String>,
    pub worker_heartbeat_at: Option<UtcTime>,
    pub lease_expires_at: Option<UtcTime>,
    pub created_at: UtcTime,
    pub started_at: Option<UtcTime>,
    pub finished_at: Option<UtcTime>,
    pub first_failed_at: Option<UtcTime>,
    pub last_failed_at: Option<UtcTime>,
    pub cancel_requested_at: Option<UtcTime>,
    pub failed_step: Option<String>,
    pub error_message: Option<String>,
    pub unique_key: Option<String>,
    pub document_id: Option<String>,
    pub result: Option<String>,
    pub payload: String,
}

impl TaskRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let status: String = row.get("status")?;
        Ok(TaskRow {
            id: row.get("id")?,
            queue: row.get("queue")?,
            kind: row.get("kind")?,
            status: TaskStatus::parse(&status)
                .ok_or_else(|| invalid_value(row, "status", &status, "a task's status"))?,
            priority: row.get("priority")?,
            attempts: row.get("attempts")?,
            max_attempts: row.get("max_attempts")?,
            starts: row.get("starts")?,
            crashes: row.get("crashes")?,
            abandoned: row.get("abandoned")?,
            run_after: time(row, "run_after")?,
            worker_id: row.get("worker_id")?,
            worker_heartbeat_at: time(row, "worker_heartbeat_at")?,
            lease_expires_at: time(row, "lease_expires_at")?,
            created_at: required_time(row, "created_at")?,
            started_at: time(row, "started_at")?,
            finished_at: time(row, "finished_at")?,
            first_failed_at: time(row, "first_failed_at")?,
            last_failed_at: time(row, "last_failed_at")?,
            cancel_requested_at: time(row, "cancel_requested_at")?,
            failed_step: row.get("failed_step")?,
            error_message: row.get("error_message")?,
            unique_key: row.get("unique_key")?,
            document_id: row.get("document_id")?,
            result: row.get("result")?,
            payload: row.get("payload")?,
        })
    }
}

/// Which tasks a worker wants. Several wants under one token, next to each other, share their limit.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Of this queue,
    pub queue: String,
    /// of this kind,
    pub kind: String,
    /// at most so many,
    pub limit: usize,
    /// and no more than bring those that run, in whichever process, to this number,
    pub max_running: Option<usize>,
    /// of these, the most whose worker has died and which had been started at most once, of this kind in one visit,
    pub max_crashed_once: usize,
    /// and the most that were started more often by workers that died, of all kinds in one visit,
    pub max_crashed_often: usize,
    /// leased for so long,
    pub lease: Duration,
    /// under this token.
    pub token: Token,
}

/// A task that a worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTask {
    /// The task.
    pub id: i64,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its payload, JSON.
    pub payload: String,
    /// Higher ones first.
    pub priority: i32,
    /// Attempts that failed before this one.
    pub attempts: u32,
    /// Its own limit of failed attempts, if it has one.
    pub max_attempts: Option<u32>,
    /// How often it was started before, as far as starts were recorded.
    pub starts: u32,
    /// How often it was started by a worker that died.
    pub crashes: u32,
    /// How often a worker died that had claimed it and recorded no start.
    pub abandoned: u32,
    /// The step at which the last attempt failed.
    pub failed_step: Option<String>,
    /// What it is about.
    pub document_id: Option<String>,
    /// The token of this claim.
    pub token: Token,
}

impl ClaimedTask {
    /// Whether it was, or may have been, started before.
    pub fn was_started(&self) -> bool {
        self.starts > 0 || self.attempts > 0 || self.crashes > 0 || self.abandoned > 0
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFailure {
    /// In a line.
    pub reason: String,
    /// At which step of the task.
    pub step: Option<String>,
    /// All that is known.
    pub details: Option<String>,
    /// The end of what the attempt wrote, or what its error says beyond the reason.
    pub output: Option<String>,
}

/// What a worker says of a task it had claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Done, with something to keep, as JSON.
    Completed(Option<String>),
    /// Failed; to be tried again at a time.
    Retry(UtcTime, TaskFailure),
    /// Failed for good: becomes a dead letter.
    DeadLettered(TaskFailure),
    /// Not tried; as if it had not been claimed.
    Released,
    /// Not tried; not before this time.
    Postponed(UtcTime),
}

/// A verdict on a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskUpdate {
    /// The task.
    pub id: i64,
    /// The token of the claim.
    pub token: Token,
    /// What became of it.
    pub disposition: Disposition,
    /// Whether it may have checkpoints to forget.
    pub checkpointed: bool,
}

impl TaskUpdate {
    pub(super) fn check(&self) -> Result<()> {
        match &self.disposition {
            Disposition::Completed(Some(result)) => {
                json::check(&format!("the result of task {}", self.id), result)
            }
            _ => Ok(()),
        }
    }
}

/// What a worker brings and wants when it visits the table.
#[derive(Clone, Debug, Default)]
pub struct WorkerBatch {
    /// Claimed tasks whose handler was started.
    pub started: Vec<(i64, Token)>,
    /// Verdicts.
    pub updates: Arc<[TaskUpdate]>,
    /// What to claim.
    pub claims: Vec<ClaimRequest>,
    /// What to claim besides, because it is more urgent than tasks that the worker holds and will give back.
    pub replacements: Vec<ReplacementClaim>,
}

/// Tasks to claim for others that are given back. Several exchanges under one token, next to each other, share their
/// limit.
#[derive(Clone, Debug)]
pub struct ReplacementClaim {
    /// Which tasks.
    pub claim: ClaimRequest,
    /// Only of a higher priority than this; any without it.
    pub above_priority: Option<i32>,
}

/// What became of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// It is written.
    Done,
    /// It is written, and this dead letter with it.
    DeadLettered(i64),
    /// The task was to be cancelled, and is now.
    Cancelled,
    /// Refused: the task is not the caller's any more.
    Lost,
}

/// What one visit to the table brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimBatch {
    /// For each start whether it was recorded: not if the task is not the caller's any more.
    pub started: Vec<bool>,
    /// For each settlement what became of it, in order.
    pub results: Vec<UpdateResult>,
    /// What was claimed, most urgent first for each thing wanted.
    pub claimed: Vec<ClaimedTask>,
    /// What was claimed besides, in exchange for tasks that the worker will give back.
    pub replacements: Vec<ClaimedTask>,
    /// When the next scheduled task is due, if something wanted was not found.
    pub next_due: Option<UtcTime>,
}

/// What recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovered {
    /// So many tasks are free for others again.
    pub freed: usize,
    /// So many were to be cancelled, and are now.
    pub cancelled: usize,
    /// These dead letters are poison pills: their workers had died too often.
    pub poisoned: Vec<i64>,
}

/// Which tasks to list.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Only with this status.
    pub status: Option<TaskStatus>,
    /// Only of this kind.
    pub kind: Option<String>,
    /// Only of this queue.
    pub queue: Option<String>,
}
