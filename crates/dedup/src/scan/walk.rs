//! Walks a root and compares each folder with the catalog.
//!
//! Owns the order of folders; `visit` compares their entries, and `named` only those that the user named. Each folder
//! is a task, and its listing records that it was walked. Subfolders are spawned after the listing is added to the
//! catalog queue, so a parent's row is always written before its children's. A folder that cannot be read keeps its
//! error, and nothing in or below it is marked missing.

mod digest;
mod links;
mod mounts;
mod named;
mod skipped;
mod visit;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use gristmill_pool::{Context, Pool, Task, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::catalog::{BrokenLink, FolderRef, KnownFolder, LinkKind, Listing, ListingStatus, Skipped, Stat};
use gristmill_store::roots::Root;

use self::links::DeferredLink;
use self::mounts::UNMOUNTED;
use self::visit::{Visit, VisitError};
use super::ScanMode;
use super::catalog_queue::CatalogQueue;
use super::early::{EarlyStages, FollowUps, NewFile};
use super::reader::BusyGuard;
use super::run::ScanRun;
use crate::error::{Error, Result};
use crate::filter::{CompiledFilter, Filter, IgnoreRules};
use crate::lock;
use crate::progress::{ScanHandle, ScanPhase, add};
use crate::read::is_missing;
use crate::sys::{EntryKind, Folder};

/// Walks the chosen roots of a scan. Returns false if the results could not be written.
pub(super) fn run(run: &mut ScanRun<'_>) -> Result<bool> {
    run.handle.set_phase(ScanPhase::Walking);
    if run.options.mode == ScanMode::All {
        run.early = Some(Arc::new(EarlyStages::new(run.rule(), run.reader.clone())));
    }
    let roots = Arc::new(run.all.iter().map(|root| root.path.clone()).collect::<Vec<_>>());
    let scanned: Vec<_> = run.chosen.iter().map(|root| root.path.clone()).collect();
    let mut walks = Vec::new();
    for (root, scan) in run.chosen.iter().zip(run.scans) {
        let walk = Walk::new(run, (root, scan.id), &roots, &scanned);
        match walk.and_then(|walk| walk.check_reachable(run).map(|()| walk)) {
            Ok(walk) => {
                run.walked.insert(root.id, walk.root_folder.clone());
                walks.push(walk);
            }
            // An unreachable root does not stop the scan of the others.
            Err(error) if run.chosen.len() > 1 => {
                add(&run.handle.errors, 1);
                add(&run.handle.counters.failed_roots, 1);
                run.absent.insert(root.id);
                lock(&run.handle.counters.error_samples).push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    let pool = run.pool("walk")?;
    for walk in &walks {
        match run.named.get(&walk.root.id) {
            None => walk.begin(&pool)?,
            Some(names) => walk.begin_named(run, &pool, names),
        }
    }
    run.wait(&pool);
    links::follow_all(run, &walks, &pool);
    run.finish(&pool)?;
    if let Some(early) = &run.early {
        // Refused only if the scan is cancelled or a write has failed.
        let _ = run.queue.add_hashes(early.take_other_names());
    }
    for walk in walks.iter().filter(|walk| walk.has_failed.load(Ordering::Relaxed)) {
        run.walked.remove(&walk.root.id);
        run.absent.insert(walk.root.id);
    }
    let is_written = run.queue.flush();
    let is_whole = run.options.filter == Filter::default()
        && !run.options.one_file_system
        && run.handle.errors.load(Ordering::Relaxed) == 0;
    if is_written && is_whole && !run.handle.is_cancelled() {
        for walk in walks.iter().filter(|walk| !run.named.contains_key(&walk.root.id)) {
            let missing = run.store.catalog().mark_unseen_missing(walk.root.id)?;
            add(&run.handle.counters.missing, missing as u64);
        }
    }
    Ok(is_written)
}

/// The walk of one root.
struct Walk {
    store: Store,
    queue: Arc<CatalogQueue>,
    handle: Arc<ScanHandle>,
    /// Hashes new files during the walk, if the scan reads files.
    early: Option<Arc<EarlyStages>>,
    root: Root,
    scan: i64,
    filter: CompiledFilter,
    one_file_system: bool,
    /// Whether new files and folders are ignored.
    only_known: bool,
    /// Whether to accept folders that had files and are empty, or whose disk is not mounted.
    allow_empty: bool,
    /// Paths of all roots, to detect links that lead into a root.
    roots: Arc<Vec<PathBuf>>,
    /// Paths of nested roots, relative to this one. They are walked separately.
    nested_roots: HashSet<PathBuf>,
    root_folder: Arc<Folder>,
    device: u64,
    /// Whether the catalog has unusual files of the root. Without any, its known entries are read faster.
    has_unusual: bool,
    /// Whether another program has recorded files of the root that no walk has seen.
    has_unplaced: bool,
    /// Whether the folder of the root could not be read, or its disk is not mounted.
    has_failed: AtomicBool,
    /// Catalog number of the filesystem of the root's folder, which most of its folders share.
    root_filesystem: OnceLock<Option<i64>>,
    /// Catalog numbers of filesystems, by device number.
    filesystems: Mutex<HashMap<u64, Option<i64>>>,
    /// Inodes with several names that were counted already.
    counted: Mutex<HashSet<(u64, u64)>>,
    links: Mutex<BTreeMap<PathBuf, DeferredLink>>,
    /// Broken links of the catalog, by the row id of their folder.
    broken_links: HashMap<i64, Vec<BrokenLink>>,
    /// Folders reached through symbolic links, so that none is walked twice.
    visited: Mutex<HashSet<(u64, u64)>>,
}

/// A folder to be walked.
#[derive(Debug)]
struct FolderTask {
    folder_ref: FolderRef,
    /// Its row, if it has one.
    known: Option<KnownFolder>,
    parent_fs: Option<i64>,
    rules: Option<Arc<IgnoreRules>>,
    via_link: bool,
}

impl FolderTask {
    fn new(root: i64, path: PathBuf, known: Option<KnownFolder>, via_link: bool) -> Self {
        let folder_ref = FolderRef { root, id: known.map(|known| known.id), path };
        FolderTask { folder_ref, known, parent_fs: None, rules: None, via_link }
    }
}

impl Walk {
    /// Opens the root. `roots` are the paths of all roots, `scanned` those of this scan.
    fn new(
        run: &ScanRun<'_>,
        (root, scan): (&Root, i64),
        roots: &Arc<Vec<PathBuf>>,
        scanned: &[PathBuf],
    ) -> Result<Arc<Self>> {
        let path = &root.path;
        let unreadable = |error: io::Error| Error::Root(path.clone(), format!("cannot be read: {error}"));
        let root_folder = Arc::new(Folder::open(path).map_err(unreadable)?);
        let inside = |other: &PathBuf| other.strip_prefix(path).ok().map(Path::to_path_buf);
        Ok(Arc::new(Walk {
            store: run.store.clone(),
            queue: run.queue.clone(),
            handle: run.handle.clone(),
            early: run.early.clone(),
            root: root.clone(),
            scan,
            filter: CompiledFilter::new(&run.options.filter, path, scanned)?,
            one_file_system: run.options.one_file_system,
            only_known: run.options.mode == ScanMode::Refresh,
            allow_empty: run.options.allow_empty,
            roots: roots.clone(),
            nested_roots: roots.iter().filter_map(inside).filter(|path| !path.as_os_str().is_empty()).collect(),
            device: root_folder.own_stat().map_err(unreadable)?.device,
            root_folder,
            has_unusual: run.store.catalog().has_unusual(root.id)?,
            has_unplaced: run.store.catalog().has_unplaced(root.id)?,
            has_failed: AtomicBool::default(),
            root_filesystem: OnceLock::default(),
            filesystems: Mutex::default(),
            counted: Mutex::default(),
            links: Mutex::default(),
            broken_links: run.store.catalog().broken_links_by_folder(root.id)?,
            visited: Mutex::default(),
        }))
    }

    /// Submits the folder of the root. A resumed scan walks every folder again, because files may have changed since.
    fn begin(self: &Arc<Self>, pool: &Pool) -> Result<()> {
        let known = self.store.catalog().folder(self.root.id, Path::new(""))?;
        let (walk, folder_task) = (self.clone(), FolderTask::new(self.root.id, PathBuf::new(), known, false));
        let task = Task::new(move |ctx: &Context| walk.walk_folder(ctx, folder_task));
        // Refused only if the scan is cancelled.
        let _ = pool.submit_until(task, self.handle.token());
        Ok(())
    }

    /// Catalog number of a folder's filesystem. Looked up once per device.
    fn filesystem_of(&self, folder: &Folder, device: u64) -> Result<Option<i64>> {
        if device == self.device
            && let Some(filesystem) = self.root_filesystem.get()
        {
            return Ok(*filesystem);
        }
        let mut known = lock(&self.filesystems);
        if let Some(filesystem) = known.get(&device) {
            return Ok(*filesystem);
        }
        let identity = folder.filesystem();
        let filesystem = identity.map(|identity| self.store.catalog().filesystem_id(&identity)).transpose()?;
        known.insert(device, filesystem);
        if device == self.device {
            let _ = self.root_filesystem.set(filesystem);
        }
        Ok(filesystem)
    }

    fn gitignore_rules(
        &self,
        folder: &Folder,
        path: &Path,
        parent: Option<Arc<IgnoreRules>>,
    ) -> Option<Arc<IgnoreRules>> {
        if !self.filter.uses_gitignore() {
            return None;
        }
        // Limits the memory for a `.gitignore` file that is huge by mistake or malice.
        const MAX_GITIGNORE_BYTES: u64 = 64 << 10;
        let text = folder.open_file(OsStr::new(".gitignore")).and_then(|file| {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, MAX_GITIGNORE_BYTES), &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        match text {
            Ok(text) => IgnoreRules::nested(parent, path, &text, self.filter.ignores_case()),
            Err(_) => parent,
        }
    }

    fn walk_folder(self: &Arc<Self>, ctx: &Context, folder_task: FolderTask) -> TaskResult<()> {
        let FolderTask { folder_ref, known, parent_fs, rules, via_link } = folder_task;
        if ctx.is_cancelled() || self.handle.is_cancelled() {
            return Err(TaskError::cancelled());
        }
        let _busy = BusyGuard::new(&self.handle);
        let folder = match self.root_folder.open_below(&folder_ref.path, via_link) {
            Ok(folder) => folder,
            Err(error) if is_missing(&error) && !folder_ref.path.as_os_str().is_empty() => {
                return self.record_missing(&folder_ref, Skipped::default());
            }
            Err(error) => return self.record_failure(folder_ref, &error.to_string()),
        };
        let name = folder_ref.path.file_name().unwrap_or_default();
        let device = folder.own_stat()?.device;
        if !folder_ref.path.as_os_str().is_empty() && device != self.device && folder.is_virtual() {
            return self.record_foreign(&folder_ref, skipped::unknown(name, EntryKind::Folder));
        }
        if via_link && self.leads_to_root(&folder_ref.path) {
            return self.record_foreign(&folder_ref, self.skipped_link(&folder_ref.path, name));
        }
        if via_link && !self.is_first_visit_by_link(&folder) {
            let path = self.root.path.join(&folder_ref.path);
            let reason = "another symbolic link leads to the same folder; not followed";
            self.handle.counters.record_link(&self.handle.counters.repeated_links, &path, reason);
            let skipped = self.skipped_link(&folder_ref.path, name);
            return self.record_missing(&folder_ref, skipped);
        }
        let rules = self.gitignore_rules(&folder, &folder_ref.path, rules);
        let filesystem = self.filesystem_of(&folder, device)?;
        let mut visit = Visit::new(self, &folder, &folder_ref, rules.as_ref());
        visit.listing.filesystem = filesystem;
        visit.listing.via_link = via_link;
        visit.listing.known_digest = known.and_then(|known| known.digest);
        // On another filesystem, files with the same paths are different files.
        let known_filesystem = known.and_then(|known| known.filesystem);
        let was_mount_point = known.is_some_and(|known| known.mount_point);
        visit.keeps_hashes = match known_filesystem.zip(filesystem) {
            Some((before, now)) => self.may_be_one_filesystem(before, now)?,
            None => true,
        };
        visit.listing.mount_point = parent_fs.zip(filesystem).is_some_and(|(parent_fs, own)| parent_fs != own);
        let is_root = folder_ref.path.as_os_str().is_empty();
        visit.may_be_unmounted = is_root || was_mount_point && !visit.listing.mount_point;
        if !visit.keeps_hashes && (is_root || was_mount_point) {
            let is_mounted =
                if is_root { mounts::is_mounted(&self.root.path, device) } else { visit.listing.mount_point };
            if is_mounted {
                self.warn_disk_replaced(&folder_ref.path);
            } else if !self.allow_empty {
                return self.record_failure(folder_ref, UNMOUNTED);
            }
        }
        let recorded = known.and_then(|known| known.digest).filter(|_| known_filesystem == filesystem);
        let read = visit.visit_entries(recorded);
        if ctx.is_cancelled() || self.handle.is_cancelled() {
            return Err(TaskError::cancelled());
        }
        match read {
            Ok(()) => {
                let (folders, next) = visit.finish()?;
                self.schedule_follow_ups(ctx, folders, next)
            }
            Err(VisitError::Cancelled) => Err(TaskError::cancelled()),
            Err(VisitError::Store(error)) => Err(error.into()),
            Err(VisitError::Unreadable(error)) => {
                let folder_ref = visit.listing.folder.clone();
                visit.send_part(ListingStatus::Part)?;
                self.record_failure(folder_ref, &error.to_string())
            }
        }
    }

    /// Spawns tasks for subfolders and large files, and hashes files of folders visited earlier.
    fn schedule_follow_ups(
        self: &Arc<Self>,
        ctx: &Context,
        mut folders: Vec<FolderTask>,
        mut next: FollowUps,
    ) -> TaskResult<()> {
        add(&self.handle.folders, 1);
        // The task spawned last runs first.
        while let Some(folder_task) = folders.pop() {
            let walk = self.clone();
            let _ = ctx.spawn(move |ctx| walk.walk_folder(ctx, folder_task));
        }
        let Some(early) = &self.early else { return Ok(()) };
        self.queue.add_hashes(early.hash_elsewhere(&mut next))?;
        for new_file in next.whole {
            let walk = self.clone();
            let _ = ctx.spawn(move |_| walk.hash_whole(new_file));
        }
        Ok(())
    }

    fn hash_whole(&self, new_file: NewFile) -> TaskResult<()> {
        let Some(early) = &self.early else { return Ok(()) };
        let _busy = BusyGuard::new(&self.handle);
        self.queue.add_hashes(early.hash_whole(new_file).into_iter().collect())
    }

    /// Records that a folder belongs to another root or to a virtual filesystem.
    fn record_foreign(&self, folder_ref: &FolderRef, skipped: Skipped) -> TaskResult<()> {
        add(&self.handle.counters.special, 1);
        self.record_in_parent(folder_ref, skipped, |listing, name| listing.foreign_folders.push(name))
    }

    /// Records that a folder was removed during the walk, or that no symbolic link leads to it any more.
    fn record_missing(&self, folder_ref: &FolderRef, skipped: Skipped) -> TaskResult<()> {
        self.record_in_parent(folder_ref, skipped, |listing, name| listing.missing_folders.push(name))
    }

    fn record_in_parent(
        &self,
        folder_ref: &FolderRef,
        skipped: Skipped,
        record: impl FnOnce(&mut Listing, OsString),
    ) -> TaskResult<()> {
        let Some(name) = folder_ref.path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let path = folder_ref.path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut listing = Listing::new(self.scan, FolderRef { root: folder_ref.root, id: None, path });
        record(&mut listing, name);
        listing.skipped = skipped;
        self.send_listing(listing)
    }

    fn record_failure(&self, folder_ref: FolderRef, error: &str) -> TaskResult<()> {
        add(&self.handle.errors, 1);
        if folder_ref.path.as_os_str().is_empty() {
            self.has_failed.store(true, Ordering::Relaxed);
            add(&self.handle.counters.failed_roots, 1);
        }
        self.record_error(&folder_ref.path, error);
        let mut listing = Listing::new(self.scan, folder_ref);
        listing.status = ListingStatus::Failed(error.to_owned());
        self.send_listing(listing)
    }

    /// Counts a file of the root.
    fn count(&self, stat: &Stat) {
        add(&self.handle.files, 1);
        add(&self.handle.bytes, self.bytes_of(stat));
    }

    /// Bytes that a file adds to the root's size: 0 if another name of its inode was counted.
    fn bytes_of(&self, stat: &Stat) -> u64 {
        let is_new = stat.links == LinkKind::Single || lock(&self.counted).insert((stat.device, stat.inode));
        if is_new { stat.size } else { 0 }
    }

    /// Absolute path of an entry. `Path::join` would add a slash for the folder of the root.
    fn absolute(&self, path: &Path) -> PathBuf {
        let root = &self.root.path;
        if path.as_os_str().is_empty() { root.clone() } else { root.join(path) }
    }

    fn record_error(&self, path: &Path, reason: &str) {
        self.handle.counters.record_error(&self.absolute(path), reason);
    }

    /// Broken links of a folder in the catalog.
    fn known_broken_links(&self, folder: &FolderRef) -> &[BrokenLink] {
        let known = folder.id.and_then(|id| self.broken_links.get(&id));
        known.map_or(&[], Vec::as_slice)
    }

    fn send_listing(&self, listing: Listing) -> TaskResult<()> {
        self.queue.add_listing(self.queue.next_listing(), listing)
    }
}
