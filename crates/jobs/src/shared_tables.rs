//! What each table of the protocol does differently: how its rows are claimed, kept and finished.

use std::time::Duration;

use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::jobs::JobRow;
use gristmill_store::lease::{HeartbeatResult, HeldLeases, Token};
use gristmill_store::thumbnails::{ThumbLimits, ThumbOutcome, ThumbnailRow};
use gristmill_store::wal::WalRow;
use gristmill_store::{Error, Store};

use crate::leased_table::{ClaimedRow, LeasedRows, RowContext};

/// Runs a row and says what it made.
pub(crate) type Handler<R, M> = Box<dyn Fn(&RowContext<'_, R>) -> TaskResult<M> + Send + Sync>;

/// A thumbnail that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThumbnailInfo {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// The size of its file.
    pub bytes_size: u64,
}

/// Scan and hash jobs: one at a time.
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

    fn heartbeat(
        &self,
        store: &Store,
        claimed: &ClaimedRow<JobRow>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error> {
        let (items, part) = claimed.progress();
        store.jobs().heartbeat(&claimed.row.id, &claimed.token, lease, part, items)
    }

    fn run(&self, context: &RowContext<'_, JobRow>, _: &Token) -> TaskResult<()> {
        (self.0)(context)
    }

    fn is_held(&self, store: &Store, claimed: &ClaimedRow<JobRow>) -> Result<bool, Error> {
        match store.jobs().get(&claimed.row.id) {
            Err(Error::NotFound(_)) => Ok(false),
            job => job.map(|job| {
                job.worker_id.as_deref() == Some(claimed.token.as_str()) && !job.status.is_terminal()
            }),
        }
    }

    fn finish(
        &self,
        store: &Store,
        claimed: &ClaimedRow<JobRow>,
        result: &TaskResult<()>,
    ) -> Result<(), Error> {
        store.jobs().finish(&claimed.row.id, &claimed.token, outcome(result)).map(drop)
    }

    fn release(&self, store: &Store, claimed: &ClaimedRow<JobRow>) -> Result<(), Error> {
        store.jobs().release(&claimed.row.id, &claimed.token).map(drop)
    }
}

/// Thumbnails, images and videos each within their limit.
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
        claimed: &ClaimedRow<ThumbnailRow>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error> {
        store.thumbnails().heartbeat(claimed.row.id, &claimed.token, lease)
    }

    fn run(&self, context: &RowContext<'_, ThumbnailRow>, _: &Token) -> TaskResult<ThumbnailInfo> {
        (self.handler)(context)
    }

    fn finish(
        &self,
        store: &Store,
        claimed: &ClaimedRow<ThumbnailRow>,
        result: &TaskResult<ThumbnailInfo>,
    ) -> Result<(), Error> {
        let outcome = match result {
            Ok(ThumbnailInfo { width, height, bytes_size }) => {
                ThumbOutcome::Ready { width: *width, height: *height, bytes_size: *bytes_size }
            }
            Err(error) => ThumbOutcome::Failed { code: code(error), message: error.to_string() },
        };
        store.thumbnails().finish(claimed.row.id, &claimed.token, outcome).map(drop)
    }

    fn release(&self, store: &Store, claimed: &ClaimedRow<ThumbnailRow>) -> Result<(), Error> {
        store.thumbnails().release(claimed.row.id, &claimed.token).map(drop)
    }
}

/// The step that a handler names becomes the protocol's code, if it is one.
fn code(error: &TaskError) -> String {
    let named = error.step().filter(|step| step.starts_with("THUMB_"));
    named.unwrap_or("THUMB_GENERATION_FAILED").to_owned()
}

/// Clean-up of thumbnails, a group at a time.
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

    /// The protocol has no heartbeat for it: deleting some files is over long before a lease is. Whether the row
    /// is still ours is seen when it is finished.
    fn heartbeat(
        &self,
        _: &Store,
        _: &ClaimedRow<CleanupRow>,
        _: Duration,
    ) -> Result<HeartbeatResult, Error> {
        Ok(HeartbeatResult::Kept)
    }

    fn run(&self, context: &RowContext<'_, CleanupRow>, _: &Token) -> TaskResult<()> {
        (self.0)(context)
    }

    fn finish(
        &self,
        store: &Store,
        claimed: &ClaimedRow<CleanupRow>,
        result: &TaskResult<()>,
    ) -> Result<(), Error> {
        store.cleanups().finish(claimed.row.id, &claimed.token, outcome(result)).map(drop)
    }

    fn release(&self, store: &Store, claimed: &ClaimedRow<CleanupRow>) -> Result<(), Error> {
        store.cleanups().release(claimed.row.id, &claimed.token).map(drop)
    }
}

/// Care of the log: checkpoints that somebody asked for. No handler: the store makes them itself, and writes
/// down what came of them.
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

    /// None in the protocol: a checkpoint waits for others no longer than the busy timeout.
    fn heartbeat(&self, _: &Store, _: &ClaimedRow<WalRow>, _: Duration) -> Result<HeartbeatResult, Error> {
        Ok(HeartbeatResult::Kept)
    }

    fn run(&self, context: &RowContext<'_, WalRow>, token: &Token) -> TaskResult<()> {
        context.store().wal().run(context.row(), token).map(drop).map_err(TaskError::transient)
    }

    fn finish(&self, _: &Store, _: &ClaimedRow<WalRow>, result: &TaskResult<()>) -> Result<(), Error> {
        if let Err(error) = result {
            tracing::warn!(%error, "a checkpoint could not be written down; it is tried again when its lease runs out");
        }
        Ok(())
    }

    fn release(&self, store: &Store, claimed: &ClaimedRow<WalRow>) -> Result<(), Error> {
        store.wal().release(claimed.row.id, &claimed.token).map(drop)
    }
}

fn outcome(result: &TaskResult<()>) -> Result<(), String> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
