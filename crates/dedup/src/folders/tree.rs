//! Loads the catalog into memory as a compact tree.
//!
//! Owns the order: folders are sorted by path, each before its contents, and files are in the order of their folders.
//! So a folder with everything below it is one range of folders and one range of files, and which of equal folders
//! comes first does not depend on row ids. Names are kept as hashes or labels, not as paths; a million files take about
//! 70 MiB.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gristmill_store::Store;
use gristmill_store::catalog::{Content, LinkKind, Node, SharedName, Skipped, TreeFile};
use gristmill_store::roots::Root;

use crate::Result;

/// Content number of all empty files.
pub(crate) const EMPTY: u32 = 0;
/// Content number of files whose content no other file has.
pub(crate) const UNIQUE: u32 = u32::MAX;
/// Content number of files that could not be read.
pub(crate) const UNKNOWN: u32 = u32::MAX - 1;

const NONE: u32 = u32::MAX;

/// The first 16 bytes of the BLAKE3 hash of a name.
pub(crate) type NameHash = [u8; 16];

pub(crate) fn name_hash(name: &OsStr) -> NameHash {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(name.as_encoded_bytes()).as_bytes()[..16]);
    short
}

/// All folders and files of the catalog. `L` is the label kept for a file's name.
pub(crate) struct Tree<L> {
    pub(crate) folders: Vec<Folder>,
    pub(crate) files: Vec<File<L>>,
}

pub(crate) struct Folder {
    pub(crate) id: i64,
    pub(crate) root: i64,
    /// Index of the parent folder. The parent of a nested root is a folder of the outer root.
    pub(crate) parent: Option<u32>,
    /// Index of the first folder after this one that is not below it.
    pub(crate) end: u32,
    /// Range of the files directly in the folder.
    pub(crate) files: (u32, u32),
    /// Range of the files in and below the folder.
    pub(crate) all_files: (u32, u32),
    /// Whether the folder was read completely.
    pub(crate) whole: bool,
    /// Entries directly in the folder that were not scanned. `None` if they were not recorded.
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
    pub(crate) allocated: u64,
    /// Identifies the space on the disk: the lowest row id among the names of the inode.
    pub(crate) inode: i64,
    /// Whether the catalog has other names of the file.
    is_linked: bool,
    pub(crate) is_single: bool,
    pub(crate) folder: u32,
    /// Equal numbers mean equal contents, except [`UNIQUE`] and [`UNKNOWN`].
    pub(crate) content: u32,
    /// Whether the file was reached through a symbolic link, so that it is stored elsewhere.
    pub(crate) via_symlink: bool,
    pub(crate) name: L,
}

impl<L> File<L> {
    /// Whether removing this name may not free the file: it has other names, or is stored elsewhere.
    pub(crate) fn may_have_other_names(&self) -> bool {
        self.is_linked || self.via_symlink
    }

    /// Whether a bind mount or symbolic link makes this name appear at other paths too. Removing one removes all.
    pub(crate) fn has_other_paths(&self) -> bool {
        self.is_linked && (self.is_single || self.via_symlink)
    }
}

impl<L> Tree<L> {
    pub(crate) fn load(store: &Store, mut label: impl FnMut(&OsStr) -> L) -> Result<Self> {
        let roots = store.roots().list()?;
        let mut nested = NestedRoot::all(&roots);
        let roots: HashMap<i64, PathBuf> = roots.into_iter().map(|root| (root.id, root.path)).collect();
        let mut folders = Vec::new();
        let mut files: Vec<File<L>> = Vec::new();
        store.catalog().tree(|node| match node {
            Node::Extent { folders: folder_count, files: file_count } => {
                folders.reserve_exact(folder_count);
                files.reserve_exact(file_count);
            }
            Node::Folder(folder) => {
                nested.iter_mut().for_each(|inner| inner.observe(folder.root, &folder.path, folder.id));
                let name = name_hash(folder.path.file_name().unwrap_or_default());
                let is_root = folder.path.as_os_str().is_empty();
                let path = match folder.path.file_name() {
                    Some(name) => PathBuf::from(name),
                    None => roots.get(&folder.root).cloned().unwrap_or_default(),
                };
                let (id, root, whole, skipped) = (folder.id, folder.root, folder.whole, folder.skipped);
                folders.push(Row { id, root, parent: folder.parent, is_root, whole, skipped, name, path });
            }
            Node::File(file) => {
                if let Some(at) = index_of(&folders, file.folder) {
                    files.push(tree_file(&file, at, label(&file.name)));
                }
            }
            Node::SharedNames(names) => join_names(&mut files, names),
        })?;
        nested.iter().for_each(|inner| inner.join(&mut folders));
        let (mut folders, order) = sort_folders(&folders);
        // Folders that are below no root are not part of the tree.
        files.retain(|file| order[file.folder as usize] != NONE);
        files.iter_mut().for_each(|file| file.folder = order[file.folder as usize]);
        files.sort_unstable_by_key(|file| (file.folder, file.id));
        assign_files(&mut folders, &files);
        Ok(Tree { folders, files })
    }

