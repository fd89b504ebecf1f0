//! Prints tables and ratios, and checks the thresholds.
//!
//! Owns the thresholds. A candidate with a wrong result or an error is excluded from all comparisons.

use super::{
    benchmark::{Benchmark, Row, Sample, WORK_MS},
    candidate::{Acks, BEFORE, Candidate, GRISTMILL},
    recovery::Outcome,
};
use crate::{
    table::{median, ratio},
    threshold::{self, Limit::AtLeast, Threshold},
};

impl Row {
    fn values(&self, value: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(value).collect()
    }

    fn rates(&self) -> Vec<f64> {
        self.values(|sample| sample.rate)
    }

    /// Returns whether it completed every run with a correct result.
    fn is_valid(&self) -> bool {
        self.error.is_none() && self.mistakes.is_none() && !self.samples.is_empty()
    }

    fn result(&self) -> String {
        let mistakes = self.mistakes.as_ref().map(|mistakes| format!("WRONG: {mistakes}"));
        let result = self.error.clone().or(mistakes).unwrap_or_else(|| "correct".into());
        result.replace(['\n', '|'], " ")
    }
}

impl Benchmark {
    fn gristmill(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.candidate.name == GRISTMILL.name && row.is_valid())
    }

    /// Returns the fastest candidate that acknowledges in this way.
    fn fastest(&self, acks: Acks) -> Option<&Row> {
        let candidates = self.rows.iter().filter(|row| row.candidate.acks == acks && row.is_valid());
        candidates.max_by(|a, b| median(&a.rates()).total_cmp(&median(&b.rates())))
    }

    fn name(&self) -> String {
        format!("{}, prefetch {}", self.kind.name(), self.prefetch)
    }

    /// Returns the maximum number of messages per second that the workers can handle.
    fn max_rate(&self) -> f64 {
        self.workers as f64 * 1e3 / WORK_MS as f64
    }
}

pub(super) fn print_rate(benchmark: &Benchmark) {
    println!("\n{}: {} messages, handlers that do nothing\n", benchmark.name(), benchmark.messages);
    println!(
        "| | messages/s | minimum | maximum | gristmill × | CPU s per 100,000 | broker CPU s | peak MiB | result |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---|");
    let gristmill = benchmark.gristmill().map(Row::rates);
    for row in &benchmark.rows {
        if row.samples.is_empty() {
            println!("| {} | | | | | | | | {} |", row.candidate.name, row.result());
            continue;
        }
        let rates = row.rates();
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {} | {:.2} | {:.2} | {:.0} | {} |",
            row.candidate.name,
            median(&rates),
            rates.iter().copied().fold(f64::INFINITY, f64::min),
            rates.iter().copied().fold(0.0, f64::max),
            gristmill.as_ref().map_or(String::new(), |gristmill| format!("{:.2}", ratio(gristmill, &rates))),
            median(&row.values(|sample| sample.cpu)),
            median(&row.values(|sample| sample.broker_cpu)),
            row.values(|sample| sample.peak_mib).into_iter().fold(0.0, f64::max),
            row.result(),
        );
    }
}

/// Prints one table for all numbers of workers: messages per second, and their share of the maximum.
pub(super) fn print_work(benchmarks: &[Benchmark]) {
    println!("\nhandlers of {WORK_MS} ms: messages/s, and their share of the maximum of the workers\n");
    let heads = benchmarks.iter().map(|benchmark| match benchmark.workers {
        1 => " 1 worker |".to_owned(),
        workers => format!(" {workers} workers |"),
    });
    println!("| |{}\n|---|{}", heads.collect::<String>(), "---:|".repeat(benchmarks.len()));
    let mut names: Vec<&str> = Vec::new();
    for row in benchmarks.iter().flat_map(|benchmark| &benchmark.rows) {
        if !names.contains(&row.candidate.name) {
            names.push(row.candidate.name);
        }
    }
    for name in names {
        let cells = benchmarks.iter().map(|benchmark| {
            let row = benchmark.rows.iter().find(|row| row.candidate.name == name);
            row.map_or_else(|| "  |".to_owned(), |row| format!(" {} |", work_cell(benchmark, row)))
        });
        println!("| {name} |{}", cells.collect::<String>());
    }
}

fn work_cell(benchmark: &Benchmark, row: &Row) -> String {
    if !row.is_valid() {
        return row.result();
    }
    let rate = median(&row.rates());
    format!("{rate:.1} ({:.3})", rate / benchmark.max_rate())
}

