//! Folders that are alike, from the catalog: no disk is read.
//!
//! Owns which folders are identical ([`groups`]) and which are [`partial`]ly so. Both look at folders with all below
//! them. A file that was never hashed is like no other (a scan hashes whatever could be), unless another name of its
//! inode is there; one that could not be read is unknown, and so is a folder that was not read to its end. Entries that
//! scans pass over (symbolic links, special files, what filters leave out) count, too: folders with such entries are
//! identical only if all of them are known and the same. Roots inside a root count as what they are, folders of it.

mod compare;
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
pub use self::similar::{Difference, Side, SimilarFolders, SimilarOptions, SimilarPair, find_similar};

/// Which identical folders to list.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// Whether names of files and folders must be the same, too. That of the folder itself never counts.
    pub match_names: bool,
    /// Folders with at least so many bytes in and below them. Ones with nothing but empty files have none.
    pub min_size: u64,
    /// Folders with at least so many files in and below them; never those without any.
    pub min_files: u64,
    /// Only folders of these roots; of all when there are none.
    pub roots: Vec<i64>,
}

impl Default for FolderOptions {
    fn default() -> Self {
        FolderOptions { match_names: false, min_size: 1, min_files: 1, roots: Vec::new() }
    }
}

/// Folders with the same files in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderGroup {
    /// Whether they are identical. Otherwise only what was scanned is the same: they may differ in entries that were not.
    pub identical: bool,
    /// By their paths.
    pub folders: Vec<GroupedFolder>,
    /// Files in each.
    pub files: u64,
    /// The size of one, as its files say: several names of one file count each.
    pub bytes: u64,
    /// Allocated bytes that are freed if only the folder that takes most is kept, the first of equal ones. Nothing is
    /// freed by removing a file that has another name elsewhere, or that a symbolic link leads to. 0 unless they are
    /// identical.
    pub reclaimable: u64,
    /// The size of the files that are freed then.
    pub redundant: u64,
}

impl FolderGroup {
    /// Entries in all of the folders that were not scanned. None if that was not recorded for all.
    pub fn unscanned(&self) -> Option<u64> {
        self.folders.iter().map(|folder| folder.unscanned).sum()
    }
}

/// A folder of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedFolder {
    /// Its root.
    pub root: i64,
    /// Its path in the root.
    pub path: PathBuf,
    /// Entries in it and below that were not scanned. None if that was not recorded: scanning again records it.
    pub unscanned: Option<u64>,
}

/// Identical folders, those that would give most space back first; then folders that are identical apart from entries that
/// were not scanned.
///
/// Folders are identical when the contents of their files are the same, each as often, when the folders in them can
/// be paired so that each two are identical, and when the entries that were not scanned are the same and known: symbolic
/// links by their targets, special files by their types. A file or folder that filters leave out is not known. Where files
/// are counts, what they are called does not, unless [`match_names`](Options::match_names) says so. Folders whose every
/// place is inside folders that are listed are not listed again, except identical ones inside others. Of folders that hold
/// the very same files, because a bind mount or a symbolic link leads there, one is listed.
pub fn find_identical(store: &Store, options: &FolderOptions) -> Result<Vec<FolderGroup>> {
    let tree = Tree::load(store, name_hash)?;
    let classes = FolderClasses::new(&tree, options.match_names, |at| is_selected(&tree, &options.roots, at));
    let links = LinkTable::new(&tree);
    let places = FolderPaths::new(store)?;
    let identical = classes.identical.outermost(&tree).into_iter().map(|members| (true, members));
    let others =
        classes.scanned.outermost(&tree).into_iter().filter(|members| !classes.is_identical(members));
    let mut found = Vec::new();
    for (identical, members) in identical.chain(others.map(|members| (false, members))) {
        let (files, bytes) = (tree.folders[members[0] as usize].count(), tree.bytes(members[0]));
        if files < options.min_files || bytes < options.min_size {
            continue;
        }
        let freed = if identical { links.freed(&tree, &members) } else { freed::Freed::default() };
        let unscanned = members.iter().map(|&at| tree.skipped(at));
        let folder = |((_, root, path), unscanned)| GroupedFolder { root, path, unscanned };
        let folders = places.of(&tree, &members)?.into_iter().zip(unscanned).map(folder).collect();
        let (reclaimable, redundant) = (freed.allocated, freed.size);
        found.push((members[0], FolderGroup { identical, folders, files, bytes, reclaimable, redundant }));
    }
    let order = |group: &FolderGroup| (group.identical, group.reclaimable, group.bytes, group.files);
    // Among equals by path, as the tree is.
    found.sort_by(|(first_a, a), (first_b, b)| order(b).cmp(&order(a)).then(first_a.cmp(first_b)));
    Ok(found.into_iter().map(|(_, group)| group).collect())
}

fn is_selected(tree: &Tree<NameHash>, roots: &[i64], folder: u32) -> bool {
    roots.is_empty() || roots.contains(&tree.folders[folder as usize].root)
}

/// Where folders are.
struct FolderPaths<'a> {
    store: &'a Store,
    roots: HashMap<i64, PathBuf>,
}

impl<'a> FolderPaths<'a> {
    fn new(store: &'a Store) -> Result<Self> {
        let roots = store.roots().list()?.into_iter().map(|root| (root.id, root.path)).collect();
        Ok(FolderPaths { store, roots })
    }

    /// The path of its root, the root, and the path in that, for each.
    fn of(&self, tree: &Tree<NameHash>, folders: &[u32]) -> Result<Vec<(PathBuf, i64, PathBuf)>> {
        let place = |&at: &u32| {
            let id = tree.folders[at as usize].id;
            let (root, path) = self.store.catalog().folder_at(id)?.ok_or_else(catalog_changed)?;
            Ok((self.roots.get(&root).cloned().unwrap_or_default(), root, path))
        };
        folders.iter().map(place).collect()
    }
}

/// Something that was there a moment ago.
fn catalog_changed() -> gristmill_store::Error {
    gristmill_store::Error::Conflict("the catalog was changed meanwhile; ask again".to_owned())
}
