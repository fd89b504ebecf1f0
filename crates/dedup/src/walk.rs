//! Walking a root: what is in each folder, compared with what the catalog knows.
//!
//! Owns what is new, changed, gone or back. Each folder is a task of its own and is written with the mark that it
//! was walked; folders below it are spawned only after that is on its way to the scribe, so a parent's row is
//! always there before its children's. A folder that cannot be read keeps its error, and nothing in it or below it
//! counts as gone.

mod links;
mod mounts;
mod skipped;
mod visit;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gristmill_pool::{Context, Pool, Task, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::catalog::{FileHash, FolderRef, LinkKind, Listing, ListingStatus, Skipped, Stat};
use gristmill_store::roots::Root;

use self::links::Link;
use self::mounts::UNMOUNTED;
use self::visit::{Next, Stop, Subfolder, Visit};
use crate::eager::{Eager, Fresh};
use crate::error::{Error, Result};
use crate::filter::{Filter, Rules, Sieve};
use crate::progress::{ScanHandle, add};
use crate::read::is_gone;
use crate::reader::{Busy, submit};
use crate::scribe::{Note, Notes};
use crate::sys::{Folder, Kind};
use gristmill_store::display_path;

/// What a walk found, in numbers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) new: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) returned: AtomicU64,
    /// Files that match the filters again.
    pub(crate) included: AtomicU64,
    /// Files that were read too shortly after a change, or on another filesystem: they are read again.
    pub(crate) unsure: AtomicU64,
    /// Files that could not be compared: they are not as their root's last scan found them, and that is not this one.
    pub(crate) unreached: AtomicU64,
    /// Roots that could not be scanned.
    pub(crate) failed_roots: AtomicU64,
    pub(crate) links: AtomicU64,
    pub(crate) special: AtomicU64,
    /// Links that lead nowhere.
    pub(crate) broken_links: AtomicU64,
    /// Links to a folder above them, or to one that another link led to.
    pub(crate) repeated_links: AtomicU64,
    /// What went wrong, the first few with their reasons.
    pub(crate) errors: Mutex<Vec<String>>,
    /// The first few of the broken and repeated links, with their reasons.
    pub(crate) links_seen: Mutex<Vec<String>>,
}

impl Tally {
    /// Keeps the reason why something could not be read, with its path.
    pub(crate) fn complain(&self, path: &Path, words: &str) {
        keep(&self.errors, path, words);
    }

    /// Counts a link that is not followed, and keeps its path and the reason.
    fn pass_link(&self, counter: &AtomicU64, path: &Path, words: &str) {
        add(counter, 1);
        keep(&self.links_seen, path, words);
    }
}

/// Only the first few are kept: a broken disk has many.
fn keep(samples: &Mutex<Vec<String>>, path: &Path, words: &str) {
    const MOST: usize = 20;
    tracing::info!(path = %display_path(path), "{words}");
    let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
    if samples.len() < MOST {
        samples.push(format!("{}: {words}", display_path(path)));
    }
}

/// How a root is walked.
#[derive(Debug)]
pub(crate) struct Manner {
    pub(crate) sieve: Sieve,
    pub(crate) one_file_system: bool,
    /// Look only at what is known.
    pub(crate) only_known: bool,
    /// Accept folders that had files and are empty, or whose disk is not mounted.
    pub(crate) allow_empty: bool,
}

impl Manner {
    /// The same for one of the roots of a scan: an absolute pattern concerns the root that it is in.
    pub(crate) fn within(&self, filter: &Filter, root: &Path, roots: &[PathBuf]) -> Result<Arc<Self>> {
        let Manner { one_file_system, only_known, allow_empty, .. } = *self;
        let sieve = Sieve::new(filter, root, roots)?;
        Ok(Arc::new(Manner { sieve, one_file_system, only_known, allow_empty }))
    }
}

