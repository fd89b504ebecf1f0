//! Prints tables and ratios, and checks the thresholds.
//!
//! Owns the thresholds. A candidate with a wrong result or an error is excluded from all comparisons.

use super::{
    benchmark::{Benchmark, Sample, WORK_MS},
    candidate::{Acks, Candidate, GRISTMILL},
    recovery::Outcome,
};
use crate::{
    comparison::{self, MIN_RATE_RATIO, Row, maximum, median, minimum, print_rows, print_table, ratio},
    options::value_name,
    threshold::{self, Limit::AtLeast, Threshold},
};

fn rates(row: &Row<Sample>) -> Vec<f64> {
    row.values(|sample| sample.rate)
}

impl Benchmark {
    fn gristmill(&self) -> Option<&Row<Sample>> {
        comparison::valid(&self.rows, GRISTMILL.name)
    }

    fn candidates_and_rows(&self) -> impl Iterator<Item = (&'static Candidate, &Row<Sample>)> {
        self.candidates.iter().copied().zip(&self.rows)
    }

    /// Returns the fastest candidate that acknowledges in this way.
    fn fastest(&self, acks: Acks) -> Option<&Row<Sample>> {
        let candidates = self.candidates_and_rows().filter(|(it, row)| it.acks == acks && row.is_valid());
        candidates.map(|(_, row)| row).max_by(|a, b| median(&rates(a)).total_cmp(&median(&rates(b))))
    }

    fn name(&self) -> String {
        format!("{}, prefetch {}", value_name(&self.kind), self.prefetch)
    }

    /// Returns the maximum number of messages per second that the workers can handle.
    fn max_rate(&self) -> f64 {
        self.workers as f64 * 1e3 / WORK_MS as f64
    }
}

pub(super) fn print_rate(benchmark: &Benchmark) {
    println!("\n{}: {} messages, handlers that do nothing\n", benchmark.name(), benchmark.messages);
    let gristmill = benchmark.gristmill().map(rates);
    let head = ["messages/s", "minimum", "maximum", "gristmill ×", "CPU s per 100,000", "broker CPU s", "peak MiB"];
    print_rows(&head, &benchmark.rows, |row| {
        let rates = rates(row);
        vec![
            format!("{:.0}", median(&rates)),
            format!("{:.0}", minimum(&rates)),
            format!("{:.0}", maximum(&rates)),
            gristmill.as_ref().map_or(String::new(), |gristmill| format!("{:.2}", ratio(gristmill, &rates))),
            format!("{:.2}", median(&row.values(|sample| sample.cpu))),
            format!("{:.2}", median(&row.values(|sample| sample.broker_cpu))),
            format!("{:.0}", maximum(&row.values(|sample| sample.peak_mib))),
        ]
    });
}

/// Prints one table for all numbers of workers: messages per second, and their share of the maximum.
pub(super) fn print_work(benchmarks: &[Benchmark]) {
    println!("\nhandlers of {WORK_MS} ms: messages/s, and their share of the maximum of the workers\n");
    let workers = benchmarks.iter().map(|benchmark| match benchmark.workers {
        1 => "1 worker".to_owned(),
        workers => format!("{workers} workers"),
    });
    let head: Vec<String> = std::iter::once(String::new()).chain(workers).collect();
    let mut names: Vec<&str> = Vec::new();
    for row in benchmarks.iter().flat_map(|benchmark| &benchmark.rows) {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
    }
    let rows = names.into_iter().map(|name| {
        let cells = benchmarks.iter().map(|benchmark| {
            let row = benchmark.rows.iter().find(|row| row.name == name);
            row.map_or_else(String::new, |row| work_cell(benchmark, row))
        });
        std::iter::once(name.to_owned()).chain(cells).collect()
    });
    print_table(&head.iter().map(String::as_str).collect::<Vec<_>>(), rows);
}

fn work_cell(benchmark: &Benchmark, row: &Row<Sample>) -> String {
    if !row.is_valid() {
        return row.result();
    }
    let rate = median(&rates(row));
    format!("{rate:.1} ({:.3})", rate / benchmark.max_rate())
}

