//! Benchmarks of Gristmill against named peers, run as `cargo xtask bench NAME`.
//!
//! All candidates of a comparison are measured alternately in one run, several times; medians and ratios are printed.
//! Absolute times depend on the machine and its load, ratios much less.

mod amqp;
mod cache;
mod dedup;
mod import;
mod jobs;
mod pool;
mod process;
mod program;
mod random;
mod scratch;
mod table;
mod task_sum;
mod threshold;

use std::{path::PathBuf, process::ExitCode};

type CommonBenchmark = fn(&Options) -> Result<(), String>;

/// Default number of repetitions, and of tasks in each.
type Amount = (usize, u64);

const POOL_AMOUNT: Amount = (9, 500_000);
const JOBS_AMOUNT: Amount = (3, 10_000);

/// Benchmarks with common options: name, description, defaults and function.
const BENCHMARKS: &[(&str, &str, Amount, CommonBenchmark)] = &[
    (
        "pool",
        "trivial tasks through a pool of 2 workers, against rayon, crossbeam, tokio and others",
        POOL_AMOUNT,
        pool::run,
    ),
    ("pool-one", "measure one candidate of `pool` once; started by `pool`", POOL_AMOUNT, pool::run_one),
    ("pool-growth", "time per task and memory from 10^3 to 10^7 tasks", POOL_AMOUNT, pool::growth),
    (
        "jobs",
        "tasks through a durable queue on SQLite, against handwritten rusqlite, effectum and apalis",
        JOBS_AMOUNT,
        jobs::run,
    ),
    ("jobs-one", "measure one candidate of `jobs` once; started by `jobs`", JOBS_AMOUNT, jobs::run_one),
    ("jobs-growth", "rates of `jobs` with 10^4 to 10^6 finished tasks in the table", JOBS_AMOUNT, jobs::growth),
];

/// Runs a benchmark that parses its own arguments.
type BenchmarkWithOptions = fn(&[String]) -> Result<(), String>;

/// Benchmarks with their own options: name, description and function.
const BENCHMARKS_WITH_OPTIONS: &[(&str, &str, BenchmarkWithOptions)] = &[
    (
        "dedup",
        "finding duplicates: first scan, rescan, growth and memory, against fclones, yadf, czkawka and others",
        dedup::run,
    ),
    ("dedup-walk", "read all folders and stat all files: the lower bound of a rescan", dedup::walk),
    ("dedup-trees", "generate the trees of `dedup` only", dedup::trees),
    (
        "import",
        "JSONL into SQLite: time, memory and growth, against a handwritten pipeline, DuckDB, sqlite-utils and others",
        import::run,
    ),
    ("import-data", "generate the folders of `import` only", import::data),
    (
        "amqp",
        "consumers of a RabbitMQ queue: messages per second, against lapin, amqprs, pika and amqp-consume",
        amqp::run,
    ),
    ("amqp-one", "run the consumer of gristmill once; started by `amqp`", amqp::run_one),
    ("run-one", "run and measure one program; started by `dedup`, `import` and `amqp`", process::run_one),
];

/// Common options of the pool and jobs benchmarks.
struct Options {
    /// Repetitions of each candidate.
    reps: usize,
    /// Tasks in one measurement.
    tasks: u64,
    /// Measures only candidates whose name contains this text, for example under a profiler.
    only: String,
    /// Number of producers in a single measurement.
    producers: u64,
    /// Folder for temporary databases, on the disk to be measured.
    dir: PathBuf,
    /// Finished tasks in the table before a single measurement.
    finished: u64,
    /// Earlier build of this program, whose gristmill is measured alternately with this one.
    before: Option<PathBuf>,
}

fn main() -> ExitCode {
    match start(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(1)
        }
    }
}

fn start(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let name = args.next().unwrap_or_else(|| "--list".into());
    if name == "--list" {
        BENCHMARKS.iter().for_each(|(name, about, _, _)| println!("{name:12} {about}"));
        BENCHMARKS_WITH_OPTIONS.iter().for_each(|(name, about, _)| println!("{name:12} {about}"));
        return Ok(());
    }
    if let Some((_, _, run)) = BENCHMARKS_WITH_OPTIONS.iter().find(|(known, _, _)| *known == name) {
        return run(&args.collect::<Vec<_>>());
    }
    let known = BENCHMARKS.iter().find(|(known, _, _, _)| *known == name);
    let (_, _, (reps, tasks), run) =
        known.ok_or_else(|| format!("no benchmark `{name}`; --list shows all benchmarks"))?;
    let mut options = Options {
        reps: *reps,
        tasks: *tasks,
        only: String::new(),
        producers: 1,
        dir: std::env::temp_dir(),
        finished: 0,
        before: None,
    };
    while let Some(flag) = args.next() {
        let value = args.next().unwrap_or_default();
        let number = value.replace('_', "").parse::<u64>();
        match (flag.as_str(), number) {
            ("--only", _) => options.only = value,
            ("--reps", Ok(reps @ 1..)) => options.reps = reps as usize,
            ("--tasks", Ok(tasks @ 4..)) => options.tasks = tasks,
            ("--producers", Ok(producers @ 1..)) => options.producers = producers,
            ("--dir", _) if !value.is_empty() => options.dir = value.into(),
            ("--finished", Ok(finished)) => options.finished = finished,
            ("--before", _) if name == "jobs" && !value.is_empty() => options.before = Some(value.into()),
            _ => {
                return Err(format!(
                    "invalid option `{flag} {value}`; expected: --reps N, --tasks N (4 or more), --producers N, \
                     --finished N, --dir FOLDER, --only PART-OF-A-NAME and, for jobs, --before FILE (an earlier \
                     build of gristmill-benches)"
                ));
            }
        }
    }
    run(&options)
}
