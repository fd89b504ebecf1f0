//! Files of the catalog on the disk, as they are now.
//!
//! Owns how they are opened: below the folder of their root, which must be reachable, and without following symbolic
//! links unless the scans of the root do.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use gristmill_store::Store;
use gristmill_store::catalog::{LikeFile, ReadResult, Stat};
use gristmill_store::roots::Root;

use super::Verdict;
use crate::coverage::join;
use crate::read::{self, HashScope, Throttle};
use crate::roots::{self, open_if_reachable};
use crate::sys::{EntryKind, Folder};

/// A file of the catalog as it is now.
pub(super) enum OnDisk {
    File(Stat),
    /// There is no file of this name.
    Gone,
    /// It cannot be examined. The text says why.
    Unknown(String),
}

/// The part of a file that was read.
#[derive(Default)]
pub(super) struct ReadContent {
    pub(super) samples: Option<i64>,
    pub(super) hash: Option<Vec<u8>>,
}

pub(super) struct Disk<'a> {
    store: &'a Store,
    all_roots: &'a [Root],
    roots: HashMap<i64, &'a Root>,
    /// Folders of roots, or `None` for those that cannot be reached.
    open: HashMap<i64, Option<Folder>>,
    /// The folder of the file that was examined last, by root and path.
    last: Option<(i64, PathBuf, Folder)>,
}

impl<'a> Disk<'a> {
    pub(super) fn new(store: &'a Store, all_roots: &'a [Root]) -> Self {
        let roots = all_roots.iter().map(|root| (root.id, root)).collect();
        Disk { store, all_roots, roots, open: HashMap::new(), last: None }
    }

    pub(super) fn path(&self, row: &LikeFile) -> PathBuf {
        self.roots.get(&row.root).map_or_else(|| row.path.clone(), |root| join(&root.path, &row.path))
    }

    pub(super) fn root_path(&self, row: &LikeFile) -> Option<PathBuf> {
        self.roots.get(&row.root).map(|root| root.path.clone())
    }

    /// Returns the path of the root that contains a path.
    pub(super) fn root_of(&self, path: &Path) -> Option<PathBuf> {
        roots::innermost(self.all_roots, path).map(|root| root.path.clone())
    }

    /// Returns the current metadata of a file.
    pub(super) fn stat(&mut self, row: &LikeFile) -> OnDisk {
        let (folder, follow) = match self.folder(row) {
            Ok(found) => found,
            Err(unknown) => return unknown,
        };
        match folder.stat(row.path.file_name().unwrap_or_default(), follow) {
            Ok(found) if found.kind == EntryKind::File => OnDisk::File(found.stat),
            Ok(_) => OnDisk::Gone,
            Err(error) => missing_or_unknown(&error),
        }
    }

    /// Reads a file whose metadata are those of its row. Fails with the verdict on a file that was not read unchanged.
    pub(super) fn read(
        &mut self,
        row: &LikeFile,
        scope: HashScope,
        throttle: &Throttle,
    ) -> Result<ReadContent, Verdict> {
        let possible = |reason: &str| Verdict::Possible(format!("could not be compared: {reason}"));
        let (folder, follow) = match self.folder(row) {
            Ok(found) => found,
            Err(OnDisk::Unknown(reason)) => return Err(possible(&reason)),
            Err(_) => return Err(Verdict::Differs),
        };
        let open = || read::open_file(folder, row.path.file_name().unwrap_or_default(), follow);
        let Some(read) = read::read_file(None, open, &row.stat, scope, throttle) else {
            return Err(possible("reading was cancelled"));
        };
        if read.is_read() && !read.is_same(&row.stat) {
            return Err(Verdict::Changed { reason: "changed while it was compared".to_owned(), may_be_equal: true });
        }
        match read.result {
            ReadResult::Content(digest) => Ok(ReadContent { hash: Some(digest.hash), ..ReadContent::default() }),
            ReadResult::Samples(samples) => Ok(ReadContent { samples: Some(samples), ..ReadContent::default() }),
            ReadResult::Gone => Err(Verdict::Differs),
            ReadResult::Failed(error) => Err(possible(&error)),
        }
    }

    /// Opens the folder of a file. Also returns whether links are followed.
    fn folder(&mut self, row: &LikeFile) -> Result<(&Folder, bool), OnDisk> {
        let Some(root) = self.roots.get(&row.root) else { return Err(OnDisk::Gone) };
        let parent = row.path.parent().unwrap_or(Path::new(""));
        let is_last = self.last.as_ref().is_some_and(|(id, path, _)| (*id, path.as_path()) == (row.root, parent));
        if !is_last {
            let store = self.store;
            let open = self.open.entry(row.root).or_insert_with(|| open_if_reachable(store, root));
            let Some(top) = open else {
                return Err(OnDisk::Unknown("its root cannot be reached now".to_owned()));
            };
            let folder = top.open_below(parent, root.follow_links).map_err(|error| missing_or_unknown(&error))?;
            self.last = Some((row.root, parent.to_path_buf(), folder));
        }
        let last = self.last.as_ref().ok_or(OnDisk::Gone)?;
        Ok((&last.2, root.follow_links))
    }
}

fn missing_or_unknown(error: &io::Error) -> OnDisk {
    if read::is_missing(error) { OnDisk::Gone } else { OnDisk::Unknown(error.to_string()) }
}
