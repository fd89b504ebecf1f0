//! History of task states in the database: which worker had which task, and when.
//!
//! A trigger records every status change in the transaction that makes it, so a kill cannot separate the two. The
//! history is read with plain SQL, independent of the store under test. Connections are open only briefly: an open
//! connection would spare the workers the WAL recovery after all of them have died.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags, Row, params};

use crate::{Error, ErrorContext};

const READ_ERROR: &str = "cannot read the database";

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

pub(crate) struct HistoryReader(Connection);

impl HistoryReader {
    pub(crate) fn open(database: &Path) -> Result<Self, Error> {
        let open = || -> rusqlite::Result<Connection> {
            let conn = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(Duration::from_secs(30))?;
            Ok(conn)
        };
        open().map(HistoryReader).context(READ_ERROR)
    }

    /// Counts the running tasks of these workers.
    pub(crate) fn held_by(&self, names: &[String]) -> Result<u32, Error> {
        let sql = "SELECT count(*) FROM tasks WHERE status = 'running'
            AND substr(worker_id, 1, instr(worker_id, ':') - 1) IN (SELECT value FROM json_each(?1))";
        self.0.query_row(sql, [json(names)], |row| row.get(0)).context(READ_ERROR)
    }

    /// Returns how the tasks of these workers were recovered after the kill; `None` if they had no task.
    pub(crate) fn recovery(&self, names: &[String], killed: f64) -> Result<Option<Recovery>, Error> {
        let sql = "WITH freed AS (
                SELECT task, seq, at FROM crash_history WHERE was = 'running' AND now IN ('pending', 'failed')
                    AND at >= ?2
                    AND substr(owner, 1, instr(owner, ':') - 1) IN (SELECT value FROM json_each(?1)))
            SELECT count(*), max(at), (SELECT min(later.at) FROM crash_history later JOIN freed USING (task)
                WHERE later.now = 'running' AND later.seq > freed.seq) FROM freed";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let (orphans, last, first): (u32, Option<f64>, Option<f64>) =
            self.0.query_row(sql, params![json(names), killed], read).context(READ_ERROR)?;
        let since = |at: f64| Duration::from_secs_f64((at - killed).max(0.0));
        Ok(last.map(|last| Recovery { orphans, first: since(first.unwrap_or(last)), last: since(last) }))
    }

    pub(crate) fn count(&self, states: &[&str]) -> Result<u64, Error> {
        let sql = "SELECT count(*) FROM tasks WHERE status IN (SELECT value FROM json_each(?1))";
        self.0.query_row(sql, [json(states)], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs).context(READ_ERROR)
    }

    pub(crate) fn changes(&self) -> Result<Vec<Change>, Error> {
        self.query("SELECT at, task, was, now, owner, crashes, lease FROM crash_history ORDER BY seq", |row| {
            Ok(Change {
                at: row.get(0)?,
                task: row.get(1)?,
                was: row.get(2)?,
                now: row.get(3)?,
                owner: row.get(4)?,
                crashes: row.get(5)?,
                lease: row.get(6)?,
            })
        })
    }

    pub(crate) fn tasks(&self) -> Result<Vec<Task>, Error> {
        let sql = "SELECT id, kind, status, crashes, worker_id, payload, result FROM tasks ORDER BY id";
        self.query(sql, |row| {
            Ok(Task {
                id: row.get(0)?,
                kind: row.get(1)?,
                status: row.get(2)?,
                crashes: row.get(3)?,
                worker: row.get(4)?,
                payload: row.get(5)?,
                result: row.get(6)?,
            })
        })
    }

    /// Returns the task and the reason of each dead letter.
    pub(crate) fn dead_letters(&self) -> Result<Vec<(String, String)>, Error> {
        let sql = "SELECT task_id, failure_reason FROM dead_letter_queue ORDER BY id";
        self.query(sql, |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Returns the tasks that have checkpoints.
    pub(crate) fn checkpointed(&self) -> Result<Vec<i64>, Error> {
        self.query("SELECT DISTINCT task_id FROM task_checkpoints ORDER BY task_id", |row| row.get(0))
    }

    /// Returns what SQLite's integrity and foreign key checks report.
    pub(crate) fn damage(&self) -> Result<Vec<String>, Error> {
        let mut damage = self.query("PRAGMA integrity_check", |row| row.get::<_, String>(0))?;
        damage.retain(|line| line != "ok");
        let foreign = self.query("PRAGMA foreign_key_check", |row| {
            Ok(format!("{} refers to a missing row of {}", row.get::<_, String>(0)?, row.get::<_, String>(2)?))
        })?;
        damage.extend(foreign);
        Ok(damage)
    }

    fn query<T>(&self, sql: &str, read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>) -> Result<Vec<T>, Error> {
        let run = || self.0.prepare(sql)?.query_map([], read)?.collect::<rusqlite::Result<_>>();
        run().context(READ_ERROR)
    }
}

fn json<T: serde::Serialize + ?Sized>(values: &T) -> String {
    serde_json::json!(values).to_string()
}
