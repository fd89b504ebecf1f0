//! Durable tasks: enqueue, claim, start, settle, cancel and recover.
//!
//! Owns the table `tasks` and its state machine:
//!
//! ```text
//!   scheduled ──run_after──▶ pending ──claim──▶ running ──▶ completed | failed (dead letter) | cancelled
//!       ▲                       ▲                 │
//!       └── retry, postponed ───┴── released, ────┘
//!                                   lease expired
//! ```
//!
//! A running task whose cancellation was requested is cancelled when its run ends. Tasks that are not due are
//! `scheduled`, so a claim never reads them. This module does not know what a task does.
//!
//! A claimed task is `running` while it waits in its worker's process; until its start is recorded, `started_at` is
//! NULL. Events that end a claim, and what they count:
//!
//! | event | start not recorded | start recorded |
//! |---|---|---|
//! | completed, retry, dead letter | starts + 1 | |
//! | released, postponed | | |
//! | its worker died, or is unknown and the lease expired | abandoned + 1 | crashes + 1 |
//! | its worker is silent or does not hold it, and the lease expired | | |
//!
//! Recording a start adds 1 to `starts`. Only `crashes` makes a poison pill. A worker that dies just after a start may
//! not have recorded it. Therefore a task with crashes or abandoned claims is claimed with few others, and its worker
//! writes the start to a file (`start_log`) from which a recovery records it.

mod cancel;
mod claim;
mod counts;
mod foreign_claims;
mod settle;
mod types;

use std::sync::Arc;
use std::time::Duration;

use crate::dead_letters;
use crate::error::Result;
use crate::json;
use crate::lease::{self, HeartbeatResult, HeldLeases, LeaseRules, Token, leased_row};
use crate::rows::column;
use crate::sqlite::{CachedStatement, Db, WriteHandle, WriteKind, params};
use crate::start_log;
use crate::time::UtcTime;
use crate::workers;
use crate::{Page, Store};

use settle::Completions;

pub use cancel::CancelOutcome;
pub use counts::TaskCount;
pub(crate) use counts::{TaskCounter, check as check_counts, repair as repair_counts};
pub use foreign_claims::ForeignClaims;
pub use types::{
    ClaimBatch, ClaimRequest, ClaimedTask, Disposition, Enqueued, NewTask, Recovered, ReplacementClaim, TaskFailure,
    TaskFilter, TaskRow, TaskStatus, TaskUpdate, UpdateResult, WorkerBatch,
};

/// Queue of tasks that do not name one.
pub const DEFAULT_QUEUE: &str = "default";

/// Maximum length of a payload or result in bytes.
pub const MAX_PAYLOAD: usize = json::MAX_BYTES;

pub(crate) static LEASE_RULES: LeaseRules = LeaseRules {
    table: "tasks",
    noun: "task",
    canonical_times: true,
    row_filter: "",
    on_claim: ", started_at = NULL",
    on_heartbeat: "",
    on_expiry: "status = count_status(iif(cancel_requested_at IS NULL, 'pending', 'cancelled'), status, queue, kind),
        finished_at = iif(cancel_requested_at IS NULL, finished_at, ?1)",
    renews_expired: true,
};

/// Durable tasks of a store.
#[derive(Clone, Copy, Debug)]
pub struct Tasks<'a>(pub(crate) &'a Store);

