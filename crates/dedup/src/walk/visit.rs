//! One folder being looked at: each entry, and what the catalog knows of it.
//!
//! Owns what is new, changed, gone, back or left out in a folder, and which new files are read at once.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::catalog::{
    ChangedFile, Digest, FileHash, FileRef, FolderRef, KnownEntries, KnownFile, KnownFolder, LinkKind,
    Listing, ListingStatus, ReadResult, Skipped, Stat,
};

use super::links::Link;
use super::skipped;
use super::{Tally, Walk};
use crate::eager::{Eager, Fresh};
use crate::filter::Rules;
use crate::progress::add;
use crate::scribe::Note;
use crate::sys::{Folder, Kind};

/// So many entries of a folder are written together; a folder may have millions.
const PART: usize = 512;

/// A folder in a folder.
pub(super) struct Subfolder {
    pub(super) place: FolderRef,
    /// The filesystem that it was on when it was last walked.
    pub(super) filesystem: Option<i64>,
    /// Whether it was a mount point then.
    pub(super) was_mount_point: bool,
    /// The filesystem that its parent is on now.
    pub(super) above: Option<i64>,
}

/// Why a folder was not read to its end.
pub(super) enum Stop {
    Told,
    Unreadable(io::Error),
}

/// One folder being looked at.
pub(super) struct Visit<'a> {
    walk: &'a Walk,
    folder: &'a Folder,
    rules: Option<&'a Rules>,
    /// Known, and not seen yet.
    files: Left<KnownFile>,
    known_folders: Left<KnownFolder>,
    had_any: bool,
    is_empty: bool,
    pub(super) listing: Listing,
    /// To be walked next.
    pub(super) folders: Vec<Subfolder>,
    /// Whether a symbolic link led here.
    pub(super) by_link: bool,
    /// Whether a file that looks as it did has the same content.
    pub(super) keeps_hashes: bool,
    /// Whether a disk that was mounted here may be away: a root's own folder, or a mount point that is none now.
    pub(super) may_be_unmounted: bool,
    skipped: Skipped,
    /// What is to be read next.
    next: Next,
    /// Edges of large files; and what was read of files that were not as they had been seen a moment before.
    readings: Vec<FileHash>,
}

impl<'a> Visit<'a> {
    pub(super) fn new(
        walk: &'a Walk,
        folder: &'a Folder,
        place: &FolderRef,
        known: KnownEntries,
        rules: Option<&'a Rules>,
    ) -> Self {
        let had_any = known.files.iter().any(|(_, file)| !file.missing)
            || known.folders.iter().any(|(_, folder)| !folder.removed);
        Visit {
            walk,
            folder,
            rules,
            files: Left::new(known.files),
            known_folders: Left::new(known.folders),
            had_any,
            is_empty: true,
            listing: Listing::new(walk.job.scan, place.clone()),
            folders: Vec::new(),
            by_link: false,
            keeps_hashes: true,
            may_be_unmounted: false,
            skipped: Skipped::default(),
            next: Next::default(),
            readings: Vec::new(),
        }
    }

