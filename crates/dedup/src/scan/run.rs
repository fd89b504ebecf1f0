//! Runs the stages of a scan in order: walk, by size, samples, contents, groups.
//!
//! Owns the inputs of each stage and the conditions to skip it. Each stage starts from committed data.

use std::cell::{Cell, OnceCell};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Failure, Pool, Report};
use gristmill_store::roots::Root;
use gristmill_store::scans::{Duplicates, Scan};
use gristmill_store::{Store, display_path, process};

use super::by_size::{self, RootTotals};
use super::candidates::{HashRule, PlanRequest};
use super::catalog_queue::CatalogQueue;
use super::early::EarlyStages;
use super::planned::{OpenRoot, OpenRoots};
use super::reader::Reader;
use super::{ScanMode, ScanOptions, comparison_name, contents, groups, samples, walk};
use crate::error::{Error, Result};
use crate::progress::{Counters, ScanHandle, ScanPhase, ScanProgress};
use crate::roots::open_if_reachable;
use crate::summary::ScanSummary;
use crate::sys::Folder;

/// Time that a cancelled scan waits for its workers. Of the five seconds for a cancellation, the rest is left for
/// writing the results.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(3_500);

/// Interval at which the heartbeat of the scan is written.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// State of a scan, as far as the thread that runs the stages needs it.
pub(super) struct ScanRun<'a> {
    pub(super) store: &'a Store,
    pub(super) options: &'a ScanOptions,
    pub(super) handle: &'a Arc<ScanHandle>,
    pub(super) workers: usize,
    pub(super) all: &'a [Root],
    pub(super) chosen: &'a [Root],
    pub(super) scans: &'a [Scan],
    pub(super) queue: Arc<CatalogQueue>,
    pub(super) reader: Arc<Reader>,
    /// Whether the catalog had files before the scan.
    pub(super) had_files: bool,
    /// Row ids of roots that cannot be reached.
    pub(super) absent: HashSet<i64>,
    pub(super) open_roots: Arc<OpenRoots>,
    /// Folders of the roots that were walked. They stay open, so that their filesystems cannot be unmounted.
    pub(super) walked: HashMap<i64, Arc<Folder>>,
    /// Hashes new files during the walk, if the scan walks and reads.
    pub(super) early: Option<Arc<EarlyStages>>,
    /// The duplicates of the last full comparison, if nothing has changed since.
    pub(super) unchanged: Option<Duplicates>,
    pub(super) summary: ScanSummary,
    pub(super) totals: HashMap<i64, RootTotals>,
    /// Time when the scan noticed that it was cancelled.
    pub(super) cancelled_at: OnceCell<Instant>,
    pub(super) last_heartbeat: Cell<Instant>,
    /// Number of rows that queries of all files have read.
    pub(super) files_read: Cell<u32>,
}

