//! Walking a root: what is in each folder, compared with what the catalog knows.
//!
//! Owns what is new, changed, gone or back. Each folder is a task of its own and is written with the mark that it
//! was walked; folders below it are spawned only after that is on its way to the scribe, so a parent's row is
//! always there before its children's. A folder that cannot be read keeps its error, and nothing in it or below it
//! counts as gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_pool::{Context, Pool, Task, TaskError, TaskResult};
use gristmill_store::Store;
use gristmill_store::catalog::{
    Digest, End, FileRef, Finding, Known, KnownFile, KnownFolder, Listing, Place, Reading, Stat,
};
use gristmill_store::roots::Root;

use crate::eager::{Eager, Fresh};
use crate::error::{Error, Result};
use crate::filter::{Rules, Sieve};
use crate::progress::{Control, add};
use crate::read::SMALL;
use crate::reader::{Busy, submit};
use crate::scribe::{Note, Notes};
use crate::sys::{Folder, Kind};

/// So many entries of a folder are written together; a folder may have millions.
const PART: usize = 512;

/// What a walk found, in numbers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) new: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) returned: AtomicU64,
    /// Roots that could not be scanned.
    pub(crate) failed_roots: AtomicU64,
    pub(crate) links: AtomicU64,
    pub(crate) special: AtomicU64,
    /// What went wrong, the first few with their reasons.
    pub(crate) errors: Mutex<Vec<String>>,
}

impl Tally {
    /// Keeps a word about something, with its place. Only the first few are kept: a broken disk has many.
    pub(crate) fn complain(&self, path: &Path, words: &str) {
        const MOST: usize = 20;
        tracing::info!(path = %path.display(), "{words}");
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < MOST {
            errors.push(format!("{}: {words}", path.display()));
        }
    }
}

/// How a root is walked.
#[derive(Debug)]
pub(crate) struct Manner {
    pub(crate) sieve: Sieve,
    pub(crate) one_file_system: bool,
    /// Look only at what is known.
    pub(crate) only_known: bool,
    /// An empty root may be one.
    pub(crate) allow_empty: bool,
}

/// A root being walked.
pub(crate) struct Walk {
    pub(crate) store: Store,
    pub(crate) notes: Notes,
    pub(crate) control: Arc<Control>,
    pub(crate) manner: Arc<Manner>,
    pub(crate) root: Root,
    pub(crate) scan: i64,
    /// Roots inside this one, by their paths in it: they are walked by themselves.
    pub(crate) inner: HashSet<PathBuf>,
    /// All roots, for links that lead into one.
    pub(crate) roots: Arc<Vec<PathBuf>>,
    pub(crate) tally: Arc<Tally>,
    /// Reads while walking, if this scan reads.
    eager: Option<Arc<Eager>>,
    /// Numbers of listings.
    listings: Arc<AtomicU64>,
    top: Arc<Folder>,
    device: u64,
    links: Mutex<BTreeMap<PathBuf, Link>>,
    /// Folders that links led to, so that none is walked twice.
    visited: Mutex<HashSet<(u64, u64)>>,
}

/// A link to be followed when the rest has been walked.
struct Link {
    parent: Option<i64>,
    file: Option<KnownFile>,
    folder: Option<KnownFolder>,
}

/// What is needed to walk a root.
pub(crate) struct Job {
    pub(crate) store: Store,
    pub(crate) notes: Notes,
    pub(crate) control: Arc<Control>,
    pub(crate) manner: Arc<Manner>,
    pub(crate) root: Root,
    pub(crate) scan: i64,
    pub(crate) roots: Arc<Vec<PathBuf>>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) eager: Option<Arc<Eager>>,
    pub(crate) listings: Arc<AtomicU64>,
}

