//! Prints tables and ratios, and checks the thresholds.
//!
//! Owns the thresholds. A candidate with a wrong database or an error is excluded from all comparisons.

use super::{
    benchmark::{Benchmark, Row},
    candidate::{DUCKDB, FLOOR, GRISTMILL},
};
use crate::{
    table::{median, ratio},
    threshold::{self, Limit::AtMost, Threshold},
};

impl Row {
    fn seconds(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.seconds).collect()
    }

    fn peak(&self) -> f64 {
        self.runs.iter().map(|run| run.peak_mib).fold(0.0, f64::max)
    }

    /// Returns whether it completed every run with a correct database.
    fn is_valid(&self) -> bool {
        self.error.is_none() && self.mistakes.is_none() && !self.runs.is_empty()
    }

    fn result(&self) -> String {
        let mistakes = self.mistakes.as_ref().map(|mistakes| format!("WRONG: {mistakes}"));
        let result = self.error.clone().or(mistakes).unwrap_or_else(|| "correct".into());
        result.replace(['\n', '|'], " ")
    }
}

impl Benchmark {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.is_valid())
    }

    /// Returns the median of Gristmill's ratios to another candidate within each repetition.
    fn gristmill_ratio(&self, name: &str) -> Option<f64> {
        Some(ratio(&self.row(GRISTMILL.name)?.seconds(), &self.row(name)?.seconds()))
    }

    pub(super) fn print(&self) {
        println!("\nscale {} ({:.0} MB, {} lines)\n", self.scale, self.megabytes, self.lines);
        println!("| | median s | minimum s | MB/s | × floor | × gristmill | peak MiB | result |");
        println!("|---|---:|---:|---:|---:|---:|---:|---|");
        for row in &self.rows {
            if row.runs.is_empty() {
                println!("| {} | | | | | | | {} |", row.name, row.result());
                continue;
            }
            let seconds = row.seconds();
            let times = |base: &str| {
                let base = self.row(base).map(Row::seconds);
                base.map_or(String::new(), |base| format!("{:.2}", ratio(&seconds, &base)))
            };
            let middle = median(&seconds);
            println!(
                "| {} | {middle:.3} | {:.3} | {:.0} | {} | {} | {:.0} | {} |",
                row.name,
                seconds.iter().copied().fold(f64::INFINITY, f64::min),
                self.megabytes / middle,
                times(FLOOR.name),
                times(GRISTMILL.name),
                row.peak(),
                row.result()
            );
        }
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(benchmarks: &[Benchmark]) {
    threshold::print(benchmarks.iter().flat_map(thresholds).chain(growth(benchmarks)));
}

fn thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    let threshold = |what: &str, value, max_value| Threshold {
        what: format!("scale {}: {what}", benchmark.scale),
        value,
        limit: AtMost(max_value),
    };
    vec![
        threshold("× floor", benchmark.gristmill_ratio(FLOOR.name), 1.6),
        threshold("goal, × floor", benchmark.gristmill_ratio(FLOOR.name), 1.2),
        // Three times as fast.
        threshold("× duckdb", benchmark.gristmill_ratio(DUCKDB), 0.33),
        threshold("peak MiB", benchmark.row(GRISTMILL.name).map(Row::peak), 200.0),
    ]
}

/// Compares the time per megabyte in the largest folder with the smallest. The limit of 1.11 allows nine tenths of the
/// throughput.
fn growth(benchmarks: &[Benchmark]) -> Option<Threshold> {
    let by_size = |a: &&Benchmark, b: &&Benchmark| a.megabytes.total_cmp(&b.megabytes);
    let (small, large) = (benchmarks.iter().min_by(by_size)?, benchmarks.iter().max_by(by_size)?);
    let cost =
        |benchmark: &Benchmark| benchmark.row(GRISTMILL.name).map(|row| median(&row.seconds()) / benchmark.megabytes);
    let what = format!("time per megabyte, scale {} × scale {}", large.scale, small.scale);
    let value = cost(large).zip(cost(small)).map(|(large, small)| large / small);
    (large.megabytes > small.megabytes).then_some(Threshold { what, value, limit: AtMost(1.11) })
}

/// Returns why the benchmark failed: a wrong database of any candidate, or a missing one of Gristmill or the floor.
pub(super) fn failure(benchmarks: &[Benchmark]) -> Option<String> {
    let rows = || benchmarks.iter().flat_map(|benchmark| &benchmark.rows);
    if let Some(row) = rows().find(|row| row.mistakes.is_some()) {
        return Some(format!("the database of {} was wrong", row.name));
    }
    let row = rows().find(|row| [GRISTMILL.name, FLOOR.name].contains(&row.name) && !row.is_valid())?;
    Some(format!("{} created no database", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Run;

    fn row(name: &'static str, seconds: f64) -> Row {
        let run = Run { seconds, peak_mib: seconds * 100.0, cpu: seconds };
        Row { name, runs: vec![run; 3], mistakes: None, error: None }
    }

    fn benchmark(scale: f64, rows: Vec<Row>) -> Benchmark {
        Benchmark { scale, megabytes: scale * 1_500.0, lines: 1, rows }
    }

    fn statuses(thresholds: &[Threshold]) -> Vec<(f64, &'static str)> {
        thresholds.iter().map(|threshold| (threshold.value.unwrap_or(-1.0), threshold.status())).collect()
    }

    #[test]
    fn thresholds_use_the_floor_and_duckdb() {
        let benchmark = benchmark(0.1, vec![row(GRISTMILL.name, 1.5), row(FLOOR.name, 1.0), row(DUCKDB, 6.0)]);
        let expected = [(1.5, "met"), (1.5, "NOT MET"), (0.25, "met"), (150.0, "met")];
        assert_eq!(statuses(&thresholds(&benchmark)), expected);
        assert_eq!(failure(&[benchmark]), None);
    }

    #[test]
    fn wrong_results_are_excluded_and_fail_the_run() {
        let mut rows = vec![row(GRISTMILL.name, 3.0), row(FLOOR.name, 1.0), row(DUCKDB, 6.0)];
        rows[1].mistakes = Some("types: other values in radius".into());
        let wrong = benchmark(0.1, rows);
        assert_eq!(statuses(&thresholds(&wrong))[0], (-1.0, "not measured"));
        assert!(failure(&[wrong]).unwrap().contains("floor"));
        let mut rows = vec![row(GRISTMILL.name, 3.0), row(FLOOR.name, 1.0), row(DUCKDB, 6.0)];
        rows[2].error = Some("no space left".into());
        assert_eq!(failure(&[benchmark(0.1, rows)]), None, "an error of a peer does not fail the run");
    }

    #[test]
    fn growth_compares_the_largest_with_the_smallest_folder() {
        let benchmarks = |largest| {
            [(0.1, 1.0), (0.3, 9.0), (1.0, largest)]
                .map(|(scale, seconds)| benchmark(scale, vec![row(GRISTMILL.name, seconds)]))
        };
        assert_eq!(growth(&benchmarks(10.5)).unwrap().status(), "met");
        assert_eq!(growth(&benchmarks(11.5)).unwrap().status(), "NOT MET");
        assert!(growth(&benchmarks(1.0)[..1]).is_none());
    }
}
