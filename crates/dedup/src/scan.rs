//! Scans roots: walks, plans, reads, and summarizes the result.
//!
//! Owns the order of the phases, and the state that a cancelled or killed scan leaves. The catalog is the only state: a
//! resumed scan walks every folder again and reads the files that were not read yet.

mod run;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use gristmill_store::catalog::{Algorithm, GroupQuery};
use gristmill_store::roots::Root;
use gristmill_store::scans::{Duplicates, FinishedScan, Scan, ScanRequest, ScanTotals, WalkRecord};
use gristmill_store::{Store, process};
use serde::Serialize;

use self::run::{ScanOutcome, ScanRun};
use crate::catalog_writer::CatalogWriter;
use crate::error::{Error, Result};
use crate::filter::{CompiledFilter, Filter};
use crate::hash_stage::RateLimiter;
use crate::plan::RootTotals;
use crate::progress::{ScanHandle, ScanPhase};
use crate::summary::ScanSummary;
use crate::walk::{Counters, WalkOptions};

/// Options of a scan.
#[derive(Clone, Debug)]
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
    let walk_options = Arc::new(WalkOptions {
        filter: CompiledFilter::new(&options.filter, Path::new(""), &[])?,
        one_file_system: options.one_file_system,
        only_known: options.mode == ScanMode::Refresh,
        allow_empty: options.allow_empty,
    });
    let workers = options.workers.unwrap_or_else(default_workers).max(1);
    handle.workers.store(workers as u64, Ordering::Relaxed);
    let mut had_files = false;
    for root in &all {
        had_files |= store.catalog().has_files(root.id)?;
    }
    let scans = begin_scans(store, &chosen, options)?;
    let ids = scans.iter().map(|scan| scan.id).collect();
    let writer = CatalogWriter::start(store, handle, ids, process::tag(), options.every_file)?;
    let mut run = ScanRun {
        store,
        options,
        handle,
        workers,
        all: &all,
        chosen: &chosen,
        scans: &scans,
        writer: &writer,
        counters: Arc::default(),
        rate_limiter: Arc::new(RateLimiter::new(options.io_limit)),
        had_files,
        absent: HashSet::new(),
        open_root_ids: HashSet::new(),
        walked: HashMap::new(),
        walk_hasher: None,
        unchanged: None,
        summary: ScanSummary::default(),
        totals: HashMap::new(),
        cancelled_at: std::cell::OnceCell::new(),
    };
    let run_result = run.run(&walk_options).and_then(|()| match handle.is_cancelled() && options.mode.reads() {
        true => run.mark_shared_after_cancel(),
        false => Ok(()),
    });
    let excluded = writer.excluded.clone();
    let ScanOutcome { mut summary, counters, totals, absent, walked, unchanged } = run.into_outcome();
    handle.set_phase(ScanPhase::Finishing);
    let result = writer.finish().and_then(|removed| {
        // An error of the catalog writer is the cause of the workers' errors, so it is returned first.
        run_result?;
        summary.removed_files = removed;
        summary.excluded_files = excluded.load(Ordering::Relaxed);
        summary.roots = chosen.iter().map(|root| root.path.clone()).collect();
        summary.resumed_from = scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
        summary.resumed = summary.resumed_from.is_some();
        summary.interrupted = handle.is_cancelled();
        fill_summary(&mut summary, handle, &counters);
        if summary.interrupted {
            return Ok(());
        }
        let duplicates = find_duplicates(store, options, unchanged, &mut summary)?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A resumed scan does not retry files that failed before it was stopped, so its error count is not reliable.
        let is_whole = summary.errors == 0
            && !summary.resumed
            && absent.is_empty()
            && get(&handle.changed_during_scan) == 0
            && get(&counters.uncompared) == 0;
        let name = comparison_name(options);
        let comparison = duplicates.filter(|_| is_whole).map(|duplicates| (name.as_str(), duplicates));
        let mut finished = Vec::new();
        for scan in scans.iter().filter(|scan| !absent.contains(&scan.root)) {
            let totals = scan_totals(store, scan, &totals)?;
            let walk = walked.get(&scan.root).filter(|_| options.mode != ScanMode::Refresh);
            let walk =
                walk.map(|root| WalkRecord { filters: filters_json(options), filesystem: root.filesystem.clone() });
            finished.push(FinishedScan { id: scan.id, root: scan.root, totals, walk });
        }
        store.scans().finish(finished, &process::tag(), comparison)?;
        Ok(())
    });
    if result.is_err() || summary.interrupted || !absent.is_empty() {
        for scan in &scans {
            // Releases the scan lock. If that fails, the next scan sees that this process has exited.
            let _ = store.scans().release(scan.id, &process::tag());
        }
    }
    result?;
    summary.seconds.total = started.elapsed().as_secs_f64();
    Ok(summary)
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

fn fill_summary(summary: &mut ScanSummary, handle: &ScanHandle, counters: &Counters) {
    let progress = handle.progress();
    summary.folders = progress.folders;
    summary.files = progress.files;
    summary.bytes = progress.bytes;
    summary.read_files = handle.hashed_whole.load(Ordering::Relaxed);
    summary.sampled_files = progress.read.saturating_sub(summary.read_files);
    summary.read_bytes = progress.bytes_read;
    summary.errors = progress.errors;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
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
    summary.link_samples = std::mem::take(&mut counters.link_samples.lock().unwrap_or_else(PoisonError::into_inner));
    summary.error_samples = std::mem::take(&mut counters.error_samples.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Counts the duplicates, unless they are known to be unchanged.
fn find_duplicates(
    store: &Store,
    options: &ScanOptions,
    unchanged: Option<Duplicates>,
    summary: &mut ScanSummary,
) -> Result<Option<Duplicates>> {
    if !options.mode.reads() {
        return Ok(None);
    }
    let begun = Instant::now();
    let duplicates = match unchanged {
        Some(unchanged) if options.top == 0 => unchanged,
        _ => {
            let query = GroupQuery { limit: options.top, ..GroupQuery::default() };
            let groups = std::thread::scope(|scope| {
                // Checkpoints the WAL in parallel with the search. If this fails, closing the store does it later.
                scope.spawn(|| store.wal().checkpoint_passive());
                store.catalog().groups(&query)
            })?;
            summary.top = groups.groups;
            Duplicates { groups: groups.total, files: groups.files, reclaimable: groups.reclaimable }
        }
    };
    summary.duplicate_groups = duplicates.groups;
    summary.duplicate_files = duplicates.files;
    summary.reclaimable_bytes = duplicates.reclaimable;
    summary.seconds.groups += begun.elapsed().as_secs_f64();
    Ok(Some(duplicates))
}

/// Four workers per core, 16 to 64: a worker that waits for a disk needs no core. On a cold tree of small files, 16
/// workers read three times as fast as 2; on a warm tree they cost nothing.
fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores * 4).clamp(16, 64)
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
