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
    Options,
    table::{self, Row, median},
    threshold::{self, Limit::AtLeast, Threshold},
};
use disk::TempFolder;
use handwritten::Synchronous::{Full, Normal};
use std::{
    error::Error,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

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

struct Candidate {
    name: &'static str,
    measure: fn(&Plan) -> Result<Outcome, BoxError>,
    /// Maximum number of tasks. Rates are compared, so slow candidates can run fewer tasks.
    max_tasks: u64,
    /// Whether it can start with finished rows and is part of `jobs-growth`.
    growth: bool,
}

const MANY: u64 = u64::MAX;
const FEW: u64 = 2_000;

const HANDWRITTEN: &[Candidate] = &[
    Candidate { name: BASE, measure: |plan| handwritten::batches(plan, Full), max_tasks: MANY, growth: true },
    Candidate {
        name: "rusqlite batches of 100 (NORMAL)",
        measure: |plan| handwritten::batches(plan, Normal),
        max_tasks: MANY,
        growth: true,
    },
    Candidate {
        name: "rusqlite one by one (FULL)",
        measure: |plan| handwritten::one_by_one(plan, Full),
        max_tasks: FEW,
        growth: false,
    },
    Candidate {
        name: "rusqlite one by one (NORMAL)",
        measure: |plan| handwritten::one_by_one(plan, Normal),
        max_tasks: MANY,
        growth: false,
    },
];

/// Lists all candidates; Gristmill's are measured right after the base.
fn candidates() -> impl Iterator<Item = &'static Candidate> {
    HANDWRITTEN.iter().take(1).chain(gristmill::CANDIDATES).chain(&HANDWRITTEN[1..]).chain(peer::CANDIDATES)
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let chosen: Vec<_> = candidates().filter(|candidate| candidate.name.contains(&options.only)).collect();
    if chosen.iter().any(|candidate| peer::is_peer(candidate)) {
        peer::build()?;
    }
    let synced = disk::median_sync_time(&options.dir)?;
    let entries: Vec<Entry<'_>> = chosen.iter().flat_map(|candidate| entries(candidate, options)).collect();
    let row = |entry: &Entry<'_>| Row { name: entry.name(), samples: vec![Vec::new(); 2] };
    let mut rows: Vec<Row> = entries.iter().map(row).collect();
    for _ in 0..options.reps {
        for (entry, row) in entries.iter().zip(&mut rows) {
            let rates = measure_in_new_process(entry, 0, options)?;
            row.samples.iter_mut().zip(rates).for_each(|(samples, rate)| samples.push(rate));
        }
    }
    println!(
        "{} tasks, {} repetitions; 4 KiB appended and synced in {:.0} us\n",
        options.tasks,
        options.reps,
        synced.as_secs_f64() * 1e6
    );
    print(&rows);
    let thresholds = before_thresholds(&rows);
    if !thresholds.is_empty() {
        threshold::print(thresholds.into_iter());
    }
    Ok(())
}

/// A candidate and the program that measures it: this one, or an earlier build of it.
struct Entry<'a> {
    candidate: &'static Candidate,
    before: Option<&'a Path>,
}

const BEFORE: &str = ", before";

impl Entry<'_> {
    fn name(&self) -> String {
        let suffix = if self.before.is_some() { BEFORE } else { "" };
        format!("{}{suffix}", self.candidate.name)
    }
}

/// Returns the candidate and, if it is one of Gristmill's, right after it the same candidate of the earlier build.
fn entries<'a>(candidate: &'static Candidate, options: &'a Options) -> impl Iterator<Item = Entry<'a>> {
    let is_gristmill = gristmill::CANDIDATES.iter().any(|gristmill| gristmill.name == candidate.name);
    let before = options.before.as_deref().filter(|_| is_gristmill);
    let earlier = before.map(|program| Entry { candidate, before: Some(program) });
    std::iter::once(Entry { candidate, before: None }).chain(earlier)
}

/// Compares each rate of Gristmill with the rate of the earlier build: at most 3 % slower.
fn before_thresholds(rows: &[Row]) -> Vec<Threshold> {
    let mut thresholds = Vec::new();
    for before in rows {
        let Some(name) = before.name.strip_suffix(BEFORE) else { continue };
        let Some(gristmill) = rows.iter().find(|row| row.name == name) else { continue };
        for (column, what) in ["enqueue", "drain"].into_iter().enumerate() {
            let value = Some(table::ratio(&gristmill.samples[column], &before.samples[column]));
            thresholds.push(Threshold { what: format!("{name}: {what} × before"), value, limit: AtLeast(0.97) });
        }
    }
    thresholds
}