impl Tasks<'_> {
    /// Inserts a task. It is on disk when this returns.
    pub fn enqueue(self, task: NewTask) -> Result<Enqueued> {
        task.check()?;
        let kind = if task.unique_key.is_none() { WriteKind::TaskStatement } else { WriteKind::TaskCompound };
        self.0.write_and_notify(kind, move |db| insert(db, &task))
    }

    /// Inserts all tasks or none.
    pub fn enqueue_many(self, tasks: Vec<NewTask>) -> Result<Vec<Enqueued>> {
        self.queue_many(tasks)?.wait()
    }

    /// Queues the insertion of all tasks or none, and returns at once; blocks only while the write queue is full.
    pub fn queue_many(self, tasks: Vec<NewTask>) -> Result<WriteHandle<Vec<Enqueued>>> {
        tasks.iter().try_for_each(NewTask::check)?;
        let insert = move |db: &Db<'_>| insert_all(db, &tasks);
        self.0.writer()?.queue(WriteKind::TaskCompound, true, Duration::ZERO, insert, |result| result)
    }

    /// Applies updates of a worker's tasks and claims new ones, in one transaction.
    pub fn settle_and_claim(
        self,
        updates: impl Into<Arc<[TaskUpdate]>>,
        claims: Vec<ClaimRequest>,
    ) -> Result<ClaimBatch> {
        self.apply(WorkerBatch { updates: updates.into(), claims, ..WorkerBatch::default() })
    }

    /// Records starts, applies updates and claims tasks for a worker, in one transaction.
    pub fn apply(self, batch: WorkerBatch) -> Result<ClaimBatch> {
        batch.updates.iter().try_for_each(TaskUpdate::check)?;
        let batch = Arc::new(batch);
        let write = |completions: Completions| {
            let batch = batch.clone();
            self.0.write(WriteKind::TaskCompound, move |db| apply_batch(db, &batch, completions))
        };
        match write(Completions::Grouped) {
            // Rare, and nothing was written.
            Err(error) if settle::is_lost_completion(&error) => write(Completions::Individual),
            result => result,
        }
    }

    /// Records that a claimed task is about to be started; it is on disk when this returns. Returns false if the caller
    /// no longer owns the task, which then must not be started.
    pub fn start(self, id: i64, token: &Token) -> Result<bool> {
        let token = token.clone();
        self.0.write(WriteKind::TaskStatement, move |db| record_start(db, id, &token))
    }

    /// Renews the leases of tasks. Returns one result for each task, in order.
    pub fn heartbeat(self, held: Vec<(i64, Token)>, lease: Duration) -> Result<Vec<HeartbeatResult>> {
        self.0.write(WriteKind::TaskCompound, move |db| {
            held.iter().map(|(id, token)| LEASE_RULES.heartbeat(db, id, (token, lease), &[])).collect()
        })
    }

    /// Frees tasks whose worker died, and tasks whose lease expired unless their worker is alive. A crash is not a
    /// failed attempt, but is counted: a task that workers started `max_crashes` times before they died becomes a dead
    /// letter.
    pub fn recover(self, max_crashes: u32) -> Result<Recovered> {
        self.recover_all(max_crashes, None)
    }

    /// Like [`recover`](Self::recover), and also frees expired leases of the calling worker that are not in `held`.
    /// These are not counted as crashes: the worker has not died.
    pub fn recover_by(self, max_crashes: u32, held: HeldLeases) -> Result<Recovered> {
        self.recover_all(max_crashes, Some(held))
    }

    fn recover_all(self, max_crashes: u32, held: Option<HeldLeases>) -> Result<Recovered> {
        let (recovered, ended) =
            self.0.write_and_notify(WriteKind::TaskCompound, move |db| recover(db, max_crashes, held.as_ref()))?;
        // Their starts are on disk now. Worker records are deleted last, because they contain the names of the logs.
        if !ended.is_empty() {
            ended.iter().for_each(|worker| start_log::remove_of(self.0.path(), worker));
            self.0.write(WriteKind::TaskCompound, workers::delete_ended)?;
        }
        Ok(recovered)
    }

    /// Cancels a waiting task. For a running one it only requests that: its worker sees the request within a second,
    /// and the task is cancelled when its run ends. A request may be repeated.
    pub fn cancel(self, id: i64) -> Result<CancelOutcome> {
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| cancel::cancel(db, id))
    }

    /// Returns the running tasks whose cancellation was requested, with the tokens of their claims. Cheap if there are
    /// none, so workers can poll it.
    pub fn cancel_requests(self) -> Result<Vec<(i64, Token)>> {
        self.0.read(cancel::list_requested)
    }

    /// Cancels stale tasks whose cancellation was requested. Returns how many. Every recovery does this.
    pub fn recover_cancelled(self) -> Result<usize> {
        self.0.write_and_notify(WriteKind::TaskCompound, |db| {
            workers::update_states(db)?;
            cancel::cancel_stale(db)
        })
    }

    /// Makes a scheduled task pending.
    pub fn run_now(self, id: i64) -> Result<()> {
        self.0.write_and_notify(WriteKind::TaskCompound, move |db| {
            let sql = "UPDATE tasks SET status = count_status('pending', status, queue, kind), run_after = NULL
                WHERE id = ?1 AND status = 'scheduled'";
            lease::require_changed::<TaskRow>(db, db.execute(sql, [id])?, id, "scheduled").map(drop)
        })
    }

    /// Returns the task with this id.
    pub fn get(self, id: i64) -> Result<TaskRow> {
        self.0.read(|db| lease::row(db, id))
    }

    /// Lists tasks, newest first. `after`: the last id of the previous page.
    pub fn list(self, filter: &TaskFilter, after: Option<i64>, limit: usize) -> Result<Page<TaskRow>> {
        let status = filter.status.map(TaskStatus::as_str);
        let from = after.unwrap_or(i64::MAX);
        let rows = self.0.read(|db| {
            db.rows(
                "SELECT * FROM tasks WHERE id < ?1 AND (?2 IS NULL OR status = ?2)
                    AND (?3 IS NULL OR kind = ?3) AND (?4 IS NULL OR queue = ?4)
                    AND (?6 IS NULL OR instr(payload, ?6) > 0 OR instr(error_message, ?6) > 0)
                 ORDER BY id DESC LIMIT ?5",
                params![from, status, filter.kind, filter.queue, crate::limit_plus_one(limit), filter.text],
                TaskRow::read,
            )
        })?;
        Ok(Page::from_rows(rows, limit, |task| task.id.to_string()))
    }

    /// Returns the number of tasks in each status. Reads a few rows, however many tasks there are.
    pub fn counts(self) -> Result<Vec<(TaskStatus, u64)>> {
        self.0.read(counts::by_status)
    }

    /// Returns the number of tasks by queue, kind and status, without zeros. As cheap as [`counts`](Self::counts).
    pub fn counts_by_kind(self) -> Result<Vec<TaskCount>> {
        self.0.read(counts::by_kind)
    }

    /// Returns the number of pending tasks by queue and kind.
    pub fn count_due(self) -> Result<Vec<(String, String, u64)>> {
        self.0.read(|db| {
            let sql = "SELECT queue, kind, count(*) FROM tasks WHERE status = 'pending' GROUP BY queue, kind";
            db.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?.unsigned_abs())))
        })
    }

    /// Counts tasks of these queues that other workers than `worker` have claimed. Liveness is as seen by this process.
    pub fn claims_of_others(self, queues: &[String], worker: &str) -> Result<ForeignClaims> {
        self.0.read(|db| foreign_claims::foreign_claims(db, queues, worker))
    }

    /// Returns whether any task of these queues and kinds is pending, or is scheduled for another attempt after a retry
    /// or a postponement. A task scheduled for its first attempt was never claimed and does not count.
    pub fn has_waiting(self, queues: &[String], kinds: &[&str]) -> Result<bool> {
        self.0.read(|db| {
            let sql = "SELECT EXISTS (SELECT 1 FROM tasks WHERE status = 'pending' AND queue = ?1 AND kind = ?2)
                OR EXISTS (SELECT 1 FROM tasks WHERE status = 'scheduled' AND queue = ?1 AND kind = ?2
                    AND worker_heartbeat_at IS NOT NULL)";
            for queue in queues {
                for kind in kinds {
                    if db.number(sql, params![queue, kind])? != 0 {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        })
    }

    /// Deletes up to `limit` tasks that were created and finished before a time. Returns how many. Keeps the task with
    /// the highest id, so that ids are not reused.
    pub fn prune(self, before: UtcTime, limit: usize) -> Result<usize> {
        self.0.write(WriteKind::TaskCompound, move |db| {
            // Ids increase with `created_at`, so no task from the first one created after the time on was finished
            // before it. This reads only what it deletes, not the whole table.
            let sql = "DELETE FROM tasks WHERE id IN (SELECT id FROM tasks
                WHERE id < coalesce((SELECT id FROM tasks WHERE created_at > ?1 ORDER BY id LIMIT 1), 9223372036854775807)
                    AND (status = 'completed' OR status = 'failed' OR status = 'cancelled')
                    AND finished_at <= ?1 AND id < (SELECT max(id) FROM tasks) ORDER BY id LIMIT ?2)
                RETURNING queue, kind, status";
            let deleted = db.rows(sql, params![before.to_string(), crate::sql_limit(limit)], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, column::<TaskStatus>(row, "status")?))
            })?;
            for (queue, kind, status) in &deleted {
                db.count_tasks((queue, kind), Some(*status), None, 1);
            }
            counts::remove_zeros(db)?;
            Ok(deleted.len())
        })
    }
}