impl Walk {
    pub(crate) fn new(job: Job) -> Result<Arc<Self>> {
        let Job { store, notes, control, manner, root, scan, roots, tally, eager, listings } = job;
        let unreadable =
            |error: io::Error| Error::Root(root.path.clone(), format!("cannot be read: {error}"));
        let top = Arc::new(Folder::open(&root.path).map_err(unreadable)?);
        let device = top.own().map_err(unreadable)?.device;
        let inside = |other: &PathBuf| other.strip_prefix(&root.path).ok().map(Path::to_path_buf);
        let inner = roots.iter().filter_map(inside).filter(|path| !path.as_os_str().is_empty()).collect();
        let (links, visited) = Default::default();
        Ok(Arc::new(Walk {
            store,
            notes,
            control,
            manner,
            root,
            scan,
            inner,
            roots,
            tally,
            eager,
            listings,
            top,
            device,
            links,
            visited,
        }))
    }

    /// Begins: at the top, or where a scan that was killed had not been.
    pub(crate) fn begin(self: &Arc<Self>, pool: &Pool, resumed: bool) -> Result<()> {
        // Which links were still to be followed is known only to those who walked.
        let again = !resumed || self.root.follow_links;
        let catalog = self.store.catalog();
        let places = match again {
            true => vec![catalog.top(self.root.id)?],
            false => catalog.left_to_walk(self.root.id, self.scan)?,
        };
        for place in places {
            let walk = self.clone();
            let task = Task::new(move |ctx: &Context| {
                let rules = walk.rules_above(&place.path);
                walk.folder(ctx, place, rules, false)
            });
            if !submit(pool, task, &self.control) {
                break;
            }
        }
        Ok(())
    }

    /// The `.gitignore` files above a folder at which a scan goes on.
    fn rules_above(&self, path: &Path) -> Option<Arc<Rules>> {
        if !self.manner.sieve.uses_gitignore() {
            return None;
        }
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        above.into_iter().fold(None, |rules, path| match self.top.below(path, self.root.follow_links) {
            Ok(folder) => self.rules_of(&folder, path, rules),
            Err(_) => rules,
        })
    }

