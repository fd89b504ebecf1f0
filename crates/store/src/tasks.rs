//! Durable tasks: work of any kind that must be done, whatever dies meanwhile.
//!
//! Owns the table `tasks` and the rules by which a row moves:
//!
//! ```text
//!   scheduled ──its time──▶ pending ──claim──▶ running ──▶ completed | failed (a dead letter) | cancelled
//!       ▲                      ▲                 │
//!       └── later attempt ─────┴── released, ────┘
//!                                  lease ran out
//! ```
//!
//! `scheduled` keeps what is not due out of the way of what is: a claim never looks at it. What a task does
//! is not known here.

mod types;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rusqlite::{Row, params};

use crate::checkpoints;
use crate::db::{Db, bad};
use crate::error::{Error, Result};
use crate::json;
use crate::lease::{self, Beat, Due, Leased, Token};
use crate::letters;
use crate::time::Time;
use crate::writer::Shape;
use crate::{Page, Store};

pub use types::{
    ClaimedTask, Enqueued, Failure, NewTask, Recovered, Settled, Settlement, TaskFilter, TaskRow, TaskStatus,
    Turn, Verdict, Wanted,
};

/// The queue tasks go to unless they name another.
pub const DEFAULT_QUEUE: &str = "default";

/// The longest payload or result, in bytes.
pub const MAX_PAYLOAD: usize = json::MOST;

static LEASED: Leased = Leased {
    table: "tasks",
    our_times: true,
    only: "",
    on_claim: ", started_at = ?1",
    on_beat: "",
    on_expiry: "status = 'pending'",
};

/// What most tasks come to; made once.
static COMPLETE: LazyLock<String> =
    LazyLock::new(|| LEASED.finishing("status = 'completed', finished_at = ?1, result = ?4"));

/// The tasks of a store.
#[derive(Clone, Copy, Debug)]
pub struct Tasks<'a>(pub(crate) &'a Store);

