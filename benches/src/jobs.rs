//! Benchmark of durable queues on SQLite: how fast tasks are enqueued, and how fast they are claimed, run and finished.
//! A task only adds its number to a sum, so the queue itself is measured.
//!
//! Owns the list of candidates, the check of their results and the tables. Each kind of candidate has its own module:
//! `handwritten` (plain rusqlite, the base of the comparison), `gristmill`, and `peer` (libraries that need another
//! SQLite and therefore run in their own program).

mod disk;
mod gristmill;
mod handwritten;
mod peer;

use crate::{
    comparison::{self, Entry, MIN_RATE_RATIO, Row, entries, median, print_table, ratio},
    options::{CompareTaskOptions, TaskOptions},
    process,
    scratch::Scratch,
    threshold::{self, Threshold},
};
use gristmill_store::text::thousands;
use handwritten::Synchronous::{Full, Normal};
use std::{error::Error, path::PathBuf, time::Duration};

/// Default number of repetitions, and of tasks in each.
const REPS: usize = 3;
const TASKS: u64 = 10_000;

type BoxError = Box<dyn Error>;

/// Number of tasks that a candidate enqueues or claims at a time, where it supports batches.
const BATCH: u64 = 100;

/// Name of the candidate that the others are compared with.
const BASE: &str = "rusqlite batches of 100 (FULL)";

struct Plan {
    /// Path of a database that does not exist yet, in a folder that is removed afterwards.
    database: PathBuf,
    tasks: u64,
    /// Number of finished tasks in the table before the measurement.
    finished: u64,
}

/// Holds the times and results of one measurement.
struct Outcome {
    enqueue: Duration,
    drain: Duration,
    /// Sum of the numbers of all tasks that ran.
    sum: u64,
    /// Query that counts the completed rows in the candidate's table.
    completed: &'static str,
}

type Measure = fn(&Plan) -> Result<Outcome, BoxError>;

struct Candidate {
    name: &'static str,
    measure: Measure,
    /// Maximum number of tasks. Rates are compared, so slow candidates can run fewer tasks.
    max_tasks: u64,
    /// Whether it can start with finished rows and is part of `jobs-growth`.
    growth: bool,
}

const MANY: u64 = u64::MAX;
const FEW: u64 = 2_000;

const fn candidate(name: &'static str, measure: Measure, max_tasks: u64) -> Candidate {
    Candidate { name, measure, max_tasks, growth: false }
}

impl Candidate {
    const fn in_growth(self) -> Self {
        Candidate { growth: true, ..self }
    }
}

const HANDWRITTEN: &[Candidate] = &[
    candidate(BASE, |plan| handwritten::batches(plan, Full), MANY).in_growth(),
    candidate("rusqlite batches of 100 (NORMAL)", |plan| handwritten::batches(plan, Normal), MANY).in_growth(),
    candidate("rusqlite one by one (FULL)", |plan| handwritten::one_by_one(plan, Full), FEW),
    candidate("rusqlite one by one (NORMAL)", |plan| handwritten::one_by_one(plan, Normal), MANY),
];

/// Lists all candidates; Gristmill's are measured right after the base.
fn candidates() -> impl Iterator<Item = &'static Candidate> {
    HANDWRITTEN.iter().take(1).chain(gristmill::CANDIDATES).chain(&HANDWRITTEN[1..]).chain(peer::CANDIDATES)
}

pub(crate) fn run(options: &CompareTaskOptions) -> Result<(), String> {
    let common = &options.common;
    let entries: Vec<Entry<'_>> = entries(candidates().map(|candidate| candidate.name), options).collect();
    if entries.iter().any(|entry| peer::is_peer(entry.candidate)) {
        peer::build()?;
    }
    let synced = disk::median_sync_time(&common.dir)?;
    let rows = entries.iter().map(|entry| Row::new(&entry.name())).collect();
    let (reps, tasks) = (common.reps(REPS), common.tasks(TASKS));
    let rows = comparison::alternate(rows, reps, |nth, _| Some(measure_in_new_process(&entries[nth], 0, common)));
    println!("{tasks} tasks, {reps} repetitions; 4 KiB appended and synced in {:.0} us\n", synced.as_secs_f64() * 1e6);
    print(&rows);
    let thresholds = before_thresholds(&rows);
    if !thresholds.is_empty() {
        threshold::print(thresholds.into_iter());
    }
    failure(&rows)
}

/// Tasks enqueued and drained per second.
type Rates = [f64; 2];

/// Measures a candidate once, in a new process and a new database.
fn measure_in_new_process(
    entry: &Entry<'_>,
    finished: u64,
    options: &TaskOptions,
) -> Result<(Rates, Option<String>), String> {
    let mut command = process::benchmark_command(entry.before, "jobs-one")?;
    command.args(["--only", entry.candidate, "--tasks", &options.tasks(TASKS).to_string()]);
    command.args(["--finished", &finished.to_string()]).arg("--dir").arg(&options.dir);
    Ok((process::numbers(&mut command)?, None))
}

/// Compares each rate of Gristmill with the rate of the earlier build.
fn before_thresholds(rows: &[Row<Rates>]) -> Vec<Threshold> {
    let of =
        |column: usize, what: &str| comparison::before_thresholds(rows, what, |rates| rates[column], MIN_RATE_RATIO);
    of(0, "enqueue: ").into_iter().chain(of(1, "drain: ")).collect()
}

