//! Finds identical, similar and contained folders by comparing every pair: slow, short, and independent of the
//! implementation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gristmill_dedup::folders::{ContainedFolder, FolderGroup, SimilarFolders};
use proptest::prelude::*;

use crate::trees::{CatalogFixture, FileContent, TestFile, file, skipped_entry};

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    folders: BTreeMap<PathBuf, Folder>,
    files: BTreeMap<PathBuf, (FileContent, u64)>,
}

#[derive(Clone, Debug)]
struct Folder {
    /// Whether it could be read completely.
    read: bool,
    /// Names and targets of skipped entries; without a target an entry is unknown. `None` if they were not recorded.
    skipped: Option<BTreeMap<String, Option<String>>>,
}

pub(crate) fn tree() -> impl Strategy<Value = Tree> {
    let target = prop_oneof![3 => (0u8..2).prop_map(|n| Some(format!("t{n}"))), 1 => Just(None)];
    let entries = prop::collection::vec((0u8..2, target), 1..3);
    let entries = entries.prop_map(|list| list.into_iter().map(|(n, to)| (format!("l{n}"), to)).collect());
    let skipped = prop_oneof![8 => Just(Some(BTreeMap::new())), 3 => entries.prop_map(Some), 1 => Just(None)];
    let read = prop::bool::weighted(0.97);
    let folders = prop::collection::vec((any::<prop::sample::Index>(), 0u8..3, read, skipped), 1..12);
    let content = prop_oneof![
        12 => (1u8..5).prop_map(|n| FileContent::Hashed(u64::from(n) * 10, n)),
        1 => Just(FileContent::Empty),
        1 => (1u64..3).prop_map(FileContent::Unique),
        1 => (1u64..3).prop_map(FileContent::Unknown),
    ];
    let files = prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, content, 0u64..4), 0..24);
    (folders, files).prop_map(|(folders, files)| {
        let top = Folder { read: true, skipped: Some(BTreeMap::new()) };
        let mut tree = Tree { folders: [(PathBuf::new(), top)].into(), files: BTreeMap::new() };
        for (parent, name, read, skipped) in folders {
            let parent = parent.get(&tree.folders.keys().cloned().collect::<Vec<_>>()).clone();
            tree.folders.entry(parent.join(format!("d{name}"))).or_insert(Folder { read, skipped });
        }
        for (folder, name, content, link) in files {
            let folder = folder.get(&tree.folders.keys().cloned().collect::<Vec<_>>()).clone();
            // Some files are names of one inode, which is derived from the content.
            let inode = match content {
                FileContent::Hashed(size, _) | FileContent::Unique(size) if link < 2 => size * 4 + link,
                _ => 0,
            };
            tree.files.insert(folder.join(format!("f{name}")), (content, inode));
        }
        tree
    })
}

/// A comparable content. Unique and unknown contents are identified by their path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Same(FileContent),
    Inode(u64),
    Unique(PathBuf),
    Unknown(PathBuf),
}

/// Contents of files, subfolders, and targets of skipped entries if these are compared; each with its name if names are
/// compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape(Vec<(PathBuf, Content)>, Vec<(PathBuf, Shape)>, Vec<(PathBuf, String)>);

/// The properties that are compared.
#[derive(Clone, Copy)]
struct Compared {
    names: bool,
    skipped: bool,
}

impl Tree {
    pub(crate) fn write(&self) -> CatalogFixture {
        let planned = |(path, (content, inode)): (&PathBuf, &(FileContent, u64))| TestFile {
            inode: *inode,
            ..file(path.clone(), *content)
        };
        let files: Vec<TestFile> = self.files.iter().map(planned).collect();
        let folders: Vec<&str> = self.folders.keys().filter_map(|path| path.to_str()).collect();
        let failed = self.folders.iter().filter(|(_, folder)| !folder.read);
        let failed = failed.filter_map(|(path, _)| path.to_str());
        let mut trees = CatalogFixture::new();
        for (path, folder) in &self.folders {
            let sum = folder.skipped.as_ref().map(|entries| {
                let mut sum = gristmill_store::catalog::Skipped::default();
                entries.iter().for_each(|(name, target)| sum += skipped_entry(name, target.as_deref()));
                sum
            });
            trees.skipped.insert(path.clone(), sum);
        }
        trees.root("/r", &files, &folders, &failed.collect::<Vec<_>>());
        trees
    }

