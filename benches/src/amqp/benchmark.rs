//! One table's worth of measurements: some participants at one kind of queue, in turns, and every answer checked.
//!
//! Owns the order of the runs and what lies ready before each: a queue with its messages, nothing remaining to be written.
//! What the numbers mean is decided in `report`.

use std::{fs, path::Path};

use super::{
    candidate::{Candidate, ConsumeTask, Participant},
    environment::{Environment, QueueKind},
    options::Options,
};
use crate::process::{self, Run};

/// How many handlers at a time, where they take their time.
pub(super) const WORKERS: [usize; 4] = [1, 8, 32, 64];

/// What such a handler takes, in milliseconds.
pub(super) const WORK_MS: u64 = 100;

/// Sleeps vary little.
const MAX_WORK_REPS: usize = 3;

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Messages a second.
    pub(super) rate: f64,
    /// Seconds of the processor's time for 100,000 messages: of the consumer, from its start to its end.
    pub(super) cpu: f64,
    /// And of the broker meanwhile.
    pub(super) broker_cpu: f64,
    pub(super) peak_mib: f64,
}

/// One participant's measurements.
pub(super) struct Row {
    pub(super) candidate: &'static Candidate,
    pub(super) samples: Vec<Sample>,
    /// What was wrong with an answer.
    pub(super) mistakes: Option<String>,
    /// Why it was given up.
    pub(super) error: Option<String>,
}

/// A table.
pub(super) struct Benchmark {
    pub(super) kind: QueueKind,
    pub(super) prefetch: u16,
    /// 0 is as it comes.
    pub(super) workers: usize,
    pub(super) messages: u64,
    pub(super) rows: Vec<Row>,
}

/// Handlers that do nothing.
pub(super) fn rate(
    environment: &mut Environment,
    participants: &[Participant],
    options: &Options,
    kind: QueueKind,
    prefetch: u16,
) -> Result<Benchmark, String> {
    // One message at a time is slow for everybody.
    let messages = if prefetch == 1 { options.messages / 10 } else { options.messages };
    let takes_part =
        |one: &&Participant| one.candidate.takes_part_in_rate(prefetch, options.largest_prefetch());
    let participants: Vec<_> = participants.iter().filter(takes_part).collect();
    let benchmark = Benchmark { kind, prefetch, workers: 0, messages, rows: Vec::new() };
    measure_all(environment, &participants, benchmark, 0, options.reps)
}

/// Handlers that take a tenth of a second. What is measured is whether all workers have something to do all the time,
/// which the kind of queue does not change: it is the one that costs the broker more.
pub(super) fn work(
    environment: &mut Environment,
    participants: &[Participant],
    options: &Options,
    workers: usize,
) -> Result<Benchmark, String> {
    let participants: Vec<_> =
        participants.iter().filter(|one| one.candidate.takes_part_in_work(workers)).collect();
    // Gristmill's own choice: ten a worker, at most 500.
    let prefetch = (workers * 10).min(500) as u16;
    let messages = workers as u64 * options.each;
    let benchmark = Benchmark { kind: QueueKind::Quorum, prefetch, workers, messages, rows: Vec::new() };
    measure_all(environment, &participants, benchmark, WORK_MS, options.reps.min(MAX_WORK_REPS))
}

/// A run of each kind of queue that nobody measures: a broker's first is slower.
pub(super) fn warm_up(environment: &mut Environment, gristmill: &Participant) -> Result<(), String> {
    for kind in QueueKind::ALL {
        let benchmark = Benchmark { kind, prefetch: 80, workers: 0, messages: 5_000, rows: Vec::new() };
        if let (_, Some(mistakes)) = measure(environment, gristmill, &benchmark, 0)? {
            return Err(format!("{}: {mistakes}", gristmill.candidate.name));
        }
    }
    Ok(())
}

fn measure_all(
    environment: &mut Environment,
    participants: &[&Participant],
    mut benchmark: Benchmark,
    work: u64,
    reps: usize,
) -> Result<Benchmark, String> {
    let row = |one: &&Participant| Row {
        candidate: one.candidate,
        samples: Vec::new(),
        mistakes: None,
        error: None,
    };
    let mut rows: Vec<Row> = participants.iter().map(row).collect();
    for turn in 0..reps {
        for nth in 0..rows.len() {
            // Another one begins each time: nobody always has the same one before him.
            let at = (nth + turn) % rows.len();
            let row = &mut rows[at];
            if row.error.is_some() {
                continue;
            }
            match measure(environment, participants[at], &benchmark, work) {
                Ok((sample, mistakes)) => {
                    row.samples.push(sample);
                    row.mistakes = row.mistakes.take().or(mistakes);
                }
                Err(error) => {
                    row.error = Some(error);
                    environment.discard_queues();
                }
            }
        }
    }
    benchmark.rows = rows;
    Ok(benchmark)
}