    fn rules_of(&self, folder: &Folder, path: &Path, above: Option<Arc<Rules>>) -> Option<Arc<Rules>> {
        if !self.manner.sieve.uses_gitignore() {
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

    fn folder(
        self: &Arc<Self>,
        ctx: &Context,
        place: Place,
        rules: Option<Arc<Rules>>,
        by_link: bool,
    ) -> TaskResult<()> {
        if ctx.is_cancelled() || self.control.is_stopped() {
            return Err(TaskError::cancelled());
        }
        let _busy = Busy::new(&self.control);
        let (folder, known) = match self.open(&place, by_link) {
            Ok(folder) => (folder, self.store.catalog().known(&place)?),
            Err(error) if error.kind() == ErrorKind::NotFound && !place.path.as_os_str().is_empty() => {
                return self.vanished(&place);
            }
            Err(error) => return self.failed(place, &error.to_string()),
        };
        if !place.path.as_os_str().is_empty() && self.is_virtual(&folder) {
            return self.left_out(&place);
        }
        if by_link && self.is_a_root(&place.path) {
            return self.left_out(&place);
        }
        if by_link && !self.is_new_to_links(&folder) {
            self.complain(&place.path, "was reached by another link already; it is not walked twice");
            return self.vanished(&place);
        }
        let rules = self.rules_of(&folder, &place.path, rules);
        let mut visit = Visit::new(self, &folder, &place, known, rules.as_deref());
        let read = visit.all();
        if ctx.is_cancelled() || self.control.is_stopped() {
            return Err(TaskError::cancelled());
        }
        let folders = std::mem::take(&mut visit.folders);
        match read {
            Ok(()) => {
                let others = visit.end()?;
                self.go_on(ctx, (folders, rules, by_link), &others)
            }
            Err(Stop::Told) => Err(TaskError::cancelled()),
            Err(Stop::Unreadable(error)) => {
                let place = visit.listing.place.clone();
                visit.send(End::Part)?;
                self.failed(place, &error.to_string())
            }
        }
    }

    /// What a folder leads to: the folders in it, and files of others that are to be read now.
    fn go_on(
        self: &Arc<Self>,
        ctx: &Context,
        (mut folders, rules, by_link): (Vec<Place>, Option<Arc<Rules>>, bool),
        others: &[Fresh],
    ) -> TaskResult<()> {
        add(&self.control.folders, 1);
        // The newest is run first.
        while let Some(place) = folders.pop() {
            let (walk, rules) = (self.clone(), rules.clone());
            let _ = ctx.spawn(move |ctx| walk.folder(ctx, place, rules, by_link));
        }
        if others.is_empty() { Ok(()) } else { self.read_elsewhere(others) }
    }

    /// Files whose folders were left a while ago.
    fn read_elsewhere(&self, files: &[Fresh]) -> TaskResult<()> {
        let Some(eager) = &self.eager else { return Ok(()) };
        let read = |fresh: &Fresh| {
            let folder = fresh.top.below(&fresh.folder, fresh.follow).ok()?;
            eager.read(&folder, fresh)
        };
        let go_on = |_: &&Fresh| !self.control.is_stopped();
        self.note_readings(files.iter().take_while(go_on).filter_map(read).collect())
    }

    fn note_readings(&self, readings: Vec<Reading>) -> TaskResult<()> {
        if readings.is_empty() {
            return Ok(());
        }
        self.notes.send(Note::Readings(readings)).map_err(|_| TaskError::cancelled())
    }

    fn open(&self, place: &Place, by_link: bool) -> io::Result<Folder> {
        self.top.below(&place.path, by_link)
    }

    fn is_new_to_links(&self, folder: &Folder) -> bool {
        folder.own().is_ok_and(|own| {
            self.visited.lock().unwrap_or_else(PoisonError::into_inner).insert((own.device, own.inode))
        })
    }

    /// Whether the system makes up what is in a folder: processes, devices. Nobody's files are there.
    fn is_virtual(&self, folder: &Folder) -> bool {
        folder.own().is_ok_and(|own| own.device != self.device) && folder.is_virtual()
    }

    fn left_out(&self, place: &Place) -> TaskResult<()> {
        add(&self.tally.special, 1);
        let Some(name) = place.path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let parent = place.path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut listing = Listing::new(self.scan, Place { root: place.root, id: None, path: parent });
        listing.forgotten_folders.push(name);
        self.note(listing)
    }

    /// Whether what a link led to is a root: that is walked by itself.
    fn is_a_root(&self, path: &Path) -> bool {
        let found = std::fs::canonicalize(self.root.path.join(path));
        found.is_ok_and(|found| self.roots.contains(&found))
    }

    /// A folder that was there a moment ago.
    fn vanished(&self, place: &Place) -> TaskResult<()> {
        let Some(name) = place.path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let parent = place.path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut listing = Listing::new(self.scan, Place { root: place.root, id: None, path: parent });
        listing.missing_folders.push(name);
        self.note(listing)
    }

    fn failed(&self, place: Place, error: &str) -> TaskResult<()> {
        add(&self.control.errors, 1);
        if place.path.as_os_str().is_empty() {
            add(&self.tally.failed_roots, 1);
        }
        self.complain(&place.path, error);
        let mut listing = Listing::new(self.scan, place);
        listing.end = End::Failed(error.to_owned());
        self.note(listing)
    }

    fn complain(&self, path: &Path, words: &str) {
        match path.as_os_str().is_empty() {
            true => self.tally.complain(&self.root.path, words),
            false => self.tally.complain(&self.root.path.join(path), words),
        }
    }

    fn note(&self, listing: Listing) -> TaskResult<()> {
        let number = self.listings.fetch_add(1, Ordering::Relaxed);
        self.notes.send(Note::Listing(number, Box::new(listing))).map_err(|_| TaskError::cancelled())
    }

    /// Follows the next link, if there is one left, in the order of their paths: so the same tree is walked in the
    /// same way each time. False when there is none.
    pub(crate) fn follow_next(self: &Arc<Self>, pool: &Pool) -> Result<bool> {
        let next = self.links.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
        let Some((path, link)) = next else { return Ok(false) };
        let walk = self.clone();
        // On the pool: links lead anywhere, and a disk that hangs must not hang the one who waits.
        let _ = pool.submit(move |ctx| walk.follow(ctx, path, link));
        Ok(true)
    }

    fn follow(self: &Arc<Self>, ctx: &Context, path: PathBuf, link: Link) -> TaskResult<()> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let place = Place { root: self.root.id, id: link.parent, path: parent };
        let mut listing = Listing::new(self.scan, place);
        let full = self.root.path.join(&path);
        let target = std::fs::canonicalize(&full).and_then(|target| Ok((std::fs::metadata(&full)?, target)));
        let leads = match target {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.complain(&path, "a link that leads nowhere");
                None
            }
            // It may lead somewhere again: nothing behind it counts as gone.
            Err(error) => {
                add(&self.control.errors, 1);
                self.complain(&path, &format!("a link that cannot be followed: {error}"));
                return Ok(());
            }
            Ok((_, target)) if full.starts_with(&target) => {
                self.complain(&path, &format!("a link back to {}: not followed", target.display()));
                None
            }
            // It is walked where it is.
            Ok((_, target)) if self.roots.iter().any(|root| target.starts_with(root)) => None,
            Ok((metadata, _)) => Some(metadata.is_dir()),
        };
        let below = self.top.below(&listing.place.path, true);
        let file = match (&below, leads) {
            (Ok(below), Some(false)) if self.manner.sieve.takes_file(&path, &name, None) => {
                below.stat(&name, true).ok().filter(|found| found.kind == Kind::File)
            }
            _ => None,
        };
        match (file, link.file) {
            (Some(found), known) if self.manner.sieve.takes_stat(&found.stat) => {
                add(&self.control.files, 1);
                add(&self.control.bytes, found.stat.size);
                add_file(&mut listing, &self.tally, name.clone(), found.stat, known);
            }
            (_, Some(known)) if !known.missing => listing.missing_files.push(known.id),
            _ => {}
        }
        let mut next = None;
        match (leads == Some(true), link.folder) {
            (true, known) => {
                let id = known.as_ref().map(|known| known.id);
                match known {
                    None => listing.new_folders.push(name),
                    Some(known) if known.removed => listing.returned_folders.push(known.id),
                    Some(_) => {}
                }
                next = Some(Place { root: self.root.id, id, path });
            }
            (false, Some(known)) if !known.removed => listing.missing_folders.push(name),
            _ => {}
        }
        self.note(listing)?;
        match next {
            Some(place) => self.folder(ctx, place, None, true),
            None => Ok(()),
        }
    }
}

