//! Jobs: the large pieces of work that a control plane orders, one scan or hash at a time.
//!
//! Owns the table `jobs` and the rules by which a row moves:
//!
//! ```text
//!   pending ──claim──▶ running ──▶ completed | failed | cancelled
//!      ▲                  │
//!      │ reset            ▼ lease ran out, or its worker gave it back
//!      └────────────── retryable ──▶ cancelled
//! ```
//!
//! Only scan and hash jobs are claimed and leased; at most one of them is pending or running, which an index
//! holds. Other kinds are created, listed and cancelled here and executed elsewhere. What a job does, and whether
//! it may be ordered at all, is not known here.

use std::time::Duration;

use rusqlite::{Row, params};
use serde::Serialize;

use crate::db::{Db, required_time, time};
use crate::error::{Error, Result};
use crate::lease::{DueRows, HeartbeatResult, HeldLeases, LeaseRules, Token, sortable_time};
use crate::string_enum::string_enum;
use crate::tasks::MAX_PAYLOAD;
use crate::time::UtcTime;
use crate::writer::WriteKind;
use crate::{Page, Store};

/// The most jobs a page can have.
pub const MAX_PAGE: usize = 200;

/// What a run that failed is marked with.
pub const WORKER_FAILURE: &str = "WORKER_FAILURE";

string_enum! {
    "a job's kind",
    /// What a job is for.
    pub enum JobKind {
        /// Walk the libraries and note what is there.
        Scan = "scan",
        /// Hash what needs it.
        Hash = "hash",
        /// Delete files. Not claimed here.
        Delete = "delete",
        /// Make thumbnails. Not claimed here.
        Thumbnail = "thumbnail",
    }
}

string_enum! {
    "a job's status",
    /// Where a job is in its life.
    pub enum JobStatus {
        /// Nobody has it.
        Pending = "pending",
        /// A worker has it.
        Running = "running",
        /// Done.
        Completed = "completed",
        /// Its run failed.
        Failed = "failed",
        /// Called off.
        Cancelled = "cancelled",
        /// Interrupted; somebody may reset it.
        Retryable = "retryable",
    }
}

impl JobStatus {
    /// Whether nothing can happen to it any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled)
    }
}

/// A job as it stands in the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each field is the column of its name")]
pub struct JobRow {
    pub id: String,
    pub kind: JobKind,
    pub status: JobStatus,
    pub dry_run: bool,
    pub worker_id: Option<String>,
    pub worker_heartbeat_at: Option<UtcTime>,
    pub lease_expires_at: Option<UtcTime>,
    pub progress: f64,
    pub total_items: Option<i64>,
    pub processed_items: i64,
    pub payload: String,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub created_at: UtcTime,
    pub updated_at: UtcTime,
    pub started_at: Option<UtcTime>,
    pub finished_at: Option<UtcTime>,
}

impl JobRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(JobRow {
            id: row.get("id")?,
            kind: JobKind::read(row, "kind")?,
            status: JobStatus::read(row, "status")?,
            dry_run: row.get("dry_run")?,
            worker_id: row.get("worker_id")?,
            worker_heartbeat_at: time(row, "worker_heartbeat_at")?,
            lease_expires_at: time(row, "lease_expires_at")?,
            progress: row.get("progress")?,
            total_items: row.get("total_items")?,
            processed_items: row.get("processed_items")?,
            payload: row.get("payload")?,
            error_code: row.get("error_code")?,
            error_message: row.get("error_message")?,
            created_at: required_time(row, "created_at")?,
            updated_at: required_time(row, "updated_at")?,
            started_at: time(row, "started_at")?,
            finished_at: time(row, "finished_at")?,
        })
    }
}

/// Which jobs to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobFilter {
    /// Only with this status.
    pub status: Option<JobStatus>,
    /// Only of this kind.
    pub kind: Option<JobKind>,
}

