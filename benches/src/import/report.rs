//! Prints tables and ratios, and checks the thresholds.
//!
//! Owns the thresholds. A candidate with a wrong database or an error is excluded from all comparisons.

use super::{
    benchmark::Benchmark,
    candidate::{DUCKDB, FLOOR, GRISTMILL},
};
use crate::{
    comparison::{self, MAX_TIME_RATIO, Row, median, minimum, print_rows, ratio},
    process::Run,
    threshold::{self, Limit::AtMost, Threshold},
};

impl Benchmark {
    fn row(&self, name: &str) -> Option<&Row<Run>> {
        comparison::valid(&self.rows, name)
    }

    /// Returns the median of Gristmill's ratios to another candidate within each repetition.
    fn gristmill_ratio(&self, name: &str) -> Option<f64> {
        Some(ratio(&self.row(GRISTMILL.name)?.seconds(), &self.row(name)?.seconds()))
    }

    pub(super) fn print(&self) {
        println!("\nscale {} ({:.0} MB, {} lines)\n", self.scale, self.megabytes, self.lines);
        let head = ["median s", "minimum s", "MB/s", "× floor", "× gristmill", "peak MiB"];
        print_rows(&head, &self.rows, |row| {
            let seconds = row.seconds();
            let times = |base: &str| {
                self.row(base).map_or(String::new(), |base| format!("{:.2}", ratio(&seconds, &base.seconds())))
            };
            vec![
                format!("{:.3}", median(&seconds)),
                format!("{:.3}", minimum(&seconds)),
                format!("{:.0}", self.megabytes / median(&seconds)),
                times(FLOOR.name),
                times(GRISTMILL.name),
                format!("{:.0}", row.peak_mib()),
            ]
        });
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(benchmarks: &[Benchmark]) {
    let before = benchmarks.iter().flat_map(|benchmark| {
        let what = format!("scale {}: ", benchmark.scale);
        comparison::before_thresholds(&benchmark.rows, &what, |run| run.seconds, MAX_TIME_RATIO)
    });
    threshold::print(benchmarks.iter().flat_map(thresholds).chain(growth(benchmarks)).chain(before));
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
        threshold("peak MiB", benchmark.row(GRISTMILL.name).map(Row::peak_mib), 200.0),
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
    let row = rows().find(|row| [GRISTMILL.name, FLOOR.name].contains(&row.name.as_str()) && !row.is_valid())?;
    Some(format!("{} created no database", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, seconds: f64) -> Row<Run> {
        let run = Run { seconds, peak_mib: seconds * 100.0, cpu: seconds };
        Row { samples: vec![run; 3], ..Row::new(name) }
    }

    fn benchmark(scale: f64, rows: Vec<Row<Run>>) -> Benchmark {
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
