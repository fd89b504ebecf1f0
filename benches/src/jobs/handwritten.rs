//! A queue written by hand instead of with a library: a table, a partial index, a loop. It uses one thread, since
//! SQLite has one writer. It has no leases, retries or priorities, so it is safe neither beside other workers nor after
//! a crash. It is optimised, because the other candidates are compared with it.

use super::{BATCH, BoxError, Outcome, Plan};
use rusqlite::{Connection, params};
use std::{
    path::Path,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// When a commit counts as done: with FULL once it is on disk, with NORMAL once the operating system has it, so that a
/// power failure loses the last commits.
#[derive(Clone, Copy)]
pub(super) enum Synchronous {
    Full,
    Normal,
}

/// The index `tasks_ready` holds only waiting tasks, so the cost of a claim does not depend on the number of finished
/// rows.
const SCHEMA: &str = "
    CREATE TABLE tasks (
        id          INTEGER PRIMARY KEY,
        kind        TEXT NOT NULL,
        payload     TEXT NOT NULL,
        status      TEXT NOT NULL DEFAULT 'ready',
        attempts    INTEGER NOT NULL DEFAULT 0,
        created_at  INTEGER NOT NULL,
        started_at  INTEGER,
        finished_at INTEGER
    ) STRICT;
    CREATE INDEX tasks_ready ON tasks (id) WHERE status = 'ready';
";

const ENQUEUE: &str = "INSERT INTO tasks (kind, payload, created_at) VALUES (?1, ?2, ?3)";

const CLAIM: &str = "
    UPDATE tasks SET status = 'running', attempts = attempts + 1, started_at = ?1
    WHERE id IN (SELECT id FROM tasks WHERE status = 'ready' ORDER BY id LIMIT ?2)
    RETURNING id, payload";

const FINISH: &str = "UPDATE tasks SET status = 'done', finished_at = ?1 WHERE id = ?2 AND status = 'running'";

const PREFILL: &str = "
    WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers LIMIT ?1)
    INSERT INTO tasks (kind, payload, status, attempts, created_at, started_at, finished_at)
    SELECT 'add', number, 'done', 1, ?2, ?2, ?2 FROM numbers";

const COMPLETED: &str = "SELECT count(*) FROM tasks WHERE status = 'done'";

/// Row id and number of a claimed task.
type Claimed = (i64, u64);

/// Uses one transaction for each insert, each claim and each finish.
pub(super) fn one_by_one(plan: &Plan, synchronous: Synchronous) -> Result<Outcome, BoxError> {
    measure(plan, synchronous, 1, drain_one_by_one)
}

/// Uses one transaction for 100 inserts, then one that finishes the last 100 tasks and claims the next.
pub(super) fn batches(plan: &Plan, synchronous: Synchronous) -> Result<Outcome, BoxError> {
    measure(plan, synchronous, BATCH, drain_in_batches)
}

fn measure(
    plan: &Plan,
    synchronous: Synchronous,
    batch: u64,
    drain: fn(&mut Connection) -> Result<u64, rusqlite::Error>,
) -> Result<Outcome, BoxError> {
    prefill(&plan.database, plan.finished)?;
    let mut connection = open(&plan.database, synchronous)?;
    let start = Instant::now();
    enqueue(&mut connection, plan.tasks, batch)?;
    let enqueued = start.elapsed();
    let start = Instant::now();
    let sum = drain(&mut connection)?;
    Ok(Outcome { enqueue: enqueued, drain: start.elapsed(), sum, completed: COMPLETED })
}

fn open(path: &Path, synchronous: Synchronous) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let level = match synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", level)?;
    Ok(connection)
}

/// Creates the table with its finished rows on a separate connection. Closing it checkpoints and empties the WAL, which
/// must not count in the measurement.
fn prefill(path: &Path, finished: u64) -> Result<(), rusqlite::Error> {
    let connection = open(path, Synchronous::Full)?;
    connection.execute_batch(SCHEMA)?;
    if finished > 0 {
        connection.execute(PREFILL, params![finished as i64, now()])?;
    }
    connection.close().map_err(|(_, error)| error)
}

fn enqueue(connection: &mut Connection, tasks: u64, batch: u64) -> Result<(), rusqlite::Error> {
    for first in (0..tasks).step_by(batch as usize) {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(ENQUEUE)?;
            for number in first..(first + batch).min(tasks) {
                insert.execute(params!["add", number.to_string(), now()])?;
            }
        }
        transaction.commit()?;
    }
    Ok(())
}

fn drain_one_by_one(connection: &mut Connection) -> Result<u64, rusqlite::Error> {
    let mut sum = 0;
    // Outside a transaction, each statement is its own transaction.
    while let Some((id, number)) = claim(connection, 1)?.pop() {
        sum += number;
        finish(connection, &[(id, number)])?;
    }
    Ok(sum)
}

fn drain_in_batches(connection: &mut Connection) -> Result<u64, rusqlite::Error> {
    let mut sum = 0;
    let mut claimed: Vec<Claimed> = Vec::new();
    loop {
        let transaction = connection.transaction()?;
        finish(&transaction, &claimed)?;
        claimed = claim(&transaction, BATCH)?;
        transaction.commit()?;
        if claimed.is_empty() {
            return Ok(sum);
        }
        sum += claimed.iter().map(|(_, number)| number).sum::<u64>();
    }
}

fn claim(connection: &Connection, max_tasks: u64) -> Result<Vec<Claimed>, rusqlite::Error> {
    let mut claim = connection.prepare_cached(CLAIM)?;
    let rows = claim.query_map(params![now(), max_tasks as i64], |row| {
        let number: String = row.get(1)?;
        Ok((row.get(0)?, number.parse().expect("the payload is a number")))
    })?;
    rows.collect()
}

fn finish(connection: &Connection, claimed: &[Claimed]) -> Result<(), rusqlite::Error> {
    let mut finish = connection.prepare_cached(FINISH)?;
    for (id, _) in claimed {
        finish.execute(params![now(), id])?;
    }
    Ok(())
}

/// Returns the current time in milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as i64
}
