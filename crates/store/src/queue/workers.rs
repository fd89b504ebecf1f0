//! Workers: which processes may hold leases, and whether they are alive.
//!
//! Owns the table `workers`. Without a row here, a lease only holds until a wall-clock time. A worker that records its
//! process here is known to be dead as soon as the process has ended, and to be alive whatever the wall clock shows:
//!
//! | state | when | its leases |
//! |---|---|---|
//! | alive | the process runs, and renewed its heartbeat within its lease, by the monotonic clock | are stale only if they have expired and it does not hold them |
//! | silent | the process runs, and did not (it was stopped, or its runner has ended) | expire by the wall clock |
//! | dead | the process has ended | are stale at once |
//! | unknown | another host, boot or pid namespace; no row | expire by the wall clock |
//!
//! The monotonic clock stops while a machine is suspended, so suspending makes no worker silent. Every recovery updates
//! the states, as seen from its own process.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::Store;
use crate::error::Result;
use crate::lease::{self, LeaseRules, WorkerId};
use crate::process;
use crate::rows::{column, string_enum};
use crate::sqlite::{Db, WriteKind};
use crate::start_log;
use crate::time::UtcTime;

/// How long the records of workers with an unknown process are kept after their last heartbeat: one day.
const UNSEEN_RETENTION: Duration = Duration::from_secs(86_400);

string_enum! {
    "a worker's state",
    /// Whether a worker can run its tasks, as seen from this process.
    pub enum WorkerState {
        /// Its process runs and renews its heartbeat.
        Alive = "alive",
        /// Its process runs, and did not renew its heartbeat in time.
        Silent = "silent",
        /// Its process has ended. The next recovery frees its tasks.
        Dead = "dead",
    }
}

/// A worker that may hold leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerRow {
    /// Id of the worker: the part of its tokens before the slash.
    pub id: String,
    /// Its state; `None` if it runs on another host, or in another container.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub state: Option<WorkerState>,
    /// Last heartbeat, by the wall clock.
    pub last_heartbeat_at: UtcTime,
    /// When it is silent unless it renews its heartbeat.
    pub lease_expires_at: UtcTime,
    /// Number of tasks that it has claimed.
    pub running_tasks: u64,
}

/// Workers of a store.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a>(pub(crate) &'a Store);

impl Workers<'_> {
    /// Records that `worker` belongs to this process and is alive. `lease`: silent after this time without heartbeat.
    pub fn heartbeat(self, worker: &WorkerId, lease: Duration) -> Result<()> {
        let (name, process) = (worker.name().to_owned(), process::tag());
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        self.0.write(WriteKind::TaskStatement, move |db| {
            let sql = "INSERT INTO workers (name, process, lease_ms, beat_ms, state, updated_at)
                VALUES (?1, ?2, ?3, ?4, 'alive', ?5)
                ON CONFLICT (name) DO UPDATE SET lease_ms = excluded.lease_ms, beat_ms = excluded.beat_ms,
                    state = excluded.state, updated_at = excluded.updated_at";
            db.execute(sql, (&name, &process, lease_ms, process::monotonic_ms(), db.now())).map(drop)
        })
    }

    /// Removes a worker that holds no lease, and its start log.
    pub fn remove(self, worker: &WorkerId) -> Result<()> {
        let name = worker.name().to_owned();
        start_log::remove_of(self.0.path(), &name);
        self.0.write(WriteKind::TaskStatement, move |db| {
            db.execute("DELETE FROM workers WHERE name = ?1", [&name]).map(drop)
        })
    }

    /// Lists all workers by id. A worker that has ended is listed until a recovery has freed its tasks.
    pub fn list(self) -> Result<Vec<WorkerRow>> {
        let sql = format!(
            "SELECT name, process, lease_ms, beat_ms, state IS 'dead' AS is_dead, updated_at, coalesce(running, 0) AS running
             FROM workers LEFT JOIN (SELECT {} AS holder, count(*) AS running FROM tasks WHERE status = 'running'
                GROUP BY 1) ON holder = name
             ORDER BY name",
            worker_of("tasks")
        );
        let now = process::monotonic_ms();
        self.0.read(|db| {
            db.rows(&sql, [], |row| {
                let (process, lease_ms): (String, i64) = (row.get("process")?, row.get("lease_ms")?);
                let state = match row.get("is_dead")? {
                    true => Some(WorkerState::Dead),
                    false => state(&process, lease_ms, row.get("beat_ms")?, now).and_then(WorkerState::parse),
                };
                let heartbeat: UtcTime = column(row, "updated_at")?;
                let lease = Duration::from_millis(u64::try_from(lease_ms).unwrap_or(0));
                Ok(WorkerRow {
                    id: row.get("name")?,
                    state,
                    last_heartbeat_at: heartbeat,
                    lease_expires_at: heartbeat.plus(lease),
                    running_tasks: column(row, "running")?,
                })
            })
        })
    }

    /// Returns the names of workers whose process has ended. A recovery frees their rows.
    pub fn dead(self) -> Result<BTreeSet<String>> {
        self.0.read(dead_workers)
    }
}

