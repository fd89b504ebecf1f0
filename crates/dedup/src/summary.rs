//! What a scan did, in numbers.

use std::path::PathBuf;

use gristmill_store::catalog::Group;
use serde::Serialize;

/// What a scan did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScanSummary {
    /// The roots, by path.
    pub roots: Vec<PathBuf>,
    /// It was told to stop; the next one goes on from here.
    pub interrupted: bool,
    /// It went on with one that was stopped or killed.
    pub resumed: bool,
    /// Folders there are, the roots included.
    pub folders: u64,
    /// Files in them.
    pub files: u64,
    /// Their size together.
    pub bytes: u64,
    /// Files not seen before.
    pub new_files: u64,
    /// Files that are not as they were.
    pub changed_files: u64,
    /// Files that are gone.
    pub removed_files: u64,
    /// Files that were gone and are back.
    pub returned_files: u64,
    /// Files that no longer match the filters, and did in an earlier scan.
    pub excluded_files: u64,
    /// Files that match the filters again.
    pub included_files: u64,
    /// Files of other roots that are not as their last scan found them, and so were not compared.
    pub uncompared_files: u64,
    /// Links passed over, or followed if the root says so.
    pub links: u64,
    /// Of these, links that lead nowhere. Only links that are followed are known to.
    pub broken_links: u64,
    /// Of these, links to a folder above them, or to a folder that another link led to: not followed.
    pub repeated_links: u64,
    /// The first of the broken and repeated links, with their reasons.
    pub link_samples: Vec<String>,
    /// Pipes, sockets and devices passed over.
    pub special_files: u64,
    /// Files read to their end.
    pub read_files: u64,
    /// Large files of which a few blocks were read, some of them before they were read to their end.
    pub sampled_files: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Files hashed again because the algorithm was changed.
    pub rehashed_files: u64,
    /// Roots that could not be scanned at all.
    pub failed_roots: u64,
    /// Folders and files that could not be read.
    pub errors: u64,
    /// The first of them, with their reasons.
    pub error_samples: Vec<String>,
    /// Groups of duplicates in the catalog.
    pub duplicate_groups: u64,
    /// Files in them.
    pub duplicate_files: u64,
    /// Allocated bytes that are reclaimable.
    pub reclaimable_bytes: u64,
    /// The first groups, as many as were asked for.
    #[serde(skip)]
    pub top: Vec<Group>,
    /// How long it took.
    pub seconds: Timings,
}

/// How long each phase took, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Looking at folders, and reading new files on the way.
    pub walk: f64,
    /// Finding out what to read.
    pub plan: f64,
    /// Reading small files, and edges of large ones, as far as the walk has not.
    pub samples: f64,
    /// Reading the rest of the large files through.
    pub contents: f64,
    /// Putting duplicates together.
    pub groups: f64,
    /// All of it.
    pub total: f64,
}
