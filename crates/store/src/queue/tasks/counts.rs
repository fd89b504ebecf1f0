//! Numbers of tasks by queue, kind and status.
//!
//! Owns the table `task_counts`, which follows the table `tasks` in the same transaction, so that counting reads a few
//! rows instead of all tasks. Triggers do this for every program. They would make a task half as expensive again, so
//! the writer thread turns them off for writes that need no trigger, adds up the changes of a transaction in memory and
//! writes one row for each changed number (ADR 0064). Statements report their changes here: those that know queue and
//! kind with `Db::count_tasks`, others by calling the SQL function `count_status` for each row that they change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use serde::Serialize;

use super::TaskStatus;
use crate::catalog::Check;
use crate::error::Result;
use crate::rows::table_row;
use crate::sqlite::{Db, SqlResult, lock, params};

table_row! {
    /// Number of tasks of one queue, kind and status.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
    pub struct TaskCount {
        /// Queue of the tasks.
        pub queue: String,
        /// Kind of the tasks.
        pub kind: String,
        /// Status of the tasks.
        pub status: TaskStatus,
        /// Number of tasks.
        pub count: u64,
    }
}

/// Returns the number of tasks in each status, ordered by its text; none without tasks.
pub(super) fn by_status(db: &Db<'_>) -> Result<Vec<(TaskStatus, u64)>> {
    let sql = "SELECT '' AS queue, '' AS kind, status, sum(count) AS count FROM task_counts
        GROUP BY status HAVING sum(count) > 0 ORDER BY status";
    Ok(db.rows(sql, [], TaskCount::read)?.into_iter().map(|found| (found.status, found.count)).collect())
}

/// Returns the numbers that are not 0, by queue, kind and status.
pub(super) fn by_kind(db: &Db<'_>) -> Result<Vec<TaskCount>> {
    let sql = "SELECT queue, kind, status, count FROM task_counts WHERE count > 0 ORDER BY queue, kind, status";
    db.rows(sql, [], TaskCount::read)
}

/// Deletes the rows of queues and kinds without tasks in a status.
pub(super) fn remove_zeros(db: &Db<'_>) -> Result<()> {
    db.execute("DELETE FROM task_counts WHERE count = 0", []).map(drop)
}

/// Numbers that are missing or wrong. A row with the number 0 is as good as none.
const WRONG: &str = "SELECT count(*) FROM
    (SELECT queue, kind, status, count FROM task_counts WHERE count <> 0) AS kept
    FULL JOIN (SELECT queue, kind, status, count(*) AS count FROM tasks GROUP BY 1, 2, 3) AS found
        USING (queue, kind, status)
    WHERE kept.count IS NOT found.count";

/// Counts the numbers that do not match the tasks.
pub(crate) fn check(db: &Db<'_>) -> Result<Check> {
    Ok(Check {
        name: "the counts of tasks match the tasks",
        broken: db.number(WRONG, [])?,
        repaired: 0,
        repair: "the tasks are counted again",
    })
}

/// Counts all tasks again if a number is wrong.
pub(crate) fn repair(db: &Db<'_>) -> Result<Check> {
    let found = check(db)?;
    if found.broken > 0 {
        db.execute("DELETE FROM task_counts", [])?;
        let sql = "INSERT INTO task_counts (queue, kind, status, count)
            SELECT queue, kind, status, count(*) FROM tasks GROUP BY 1, 2, 3";
        db.execute(sql, [])?;
    }
    Ok(Check { repaired: found.broken - check(db)?.broken, ..found })
}

/// Changes of numbers, in the order of [`TaskStatus::ALL`], by queue and kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(BTreeMap<String, BTreeMap<String, [i64; TaskStatus::ALL.len()]>>);

