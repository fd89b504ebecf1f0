//! Counters of a runner and its kinds.

use gristmill_pool::prometheus::MetricType::{Counter, Gauge};
use gristmill_pool::prometheus::MetricsText;
use gristmill_pool::{Pool, PoolStats};
use gristmill_store::tasks::{Disposition, UpdateResult};
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
    /// Counts a settled task.
    pub(crate) fn count(&mut self, disposition: &Disposition, result: UpdateResult) {
        *match (result, disposition) {
            (UpdateResult::Lost, _) => &mut self.lost,
            (UpdateResult::Cancelled, _) => &mut self.cancelled,
            (UpdateResult::DeadLettered(_), _) | (_, Disposition::DeadLettered(_)) => &mut self.dead_lettered,
            (_, Disposition::Completed(_)) => &mut self.completed,
            (_, Disposition::Retry(..)) => &mut self.retried,
            (_, Disposition::Released | Disposition::Postponed(_)) => &mut self.released,
        } += 1;
    }

    pub(crate) fn of(runner: &KindRunner) -> Self {
        RunSummary { unfinished: runner.in_flight() as u64, ..*runner.summary() }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        RunSummary {
            completed: self.completed + other.completed,
            retried: self.retried + other.retried,
            dead_lettered: self.dead_lettered + other.dead_lettered,
            released: self.released + other.released,
            cancelled: self.cancelled + other.cancelled,
            lost: self.lost + other.lost,
            unfinished: self.unfinished + other.unfinished,
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
    /// Counters of the kind's pool, without placeholders that started or will start no handler.
    pub pool: PoolStats,
}

impl RunnerStats {
    /// Adds the counters to the metrics of a process.
    pub fn write_metrics(&self, text: &mut MetricsText) {
        let mut tasks = text.metric("worker_tasks_total", Counter, "Tasks that this worker has claimed, by outcome.");
        for TaskKindStats { kind, tasks: counts, .. } in &self.kinds {
            let RunSummary { completed, retried, dead_lettered, released, cancelled, lost, .. } = *counts;
            for (outcome, count) in [
                ("completed", completed),
                ("retried", retried),
                ("dead_lettered", dead_lettered),
                ("released", released),
                ("cancelled", cancelled),
                ("lost", lost),
            ] {
                tasks.sample(&[("kind", kind), ("outcome", outcome)], count as f64);
            }
        }
        type Value = fn(&PoolStats) -> f64;
        let values: [(&str, _, &str, Value); 6] = [
            ("worker_pool_workers", Gauge, "Workers of the pool of a kind.", |pool| pool.workers as f64),
            ("worker_pool_active", Gauge, "Tasks that are running.", |pool| pool.active as f64),
            ("worker_pool_queued", Gauge, "Claimed tasks that wait for a worker.", |pool| pool.queued as f64),
            ("worker_pool_panics_total", Counter, "Attempts that panicked.", |pool| pool.panicked as f64),
            ("worker_pool_timeouts_total", Counter, "Attempts that exceeded their timeout.", |pool| {
                pool.timed_out as f64
            }),
            ("worker_pool_stalled_total", Counter, "Workers that were replaced because they stalled.", |pool| {
                pool.stalled as f64
            }),
        ];
        for (name, kind, help, value) in values {
            let mut metric = text.metric(name, kind, help);
            self.kinds.iter().for_each(|stats| metric.sample(&[("kind", &stats.kind)], value(&stats.pool)));
        }
    }
}

impl TaskKindStats {
    pub(crate) fn of(runner: &KindRunner, pool: &Pool<Option<String>>) -> Self {
        let claims = runner.claims();
        let (unused, queued_unused) = claims.unused_placeholders();
        let mut stats = pool.stats();
        drop(claims);
        stats.submitted = stats.submitted.saturating_sub(unused + queued_unused);
        stats.failed = stats.failed.saturating_sub(unused);
        stats.queued = stats.queued.saturating_sub(queued_unused as usize);
        TaskKindStats { kind: runner.kind.name().to_owned(), tasks: RunSummary::of(runner), pool: stats }
    }
}
