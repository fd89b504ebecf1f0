//! Prints tables and ratios, and checks the thresholds.
//!
//! Owns the thresholds. A candidate with a wrong result or an error is excluded from all comparisons.

use super::{
    benchmark::{BEFORE, Benchmark, GRISTMILL, Row, SUMS, Setting, WALK},
    profile::Profile,
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

    /// Returns whether it completed every run with a correct result.
    fn is_valid(&self) -> bool {
        self.error.is_none() && self.mistakes.is_empty() && !self.runs.is_empty()
    }

    fn is_peer(&self) -> bool {
        ![GRISTMILL, BEFORE, WALK, SUMS].contains(&self.name)
    }
}

impl Benchmark {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.is_valid())
    }

    /// Returns the fastest peer whose name starts with `prefix`.
    fn fastest(&self, prefix: &str) -> Option<&Row> {
        let peers = self.rows.iter().filter(|row| row.is_peer() && row.is_valid() && row.name.starts_with(prefix));
        peers.min_by(|a, b| median(&a.seconds()).total_cmp(&median(&b.seconds())))
    }

    /// Returns the median of Gristmill's ratios to another row within each repetition.
    fn gristmill_ratio(&self, other: Option<&Row>) -> Option<f64> {
        Some(ratio(&self.row(GRISTMILL)?.seconds(), &other?.seconds()))
    }

    fn cost_per_file(&self, row: &Row) -> f64 {
        median(&row.seconds()) * 1e6 / self.files as f64
    }

    pub(super) fn print(&self) {
        println!("\n{} ({} files)\n", self.setting, self.files);
        println!("| | median s | minimum s | × fastest peer | µs per file | peak MiB | result |");
        println!("|---|---:|---:|---:|---:|---:|---|");
        let fastest = self.fastest("").map(Row::seconds);
        for row in &self.rows {
            let result = row.error.clone().unwrap_or_else(|| row.mistakes.to_string());
            let result = result.replace(['\n', '|'], " ");
            if row.runs.is_empty() {
                println!("| {} | | | | | | {result} |", row.name);
                continue;
            }
            let seconds = row.seconds();
            let minimum = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let times = fastest.as_ref().map_or(String::new(), |fastest| format!("{:.2}", ratio(&seconds, fastest)));
            println!(
                "| {} | {:.3} | {minimum:.3} | {times} | {:.1} | {:.0} | {result} |",
                row.name,
                median(&seconds),
                self.cost_per_file(row),
                row.peak()
            );
        }
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(benchmarks: &[Benchmark]) {
    threshold::print(benchmarks.iter().flat_map(thresholds).chain(growth(benchmarks)));
}

fn thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    let Setting { profile, rescan, cold } = benchmark.setting;
    let threshold = |what: &str, value, max_ratio| Threshold {
        what: format!("{}: {what}", benchmark.setting),
        value,
        limit: AtMost(max_ratio),
    };
    let to = |name: &str| benchmark.gristmill_ratio(benchmark.row(name));
    let to_fastest = |prefix: &str| benchmark.gristmill_ratio(benchmark.fastest(prefix));
    let fastest = benchmark.fastest("").map_or("fastest peer", |row| row.name);
    match (profile, rescan, cold) {
        // Million is checked in `growth`.
        (Profile::Million, _, _) => Vec::new(),
        (_, true, _) => vec![
            threshold(&format!("× {fastest}"), to_fastest(""), 0.25),
            threshold(&format!("goal, × {WALK}"), to(WALK), 2.0),
        ],
        (Profile::Big | Profile::Photos, false, false) => vec![
            threshold("× the faster fclones with BLAKE3", to_fastest("fclones blake3"), 1.0),
            threshold(&format!("goal, × {SUMS}"), to(SUMS), 1.2),
        ],
        (_, false, _) => {
            let mut thresholds = vec![threshold(&format!("× {fastest}"), to_fastest(""), 1.0)];
            if profile == Profile::Small {
                let fclones_peak = benchmark.row("fclones").map(Row::peak);
                let value = benchmark
                    .row(GRISTMILL)
                    .zip(fclones_peak)
                    .map(|(gristmill, fclones_peak)| gristmill.peak() / fclones_peak);
                thresholds.push(threshold("peak memory × fclones", value, 1.5));
            }
            thresholds
        }
    }
}

