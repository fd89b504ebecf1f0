//! Visits the files that the user named, and nothing else.
//!
//! Owns what a named entry is: a file that is scanned, one that is missing, one that is skipped, or an error. All other
//! rows stay as they are, also those of the folders: they keep the result of their last complete walk. A file is marked
//! missing only if its folder can be opened and is on the filesystem of its last walk.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use gristmill_pool::{Context, Pool, Task, TaskError, TaskResult};
use gristmill_store::catalog::{FolderRef, KnownEntries, KnownFolder, LinkKind, ListingStatus, Stat};

use super::Walk;
use super::visit::{PART_ENTRIES, Visit, add_file};
use crate::error::{Error, Result};
use crate::filter::IgnoreRules;
use crate::named::{IS_FOLDER, NO_SUCH_FILE, NamesOfRoot};
use crate::progress::add;
use crate::read::is_missing;
use crate::roots::{is_empty, open_if_reachable};
use crate::scan::reader::BusyGuard;
use crate::scan::run::{ScanRun, UNREACHABLE};
use crate::sys::{EntryKind, EntryStat};

const EXCLUDED: &str = "excluded by the filters";

impl Walk {
    /// Refuses a root whose disk is not mounted. A walk of a whole root checks that for each folder.
    pub(super) fn check_reachable(&self, run: &ScanRun<'_>) -> Result<()> {
        let is_checked = run.named.contains_key(&self.root.id) && !self.allow_empty;
        match is_checked && open_if_reachable(&self.store, &self.root).is_none() {
            true => {
                let reason = format!("{UNREACHABLE} Use --allow-empty if its files were deleted");
                Err(Error::Root(self.root.path.clone(), reason))
            }
            false => Ok(()),
        }
    }

    /// Submits the folders with named files.
    pub(super) fn begin_named(self: &Arc<Self>, run: &ScanRun<'_>, pool: &Pool, names: &Arc<NamesOfRoot>) {
        for (folder, names) in names.iter() {
            let (walk, folder, names) = (self.clone(), folder.clone(), names.clone());
            let task = Task::new(move |ctx: &Context| walk.visit_named(ctx, &folder, &names));
            // Refused only if the scan is cancelled.
            if pool.submit_until(task, self.handle.token()).is_err() {
                break;
            }
            run.renew_heartbeat();
        }
    }

    fn visit_named(self: &Arc<Self>, ctx: &Context, path: &Path, names: &BTreeSet<OsString>) -> TaskResult<()> {
        let _busy = BusyGuard::new(&self.handle);
        let Some(rules) = self.rules_of(path) else { return self.skip_all(path, names, EXCLUDED) };
        let folder = match self.root_folder.open_below(path, false) {
            Ok(folder) => folder,
            Err(error) if is_missing(&error) => return self.fail_all(path, names, NO_SUCH_FILE),
            Err(error) => return self.fail_all(path, names, &format!("cannot open its folder: {error}")),
        };
        let device = folder.own_stat()?.device;
        if device != self.device && self.one_file_system {
            return self.skip_all(path, names, "on another file system than its root");
        }
        if device != self.device && folder.is_virtual() {
            return self.skip_all(path, names, "on a virtual file system");
        }
        let row = self.store.catalog().folder(self.root.id, path)?;
        let filesystem = self.filesystem_of(&folder, device)?;
        if let Some((before, now)) = row.and_then(|row| row.filesystem).zip(filesystem)
            && !self.may_be_one_filesystem(before, now)?
        {
            let reason = "not on the disk of the last scan of its folder; scan the whole folder";
            return self.fail_all(path, names, reason);
        }
        let folder_ref = FolderRef { root: self.root.id, id: row.map(|row| row.id), path: path.to_path_buf() };
        let mut files = self.store.catalog().known_files(&folder_ref, self.has_unusual)?;
        let may_be_unmounted = row.is_some_and(|row: KnownFolder| row.mount_point) && !self.allow_empty;
        let is_unmounted = may_be_unmounted && files.iter().any(|(_, file)| !file.missing) && is_empty(&folder);
        if is_unmounted {
            return self.fail_all(path, names, "its folder is empty now. Is its disk mounted?");
        }
        files.retain(|(name, _)| names.contains(name));
        let mut visit = Visit::new(self, &folder, &folder_ref, rules.as_ref());
        visit.set_known(KnownEntries { files, folders: Vec::new() });
        visit.listing.filesystem = filesystem;
        for name in names {
            if ctx.is_cancelled() || self.handle.is_cancelled() {
                return Err(TaskError::cancelled());
            }
            visit.visit_name(name);
            if visit.listing.weight() >= PART_ENTRIES {
                visit.send_part(ListingStatus::Named)?;
            }
        }
        // A listing without changes would only write the folder's row.
        if visit.listing.weight() > 1 {
            visit.send_part(ListingStatus::Named)?;
        }
        let follow_ups = std::mem::take(&mut visit.follow_ups);
        self.schedule_follow_ups(ctx, Vec::new(), follow_ups)
    }

