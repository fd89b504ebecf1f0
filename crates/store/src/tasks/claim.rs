//! Claiming tasks: which of those that wait a worker gets.

use std::sync::Arc;

use rusqlite::{Row, ToSql};

use super::{ClaimBatch, ClaimRequest, ClaimedTask, LEASED, ReplacementClaim, TaskFailure};
use crate::db::Db;
use crate::dead_letters;
use crate::error::Result;
use crate::lease::{Due, Token};
use crate::time::UtcTime;

/// Claims what is wanted, then what is more urgent than what the worker holds.
pub(super) fn claim_all(
    db: &Db<'_>,
    wanted: &[ClaimRequest],
    exchange: &[ReplacementClaim],
    turn: &mut ClaimBatch,
) -> Result<()> {
    promote(db)?;
    let mut short = false;
    for want in wanted {
        let had = turn.claimed.iter().rev().take_while(|task| task.token == want.token).count();
        let rest = want.limit.saturating_sub(had);
        let found = claim_within(db, &sparing(want, turn), rest, None)?;
        let count = found.len();
        turn.claimed.extend(found);
        short |= count < rest;
    }
    for ReplacementClaim { claim: wanted, above_priority: above } in exchange {
        let had = turn.replacements.iter().rev().take_while(|task| task.token == wanted.token).count();
        let rest = wanted.limit.saturating_sub(had);
        let found = claim_within(db, &sparing(wanted, turn), rest, *above)?;
        turn.replacements.extend(found);
    }
    if short {
        let sql = "SELECT run_after FROM tasks WHERE status = 'scheduled' ORDER BY run_after LIMIT 1";
        // A text that is no time is ignored.
        turn.next_due =
            db.first(sql, [], |row| row.get::<_, String>(0))?.and_then(|text| UtcTime::parse(&text));
    }
    Ok(())
}

/// What is wanted, without the tasks that may have killed their worker and were claimed by the same visit for other queues,
/// kinds or exchanges: they count for one process.
fn sparing(want: &ClaimRequest, turn: &ClaimBatch) -> ClaimRequest {
    let claimed = || turn.claimed.iter().chain(&turn.replacements);
    let suspects = claimed().filter(|task| task.crashes > 1).count();
    let shaken = claimed()
        .filter(|task| *task.kind == *want.kind && task.crashes < 2 && task.crashes + task.abandoned > 0)
        .count();
    let (suspect, shaken) =
        (want.max_crashed_often.saturating_sub(suspects), want.max_crashed_once.saturating_sub(shaken));
    ClaimRequest { max_crashed_often: suspect, max_crashed_once: shaken, ..want.clone() }
}

/// What was scheduled and is due becomes pending, and stays so if the clock is set back.
fn promote(db: &Db<'_>) -> Result<()> {
    let sql = "UPDATE tasks SET status = 'pending', run_after = NULL
        WHERE status = 'scheduled' AND run_after <= ?1";
    db.execute(sql, [db.now()]).map(drop)
}

/// Pending tasks whose worker has died, as the index `ix_tasks_suspicious` has them.
macro_rules! suspicious {
    ($and:literal) => {
        concat!("(crashes > 0 OR abandoned > 0) AND ", $and)
    };
}

/// Claims up to `limit` tasks, most urgent first, and among them no more than is wanted of those that may have killed
/// their worker: if they do so again, few others should be with them. `above`: only of a higher priority.
fn claim_within(
    db: &Db<'_>,
    want: &ClaimRequest,
    limit: usize,
    above: Option<i32>,
) -> Result<Vec<ClaimedTask>> {
    if want.max_crashed_once >= limit && want.max_crashed_often >= limit || !has_suspicious(db, want)? {
        return claim(db, want, "true", limit, above);
    }
    let mut claimed: Vec<ClaimedTask> = Vec::new();
    let mut claim_class = |which: &str, most: usize| -> Result<usize> {
        let rest = most.min(limit - claimed.len());
        let found = if rest > 0 { claim(db, want, which, rest, above)? } else { Vec::new() };
        let count = found.len();
        claimed.extend(found);
        Ok(count)
    };
    // Before others of the same urgency, so that they are not passed over as long as there are others; then what is left.
    let suspects = claim_class(suspicious!("crashes > 1 AND is_urgent"), want.max_crashed_often)?;
    let shaken = claim_class(suspicious!("crashes < 2 AND is_urgent"), want.max_crashed_once)?;
    claim_class("crashes = 0 AND abandoned = 0", limit)?;
    claim_class(suspicious!("crashes > 1"), want.max_crashed_often - suspects)?;
    claim_class(suspicious!("crashes < 2"), want.max_crashed_once - shaken)?;
    claimed.sort_unstable_by_key(|task| (-i64::from(task.priority), task.id));
    Ok(claimed)
}