/// Returns the names of workers whose process has ended, as seen from this process.
pub(crate) fn dead_workers(db: &Db<'_>) -> Result<BTreeSet<String>> {
    let sql = "SELECT name, process, state IS 'dead' FROM workers";
    let workers: Vec<(String, String, bool)> = db.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let is_dead = |process: &str| process::is_alive(process) == Some(false);
    let dead = workers.into_iter().filter(|(_, process, dead)| *dead || is_dead(process));
    Ok(dead.map(|(name, ..)| name).collect())
}

/// Returns the names of workers that are alive, as seen from this process.
pub(crate) fn alive_workers(db: &Db<'_>) -> Result<BTreeSet<String>> {
    let sql = "SELECT name, process, lease_ms, beat_ms FROM workers WHERE state IS NOT 'dead'";
    let now = process::monotonic_ms();
    let workers: Vec<(String, String, i64, i64)> =
        db.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    let is_alive = |process: &str, lease_ms, beat_ms| state(process, lease_ms, beat_ms, now) == Some("alive");
    let alive = workers.into_iter().filter(|(_, process, lease, beat)| is_alive(process, *lease, *beat));
    Ok(alive.map(|(name, ..)| name).collect())
}

/// Returns the state of a worker as seen from this process; `None` if unknown.
fn state(process: &str, lease_ms: i64, beat_ms: i64, now: i64) -> Option<&'static str> {
    match process::is_alive(process) {
        Some(true) if now.saturating_sub(beat_ms) <= lease_ms => Some("alive"),
        Some(true) => Some("silent"),
        Some(false) => Some("dead"),
        None => None,
    }
}

/// Updates the state of every worker, as seen from this process.
pub(crate) fn update_states(db: &Db<'_>) -> Result<()> {
    let sql = "SELECT name, process, lease_ms, beat_ms, state FROM workers WHERE state IS NOT 'dead'";
    let now = process::monotonic_ms();
    type Row = (String, String, i64, i64, Option<String>);
    let workers: Vec<Row> =
        db.rows(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))?;
    for (name, process, lease_ms, beat_ms, state) in workers {
        let seen = self::state(&process, lease_ms, beat_ms, now);
        if state.as_deref() != seen {
            db.execute("UPDATE workers SET state = ?2 WHERE name = ?1", (name, seen))?;
        }
    }
    Ok(())
}

/// Returns the names of workers that hold no task and are dead, or of unknown state without a heartbeat for a day.
pub(crate) fn ended_without_tasks(db: &Db<'_>) -> Result<Vec<String>> {
    let sql = format!("SELECT name FROM workers WHERE {HAS_ENDED} AND {}", holds_no_row("tasks"));
    db.rows(&sql, [db.now.minus(UNSEEN_RETENTION).to_string()], |row| row.get(0))
}

/// Deletes workers that have ended and hold no lease. A recovery calls this after it removed their start logs.
pub(crate) fn delete_ended(db: &Db<'_>) -> Result<()> {
    let holds = lease::leased_tables().map(|LeaseRules { table, .. }| holds_no_row(table));
    let sql = format!("DELETE FROM workers WHERE {HAS_ENDED} AND {}", holds.join(" AND "));
    db.execute(&sql, [db.now.minus(UNSEEN_RETENTION).to_string()]).map(drop)
}

/// Condition for workers that have ended. ?1: workers of unknown state last seen before this time have ended.
const HAS_ENDED: &str = "(state = 'dead' OR state IS NULL AND updated_at < ?1)";

/// Returns the condition that a worker holds no row of `table`.
fn holds_no_row(table: &str) -> String {
    let name = worker_of(table);
    format!("name NOT IN (SELECT {name} FROM {table} WHERE status = 'running' AND {name} IS NOT NULL)")
}

/// Returns the condition that the row of `table` belongs to a worker in this state. One lookup by the worker's name.
pub(crate) fn held_by(table: &str, state: &str) -> String {
    format!("EXISTS (SELECT 1 FROM workers WHERE name = {} AND state = '{state}')", worker_of(table))
}

/// Returns the SQL expression for the worker's name in the token of a row. A token is a name, a slash and a number.
pub(crate) fn worker_of(table: &str) -> String {
    let name = format!("rtrim({table}.worker_id, '0123456789')");
    format!("iif(substr({name}, -1) = '/', substr({name}, 1, length({name}) - 1), NULL)")
}
