//! Benchmark of pools with trivial tasks: the overhead of the pool itself. It uses two workers, a queue of 1,024 tasks
//! where a candidate has a bound, and one and four producers. Gristmill runs with all features on: statistics, panic
//! isolation, cancellation.

use crate::{
    comparison::{self, Entry, MAX_TIME_RATIO, Row, entries, median, print_table, ratio},
    options::{CompareTaskOptions, TaskOptions},
    process,
    task_sum::{add, check},
    threshold::{self, Limit::AtMost, Threshold},
};
use gristmill_pool::{Pool, Priority, QueueOrder, Task};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    thread,
    time::Instant,
};

const WORKERS: usize = 2;
const QUEUE: usize = 1_024;

/// Name of a candidate, and a function that runs `count` tasks from each of `producers` producers and waits for all.
type Candidate = (&'static str, fn(producers: u64, count: u64));

const CANDIDATES: &[Candidate] = &[
    ("crossbeam", crossbeam),
    ("gristmill fifo", gristmill_fifo),
    ("gristmill priority", gristmill_priority),
    ("rayon spawn", rayon_spawn),
    ("threadpool", threadpool_execute),
    ("async-channel", async_channel),
    ("gristmill async", gristmill_async),
    ("tokio + semaphore", tokio_semaphore),
];

/// Thresholds: a candidate of Gristmill, the peer it is compared with, and the maximum ratio of their times.
const THRESHOLDS: &[(&str, &str, f64)] = &[
    ("gristmill fifo", "crossbeam", 1.3),
    ("gristmill priority", "crossbeam", 2.0),
    ("gristmill async", "async-channel", 1.3),
];

const PRODUCERS: [u64; 2] = [1, 4];

/// Name of the candidate that the others are compared with.
const BASE: &str = "crossbeam";

/// Default number of repetitions, and of tasks in each.
const REPS: usize = 9;
const TASKS: u64 = 500_000;

/// Nanoseconds per task, with one producer and with four.
type Costs = [f64; PRODUCERS.len()];

pub(crate) fn run(options: &CompareTaskOptions) -> Result<(), String> {
    let entries: Vec<Entry<'_>> = entries(CANDIDATES.iter().map(|(name, _)| *name), options).collect();
    let rows = entries.iter().map(|entry| Row::new(&entry.name())).collect();
    let (reps, tasks) = (options.common.reps(REPS), options.common.tasks(TASKS));
    let rows = comparison::alternate(rows, reps, |nth, _| {
        let mut costs = [0.0; PRODUCERS.len()];
        for (cost, producers) in costs.iter_mut().zip(PRODUCERS) {
            match measure_in_new_process(&entries[nth], producers, tasks) {
                Ok([measured]) => *cost = measured,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok((costs, None)))
    });
    if let Some(error) = rows.iter().find_map(|row| row.error.clone()) {
        return Err(error);
    }
    println!("{tasks} tasks, {reps} repetitions, {WORKERS} workers, queue {QUEUE}\n");
    print(&rows);
    println!();
    threshold::print(PRODUCERS.into_iter().enumerate().flat_map(|(column, producers)| {
        let what = format!("{producers} producers: ");
        let mut of_column = thresholds(&rows, &what, column);
        of_column.extend(comparison::before_thresholds(&rows, &what, |costs| costs[column], MAX_TIME_RATIO));
        of_column
    }));
    Ok(())
}

/// Returns the ratio of two candidates with each number of producers.
fn ratios(row: &Row<Costs>, base: &Row<Costs>) -> Costs {
    std::array::from_fn(|column| ratio(&row.values(|costs| costs[column]), &base.values(|costs| costs[column])))
}

/// Prints medians, and their ratios to crossbeam.
fn print(rows: &[Row<Costs>]) {
    let base = comparison::valid(rows, BASE);
    let lines = rows.iter().map(|row| {
        let ratios = base.map(|base| ratios(row, base));
        let columns = (0..PRODUCERS.len()).flat_map(|column| {
            let ratio = ratios.map(|ratios| format!("{:.2}", ratios[column]));
            [format!("{:.0}", median(&row.values(|costs| costs[column]))), ratio.unwrap_or_default()]
        });
        std::iter::once(row.name.clone()).chain(columns).collect()
    });
    print_table(&["ns per task", "1 producer", "× crossbeam", "4 producers", "× crossbeam"], lines);
}

/// Compares the candidates of Gristmill with the peers that were measured too.
fn thresholds(rows: &[Row<Costs>], what: &str, column: usize) -> Vec<Threshold> {
    let others = ["rayon spawn", "threadpool", "tokio + semaphore"].map(|peer| (peer, 1.0));
    let compared = THRESHOLDS.iter().flat_map(|(name, peer, max)| {
        let peers = std::iter::once((*peer, *max)).chain(others);
        peers.filter_map(move |(peer, max)| {
            let ratio = ratios(comparison::valid(rows, name)?, comparison::valid(rows, peer)?)[column];
            Some(Threshold { what: format!("{what}{name} × {peer}"), value: Some(ratio), limit: AtMost(max) })
        })
    });
    compared.collect()
}

/// Measures one candidate once, in a new process, so that the state left by other candidates has no effect. (In one
/// process some times were a quarter higher and others a third lower: see benches/README.md.)
fn measure_in_new_process(entry: &Entry<'_>, producers: u64, tasks: u64) -> Result<[f64; 1], String> {
    let mut command = process::benchmark_command(entry.before, "pool-one")?;
    command.args(["--only", entry.candidate, "--tasks", &tasks.to_string(), "--producers", &producers.to_string()]);
    process::numbers(&mut command).map_err(|error| format!("{}: {error}", entry.name()))
}

/// Measures one candidate once in this process, after a warm-up, and prints nanoseconds per task.
pub(crate) fn run_one(options: &TaskOptions) -> Result<(), String> {
    let candidate = CANDIDATES
        .iter()
        .find(|(name, _)| *name == options.only)
        .ok_or("no such candidate; --only takes its full name")?
        .1;
    let tasks = options.tasks(TASKS);
    measure(candidate, options.producers, tasks.min(50_000))?;
    println!("{}", measure(candidate, options.producers, tasks)?);
    Ok(())
}

/// Returns nanoseconds per task.
fn measure(candidate: fn(u64, u64), producers: u64, tasks: u64) -> Result<f64, String> {
    let count = tasks / producers;
    let cost = timed(|| candidate(producers, count)) / (producers * count) as f64;
    check(producers, count)?;
    Ok(cost)
}

/// Runs the closure on one thread for each producer and waits for all threads.
fn produce(producers: u64, producer: impl Fn() + Sync) {
    thread::scope(|scope| (0..producers).for_each(|_| drop(scope.spawn(&producer))));
}

fn pool(order: QueueOrder) -> Pool {
    Pool::builder().workers(WORKERS).queue_capacity(QUEUE).order(order).build().expect("valid options")
}

fn gristmill_fifo(producers: u64, count: u64) {
    let pool = pool(QueueOrder::Fifo);
    produce(producers, || {
        for number in 0..count {
            pool.submit(move |_| {
                add(number);
                Ok(())
            })
            .expect("open queue");
        }
    });
    assert!(pool.join().is_clean());
}

/// Alternates between four priorities.
fn gristmill_priority(producers: u64, count: u64) {
    let pool = pool(QueueOrder::Priority);
    produce(producers, || {
        for number in 0..count {
            let task = Task::new(move |_| {
                add(number);
                Ok(())
            });
            pool.submit_task(task.priority(Priority(64 * (number % 4) as u8))).expect("open queue");
        }
    });
    assert!(pool.join().is_clean());
}

fn gristmill_async(producers: u64, count: u64) {
    on_tokio(async move {
        let pool = Pool::builder().workers(WORKERS).queue_capacity(QUEUE).build_async().expect("valid options");
        let producer = || {
            let pool = pool.clone();
            async move {
                for number in 0..count {
                    let body = move |_| async move {
                        add(number);
                        Ok(())
                    };
                    pool.submit(body).await.expect("open queue");
                }
            }
        };
        produce_async(producers, producer).await;
        assert!(pool.join().await.is_clean());
    });
}

fn crossbeam(producers: u64, count: u64) {
    let (sender, receiver) = crossbeam_channel::bounded::<Box<dyn FnOnce() + Send>>(QUEUE);
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let receiver = receiver.clone();
            thread::spawn(move || {
                for task in receiver {
                    catch_unwind(AssertUnwindSafe(task)).expect("no task panics");
                }
            })
        })
        .collect();
    produce(producers, || {
        for number in 0..count {
            sender.send(Box::new(move || add(number))).expect("open queue");
        }
    });
    drop(sender);
    workers.into_iter().for_each(|worker| worker.join().expect("no worker panics"));
}

