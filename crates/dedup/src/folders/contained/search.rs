//! Finds the innermost folders that contain all files of a folder.
//!
//! Owns the search. It starts from the content that occurs in the fewest places. From each place it ascends until the
//! folder contains all other contents too: a binary search for each content and level. A folder that has a content of
//! its own is refused before. The containing folders depend only on the set of contents, so they are remembered for
//! sets that many folders have. With names, the files and subfolders of a folder are found by name in sorted lists.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::super::compare::path_hashes;
use super::super::tree::{File, NameHash, Tree, UNIQUE, UNKNOWN};

/// Containing folders are remembered for sets whose rarest content occurs more often than this.
const MIN_REMEMBERED_PLACES: usize = 16;

/// Maximum number of remembered folders, at 8 bytes each. All are forgotten before it is exceeded.
const MAX_REMEMBERED_FOLDERS: usize = 8 << 20;

/// Number of folders that take as much memory as a remembered set without any.
const FOLDERS_PER_SET: usize = 16;

pub(super) struct Search<'a> {
    tree: &'a Tree<NameHash>,
    match_names: bool,
    /// Files by content, each content in the order of the tree.
    places: Vec<u32>,
    /// Start of each content in `places`.
    starts: Vec<u32>,
    /// Number of files without a shared content before each file.
    unshared: Vec<u32>,
    /// Number of folders that were not read completely before each folder.
    unread: Vec<u32>,
    /// Size of the files before each file.
    sizes: Vec<u64>,
    /// Number of files before each file that a bind mount or symbolic link makes appear at other paths too, or that are
    /// other names of such a file.
    other_paths: Vec<u32>,
    /// Files by folder, name and content. Empty unless names are compared.
    files_by_name: Vec<u32>,
    /// Folders by parent and name. Empty unless names are compared.
    folders_by_name: Vec<u32>,
    remembered: HashMap<[u8; 32], Rc<Containers>>,
    /// Number of folders in `remembered`, and [`FOLDERS_PER_SET`] for each set.
    remembered_folders: usize,
}

/// The innermost folders that have all contents of a set, and more.
struct Containers {
    /// In the order of the tree.
    sorted: Vec<u32>,
    /// The smallest first.
    by_size: Vec<u32>,
}

