//! Claims pending tasks: order, limits, and the treatment of tasks whose worker died.

use std::sync::Arc;

use super::{ClaimBatch, ClaimRequest, ClaimedTask, LEASE_RULES, ReplacementClaim, TaskFailure, TaskStatus};
use crate::dead_letters;
use crate::error::Result;
use crate::lease::{DueRows, Token};
use crate::sqlite::{Db, Row, SqlError, SqlResult, ToSql};
use crate::time::UtcTime;

/// Claims the requested tasks, then replacements that are more urgent than the tasks that the worker holds.
pub(super) fn claim_all(
    db: &Db<'_>,
    requests: &[ClaimRequest],
    replacements: &[ReplacementClaim],
    batch: &mut ClaimBatch,
) -> Result<()> {
    promote(db)?;
    let mut found_fewer = false;
    for request in requests {
        let already_claimed = batch.claimed.iter().rev().take_while(|task| task.token == request.token).count();
        let rest = request.limit.saturating_sub(already_claimed);
        let found = claim_within(db, &without_claimed(request, batch), rest, None)?;
        let count = found.len();
        batch.claimed.extend(found);
        found_fewer |= count < rest;
    }
    for ReplacementClaim { claim: request, above_priority } in replacements {
        let already_claimed = batch.replacements.iter().rev().take_while(|task| task.token == request.token).count();
        let rest = request.limit.saturating_sub(already_claimed);
        let found = claim_within(db, &without_claimed(request, batch), rest, *above_priority)?;
        batch.replacements.extend(found);
    }
    if found_fewer {
        let sql = "SELECT run_after FROM tasks WHERE status = 'scheduled' ORDER BY run_after LIMIT 1";
        // Timestamps that cannot be parsed are ignored.
        batch.next_due = db.first(sql, [], |row| row.get::<_, String>(0))?.and_then(|text| UtcTime::parse(&text));
    }
    Ok(())
}

/// Reduces a request's limits by the tasks with crashes that the same batch has claimed for other queues, kinds or
/// replacements: they run in the same process.
fn without_claimed(request: &ClaimRequest, batch: &ClaimBatch) -> ClaimRequest {
    let claimed = || batch.claimed.iter().chain(&batch.replacements);
    let crashed_often = claimed().filter(|task| task.crashes > 1).count();
    let crashed_once = claimed()
        .filter(|task| *task.kind == *request.kind && task.crashes < 2 && task.crashes + task.abandoned > 0)
        .count();
    let (max_crashed_often, max_crashed_once) = (
        request.max_crashed_often.saturating_sub(crashed_often),
        request.max_crashed_once.saturating_sub(crashed_once),
    );
    ClaimRequest { max_crashed_often, max_crashed_once, ..request.clone() }
}

/// Makes scheduled tasks that are due pending. They stay pending if the clock is set back.
fn promote(db: &Db<'_>) -> Result<()> {
    let sql = "UPDATE tasks SET status = count_status('pending', status, queue, kind), run_after = NULL
        WHERE status = 'scheduled' AND run_after <= ?1";
    db.execute(sql, [db.now()]).map(drop)
}

/// Condition for tasks whose worker died, as the index `ix_tasks_suspicious` has it.
macro_rules! suspicious {
    ($and:literal) => {
        concat!("(crashes > 0 OR abandoned > 0) AND ", $and)
    };
}

/// Claims up to `limit` tasks, most urgent first, and among them at most the requested number of tasks whose worker
/// died: if they crash their worker again, few others are affected. `above_priority`: only tasks of a higher priority.
fn claim_within(
    db: &Db<'_>,
    request: &ClaimRequest,
    limit: usize,
    above_priority: Option<i32>,
) -> Result<Vec<ClaimedTask>> {
    if request.max_crashed_once >= limit && request.max_crashed_often >= limit || !has_suspicious(db, request)? {
        return claim(db, request, "true", limit, above_priority);
    }
    let mut claimed: Vec<ClaimedTask> = Vec::new();
    let mut claim_class = |which: &str, max: usize| -> Result<usize> {
        let rest = max.min(limit - claimed.len());
        let found = if rest > 0 { claim(db, request, which, rest, above_priority)? } else { Vec::new() };
        let count = found.len();
        claimed.extend(found);
        Ok(count)
    };
    // First those of the highest priority, so that they are not starved by others; then those of lower priority.
    let crashed_often = claim_class(suspicious!("crashes > 1 AND is_urgent"), request.max_crashed_often)?;
    let crashed_once = claim_class(suspicious!("crashes < 2 AND is_urgent"), request.max_crashed_once)?;
    claim_class("crashes = 0 AND abandoned = 0", limit)?;
    claim_class(suspicious!("crashes > 1"), request.max_crashed_often - crashed_often)?;
    claim_class(suspicious!("crashes < 2"), request.max_crashed_once - crashed_once)?;
    claimed.sort_unstable_by_key(|task| (-i64::from(task.priority), task.id));
    Ok(claimed)
}

