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
use gristmill_store::scans::Scan;
use gristmill_store::{Store, display_path, process};

use super::by_size::{self, RootTotals};
use super::candidates::{HashRule, PlanRequest};
use super::catalog_queue::CatalogQueue;
use super::early::EarlyStages;
use super::planned::{OpenRoot, OpenRoots};
use super::reader::Reader;
use super::{ScanMode, ScanOptions, comparison_name, contents, groups, samples, walk};
use crate::error::{Error, Result};
use crate::named::{self, NamesOfRoot};
use crate::progress::{Counters, MAX_SAMPLES, ScanHandle, ScanPhase, ScanProgress, add};
use crate::roots::open_if_reachable;
use crate::summary::ScanSummary;
use crate::sys::Folder;

/// Time that a cancelled scan waits for its workers. Of the five seconds for a cancellation, the rest is left for
/// writing the results.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(3_500);

/// Interval at which the heartbeat of the scan is written.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Reason why the files of a root are not read by a scan that does not walk the whole root.
pub(super) const UNREACHABLE: &str = "cannot be reached: its folder is missing, or empty although it had files, or on another \
    disk than at its last scan. Is its disk mounted?";

/// Rows of a query of all files between two checks of the heartbeat. Reading the clock for each row would take a
/// noticeable part of the query.
const FILES_PER_CHECK: u32 = 1_024;

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
    /// Names of the roots of which only these files are scanned.
    pub(super) named: HashMap<i64, Arc<NamesOfRoot>>,
    /// Whether the catalog had files before the scan.
    pub(super) had_files: bool,
    /// Row ids of roots that cannot be reached.
    pub(super) absent: HashSet<i64>,
    pub(super) open_roots: Arc<OpenRoots>,
    /// Folders of the roots that were walked. They stay open, so that their filesystems cannot be unmounted.
    pub(super) walked: HashMap<i64, Arc<Folder>>,
    /// Hashes new files during the walk, if the scan walks and reads.
    pub(super) early: Option<Arc<EarlyStages>>,
    /// Whether nothing has changed since the last full comparison.
    pub(super) unchanged: bool,
    pub(super) summary: ScanSummary,
    pub(super) totals: HashMap<i64, RootTotals>,
    /// Time when the scan noticed that it was cancelled.
    pub(super) cancelled_at: OnceCell<Instant>,
    heartbeat_interval: Duration,
    last_heartbeat: Cell<Instant>,
    /// Number of rows that queries of all files have read.
    files_read: Cell<u32>,
}

