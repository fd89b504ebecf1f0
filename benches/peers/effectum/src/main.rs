//! effectum as a peer: `peer-effectum DATABASE TASKS` prints the seconds for enqueueing, the seconds for draining and
//! the sum of the numbers of its tasks. The calling process checks the sum.
//!
//! Jobs are added 100 at a time with its batch call. Its worker runs up to 1,000 jobs at a time (a little faster than
//! 100) and fetches more when half are done; its writer puts up to 50 operations into one transaction.
//!
//! Durability is the default: synchronous NORMAL, and the journal mode of the file. (It uses `PRAGMA journal = wal`,
//! which does not exist, so a new file has a rollback journal.)

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use std::{
    error::Error,
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const BATCH: u64 = 100;
const MAX_CONCURRENCY: u16 = 1_000;
const FETCH_BELOW: u16 = 500;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, tasks] = arguments.as_slice() else {
        eprintln!("usage: peer-effectum DATABASE TASKS");
        return ExitCode::from(2);
    };
    match start(Path::new(database), tasks) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}

fn start(database: &Path, tasks: &str) -> Result<(), Box<dyn Error>> {
    let tasks = tasks.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(database, tasks))
}

async fn measure(database: &Path, tasks: u64) -> Result<(), Box<dyn Error>> {
    let queue = Queue::new(database).await?;
    let start = Instant::now();
    for first in (0..tasks).step_by(BATCH as usize) {
        let batch =
            (first..(first + BATCH).min(tasks)).map(|number| Ok(Job::builder("add").json_payload(&number)?.build()));
        queue.add_jobs(batch.collect::<Result<_, effectum::Error>>()?).await?;
    }
    let enqueued = start.elapsed();

    let sum = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let worker = Worker::builder(&queue, Arc::clone(&sum))
        .jobs([JobRunner::builder("add", add).build()])
        .min_concurrency(FETCH_BELOW)
        .max_concurrency(MAX_CONCURRENCY)
        .build()
        .await?;
    // effectum counts a job as finished after its commit, and has no call that waits for that.
    while worker.counts().finished < tasks {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let drained = start.elapsed();
    queue.close(Duration::from_secs(10)).await?;
    println!("{} {} {}", enqueued.as_secs_f64(), drained.as_secs_f64(), sum.load(Relaxed));
    Ok(())
}

async fn add(job: RunningJob, sum: Arc<AtomicU64>) -> Result<(), effectum::Error> {
    sum.fetch_add(job.json_payload()?, Relaxed);
    Ok(())
}
