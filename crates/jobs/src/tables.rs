//! What each table of the protocol does differently: how its rows are claimed, kept and finished.

use std::time::Duration;

use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::jobs::JobRow;
use gristmill_store::lease::{HeartbeatResult, HeldLeases, Token};
use gristmill_store::thumbnails::{ThumbLimits, ThumbOutcome, ThumbnailRow};
use gristmill_store::wal::WalRow;
use gristmill_store::{Error, Store};

use crate::rows::{Flight, RowContext, Table};

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

impl Table for Jobs {
    type Row = JobRow;
    type Made = ();

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

    fn beat(
        &self,
        store: &Store,
        flight: &Flight<JobRow>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error> {
        let (items, part) = flight.progress();
        store.jobs().heartbeat(&flight.row.id, &flight.token, lease, part, items)
    }

    fn run(&self, call: &RowContext<'_, JobRow>, _: &Token) -> TaskResult<()> {
        (self.0)(call)
    }

    fn is_held(&self, store: &Store, flight: &Flight<JobRow>) -> Result<bool, Error> {
        match store.jobs().get(&flight.row.id) {
            Err(Error::NotFound(_)) => Ok(false),
            job => job.map(|job| {
                job.worker_id.as_deref() == Some(flight.token.as_str()) && !job.status.is_terminal()
            }),
        }
    }

    fn finish(&self, store: &Store, flight: &Flight<JobRow>, result: &TaskResult<()>) -> Result<(), Error> {
        store.jobs().finish(&flight.row.id, &flight.token, outcome(result)).map(drop)
    }

    fn release(&self, store: &Store, flight: &Flight<JobRow>) -> Result<(), Error> {
        store.jobs().release(&flight.row.id, &flight.token).map(drop)
    }
}

/// Thumbnails, images and videos each within their limit.
pub(crate) struct Thumbnails {
    pub(crate) handler: Handler<ThumbnailRow, ThumbnailInfo>,
    pub(crate) limits: ThumbLimits,
}

impl Table for Thumbnails {
    type Row = ThumbnailRow;
    type Made = ThumbnailInfo;

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

    fn beat(
        &self,
        store: &Store,
        flight: &Flight<ThumbnailRow>,
        lease: Duration,
    ) -> Result<HeartbeatResult, Error> {
        store.thumbnails().heartbeat(flight.row.id, &flight.token, lease)
    }

    fn run(&self, call: &RowContext<'_, ThumbnailRow>, _: &Token) -> TaskResult<ThumbnailInfo> {
        (self.handler)(call)
    }

    fn finish(
        &self,
        store: &Store,
        flight: &Flight<ThumbnailRow>,
        result: &TaskResult<ThumbnailInfo>,
    ) -> Result<(), Error> {
        let outcome = match result {
            Ok(ThumbnailInfo { width, height, bytes_size }) => {
                ThumbOutcome::Ready { width: *width, height: *height, bytes_size: *bytes_size }
            }
            Err(error) => ThumbOutcome::Failed { code: code(error), message: error.to_string() },
        };
        store.thumbnails().finish(flight.row.id, &flight.token, outcome).map(drop)
    }

    fn release(&self, store: &Store, flight: &Flight<ThumbnailRow>) -> Result<(), Error> {
        store.thumbnails().release(flight.row.id, &flight.token).map(drop)
    }
}

/// The step that a handler names becomes the protocol's code, if it is one.
fn code(error: &TaskError) -> String {
    let named = error.step().filter(|step| step.starts_with("THUMB_"));
    named.unwrap_or("THUMB_GENERATION_FAILED").to_owned()
}

/// Clean-up of thumbnails, a group at a time.
pub(crate) struct Cleanups(pub(crate) Handler<CleanupRow, ()>);

impl Table for Cleanups {
    type Row = CleanupRow;
    type Made = ();

    fn workers(&self) -> usize {
        1
    }

    fn name(&self) -> &'static str {
        "thumbnail_cleanup_jobs"
    }

    fn beats(&self) -> bool {
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
    fn beat(&self, _: &Store, _: &Flight<CleanupRow>, _: Duration) -> Result<HeartbeatResult, Error> {
        Ok(HeartbeatResult::Kept)
    }

    fn run(&self, call: &RowContext<'_, CleanupRow>, _: &Token) -> TaskResult<()> {
        (self.0)(call)
    }

    fn finish(
        &self,
        store: &Store,
        flight: &Flight<CleanupRow>,
        result: &TaskResult<()>,
    ) -> Result<(), Error> {
        store.cleanups().finish(flight.row.id, &flight.token, outcome(result)).map(drop)
    }

    fn release(&self, store: &Store, flight: &Flight<CleanupRow>) -> Result<(), Error> {
        store.cleanups().release(flight.row.id, &flight.token).map(drop)
    }
}

/// Care of the log: checkpoints that somebody asked for. No handler: the store makes them itself, and writes
/// down what came of them.
pub(crate) struct Wal;

impl Table for Wal {
    type Row = WalRow;
    type Made = ();

    fn workers(&self) -> usize {
        1
    }

    fn name(&self) -> &'static str {
        "wal_maintenance_jobs"
    }

    fn beats(&self) -> bool {
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
    fn beat(&self, _: &Store, _: &Flight<WalRow>, _: Duration) -> Result<HeartbeatResult, Error> {
        Ok(HeartbeatResult::Kept)
    }

    fn run(&self, call: &RowContext<'_, WalRow>, token: &Token) -> TaskResult<()> {
        call.store().wal().run(call.row(), token).map(drop).map_err(TaskError::transient)
    }

    fn finish(&self, _: &Store, _: &Flight<WalRow>, result: &TaskResult<()>) -> Result<(), Error> {
        if let Err(error) = result {
            tracing::warn!(%error, "a checkpoint could not be written down; it is tried again when its lease runs out");
        }
        Ok(())
    }

    fn release(&self, store: &Store, flight: &Flight<WalRow>) -> Result<(), Error> {
        store.wal().release(flight.row.id, &flight.token).map(drop)
    }
}

fn outcome(result: &TaskResult<()>) -> Result<(), String> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
