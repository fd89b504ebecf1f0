//! One kind of task as a runner works on it: its pool, its claims, what became of its tasks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gristmill_pool::Pool;
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{Disposition, UpdateResult};

use crate::claims::Claims;
use crate::kind::TaskKind;

/// What became of tasks, by count.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) completed: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) buried: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) lost: AtomicU64,
}

/// A kind at work.
pub(crate) struct Bench {
    pub(crate) kind: Arc<TaskKind>,
    pub(crate) pool: Pool<()>,
    pub(crate) counts: Counts,
    pub(crate) lease: Duration,
    pub(crate) start_log: Arc<StartLog>,
    claims: Mutex<Claims>,
}

impl Bench {
    pub(crate) fn new(kind: TaskKind, pool: Pool<()>, lease: Duration, start_log: Arc<StartLog>) -> Self {
        let (counts, claims) = (Counts::default(), Mutex::default());
        Bench { kind: Arc::new(kind), pool, counts, lease, start_log, claims }
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn in_air(&self) -> usize {
        self.claims().all().len()
    }
}

impl Counts {
    pub(crate) fn count(&self, verdict: &Disposition, settled: UpdateResult) {
        let counter = match (settled, verdict) {
            (UpdateResult::Lost, _) => &self.lost,
            (UpdateResult::Cancelled, _) => &self.cancelled,
            (UpdateResult::DeadLettered(_), _) | (_, Disposition::DeadLettered(_)) => &self.buried,
            (_, Disposition::Completed(_)) => &self.completed,
            (_, Disposition::Retry(..)) => &self.retried,
            (_, Disposition::Released | Disposition::Postponed(_)) => &self.released,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
