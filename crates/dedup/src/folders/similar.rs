//! Finds folders that are partly the same.
//!
//! Owns the definition of similar folders, the selection of the listed pairs, and the differences of each pair.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use gristmill_store::Store;

use super::compare::{CappedList, Comparison, Differing, Entry};
use super::pairs::{self, Pair, PairQuery};
use super::signatures::{FolderClasses, NO_CLASS};
use super::tree::{NameHash, Tree, UNKNOWN, name_hash};
use super::{FolderPaths, in_roots};
use crate::{Error, Result};

/// Selects the similar folders to list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimilarOptions {
    /// Minimum similarity in percent, at most 100.
    pub min_similarity: u8,
    /// Minimum number of files in and below a folder.
    pub min_files: u64,
    /// Minimum number of bytes that a pair has in common.
    pub min_size: u64,
    /// Row ids of the roots whose folders are compared. An empty list selects all roots.
    pub roots: Vec<i64>,
    /// A content in more folders than this (a licence, an empty file) is no reason to compare them. It still counts as
    /// a match in folders that are compared.
    pub popular: usize,
    /// Maximum number of pairs returned.
    pub limit: usize,
    /// Maximum number of files in each list of a pair.
    pub list: usize,
}

impl Default for SimilarOptions {
    fn default() -> Self {
        SimilarOptions {
            min_similarity: 50,
            min_files: 1,
            min_size: 1,
            roots: Vec::new(),
            popular: 64,
            limit: 100,
            list: 1_000,
        }
    }
}

/// Pairs of similar folders, and statistics of the search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimilarFolders {
    /// The pairs, those with most bytes in common first.
    pub pairs: Vec<SimilarPair>,
    /// Number of pairs found, including those beyond the limit.
    pub total: usize,
    /// Number of pairs that common contents proposed.
    pub proposed: u64,
    /// Number of pairs whose files were compared.
    pub compared: u64,
}

/// Two similar folders and their differences.
#[derive(Clone, Debug, PartialEq)]
pub struct SimilarPair {
    /// The folder that comes first in the tree.
    pub a: Side,
    /// The folder that comes second in the tree.
    pub b: Side,
    /// Matching files divided by all files of both, in percent. 100 means the same contents, each equally often.
    pub similarity: f64,
    /// Kinds of differences; at least one.
    pub differences: Vec<Difference>,
    /// Number of files that both have in common, whatever their names.
    pub matching_files: u64,
    /// Size of the matching files in bytes.
    pub matching_bytes: u64,
    /// Files of `a` whose content `b` lacks or has less often, except those in `differing`.
    pub only_in_a: CappedList<Entry>,
    /// Files of `b` whose content `a` lacks or has less often, except those in `differing`.
    pub only_in_b: CappedList<Entry>,
    /// Files with the same path in both folders and different contents.
    pub differing: CappedList<Differing>,
}

/// A kind of difference, certain or possible, between two folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// A file of one folder is not in the other.
    Files,
    /// The same files are in different subfolders, or one has other subfolders without files.
    Layout,
    /// One of the folders has entries that were not scanned.
    UnscannedEntries,
    /// One of the folders could not be read completely.
    Unreadable,
}

impl Difference {
    /// Returns the name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Difference::Files => "files",
            Difference::Layout => "layout",
            Difference::UnscannedEntries => "unscanned_entries",
            Difference::Unreadable => "unreadable",
        }
    }
}

/// One folder of a similar pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Row id of its root.
    pub root: i64,
    /// Path relative to the root.
    pub path: PathBuf,
    /// Number of files in and below the folder.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Whether the whole folder could be read.
    pub whole: bool,
    /// Number of entries in and below the folder that were not scanned. `None` if it was not recorded: the next scan
    /// records it.
    pub unscanned: Option<u64>,
    /// Number of other folders identical to this one. They are not listed in separate pairs.
    pub identical: u64,
}

