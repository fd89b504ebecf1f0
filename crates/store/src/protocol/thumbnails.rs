//! Thumbnails: requests for previews, and the queue in which they wait to be made.
//!
//! Owns the table `thumbnails` and its state machine:
//!
//! ```text
//!   pending ──claim──▶ running ──▶ ready | failed
//!      ▲                  │                 │
//!      └── lease expired ─┘                 │
//!      └── requested after retry_after ─────┘
//! ```
//!
//! The queue is bounded, and so is the number of images and videos made at the same time. Keys, paths and file contents
//! belong to the caller.

use std::time::Duration;

use serde::Serialize;

use crate::Store;
use crate::error::{Error, Result};
use crate::lease::{self, HeartbeatResult, HeldLeases, LeaseRules, Token, leased_row, sortable_time};
use crate::rows::{string_enum, table_row};
use crate::sqlite::{Db, WriteKind, params};
use crate::time::UtcTime;

/// Default maximum number of pending and running thumbnails.
pub const CAPACITY: usize = 50_000;

/// Delay after the first failure before a thumbnail may be requested again; doubled with each further failure.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Maximum delay before a failed thumbnail may be requested again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1_800);

string_enum! {
    "a thumbnail's status",
    /// State of a thumbnail.
    pub enum ThumbStatus {
        /// Waits for a worker.
        Pending = "pending",
        /// A worker is making it.
        Running = "running",
        /// Its file was written.
        Ready = "ready",
        /// It could not be made; it may be requested again later.
        Failed = "failed",
    }
}

string_enum! {
    "a media type",
    /// Media type of the source file.
    pub enum MediaType {
        /// The source is an image.
        Image = "image",
        /// The source is a video.
        Video = "video",
    }
}

string_enum! {
    "a thumbnail's format",
    /// File format of a thumbnail.
    pub enum ThumbFormat {
        /// The JPEG image format.
        Jpeg = "jpeg",
        /// The WebP image format.
        Webp = "webp",
    }
}

/// Columns of a requested thumbnail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the column of its name")]
pub struct NewThumbnail {
    pub thumb_key: String,
    pub file_id: i64,
    pub group_key: Option<String>,
    pub media_type: MediaType,
    pub format: ThumbFormat,
    pub max_dimension: u32,
    pub version: u32,
    pub source_size_bytes: i64,
    pub source_mtime_ns: i64,
    pub output_relpath: String,
}

table_row! {
    /// A row of `thumbnails`.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct ThumbnailRow {
        pub id: i64,
        pub thumb_key: String,
        pub file_id: i64,
        pub group_key: Option<String>,
        pub status: ThumbStatus,
        pub media_type: MediaType,
        pub format: ThumbFormat,
        pub max_dimension: i64,
        pub version: i64,
        pub source_size_bytes: i64,
        pub source_mtime_ns: i64,
        pub output_relpath: Option<String>,
        pub width: Option<i64>,
        pub height: Option<i64>,
        pub bytes_size: Option<i64>,
        pub error_code: Option<String>,
        pub error_message: Option<String>,
        pub error_count: i64,
        pub retry_after: Option<UtcTime>,
        pub worker_id: Option<String>,
        pub worker_heartbeat_at: Option<UtcTime>,
        pub lease_expires_at: Option<UtcTime>,
        pub created_at: UtcTime,
        pub updated_at: UtcTime,
        pub started_at: Option<UtcTime>,
        pub finished_at: Option<UtcTime>,
    }
}

table_row! {
    /// Numbers of waiting thumbnails and clean-ups, in the order of the protocol's answer.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct ThumbMetrics {
        /// When they were counted.
        pub generated_at: UtcTime,
        /// Number of pending and running thumbnails.
        pub queue_depth: u64,
        /// Number of pending thumbnails.
        pub queue_pending: u64,
        /// Number of running thumbnails.
        pub queue_running: u64,
        /// Number of failed thumbnails that may not be requested again yet.
        pub retry_backlog: u64,
        /// Number of failed thumbnails that may be requested again.
        pub retry_ready: u64,
        /// Number of pending clean-ups.
        pub cleanup_pending: u64,
        /// Number of running clean-ups.
        pub cleanup_running: u64,
        /// Number of pending clean-ups whose time has come.
        pub cleanup_overdue: u64,
        /// Seconds since the time of the clean-up that has been overdue longest; 0 if none is overdue.
        pub cleanup_max_lag_seconds: i64,
    }
}