/// Returns the first error of a candidate.
fn failure(rows: &[Row<Rates>]) -> Result<(), String> {
    rows.iter().find_map(|row| Some(format!("{}: {}", row.name, row.error.as_ref()?))).map_or(Ok(()), Err)
}

/// Prints rates and their ratios to the base. Higher is faster, unlike in the tables of times.
fn print(rows: &[Row<Rates>]) {
    let base = comparison::valid(rows, BASE);
    let cells = rows.iter().filter(|row| row.is_valid()).map(|row| {
        let columns = [0, 1].into_iter().flat_map(|column| {
            let samples = row.values(|rates| rates[column]);
            let ratio = base.map(|base| format!("{:.3}", ratio(&samples, &base.values(|rates| rates[column]))));
            [thousands(median(&samples) as u64), ratio.unwrap_or_default()]
        });
        std::iter::once(row.name.clone()).chain(columns).collect()
    });
    print_table(&["candidate", "enqueue/s", "× base", "drain/s", "× base"], cells);
    println!("\nbase: {BASE}");
}

/// Measures how both rates change with the number of finished tasks in the table.
pub(crate) fn growth(options: &TaskOptions) -> Result<(), String> {
    let chosen: Vec<Entry<'_>> = candidates()
        .filter(|candidate| candidate.growth && candidate.name.contains(&options.only))
        .map(|candidate| Entry { candidate: candidate.name, before: None })
        .collect();
    let reps = options.reps(REPS);
    println!("{} tasks, {reps} repetitions\n", options.tasks(TASKS));
    let heads =
        chosen.iter().flat_map(|entry| ["enqueue/s", "drain/s"].map(|rate| format!("{}, {rate}", entry.name())));
    let heads: Vec<String> = std::iter::once("finished tasks".to_owned()).chain(heads).collect();
    let mut lines = Vec::new();
    for finished in [0, 10_000, 100_000, 1_000_000] {
        let rows = chosen.iter().map(|entry| Row::new(&entry.name())).collect();
        let rows =
            comparison::alternate(rows, reps, |nth, _| Some(measure_in_new_process(&chosen[nth], finished, options)));
        failure(&rows)?;
        let cells = rows
            .iter()
            .flat_map(|row| [0, 1].map(|column| thousands(median(&row.values(|rates| rates[column])) as u64)));
        lines.push(std::iter::once(thousands(finished)).chain(cells).collect());
    }
    print_table(&heads.iter().map(String::as_str).collect::<Vec<_>>(), lines);
    Ok(())
}

/// Runs one measurement in this process and prints tasks enqueued and drained per second.
pub(crate) fn run_one(options: &TaskOptions) -> Result<(), String> {
    let candidate = candidates()
        .find(|candidate| candidate.name == options.only)
        .ok_or("no such candidate; --only takes its full name")?;
    let folder = Scratch::new(&options.dir)?;
    let plan = Plan {
        database: folder.path().join("queue.db"),
        tasks: options.tasks(TASKS).min(candidate.max_tasks),
        finished: options.finished,
    };
    let outcome = (candidate.measure)(&plan).map_err(|error| error.to_string())?;
    check(&plan, &outcome)?;
    let rates = [outcome.enqueue, outcome.drain].map(|time| plan.tasks as f64 / time.as_secs_f64());
    println!("{} {}", rates[0], rates[1]);
    Ok(())
}

/// Checks that every task ran once and that the table has all of them as completed.
fn check(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let want = plan.tasks * (plan.tasks - 1) / 2;
    if outcome.sum != want {
        return Err(format!("wrong sum: {} instead of {want}", outcome.sum));
    }
    let count = || -> Result<i64, rusqlite::Error> {
        rusqlite::Connection::open(&plan.database)?.query_row(outcome.completed, [], |row| row.get(0))
    };
    let got = count().map_err(|error| format!("cannot count the completed rows: {error}"))?;
    let want = (plan.tasks + plan.finished) as i64;
    if got == want { Ok(()) } else { Err(format!("{got} completed rows instead of {want}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_every_candidate_and_rejects_wrong_sums_and_counts() {
        let folder = Scratch::new(&std::env::temp_dir()).unwrap();
        for (nth, candidate) in candidates().filter(|candidate| !peer::is_peer(candidate.name)).enumerate() {
            let database = folder.path().join(nth.to_string());
            // A multiple of neither the batch size nor the number of threads.
            let plan = Plan { database, tasks: 250, finished: if candidate.growth { 30 } else { 0 } };
            let mut outcome = (candidate.measure)(&plan).unwrap();
            check(&plan, &outcome).unwrap();
            let more = Plan { database: plan.database.clone(), finished: plan.finished + 1, ..plan };
            assert!(check(&more, &outcome).unwrap_err().contains("rows"), "{}", candidate.name);
            outcome.sum += 1;
            assert!(check(&plan, &outcome).unwrap_err().contains("wrong sum"), "{}", candidate.name);
        }
    }

    #[test]
    fn each_rate_is_compared_with_the_earlier_build() {
        let row = |name: &str, rates: Rates| Row { samples: vec![rates; 3], ..Row::new(name) };
        let rows = [row(BASE, [9.0, 9.0]), row("gristmill", [97.0, 96.0]), row("gristmill, before", [100.0, 100.0])];
        let statuses: Vec<_> = before_thresholds(&rows).iter().map(Threshold::status).collect();
        assert_eq!(statuses, ["met", "NOT MET"]);
        assert!(before_thresholds(&rows[..2]).is_empty());
    }
}
