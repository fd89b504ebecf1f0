//! Computes the numbers of a report in one pass over the catalog.
//!
//! Owns the sums. Duplicates are defined as for [groups](gristmill_store::catalog::Catalog::groups), so that the sums
//! agree. The size of a file with several names counts once, for the first name.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use gristmill_store::roots::Root;
use gristmill_store::{Store, display_path};

use crate::Result;
use crate::folders::tree::{EMPTY, Tree, UNIQUE, UNKNOWN};

/// Maximum number of subfolders shown separately in each folder of the map.
const MAX_INNER_AREAS: usize = 24;
/// Maximum number of folders shown separately on the first level of the map.
const MAX_OUTER_AREAS: usize = 32;

#[derive(Default)]
pub(super) struct Stats {
    pub(super) files: u64,
    pub(super) folders: u64,
    pub(super) bytes: u64,
    /// Bytes that the files occupy on their disks.
    pub(super) allocated: u64,
    pub(super) unreadable: u64,
    /// Allocated bytes of the copies to keep, over all contents with several copies.
    pub(super) kept: u64,
    /// Sorted by reclaimable bytes, then by size.
    pub(super) types: Vec<TypeStats>,
    /// Files by size: empty files, then one class per power of 16.
    pub(super) sizes: Vec<SizeStats>,
    pub(super) space: Vec<Area>,
}

#[derive(Clone, Default)]
pub(super) struct TypeStats {
    pub(super) name: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) duplicates: u64,
    pub(super) reclaimable: u64,
}

#[derive(Clone, Copy, Default)]
pub(super) struct SizeStats {
    pub(super) files: u64,
    pub(super) duplicates: u64,
    pub(super) bytes: u64,
}

/// A folder on the map, including everything below it.
pub(super) struct Area {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) duplicate: u64,
    pub(super) inner: Vec<Area>,
}

/// For each file of the tree: whether it has a copy, and the reclaimable bytes attributed to it.
struct Copies {
    is_duplicate: Vec<bool>,
    reclaimable: Vec<u64>,
    kept: u64,
    /// Whether an earlier row is a name of the same file.
    is_further_name: Vec<bool>,
}

impl Copies {
    /// Bytes that a file adds to a sum.
    fn size(&self, tree: &Tree<u32>, at: usize) -> u64 {
        if self.is_further_name[at] { 0 } else { tree.files[at].size }
    }
}

impl Stats {
    pub(super) fn read(store: &Store, roots: &[Root]) -> Result<Self> {
        let mut names = Extensions::default();
        let tree = Tree::load(store, |name| names.number(name))?;
        let copies = copies(&tree);
        let mut stats = Stats {
            files: tree.files.len() as u64,
            folders: tree.folders.len() as u64,
            types: names.names.iter().map(|name| TypeStats { name: name.clone(), ..TypeStats::default() }).collect(),
            sizes: vec![SizeStats::default(); 1],
            kept: copies.kept,
            ..Stats::default()
        };
        for (at, file) in tree.files.iter().enumerate() {
            let (duplicate, reclaimable) = (u64::from(copies.is_duplicate[at]), copies.reclaimable[at]);
            let size = copies.size(&tree, at);
            stats.bytes += size;
            stats.allocated += if copies.is_further_name[at] { 0 } else { file.allocated };
            stats.unreadable += u64::from(file.content == UNKNOWN);
            let kind = &mut stats.types[file.name as usize];
            kind.files += 1;
            kind.bytes += size;
            kind.duplicates += duplicate;
            kind.reclaimable += reclaimable;
            let power = file.size.checked_ilog2().map_or(0, |bits| bits as usize / 4 + 1);
            if stats.sizes.len() <= power {
                stats.sizes.resize(power + 1, SizeStats::default());
            }
            let sizes = &mut stats.sizes[power];
            sizes.files += 1;
            sizes.duplicates += duplicate;
            sizes.bytes += size;
        }
        let order = |kind: &TypeStats| (kind.reclaimable, kind.bytes, kind.files);
        stats.types.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name)));
        stats.space = AreaMap { store, tree: &tree, copies: &copies, roots }.areas()?;
        Ok(stats)
    }
}

