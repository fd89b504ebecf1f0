//! History of task states in the database: which worker had which task, and when.
//!
//! A trigger records every status change in the transaction that makes it, so a kill cannot separate the two. The
//! history is read with plain SQL, independent of the store under test. Connections are open only briefly: an open
//! connection would spare the workers the WAL recovery after all of them have died.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};

use super::log::Event;
use crate::sqlite::Database;
use crate::{Error, ErrorContext};

const HISTORY: &str = "
    CREATE TABLE crash_history (
        seq INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        task INTEGER NOT NULL,
        was TEXT NOT NULL,
        now TEXT NOT NULL,
        owner TEXT,
        crashes INTEGER NOT NULL,
        lease REAL
    );
    CREATE TRIGGER crash_history AFTER UPDATE OF status ON tasks BEGIN
        INSERT INTO crash_history (at, task, was, now, owner, crashes, lease)
        VALUES (unixepoch('subsec'), NEW.id, OLD.status, NEW.status, coalesce(NEW.worker_id, OLD.worker_id),
            NEW.crashes, unixepoch(OLD.lease_expires_at, 'subsec'));
    END;";

/// One change of a task's status.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Time in seconds since 1970.
    pub(crate) at: f64,
    pub(crate) task: i64,
    pub(crate) was: String,
    pub(crate) now: String,
    /// Token of the claim that the change begins or ends.
    pub(crate) owner: Option<String>,
    /// Number of workers that had died while running the task.
    pub(crate) crashes: u32,
    /// End of the lease of that claim, if it had one.
    pub(crate) lease: Option<f64>,
}

/// State of a task at the end of the run.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: i64,
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) crashes: u32,
    pub(crate) worker: Option<String>,
    pub(crate) payload: String,
    pub(crate) result: Option<String>,
}

/// Everything that is known about a finished run, as the checker sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunRecord {
    /// The log of all processes.
    pub(crate) events: Vec<Event>,
    pub(crate) tasks: Vec<Task>,
    /// Task and reason of each dead letter.
    pub(crate) dead_letters: Vec<(String, String)>,
    pub(crate) changes: Vec<Change>,
    /// Tasks that have checkpoints.
    pub(crate) checkpointed: Vec<i64>,
    pub(crate) damage: Vec<String>,
    /// Processes that were killed or killed themselves, with the time of death.
    pub(crate) deaths: HashMap<String, f64>,
    /// Beginning and end of each suspension of a worker. The end includes one more lease, because a suspended worker
    /// may hold a lock that others wait for.
    pub(crate) suspensions: Vec<(f64, f64)>,
    /// Whether disk faults were injected, so that attempts may have failed because of them.
    pub(crate) bad_disk: bool,
}

/// Recovery of the tasks of killed workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    pub(crate) orphans: u32,
    /// Time from the kill until the first of them had a new owner.
    pub(crate) first: Duration,
    /// Time from the kill until the last of them was released.
    pub(crate) last: Duration,
}

/// Returns the worker's name, with which a claim token begins.
pub(crate) fn name_of(token: &str) -> &str {
    token.split(':').next().unwrap_or(token)
}

/// Returns the time in seconds since 1970, the unit of the history.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Installs the trigger that records status changes.
pub(crate) fn install(database: &Path) -> Result<(), Error> {
    let installed = Connection::open(database).and_then(|conn| conn.execute_batch(HISTORY));
    installed.context("cannot install the history trigger")
}

/// Reads the history and the tasks.
impl Database {
    /// Counts the running tasks of these workers.
    pub(crate) fn held_by(&self, names: &[String]) -> Result<i64, Error> {
        let sql = "SELECT count(*) FROM tasks WHERE status = 'running'
            AND substr(worker_id, 1, instr(worker_id, ':') - 1) IN (SELECT value FROM json_each(?1))";
        self.count(sql, [json(names)])
    }

    /// Returns how the tasks of these workers were recovered after the kill; `None` if they had no task.
    pub(crate) fn recovery(&self, names: &[String], killed: f64) -> Result<Option<Recovery>, Error> {
        let sql = "WITH freed AS (
                SELECT task, seq, at FROM crash_history WHERE was = 'running' AND now IN ('pending', 'failed')
                    AND at >= ?2
                    AND substr(owner, 1, instr(owner, ':') - 1) IN (SELECT value FROM json_each(?1)))
            SELECT count(*), max(at), (SELECT min(later.at) FROM crash_history later JOIN freed USING (task)
                WHERE later.now = 'running' AND later.seq > freed.seq) FROM freed";
        let since = |at: f64| Duration::from_secs_f64((at - killed).max(0.0));
        let recovery = self.query(sql, params![json(names), killed], |row| {
            let (orphans, last, first): (u32, Option<f64>, Option<f64>) = row.try_into()?;
            Ok(last.map(|last| Recovery { orphans, first: since(first.unwrap_or(last)), last: since(last) }))
        })?;
        Ok(recovery.into_iter().next().flatten())
    }

    /// Counts the tasks in these states.
    pub(crate) fn tasks_in(&self, states: &[&str]) -> Result<i64, Error> {
        let sql = "SELECT count(*) FROM tasks WHERE status IN (SELECT value FROM json_each(?1))";
        self.count(sql, [json(states)])
    }

    /// Returns everything that is in the database.
    pub(crate) fn run_record(&self) -> Result<RunRecord, Error> {
        Ok(RunRecord {
            tasks: self.query(
                "SELECT id, kind, status, crashes, worker_id, payload, result FROM tasks ORDER BY id",
                [],
                |row| {
                    let (id, kind, status, crashes, worker, payload, result) = row.try_into()?;
                    Ok(Task { id, kind, status, crashes, worker, payload, result })
                },
            )?,
            dead_letters: self.query(
                "SELECT task_id, failure_reason FROM dead_letter_queue ORDER BY id",
                [],
                |row| row.try_into(),
            )?,
            changes: self.query(
                "SELECT at, task, was, now, owner, crashes, lease FROM crash_history ORDER BY seq",
                [],
                |row| {
                    let (at, task, was, now, owner, crashes, lease) = row.try_into()?;
                    Ok(Change { at, task, was, now, owner, crashes, lease })
                },
            )?,
            checkpointed: self
                .query("SELECT DISTINCT task_id FROM task_checkpoints ORDER BY task_id", [], |row| row.get(0))?,
            damage: self.damage("main")?,
            ..RunRecord::default()
        })
    }
}

fn json<T: serde::Serialize + ?Sized>(values: &T) -> String {
    serde_json::json!(values).to_string()
}