impl<'a> Search<'a> {
    pub(super) fn new(tree: &'a Tree<NameHash>, match_names: bool) -> Self {
        let contents = tree.files.iter().map(|file| file.content).filter(|content| is_shared(*content));
        let count = contents.clone().max().map_or(0, |last| last as usize + 1);
        let mut starts = vec![0_u32; count + 1];
        contents.for_each(|content| starts[content as usize + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut places = vec![0; starts[count] as usize];
        for (at, file) in tree.files.iter().enumerate().filter(|(_, file)| is_shared(file.content)) {
            let place = &mut next[file.content as usize];
            places[*place as usize] = at as u32;
            *place += 1;
        }
        let other_paths = tree.files.iter().filter(|file| file.has_other_paths());
        let mut inodes: Vec<i64> = other_paths.map(|file| file.inode).collect();
        inodes.sort_unstable();
        inodes.dedup();
        let indexes = |length: usize| (0..if match_names { length as u32 } else { 0 }).collect::<Vec<_>>();
        let (mut files_by_name, mut folders_by_name) = (indexes(tree.files.len()), indexes(tree.folders.len()));
        files_by_name.sort_unstable_by_key(|&at| file_key(tree, at));
        folders_by_name.sort_unstable_by_key(|&at| folder_key(tree, at));
        Search {
            match_names,
            places,
            starts,
            unshared: sums(tree.files.iter().map(|file| u32::from(!is_shared(file.content)))),
            unread: sums(tree.folders.iter().map(|folder| u32::from(!folder.whole))),
            sizes: sums(tree.files.iter().map(|file| file.size)),
            other_paths: sums(tree.files.iter().map(|file| u32::from(inodes.binary_search(&file.inode).is_ok()))),
            files_by_name,
            folders_by_name,
            remembered: HashMap::new(),
            remembered_folders: 0,
            tree,
        }
    }

    /// Size of the files in and below a folder.
    pub(super) fn bytes(&self, folder: u32) -> u64 {
        let files = self.tree.folders[folder as usize].all();
        self.sizes[files.end] - self.sizes[files.start]
    }

    /// Returns the first `limit` innermost folders that contain all files of a folder and more, the smallest first, and
    /// the number of all. `None` if there is none, or the files of the folder are not all known.
    pub(super) fn containers(&mut self, folder: u32, limit: usize) -> Option<(Vec<u32>, u64)> {
        let of = &self.tree.folders[folder as usize];
        let files = of.all();
        if self.unshared[files.end] > self.unshared[files.start]
            || self.unread[of.end as usize] > self.unread[folder as usize]
            || self.tree.files[files.clone()].iter().any(|file| !self.is_outside(file.content, &files))
        {
            return None;
        }
        let mut contents: Vec<u32> = self.tree.files[files.clone()].iter().map(|file| file.content).collect();
        contents.sort_unstable();
        contents.dedup();
        let rarest = contents.iter().copied().min_by_key(|content| self.all_places(*content).len())?;
        let found = self.remembered(folder, &contents, rarest);
        if self.other_paths[files.end] > self.other_paths[files.start] {
            let found = self.with_own_copies(folder, &contents, &found);
            let listed = found.by_size.iter().take(limit).copied().collect();
            return (!found.sorted.is_empty()).then_some((listed, found.sorted.len() as u64));
        }
        // Thousands of folders may have the same list, so it is not filtered for each.
        let position = |at: u32| found.sorted.partition_point(|&other| other < at);
        let inside = position(of.end) - position(folder);
        let around = self.tree.above(folder).filter(|at| found.sorted.binary_search(at).is_ok()).count();
        let total = found.sorted.len() - inside - around;
        let listed = found.by_size.iter().filter(|&&at| self.is_apart(folder, at)).take(limit).copied().collect();
        (total > 0).then_some((listed, total as u64))
    }

    fn remembered(&mut self, folder: u32, contents: &[u32], rarest: u32) -> Rc<Containers> {
        let search = |search: &Self| {
            let found = match search.match_names {
                true => search.by_path(folder, rarest),
                false => search.by_content(folder, contents, rarest),
            };
            Rc::new(search.sorted_by_size(found))
        };
        if self.all_places(rarest).len() <= MIN_REMEMBERED_PLACES {
            return search(self);
        }
        let key = self.key(folder, contents);
        if let Some(known) = self.remembered.get(&key) {
            return known.clone();
        }
        let found = search(self);
        let folders = FOLDERS_PER_SET + found.sorted.len();
        if self.remembered_folders + folders > MAX_REMEMBERED_FOLDERS {
            self.remembered.clear();
            self.remembered_folders = 0;
        }
        self.remembered_folders += folders;
        self.remembered.insert(key, found.clone());
        found
    }

    fn sorted_by_size(&self, mut sorted: Vec<u32>) -> Containers {
        sorted.sort_unstable();
        sorted.dedup();
        let mut by_size = sorted.clone();
        by_size.sort_by_key(|&at| (self.bytes(at), self.tree.folders[at as usize].count(), at));
        Containers { sorted, by_size }
    }

    /// Whether neither of two folders is inside the other, and they are not the same.
    fn is_apart(&self, a: u32, b: u32) -> bool {
        let range = |at: u32| at..self.tree.folders[at as usize].end;
        !range(a).contains(&b) && !range(b).contains(&a)
    }

    /// All files with a content, in the order of the tree.
    fn all_places(&self, content: u32) -> &[u32] {
        &self.places[self.starts[content as usize] as usize..self.starts[content as usize + 1] as usize]
    }

    /// The files with a content among these.
    fn places(&self, content: u32, files: &Range<usize>) -> &[u32] {
        let all = self.all_places(content);
        let from = all.partition_point(|&at| (at as usize) < files.start);
        let until = all.partition_point(|&at| (at as usize) < files.end);
        &all[from..until]
    }

    fn is_in(&self, content: u32, folder: u32) -> bool {
        let files = self.tree.folders[folder as usize].all();
        let all = self.all_places(content);
        all.get(all.partition_point(|&at| (at as usize) < files.start)).is_some_and(|&at| (at as usize) < files.end)
    }

    fn is_outside(&self, content: u32, files: &Range<usize>) -> bool {
        let all = self.all_places(content);
        let is_outside = |at: Option<&u32>| at.is_some_and(|&at| !files.contains(&(at as usize)));
        is_outside(all.first()) || is_outside(all.last())
    }

    /// Identifies what decides which folders contain a folder: its contents, and their paths if these are compared.
    fn key(&self, folder: u32, contents: &[u32]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        if self.match_names {
            for (path, file) in path_hashes(self.tree, folder) {
                hasher.update(&path).update(&self.tree.files[file as usize].content.to_le_bytes());
            }
        } else {
            for content in contents {
                hasher.update(&content.to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// The innermost folders that have all contents of a folder, except those that have no others. Folders in and
    /// around it are left out, here and for every folder with these contents: they are not innermost, or have no
    /// others.
    fn by_content(&self, of: u32, contents: &[u32], rarest: u32) -> Vec<u32> {
        let mut by_rarity = contents.to_vec();
        by_rarity.sort_by_key(|content| self.all_places(*content).len());
        let mut found = Vec::new();
        let mut last = None;
        for &place in self.all_places(rarest) {
            let folder = self.tree.files[place as usize].folder;
            if last.replace(folder) != Some(folder) {
                found.extend(self.ascend(folder, of, &by_rarity));
            }
        }
        found.sort_unstable();
        found.dedup();
        // Folders are sorted by path: one that contains another one of these is followed by it.
        let is_innermost = |at: usize| match found.get(at + 1) {
            Some(&next) => next >= self.tree.folders[found[at] as usize].end,
            None => true,
        };
        let innermost: Vec<u32> = (0..found.len()).filter(|&at| is_innermost(at)).map(|at| found[at]).collect();
        innermost.into_iter().filter(|&at| self.has_others(at, contents)).collect()
    }

    /// The innermost folder, from this one outwards, that has all these contents. None if it is in or around `of`.
    fn ascend(&self, mut folder: u32, of: u32, contents: &[u32]) -> Option<u32> {
        // Most searches end here, before all contents are looked up.
        let is_apart = |folder: u32| self.is_apart(folder, of).then_some(folder);
        folder = is_apart(folder)?;
        for &content in contents {
            while !self.is_in(content, folder) {
                folder = is_apart(self.tree.folders[folder as usize].parent?)?;
            }
        }
        Some(folder)
    }

    fn has_others(&self, folder: u32, contents: &[u32]) -> bool {
        let mut files = self.tree.files[self.tree.folders[folder as usize].all()].iter();
        files.any(|file| contents.binary_search(&file.content).is_err())
    }

    /// The folders that have each file of a folder at the same path, and more files.
    fn by_path(&self, folder: u32, rarest: u32) -> Vec<u32> {
        let files = self.tree.folders[folder as usize].all();
        let Some(&first) = self.places(rarest, &files).first() else { return Vec::new() };
        let count = self.tree.folders[folder as usize].count();
        let others = self.all_places(rarest).iter().filter_map(|&place| self.counterpart(folder, first, place));
        others
            .filter(|&other| self.tree.folders[other as usize].count() > count && self.covers(other, folder))
            .collect()
    }

    /// The folder in which `other` has the path that `file` has in `folder`.
    fn counterpart(&self, folder: u32, file: u32, other: u32) -> Option<u32> {
        let [file, other] = [file, other].map(|at| &self.tree.files[at as usize]);
        if file.name != other.name {
            return None;
        }
        let (mut ours, mut theirs) = (file.folder, other.folder);
        while ours != folder {
            let [inner, outer] = [ours, theirs].map(|at| &self.tree.folders[at as usize]);
            if inner.name != outer.name {
                return None;
            }
            (ours, theirs) = (inner.parent?, outer.parent?);
        }
        Some(theirs)
    }

    /// Whether a folder has each file of `inner` at the same path.
    fn covers(&self, outer: u32, inner: u32) -> bool {
        let tree = self.tree;
        let has_file = |file: &File<NameHash>| {
            let key = (outer, file.name, file.content);
            self.files_by_name.binary_search_by_key(&key, |&at| file_key(tree, at)).is_ok()
        };
        let covers_child = |inner: u32| {
            let key = (Some(outer), tree.folders[inner as usize].name);
            let found = self.folders_by_name.binary_search_by_key(&key, |&at| folder_key(tree, at)).ok();
            found.is_some_and(|position| self.covers(self.folders_by_name[position], inner))
        };
        tree.files[tree.folders[inner as usize].own()].iter().all(has_file)
            && tree.children(inner).filter(|&at| tree.folders[at as usize].count() > 0).all(covers_child)
    }

    /// The innermost folders, from each of `found` outwards, that have a copy of each content which removing `folder`
    /// does not remove. Folders in and around `folder` are left out.
    fn with_own_copies(&self, folder: u32, contents: &[u32], found: &Containers) -> Containers {
        let files = &self.tree.files[self.tree.folders[folder as usize].all()];
        let mut removed: Vec<(i64, bool)> = files.iter().map(|file| (file.inode, file.has_other_paths())).collect();
        removed.sort_unstable();
        let survives = |place: &u32| {
            let file = &self.tree.files[*place as usize];
            let from = removed.partition_point(|(inode, _)| *inode < file.inode);
            let mut same = removed[from..].iter().take_while(|(inode, _)| *inode == file.inode).peekable();
            same.peek().is_none() || !(file.has_other_paths() || same.any(|(_, has_other_paths)| *has_other_paths))
        };
        let has_copies = |outer: &u32| {
            let range = self.tree.folders[*outer as usize].all();
            contents.iter().all(|&content| self.places(content, &range).iter().any(survives))
        };
        // With names, only the folder itself has the files at the same paths.
        let parent = |at: &u32| self.tree.folders[*at as usize].parent.filter(|_| !self.match_names);
        let innermost = |outer: &u32| {
            let mut outwards = std::iter::successors(Some(*outer), parent).take_while(|&at| self.is_apart(folder, at));
            outwards.find(has_copies)
        };
        self.sorted_by_size(found.sorted.iter().filter_map(innermost).collect())
    }
}

fn file_key(tree: &Tree<NameHash>, at: u32) -> (u32, NameHash, u32) {
    let file = &tree.files[at as usize];
    (file.folder, file.name, file.content)
}

fn folder_key(tree: &Tree<NameHash>, at: u32) -> (Option<u32>, NameHash) {
    let folder = &tree.folders[at as usize];
    (folder.parent, folder.name)
}

fn is_shared(content: u32) -> bool {
    content != UNIQUE && content != UNKNOWN
}

/// The sum of all numbers before each position, and of all.
fn sums<T: Copy + Default + std::ops::Add<Output = T>>(numbers: impl Iterator<Item = T>) -> Vec<T> {
    let mut sum = T::default();
    let mut sums = vec![sum];
    sums.extend(numbers.map(|number| {
        sum = sum + number;
        sum
    }));
    sums
}