impl ScanRun<'_> {
    pub(super) fn run(&mut self) -> Result<()> {
        self.run_stages()?;
        match self.handle.is_cancelled() && self.options.mode.reads() {
            true => groups::mark_after_cancel(self),
            false => Ok(()),
        }
    }

    fn run_stages(&mut self) -> Result<()> {
        if self.options.mode.walks() {
            let begun = Instant::now();
            let is_written = walk::run(self)?;
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
            return groups::mark(self);
        }
        self.handle.set_phase(ScanPhase::Planning);
        // Written while the catalog is read.
        self.queue.share_first_files();
        let begun = Instant::now();
        self.open_roots();
        let mut same_size = by_size::find(self.store, &self.plan_request(), || self.proceed())?;
        self.totals = std::mem::take(&mut same_size.roots);
        self.summary.seconds.plan = begun.elapsed().as_secs_f64();
        if !self.options.mode.reads() {
            // Returned files, or files read by a cancelled scan, may have hashes that other files have too.
            return match self.store.scans().is_fully_compared(&self.scan_ids())? {
                true => Ok(()),
                false => same_size.algorithms.iter().try_for_each(|algorithm| groups::mark_hashes(self, *algorithm)),
            };
        }
        let large_files = same_size.large_files;
        let begun = Instant::now();
        samples::read(self, same_size.plan)?;
        self.summary.seconds.samples = begun.elapsed().as_secs_f64();
        if large_files > 0 && !self.handle.is_cancelled() {
            let begun = Instant::now();
            let plan = contents::find(self.store, &self.plan_request(), || self.proceed())?;
            self.summary.seconds.plan += begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            contents::read(self, plan)?;
            self.summary.seconds.contents = begun.elapsed().as_secs_f64();
        }
        groups::mark(self)
    }

    pub(super) fn scan_ids(&self) -> Vec<i64> {
        self.scans.iter().map(|scan| scan.id).collect()
    }

    pub(super) fn rule(&self) -> HashRule {
        let ScanOptions { algorithm, every_file, .. } = *self.options;
        HashRule { algorithm, every_file }
    }

    fn plan_request(&self) -> PlanRequest {
        let roots = self.chosen.iter().map(|root| root.id).collect();
        let resumed_from = self.scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
        PlanRequest { rule: self.rule(), roots, resumed_from, open_roots: self.open_roots.clone() }
    }

    /// Whether nothing has changed since a scan that compared everything.
    fn is_unchanged(&mut self) -> Result<bool> {
        let Counters { new, changed, returned, included, unverified, missing, excluded, .. } = &self.handle.counters;
        let same = [new, changed, returned, included, unverified, excluded, missing, &self.handle.errors]
            .iter()
            .all(|counter| counter.load(Ordering::Relaxed) == 0);
        let counted = self.chosen.iter().map(|root| {
            let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            Some((root.id, RootTotals { files: number(root.files)?, bytes: number(root.bytes)? }))
        });
        let totals = counted.collect::<Option<HashMap<_, _>>>();
        let (true, Some(totals)) = (same && self.options.mode == ScanMode::All && self.absent.is_empty(), totals)
        else {
            return Ok(false);
        };
        let name = comparison_name(self.options);
        self.unchanged = self.store.scans().last_full_comparison(&name, &self.scan_ids())?;
        self.totals = totals;
        Ok(self.unchanged.is_some())
    }

    /// Whether no further stage is needed: all files are new, of one root, and were hashed during the walk.
    fn is_fully_hashed(&self) -> Result<bool> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_hashed = self.early.as_ref().is_some_and(|early| early.is_complete())
            && matches!(self.chosen, [root] if !root.follow_links)
            && self.scans.iter().all(|scan| !scan.resumed)
            && count(&self.handle.changed_during_scan) == 0
            && count(&self.handle.errors) == 0;
        Ok(is_hashed && self.holds_only_own_files()?)
    }

    /// Whether all files of the catalog were found by this scan: there were none before, and no other scan has added
    /// any. The files of this scan are already written, so of two concurrent scans at least one sees the other's.
    pub(super) fn holds_only_own_files(&self) -> Result<bool> {
        let mut only_own = !self.had_files;
        for root in self.store.roots().list()? {
            let is_own = self.chosen.iter().any(|own| own.id == root.id);
            only_own &= is_own || !self.store.catalog().has_files(root.id)?;
        }
        Ok(only_own)
    }

    fn open_roots(&mut self) {
        let mut open_roots = OpenRoots::default();
        for root in self.all.iter().filter(|root| !self.absent.contains(&root.id)).collect::<Vec<_>>() {
            let walked = self.walked.get(&root.id).cloned();
            let Some(folder) = walked.or_else(|| open_if_reachable(self.store, root).map(Arc::new)) else {
                tracing::info!(root = %display_path(&root.path), "root cannot be reached; its files are not read");
                self.absent.insert(root.id);
                continue;
            };
            let is_scanned = self.chosen.iter().any(|chosen| chosen.id == root.id);
            open_roots.insert(root.id, OpenRoot { root: root.clone(), folder, is_scanned });
        }
        self.open_roots = Arc::new(open_roots);
    }

    /// Computes the totals again if files have changed since the plan was made.
    pub(super) fn update_totals(&mut self) -> Result<()> {
        if self.handle.changed_during_scan.load(Ordering::Relaxed) > 0 {
            let totals = self.store.catalog().totals()?.into_iter();
            self.totals = totals.map(|(root, files, bytes)| (root, RootTotals { files, bytes })).collect();
        }
        Ok(())
    }

    /// Whether a query of all files continues: until the scan is cancelled. Renews the heartbeat meanwhile.
    fn proceed(&self) -> ControlFlow<()> {
        // Reading the clock for each file would take a noticeable part of the query.
        const FILES_PER_CHECK: u32 = 1_024;
        self.files_read.set(self.files_read.get().wrapping_add(1));
        if self.files_read.get().is_multiple_of(FILES_PER_CHECK) {
            self.renew_heartbeat();
        }
        if self.handle.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn renew_heartbeat(&self) {
        if self.last_heartbeat.get().elapsed() >= HEARTBEAT_INTERVAL {
            self.last_heartbeat.set(Instant::now());
            if let Err(error) = self.store.scans().heartbeat(self.scan_ids(), &process::tag()) {
                self.queue.fail(error.into());
            }
        }
    }

    pub(super) fn pool(&self, name: &str) -> Result<Pool> {
        let builder = Pool::builder().name(name).workers(self.workers).queue_capacity(self.workers * 10);
        builder.build().map_err(|error| Error::System(error.to_string()))
    }

    /// Waits until the pool is idle or the scan is cancelled.
    pub(super) fn wait(&self, pool: &Pool) {
        while !pool.wait_idle_until(self.handle.token(), HEARTBEAT_INTERVAL) && !self.handle.is_cancelled() {
            self.renew_heartbeat();
        }
    }

    /// Waits until the tasks of the pool have ended, and returns their first error. After a cancellation, waits up to
    /// `SHUTDOWN_TIMEOUT`.
    pub(super) fn finish(&self, pool: &Pool) -> Result<()> {
        self.wait(pool);
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
