//! Finds identical, similar and contained folders in the catalog, without reading any disk.
//!
//! Owns which folders are identical ([`find_identical`]), which are similar ([`find_similar`]) and which are contained
//! in others ([`find_contained`]). All compare folders with everything below them. A file that was never hashed has a
//! unique content (a scan hashes every file that can have a copy), unless the catalog has another name of its inode.
//! The content of a file that could not be read is unknown, and so is a folder that was not read completely. Entries
//! that scans skip (symbolic links, special files, excluded files) are compared too: folders are identical only if
//! their skipped entries are known and equal. A root inside another root counts as a folder of it.

mod compare;
mod contained;
mod freed;
mod pairs;
mod signatures;
mod similar;
pub(crate) mod tree;

use std::collections::HashMap;
use std::path::PathBuf;

use gristmill_store::Store;

use self::freed::LinkTable;
use self::signatures::FolderClasses;
use self::tree::{NameHash, Tree, name_hash};
use crate::Result;

pub use self::compare::{CappedList, Differing, Entry};
pub use self::contained::{ContainedFolder, ContainedOptions, Container, find_contained};
pub use self::similar::{Difference, Side, SimilarFolders, SimilarOptions, SimilarPair, find_similar};

/// Selects the identical folders to list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FolderOptions {
    /// Whether the names of files and folders must be equal too. The name of the compared folder itself never matters.
    pub match_names: bool,
    /// Minimum size of a folder's files, including those below it, in bytes. Empty files add 0.
    pub min_size: u64,
    /// Minimum number of files in a folder and below it. Folders without files are never listed.
    pub min_files: u64,
    /// Row ids of the roots whose folders are compared. An empty list selects all roots.
    pub roots: Vec<i64>,
}

impl Default for FolderOptions {
    fn default() -> Self {
        FolderOptions { match_names: false, min_size: 1, min_files: 1, roots: Vec::new() }
    }
}

/// Folders that contain the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderGroup {
    /// Whether they are identical. If not, only their scanned files are the same: they may differ in entries that were
    /// not scanned.
    pub identical: bool,
    /// The folders, sorted by path.
    pub folders: Vec<GroupedFolder>,
    /// Number of files in each folder.
    pub files: u64,
    /// Size of the files in one folder. Each name of a file with several names counts.
    pub bytes: u64,
    /// Allocated bytes that are freed if only the folder that uses most space is kept (the first of equals). Removing a
    /// file frees nothing if it has another name elsewhere or was reached through a symbolic link. 0 unless the folders
    /// are identical.
    pub reclaimable: u64,
    /// Size of the files that are freed then.
    pub redundant: u64,
}

impl FolderGroup {
    /// Number of entries in all of the folders that were not scanned, or `None` if it was not recorded for every
    /// folder.
    pub fn unscanned(&self) -> Option<u64> {
        self.folders.iter().map(|folder| folder.unscanned).sum()
    }
}

/// One folder of a group of equal folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedFolder {
    /// Row id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Number of entries in and below the folder that were not scanned. `None` if it was not recorded: the next scan
    /// records it.
    pub unscanned: Option<u64>,
}

/// Lists identical folders, those with most reclaimable space first, followed by folders that are identical except for
/// entries that were not scanned.
///
/// Folders are identical if their files have the same contents, each equally often, if their subfolders can be paired
/// so that each pair is identical, and if their skipped entries are known and equal: symbolic links by target, special
/// files by type. Excluded files and folders are not known. The layout of files matters; names matter only with
/// [`match_names`](FolderOptions::match_names). A group is not listed if all its folders are inside folders of one
/// other group, except identical folders inside folders that may differ in entries not scanned. If a bind mount or
/// symbolic link makes the same files appear in several folders, one of these folders is listed.
pub fn find_identical(store: &Store, options: &FolderOptions) -> Result<Vec<FolderGroup>> {
    let tree = Tree::load(store, name_hash)?;
    let classes = FolderClasses::new(&tree, options.match_names, |at| in_roots(&tree, &options.roots, at));
    let links = LinkTable::new(&tree);
    let paths = FolderPaths::new(store)?;
    let identical = classes.identical.outermost(&tree).into_iter().map(|members| (true, members));
    let others = classes.scanned.outermost(&tree).into_iter().filter(|members| !classes.is_identical(members));
    let mut found = Vec::new();
    for (identical, members) in identical.chain(others.map(|members| (false, members))) {
        let (files, bytes) = (tree.folders[members[0] as usize].count(), tree.bytes(members[0]));
        if files < options.min_files || bytes < options.min_size {
            continue;
        }
        let freed = if identical { links.freed(&tree, &members) } else { freed::Freed::default() };
        let unscanned = members.iter().map(|&at| tree.skipped(at));
        let folder = |((_, root, path), unscanned)| GroupedFolder { root, path, unscanned };
        let folders = paths.of(&tree, &members)?.into_iter().zip(unscanned).map(folder).collect();
        let (reclaimable, redundant) = (freed.allocated, freed.size);
        found.push((members[0], FolderGroup { identical, folders, files, bytes, reclaimable, redundant }));
    }
    let order = |group: &FolderGroup| (group.identical, group.reclaimable, group.bytes, group.files);
    // Equal groups are sorted by path, which is the order of the tree.
    found.sort_by(|(first_a, a), (first_b, b)| order(b).cmp(&order(a)).then(first_a.cmp(first_b)));
    Ok(found.into_iter().map(|(_, group)| group).collect())
}

fn in_roots(tree: &Tree<NameHash>, roots: &[i64], folder: u32) -> bool {
    roots.is_empty() || roots.contains(&tree.folders[folder as usize].root)
}

struct FolderPaths<'a> {
    store: &'a Store,
    roots: HashMap<i64, PathBuf>,
}

impl<'a> FolderPaths<'a> {
    fn new(store: &'a Store) -> Result<Self> {
        let roots = store.roots().list()?.into_iter().map(|root| (root.id, root.path)).collect();
        Ok(FolderPaths { store, roots })
    }

    /// Returns, for each folder, the path of its root, the row id of its root and its path relative to the root.
    fn of(&self, tree: &Tree<NameHash>, folders: &[u32]) -> Result<Vec<(PathBuf, i64, PathBuf)>> {
        let path_of = |&at: &u32| {
            let id = tree.folders[at as usize].id;
            let (root, path) = self.store.catalog().folder_at(id)?.ok_or_else(catalog_changed)?;
            Ok((self.roots.get(&root).cloned().unwrap_or_default(), root, path))
        };
        folders.iter().map(path_of).collect()
    }
}

/// A row was deleted after the tree was loaded.
fn catalog_changed() -> gristmill_store::Error {
    gristmill_store::Error::Conflict("the catalog changed during the query; try again".to_owned())
}
