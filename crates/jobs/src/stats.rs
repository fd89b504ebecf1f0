//! Counters of a runner and its kinds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gristmill_pool::PoolStats;
use serde::Serialize;

use crate::kind_runner::KindRunner;

/// Number of tasks that a runner has claimed, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// Tasks that were completed.
    pub completed: u64,
    /// Failed attempts that are followed by a retry.
    pub retried: u64,
    /// Tasks that became dead letters.
    pub dead_lettered: u64,
    /// Tasks that were released without an attempt being counted.
    pub released: u64,
    /// Tasks that were cancelled while this runner held them.
    pub cancelled: u64,
    /// Tasks whose outcome was refused, because the lease had expired and another worker had claimed them.
    pub lost: u64,
    /// Tasks that are claimed and not settled; 0 after a stop.
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

/// Counters of a runner, by kind.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerStats {
    /// Name of the worker, which is new with every start.
    pub worker: String,
    /// One entry for each registered kind.
    pub kinds: Vec<TaskKindStats>,
}

/// Counters of one kind's tasks and of its pool.
#[derive(Clone, Debug, Serialize)]
pub struct TaskKindStats {
    /// Name of the kind.
    pub kind: String,
    /// Tasks of the kind, by outcome.
    pub tasks: RunSummary,
    /// Counters of the kind's pool, without placeholders that had or will have no task.
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
