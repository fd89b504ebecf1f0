//! Requested checkpoints of the write-ahead log.
//!
//! Owns the table `wal_maintenance_jobs` and runs its checkpoints. The writer also checkpoints without a request; these
//! rows are for a control plane that needs a small WAL now. The control plane decides whether a mode is allowed.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::Store;
use crate::error::{Error, Result};
use crate::lease::{self, HeldLeases, LeaseRules, Token, leased_row, sortable_time};
use crate::paths::{resolve_last_link, with_suffix};
use crate::rows::{column, string_enum, table_row};
use crate::sqlite::{Db, WriteKind, params};
use crate::time::UtcTime;

/// Default minimum interval between a completed checkpoint and the next request: 15 minutes.
pub const MIN_INTERVAL: Duration = Duration::from_secs(900);

/// Delay before a busy checkpoint is retried. `LEASE_RULES` contains the same 120 seconds.
const RETRY_DELAY: Duration = Duration::from_secs(120);

/// Maximum time a checkpoint waits for readers; writers are blocked meanwhile.
const CHECKPOINT_BUSY_TIMEOUT: Duration = Duration::from_secs(1);

string_enum! {
    "a checkpoint mode",
    /// Mode of `PRAGMA wal_checkpoint`.
    pub enum WalMode {
        /// Checkpoints as many frames as possible without waiting for other connections.
        Passive = "passive",
        /// Checkpoints the whole WAL, and writing continues at its beginning.
        Restart = "restart",
        /// Checkpoints the whole WAL and truncates it to 0 bytes.
        Truncate = "truncate",
    }
}

string_enum! {
    "a checkpoint's status",
    /// State of a requested checkpoint.
    pub enum WalStatus {
        /// Waits for a worker.
        Pending = "pending",
        /// A worker runs it.
        Running = "running",
        /// Other connections blocked it, or its lease expired; retried at `retry_after`.
        Retryable = "retryable",
        /// Completed without being blocked.
        Completed = "completed",
        /// The checkpoint failed with an error.
        Failed = "failed",
    }
}

table_row! {
    /// A row of `wal_maintenance_jobs`.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct WalRow {
        pub id: i64,
        pub requested_mode: WalMode,
        pub status: WalStatus,
        pub requested_by: Option<String>,
        pub reason: Option<String>,
        pub execute_after: UtcTime,
        pub retry_count: i64,
        pub retry_after: Option<UtcTime>,
        pub worker_id: Option<String>,
        pub worker_heartbeat_at: Option<UtcTime>,
        pub lease_expires_at: Option<UtcTime>,
        pub checkpoint_busy: Option<i64>,
        pub checkpoint_log_frames: Option<i64>,
        pub checkpointed_frames: Option<i64>,
        pub error_code: Option<String>,
        pub error_message: Option<String>,
        pub created_at: UtcTime,
        pub updated_at: UtcTime,
        pub started_at: Option<UtcTime>,
        pub finished_at: Option<UtcTime>,
    }
}

/// A request for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalRequest {
    /// Mode of the requested checkpoint.
    pub mode: WalMode,
    /// Name of the requester; at most 64 characters are stored.
    pub requested_by: String,
    /// Reason for the request, for people.
    pub reason: Option<String>,
    /// Minimum time since the last completed checkpoint; `None` for no minimum.
    pub min_interval: Option<Duration>,
}

/// Result of a request for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalRequestResult {
    /// The request was queued.
    Queued(WalRow),
    /// This earlier checkpoint is unfinished.
    Active(WalRow),
    /// The last checkpoint is too recent; a request is accepted from this time.
    TooSoon(UtcTime),
}

/// Sizes of the database and its WAL, and the checkpoint that was requested last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WalState {
    /// Size of the WAL in bytes; 0 if it does not exist.
    pub wal_size_bytes: u64,
    /// Size of the database file in bytes, without the WAL.
    pub database_size_bytes: u64,
    /// Size of a page in bytes.
    pub page_size_bytes: u64,
    /// Checkpoint that was requested last.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub latest_checkpoint: Option<WalRow>,
}

/// WAL size in bytes and the number of requested checkpoints by status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[allow(missing_docs, reason = "the names describe the values")]
pub struct WalMetrics {
    pub wal_size_bytes: u64,
    pub pending: u64,
    pub running: u64,
    pub retryable: u64,
    pub completed: u64,
    pub failed: u64,
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub latest_completed_at: Option<UtcTime>,
}

