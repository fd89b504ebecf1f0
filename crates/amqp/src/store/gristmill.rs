//! Keeps the state of consumers in Gristmill's own database.

use super::{Claim, DeadLetter, MessageRun, MessageStore, Result, RunKey};
use gristmill_store::{
    Store,
    dead_letters::NewDeadLetter,
    message_runs::{MessageRun as StoredRun, RunKey as StoredKey},
    processed::ClaimResult,
};
use std::time::Duration;

fn stored(key: RunKey) -> StoredKey {
    StoredKey { fingerprint: key.fingerprint, copy: key.copy }
}

fn all_stored(keys: Vec<RunKey>) -> Vec<StoredKey> {
    keys.into_iter().map(stored).collect()
}

impl MessageStore for Store {
    fn claim_ids(&self, scope: &str, ids: Vec<String>, window: Duration) -> Result<Vec<Claim>> {
        let claims = self.processed_ids().claim_all(scope, ids, window)?.into_iter();
        let claims = claims.map(|claim| match claim {
            ClaimResult::Claimed => Claim::Claimed,
            ClaimResult::AlreadyProcessed => Claim::AlreadyHandled,
            ClaimResult::InProgress => Claim::InProgress,
        });
        Ok(claims.collect())
    }

    fn release_ids(&self, scope: &str, ids: Vec<String>) -> Result<()> {
        Ok(self.processed_ids().release_all(scope, ids)?)
    }

    fn record_ids(&self, scope: &str, ids: Vec<String>) -> Result<()> {
        Ok(self.processed_ids().record(scope, ids)?)
    }

    fn prune_ids(&self, scope: &str, window: Duration, limit: usize) -> Result<usize> {
        Ok(self.processed_ids().prune(scope, window, limit)?)
    }

    fn runs(&self, scope: &str, limit: usize) -> Result<Vec<MessageRun>> {
        let runs = self.message_runs().list(scope, limit)?.into_iter();
        let runs = runs.map(|StoredRun { key, starts, failed, age, .. }| {
            let key = RunKey { fingerprint: key.fingerprint, copy: key.copy };
            MessageRun { key, starts, failed, age }
        });
        Ok(runs.collect())
    }

    fn count_starts(&self, scope: &str, keys: Vec<RunKey>, limit: u32) -> Result<Vec<Option<u32>>> {
        Ok(self.message_runs().start_all(scope, all_stored(keys), limit)?)
    }

    fn undo_starts(&self, scope: &str, keys: Vec<RunKey>) -> Result<()> {
        Ok(self.message_runs().undo_starts(scope, all_stored(keys))?)
    }

    fn record_failure(&self, scope: &str, key: RunKey, failed: u32, error: String) -> Result<()> {
        Ok(self.message_runs().fail(scope, stored(key), failed, error)?)
    }

    fn finish_runs(&self, scope: &str, keys: Vec<RunKey>) -> Result<()> {
        Ok(self.message_runs().finish(scope, all_stored(keys))?)
    }

    fn prune_runs(&self, age: Duration, limit: usize) -> Result<()> {
        Ok(self.message_runs().prune(age, limit).map(drop)?)
    }

    fn position(&self, stream: &str, consumer: &str) -> Result<Option<u64>> {
        Ok(self.positions().get(stream, consumer)?)
    }

    fn record_position(&self, stream: &str, consumer: &str, offset: u64) -> Result<()> {
        Ok(self.positions().record(stream, consumer, offset)?)
    }

    fn add_dead_letter(&self, dead_letter: DeadLetter) -> Result<()> {
        let now = self.now();
        let DeadLetter { message_id, queue, reason, attempts, details, message } = dead_letter;
        self.dead_letters().insert(NewDeadLetter {
            message_id,
            kind: format!("amqp:{queue}"),
            queue,
            reason,
            attempts,
            first_failure: now,
            last_failure: now,
            details: Some(details),
            checkpoint: Some(message),
        })?;
        Ok(())
    }
}