    /// Parents of a folder, innermost first.
    pub(crate) fn above(&self, folder: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.folders[folder as usize].parent, |&at| self.folders[at as usize].parent)
    }

    /// Direct subfolders of a folder.
    pub(crate) fn children(&self, folder: u32) -> impl Iterator<Item = u32> {
        let end = self.folders[folder as usize].end;
        let inside = move |at: &u32| *at < end;
        std::iter::successors(Some(folder + 1).filter(inside), move |&at| {
            Some(self.folders[at as usize].end).filter(inside)
        })
    }

    /// Number of entries in and below a folder that were not scanned, or `None` if it was not recorded for all of them.
    pub(crate) fn skipped(&self, folder: u32) -> Option<u64> {
        let below = &self.folders[folder as usize..self.folders[folder as usize].end as usize];
        below.iter().map(|folder| folder.skipped.map(|skipped| skipped.entries)).sum()
    }

    /// Size of all files in and below a folder. Each name of a file with several names counts.
    pub(crate) fn bytes(&self, folder: u32) -> u64 {
        self.files[self.folders[folder as usize].all()].iter().map(|file| file.size).sum()
    }
}

struct Row {
    id: i64,
    root: i64,
    parent: Option<i64>,
    is_root: bool,
    whole: bool,
    skipped: Option<Skipped>,
    name: NameHash,
    /// Path relative to its parent folder; the absolute path for a root that is in no other.
    path: PathBuf,
}

/// A name of a file that has other names. Equal keys mean one inode in one state.
struct Alias {
    key: (i64, u64, i64),
    file: u32,
    content: u32,
}

fn index_of(rows: &[Row], id: i64) -> Option<u32> {
    rows.binary_search_by_key(&id, |row| row.id).ok().map(|at| at as u32)
}

fn tree_file<L>(file: &TreeFile<'_>, folder: u32, name: L) -> File<L> {
    let content = match file.content {
        Content::Empty => EMPTY,
        Content::Shared(number) => number,
        Content::Unique => UNIQUE,
        Content::Unknown => UNKNOWN,
    };
    let (size, allocated) = (file.stat.size, file.stat.allocated);
    let (is_single, via_symlink) = (file.stat.links == LinkKind::Single, file.stat.links == LinkKind::ViaSymlink);
    let (id, inode, is_linked) = (file.id, file.id, false);
    File { id, size, allocated, inode, is_linked, is_single, folder, content, via_symlink, name }
}