    fn content(&self, path: &Path) -> Content {
        match self.files[path] {
            (FileContent::Unknown(_), _) => Content::Unknown(path.into()),
            (FileContent::Unique(_), 0) => Content::Unique(path.into()),
            (FileContent::Unique(_), inode) => match self.files.values().filter(|(_, other)| *other == inode).count() {
                1 => Content::Unique(path.into()),
                _ => Content::Inode(inode),
            },
            (content, _) => Content::Same(content),
        }
    }

    fn below<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        self.files.keys().filter(move |path| path.starts_with(folder))
    }

    fn inside<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        self.folders.keys().filter(move |path| path.parent() == Some(folder))
    }

    fn shape(&self, folder: &Path, compared: Compared) -> Option<Shape> {
        let name = |path: &Path| {
            if compared.names { path.file_name().unwrap_or_default().into() } else { PathBuf::new() }
        };
        let mut files = Vec::new();
        for path in self.files.keys().filter(|path| path.parent() == Some(folder)) {
            match self.content(path) {
                Content::Unknown(_) => return None,
                content => files.push((name(path), content)),
            }
        }
        let mut folders = Vec::new();
        for path in self.inside(folder) {
            folders.push((name(path), self.shape(path, compared)?));
        }
        let mut skipped = Vec::new();
        if compared.skipped {
            for (entry, target) in self.recorded(folder)? {
                skipped.push((name(Path::new(&entry)), target?));
            }
        }
        files.sort();
        folders.sort();
        skipped.sort();
        self.folders[folder].read.then_some(Shape(files, folders, skipped))
    }

    /// Skipped entries of a folder, if recorded.
    fn recorded(&self, folder: &Path) -> Option<BTreeMap<String, Option<String>>> {
        self.folders[folder].skipped.clone()
    }

    /// Number of skipped entries in and below a folder.
    fn unscanned(&self, folder: &Path) -> Option<u64> {
        let below = self.folders.keys().filter(|path| path.starts_with(folder));
        below.map(|path| self.recorded(path).map(|entries| entries.len() as u64)).sum()
    }

    fn classes(&self, compared: Compared) -> Vec<BTreeSet<&PathBuf>> {
        let mut classes: BTreeMap<Shape, BTreeSet<&PathBuf>> = BTreeMap::new();
        for folder in self.folders.keys().filter(|folder| self.below(folder).next().is_some()) {
            if let Some(shape) = self.shape(folder, compared) {
                classes.entry(shape).or_default().insert(folder);
            }
        }
        classes.into_values().filter(|class| class.len() > 1).collect()
    }

    /// Identifies the inode of a file: by its path if it has one name.
    fn inode_key(&self, path: &Path) -> PathBuf {
        match self.files[path].1 {
            0 => path.to_path_buf(),
            inode => PathBuf::from(inode.to_string()),
        }
    }

    /// Sizes of the files below a folder, by inode.
    fn sizes_by_inode(&self, folder: &Path) -> BTreeMap<PathBuf, u64> {
        self.below(folder).map(|path| (self.inode_key(path), self.files[path].0.size())).collect()
    }

    /// Bytes that are freed if only the folder that occupies most space is kept: files all of whose names are removed.
    fn freed(&self, class: &BTreeSet<&PathBuf>) -> u64 {
        let allocated = |folder: &Path| self.sizes_by_inode(folder).values().sum::<u64>();
        let most = class.iter().map(|folder| allocated(folder)).max();
        let kept = class.iter().find(|folder| Some(allocated(folder)) == most).expect("one of them");
        let is_inside = |path: &PathBuf, folder: &&PathBuf| path.starts_with(folder);
        let is_removed = |path: &PathBuf| class.iter().any(|f| f != kept && is_inside(path, f));
        let removed: BTreeSet<PathBuf> =
            self.files.keys().filter(|path| is_removed(path)).map(|path| self.inode_key(path)).collect();
        let left =
            |inode_key: &PathBuf| self.files.keys().any(|path| self.inode_key(path) == *inode_key && !is_removed(path));
        let size = |inode_key: &PathBuf| {
            let path = self.files.keys().find(|path| self.inode_key(path) == *inode_key).expect("a name");
            self.files[path].0.size()
        };
        removed.iter().filter(|inode_key| !left(inode_key)).map(size).sum()
    }

    fn contents(&self, folder: &Path) -> BTreeMap<Content, u64> {
        let mut contents = BTreeMap::new();
        self.below(folder).for_each(|path| *contents.entry(self.content(path)).or_default() += 1);
        contents
    }
}

