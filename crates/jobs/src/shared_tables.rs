//! The tables of the protocol, which other programs share: how the rows of each are claimed, renewed and finished.

use gristmill_pool::TaskError;
use gristmill_store::Error;
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::jobs::JobRow;
use gristmill_store::thumbnails::{ThumbLimits, ThumbOutcome, ThumbnailRow};
use gristmill_store::wal::WalRow;

use crate::leased_table::{Handler, Table};

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
pub(crate) fn jobs(handler: Handler<JobRow, ()>) -> Table<JobRow, ()> {
    Table {
        name: "jobs",
        workers: 1,
        id: |row| row.id.clone(),
        recover: |store, held| store.jobs().recover_by(held),
        claim: Box::new(|store, token, lease| store.jobs().claim(token, lease)),
        heartbeat: Some(|store, claim, lease| {
            let (items, part) = claim.progress();
            store.jobs().heartbeat(&claim.row.id, &claim.token, lease, part, items)
        }),
        is_held: |store, claim| match store.jobs().get(&claim.row.id) {
            Err(Error::NotFound(_)) => Ok(false),
            job => job.map(|job| job.worker_id.as_deref() == Some(claim.token.as_str()) && !job.status.is_terminal()),
        },
        handler,
        finish: |store, claim, result| store.jobs().finish(&claim.row.id, &claim.token, outcome(result)).map(drop),
        release: |store, claim| store.jobs().release(&claim.row.id, &claim.token).map(drop),
    }
}

/// Thumbnails, with a limit for images and one for videos.
pub(crate) fn thumbnails(
    limits: ThumbLimits,
    handler: Handler<ThumbnailRow, ThumbnailInfo>,
) -> Table<ThumbnailRow, ThumbnailInfo> {
    Table {
        name: "thumbnails",
        workers: (limits.image as usize).saturating_add(limits.video as usize).max(1),
        id: |row| row.id.to_string(),
        recover: |store, held| store.thumbnails().recover_by(held),
        claim: Box::new(move |store, token, lease| store.thumbnails().claim(token, lease, limits)),
        heartbeat: Some(|store, claim, lease| store.thumbnails().heartbeat(claim.row.id, &claim.token, lease)),
        is_held: |_, _| Ok(true),
        handler,
        finish: |store, claim, result| {
            let outcome = match result {
                Ok(ThumbnailInfo { width, height, bytes_size }) => {
                    ThumbOutcome::Ready { width: *width, height: *height, bytes_size: *bytes_size }
                }
                Err(error) => ThumbOutcome::Failed { code: code(error), message: error.to_string() },
            };
            store.thumbnails().finish(claim.row.id, &claim.token, outcome).map(drop)
        },
        release: |store, claim| store.thumbnails().release(claim.row.id, &claim.token).map(drop),
    }
}

/// The protocol's error code: the step that the handler named if it begins with `THUMB_`, otherwise a general one.
fn code(error: &TaskError) -> String {
    let named = error.step().filter(|step| step.starts_with("THUMB_"));
    named.unwrap_or("THUMB_GENERATION_FAILED").to_owned()
}

/// Clean-ups of groups of thumbnails, one group at a time.
pub(crate) fn cleanups(handler: Handler<CleanupRow, ()>) -> Table<CleanupRow, ()> {
    Table {
        name: "thumbnail_cleanup_jobs",
        workers: 1,
        id: |row| row.id.to_string(),
        recover: |store, held| store.cleanups().recover_by(held),
        claim: Box::new(|store, token, lease| store.cleanups().claim(token, lease)),
        // Deleting files takes much less time than a lease. A lost claim is detected when the row is finished.
        heartbeat: None,
        is_held: |_, _| Ok(true),
        handler,
        finish: |store, claim, result| store.cleanups().finish(claim.row.id, &claim.token, outcome(result)).map(drop),
        release: |store, claim| store.cleanups().release(claim.row.id, &claim.token).map(drop),
    }
}

/// WAL checkpoints that another program requested: the store makes them and stores their results.
pub(crate) fn wal_checkpoints() -> Table<WalRow, ()> {
    Table {
        name: "wal_maintenance_jobs",
        workers: 1,
        id: |row| row.id.to_string(),
        recover: |store, held| store.wal().recover_by(held),
        claim: Box::new(|store, token, lease| store.wal().claim(token, lease)),
        // A checkpoint waits for at most the busy timeout.
        heartbeat: None,
        is_held: |_, _| Ok(true),
        handler: Box::new(|context| {
            let written = context.store().wal().run(context.row(), context.token());
            written.map(drop).map_err(TaskError::transient)
        }),
        finish: |_, _, result| {
            if let Err(error) = result {
                tracing::warn!(%error, "cannot store the result of a WAL checkpoint; it is retried when its lease expires");
            }
            Ok(())
        },
        release: |store, claim| store.wal().release(claim.row.id, &claim.token).map(drop),
    }
}

fn outcome(result: Result<&(), &TaskError>) -> Result<(), String> {
    result.copied().map_err(ToString::to_string)
}
