//! Measures the runs of one table: several candidates consume one kind of queue alternately, and every result is
//! checked.
//!
//! Owns the order of the runs and the state before each: a queue filled with messages, and all data on disk. `report`
//! evaluates the numbers.

use std::{fs, path::Path};

use clap::ValueEnum;

use super::{
    candidate::{Candidate, ConsumeTask, Participant},
    environment::{Environment, QueueKind},
    options::Options,
};
use crate::{
    comparison::{self, Row},
    process::{self, Run},
};

/// Numbers of parallel handlers in the benchmark of 100 ms handlers.
pub(super) const WORKERS: [usize; 4] = [1, 8, 32, 64];

/// Time that such a handler sleeps, in milliseconds.
pub(super) const WORK_MS: u64 = 100;

/// Maximum repetitions of that benchmark: sleep times vary little.
const MAX_WORK_REPS: usize = 3;

/// Measurements of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Messages handled per second.
    pub(super) rate: f64,
    /// CPU seconds of the consumer per 100,000 messages, from its start to its end.
    pub(super) cpu: f64,
    /// CPU seconds of the broker per 100,000 messages during the run.
    pub(super) broker_cpu: f64,
    pub(super) peak_mib: f64,
}

/// Measurements of one table.
pub(super) struct Benchmark {
    pub(super) kind: QueueKind,
    pub(super) prefetch: u16,
    /// Number of parallel handlers; 0 is the candidate's default.
    pub(super) workers: usize,
    pub(super) messages: u64,
    /// Candidates of the rows.
    pub(super) candidates: Vec<&'static Candidate>,
    pub(super) rows: Vec<Row<Sample>>,
}

impl Benchmark {
    fn new(kind: QueueKind, prefetch: u16, workers: usize, messages: u64) -> Self {
        Benchmark { kind, prefetch, workers, messages, candidates: Vec::new(), rows: Vec::new() }
    }
}

/// Measures handlers that do nothing.
pub(super) fn rate(
    env: &mut Environment,
    participants: &[Participant],
    options: &Options,
    kind: QueueKind,
    prefetch: u16,
) -> Benchmark {
    // With one message in flight at a time every candidate is slow.
    let messages = if prefetch == 1 { options.messages() / 10 } else { options.messages() };
    let largest = options.prefetches().last().copied().unwrap_or_default();
    let takes_part = |participant: &&Participant| participant.candidate.in_rate(prefetch, largest);
    let participants: Vec<_> = participants.iter().filter(takes_part).collect();
    measure_all(env, &participants, Benchmark::new(kind, prefetch, 0, messages), 0, options.reps())
}

/// Measures handlers that take 100 ms. This shows whether all workers are busy all the time, which does not depend on
/// the kind of queue: the quorum queue is used because it costs the broker more.
pub(super) fn work(
    env: &mut Environment,
    participants: &[Participant],
    options: &Options,
    workers: usize,
) -> Benchmark {
    let participants: Vec<_> =
        participants.iter().filter(|participant| participant.candidate.in_work(workers)).collect();
    // Gristmill's default: ten per worker, at most 500.
    let prefetch = (workers * 10).min(500) as u16;
    let messages = workers as u64 * options.messages_per_worker();
    let benchmark = Benchmark::new(QueueKind::Quorum, prefetch, workers, messages);
    measure_all(env, &participants, benchmark, WORK_MS, options.reps().min(MAX_WORK_REPS))
}

/// Runs once on each kind of queue without measuring, because the first run at a broker is slower.
pub(super) fn warm_up(env: &mut Environment, gristmill: &Participant) -> Result<(), String> {
    for &kind in QueueKind::value_variants() {
        let benchmark = Benchmark::new(kind, 80, 0, 5_000);
        if let (_, Some(mistakes)) = measure(env, gristmill, &benchmark, 0)? {
            return Err(format!("{}: {mistakes}", gristmill.candidate.name));
        }
    }
    Ok(())
}

fn measure_all(
    env: &mut Environment,
    participants: &[&Participant],
    mut benchmark: Benchmark,
    work: u64,
    reps: usize,
) -> Benchmark {
    benchmark.candidates = participants.iter().map(|participant| participant.candidate).collect();
    let rows = benchmark.candidates.iter().map(|candidate| Row::new(candidate.name)).collect();
    benchmark.rows = comparison::alternate(rows, reps, |nth, _| {
        let run = measure(env, participants[nth], &benchmark, work);
        if run.is_err() {
            env.discard_queues();
        }
        Some(run)
    });
    benchmark
}

