//! Runs the phases of a scan.
//!
//! Owns the inputs of each phase and the conditions to skip it. Each phase starts from committed data.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Failure, Pool, Report};
use gristmill_store::catalog::Algorithm;
use gristmill_store::process;
use gristmill_store::roots::Root;
use gristmill_store::scans::{Duplicates, Scan};
use gristmill_store::{Store, display_path};

use super::{ScanMode, ScanOptions, comparison_name};
use crate::catalog_writer::{CatalogWriter, Update};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::hash_stage::{HashStage, OpenRoots, RateLimiter, Stage};
use crate::plan::{self, HashRequest, Plan, RootTotals};
use crate::progress::{ScanHandle, ScanPhase, ScanProgress, add};
use crate::summary::ScanSummary;
use crate::sys::Folder;
use crate::walk::{Counters, Walk, WalkContext, WalkOptions};
use crate::walk_hasher::WalkHasher;

/// Time that a cancelled scan waits for its workers. Of the five seconds for a cancellation, the rest is left for
/// writing the results.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(3_500);

/// Files marked as shared by one update.
const SHARED_BATCH: usize = 65_536;

/// Limits for marking shared files after a cancellation: time, and files per update.
const CANCELLED_SHARE_TIMEOUT: Duration = Duration::from_secs(2);
const CANCELLED_BATCH: usize = 4_096;

pub(super) struct ScanRun<'a> {
    pub(super) store: &'a Store,
    pub(super) options: &'a ScanOptions,
    pub(super) handle: &'a Arc<ScanHandle>,
    pub(super) workers: usize,
    pub(super) all: &'a [Root],
    pub(super) chosen: &'a [Root],
    pub(super) scans: &'a [Scan],
    pub(super) writer: &'a CatalogWriter,
    pub(super) counters: Arc<Counters>,
    pub(super) rate_limiter: Arc<RateLimiter>,
    /// Whether the catalog had files before the scan.
    pub(super) had_files: bool,
    /// Row ids of roots that cannot be reached.
    pub(super) absent: HashSet<i64>,
    pub(super) open_root_ids: HashSet<i64>,
    pub(super) walked: HashMap<i64, WalkedRoot>,
    pub(super) walk_hasher: Option<Arc<WalkHasher>>,
    /// The duplicates of the last full comparison, if nothing has changed since.
    pub(super) unchanged: Option<Duplicates>,
    pub(super) summary: ScanSummary,
    pub(super) totals: HashMap<i64, RootTotals>,
    /// Time when the scan noticed that it was cancelled.
    pub(super) cancelled_at: OnceCell<Instant>,
}

/// A root that was walked: its folder, which stays open, and the identity of its filesystem.
pub(super) struct WalkedRoot {
    folder: Arc<Folder>,
    pub(super) filesystem: Option<String>,
}

pub(super) struct ScanOutcome {
    pub(super) summary: ScanSummary,
    pub(super) counters: Arc<Counters>,
    pub(super) totals: HashMap<i64, RootTotals>,
    pub(super) absent: HashSet<i64>,
    pub(super) walked: HashMap<i64, WalkedRoot>,
    pub(super) unchanged: Option<Duplicates>,
}

