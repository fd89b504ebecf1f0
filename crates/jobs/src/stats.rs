//! What a runner has done, for people and programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gristmill_pool::PoolStats;
use serde::Serialize;

use crate::kind_runner::KindRunner;

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
    pub(crate) fn of(runners: &[Arc<KindRunner>]) -> Self {
        let mut sum = RunSummary::default();
        for one in runners.iter().map(|runner| RunSummary::of_one(runner)) {
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

    fn of_one(runner: &KindRunner) -> Self {
        let counts = &runner.counts;
        RunSummary {
            completed: counts.completed.load(Ordering::Relaxed),
            retried: counts.retried.load(Ordering::Relaxed),
            dead_lettered: counts.dead_lettered.load(Ordering::Relaxed),
            released: counts.released.load(Ordering::Relaxed),
            cancelled: counts.cancelled.load(Ordering::Relaxed),
            lost: counts.lost.load(Ordering::Relaxed),
            unfinished: runner.in_flight() as u64,
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
    pub(crate) fn of(worker: &str, runners: &[Arc<KindRunner>]) -> Self {
        let kinds = runners.iter().map(|runner| TaskKindStats {
            kind: runner.kind.name().to_owned(),
            tasks: RunSummary::of_one(runner),
            pool: pool_stats(runner),
        });
        RunnerStats { worker: worker.to_owned(), kinds: kinds.collect() }
    }
}

/// The pool's counters of turns that had a task.
fn pool_stats(runner: &KindRunner) -> PoolStats {
    let claims = runner.claims();
    let (unused, queued_unused) = claims.unused_placeholders();
    let mut stats = runner.pool.stats();
    drop(claims);
    stats.submitted = stats.submitted.saturating_sub(unused + queued_unused);
    stats.completed = stats.completed.saturating_sub(unused);
    stats.queued = stats.queued.saturating_sub(queued_unused as usize);
    stats
}
