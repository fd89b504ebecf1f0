//! One table's worth of measurements: some participants at one kind of queue, in turns, and every answer checked.
//!
//! Owns the order of the runs and what lies ready before each: a queue with its messages, nothing left to be written.
//! What the numbers mean is decided in `report`.

use std::{fs, path::Path};

use super::{
    contender::{Contender, Participant, Task},
    options::Options,
    stage::{Kind, Stage},
};
use crate::process::{self, Run};

/// How many handlers at a time, where they take their time.
pub(super) const WORKERS: [usize; 4] = [1, 8, 32, 64];

/// What such a handler takes, in milliseconds.
pub(super) const WORK: u64 = 100;

/// Sleeps vary little.
const MOST_REPS_OF_WORK: usize = 3;

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
    pub(super) contender: &'static Contender,
    pub(super) samples: Vec<Sample>,
    /// What was wrong with an answer.
    pub(super) mistakes: Option<String>,
    /// Why it was given up.
    pub(super) trouble: Option<String>,
}

/// A table.
pub(super) struct Scene {
    pub(super) kind: Kind,
    pub(super) prefetch: u16,
    /// 0 is as it comes.
    pub(super) workers: usize,
    pub(super) messages: u64,
    pub(super) rows: Vec<Row>,
}

/// Handlers that do nothing.
pub(super) fn rate(
    stage: &mut Stage,
    participants: &[Participant],
    options: &Options,
    kind: Kind,
    prefetch: u16,
) -> Result<Scene, String> {
    // One message at a time is slow for everybody.
    let messages = if prefetch == 1 { options.messages / 10 } else { options.messages };
    let plays = |one: &&Participant| one.contender.plays_rate(prefetch, options.largest_prefetch());
    let participants: Vec<_> = participants.iter().filter(plays).collect();
    let scene = Scene { kind, prefetch, workers: 0, messages, rows: Vec::new() };
    play(stage, &participants, scene, 0, options.reps)
}

/// Handlers that take a tenth of a second. What is measured is whether all workers have something to do all the time,
/// which the kind of queue does not change: it is the one that costs the broker more.
pub(super) fn work(
    stage: &mut Stage,
    participants: &[Participant],
    options: &Options,
    workers: usize,
) -> Result<Scene, String> {
    let participants: Vec<_> = participants.iter().filter(|one| one.contender.plays_work(workers)).collect();
    // Gristmill's own choice: ten a worker, at most 500.
    let prefetch = (workers * 10).min(500) as u16;
    let messages = workers as u64 * options.each;
    let scene = Scene { kind: Kind::Quorum, prefetch, workers, messages, rows: Vec::new() };
    play(stage, &participants, scene, WORK, options.reps.min(MOST_REPS_OF_WORK))
}

/// A run of each kind of queue that nobody measures: a broker's first is slower.
pub(super) fn warm_up(stage: &mut Stage, ours: &Participant) -> Result<(), String> {
    for kind in Kind::ALL {
        let scene = Scene { kind, prefetch: 80, workers: 0, messages: 5_000, rows: Vec::new() };
        if let (_, Some(mistakes)) = measure(stage, ours, &scene, 0)? {
            return Err(format!("{}: {mistakes}", ours.contender.name));
        }
    }
    Ok(())
}

fn play(
    stage: &mut Stage,
    participants: &[&Participant],
    mut scene: Scene,
    work: u64,
    reps: usize,
) -> Result<Scene, String> {
    let row = |one: &&Participant| Row {
        contender: one.contender,
        samples: Vec::new(),
        mistakes: None,
        trouble: None,
    };
    let mut rows: Vec<Row> = participants.iter().map(row).collect();
    for turn in 0..reps {
        for nth in 0..rows.len() {
            // Another one begins each time: nobody always has the same one before him.
            let at = (nth + turn) % rows.len();
            let row = &mut rows[at];
            if row.trouble.is_some() {
                continue;
            }
            match measure(stage, participants[at], &scene, work) {
                Ok((sample, mistakes)) => {
                    row.samples.push(sample);
                    row.mistakes = row.mistakes.take().or(mistakes);
                }
                Err(trouble) => {
                    row.trouble = Some(trouble);
                    stage.spoil();
                }
            }
        }
    }
    scene.rows = rows;
    Ok(scene)
}