/// A root being walked.
pub(crate) struct Walk {
    job: Job,
    /// Roots inside this one, by their paths in it: they are walked by themselves.
    inner: HashSet<PathBuf>,
    top: Arc<Folder>,
    device: u64,
    /// Whether the catalog has unusual files of the root.
    has_unusual: bool,
    /// Whether the root's own folder could not be read, or its disk is not mounted.
    has_failed: AtomicBool,
    /// The number in the catalog of the filesystem that the root's own folder is on: mostly that of all.
    top_filesystem: OnceLock<Option<i64>>,
    /// The numbers of filesystems in the catalog, by device number.
    filesystems: Mutex<HashMap<u64, Option<i64>>>,
    /// Inodes with several names that were counted already.
    counted: Mutex<HashSet<(u64, u64)>>,
    links: Mutex<BTreeMap<PathBuf, Link>>,
    /// Folders that links led to, so that none is walked twice.
    visited: Mutex<HashSet<(u64, u64)>>,
}

/// A folder to be walked.
#[derive(Debug)]
struct ToWalk {
    place: FolderRef,
    /// The filesystem that it was on when it was last walked.
    filesystem: Option<i64>,
    /// Whether it was a mount point then. Not known of a root's own folder.
    was_mount_point: bool,
    /// The filesystem that its parent is on now.
    above: Option<i64>,
    rules: Option<Arc<Rules>>,
    by_link: bool,
}

/// What is needed to walk a root.
pub(crate) struct Job {
    pub(crate) store: Store,
    pub(crate) notes: Notes,
    pub(crate) control: Arc<ScanHandle>,
    pub(crate) manner: Arc<Manner>,
    pub(crate) root: Root,
    pub(crate) scan: i64,
    /// All roots, for links that lead into one.
    pub(crate) roots: Arc<Vec<PathBuf>>,
    pub(crate) tally: Arc<Tally>,
    /// Reads while walking, if this scan reads.
    pub(crate) eager: Option<Arc<Eager>>,
    /// Numbers of listings.
    pub(crate) listings: Arc<AtomicU64>,
}

impl Walk {
    pub(crate) fn new(job: Job) -> Result<Arc<Self>> {
        let path = &job.root.path;
        let unreadable = |error: io::Error| Error::Root(path.clone(), format!("cannot be read: {error}"));
        let top = Arc::new(Folder::open(path).map_err(unreadable)?);
        let device = top.own().map_err(unreadable)?.device;
        let inside = |other: &PathBuf| other.strip_prefix(path).ok().map(Path::to_path_buf);
        let inner = job.roots.iter().filter_map(inside).filter(|path| !path.as_os_str().is_empty()).collect();
        let (has_failed, top_filesystem, filesystems, counted, links, visited) = Default::default();
        let has_unusual = job.store.catalog().has_unusual(job.root.id)?;
        let walk = Walk {
            job,
            inner,
            top,
            device,
            has_unusual,
            has_failed,
            top_filesystem,
            filesystems,
            counted,
            links,
            visited,
        };
        Ok(Arc::new(walk))
    }

    /// Whether the root could not be walked at all. Then nothing is known of what is in it now.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The root's folder, which stays open: its filesystem cannot be unmounted while the scan reads.
    pub(crate) fn top(&self) -> &Arc<Folder> {
        &self.top
    }

    /// The identity of the filesystem of the root's own folder.
    pub(crate) fn filesystem(&self) -> Option<String> {
        self.top.filesystem()
    }

    /// Begins at the root's folder. A scan that is resumed looks at every folder again: files may have changed since.
    pub(crate) fn begin(self: &Arc<Self>, pool: &Pool) -> Result<()> {
        let catalog = self.job.store.catalog();
        let place = catalog.root_folder(self.job.root.id)?;
        let filesystem = match place.id {
            Some(id) => catalog.filesystem_of(id)?,
            None => None,
        };
        let walk = self.clone();
        let to_walk =
            ToWalk { place, filesystem, was_mount_point: false, above: None, rules: None, by_link: false };
        let task = Task::new(move |ctx: &Context| walk.folder(ctx, to_walk));
        submit(pool, task, &self.job.control);
        Ok(())
    }

