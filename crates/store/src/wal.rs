//! Checkpoints of the write-ahead log that somebody asked for.
//!
//! Owns the table `wal_maintenance_jobs` and the running of a checkpoint. SQLite makes checkpoints by itself too;
//! these are for a control plane that wants the log small now. Whether a mode is allowed is not decided here.

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::{Row, params};
use serde::Serialize;

use crate::Store;
use crate::db::{Db, required_time, time};
use crate::error::{Error, Result};
use crate::lease::{DueRows, HeldLeases, LeaseRules, Token, sortable_time};
use crate::string_enum::string_enum;
use crate::time::UtcTime;
use crate::writer::WriteKind;

/// How long after a completed checkpoint the next one may be asked for, unless the caller says otherwise.
pub const MIN_INTERVAL: Duration = Duration::from_secs(900);

/// How long after a busy checkpoint it is tried again. The same 120 seconds stand in `LEASED`.
const RETRY_DELAY: Duration = Duration::from_secs(120);

/// A checkpoint that waits for readers holds writers up meanwhile, so it does not wait long.
const CHECKPOINT_BUSY_TIMEOUT: Duration = Duration::from_secs(1);

string_enum! {
    "a checkpoint mode",
    /// How thorough a checkpoint is.
    pub enum WalMode {
        /// As much as is possible without waiting for anybody.
        Passive = "passive",
        /// All of it, and the log is written from its beginning again.
        Restart = "restart",
        /// All of it, and the log is emptied.
        Truncate = "truncate",
    }
}

string_enum! {
    "a checkpoint's status",
    /// Where a checkpoint is in its life.
    pub enum WalStatus {
        /// Nobody has it.
        Pending = "pending",
        /// A worker has it.
        Running = "running",
        /// It was kept from finishing, and waits to be tried again.
        Retryable = "retryable",
        /// Done.
        Completed = "completed",
        /// It failed.
        Failed = "failed",
    }
}

/// A checkpoint as it stands in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "each field is the column of its name")]
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

impl WalRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(WalRow {
            id: row.get("id")?,
            requested_mode: WalMode::read(row, "requested_mode")?,
            status: WalStatus::read(row, "status")?,
            requested_by: row.get("requested_by")?,
            reason: row.get("reason")?,
            execute_after: required_time(row, "execute_after")?,
            retry_count: row.get("retry_count")?,
            retry_after: time(row, "retry_after")?,
            worker_id: row.get("worker_id")?,
            worker_heartbeat_at: time(row, "worker_heartbeat_at")?,
            lease_expires_at: time(row, "lease_expires_at")?,
            checkpoint_busy: row.get("checkpoint_busy")?,
            checkpoint_log_frames: row.get("checkpoint_log_frames")?,
            checkpointed_frames: row.get("checkpointed_frames")?,
            error_code: row.get("error_code")?,
            error_message: row.get("error_message")?,
            created_at: required_time(row, "created_at")?,
            updated_at: required_time(row, "updated_at")?,
            started_at: time(row, "started_at")?,
            finished_at: time(row, "finished_at")?,
        })
    }
}

/// Somebody's wish for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalRequest {
    /// How thorough.
    pub mode: WalMode,
    /// Who asks; at most 64 characters are kept.
    pub requested_by: String,
    /// Why, for people.
    pub reason: Option<String>,
    /// How long ago the last completed one must be; nothing: however short.
    pub min_interval: Option<Duration>,
}

/// What a wish for a checkpoint came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalRequestResult {
    /// It waits for a worker.
    Queued(WalRow),
    /// There is one already that is not finished: this one.
    Active(WalRow),
    /// The last one is not long enough ago; not before this time.
    TooSoon(UtcTime),
}

/// The log, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct WalMetrics {
    pub wal_size_bytes: u64,
    pub pending: u64,
    pub running: u64,
    pub retryable: u64,
    pub completed: u64,
    pub failed: u64,
    pub latest_completed_at: Option<UtcTime>,
}

static LEASE_RULES: LeaseRules = LeaseRules {
    table: "wal_maintenance_jobs",
    canonical_times: false,
    row_filter: "",
    on_claim: ", started_at = coalesce(started_at, ?1), finished_at = NULL, updated_at = ?1",
    on_heartbeat: ", updated_at = ?1",
    // SQLite counts milliseconds, our texts microseconds: it gets the whole seconds, the fraction is put back.
    on_expiry: "status = 'retryable', retry_count = retry_count + 1,
        retry_after = strftime('%Y-%m-%d %H:%M:%S', substr(?1, 1, 19), '+120 seconds') || substr(?1, 20),
        error_code = 'LEASE_EXPIRED', error_message = 'Lease expired and requeued', finished_at = NULL,
        updated_at = ?1",
    renews_expired: true,
};