/// Checks that a text stored with a task, such as its result, is valid JSON.
pub fn check_json(what: &str, text: &str) -> Result<()> {
    json::check(what, text)
}

pub(crate) fn insert(db: &Db<'_>, task: &NewTask) -> Result<Enqueued> {
    insert_with(db, &mut insert_statement(db)?, task)
}

fn insert_all(db: &Db<'_>, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
    let mut insert = insert_statement(db)?;
    tasks.iter().map(|task| insert_with(db, &mut insert, task)).collect()
}

fn insert_statement<'a>(db: &Db<'a>) -> Result<CachedStatement<'a>> {
    // Short, because the text is hashed and compared for each task.
    let sql = "INSERT INTO tasks (queue,kind,status,priority,attempts,max_attempts,crashes,run_after,created_at,unique_key,\
        document_id,payload) VALUES (?1,?2,?3,?4,0,?5,0,?6,?7,?8,?9,?10) ON CONFLICT (kind,unique_key) \
        WHERE unique_key IS NOT NULL AND status<>'completed' AND status<>'failed' AND status<>'cancelled' DO NOTHING";
    db.with_conn(|conn| conn.prepare_cached(sql))
}

fn insert_with(db: &Db<'_>, insert: &mut CachedStatement<'_>, task: &NewTask) -> Result<Enqueued> {
    let due = task.run_after.filter(|at| *at > db.now);
    let status = if due.is_some() { TaskStatus::Scheduled } else { TaskStatus::Pending };
    let params = params![
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
    ];
    let created = db.with_conn(|_| insert.execute(params))? == 1;
    if created {
        db.count_tasks((&task.queue, &task.kind), None, Some(status), 1);
    }
    let id = if created { db.conn.last_insert_rowid() } else { unfinished(db, task)? };
    Ok(Enqueued { id, created })
}

