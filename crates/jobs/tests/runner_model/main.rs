//! Random operations on runners in several real processes, compared with rules of which task may run when.
//!
//! A round enqueues tasks of random kinds, durations and priorities, starts processes, kills them and stops them in order,
//! and finishes what is left in one process with one worker. Handlers log each start and end. Each round also has every
//! scene once, at a random place: situations that random operations seldom reach. `cargo xtask check runner` runs many
//! rounds.

#![cfg(unix)]

mod log;
mod play;
mod rules;
mod runs;
mod scenes;
mod worker;

use std::time::{Duration, Instant};

use gristmill_check::Rng;

/// Rounds of an ordinary test run; each takes about five seconds.
const ROUNDS: u64 = 3;

/// A failing case is made smaller for about this time: a test that takes two minutes is ended.
const REDUCTION: Duration = Duration::from_secs(20);

/// A failed attempt is followed by the next one after this time at the earliest.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// One operation of a round. Processes are chosen among those that run.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Enqueue {
        queue: &'static str,
        kind: &'static str,
        count: usize,
        priority: i32,
        end: &'static str,
        /// Whether they are due only after a moment.
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
    /// Cancels one of the unfinished tasks.
    Cancel {
        nth: usize,
    },
    /// Waits until this many more runs have started, or nothing is left to start.
    Watch {
        starts: usize,
    },
    Scene(Scene),
}

/// A situation that is arranged on purpose.
#[derive(Clone, Debug)]
pub(crate) enum Scene {
    /// A process is killed while it holds many tasks that it has not started.
    KillHolding,
    /// A process is killed while it runs a task whose start is recorded.
    KillRunning,
    /// A process is stopped in order while it runs tasks.
    StopBusy { nth: usize },
    /// An urgent task comes while all workers are busy and less urgent tasks wait: in the process, or, if `late`, in the
    /// store, because they were given back.
    Urgent { late: bool },
    /// Ever more urgent slow tasks come while all workers are busy and less urgent ones wait.
    Overtake,
    /// A second process starts while the first one is busy with slow tasks.
    Share { workers: usize },
    /// A task that runs and has a unique key is cancelled.
    CancelRunning { kind: &'static str },
    /// A process whose clock is hours ahead recovers tasks while another one runs them.
    ClockAhead,
}

/// The queues, in the order in which they are served.
pub(crate) const QUEUES: [&str; 2] = ["default", "second"];

/// The kinds: handlers of the first end at once, those of the second take 60 ms.
pub(crate) const KINDS: [&str; 2] = ["quick", "slow"];

/// What handlers do: succeed, fail once and then succeed, fail for good.
const ENDS: [&str; 3] = ["ok", "flaky", "fatal"];

fn random_ops(rng: &mut Rng) -> Vec<Op> {
    let mut ops: Vec<Op> = (0..rng.within(8..20)).map(|_| random_op(rng)).collect();
    let kind = *rng.pick(&KINDS);
    let scenes = [
        Scene::KillHolding,
        Scene::KillRunning,
        Scene::StopBusy { nth: rng.within(0..3) },
        Scene::Urgent { late: false },
        Scene::Urgent { late: true },
        Scene::Overtake,
        Scene::Share { workers: rng.within(1..4) },
        Scene::CancelRunning { kind },
        Scene::ClockAhead,
    ];
    for scene in scenes {
        ops.insert(rng.within(0..ops.len() + 1), Op::Scene(scene));
    }
    ops.insert(0, Op::Start { workers: rng.within(1..4) });
    ops
}

fn random_op(rng: &mut Rng) -> Op {
    match rng.within(0..12) {
        0..=4 => {
            let (queue, kind) = (*rng.pick(&QUEUES), *rng.pick(&KINDS));
            let count = if kind == "quick" { rng.within(1..150) } else { rng.within(1..12) };
            let end = if rng.percent(70) { "ok" } else { *rng.pick(&ENDS) };
            Op::Enqueue { queue, kind, count, priority: rng.within(0..4) as i32, end, later: rng.percent(20) }
        }
        5 | 6 => Op::Start { workers: rng.within(1..4) },
        7 | 8 => Op::Kill { nth: rng.within(0..3) },
        9 => Op::Stop { nth: rng.within(0..3) },
        10 => Op::Cancel { nth: rng.within(0..500) },
        _ => Op::Watch { starts: rng.within(1..30) },
    }
}

#[test]
fn runners_in_several_processes_keep_their_rules() {
    gristmill_check::run("runner", ROUNDS, |seed| {
        let ops = random_ops(&mut Rng::new(seed));
        let Err(error) = play::play(&ops) else { return Ok(()) };
        eprintln!("seed {seed}: {error}");
        // Processes do not repeat themselves exactly: what is left is a shorter case that failed, too.
        let begin = Instant::now();
        let fails = |ops: &[Op]| begin.elapsed() < REDUCTION && play::play(ops).is_err();
        let shorter = gristmill_check::reduce(&ops, fails);
        Err(format!("{error}\nall operations: {ops:#?}\nthese may be enough: {shorter:#?}"))
    });
}

/// Not a test of its own: the process that [`play`] starts.
#[test]
fn worker_process() {
    worker::run();
}