    pub(super) fn all(&mut self) -> Result<(), Stop> {
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
            self.send(ListingStatus::Part).map_err(|_| Stop::Told)?;
        }
        if self.walk.job.control.is_cancelled() { Err(Stop::Told) } else { Ok(()) }
    }

    fn entry(&mut self, name: OsString, kind: Kind) {
        let (kind, stat) = match kind {
            Kind::File | Kind::Unknown => match self.folder.stat(&name, false) {
                Ok(found) if self.by_link => {
                    (found.kind, Some(Stat { links: LinkKind::ViaSymlink, ..found.stat }))
                }
                Ok(found) => (found.kind, Some(found.stat)),
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
                add(&self.walk.job.tally.links, 1);
                let is_known = || self.files.has(&name) || self.known_folders.has(&name);
                let takes = self.takes(&name, true);
                if self.walk.job.root.follow_links
                    && takes
                    && (!self.walk.job.manner.only_known || is_known())
                {
                    self.defer(&name);
                    return;
                }
                self.skipped += skipped::link(&name, self.folder.link_target(&name).ok().as_deref());
                if self.walk.job.root.follow_links && !takes {
                    self.exclude(name);
                }
            }
            _ => {
                add(&self.walk.job.tally.special, 1);
                self.skipped += skipped::special(&name);
            }
        }
    }

    /// It is there, and that is all that can be said. What is known of it stays.
    fn unreadable(&mut self, name: &OsStr, error: &io::Error) {
        add(&self.walk.job.control.errors, 1);
        self.walk.complain(&self.path_of(name), &error.to_string());
        self.skipped += skipped::unknown(name, Kind::Unknown);
        self.files.take(name);
        self.known_folders.take(name);
    }

    /// Filters leave out what a link led to.
    fn exclude(&mut self, name: OsString) {
        if let Some(known) = self.files.take(&name).filter(|known| !known.missing && !known.excluded) {
            self.listing.excluded_files.push(known.id);
        }
        if self.known_folders.take(&name).is_some_and(|known| !known.removed && !known.excluded) {
            self.listing.excluded_folders.push(name);
        }
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        self.listing.folder.path.join(name)
    }

    fn takes(&self, name: &OsStr, is_folder: bool) -> bool {
        let sieve = &self.walk.job.manner.sieve;
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
        let known = self.files.take(&name);
        let only_known = self.walk.job.manner.only_known;
        // A refresh has no filters of its own: what the last scan's left out stays so.
        let stays_out = only_known && known.is_some_and(|known| known.excluded);
        if stays_out || !self.takes(&name, false) || !self.walk.job.manner.sieve.takes_stat(&stat) {
            self.skipped += skipped::unknown(&name, Kind::File);
            if let Some(known) = known
                && !known.excluded
                && !known.missing
            {
                self.listing.excluded_files.push(known.id);
            }
            return;
        }
        if known.is_none() && only_known {
            self.skipped += skipped::unknown(&name, Kind::File);
            return;
        }
        add(&self.walk.job.control.files, 1);
        add(&self.walk.job.control.bytes, self.walk.bytes_of(&stat));
        add_file(&mut self.listing, &self.walk.job.tally, (name, stat), known, self.keeps_hashes);
    }

    fn subfolder(&mut self, name: OsString) {
        let known = self.known_folders.take(&name);
        let path = self.path_of(&name);
        let only_known = self.walk.job.manner.only_known;
        let elsewhere = || {
            self.walk.job.manner.one_file_system
                && self.folder.stat(&name, false).is_ok_and(|found| found.stat.device != self.walk.device)
        };
        if self.walk.inner.contains(&path) {
            // Of another root nothing is to be here, whatever was known. It is compared by what its own walk finds.
            self.listing.foreign_folders.push(name);
            return;
        }
        let stays_out = only_known && known.is_some_and(|known| known.excluded);
        if stays_out || !self.takes(&name, true) || elsewhere() {
            self.skipped += skipped::unknown(&name, Kind::Folder);
            if known.is_some_and(|known| !known.excluded && !known.removed) {
                self.listing.excluded_folders.push(name);
            }
            return;
        }
        let id = known.as_ref().map(|known| known.id);
        match known {
            None if only_known => {
                self.skipped += skipped::unknown(&name, Kind::Folder);
                return;
            }
            None => self.listing.new_folders.push(name),
            Some(known) if known.removed || known.excluded => self.listing.returned_folders.push(known.id),
            Some(_) => {}
        }
        let filesystem = known.and_then(|known| known.filesystem);
        let place = FolderRef { root: self.walk.job.root.id, id, path };
        let was_mount_point = known.is_some_and(|known| known.mount_point);
        let above = self.listing.filesystem;
        self.folders.push(Subfolder { place, filesystem, was_mount_point, above });
    }

    /// Leaves a link for when all else has been walked.
    fn defer(&mut self, name: &OsStr) {
        let (file, folder) = (self.files.take(name), self.known_folders.take(name));
        let link = Link { parent: self.listing.folder.id, file, folder };
        let mut links = self.walk.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.insert(self.path_of(name), link);
    }

    /// All has been seen; what has not is gone. Gives back what is to be read next.
    pub(super) fn end(mut self) -> TaskResult<Next> {
        let walk = self.walk;
        if self.may_be_unmounted && self.is_empty && self.had_any && !walk.job.manner.allow_empty {
            let place = self.listing.folder.clone();
            walk.failed(
                place,
                "it is empty, and was not when it was last scanned. Is its disk mounted? \
                 Nothing counts as gone; --allow-empty if it really is empty",
            )?;
            return Ok(Next::default());
        }
        let gone = self.files.rest().filter(|(_, known)| !known.missing);
        self.listing.missing_files.extend(gone.map(|(_, known)| known.id));
        self.listing.missing_files.sort_unstable();
        let gone = self.known_folders.rest().filter(|(_, known)| !known.removed);
        self.listing.missing_folders.extend(gone.map(|(name, _)| name.clone()));
        self.listing.skipped = self.skipped;
        self.send(if walk.job.manner.only_known { ListingStatus::Known } else { ListingStatus::Whole })?;
        Ok(self.next)
    }

    pub(super) fn send(&mut self, end: ListingStatus) -> TaskResult<()> {
        let mut next = Listing::new(self.walk.job.scan, self.listing.folder.clone());
        next.filesystem = self.listing.filesystem;
        next.mount_point = self.listing.mount_point;
        let mut listing = std::mem::replace(&mut self.listing, next);
        listing.status = end;
        let number = self.walk.job.listings.fetch_add(1, Ordering::Relaxed);
        if let Some(eager) = &self.walk.job.eager {
            self.read(eager, number, &mut listing);
        }
        self.walk
            .job
            .notes
            .send(Note::Listing(number, Box::new(listing)))
            .map_err(|_| TaskError::cancelled())?;
        self.walk.note_readings(std::mem::take(&mut self.readings))
    }

    /// Reads those of the new files that are to be read now.
    fn read(&mut self, eager: &Eager, number: u64, listing: &mut Listing) {
        let mut here = Vec::new();
        for fresh in self.fresh(eager, number, listing) {
            let (own, other) = eager.meet(fresh);
            here.extend(own);
            match other {
                Some(other) if matches!(other.file, FileRef::New(of, _) if of == number) => here.push(other),
                other => self.next.elsewhere.extend(other),
            }
        }
        for (fresh, reading) in eager.read(Some(self.folder), here) {
            match (fresh.file, reading) {
                // As it was seen: its row gets its hash at once.
                (
                    FileRef::New(_, place),
                    FileHash {
                        result: ReadResult::Content(algorithm, hash),
                        differs: false,
                        racy: false,
                        ..
                    },
                ) => listing.contents.push((place, Digest { algorithm, hash, shared: false })),
                (_, reading) => {
                    self.next.compare(eager, fresh, &reading);
                    self.readings.push(reading);
                }
            }
        }
        listing.contents.sort_unstable_by_key(|(place, _)| *place);
    }

    /// New files that could be read while walking.
    fn fresh(&self, eager: &Eager, number: u64, listing: &Listing) -> Vec<Fresh> {
        if listing.new_files.is_empty() {
            return Vec::new();
        }
        let folder: Arc<Path> = Arc::from(listing.folder.path.as_path());
        let files = (0..).zip(&listing.new_files).filter(|(_, (_, stat))| eager.takes(stat));
        let fresh = files.map(|(place, (name, stat))| Fresh {
            top: self.walk.top.clone(),
            follow: self.walk.job.root.follow_links,
            folder: folder.clone(),
            name: name.clone(),
            stat: *stat,
            file: FileRef::New(number, place),
        });
        fresh.collect()
    }
}

