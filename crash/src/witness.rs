//! The referee's own view of the database: who had which task, and when.
//!
//! A trigger writes down every change of a task's status, in the transaction that makes it: no kill can part the
//! two. The view is plain SQL on a connection of its own, so that the store does not testify for itself.
//! Connections are opened late and closed soon: one that stayed open would spare the workers the recovery of the
//! log after all of them have died.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags, Row, params};

use crate::{OrTrouble, Trouble};

const LOOK: &str = "cannot look into the database";

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

/// A change of a task's status.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// When, in seconds since 1970.
    pub(crate) at: f64,
    pub(crate) task: i64,
    pub(crate) was: String,
    pub(crate) now: String,
    /// The token of the claim that it begins or ends.
    pub(crate) owner: Option<String>,
    /// How often a worker had died with the task by then.
    pub(crate) crashes: u32,
    /// Until when that claim was leased, if it was.
    pub(crate) lease: Option<f64>,
}

/// A task as it stands at the end.
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

/// How the tasks of dead workers were taken over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    pub(crate) orphans: u32,
    /// From the kill until one of them had a new owner.
    pub(crate) first: Duration,
    /// From the kill until the last of them was free.
    pub(crate) last: Duration,
}

/// Whose claim it is: tokens begin with the name that a worker was given.
pub(crate) fn name_of(token: &str) -> &str {
    token.split(':').next().unwrap_or(token)
}

/// Seconds since 1970, as the history counts.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Has everything written down from now on.
pub(crate) fn install(database: &Path) -> Result<(), Trouble> {
    let installed = Connection::open(database).and_then(|conn| conn.execute_batch(HISTORY));
    installed.or_trouble("cannot install the witness")
}

pub(crate) struct Witness(Connection);

impl Witness {
    pub(crate) fn open(database: &Path) -> Result<Self, Trouble> {
        let open = || -> rusqlite::Result<Connection> {
            let conn = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            conn.busy_timeout(Duration::from_secs(30))?;
            Ok(conn)
        };
        open().map(Witness).or_trouble(LOOK)
    }

    /// How many tasks workers of these names still have.
    pub(crate) fn held_by(&self, names: &[String]) -> Result<u32, Trouble> {
        let sql = "SELECT count(*) FROM tasks WHERE status = 'running'
            AND substr(worker_id, 1, instr(worker_id, ':') - 1) IN (SELECT value FROM json_each(?1))";
        self.0.query_row(sql, [json(names)], |row| row.get(0)).or_trouble(LOOK)
    }

    /// How the tasks went over to others that these workers had when they were killed; nothing when they had
    /// none.
    pub(crate) fn recovery(&self, names: &[String], killed: f64) -> Result<Option<Recovery>, Trouble> {
        let sql = "WITH freed AS (
                SELECT task, seq, at FROM crash_history WHERE was = 'running' AND now IN ('pending', 'failed')
                    AND at >= ?2
                    AND substr(owner, 1, instr(owner, ':') - 1) IN (SELECT value FROM json_each(?1)))
            SELECT count(*), max(at), (SELECT min(later.at) FROM crash_history later JOIN freed USING (task)
                WHERE later.now = 'running' AND later.seq > freed.seq) FROM freed";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let (orphans, last, first): (u32, Option<f64>, Option<f64>) =
            self.0.query_row(sql, params![json(names), killed], read).or_trouble(LOOK)?;
        let since = |at: f64| Duration::from_secs_f64((at - killed).max(0.0));
        Ok(last.map(|last| Recovery { orphans, first: since(first.unwrap_or(last)), last: since(last) }))
    }

    /// How many tasks are in one of these states.
    pub(crate) fn count(&self, states: &[&str]) -> Result<u64, Trouble> {
        let sql = "SELECT count(*) FROM tasks WHERE status IN (SELECT value FROM json_each(?1))";
        self.0
            .query_row(sql, [json(states)], |row| row.get::<_, i64>(0))
            .map(i64::unsigned_abs)
            .or_trouble(LOOK)
    }

    pub(crate) fn history(&self) -> Result<Vec<Change>, Trouble> {
        self.all("SELECT at, task, was, now, owner, crashes, lease FROM crash_history ORDER BY seq", |row| {
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

    pub(crate) fn tasks(&self) -> Result<Vec<Task>, Trouble> {
        let sql = "SELECT id, kind, status, crashes, worker_id, payload, result FROM tasks ORDER BY id";
        self.all(sql, |row| {
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

    /// Dead letters: of which task, and why.
    pub(crate) fn letters(&self) -> Result<Vec<(String, String)>, Trouble> {
        let sql = "SELECT task_id, failure_reason FROM dead_letter_queue ORDER BY id";
        self.all(sql, |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Tasks that have checkpoints.
    pub(crate) fn checkpointed(&self) -> Result<Vec<i64>, Trouble> {
        self.all("SELECT DISTINCT task_id FROM task_checkpoints ORDER BY task_id", |row| row.get(0))
    }

    /// What SQLite itself has to say against the file.
    pub(crate) fn damage(&self) -> Result<Vec<String>, Trouble> {
        let mut damage = self.all("PRAGMA integrity_check", |row| row.get::<_, String>(0))?;
        damage.retain(|line| line != "ok");
        let foreign = self.all("PRAGMA foreign_key_check", |row| {
            Ok(format!(
                "{} refers to a row of {} that is not there",
                row.get::<_, String>(0)?,
                row.get::<_, String>(2)?
            ))
        })?;
        damage.extend(foreign);
        Ok(damage)
    }

    fn all<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Trouble> {
        let run = || self.0.prepare(sql)?.query_map([], read)?.collect::<rusqlite::Result<_>>();
        run().or_trouble(LOOK)
    }
}

fn json<T: serde::Serialize + ?Sized>(values: &T) -> String {
    serde_json::json!(values).to_string()
}
