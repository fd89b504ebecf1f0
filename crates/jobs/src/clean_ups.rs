//! Workloads' clean-ups after tasks that were given up.
//!
//! Owns the pool they run on. Which letters are to be cleaned up after stands in the store, so what is not done now is
//! found again.

use std::sync::Arc;

use gristmill_pool::error::catch_panic;
use gristmill_pool::{Pool, Task, TaskResult};
use gristmill_store::Store;

use crate::hub::Hub;
use crate::kind::TaskKind;

/// Calls workloads' clean-ups, away from their tasks: however long they take, nothing else waits for them.
pub(crate) struct CleanUps {
    hub: Arc<Hub>,
    pool: Pool<()>,
}

impl CleanUps {
    pub(crate) fn new(hub: Arc<Hub>) -> Result<Self, crate::Error> {
        let pool =
            Pool::builder().name("clean-ups").workers(1).queue_capacity(64).keep_failures(0).build()?;
        Ok(CleanUps { hub, pool })
    }

    /// What finds no room is found again by `care`.
    pub(crate) fn later(&self, store: &Store, kind: &Arc<TaskKind>, letters: Vec<i64>) {
        if letters.is_empty() {
            return;
        }
        let (hub, store, kind) = (self.hub.clone(), store.clone(), kind.clone());
        let task = Task::new(move |context| {
            let _inside = hub.enter();
            for id in letters {
                if !context.is_cancelled() {
                    clean_up(&store, &kind, id);
                }
            }
            Ok(())
        });
        drop(self.pool.try_submit(task));
    }
}

/// Cleans up after one letter, unless somebody has done so, or has tried its task again, meanwhile.
fn clean_up(store: &Store, kind: &TaskKind, id: i64) {
    let Some(clean_up) = &kind.clean_up else { return };
    let cleaned = || -> TaskResult<()> {
        let Some(letter) = store.dead_letters().get_cleanup_pending(id)? else { return Ok(()) };
        clean_up(&letter)?;
        Ok(store.dead_letters().mark_cleaned_up(id)?)
    };
    if let Err(error) = catch_panic(cleaned) {
        tracing::warn!(letter = id, ?error, "a clean-up failed; it is tried again later");
    }
}