pub(crate) static LEASE_RULES: LeaseRules = LeaseRules {
    table: "wal_maintenance_jobs",
    noun: "checkpoint",
    canonical_times: false,
    row_filter: "",
    on_claim: ", started_at = coalesce(started_at, ?1), finished_at = NULL, updated_at = ?1",
    on_heartbeat: ", updated_at = ?1",
    // SQLite's time functions have milliseconds, the text microseconds: the fraction is cut off and appended again.
    on_expiry: "status = 'retryable', retry_count = retry_count + 1,
        retry_after = strftime('%Y-%m-%d %H:%M:%S', substr(?1, 1, 19), '+120 seconds') || substr(?1, 20),
        error_code = 'LEASE_EXPIRED', error_message = 'Lease expired and requeued', finished_at = NULL,
        updated_at = ?1",
    renews_expired: true,
};

leased_row!(WalRow, LEASE_RULES);

/// Requested checkpoints of a store's WAL.
#[derive(Clone, Copy, Debug)]
pub struct Wal<'a>(pub(crate) &'a Store);

impl Wal<'_> {
    /// Requests a checkpoint. Only one may be unfinished.
    pub fn enqueue(self, request: WalRequest) -> Result<WalRequestResult> {
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            let created = sortable_time("created_at");
            let sql = format!(
                "SELECT * FROM wal_maintenance_jobs WHERE status IN ('pending', 'running', 'retryable')
                 ORDER BY {created} DESC, id DESC LIMIT 1"
            );
            if let Some(active) = db.first(&sql, [], WalRow::read)? {
                return Ok(WalRequestResult::Active(active));
            }
            if let (Some(interval), Some(last)) = (request.min_interval, latest_completed_at(db)?) {
                let next = last.plus(interval);
                // A completion time in the future means that the clock was set back, not that the checkpoint is recent.
                if last <= db.now && db.now < next {
                    return Ok(WalRequestResult::TooSoon(next));
                }
            }
            insert(db, &request).map(WalRequestResult::Queued)
        })
    }

    /// Claims a checkpoint that is due. Expired ones become retryable first.
    pub fn claim(self, token: &Token, lease: Duration) -> Result<Option<WalRow>> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            // A pending row is due by `execute_after`; its `retry_after` is ignored.
            let due = sortable_time(
                "CASE status WHEN 'pending' THEN execute_after ELSE coalesce(retry_after, execute_after) END",
            );
            let ids = format!(
                "SELECT id FROM wal_maintenance_jobs WHERE status IN ('pending', 'retryable') AND {due} <= ?1
                 ORDER BY {due}, id"
            );
            lease::claim_one(db, (&token, lease), &ids, &[])
        })
    }

    /// Runs the claimed checkpoint and stores its result: completed, failed, or retryable if others blocked it.
    pub fn run(self, claimed: &WalRow, token: &Token) -> Result<WalRow> {
        let outcome = self.checkpoint(claimed.requested_mode);
        let (id, token) = (claimed.id, token.clone());
        self.0.write(WriteKind::TaskCompound, move |db| {
            let done = settle(db, id, &token, &outcome)?;
            lease::require_owned(db, done, id, &token)
        })
    }

    /// Returns a claimed checkpoint to pending, so that another worker can claim it at once.
    pub fn release(self, id: i64, token: &Token) -> Result<WalRow> {
        let token = token.clone();
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| lease::release(db, id, &token))
    }

    /// Makes expired checkpoints retryable in two minutes. Returns how many.
    pub fn recover(self) -> Result<usize> {
        self.0.write(WriteKind::TaskCompound, |db| LEASE_RULES.recover(db))
    }

    /// Like [`recover`](Self::recover), and also frees expired leases of the calling worker that are not in `held`.
    pub fn recover_by(self, held: HeldLeases) -> Result<usize> {
        self.0.write(WriteKind::TaskCompound, move |db| LEASE_RULES.recover_by(db, &held))
    }

    /// Returns the checkpoint that was requested last, if any.
    pub fn latest(self) -> Result<Option<WalRow>> {
        let created = sortable_time("created_at");
        let sql = format!("SELECT * FROM wal_maintenance_jobs ORDER BY {created} DESC, id DESC LIMIT 1");
        self.0.read(|db| db.first(&sql, [], WalRow::read))
    }

    /// Returns the WAL's size and the number of checkpoints by status.
    pub fn metrics(self) -> Result<WalMetrics> {
        let wal_size_bytes = self.wal_size()?;
        self.0.read(|db| {
            let counts = db.count_by_status::<WalStatus>("wal_maintenance_jobs")?;
            let count = |status| counts.iter().find(|(found, _)| *found == status).map_or(0, |(_, n)| *n);
            Ok(WalMetrics {
                wal_size_bytes,
                pending: count(WalStatus::Pending),
                running: count(WalStatus::Running),
                retryable: count(WalStatus::Retryable),
                completed: count(WalStatus::Completed),
                failed: count(WalStatus::Failed),
                latest_completed_at: latest_completed_at(db)?,
            })
        })
    }

    /// Returns the sizes of the database and its WAL, and the checkpoint that was requested last.
    pub fn state(self) -> Result<WalState> {
        let page_size_bytes = self.0.read(|db| db.count("PRAGMA page_size", []))?;
        Ok(WalState {
            wal_size_bytes: self.wal_size()?,
            database_size_bytes: file_size(self.0.path())?,
            page_size_bytes,
            latest_checkpoint: self.latest()?,
        })
    }

    /// SQLite names the WAL after the file to which the path leads.
    fn wal_size(self) -> Result<u64> {
        file_size(&with_suffix(&resolve_last_link(self.0.path()), "-wal"))
    }

    /// Checkpoints the WAL as far as possible without waiting for other connections. That shortens closing the store.
    pub fn checkpoint_passive(self) -> Result<()> {
        self.checkpoint(WalMode::Passive).map(drop)
    }

    /// Uses a separate connection, because a checkpoint inside a transaction is an error.
    fn checkpoint(self, mode: WalMode) -> Result<CheckpointCounts> {
        let file = &self.0.0.file;
        let conn = file.open_writer()?;
        file.db(&conn).with_conn(|conn| {
            conn.busy_timeout(CHECKPOINT_BUSY_TIMEOUT.min(file.busy_timeout))?;
            let sql = format!("PRAGMA wal_checkpoint({})", mode.as_str());
            conn.query_row(&sql, [], |row| {
                Ok(CheckpointCounts { busy: row.get(0)?, log_frames: row.get(1)?, checkpointed: row.get(2)? })
            })
        })
    }
}

