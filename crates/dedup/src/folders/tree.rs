//! The catalog in memory, as a tree of numbers.
//!
//! Owns the order: folders are sorted by path, each before what is in it, and files lie as their folders do. So a folder
//! with all below it is one range of folders and one range of files, and which of equal folders is the first does not
//! depend on rows. No path is kept, only what identifies a name; a million files take some 70 MiB.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gristmill_store::Store;
use gristmill_store::catalog::{Content, LinkKind, Node, SharedName, Skipped, TreeFile};

use crate::Result;

/// The content that all empty files have.
pub(crate) const EMPTY: u32 = 0;
/// A content that no other file has.
pub(crate) const UNIQUE: u32 = u32::MAX;
/// A content that could not be read.
pub(crate) const UNKNOWN: u32 = u32::MAX - 1;

const NO_FOLDER: u32 = u32::MAX;

/// What a name is known by.
pub(crate) type NameHash = [u8; 16];

pub(crate) fn name_hash(name: &OsStr) -> NameHash {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(name.as_encoded_bytes()).as_bytes()[..16]);
    short
}

/// All folders and files. `L` is what is kept of a file's name.
pub(crate) struct Tree<L> {
    pub(crate) folders: Vec<Folder>,
    pub(crate) files: Vec<File<L>>,
}

pub(crate) struct Folder {
    pub(crate) id: i64,
    pub(crate) root: i64,
    /// The folder it is in. A root that lies inside another is in a folder of that.
    pub(crate) parent: Option<u32>,
    /// The first folder that is not below it.
    pub(crate) end: u32,
    /// Its own files.
    pub(crate) files: (u32, u32),
    /// Files in it and below.
    pub(crate) all_files: (u32, u32),
    /// Whether it was read to its end.
    pub(crate) whole: bool,
    /// Entries in it, not below, that were not scanned. None if that was not recorded.
    pub(crate) skipped: Option<Skipped>,
    pub(crate) name: NameHash,
}

impl Folder {
    pub(crate) fn own(&self) -> Range<usize> {
        self.files.0 as usize..self.files.1 as usize
    }

    pub(crate) fn all(&self) -> Range<usize> {
        self.all_files.0 as usize..self.all_files.1 as usize
    }

    pub(crate) fn count(&self) -> u64 {
        u64::from(self.all_files.1 - self.all_files.0)
    }
}

pub(crate) struct File<L> {
    pub(crate) id: i64,
    pub(crate) size: u64,
    /// Bytes that it takes on its disk.
    pub(crate) allocated: u64,
    /// The lowest row among the names of the file.
    inode_row: i64,
    /// Whether the catalog has other names of it.
    has_other_names: bool,
    /// Whether the link count is 1.
    pub(crate) is_single: bool,
    pub(crate) folder: u32,
    /// Equal numbers are equal contents, except [`ALONE`] and [`UNKNOWN`].
    pub(crate) content: u32,
    /// Whether a symbolic link led to it: it lies elsewhere.
    pub(crate) via_symlink: bool,
    pub(crate) name: L,
}

impl<L> File<L> {
    /// What the space on the disk belongs to: names of one file have it in common.
    pub(crate) fn inode_row(&self) -> i64 {
        self.inode_row
    }

    /// Whether the file does not go with this name: it has others, or lies elsewhere.
    pub(crate) fn may_have_other_names(&self) -> bool {
        self.has_other_names || self.via_symlink
    }

    /// Whether other paths lead to this very name: a bind mount or a symbolic link does. Removing one removes all.
    pub(crate) fn has_other_paths(&self) -> bool {
        self.has_other_names && (self.is_single || self.via_symlink)
    }
}

impl<L> Tree<L> {
    /// Reads the catalog, all roots of it.
    pub(crate) fn load(store: &Store, mut label: impl FnMut(&OsStr) -> L) -> Result<Self> {
        let mut nested = NestedRoots::new(store)?;
        let roots: HashMap<i64, PathBuf> =
            store.roots().list()?.into_iter().map(|root| (root.id, root.path)).collect();
        let mut folders = Vec::new();
        let mut files: Vec<File<L>> = Vec::new();
        store.catalog().tree(|node| match node {
            Node::Extent { folders: some, files: more } => {
                folders.reserve_exact(some);
                files.reserve_exact(more);
            }
            Node::Folder(folder) => {
                nested.observe(folder.root, &folder.path, folder.id);
                let name = name_hash(folder.path.file_name().unwrap_or_default());
                let top = folder.path.as_os_str().is_empty();
                let place = match folder.path.file_name() {
                    Some(name) => PathBuf::from(name),
                    None => roots.get(&folder.root).cloned().unwrap_or_default(),
                };
                let (id, root, whole, skipped) = (folder.id, folder.root, folder.whole, folder.skipped);
                folders.push(FolderRow {
                    id,
                    root,
                    parent: folder.parent,
                    is_root: top,
                    whole,
                    skipped,
                    name,
                    path: place,
                });
            }
            Node::File(file) => {
                if let Some(at) = row_index(&folders, file.folder) {
                    files.push(tree_file(&file, at, label(&file.name)));
                }
            }
            Node::SharedNames(names) => join_names(&mut files, names),
        })?;
        nested.join(&mut folders);
        let (mut folders, order) = sort_folders(&folders);
        // What hangs on no root is no part of the tree.
        files.retain(|file| order[file.folder as usize] != NO_FOLDER);
        files.iter_mut().for_each(|file| file.folder = order[file.folder as usize]);
        files.sort_unstable_by_key(|file| (file.folder, file.id));
        assign_files(&mut folders, &files);
        Ok(Tree { folders, files })
    }

