//! Scans roots and summarizes the result.
//!
//! Owns the state that a cancelled or killed scan leaves. The catalog is the only state: a resumed scan walks every
//! folder again and reads the files that were not read yet. `run` has the order of the stages, each of which is a
//! module:
//!
//! | stage | module |
//! |---|---|
//! | folders and files, compared with the catalog | `walk` |
//! | files that share their size | `by_size` |
//! | small files in full, samples of large ones | `samples` |
//! | large files with equal samples | `contents` |
//! | files with equal contents | `groups` |
//!
//! `candidates` has the rule which files are read. `early` applies it to new files during the walk, with the same
//! `reader` as the stages `samples` and `contents`, whose plans `planned` carries out. Rows go to the store through
//! `catalog_queue`.

mod by_size;
mod candidates;
mod catalog_queue;
mod contents;
mod early;
mod groups;
mod planned;
mod reader;
mod run;
mod samples;
mod walk;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use gristmill_store::catalog::Algorithm;
use gristmill_store::roots::Root;
use gristmill_store::scans::{FinishedScan, Scan, ScanRequest, ScanTotals, WalkRecord};
use gristmill_store::{Store, process};
use serde::Serialize;

use self::by_size::RootTotals;
use self::run::ScanRun;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::lock;
use crate::progress::{ScanHandle, ScanPhase};
use crate::summary::ScanSummary;

pub(crate) use self::candidates::inode_of;
pub(crate) use self::groups::newly_shared;

/// Options of a scan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScanOptions {
    /// The parts of a scan to run.
    pub mode: ScanMode,
    /// Hash algorithm for file contents.
    pub algorithm: Algorithm,
    /// Whether all files are hashed, not only those that can be duplicates.
    pub every_file: bool,
    /// Whether to start over instead of resuming an unfinished scan.
    pub restart: bool,
    /// Whether to skip folders on other filesystems than that of the root.
    pub one_file_system: bool,
    /// Whether to accept a root that had files and is now empty, or whose disk is no longer mounted.
    pub allow_empty: bool,
    /// Files and folders to include.
    pub filter: Filter,
    /// Number of workers. `None` selects a default by the number of cores.
    pub workers: Option<usize>,
    /// Maximum read rate in bytes per second.
    pub io_limit: Option<u64>,
    /// Number of duplicate groups returned with the summary.
    pub top: usize,
}

impl Default for ScanOptions {
    fn default() -> Self {
        ScanOptions {
            mode: ScanMode::All,
            algorithm: Algorithm::Blake3,
            every_file: false,
            restart: false,
            one_file_system: false,
            allow_empty: false,
            filter: Filter::default(),
            workers: None,
            io_limit: None,
            top: 0,
        }
    }
}

/// Selects the parts of a scan to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanMode {
    /// Walks folders and reads files.
    All,
    /// Only walks: folders and files are recorded, no file is read.
    Walk,
    /// Only reads: files of the catalog that were not hashed yet.
    Hash,
    /// Checks whether known files are still present and unchanged. New files are ignored, and no file is read.
    Refresh,
}

impl ScanMode {
    fn walks(self) -> bool {
        self != ScanMode::Hash
    }

    fn reads(self) -> bool {
        matches!(self, ScanMode::All | ScanMode::Hash)
    }
}

/// Settings that must be equal for a scan to resume an unfinished one.
#[derive(Serialize)]
struct Settings<'a> {
    mode: ScanMode,
    follow_links: bool,
    one_file_system: bool,
    filter: &'a Filter,
}

/// Scans roots. Roots inside them are scanned too, each separately.
pub fn scan(store: &Store, roots: &[Root], options: &ScanOptions, handle: &Arc<ScanHandle>) -> Result<ScanSummary> {
    let started = Instant::now();
    let all = store.roots().list()?;
    let within = |root: &&Root| roots.iter().any(|outer| root.path.starts_with(&outer.path));
    let chosen: Vec<Root> = all.iter().filter(within).cloned().collect();
    options.filter.check()?;
    let mut had_files = false;
    for root in &all {
        had_files |= store.catalog().has_files(root.id)?;
    }
    let scans = begin_scans(store, &chosen, options)?;
    let mut run = ScanRun::new(store, options, handle, (&all, &chosen), &scans);
    run.had_files = had_files;
    let run_result = run.run();
    handle.set_phase(ScanPhase::Finishing);
    // An error of a write is the cause of the workers' errors, so it is returned first.
    let result = run.queue.close().and(run_result).and_then(|()| finish(&mut run));
    if result.is_err() || run.summary.interrupted || !run.absent.is_empty() {
        for scan in &scans {
            // Releases the scan lock. If that fails, the next scan sees that this process has exited.
            let _ = store.scans().release(scan.id, &process::tag());
        }
    }
    result?;
    run.summary.seconds.total = started.elapsed().as_secs_f64();
    Ok(run.summary)
}

