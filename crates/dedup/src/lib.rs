//! Finds duplicate files and folders: walks roots, hashes what can be a duplicate, keeps a catalog.
//!
//! A [`scan`](scan()) walks [roots](gristmill_store::roots) in parallel, compares what it finds with the catalog of
//! a [`Store`](gristmill_store::Store), and reads only files that can be duplicates: those that share their size,
//! then their edges, then all of it. It can be killed at any instant; the next one goes on. What is in the
//! catalog is asked of the store ([groups](gristmill_store::catalog::Catalog::groups)), of [`folders`] and of
//! [`report`]. Equal means equal bytes, known by a cryptographic hash of all of them.
//!
//! Nothing here changes a file.

mod catalog_writer;
mod coverage;
mod error;
mod filter;
pub mod folders;
mod hash;
mod hash_stage;
mod plan;
mod progress;
mod racy;
mod read;
pub mod report;
pub mod roots;
mod scan;
mod summary;
mod sys;
mod walk;
mod walk_hasher;

pub use coverage::{Coverage, coverage};
pub use error::{Error, Result};
pub use filter::Filter;
pub use progress::{ScanHandle, ScanPhase, ScanProgress};
pub use scan::{ScanMode, ScanOptions, scan};
pub use summary::{ScanSummary, Timings};
