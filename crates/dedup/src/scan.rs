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

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use gristmill_store::catalog::{Algorithm, FolderRef};
use gristmill_store::roots::Root;
use gristmill_store::scans::{FinishedScan, Scan, ScanRequest, ScanScope, ScanTotals, WalkRecord};
use gristmill_store::{Store, process};
use serde::Serialize;

use self::by_size::RootTotals;
use self::run::ScanRun;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::lock;
use crate::named::{self, NO_SUCH_FILE, NamedFiles, NamesOfRoot};
use crate::progress::{ScanHandle, ScanPhase};
use crate::summary::ScanSummary;

pub(crate) use self::candidates::{inode_of, samples_of};
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
    /// Files to scan besides the roots. Only these files of their roots are examined.
    pub named: Option<NamedFiles>,
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
            named: None,
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
    /// Identifies the named files of a scan that covers only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<String>,
}

/// Scans roots. Roots inside them are scanned too, each separately. Of other roots, only the named files are scanned.
pub fn scan(store: &Store, roots: &[Root], options: &ScanOptions, handle: &Arc<ScanHandle>) -> Result<ScanSummary> {
    let started = Instant::now();
    let all = store.roots().list()?;
    let within = |root: &&Root| roots.iter().any(|outer| root.path.starts_with(&outer.path));
    let whole: HashSet<i64> = all.iter().filter(within).map(|root| root.id).collect();
    options.filter.check()?;
    let named = named_files(store, &all, &whole, options, handle)?;
    let is_chosen = |root: &&Root| whole.contains(&root.id) || named.contains_key(&root.id);
    let chosen: Vec<Root> = all.iter().filter(is_chosen).cloned().collect();
    if chosen.is_empty() {
        // It would have no record, so scans at the same time would not notice what it writes.
        let mut summary = ScanSummary::default();
        fill_counts(&mut summary, options, handle);
        return Ok(summary);
    }
    let mut had_files = false;
    for root in &all {
        had_files |= store.catalog().has_files(root.id)?;
    }
    let scans = begin_scans(store, &chosen, &named, options)?;
    let mut run = ScanRun::new(store, options, handle, (&all, &chosen), &scans);
    run.had_files = had_files;
    run.named = named;
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

/// Returns the named files of each root that is not scanned as a `whole`. Names that lead to no file are recorded as
/// errors.
fn named_files(
    store: &Store,
    all: &[Root],
    whole: &HashSet<i64>,
    options: &ScanOptions,
    handle: &ScanHandle,
) -> Result<HashMap<i64, Arc<NamesOfRoot>>> {
    let Some(named) = &options.named else { return Ok(HashMap::new()) };
    if !matches!(options.mode, ScanMode::All | ScanMode::Walk) {
        let text = "files cannot be named for a scan that does not walk: it reads or checks every file of the catalog";
        return Err(Error::Invalid(text.to_owned()));
    }
    let mut assigned = named.assign(all);
    for root in all.iter().filter(|root| whole.contains(&root.id)) {
        // Their root is walked completely. Only names without a file must be reported.
        for (folder, names) in assigned.by_root.remove(&root.id).into_iter().flatten() {
            for name in unknown_names(store, root, &folder, &names)? {
                assigned.refused.push((root.path.join(&folder).join(name), NO_SUCH_FILE.to_owned()));
            }
        }
    }
    for (path, reason) in &assigned.refused {
        handle.counters.record_name_error(path, reason);
    }
    Ok(assigned.by_root.into_iter().map(|(root, names)| (root, Arc::new(names))).collect())
}

/// Returns the names that neither the folder nor the catalog has.
fn unknown_names<'a>(
    store: &Store,
    root: &Root,
    folder: &Path,
    names: &'a BTreeSet<OsString>,
) -> Result<Vec<&'a OsString>> {
    let full = root.path.join(folder);
    let is_gone = |name: &&OsString| {
        std::fs::symlink_metadata(full.join(name)).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let mut gone: Vec<&OsString> = names.iter().filter(is_gone).collect();
    if !gone.is_empty()
        && let Some(known) = store.catalog().folder(root.id, folder)?
    {
        let folder = FolderRef { root: root.id, id: Some(known.id), path: folder.to_path_buf() };
        let files = store.catalog().known_files(&folder, true)?;
        let known: HashSet<OsString> = files.into_iter().map(|(name, _)| name).collect();
        gone.retain(|name| !known.contains(*name));
    }
    Ok(gone)
}

/// Counts the duplicates and records that the scans have finished, unless they were cancelled.
fn finish(run: &mut ScanRun<'_>) -> Result<()> {
    fill_summary(run);
    if run.summary.interrupted {
        return Ok(());
    }
    let duplicates = groups::count(run)?;
    let has_unread_files = has_failed_files_elsewhere(run)?;
    let ScanRun { store, options, scans, absent, walked, totals, summary, named, .. } = run;
    // A resumed scan does not retry files that failed before it was stopped, so its error count is not reliable.
    // A name without a file is an error, but leaves no file of the catalog uncompared.
    let is_whole = run.handle.errors.load(Ordering::Relaxed) == 0
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
        let is_walked = options.mode != ScanMode::Refresh && !named.contains_key(&scan.root);
        let walk = walked.get(&scan.root).filter(|_| is_walked);
        let walk = walk.map(|folder| WalkRecord { filters: filters_json(options), filesystem: folder.filesystem() });
        finished.push(FinishedScan { id: scan.id, root: scan.root, totals, walk });
    }
    Ok(store.scans().finish(finished, &process::tag(), comparison)?)
}

/// Whether a file outside this scan could not be read. Only a scan of its root reads it again, and counts the error.
fn has_failed_files_elsewhere(run: &ScanRun<'_>) -> Result<bool> {
    let is_whole =
        |root: &&Root| !run.named.contains_key(&root.id) && run.chosen.iter().any(|chosen| chosen.id == root.id);
    for root in run.all.iter().filter(|root| !is_whole(root)) {
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
    let ScanRun { summary, handle, chosen, scans, options, .. } = run;
    summary.roots = chosen.iter().map(|root| root.path.clone()).collect();
    summary.resumed_from = scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
    summary.resumed = summary.resumed_from.is_some();
    fill_counts(summary, options, handle);
}

fn fill_counts(summary: &mut ScanSummary, options: &ScanOptions, handle: &ScanHandle) {
    let counters = &handle.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    summary.named_files = options.named.as_ref().map_or(0, NamedFiles::count);
    summary.skipped_files = get(&counters.skipped_names);
    summary.skipped_samples = std::mem::take(&mut lock(&counters.skipped_samples));
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
fn begin_scans(
    store: &Store,
    roots: &[Root],
    named: &HashMap<i64, Arc<NamesOfRoot>>,
    options: &ScanOptions,
) -> Result<Vec<Scan>> {
    let mut scans: Vec<Scan> = Vec::new();
    for root in roots {
        let names = named.get(&root.id);
        let settings = Settings {
            mode: options.mode,
            follow_links: root.follow_links,
            one_file_system: options.one_file_system,
            filter: &options.filter,
            files: names.map(|names| named::digest(names)),
        };
        let settings = serde_json::to_string(&settings).map_err(|error| Error::System(error.to_string()))?;
        let request = ScanRequest {
            root: root.id,
            scope: match options.mode {
                _ if names.is_some() => ScanScope::NamedFiles,
                ScanMode::All | ScanMode::Walk => ScanScope::Root,
                ScanMode::Hash | ScanMode::Refresh => ScanScope::KnownFiles,
            },
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
