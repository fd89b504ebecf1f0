//! Links of a root that follows them, when all else has been walked.
//!
//! Owns where a link leads, and that nothing is walked twice: not what is a root, nor what another link led to.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use gristmill_pool::{Context, Pool, TaskResult};
use gristmill_store::catalog::{FolderRef, KnownFile, KnownFolder, LinkKind, Listing, Skipped, Stat};

use super::visit::add_file;
use super::{ToWalk, Walk, skipped};
use crate::progress::add;
use crate::sys::{Folder, Kind};
use gristmill_store::display_path;

/// A link to be followed when the rest has been walked.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) parent: Option<i64>,
    pub(super) file: Option<KnownFile>,
    pub(super) folder: Option<KnownFolder>,
}

impl Walk {
    pub(super) fn is_new_to_links(&self, folder: &Folder) -> bool {
        folder.own().is_ok_and(|own| {
            self.visited.lock().unwrap_or_else(PoisonError::into_inner).insert((own.device, own.inode))
        })
    }

    /// Whether what a link led to is a root: that is walked by itself.
    pub(super) fn is_a_root(&self, path: &Path) -> bool {
        let found = std::fs::canonicalize(self.job.root.path.join(path));
        found.is_ok_and(|found| self.job.roots.contains(&found))
    }

    /// Whether there are links to be followed.
    pub(crate) fn has_links(&self) -> bool {
        !self.links.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// A link that does not lead to a file or folder of this root: it is known by its target.
    pub(super) fn skipped_link(&self, path: &Path, name: &OsStr) -> Skipped {
        let target = std::fs::read_link(self.job.root.path.join(path)).map(PathBuf::into_os_string);
        skipped::link(name, target.ok().as_deref().map(OsStr::as_encoded_bytes))
    }

    /// Follows the next link, if there is one left, in the order of their paths: so the same tree is walked in the
    /// same way each time.
    pub(crate) fn follow_next(self: &Arc<Self>, pool: &Pool) {
        let next = self.links.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
        let Some((path, link)) = next else { return };
        let walk = self.clone();
        // On the pool: links lead anywhere, and a disk that hangs must not hang the one who waits.
        let _ = pool.submit(move |ctx| walk.follow(ctx, path, link));
    }

    fn follow(self: &Arc<Self>, ctx: &Context, path: PathBuf, link: Link) -> TaskResult<()> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let place = FolderRef { root: self.job.root.id, id: link.parent, path: parent };
        let mut listing = Listing::new(self.job.scan, place);
        let full = self.job.root.path.join(&path);
        let target = std::fs::canonicalize(&full).and_then(|target| Ok((std::fs::metadata(&full)?, target)));
        let leads = match target {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.job.tally.pass_link(&self.job.tally.broken_links, &full, "a link that leads nowhere");
                None
            }
            // It may lead somewhere again: nothing behind it counts as gone.
            Err(error) => {
                add(&self.job.control.errors, 1);
                self.complain(&path, &format!("a link that cannot be followed: {error}"));
                listing.skipped = skipped::unknown(&name, Kind::Link);
                return self.note(listing);
            }
            Ok((_, target)) if full.starts_with(&target) => {
                let words = format!("a link back to {}: not followed", display_path(&target));
                self.job.tally.pass_link(&self.job.tally.repeated_links, &full, &words);
                None
            }
            // It is walked where it is.
            Ok((_, target)) if self.job.roots.iter().any(|root| target.starts_with(root)) => None,
            Ok((metadata, _)) => Some(metadata.is_dir()),
        };
        let below = self.top.below(&listing.folder.path, true);
        if leads.is_none() {
            listing.skipped = self.skipped_link(&path, &name);
        }
        let file = match (&below, leads) {
            (Ok(below), Some(false)) => below.stat(&name, true).ok().filter(|found| found.kind == Kind::File),
            _ => None,
        };
        let sieve = &self.job.manner.sieve;
        match (file, link.file) {
            (Some(found), known) if sieve.takes_file(&path, &name, None) && sieve.takes_stat(&found.stat) => {
                let stat = Stat { links: LinkKind::ViaSymlink, ..found.stat };
                add(&self.job.control.files, 1);
                add(&self.job.control.bytes, self.bytes_of(&stat));
                add_file(&mut listing, &self.job.tally, (name.clone(), stat), known, true);
            }
            // It leads to a file that the filters leave out.
            (Some(_), known) => {
                listing.skipped = skipped::unknown(&name, Kind::File);
                let included = known.filter(|known| !known.missing && !known.excluded);
                listing.excluded_files.extend(included.map(|known| known.id));
            }
            (None, known) => {
                // A special file, or one that has no stat now.
                if leads == Some(false) {
                    listing.skipped = skipped::unknown(&name, Kind::Unknown);
                }
                listing.missing_files.extend(known.filter(|known| !known.missing).map(|known| known.id));
            }
        }
        let mut next = None;
        match (leads == Some(true), link.folder) {
            (true, known) => {
                let id = known.as_ref().map(|known| known.id);
                match known {
                    None => listing.new_folders.push(name),
                    Some(known) if known.removed || known.excluded => listing.returned_folders.push(known.id),
                    Some(_) => {}
                }
                let place = FolderRef { root: self.job.root.id, id, path };
                let filesystem = known.and_then(|known| known.filesystem);
                next = Some(ToWalk {
                    place,
                    filesystem,
                    was_mount_point: false,
                    above: None,
                    rules: None,
                    by_link: true,
                });
            }
            (false, Some(known)) if !known.removed => listing.missing_folders.push(name),
            _ => {}
        }
        self.note(listing)?;
        match next {
            Some(to_walk) => self.folder(ctx, to_walk),
            None => Ok(()),
        }
    }
}