impl<'a> ScanRun<'a> {
    /// Prepares a scan of the roots `chosen` among `all`, for which `scans` have begun.
    pub(super) fn new(
        store: &'a Store,
        options: &'a ScanOptions,
        handle: &'a Arc<ScanHandle>,
        (all, chosen): (&'a [Root], &'a [Root]),
        scans: &'a [Scan],
    ) -> Self {
        let workers = options.workers.unwrap_or_else(default_workers).max(1);
        handle.workers.store(workers as u64, Ordering::Relaxed);
        ScanRun {
            store,
            options,
            handle,
            workers,
            all,
            chosen,
            scans,
            queue: Arc::new(CatalogQueue::new(store, handle, options.every_file)),
            reader: Arc::new(Reader::new(handle.clone(), options.io_limit, workers)),
            named: HashMap::new(),
            had_files: true,
            absent: HashSet::new(),
            open_roots: Arc::default(),
            walked: HashMap::new(),
            early: None,
            unchanged: false,
            summary: ScanSummary::default(),
            totals: HashMap::new(),
            cancelled_at: OnceCell::new(),
            heartbeat_interval: HEARTBEAT_INTERVAL,
            last_heartbeat: Cell::new(Instant::now()),
            files_read: Cell::new(0),
        }
    }

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
        std::thread::scope(|scope| {
            if self.handle.counters.new.load(Ordering::Relaxed) > 0 {
                // Most rows are written; the later stages leave a core idle. If it fails, closing the store does it.
                let store = self.store;
                scope.spawn(move || store.wal().checkpoint_passive());
            }
            self.run_later_stages()
        })
    }

    fn run_later_stages(&mut self) -> Result<()> {
        if self.is_fully_hashed()?
            && let Some(early) = self.early.clone()
        {
            let large_files = early.take_large_files();
            if !large_files.is_empty() {
                let begun = Instant::now();
                contents::read_new(self, &early, large_files)?;
                self.summary.seconds.contents = begun.elapsed().as_secs_f64();
            }
        }
        // A large file that could not be read is left to the plan.
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
        let mut same_size = by_size::find(self.store, &self.plan_request()?, || self.proceed())?;
        self.totals = std::mem::take(&mut same_size.roots);
        self.summary.seconds.plan = begun.elapsed().as_secs_f64();
        if !self.options.mode.reads() {
            // Returned files, or files read by a cancelled scan, may have hashes that other files have too.
            return match self.store.scans().is_fully_compared(&self.scan_ids())? {
                true => Ok(()),
                false => same_size.algorithms.iter().try_for_each(|algorithm| groups::mark_hashes(self, *algorithm)),
            };
        }
        self.count_tried(&same_size.tried)?;
        let has_files = same_size.files > 0;
        let begun = Instant::now();
        samples::read(self, same_size.plan)?;
        self.summary.seconds.samples = begun.elapsed().as_secs_f64();
        if has_files && !self.handle.is_cancelled() {
            let begun = Instant::now();
            // Otherwise the first file of each content would be read again.
            self.queue.share_first_files();
            self.queue.flush();
            let remembered = self.queue.remembered_rows();
            let plan = contents::find(self.store, &self.plan_request()?, &remembered, || self.proceed())?;
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

    fn plan_request(&self) -> Result<PlanRequest> {
        let mut named_failed = HashMap::new();
        for (root, names) in &self.named {
            let failed = self.store.catalog().failed_files(*root)?.into_iter();
            let failed = failed.filter(|(_, path)| named::contains(names, path)).map(|(id, _)| id);
            named_failed.insert(*root, failed.collect::<HashSet<i64>>());
        }
        let roots = self.chosen.iter().map(|root| root.id).collect();
        let resumed = self.scans.iter().filter(|scan| scan.resumed);
        let resumed_from = resumed.map(|scan| (scan.root, scan.started_at)).collect();
        let open_roots = self.open_roots.clone();
        Ok(PlanRequest { rule: self.rule(), roots, named_failed, resumed_from, open_roots })
    }

    /// Counts files that could not be read before the scan was resumed: they are errors of the whole scan.
    fn count_tried(&self, ids: &[i64]) -> Result<()> {
        add(&self.handle.errors, ids.len() as u64);
        for file in self.store.catalog().files_at(ids.get(..MAX_SAMPLES).unwrap_or(ids))? {
            if let Some(root) = self.chosen.iter().find(|root| root.id == file.root) {
                let path = root.path.join(&file.path);
                self.handle.counters.record_error(&path, "could not be read before the scan was resumed");
            }
        }
        Ok(())
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
        self.unchanged = self.store.scans().is_compared_with(&name, &self.scan_ids())?;
        self.totals = totals;
        Ok(self.unchanged)
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

    /// Opens all roots. One that cannot be reached is an error only if this scan covers it.
    fn open_roots(&mut self) {
        let mut open_roots = OpenRoots::default();
        for root in self.all.iter().filter(|root| !self.absent.contains(&root.id)).collect::<Vec<_>>() {
            let is_scanned = self.chosen.iter().any(|chosen| chosen.id == root.id);
            let walked = self.walked.get(&root.id).cloned();
            let Some(folder) = walked.or_else(|| open_if_reachable(self.store, root).map(Arc::new)) else {
                if is_scanned {
                    add(&self.handle.errors, 1);
                    add(&self.handle.counters.failed_roots, 1);
                    self.handle.counters.record_error(&root.path, UNREACHABLE);
                } else {
                    tracing::info!(root = %display_path(&root.path), "root cannot be reached; its files are not read");
                }
                self.absent.insert(root.id);
                continue;
            };
            let names = self.named.get(&root.id).cloned();
            open_roots.insert(root.id, OpenRoot { root: root.clone(), folder, is_scanned, names });
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
    pub(super) fn proceed(&self) -> ControlFlow<()> {
        self.files_read.set(self.files_read.get().wrapping_add(1));
        if self.files_read.get().is_multiple_of(FILES_PER_CHECK) {
            self.renew_heartbeat();
        }
        if self.handle.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Renews the heartbeat if the interval has passed. Stages that take long call this repeatedly: without a heartbeat
    /// the root could be removed during the scan.
    pub(super) fn renew_heartbeat(&self) {
        if self.last_heartbeat.get().elapsed() >= self.heartbeat_interval {
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

    /// Waits until the pool is idle or the scan is cancelled. Renews the heartbeat, also in a sequence of short waits.
    pub(super) fn wait(&self, pool: &Pool) {
        self.renew_heartbeat();
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

/// Four workers per core, 16 to 64: a worker that waits for a disk needs no core. On a cold tree of small files, 16
/// workers read three times as fast as 2; on a warm tree they cost nothing.
fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores * 4).clamp(16, 64)
}

/// Converts the error of a task. An error of the store or of this crate is kept, because it states whether the user can
/// fix the cause.
fn scan_error(failure: &Failure) -> Error {
    let known_error = match failure.error.cause() {
        Cause::Error(error) => {
            let store_error = error.downcast_ref::<gristmill_store::Error>().cloned().map(Error::Store);
            store_error.or_else(|| error.downcast_ref::<Error>().cloned())
        }
        _ => None,
    };
    known_error.unwrap_or_else(|| Error::System(failure.error.to_string()))
}

#[cfg(test)]
pub(super) mod tests {
    use gristmill_pool::clock::ManualClock;
    use gristmill_pool::{TaskError, TaskResult};
    use gristmill_store::catalog::{Algorithm, Batch, Digest, FileHash, FileRow, ReadResult};
    use gristmill_store::scans::LEASE;

    use super::*;
    use crate::read::MAX_SMALL_SIZE;
    use crate::scan::begin_scans;
    use crate::scan::candidates::Plan;

    /// Calls `body` with a scan that has begun, whose heartbeat is due at every check, and with the clock of its store.
    /// The root follows links and has the files `a` and `b`, which are equal and large.
    pub(in crate::scan) fn with_run(mode: ScanMode, body: impl FnOnce(ScanRun<'_>, &ManualClock)) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = std::fs::canonicalize(folder.path()).expect("a path").join("tree");
        std::fs::create_dir(&path).expect("a folder");
        for name in ["a", "b"] {
            std::fs::write(path.join(name), vec![1; MAX_SMALL_SIZE as usize + 1]).expect("a file");
        }
        let clock = ManualClock::at(0);
        let store = Store::options().clock(clock.clone()).open(folder.path().join("t.db")).expect("a store");
        let root = store.roots().register(&path).expect("a root");
        store.roots().follow_links(root.id, true).expect("changed");
        let roots = store.roots().list().expect("roots");
        let (options, handle) = (ScanOptions { mode, ..ScanOptions::default() }, Arc::default());
        let scans = begin_scans(&store, &roots, &HashMap::new(), &options).expect("a scan");
        let mut run = ScanRun::new(&store, &options, &handle, (&roots, &roots), &scans);
        run.heartbeat_interval = Duration::ZERO;
        run.files_read.set(FILES_PER_CHECK - 1);
        body(run, &clock);
    }

    /// Checks that `stage` renews the heartbeat: a root whose scan has none for `LEASE` can be removed.
    #[track_caller]
    pub(in crate::scan) fn assert_renews_heartbeat(
        run: &mut ScanRun<'_>,
        clock: &ManualClock,
        stage: impl FnOnce(&mut ScanRun<'_>),
    ) {
        clock.advance(LEASE * 2);
        stage(run);
        let removed = run.store.roots().remove(run.chosen[0].id);
        assert!(matches!(removed, Err(gristmill_store::Error::Conflict(_))), "{removed:?}");
    }

    #[test]
    fn error_of_the_store_in_a_task_keeps_its_type() {
        with_run(ScanMode::Walk, |run, _| {
            let error = gristmill_store::Error::Conflict("held".into());
            for task_error in [TaskError::from(error.clone()), TaskError::from(Error::Store(error.clone()))] {
                let pool = run.pool("tasks").expect("a pool");
                pool.submit(|_| TaskResult::<()>::Err(task_error)).expect("submitted");
                assert_eq!(run.finish(&pool), Err(Error::Store(error.clone())));
            }
        });
    }

    fn rows(run: &ScanRun<'_>) -> Vec<FileRow> {
        let mut rows = Vec::new();
        let collect_row = |row: &FileRow| {
            rows.push(row.clone());
            ControlFlow::Continue(())
        };
        run.store.catalog().for_each_file(collect_row).expect("rows");
        rows
    }

    #[test]
    fn heartbeat_is_renewed_while_contents_are_compared() {
        with_run(ScanMode::Walk, |mut run, clock| {
            walk::run(&mut run).expect("a walk");
            let result = || ReadResult::Content(Digest::shared(Algorithm::Blake3, vec![1; 32]));
            let hashes = rows(&run).iter().map(|row| FileHash::of_row(row.id, row.stat, result())).collect();
            run.store.catalog().write(Batch { hashes, ..Batch::default() }).expect("written");
            assert_renews_heartbeat(&mut run, clock, |run| groups::mark(run).expect("marked"));
        });
    }

    #[test]
    fn heartbeat_is_renewed_while_the_rows_of_large_files_are_fetched() {
        with_run(ScanMode::Walk, |mut run, clock| {
            walk::run(&mut run).expect("a walk");
            run.open_roots();
            // Without ids the rows are fetched, but no file is read.
            assert_renews_heartbeat(&mut run, clock, |run| contents::read(run, Plan::default()).expect("read"));
        });
    }
}
