//! Gristmill's own queue, with FULL: put in one by one from 64 threads at a time, whose commits are made
//! together, and put in 100 at a time. Both are drained by the queue's workers.
//!
//! **To be filled in** with `gristmill-jobs`: the lines of `CONTENDERS`, `COMPLETED`, `prefill`, and the four
//! functions of `Queue`. The `expect`s complain when they are no longer true.

use super::{BATCH, Contender, Fault, Outcome, Plan};
use std::{path::Path, thread, time::Instant};

const THREADS: u64 = 64;

/// To be:
/// ```text
/// Contender { name: "gristmill, 64 threads (FULL)", measure: from_threads, most: MANY, grows: false },
/// Contender { name: "gristmill, batches of 100 (FULL)", measure: in_batches, most: MANY, grows: true },
/// ```
pub(super) const CONTENDERS: &[Contender] = &[];

/// Counts the completed rows.
const COMPLETED: &str = "SELECT count(*) FROM tasks WHERE status = 'done'";

const MISSING: &str = "the queue is not there yet";

/// Each thread puts in every 64th number, and has it on the disk before it puts in the next.
#[expect(dead_code, reason = "until it is one of the contenders")]
fn from_threads(plan: &Plan) -> Result<Outcome, Fault> {
    measure(plan, |queue| {
        thread::scope(|scope| {
            let thread = |first| {
                scope.spawn(move || {
                    (first..plan.tasks).step_by(THREADS as usize).try_for_each(|number| queue.enqueue(number))
                })
            };
            let running: Vec<_> = (0..THREADS).map(thread).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    })
}

#[expect(dead_code, reason = "until it is one of the contenders")]
fn in_batches(plan: &Plan) -> Result<Outcome, Fault> {
    measure(plan, |queue| {
        let mut firsts = (0..plan.tasks).step_by(BATCH as usize);
        firsts.try_for_each(|first| queue.enqueue_all(first..(first + BATCH).min(plan.tasks)))
    })
}

fn measure(plan: &Plan, enqueue: impl FnOnce(&Queue) -> Result<(), String>) -> Result<Outcome, Fault> {
    prefill(&plan.database, plan.finished)?;
    let queue = Queue::open(&plan.database)?;
    let start = Instant::now();
    enqueue(&queue)?;
    let enqueued = start.elapsed();
    let start = Instant::now();
    let sum = queue.drain()?;
    Ok(Outcome { enqueue: enqueued, drain: start.elapsed(), sum, completed: COMPLETED })
}

/// Finished rows in the queue's own schema, by one INSERT from a recursive query (as in `hand`), on a
/// connection that is closed before anything is measured.
fn prefill(_database: &Path, finished: u64) -> Result<(), String> {
    if finished == 0 { Ok(()) } else { Err(MISSING.into()) }
}

/// The queue as the measurements need it.
struct Queue;

impl Queue {
    fn open(_database: &Path) -> Result<Self, String> {
        Err(MISSING.into())
    }

    /// One task, on the disk when this returns.
    fn enqueue(&self, _number: u64) -> Result<(), String> {
        Err(MISSING.into())
    }

    /// Several in one transaction.
    fn enqueue_all(&self, _numbers: std::ops::Range<u64>) -> Result<(), String> {
        Err(MISSING.into())
    }

    /// Runs everything that waits; returns the sum once the last task is finished in the table.
    fn drain(&self) -> Result<u64, String> {
        Err(MISSING.into())
    }
}