/// One run, and what was wrong with its answer.
fn measure(
    stage: &mut Stage,
    participant: &Participant,
    scene: &Scene,
    work: u64,
) -> Result<(Sample, Option<String>), String> {
    let contender = participant.contender;
    let messages = (scene.messages / contender.one_in).max(1);
    let queue = stage.fill(scene.kind, messages)?;
    let task = Task {
        uri: &stage.broker.uri(),
        queue: &queue,
        messages: messages.to_string(),
        prefetch: scene.prefetch,
        work,
        workers: scene.workers,
    };
    let folder = stage.folder();
    let call = participant.call(&task, &folder)?;
    process::settle()?;
    let before = stage.broker_cpu();
    let run = process::run(&call, &folder)?;
    let broker_cpu = stage.broker_cpu().zip(before).map_or(f64::NAN, |(after, before)| after - before);
    let answer = read(contender, &folder, run)?;
    let left = stage.left(&queue)?;
    let for_many = |seconds: f64| seconds * 1e5 / messages as f64;
    let sample = Sample {
        rate: messages as f64 / answer.seconds,
        cpu: for_many(run.cpu),
        broker_cpu: for_many(broker_cpu),
        peak_mib: run.peak_mib,
    };
    Ok((sample, answer.mistakes(messages, left)))
}

/// What a run says of itself.
#[derive(Debug, PartialEq)]
struct Answer {
    seconds: f64,
    handled: u64,
    different: u64,
}

fn read(contender: &Contender, folder: &Path, run: Run) -> Result<Answer, String> {
    let said = fs::read_to_string(folder.join("stdout")).map_err(|error| error.to_string())?;
    let answer = if contender.echoes() { echoed(&said, run.seconds) } else { reported(&said) };
    answer.ok_or_else(|| format!("answered {:?}", said.chars().take(200).collect::<String>()))
}

fn reported(said: &str) -> Option<Answer> {
    let mut words = said.split_whitespace();
    let (seconds, handled) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Answer { seconds, handled, different: words.next()?.parse().ok()? })
}

/// Of somebody who wrote down what he was sent. His connecting is counted as well; it is little beside his work.
fn echoed(said: &str, seconds: f64) -> Option<Answer> {
    let numbers = said.lines().map(|line| line.get(..20)?.parse().ok());
    let mut numbers = numbers.collect::<Option<Vec<u64>>>()?;
    let handled = numbers.len() as u64;
    numbers.sort_unstable();
    numbers.dedup();
    Some(Answer { seconds, handled, different: numbers.len() as u64 })
}

impl Answer {
    /// Every message is to be handled, none of them twice, and all of them acknowledged.
    fn mistakes(&self, messages: u64, left: u32) -> Option<String> {
        let Answer { handled, different, .. } = *self;
        let right = (handled, different, left) == (messages, messages, 0);
        (!right).then(|| format!("{handled} handled, {different} different ones of {messages}, {left} left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_judged() {
        let answer = reported("0.5 3 3\n").unwrap();
        assert_eq!(answer, Answer { seconds: 0.5, handled: 3, different: 3 });
        assert_eq!(answer.mistakes(3, 0), None);
        for (said, messages, left) in [("1 3 2", 3, 0), ("1 4 3", 3, 0), ("1 3 3", 4, 0), ("1 3 3", 3, 1)] {
            let mistakes = reported(said).unwrap().mistakes(messages, left);
            assert!(mistakes.is_some(), "{said} {messages} {left}");
        }
        assert_eq!(reported("1 3"), None);
        assert_eq!(reported("amqp-one: no such thing"), None);
    }

    #[test]
    fn echoes_are_counted() {
        let line = |number: u64| format!("{number:020}xxx\n");
        let said: String = [2, 0, 1, 1].map(line).concat();
        assert_eq!(echoed(&said, 2.0), Some(Answer { seconds: 2.0, handled: 4, different: 3 }));
        assert_eq!(echoed("something else\n", 2.0), None);
    }

    /// Ours in this process, so that a broker is all it needs.
    #[test]
    fn what_is_filled_in_is_consumed_and_what_is_left_is_seen() {
        let mut stage = Stage::set().unwrap();
        for kind in Kind::ALL {
            let queue = stage.fill(kind, 250).unwrap();
            let uri = stage.broker.uri();
            let words = [uri.as_str(), &queue, "250", "20", "tasks", "0", "2"].map(str::to_owned);
            crate::amqp::one(&words).unwrap();
            assert_eq!(stage.left(&queue), Ok(0));
            let queue = stage.fill(kind, 3).unwrap();
            assert_eq!(stage.left(&queue), Ok(3));
            assert_ne!(stage.fill(kind, 1).unwrap(), queue, "what a run left something in is not used again");
        }
    }
}