/// Whether the folders are identical, their paths, files, bytes, reclaimable bytes, and entries not scanned.
type Group = (bool, BTreeSet<PathBuf>, u64, u64, u64, Option<u64>);

pub(crate) fn listed_groups(found: &[FolderGroup]) -> BTreeSet<Group> {
    let group = |group: &FolderGroup| {
        let paths = group.folders.iter().map(|folder| folder.path.clone()).collect();
        assert_eq!(group.redundant, group.reclaimable);
        (group.identical, paths, group.files, group.bytes, group.reclaimable, group.unscanned())
    };
    found.iter().map(group).collect()
}

pub(crate) fn groups(tree: &Tree, names: bool) -> BTreeSet<Group> {
    let identical = tree.classes(Compared { names, skipped: true });
    let scanned = tree.classes(Compared { names, skipped: false });
    let is_inside = |path: &Path, class: &BTreeSet<&PathBuf>| class.iter().any(|p| path != *p && path.starts_with(p));
    let mut groups = BTreeSet::new();
    for classes in [&identical, &scanned] {
        let is_outermost =
            |class: &&BTreeSet<&PathBuf>| !classes.iter().any(|other| class.iter().all(|path| is_inside(path, other)));
        for class in classes.iter().filter(is_outermost) {
            let is_identical = identical.contains(class);
            let first = class.first().expect("two at least");
            let bytes = tree.below(first).map(|path| tree.files[path].0.size()).sum();
            if bytes > 0 {
                let paths = class.iter().map(|path| (*path).clone()).collect();
                let freed = if is_identical { tree.freed(class) } else { 0 };
                let unscanned = class.iter().map(|path| tree.unscanned(path)).sum();
                let files = tree.below(first).count() as u64;
                groups.insert((is_identical, paths, files, bytes, freed, unscanned));
            }
        }
    }
    groups
}

/// Paths, matching files, their bytes, and the paths of files that differ.
type ListedPair = (PathBuf, PathBuf, u64, u64, BTreeSet<PathBuf>);

pub(crate) fn listed_pairs(found: &SimilarFolders) -> BTreeSet<ListedPair> {
    let mut pairs = BTreeSet::new();
    for pair in &found.pairs {
        assert!(!pair.differences.is_empty(), "{pair:?}");
        let surplus = pair.a.files - pair.matching_files;
        assert!(pair.only_in_a.total <= surplus && surplus <= pair.only_in_a.total + pair.differing.total);
        let differing = pair.differing.items.iter().map(|d| pair.a.path.join(&d.a.path)).collect();
        let (mut a, mut b) = (pair.a.path.clone(), pair.b.path.clone());
        let mut differ: BTreeSet<PathBuf> = differing;
        if a > b {
            // The smaller path comes first.
            differ = pair.differing.items.iter().map(|d| pair.b.path.join(&d.b.path)).collect();
            (a, b) = (b, a);
        }
        pairs.insert((a, b, pair.matching_files, pair.matching_bytes, differ));
    }
    pairs
}

