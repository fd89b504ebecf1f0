//! The tables of the protocol, which other programs share: how the rows of each are claimed, renewed and finished.

use std::time::Duration;

use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::jobs::JobRow;
use gristmill_store::lease::{HeartbeatResult, HeldLeases, Token};
use gristmill_store::thumbnails::{ThumbLimits, ThumbOutcome, ThumbnailRow};
use gristmill_store::wal::WalRow;
use gristmill_store::{Error, Store};

use crate::leased_table::{LeasedRows, RowClaim, RowContext};

pub(crate) type Handler<R, M> = Box<dyn Fn(&RowContext<'_, R>) -> TaskResult<M> + Send + Sync>;

/// Dimensions and size of a created thumbnail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThumbnailInfo {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Size of the thumbnail's file in bytes.
    pub bytes_size: u64,
}

/// Scan and hash jobs, one at a time.
pub(crate) struct Jobs(pub(crate) Handler<JobRow, ()>);

impl LeasedRows for Jobs {
    type Row = JobRow;
    type Output = ();

    fn workers(&self) -> usize {
        1
    }

    fn name(&self) -> &'static str {
        "jobs"
    }

    fn id(row: &JobRow) -> String {
        row.id.clone()
    }

    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error> {
        store.jobs().recover_by(held)
    }

    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<JobRow>, Error> {
        store.jobs().claim(token, lease)
    }

    fn heartbeat(&self, store: &Store, claim: &RowClaim<JobRow>, lease: Duration) -> Result<HeartbeatResult, Error> {
        let (items, part) = claim.progress();
        store.jobs().heartbeat(&claim.row.id, &claim.token, lease, part, items)
    }

    fn run(&self, context: &RowContext<'_, JobRow>, _: &Token) -> TaskResult<()> {
        (self.0)(context)
    }

    fn is_held(&self, store: &Store, claim: &RowClaim<JobRow>) -> Result<bool, Error> {
        match store.jobs().get(&claim.row.id) {
            Err(Error::NotFound(_)) => Ok(false),
            job => job.map(|job| job.worker_id.as_deref() == Some(claim.token.as_str()) && !job.status.is_terminal()),
        }
    }

    fn finish(&self, store: &Store, claim: &RowClaim<JobRow>, result: &TaskResult<()>) -> Result<(), Error> {
        store.jobs().finish(&claim.row.id, &claim.token, outcome(result)).map(drop)
    }

    fn release(&self, store: &Store, claim: &RowClaim<JobRow>) -> Result<(), Error> {
        store.jobs().release(&claim.row.id, &claim.token).map(drop)
    }
}

/// Thumbnails, with a limit for images and one for videos.
pub(crate) struct Thumbnails {
    pub(crate) handler: Handler<ThumbnailRow, ThumbnailInfo>,
    pub(crate) limits: ThumbLimits,
}

impl LeasedRows for Thumbnails {
    type Row = ThumbnailRow;
    type Output = ThumbnailInfo;

    fn workers(&self) -> usize {
        (self.limits.image as usize).saturating_add(self.limits.video as usize).max(1)
    }

    fn name(&self) -> &'static str {
        "thumbnails"
    }

    fn id(row: &ThumbnailRow) -> String {
        row.id.to_string()
    }

    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error> {
        store.thumbnails().recover_by(held)
    }

    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<ThumbnailRow>, Error> {
        store.thumbnails().claim(token, lease, self.limits)
    }

    fn heartbeat(
        &self,
        store: &Store,
        claim: &RowClaim<ThumbnailRow>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error> {
        store.thumbnails().heartbeat(claim.row.id, &claim.token, lease)
    }

    fn run(&self, context: &RowContext<'_, ThumbnailRow>, _: &Token) -> TaskResult<ThumbnailInfo> {
        (self.handler)(context)
    }

    fn finish(
        &self,
        store: &Store,
        claim: &RowClaim<ThumbnailRow>,
        result: &TaskResult<ThumbnailInfo>,
    ) -> Result<(), Error> {
        let outcome = match result {
            Ok(ThumbnailInfo { width, height, bytes_size }) => {
                ThumbOutcome::Ready { width: *width, height: *height, bytes_size: *bytes_size }
            }
            Err(error) => ThumbOutcome::Failed { code: code(error), message: error.to_string() },
        };
        store.thumbnails().finish(claim.row.id, &claim.token, outcome).map(drop)
    }

    fn release(&self, store: &Store, claim: &RowClaim<ThumbnailRow>) -> Result<(), Error> {
        store.thumbnails().release(claim.row.id, &claim.token).map(drop)
    }
}

