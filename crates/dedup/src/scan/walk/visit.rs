//! Visits one folder: examines its entries on the disk, then compares them with the catalog.
//!
//! Owns which entries are new, changed, missing, returned or excluded. If the entries have the digest of the last
//! listing, nothing has changed, and the rows of the files are not read.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use gristmill_pool::TaskResult;
use gristmill_store::catalog::{
    BrokenLink, ChangedFile, FolderRef, KnownEntries, KnownFile, KnownFolder, LinkKind, Listing, ListingDigest,
    ListingStatus, Skipped, Stat,
};

use super::links::DeferredLink;
use super::{FolderTask, Walk, digest, skipped};
use crate::filter::IgnoreRules;
use crate::lock;
use crate::progress::{Counters, add};
use crate::scan::early::FollowUps;
use crate::sys::{EntryKind, Folder, is_link_error, os_string};

/// Entries after which a part of a folder is written. A folder may have millions.
pub(super) const PART_ENTRIES: usize = 512;

pub(super) enum VisitError {
    Cancelled,
    Unreadable(io::Error),
    Store(gristmill_store::Error),
}

/// An entry on the disk, before it is compared with the catalog.
pub(super) enum Entry {
    File {
        name: OsString,
        stat: Stat,
        is_excluded: bool,
    },
    Folder {
        name: OsString,
        is_excluded: bool,
    },
    /// Exists, but cannot be examined.
    Unreadable {
        name: OsString,
    },
}

pub(super) struct Visit<'a> {
    pub(super) walk: &'a Walk,
    pub(super) folder: &'a Folder,
    rules: Option<&'a Arc<IgnoreRules>>,
    /// Whether the folder has the digest of its last listing.
    is_unchanged: bool,
    /// Entries that were examined and not compared yet.
    examined: Vec<Entry>,
    /// Whether the rows of the entries were read.
    is_known: bool,
    /// Known entries that were not seen yet.
    pub(super) unseen_files: Unseen<KnownFile>,
    unseen_folders: Unseen<KnownFolder>,
    had_entries: bool,
    is_empty: bool,
    pub(super) listing: Listing,
    folders: Vec<FolderTask>,
    /// Whether a file with unchanged metadata keeps its hash.
    pub(super) keeps_hashes: bool,
    /// Whether a disk that was mounted here may be unmounted: the folder of a root, or a former mount point.
    pub(super) may_be_unmounted: bool,
    skipped: Skipped,
    broken_links: Vec<BrokenLink>,
    pub(super) follow_ups: FollowUps,
    /// Names of earlier parts.
    visited: Option<VisitedNames>,
}

/// Names that were visited, by hashes of 128 bits: names would take several times the memory.
#[derive(Default)]
struct VisitedNames {
    hashers: [RandomState; 2],
    hashes: HashSet<[u64; 2]>,
}

impl VisitedNames {
    /// Removes the names that were visited before.
    fn retain_first(&mut self, names: &mut Vec<(OsString, EntryKind)>) {
        let VisitedNames { hashers, hashes } = self;
        names.retain(|(name, _)| hashes.insert(hashers.each_ref().map(|hasher| hasher.hash_one(name))));
    }
}

impl<'a> Visit<'a> {
    pub(super) fn new(
        walk: &'a Walk,
        folder: &'a Folder,
        folder_ref: &FolderRef,
        rules: Option<&'a Arc<IgnoreRules>>,
    ) -> Self {
        Visit {
            walk,
            folder,
            rules,
            is_unchanged: false,
            examined: Vec::new(),
            is_known: false,
            unseen_files: Unseen::default(),
            unseen_folders: Unseen::default(),
            had_entries: false,
            is_empty: true,
            listing: Listing::new(walk.scan, folder_ref.clone()),
            folders: Vec::new(),
            keeps_hashes: true,
            may_be_unmounted: false,
            skipped: Skipped::default(),
            broken_links: Vec::new(),
            follow_ups: FollowUps::default(),
            visited: None,
        }
    }

