//! Assigns files to the sides of a question: the files to list, and those they are compared with.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use gristmill_store::roots::Root;

use crate::error::{Error, Result};

/// Bit of a label: copies among these files count. Without it, the file is listed if it has none.
pub(super) const COMPARED: u8 = 1;
/// Bit of a label: the root of the file cannot be reached now.
pub(super) const ABSENT: u8 = 2;

/// The named folders.
pub(super) struct Sides {
    /// Absolute paths with their labels, innermost folders first.
    folders: Vec<(PathBuf, u8)>,
    /// Whether all other files are compared.
    compares_others: bool,
}

/// The side of each file of a root.
pub(super) struct RootSides {
    /// Named folders in the root, by their path in it, innermost first.
    inner: Vec<(PathBuf, u8)>,
    /// Label of the files that are in none of them.
    outer: Option<u8>,
    absent: u8,
}

impl Sides {
    pub(super) fn new(inside: Vec<PathBuf>, not_in: Vec<PathBuf>) -> Result<Self> {
        if let Some(both) = inside.iter().find(|path| not_in.contains(path)) {
            let text = "cannot be listed and compared with itself; name a folder inside it, or another one";
            return Err(Error::Root(both.clone(), text.to_owned()));
        }
        let compares_others = not_in.is_empty();
        let named = inside.into_iter().map(|path| (path, 0));
        let mut folders: Vec<(PathBuf, u8)> = named.chain(not_in.into_iter().map(|path| (path, COMPARED))).collect();
        folders.sort_by_key(|(path, _)| usize::MAX - path.as_os_str().len());
        Ok(Sides { folders, compares_others })
    }

    /// Whether files of a side can be in or below this folder.
    pub(super) fn touch(&self, folder: &Path) -> bool {
        let touches = |(path, _): &(PathBuf, u8)| folder.starts_with(path) || path.starts_with(folder);
        self.compares_others || self.folders.iter().any(touches)
    }

    /// Returns the sides of all roots, by row id.
    pub(super) fn in_roots(&self, roots: &[Root], absent: &HashSet<i64>) -> HashMap<i64, RootSides> {
        let sides = |root: &Root| {
            let around = self.folders.iter().find(|(path, _)| root.path.starts_with(path));
            let inner = self.folders.iter().filter_map(|(path, label)| {
                let inside = path.strip_prefix(&root.path).ok().filter(|inside| !inside.as_os_str().is_empty())?;
                Some((inside.to_path_buf(), *label))
            });
            RootSides {
                inner: inner.collect(),
                outer: around.map(|(_, label)| *label).or(self.compares_others.then_some(COMPARED)),
                absent: if absent.contains(&root.id) { ABSENT } else { 0 },
            }
        };
        roots.iter().map(|root| (root.id, sides(root))).collect()
    }
}

impl RootSides {
    /// Returns the label of a file by its path in the root, or `None` if it is on no side.
    pub(super) fn label(&self, path: &Path) -> Option<u8> {
        let inner = self.inner.iter().find(|(folder, _)| path.starts_with(folder));
        Some(inner.map(|(_, label)| *label).or(self.outer)? | self.absent)
    }
}