    /// The folders that a folder is in, from the inside out.
    pub(crate) fn above(&self, folder: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.folders[folder as usize].parent, |&at| self.folders[at as usize].parent)
    }

    /// The folders right in a folder.
    pub(crate) fn children(&self, folder: u32) -> impl Iterator<Item = u32> {
        let end = self.folders[folder as usize].end;
        let inside = move |at: &u32| *at < end;
        std::iter::successors(Some(folder + 1).filter(inside), move |&at| {
            Some(self.folders[at as usize].end).filter(inside)
        })
    }

    /// Entries in a folder and below that were not scanned. None if that was not recorded for all of them.
    pub(crate) fn skipped(&self, folder: u32) -> Option<u64> {
        let below = &self.folders[folder as usize..self.folders[folder as usize].end as usize];
        below.iter().map(|folder| folder.skipped.map(|skipped| skipped.entries)).sum()
    }

    /// The size of all files in a folder and below, as it would be if no name were another's.
    pub(crate) fn bytes(&self, folder: u32) -> u64 {
        self.files[self.folders[folder as usize].all()].iter().map(|file| file.size).sum()
    }
}

struct FolderRow {
    id: i64,
    root: i64,
    parent: Option<i64>,
    /// Whether it is a root's own.
    is_root: bool,
    whole: bool,
    skipped: Option<Skipped>,
    name: NameHash,
    /// Its path in the folder around it; the whole path of a root that is in no other.
    path: PathBuf,
}

/// A file that has other names. Equal keys are one file in one state.
struct LinkedName {
    key: (i64, u64, i64),
    file: u32,
    content: u32,
}

fn row_index(rows: &[FolderRow], id: i64) -> Option<u32> {
    rows.binary_search_by_key(&id, |row| row.id).ok().map(|at| at as u32)
}

fn tree_file<L>(file: &TreeFile<'_>, folder: u32, label: L) -> File<L> {
    let content = match file.content {
        Content::Empty => EMPTY,
        Content::Shared(number) => number,
        Content::Unique => UNIQUE,
        Content::Unknown => UNKNOWN,
    };
    let (size, allocated) = (file.stat.size, file.stat.allocated);
    let (is_single, via_symlink) =
        (file.stat.links == LinkKind::Single, file.stat.links == LinkKind::ViaSymlink);
    let (id, space, has_names) = (file.id, file.id, false);
    File {
        id,
        size,
        allocated,
        inode_row: space,
        has_other_names: has_names,
        is_single,
        folder,
        content,
        via_symlink,
        name: label,
    }
}

/// Folders by path, so that each comes before those in it, and where each row went. Rows of a circle, which no walk makes,
/// go nowhere.
fn sort_folders(rows: &[FolderRow]) -> (Vec<Folder>, Vec<u32>) {
    let parents: Vec<u32> = rows
        .iter()
        .map(|row| row.parent.map_or(NO_FOLDER, |id| row_index(rows, id).unwrap_or(NO_FOLDER)))
        .collect();
    // By parent, so that the folders in one are a range.
    let mut by_parent: Vec<u32> = (0..rows.len() as u32).collect();
    let place = |at: u32| (parents[at as usize], rows[at as usize].path.as_path());
    by_parent.sort_by(|&a, &b| place(a).cmp(&place(b)));
    let parents = parents.as_slice();
    let inside = |of: u32| {
        let from = by_parent.partition_point(|&at| parents[at as usize] < of);
        by_parent[from..].iter().copied().take_while(move |&at| parents[at as usize] == of)
    };
    let mut order = vec![NO_FOLDER; rows.len()];
    let mut folders: Vec<Folder> = Vec::with_capacity(rows.len());
    // A folder whose parent is gone is not there either; only a root's own has none.
    let tops = inside(NO_FOLDER).filter(|&at| rows[at as usize].parent.is_none());
    let mut stack: Vec<u32> = tops.collect();
    stack.reverse();
    while let Some(at) = stack.pop() {
        let row = &rows[at as usize];
        let parent = parents[at as usize];
        let parent = (parent != NO_FOLDER).then(|| order[parent as usize]);
        order[at as usize] = folders.len() as u32;
        let FolderRow { id, root, whole, skipped, name, .. } = *row;
        let (end, files, all_files) = (0, (0, 0), (0, 0));
        folders.push(Folder { id, root, parent, end, files, all_files, whole, skipped, name });
        let children = stack.len();
        stack.extend(inside(at));
        stack[children..].reverse();
    }
    for at in (0..folders.len()).rev() {
        let end = folders[at].end.max(at as u32 + 1);
        folders[at].end = end;
        if let Some(parent) = folders[at].parent {
            let above = &mut folders[parent as usize].end;
            *above = end.max(*above);
        }
    }
    (folders, order)
}