#[derive(Default)]
struct Extensions {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Extensions {
    fn number(&mut self, name: &OsStr) -> u32 {
        let extension = Path::new(name).extension().and_then(OsStr::to_str).unwrap_or_default();
        // Long or non-alphanumeric extensions are not file types.
        let is_type = extension.len() <= 12 && extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let extension = if is_type { extension.to_ascii_lowercase() } else { String::new() };
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(extension.clone()).or_insert(next);
        if number == next {
            self.names.push(extension);
        }
        number
    }
}

fn copies(tree: &Tree<u32>) -> Copies {
    let files = &tree.files;
    let is_hashed = |content: u32| content != EMPTY && content != UNIQUE && content != UNKNOWN;
    let mut sorted: Vec<u32> = (0..files.len() as u32).filter(|&at| is_hashed(files[at as usize].content)).collect();
    sorted.sort_unstable_by_key(|&at| (files[at as usize].content, files[at as usize].inode, at));
    let (is_duplicate, reclaimable) = (vec![false; files.len()], vec![0; files.len()]);
    let mut copies = Copies { is_duplicate, reclaimable, kept: 0, is_further_name: further_names(tree) };
    for group in sorted.chunk_by(|&a, &b| files[a as usize].content == files[b as usize].content) {
        let inodes = || group.chunk_by(|&a, &b| files[a as usize].inode == files[b as usize].inode);
        if inodes().count() < 2 {
            continue;
        }
        group.iter().for_each(|&at| copies.is_duplicate[at as usize] = true);
        // The target of a symbolic link is kept. Without one, the copy that occupies most space is kept, the first of
        // equals.
        let has_symlink = |names: &[u32]| names.iter().any(|&at| files[at as usize].via_symlink);
        let allocated = |names: &[u32]| files[names[0] as usize].allocated;
        let largest = inodes().max_by_key(|names| (allocated(names), Reverse(names[0])));
        let largest = largest.filter(|_| !inodes().any(has_symlink)).map(|names| names[0]);
        for names in inodes() {
            if has_symlink(names) || Some(names[0]) == largest {
                copies.kept += allocated(names);
            } else {
                copies.reclaimable[names[0] as usize] = allocated(names);
            }
        }
    }
    copies
}

fn further_names(tree: &Tree<u32>) -> Vec<bool> {
    let mut is_name = vec![false; tree.files.len()];
    let linked = tree.files.iter().enumerate().filter(|(_, file)| file.may_have_other_names());
    let mut linked: Vec<_> = linked.map(|(at, file)| (file.inode, at)).collect();
    linked.sort_unstable();
    for (earlier, later) in linked.iter().zip(linked.iter().skip(1)) {
        is_name[later.1] = earlier.0 == later.0;
    }
    is_name
}

struct AreaMap<'a> {
    store: &'a Store,
    tree: &'a Tree<u32>,
    copies: &'a Copies,
    roots: &'a [Root],
}

impl AreaMap<'_> {
    fn areas(&self) -> Result<Vec<Area>> {
        let top_folders =
            (0..self.tree.folders.len() as u32).filter(|&at| self.tree.folders[at as usize].parent.is_none());
        let top_folders: Vec<u32> = top_folders.filter(|&at| self.tree.folders[at as usize].count() > 0).collect();
        let inner = |at| self.inside(at, MAX_INNER_AREAS, &|_| Ok(Vec::new()));
        match top_folders[..] {
            [only] => self.inside(self.first_fork(only), MAX_OUTER_AREAS, &inner),
            _ => self.largest(top_folders, None, MAX_OUTER_AREAS, &inner),
        }
    }

    /// Descends from a folder to the first one whose files are not all in one subfolder.
    fn first_fork(&self, mut at: u32) -> u32 {
        let count = |at: u32| self.tree.folders[at as usize].count();
        while let Some(only) = self.tree.children(at).find(|&child| count(child) == count(at)) {
            at = only;
        }
        at
    }

    fn inside(&self, at: u32, limit: usize, inner: &dyn Fn(u32) -> Result<Vec<Area>>) -> Result<Vec<Area>> {
        self.largest(self.tree.children(at).collect(), Some(at), limit, inner)
    }

    /// The largest folders, one area for all others, and the files directly in the folder around them.
    fn largest(
        &self,
        folders: Vec<u32>,
        around: Option<u32>,
        limit: usize,
        inner: &dyn Fn(u32) -> Result<Vec<Area>>,
    ) -> Result<Vec<Area>> {
        let bytes = |at: u32| self.tree.folders[at as usize].all().map(|at| self.copies.size(self.tree, at)).sum();
        let mut folders: Vec<(u64, u32)> = folders.into_iter().map(|at| (bytes(at), at)).collect();
        folders.sort_unstable_by_key(|&(bytes, at)| (u64::MAX - bytes, at));
        let mut areas = Vec::new();
        let mut others = self.area(format!("{} more", folders.len().saturating_sub(limit)), String::new(), 0..0);
        for (rank, (_, at)) in folders.into_iter().enumerate() {
            let range = self.tree.folders[at as usize].all();
            if rank < limit {
                let (name, path) = self.name(at)?;
                areas.push(Area { inner: inner(at)?, ..self.area(name, path, range) });
            } else {
                let area = self.area(String::new(), String::new(), range);
                others.files += area.files;
                others.bytes += area.bytes;
                others.duplicate += area.duplicate;
            }
        }
        areas.push(others);
        if let Some(around) = around {
            let (_, path) = self.name(around)?;
            areas.push(self.area("files".to_owned(), path, self.tree.folders[around as usize].own()));
        }
        areas.retain(|area| area.bytes > 0);
        areas.sort_by_key(|area| u64::MAX - area.bytes);
        Ok(areas)
    }

    fn area(&self, name: String, path: String, range: std::ops::Range<usize>) -> Area {
        let size = |at: usize| self.copies.size(self.tree, at);
        let files = range.len() as u64;
        let bytes = range.clone().map(size).sum();
        let duplicate = range.filter(|&at| self.copies.is_duplicate[at]).map(size).sum();
        Area { name, path, files, bytes, duplicate, inner: Vec::new() }
    }

    /// Name and absolute path of a folder for display.
    fn name(&self, at: u32) -> Result<(String, String)> {
        let id = self.tree.folders[at as usize].id;
        let (root, path) = self.store.catalog().folder_at(id)?.unwrap_or_default();
        let root = self.roots.iter().find(|other| other.id == root).map(|root| root.path.as_path());
        let path = match root.unwrap_or(Path::new("")) {
            root if path.as_os_str().is_empty() => root.to_path_buf(),
            root => root.join(path),
        };
        let name = path.file_name().map_or_else(|| display_path(&path), |name| display_path(Path::new(name)));
        Ok((name, display_path(&path)))
    }
}
