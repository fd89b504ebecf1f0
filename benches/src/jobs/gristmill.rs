//! Gristmill's queue, with FULL: tasks are enqueued one by one from 64 threads, whose commits are grouped, or 100 at a
//! time. Both are drained by a runner with default settings: leases, heartbeats, retries and statistics are on.

use super::{BATCH, BoxError, Candidate, MANY, Outcome, Plan};
use gristmill_jobs::{Runner, TaskKind};
use gristmill_store::{Store, tasks::NewTask};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const THREADS: u64 = 64;

pub(super) const CANDIDATES: &[Candidate] = &[
    Candidate { name: "gristmill, 64 threads (FULL)", measure: from_threads, max_tasks: MANY, growth: false },
    Candidate { name: "gristmill, batches of 100 (FULL)", measure: in_batches, max_tasks: MANY, growth: true },
];

const COMPLETED: &str = "SELECT count(*) FROM tasks WHERE status = 'completed'";

/// Each thread enqueues every 64th number and waits until it is on disk before the next.
fn from_threads(plan: &Plan) -> Result<Outcome, BoxError> {
    measure(plan, |queue| {
        thread::scope(|scope| {
            let thread = |first| {
                scope.spawn(move || {
                    (first..plan.tasks).step_by(THREADS as usize).try_for_each(|number| queue.enqueue(number))
                })
            };
            let running: Vec<_> = (0..THREADS).map(thread).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("enqueueing does not panic"))
        })
    })
}

fn in_batches(plan: &Plan) -> Result<Outcome, BoxError> {
    measure(plan, |queue| {
        let mut firsts = (0..plan.tasks).step_by(BATCH as usize);
        firsts.try_for_each(|first| queue.enqueue_all(first..(first + BATCH).min(plan.tasks)))
    })
}

fn measure(plan: &Plan, enqueue: impl FnOnce(&Queue) -> Result<(), String>) -> Result<Outcome, BoxError> {
    prefill(&plan.database, plan.finished)?;
    let queue = Queue::open(&plan.database)?;
    let start = Instant::now();
    enqueue(&queue)?;
    let enqueued = start.elapsed();
    let start = Instant::now();
    let sum = queue.drain()?;
    Ok(Outcome { enqueue: enqueued, drain: start.elapsed(), sum, completed: COMPLETED })
}

/// Inserts finished rows in the queue's schema with one INSERT from a recursive query (as in `handwritten`), on a
/// connection that is closed before the measurement.
fn prefill(database: &Path, finished: u64) -> Result<(), String> {
    drop(Store::open(database).map_err(text)?);
    if finished == 0 {
        return Ok(());
    }
    let conn = rusqlite::Connection::open(database).map_err(text)?;
    let moment = "'2026-01-19 12:00:00.000000'";
    let sql = format!(
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {finished})
         INSERT INTO tasks (kind, status, created_at, started_at, finished_at, worker_id, payload)
         SELECT '{KIND}', 'completed', {moment}, {moment}, {moment}, 'hostname:0123456789abcdef/17', i FROM n"
    );
    conn.execute(&sql, []).map(drop).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const KIND: &str = "add";

/// The queue with the operations that are measured.
struct Queue(Store);

impl Queue {
    fn open(database: &Path) -> Result<Self, String> {
        Store::open(database).map(Queue).map_err(text)
    }

    /// Enqueues one task, which is on disk when this returns.
    fn enqueue(&self, number: u64) -> Result<(), String> {
        self.0.tasks().enqueue(NewTask::new(KIND, number.to_string())).map(drop).map_err(text)
    }

    /// Enqueues several tasks in one transaction.
    fn enqueue_all(&self, numbers: std::ops::Range<u64>) -> Result<(), String> {
        let tasks = numbers.map(|number| NewTask::new(KIND, number.to_string())).collect();
        self.0.tasks().enqueue_many(tasks).map(drop).map_err(text)
    }

    /// Runs all waiting tasks and returns the sum once the last task is finished in the table.
    fn drain(&self) -> Result<u64, String> {
        let sum = Arc::new(AtomicU64::new(0));
        let total = sum.clone();
        let add = TaskKind::new(KIND, move |context| {
            total.fetch_add(context.parse::<u64>()?, Relaxed);
            Ok(())
        });
        let running = Runner::builder(self.0.clone()).kind(add).start().map_err(text)?;
        running.wait_idle().map_err(text)?;
        running.stop(Duration::from_secs(10)).map_err(text)?;
        Ok(sum.load(Relaxed))
    }
}