/// Which files are whose, once they are in the order of folders.
fn assign_files<L>(folders: &mut [Folder], files: &[File<L>]) {
    let first = |folder: u32| files.partition_point(|file| file.folder < folder) as u32;
    for (at, folder) in folders.iter_mut().enumerate() {
        let at = at as u32;
        let start = first(at);
        folder.files = (start, first(at + 1));
        folder.all_files = (start, first(folder.end));
    }
}

/// Takes over which rows are names of one file. Files are in the order of their rows. A file that was not hashed because its
/// only copies are other names of it has their content.
fn join_names<L>(files: &mut [File<L>], shared: &[SharedName]) {
    let mut names = Vec::with_capacity(shared.len());
    for SharedName { row, file, ctime_ns } in shared {
        let Ok(at) = files.binary_search_by_key(row, |file| file.id) else { continue };
        let entry = &mut files[at];
        (entry.inode_row, entry.has_other_names) = (*file, true);
        if entry.content != UNKNOWN {
            names.push(LinkedName {
                key: (*file, entry.size, *ctime_ns),
                file: at as u32,
                content: entry.content,
            });
        }
    }
    let contents = files.iter().map(|file| file.content).filter(|&content| content < UNKNOWN);
    let mut next = contents.max().unwrap_or(0) + 1;
    names.sort_unstable_by_key(|name| (name.key, name.file));
    for names in names.chunk_by(|a, b| a.key == b.key) {
        let contents = names.iter().map(|name| name.content);
        if names.len() < 2 || contents.clone().all(|content| content != UNIQUE) {
            continue;
        }
        // Hashed at different moments they may disagree; then nothing is taken over.
        let mut known: Vec<u32> = contents.filter(|&content| content != UNIQUE).collect();
        known.dedup();
        let content = match known[..] {
            [] => next,
            [one] => one,
            _ => continue,
        };
        next += u32::from(known.is_empty());
        names.iter().for_each(|name| files[name.file as usize].content = content);
    }
}

/// Roots that lie inside others. What is in them is in the folders around them, too.
struct NestedRoots {
    roots: Vec<NestedRoot>,
}

/// A root inside another.
struct NestedRoot {
    root: i64,
    outer: i64,
    name: NameHash,
    /// Its path in the outer root.
    inside: PathBuf,
    /// The folders of the outer root that may be around it, the innermost first, and their rows.
    around: Vec<(PathBuf, Option<i64>)>,
}

impl NestedRoots {
    fn new(store: &Store) -> Result<Self> {
        let roots = store.roots().list()?;
        let around = |path: &Path, id: i64| {
            let outer = roots.iter().filter(|root| root.id != id && path.starts_with(&root.path));
            outer.max_by_key(|root| root.path.as_os_str().len())
        };
        let wanted = roots.iter().filter_map(|root| {
            let outer = around(&root.path, root.id)?;
            let inside = root.path.strip_prefix(&outer.path).ok()?;
            let around = inside.ancestors().skip(1).map(|path| (path.to_path_buf(), None)).collect();
            let name = name_hash(root.path.file_name().unwrap_or_default());
            Some(NestedRoot { root: root.id, outer: outer.id, name, inside: inside.to_path_buf(), around })
        });
        Ok(NestedRoots { roots: wanted.collect() })
    }

    fn observe(&mut self, root: i64, path: &Path, id: i64) {
        for inner in &mut self.roots {
            if inner.outer == root
                && let Some((_, found)) = inner.around.iter_mut().find(|(folder, _)| folder == path)
            {
                *found = Some(id);
            }
        }
    }

    fn join(&self, rows: &mut [FolderRow]) {
        for inner in &self.roots {
            let Some((folder, parent)) = inner.around.iter().find_map(|(path, id)| Some((path, (*id)?)))
            else {
                continue;
            };
            match rows.iter().position(|row| row.root == inner.root && row.is_root) {
                Some(top) => {
                    rows[top].parent = Some(parent);
                    rows[top].name = inner.name;
                    rows[top].path = inner.inside.strip_prefix(folder).unwrap_or(&inner.inside).to_path_buf();
                }
                // It was never scanned: of the folder around it not all is known.
                None => {
                    if let Some(at) = row_index(rows, parent) {
                        rows[at as usize].whole = false;
                    }
                }
            }
        }
    }
}
