//! Types of the task API: new tasks, rows, claims, updates and their results.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::DEFAULT_QUEUE;
use crate::error::{Error, Result};
use crate::json;
use crate::lease::Token;
use crate::options::options;
use crate::rows::{string_enum, table_row};
use crate::time::UtcTime;

/// A task to be inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// Kind of work, which selects the handler.
    pub kind: String,
    /// Queue, which selects the workers.
    pub queue: String,
    /// JSON passed to the handler unchanged.
    pub payload: String,
    /// Higher priorities are claimed first, equal ones in order of insertion.
    pub priority: i32,
    /// Earliest time at which it may start.
    pub run_after: Option<UtcTime>,
    /// Failed attempts after which the task becomes a dead letter; `None` for the handler's default.
    pub max_attempts: Option<u32>,
    /// While a task of this kind with this key is unfinished, no second one is inserted.
    pub unique_key: Option<String>,
    /// Id of the document or other object that the task is about, for people and for dead letters.
    pub document_id: Option<String>,
}

impl NewTask {
    /// Makes a task of `kind` with a JSON payload.
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
            return Err(Error::Invalid("max_attempts is 0; expected 1 or more".to_owned()));
        }
        json::check("the payload", &self.payload)
    }
}

fn check_name(what: &str, value: &str) -> Result<()> {
    let is_valid = !value.is_empty() && value.len() <= 200 && !value.chars().any(char::is_control);
    if is_valid {
        return Ok(());
    }
    Err(Error::Invalid(format!("invalid {what} {value:?}; expected 1 to 200 bytes without control characters")))
}

/// Result of inserting a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enqueued {
    /// Id of the task.
    pub id: i64,
    /// False if an unfinished task with the same key existed; `id` is that task.
    pub created: bool,
}

string_enum! {
    "a task's status",
    /// State of a task.
    pub enum TaskStatus {
        /// Due, and waits for a worker.
        Pending = "pending",
        /// Waits for `run_after`: it was delayed, postponed, or an attempt failed.
        Scheduled = "scheduled",
        /// A worker has claimed it.
        Running = "running",
        /// The run finished with success.
        Completed = "completed",
        /// Failed for good; a dead letter exists.
        Failed = "failed",
        /// Cancelled; its run, if any, has ended.
        Cancelled = "cancelled",
    }
}

impl TaskStatus {
    /// Returns whether the state is final.
    pub fn is_terminal(self) -> bool {
        matches!(self, TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Cancelled)
    }
}

table_row! {
    /// A row of `tasks`.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
        pub result: Option<String> as Value,
        pub payload: String as Value,
    }
}

/// A request to claim tasks. Consecutive requests with the same token share their limit.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Claims from this queue.
    pub queue: String,
    /// Claims tasks of this kind.
    pub kind: String,
    /// Maximum number of tasks.
    pub limit: usize,
    /// Maximum number of running tasks of this kind over all processes, including the claimed ones.
    pub max_running: Option<usize>,
    /// Of the limit: maximum number of tasks with one crash or only abandoned claims, for this kind and batch.
    pub max_crashed_once: usize,
    /// Of the limit: maximum number of tasks with two or more crashes, for all kinds of the batch.
    pub max_crashed_often: usize,
    /// Duration of the lease.
    pub lease: Duration,
    /// Token of the claim.
    pub token: Token,
}

/// A task that a worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTask {
    /// Id of the task.
    pub id: i64,
    /// Kind of the task.
    pub kind: Arc<str>,
    /// Queue of the task.
    pub queue: Arc<str>,
    /// Payload of the task as JSON.
    pub payload: String,
    /// Priority of the task; higher ones are claimed first.
    pub priority: i32,
    /// Number of failed attempts before this one.
    pub attempts: u32,
    /// The task's own limit of failed attempts, if it has one.
    pub max_attempts: Option<u32>,
    /// Number of recorded starts before this claim.
    pub starts: u32,
    /// Number of starts by workers that died.
    pub crashes: u32,
    /// Number of workers that died with a claim but without a recorded start.
    pub abandoned: u32,
    /// Step at which the last attempt failed.
    pub failed_step: Option<String>,
    /// Id of the document that the task is about.
    pub document_id: Option<String>,
    /// Token of this claim.
    pub token: Token,
}

