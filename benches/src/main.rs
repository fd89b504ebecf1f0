//! Benchmarks of Gristmill against named peers, run as `cargo xtask bench NAME`.
//!
//! Everything that is compared is measured in one run, in turns, several times over; what is printed are
//! medians and ratios. Absolute times depend on the machine and on what else it does; ratios much less.

mod answer;
mod pool;
mod table;

use std::process::ExitCode;

type Benchmark = fn(&Options) -> Result<(), String>;

/// What can be run, and what it shows.
const BENCHMARKS: &[(&str, &str, Benchmark)] = &[
    (
        "pool",
        "trivial tasks through a pool of 2 workers, against rayon, crossbeam, tokio and others",
        pool::run,
    ),
    ("pool-one", "one contender of `pool`, once; what `pool` runs", pool::one),
    ("pool-growth", "cost of one task and memory from 10^3 to 10^7 tasks", pool::growth),
];

/// How much is measured.
struct Options {
    /// Repetitions of each contender.
    reps: usize,
    /// Tasks in one measurement.
    tasks: u64,
    /// Only contenders whose name has this in it: for a profiler.
    only: String,
    /// Who submits at a time, where one measurement is made.
    producers: u64,
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
        BENCHMARKS.iter().for_each(|(name, about, _)| println!("{name:12} {about}"));
        return Ok(());
    }
    let known = BENCHMARKS.iter().find(|(known, _, _)| *known == name);
    let (_, _, run) = known.ok_or_else(|| format!("no benchmark `{name}`; --list shows what there is"))?;
    let mut options = Options { reps: 9, tasks: 500_000, only: String::new(), producers: 1 };
    while let Some(flag) = args.next() {
        let value = args.next().unwrap_or_default();
        let number = value.replace('_', "").parse::<u64>();
        match (flag.as_str(), number) {
            ("--only", _) => options.only = value,
            ("--reps", Ok(reps @ 1..)) => options.reps = reps as usize,
            ("--tasks", Ok(tasks @ 4..)) => options.tasks = tasks,
            ("--producers", Ok(producers @ 1..)) => options.producers = producers,
            _ => {
                return Err(format!(
                    "`{flag} {value}`: known are --reps N, --tasks N (4 or more), --producers N and --only PART-OF-A-NAME"
                ));
            }
        }
    }
    run(&options)
}