/// Maximum number of thumbnails made at the same time, over all workers of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThumbLimits {
    /// Maximum number of images.
    pub image: u32,
    /// Maximum number of videos.
    pub video: u32,
}

impl Default for ThumbLimits {
    fn default() -> Self {
        ThumbLimits { image: 2, video: 1 }
    }
}

/// Outcome of making a thumbnail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThumbOutcome {
    /// The file was written.
    Ready {
        /// Width of the thumbnail in pixels.
        width: u32,
        /// Height of the thumbnail in pixels.
        height: u32,
        /// Size of the file in bytes.
        bytes_size: u64,
    },
    /// The thumbnail could not be made.
    Failed {
        /// Error code, for programs.
        code: String,
        /// Error message, for people.
        message: String,
    },
}

pub(crate) static LEASE_RULES: LeaseRules = LeaseRules {
    table: "thumbnails",
    noun: "thumbnail",
    canonical_times: false,
    row_filter: "",
    on_claim: ", started_at = coalesce(started_at, ?1), updated_at = ?1",
    on_heartbeat: ", updated_at = ?1",
    on_expiry: "status = 'pending', error_code = 'LEASE_EXPIRED',
        error_message = 'Lease expired and requeued', updated_at = ?1",
    renews_expired: true,
};

leased_row!(ThumbnailRow, LEASE_RULES);

/// Condition: fewer than ?2 thumbnails are pending or running. Counts at most ?2 rows.
const HAS_CAPACITY: &str = "(SELECT count(*) FROM
    (SELECT 1 FROM thumbnails WHERE status IN ('pending', 'running') LIMIT ?2)) < ?2";

/// Thumbnails of a store.
#[derive(Clone, Copy, Debug)]
pub struct Thumbnails<'a>(pub(crate) &'a Store);

