//! Finds duplicate files and folders: walks roots, hashes the files that can be duplicates, and keeps a catalog.
//!
//! A [`scan`](scan()) walks [roots](gristmill_store::roots) in parallel, compares the files it finds with the catalog
//! of a [`Store`](gristmill_store::Store), and reads only files that can be duplicates: files of equal size and, if
//! they are large, with equal samples. It can be killed at any time; the next scan resumes it. Results are queried from
//! the store ([groups](gristmill_store::catalog::Catalog::groups)), [`folders`], [`copies`], [`unique`] and [`report`].
//! Files are equal if the cryptographic hashes of their whole contents are equal.
//!
//! The modules of a scan are its stages: walk, by size, samples, contents, groups. `read` reads and hashes one file. No
//! function of this crate changes a scanned file.

pub mod copies;
mod coverage;
mod error;
mod filter;
pub mod folders;
mod hash;
pub mod lists;

mod location;
mod named;
mod progress;
mod racy;
mod read;
pub mod report;
pub mod roots;
mod scan;
pub mod source;
mod summary;
mod sys;
pub mod unique;

pub use coverage::{Coverage, coverage};
pub use error::{Error, Result};
pub use filter::{Filter, path_test};
pub use location::Location;
pub use named::NamedFiles;
pub use progress::{ScanHandle, ScanPhase, ScanProgress};
pub use scan::{ScanMode, ScanOptions, scan};
pub use summary::{ScanSummary, Timings};

/// Ignores poisoning: no data under a lock of this crate is left half-changed by a panic.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
