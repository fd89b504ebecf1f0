//! Gristmill's queue, with FULL: tasks are enqueued one by one from 64 threads, whose commits are grouped, or 100 at a
//! time. Both are drained by a runner with default settings: leases, heartbeats, retries and statistics are on.

use super::{BATCH, BoxError, Candidate, MANY, Outcome, Plan, candidate};
use gristmill_jobs::{Runner, TaskKind};
use gristmill_store::{Error as StoreError, Store, tasks::NewTask};
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
    candidate("gristmill, 64 threads (FULL)", from_threads, MANY),
    candidate("gristmill, batches of 100 (FULL)", in_batches, MANY).in_growth(),
];

const COMPLETED: &str = "SELECT count(*) FROM tasks WHERE status = 'completed'";

const KIND: &str = "add";

/// Each thread enqueues every 64th number and waits until it is on disk before the next.
fn from_threads(plan: &Plan) -> Result<Outcome, BoxError> {
    measure(plan, |store| {
        thread::scope(|scope| {
            let thread = |first| {
                let mut numbers = (first..plan.tasks).step_by(THREADS as usize);
                scope.spawn(move || numbers.try_for_each(|number| store.tasks().enqueue(task(number)).map(drop)))
            };
            let running: Vec<_> = (0..THREADS).map(thread).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("enqueueing does not panic"))
        })
    })
}

/// Each batch is one transaction.
fn in_batches(plan: &Plan) -> Result<Outcome, BoxError> {
    measure(plan, |store| {
        (0..plan.tasks).step_by(BATCH as usize).try_for_each(|first| {
            let tasks = (first..(first + BATCH).min(plan.tasks)).map(task).collect();
            store.tasks().enqueue_many(tasks).map(drop)
        })
    })
}

fn task(number: u64) -> NewTask {
    NewTask::new(KIND, number.to_string())
}

fn measure(plan: &Plan, enqueue: impl FnOnce(&Store) -> Result<(), StoreError>) -> Result<Outcome, BoxError> {
    prefill(&plan.database, plan.finished)?;
    let store = Store::open(&plan.database)?;
    let start = Instant::now();
    enqueue(&store)?;
    let enqueued = start.elapsed();
    let start = Instant::now();
    let sum = drain(&store)?;
    Ok(Outcome { enqueue: enqueued, drain: start.elapsed(), sum, completed: COMPLETED })
}

/// Inserts finished rows in the queue's schema with one INSERT from a recursive query (as in `handwritten`), on a
/// connection that is closed before the measurement.
fn prefill(database: &Path, finished: u64) -> Result<(), BoxError> {
    drop(Store::open(database)?);
    if finished == 0 {
        return Ok(());
    }
    let moment = "'2026-01-19 12:00:00.000000'";
    let sql = format!(
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {finished})
         INSERT INTO tasks (kind, status, created_at, started_at, finished_at, worker_id, payload)
         SELECT '{KIND}', 'completed', {moment}, {moment}, {moment}, 'hostname:0123456789abcdef/17', i FROM n"
    );
    rusqlite::Connection::open(database)?.execute(&sql, [])?;
    Ok(())
}

/// Runs all waiting tasks and returns the sum once the last task is finished in the table. Borrows the store: closing
/// it writes a WAL checkpoint, which is not measured for the other candidates either.
fn drain(store: &Store) -> Result<u64, BoxError> {
    let sum = Arc::new(AtomicU64::new(0));
    let total = sum.clone();
    let add = TaskKind::new(KIND, move |context| {
        total.fetch_add(context.parse::<u64>()?, Relaxed);
        Ok(())
    });
    let running = Runner::builder(store.clone()).kind(add).start()?;
    running.wait_idle()?;
    running.stop(Duration::from_secs(10))?;
    Ok(sum.load(Relaxed))
}