/// Prints rates and their ratios to the base. Higher is faster, unlike in the tables of times.
fn print(rows: &[Row]) {
    println!("| candidate | enqueue/s | × base | drain/s | × base |\n|---|---:|---:|---:|---:|");
    let base = rows.iter().find(|row| row.name == BASE);
    for row in rows {
        let cells = row.samples.iter().enumerate().map(|(column, samples)| {
            let ratio = base.map_or(f64::NAN, |base| table::ratio(samples, &base.samples[column]));
            format!(" {} | {ratio:.3} |", thousands(median(samples)))
        });
        println!("| {} |{}", row.name, cells.collect::<String>());
    }
    println!("\nbase: {BASE}");
}

/// Measures how both rates change with the number of finished tasks in the table.
pub(crate) fn growth(options: &Options) -> Result<(), String> {
    let chosen = candidates().filter(|candidate| candidate.growth && candidate.name.contains(&options.only));
    let chosen: Vec<_> = chosen.collect();
    println!("{} tasks, {} repetitions\n", options.tasks, options.reps);
    let heads = chosen.iter().map(|candidate| format!(" {0}, enqueue/s | {0}, drain/s |", candidate.name));
    println!("| finished tasks |{}", heads.collect::<String>());
    println!("|---:|{}", "---:|---:|".repeat(chosen.len()));
    for finished in [0, 10_000, 100_000, 1_000_000] {
        let mut samples = vec![[Vec::new(), Vec::new()]; chosen.len()];
        for _ in 0..options.reps {
            for (candidate, samples) in chosen.iter().zip(&mut samples) {
                let entry = Entry { candidate, before: None };
                let rates = measure_in_new_process(&entry, finished, options)?;
                samples.iter_mut().zip(rates).for_each(|(samples, rate)| samples.push(rate));
            }
        }
        let cells = samples.iter().flatten().map(|samples| format!(" {} |", thousands(median(samples))));
        println!("| {} |{}", thousands(finished as f64), cells.collect::<String>());
    }
    Ok(())
}

/// Measures one candidate once, in a new process and a new database. Returns tasks enqueued and drained per second.
fn measure_in_new_process(entry: &Entry<'_>, finished: u64, options: &Options) -> Result<[f64; 2], String> {
    let context = |error: &dyn std::fmt::Display| format!("{}: {error}", entry.name());
    let program = match entry.before {
        Some(program) => program.to_owned(),
        None => std::env::current_exe().map_err(|error| context(&error))?,
    };
    let mut command = Command::new(program);
    command.args(["jobs-one", "--only", entry.candidate.name, "--tasks", &options.tasks.to_string()]);
    command.args(["--finished", &finished.to_string()]).arg("--dir").arg(&options.dir);
    let output = command.output().map_err(|error| context(&error))?;
    if !output.status.success() {
        return Err(context(&String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    numbers(&text).ok_or_else(|| context(&format!("printed {text:?} instead of two rates")))
}

/// Runs one measurement in this process and prints tasks enqueued and drained per second.
pub(crate) fn run_one(options: &Options) -> Result<(), String> {
    let candidate = candidates()
        .find(|candidate| candidate.name == options.only)
        .ok_or("no such candidate; --only takes its full name")?;
    let folder = TempFolder::new(&options.dir)?;
    let plan = Plan {
        database: folder.path().join("queue.db"),
        tasks: options.tasks.min(candidate.max_tasks),
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

/// Parses a line of exactly `N` numbers.
fn numbers<const N: usize>(line: &str) -> Option<[f64; N]> {
    let words = line.split_whitespace().map(|word| word.parse().ok());
    words.collect::<Option<Vec<f64>>>()?.try_into().ok()
}

/// Formats a rounded number with commas between thousands.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_every_candidate_and_rejects_wrong_sums_and_counts() {
        let folder = TempFolder::new(&std::env::temp_dir()).unwrap();
        for (nth, candidate) in candidates().filter(|candidate| !peer::is_peer(candidate)).enumerate() {
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
        let row = |name: &str, rates: [f64; 2]| Row {
            name: name.to_owned(),
            samples: rates.map(|rate| vec![rate; 3]).to_vec(),
        };
        let rows = [row(BASE, [9.0, 9.0]), row("gristmill", [97.0, 96.0]), row("gristmill, before", [100.0, 100.0])];
        let statuses: Vec<_> = before_thresholds(&rows).iter().map(Threshold::status).collect();
        assert_eq!(statuses, ["met", "NOT MET"]);
        assert!(before_thresholds(&rows[..2]).is_empty());
    }

    #[test]
    fn thousands_puts_a_comma_between_groups() {
        for (number, expected) in
            [(0.0, "0"), (999.4, "999"), (1_000.0, "1,000"), (123_456.0, "123,456"), (1e6, "1,000,000")]
        {
            assert_eq!(thousands(number), expected);
        }
    }

    #[test]
    fn numbers_rejects_lines_with_another_count_or_text() {
        assert_eq!(numbers("1 2.5\n"), Some([1.0, 2.5]));
        assert_eq!(numbers::<2>("1"), None);
        assert_eq!(numbers::<2>("1 2 3"), None);
        assert_eq!(numbers::<2>("1 two"), None);
    }
}