impl ClaimedTask {
    /// Returns whether the task was, or may have been, started before.
    pub fn was_started(&self) -> bool {
        self.starts > 0 || self.attempts > 0 || self.crashes > 0 || self.abandoned > 0
    }
}

/// Reason why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFailure {
    /// Reason in one line.
    pub reason: String,
    /// Step of the task that failed.
    pub step: Option<String>,
    /// Full description of the failure.
    pub details: Option<String>,
    /// Last part of the attempt's output, or of its error beyond the reason.
    pub output: Option<String>,
}

/// Outcome that a worker reports for a claimed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Succeeded, with an optional JSON result.
    Completed(Option<String>),
    /// Failed; retried at the given time.
    Retry(UtcTime, TaskFailure),
    /// Failed for good; becomes a dead letter.
    DeadLettered(TaskFailure),
    /// Not started; pending again as if it had not been claimed.
    Released,
    /// Not started; scheduled for the given time.
    Postponed(UtcTime),
}

/// An update of a claimed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskUpdate {
    /// Id of the task.
    pub id: i64,
    /// Token of the claim.
    pub token: Token,
    /// Outcome of the run.
    pub disposition: Disposition,
    /// Whether the task may have checkpoints, which completion deletes.
    pub checkpointed: bool,
}

impl TaskUpdate {
    pub(super) fn check(&self) -> Result<()> {
        match &self.disposition {
            Disposition::Completed(Some(result)) => json::check(&format!("the result of task {}", self.id), result),
            _ => Ok(()),
        }
    }
}

/// Changes and claims of a worker in one transaction.
#[derive(Clone, Debug, Default)]
pub struct WorkerBatch {
    /// Claimed tasks whose handler was started.
    pub started: Vec<(i64, Token)>,
    /// Outcomes of claimed tasks.
    pub updates: Arc<[TaskUpdate]>,
    /// Requests for tasks to claim.
    pub claims: Vec<ClaimRequest>,
    /// Further tasks to claim, more urgent than claimed ones that the worker will release.
    pub replacements: Vec<ReplacementClaim>,
}

/// A claim of tasks that replace less urgent ones. Consecutive ones with the same token share their limit.
#[derive(Clone, Debug)]
pub struct ReplacementClaim {
    /// Request for tasks to claim.
    pub claim: ClaimRequest,
    /// Claims only tasks of a higher priority than this; `None` for any priority.
    pub above_priority: Option<i32>,
}

/// Result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// The update was applied.
    Done,
    /// The update was applied, and this dead letter was inserted.
    DeadLettered(i64),
    /// The cancellation had been requested; the task is cancelled.
    Cancelled,
    /// Refused: the caller no longer owns the task.
    Lost,
}

/// Result of a worker's transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimBatch {
    /// Whether each start was recorded; false if the caller no longer owns the task.
    pub started: Vec<bool>,
    /// Result of each update, in order.
    pub results: Vec<UpdateResult>,
    /// Claimed tasks, most urgent first for each request.
    pub claimed: Vec<ClaimedTask>,
    /// Tasks claimed as replacements for ones that the worker will release.
    pub replacements: Vec<ClaimedTask>,
    /// When the next scheduled task is due, if fewer tasks than requested were claimed.
    pub next_due: Option<UtcTime>,
}

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Recovered {
    /// Number of tasks that are pending again.
    pub freed: usize,
    /// Number of tasks whose requested cancellation was completed.
    pub cancelled: usize,
    /// Dead letters of poison pills, whose workers died too often.
    pub poisoned: Vec<i64>,
}

options! {
    /// Filter for listing tasks.
    #[derive(Clone, Debug)]
    pub struct TaskFilter {
        /// Only tasks with this status.
        pub status: Option<TaskStatus> = None,
        /// Only tasks of this kind.
        pub kind: Option<String> = None,
        /// Only tasks of this queue.
        pub queue: Option<String> = None,
        /// Only tasks whose payload or error message contains this text, in the same case.
        pub text: Option<String> = None,
    }
}