/// Sorts folders by path, so that each comes before its subfolders. Also returns the new index of each row. Rows in a
/// cycle, which no walk creates, get none.
fn sort_folders(rows: &[Row]) -> (Vec<Folder>, Vec<u32>) {
    let parents: Vec<u32> =
        rows.iter().map(|row| row.parent.map_or(NONE, |id| index_of(rows, id).unwrap_or(NONE))).collect();
    // Sorting by parent makes the subfolders of a folder one range.
    let mut by_parent: Vec<u32> = (0..rows.len() as u32).collect();
    let sort_key = |at: u32| (parents[at as usize], rows[at as usize].path.as_path());
    by_parent.sort_by(|&a, &b| sort_key(a).cmp(&sort_key(b)));
    let parents = parents.as_slice();
    let inside = |of: u32| {
        let from = by_parent.partition_point(|&at| parents[at as usize] < of);
        by_parent[from..].iter().copied().take_while(move |&at| parents[at as usize] == of)
    };
    let mut order = vec![NONE; rows.len()];
    let mut folders: Vec<Folder> = Vec::with_capacity(rows.len());
    // Rows without a parent are the folders of roots. A folder whose parent was deleted is dropped.
    let root_rows = inside(NONE).filter(|&at| rows[at as usize].parent.is_none());
    let mut stack: Vec<u32> = root_rows.collect();
    stack.reverse();
    while let Some(at) = stack.pop() {
        let row = &rows[at as usize];
        let parent = parents[at as usize];
        let parent = (parent != NONE).then(|| order[parent as usize]);
        order[at as usize] = folders.len() as u32;
        let Row { id, root, whole, skipped, name, .. } = *row;
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
            let parent_end = &mut folders[parent as usize].end;
            *parent_end = end.max(*parent_end);
        }
    }
    (folders, order)
}

/// Sets the file ranges of folders. Files are already in the order of folders.
fn assign_files<L>(folders: &mut [Folder], files: &[File<L>]) {
    let first = |folder: u32| files.partition_point(|file| file.folder < folder) as u32;
    for (at, folder) in folders.iter_mut().enumerate() {
        let at = at as u32;
        let start = first(at);
        folder.files = (start, first(at + 1));
        folder.all_files = (start, first(folder.end));
    }
}

/// Records which rows are names of one file. Files are in the order of their rows. A file that was not hashed, because
/// only its other names equal it, gets their content.
fn join_names<L>(files: &mut [File<L>], shared: &[SharedName]) {
    let mut names = Vec::with_capacity(shared.len());
    for SharedName { row, file, ctime_ns } in shared {
        let Ok(at) = files.binary_search_by_key(row, |file| file.id) else { continue };
        let entry = &mut files[at];
        (entry.inode, entry.is_linked) = (*file, true);
        if entry.content != UNKNOWN {
            names.push(Alias { key: (*file, entry.size, *ctime_ns), file: at as u32, content: entry.content });
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
        // Names hashed at different times can have different contents. Then nothing is copied.
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

/// A nested root, whose files are also below folders of the outer root.
struct NestedRoot {
    root: i64,
    outer: i64,
    name: NameHash,
    inside: PathBuf,
    /// Folders of the outer root that may contain it, innermost first, with their row ids.
    around: Vec<(PathBuf, Option<i64>)>,
}

impl NestedRoot {
    fn all(roots: &[Root]) -> Vec<Self> {
        let around = |path: &Path, id: i64| {
            let outer = roots.iter().filter(|root| root.id != id && path.starts_with(&root.path));
            outer.max_by_key(|root| root.path.as_os_str().len())
        };
        let nested = roots.iter().filter_map(|root| {
            let outer = around(&root.path, root.id)?;
            let inside = root.path.strip_prefix(&outer.path).ok()?;
            let around = inside.ancestors().skip(1).map(|path| (path.to_path_buf(), None)).collect();
            let name = name_hash(root.path.file_name().unwrap_or_default());
            Some(NestedRoot { root: root.id, outer: outer.id, name, inside: inside.to_path_buf(), around })
        });
        nested.collect()
    }

    fn observe(&mut self, root: i64, path: &Path, id: i64) {
        if self.outer == root
            && let Some((_, found)) = self.around.iter_mut().find(|(folder, _)| folder == path)
        {
            *found = Some(id);
        }
    }

    fn join(&self, rows: &mut [Row]) {
        let Some((folder, parent)) = self.around.iter().find_map(|(path, id)| Some((path, (*id)?))) else {
            return;
        };
        match rows.iter().position(|row| row.root == self.root && row.is_root) {
            Some(at) => {
                rows[at].parent = Some(parent);
                rows[at].name = self.name;
                rows[at].path = self.inside.strip_prefix(folder).unwrap_or(&self.inside).to_path_buf();
            }
            // The root was never scanned, so the folder around it is not completely known.
            None => {
                if let Some(at) = index_of(rows, parent) {
                    rows[at as usize].whole = false;
                }
            }
        }
    }
}
