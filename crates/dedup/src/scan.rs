//! A scan: walk, plan, read, say what was found.
//!
//! Owns the order of the phases, and what a scan that is stopped or killed leaves behind. The catalog is the only
//! state: each phase begins from what is committed there, so going on after a kill is the same as going on.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use gristmill_pool::error::Cause;
use gristmill_pool::{Failure, Pool, Report};
use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, Group, GroupQuery};
use gristmill_store::roots::Root;
use gristmill_store::scans::{Duplicates, Scan, Seen, Wanted};
use serde::Serialize;

use crate::eager::Eager;
use crate::error::{Error, Result};
use crate::filter::{Filter, Sieve};
use crate::plan::{self, Holds, Plan, Wish};
use crate::progress::{Control, Phase, add};
use crate::reader::{Budget, Reader, Round, Tops};
use crate::scribe::{Note, Scribe};
use crate::sys;
use crate::walk::{Job, Manner, Tally, Walk};

/// How long a scan that was told to stop waits for its workers: the rest of five seconds is for what was found.
const GRACE: Duration = Duration::from_millis(3_500);

/// So many files are made part of groups by one note.
const SHARED_AT_ONCE: usize = 65_536;

/// How a scan is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it does.
    pub mode: Mode,
    /// How contents are hashed.
    pub algorithm: Algorithm,
    /// Hash all files, not only those that can be duplicates.
    pub every_file: bool,
    /// Begin anew, whatever an earlier scan has left.
    pub restart: bool,
    /// Stay on the root's own file system.
    pub one_file_system: bool,
    /// Take an empty root for one.
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

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::All,
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
pub enum Mode {
    /// Walks and reads.
    All,
    /// Walks only: folders and files are recorded, nothing is read.
    Folders,
    /// Reads only: what the catalog has and has not been read.
    Files,
    /// Looks whether what is known is still there as it was; finds nothing new, reads nothing.
    Refresh,
}

impl Mode {
    fn walks(self) -> bool {
        self != Mode::Files
    }

    fn reads(self) -> bool {
        matches!(self, Mode::All | Mode::Files)
    }
}

/// What a scan did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The roots, by path.
    pub roots: Vec<PathBuf>,
    /// It was told to stop; the next one goes on from here.
    pub interrupted: bool,
    /// It went on with one that was stopped or killed.
    pub resumed: bool,
    /// Folders there are, the roots included.
    pub folders: u64,
    /// Of these, walked now: not by a scan that was stopped before.
    pub walked_folders: u64,
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
    /// Files that are there and left out by this scan's filters, and were not by an earlier one's.
    pub forgotten_files: u64,
    /// Links passed over, or followed if the root says so.
    pub links: u64,
    /// Pipes, sockets and devices passed over.
    pub special_files: u64,
    /// Files read to their end.
    pub read_files: u64,
    /// Large files of which a few blocks were read, some of them before they were read to their end.
    pub probed_files: u64,
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
    /// What could be had back.
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
    /// Looking at folders.
    pub walk: f64,
    /// Finding out what to read.
    pub plan: f64,
    /// Reading small files, and edges of large ones.
    pub edges: f64,
    /// Reading large files through.
    pub contents: f64,
    /// Putting duplicates together.
    pub groups: f64,
    /// All of it.
    pub total: f64,
}

/// What makes a scan the same as another: only then does it go on.
#[derive(Serialize)]
struct Settings<'a> {
    mode: Mode,
    follow_links: bool,
    one_file_system: bool,
    filter: &'a Filter,
}