/// Returns whether any requested task lost its worker. Rarely true, so it is checked first.
fn has_suspicious(db: &Db<'_>, request: &ClaimRequest) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tasks INDEXED BY ix_tasks_suspicious
        WHERE status = 'pending' AND (crashes > 0 OR abandoned > 0) AND queue = ?1 AND kind = ?2)";
    Ok(db.number(sql, (&request.queue, &request.kind))? != 0)
}

/// Condition: at least as urgent as the first task without crashes.
const IS_URGENT: &str = "priority >= coalesce((SELECT others.priority FROM tasks AS others
    WHERE others.status = 'pending' AND others.queue = ?5 AND others.kind = ?6
        AND others.crashes = 0 AND others.abandoned = 0
    ORDER BY others.priority DESC LIMIT 1), -2147483648)";

/// Claims tasks for which `which` is true. A row that cannot be read becomes a dead letter and is not claimed again.
fn claim(
    db: &Db<'_>,
    request: &ClaimRequest,
    which: &str,
    limit: usize,
    above_priority: Option<i32>,
) -> Result<Vec<ClaimedTask>> {
    let which = which.replace("is_urgent", IS_URGENT);
    let higher = if above_priority.is_some() { " AND priority > ?7" } else { "" };
    let ids = format!(
        "SELECT id FROM tasks WHERE status = 'pending' AND queue = ?5 AND kind = ?6{higher} AND {which}
            AND (run_after IS NULL OR run_after <= ?1) ORDER BY priority DESC, id"
    );
    let columns = "id, payload, priority, attempts, max_attempts, crashes, failed_step, document_id, starts, abandoned";
    let (kind, queue): (Arc<str>, Arc<str>) = (request.kind.as_str().into(), request.queue.as_str().into());
    let read = |row: &Row<'_>| -> SqlResult<ClaimedTask> {
        Ok(ClaimedTask {
            id: row.get(0)?,
            kind: kind.clone(),
            queue: queue.clone(),
            payload: row.get(1)?,
            priority: row.get(2)?,
            attempts: row.get(3)?,
            max_attempts: row.get(4)?,
            crashes: row.get(5)?,
            failed_step: row.get(6)?,
            document_id: row.get(7)?,
            starts: row.get(8)?,
            abandoned: row.get(9)?,
            token: request.token.clone(),
        })
    };
    let id_and_task = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, read(row)));
    let mut claimed = Vec::new();
    loop {
        let rest = remaining_capacity(db, request, limit - claimed.len())?;
        let mut params: Vec<&dyn ToSql> = vec![&request.queue, &request.kind];
        if let Some(above_priority) = &above_priority {
            params.push(above_priority);
        }
        let due = DueRows { ids: &ids, params: &params, limit: rest };
        let found = LEASE_RULES.claim(db, (&request.token, request.lease), &due, columns, id_and_task)?;
        let (running, name) = (Some(TaskStatus::Running), (request.queue.as_str(), request.kind.as_str()));
        db.count_tasks(name, Some(TaskStatus::Pending), running, found.len());
        let readable = found.iter().all(|(_, task)| task.is_ok());
        for (id, task) in found {
            match task {
                Ok(task) => claimed.push(task),
                Err(error) => dead_letter_unreadable(db, id, &request.token, &error)?,
            }
        }
        // Further tasks are claimed in place of those that became dead letters.
        if readable {
            break;
        }
    }
    // RETURNING does not guarantee an order.
    claimed.sort_unstable_by_key(|task| (-i64::from(task.priority), task.id));
    Ok(claimed)
}

fn dead_letter_unreadable(db: &Db<'_>, id: i64, token: &Token, error: &SqlError) -> Result<()> {
    tracing::error!(task = id, %error, "cannot read a task row; it becomes a dead letter");
    let failure = TaskFailure { reason: format!("cannot read the row: {error}"), step: None, ..TaskFailure::default() };
    let sets = "status = count_status('failed', status, queue, kind), finished_at = ?1, error_message = ?4";
    LEASE_RULES.finish(db, &id, token, sets, &[&failure.reason])?;
    dead_letters::insert_for_task(db, id, &failure).map(drop)
}

/// Returns `limit`, reduced so that at most `max_running` tasks of the kind run.
fn remaining_capacity(db: &Db<'_>, request: &ClaimRequest, limit: usize) -> Result<usize> {
    let Some(max_running) = request.max_running else { return Ok(limit) };
    let sql = "SELECT count(*) FROM tasks INDEXED BY ix_tasks_running WHERE status = 'running' AND kind = ?1";
    let running = usize::try_from(db.number(sql, [&request.kind])?).unwrap_or(usize::MAX);
    Ok(limit.min(max_running.saturating_sub(running)))
}
