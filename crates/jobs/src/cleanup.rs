//! Calls the clean-ups that kinds register for their dead letters.
//!
//! Owns the pool that they run on. The store records which dead letters need a clean-up, so one that is not done now is
//! found again by `maintain`.

use std::sync::Arc;

use gristmill_pool::error::catch_panic;
use gristmill_pool::{Pool, Task, TaskResult};
use gristmill_store::Store;

use crate::kind::TaskKind;
use crate::signals::DispatcherSignals;

/// Runs clean-ups on their own thread, so that a slow one does not delay tasks.
pub(crate) struct CleanupPool {
    signals: Arc<DispatcherSignals>,
    pool: Pool<()>,
}

impl CleanupPool {
    pub(crate) fn new(signals: Arc<DispatcherSignals>) -> Result<Self, crate::Error> {
        let pool = Pool::builder().name("clean-ups").workers(1).queue_capacity(64).keep_failures(0).build()?;
        Ok(CleanupPool { signals, pool })
    }

    /// Submits clean-ups. If the queue is full, `maintain` finds them again.
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

/// Cleans up after one dead letter, unless it was cleaned up or its task was retried meanwhile.
fn cleanup(store: &Store, kind: &TaskKind, id: i64) {
    let Some(cleanup) = &kind.cleanup else { return };
    let cleaned = || -> TaskResult<()> {
        let Some(dead_letter) = store.dead_letters().get_cleanup_pending(id)? else { return Ok(()) };
        cleanup(&dead_letter)?;
        Ok(store.dead_letters().mark_cleaned_up(id)?)
    };
    if let Err(error) = catch_panic(cleaned) {
        tracing::warn!(dead_letter = id, ?error, "a clean-up failed; it is retried later");
    }
}