/// Lists folders that have much in common and are not [identical](super::find_identical).
///
/// Files are counted by content: a content that is in or below one folder three times and in the other twice gives two
/// matches out of three. Layout and names do not matter, and a file that could not be read matches none. Of nested
/// pairs, the outermost of those with the highest similarity is listed. A folder whose files are all in one subfolder
/// is represented by that subfolder. A pair is not listed if all matches of one folder are in a single subfolder of it,
/// unless the other folder has a parent with the same files. One of several identical folders represents them all.
pub fn find_similar(store: &Store, options: &SimilarOptions) -> Result<SimilarFolders> {
    if options.min_similarity > 100 {
        let text = format!("the similarity must be between 0 and 100 percent, not {}", options.min_similarity);
        return Err(Error::Invalid(text));
    }
    let tree = Tree::load(store, name_hash)?;
    let is_candidate =
        |at| in_roots(&tree, &options.roots, at) && tree.folders[at as usize].count() >= options.min_files;
    let similarity = u64::from(options.min_similarity);
    let branching = pairs::branching_folders(&tree);
    let query = PairQuery { tree: &tree, similarity, popular: options.popular, is_selected: &is_candidate };
    let found = pairs::find(&query, &branching);
    let classes = FolderClasses::new(&tree, false, |at| in_roots(&tree, &options.roots, at));
    let mut pairs = select_pairs(&tree, &classes, &found.pairs);
    pairs.retain(|pair| pair.bytes >= options.min_size);
    let order = |pair: &Pair| (u64::MAX - pair.bytes, union(&tree, pair) - pair.files, pair.a, pair.b);
    pairs.sort_unstable_by_key(order);
    let mut result =
        SimilarFolders { pairs: Vec::new(), total: pairs.len(), proposed: found.proposed, compared: found.compared };
    let describer = PairDescriber {
        tree: &tree,
        classes: &classes,
        paths: FolderPaths::new(store)?,
        all_read: store.scans().is_fully_compared(&[])?,
    };
    for pair in pairs.iter().take(options.limit) {
        let outer = [pair.a, pair.b].map(|at| outermost(&tree, at, |at| in_roots(&tree, &options.roots, at)));
        result.pairs.push(describer.pair(pair, outer, options.list)?);
    }
    Ok(result)
}

struct PairDescriber<'a> {
    tree: &'a Tree<NameHash>,
    classes: &'a FolderClasses,
    paths: FolderPaths<'a>,
    /// Whether every file that can have a copy was read.
    all_read: bool,
}

impl PairDescriber<'_> {
    fn pair(&self, pair: &Pair, outer: [u32; 2], list: usize) -> Result<SimilarPair> {
        let tree = self.tree;
        let inner = [pair.a, pair.b];
        let sides = self.paths.of(tree, &outer)?;
        let comparison = Comparison::new(tree, inner, outer, self.all_read);
        let side = |number: usize, inner: u32| {
            let (at, (_, root, path)) = (outer[number], sides[number].clone());
            let folder = &tree.folders[at as usize];
            let mut below = tree.folders[at as usize..folder.end as usize].iter();
            let known = !tree.files[folder.all()].iter().any(|file| file.content == UNKNOWN);
            let identical = self.classes.identical.members(self.classes.identical.of(inner)).len().saturating_sub(1);
            Side {
                root,
                path,
                files: folder.count(),
                bytes: tree.bytes(at),
                whole: known && below.all(|f| f.whole),
                unscanned: tree.skipped(at),
                identical: identical as u64,
            }
        };
        let (a, b) = (side(0, inner[0]), side(1, inner[1]));
        let absolute = |number: usize| sides[number].0.join(&sides[number].2);
        let lists = comparison.lists(&self.paths, &absolute(0), &absolute(1), list)?;
        let (only_in_a, only_in_b, differing) = lists;
        Ok(SimilarPair {
            differences: self.differences(pair, &a, &b),
            a,
            b,
            similarity: 100.0 * pair.files as f64 / union(tree, pair) as f64,
            matching_files: pair.files,
            matching_bytes: pair.bytes,
            only_in_a,
            only_in_b,
            differing,
        })
    }

    fn differences(&self, pair: &Pair, a: &Side, b: &Side) -> Vec<Difference> {
        let same_files = pair.files == union(self.tree, pair);
        let class = |at: u32| self.classes.scanned.of(at);
        let same_layout = class(pair.a) != NO_CLASS && class(pair.a) == class(pair.b);
        let whole = a.whole && b.whole;
        let checked = [
            (Difference::Files, !same_files),
            // Files that could not be read may make the layouts equal.
            (Difference::Layout, same_files && !same_layout && whole),
            (Difference::UnscannedEntries, [a, b].iter().any(|side| side.unscanned != Some(0))),
            (Difference::Unreadable, !whole),
        ];
        checked.into_iter().filter(|(_, differs)| *differs).map(|(difference, _)| difference).collect()
    }
}