/// The protocol's error code: the step that the handler named if it begins with `THUMB_`, otherwise a general one.
fn code(error: &TaskError) -> String {
    let named = error.step().filter(|step| step.starts_with("THUMB_"));
    named.unwrap_or("THUMB_GENERATION_FAILED").to_owned()
}

/// Clean-ups of groups of thumbnails, one group at a time.
pub(crate) struct Cleanups(pub(crate) Handler<CleanupRow, ()>);

impl LeasedRows for Cleanups {
    type Row = CleanupRow;
    type Output = ();

    fn workers(&self) -> usize {
        1
    }

    fn name(&self) -> &'static str {
        "thumbnail_cleanup_jobs"
    }

    fn has_heartbeat(&self) -> bool {
        false
    }

    fn id(row: &CleanupRow) -> String {
        row.id.to_string()
    }

    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error> {
        store.cleanups().recover_by(held)
    }

    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<CleanupRow>, Error> {
        store.cleanups().claim(token, lease)
    }

    /// Does nothing, because the protocol has no heartbeat for clean-ups: deleting files takes much less time than a
    /// lease. A lost claim is detected when the row is finished.
    fn heartbeat(&self, _: &Store, _: &RowClaim<CleanupRow>, _: Duration) -> Result<HeartbeatResult, Error> {
        Ok(HeartbeatResult::Kept)
    }

    fn run(&self, context: &RowContext<'_, CleanupRow>, _: &Token) -> TaskResult<()> {
        (self.0)(context)
    }

    fn finish(&self, store: &Store, claim: &RowClaim<CleanupRow>, result: &TaskResult<()>) -> Result<(), Error> {
        store.cleanups().finish(claim.row.id, &claim.token, outcome(result)).map(drop)
    }

    fn release(&self, store: &Store, claim: &RowClaim<CleanupRow>) -> Result<(), Error> {
        store.cleanups().release(claim.row.id, &claim.token).map(drop)
    }
}

/// WAL checkpoints that another program requested. They have no handler: the store makes them and stores their results.
pub(crate) struct WalCheckpoints;

impl LeasedRows for WalCheckpoints {
    type Row = WalRow;
    type Output = ();

    fn workers(&self) -> usize {
        1
    }

    fn name(&self) -> &'static str {
        "wal_maintenance_jobs"
    }

    fn has_heartbeat(&self) -> bool {
        false
    }

    fn id(row: &WalRow) -> String {
        row.id.to_string()
    }

    fn recover(&self, store: &Store, held: HeldLeases) -> Result<usize, Error> {
        store.wal().recover_by(held)
    }

    fn claim(&self, store: &Store, token: &Token, lease: Duration) -> Result<Option<WalRow>, Error> {
        store.wal().claim(token, lease)
    }

    /// Does nothing, because the protocol has no heartbeat for checkpoints: one waits for at most the busy timeout.
    fn heartbeat(&self, _: &Store, _: &RowClaim<WalRow>, _: Duration) -> Result<HeartbeatResult, Error> {
        Ok(HeartbeatResult::Kept)
    }

    fn run(&self, context: &RowContext<'_, WalRow>, token: &Token) -> TaskResult<()> {
        context.store().wal().run(context.row(), token).map(drop).map_err(TaskError::transient)
    }

    fn finish(&self, _: &Store, _: &RowClaim<WalRow>, result: &TaskResult<()>) -> Result<(), Error> {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot store the result of a WAL checkpoint; it is retried when its lease expires");
        }
        Ok(())
    }

    fn release(&self, store: &Store, claim: &RowClaim<WalRow>) -> Result<(), Error> {
        store.wal().release(claim.row.id, &claim.token).map(drop)
    }
}

fn outcome(result: &TaskResult<()>) -> Result<(), String> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