/// The checkpoints of a store's log.
#[derive(Clone, Copy, Debug)]
pub struct Wal<'a>(pub(crate) &'a Store);

impl Wal<'_> {
    /// Asks for a checkpoint. While one is not finished there is no second one.
    pub fn enqueue(self, request: WalRequest) -> Result<WalRequestResult> {
        self.0.write_and_notify(WriteKind::Compound, move |db| {
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
                // A time of completion that is yet to come means a clock set back, not a recent checkpoint.
                if last <= db.now && db.now < next {
                    return Ok(WalRequestResult::TooSoon(next));
                }
            }
            insert(db, &request).map(WalRequestResult::Queued)
        })
    }

    /// Takes a checkpoint that is due. Those whose lease has run out are retryable first.
    pub fn claim(self, token: &Token, lease: Duration) -> Result<Option<WalRow>> {
        let token = token.clone();
        self.0.write(WriteKind::Compound, move |db| {
            LEASE_RULES.recover(db)?;
            // A pending row is due by execute_after alone, whatever retry_after says.
            let due = sortable_time(
                "CASE status WHEN 'pending' THEN execute_after ELSE coalesce(retry_after, execute_after) END",
            );
            let ids = format!(
                "SELECT id FROM wal_maintenance_jobs WHERE status IN ('pending', 'retryable') AND {due} <= ?1
                 ORDER BY {due}, id"
            );
            let due = DueRows { ids: &ids, params: &[], limit: 1 };
            Ok(LEASE_RULES.claim(db, (&token, lease), &due, "*", WalRow::read)?.pop())
        })
    }

    /// Makes the checkpoint that the caller has claimed, and writes down what came of it: completed, retryable
    /// when others were in its way, or failed.
    pub fn run(self, claimed: &WalRow, token: &Token) -> Result<WalRow> {
        let outcome = self.checkpoint(claimed.requested_mode);
        let (id, token) = (claimed.id, token.clone());
        self.0.write(WriteKind::Compound, move |db| {
            let done = settle(db, id, &token, &outcome)?;
            require_owned(db, done, id, &token)
        })
    }

    /// Gives a checkpoint back undone, so that another worker can have it at once.
    pub fn release(self, id: i64, token: &Token) -> Result<WalRow> {
        let token = token.clone();
        self.0.write_and_notify(WriteKind::Compound, move |db| {
            let done = LEASE_RULES.release(db, &id, &token, "status = 'pending', updated_at = ?1")?;
            require_owned(db, done, id, &token)
        })
    }

    /// Has checkpoints whose lease has run out tried again in two minutes. Says how many.
    pub fn recover(self) -> Result<usize> {
        self.0.write(WriteKind::Compound, |db| LEASE_RULES.recover(db))
    }

    /// Like [`recover`](Self::recover), by a worker that knows what it holds: a lease of its own that has run out is freed
    /// if it does not hold it.
    pub fn recover_by(self, held: HeldLeases) -> Result<usize> {
        self.0.write(WriteKind::Compound, move |db| LEASE_RULES.recover_by(db, &held))
    }

    /// The checkpoint that was asked for last, if any was.
    pub fn latest(self) -> Result<Option<WalRow>> {
        let created = sortable_time("created_at");
        let sql = format!("SELECT * FROM wal_maintenance_jobs ORDER BY {created} DESC, id DESC LIMIT 1");
        self.0.read(|db| db.first(&sql, [], WalRow::read))
    }

    /// How large the log is, and what became of checkpoints.
    pub fn metrics(self) -> Result<WalMetrics> {
        let wal_size_bytes = self.wal_size()?;
        self.0.read(|db| {
            let sql = "SELECT status, count(*) AS n FROM wal_maintenance_jobs GROUP BY status";
            let counts: Vec<(WalStatus, i64)> =
                db.rows(sql, [], |row| Ok((WalStatus::read(row, "status")?, row.get("n")?)))?;
            let count = |status| {
                counts.iter().find(|(found, _)| *found == status).map_or(0, |(_, n)| n.unsigned_abs())
            };
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

    fn wal_size(self) -> Result<u64> {
        let mut name = self.0.path().as_os_str().to_owned();
        name.push("-wal");
        let path = PathBuf::from(name);
        match std::fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.len()),
            // SQLite removes the log when the last connection closes.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(Error::Io(path, error.to_string())),
        }
    }

    /// Brings the log home as far as that goes without waiting for anybody. What is brought home now need not be when
    /// the store is closed.
    pub fn checkpoint_passive(self) -> Result<()> {
        self.checkpoint(WalMode::Passive).map(drop)
    }

    /// On a connection of its own: a checkpoint inside a transaction is an error.
    fn checkpoint(self, mode: WalMode) -> Result<CheckpointCounts> {
        let file = &self.0.0.file;
        let conn = file.open_writer()?;
        let run = || -> rusqlite::Result<CheckpointCounts> {
            conn.busy_timeout(CHECKPOINT_BUSY_TIMEOUT.min(file.busy_timeout))?;
            let sql = format!("PRAGMA wal_checkpoint({})", mode.as_str());
            conn.query_row(&sql, [], |row| {
                Ok(CheckpointCounts { busy: row.get(0)?, log_frames: row.get(1)?, checkpointed: row.get(2)? })
            })
        };
        run().map_err(|error| file.error(&error))
    }
}

