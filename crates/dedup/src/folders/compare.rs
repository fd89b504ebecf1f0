//! Compares two folders file by file.
//!
//! Owns the lists of files that are only in one folder and of files that differ. Files are matched by content. If one
//! folder has more files of a content than the other, those with the same path are matched first.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::tree::{NameHash, Tree, UNIQUE, UNKNOWN};
use super::{FolderPaths, catalog_changed};
use crate::Result;

/// The beginning of a list, and the length of the whole list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CappedList<T> {
    /// The first items, up to the requested number, sorted by path.
    pub items: Vec<T>,
    /// Number of items in the whole list.
    pub total: u64,
}

/// A file in one of two compared folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path relative to the folder.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub size: u64,
    /// Modification time, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// Two files with the same path in two folders and different contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// The file in the first folder.
    pub a: Entry,
    /// The file in the second folder.
    pub b: Entry,
    /// Whether the contents are known to differ. If not, they were not both read and may be equal.
    pub known: bool,
}

type Lists = (CappedList<Entry>, CappedList<Entry>, CappedList<Differing>);

/// The files that two folders do not have in common, as indexes into the tree.
pub(super) struct Comparison<'a> {
    tree: &'a Tree<NameHash>,
    only_in_a: Vec<u32>,
    only_in_b: Vec<u32>,
    differing: Vec<(u32, u32)>,
    all_read: bool,
}

/// Order in which files of a content are matched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    SamePath,
    Unpaired,
    Differs,
}

impl<'a> Comparison<'a> {
    /// Compares the folders `inner`. `outer` are the outermost folders around them with the same files; paths are
    /// compared from the level where more of them are equal. `all_read`: every file that can have a copy was read.
    pub(super) fn new(tree: &'a Tree<NameHash>, inner: [u32; 2], outer: [u32; 2], all_read: bool) -> Self {
        let mut in_both = same_paths(tree, outer);
        if inner != outer {
            let inside = same_paths(tree, inner);
            in_both = if inside.len() > in_both.len() { inside } else { in_both };
        }
        let (mut rank_a, mut rank_b) = (HashMap::new(), HashMap::new());
        let mut differing = Vec::new();
        for (ours, theirs) in in_both {
            let (x, y) = (tree.files[ours as usize].content, tree.files[theirs as usize].content);
            let same = x == y && x != UNIQUE && x != UNKNOWN;
            let rank = if same { Rank::SamePath } else { Rank::Differs };
            rank_a.insert(ours, rank);
            rank_b.insert(theirs, rank);
            if !same {
                differing.push((ours, theirs));
            }
        }
        differing.sort_unstable();
        let (ours, theirs) = (ranked(tree, inner[0], &rank_a), ranked(tree, inner[1], &rank_b));
        let only_in_a = surplus(&ours, &theirs);
        let only_in_b = surplus(&theirs, &ours);
        Comparison { tree, only_in_a, only_in_b, differing, all_read }
    }

    /// Returns the lists with paths relative to the folders `a` and `b`, at most `limit` per list.
    pub(super) fn lists(&self, paths: &FolderPaths<'_>, a: &Path, b: &Path, limit: usize) -> Result<Lists> {
        let entries = |files: &[u32], folder: &Path| -> Result<Vec<Entry>> {
            let ids: Vec<i64> = files.iter().take(limit).map(|&at| self.tree.files[at as usize].id).collect();
            let found = paths.store.catalog().files_at(&ids)?;
            if found.len() < ids.len() {
                return Err(catalog_changed().into());
            }
            let entry = |file: gristmill_store::catalog::FileAt| {
                let absolute = paths.roots.get(&file.root).cloned().unwrap_or_default().join(&file.path);
                let path = absolute.strip_prefix(folder).map_or(file.path, Path::to_path_buf);
                Entry { path, size: file.stat.size, mtime_ns: file.stat.mtime_ns }
            };
            Ok(found.into_iter().map(entry).collect())
        };
        let listed = |files: &[u32], folder: &Path| -> Result<CappedList<Entry>> {
            let mut items = entries(files, folder)?;
            items.sort_by(|x, y| x.path.cmp(&y.path));
            Ok(CappedList { items, total: files.len() as u64 })
        };
        let (ours, theirs): (Vec<u32>, Vec<u32>) = self.differing.iter().copied().unzip();
        let pairs = entries(&ours, a)?.into_iter().zip(entries(&theirs, b)?);
        let known = self.differing.iter().map(|&(x, y)| self.is_compared(x, y));
        let mut items: Vec<_> = pairs.zip(known).map(|((a, b), known)| Differing { a, b, known }).collect();
        items.sort_by(|x, y| x.a.path.cmp(&y.a.path));
        let differing = CappedList { items, total: self.differing.len() as u64 };
        Ok((listed(&self.only_in_a, a)?, listed(&self.only_in_b, b)?, differing))
    }