/// Returns the size of a file. The WAL does not exist while no connection is open.
fn file_size(path: &Path) -> Result<u64> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::Io(path.to_path_buf(), error.to_string())),
    }
}

/// Columns that `PRAGMA wal_checkpoint` returns.
#[derive(Clone, Copy)]
struct CheckpointCounts {
    busy: i64,
    log_frames: i64,
    checkpointed: i64,
}

fn insert(db: &Db<'_>, request: &WalRequest) -> Result<WalRow> {
    let by: String = request.requested_by.trim().chars().take(64).collect();
    let sql = "INSERT INTO wal_maintenance_jobs (requested_mode, status, requested_by, reason, execute_after,
            retry_count, retry_after, created_at, updated_at)
        VALUES (?1, 'pending', ?2, ?3, ?4, 0, ?4, ?4, ?4)";
    db.execute(sql, params![request.mode.as_str(), by, request.reason, db.now()])?;
    lease::row(db, db.conn.last_insert_rowid())
}

fn latest_completed_at(db: &Db<'_>) -> Result<Option<UtcTime>> {
    let finished = sortable_time("finished_at");
    let sql = format!(
        "SELECT finished_at FROM wal_maintenance_jobs WHERE status = 'completed' AND finished_at IS NOT NULL
         ORDER BY {finished} DESC LIMIT 1"
    );
    Ok(db.first(&sql, [], |row| column(row, "finished_at"))?.flatten())
}

fn settle(db: &Db<'_>, id: i64, token: &Token, outcome: &Result<CheckpointCounts>) -> Result<bool> {
    let counts = match outcome {
        Ok(counts) => counts,
        Err(error) => {
            let sets = "status = 'failed', error_code = 'WAL_CHECKPOINT_FAILED', error_message = ?4,
                finished_at = ?1, updated_at = ?1";
            return LEASE_RULES.finish(db, &id, token, sets, &[&error.to_string()]);
        }
    };
    let CheckpointCounts { busy, log_frames, checkpointed } = counts;
    if *busy > 0 {
        let sets = "status = 'retryable', checkpoint_busy = ?4, checkpoint_log_frames = ?5, checkpointed_frames = ?6,
            retry_count = retry_count + 1, retry_after = ?7, error_code = 'WAL_CHECKPOINT_BUSY', error_message = ?8,
            finished_at = NULL, updated_at = ?1";
        let retry_after = db.now.plus(RETRY_DELAY).to_string();
        let message = format!("WAL checkpoint busy={busy} log_frames={log_frames} checkpointed_frames={checkpointed}");
        return LEASE_RULES.finish(db, &id, token, sets, &[busy, log_frames, checkpointed, &retry_after, &message]);
    }
    let sets = "status = 'completed', checkpoint_busy = ?4, checkpoint_log_frames = ?5, checkpointed_frames = ?6,
        error_code = NULL, error_message = NULL, finished_at = ?1, updated_at = ?1";
    LEASE_RULES.finish(db, &id, token, sets, &[busy, log_frames, checkpointed])
}