impl Tasks<'_> {
    /// Puts a task in. When this returns, it is on disk.
    pub fn enqueue(self, task: NewTask) -> Result<Enqueued> {
        task.check()?;
        let shape = if task.unique_key.is_none() { Shape::Statement } else { Shape::Compound };
        self.0.write_and_ring(shape, move |db| insert(db, &task))
    }

    /// Puts many tasks in: all of them, or none.
    pub fn enqueue_many(self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>> {
        tasks.iter().try_for_each(NewTask::check)?;
        self.0.write_and_ring(Shape::Compound, move |db| tasks.iter().map(|task| insert(db, task)).collect())
    }

    /// One visit of a worker: writes its verdicts and claims what it wants, in one transaction.
    pub fn turn(self, settlements: impl Into<Arc<[Settlement]>>, wanted: Vec<Wanted>) -> Result<Turn> {
        let settlements = settlements.into();
        settlements.iter().try_for_each(Settlement::check)?;
        let body = move |db: &Db<'_>| turn(db, &settlements, &wanted);
        self.0.write(Shape::Compound, body)
    }

    /// Prolongs the leases of tasks. Says what was found, in order.
    pub fn heartbeat(self, held: Vec<(i64, Token)>, lease: Duration) -> Result<Vec<Beat>> {
        self.0.write(Shape::Compound, move |db| {
            held.iter().map(|(id, token)| LEASED.beat(db, id, (token, lease), &[])).collect()
        })
    }

    /// Frees tasks whose lease has run out. A crash is no failed attempt, but it is counted: a task whose
    /// worker has died `max_crashes` times is buried.
    pub fn recover(self, max_crashes: u32) -> Result<Recovered> {
        self.0.write_and_ring(Shape::Compound, move |db| recover(db, max_crashes))
    }

    /// Calls a task off, waiting or running. A worker that runs it learns so at its next heartbeat.
    pub fn cancel(self, id: i64) -> Result<()> {
        self.0.write(Shape::Compound, move |db| {
            let sql = "UPDATE tasks SET status = 'cancelled', finished_at = ?2, lease_expires_at = NULL
                WHERE id = ?1 AND status IN ('pending', 'scheduled', 'running')";
            changed(db, db.execute(sql, params![id, db.now()])?, id, "pending, scheduled or running")?;
            checkpoints::forget(db, id)
        })
    }

    /// Has a scheduled task run now.
    pub fn hurry(self, id: i64) -> Result<()> {
        self.0.write_and_ring(Shape::Compound, move |db| {
            let sql = "UPDATE tasks SET status = 'pending', run_after = NULL WHERE id = ?1 AND status = 'scheduled'";
            changed(db, db.execute(sql, [id])?, id, "scheduled")
        })
    }

    /// A task as it stands.
    pub fn get(self, id: i64) -> Result<TaskRow> {
        self.0.read(|db| row(db, id))
    }

    /// Tasks, newest first. `after`: the last id of the page before.
    pub fn list(self, filter: &TaskFilter, after: Option<i64>, limit: usize) -> Result<Page<TaskRow>> {
        let status = filter.status.map(TaskStatus::as_str);
        let from = after.unwrap_or(i64::MAX);
        let rows = self.0.read(|db| {
            db.rows(
                "SELECT * FROM tasks WHERE id < ?1 AND (?2 IS NULL OR status = ?2)
                    AND (?3 IS NULL OR kind = ?3) AND (?4 IS NULL OR queue = ?4)
                 ORDER BY id DESC LIMIT ?5",
                params![from, status, filter.kind, filter.queue, crate::one_more(limit)],
                TaskRow::read,
            )
        })?;
        Ok(Page::cut(rows, limit, |task| task.id.to_string()))
    }

    /// How many tasks are in each status.
    pub fn counts(self) -> Result<Vec<(TaskStatus, u64)>> {
        self.0.read(|db| {
            db.rows("SELECT status, count(*) FROM tasks GROUP BY status", [], |row| {
                let status: String = row.get(0)?;
                let known = TaskStatus::parse(&status);
                Ok((
                    known.ok_or_else(|| bad(row, "status", &status, "a task's status"))?,
                    row.get::<_, i64>(1)?.unsigned_abs(),
                ))
            })
        })
    }

    /// How many tasks wait for a worker now, by queue and kind.
    pub fn waiting(self) -> Result<Vec<(String, String, u64)>> {
        self.0.read(|db| {
            let sql = "SELECT queue, kind, count(*) FROM tasks WHERE status = 'pending' GROUP BY queue, kind";
            db.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?.unsigned_abs())))
        })
    }

    /// Forgets up to `limit` tasks that were made and finished before a time. Says how many. The last task that was
    /// made stays, so that its number is not used again.
    pub fn prune(self, before: Time, limit: usize) -> Result<usize> {
        self.0.write(Shape::Statement, move |db| {
            // Tasks are numbered as they come: from the first that came after the time on, none was finished
            // before it. So this reads what it deletes, and not the whole table.
            let sql = "DELETE FROM tasks WHERE id IN (SELECT id FROM tasks
                WHERE id < coalesce((SELECT id FROM tasks WHERE created_at > ?1 ORDER BY id LIMIT 1), 9223372036854775807)
                    AND (status = 'completed' OR status = 'failed' OR status = 'cancelled')
                    AND finished_at <= ?1 AND id < (SELECT max(id) FROM tasks) ORDER BY id LIMIT ?2)";
            db.execute(sql, params![before.to_string(), crate::as_limit(limit)])
        })
    }
}

/// Checks a text that is to be kept with a task, such as its result.
pub fn check_json(what: &str, text: &str) -> Result<()> {
    json::check(what, text)
}

pub(crate) fn insert(db: &Db<'_>, task: &NewTask) -> Result<Enqueued> {
    let due = task.run_after.filter(|at| *at > db.now);
    let status = if due.is_some() { TaskStatus::Scheduled } else { TaskStatus::Pending };
    let added = db.execute(
        "INSERT INTO tasks (queue, kind, status, priority, attempts, max_attempts, crashes, run_after,
            created_at, unique_key, document_id, payload)
         VALUES (?1, ?2, ?3, ?4, 0, ?5, 0, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT (kind, unique_key) WHERE unique_key IS NOT NULL AND status <> 'completed'
            AND status <> 'failed' AND status <> 'cancelled' DO NOTHING",
        params![
            task.queue,
            task.kind,
            status.as_str(),
            task.priority,
            task.max_attempts,
            due.map(|at| at.to_string()),
            db.now(),
            task.unique_key,
            task.document_id,
            task.payload,
        ],
    )?;
    if added == 1 {
        return Ok(Enqueued { id: db.conn.last_insert_rowid(), created: true });
    }
    let id = db.number(
        "SELECT id FROM tasks WHERE kind = ?1 AND unique_key = ?2 AND unique_key IS NOT NULL
            AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled'",
        params![task.kind, task.unique_key],
    )?;
    Ok(Enqueued { id, created: false })
}

