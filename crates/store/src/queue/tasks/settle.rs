//! Applies the updates that workers report for their tasks.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::{Disposition, LEASE_RULES, TaskUpdate, UpdateResult, cancel};
use crate::checkpoints;
use crate::dead_letters;
use crate::error::{Error, Result};
use crate::failures;
use crate::lease;
use crate::sqlite::Db;

/// Also records a start that was not recorded before the task ended; its time is that of the last heartbeat or claim.
macro_rules! with_start {
    ($sets:literal) => {
        concat!(
            $sets,
            ", starts = starts + (started_at IS NULL), started_at = coalesce(started_at, worker_heartbeat_at)"
        )
    };
}

/// Statement of most updates, built once.
static COMPLETE: LazyLock<String> = LazyLock::new(|| {
    LEASE_RULES.finish_sql(with_start!(
        "status = count_status('completed', status, queue, kind), finished_at = ?1, result = ?4"
    ))
});

/// Statement for tasks of one claim that completed without a result; ?2 is a JSON array of ids.
static COMPLETE_MANY: LazyLock<String> = LazyLock::new(|| {
    LEASE_RULES.finish_many_sql(with_start!(
        "status = count_status('completed', status, queue, kind), finished_at = ?1, result = NULL"
    ))
});

/// Maximum number of tasks that one statement completes, which bounds the list of ids.
const MAX_IDS_PER_STATEMENT: usize = 256;

/// How completions without a result are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completions {
    /// One statement for all tasks of a claim, at less than half the cost. Fails if the caller lost one of them.
    Grouped,
    /// One statement for each task.
    Individual,
}

const LOST_COMPLETION: &str = "the caller no longer owns a completed task";

/// Returns whether a batch failed only because grouped completions could not be written.
pub(super) fn is_lost_completion(error: &Error) -> bool {
    matches!(error, Error::Conflict(text) if text == LOST_COMPLETION)
}

/// Applies updates and returns their results in order.
pub(super) fn settle_all(db: &Db<'_>, updates: &[TaskUpdate], completions: Completions) -> Result<Vec<UpdateResult>> {
    let mut results = vec![UpdateResult::Done; updates.len()];
    let mut grouped: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (update, result) in updates.iter().zip(&mut results) {
        let can_group = update.disposition == Disposition::Completed(None) && !update.checkpointed;
        if can_group && completions == Completions::Grouped {
            grouped.entry(update.token.as_str()).or_default().push(update.id);
        } else {
            *result = settle(db, update)?;
        }
    }
    for (token, ids) in grouped {
        for ids in ids.chunks(MAX_IDS_PER_STATEMENT) {
            let count = db.execute(&COMPLETE_MANY, (db.now(), format!("{ids:?}"), token))?;
            if count < ids.len() {
                return Err(Error::Conflict(LOST_COMPLETION.to_owned()));
            }
        }
    }
    Ok(results)
}

fn settle(db: &Db<'_>, update: &TaskUpdate) -> Result<UpdateResult> {
    let TaskUpdate { id, token, disposition, checkpointed } = update;
    let failed = match disposition {
        Disposition::Retry(_, failure) | Disposition::DeadLettered(failure) => Some(failure.reason.as_str()),
        _ => None,
    };
    if !matches!(disposition, Disposition::Completed(_)) && cancel::settle(db, *id, token, failed)? {
        return Ok(UpdateResult::Cancelled);
    }
    let done = match disposition {
        Disposition::Completed(result) => lease::execute_finish(db, &COMPLETE, id, token, &[result])?,
        Disposition::Retry(at, failure) => {
            let sets = with_start!(
                "status = count_status('scheduled', status, queue, kind), attempts = attempts + 1, run_after = ?4, last_failed_at = ?1,
                first_failed_at = coalesce(first_failed_at, ?1), error_message = ?5, failed_step = ?6"
            );
            let at = at.to_string();
            let done = LEASE_RULES.finish(db, id, token, sets, &[&at, &failure.reason, &failure.step])?;
            if done {
                failures::record(db, *id, failure)?;
            }
            done
        }
        Disposition::DeadLettered(failure) => {
            let sets = with_start!(
                "status = count_status('failed', status, queue, kind), attempts = attempts + 1, finished_at = ?1, last_failed_at = ?1,
                first_failed_at = coalesce(first_failed_at, ?1), error_message = ?4, failed_step = ?5"
            );
            if !LEASE_RULES.finish(db, id, token, sets, &[&failure.reason, &failure.step])? {
                return Ok(UpdateResult::Lost);
            }
            failures::record(db, *id, failure)?;
            return dead_letters::insert_for_task(db, *id, failure).map(UpdateResult::DeadLettered);
        }
        Disposition::Released => {
            LEASE_RULES.release(db, id, token, "status = count_status('pending', status, queue, kind)")?
        }
        Disposition::Postponed(at) => {
            let at = at.to_string();
            let sets = "status = count_status('scheduled', status, queue, kind), run_after = ?4";
            LEASE_RULES.finish(db, id, token, sets, &[&at])?
        }
    };
    if done && *checkpointed && matches!(disposition, Disposition::Completed(_)) {
        checkpoints::delete(db, *id)?;
    }
    Ok(if done { UpdateResult::Done } else { UpdateResult::Lost })
}