pub(super) fn print_recovery(outcomes: &[Outcome]) {
    println!("\nkilled broker: time from its return to the next handled message\n");
    println!("| | |\n|---|---|");
    for (name, result) in outcomes {
        println!("| {name} | {} |", result.replace('|', " "));
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(rates: &[Benchmark], works: &[Benchmark]) {
    let compared = rates.iter().chain(works).flat_map(|benchmark| {
        let what = format!("{}, workers {}: ", benchmark.name(), benchmark.workers);
        comparison::before_thresholds(&benchmark.rows, &what, |sample| sample.rate, MIN_RATE_RATIO)
    });
    let thresholds: Vec<Threshold> =
        rates.iter().flat_map(rate_thresholds).chain(works.iter().map(work_threshold)).chain(compared).collect();
    if !thresholds.is_empty() {
        threshold::print(thresholds.into_iter());
    }
}

/// Prefetch 1 has no threshold: the round trip to the broker decides its rate.
fn rate_thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    if benchmark.prefetch == 1 {
        return Vec::new();
    }
    let threshold = |what: &str, acks, min_ratio| {
        let fastest = benchmark.fastest(acks);
        let value = benchmark.gristmill().zip(fastest).map(|(gristmill, peer)| ratio(&rates(gristmill), &rates(peer)));
        let peer = fastest.map_or("no peer", |peer| &peer.name);
        Threshold { what: format!("{}: × {what} ({peer})", benchmark.name()), value, limit: AtLeast(min_ratio) }
    };
    vec![
        threshold("the fastest that acknowledges each", Acks::Each, 1.0),
        threshold("the fastest in batches", Acks::Batch, 0.8),
    ]
}

fn work_threshold(benchmark: &Benchmark) -> Threshold {
    let value = benchmark.gristmill().map(|row| median(&rates(row)) / benchmark.max_rate());
    let what = format!("{WORK_MS} ms, workers {}: × their maximum", benchmark.workers);
    Threshold { what, value, limit: AtLeast(0.95) }
}

/// Returns why the benchmark failed: a wrong result of any candidate, or a missing one of Gristmill.
pub(super) fn failure<'a>(benchmarks: impl Iterator<Item = &'a Benchmark>) -> Option<String> {
    let rows: Vec<_> = benchmarks.flat_map(Benchmark::candidates_and_rows).collect();
    if let Some((_, row)) = rows.iter().find(|(_, row)| row.mistakes.is_some()) {
        return Some(format!("the result of {} was wrong", row.name));
    }
    let is_missing =
        |(candidate, row): &&(&Candidate, &Row<Sample>)| candidate.acks == Acks::Automatic && !row.is_valid();
    let (_, row) = rows.iter().find(is_missing)?;
    Some(format!("{} has no result: {}", row.name, row.result()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::{candidate::PEERS, environment::QueueKind};

    /// Returns a candidate with three equal measurements.
    fn row(name: &str, rate: f64) -> (&'static Candidate, Row<Sample>) {
        let mut all = std::iter::once(&GRISTMILL).chain(&PEERS);
        let sample = Sample { rate, cpu: 1.0, broker_cpu: 1.0, peak_mib: 9.0 };
        let candidate = all.find(|candidate| candidate.name == name).unwrap();
        (candidate, Row { samples: vec![sample; 3], ..Row::new(name) })
    }

    fn benchmark(prefetch: u16, workers: usize, rows: Vec<(&'static Candidate, Row<Sample>)>) -> Benchmark {
        let (candidates, rows) = rows.into_iter().unzip();
        Benchmark { kind: QueueKind::Quorum, prefetch, workers, messages: 9, candidates, rows }
    }

    fn rows() -> Vec<(&'static Candidate, Row<Sample>)> {
        vec![
            row("gristmill", 900.0),
            row("lapin, each", 800.0),
            row("amqprs, each", 1_000.0),
            row("lapin, by fifties", 1_000.0),
            row("lapin, never", 9_000.0),
        ]
    }

    fn statuses(thresholds: &[Threshold]) -> Vec<(f64, &'static str)> {
        thresholds.iter().map(|threshold| (threshold.value.unwrap_or(-1.0), threshold.status())).collect()
    }

    #[test]
    fn thresholds_use_the_fastest_peer_of_each_ack_mode() {
        assert_eq!(statuses(&rate_thresholds(&benchmark(80, 0, rows()))), [(0.9, "NOT MET"), (0.9, "met")]);
        assert!(rate_thresholds(&benchmark(1, 0, rows())).is_empty());
        let status = |rate| work_threshold(&benchmark(80, 8, vec![row("gristmill", rate)])).status();
        assert_eq!((status(76.0), status(75.0)), ("met", "NOT MET"));
    }

    #[test]
    fn wrong_results_are_excluded_and_fail_the_run() {
        let mut wrong = rows();
        wrong[2].1.mistakes = Some("99 handled".into());
        let wrong = benchmark(80, 0, wrong);
        assert_eq!(statuses(&rate_thresholds(&wrong))[0], (1.125, "met"));
        assert!(failure([&wrong].into_iter()).unwrap().contains("amqprs"));
        let mut failed = rows();
        failed[2].1.error = Some("connection refused".into());
        assert_eq!(failure([&benchmark(80, 0, failed)].into_iter()), None, "an error of a peer does not fail the run");
        let mut failed = rows();
        failed[0].1.error = Some("connection refused".into());
        assert!(failure([&benchmark(80, 0, failed)].into_iter()).unwrap().contains("gristmill"));
    }
}
