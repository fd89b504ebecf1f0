//! Settling tasks: what a worker's verdict makes of the row.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::{Disposition, LEASED, TaskUpdate, UpdateResult, cancel};
use crate::checkpoints;
use crate::db::Db;
use crate::dead_letters;
use crate::error::{Error, Result};
use crate::failures;
use crate::lease;

/// Records a start that was not recorded before its task ended: soon after the claim.
macro_rules! had_started {
    ($sets:literal) => {
        concat!(
            $sets,
            ", starts = starts + (started_at IS NULL), started_at = coalesce(started_at, worker_heartbeat_at)"
        )
    };
}

/// What most tasks come to; made once.
static COMPLETE: LazyLock<String> =
    LazyLock::new(|| LEASED.finishing(had_started!("status = 'completed', finished_at = ?1, result = ?4")));

/// The statement for many tasks of one claim that were completed without a result; ?2 is a JSON array of ids.
static COMPLETE_TOGETHER: LazyLock<String> = LazyLock::new(|| {
    LEASED.finishing_all(had_started!("status = 'completed', finished_at = ?1, result = NULL"))
});

/// The most tasks that one statement completes: the list of their ids stays a small allocation.
const TOGETHER: usize = 256;

/// How tasks that were completed without a result are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completions {
    /// By one statement for those of a claim, which costs less than half as much. Fails if one of them is not the
    /// caller's any more.
    Together,
    /// One by one.
    Apart,
}

/// Why completions could not be written together.
const LOST: &str = "a completed task is not the caller's any more";

/// Whether a visit failed only because completions could not be written together.
pub(super) fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Conflict(text) if text == LOST)
}

/// Settles tasks.
pub(super) fn settle_all(
    db: &Db<'_>,
    settlements: &[TaskUpdate],
    completions: Completions,
) -> Result<Vec<UpdateResult>> {
    let mut settled = vec![UpdateResult::Done; settlements.len()];
    let mut together: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (settlement, settled) in settlements.iter().zip(&mut settled) {
        let is_plain = settlement.disposition == Disposition::Completed(None) && !settlement.checkpointed;
        if is_plain && completions == Completions::Together {
            together.entry(settlement.token.as_str()).or_default().push(settlement.id);
        } else {
            *settled = settle(db, settlement)?;
        }
    }
    for (token, ids) in together {
        for ids in ids.chunks(TOGETHER) {
            let count = db.execute(&COMPLETE_TOGETHER, (db.now(), format!("{ids:?}"), token))?;
            if count < ids.len() {
                return Err(Error::Conflict(LOST.to_owned()));
            }
        }
    }
    Ok(settled)
}

fn settle(db: &Db<'_>, settlement: &TaskUpdate) -> Result<UpdateResult> {
    let TaskUpdate { id, token, disposition: verdict, checkpointed } = settlement;
    let failed = match verdict {
        Disposition::Retry(_, failure) | Disposition::DeadLettered(failure) => Some(failure.reason.as_str()),
        _ => None,
    };
    if !matches!(verdict, Disposition::Completed(_)) && cancel::settle(db, *id, token, failed)? {
        return Ok(UpdateResult::Cancelled);
    }
    let done = match verdict {
        Disposition::Completed(result) => lease::finish_by(db, &COMPLETE, id, token, &[result])?,
        Disposition::Retry(at, failure) => {
            let sets = had_started!(
                "status = 'scheduled', attempts = attempts + 1, run_after = ?4, last_failed_at = ?1,
                first_failed_at = coalesce(first_failed_at, ?1), error_message = ?5, failed_step = ?6"
            );
            let at = at.to_string();
            let done = LEASED.finish(db, id, token, sets, &[&at, &failure.reason, &failure.step])?;
            if done {
                failures::record(db, *id, failure)?;
            }
            done
        }
        Disposition::DeadLettered(failure) => {
            let sets = had_started!(
                "status = 'failed', attempts = attempts + 1, finished_at = ?1, last_failed_at = ?1,
                first_failed_at = coalesce(first_failed_at, ?1), error_message = ?4, failed_step = ?5"
            );
            if !LEASED.finish(db, id, token, sets, &[&failure.reason, &failure.step])? {
                return Ok(UpdateResult::Lost);
            }
            failures::record(db, *id, failure)?;
            return dead_letters::bury(db, *id, failure).map(UpdateResult::DeadLettered);
        }
        Disposition::Released => LEASED.release(db, id, token, "status = 'pending'")?,
        Disposition::Postponed(at) => {
            let at = at.to_string();
            LEASED.finish(db, id, token, "status = 'scheduled', run_after = ?4", &[&at])?
        }
    };
    if done && *checkpointed && matches!(verdict, Disposition::Completed(_)) {
        checkpoints::forget(db, *id)?;
    }
    Ok(if done { UpdateResult::Done } else { UpdateResult::Lost })
}
