//! The handle of a running import: progress and cancellation.
//!
//! Owns the counters. They can be read while the import runs; a snapshot is not atomic across counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_pool::CancelToken;

/// Phase of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImportPhase {
    /// Discovers files and inspects the database.
    #[default]
    Starting,
    /// Reads lines and writes rows.
    Loading,
    /// Creates types, keys and indexes after the rows of a table.
    Indexing,
    /// Commits and publishes the database.
    Finishing,
}

/// Handle of a running import. The import updates the counters; any thread may read them or cancel the import.
#[derive(Debug, Default)]
pub struct ImportHandle {
    stop: CancelToken,
    phase: Mutex<ImportPhase>,
    pub(crate) files: AtomicU64,
    pub(crate) files_done: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) bytes_read: Arc<AtomicU64>,
    pub(crate) rows: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

/// Snapshot of the counters of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportProgress {
    /// Current phase of the import.
    pub phase: ImportPhase,
    /// Number of files to load.
    pub files: u64,
    /// Number of files that are loaded or have failed.
    pub files_done: u64,
    /// Bytes to read; a file that is read again counts again.
    pub bytes: u64,
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Rows written, or read if nothing is written.
    pub rows: u64,
    /// Number of rejected lines.
    pub rejected: u64,
}

impl ImportHandle {
    /// Cancels the import: files that are not complete are rolled back.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// The token that [`cancel`](Self::cancel) cancels.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.stop
    }

    /// Whether the import was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Returns the current values of the counters.
    pub fn progress(&self) -> ImportProgress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ImportProgress {
            phase: *self.phase.lock().unwrap_or_else(PoisonError::into_inner),
            files: get(&self.files),
            files_done: get(&self.files_done),
            bytes: get(&self.bytes),
            bytes_read: get(&self.bytes_read),
            rows: get(&self.rows),
            rejected: get(&self.rejected),
        }
    }

    pub(crate) fn enter(&self, phase: ImportPhase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
