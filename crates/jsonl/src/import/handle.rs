//! How far an import has come, for whoever shows it; and how it is told to stop.
//!
//! Owns the counters. They are read while the import runs, each for itself.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What an import is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImportPhase {
    /// Looking for files.
    #[default]
    Starting,
    /// Reading lines and writing rows.
    FileLoad,
    /// Making indexes.
    Indexing,
    /// Bringing all of it to the disk.
    Finishing,
}

const PHASES: [ImportPhase; 4] =
    [ImportPhase::Starting, ImportPhase::FileLoad, ImportPhase::Indexing, ImportPhase::Finishing];

/// A running import, seen from outside. Shared: the import counts, others read, anybody may stop it.
#[derive(Default)]
pub struct ImportHandle {
    cancelled: AtomicBool,
    phase: AtomicU8,
    pub(crate) files: AtomicU64,
    pub(crate) files_done: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) bytes_read: Arc<AtomicU64>,
    pub(crate) rows: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// What has to be woken to see that it is to stop.
    on_cancel: Mutex<Option<CancelCallback>>,
}

type CancelCallback = Box<dyn Fn() + Send>;

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportProgress {
    /// What it is doing.
    pub phase: ImportPhase,
    /// Files to load.
    pub files: u64,
    /// Files that are done with.
    pub files_done: u64,
    /// Bytes to read; a file that has to be read again counts again.
    pub bytes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Rows written, or read where nothing is written.
    pub rows: u64,
    /// Lines that were rejected.
    pub rejected: u64,
}

impl ImportHandle {
    /// Asks the import to stop: what is not complete is taken back.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        if let Some(on_cancel) = &*self.on_cancel.lock().unwrap_or_else(PoisonError::into_inner) {
            on_cancel();
        }
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// How far it has come.
    pub fn progress(&self) -> ImportProgress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ImportProgress {
            phase: PHASES.get(usize::from(self.phase.load(Ordering::Relaxed))).copied().unwrap_or_default(),
            files: get(&self.files),
            files_done: get(&self.files_done),
            bytes: get(&self.bytes),
            bytes_read: get(&self.bytes_read),
            rows: get(&self.rows),
            rejected: get(&self.rejected),
        }
    }

    pub(crate) fn enter(&self, phase: ImportPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Calls this on a stop, at once if there was one already.
    pub(crate) fn on_cancel(&self, on_cancel: impl Fn() + Send + 'static) {
        *self.on_cancel.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(on_cancel));
        if self.is_cancelled() {
            self.cancel();
        }
    }
}

impl fmt::Debug for ImportHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stopped", &self.is_cancelled()).finish_non_exhaustive()
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