/// What is known of a folder's entries, by name, until it is taken. Sorted: a folder may have a million, and a table of
/// them by hash takes three times the memory.
struct Left<T> {
    known: Vec<(OsString, T)>,
    taken: Vec<bool>,
}

impl<T: Copy> Left<T> {
    fn new(mut known: Vec<(OsString, T)>) -> Self {
        // Mostly in order already, which this kind of sorting makes use of.
        known.sort_by(|(a, _), (b, _)| a.cmp(b));
        let taken = vec![false; known.len()];
        Left { known, taken }
    }

    fn place(&self, name: &OsStr) -> Option<usize> {
        self.known.binary_search_by(|(known, _)| known.as_os_str().cmp(name)).ok()
    }

    fn has(&self, name: &OsStr) -> bool {
        self.place(name).is_some_and(|place| !self.taken.get(place).copied().unwrap_or(true))
    }

    fn take(&mut self, name: &OsStr) -> Option<T> {
        let place = self.place(name)?;
        let taken = std::mem::replace(self.taken.get_mut(place)?, true);
        self.known.get(place).filter(|_| !taken).map(|(_, known)| *known)
    }

    fn rest(&self) -> impl Iterator<Item = &(OsString, T)> {
        self.known.iter().zip(&self.taken).filter(|(_, taken)| !**taken).map(|(known, _)| known)
    }
}

/// Files that are to be read when their folders have been looked at.
#[derive(Default)]
pub(super) struct Next {
    /// In other folders.
    pub(super) elsewhere: Vec<Fresh>,
    /// Large ones, to their end.
    pub(super) through: Vec<Fresh>,
}

impl Next {
    /// Takes a file that was read, if it was for its edges.
    pub(super) fn compare(&mut self, eager: &Eager, fresh: Fresh, reading: &FileHash) {
        if let FileHash { result: ReadResult::Samples(edges), differs: false, .. } = reading {
            self.through.extend(eager.compare(fresh, *edges));
        }
    }
}

/// A file that is there: new, changed, back or as it was.
pub(super) fn add_file(
    listing: &mut Listing,
    tally: &Tally,
    (name, stat): (OsString, Stat),
    known: Option<KnownFile>,
    keeps_hash: bool,
) {
    let Some(known) = known else {
        add(&tally.new, 1);
        listing.new_files.push((name, stat));
        return;
    };
    let is_sure = keeps_hash && !known.racy;
    match known.stat.is_same(&stat) {
        _ if known.missing => add(&tally.returned, 1),
        _ if known.excluded => add(&tally.included, 1),
        true if !is_sure => add(&tally.unsure, 1),
        true if known.stat == stat => return,
        // Its device has another number, or its blocks were allocated since: no reason to read it again.
        true => {}
        false => add(&tally.changed, 1),
    }
    listing.changed_files.push(ChangedFile { id: known.id, stat, keeps_hash: is_sure });
}
