//! How far a scan has come, for whoever shows it; and how it is told to stop.
//!
//! Owns the counters. They are read while the scan runs, each for itself.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use serde::Serialize;

/// What a scan is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanPhase {
    /// Nothing yet.
    #[default]
    Starting,
    /// Looking at folders.
    Walking,
    /// Finding out what to read.
    Planning,
    /// Reading small files, and a few blocks of large ones.
    Samples,
    /// Reading large files through.
    Contents,
    /// Writing the last of it.
    Finishing,
}

const PHASES: [ScanPhase; 6] = [
    ScanPhase::Starting,
    ScanPhase::Walking,
    ScanPhase::Planning,
    ScanPhase::Samples,
    ScanPhase::Contents,
    ScanPhase::Finishing,
];

/// A running scan, seen from outside. Shared: the scan counts, others read, anybody may stop it.
#[derive(Debug, Default)]
pub struct ScanHandle {
    cancelled: AtomicBool,
    phase: AtomicU8,
    pub(crate) folders: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) to_read: AtomicU64,
    pub(crate) bytes_to_read: AtomicU64,
    pub(crate) read: AtomicU64,
    /// Of these, to their end.
    pub(crate) hashed_whole: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    /// Files that were not as the catalog had them.
    pub(crate) changed_during_scan: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) workers: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// What it is doing.
    pub phase: ScanPhase,
    /// Folders walked.
    pub folders: u64,
    /// Files seen in them.
    pub files: u64,
    /// Their size together.
    pub bytes: u64,
    /// Folders and files that could not be read.
    pub errors: u64,
    /// Files to be read in this phase and those before.
    pub to_read: u64,
    /// Bytes of them to be read.
    pub bytes_to_read: u64,
    /// Files read.
    pub read: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Workers that have something to do.
    pub busy: u64,
    /// All of them.
    pub workers: u64,
}

impl ScanHandle {
    /// Asks the scan to stop: what is done is kept, and the next scan goes on from there.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// How far it has come.
    pub fn progress(&self) -> ScanProgress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScanProgress {
            phase: PHASES.get(usize::from(self.phase.load(Ordering::Relaxed))).copied().unwrap_or_default(),
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
        self.phase.store(phase as u8, Ordering::Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