pub(crate) fn similar(tree: &Tree, similarity: u8, popular: usize) -> BTreeSet<ListedPair> {
    let count = |folder: &Path| tree.below(folder).count() as u64;
    // A folder whose files are all in one subfolder is represented by that subfolder.
    let is_branching =
        |folder: &&PathBuf| count(folder) > 0 && tree.inside(folder).all(|inner| count(inner) < count(folder));
    let branching: Vec<&PathBuf> = tree.folders.keys().filter(is_branching).collect();
    let folder_count = |content: &Content| {
        let files = tree.files.keys().filter(|path| tree.content(path) == *content);
        files.map(|path| path.parent()).collect::<BTreeSet<_>>().len()
    };
    let size = |content: &Content| match content {
        Content::Same(content) => content.size(),
        Content::Inode(_) => {
            let file = tree.files.keys().find(|path| tree.content(path) == *content).expect("a file");
            tree.files[file].0.size()
        }
        _ => 0,
    };
    // All similar pairs, before the selection of those that are listed.
    let mut similar: BTreeMap<(&PathBuf, &PathBuf), (u64, u64, u64)> = BTreeMap::new();
    for &a in &branching {
        for &b in branching.iter().filter(|&&b| a < b && !b.starts_with(a)) {
            let (ours, theirs) = (tree.contents(a), tree.contents(b));
            let common = || ours.iter().filter_map(|(c, n)| theirs.get(c).map(|m| (c, *n.min(m))));
            let matching: u64 = common().map(|(_, n)| n).sum();
            let union = count(a) + count(b) - matching;
            let proposed = common().any(|(c, _)| folder_count(c) <= popular);
            if proposed && matching * 100 >= u64::from(similarity) * union {
                similar.insert((a, b), (matching, union, common().map(|(c, n)| n * size(c)).sum()));
            }
        }
    }
    let classes = tree.classes(Compared { names: false, skipped: true });
    let find = |x: &PathBuf, y: &PathBuf| {
        let key = if x < y { (x, y) } else { (y, x) };
        similar.iter().find(|(other, _)| (other.0, other.1) == key).map(|(_, value)| *value)
    };
    let mut listed = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for ((a, b), (matching, union, bytes)) in &similar {
        let is_identical = classes.iter().any(|class| class.contains(*a) && class.contains(*b));
        let around = |x: &PathBuf, y: &PathBuf| {
            (x, y) != (*a, *b)
                && a.starts_with(x)
                && b.starts_with(y)
                && find(x, y).is_some_and(|(m, u, _)| m * union >= matching * u)
        };
        let is_dominated = branching.iter().any(|x| branching.iter().any(|y| around(x, y)));
        let shrinks = |outer: &PathBuf, other: &PathBuf| {
            let inner = branching.iter().filter(|x| **x != outer && x.starts_with(outer));
            inner.into_iter().any(|x| find(x, other).is_some_and(|(m, ..)| m == *matching))
        };
        let wraps = |folder: Option<&Path>, inner: &Path| folder.is_some_and(|f| count(f) == count(inner));
        let is_diluted = match (shrinks(a, b), shrinks(b, a)) {
            (true, false) => !wraps(b.parent(), b),
            (false, true) => !wraps(a.parent(), a),
            _ => false,
        };
        if is_identical || is_dominated || is_diluted {
            continue;
        }
        // One of several identical folders represents them all.
        let representative = |folder: &PathBuf| {
            let class = classes.iter().find(|class| class.contains(folder));
            class.and_then(|class| class.first()).map_or(folder.clone(), |first| (*first).clone())
        };
        let pair: BTreeSet<PathBuf> = [representative(a), representative(b)].into();
        if !seen.insert(pair) || *bytes == 0 {
            continue;
        }
        let (mut x, mut y) = (a.as_path(), b.as_path());
        for folder in [&mut x, &mut y] {
            while wraps(folder.parent(), folder) {
                *folder = folder.parent().expect("a parent");
            }
        }
        let in_both = |x: &Path, y: &Path| -> Vec<(PathBuf, PathBuf)> {
            let theirs = |path: &PathBuf| y.join(path.strip_prefix(x).expect("below"));
            let both = tree.below(x).map(|path| (path.clone(), theirs(path)));
            both.filter(|(_, other)| tree.files.contains_key(other)).collect()
        };
        // Paths are compared from the level where more of them are equal.
        let (inside, outside) = (in_both(a, b), in_both(x, y));
        let in_both = if inside.len() > outside.len() { inside } else { outside };
        let differing = in_both.into_iter().filter(|(x, y)| tree.content(x) != tree.content(y));
        let differing = differing.map(|(x, _)| x).collect();
        let (x, y) = (x.to_path_buf(), y.to_path_buf());
        listed.insert((x, y, *matching, *bytes, differing));
    }
    listed
}

