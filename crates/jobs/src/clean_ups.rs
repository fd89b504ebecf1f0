//! Workloads' clean-ups after tasks that were given up.
//!
//! Owns the pool they run on. Which letters are to be cleaned up after stands in the store, so what is not done now is
//! found again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gristmill_pool::{Pool, Task, TaskError, TaskResult};
use gristmill_store::Store;

use crate::kind::Kind;
use crate::runway::panicked;

/// Calls workloads' clean-ups, away from their tasks: however long they take, nothing else waits for them.
pub(crate) struct CleanUps(Pool<()>);

impl CleanUps {
    pub(crate) fn new() -> Result<Self, crate::Error> {
        Ok(CleanUps(Pool::builder().name("clean-ups").workers(1).queue(64).keep_failures(0).build()?))
    }

    /// What finds no room is found again by `care`.
    pub(crate) fn later(&self, store: &Store, kind: &Arc<Kind>, letters: Vec<i64>) {
        if letters.is_empty() {
            return;
        }
        let (store, kind) = (store.clone(), kind.clone());
        let task = Task::new(move |context| {
            for id in letters {
                if !context.is_cancelled() {
                    clean_up(&store, &kind, id);
                }
            }
            Ok(())
        });
        drop(self.0.try_submit(task));
    }
}

/// Cleans up after one letter, unless somebody has done so, or has tried its task again, meanwhile.
fn clean_up(store: &Store, kind: &Kind, id: i64) {
    let Some(clean_up) = &kind.clean_up else { return };
    let cleaned = || -> TaskResult<()> {
        let Some(letter) = store.letters().to_clean(id)? else { return Ok(()) };
        clean_up(&letter)?;
        Ok(store.letters().cleaned(id)?)
    };
    let result = catch_unwind(AssertUnwindSafe(cleaned))
        .unwrap_or_else(|panic| Err(TaskError::permanent(panicked(panic.as_ref()))));
    if let Err(error) = result {
        tracing::warn!(letter = id, %error, "a clean-up failed; it is tried again later");
    }
}