impl Thumbnails<'_> {
    /// Requests a thumbnail. An existing one with this key is returned unchanged, unless it failed and may be retried
    /// now. [`Error::QueueFull`] if `capacity` thumbnails are pending or running.
    pub fn request(self, new: NewThumbnail, capacity: usize) -> Result<ThumbnailRow> {
        check(&new)?;
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            let admitted = match by_key(db, &new.thumb_key)? {
                None => insert(db, &new, capacity)?,
                Some(row) if row.status == ThumbStatus::Failed && row.retry_after <= Some(db.now) => {
                    requeue(db, row.id, capacity)?
                }
                Some(row) => return Ok(row),
            };
            if !admitted {
                return Err(Error::QueueFull(format!(
                    "the thumbnail queue is full ({capacity} pending or running); try again later"
                )));
            }
            require_by_key(db, &new.thumb_key)
        })
    }

    /// Claims the oldest pending thumbnail of a media type that is below its limit. Expired ones become pending first.
    pub fn claim(self, token: &Token, lease: Duration, limits: ThumbLimits) -> Result<Option<ThumbnailRow>> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let ids = format!(
                "SELECT id FROM (SELECT * FROM ({}) UNION ALL SELECT * FROM ({})) ORDER BY created, id",
                oldest_pending_sql(MediaType::Image, 5),
                oldest_pending_sql(MediaType::Video, 6)
            );
            lease::claim_one(db, (&token, lease), &ids, &[&limits.image, &limits.video])
        })
    }

    /// Renews the lease of a thumbnail.
    pub fn heartbeat(self, id: i64, token: &Token, lease: Duration) -> Result<HeartbeatResult> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| LEASE_RULES.heartbeat(db, &id, (&token, lease), &[]))
    }

    /// Stores the outcome of a claimed thumbnail.
    pub fn finish(self, id: i64, token: &Token, outcome: ThumbOutcome) -> Result<ThumbnailRow> {
        let token = token.clone();
        self.0.write(WriteKind::TaskCompound, move |db| {
            let done = match &outcome {
                ThumbOutcome::Ready { width, height, bytes_size } => {
                    let sets = "status = 'ready', width = ?4, height = ?5, bytes_size = ?6, error_code = NULL,
                        error_message = NULL, error_count = 0, retry_after = NULL, finished_at = ?1, updated_at = ?1";
                    let bytes = i64::try_from(*bytes_size).unwrap_or(i64::MAX);
                    LEASE_RULES.finish(db, &id, &token, sets, &[width, height, &bytes])?
                }
                ThumbOutcome::Failed { code, message } => {
                    let failures = lease::row::<ThumbnailRow>(db, id)?.error_count.saturating_add(1);
                    let retry_after = db.now.plus(retry_delay(failures)).to_string();
                    let sets = "status = 'failed', error_code = ?4, error_message = ?5, error_count = ?6,
                        retry_after = ?7, finished_at = ?1, updated_at = ?1";
                    LEASE_RULES.finish(db, &id, &token, sets, &[code, message, &failures, &retry_after])?
                }
            };
            lease::require_owned(db, done, id, &token)
        })
    }

    /// Returns a thumbnail to pending, so that another worker can claim it at once.
    pub fn release(self, id: i64, token: &Token) -> Result<ThumbnailRow> {
        let token = token.clone();
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| lease::release(db, id, &token))
    }

    /// Makes thumbnails with an expired lease pending. Returns how many.
    pub fn recover(self) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, |db| LEASE_RULES.recover(db))
    }

    /// Like [`recover`](Self::recover), and also frees expired leases of the calling worker that are not in `held`.
    pub fn recover_by(self, held: HeldLeases) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| LEASE_RULES.recover_by(db, &held))
    }

    /// Returns the thumbnail with this key.
    pub fn get(self, thumb_key: &str) -> Result<ThumbnailRow> {
        self.0.read(|db| require_by_key(db, thumb_key))
    }

    /// Returns the ready and failed thumbnails of a group, which a clean-up deletes.
    pub fn finished(self, group_key: &str) -> Result<Vec<ThumbnailRow>> {
        self.0.read(|db| {
            let sql = format!("SELECT * FROM thumbnails WHERE group_key = ?1 AND {FINISHED} ORDER BY id");
            db.rows(&sql, [group_key], ThumbnailRow::read)
        })
    }

    /// Returns the numbers of waiting thumbnails and clean-ups. Does not read finished ones.
    pub fn metrics(self) -> Result<ThumbMetrics> {
        self.0.read(|db| {
            let (retry, due) = (sortable_time("retry_after"), sortable_time("execute_after"));
            let thumbnails = |condition: &str| format!("(SELECT count(*) FROM thumbnails WHERE {condition})");
            let cleanups = |condition: &str| format!("(SELECT count(*) FROM thumbnail_cleanup_jobs WHERE {condition})");
            // A lag is a number of whole seconds: one less if the fraction of a second is later than that of now.
            let sql = format!(
                "SELECT ?1 AS generated_at, queue_pending + queue_running AS queue_depth, *,
                    coalesce(unixepoch(substr(?1, 1, 19)) - unixepoch(substr(oldest, 1, 19))
                        - (substr(oldest, 20) > substr(?1, 20)), 0) AS cleanup_max_lag_seconds
                 FROM (SELECT {} AS queue_pending, {} AS queue_running, {} AS retry_backlog, {} AS retry_ready,
                    {} AS cleanup_pending, {} AS cleanup_running, {} AS cleanup_overdue,
                    (SELECT min({due}) FROM thumbnail_cleanup_jobs WHERE status = 'pending' AND {due} <= ?1) AS oldest)",
                thumbnails("status = 'pending'"),
                thumbnails("status = 'running'"),
                thumbnails(&format!("status = 'failed' AND {retry} > ?1")),
                thumbnails(&format!("status = 'failed' AND (retry_after IS NULL OR {retry} <= ?1)")),
                cleanups("status = 'pending'"),
                cleanups("status = 'running'"),
                cleanups(&format!("status = 'pending' AND {due} <= ?1")),
            );
            let found = db.first(&sql, [db.now()], ThumbMetrics::read)?;
            found.ok_or_else(|| Error::Internal("a query of numbers returned no row".to_owned()))
        })
    }

    /// Returns the number of thumbnails in each status.
    pub fn counts(self) -> Result<Vec<(ThumbStatus, u64)>> {
        self.0.read(|db| db.count_by_status("thumbnails"))
    }
}

fn check(new: &NewThumbnail) -> Result<()> {
    let NewThumbnail { thumb_key, max_dimension, source_size_bytes, .. } = new;
    if thumb_key.is_empty() || thumb_key.len() > 128 {
        return Err(Error::Invalid(format!("invalid key {thumb_key:?}; expected 1 to 128 bytes")));
    }
    if *max_dimension == 0 {
        return Err(Error::Invalid("max_dimension is 0; expected 1 or more".to_owned()));
    }
    if *source_size_bytes < 0 {
        return Err(Error::Invalid(format!("invalid source size {source_size_bytes}; expected 0 or more bytes")));
    }
    Ok(())
}