fn rayon_spawn(producers: u64, count: u64) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(WORKERS).build().expect("valid options");
    pool.in_place_scope(|scope| {
        produce(producers, || {
            for number in 0..count {
                scope.spawn(move |_| add(number));
            }
        });
    });
}

fn threadpool_execute(producers: u64, count: u64) {
    let pool = threadpool::ThreadPool::new(WORKERS);
    // The sender of threadpool is not Sync, so each producer gets its own handle.
    thread::scope(|scope| {
        for _ in 0..producers {
            let pool = pool.clone();
            scope.spawn(move || (0..count).for_each(|number| pool.execute(move || add(number))));
        }
    });
    pool.join();
}

fn on_tokio(work: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build().expect("a tokio runtime");
    runtime.block_on(runtime.spawn(work)).expect("no task panics");
}

async fn produce_async<F>(producers: u64, producer: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let running: Vec<_> = (0..producers).map(|_| tokio::spawn(producer())).collect();
    for producer in running {
        producer.await.expect("no task panics");
    }
}

fn async_channel(producers: u64, count: u64) {
    on_tokio(async move {
        type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
        let (sender, receiver) = async_channel::bounded::<Work>(QUEUE);
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let receiver = receiver.clone();
                tokio::spawn(async move {
                    while let Ok(work) = receiver.recv().await {
                        work.await;
                    }
                })
            })
            .collect();
        let producer = || {
            let sender = sender.clone();
            async move {
                for number in 0..count {
                    sender.send(Box::pin(async move { add(number) })).await.expect("open queue");
                }
            }
        };
        produce_async(producers, producer).await;
        sender.close();
        for worker in workers {
            worker.await.expect("no task panics");
        }
    });
}