static LEASE_RULES: LeaseRules = LeaseRules {
    table: "jobs",
    canonical_times: false,
    row_filter: " AND kind IN ('scan', 'hash')",
    on_claim: ", started_at = coalesce(started_at, ?1), updated_at = ?1",
    on_heartbeat: ", progress = ?5, processed_items = ?6, updated_at = ?1",
    on_expiry: "status = 'retryable', error_code = 'LEASE_EXPIRED',
        error_message = 'Lease expired and recovered', finished_at = ?1, updated_at = ?1",
    renews_expired: false,
};

/// What the index `ix_jobs_single_active_scan_hash` lets be true of one row only, in its own words so that it is
/// used.
const ACTIVE: &str = "lower(status) IN ('pending', 'running') AND lower(kind) IN ('scan', 'hash')";

/// The jobs of a store.
#[derive(Clone, Copy, Debug)]
pub struct Jobs<'a>(pub(crate) &'a Store);

impl Jobs<'_> {
    /// Orders a job. `payload` is a JSON object. A second scan or hash job beside an active one is a conflict; a
    /// worker that died does not count as active.
    pub fn create(self, kind: JobKind, payload: &str, dry_run: bool) -> Result<JobRow> {
        check_payload(payload)?;
        let (id, payload) = (uuid::Uuid::new_v4().to_string(), payload.to_owned());
        self.0.write_and_notify(WriteKind::Compound, move |db| {
            if is_leased(kind) {
                LEASE_RULES.recover(db)?;
                check_no_other_active(db, &id)?;
            }
            let sql =
                "INSERT INTO jobs (id, kind, status, dry_run, progress, processed_items, payload, created_at,
                    updated_at)
                VALUES (?1, ?2, 'pending', ?3, 0.0, 0, ?4, ?5, ?5)";
            db.execute(sql, params![id, kind.as_str(), dry_run, payload, db.now()])?;
            row(db, &id)
        })
    }

    /// Takes the oldest pending scan or hash job, if there is one. Those whose lease has run out become
    /// retryable first.
    pub fn claim(self, token: &Token, lease: Duration) -> Result<Option<JobRow>> {
        let token = token.clone();
        self.0.write(WriteKind::Compound, move |db| {
            LEASE_RULES.recover(db)?;
            let ids = format!(
                "SELECT id FROM jobs WHERE status = 'pending' AND kind IN ('scan', 'hash') ORDER BY {}, id",
                sortable_time("created_at")
            );
            let due = DueRows { ids: &ids, params: &[], limit: 1 };
            Ok(LEASE_RULES.claim(db, (&token, lease), &due, "*", JobRow::read)?.pop())
        })
    }

    /// Prolongs the lease of a job and notes how far it is: `progress` from 0 to 1.
    pub fn heartbeat(
        self,
        id: &str,
        token: &Token,
        lease: Duration,
        progress: f64,
        processed_items: u64,
    ) -> Result<HeartbeatResult> {
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::Invalid(format!("the progress {progress} is not legal: 0 to 1 is")));
        }
        let items = i64::try_from(processed_items)
            .map_err(|_| Error::Invalid(format!("{processed_items} processed items are too many")))?;
        let (id, token) = (id.to_owned(), token.clone());
        self.0.write(WriteKind::Compound, move |db| {
            let heartbeat_result = LEASE_RULES.heartbeat(db, &id, (&token, lease), &[&progress, &items])?;
            if heartbeat_result == HeartbeatResult::Lost {
                row(db, &id)?;
            }
            Ok(heartbeat_result)
        })
    }

    /// Says how a run ended: well, or with an error for people.
    pub fn finish(self, id: &str, token: &Token, outcome: Result<(), String>) -> Result<JobRow> {
        let (id, token) = (id.to_owned(), token.clone());
        self.0.write(WriteKind::Compound, move |db| {
            let done = match &outcome {
                Ok(()) => {
                    let sets =
                        "status = 'completed', progress = 1.0, error_code = NULL, error_message = NULL,
                        finished_at = ?1, updated_at = ?1";
                    LEASE_RULES.finish(db, &id, &token, sets, &[])?
                }
                Err(message) => end_with_error(db, &id, &token, JobStatus::Failed, WORKER_FAILURE, message)?,
            };
            require_owned(db, done, &id, &token)
        })
    }

    /// Gives a run up for now: somebody may reset the job later. `code` is for programs, `message` for people.
    pub fn mark_retryable(self, id: &str, token: &Token, code: &str, message: &str) -> Result<JobRow> {
        let (id, token) = (id.to_owned(), token.clone());
        let (code, message) = (code.to_owned(), message.to_owned());
        self.0.write(WriteKind::Compound, move |db| {
            let done = end_with_error(db, &id, &token, JobStatus::Retryable, &code, &message)?;
            require_owned(db, done, &id, &token)
        })
    }

    /// Gives a job back undone, so that another worker can have it at once.
    pub fn release(self, id: &str, token: &Token) -> Result<JobRow> {
        let (id, token) = (id.to_owned(), token.clone());
        self.0.write_and_notify(WriteKind::Compound, move |db| {
            // The protocol knows no way from running to pending but through retryable.
            if LEASE_RULES.release(db, &id, &token, "status = 'retryable', updated_at = ?1")? {
                to_pending(db, &id)?;
                return row(db, &id);
            }
            require_owned(db, false, &id, &token)
        })
    }

    /// Calls a job off, of any kind. A worker that runs it learns so at its next heartbeat.
    pub fn cancel(self, id: &str) -> Result<JobRow> {
        let id = id.to_owned();
        self.0.write(WriteKind::Compound, move |db| {
            let sql = "UPDATE jobs SET status = 'cancelled', finished_at = ?2, lease_expires_at = NULL, updated_at = ?2
                WHERE id = ?1 AND status IN ('pending', 'running', 'retryable')";
            let count = db.execute(sql, params![id, db.now()])?;
            require_changed(db, count, &id, "pending, running or retryable")
        })
    }

    /// Has a retryable job wait for a worker again. A conflict while another scan or hash job is active.
    pub fn reset(self, id: &str) -> Result<JobRow> {
        let id = id.to_owned();
        self.0.write_and_notify(WriteKind::Compound, move |db| {
            LEASE_RULES.recover(db)?;
            let job = row(db, &id)?;
            if job.status == JobStatus::Retryable && is_leased(job.kind) {
                check_no_other_active(db, &id)?;
            }
            let count = to_pending(db, &id)?;
            require_changed(db, count, &id, "retryable")
        })
    }

    /// Makes scan and hash jobs whose lease has run out retryable. Says how many.
    pub fn recover(self) -> Result<usize> {
        self.0.write_and_notify(WriteKind::Compound, |db| LEASE_RULES.recover(db))
    }

    /// Like [`recover`](Self::recover), by a worker that knows what it holds: a lease of its own that has run out is freed
    /// if it does not hold it.
    pub fn recover_by(self, held: HeldLeases) -> Result<usize> {
        self.0.write_and_notify(WriteKind::Compound, move |db| LEASE_RULES.recover_by(db, &held))
    }

    /// A job as it stands.
    pub fn get(self, id: &str) -> Result<JobRow> {
        self.0.read(|db| row(db, id))
    }

    /// Jobs, newest first. `after`: the last id of the page before. `limit`: 1 to [`MAX_PAGE`].
    pub fn list(self, filter: JobFilter, after: Option<&str>, limit: usize) -> Result<Page<JobRow>> {
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(Error::Invalid(format!("the limit {limit} is not legal: 1 to {MAX_PAGE} is")));
        }
        let created = sortable_time("created_at");
        let (status, kind) = (filter.status.map(JobStatus::as_str), filter.kind.map(JobKind::as_str));
        let jobs = self.0.read(|db| {
            let from = after.map(|cursor| cursor_time(db, cursor)).transpose()?;
            // The first half of the condition is what the index can seek by.
            let older = match from {
                None => String::new(),
                Some(_) => format!(" AND {created} <= ?5 AND ({created} < ?5 OR id < ?4)"),
            };
            let sql = format!(
                "SELECT * FROM jobs WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR kind = ?2){older}
                 ORDER BY {created} DESC, id DESC LIMIT ?3"
            );
            let limit = crate::limit_plus_one(limit);
            match from {
                None => db.rows(&sql, params![status, kind, limit], JobRow::read),
                Some(from) => db.rows(&sql, params![status, kind, limit, after, from], JobRow::read),
            }
        })?;
        Ok(Page::from_rows(jobs, limit, |job| job.id.clone()))
    }
}

