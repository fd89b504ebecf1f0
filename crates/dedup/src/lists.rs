//! Lists empty files, empty folders and broken symbolic links, from the catalog.
//!
//! Owns the definition of an empty folder: its last walk listed it completely, and it contains nothing, or only folders
//! that are empty themselves. Entries that were skipped or excluded are contents. The folder of a root is not listed,
//! and neither is a folder that contains a root.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use gristmill_store::Store;
use gristmill_store::catalog::{ListedFile, ListedFolder, ListedLink};
use gristmill_store::roots::Root;

use crate::coverage::gaps;
use crate::{Coverage, Result};

/// An empty folder that is in no other empty folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyFolder {
    /// Id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Number of folders in and below it, itself included.
    pub folders: u64,
}

/// States how complete a list is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListCoverage {
    /// Whether all folders of the roots have been listed, as far as filters include them.
    pub complete: bool,
    /// Folders that no scan has listed completely, or only one of a version that did not look for broken links.
    pub unlisted_folders: u64,
    /// Roots whose last scan had filters. Entries that these excluded are in no list.
    pub filtered_roots: Vec<PathBuf>,
    /// Roots and folders that cannot be reached or were not scanned. No files are counted in it.
    pub coverage: Coverage,
}

/// Returns the present files without content, by path, of the roots `only`, or of all roots if it is empty.
pub fn empty_files(store: &Store, only: &[i64]) -> Result<Vec<ListedFile>> {
    let files = store.catalog().empty_files()?;
    sorted(store, only, files, |file| (file.root, &file.path))
}

/// Returns the broken symbolic links by path.
pub fn broken_links(store: &Store, only: &[i64]) -> Result<Vec<ListedLink>> {
    let links = store.catalog().broken_links()?;
    sorted(store, only, links, |link| (link.root, &link.path))
}

/// Returns the topmost empty folders by path, except those of roots whose last scan has not finished: the catalog may
/// not have their subfolders yet.
pub fn empty_folders(store: &Store, only: &[i64]) -> Result<Vec<EmptyFolder>> {
    let unfinished = store.scans().unfinished()?;
    let folders = store.catalog().existing_folders()?;
    let index: HashMap<i64, usize> = folders.iter().enumerate().map(|(at, folder)| (folder.id, at)).collect();
    let parent = |at: usize| folders.get(at)?.parent.and_then(|parent| index.get(&parent).copied());
    let roots = store.roots().list()?;
    let around_roots = folders_around_roots(&roots);
    let has_contents = |folder: &ListedFolder| {
        let is_root = folder.path.as_os_str().is_empty();
        let is_unfinished = unfinished.contains(&folder.root);
        is_root
            || is_unfinished
            || !folder.has_only_folders
            || around_roots.contains(&(folder.root, folder.path.as_path()))
    };
    let mut is_empty = vec![true; folders.len()];
    for (at, _) in folders.iter().enumerate().filter(|(_, folder)| has_contents(folder)) {
        let mut next = Some(at);
        while let Some(empty) = next.and_then(|at| is_empty.get_mut(at)).filter(|empty| **empty) {
            *empty = false;
            next = next.and_then(parent);
        }
    }
    let is_empty_at = |at: usize| is_empty.get(at).copied().unwrap_or_default();
    let mut found: HashMap<usize, EmptyFolder> = HashMap::new();
    for (at, _) in folders.iter().enumerate().filter(|(at, _)| is_empty_at(*at)) {
        let mut topmost = at;
        while let Some(above) = parent(topmost).filter(|above| is_empty_at(*above)) {
            topmost = above;
        }
        // A folder without a parent is below no root.
        let Some(folder) = folders.get(topmost).filter(|_| parent(topmost).is_some()) else { continue };
        let entry = || EmptyFolder { root: folder.root, path: folder.path.clone(), folders: 0 };
        found.entry(topmost).or_insert_with(entry).folders += 1;
    }
    sorted(store, only, found.into_values().collect(), |folder| (folder.root, &folder.path))
}

/// Determines how complete the lists are for the roots `only`, or for all roots if it is empty.
pub fn list_coverage(store: &Store, only: &[i64]) -> Result<ListCoverage> {
    let coverage = gaps(store, |root| only.is_empty() || only.contains(&root.id), |_| true)?;
    let mut list = ListCoverage { coverage, ..ListCoverage::default() };
    for root in store.roots().list()?.into_iter().filter(|root| only.is_empty() || only.contains(&root.id)) {
        list.unlisted_folders += store.catalog().count_unlisted(root.id)?;
        if root.filters.is_some() {
            list.filtered_roots.push(root.path);
        }
    }
    list.complete = list.coverage.complete && list.unlisted_folders == 0;
    Ok(list)
}

/// Returns the folders of roots that contain another root.
fn folders_around_roots(roots: &[Root]) -> HashSet<(i64, &Path)> {
    let mut around = HashSet::new();
    for root in roots {
        for outer in roots.iter().filter(|outer| outer.id != root.id) {
            if let Ok(inside) = root.path.strip_prefix(&outer.path) {
                around.extend(inside.ancestors().map(|path| (outer.id, path)));
            }
        }
    }
    around
}

/// Sorts the items of the selected roots by absolute path.
fn sorted<T>(store: &Store, only: &[i64], mut items: Vec<T>, place: impl Fn(&T) -> (i64, &PathBuf)) -> Result<Vec<T>> {
    let roots: HashMap<i64, PathBuf> = store.roots().list()?.into_iter().map(|root| (root.id, root.path)).collect();
    items.retain(|item| only.is_empty() || only.contains(&place(item).0));
    items.sort_by_cached_key(|item| {
        let (root, path) = place(item);
        roots.get(&root).map(|root| root.join(path))
    });
    Ok(items)
}