/// Runs a participant once and returns the mistakes in its result.
fn measure(
    env: &mut Environment,
    participant: &Participant,
    benchmark: &Benchmark,
    work: u64,
) -> Result<(Sample, Option<String>), String> {
    let candidate = participant.candidate;
    let messages = (benchmark.messages / candidate.divisor).max(1);
    let queue = env.fill(benchmark.kind, messages)?;
    let task = ConsumeTask {
        uri: &env.broker.uri(),
        queue: &queue,
        messages: messages.to_string(),
        prefetch: benchmark.prefetch,
        work,
        workers: benchmark.workers,
    };
    let folder = env.folder();
    let command_line = participant.command_line(&task, &folder)?;
    process::sync_disks()?;
    let before = env.broker_cpu();
    let run = process::run(&command_line, &folder)?;
    let broker_cpu = env.broker_cpu().zip(before).map_or(f64::NAN, |(after, before)| after - before);
    let result = read(candidate, &folder, run)?;
    let remaining = env.remaining(&queue)?;
    let per_100_000 = |seconds: f64| seconds * 1e5 / messages as f64;
    let sample = Sample {
        rate: messages as f64 / result.seconds,
        cpu: per_100_000(run.cpu),
        broker_cpu: per_100_000(broker_cpu),
        peak_mib: run.peak_mib,
    };
    Ok((sample, result.mistakes(messages, remaining)))
}

/// Result that a run reports.
#[derive(Debug, PartialEq)]
struct RunResult {
    seconds: f64,
    handled: u64,
    different: u64,
}

fn read(candidate: &Candidate, folder: &Path, run: Run) -> Result<RunResult, String> {
    let output = fs::read_to_string(folder.join("stdout")).map_err(|error| error.to_string())?;
    let result = if candidate.prints_bodies() { parse_bodies(&output, run.seconds) } else { parse_report(&output) };
    result.ok_or_else(|| format!("unexpected output {:?}", output.chars().take(200).collect::<String>()))
}

fn parse_report(output: &str) -> Option<RunResult> {
    let mut words = output.split_whitespace();
    let (seconds, handled) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(RunResult { seconds, handled, different: words.next()?.parse().ok()? })
}

/// Parses the output of a candidate that prints message bodies. Its time includes connecting, which is short compared
/// with its work.
fn parse_bodies(output: &str, seconds: f64) -> Option<RunResult> {
    let numbers = output.lines().map(|line| line.get(..20)?.parse().ok());
    let mut numbers = numbers.collect::<Option<Vec<u64>>>()?;
    let handled = numbers.len() as u64;
    numbers.sort_unstable();
    numbers.dedup();
    Some(RunResult { seconds, handled, different: numbers.len() as u64 })
}

impl RunResult {
    /// Describes the difference from the expected result: every message handled once and acknowledged.
    fn mistakes(&self, messages: u64, remaining: u32) -> Option<String> {
        let RunResult { handled, different, .. } = *self;
        let correct = (handled, different, remaining) == (messages, messages, 0);
        (!correct).then(|| format!("{handled} handled, {different} different of {messages}, {remaining} remaining"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parse;

    #[test]
    fn mistakes_are_found_when_counts_differ() {
        let result = parse_report("0.5 3 3\n").unwrap();
        assert_eq!(result, RunResult { seconds: 0.5, handled: 3, different: 3 });
        assert_eq!(result.mistakes(3, 0), None);
        for (output, messages, remaining) in [("1 3 2", 3, 0), ("1 4 3", 3, 0), ("1 3 3", 4, 0), ("1 3 3", 3, 1)] {
            let mistakes = parse_report(output).unwrap().mistakes(messages, remaining);
            assert!(mistakes.is_some(), "{output} {messages} {remaining}");
        }
        assert_eq!(parse_report("1 3"), None);
        assert_eq!(parse_report("amqp-one: no such queue"), None);
    }

    #[test]
    fn parse_bodies_counts_repeated_messages_once() {
        let line = |number: u64| format!("{number:020}xxx\n");
        let output: String = [2, 0, 1, 1].map(line).concat();
        assert_eq!(parse_bodies(&output, 2.0), Some(RunResult { seconds: 2.0, handled: 4, different: 3 }));
        assert_eq!(parse_bodies("something else\n", 2.0), None);
    }

    /// Runs Gristmill's consumer in this process, so that the test needs only a broker.
    #[test]
    fn remaining_counts_messages_that_were_not_consumed() {
        let mut env = Environment::start().unwrap();
        for &kind in QueueKind::value_variants() {
            let queue = env.fill(kind, 250).unwrap();
            let uri = env.broker.uri();
            let args = parse(&format!("{uri} {queue} 250 20 tasks 0 2")).unwrap();
            crate::amqp::run_one(&args).unwrap();
            assert_eq!(env.remaining(&queue), Ok(0));
            let queue = env.fill(kind, 3).unwrap();
            assert_eq!(env.remaining(&queue), Ok(3));
            assert_ne!(env.fill(kind, 1).unwrap(), queue, "a queue with remaining messages is not used again");
        }
    }
}
