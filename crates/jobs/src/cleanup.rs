//! Workloads' clean-ups after tasks that were given up.
//!
//! Owns the pool they run on. Which dead_letters are to be cleaned up after stands in the store, so what is not done now is
//! found again.

use std::sync::Arc;

use gristmill_pool::error::catch_panic;
use gristmill_pool::{Pool, Task, TaskResult};
use gristmill_store::Store;

use crate::kind::TaskKind;
use crate::signals::DispatcherSignals;

/// Calls workloads' clean-ups, away from their tasks: however long they take, nothing else waits for them.
pub(crate) struct CleanupPool {
    signals: Arc<DispatcherSignals>,
    pool: Pool<()>,
}

impl CleanupPool {
    pub(crate) fn new(signals: Arc<DispatcherSignals>) -> Result<Self, crate::Error> {
        let pool =
            Pool::builder().name("clean-ups").workers(1).queue_capacity(64).keep_failures(0).build()?;
        Ok(CleanupPool { signals, pool })
    }

    /// What finds no room is found again by `care`.
    pub(crate) fn submit(&self, store: &Store, kind: &Arc<TaskKind>, dead_letters: Vec<i64>) {
        if dead_letters.is_empty() {
            return;
        }
        let (signals, store, kind) = (self.signals.clone(), store.clone(), kind.clone());
        let task = Task::new(move |context| {
            let _inside = signals.enter();
            for id in dead_letters {
                if !context.is_cancelled() {
                    cleanup(&store, &kind, id);
                }
            }
            Ok(())
        });
        drop(self.pool.try_submit(task));
    }
}

/// Cleans up after one letter, unless somebody has done so, or has tried its task again, meanwhile.
fn cleanup(store: &Store, kind: &TaskKind, id: i64) {
    let Some(cleanup) = &kind.cleanup else { return };
    let cleaned = || -> TaskResult<()> {
        let Some(letter) = store.dead_letters().get_cleanup_pending(id)? else { return Ok(()) };
        cleanup(&letter)?;
        Ok(store.dead_letters().mark_cleaned_up(id)?)
    };
    if let Err(error) = catch_panic(cleaned) {
        tracing::warn!(letter = id, ?error, "a clean-up failed; it is tried again later");
    }
}