/// Returns the unfinished task with the unique key of `task`.
fn unfinished(db: &Db<'_>, task: &NewTask) -> Result<i64> {
    let sql = "SELECT id FROM tasks WHERE kind = ?1 AND unique_key = ?2 AND unique_key IS NOT NULL
        AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled'";
    db.number(sql, params![task.kind, task.unique_key])
}

/// Returns false if the caller no longer owns the task. A start that is already recorded is not counted again.
fn record_start(db: &Db<'_>, id: i64, token: &Token) -> Result<bool> {
    let sql = "UPDATE tasks SET starts = starts + (started_at IS NULL), started_at = coalesce(started_at, ?1)
        WHERE id = ?2 AND status = 'running' AND worker_id = ?3";
    Ok(db.execute(sql, params![db.now(), id, token.as_str()])? == 1)
}

fn apply_batch(db: &Db<'_>, batch: &WorkerBatch, completions: Completions) -> Result<ClaimBatch> {
    let WorkerBatch { started, updates, claims, replacements } = batch;
    let started = started.iter().map(|(id, token)| record_start(db, *id, token)).collect::<Result<_>>()?;
    let results = settle::settle_all(db, updates, completions)?;
    let mut outcome = ClaimBatch { started, results, ..ClaimBatch::default() };
    if !claims.is_empty() || !replacements.is_empty() {
        claim::claim_all(db, claims, replacements, &mut outcome)?;
    }
    Ok(outcome)
}

/// Also returns the names of workers that have ended, whose starts are recorded when this commits.
fn recover(db: &Db<'_>, max_crashes: u32, held: Option<&HeldLeases>) -> Result<(Recovered, Vec<String>)> {
    workers::update_states(db)?;
    record_logged_starts(db)?;
    let (mut cancelled, mut freed) = (0, 0);
    if let Some(held) = held {
        cancelled += cancel::cancel_where(db, &LEASE_RULES.unheld_condition(), held.params(db.now()))?;
        freed += LEASE_RULES.free_unheld(db, held)?;
    }
    cancelled += cancel::cancel_stale(db)?;
    // A silent worker has not died: its tasks are freed without counting anything.
    let count = format!(
        "UPDATE tasks SET crashes = crashes + (started_at IS NOT NULL), abandoned = abandoned + (started_at IS NULL)
         WHERE {} AND NOT {} RETURNING id, crashes, started_at IS NOT NULL",
        LEASE_RULES.stale_condition(),
        workers::held_by("tasks", "silent")
    );
    let stale: Vec<(i64, u32, bool)> =
        db.rows(&count, [db.now()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut poisoned = Vec::new();
    for (id, crashes, _) in stale.into_iter().filter(|(_, crashes, started)| *started && *crashes >= max_crashes) {
        let failure = TaskFailure {
            reason: format!("poison pill: its worker died {crashes} times"),
            step: None,
            details: Some("Each time its handler had been started and its worker's process ended.".to_owned()),
            ..TaskFailure::default()
        };
        let sql = "UPDATE tasks SET status = count_status('failed', status, queue, kind), finished_at = ?2, last_failed_at = ?2,
                first_failed_at = coalesce(first_failed_at, ?2), error_message = ?3, lease_expires_at = NULL
            WHERE id = ?1 AND status = 'running'";
        db.execute(sql, params![id, db.now(), failure.reason])?;
        poisoned.push(dead_letters::insert_for_task(db, id, &failure)?);
    }
    freed += LEASE_RULES.free_stale(db)?;
    Ok((Recovered { freed, cancelled, poisoned }, workers::ended_without_tasks(db)?))
}

/// Records starts of stale tasks that are only in the start logs of their workers. Includes workers whose process is
/// unknown because their container or machine was restarted.
fn record_logged_starts(db: &Db<'_>) -> Result<()> {
    let sql = format!(
        "SELECT DISTINCT {} AS worker FROM tasks WHERE {} AND started_at IS NULL AND worker IS NOT NULL",
        workers::worker_of("tasks"),
        LEASE_RULES.stale_condition()
    );
    let workers: Vec<String> = db.rows(&sql, [db.now()], |row| row.get(0))?;
    for worker in workers {
        for (id, token) in start_log::read(db.path(), &worker) {
            record_start(db, id, &token)?;
        }
    }
    Ok(())
}

leased_row!(TaskRow, LEASE_RULES);
