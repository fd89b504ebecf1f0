//! Jobs: scans, hash runs and other work that a control plane orders.
//!
//! Owns the table `jobs` and its state machine:
//!
//! ```text
//!   pending ──claim──▶ running ──▶ completed | failed | cancelled
//!      ▲                  │
//!      │ reset            ▼ lease expired, or marked by its worker
//!      └────────────── retryable ──▶ cancelled
//! ```
//!
//! Only scan and hash jobs are claimed and leased; a unique index allows one of them to be pending or running. Other
//! kinds are created, listed and cancelled here and executed elsewhere. This module does not know what a job does, or
//! whether it may be ordered.

use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::lease::{self, HeartbeatResult, HeldLeases, LeaseRules, Token, leased_row, sortable_time};
use crate::options::options;
use crate::rows::{string_enum, table_row};
use crate::sqlite::{Db, WriteKind, params};
use crate::tasks::MAX_PAYLOAD;
use crate::time::UtcTime;
use crate::{Page, Store};

/// Maximum number of jobs on a page.
pub const MAX_PAGE: usize = 200;

/// Error code of failed runs.
pub const WORKER_FAILURE: &str = "WORKER_FAILURE";

string_enum! {
    "a job's kind",
    /// Kind of a job.
    pub enum JobKind {
        /// Walks the libraries and records their files.
        Scan = "scan",
        /// Hashes the files that need it.
        Hash = "hash",
        /// Deletes files. Not claimed here.
        Delete = "delete",
        /// Makes thumbnails. Not claimed here.
        Thumbnail = "thumbnail",
    }
}

string_enum! {
    "a job's status",
    /// State of a job.
    pub enum JobStatus {
        /// Waits for a worker.
        Pending = "pending",
        /// A worker has claimed it.
        Running = "running",
        /// The run finished with success.
        Completed = "completed",
        /// The run failed with an error.
        Failed = "failed",
        /// Cancelled before it finished.
        Cancelled = "cancelled",
        /// Interrupted; can be reset to pending.
        Retryable = "retryable",
    }
}

impl JobStatus {
    /// Returns whether the state is final.
    pub fn is_terminal(self) -> bool {
        matches!(self, JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled)
    }
}

table_row! {
    /// A row of `jobs`.
    #[derive(Clone, Debug, PartialEq, Serialize)]
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
        pub payload: String as Object,
        pub error_code: Option<String>,
        pub error_message: Option<String>,
        pub created_at: UtcTime,
        pub updated_at: UtcTime,
        pub started_at: Option<UtcTime>,
        pub finished_at: Option<UtcTime>,
    }
}

options! {
    /// Filter for listing jobs.
    #[derive(Clone, Copy, Debug)]
    pub struct JobFilter {
        /// Only jobs with this status.
        pub status: Option<JobStatus> = None,
        /// Only jobs of this kind.
        pub kind: Option<JobKind> = None,
    }
}

pub(crate) static LEASE_RULES: LeaseRules = LeaseRules {
    table: "jobs",
    noun: "job",
    canonical_times: false,
    row_filter: " AND kind IN ('scan', 'hash')",
    on_claim: ", started_at = coalesce(started_at, ?1), updated_at = ?1",
    on_heartbeat: ", progress = ?5, processed_items = ?6, updated_at = ?1",
    on_expiry: "status = 'retryable', error_code = 'LEASE_EXPIRED',
        error_message = 'Lease expired and recovered', finished_at = ?1, updated_at = ?1",
    renews_expired: false,
};

leased_row!(JobRow, LEASE_RULES);

/// Condition of the index `ix_jobs_single_active_scan_hash`, which allows one such row; worded so that SQLite uses it.
const ACTIVE: &str = "lower(status) IN ('pending', 'running') AND lower(kind) IN ('scan', 'hash')";

/// Jobs of a store.
#[derive(Clone, Copy, Debug)]
pub struct Jobs<'a>(pub(crate) &'a Store);

