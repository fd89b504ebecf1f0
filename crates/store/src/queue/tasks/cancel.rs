//! Cancels tasks. A running task is cancelled when its run ends, and its unique key stays taken until then.
//!
//! | the task | becomes |
//! |---|---|
//! | pending, scheduled | cancelled at once |
//! | running | still running, with the time of the request; its worker ends the run |
//! | running, and its run ends with success | completed |
//! | running, and its run ends in any other way | cancelled |
//! | running, and its worker is dead or its lease has expired | cancelled by the next recovery |
//! | completed, failed, cancelled | refused |

use super::{LEASE_RULES, TaskRow};
use crate::checkpoints;
use crate::error::Result;
use crate::lease::{self, Token};
use crate::sqlite::{Db, Params, Row, params};

/// Result of a request to cancel a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The task is cancelled.
    Cancelled,
    /// A worker runs the task. It is cancelled when its run ends.
    Requested,
}

const CANCELLED: &str =
    "status = count_status('cancelled', status, queue, kind), finished_at = ?1, lease_expires_at = NULL";

pub(super) fn cancel(db: &Db<'_>, id: i64) -> Result<CancelOutcome> {
    let waiting = format!("UPDATE tasks SET {CANCELLED} WHERE id = ?2 AND status IN ('pending', 'scheduled')");
    if db.execute(&waiting, params![db.now(), id])? == 1 {
        checkpoints::delete(db, id)?;
        return Ok(CancelOutcome::Cancelled);
    }
    let running = "UPDATE tasks SET cancel_requested_at = coalesce(cancel_requested_at, ?1)
        WHERE id = ?2 AND status = 'running'";
    let count = db.execute(running, params![db.now(), id])?;
    lease::require_changed::<TaskRow>(db, count, id, "pending, scheduled or running")?;
    Ok(CancelOutcome::Requested)
}

pub(super) fn list_requested(db: &Db<'_>) -> Result<Vec<(i64, Token)>> {
    let sql = "SELECT id, worker_id FROM tasks WHERE status = 'running' AND cancel_requested_at IS NOT NULL";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?));
    let found: Vec<(i64, Option<String>)> = db.rows(sql, [], read)?;
    Ok(found.into_iter().filter_map(|(id, worker)| Some((id, Token::named(&worker?)))).collect())
}

/// Cancels a task whose run ended without success, if that was requested. `reason`: the error, if it was started and
/// failed. Returns whether it is cancelled.
pub(super) fn settle(db: &Db<'_>, id: i64, token: &Token, reason: Option<&str>) -> Result<bool> {
    let sql = format!(
        "UPDATE tasks SET {CANCELLED}, worker_heartbeat_at = ?1, error_message = coalesce(?4, error_message),
            starts = starts + (?4 IS NOT NULL AND started_at IS NULL),
            started_at = iif(?4 IS NULL, started_at, coalesce(started_at, worker_heartbeat_at))
         WHERE id = ?2 AND status = 'running' AND worker_id = ?3 AND cancel_requested_at IS NOT NULL"
    );
    let done = db.execute(&sql, params![db.now(), id, token.as_str(), reason])? == 1;
    if done {
        checkpoints::delete(db, id)?;
    }
    Ok(done)
}

/// Cancels stale tasks whose cancellation was requested, by the last recorded states of workers. Returns how many.
pub(super) fn cancel_stale(db: &Db<'_>) -> Result<usize> {
    cancel_where(db, &LEASE_RULES.stale_condition(), [db.now()])
}

/// Cancels tasks whose cancellation was requested, among those that match `which`. Returns how many.
pub(super) fn cancel_where(db: &Db<'_>, which: &str, params: impl Params) -> Result<usize> {
    let sql = format!("UPDATE tasks SET {CANCELLED} WHERE cancel_requested_at IS NOT NULL AND {which} RETURNING id");
    let cancelled: Vec<i64> = db.rows(&sql, params, |row| row.get(0))?;
    cancelled.iter().try_for_each(|id| checkpoints::delete(db, *id))?;
    Ok(cancelled.len())
}