/// What SQLite says of a checkpoint.
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
    row(db, db.conn.last_insert_rowid())
}

fn latest_completed_at(db: &Db<'_>) -> Result<Option<UtcTime>> {
    let finished = sortable_time("finished_at");
    let sql = format!(
        "SELECT finished_at FROM wal_maintenance_jobs WHERE status = 'completed' AND finished_at IS NOT NULL
         ORDER BY {finished} DESC LIMIT 1"
    );
    Ok(db.first(&sql, [], |row| time(row, "finished_at"))?.flatten())
}

fn settle(db: &Db<'_>, id: i64, token: &Token, outcome: &Result<CheckpointCounts>) -> Result<bool> {
    let numbers = match outcome {
        Ok(numbers) => numbers,
        Err(error) => {
            let sets = "status = 'failed', error_code = 'WAL_CHECKPOINT_FAILED', error_message = ?4,
                finished_at = ?1, updated_at = ?1";
            return LEASE_RULES.finish(db, &id, token, sets, &[&error.to_string()]);
        }
    };
    let CheckpointCounts { busy, log_frames, checkpointed } = numbers;
    if *busy > 0 {
        let sets = "status = 'retryable', checkpoint_busy = ?4, checkpoint_log_frames = ?5, checkpointed_frames = ?6,
            retry_count = retry_count + 1, retry_after = ?7, error_code = 'WAL_CHECKPOINT_BUSY', error_message = ?8,
            finished_at = NULL, updated_at = ?1";
        let retry_after = db.now.plus(RETRY_DELAY).to_string();
        let message =
            format!("WAL checkpoint busy={busy} log_frames={log_frames} checkpointed_frames={checkpointed}");
        return LEASE_RULES.finish(
            db,
            &id,
            token,
            sets,
            &[busy, log_frames, checkpointed, &retry_after, &message],
        );
    }
    let sets =
        "status = 'completed', checkpoint_busy = ?4, checkpoint_log_frames = ?5, checkpointed_frames = ?6,
        error_code = NULL, error_message = NULL, finished_at = ?1, updated_at = ?1";
    LEASE_RULES.finish(db, &id, token, sets, &[busy, log_frames, checkpointed])
}

pub(crate) fn lease_rules() -> &'static LeaseRules {
    &LEASE_RULES
}

fn row(db: &Db<'_>, id: i64) -> Result<WalRow> {
    let found = db.first("SELECT * FROM wal_maintenance_jobs WHERE id = ?1", [id], WalRow::read)?;
    found.ok_or_else(|| Error::not_found("checkpoint", id))
}

/// The row after its owner's write, or why that was refused.
fn require_owned(db: &Db<'_>, done: bool, id: i64, token: &Token) -> Result<WalRow> {
    let checkpoint = row(db, id)?;
    if done {
        return Ok(checkpoint);
    }
    let (status, token) = (checkpoint.status.as_str(), token.as_str());
    Err(Error::Conflict(format!("checkpoint {id} is {status} and not in the hands of {token:?}")))
}
