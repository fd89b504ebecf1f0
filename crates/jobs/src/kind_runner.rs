//! One kind of task in a runner: its pool, its claims, and the counts of its outcomes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gristmill_pool::Pool;
use gristmill_store::start_log::StartLog;
use gristmill_store::tasks::{Disposition, UpdateResult};

use crate::claims::Claims;
use crate::kind::TaskKind;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) completed: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) lost: AtomicU64,
}

pub(crate) struct KindRunner {
    pub(crate) kind: Arc<TaskKind>,
    pub(crate) pool: Pool<()>,
    pub(crate) counts: Counts,
    pub(crate) lease: Duration,
    pub(crate) start_log: Arc<StartLog>,
    claims: Mutex<Claims>,
}

impl KindRunner {
    pub(crate) fn new(kind: TaskKind, pool: Pool<()>, lease: Duration, start_log: Arc<StartLog>) -> Self {
        let (counts, claims) = (Counts::default(), Mutex::default());
        KindRunner { kind: Arc::new(kind), pool, counts, lease, start_log, claims }
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.claims().all().len()
    }
}

impl Counts {
    pub(crate) fn count(&self, disposition: &Disposition, result: UpdateResult) {
        let counter = match (result, disposition) {
            (UpdateResult::Lost, _) => &self.lost,
            (UpdateResult::Cancelled, _) => &self.cancelled,
            (UpdateResult::DeadLettered(_), _) | (_, Disposition::DeadLettered(_)) => &self.dead_lettered,
            (_, Disposition::Completed(_)) => &self.completed,
            (_, Disposition::Retry(..)) => &self.retried,
            (_, Disposition::Released | Disposition::Postponed(_)) => &self.released,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