/// Path, whether it is wholly contained, files, bytes, reclaimable bytes, entries not scanned, and containing folders.
type Contained = (PathBuf, bool, u64, u64, u64, Option<u64>, BTreeSet<PathBuf>);

pub(crate) fn listed_contained(found: &[ContainedFolder]) -> BTreeSet<Contained> {
    let inside = |path: &Path| path.strip_prefix("/r").expect("in the root").to_path_buf();
    let entry = |found: &ContainedFolder| {
        let around = &found.containers;
        let sizes: Vec<u64> = around.items.iter().map(|container| container.bytes).collect();
        assert!(sizes.is_sorted() && around.total == sizes.len() as u64, "{found:?}");
        assert_eq!(found.reclaimable, found.redundant);
        let containers = around.items.iter().map(|container| inside(&container.location.path)).collect();
        let (path, reclaimable) = (inside(&found.location.path), found.reclaimable);
        (path, found.wholly, found.files, found.bytes, reclaimable, found.unscanned, containers)
    };
    found.iter().map(entry).collect()
}

pub(crate) fn contained(tree: &Tree, names: bool) -> BTreeSet<Contained> {
    // With names, a content is identified by its path in the folder too.
    let contents = |folder: &Path| -> BTreeSet<(PathBuf, Content)> {
        let name =
            |path: &PathBuf| if names { path.strip_prefix(folder).expect("below").into() } else { PathBuf::new() };
        tree.below(folder).map(|path| (name(path), tree.content(path))).collect()
    };
    let is_known = |folder: &Path| {
        let is_unread = |(path, read): (&PathBuf, bool)| path.starts_with(folder) && !read;
        let is_own = |(_, content): &(PathBuf, Content)| matches!(content, Content::Unique(_) | Content::Unknown(_));
        !tree.folders.iter().any(|(path, found)| is_unread((path, found.read))) && !contents(folder).iter().any(is_own)
    };
    let mut listed: BTreeSet<Contained> = BTreeSet::new();
    for folder in tree.folders.keys() {
        let bytes: u64 = tree.below(folder).map(|path| tree.files[path].0.size()).sum();
        let is_inside = listed.iter().any(|(outer, ..)| folder.starts_with(outer));
        if bytes == 0 || is_inside || !is_known(folder) {
            continue;
        }
        let needed = contents(folder);
        let is_around = |other: &&PathBuf| {
            !other.starts_with(folder) && !folder.starts_with(other) && needed.is_subset(&contents(other))
        };
        let around: Vec<&PathBuf> = tree.folders.keys().filter(is_around).collect();
        let is_innermost = |other: &PathBuf| !around.iter().any(|&inner| inner != other && inner.starts_with(other));
        let has_more = |other: &PathBuf| contents(other) != needed;
        let containers: BTreeSet<PathBuf> = around
            .iter()
            .filter(|&&other| (names || is_innermost(other)) && has_more(other))
            .map(|&other| other.clone())
            .collect();
        if containers.is_empty() {
            continue;
        }
        let unscanned = tree.unscanned(folder);
        let wholly = unscanned == Some(0);
        let elsewhere = || tree.files.keys().filter(|path| !path.starts_with(folder));
        let left: BTreeSet<PathBuf> = elsewhere().map(|path| tree.inode_key(path)).collect();
        let freed = tree.sizes_by_inode(folder).into_iter().filter(|(inode, _)| !left.contains(inode));
        let freed = if wholly { freed.map(|(_, size)| size).sum() } else { 0 };
        listed.insert((folder.clone(), wholly, tree.below(folder).count() as u64, bytes, freed, unscanned, containers));
    }
    listed
}
