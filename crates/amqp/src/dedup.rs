//! Skips messages whose id was handled within a window, by ids recorded in the store.

use crate::store::{Claim, MessageStore, StoreError};
use gristmill_pool::{TaskError, TaskResult};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Ids deleted in one transaction.
const PRUNE_BATCH: usize = 5000;

pub(crate) struct Deduplicator {
    store: Arc<dyn MessageStore>,
    scope: String,
    window: Duration,
    /// Ids whose claims could not be released. While the process runs, only this list releases them.
    unreleased: Mutex<Vec<String>>,
}

impl Deduplicator {
    pub(crate) fn new(store: Arc<dyn MessageStore>, queue: &str, window: Duration) -> Self {
        Self { store, scope: format!("amqp:{queue}"), window, unreleased: Mutex::default() }
    }

    /// Claims the ids of messages; a message without an id needs no claim. Returns a result for each message, and the
    /// claims. Blocks.
    pub(crate) fn claim(self: &Arc<Self>, mut ids: Vec<Option<String>>) -> TaskResult<(Vec<Claim>, Claims)> {
        self.release_pending().map_err(TaskError::unavailable)?;
        let wanted: Vec<String> = ids.iter().flatten().cloned().collect();
        let results = match wanted.is_empty() {
            true => Vec::new(),
            false => self.store.claim_ids(&self.scope, wanted, self.window).map_err(TaskError::unavailable)?,
        };
        let mut results = results.into_iter();
        let claim = |id: &mut Option<String>| {
            let result = id.as_ref().and_then(|_| results.next()).unwrap_or(Claim::Claimed);
            if result != Claim::Claimed {
                *id = None;
            }
            result
        };
        Ok((ids.iter_mut().map(claim).collect(), Claims { dedup: Arc::clone(self), ids }))
    }

    /// Releases claims, or keeps their ids to retry. Blocks.
    fn release(&self, ids: Vec<String>) {
        if let Err(error) = self.store.release_ids(&self.scope, ids.clone()) {
            tracing::warn!(?ids, %error, "cannot release the claims on message ids; retried before the next claim");
            self.unreleased().extend(ids);
        }
    }

    /// Releases the claims that could not be released before; holds the lock, so no claim is made meanwhile. Blocks.
    fn release_pending(&self) -> Result<(), StoreError> {
        let mut unreleased = self.unreleased();
        if !unreleased.is_empty() {
            self.store.release_ids(&self.scope, unreleased.clone())?;
            unreleased.clear();
        }
        Ok(())
    }

    fn unreleased(&self) -> MutexGuard<'_, Vec<String>> {
        self.unreleased.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims on message ids, by the place of the message in its batch. Those that are not completed are released when this
/// is dropped.
pub(crate) struct Claims {
    dedup: Arc<Deduplicator>,
    ids: Vec<Option<String>>,
}

impl Claims {
    /// Records the ids of the messages at these places as handled. Blocks.
    pub(crate) fn complete(&mut self, handled: &[usize]) -> TaskResult<()> {
        let ids: Vec<String> = handled.iter().filter_map(|at| self.ids[*at].clone()).collect();
        if !ids.is_empty() {
            self.dedup.store.record_ids(&self.dedup.scope, ids).map_err(TaskError::unavailable)?;
        }
        for at in handled {
            self.ids[*at] = None;
        }
        Ok(())
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let ids: Vec<String> = self.ids.drain(..).flatten().collect();
        if ids.is_empty() {
            return;
        }
        let dedup = Arc::clone(&self.dedup);
        let release = move || dedup.release(ids);
        // The store blocks, so an async caller releases on another thread.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(release)),
            Err(_) => release(),
        }
    }
}

/// Deletes ids older than the window, periodically.
pub(crate) async fn prune(dedup: Arc<Deduplicator>) {
    let wait = (dedup.window / 4).clamp(Duration::from_secs(1), Duration::from_secs(600));
    loop {
        tokio::time::sleep(wait).await;
        loop {
            let dedup = Arc::clone(&dedup);
            let pruned = move || {
                dedup.release_pending()?;
                dedup.store.prune_ids(&dedup.scope, dedup.window, PRUNE_BATCH)
            };
            match tokio::task::spawn_blocking(pruned).await {
                Ok(Ok(count)) if count == PRUNE_BATCH => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot delete ids of old messages; retried later");
                    break;
                }
                _ => break,
            }
        }
    }
}

#[cfg(all(test, feature = "store"))]
mod tests {
    use super::*;
    use gristmill_store::Store;

    fn some(ids: &[&str]) -> Vec<Option<String>> {
        ids.iter().map(|id| Some((*id).to_owned())).collect()
    }

    #[test]
    fn failed_release_is_retried_before_the_next_claim() {
        let folder = tempfile::tempdir().unwrap();
        let (file, elsewhere) = (folder.path().join("dedup.db"), folder.path().join("elsewhere.db"));
        let store = Store::open(&file).unwrap();
        let dedup = || Arc::new(Deduplicator::new(Arc::new(store.clone()), "q", Duration::from_secs(60)));
        let (dedup, other) = (dedup(), dedup());
        let (results, mut first) = dedup.claim(some(&["1"])).unwrap();
        let (_, mut second) = dedup.claim(some(&["2"])).unwrap();
        assert_eq!(results, [Claim::Claimed]);
        // The store fails when the messages are completed and released.
        std::fs::rename(&file, &elsewhere).unwrap();
        assert!(first.complete(&[0]).is_err() && second.complete(&[0]).is_err());
        drop((first, second));
        std::fs::rename(&elsewhere, &file).unwrap();
        assert_eq!(dedup.claim(some(&["1"])).unwrap().0, [Claim::Claimed]);
        // Another deduplicator can claim the other message too.
        assert_eq!(other.claim(some(&["2"])).unwrap().0, [Claim::Claimed]);
    }

    #[test]
    fn only_claimed_ids_of_a_batch_are_completed_or_released() {
        use Claim::{AlreadyHandled, Claimed, InProgress};
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("dedup.db")).unwrap();
        let dedup = Arc::new(Deduplicator::new(Arc::new(store), "q", Duration::from_secs(60)));
        let (_, mut earlier) = dedup.claim(some(&["done", "running"])).unwrap();
        earlier.complete(&[0]).unwrap();
        let batch = [some(&["done", "running", "new", "fails"]), vec![None]].concat();
        let (results, mut claims) = dedup.claim(batch).unwrap();
        assert_eq!(results, [AlreadyHandled, InProgress, Claimed, Claimed, Claimed]);
        claims.complete(&[2, 4]).unwrap();
        drop(claims);
        let again = dedup.claim(some(&["done", "running", "new", "fails"])).unwrap().0;
        assert_eq!(again, [AlreadyHandled, InProgress, AlreadyHandled, Claimed]);
    }
}
