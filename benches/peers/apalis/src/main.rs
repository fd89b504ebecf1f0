//! apalis with its SQLite storage as a peer: `peer-apalis DATABASE TASKS [lighter]` prints the seconds for enqueueing,
//! the seconds for draining and the sum of the numbers of its tasks. The calling process checks the sum.
//!
//! Tasks are pushed 100 at a time with its batch call; its worker fetches 100 at a time. Durability is the default: its
//! `setup` sets WAL, and synchronous OFF on the one connection that runs it. The other connections of its pool, two or
//! three here, have SQLite's default, FULL: about half of the commits are synced.
//!
//! By default SQLite finds the finished tasks by their worker (index `LIdx`), so each batch of results reads all
//! earlier tasks of this worker. With `lighter` that index is dropped, and SQLite finds them by their id.

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqliteStorage};
use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

const BATCH: u64 = 100;

/// State shared by the tasks: their sum, and the number of tasks left.
#[derive(Clone)]
struct Tally {
    sum: Arc<AtomicU64>,
    left: Arc<AtomicU64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (database, tasks, lighter) = match arguments.as_slice() {
        [database, tasks] => (database, tasks, false),
        [database, tasks, word] if word == "lighter" => (database, tasks, true),
        _ => {
            eprintln!("usage: peer-apalis DATABASE TASKS [lighter]");
            return ExitCode::from(2);
        }
    };
    match start(Path::new(database), tasks, lighter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}

fn start(database: &Path, tasks: &str, lighter: bool) -> Result<(), BoxDynError> {
    let tasks = tasks.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(database, tasks, lighter))
}

async fn measure(database: &Path, tasks: u64, lighter: bool) -> Result<(), BoxDynError> {
    let options = SqliteConnectOptions::new().filename(database).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    SqliteStorage::setup(&pool).await?;
    if lighter {
        sqlx::query("DROP INDEX LIdx").execute(&pool).await?;
    }
    let config = Config::default().queue("add").batch_size(BATCH as usize);
    let mut storage: SqliteStorage<u64> = SqliteStorage::new(&pool).with_config(config);

    let start = Instant::now();
    for first in (0..tasks).step_by(BATCH as usize) {
        storage.push_bulk((first..(first + BATCH).min(tasks)).collect()).await?;
    }
    let enqueued = start.elapsed();

    let tally = Tally { sum: Arc::default(), left: Arc::new(AtomicU64::new(tasks)) };
    let start = Instant::now();
    let worker = WorkerBuilder::new("adder").backend(storage).data(tally.clone()).build(add);
    worker.run().await?;
    let drained = start.elapsed();
    println!("{} {} {}", enqueued.as_secs_f64(), drained.as_secs_f64(), tally.sum.load(Relaxed));
    Ok(())
}

/// The last task stops the worker, which stores the finished tasks before it returns.
async fn add(number: u64, tally: Data<Tally>, worker: WorkerContext) -> Result<(), BoxDynError> {
    tally.sum.fetch_add(number, Relaxed);
    if tally.left.fetch_sub(1, Relaxed) == 1 {
        worker.stop()?;
    }
    Ok(())
}