impl ScanRun<'_> {
    pub(super) fn into_outcome(self) -> ScanOutcome {
        let ScanRun { summary, counters, totals, absent, walked, unchanged, .. } = self;
        ScanOutcome { summary, counters, totals, absent, walked, unchanged }
    }

    pub(super) fn run(&mut self, walk_options: &Arc<WalkOptions>) -> Result<()> {
        if self.options.mode.walks() {
            let begun = Instant::now();
            let is_written = self.walk(walk_options)?;
            self.summary.seconds.walk = begun.elapsed().as_secs_f64();
            if !is_written || self.handle.is_cancelled() || self.is_unchanged()? {
                return Ok(());
            }
            for scan in self.scans.iter().filter(|scan| !self.absent.contains(&scan.root)) {
                self.store.scans().mark_walked(scan.id, &process::tag())?;
            }
        }
        if self.is_fully_hashed()? {
            let ScanProgress { files, bytes, .. } = self.handle.progress();
            self.totals = self.chosen.iter().map(|root| (root.id, RootTotals { files, bytes })).collect();
            return self.mark_shared();
        }
        self.handle.set_phase(ScanPhase::Planning);
        // Written while the plan is computed.
        let _ = self.writer.updates.send(Update::ShareFirstFiles);
        let begun = Instant::now();
        let open_roots = self.open_roots();
        let mut sampling = plan::plan_sampling(self.store, &self.hash_request(), self.handle)?;
        self.totals = std::mem::take(&mut sampling.roots);
        self.summary.seconds.plan = begun.elapsed().as_secs_f64();
        if self.options.mode.reads() {
            let begun = Instant::now();
            self.handle.set_phase(ScanPhase::Samples);
            let large_files = sampling.large_files;
            self.hash_planned(sampling, Stage::Samples, &open_roots)?;
            self.summary.seconds.samples = begun.elapsed().as_secs_f64();
            if self.handle.is_cancelled() {
                return Ok(());
            }
            if large_files == 0 {
                return self.mark_shared();
            }
            let begun = Instant::now();
            let full = plan::plan_full(self.store, &self.hash_request(), self.handle)?;
            self.summary.seconds.plan += begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            self.handle.set_phase(ScanPhase::Contents);
            self.hash_planned(full, Stage::Contents, &open_roots)?;
            self.summary.seconds.contents = begun.elapsed().as_secs_f64();
            return self.mark_shared();
        }
        // Returned files, or files read by a cancelled scan, may have hashes that other files have too.
        let own: Vec<i64> = self.scans.iter().map(|scan| scan.id).collect();
        match self.store.scans().is_fully_compared(&own)? {
            true => Ok(()),
            false => sampling.algorithms.iter().try_for_each(|algorithm| self.mark_shared_hashes(*algorithm)),
        }
    }

    fn hash_request(&self) -> HashRequest {
        let ScanOptions { algorithm, every_file, .. } = *self.options;
        let roots = self.chosen.iter().map(|root| root.id).collect();
        let resumed_from = self.scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
        let open_roots = self.open_root_ids.clone();
        HashRequest { algorithm, every_file, roots, resumed_from, open_roots }
    }

    /// Whether nothing has changed since a scan that compared everything.
    fn is_unchanged(&mut self) -> Result<bool> {
        let Counters { new, changed, returned, included, unverified, .. } = &*self.counters;
        let CatalogWriter { missing, excluded, .. } = self.writer;
        let same = [new, changed, returned, included, unverified, excluded, missing, &self.handle.errors]
            .iter()
            .all(|counter| counter.load(Ordering::Relaxed) == 0);
        let own: Vec<i64> = self.scans.iter().map(|scan| scan.id).collect();
        let counted = self.chosen.iter().map(|root| {
            let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            Some((root.id, RootTotals { files: number(root.files)?, bytes: number(root.bytes)? }))
        });
        let totals = counted.collect::<Option<HashMap<_, _>>>();
        let (true, Some(totals)) = (same && self.options.mode == ScanMode::All && self.absent.is_empty(), totals)
        else {
            return Ok(false);
        };
        self.unchanged = self.store.scans().last_full_comparison(&comparison_name(self.options), &own)?;
        self.totals = totals;
        Ok(self.unchanged.is_some())
    }

    /// Whether no plan is needed: all files are new, of one root, and were hashed during the walk.
    fn is_fully_hashed(&self) -> Result<bool> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_hashed = self.walk_hasher.as_ref().is_some_and(|hasher| hasher.is_complete())
            && matches!(self.chosen, [root] if !root.follow_links)
            && self.scans.iter().all(|scan| !scan.resumed)
            && count(&self.handle.changed_during_scan) == 0
            && count(&self.handle.errors) == 0;
        Ok(is_hashed && self.holds_only_own_files()?)
    }

    /// Whether all files of the catalog were found by this scan: there were none before, and no other scan has added
    /// any. The files of this scan are already written, so of two concurrent scans at least one sees the other's.
    fn holds_only_own_files(&self) -> Result<bool> {
        let mut only_own = !self.had_files;
        for root in self.store.roots().list()? {
            let is_own = self.chosen.iter().any(|own| own.id == root.id);
            only_own &= is_own || !self.store.catalog().has_files(root.id)?;
        }
        Ok(only_own)
    }

    /// Walks the chosen roots. Returns false if the results could not be written.
    fn walk(&mut self, walk_options: &Arc<WalkOptions>) -> Result<bool> {
        self.handle.set_phase(ScanPhase::Walking);
        let roots = Arc::new(self.all.iter().map(|root| root.path.clone()).collect::<Vec<_>>());
        let ScanOptions { mode, algorithm, every_file, .. } = *self.options;
        let (handle, rate_limiter) = (self.handle.clone(), self.rate_limiter.clone());
        let walk_hasher = (mode == ScanMode::All)
            .then(|| Arc::new(WalkHasher::new((algorithm, every_file), handle, rate_limiter, self.workers)));
        self.walk_hasher.clone_from(&walk_hasher);
        let listings = Arc::new(AtomicU64::new(0));
        let scanned: Vec<_> = self.chosen.iter().map(|root| root.path.clone()).collect();
        let mut walks = Vec::new();
        for (root, scan) in self.chosen.iter().zip(self.scans) {
            let walk = Walk::new(WalkContext {
                store: self.store.clone(),
                updates: self.writer.updates.clone(),
                handle: self.handle.clone(),
                options: walk_options.for_root(&self.options.filter, &root.path, &scanned)?,
                root: root.clone(),
                scan: scan.id,
                roots: roots.clone(),
                counters: self.counters.clone(),
                hasher: walk_hasher.clone(),
                listings: listings.clone(),
            });
            match walk {
                Ok(walk) => {
                    let root = WalkedRoot { folder: walk.root_folder().clone(), filesystem: walk.filesystem() };
                    self.walked.insert(scan.root, root);
                    walks.push((walk, scan));
                }
                // An unreachable root does not stop the scan of the others.
                Err(error) if self.chosen.len() > 1 => {
                    add(&self.handle.errors, 1);
                    add(&self.counters.failed_roots, 1);
                    self.absent.insert(root.id);
                    let mut errors = self.counters.error_samples.lock().unwrap_or_else(PoisonError::into_inner);
                    errors.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        let pool = self.pool("walk")?;
        for (walk, _) in &walks {
            walk.begin(&pool)?;
        }
        self.wait(&pool)?;
        for (walk, _) in &walks {
            while !self.handle.is_cancelled() && walk.has_links() {
                let pool = self.pool("links")?;
                walk.follow_next(&pool);
                self.wait(&pool)?;
            }
        }
        for (_, scan) in walks.iter().filter(|(walk, _)| walk.has_failed()) {
            self.walked.remove(&scan.root);
            self.absent.insert(scan.root);
        }
        let written = self.writer.flush();
        let is_whole = self.options.filter == Filter::default()
            && !self.options.one_file_system
            && self.handle.errors.load(Ordering::Relaxed) == 0;
        if written && is_whole && !self.handle.is_cancelled() {
            for (_, scan) in &walks {
                let missing = self.store.catalog().mark_unseen_missing(scan.root)?;
                add(&self.writer.missing, missing as u64);
            }
        }
        Ok(written)
    }

    /// Marks files whose content other files have too, which makes them part of a group. Runs at the end and in row
    /// order: marking each file as it is found would write the same index pages with every commit.
    fn mark_shared(&mut self) -> Result<()> {
        if self.handle.is_cancelled() {
            return Ok(());
        }
        let begun = Instant::now();
        // The next flush shows whether this was written.
        let _ = self.writer.updates.send(Update::ShareFirstFiles);
        self.writer.flush();
        // Files read by this scan were compared as they were written.
        if self.writer.compares_all() && self.holds_only_own_files()? {
            self.summary.seconds.groups = begun.elapsed().as_secs_f64();
            return Ok(());
        }
        self.mark_shared_hashes(self.options.algorithm)?;
        self.summary.seconds.groups = begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Compares all hashes of an algorithm, and marks the shared ones.
    fn mark_shared_hashes(&self, algorithm: Algorithm) -> Result<()> {
        let every_file = self.options.every_file;
        let is_stopped = || self.handle.is_cancelled();
        for ids in plan::newly_shared(self.store, (algorithm, every_file), is_stopped)?.chunks(SHARED_BATCH) {
            if self.handle.is_cancelled() || self.writer.updates.send(Update::Shared(ids.to_vec())).is_err() {
                break;
            }
        }
        self.writer.flush();
        Ok(())
    }

    /// Marks shared files that were read before the scan was cancelled, within `CANCELLED_SHARE_TIMEOUT`.
    pub(super) fn mark_shared_after_cancel(&self) -> Result<()> {
        let is_any_read = self.handle.read.load(Ordering::Relaxed) > 0;
        let until = self.cancelled_at.get().copied().unwrap_or_else(Instant::now) + CANCELLED_SHARE_TIMEOUT;
        let is_over = || Instant::now() >= until;
        if !is_any_read || is_over() || !self.writer.flush() {
            return Ok(());
        }
        let ScanOptions { algorithm, every_file, .. } = *self.options;
        for ids in plan::newly_shared(self.store, (algorithm, every_file), is_over)?.chunks(CANCELLED_BATCH) {
            let is_sent = !is_over() && self.writer.updates.send(Update::Shared(ids.to_vec())).is_ok();
            if !is_sent || !self.writer.flush() {
                break;
            }
        }
        Ok(())
    }

    fn open_roots(&mut self) -> Arc<OpenRoots> {
        let scanned = self.chosen.iter().map(|root| root.id).collect();
        let walked = self.walked.iter().map(|(id, root)| (*id, root.folder.clone())).collect();
        let roots = self.all.iter().filter(|root| !self.absent.contains(&root.id));
        let (open_roots, absent) = OpenRoots::open(self.store, roots, &scanned, &walked);
        for root in absent {
            tracing::info!(root = %display_path(&root.path), "root cannot be reached; its files are not read");
            self.absent.insert(root.id);
        }
        self.open_root_ids = open_roots.ids();
        Arc::new(open_roots)
    }

    fn hash_planned(&mut self, mut plan: Plan, stage: Stage, open_roots: &Arc<OpenRoots>) -> Result<()> {
        self.summary.rehashed_files += plan.rehashed;
        add(&self.handle.to_read, plan.ids.len() as u64);
        add(&self.handle.bytes_to_read, plan.bytes);
        if plan.ids.is_empty() {
            return Ok(());
        }
        let hash_stage = Arc::new(HashStage {
            store: self.store.clone(),
            updates: self.writer.updates.clone(),
            handle: self.handle.clone(),
            algorithm: self.options.algorithm,
            stage,
            links: std::mem::take(&mut plan.links),
            roots: open_roots.clone(),
            rate_limiter: self.rate_limiter.clone(),
            counters: self.counters.clone(),
        });
        let pool = self.pool("read")?;
        let submitted = hash_stage.submit(&pool, &plan);
        self.wait(&pool)?;
        submitted?;
        // The next plan is computed from committed rows.
        self.writer.flush();
        if self.handle.changed_during_scan.load(Ordering::Relaxed) > 0 {
            let totals = self.store.catalog().totals()?.into_iter();
            self.totals = totals.map(|(root, files, bytes)| (root, RootTotals { files, bytes })).collect();
        }
        Ok(())
    }

    fn pool(&self, name: &str) -> Result<Pool> {
        let builder = Pool::builder().name(name).workers(self.workers).queue_capacity(self.workers * 10);
        builder.build().map_err(|error| Error::System(error.to_string()))
    }

    /// Waits until the pool is finished. After a cancellation, waits up to `SHUTDOWN_TIMEOUT`.
    fn wait(&self, pool: &Pool) -> Result<()> {
        pool.close();
        let mut interval = Duration::from_micros(50);
        while !pool.is_finished() && !self.handle.is_cancelled() {
            std::thread::park_timeout(interval);
            // The interval starts short, because a scan of an unchanged folder takes less than 2 ms.
            interval = (interval * 2).min(Duration::from_millis(2));
        }
        if self.handle.is_cancelled() {
            let _ = self.cancelled_at.set(Instant::now());
        }
        let report: Report = if self.handle.is_cancelled() { pool.shutdown(SHUTDOWN_TIMEOUT) } else { pool.join() };
        for task in &report.abandoned {
            tracing::warn!(%task, "task did not stop in time and was abandoned");
        }
        // Tasks that a cancellation has ended are not failures.
        let is_cancellation =
            |failure: &&Failure| self.handle.is_cancelled() && matches!(failure.error.cause(), Cause::Cancelled);
        match report.failures.iter().find(|failure| !is_cancellation(failure)) {
            Some(failure) => Err(scan_error(failure)),
            None => Ok(()),
        }
    }
}

/// Converts the error of a task. An error of the store is kept, because it states whether the user can fix the cause.
fn scan_error(failure: &Failure) -> Error {
    let store_error = match failure.error.cause() {
        Cause::Error(error) => error.downcast_ref::<gristmill_store::Error>(),
        _ => None,
    };
    store_error.map_or_else(|| Error::System(failure.error.to_string()), |error| Error::Store(error.clone()))
}
