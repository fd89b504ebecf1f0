//! Reports the progress of a scan and cancels it.
//!
//! Owns the counters. They can be read at any time while the scan runs, but not as one consistent snapshot.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gristmill_pool::CancelToken;
use serde::Serialize;

use crate::lock;

/// Phase of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanPhase {
    /// The scan has not started to walk.
    #[default]
    Starting,
    /// Walks folders, and hashes new files that can be duplicates.
    Walking,
    /// Determines which files to read.
    Planning,
    /// Reads small files, and samples of large ones.
    Samples,
    /// Reads large files in full.
    Contents,
    /// Writes the remaining results and counts the duplicates.
    Finishing,
}

/// Handle to a running scan. The scan updates its counters; any thread can read them or cancel the scan.
#[derive(Debug, Default)]
pub struct ScanHandle {
    token: CancelToken,
    phase: Mutex<ScanPhase>,
    pub(crate) folders: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) to_read: AtomicU64,
    pub(crate) bytes_to_read: AtomicU64,
    pub(crate) read: AtomicU64,
    /// Part of `read`: files that were read in full.
    pub(crate) hashed_whole: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    /// Files whose state differed from the catalog when they were read or written.
    pub(crate) changed_during_scan: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) workers: AtomicU64,
}

/// Values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Current phase of the scan.
    pub phase: ScanPhase,
    /// Number of folders walked.
    pub folders: u64,
    /// Number of files found in these folders.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Number of folders and files that could not be read.
    pub errors: u64,
    /// Number of files to read in this phase and earlier ones.
    pub to_read: u64,
    /// Number of bytes to read of these files.
    pub bytes_to_read: u64,
    /// Number of files read so far.
    pub read: u64,
    /// Number of bytes read so far.
    pub bytes_read: u64,
    /// Number of workers that are busy.
    pub busy: u64,
    /// Number of all workers.
    pub workers: u64,
}

impl ScanHandle {
    /// Cancels the scan. Completed work is kept, and the next scan resumes from it.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Whether the scan was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns the token that cancels the scan.
    pub fn cancel_token(&self) -> CancelToken {
        self.token.clone()
    }

    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    /// Returns the current values of the counters.
    pub fn progress(&self) -> ScanProgress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScanProgress {
            phase: *lock(&self.phase),
            folders: get(&self.folders),
            files: get(&self.files),
            bytes: get(&self.bytes),
            errors: get(&self.errors),
            to_read: get(&self.to_read),
            bytes_to_read: get(&self.bytes_to_read),
            read: get(&self.read),
            bytes_read: get(&self.bytes_read),
            busy: get(&self.busy),
            workers: get(&self.workers),
        }
    }

    pub(crate) fn set_phase(&self, phase: ScanPhase) {
        *lock(&self.phase) = phase;
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
