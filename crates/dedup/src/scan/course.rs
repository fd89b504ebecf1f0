//! A scan under way: its phases, one after the other.
//!
//! Owns what each phase needs, and when there is nothing to do. Each begins from what is committed.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Failure, Pool, Report};
use gristmill_store::Store;
use gristmill_store::catalog::Algorithm;
use gristmill_store::roots::Root;
use gristmill_store::scans::{Duplicates, Scan};

use super::{ScanMode, ScanOptions, settled_as};
use crate::eager::Eager;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::plan::{self, Holds, Plan, Wish};
use crate::progress::{ScanHandle, ScanPhase, ScanProgress, add};
use crate::reader::{Budget, Reader, Round, Tops};
use crate::scribe::{Note, Scribe};
use crate::summary::ScanSummary;
use crate::sys::Folder;
use crate::walk::{Job, Manner, Tally, Walk};
use gristmill_store::display_path;

/// How long a scan that was told to stop waits for its workers: the rest of five seconds is for what was found.
const GRACE: Duration = Duration::from_millis(3_500);

/// So many files are made part of groups by one note.
const SHARED_AT_ONCE: usize = 65_536;

/// How long after it was stopped a scan may group files, and how many files at once.
const SHARE_TIME: Duration = Duration::from_secs(2);
const SHARED_WHEN_STOPPED: usize = 4_096;

/// A scan under way.
pub(super) struct Course<'a> {
    pub(super) store: &'a Store,
    pub(super) options: &'a ScanOptions,
    pub(super) control: &'a Arc<ScanHandle>,
    pub(super) workers: usize,
    pub(super) all: &'a [Root],
    pub(super) chosen: &'a [Root],
    pub(super) scans: &'a [Scan],
    pub(super) scribe: &'a Scribe,
    pub(super) tally: Arc<Tally>,
    pub(super) budget: Arc<Budget>,
    /// Whether the catalog knew any file before.
    pub(super) had_files: bool,
    /// Roots that cannot be reached, and those that can.
    pub(super) absent: HashSet<i64>,
    pub(super) open: HashSet<i64>,
    /// Roots that were walked.
    pub(super) walked: HashMap<i64, WalkedRoot>,
    /// What reads while walking.
    pub(super) eager: Option<Arc<Eager>>,
    /// The duplicates there were, and are still.
    pub(super) settled: Option<Duplicates>,
    pub(super) summary: ScanSummary,
    /// What every root holds.
    pub(super) holds: HashMap<i64, Holds>,
    /// When workers were asked to stop.
    pub(super) stopped_at: OnceCell<Instant>,
}

/// A root that was walked: its folder, which stays open, and the identity of its filesystem.
pub(super) struct WalkedRoot {
    folder: Arc<Folder>,
    pub(super) filesystem: Option<String>,
}

/// What a course leaves.
pub(super) struct End {
    pub(super) summary: ScanSummary,
    pub(super) tally: Arc<Tally>,
    pub(super) holds: HashMap<i64, Holds>,
    pub(super) absent: HashSet<i64>,
    pub(super) walked: HashMap<i64, WalkedRoot>,
    pub(super) settled: Option<Duplicates>,
}

