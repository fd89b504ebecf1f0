//! Finds folders whose files are all in another folder too.
//!
//! Owns which folders are listed. `search` finds the folders that contain one.

mod search;

use gristmill_store::Store;
use serde::Serialize;

use self::search::Search;
use super::freed::{Freed, LinkTable};
use super::tree::{NameHash, Tree, name_hash};
use super::{CappedList, FolderPaths, in_roots};
use crate::Result;
use crate::coverage::join;
use crate::location::Location;

/// Selects the contained folders to list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContainedOptions {
    /// Whether a file must have the same path in both folders. Otherwise only contents are compared.
    pub match_names: bool,
    /// Minimum size of the contained folder's files in bytes. Empty files add 0.
    pub min_size: u64,
    /// Minimum number of files in and below the contained folder. Folders without files are never listed.
    pub min_files: u64,
    /// Row ids of the roots whose folders are listed; what contains them may be in any root. An empty list selects all
    /// roots.
    pub roots: Vec<i64>,
    /// Maximum number of containing folders that are listed for each contained one.
    pub list: usize,
}

impl Default for ContainedOptions {
    fn default() -> Self {
        ContainedOptions { match_names: false, min_size: 1, min_files: 1, roots: Vec::new(), list: 10 }
    }
}

/// A folder whose files are all in another folder, which has more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ContainedFolder {
    /// Where the folder is.
    #[serde(flatten)]
    pub location: Location,
    /// Whether all its entries were scanned. If not, only its scanned files are known to be contained.
    #[serde(rename = "wholly_contained")]
    pub wholly: bool,
    /// Number of entries in and below the folder that were not scanned. `None` if it was not recorded: the next scan
    /// records it.
    #[serde(rename = "unscanned_entries")]
    pub unscanned: Option<u64>,
    /// Number of files in and below the folder.
    pub files: u64,
    /// Size of these files in bytes. Each name of a file with several names counts.
    pub bytes: u64,
    /// Allocated bytes that are freed if the folder is removed. Removing a file frees nothing if it has another name
    /// elsewhere or was reached through a symbolic link. 0 unless the folder is wholly contained.
    #[serde(rename = "reclaimable_bytes")]
    pub reclaimable: u64,
    /// Size of the files that are freed then.
    #[serde(rename = "redundant_bytes")]
    pub redundant: u64,
    /// The innermost folders that contain it, the smallest first.
    pub containers: CappedList<Container>,
}

/// A folder that contains another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Container {
    /// Where the folder is.
    #[serde(flatten)]
    pub location: Location,
    /// Number of files in and below the folder.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
}

/// Lists the outermost folders whose files are all in another folder, those with most reclaimable space first, followed
/// by folders that are contained except for entries that were not scanned.
///
/// A folder is contained in another one if neither is inside the other, each content in or below it is also in or below
/// the other, at least once, and the other has a content that it lacks. Layout and names do not matter; with
/// [`match_names`](ContainedOptions::match_names) each file must have the same path in both folders. If the smallest
/// folder that has all contents has no further ones, the two are equal, not contained: see
/// [`find_identical`](super::find_identical). A folder with a file or subfolder that could not be read is not listed.
/// Paths that lead to the same file through a bind mount or symbolic link are not copies.
///
/// Each folder is listed on its own: what it is contained in may rely on another listed folder.
pub fn find_contained(store: &Store, options: &ContainedOptions) -> Result<Vec<ContainedFolder>> {
    let tree = Tree::load(store, name_hash)?;
    let is_selected = |at: u32| in_roots(&tree, &options.roots, at);
    let mut search = Search::new(&tree, options.match_names);
    let links = LinkTable::new(&tree);
    let paths = FolderPaths::new(store)?;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(folder) = tree.folders.get(at as usize) {
        let (files, bytes) = (folder.count(), search.bytes(at));
        // Folders inside it are not larger.
        if files < options.min_files.max(1) || bytes < options.min_size {
            at = folder.end;
            continue;
        }
        let containers = if is_selected(at) { search.containers(at, options.list) } else { None };
        let Some((containers, total)) = containers else {
            at += 1;
            continue;
        };
        let unscanned = tree.skipped(at);
        let wholly = unscanned == Some(0);
        let freed = if wholly { links.freed_without(&tree, &[at]) } else { Freed::default() };
        let container = |at: u32| {
            let (files, bytes) = (tree.folders[at as usize].count(), search.bytes(at));
            Ok(Container { location: location(&tree, &paths, at)?, files, bytes })
        };
        let containers = CappedList { items: containers.into_iter().map(container).collect::<Result<_>>()?, total };
        let (reclaimable, redundant, location) = (freed.allocated, freed.size, location(&tree, &paths, at)?);
        let entry = ContainedFolder { location, wholly, unscanned, files, bytes, reclaimable, redundant, containers };
        found.push((at, entry));
        at = folder.end;
    }
    let order = |folder: &ContainedFolder| (folder.wholly, folder.reclaimable, folder.bytes, folder.files);
    // Equal folders are sorted by path, which is the order of the tree.
    found.sort_by(|(first_a, a), (first_b, b)| order(b).cmp(&order(a)).then(first_a.cmp(first_b)));
    Ok(found.into_iter().map(|(_, folder)| folder).collect())
}

fn location(tree: &Tree<NameHash>, paths: &FolderPaths<'_>, folder: u32) -> Result<Location> {
    let (root, _, path) = paths.of(tree, &[folder])?.remove(0);
    Ok(Location::new(join(&root, &path), Some(root)))
}
