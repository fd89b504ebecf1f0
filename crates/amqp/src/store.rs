//! What a client keeps across restarts, and the trait of the stores that can keep it.
//!
//! Owns the types that a store reads and writes. The feature `store` implements the trait for `gristmill_store::Store`;
//! without it this crate needs no database.

#[cfg(feature = "store")]
mod gristmill;

use std::time::Duration;

/// Error of a [`MessageStore`].
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

type Result<T> = std::result::Result<T, StoreError>;

/// Keeps ids of handled messages, unfinished starts, stream positions and dead letters.
///
/// A client calls it from several threads. Its methods may block; what they write is on disk when they return. A scope
/// names a queue. Set it with [`ClientBuilder::store`](crate::ClientBuilder::store).
pub trait MessageStore: Send + Sync {
    /// Claims ids of messages for this process. A claim of a process that has ended is void.
    fn claim_ids(&self, scope: &str, ids: Vec<String>, window: Duration) -> Result<Vec<Claim>>;

    /// Releases claims of this process: the messages were not handled.
    fn release_ids(&self, scope: &str, ids: Vec<String>) -> Result<()>;

    /// Records ids of handled messages and ends their claims.
    fn record_ids(&self, scope: &str, ids: Vec<String>) -> Result<()>;

    /// Deletes up to `limit` ids that were recorded `window` ago or earlier, and returns how many.
    fn prune_ids(&self, scope: &str, window: Duration, limit: usize) -> Result<usize>;

    /// Returns up to `limit` runs that have not finished, latest first.
    fn runs(&self, scope: &str, limit: usize) -> Result<Vec<MessageRun>>;

    /// Counts a start of each message. Returns for each the new count, or none if `limit` was reached before.
    fn count_starts(&self, scope: &str, keys: Vec<RunKey>, limit: u32) -> Result<Vec<Option<u32>>>;

    /// Reverts starts of runs that ended without a crash.
    fn undo_starts(&self, scope: &str, keys: Vec<RunKey>) -> Result<()>;

    /// Records how many attempts of a message have failed, and the last error. It has no unfinished start then.
    fn record_failure(&self, scope: &str, key: RunKey, failed: u32, error: String) -> Result<()>;

    /// Deletes the runs of finished messages.
    fn finish_runs(&self, scope: &str, keys: Vec<RunKey>) -> Result<()>;

    /// Deletes up to `limit` runs of all scopes that were not written for `age`.
    fn prune_runs(&self, age: Duration, limit: usize) -> Result<()>;

    /// Returns the offset at which a consumer of a stream continues, if one was recorded.
    fn position(&self, stream: &str, consumer: &str) -> Result<Option<u64>>;

    /// Records the offset at which a consumer of a stream continues.
    fn record_position(&self, stream: &str, consumer: &str, offset: u64) -> Result<()>;

    /// Adds a dead letter.
    fn add_dead_letter(&self, dead_letter: DeadLetter) -> Result<()>;
}

/// Result of an attempt to claim the id of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// This process owns the message until the id is recorded or released.
    Claimed,
    /// The id was recorded within the window.
    AlreadyHandled,
    /// Another run has claimed the id.
    InProgress,
}

/// Identifies a message of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// Hash of everything that identifies the message.
    pub fingerprint: [u8; 16],
    /// Number among identical messages, from 0.
    pub copy: u32,
}

/// Counts of a message that has not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRun {
    /// Identifies the message.
    pub key: RunKey,
    /// Starts without an end.
    pub starts: u32,
    /// Number of failed attempts.
    pub failed: u32,
    /// Time since the last failed attempt; if none failed, since the last start.
    pub age: Duration,
}

/// A dead letter to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Id of the message; empty if it has none.
    pub message_id: String,
    /// Queue that the message came from.
    pub queue: String,
    /// Error of the last attempt, at most 2,000 bytes.
    pub reason: String,
    /// Number of failed attempts.
    pub attempts: u32,
    /// JSON object with the kind of failure and the whole error.
    pub details: String,
    /// The message as [`Message::from_json`](crate::Message::from_json) reads it.
    pub message: String,
}