impl Course<'_> {
    pub(super) fn end(self) -> End {
        let Course { summary, tally, holds, absent, walked, settled, .. } = self;
        End { summary, tally, holds, absent, walked, settled }
    }

    pub(super) fn run(&mut self, manner: &Arc<Manner>) -> Result<()> {
        if self.options.mode.walks() {
            let begun = Instant::now();
            let is_written = self.walk(manner)?;
            self.summary.seconds.walk = begun.elapsed().as_secs_f64();
            if !is_written || self.control.is_cancelled() || self.is_settled()? {
                return Ok(());
            }
            for scan in self.scans.iter().filter(|scan| !self.absent.contains(&scan.root)) {
                self.store.scans().mark_walked(scan.id)?;
            }
        }
        if self.has_read_all()? {
            let ScanProgress { files, bytes, .. } = self.control.progress();
            self.holds = self.chosen.iter().map(|root| (root.id, Holds { files, bytes })).collect();
            return self.share();
        }
        self.control.enter(ScanPhase::Planning);
        // Written while the rest is planned.
        let _ = self.scribe.notes.send(Note::ShareFirsts);
        let begun = Instant::now();
        let tops = self.tops();
        let mut first = plan::first(self.store, &self.wish(), self.control)?;
        self.holds = std::mem::take(&mut first.roots);
        self.summary.seconds.plan = begun.elapsed().as_secs_f64();
        if self.options.mode.reads() {
            let begun = Instant::now();
            self.control.enter(ScanPhase::Samples);
            let large = first.large;
            self.read(first, Round::First, &tops)?;
            self.summary.seconds.edges = begun.elapsed().as_secs_f64();
            if self.control.is_cancelled() {
                return Ok(());
            }
            if large == 0 {
                return self.share();
            }
            let begun = Instant::now();
            let second = plan::second(self.store, &self.wish(), self.control)?;
            self.summary.seconds.plan += begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            self.control.enter(ScanPhase::Contents);
            self.read(second, Round::Second, &tops)?;
            self.summary.seconds.contents = begun.elapsed().as_secs_f64();
            return self.share();
        }
        // Files that are back, or that a stopped scan has read, may have hashes that others have, too.
        let own: Vec<i64> = self.scans.iter().map(|scan| scan.id).collect();
        match self.store.scans().is_fully_compared(&own)? {
            true => Ok(()),
            false => first.algorithms.iter().try_for_each(|algorithm| self.share_hashes(*algorithm)),
        }
    }

    fn wish(&self) -> Wish {
        let ScanOptions { algorithm, every_file: every, .. } = *self.options;
        let roots = self.chosen.iter().map(|root| root.id).collect();
        let since = self.scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
        Wish { algorithm, every, roots, since, open: self.open.clone() }
    }

    /// Whether nothing has changed since a scan that read everything.
    fn is_settled(&mut self) -> Result<bool> {
        let Tally { new, changed, returned, included, unsure, .. } = &*self.tally;
        let Scribe { missing, excluded, .. } = self.scribe;
        let same = [new, changed, returned, included, unsure, excluded, missing, &self.control.errors]
            .iter()
            .all(|counter| counter.load(Ordering::Relaxed) == 0);
        let own: Vec<i64> = self.scans.iter().map(|scan| scan.id).collect();
        let counted = self.chosen.iter().map(|root| {
            let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            Some((root.id, Holds { files: number(root.files)?, bytes: number(root.bytes)? }))
        });
        let holds = counted.collect::<Option<HashMap<_, _>>>();
        let (true, Some(holds)) =
            (same && self.options.mode == ScanMode::All && self.absent.is_empty(), holds)
        else {
            return Ok(false);
        };
        self.settled = self.store.scans().last_full_comparison(&settled_as(self.options), &own)?;
        self.holds = holds;
        Ok(self.settled.is_some())
    }

    /// Whether there is nothing left that a plan could find: all files are new, of one root, and were compared while they
    /// were walked.
    fn has_read_all(&self) -> Result<bool> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_all = self.eager.as_ref().is_some_and(|eager| eager.is_complete())
            && matches!(self.chosen, [root] if !root.follow_links)
            && self.scans.iter().all(|scan| !scan.resumed)
            && count(&self.control.surprises) == 0
            && count(&self.control.errors) == 0;
        Ok(is_all && self.is_alone()?)
    }

    /// Whether there were no files before, and nobody else has brought any since: then all there are went through this
    /// scan. What it found is written, so of two scans that ask this one sees the other's.
    fn is_alone(&self) -> Result<bool> {
        let mut alone = !self.had_files;
        for root in self.store.roots().list()? {
            let is_own = self.chosen.iter().any(|own| own.id == root.id);
            alone &= is_own || !self.store.catalog().has_files(root.id)?;
        }
        Ok(alone)
    }

    /// False when what it found could not be written.
    fn walk(&mut self, manner: &Arc<Manner>) -> Result<bool> {
        self.control.enter(ScanPhase::Walking);
        let roots = Arc::new(self.all.iter().map(|root| root.path.clone()).collect::<Vec<_>>());
        let ScanOptions { mode, algorithm, every_file, .. } = *self.options;
        let (control, budget) = (self.control.clone(), self.budget.clone());
        let eager = (mode == ScanMode::All)
            .then(|| Arc::new(Eager::new((algorithm, every_file), control, budget, self.workers)));
        self.eager.clone_from(&eager);
        let listings = Arc::new(AtomicU64::new(0));
        let scanned: Vec<_> = self.chosen.iter().map(|root| root.path.clone()).collect();
        let mut walks = Vec::new();
        for (root, scan) in self.chosen.iter().zip(self.scans) {
            let walk = Walk::new(Job {
                store: self.store.clone(),
                notes: self.scribe.notes.clone(),
                control: self.control.clone(),
                manner: manner.within(&self.options.filter, &root.path, &scanned)?,
                root: root.clone(),
                scan: scan.id,
                roots: roots.clone(),
                tally: self.tally.clone(),
                eager: eager.clone(),
                listings: listings.clone(),
            });
            match walk {
                Ok(walk) => {
                    let root = WalkedRoot { folder: walk.top().clone(), filesystem: walk.filesystem() };
                    self.walked.insert(scan.root, root);
                    walks.push((walk, scan));
                }
                // A disk that is not there costs its own root, not the others.
                Err(error) if self.chosen.len() > 1 => {
                    add(&self.control.errors, 1);
                    add(&self.tally.failed_roots, 1);
                    self.absent.insert(root.id);
                    let mut errors = self.tally.errors.lock().unwrap_or_else(PoisonError::into_inner);
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
            while !self.control.is_cancelled() && walk.has_links() {
                let pool = self.pool("links")?;
                walk.follow_next(&pool);
                self.wait(&pool)?;
            }
        }
        for (_, scan) in walks.iter().filter(|(walk, _)| walk.has_failed()) {
            self.walked.remove(&scan.root);
            self.absent.insert(scan.root);
        }
        let written = self.scribe.flush();
        let is_whole = self.options.filter == Filter::default()
            && !self.options.one_file_system
            && self.control.errors.load(Ordering::Relaxed) == 0;
        if written && is_whole && !self.control.is_cancelled() {
            for (_, scan) in &walks {
                let gone = self.store.catalog().unseen(scan.root)?;
                add(&self.scribe.missing, gone as u64);
            }
        }
        Ok(written)
    }

    /// Makes files of the same content part of their group. At the end and in the order of rows: done for each as it is
    /// found, the same pages of the index would be written again with every commit.
    fn share(&mut self) -> Result<()> {
        if self.control.is_cancelled() {
            return Ok(());
        }
        let begun = Instant::now();
        // Its answer comes with the next flush.
        let _ = self.scribe.notes.send(Note::ShareFirsts);
        self.scribe.flush();
        // What this scan read was compared as it came.
        if self.scribe.compares_all() && self.is_alone()? {
            self.summary.seconds.groups = begun.elapsed().as_secs_f64();
            return Ok(());
        }
        self.share_hashes(self.options.algorithm)?;
        self.summary.seconds.groups = begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Compares all hashes of an algorithm.
    fn share_hashes(&self, algorithm: Algorithm) -> Result<()> {
        let every = self.options.every_file;
        let is_stopped = || self.control.is_cancelled();
        for ids in plan::to_share(self.store, (algorithm, every), is_stopped)?.chunks(SHARED_AT_ONCE) {
            if self.control.is_cancelled() || self.scribe.notes.send(Note::Shared(ids.to_vec())).is_err() {
                break;
            }
        }
        self.scribe.flush();
        Ok(())
    }

    /// Makes files that a scan has read before it was stopped part of their groups, as far as there is time.
    pub(super) fn share_when_stopped(&self) -> Result<()> {
        let is_any_read = self.control.read.load(Ordering::Relaxed) > 0;
        let until = self.stopped_at.get().copied().unwrap_or_else(Instant::now) + SHARE_TIME;
        let is_over = || Instant::now() >= until;
        if !is_any_read || is_over() || !self.scribe.flush() {
            return Ok(());
        }
        let ScanOptions { algorithm, every_file: every, .. } = *self.options;
        for ids in plan::to_share(self.store, (algorithm, every), is_over)?.chunks(SHARED_WHEN_STOPPED) {
            let is_sent = !is_over() && self.scribe.notes.send(Note::Shared(ids.to_vec())).is_ok();
            if !is_sent || !self.scribe.flush() {
                break;
            }
        }
        Ok(())
    }

    fn tops(&mut self) -> Arc<Tops> {
        let scanned = self.chosen.iter().map(|root| root.id).collect();
        let walked = self.walked.iter().map(|(id, root)| (*id, root.folder.clone())).collect();
        // What could not be walked is not read either.
        let roots = self.all.iter().filter(|root| !self.absent.contains(&root.id));
        let (tops, absent) = Tops::open(self.store, roots, &scanned, &walked);
        for root in absent {
            tracing::info!(root = %display_path(&root.path), "cannot be reached; its files are not read");
            self.absent.insert(root.id);
        }
        self.open = tops.ids();
        Arc::new(tops)
    }

    /// Reads what is planned.
    fn read(&mut self, mut plan: Plan, round: Round, tops: &Arc<Tops>) -> Result<()> {
        self.summary.rehashed_files += plan.again;
        add(&self.control.to_read, plan.ids.len() as u64);
        add(&self.control.bytes_to_read, plan.bytes);
        if plan.ids.is_empty() {
            return Ok(());
        }
        let reader = Arc::new(Reader {
            store: self.store.clone(),
            notes: self.scribe.notes.clone(),
            control: self.control.clone(),
            algorithm: self.options.algorithm,
            round,
            links: std::mem::take(&mut plan.links),
            tops: tops.clone(),
            budget: self.budget.clone(),
            tally: self.tally.clone(),
        });
        let pool = self.pool("read")?;
        let submitted = reader.submit(&pool, &plan);
        self.wait(&pool)?;
        submitted?;
        // The next plan is made from what is written.
        self.scribe.flush();
        if self.control.surprises.load(Ordering::Relaxed) > 0 {
            let totals = self.store.catalog().totals()?.into_iter();
            self.holds = totals.map(|(root, files, bytes)| (root, Holds { files, bytes })).collect();
        }
        Ok(())
    }

    fn pool(&self, name: &str) -> Result<Pool> {
        let builder = Pool::builder().name(name).workers(self.workers).queue_capacity(self.workers * 10);
        builder.build().map_err(|error| Error::System(error.to_string()))
    }

    /// Waits until all is done; not for long once the scan is told to stop.
    fn wait(&self, pool: &Pool) -> Result<()> {
        pool.close();
        let mut nap = Duration::from_micros(50);
        while !pool.is_finished() && !self.control.is_cancelled() {
            std::thread::park_timeout(nap);
            // An unchanged folder takes less than the longest nap.
            nap = (nap * 2).min(Duration::from_millis(2));
        }
        if self.control.is_cancelled() {
            let _ = self.stopped_at.set(Instant::now());
        }
        let report: Report = if self.control.is_cancelled() { pool.shutdown(GRACE) } else { pool.join() };
        for task in &report.abandoned {
            tracing::warn!(%task, "did not stop in time and is left behind");
        }
        // Told to stop, all say that they did.
        let told = |failure: &&Failure| {
            self.control.is_cancelled() && matches!(failure.error.cause(), Cause::Cancelled)
        };
        match report.failures.iter().find(|failure| !told(failure)) {
            Some(failure) => Err(cause_of(failure)),
            None => Ok(()),
        }
    }
}

/// What the store said is kept as it is: whose fault it is, and what to do about it, depends on it.
fn cause_of(failure: &Failure) -> Error {
    let of_store = match failure.error.cause() {
        Cause::Error(error) => error.downcast_ref::<gristmill_store::Error>(),
        _ => None,
    };
    of_store.map_or_else(|| Error::System(failure.error.to_string()), |error| Error::Store(error.clone()))
}
