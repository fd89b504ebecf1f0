//! Folders that are alike, from the catalog: no disk is read.
//!
//! Owns which folders are [`identical`] and which are [`partial`]ly so. Both look at folders with all below them.
//! A file that was never hashed is like no other (a scan hashes whatever could be), unless another name of its
//! inode is there; one that could not be read is unknown, and so is a folder that was not read to its end.
//! Roots inside a root count as what they are, folders of it.

mod classes;
mod compare;
mod pairs;
mod similar;
pub(crate) mod tree;

use std::collections::HashMap;
use std::path::PathBuf;

use gristmill_store::Store;

use self::classes::Classes;
use self::tree::{File, NameHash, Tree, name_hash};
use crate::Result;

pub use self::compare::{Differing, Entry, Listed};
pub use self::similar::{Partial, PartialOptions, Partials, Side, partial};

/// Which identical folders to list.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether names of files and folders must be the same, too. That of the folder itself never counts.
    pub match_names: bool,
    /// Folders with at least so many bytes in and below them. Ones with nothing but empty files have none.
    pub min_size: u64,
    /// Folders with at least so many files in and below them; never those without any.
    pub min_files: u64,
    /// Only folders of these roots; of all when there are none.
    pub roots: Vec<i64>,
}

impl Default for Options {
    fn default() -> Self {
        Options { match_names: false, min_size: 1, min_files: 1, roots: Vec::new() }
    }
}

/// Folders with the same in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identical {
    /// Each by its root and its path in that; by the roots' paths, then their own.
    pub folders: Vec<(i64, PathBuf)>,
    /// Files in each.
    pub files: u64,
    /// The size of one, as its files say: several names of one file count each.
    pub bytes: u64,
    /// What would be had back if one were left: what is on the disk for all of them, without the smallest of them.
    /// Names of one inode are on the disk once.
    pub reclaimable: u64,
}

/// Identical folders, those that would give most space back first.
///
/// Folders are identical when the contents of their files are the same, each as often, and the folders in them can
/// be paired so that each two are identical: where files are counts, what they are called does not, unless
/// [`match_names`](Options::match_names) says so. Folders whose every place is inside identical folders that are
/// listed are not listed again.
pub fn identical(store: &Store, options: &Options) -> Result<Vec<Identical>> {
    let tree = Tree::load(store, name_hash)?;
    let classes = Classes::new(&tree, options.match_names, |at| selected(&tree, &options.roots, at));
    let places = Places::new(store)?;
    let mut found = Vec::new();
    for members in classes.top_most(&tree) {
        let (files, bytes) = (tree.folders[members[0] as usize].count(), tree.bytes(members[0]));
        if files < options.min_files || bytes < options.min_size {
            continue;
        }
        let reclaimable = reclaimable(&tree, &members);
        let mut folders = places.of(&tree, &members)?;
        folders.sort();
        let folders = folders.into_iter().map(|(_, root, path)| (root, path)).collect();
        found.push(Identical { folders, files, bytes, reclaimable });
    }
    found.sort_by(|a, b| {
        (b.reclaimable, b.bytes, b.files)
            .cmp(&(a.reclaimable, a.bytes, a.files))
            .then_with(|| a.folders.cmp(&b.folders))
    });
    Ok(found)
}

fn selected(tree: &Tree<NameHash>, roots: &[i64], folder: u32) -> bool {
    roots.is_empty() || roots.contains(&tree.folders[folder as usize].root)
}

/// What is on the disk for some folders, without the one of them that takes least.
fn reclaimable(tree: &Tree<NameHash>, members: &[u32]) -> u64 {
    // Sorted lists, not sets: half a catalog may be the copy of the other half.
    let spaces = |member: &u32| {
        let files = &tree.files[tree.folders[*member as usize].all()];
        files.iter().map(|file: &File<NameHash>| (file.space(), file.size))
    };
    let on_disk = |mut spaces: Vec<((u32, u64), u64)>| -> u64 {
        spaces.sort_unstable();
        spaces.dedup_by_key(|(space, _)| *space);
        spaces.iter().map(|(_, size)| size).sum()
    };
    let least = members.iter().map(|member| on_disk(spaces(member).collect())).min();
    on_disk(members.iter().flat_map(spaces).collect()).saturating_sub(least.unwrap_or(0))
}

/// Where folders are.
struct Places<'a> {
    store: &'a Store,
    roots: HashMap<i64, PathBuf>,
}

impl<'a> Places<'a> {
    fn new(store: &'a Store) -> Result<Self> {
        let roots = store.roots().list()?.into_iter().map(|root| (root.id, root.path)).collect();
        Ok(Places { store, roots })
    }

    /// The path of its root, the root, and the path in that, for each.
    fn of(&self, tree: &Tree<NameHash>, folders: &[u32]) -> Result<Vec<(PathBuf, i64, PathBuf)>> {
        let place = |&at: &u32| {
            let id = tree.folders[at as usize].id;
            let (root, path) = self.store.catalog().folder_at(id)?.ok_or_else(gone)?;
            Ok((self.roots.get(&root).cloned().unwrap_or_default(), root, path))
        };
        folders.iter().map(place).collect()
    }
}

/// Something that was there a moment ago.
fn gone() -> gristmill_store::Error {
    gristmill_store::Error::Conflict("the catalog was changed meanwhile; ask again".to_owned())
}
