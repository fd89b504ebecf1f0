//! A scan: walk, plan, read, report what was found.
//!
//! Owns the order of the phases, and what a scan that is stopped or killed leaves behind. The catalog is the only
//! state: a scan that is resumed looks at every folder again and reads what is not read yet.

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

/// How a scan is done.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// What it does.
    pub mode: ScanMode,
    /// How contents are hashed.
    pub algorithm: Algorithm,
    /// Hash all files, not only those that can be duplicates.
    pub every_file: bool,
    /// Begin anew, whatever an earlier scan has left.
    pub restart: bool,
    /// Stay on the root's own file system.
    pub one_file_system: bool,
    /// Accept that a root that had files is empty, or that its disk is no longer mounted.
    pub allow_empty: bool,
    /// What to look at.
    pub filter: Filter,
    /// How many workers; none for the default.
    pub workers: Option<usize>,
    /// Bytes a second that may be read.
    pub io_limit: Option<u64>,
    /// How many groups to give back with the summary.
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

/// What a scan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanMode {
    /// Walks and reads.
    All,
    /// Walks only: folders and files are recorded, nothing is read.
    Walk,
    /// Reads only: what the catalog has and has not been read.
    Hash,
    /// Looks whether what is known is still there as it was; finds nothing new, reads nothing.
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

/// What makes a scan the same as another: only then does it go on.
#[derive(Serialize)]
struct Settings<'a> {
    mode: ScanMode,
    follow_links: bool,
    one_file_system: bool,
    filter: &'a Filter,
}

/// Scans roots. Roots inside them are scanned, too, each by itself.
pub fn scan(
    store: &Store,
    roots: &[Root],
    options: &ScanOptions,
    handle: &Arc<ScanHandle>,
) -> Result<ScanSummary> {
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
        root_totals: HashMap::new(),
        cancelled_at: std::cell::OnceCell::new(),
    };
    let ran = run.run(&walk_options).and_then(|()| match handle.is_cancelled() && options.mode.reads() {
        true => run.mark_shared_after_cancel(),
        false => Ok(()),
    });
    let excluded = writer.excluded.clone();
    let ScanOutcome { mut summary, counters, root_totals, absent, walked, unchanged } = run.into_outcome();
    handle.set_phase(ScanPhase::Finishing);
    let ended = writer.finish().and_then(|removed| {
        // The scribe's own error is the cause of what others met, so it comes first.
        ran?;
        summary.removed_files = removed;
        summary.excluded_files = excluded.load(Ordering::Relaxed);
        summary.roots = chosen.iter().map(|root| root.path.clone()).collect();
        summary.resumed = scans.iter().any(|scan| scan.resumed);
        summary.interrupted = handle.is_cancelled();
        fill_summary(&mut summary, handle, &counters);
        if summary.interrupted {
            return Ok(());
        }
        let duplicates = find_duplicates(store, options, unchanged, &mut summary)?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A resumed scan does not try again what could not be read before it stopped, so its own errors do not tell.
        let is_whole = summary.errors == 0
            && !summary.resumed
            && absent.is_empty()
            && get(&handle.changed_during_scan) == 0
            && get(&counters.uncompared) == 0;
        let name = comparison_name(options);
        let comparison = duplicates.filter(|_| is_whole).map(|duplicates| (name.as_str(), duplicates));
        let mut finished = Vec::new();
        for scan in scans.iter().filter(|scan| !absent.contains(&scan.root)) {
            let totals = scan_totals(store, scan, &root_totals)?;
            let walk = walked.get(&scan.root).filter(|_| options.mode != ScanMode::Refresh);
            let walk = walk.map(|root| WalkRecord {
                filters: filters_json(options),
                filesystem: root.filesystem.clone(),
            });
            finished.push(FinishedScan { id: scan.id, root: scan.root, totals, walk });
        }
        store.scans().finish(finished, comparison)?;
        Ok(())
    });
    if ended.is_err() || summary.interrupted || !absent.is_empty() {
        for scan in &scans {
            // Whoever comes next must not find us holding it. If even that fails, it finds us dead.
            let _ = store.scans().release(scan.id);
        }
    }
    ended?;
    summary.seconds.total = started.elapsed().as_secs_f64();
    Ok(summary)
}

/// The filters that a root remembers, as JSON; none if all files are taken.
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

/// What a scan that ended so has settled: later ones that ask for the same need not look again.
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
    summary.link_samples =
        std::mem::take(&mut counters.link_samples.lock().unwrap_or_else(PoisonError::into_inner));
    summary.error_samples =
        std::mem::take(&mut counters.error_samples.lock().unwrap_or_else(PoisonError::into_inner));
}

/// The duplicates that there are now, unless they are what they were.
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
                // Beside the search, because closing the store would do it after. It may fail: then that does.
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

/// More than cores: a worker that waits for a disk needs none. Measured on a cold tree of small files, sixteen read
/// three times as fast as two; on a warm one they cost nothing.
fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores * 4).clamp(16, 64)
}

/// All scans, or none.
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
                    store.scans().release(scan.id)?;
                }
                return Err(match error {
                    gristmill_store::Error::Conflict(why) => Error::Root(root.path.clone(), why),
                    error => error.into(),
                });
            }
        }
    }
    Ok(scans)
}

/// What a scan has seen, from the catalog itself: the same whether it was killed ten times or never.
fn scan_totals(store: &Store, scan: &Scan, root_totals: &HashMap<i64, RootTotals>) -> Result<ScanTotals> {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let catalog = store.catalog();
    let (folders, unreadable) = (catalog.count_folders(scan.root)?, catalog.count_unreadable(scan.root)?);
    let RootTotals { files, bytes } = root_totals.get(&scan.root).copied().unwrap_or_default();
    Ok(ScanTotals {
        folders: number(folders),
        files,
        bytes,
        errors: number(unreadable) + number(catalog.count_failed(scan.root)?),
    })
}