/// Inserts a thumbnail if there is capacity, and returns whether it did. One statement, so that requests do not race.
fn insert(db: &Db<'_>, new: &NewThumbnail, capacity: usize) -> Result<bool> {
    if db.number("SELECT count(*) FROM library_files WHERE id = ?1", [new.file_id])? == 0 {
        return Err(Error::not_found("file", new.file_id));
    }
    let sql = format!(
        "INSERT INTO thumbnails (thumb_key, file_id, group_key, status, media_type, format, max_dimension, version,
            source_size_bytes, source_mtime_ns, output_relpath, error_count, created_at, updated_at)
         SELECT ?3, ?4, ?5, 'pending', ?6, ?7, ?8, ?9, ?10, ?11, ?12, 0, ?1, ?1 WHERE {HAS_CAPACITY}"
    );
    let added = db.execute(
        &sql,
        params![
            db.now(),
            crate::sql_limit(capacity),
            new.thumb_key,
            new.file_id,
            new.group_key,
            new.media_type.as_str(),
            new.format.as_str(),
            new.max_dimension,
            new.version,
            new.source_size_bytes,
            new.source_mtime_ns,
            new.output_relpath,
        ],
    )?;
    Ok(added == 1)
}

/// Makes a failed thumbnail pending if there is capacity, like a new one.
fn requeue(db: &Db<'_>, id: i64, capacity: usize) -> Result<bool> {
    let sql = format!(
        "UPDATE thumbnails SET status = 'pending', error_code = NULL, error_message = NULL, retry_after = NULL,
            worker_id = NULL, worker_heartbeat_at = NULL, lease_expires_at = NULL, started_at = NULL,
            finished_at = NULL, updated_at = ?1
         WHERE id = ?3 AND status = 'failed' AND {HAS_CAPACITY}"
    );
    Ok(db.execute(&sql, params![db.now(), crate::sql_limit(capacity), id])? == 1)
}

/// Returns a query for the oldest pending thumbnail of a media type, if fewer run than parameter `limit` allows.
fn oldest_pending_sql(media: MediaType, limit: u8) -> String {
    let (media, created) = (media.as_str(), sortable_time("created_at"));
    let (retry, lease) = (sortable_time("retry_after"), sortable_time("lease_expires_at"));
    format!(
        "SELECT id, {created} AS created FROM thumbnails
         WHERE status = 'pending' AND media_type = '{media}' AND (retry_after IS NULL OR {retry} <= ?1)
            AND (SELECT count(*) FROM thumbnails
                 WHERE status = 'running' AND media_type = '{media}' AND {lease} > ?1) < ?{limit}
         ORDER BY {created}, id LIMIT 1"
    )
}

/// Returns the delay before a thumbnail with this number of failures may be requested again.
fn retry_delay(failures: i64) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1).clamp(0, 10)).unwrap_or(0);
    MIN_RETRY_DELAY.saturating_mul(1 << doublings).min(MAX_RETRY_DELAY)
}

const FINISHED: &str = "status IN ('ready', 'failed')";

/// Returns the condition that a group has pending or running thumbnails.
pub(crate) fn unfinished_in_group(group_key: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM thumbnails WHERE thumbnails.group_key = {group_key}
            AND thumbnails.status IN ('pending', 'running'))"
    )
}

/// Deletes the finished thumbnails of a group. Returns the paths of their files.
pub(crate) fn remove_finished(db: &Db<'_>, group_key: &str) -> Result<Vec<String>> {
    let sql = format!("DELETE FROM thumbnails WHERE group_key = ?1 AND {FINISHED} RETURNING output_relpath");
    let paths: Vec<Option<String>> = db.rows(&sql, [group_key], |row| row.get(0))?;
    Ok(paths.into_iter().flatten().collect())
}

fn by_key(db: &Db<'_>, thumb_key: &str) -> Result<Option<ThumbnailRow>> {
    db.first("SELECT * FROM thumbnails WHERE thumb_key = ?1", [thumb_key], ThumbnailRow::read)
}

fn require_by_key(db: &Db<'_>, thumb_key: &str) -> Result<ThumbnailRow> {
    by_key(db, thumb_key)?.ok_or_else(|| Error::not_found("thumbnail", thumb_key))
}