    /// Applies the filters to a folder and those above it. Returns the `.gitignore` rules for its entries, if there are
    /// any; `None` if the folder is excluded.
    fn rules_of(&self, path: &Path) -> Option<Option<Arc<IgnoreRules>>> {
        if !self.filter.tests_names() {
            return (!self.filter.is_too_deep(path)).then_some(None);
        }
        let rules_in = |folder: &Path, parent| match self.root_folder.open_below(folder, false) {
            Ok(opened) => self.gitignore_rules(&opened, folder, parent),
            Err(_) => parent,
        };
        let uses_gitignore = self.filter.uses_gitignore();
        let mut rules = if uses_gitignore { rules_in(Path::new(""), None) } else { None };
        let mut above: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        above.reverse();
        for folder in above {
            let name = folder.file_name().unwrap_or_default();
            let is_included = self.filter.matches(folder, name, rules.as_deref(), true);
            if !is_included || self.filter.is_too_deep(folder) {
                return None;
            }
            if uses_gitignore {
                rules = rules_in(folder, rules);
            }
        }
        Some(rules)
    }

    fn fail_all(&self, folder: &Path, names: &BTreeSet<OsString>, reason: &str) -> TaskResult<()> {
        names.iter().for_each(|name| self.fail_name(&folder.join(name), reason));
        Ok(())
    }

    fn skip_all(&self, folder: &Path, names: &BTreeSet<OsString>, reason: &str) -> TaskResult<()> {
        names.iter().for_each(|name| self.skip_name(&folder.join(name), reason));
        Ok(())
    }

    fn fail_name(&self, path: &Path, reason: &str) {
        self.handle.counters.record_name_error(&self.absolute(path), reason);
    }

    fn skip_name(&self, path: &Path, reason: &str) {
        self.handle.counters.record_skipped_name(&self.absolute(path), reason);
    }
}

impl Visit<'_> {
    fn visit_name(&mut self, name: &OsStr) {
        let path = self.path_of(name);
        let found = match self.folder.stat(name, false) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if !self.mark_missing(name) {
                    self.walk.fail_name(&path, NO_SUCH_FILE);
                }
                return;
            }
            Err(error) => return self.walk.fail_name(&path, &error.to_string()),
        };
        match found.kind {
            EntryKind::File => self.visit_named_file(name, &path, found.stat),
            EntryKind::Folder => {
                self.mark_missing(name);
                self.walk.fail_name(&path, IS_FOLDER);
            }
            EntryKind::Link => self.visit_named_link(name, &path),
            EntryKind::Special | EntryKind::Unknown => {
                self.mark_missing(name);
                add(&self.walk.handle.counters.special, 1);
                self.walk.skip_name(&path, "a pipe, socket or device");
            }
        }
    }

    /// Marks a known file as missing. Returns whether it is known.
    fn mark_missing(&mut self, name: &OsStr) -> bool {
        let known = self.unseen_files.take(name);
        self.listing.missing_files.extend(known.filter(|known| !known.missing).map(|known| known.id));
        known.is_some()
    }

    fn visit_named_file(&mut self, name: &OsStr, path: &Path, stat: Stat) {
        let walk = self.walk;
        let known = self.unseen_files.take(name);
        if !self.matches(name, false) || !walk.filter.matches_stat(&stat) {
            return walk.skip_name(path, EXCLUDED);
        }
        walk.count(&stat);
        add_file(&mut self.listing, &walk.handle.counters, (name.to_owned(), stat), known, true);
    }

    /// Follows a link to a file outside all roots, if the root follows links. One to a file in a root was replaced by
    /// that file before the walk.
    fn visit_named_link(&mut self, name: &OsStr, path: &Path) {
        let walk = self.walk;
        add(&walk.handle.counters.links, 1);
        if !walk.root.follow_links {
            self.mark_missing(name);
            return walk.skip_name(path, "a symbolic link; --follow-links follows it");
        }
        let target = std::fs::canonicalize(walk.root.path.join(path));
        match target.and_then(|target| Ok((target, self.folder.stat(name, true)?))) {
            Ok((target, _)) if walk.roots.iter().any(|root| target.starts_with(root)) => {
                self.mark_missing(name);
                walk.skip_name(path, "a symbolic link into a root, which has the file");
            }
            Ok((_, EntryStat { kind: EntryKind::File, stat })) => {
                self.visit_named_file(name, path, Stat { links: LinkKind::ViaSymlink, ..stat });
            }
            Ok((_, EntryStat { kind: EntryKind::Folder, .. })) => {
                self.mark_missing(name);
                walk.fail_name(path, "a symbolic link to a folder; pass the folder as an argument to scan it");
            }
            Ok(_) => {
                self.mark_missing(name);
                walk.skip_name(path, "a symbolic link to a pipe, socket or device");
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.mark_missing(name);
                walk.fail_name(path, "broken symbolic link");
            }
            Err(error) => walk.fail_name(path, &format!("cannot follow symbolic link: {error}")),
        }
    }
}