pub(super) fn print_recovery(outcomes: &[Outcome]) {
    println!("\nkilled broker: time from its return to the next handled message\n");
    println!("| | |\n|---|---|");
    for Outcome { name, result } in outcomes {
        println!("| {name} | {} |", result.replace('|', " "));
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(rates: &[Benchmark], works: &[Benchmark]) {
    let compared = rates.iter().chain(works).flat_map(before_thresholds);
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
        let value =
            benchmark.gristmill().zip(fastest).map(|(gristmill, peer)| ratio(&gristmill.rates(), &peer.rates()));
        let peer = fastest.map_or("no peer", |peer| peer.candidate.name);
        Threshold { what: format!("{}: × {what} ({peer})", benchmark.name()), value, limit: AtLeast(min_ratio) }
    };
    vec![
        threshold("the fastest that acknowledges each", Acks::Each, 1.0),
        threshold("the fastest in batches", Acks::Batch, 0.8),
    ]
}

fn work_threshold(benchmark: &Benchmark) -> Threshold {
    let value = benchmark.gristmill().map(|row| median(&row.rates()) / benchmark.max_rate());
    let what = format!("{WORK_MS} ms, workers {}: × their maximum", benchmark.workers);
    Threshold { what, value, limit: AtLeast(0.95) }
}

/// Compares each rate of Gristmill with the rate of the earlier build: at most 3 % slower.
fn before_thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    let row = |name: &str| benchmark.rows.iter().find(|row| row.candidate.name == name && row.is_valid());
    let compared =
        BEFORE.iter().filter_map(|(gristmill, before)| Some((gristmill, row(gristmill.name)?, row(before.name)?)));
    let threshold = |(gristmill, now, before): (&&Candidate, &Row, &Row)| Threshold {
        what: format!("{}, workers {}: {} × before", benchmark.name(), benchmark.workers, gristmill.name),
        value: Some(ratio(&now.rates(), &before.rates())),
        limit: AtLeast(0.97),
    };
    compared.map(threshold).collect()
}

/// Returns why the benchmark failed: a wrong result of any candidate, or a missing one of Gristmill.
pub(super) fn failure<'a>(benchmarks: impl Iterator<Item = &'a Benchmark>) -> Option<String> {
    let rows: Vec<&Row> = benchmarks.flat_map(|benchmark| &benchmark.rows).collect();
    if let Some(row) = rows.iter().find(|row| row.mistakes.is_some()) {
        return Some(format!("the result of {} was wrong", row.candidate.name));
    }
    let row = rows.iter().find(|row| row.candidate.acks == Acks::Automatic && !row.is_valid())?;
    Some(format!("{} has no result: {}", row.candidate.name, row.result()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::{candidate::PEERS, environment::QueueKind};

    fn row(name: &str, rate: f64) -> Row {
        let candidate = std::iter::once(&GRISTMILL)
            .chain(&PEERS)
            .chain([&BEFORE[0].1])
            .find(|candidate| candidate.name == name)
            .unwrap();
        let sample = Sample { rate, cpu: 1.0, broker_cpu: 1.0, peak_mib: 9.0 };
        Row { candidate, samples: vec![sample; 3], mistakes: None, error: None }
    }

    fn benchmark(prefetch: u16, workers: usize, rows: Vec<Row>) -> Benchmark {
        Benchmark { kind: QueueKind::Quorum, prefetch, workers, messages: 9, rows }
    }

    fn rows() -> Vec<Row> {
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
    fn each_rate_is_compared_with_the_earlier_build() {
        let mut rows_with_before = rows();
        assert!(before_thresholds(&benchmark(80, 0, rows())).is_empty());
        rows_with_before.push(row("gristmill, before", 1_000.0));
        assert_eq!(statuses(&before_thresholds(&benchmark(80, 0, rows_with_before))), [(0.9, "NOT MET")]);
    }

    #[test]
    fn wrong_results_are_excluded_and_fail_the_run() {
        let mut wrong = rows();
        wrong[2].mistakes = Some("99 handled".into());
        let wrong = benchmark(80, 0, wrong);
        assert_eq!(statuses(&rate_thresholds(&wrong))[0], (1.125, "met"));
        assert!(failure([&wrong].into_iter()).unwrap().contains("amqprs"));
        let mut failed = rows();
        failed[2].error = Some("connection refused".into());
        assert_eq!(failure([&benchmark(80, 0, failed)].into_iter()), None, "an error of a peer does not fail the run");
        let mut failed = rows();
        failed[0].error = Some("connection refused".into());
        assert!(failure([&benchmark(80, 0, failed)].into_iter()).unwrap().contains("gristmill"));
    }
}