impl Jobs<'_> {
    /// Creates a job. `payload` is a JSON object. A second scan or hash job beside an active one is a conflict; one
    /// with an expired lease does not count as active.
    pub fn create(self, kind: JobKind, payload: &str, dry_run: bool) -> Result<JobRow> {
        check_payload(payload)?;
        let (id, payload) = (uuid::Uuid::new_v4().to_string(), payload.to_owned());
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            if is_leased(kind) {
                LEASE_RULES.recover(db)?;
                check_no_other_active(db, &id)?;
            }
            let sql = "INSERT INTO jobs (id, kind, status, dry_run, progress, processed_items, payload, created_at,
                    updated_at)
                VALUES (?1, ?2, 'pending', ?3, 0.0, 0, ?4, ?5, ?5)";
            db.execute(sql, params![id, kind.as_str(), dry_run, payload, db.now()])?;
            lease::row(db, &id)
        })
    }

    /// Claims the oldest pending scan or hash job, if there is one. Expired jobs become retryable first.
    pub fn claim(self, token: &Token, lease: Duration) -> Result<Option<JobRow>> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let ids = format!(
                "SELECT id FROM jobs WHERE status = 'pending' AND kind IN ('scan', 'hash') ORDER BY {}, id",
                sortable_time("created_at")
            );
            lease::claim_one(db, (&token, lease), &ids, &[])
        })
    }

    /// Renews the lease of a job and stores its progress, from 0 to 1.
    pub fn heartbeat(
        self,
        id: &str,
        token: &Token,
        lease: Duration,
        progress: f64,
        processed_items: u64,
    ) -> Result<HeartbeatResult> {
        if !(0.0..=1.0).contains(&progress) {
            return Err(Error::Invalid(format!("invalid progress {progress}; expected 0 to 1")));
        }
        let items = i64::try_from(processed_items)
            .map_err(|_| Error::Invalid(format!("too many processed items: {processed_items}")))?;
        let (id, token) = (id.to_owned(), token.clone());
        self.0.write(WriteKind::TaskCompound, move |db| {
            let heartbeat_result = LEASE_RULES.heartbeat(db, &id, (&token, lease), &[&progress, &items])?;
            if heartbeat_result == HeartbeatResult::Lost {
                lease::row::<JobRow>(db, &id)?;
            }
            Ok(heartbeat_result)
        })
    }

    /// Ends a run with success, or with an error message for people.
    pub fn finish(self, id: &str, token: &Token, outcome: Result<(), String>) -> Result<JobRow> {
        let (id, token) = (id.to_owned(), token.clone());
        self.0.write(WriteKind::TaskCompound, move |db| {
            let done = match &outcome {
                Ok(()) => {
                    let sets = "status = 'completed', progress = 1.0, error_code = NULL, error_message = NULL,
                        finished_at = ?1, updated_at = ?1";
                    LEASE_RULES.finish(db, &id, &token, sets, &[])?
                }
                Err(message) => end_with_error(db, &id, &token, JobStatus::Failed, WORKER_FAILURE, message)?,
            };
            lease::require_owned(db, done, &id, &token)
        })
    }

    /// Ends a run so that the job can be reset later. `code` is for programs, `message` for people.
    pub fn mark_retryable(self, id: &str, token: &Token, code: &str, message: &str) -> Result<JobRow> {
        let (id, token) = (id.to_owned(), token.clone());
        let (code, message) = (code.to_owned(), message.to_owned());
        self.0.write(WriteKind::TaskCompound, move |db| {
            let done = end_with_error(db, &id, &token, JobStatus::Retryable, &code, &message)?;
            lease::require_owned(db, done, &id, &token)
        })
    }

    /// Returns a job to pending, so that another worker can claim it at once.
    pub fn release(self, id: &str, token: &Token) -> Result<JobRow> {
        let (id, token) = (id.to_owned(), token.clone());
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            // The protocol allows the change from running to pending only through retryable.
            if LEASE_RULES.release(db, &id, &token, "status = 'retryable', updated_at = ?1")? {
                to_pending(db, &id)?;
                return lease::row(db, &id);
            }
            lease::require_owned(db, false, &id, &token)
        })
    }

    /// Cancels an unfinished job of any kind. A worker that runs it sees this at its next heartbeat.
    pub fn cancel(self, id: &str) -> Result<JobRow> {
        self.cancel_because(id, None)
    }

    /// Like [`cancel`](Self::cancel), with a reason for people.
    pub fn cancel_because(self, id: &str, reason: Option<&str>) -> Result<JobRow> {
        let (id, reason) = (id.to_owned(), reason.map(str::to_owned));
        self.0.write(WriteKind::TaskCompound, move |db| {
            let sql =
                "UPDATE jobs SET status = 'cancelled', finished_at = ?2, lease_expires_at = NULL, updated_at = ?2,
                    error_message = coalesce(?3, error_message)
                WHERE id = ?1 AND status IN ('pending', 'running', 'retryable')";
            let count = db.execute(sql, params![id, db.now(), reason])?;
            lease::require_changed(db, count, &id, "pending, running or retryable")
        })
    }

    /// Makes a retryable job pending. Conflicts with another active scan or hash job.
    pub fn reset(self, id: &str) -> Result<JobRow> {
        let id = id.to_owned();
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            LEASE_RULES.recover(db)?;
            let job: JobRow = lease::row(db, &id)?;
            if job.status == JobStatus::Retryable && is_leased(job.kind) {
                check_no_other_active(db, &id)?;
            }
            let count = to_pending(db, &id)?;
            lease::require_changed(db, count, &id, "retryable")
        })
    }

    /// Makes scan and hash jobs with an expired lease retryable. Returns how many.
    pub fn recover(self) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, |db| LEASE_RULES.recover(db))
    }

    /// Like [`recover`](Self::recover), and also frees expired leases of the calling worker that are not in `held`.
    pub fn recover_by(self, held: HeldLeases) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| LEASE_RULES.recover_by(db, &held))
    }

    /// Returns the job with this id.
    pub fn get(self, id: &str) -> Result<JobRow> {
        self.0.read(|db| lease::row(db, id))
    }

    /// Lists jobs, newest first. `after`: the last id of the previous page. `limit`: 1 to [`MAX_PAGE`].
    pub fn list(self, filter: JobFilter, after: Option<&str>, limit: usize) -> Result<Page<JobRow>> {
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(Error::Invalid(format!("invalid limit {limit}; expected 1 to {MAX_PAGE}")));
        }
        let created = sortable_time("created_at");
        let (status, kind) = (filter.status.map(JobStatus::as_str), filter.kind.map(JobKind::as_str));
        let jobs = self.0.read(|db| {
            let from = after.map(|cursor| cursor_time(db, cursor)).transpose()?;
            // The index can seek by the first part of the condition.
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
        return Err(Error::Invalid(format!("the payload has {len} bytes; expected at most {MAX_PAYLOAD}")));
    }
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(payload) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Invalid(format!("the payload is not a JSON object: {error}"))),
    }
}

fn is_leased(kind: JobKind) -> bool {
    matches!(kind, JobKind::Scan | JobKind::Hash)
}

/// Fails if another job is active, and names it. The unique index would refuse the second job without naming the first.
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

/// Returns the creation time of the job at which the previous page ended.
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

fn end_with_error(db: &Db<'_>, id: &str, token: &Token, to: JobStatus, code: &str, message: &str) -> Result<bool> {
    let sets = "status = ?4, error_code = ?5, error_message = ?6, finished_at = ?1, updated_at = ?1";
    LEASE_RULES.finish(db, &id, token, sets, &[&to.as_str(), &code, &message])
}