    /// The number of a folder's filesystem in the catalog. Asked for once for each device.
    fn filesystem_of(&self, folder: &Folder, device: u64) -> Result<Option<i64>> {
        if device == self.device
            && let Some(filesystem) = self.top_filesystem.get()
        {
            return Ok(*filesystem);
        }
        let mut known = self.filesystems.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filesystem) = known.get(&device) {
            return Ok(*filesystem);
        }
        let identity = folder.filesystem();
        let filesystem =
            identity.map(|identity| self.job.store.catalog().filesystem(&identity)).transpose()?;
        known.insert(device, filesystem);
        if device == self.device {
            let _ = self.top_filesystem.set(filesystem);
        }
        Ok(filesystem)
    }

    fn rules_of(&self, folder: &Folder, path: &Path, above: Option<Arc<Rules>>) -> Option<Arc<Rules>> {
        if !self.job.manner.sieve.uses_gitignore() {
            return None;
        }
        // Nobody's rules are longer than this; a document may be hostile.
        const MOST: u64 = 64 << 10;
        let text = folder.file(OsStr::new(".gitignore")).and_then(|file| {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, MOST), &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        match text {
            Ok(text) => Rules::below(above, path, &text),
            Err(_) => above,
        }
    }

    fn folder(self: &Arc<Self>, ctx: &Context, to_walk: ToWalk) -> TaskResult<()> {
        let ToWalk { place, filesystem: known_filesystem, was_mount_point, above, rules, by_link } = to_walk;
        if ctx.is_cancelled() || self.job.control.is_cancelled() {
            return Err(TaskError::cancelled());
        }
        let _busy = Busy::new(&self.job.control);
        let (folder, known) = match self.open(&place, by_link) {
            Ok(folder) => (folder, self.job.store.catalog().known_entries(&place, self.has_unusual)?),
            Err(error) if is_gone(&error) && !place.path.as_os_str().is_empty() => {
                return self.vanished(&place, Skipped::default());
            }
            Err(error) => return self.failed(place, &error.to_string()),
        };
        let name = place.path.file_name().unwrap_or_default();
        let device = folder.own()?.device;
        if !place.path.as_os_str().is_empty() && device != self.device && folder.is_virtual() {
            return self.foreign(&place, skipped::unknown(name, Kind::Folder));
        }
        if by_link && self.is_a_root(&place.path) {
            return self.foreign(&place, self.skipped_link(&place.path, name));
        }
        if by_link && !self.is_new_to_links(&folder) {
            let path = self.job.root.path.join(&place.path);
            let words = "another link leads to the same folder; it is not walked twice";
            self.job.tally.pass_link(&self.job.tally.repeated_links, &path, words);
            let skipped = self.skipped_link(&place.path, name);
            return self.vanished(&place, skipped);
        }
        let rules = self.rules_of(&folder, &place.path, rules);
        let filesystem = self.filesystem_of(&folder, device)?;
        let mut visit = Visit::new(self, &folder, &place, known, rules.as_deref());
        visit.listing.filesystem = filesystem;
        visit.by_link = by_link;
        // Another filesystem: what was known of files in this place is of other files.
        visit.keeps_hashes = match known_filesystem.zip(filesystem) {
            Some((before, now)) => self.may_be_one_filesystem(before, now)?,
            None => true,
        };
        visit.listing.mount_point = above.zip(filesystem).is_some_and(|(above, own)| above != own);
        let is_top = place.path.as_os_str().is_empty();
        visit.may_be_unmounted = is_top || was_mount_point && !visit.listing.mount_point;
        if !visit.keeps_hashes && (is_top || was_mount_point) {
            let is_mounted = if is_top {
                mounts::is_mounted(&self.job.root.path, device)
            } else {
                visit.listing.mount_point
            };
            if is_mounted {
                self.warn_of_another_disk(&place.path);
            } else if !self.job.manner.allow_empty {
                return self.failed(place, UNMOUNTED);
            }
        }
        let read = visit.all();
        if ctx.is_cancelled() || self.job.control.is_cancelled() {
            return Err(TaskError::cancelled());
        }
        let folders = std::mem::take(&mut visit.folders);
        match read {
            Ok(()) => {
                let next = visit.end()?;
                self.go_on(ctx, (folders, rules, by_link), next)
            }
            Err(Stop::Told) => Err(TaskError::cancelled()),
            Err(Stop::Unreadable(error)) => {
                let place = visit.listing.folder.clone();
                visit.send(ListingStatus::Part)?;
                self.failed(place, &error.to_string())
            }
        }
    }

    /// What a folder leads to: the folders in it, and files that are to be read now.
    fn go_on(
        self: &Arc<Self>,
        ctx: &Context,
        (mut folders, rules, by_link): (Vec<Subfolder>, Option<Arc<Rules>>, bool),
        mut next: Next,
    ) -> TaskResult<()> {
        add(&self.job.control.folders, 1);
        // The newest is run first.
        while let Some(Subfolder { place, filesystem, was_mount_point, above }) = folders.pop() {
            let walk = self.clone();
            let rules = rules.clone();
            let to_walk = ToWalk { place, filesystem, was_mount_point, above, rules, by_link };
            let _ = ctx.spawn(move |ctx| walk.folder(ctx, to_walk));
        }
        let Some(eager) = &self.job.eager else { return Ok(()) };
        self.read_elsewhere(eager, &mut next)?;
        for fresh in next.through {
            let walk = self.clone();
            let _ = ctx.spawn(move |_| walk.read_through(fresh));
        }
        Ok(())
    }

    /// Files whose folders were left a while ago.
    fn read_elsewhere(&self, eager: &Eager, next: &mut Next) -> TaskResult<()> {
        let mut readings = Vec::new();
        for fresh in std::mem::take(&mut next.elsewhere) {
            if self.job.control.is_cancelled() {
                break;
            }
            let folder = fresh.top.below(&fresh.folder, fresh.follow);
            for (fresh, reading) in eager.read(folder.as_ref().ok(), vec![fresh]) {
                next.compare(eager, fresh, &reading);
                readings.push(reading);
            }
        }
        self.note_readings(readings)
    }

    fn read_through(&self, fresh: Fresh) -> TaskResult<()> {
        let Some(eager) = &self.job.eager else { return Ok(()) };
        let _busy = Busy::new(&self.job.control);
        let folder = fresh.top.below(&fresh.folder, fresh.follow);
        self.note_readings(eager.read_through(folder.as_ref().ok(), fresh).into_iter().collect())
    }

    fn note_readings(&self, readings: Vec<FileHash>) -> TaskResult<()> {
        if readings.is_empty() {
            return Ok(());
        }
        self.job.notes.send(Note::Readings(readings)).map_err(|_| TaskError::cancelled())
    }

    fn open(&self, place: &FolderRef, by_link: bool) -> io::Result<Folder> {
        self.top.below(&place.path, by_link)
    }

    /// A folder that belongs to another root, or that the system makes up.
    fn foreign(&self, place: &FolderRef, skipped: Skipped) -> TaskResult<()> {
        add(&self.job.tally.special, 1);
        let Some(name) = place.path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let parent = place.path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut listing = Listing::new(self.job.scan, FolderRef { root: place.root, id: None, path: parent });
        listing.foreign_folders.push(name);
        listing.skipped = skipped;
        self.note(listing)
    }

    /// A folder that was there a moment ago, or that a link does not lead to any more.
    fn vanished(&self, place: &FolderRef, skipped: Skipped) -> TaskResult<()> {
        let Some(name) = place.path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let parent = place.path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut listing = Listing::new(self.job.scan, FolderRef { root: place.root, id: None, path: parent });
        listing.missing_folders.push(name);
        listing.skipped = skipped;
        self.note(listing)
    }

    fn failed(&self, place: FolderRef, error: &str) -> TaskResult<()> {
        add(&self.job.control.errors, 1);
        if place.path.as_os_str().is_empty() {
            self.has_failed.store(true, Ordering::Relaxed);
            add(&self.job.tally.failed_roots, 1);
        }
        self.complain(&place.path, error);
        let mut listing = Listing::new(self.job.scan, place);
        listing.status = ListingStatus::Failed(error.to_owned());
        self.note(listing)
    }

    /// The bytes that a file adds to the root: none for a further name of an inode.
    fn bytes_of(&self, stat: &Stat) -> u64 {
        let is_new = stat.links == LinkKind::Single
            || self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert((stat.device, stat.inode));
        if is_new { stat.size } else { 0 }
    }

    fn complain(&self, path: &Path, words: &str) {
        match path.as_os_str().is_empty() {
            true => self.job.tally.complain(&self.job.root.path, words),
            false => self.job.tally.complain(&self.job.root.path.join(path), words),
        }
    }

    fn note(&self, listing: Listing) -> TaskResult<()> {
        let number = self.job.listings.fetch_add(1, Ordering::Relaxed);
        self.job.notes.send(Note::Listing(number, Box::new(listing))).map_err(|_| TaskError::cancelled())
    }
}