/// Why a folder was not read to its end.
enum Stop {
    Told,
    Unreadable(io::Error),
}

/// One folder being looked at.
struct Visit<'a> {
    walk: &'a Walk,
    folder: &'a Folder,
    rules: Option<&'a Rules>,
    /// Known, and not seen yet.
    files: HashMap<OsString, KnownFile>,
    known_folders: HashMap<OsString, KnownFolder>,
    had_any: bool,
    is_empty: bool,
    listing: Listing,
    /// To be walked next.
    folders: Vec<Place>,
    /// Names of files that have other names.
    linked: HashSet<OsString>,
    /// Files of other folders that are to be read now.
    others: Vec<Fresh>,
    /// Files that were not as they had been seen a moment before.
    readings: Vec<Reading>,
}

impl<'a> Visit<'a> {
    fn new(
        walk: &'a Walk,
        folder: &'a Folder,
        place: &Place,
        known: Known,
        rules: Option<&'a Rules>,
    ) -> Self {
        let had_any = known.files.iter().any(|file| !file.missing)
            || known.folders.iter().any(|folder| !folder.removed);
        Visit {
            walk,
            folder,
            rules,
            // The name is the key: a folder may have a million.
            files: known.files.into_iter().map(|mut file| (std::mem::take(&mut file.name), file)).collect(),
            known_folders: known
                .folders
                .into_iter()
                .map(|mut folder| (std::mem::take(&mut folder.name), folder))
                .collect(),
            had_any,
            is_empty: true,
            listing: Listing::new(walk.scan, place.clone()),
            folders: Vec::new(),
            linked: HashSet::new(),
            others: Vec::new(),
            readings: Vec::new(),
        }
    }

