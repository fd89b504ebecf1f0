//! Follows the symbolic links of a root after all other entries have been walked.
//!
//! Owns the rule that no folder is walked twice: a link to a root, or to the target of another link, is not followed.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_pool::{Context, Pool, TaskResult};
use gristmill_store::catalog::{FolderRef, KnownFile, KnownFolder, LinkKind, Listing, Skipped, Stat};
use gristmill_store::display_path;

use super::visit::{add_file, add_folder, exclude_file};
use super::{Walk, skipped};
use crate::lock;
use crate::progress::add;
use crate::scan::run::ScanRun;
use crate::sys::{EntryKind, Folder};

/// A symbolic link to follow later, and the rows that the catalog has for its path.
#[derive(Clone, Copy)]
pub(super) struct DeferredLink {
    pub(super) parent: Option<i64>,
    pub(super) file: Option<KnownFile>,
    pub(super) folder: Option<KnownFolder>,
}

/// Follows the links that were found, one after another, so that the same tree is always walked in the same way.
pub(super) fn follow_all(run: &ScanRun<'_>, walks: &[Arc<Walk>], pool: &Pool) {
    for walk in walks {
        while !run.handle.is_cancelled() && walk.follow_next(pool) {
            run.wait(pool);
        }
    }
}

impl Walk {
    pub(super) fn is_first_visit_by_link(&self, folder: &Folder) -> bool {
        folder.own_stat().is_ok_and(|own| lock(&self.visited).insert((own.device, own.inode)))
    }

    /// Whether a link leads to a root, which is walked separately.
    pub(super) fn leads_to_root(&self, path: &Path) -> bool {
        let found = std::fs::canonicalize(self.root.path.join(path));
        found.is_ok_and(|found| self.roots.contains(&found))
    }

    /// Describes a link that is not followed, by its target.
    pub(super) fn skipped_link(&self, path: &Path, name: &OsStr) -> Skipped {
        let target = std::fs::read_link(self.root.path.join(path)).map(PathBuf::into_os_string);
        skipped::link(name, target.ok().as_deref().map(OsStr::as_encoded_bytes))
    }

    /// Follows the next link, in the order of their paths, on the pool. Returns false if none is left.
    fn follow_next(self: &Arc<Self>, pool: &Pool) -> bool {
        let Some((path, link)) = lock(&self.links).pop_first() else { return false };
        let walk = self.clone();
        pool.submit(move |ctx| walk.follow_link(ctx, path, link)).is_ok()
    }

    fn follow_link(self: &Arc<Self>, ctx: &Context, path: PathBuf, link: DeferredLink) -> TaskResult<()> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let folder_ref = FolderRef { root: self.root.id, id: link.parent, path: parent };
        let mut listing = Listing::new(self.scan, folder_ref);
        let full = self.root.path.join(&path);
        let target = std::fs::canonicalize(&full).and_then(|target| Ok((std::fs::metadata(&full)?, target)));
        let target_is_folder = match target {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.handle.counters.record_link(&self.handle.counters.broken_links, &full, "broken symbolic link");
                None
            }
            // The link may work again later, so nothing behind it is marked missing.
            Err(error) => {
                add(&self.handle.errors, 1);
                self.record_error(&path, &format!("cannot follow symbolic link: {error}"));
                listing.skipped = skipped::unknown(&name, EntryKind::Link);
                return self.send_listing(listing);
            }
            Ok((_, target)) if full.starts_with(&target) => {
                let reason = format!("symbolic link back to {}; not followed", display_path(&target));
                self.handle.counters.record_link(&self.handle.counters.repeated_links, &full, &reason);
                None
            }
            // The target is walked as part of its root.
            Ok((_, target)) if self.roots.iter().any(|root| target.starts_with(root)) => None,
            Ok((metadata, _)) => Some(metadata.is_dir()),
        };
        let parent = self.root_folder.open_below(&listing.folder.path, true);
        if target_is_folder.is_none() {
            listing.skipped = self.skipped_link(&path, &name);
        }
        let file = match (&parent, target_is_folder) {
            (Ok(parent), Some(false)) => parent.stat(&name, true).ok().filter(|found| found.kind == EntryKind::File),
            _ => None,
        };
        let filter = &self.filter;
        match (file, link.file) {
            (Some(found), known) if filter.matches(&path, &name, None, false) && filter.matches_stat(&found.stat) => {
                let stat = Stat { links: LinkKind::ViaSymlink, ..found.stat };
                self.count(&stat);
                add_file(&mut listing, &self.handle.counters, (name.clone(), stat), known, true);
            }
            // The filters exclude the target.
            (Some(_), known) => {
                listing.skipped = skipped::unknown(&name, EntryKind::File);
                exclude_file(&mut listing, known);
            }
            (None, known) => {
                // The target is a special file, or its metadata cannot be read.
                if target_is_folder == Some(false) {
                    listing.skipped = skipped::unknown(&name, EntryKind::Unknown);
                }
                listing.missing_files.extend(known.filter(|known| !known.missing).map(|known| known.id));
            }
        }
        let is_excluded = target_is_folder == Some(true) && filter.is_too_deep(&path);
        if is_excluded {
            listing.skipped = skipped::unknown(&name, EntryKind::Folder);
            if link.folder.is_some_and(|known| !known.removed && !known.excluded) {
                listing.excluded_folders.push(name.clone());
            }
        }
        let next =
            (target_is_folder == Some(true) && !is_excluded).then(|| add_folder(&mut listing, path, link.folder, true));
        if next.is_none() && !is_excluded && link.folder.is_some_and(|known| !known.removed) {
            listing.missing_folders.push(name);
        }
        self.send_listing(listing)?;
        match next {
            Some(folder_task) => self.walk_folder(ctx, folder_task),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::scan::ScanMode;
    use crate::scan::run::tests::{assert_renews_heartbeat, with_run};

    #[test]
    fn heartbeat_is_renewed_while_links_are_followed() {
        with_run(ScanMode::Walk, |mut run, clock| {
            let path = &run.chosen[0].path;
            let target = path.with_file_name("target");
            std::fs::create_dir(&target).expect("a folder");
            std::os::unix::fs::symlink(&target, path.join("link")).expect("a link");
            let roots = Arc::new(vec![path.clone()]);
            let walk = Walk::new(&run, (&run.chosen[0], run.scans[0].id), &roots, &roots).expect("a walk");
            let pool = run.pool("walk").expect("a pool");
            walk.begin(&pool).expect("begun");
            run.wait(&pool);
            let walks = [walk];
            assert_renews_heartbeat(&mut run, clock, |run| follow_all(run, &walks, &pool));
            assert_eq!(run.handle.progress().folders, 2, "the link was followed");
        });
    }
}