fn check_payload(payload: &str) -> Result<()> {
    if payload.len() > MAX_PAYLOAD {
        let len = payload.len();
        return Err(Error::Invalid(format!("the payload has {len} bytes; at most {MAX_PAYLOAD} are legal")));
    }
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(payload) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Invalid(format!("the payload is not a JSON object: {error}"))),
    }
}

fn is_leased(kind: JobKind) -> bool {
    matches!(kind, JobKind::Scan | JobKind::Hash)
}

/// The index would refuse a second active one too, but could not say which is the first.
fn check_no_other_active(db: &Db<'_>, id: &str) -> Result<()> {
    let sql = format!("SELECT id, status FROM jobs WHERE {ACTIVE} AND id <> ?1");
    let other = db.first(&sql, [id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    match other {
        None => Ok(()),
        Some((other, status)) => {
            Err(Error::Conflict(format!("a scan/hash job is already active: {other} is {status}")))
        }
    }
}

/// Where a page begins: when the job that ended the one before was made.
fn cursor_time(db: &Db<'_>, cursor: &str) -> Result<String> {
    let sql = format!("SELECT {} FROM jobs WHERE id = ?1", sortable_time("created_at"));
    let found = db.first(&sql, [cursor], |row| row.get(0))?;
    found.ok_or_else(|| Error::Invalid(format!("the cursor {cursor:?} is not the id of a job")))
}

fn to_pending(db: &Db<'_>, id: &str) -> Result<usize> {
    let sql = "UPDATE jobs SET status = 'pending', worker_id = NULL, worker_heartbeat_at = NULL,
            lease_expires_at = NULL, error_code = NULL, error_message = NULL, finished_at = NULL, updated_at = ?2
        WHERE id = ?1 AND status = 'retryable'";
    db.execute(sql, params![id, db.now()])
}

/// The owner's bad end of a run.
fn end_with_error(
    db: &Db<'_>,
    id: &str,
    token: &Token,
    to: JobStatus,
    code: &str,
    message: &str,
) -> Result<bool> {
    let sets = "status = ?4, error_code = ?5, error_message = ?6, finished_at = ?1, updated_at = ?1";
    LEASE_RULES.finish(db, &id, token, sets, &[&to.as_str(), &code, &message])
}

pub(crate) fn lease_rules() -> &'static LeaseRules {
    &LEASE_RULES
}

fn row(db: &Db<'_>, id: &str) -> Result<JobRow> {
    let found = db.first("SELECT * FROM jobs WHERE id = ?1", [id], JobRow::read)?;
    found.ok_or_else(|| Error::not_found("job", id))
}

/// The job after its owner's write, or why that was refused.
fn require_owned(db: &Db<'_>, done: bool, id: &str, token: &Token) -> Result<JobRow> {
    let job = row(db, id)?;
    if done {
        return Ok(job);
    }
    let (status, token) = (job.status.as_str(), token.as_str());
    Err(Error::Conflict(format!("job {id} is {status} and not in the hands of {token:?}")))
}

/// The job after a guarded update, or why that found nothing.
fn require_changed(db: &Db<'_>, count: usize, id: &str, required: &str) -> Result<JobRow> {
    let job = row(db, id)?;
    if count == 1 {
        return Ok(job);
    }
    let status = job.status.as_str();
    Err(Error::Conflict(format!("job {id} is {status}; only a job that is {required} allows this")))
}