    pub(super) fn set_known(&mut self, known: KnownEntries) {
        self.is_known = true;
        self.had_entries = known.files.iter().any(|(_, file)| !file.missing)
            || known.folders.iter().any(|(_, folder)| !folder.removed);
        self.unseen_files = Unseen::new(known.files);
        self.unseen_folders = Unseen::new(known.folders);
    }

    /// Reads the rows of the entries, unless they were read.
    fn read_known(&mut self) -> Result<(), VisitError> {
        if self.is_known {
            return Ok(());
        }
        let known = self.walk.store.catalog().known_entries(&self.listing.folder, self.walk.has_unusual);
        self.set_known(known.map_err(VisitError::Store)?);
        Ok(())
    }

    /// Visits all entries. `recorded` is the digest of the last listing, if the folder is on the same filesystem.
    pub(super) fn visit_entries(&mut self, recorded: Option<ListingDigest>) -> Result<(), VisitError> {
        // Whether a link is followed depends on more than the folder, and on the rows of its entries.
        let follows_links = self.walk.root.follow_links;
        if follows_links {
            self.read_known()?;
        }
        let mut visit_error = None;
        let mut names = Vec::new();
        let folder = self.folder;
        let read = folder.list(|name, kind| {
            names.push((name.to_owned(), kind));
            if names.len() < PART_ENTRIES {
                return ControlFlow::Continue(());
            }
            match self.visit_part(&mut names) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    visit_error = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        if let Some(error) = visit_error {
            return Err(error);
        }
        read.map_err(VisitError::Unreadable)?;
        let has_more_parts = self.visited.is_some();
        if has_more_parts {
            return self.visit_part(&mut names);
        }
        self.examine(&mut names)?;
        let digest = digest::of(&self.listing, &self.skipped, &self.examined).filter(|_| !follows_links);
        if digest.is_some() && digest == recorded {
            self.keep_files()?;
        }
        self.listing.digest = digest;
        self.compare()
    }

    /// Visits some entries of a folder that has more.
    fn visit_part(&mut self, names: &mut Vec<(OsString, EntryKind)>) -> Result<(), VisitError> {
        self.visited.get_or_insert_default().retain_first(names);
        self.examine(names)?;
        self.compare()
    }

    /// Examines entries, sorted by name, so that rows of neighbours are stored together. A folder that changes may list
    /// a name twice.
    fn examine(&mut self, names: &mut Vec<(OsString, EntryKind)>) -> Result<(), VisitError> {
        self.is_empty &= names.is_empty();
        names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        names.dedup_by(|(a, _), (b, _)| a == b);
        for (name, kind) in names.drain(..) {
            self.examine_entry(name, kind);
        }
        if self.walk.handle.is_cancelled() { Err(VisitError::Cancelled) } else { Ok(()) }
    }

    /// Counts the files without comparing them: their rows are up to date. Subfolders are compared, because their rows
    /// are needed to walk them.
    fn keep_files(&mut self) -> Result<(), VisitError> {
        let walk = self.walk;
        (self.is_unchanged, self.is_known) = (true, true);
        for entry in &self.examined {
            if let Entry::File { stat, is_excluded: false, .. } = entry {
                walk.count(stat);
            }
        }
        self.examined.retain(|entry| matches!(entry, Entry::Folder { .. }));
        if !self.examined.is_empty() {
            let folders = walk.store.catalog().known_folders(&self.listing.folder).map_err(VisitError::Store)?;
            self.unseen_folders = Unseen::new(folders);
        }
        Ok(())
    }

    /// Compares the examined entries with the catalog.
    fn compare(&mut self) -> Result<(), VisitError> {
        self.read_known()?;
        for entry in std::mem::take(&mut self.examined) {
            match entry {
                Entry::File { name, stat, is_excluded } => self.compare_file(name, stat, is_excluded),
                Entry::Folder { name, is_excluded } => self.compare_folder(name, is_excluded),
                Entry::Unreadable { name } => {
                    self.unseen_files.take(&name);
                    self.unseen_folders.take(&name);
                }
            }
        }
        if self.listing.weight() >= PART_ENTRIES {
            self.send_part(ListingStatus::Part).map_err(|_| VisitError::Cancelled)?;
        }
        Ok(())
    }

    fn examine_entry(&mut self, name: OsString, kind: EntryKind) {
        let (kind, stat) = match kind {
            EntryKind::File | EntryKind::Unknown => match self.folder.stat(&name, false) {
                Ok(found) if self.listing.via_link => {
                    (found.kind, Some(Stat { links: LinkKind::ViaSymlink, ..found.stat }))
                }
                Ok(found) => (found.kind, Some(found.stat)),
                // Removed since it was listed: ignored.
                Err(error) if error.kind() == ErrorKind::NotFound => return,
                Err(error) => return self.record_unreadable(name, &error),
            },
            kind => (kind, None),
        };
        match (kind, stat) {
            (EntryKind::File, Some(stat)) => {
                let is_excluded = !self.matches(&name, false) || !self.walk.filter.matches_stat(&stat);
                if is_excluded {
                    self.skipped += skipped::unknown(&name, EntryKind::File);
                }
                self.examined.push(Entry::File { name, stat, is_excluded });
            }
            (EntryKind::Folder, _) => self.examine_folder(name),
            (EntryKind::Link, _) => {
                add(&self.walk.handle.counters.links, 1);
                let is_known = || self.unseen_files.has(&name) || self.unseen_folders.has(&name);
                let is_included = self.matches(&name, true);
                let is_followed = self.walk.root.follow_links && is_included && (!self.walk.only_known || is_known());
                let is_broken = self.is_broken_link(&name);
                let target = if is_broken || !is_followed { self.folder.link_target(&name).ok() } else { None };
                if let Some(target) = target.as_deref().filter(|_| is_broken) {
                    self.broken_links.push(BrokenLink { name: name.clone(), target: os_string(target) });
                }
                if is_followed {
                    self.defer_link(&name);
                    return;
                }
                self.skipped += skipped::link(&name, target.as_deref());
                if self.walk.root.follow_links && !is_included {
                    self.exclude(name);
                }
            }
            _ => {
                add(&self.walk.handle.counters.special, 1);
                self.skipped += skipped::special(&name);
            }
        }
    }

    /// Whether the target of a link does not exist. False for links that the filters exclude, and in a scan of known
    /// files for new links.
    fn is_broken_link(&self, name: &OsStr) -> bool {
        let known = self.walk.known_broken_links(&self.listing.folder);
        let is_considered = match self.walk.only_known {
            true => known.iter().any(|known| known.name == name),
            false => self.matches(name, false),
        };
        is_considered
            && self.folder.stat(name, true).is_err_and(|error| {
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || is_link_error(&error)
            })
    }

    /// Records an entry that exists but cannot be examined. Its rows stay unchanged.
    fn record_unreadable(&mut self, name: OsString, error: &io::Error) {
        add(&self.walk.handle.errors, 1);
        self.walk.record_error(&self.path_of(&name), &error.to_string());
        self.skipped += skipped::unknown(&name, EntryKind::Unknown);
        self.examined.push(Entry::Unreadable { name });
    }

    /// Marks the file or folder behind an excluded link as excluded.
    fn exclude(&mut self, name: OsString) {
        exclude_file(&mut self.listing, self.unseen_files.take(&name));
        if self.unseen_folders.take(&name).is_some_and(|known| !known.removed && !known.excluded) {
            self.listing.excluded_folders.push(name);
        }
    }

    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.listing.folder.path.join(name)
    }

    pub(super) fn matches(&self, name: &OsStr, is_folder: bool) -> bool {
        let filter = &self.walk.filter;
        let rules = self.rules.map(Arc::as_ref);
        !filter.tests_names() || filter.matches(&self.path_of(name), name, rules, is_folder)
    }

    fn compare_file(&mut self, name: OsString, stat: Stat, is_excluded: bool) {
        let known = self.unseen_files.take(&name);
        let only_known = self.walk.only_known;
        // A refresh has no filters, so files that the last scan excluded stay excluded.
        let stays_excluded = only_known && known.is_some_and(|known| known.excluded);
        if is_excluded {
            exclude_file(&mut self.listing, known);
        } else if stays_excluded || known.is_none() && only_known {
            self.skipped += skipped::unknown(&name, EntryKind::File);
        } else {
            self.walk.count(&stat);
            add_file(&mut self.listing, &self.walk.handle.counters, (name, stat), known, self.keeps_hashes);
        }
    }

    fn examine_folder(&mut self, name: OsString) {
        let path = self.path_of(&name);
        let is_on_other_device = || {
            self.walk.one_file_system
                && self.folder.stat(&name, false).is_ok_and(|found| found.stat.device != self.walk.device)
        };
        let is_excluded = !self.walk.nested_roots.contains(&path)
            && (!self.matches(&name, true) || self.walk.filter.is_too_deep(&path) || is_on_other_device());
        if is_excluded {
            self.skipped += skipped::unknown(&name, EntryKind::Folder);
        }
        self.examined.push(Entry::Folder { name, is_excluded });
    }

    fn compare_folder(&mut self, name: OsString, is_excluded: bool) {
        let known = self.unseen_folders.take(&name);
        let path = self.path_of(&name);
        let only_known = self.walk.only_known;
        if self.walk.nested_roots.contains(&path) {
            // A nested root is compared by its own walk. Its rows here are from before it was a root.
            if known.is_some() || self.walk.has_unplaced {
                self.listing.foreign_folders.push(name);
            }
            return;
        }
        let stays_excluded = only_known && known.is_some_and(|known| known.excluded);
        if is_excluded {
            if known.is_some_and(|known| !known.excluded && !known.removed) {
                self.listing.excluded_folders.push(name);
            }
            return;
        }
        if stays_excluded || known.is_none() && only_known {
            self.skipped += skipped::unknown(&name, EntryKind::Folder);
            return;
        }
        let via_link = self.listing.via_link;
        self.folders.push(FolderTask {
            parent_fs: self.listing.filesystem,
            rules: self.rules.cloned(),
            ..add_folder(&mut self.listing, path, known, via_link)
        });
    }

    /// Defers a link until all other entries have been walked.
    fn defer_link(&mut self, name: &OsStr) {
        let (file, folder) = (self.unseen_files.take(name), self.unseen_folders.take(name));
        let link = DeferredLink { parent: self.listing.folder.id, file, folder };
        lock(&self.walk.links).insert(self.path_of(name), link);
    }

    /// Marks the entries that were not seen as missing. Returns the folders to be walked and the files to be read next.
    pub(super) fn finish(mut self) -> TaskResult<(Vec<FolderTask>, FollowUps)> {
        let walk = self.walk;
        if self.may_be_unmounted && self.is_empty && self.had_entries && !walk.allow_empty {
            let folder_ref = self.listing.folder.clone();
            walk.record_failure(
                folder_ref,
                "empty now, but had files at the last scan. Is its disk mounted? \
                 No file is marked missing; use --allow-empty if its files were deleted",
            )?;
            return Ok(Default::default());
        }
        let missing = self.unseen_files.rest().filter(|(_, known)| !known.missing);
        self.listing.missing_files.extend(missing.map(|(_, known)| known.id));
        self.listing.missing_files.sort_unstable();
        let missing = self.unseen_folders.rest().filter(|(_, known)| !known.removed);
        self.listing.missing_folders.extend(missing.map(|(name, _)| name.clone()));
        self.listing.skipped = self.skipped;
        self.broken_links.sort_unstable();
        if self.broken_links != walk.known_broken_links(&self.listing.folder) {
            self.listing.broken_links = Some(std::mem::take(&mut self.broken_links));
        }
        self.send_part(match () {
            () if self.is_unchanged && !self.listing.changes_entries() => ListingStatus::Unchanged,
            () if walk.only_known => ListingStatus::Known,
            () => ListingStatus::Whole,
        })?;
        Ok((self.folders, self.follow_ups))
    }

    pub(super) fn send_part(&mut self, status: ListingStatus) -> TaskResult<()> {
        let mut next = Listing::new(self.walk.scan, self.listing.folder.clone());
        next.filesystem = self.listing.filesystem;
        next.mount_point = self.listing.mount_point;
        next.via_link = self.listing.via_link;
        next.known_digest = self.listing.known_digest;
        let mut listing = std::mem::replace(&mut self.listing, next);
        if status != ListingStatus::Whole {
            listing.digest = None;
        }
        listing.status = status;
        let Walk { queue, early, root, .. } = self.walk;
        let number = queue.next_listing();
        let hashes = early.as_ref().map(|early| {
            let root = (&self.walk.root_folder, root.follow_links);
            early.hash_listing(self.folder, root, (number, &mut listing), &mut self.follow_ups)
        });
        queue.add_listing(number, listing)?;
        queue.add_hashes(hashes.unwrap_or_default())
    }
}

/// Known entries of a folder by name, until they are seen. A sorted list, because a folder may have a million entries
/// and a hash table takes three times the memory.
pub(super) struct Unseen<T> {
    known: Vec<(OsString, T)>,
    taken: Vec<bool>,
}

impl<T> Default for Unseen<T> {
    fn default() -> Self {
        Unseen { known: Vec::new(), taken: Vec::new() }
    }
}

impl<T: Copy> Unseen<T> {
    fn new(mut known: Vec<(OsString, T)>) -> Self {
        // The input is mostly sorted, which the stable sort exploits.
        known.sort_by(|(a, _), (b, _)| a.cmp(b));
        let taken = vec![false; known.len()];
        Unseen { known, taken }
    }

