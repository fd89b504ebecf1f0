//! Random operations on runners in several real processes, checked against rules about which tasks may run, and when.
//!
//! A round enqueues tasks of random kinds, durations and priorities, starts, kills and stops processes, and finishes
//! the remaining tasks in one process with one worker. Handlers log each start and end. Each round also has every
//! scenario once, at a random place: situations that random operations seldom reach. `cargo xtask check runner` runs
//! many rounds.

#![cfg(unix)]

mod log;
mod round;
mod rules;
mod runs;
mod scenarios;
mod worker;

use std::time::{Duration, Instant};

use gristmill_check::Rng;

/// Number of rounds of an ordinary test run; each takes about five seconds.
const ROUNDS: u64 = 3;

/// How long a failing case is reduced.
const REDUCTION_TIMEOUT: Duration = Duration::from_secs(20);

/// Minimum delay between a failed attempt and the next one.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// One operation of a round. `nth` chooses among the running processes or unfinished tasks.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Enqueue {
        queue: &'static str,
        kind: &'static str,
        count: usize,
        priority: i32,
        outcome: &'static str,
        /// Whether they are due only after 150 ms.
        later: bool,
    },
    Start {
        workers: usize,
    },
    Kill {
        nth: usize,
    },
    Stop {
        nth: usize,
    },
    /// Cancels an unfinished task.
    Cancel {
        nth: usize,
    },
    /// Waits until this many more runs have started, or all tasks are finished.
    Watch {
        starts: usize,
    },
    Scenario(Scenario),
}

/// A situation that random operations seldom reach.
#[derive(Clone, Debug)]
pub(crate) enum Scenario {
    /// A process is killed while it holds tasks that it has not started.
    KillHolding,
    /// A process is killed while it runs a task whose start is recorded.
    KillRunning,
    /// A process is stopped while it runs tasks.
    StopBusy { nth: usize },
    /// An urgent task is enqueued while all workers are busy and less urgent tasks wait: in the process or, if `late`,
    /// in the store, because they were released.
    Urgent { late: bool },
    /// Slow tasks of growing urgency are enqueued while all workers are busy and less urgent ones wait.
    Overtake,
    /// A second process starts while the first one is busy with slow tasks.
    Share { workers: usize },
    /// A running task with a unique key is cancelled.
    CancelRunning { kind: &'static str },
    /// A process whose clock is three hours ahead recovers tasks while another one runs them.
    ClockAhead,
}

/// Queues, in the order in which they are served.
pub(crate) const QUEUES: [&str; 2] = ["default", "second"];

/// Kinds: handlers of the first end at once, those of the second take 60 ms.
pub(crate) const KINDS: [&str; 2] = ["quick", "slow"];

/// Outcomes of handlers: success, one failure and then success, permanent failure.
const OUTCOMES: [&str; 3] = ["ok", "flaky", "fatal"];

fn random_ops(rng: &mut Rng) -> Vec<Op> {
    let mut ops: Vec<Op> = (0..rng.within(8..20)).map(|_| random_op(rng)).collect();
    let kind = *rng.pick(&KINDS);
    let scenarios = [
        Scenario::KillHolding,
        Scenario::KillRunning,
        Scenario::StopBusy { nth: rng.within(0..3) },
        Scenario::Urgent { late: false },
        Scenario::Urgent { late: true },
        Scenario::Overtake,
        Scenario::Share { workers: rng.within(1..4) },
        Scenario::CancelRunning { kind },
        Scenario::ClockAhead,
    ];
    for scenario in scenarios {
        ops.insert(rng.within(0..ops.len() + 1), Op::Scenario(scenario));
    }
    ops.insert(0, Op::Start { workers: rng.within(1..4) });
    ops
}

fn random_op(rng: &mut Rng) -> Op {
    match rng.within(0..12) {
        0..=4 => {
            let (queue, kind) = (*rng.pick(&QUEUES), *rng.pick(&KINDS));
            let count = if kind == "quick" { rng.within(1..150) } else { rng.within(1..12) };
            let outcome = if rng.percent(70) { "ok" } else { *rng.pick(&OUTCOMES) };
            Op::Enqueue { queue, kind, count, priority: rng.within(0..4) as i32, outcome, later: rng.percent(20) }
        }
        5 | 6 => Op::Start { workers: rng.within(1..4) },
        7 | 8 => Op::Kill { nth: rng.within(0..3) },
        9 => Op::Stop { nth: rng.within(0..3) },
        10 => Op::Cancel { nth: rng.within(0..500) },
        _ => Op::Watch { starts: rng.within(1..30) },
    }
}

#[test]
fn runners_in_several_processes_obey_all_rules() {
    gristmill_check::run("runner", ROUNDS, |seed| {
        let ops = random_ops(&mut Rng::new(seed));
        let Err(error) = round::run(&ops) else { return Ok(()) };
        eprintln!("seed {seed}: {error}");
        // Processes are not deterministic, so the reduced case may have failed for another reason.
        let begin = Instant::now();
        let fails = |ops: &[Op]| begin.elapsed() < REDUCTION_TIMEOUT && round::run(ops).is_err();
        let reduced = gristmill_check::reduce(&ops, fails);
        Err(format!("{error}\nall operations: {ops:#?}\nreduced operations, which failed too: {reduced:#?}"))
    });
}

/// Not a test: the body of the processes that [`round`] starts.
#[test]
fn worker_process() {
    worker::run();
}