/// One run, and what was wrong with its answer.
fn measure(
    environment: &mut Environment,
    participant: &Participant,
    benchmark: &Benchmark,
    work: u64,
) -> Result<(Sample, Option<String>), String> {
    let candidate = participant.candidate;
    let messages = (benchmark.messages / candidate.message_divisor).max(1);
    let queue = environment.fill(benchmark.kind, messages)?;
    let task = ConsumeTask {
        uri: &environment.broker.uri(),
        queue: &queue,
        messages: messages.to_string(),
        prefetch: benchmark.prefetch,
        work,
        workers: benchmark.workers,
    };
    let folder = environment.folder();
    let call = participant.call(&task, &folder)?;
    process::sync_disks()?;
    let before = environment.broker_cpu();
    let run = process::run(&call, &folder)?;
    let broker_cpu = environment.broker_cpu().zip(before).map_or(f64::NAN, |(after, before)| after - before);
    let answer = read(candidate, &folder, run)?;
    let remaining = environment.remaining(&queue)?;
    let per_100_000 = |seconds: f64| seconds * 1e5 / messages as f64;
    let sample = Sample {
        rate: messages as f64 / answer.seconds,
        cpu: per_100_000(run.cpu),
        broker_cpu: per_100_000(broker_cpu),
        peak_mib: run.peak_mib,
    };
    Ok((sample, answer.mistakes(messages, remaining)))
}

/// What a run says of itself.
#[derive(Debug, PartialEq)]
struct Answer {
    seconds: f64,
    handled: u64,
    different: u64,
}

fn read(candidate: &Candidate, folder: &Path, run: Run) -> Result<Answer, String> {
    let said = fs::read_to_string(folder.join("stdout")).map_err(|error| error.to_string())?;
    let answer =
        if candidate.prints_bodies() { parse_bodies(&said, run.seconds) } else { parse_report(&said) };
    answer.ok_or_else(|| format!("answered {:?}", said.chars().take(200).collect::<String>()))
}

fn parse_report(said: &str) -> Option<Answer> {
    let mut args = said.split_whitespace();
    let (seconds, handled) = (args.next()?.parse().ok()?, args.next()?.parse().ok()?);
    Some(Answer { seconds, handled, different: args.next()?.parse().ok()? })
}

/// Of somebody who wrote down what he was sent. His connecting is counted as well; it is little beside his work.
fn parse_bodies(said: &str, seconds: f64) -> Option<Answer> {
    let numbers = said.lines().map(|line| line.get(..20)?.parse().ok());
    let mut numbers = numbers.collect::<Option<Vec<u64>>>()?;
    let handled = numbers.len() as u64;
    numbers.sort_unstable();
    numbers.dedup();
    Some(Answer { seconds, handled, different: numbers.len() as u64 })
}

impl Answer {
    /// Every message is to be handled, none of them twice, and all of them acknowledged.
    fn mistakes(&self, messages: u64, remaining: u32) -> Option<String> {
        let Answer { handled, different, .. } = *self;
        let right = (handled, different, remaining) == (messages, messages, 0);
        (!right).then(|| {
            format!("{handled} handled, {different} different ones of {messages}, {remaining} remaining")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_judged() {
        let answer = parse_report("0.5 3 3\n").unwrap();
        assert_eq!(answer, Answer { seconds: 0.5, handled: 3, different: 3 });
        assert_eq!(answer.mistakes(3, 0), None);
        for (said, messages, remaining) in
            [("1 3 2", 3, 0), ("1 4 3", 3, 0), ("1 3 3", 4, 0), ("1 3 3", 3, 1)]
        {
            let mistakes = parse_report(said).unwrap().mistakes(messages, remaining);
            assert!(mistakes.is_some(), "{said} {messages} {remaining}");
        }
        assert_eq!(parse_report("1 3"), None);
        assert_eq!(parse_report("amqp-one: no such thing"), None);
    }

    #[test]
    fn echoes_are_counted() {
        let line = |number: u64| format!("{number:020}xxx\n");
        let said: String = [2, 0, 1, 1].map(line).concat();
        assert_eq!(parse_bodies(&said, 2.0), Some(Answer { seconds: 2.0, handled: 4, different: 3 }));
        assert_eq!(parse_bodies("something else\n", 2.0), None);
    }

    /// Gristmill in this process, so that a broker is all it needs.
    #[test]
    fn what_is_filled_in_is_consumed_and_what_is_left_is_seen() {
        let mut environment = Environment::start().unwrap();
        for kind in QueueKind::ALL {
            let queue = environment.fill(kind, 250).unwrap();
            let uri = environment.broker.uri();
            let args = [uri.as_str(), &queue, "250", "20", "tasks", "0", "2"].map(str::to_owned);
            crate::amqp::one(&args).unwrap();
            assert_eq!(environment.remaining(&queue), Ok(0));
            let queue = environment.fill(kind, 3).unwrap();
            assert_eq!(environment.remaining(&queue), Ok(3));
            assert_ne!(
                environment.fill(kind, 1).unwrap(),
                queue,
                "what a run remaining something in is not used again"
            );
        }
    }
}