    fn is_compared(&self, x: u32, y: u32) -> bool {
        let [x, y] = [x, y].map(|at| &self.tree.files[at as usize]);
        match (x.content, y.content) {
            (UNKNOWN, _) | (_, UNKNOWN) => false,
            (UNIQUE, _) | (_, UNIQUE) => self.all_read || x.size != y.size,
            _ => true,
        }
    }
}

fn same_paths(tree: &Tree<NameHash>, [a, b]: [u32; 2]) -> Vec<(u32, u32)> {
    let (of_a, of_b) = (path_hashes(tree, a), path_hashes(tree, b));
    let mut others = of_b.iter().peekable();
    let mut both = Vec::new();
    for (name, ours) in &of_a {
        while others.next_if(|(other, _)| other < name).is_some() {}
        both.extend(others.next_if(|(other, _)| other == name).map(|(_, theirs)| (*ours, *theirs)));
    }
    both
}

/// The files in and below a folder, sorted by a hash of their paths relative to it.
pub(super) fn path_hashes(tree: &Tree<NameHash>, top: u32) -> Vec<(NameHash, u32)> {
    let folder = &tree.folders[top as usize];
    let below = |outer: &NameHash, name: &NameHash| -> NameHash {
        let mut hash = NameHash::default();
        let both = blake3::Hasher::new().update(outer).update(name).finalize();
        hash.copy_from_slice(&both.as_bytes()[..16]);
        hash
    };
    let mut folders = vec![NameHash::default()];
    for inner in &tree.folders[top as usize + 1..folder.end as usize] {
        let outer = inner.parent.map_or(0, |parent| (parent - top) as usize);
        folders.push(below(&folders[outer], &inner.name));
    }
    let mut names: Vec<(NameHash, u32)> = folder
        .all()
        .map(|at| {
            let file = &tree.files[at];
            (below(&folders[(file.folder - top) as usize], &file.name), at as u32)
        })
        .collect();
    names.sort_unstable();
    names
}

/// The files in and below a folder, sorted by content and then by the order in which they are matched.
fn ranked(tree: &Tree<NameHash>, top: u32, ranks: &HashMap<u32, Rank>) -> Vec<(u32, Rank, u32)> {
    let files = tree.folders[top as usize].all().map(|at| {
        let rank = ranks.get(&(at as u32)).copied().unwrap_or(Rank::Unpaired);
        (tree.files[at].content, rank, at as u32)
    });
    let mut files: Vec<_> = files.collect();
    files.sort_unstable();
    files
}

/// Files of `ours` without a match in `theirs`, except those that differ from a file with the same path, in the order
/// of the tree.
fn surplus(ours: &[(u32, Rank, u32)], theirs: &[(u32, Rank, u32)]) -> Vec<u32> {
    let mut surplus = Vec::new();
    for same in ours.chunk_by(|x, y| x.0 == y.0) {
        let content = same[0].0;
        let from = theirs.partition_point(|file| file.0 < content);
        let matching = match content {
            UNIQUE | UNKNOWN => 0,
            _ => theirs[from..].iter().take_while(|file| file.0 == content).take(same.len()).count(),
        };
        let left = same[matching..].iter().filter(|file| file.1 != Rank::Differs);
        surplus.extend(left.map(|file| file.2));
    }
    surplus.sort_unstable();
    surplus
}