fn tokio_semaphore(producers: u64, count: u64) {
    on_tokio(async move {
        let permits = Arc::new(tokio::sync::Semaphore::new(QUEUE));
        let producer = || {
            let permits = Arc::clone(&permits);
            async move {
                for number in 0..count {
                    let permit = Arc::clone(&permits).acquire_owned().await.expect("open queue");
                    tokio::spawn(async move {
                        add(number);
                        drop(permit);
                    });
                }
            }
        };
        produce_async(producers, producer).await;
        let _all = permits.acquire_many(QUEUE as u32).await.expect("open queue");
    });
}

/// Measures how the time per task and the memory grow with the number of tasks. Starting and joining two threads takes
/// as long as a thousand tasks, so that time is measured separately and subtracted.
pub(crate) fn growth(options: &TaskOptions) -> Result<(), String> {
    let orders: [fn(u64, u64); 2] = [gristmill_fifo, gristmill_priority];
    let empty = orders.map(|order| {
        let times: Vec<f64> = (0..200).map(|_| timed(|| order(1, 0))).collect();
        median(&times)
    });
    println!("{WORKERS} workers, queue {QUEUE}, 1 producer; starting and joining a pool: {:.0} us\n", empty[0] / 1e3);
    println!("| tasks | fifo, ns per task | priority, ns per task | peak memory, MiB |");
    println!("|---:|---:|---:|---:|");
    for power in 3..=7 {
        let tasks = 10u64.pow(power);
        let mut costs = [Vec::new(), Vec::new()];
        reset_peak();
        // Small sizes are repeated until they have run as many tasks as the size 10^5.
        let rounds = (10u64.pow(5) / tasks).max(1) as usize * options.reps(REPS);
        for _ in 0..rounds {
            for (nth, order) in orders.iter().enumerate() {
                costs[nth].push((timed(|| order(1, tasks)) - empty[nth]) / tasks as f64);
                check(1, tasks)?;
            }
        }
        let (fifo, priority) = (median(&costs[0]), median(&costs[1]));
        println!("| 10^{power} | {fifo:.0} | {priority:.0} | {} |", peak_mib());
    }
    Ok(())
}

/// Returns the duration of `work` in nanoseconds.
fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}

/// Returns the peak memory of this process since the last reset, on Linux; elsewhere "unknown".
fn peak_mib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map_or_else(|| "unknown".into(), |kib| format!("{:.1}", kib / 1_024.0))
}

fn reset_peak() {
    // Writing 5 resets the peak; see proc(5). If that fails, the peak covers all sizes so far.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