fn union(tree: &Tree<NameHash>, pair: &Pair) -> u64 {
    tree.folders[pair.a as usize].count() + tree.folders[pair.b as usize].count() - pair.files
}

/// Removes identical folders, pairs inside a pair of at least equal similarity, pairs that only add files around one
/// side of another pair, and pairs that repeat another one with identical folders.
fn select_pairs(tree: &Tree<NameHash>, classes: &FolderClasses, found: &[Pair]) -> Vec<Pair> {
    let by_folders: HashMap<(u32, u32), &Pair> = found.iter().map(|pair| ((pair.a, pair.b), pair)).collect();
    // Pairs whose first (or second) folder has all matches in one of its subfolders.
    let (mut first, mut second) = (HashSet::new(), HashSet::new());
    for pair in found {
        let as_many = |key: &(u32, u32)| by_folders.get(key).is_some_and(|other| other.files == pair.files);
        first.extend(tree.above(pair.a).map(|a| (a, pair.b)).filter(as_many));
        second.extend(tree.above(pair.b).map(|b| (pair.a, b)).filter(as_many));
    }
    let is_wrapped = |at: u32| outermost(tree, at, |_| true) != at;
    let is_diluted = |pair: &Pair| {
        let key = (pair.a, pair.b);
        match (first.contains(&key), second.contains(&key)) {
            (true, false) => !is_wrapped(pair.b),
            (false, true) => !is_wrapped(pair.a),
            _ => false,
        }
    };
    let is_dominated = |pair: &Pair| {
        let outwards = |at: u32| std::iter::once(at).chain(tree.above(at));
        // A folder that contains both is not part of a pair with either.
        let ours = outwards(pair.a).take_while(|&a| tree.folders[a as usize].end <= pair.b);
        let theirs = || outwards(pair.b).take_while(|&b| b > pair.a);
        ours.flat_map(|a| theirs().map(move |b| (a, b))).filter(|&key| key != (pair.a, pair.b)).any(|key| {
            let other = by_folders.get(&key);
            other.is_some_and(|other| other.files * union(tree, pair) >= pair.files * union(tree, other))
        })
    };
    let is_identical = |pair: &Pair| classes.is_identical(&[pair.a, pair.b]);
    let is_listed = |pair: &&Pair| !is_identical(pair) && !is_diluted(pair) && !is_dominated(pair);
    // Of pairs with identical folders on both sides, only the first is kept.
    let mut seen = HashSet::new();
    let head = |at: u32| classes.identical.members(classes.identical.of(at)).first().copied().unwrap_or(at);
    let is_new = |pair: &&Pair| {
        let (a, b) = (head(pair.a), head(pair.b));
        seen.insert((a.min(b), a.max(b)))
    };
    found.iter().filter(is_listed).filter(is_new).copied().collect()
}

/// The outermost folder around `folder` with no further files.
fn outermost(tree: &Tree<NameHash>, folder: u32, selected: impl Fn(u32) -> bool) -> u32 {
    let count = tree.folders[folder as usize].count();
    let around = tree.above(folder).take_while(|&at| tree.folders[at as usize].count() == count && selected(at));
    around.last().unwrap_or(folder)
}
