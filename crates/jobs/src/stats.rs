//! What a runner has done, for people and programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gristmill_pool::PoolStats;
use serde::Serialize;

use crate::bench::Bench;

/// What became of the tasks a runner had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// Done.
    pub completed: u64,
    /// Failed, and to be tried again.
    pub retried: u64,
    /// Given up: dead letters.
    pub dead_lettered: u64,
    /// Given back untried.
    pub released: u64,
    /// Cancelled while this runner had them.
    pub cancelled: u64,
    /// Lost to another worker: the lease had run out.
    pub lost: u64,
    /// Still with a handler. After a stop: none.
    pub unfinished: u64,
}

impl RunSummary {
    pub(crate) fn of(benches: &[Arc<Bench>]) -> Self {
        let mut sum = RunSummary::default();
        for one in benches.iter().map(|bench| RunSummary::of_one(bench)) {
            sum.completed += one.completed;
            sum.retried += one.retried;
            sum.dead_lettered += one.dead_lettered;
            sum.released += one.released;
            sum.cancelled += one.cancelled;
            sum.lost += one.lost;
            sum.unfinished += one.unfinished;
        }
        sum
    }

    fn of_one(bench: &Bench) -> Self {
        let counts = &bench.counts;
        RunSummary {
            completed: counts.completed.load(Ordering::Relaxed),
            retried: counts.retried.load(Ordering::Relaxed),
            dead_lettered: counts.buried.load(Ordering::Relaxed),
            released: counts.released.load(Ordering::Relaxed),
            cancelled: counts.cancelled.load(Ordering::Relaxed),
            lost: counts.lost.load(Ordering::Relaxed),
            unfinished: bench.in_air() as u64,
        }
    }
}

/// A runner's counters.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerStats {
    /// The worker's name.
    pub worker: String,
    /// One for each kind.
    pub kinds: Vec<TaskKindStats>,
}

/// The counters of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct TaskKindStats {
    /// The kind.
    pub kind: String,
    /// What became of its tasks.
    pub tasks: RunSummary,
    /// How its pool does.
    pub pool: PoolStats,
}

impl RunnerStats {
    pub(crate) fn of(worker: &str, benches: &[Arc<Bench>]) -> Self {
        let kinds = benches.iter().map(|bench| TaskKindStats {
            kind: bench.kind.name().to_owned(),
            tasks: RunSummary::of_one(bench),
            pool: pool_stats(bench),
        });
        RunnerStats { worker: worker.to_owned(), kinds: kinds.collect() }
    }
}

/// The pool's counters of turns that had a task.
fn pool_stats(bench: &Bench) -> PoolStats {
    let claims = bench.claims();
    let (empty, to_come) = claims.empty_turns();
    let mut stats = bench.pool.stats();
    drop(claims);
    stats.submitted = stats.submitted.saturating_sub(empty + to_come);
    stats.completed = stats.completed.saturating_sub(empty);
    stats.queued = stats.queued.saturating_sub(to_come as usize);
    stats
}