    fn position(&self, name: &OsStr) -> Option<usize> {
        self.known.binary_search_by(|(known, _)| known.as_os_str().cmp(name)).ok()
    }

    fn has(&self, name: &OsStr) -> bool {
        self.position(name).is_some_and(|position| !self.taken.get(position).copied().unwrap_or(true))
    }

    pub(super) fn take(&mut self, name: &OsStr) -> Option<T> {
        let position = self.position(name)?;
        let taken = std::mem::replace(self.taken.get_mut(position)?, true);
        self.known.get(position).filter(|_| !taken).map(|(_, known)| *known)
    }

    fn rest(&self) -> impl Iterator<Item = &(OsString, T)> {
        self.known.iter().zip(&self.taken).filter(|(_, taken)| !**taken).map(|(known, _)| known)
    }
}

/// Adds an existing file to the listing if it is new, changed or returned.
pub(super) fn add_file(
    listing: &mut Listing,
    counters: &Counters,
    (name, stat): (OsString, Stat),
    known: Option<KnownFile>,
    keeps_hash: bool,
) {
    let Some(known) = known else {
        add(&counters.new, 1);
        listing.new_files.push((name, stat));
        return;
    };
    let is_verified = keeps_hash && !known.racy;
    match known.stat.is_same(&stat) {
        _ if known.missing => add(&counters.returned, 1),
        _ if known.excluded => add(&counters.included, 1),
        true if !is_verified => add(&counters.unverified, 1),
        true if known.stat == stat => return,
        // Only the device number or the allocated blocks have changed, so the file is not read again.
        true => {}
        false => add(&counters.changed, 1),
    }
    listing.changed_files.push(ChangedFile { id: known.id, stat, keeps_hash: is_verified });
}

/// Adds a known file that the filters exclude to the listing.
pub(super) fn exclude_file(listing: &mut Listing, known: Option<KnownFile>) {
    let included = known.filter(|known| !known.missing && !known.excluded);
    listing.excluded_files.extend(included.map(|known| known.id));
}

/// Adds a folder that returned to the listing. Returns the task to walk it, which writes the row of a new folder.
pub(super) fn add_folder(
    listing: &mut Listing,
    path: PathBuf,
    known: Option<KnownFolder>,
    via_link: bool,
) -> FolderTask {
    listing.returned_folders.extend(known.filter(|known| known.removed || known.excluded).map(|known| known.id));
    FolderTask::new(listing.folder.root, path, known, via_link)
}
