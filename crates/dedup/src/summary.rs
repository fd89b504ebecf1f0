//! Summary of a scan.

use std::path::PathBuf;

use gristmill_store::UtcTime;
use gristmill_store::catalog::Group;
use serde::Serialize;

/// Results and statistics of a scan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScanSummary {
    /// Paths of the scanned roots.
    pub roots: Vec<PathBuf>,
    /// Whether the scan was cancelled. The next scan resumes it.
    pub interrupted: bool,
    /// Whether the scan resumed one that was cancelled or killed.
    pub resumed: bool,
    /// Start of the scan that was resumed.
    #[serde(skip)]
    pub resumed_from: Option<UtcTime>,
    /// Number of folders walked, including the roots.
    pub folders: u64,
    /// Number of files found in these folders.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Number of files that the catalog did not have.
    pub new_files: u64,
    /// Number of files that have changed since the last scan.
    pub changed_files: u64,
    /// Number of files that no longer exist.
    pub removed_files: u64,
    /// Number of files that were missing and exist again.
    pub returned_files: u64,
    /// Number of known files that no longer match the filters.
    pub excluded_files: u64,
    /// Number of excluded files that match the filters again.
    pub included_files: u64,
    /// Number of files that were named, including those that do not exist; 0 if only whole roots were scanned.
    pub named_files: u64,
    /// Part of `named_files`: files that were skipped because filters exclude them, or because they are special files
    /// or symbolic links that are not followed.
    pub skipped_files: u64,
    /// The first skipped files, with the reasons.
    pub skipped_samples: Vec<String>,
    /// Number of files outside of this scan that were not compared because they have changed since they were last
    /// scanned.
    pub uncompared_files: u64,
    /// Number of symbolic links found, followed or not.
    pub links: u64,
    /// Part of `links`: links whose target does not exist. Counted only in roots that follow links.
    pub broken_links: u64,
    /// Part of `links`: links that were not followed because they lead to a folder above them, or to a folder that
    /// another link leads to.
    pub repeated_links: u64,
    /// The first broken and repeated links, with the reasons.
    pub link_samples: Vec<String>,
    /// Number of pipes, sockets and devices, which are skipped.
    pub special_files: u64,
    /// Number of files read in full.
    pub read_files: u64,
    /// Number of large files of which samples were read, including some that were then read in full.
    pub sampled_files: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of files hashed again because the algorithm changed.
    pub rehashed_files: u64,
    /// Number of roots that could not be scanned.
    pub failed_roots: u64,
    /// Number of folders and files that could not be read, and of named files that do not exist.
    pub errors: u64,
    /// The first of these errors, with paths and reasons.
    pub error_samples: Vec<String>,
    /// Number of duplicate groups in the catalog.
    pub duplicate_groups: u64,
    /// Number of files in these groups.
    pub duplicate_files: u64,
    /// Allocated bytes that are reclaimable.
    pub reclaimable_bytes: u64,
    /// The first duplicate groups, up to the requested number.
    #[serde(skip)]
    pub top: Vec<Group>,
    /// Duration of the scan and its phases.
    pub seconds: Timings,
}

/// Duration of each phase in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Walking folders, and hashing new files during the walk.
    pub walk: f64,
    /// Determining which files to read.
    pub plan: f64,
    /// Reading small files, and samples of large ones, that the walk did not read.
    pub samples: f64,
    /// Reading the other large files in full.
    pub contents: f64,
    /// Grouping and counting duplicates.
    pub groups: f64,
    /// The whole scan, from its start to its summary.
    pub total: f64,
}