    fn all(&mut self) -> Result<(), Stop> {
        let mut stopped = None;
        let mut names = Vec::new();
        let folder = self.folder;
        let read = folder.entries(|name, kind| {
            names.push((name.to_owned(), kind));
            if names.len() < PART {
                return ControlFlow::Continue(());
            }
            match self.part(&mut names) {
                Ok(()) => ControlFlow::Continue(()),
                Err(stop) => {
                    stopped = Some(stop);
                    ControlFlow::Break(())
                }
            }
        });
        if let Some(stop) = stopped {
            return Err(stop);
        }
        read.map_err(Stop::Unreadable)?;
        self.part(&mut names)
    }

    /// Some entries, by name: rows of neighbours lie together.
    fn part(&mut self, names: &mut Vec<(OsString, Kind)>) -> Result<(), Stop> {
        self.is_empty &= names.is_empty();
        for (name, kind) in names.drain(..) {
            self.entry(name, kind);
        }
        self.listing.new_files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if self.listing.weight() >= PART {
            self.send(End::Part).map_err(|_| Stop::Told)?;
        }
        if self.walk.control.is_stopped() { Err(Stop::Told) } else { Ok(()) }
    }

    fn entry(&mut self, name: OsString, kind: Kind) {
        let (kind, stat) = match kind {
            Kind::File | Kind::Unknown => match self.folder.stat(&name, false) {
                Ok(found) => {
                    if found.is_linked && found.kind == Kind::File && self.walk.eager.is_some() {
                        self.linked.insert(name.clone());
                    }
                    (found.kind, Some(found.stat))
                }
                // Gone between the two calls: as if it had not been listed.
                Err(error) if error.kind() == ErrorKind::NotFound => return,
                Err(error) => return self.unreadable(&name, &error),
            },
            kind => (kind, None),
        };
        match (kind, stat) {
            (Kind::File, Some(stat)) => self.file(name, stat),
            (Kind::Folder, _) => self.subfolder(name),
            (Kind::Link, _) => {
                add(&self.walk.tally.links, 1);
                let is_known = || self.files.contains_key(&name) || self.known_folders.contains_key(&name);
                if self.walk.root.follow_links
                    && self.takes(&name, true)
                    && (!self.walk.manner.only_known || is_known())
                {
                    self.defer(&name);
                }
            }
            _ => add(&self.walk.tally.special, 1),
        }
    }

    /// It is there, and that is all that can be said. What is known of it stays.
    fn unreadable(&mut self, name: &OsStr, error: &io::Error) {
        add(&self.walk.control.errors, 1);
        self.walk.complain(&self.path_of(name), &error.to_string());
        self.files.remove(name);
        self.known_folders.remove(name);
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        self.listing.place.path.join(name)
    }

    fn takes(&self, name: &OsStr, is_folder: bool) -> bool {
        let sieve = &self.walk.manner.sieve;
        if !sieve.looks_at_names() {
            return true;
        }
        let path = self.path_of(name);
        if is_folder {
            sieve.takes_folder(&path, name, self.rules)
        } else {
            sieve.takes_file(&path, name, self.rules)
        }
    }

    fn file(&mut self, name: OsString, stat: Stat) {
        let known = self.files.remove(&name);
        if !self.takes(&name, false) || !self.walk.manner.sieve.takes_stat(&stat) {
            if let Some(known) = known {
                self.listing.forgotten_files.push(known.id);
            }
            return;
        }
        if known.is_none() && self.walk.manner.only_known {
            return;
        }
        add(&self.walk.control.files, 1);
        add(&self.walk.control.bytes, stat.size);
        add_file(&mut self.listing, &self.walk.tally, name, stat, known);
    }

    fn subfolder(&mut self, name: OsString) {
        let known = self.known_folders.remove(&name);
        let path = self.path_of(&name);
        let elsewhere = || {
            self.walk.manner.one_file_system
                && self.folder.stat(&name, false).is_ok_and(|found| found.stat.device != self.walk.device)
        };
        let is_root = self.walk.inner.contains(&path);
        if is_root || !self.takes(&name, true) || elsewhere() {
            // Of another root nothing is to be here, whatever was known.
            if is_root || known.is_some() {
                self.listing.forgotten_folders.push(name);
            }
            return;
        }
        let id = known.as_ref().map(|known| known.id);
        match known {
            None if self.walk.manner.only_known => return,
            None => self.listing.new_folders.push(name),
            Some(known) if known.removed => self.listing.returned_folders.push(known.id),
            Some(_) => {}
        }
        self.folders.push(Place { root: self.walk.root.id, id, path });
    }