/// Scans roots. Roots inside them are scanned, too, each by itself.
pub fn scan(store: &Store, roots: &[Root], options: &Options, control: &Arc<Control>) -> Result<Summary> {
    let started = Instant::now();
    let all = store.roots().list()?;
    let within = |root: &&Root| roots.iter().any(|wanted| root.path.starts_with(&wanted.path));
    let chosen: Vec<Root> = all.iter().filter(within).cloned().collect();
    let manner = Arc::new(Manner {
        sieve: Sieve::new(&options.filter)?,
        one_file_system: options.one_file_system,
        only_known: options.mode == Mode::Refresh,
        allow_empty: options.allow_empty,
    });
    let workers = options.workers.unwrap_or_else(default_workers).max(1);
    control.workers.store(workers as u64, Ordering::Relaxed);
    let mut had_files = false;
    for root in &all {
        had_files |= store.catalog().has_files(root.id)?;
    }
    let scans = begin(store, &chosen, options)?;
    let ids = scans.iter().map(|scan| scan.id).collect();
    let scribe = Scribe::start(store, control, ids, sys::holder(), options.every_file)?;
    let mut course = Course {
        store,
        options,
        control,
        workers,
        all: &all,
        chosen: &chosen,
        scans: &scans,
        scribe: &scribe,
        tally: Arc::default(),
        budget: Arc::new(Budget::new(options.io_limit)),
        had_files,
        absent: HashSet::new(),
        open: HashSet::new(),
        settled: None,
        summary: Summary::default(),
        holds: HashMap::new(),
    };
    let run = course.run(&manner);
    let forgotten = scribe.forgotten.clone();
    let End { mut summary, tally, holds, absent, settled } = course.end();
    control.enter(Phase::Finishing);
    let ended = scribe.end().and_then(|removed| {
        // The scribe's own error is the cause of what others met, so it comes first.
        run?;
        summary.removed_files = removed;
        summary.forgotten_files = forgotten.load(Ordering::Relaxed);
        summary.roots = chosen.iter().map(|root| root.path.clone()).collect();
        summary.resumed = scans.iter().any(|scan| scan.resumed);
        summary.interrupted = control.is_stopped();
        count(&mut summary, control, &tally);
        if summary.interrupted {
            return Ok(());
        }
        let duplicates = find(store, options, settled, &mut summary)?;
        let is_whole = summary.errors == 0
            && !summary.resumed
            && absent.is_empty()
            && control.surprises.load(Ordering::Relaxed) == 0;
        let name = settled_as(options);
        let settled = duplicates.filter(|_| is_whole).map(|duplicates| (name.as_str(), duplicates));
        let mut all = Seen::default();
        for scan in scans.iter().filter(|scan| !absent.contains(&scan.root)) {
            let seen = seen(store, scan, &holds)?;
            all.folders += seen.folders;
            all.files += seen.files;
            all.bytes += seen.bytes;
            store.scans().finish(scan, seen, settled)?;
        }
        if summary.resumed {
            // Not only what was left.
            (summary.folders, summary.files, summary.bytes) = (all.folders, all.files, all.bytes);
        }
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

/// What a scan that ended so has settled: later ones that ask for the same need not look again.
fn settled_as(options: &Options) -> String {
    let every = if options.every_file { ", every file" } else { "" };
    format!("{}{every}", options.algorithm.as_str())
}

fn count(summary: &mut Summary, control: &Control, tally: &Tally) {
    let progress = control.progress();
    summary.folders = progress.folders;
    summary.walked_folders = progress.folders;
    summary.files = progress.files;
    summary.bytes = progress.bytes;
    summary.read_files = control.read_through.load(Ordering::Relaxed);
    summary.probed_files = progress.read.saturating_sub(summary.read_files);
    summary.read_bytes = progress.bytes_read;
    summary.errors = progress.errors;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    summary.new_files = get(&tally.new);
    summary.changed_files = get(&tally.changed);
    summary.returned_files = get(&tally.returned);
    summary.failed_roots = get(&tally.failed_roots);
    summary.links = get(&tally.links);
    summary.special_files = get(&tally.special);
    summary.error_samples = std::mem::take(&mut tally.errors.lock().unwrap_or_else(PoisonError::into_inner));
}

/// The duplicates that there are now, unless they are what they were.
fn find(
    store: &Store,
    options: &Options,
    settled: Option<Duplicates>,
    summary: &mut Summary,
) -> Result<Option<Duplicates>> {
    if !options.mode.reads() {
        return Ok(None);
    }
    let begun = Instant::now();
    let duplicates = match settled {
        Some(settled) if options.top == 0 => settled,
        _ => {
            let query = GroupQuery { limit: options.top, ..GroupQuery::default() };
            let groups = std::thread::scope(|scope| {
                // Beside the search, because closing the store would do it after. It may fail: then that does.
                scope.spawn(|| store.wal().tidy());
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
fn begin(store: &Store, roots: &[Root], options: &Options) -> Result<Vec<Scan>> {
    let mut scans: Vec<Scan> = Vec::new();
    for root in roots {
        let settings = Settings {
            mode: options.mode,
            follow_links: root.follow_links,
            one_file_system: options.one_file_system,
            filter: &options.filter,
        };
        let settings = serde_json::to_string(&settings).map_err(|error| Error::System(error.to_string()))?;
        let wanted = Wanted {
            root: root.id,
            holder: sys::holder(),
            settings,
            restart: options.restart,
            alive: sys::is_alive,
        };
        match store.scans().begin(wanted) {
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
fn seen(store: &Store, scan: &Scan, holds: &HashMap<i64, Holds>) -> Result<Seen> {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let catalog = store.catalog();
    let (folders, unreadable) = catalog.count_folders(scan.root)?;
    let Holds { files, bytes } = holds.get(&scan.root).copied().unwrap_or_default();
    Ok(Seen {
        folders: number(folders),
        files,
        bytes,
        errors: number(unreadable) + number(catalog.count_failed(scan.root)?),
    })
}

/// A scan under way.
struct Course<'a> {
    store: &'a Store,
    options: &'a Options,
    control: &'a Arc<Control>,
    workers: usize,
    all: &'a [Root],
    chosen: &'a [Root],
    scans: &'a [Scan],
    scribe: &'a Scribe,
    tally: Arc<Tally>,
    budget: Arc<Budget>,
    /// Whether the catalog knew any file before.
    had_files: bool,
    /// Roots that could not be opened, and those that could.
    absent: HashSet<i64>,
    open: HashSet<i64>,
    /// The duplicates there were, and are still.
    settled: Option<Duplicates>,
    summary: Summary,
    /// What every root holds.
    holds: HashMap<i64, Holds>,
}

/// What a course leaves.
struct End {
    summary: Summary,
    tally: Arc<Tally>,
    holds: HashMap<i64, Holds>,
    absent: HashSet<i64>,
    settled: Option<Duplicates>,
}

impl Course<'_> {
    fn end(self) -> End {
        let Course { summary, tally, holds, absent, settled, .. } = self;
        End { summary, tally, holds, absent, settled }
    }

    fn run(&mut self, manner: &Arc<Manner>) -> Result<()> {
        if self.options.mode.walks() {
            let begun = Instant::now();
            self.walk(manner)?;
            self.summary.seconds.walk = begun.elapsed().as_secs_f64();
        }
        if self.control.is_stopped() || self.is_settled()? {
            return Ok(());
        }
        self.control.enter(Phase::Planning);
        // Written while the rest is planned.
        let _ = self.scribe.notes.send(Note::ShareFirsts);
        let begun = Instant::now();
        let tops = self.tops();
        let mut first = plan::first(self.store, &self.wish(), self.control)?;
        self.holds = std::mem::take(&mut first.roots);
        self.summary.seconds.plan = begun.elapsed().as_secs_f64();
        if self.options.mode.reads() {
            let begun = Instant::now();
            self.control.enter(Phase::Edges);
            let large = first.large;
            self.read(first, Round::First, &tops)?;
            self.summary.seconds.edges = begun.elapsed().as_secs_f64();
            if self.control.is_stopped() {
                return Ok(());
            }
            if large == 0 {
                return self.share();
            }
            let begun = Instant::now();
            let second = plan::second(self.store, &self.wish(), self.control)?;
            self.summary.seconds.plan += begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            self.control.enter(Phase::Contents);
            self.read(second, Round::Second, &tops)?;
            self.summary.seconds.contents = begun.elapsed().as_secs_f64();
            return self.share();
        }
        Ok(())
    }

    fn wish(&self) -> Wish {
        let Options { algorithm, every_file: every, .. } = *self.options;
        let roots = self.chosen.iter().map(|root| root.id).collect();
        let since = self.scans.iter().filter(|scan| scan.resumed).map(|scan| scan.started_at).min();
        Wish { algorithm, every, roots, since, open: self.open.clone() }
    }

    /// Whether nothing has changed since a scan that read everything.
    fn is_settled(&mut self) -> Result<bool> {
        let Tally { new, changed, returned, .. } = &*self.tally;
        let Scribe { missing, forgotten, .. } = self.scribe;
        let same = [new, changed, returned, forgotten, missing, &self.control.errors]
            .iter()
            .all(|counter| counter.load(Ordering::Relaxed) == 0);
        let own: Vec<i64> = self.scans.iter().map(|scan| scan.id).collect();
        let counted = self.chosen.iter().map(|root| {
            let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            Some((root.id, Holds { files: number(root.files)?, bytes: number(root.bytes)? }))
        });
        let resumed = self.scans.iter().any(|scan| scan.resumed);
        let holds = counted.collect::<Option<HashMap<_, _>>>();
        let (true, Some(holds)) = (same && self.options.mode == Mode::All && !resumed, holds) else {
            return Ok(false);
        };
        self.settled = self.store.scans().settled(&settled_as(self.options), &own)?;
        self.holds = holds;
        Ok(self.settled.is_some())
    }

    fn walk(&mut self, manner: &Arc<Manner>) -> Result<()> {
        self.control.enter(Phase::Walking);
        let roots = Arc::new(self.all.iter().map(|root| root.path.clone()).collect::<Vec<_>>());
        let eager = (self.options.mode == Mode::All).then(|| {
            let Options { algorithm, every_file, .. } = *self.options;
            Arc::new(Eager::new(algorithm, every_file, self.control.clone(), self.budget.clone()))
        });
        let listings = Arc::new(AtomicU64::new(0));
        let mut walks = Vec::new();
        for (root, scan) in self.chosen.iter().zip(self.scans) {
            if scan.walked_at.is_some() {
                continue;
            }
            let walk = Walk::new(Job {
                store: self.store.clone(),
                notes: self.scribe.notes.clone(),
                control: self.control.clone(),
                manner: manner.clone(),
                root: root.clone(),
                scan: scan.id,
                roots: roots.clone(),
                tally: self.tally.clone(),
                eager: eager.clone(),
                listings: listings.clone(),
            });
            match walk {
                Ok(walk) => walks.push((walk, scan)),
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
        for (walk, scan) in &walks {
            walk.begin(&pool, scan.resumed)?;
        }
        self.wait(&pool)?;
        for (walk, _) in &walks {
            loop {
                let pool = self.pool("links")?;
                let more = !self.control.is_stopped() && walk.follow_next(&pool)?;
                self.wait(&pool)?;
                if !more {
                    break;
                }
            }
        }
        let written = self.scribe.flush();
        if written && !self.control.is_stopped() {
            let is_whole = self.options.filter == Filter::default()
                && !self.options.one_file_system
                && self.control.errors.load(Ordering::Relaxed) == 0;
            for (_, scan) in &walks {
                if is_whole {
                    let gone = self.store.catalog().unseen(scan.root)?;
                    add(&self.scribe.missing, gone as u64);
                }
                self.store.scans().walked(scan.id)?;
            }
        }
        Ok(())
    }

    /// Makes files of the same content part of their group. At the end and in the order of rows: done for each as it is
    /// found, the same pages of the index would be written again with every commit.
    fn share(&mut self) -> Result<()> {
        if self.control.is_stopped() {
            return Ok(());
        }
        let begun = Instant::now();
        // Its answer comes with the next flush.
        let _ = self.scribe.notes.send(Note::ShareFirsts);
        self.scribe.flush();
        // What this scan read was compared as it came. That is all there is, if nobody else has brought anything since.
        let mut alone = !self.had_files && self.scribe.compares_all();
        for root in
            self.store.roots().list()?.iter().filter(|root| self.chosen.iter().all(|own| own.id != root.id))
        {
            alone &= !self.store.catalog().has_files(root.id)?;
        }
        if alone {
            self.summary.seconds.groups = begun.elapsed().as_secs_f64();
            return Ok(());
        }
        for ids in plan::to_share(self.store, &self.wish(), self.control)?.chunks(SHARED_AT_ONCE) {
            if self.control.is_stopped() || self.scribe.notes.send(Note::Shared(ids.to_vec())).is_err() {
                break;
            }
        }
        self.scribe.flush();
        self.summary.seconds.groups = begun.elapsed().as_secs_f64();
        Ok(())
    }

    fn tops(&mut self) -> Arc<Tops> {
        let (tops, absent) = Tops::open(self.all);
        for root in absent {
            tracing::warn!(root = %root.path.display(), "cannot be opened; its files are not read");
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
        let builder = Pool::builder().name(name).workers(self.workers).queue(self.workers * 10);
        builder.build().map_err(|error| Error::System(error.to_string()))
    }

    /// Waits until all is done; not for long once the scan is told to stop.
    fn wait(&self, pool: &Pool) -> Result<()> {
        pool.close();
        while !pool.has_ended() && !self.control.is_stopped() {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        let report: Report = if self.control.is_stopped() { pool.shutdown(GRACE) } else { pool.join() };
        for task in &report.unstopped {
            tracing::warn!(%task, "did not stop in time and is left behind");
        }
        // Told to stop, all say that they did.
        let told = |failure: &&Failure| {
            self.control.is_stopped() && matches!(failure.error.cause(), Cause::Cancelled)
        };
        match report.failures.iter().find(|failure| !told(failure)) {
            Some(failure) => Err(Error::System(failure.error.to_string())),
            None => Ok(()),
        }
    }
}