fn turn(db: &Db<'_>, settlements: &[Settlement], wanted: &[Wanted]) -> Result<Turn> {
    let settled = settlements.iter().map(|settlement| settle(db, settlement)).collect::<Result<_>>()?;
    let mut turn = Turn { settled, ..Turn::default() };
    if wanted.is_empty() {
        return Ok(turn);
    }
    promote(db)?;
    let mut short = false;
    for want in wanted {
        let had = turn.claimed.iter().rev().take_while(|task| task.token == want.token).count();
        let rest = want.limit.saturating_sub(had);
        let found = claim_within(db, want, rest)?;
        let count = found.len();
        turn.claimed.extend(found);
        short |= count < rest;
    }
    if short {
        let sql = "SELECT run_after FROM tasks WHERE status = 'scheduled' ORDER BY run_after LIMIT 1";
        // A text that is no time is nobody's time.
        turn.next_due = db.first(sql, [], |row| row.get::<_, String>(0))?.and_then(|text| Time::parse(&text));
    }
    Ok(turn)
}

/// What was scheduled and is due becomes pending, and stays so if the clock is set back.
fn promote(db: &Db<'_>) -> Result<()> {
    let sql = "UPDATE tasks SET status = 'pending', run_after = NULL
        WHERE status = 'scheduled' AND run_after <= ?1";
    db.execute(sql, [db.now()]).map(drop)
}

/// Claims up to `limit` tasks, most urgent first, and among them no more than is wanted of those that may have killed
/// their worker: if they do so again, few others should be with them.
fn claim_within(db: &Db<'_>, want: &Wanted, limit: usize) -> Result<Vec<ClaimedTask>> {
    if want.shaken >= limit && want.suspect >= limit {
        return claim(db, want, "true", limit);
    }
    let mut claimed = claim(db, want, "crashes = 0", limit)?;
    for (which, most) in [("crashes = 1", want.shaken), ("crashes > 1", want.suspect)] {
        let rest = most.min(limit - claimed.len());
        if rest > 0 {
            claimed.extend(claim(db, want, which, rest)?);
        }
    }
    claimed.sort_unstable_by_key(|task| (-i64::from(task.priority), task.id));
    Ok(claimed)
}

/// Claims tasks for which `which` is true. One that cannot be read costs itself: it becomes a dead letter that says
/// why, and nobody stumbles over it again.
fn claim(db: &Db<'_>, want: &Wanted, which: &str, limit: usize) -> Result<Vec<ClaimedTask>> {
    let ids = format!(
        "SELECT id FROM tasks WHERE status = 'pending' AND queue = ?5 AND kind = ?6 AND {which}
            AND (run_after IS NULL OR run_after <= ?1) ORDER BY priority DESC, id"
    );
    let columns = "id, payload, priority, attempts, max_attempts, crashes, failed_step, document_id";
    let kind: Arc<str> = want.kind.as_str().into();
    let read = |row: &Row<'_>| -> rusqlite::Result<ClaimedTask> {
        Ok(ClaimedTask {
            id: row.get(0)?,
            kind: kind.clone(),
            payload: row.get(1)?,
            priority: row.get(2)?,
            attempts: row.get(3)?,
            max_attempts: row.get(4)?,
            crashes: row.get(5)?,
            failed_step: row.get(6)?,
            document_id: row.get(7)?,
            token: want.token.clone(),
        })
    };
    let each = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, read(row)));
    let mut claimed = Vec::new();
    loop {
        let rest = allowed(db, want, limit - claimed.len())?;
        let due = Due { ids: &ids, params: &[&want.queue, &want.kind], limit: rest };
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
    let failure = Failure { reason: format!("the row cannot be read: {error}"), step: None, details: None };
    let sets = "status = 'failed', finished_at = ?1, error_message = ?4";
    LEASED.finish(db, &id, token, sets, &[&failure.reason])?;
    letters::bury(db, id, &failure).map(drop)
}

