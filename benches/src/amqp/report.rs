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
    fn each(&self, value: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(value).collect()
    }

    fn rates(&self) -> Vec<f64> {
        self.each(|sample| sample.rate)
    }

    /// Returns whether it completed every run with a correct result.
    fn is_valid(&self) -> bool {
        self.error.is_none() && self.mistakes.is_none() && !self.samples.is_empty()
    }

    fn answer(&self) -> String {
        let mistakes = self.mistakes.as_ref().map(|mistakes| format!("WRONG: {mistakes}"));
        let answer = self.error.clone().or(mistakes).unwrap_or_else(|| "right".into());
        answer.replace(['\n', '|'], " ")
    }
}

impl Benchmark {
    fn gristmill(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.candidate.name == GRISTMILL.name && row.is_valid())
    }

    /// Returns the fastest candidate that acknowledges in this way.
    fn fastest(&self, acks: Acks) -> Option<&Row> {
        let those = self.rows.iter().filter(|row| row.candidate.acks == acks && row.is_valid());
        those.max_by(|a, b| median(&a.rates()).total_cmp(&median(&b.rates())))
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
        "| | messages/s | least | most | gristmill × | CPU s for 100,000 | the broker's | peak MiB | answer |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---|");
    let gristmill = benchmark.gristmill().map(Row::rates);
    for row in &benchmark.rows {
        if row.samples.is_empty() {
            println!("| {} | | | | | | | | {} |", row.candidate.name, row.answer());
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
            median(&row.each(|sample| sample.cpu)),
            median(&row.each(|sample| sample.broker_cpu)),
            row.each(|sample| sample.peak_mib).into_iter().fold(0.0, f64::max),
            row.answer(),
        );
    }
}

/// Prints one table for all numbers of workers: messages per second, and their share of the maximum.
pub(super) fn print_work(benchmarks: &[Benchmark]) {
    println!("\nhandlers of {WORK_MS} ms: messages/s, and their part of what the workers can do\n");
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
        return row.answer();
    }
    let rate = median(&row.rates());
    format!("{rate:.1} ({:.3})", rate / benchmark.max_rate())
}

pub(super) fn print_recovery(outcomes: &[Outcome]) {
    println!("\na broker that is killed: the next message is handled after its return\n");
    println!("| | |\n|---|---|");
    for Outcome { name, told } in outcomes {
        println!("| {name} | {} |", told.replace('|', " "));
    }
}

/// Prints every threshold that these benchmarks cover.
pub(super) fn print_thresholds(rates: &[Benchmark], works: &[Benchmark]) {
    let compared = rates.iter().chain(works).flat_map(before_thresholds);
    let thresholds: Vec<Threshold> = rates
        .iter()
        .flat_map(rate_thresholds)
        .chain(works.iter().map(work_threshold))
        .chain(compared)
        .collect();
    if !thresholds.is_empty() {
        threshold::print(thresholds.into_iter());
    }
}

/// Prefetch 1 has no threshold: the round trip to the broker decides its rate.
fn rate_thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    if benchmark.prefetch == 1 {
        return Vec::new();
    }
    let threshold = |what: &str, acks, least| {
        let fastest = benchmark.fastest(acks);
        let value = benchmark
            .gristmill()
            .zip(fastest)
            .map(|(gristmill, peer)| ratio(&gristmill.rates(), &peer.rates()));
        let who = fastest.map_or("nobody", |peer| peer.candidate.name);
        Threshold { what: format!("{}: × {what} ({who})", benchmark.name()), value, limit: AtLeast(least) }
    };
    vec![
        threshold("the fastest that acknowledges each", Acks::Each, 1.0),
        threshold("the fastest in batches", Acks::Batch, 0.8),
    ]
}

fn work_threshold(benchmark: &Benchmark) -> Threshold {
    let value = benchmark.gristmill().map(|row| median(&row.rates()) / benchmark.max_rate());
    let what = format!("{WORK_MS} ms, workers {}: × what they can do", benchmark.workers);
    Threshold { what, value, limit: AtLeast(0.95) }
}

/// Compares each rate of Gristmill with the rate of the earlier build: at most 3 % slower.
fn before_thresholds(benchmark: &Benchmark) -> Vec<Threshold> {
    let row = |name: &str| benchmark.rows.iter().find(|row| row.candidate.name == name && row.is_valid());
    let compared = BEFORE
        .iter()
        .filter_map(|(gristmill, before)| Some((gristmill, row(gristmill.name)?, row(before.name)?)));
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
        return Some(format!("{}'s answer was wrong", row.candidate.name));
    }
    let row = rows.iter().find(|row| row.candidate.acks == Acks::Automatic && !row.is_valid())?;
    Some(format!("{} gave no answer: {}", row.candidate.name, row.answer()))
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
    fn bars_are_measured_by_the_fastest_of_each_way() {
        assert_eq!(statuses(&rate_thresholds(&benchmark(80, 0, rows()))), [(0.9, "NOT MET"), (0.9, "met")]);
        assert!(rate_thresholds(&benchmark(1, 0, rows())).is_empty());
        let one = |rate| work_threshold(&benchmark(80, 8, vec![row("gristmill", rate)])).status();
        assert_eq!((one(76.0), one(75.0)), ("met", "NOT MET"));
    }

    #[test]
    fn each_rate_is_compared_with_the_earlier_build() {
        let mut both = rows();
        assert!(before_thresholds(&benchmark(80, 0, rows())).is_empty());
        both.push(row("gristmill, before", 1_000.0));
        assert_eq!(statuses(&before_thresholds(&benchmark(80, 0, both))), [(0.9, "NOT MET")]);
    }

    #[test]
    fn wrong_answers_are_nobodys_measure_and_fail_the_run() {
        let mut wrong = rows();
        wrong[2].mistakes = Some("99 handled".into());
        let wrong = benchmark(80, 0, wrong);
        assert_eq!(statuses(&rate_thresholds(&wrong))[0], (1.125, "met"));
        assert!(failure([&wrong].into_iter()).unwrap().contains("amqprs"));
        let mut troubled = rows();
        troubled[2].error = Some("it is not well".into());
        assert_eq!(failure([&benchmark(80, 0, troubled)].into_iter()), None, "a peer's error is its own");
        let mut troubled = rows();
        troubled[0].error = Some("it is not well".into());
        assert!(failure([&benchmark(80, 0, troubled)].into_iter()).unwrap().contains("gristmill"));
    }
}