impl Changes {
    fn add(&mut self, queue: &str, kind: &str, status: TaskStatus, number: i64) {
        let known = self.0.get_mut(queue).and_then(|kinds| kinds.get_mut(kind));
        match known.and_then(|numbers| numbers.get_mut(status as usize)) {
            Some(known) => *known += number,
            None => {
                let numbers = self.0.entry(queue.to_owned()).or_default().entry(kind.to_owned()).or_default();
                numbers.iter_mut().skip(status as usize).take(1).for_each(|first| *first = number);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str, TaskStatus, i64)> {
        self.0.iter().flat_map(|(queue, kinds)| {
            kinds.iter().flat_map(move |(kind, numbers)| {
                let changed = TaskStatus::ALL.iter().zip(numbers).filter(|(_, number)| **number != 0);
                changed.map(move |(status, number)| (queue.as_str(), kind.as_str(), *status, *number))
            })
        })
    }
}

/// Adds up the changes of the writer's transaction. The SQL function shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskCounter(Arc<Mutex<Counter>>);

#[derive(Debug, Default)]
struct Counter {
    /// Whether triggers are off, so that changes have to be added up.
    is_counting: bool,
    /// Changes of the write that is running.
    write: Changes,
    /// Changes of the successful writes of the transaction.
    transaction: Changes,
}

impl TaskCounter {
    /// Adds the SQL function `count_status(new, old, queue, kind)` to the writer's connection. It returns the new status.
    pub(crate) fn add_function(&self, conn: &Connection) -> SqlResult<()> {
        let counter = self.clone();
        // Not deterministic, so it is called once for each row.
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
        conn.create_scalar_function("count_status", 4, flags, move |context: &Context<'_>| {
            let status = |index| TaskStatus::parse(context.get_raw(index).as_str().unwrap_or_default());
            let Some(new) = status(0) else {
                return Err(rusqlite::Error::UserFunctionError("count_status needs a status".into()));
            };
            if let (Ok(queue), Ok(kind)) = (context.get_raw(2).as_str(), context.get_raw(3).as_str()) {
                counter.move_tasks(queue, kind, status(1), Some(new), 1);
            }
            Ok(new.as_str())
        })
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) {
        *lock(&self.0) = Counter::default();
    }

    /// Begins a write. `is_counting`: whether triggers are off.
    pub(crate) fn begin_write(&self, is_counting: bool) {
        lock(&self.0).is_counting = is_counting;
    }

    /// Ends a write; the changes of one that was rolled back do not count.
    pub(crate) fn end_write(&self, succeeded: bool) {
        let mut counter = lock(&self.0);
        let Counter { write, transaction, .. } = &mut *counter;
        if write.0.is_empty() {
            return;
        }
        let changes = std::mem::take(write);
        if !succeeded {
            return;
        }
        if transaction.0.is_empty() {
            *transaction = changes;
        } else {
            changes.iter().for_each(|(queue, kind, status, number)| transaction.add(queue, kind, status, number));
        }
    }

    /// Returns the changes of the write until now, to be restored if a part of it is rolled back.
    pub(crate) fn save(&self) -> Changes {
        lock(&self.0).write.clone()
    }

    /// Forgets the changes of the write since they were saved.
    pub(crate) fn restore(&self, saved: Changes) {
        lock(&self.0).write = saved;
    }

    /// Counts tasks that change from one status to another; `None` for inserted and deleted ones.
    pub(crate) fn move_tasks(
        &self,
        queue: &str,
        kind: &str,
        from: Option<TaskStatus>,
        to: Option<TaskStatus>,
        tasks: usize,
    ) {
        let mut counter = lock(&self.0);
        if counter.is_counting && from != to {
            let number = i64::try_from(tasks).unwrap_or(i64::MAX);
            from.into_iter().for_each(|status| counter.write.add(queue, kind, status, -number));
            to.into_iter().for_each(|status| counter.write.add(queue, kind, status, number));
        }
    }

    /// Writes the changes of the transaction, before its commit.
    pub(crate) fn write(&self, db: &Db<'_>) -> Result<()> {
        let changes = std::mem::take(&mut lock(&self.0).transaction);
        let sql = "INSERT INTO task_counts (queue, kind, status, count) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (queue, kind, status) DO UPDATE SET count = count + excluded.count";
        changes.iter().try_for_each(|(queue, kind, status, number)| {
            db.execute(sql, params![queue, kind, status.as_str(), number]).map(drop)
        })
    }
}
