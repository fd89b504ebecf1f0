//! Prints tables and ratios, and checks the thresholds.
//!
//! Owns the thresholds. A candidate with a wrong result or an error is excluded from all comparisons.

use super::{
    benchmark::{BEFORE, Benchmark, Database, GRISTMILL, SUMS, Setting, WALK},
    profile::Profile,
    real::RealTree,
    selection::TreeKind,
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

    /// Returns the fastest peer whose name starts with `prefix`.
    fn fastest(&self, prefix: &str) -> Option<&Row<Run>> {
        let is_peer = |row: &Row<Run>| ![GRISTMILL, BEFORE, WALK, SUMS].contains(&row.name.as_str());
        let peers = self.rows.iter().filter(|row| is_peer(row) && row.is_valid() && row.name.starts_with(prefix));
        peers.min_by(|a, b| median(&a.seconds()).total_cmp(&median(&b.seconds())))
    }

    /// Returns the median of Gristmill's ratios to another row within each repetition.
    fn gristmill_ratio(&self, other: Option<&Row<Run>>) -> Option<f64> {
        Some(ratio(&self.row(GRISTMILL)?.seconds(), &other?.seconds()))
    }

    fn cost_per_file(&self, row: &Row<Run>) -> f64 {
        median(&row.seconds()) * 1e6 / self.files as f64
    }

    pub(super) fn print(&self) {
        println!("\n{} ({} files)\n", self.setting, self.files);
        let fastest = self.fastest("").map(Row::seconds);
        let head = ["median s", "minimum s", "× fastest peer", "µs per file", "peak MiB"];
        print_rows(&head, &self.rows, |row| {
            let seconds = row.seconds();
            vec![
                format!("{:.3}", median(&seconds)),
                format!("{:.3}", minimum(&seconds)),
                fastest.as_ref().map_or(String::new(), |fastest| format!("{:.2}", ratio(&seconds, fastest))),
                format!("{:.1}", self.cost_per_file(row)),
                format!("{:.0}", row.peak_mib()),
            ]
        });
        for Database { name, bytes, bytes_per_single } in &self.databases {
            let per_file = *bytes as f64 / self.files as f64;
            println!(
                "\ndatabase of {name}: {bytes} bytes, {per_file:.0} per file, {bytes_per_single:.0} per file without a \
                 duplicate"
            );
        }
    }

    /// Returns the bytes of Gristmill's database for each file without a duplicate.
    fn bytes_per_single(&self) -> Option<f64> {
        Some(self.databases.iter().find(|database| database.name == GRISTMILL)?.bytes_per_single)
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(benchmarks: &[Benchmark]) {
    let before = benchmarks.iter().flat_map(|benchmark| {
        let what = format!("{}: ", benchmark.setting);
        comparison::before_thresholds(&benchmark.rows, &what, |run| run.seconds, MAX_TIME_RATIO)
    });
    threshold::print(benchmarks.iter().flat_map(thresholds).chain(growth(benchmarks)).chain(before));
}

fn thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    let Setting { tree, rescan, cold } = benchmark.setting;
    let threshold = |what: &str, value, max_ratio| Threshold {
        what: format!("{}: {what}", benchmark.setting),
        value,
        limit: AtMost(max_ratio),
    };
    let to = |name: &str| benchmark.gristmill_ratio(benchmark.row(name));
    let to_fastest = |prefix: &str| benchmark.gristmill_ratio(benchmark.fastest(prefix));
    let fastest = benchmark.fastest("").map_or("fastest peer", |row| &row.name);
    let profile = match tree {
        TreeKind::Generated(profile) => profile,
        TreeKind::Real(tree) => {
            let mut thresholds = Vec::new();
            match (rescan, cold) {
                (false, false) => {
                    thresholds.push(threshold(&format!("× {fastest}"), to_fastest(""), 1.0));
                    thresholds.push(threshold(&format!("goal, × {fastest}"), to_fastest(""), 0.8));
                    let bytes = benchmark.bytes_per_single();
                    thresholds.push(threshold("database bytes per file without a duplicate", bytes, 200.0));
                    if tree == RealTree::Usr {
                        thresholds.push(threshold("peak MiB", benchmark.row(GRISTMILL).map(Row::peak_mib), 60.0));
                    }
                }
                (false, true) => thresholds.push(threshold(&format!("× {fastest}"), to_fastest(""), 0.8)),
                (true, false) => thresholds.push(threshold(&format!("× {fastest}"), to_fastest(""), 0.2)),
                (true, true) => {}
            }
            return thresholds;
        }
    };
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
                let fclones_peak = benchmark.row("fclones").map(Row::peak_mib);
                let value = benchmark
                    .row(GRISTMILL)
                    .zip(fclones_peak)
                    .map(|(gristmill, fclones_peak)| gristmill.peak_mib() / fclones_peak);
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
        let benchmarks =
            benchmarks.iter().filter(move |benchmark| benchmark.setting.tree == TreeKind::Generated(Profile::Million));
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
            thresholds.push(Threshold { what, value: largest.row(GRISTMILL).map(Row::peak_mib), limit: AtMost(300.0) });
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
    fn row(name: &str, seconds: f64) -> Row<Run> {
        let run = Run { seconds, peak_mib: seconds * 10.0, cpu: seconds };
        Row { samples: vec![run; 3], ..Row::new(name) }
    }

    fn benchmark(profile: Profile, rescan: bool, cold: bool, files: u64, rows: Vec<Row<Run>>) -> Benchmark {
        let setting = Setting { tree: TreeKind::Generated(profile), rescan, cold };
        Benchmark { setting, files, rows, databases: Vec::new() }
    }

    fn real(tree: RealTree, rescan: bool, cold: bool) -> Benchmark {
        let rows = vec![row(GRISTMILL, 1.8), row("yadf", 2.0), row("(plain parallel walk)", 0.1)];
        let setting = Setting { tree: TreeKind::Real(tree), rescan, cold };
        let database = |name, bytes_per_single| Database { name, bytes: 1_000, bytes_per_single };
        let databases = vec![database(BEFORE, 1.0), database(GRISTMILL, 201.0)];
        Benchmark { setting, files: 10, rows, databases }
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
        let wrong = || Row { mistakes: Some("missed 7 groups".to_owned()), ..row("wrong", 1.0) };
        let rows = || vec![row(GRISTMILL, 3.0), row("fclones", 4.0), wrong()];
        check(&benchmark(Profile::Small, false, false, 1, rows()), &[(0.75, "met"), (0.75, "met")]);
        let mut rows = rows();
        rows[0].mistakes = Some("missed 1 group".to_owned());
        let wrong = benchmark(Profile::Small, false, false, 1, rows);
        check(&wrong, &[(-1.0, "not measured"), (-1.0, "not measured")]);
        assert!(gristmill_failed(&[wrong]));
    }

    #[test]
    fn each_setting_has_its_own_thresholds() {
        let rows = || {
            let peers = [row("yadf", 1.0), row("fclones blake3", 8.0), row("fclones blake3, tuned", 4.0)];
            let mut rows = vec![row(GRISTMILL, 2.0), row(SUMS, 1.0), row(WALK, 0.5)];
            rows.extend(peers);
            rows
        };
        check(&benchmark(Profile::Big, false, true, 1, rows()), &[(2.0, "NOT MET")]);
        check(&benchmark(Profile::Photos, false, false, 1, rows()), &[(0.5, "met"), (2.0, "NOT MET")]);
        check(&benchmark(Profile::Small, true, false, 1, rows()), &[(2.0, "NOT MET"), (4.0, "NOT MET")]);
    }

    #[test]
    fn real_trees_have_their_own_thresholds() {
        let first = [(0.9, "met"), (0.9, "NOT MET"), (201.0, "NOT MET")];
        check(&real(RealTree::Node, false, false), &first);
        check(&real(RealTree::Wheels, false, false), &first);
        check(&real(RealTree::Usr, false, false), &[&first[..], &[(18.0, "met")]].concat());
        check(&real(RealTree::Crates, false, true), &[(0.9, "NOT MET")]);
        check(&real(RealTree::Wheels, true, false), &[(0.9, "NOT MET")]);
        check(&real(RealTree::Usr, true, true), &[]);
    }

    #[test]
    fn growth_is_relative_to_the_smallest_tree() {
        let sizes = [(1_000, 1.0), (10_000, 10.0), (100_000, 200.0)];
        let benchmarks = sizes
            .map(|(files, seconds)| benchmark(Profile::Million, false, false, files, vec![row(GRISTMILL, seconds)]));
        let statuses: Vec<_> = growth(&benchmarks).iter().map(Threshold::status).collect();
        assert_eq!(statuses, ["met", "NOT MET", "NOT MET"], "10^4, 10^5, and 2,000 MiB");
    }
}