/// Compares the time per file in larger trees with the smallest tree, and checks the peak memory in the largest. The
/// limit of 1.5 for a constant time per file leaves room for other load on the machine.
fn growth(benchmarks: &[Benchmark]) -> Vec<Threshold> {
    let of = |rescan| {
        let benchmarks = benchmarks.iter().filter(move |benchmark| benchmark.setting.profile == Profile::Million);
        benchmarks.filter(move |benchmark| benchmark.setting.rescan == rescan && !benchmark.setting.cold)
    };
    let mut thresholds = Vec::new();
    for rescan in [false, true] {
        let Some(first) = of(rescan).min_by_key(|benchmark| benchmark.files) else { continue };
        for benchmark in of(rescan).filter(|benchmark| benchmark.files > first.files) {
            let cost = |benchmark: &Benchmark| benchmark.row(GRISTMILL).map(|row| benchmark.cost_per_file(row));
            let what = format!("{}: time per file, {} × {} files", benchmark.setting, benchmark.files, first.files);
            let value = cost(benchmark).zip(cost(first)).map(|(large, small)| large / small);
            thresholds.push(Threshold { what, value, limit: AtMost(1.5) });
        }
        if let Some(largest) = of(rescan).max_by_key(|benchmark| benchmark.files) {
            let what = format!("{}: peak MiB with {} files", largest.setting, largest.files);
            thresholds.push(Threshold { what, value: largest.row(GRISTMILL).map(Row::peak), limit: AtMost(300.0) });
        }
    }
    thresholds
}

/// Returns whether a result of Gristmill was wrong or missing.
pub(super) fn gristmill_failed(benchmarks: &[Benchmark]) -> bool {
    benchmarks.iter().any(|benchmark| benchmark.row(GRISTMILL).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dedup::expected::Mistakes, process::Run};

    fn row(name: &'static str, seconds: f64, missed: usize) -> Row {
        let mistakes = Mistakes { missed, false_groups: 0 };
        let run = Run { seconds, peak_mib: seconds * 10.0, cpu: seconds };
        Row { name, runs: vec![run; 3], mistakes, error: None }
    }

    fn benchmark(profile: Profile, rescan: bool, cold: bool, files: u64, rows: Vec<Row>) -> Benchmark {
        Benchmark { setting: Setting { profile, rescan, cold }, files, rows }
    }

    #[track_caller]
    fn check(benchmark: &Benchmark, expected: &[(f64, &str)]) {
        let thresholds = thresholds(benchmark);
        let statuses: Vec<_> =
            thresholds.iter().map(|threshold| (threshold.value.unwrap_or(-1.0), threshold.status())).collect();
        assert_eq!(statuses, expected, "{}", benchmark.setting);
    }

    #[test]
    fn wrong_results_are_excluded() {
        let rows = || vec![row(GRISTMILL, 3.0, 0), row("fclones", 4.0, 0), row("wrong", 1.0, 7)];
        check(&benchmark(Profile::Small, false, false, 1, rows()), &[(0.75, "met"), (0.75, "met")]);
        let mut rows = rows();
        rows[0].mistakes.missed = 1;
        let wrong = benchmark(Profile::Small, false, false, 1, rows);
        check(&wrong, &[(-1.0, "not measured"), (-1.0, "not measured")]);
        assert!(gristmill_failed(&[wrong]));
    }

    #[test]
    fn each_setting_has_its_own_thresholds() {
        let rows = || {
            let peers = [row("yadf", 1.0, 0), row("fclones blake3", 8.0, 0), row("fclones blake3, tuned", 4.0, 0)];
            let mut rows = vec![row(GRISTMILL, 2.0, 0), row(SUMS, 1.0, 0), row(WALK, 0.5, 0)];
            rows.extend(peers);
            rows
        };
        check(&benchmark(Profile::Big, false, true, 1, rows()), &[(2.0, "NOT MET")]);
        check(&benchmark(Profile::Photos, false, false, 1, rows()), &[(0.5, "met"), (2.0, "NOT MET")]);
        check(&benchmark(Profile::Small, true, false, 1, rows()), &[(2.0, "NOT MET"), (4.0, "NOT MET")]);
    }

    #[test]
    fn growth_is_relative_to_the_smallest_tree() {
        let sizes = [(1_000, 1.0), (10_000, 10.0), (100_000, 200.0)];
        let benchmarks = sizes
            .map(|(files, seconds)| benchmark(Profile::Million, false, false, files, vec![row(GRISTMILL, seconds, 0)]));
        let statuses: Vec<_> = growth(&benchmarks).iter().map(Threshold::status).collect();
        assert_eq!(statuses, ["met", "NOT MET", "NOT MET"], "10^4, 10^5, and 2,000 MiB");
    }
}
