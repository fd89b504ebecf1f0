//! Clean-ups: scheduled deletion of the thumbnails of a group of files.
//!
//! Owns the table `thumbnail_cleanup_jobs`, one row for each group. A clean-up waits for its time and for unfinished
//! thumbnails of its group. The caller deletes the files, and only below its own folder.

use std::time::Duration;

use serde::Serialize;

use crate::Store;
use crate::error::{Error, Result};
use crate::lease::{self, HeldLeases, LeaseRules, Token, leased_row, sortable_time};
use crate::rows::{string_enum, table_row};
use crate::sqlite::{Db, WriteKind, params};
use crate::thumbnails;
use crate::time::UtcTime;

/// Error code of failed clean-ups.
pub const THUMB_CLEANUP_FAILED: &str = "THUMB_CLEANUP_FAILED";

string_enum! {
    "a clean-up's status",
    /// State of a clean-up.
    pub enum CleanupStatus {
        /// Waits for its time.
        Pending = "pending",
        /// A worker has claimed it.
        Running = "running",
        /// The thumbnails were deleted.
        Completed = "completed",
        /// The clean-up failed with an error.
        Failed = "failed",
    }
}

table_row! {
    /// A row of `thumbnail_cleanup_jobs`.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct CleanupRow {
        pub id: i64,
        pub group_key: String,
        pub status: CleanupStatus,
        pub execute_after: UtcTime,
        pub worker_id: Option<String>,
        pub worker_heartbeat_at: Option<UtcTime>,
        pub lease_expires_at: Option<UtcTime>,
        pub error_code: Option<String>,
        pub error_message: Option<String>,
        pub created_at: UtcTime,
        pub updated_at: UtcTime,
        pub finished_at: Option<UtcTime>,
    }
}

pub(crate) static LEASE_RULES: LeaseRules = LeaseRules {
    table: "thumbnail_cleanup_jobs",
    noun: "clean-up",
    canonical_times: false,
    row_filter: "",
    on_claim: ", finished_at = NULL, updated_at = ?1",
    on_heartbeat: ", updated_at = ?1",
    on_expiry: "status = 'pending', error_code = 'LEASE_EXPIRED',
        error_message = 'Lease expired and requeued', finished_at = NULL, updated_at = ?1",
    renews_expired: true,
};

leased_row!(CleanupRow, LEASE_RULES);

/// Clean-ups of a store.
#[derive(Clone, Copy, Debug)]
pub struct Cleanups<'a>(pub(crate) &'a Store);

impl Cleanups<'_> {
    /// Schedules the clean-up of a group. A pending or finished one gets the new time; a running one is a conflict.
    pub fn schedule(self, group_key: &str, execute_after: UtcTime) -> Result<CleanupRow> {
        let group_key = group_key.trim().to_owned();
        if group_key.is_empty() || group_key.len() > 256 {
            return Err(Error::Invalid(format!("invalid group key {group_key:?}; expected 1 to 256 bytes")));
        }
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            LEASE_RULES.recover(db)?;
            let sql = "INSERT INTO thumbnail_cleanup_jobs (group_key, status, execute_after, created_at, updated_at)
                VALUES (?1, 'pending', ?2, ?3, ?3)
                ON CONFLICT (group_key) DO UPDATE SET status = 'pending', execute_after = excluded.execute_after,
                    worker_id = NULL, worker_heartbeat_at = NULL, lease_expires_at = NULL, error_code = NULL,
                    error_message = NULL, finished_at = NULL, updated_at = excluded.updated_at
                WHERE status IN ('pending', 'completed', 'failed')";
            match db.execute(sql, params![group_key, execute_after.to_string(), db.now()])? {
                0 => Err(Error::Conflict(format!("the clean-up of group {group_key} is running"))),
                _ => row_by_group(db, &group_key),
            }
        })
    }

    /// Claims a clean-up that is due and whose group has no unfinished thumbnail. Expired ones become pending first.
    pub fn claim(self, token: &Token, lease: Duration) -> Result<Option<CleanupRow>> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let due = sortable_time("execute_after");
            let ids = format!(
                "SELECT id FROM thumbnail_cleanup_jobs WHERE status = 'pending' AND {due} <= ?1 AND NOT {}
                 ORDER BY {due}, id",
                thumbnails::unfinished_in_group("thumbnail_cleanup_jobs.group_key")
            );
            lease::claim_one(db, (&token, lease), &ids, &[])
        })
    }

    /// Deletes the finished thumbnails of the group whose clean-up the caller has claimed. Returns their files' paths.
    ///
    /// Delete the files first, as [`Thumbnails::finished`](crate::thumbnails::Thumbnails::finished) names them: while
    /// the rows exist, no worker creates these files again. Later, a file of the same name may belong to another
    /// thumbnail.
    pub fn remove_finished_thumbnails(self, id: i64, token: &Token) -> Result<Vec<String>> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let sql = "SELECT count(*) FROM thumbnail_cleanup_jobs
                WHERE id = ?1 AND status = 'running' AND worker_id = ?2";
            let is_owner = db.number(sql, params![id, token.as_str()])? == 1;
            let cleanup: CleanupRow = lease::require_owned(db, is_owner, id, &token)?;
            thumbnails::remove_finished(db, &cleanup.group_key)
        })
    }

    /// Ends a clean-up with success, or with an error message for people.
    pub fn finish(self, id: i64, token: &Token, outcome: Result<(), String>) -> Result<CleanupRow> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let (status, code, message) = match &outcome {
                Ok(()) => (CleanupStatus::Completed, None, None),
                Err(message) => (CleanupStatus::Failed, Some(THUMB_CLEANUP_FAILED), Some(message)),
            };
            let sets = "status = ?4, error_code = ?5, error_message = ?6, finished_at = ?1, updated_at = ?1";
            let done = LEASE_RULES.finish(db, &id, &token, sets, &[&status.as_str(), &code, &message])?;
            lease::require_owned(db, done, id, &token)
        })
    }

    /// Returns a clean-up to pending, so that another worker can claim it at once.
    pub fn release(self, id: i64, token: &Token) -> Result<CleanupRow> {
        let token = token.clone();
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| lease::release(db, id, &token))
    }

    /// Makes clean-ups with an expired lease pending. Returns how many.
    pub fn recover(self) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, |db| LEASE_RULES.recover(db))
    }

    /// Like [`recover`](Self::recover), and also frees expired leases of the calling worker that are not in `held`.
    pub fn recover_by(self, held: HeldLeases) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| LEASE_RULES.recover_by(db, &held))
    }

    /// Returns the clean-up of a group.
    pub fn get(self, group_key: &str) -> Result<CleanupRow> {
        self.0.read(|db| row_by_group(db, group_key))
    }
}

fn row_by_group(db: &Db<'_>, group_key: &str) -> Result<CleanupRow> {
    let sql = "SELECT * FROM thumbnail_cleanup_jobs WHERE group_key = ?1";
    let found = db.first(sql, [group_key], CleanupRow::read)?;
    found.ok_or_else(|| Error::not_found("clean-up of the group", group_key))
}