/// As many as are wanted, unless too many run already.
fn allowed(db: &Db<'_>, want: &Wanted, limit: usize) -> Result<usize> {
    let Some(at_most) = want.at_most else { return Ok(limit) };
    let sql = "SELECT count(*) FROM tasks INDEXED BY ix_tasks_running WHERE status = 'running' AND kind = ?1";
    let running = usize::try_from(db.number(sql, [&want.kind])?).unwrap_or(usize::MAX);
    Ok(limit.min(at_most.saturating_sub(running)))
}

fn settle(db: &Db<'_>, settlement: &Settlement) -> Result<Settled> {
    let Settlement { id, token, verdict, checkpointed } = settlement;
    let done = match verdict {
        Verdict::Completed(result) => lease::finish_by(db, &COMPLETE, id, token, &[result])?,
        Verdict::Retry(at, failure) => {
            let sets = "status = 'scheduled', attempts = attempts + 1, run_after = ?4, last_failed_at = ?1,
                first_failed_at = coalesce(first_failed_at, ?1), error_message = ?5, failed_step = ?6";
            let at = at.to_string();
            LEASED.finish(db, id, token, sets, &[&at, &failure.reason, &failure.step])?
        }
        Verdict::Buried(failure) => {
            let sets = "status = 'failed', attempts = attempts + 1, finished_at = ?1, last_failed_at = ?1,
                first_failed_at = coalesce(first_failed_at, ?1), error_message = ?4, failed_step = ?5";
            if !LEASED.finish(db, id, token, sets, &[&failure.reason, &failure.step])? {
                return Ok(Settled::Lost);
            }
            return letters::bury(db, *id, failure).map(Settled::Buried);
        }
        Verdict::Released => LEASED.release(db, id, token, "status = 'pending'")?,
        Verdict::Postponed(at) => {
            let at = at.to_string();
            LEASED.finish(db, id, token, "status = 'scheduled', run_after = ?4", &[&at])?
        }
    };
    if done && *checkpointed && matches!(verdict, Verdict::Completed(_)) {
        checkpoints::forget(db, *id)?;
    }
    Ok(if done { Settled::Done } else { Settled::Lost })
}

fn recover(db: &Db<'_>, max_crashes: u32) -> Result<Recovered> {
    let count =
        format!("UPDATE tasks SET crashes = crashes + 1 WHERE {} RETURNING id, crashes", LEASED.is_stale());
    let stale: Vec<(i64, u32)> = db.rows(&count, [db.now()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut poisoned = Vec::new();
    for (id, crashes) in stale.into_iter().filter(|(_, crashes)| *crashes >= max_crashes) {
        let failure = Failure {
            reason: format!("poison pill: its worker died {crashes} times"),
            step: None,
            details: Some("each time its lease ran out without a word from the worker".to_owned()),
        };
        let sql = "UPDATE tasks SET status = 'failed', finished_at = ?2, last_failed_at = ?2,
                first_failed_at = coalesce(first_failed_at, ?2), error_message = ?3, lease_expires_at = NULL
            WHERE id = ?1 AND status = 'running'";
        db.execute(sql, params![id, db.now(), failure.reason])?;
        poisoned.push(letters::bury(db, id, &failure)?);
    }
    Ok(Recovered { freed: LEASED.recover(db)?, poisoned })
}

pub(crate) fn row(db: &Db<'_>, id: i64) -> Result<TaskRow> {
    let found = db.first("SELECT * FROM tasks WHERE id = ?1", [id], TaskRow::read)?;
    found.ok_or_else(|| Error::not_found("task", id))
}

pub(crate) fn leased() -> &'static Leased {
    &LEASED
}

/// Says why a guarded update found nothing: no such task, or not in a state that allows it.
fn changed(db: &Db<'_>, count: usize, id: i64, wanted: &str) -> Result<()> {
    if count == 1 {
        return Ok(());
    }
    let status = row(db, id)?.status.as_str();
    Err(Error::Conflict(format!("task {id} is {status}; only a task that is {wanted} allows this")))
}