/// Counts the duplicates and records that the scans have finished, unless they were cancelled.
fn finish(run: &mut ScanRun<'_>) -> Result<()> {
    fill_summary(run);
    if run.summary.interrupted {
        return Ok(());
    }
    let duplicates = groups::count(run)?;
    let has_unread_files = has_failed_files_elsewhere(run)?;
    let ScanRun { store, options, scans, absent, walked, totals, summary, .. } = run;
    // A resumed scan does not retry files that failed before it was stopped, so its error count is not reliable.
    let is_whole = summary.errors == 0
        && !summary.resumed
        && absent.is_empty()
        && run.handle.changed_during_scan.load(Ordering::Relaxed) == 0
        && summary.uncompared_files == 0
        && !has_unread_files;
    let name = comparison_name(options);
    let comparison = duplicates.filter(|_| is_whole).map(|duplicates| (name.as_str(), duplicates));
    let mut finished = Vec::new();
    for scan in scans.iter().filter(|scan| !absent.contains(&scan.root)) {
        let totals = scan_totals(store, scan, totals)?;
        let walk = walked.get(&scan.root).filter(|_| options.mode != ScanMode::Refresh);
        let walk = walk.map(|folder| WalkRecord { filters: filters_json(options), filesystem: folder.filesystem() });
        finished.push(FinishedScan { id: scan.id, root: scan.root, totals, walk });
    }
    Ok(store.scans().finish(finished, &process::tag(), comparison)?)
}

/// Whether a file of another root could not be read. Only a scan of its root reads it again, and counts the error.
fn has_failed_files_elsewhere(run: &ScanRun<'_>) -> Result<bool> {
    let is_chosen = |root: &&Root| run.chosen.iter().any(|chosen| chosen.id == root.id);
    for root in run.all.iter().filter(|root| !is_chosen(root)) {
        if run.store.catalog().count_failed(root.id)? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The filters stored with a root, as JSON. `None` if all files are included.
fn filters_json(options: &ScanOptions) -> Option<String> {
    #[derive(Serialize)]
    struct Filters<'a> {
        #[serde(flatten)]
        filter: &'a Filter,
        one_file_system: bool,
    }
    let ScanOptions { filter, one_file_system, .. } = options;
    let is_default = *filter == Filter::default() && !one_file_system;
    let filters = Filters { filter, one_file_system: *one_file_system };
    if is_default { None } else { serde_json::to_string(&filters).ok() }
}

/// Names the comparison of a complete scan. A later scan with the same name can reuse its result.
fn comparison_name(options: &ScanOptions) -> String {
    let every = if options.every_file { ", every file" } else { "" };
    format!("{}{every}", options.algorithm.as_str())
}

fn fill_summary(run: &mut ScanRun<'_>) {
    let ScanRun { summary, handle, chosen, scans, .. } = run;
    let counters = &handle.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    summary.roots = chosen.iter().map(|root| root.path.clone()).collect();
    summary.resumed_from = scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
    summary.resumed = summary.resumed_from.is_some();
    summary.interrupted = handle.is_cancelled();
    let progress = handle.progress();
    summary.folders = progress.folders;
    summary.files = progress.files;
    summary.bytes = progress.bytes;
    summary.read_files = get(&handle.hashed_whole);
    summary.sampled_files = progress.read.saturating_sub(summary.read_files);
    summary.read_bytes = progress.bytes_read;
    summary.errors = progress.errors;
    summary.removed_files = get(&counters.missing);
    summary.excluded_files = get(&counters.excluded);
    summary.new_files = get(&counters.new);
    summary.changed_files = get(&counters.changed);
    summary.returned_files = get(&counters.returned);
    summary.included_files = get(&counters.included);
    summary.uncompared_files = get(&counters.uncompared);
    summary.failed_roots = get(&counters.failed_roots);
    summary.links = get(&counters.links);
    summary.special_files = get(&counters.special);
    summary.broken_links = get(&counters.broken_links);
    summary.repeated_links = get(&counters.repeated_links);
    summary.link_samples = std::mem::take(&mut lock(&counters.link_samples));
    summary.error_samples = std::mem::take(&mut lock(&counters.error_samples));
}

/// Begins a scan of every root. If one cannot begin, releases those that have begun.
fn begin_scans(store: &Store, roots: &[Root], options: &ScanOptions) -> Result<Vec<Scan>> {
    let mut scans: Vec<Scan> = Vec::new();
    for root in roots {
        let settings = Settings {
            mode: options.mode,
            follow_links: root.follow_links,
            one_file_system: options.one_file_system,
            filter: &options.filter,
        };
        let settings = serde_json::to_string(&settings).map_err(|error| Error::System(error.to_string()))?;
        let request = ScanRequest {
            root: root.id,
            holder: process::tag(),
            settings,
            restart: options.restart,
            is_alive: process::is_alive,
        };
        match store.scans().begin(request) {
            Ok(scan) => scans.push(scan),
            Err(error) => {
                for scan in &scans {
                    store.scans().release(scan.id, &process::tag())?;
                }
                return Err(match error {
                    gristmill_store::Error::Conflict(reason) => Error::Root(root.path.clone(), reason),
                    error => error.into(),
                });
            }
        }
    }
    Ok(scans)
}

/// Computes the totals of a scan from the catalog, so that they are the same if the scan was killed and resumed.
fn scan_totals(store: &Store, scan: &Scan, totals: &HashMap<i64, RootTotals>) -> Result<ScanTotals> {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let catalog = store.catalog();
    let (folders, unreadable) = (catalog.count_folders(scan.root)?, catalog.count_unreadable(scan.root)?);
    let RootTotals { files, bytes } = totals.get(&scan.root).copied().unwrap_or_default();
    Ok(ScanTotals {
        folders: number(folders),
        files,
        bytes,
        errors: number(unreadable) + number(catalog.count_failed(scan.root)?),
    })
}