    /// Leaves a link for when all else has been walked.
    fn defer(&mut self, name: &OsStr) {
        let (file, folder) = (self.files.remove(name), self.known_folders.remove(name));
        let link = Link { parent: self.listing.place.id, file, folder };
        let mut links = self.walk.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.insert(self.path_of(name), link);
    }

    /// All has been seen; what has not is gone. Gives back what is to be read elsewhere.
    fn end(mut self) -> TaskResult<Vec<Fresh>> {
        let walk = self.walk;
        let is_top = self.listing.place.path.as_os_str().is_empty();
        if is_top && self.is_empty && self.had_any && !walk.manner.allow_empty {
            let place = self.listing.place.clone();
            walk.failed(
                place,
                "it is empty, and was not when it was last scanned. Is its disk mounted? \
                 Nothing counts as gone; --allow-empty if it really is empty",
            )?;
            return Ok(Vec::new());
        }
        for known in self.files.values().filter(|known| !known.missing) {
            self.listing.missing_files.push(known.id);
        }
        self.listing.missing_files.sort_unstable();
        for (name, _) in self.known_folders.drain().filter(|(_, known)| !known.removed) {
            self.listing.missing_folders.push(name);
        }
        self.send(End::Whole)?;
        Ok(self.others)
    }

    fn send(&mut self, end: End) -> TaskResult<()> {
        let next = Listing::new(self.walk.scan, self.listing.place.clone());
        let mut listing = std::mem::replace(&mut self.listing, next);
        listing.end = end;
        let number = self.walk.listings.fetch_add(1, Ordering::Relaxed);
        if let Some(eager) = &self.walk.eager {
            for fresh in self.fresh(number, &listing) {
                let (own, other) = eager.meet(fresh);
                self.others.extend(other);
                let Some(own) = own else { continue };
                let FileRef::New(_, place) = own.file else { continue };
                match eager.read(self.folder, &own) {
                    // As it was seen: its row gets its hash at once.
                    Some(Reading { finding: Finding::Content(algorithm, hash), differs: false, .. }) => {
                        listing.contents.push((place, Digest { algorithm, hash, shared: false }));
                    }
                    Some(reading) => self.readings.push(reading),
                    None => {}
                }
            }
        }
        self.walk.notes.send(Note::Listing(number, Box::new(listing))).map_err(|_| TaskError::cancelled())?;
        self.walk.note_readings(std::mem::take(&mut self.readings))
    }

    /// New files that could be read while walking.
    fn fresh(&self, number: u64, listing: &Listing) -> Vec<Fresh> {
        if self.walk.eager.is_none() || listing.new_files.is_empty() {
            return Vec::new();
        }
        let folder: Arc<Path> = Arc::from(listing.place.path.as_path());
        let files = (0..)
            .zip(&listing.new_files)
            .filter(|(_, (name, stat))| (1..=SMALL).contains(&stat.size) && !self.linked.contains(name));
        let fresh = files.map(|(place, (name, stat))| Fresh {
            top: self.walk.top.clone(),
            follow: self.walk.root.follow_links,
            folder: folder.clone(),
            name: name.clone(),
            stat: *stat,
            file: FileRef::New(number, place),
        });
        fresh.collect()
    }
}

/// A file that is there: new, changed, back or as it was.
fn add_file(listing: &mut Listing, tally: &Tally, name: OsString, stat: Stat, known: Option<KnownFile>) {
    let Some(known) = known else {
        add(&tally.new, 1);
        listing.new_files.push((name, stat));
        return;
    };
    match known.stat.is_same(&stat) {
        _ if known.missing => add(&tally.returned, 1),
        true if known.stat.device == stat.device => return,
        // Its disk has another number now: no reason to read it again.
        true => {}
        false => add(&tally.changed, 1),
    }
    listing.changed_files.push((known.id, stat));
}
