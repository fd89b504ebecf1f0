//! Reports the progress of a scan and cancels it.
//!
//! Owns the counters. They can be read at any time while the scan runs, but not as one consistent snapshot.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gristmill_pool::CancelToken;
use gristmill_store::display_path;
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
    pub(crate) counters: Counters,
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
    /// Number of folders and files that could not be read, and of named files that do not exist.
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
    /// Makes a handle that this token cancels.
    pub(crate) fn with_token(token: CancelToken) -> Self {
        ScanHandle { token, ..ScanHandle::default() }
    }

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
            errors: get(&self.errors) + get(&self.counters.name_errors),
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

/// Counts of a scan that are only part of its summary.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) new: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) returned: AtomicU64,
    /// Excluded files that match the filters again.
    pub(crate) included: AtomicU64,
    /// Files that are read again because they were racy, or were on another filesystem.
    pub(crate) unverified: AtomicU64,
    /// Files of other roots that were not compared because they have changed since the last scan of their root.
    pub(crate) uncompared: AtomicU64,
    pub(crate) missing: AtomicU64,
    /// Known files that the filters of this scan exclude.
    pub(crate) excluded: AtomicU64,
    pub(crate) failed_roots: AtomicU64,
    pub(crate) links: AtomicU64,
    pub(crate) special: AtomicU64,
    /// Named files that do not exist or cannot be examined.
    pub(crate) name_errors: AtomicU64,
    /// Named files that are not scanned, without an error.
    pub(crate) skipped_names: AtomicU64,
    /// The first of them, with the reasons.
    pub(crate) skipped_samples: Mutex<Vec<String>>,
    /// Symbolic links whose target does not exist.
    pub(crate) broken_links: AtomicU64,
    /// Symbolic links to a folder above them, or to a folder that another link leads to.
    pub(crate) repeated_links: AtomicU64,
    /// The first errors, with paths and reasons.
    pub(crate) error_samples: Mutex<Vec<String>>,
    /// The first broken and repeated links, with the reasons.
    pub(crate) link_samples: Mutex<Vec<String>>,
}

impl Counters {
    /// Records a file or folder that could not be read.
    pub(crate) fn record_error(&self, path: &Path, reason: &str) {
        keep_sample(&self.error_samples, path, reason);
    }

    /// Counts a named file that cannot be scanned, and records its path and the reason.
    pub(crate) fn record_name_error(&self, path: &Path, reason: &str) {
        add(&self.name_errors, 1);
        self.record_error(path, reason);
    }

    /// Counts a named file that is skipped, and records its path and the reason.
    pub(crate) fn record_skipped_name(&self, path: &Path, reason: &str) {
        add(&self.skipped_names, 1);
        keep_sample(&self.skipped_samples, path, reason);
    }

    /// Counts a link that is not followed, and records its path and the reason.
    pub(crate) fn record_link(&self, counter: &AtomicU64, path: &Path, reason: &str) {
        add(counter, 1);
        keep_sample(&self.link_samples, path, reason);
    }
}

/// Maximum number of errors or links that are kept with their paths.
pub(crate) const MAX_SAMPLES: usize = 20;

/// Keeps only the first samples, because a broken disk has many errors.
fn keep_sample(samples: &Mutex<Vec<String>>, path: &Path, reason: &str) {
    tracing::info!(path = %display_path(path), "{reason}");
    let mut samples = lock(samples);
    if samples.len() < MAX_SAMPLES {
        samples.push(format!("{}: {reason}", display_path(path)));
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