/// Whether a worker has died that had one of these tasks. Nearly never, so this is asked first.
fn has_suspicious(db: &Db<'_>, want: &ClaimRequest) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tasks INDEXED BY ix_tasks_suspicious
        WHERE status = 'pending' AND (crashes > 0 OR abandoned > 0) AND queue = ?1 AND kind = ?2)";
    Ok(db.number(sql, (&want.queue, &want.kind))? != 0)
}

/// At least as urgent as the first task whose workers have not died.
const IS_URGENT: &str = "priority >= coalesce((SELECT others.priority FROM tasks AS others
    WHERE others.status = 'pending' AND others.queue = ?5 AND others.kind = ?6
        AND others.crashes = 0 AND others.abandoned = 0
    ORDER BY others.priority DESC LIMIT 1), -2147483648)";

/// Claims tasks for which `which` is true. One that cannot be read costs itself: it becomes a dead letter that says
/// why, and is not claimed again.
fn claim(
    db: &Db<'_>,
    want: &ClaimRequest,
    which: &str,
    limit: usize,
    above: Option<i32>,
) -> Result<Vec<ClaimedTask>> {
    let which = which.replace("is_urgent", IS_URGENT);
    let higher = if above.is_some() { " AND priority > ?7" } else { "" };
    let ids = format!(
        "SELECT id FROM tasks WHERE status = 'pending' AND queue = ?5 AND kind = ?6{higher} AND {which}
            AND (run_after IS NULL OR run_after <= ?1) ORDER BY priority DESC, id"
    );
    let columns =
        "id, payload, priority, attempts, max_attempts, crashes, failed_step, document_id, starts, abandoned";
    let (kind, queue): (Arc<str>, Arc<str>) = (want.kind.as_str().into(), want.queue.as_str().into());
    let read = |row: &Row<'_>| -> rusqlite::Result<ClaimedTask> {
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
            token: want.token.clone(),
        })
    };
    let each = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, read(row)));
    let mut claimed = Vec::new();
    loop {
        let rest = allowed(db, want, limit - claimed.len())?;
        let mut params: Vec<&dyn ToSql> = vec![&want.queue, &want.kind];
        if let Some(above) = &above {
            params.push(above);
        }
        let due = Due { ids: &ids, params: &params, limit: rest };
        let found = LEASED.claim(db, (&want.token, want.lease), &due, columns, each)?;
        let readable = found.iter().all(|(_, task)| task.is_ok());
        for (id, task) in found {
            match task {
                Ok(task) => claimed.push(task),
                Err(error) => bury_unreadable(db, id, &want.token, &error)?,
            }
        }
        // Others have moved up into the places of those that were buried.
        if readable {
            break;
        }
    }
    // RETURNING promises no order.
    claimed.sort_unstable_by_key(|task| (-i64::from(task.priority), task.id));
    Ok(claimed)
}

fn bury_unreadable(db: &Db<'_>, id: i64, token: &Token, error: &rusqlite::Error) -> Result<()> {
    tracing::error!(task = id, %error, "a task cannot be read; it becomes a dead letter");
    let failure = TaskFailure {
        reason: format!("the row cannot be read: {error}"),
        step: None,
        ..TaskFailure::default()
    };
    let sets = "status = 'failed', finished_at = ?1, error_message = ?4";
    LEASED.finish(db, &id, token, sets, &[&failure.reason])?;
    dead_letters::bury(db, id, &failure).map(drop)
}

/// As many as are wanted, unless too many run already.
fn allowed(db: &Db<'_>, want: &ClaimRequest, limit: usize) -> Result<usize> {
    let Some(at_most) = want.max_running else { return Ok(limit) };
    let sql = "SELECT count(*) FROM tasks INDEXED BY ix_tasks_running WHERE status = 'running' AND kind = ?1";
    let running = usize::try_from(db.number(sql, [&want.kind])?).unwrap_or(usize::MAX);
    Ok(limit.min(at_most.saturating_sub(running)))
}
