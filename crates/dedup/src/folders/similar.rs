//! Folders that are partly the same.
//!
//! Owns what "similar" means, which of many similar pairs are listed, and in what each pair differs.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use gristmill_store::Store;

use super::compare::{CappedList, Comparison, Differing, Entry};
use super::pairs::{self, Pair, PairQuery};
use super::signatures::{FolderClasses, NO_CLASS};
use super::tree::{NameHash, Tree, UNKNOWN, name_hash};
use super::{FolderPaths, is_selected};
use crate::{Error, Result};

/// Which similar folders to list.
#[derive(Clone, Debug)]
pub struct SimilarOptions {
    /// How alike they must be, in hundredths, up to 100.
    pub min_similarity: u8,
    /// Folders with at least so many files in and below them.
    pub min_files: u64,
    /// Pairs with at least so many bytes in common.
    pub min_size: u64,
    /// Only folders of these roots; of all when there are none.
    pub roots: Vec<i64>,
    /// A content that lies in more folders than these (a licence, an empty file) is no reason to compare them. It
    /// counts in those that are compared.
    pub popular: usize,
    /// At most so many pairs.
    pub limit: usize,
    /// At most so many files in each list of a pair.
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

/// Some pairs of similar folders, and what it took to find them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimilarFolders {
    /// Those with most bytes in common first.
    pub pairs: Vec<SimilarPair>,
    /// How many there are.
    pub total: usize,
    /// Pairs that a content proposed.
    pub proposed: u64,
    /// Pairs whose files were compared.
    pub compared: u64,
}

/// Two similar folders.
#[derive(Clone, Debug, PartialEq)]
pub struct SimilarPair {
    /// The one.
    pub a: Side,
    /// The other.
    pub b: Side,
    /// Matching files over all files of the two, in hundredths: 100 when they have the same contents, each as often.
    pub similarity: f64,
    /// In what they differ: at least one thing.
    pub differences: Vec<Difference>,
    /// Files that the two have in common, whatever they are called.
    pub matching_files: u64,
    /// Their size.
    pub matching_bytes: u64,
    /// Files of `a` whose content `b` does not have, or not as often, except those that differ.
    pub only_in_a: CappedList<Entry>,
    /// The same of `b`.
    pub only_in_b: CappedList<Entry>,
    /// Files of the same name and place in both, with different contents.
    pub differing: CappedList<Differing>,
}

/// In what two folders differ, or may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// A file of one is not in the other.
    Files,
    /// The same files lie in different folders, or there are other folders without files.
    Layout,
    /// One of them has entries that were not scanned.
    UnscannedEntries,
    /// One of them could not be read to its end.
    Unreadable,
}

impl Difference {
    /// Its name, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Difference::Files => "files",
            Difference::Layout => "layout",
            Difference::UnscannedEntries => "unscanned_entries",
            Difference::Unreadable => "unreadable",
        }
    }
}

/// One of two folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Its root.
    pub root: i64,
    /// Its path in the root.
    pub path: PathBuf,
    /// Files in it and below.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// Whether all of it could be read.
    pub whole: bool,
    /// Entries in it and below that were not scanned. None if that was not recorded: scanning again records it.
    pub unscanned: Option<u64>,
    /// Other folders that are identical to it. They are not listed in pairs of their own.
    pub identical: u64,
}

/// Folders that have much in common and are not [identical](super::groups).
///
/// Counted are files, by their contents: a content that is in one folder (or below it) three times and in the other
/// twice is two matches out of three. Where files are and what they are called does not count; one that could not
/// be read matches none. Of pairs inside each other the outermost of those that are most alike is listed; a folder that
/// holds one folder and nothing else stands for that. A pair is not listed when all that matches in one of its folders
/// lies in a single folder of that, and the other has none around it. Of identical folders one stands for all.
pub fn find_similar(store: &Store, options: &SimilarOptions) -> Result<SimilarFolders> {
    if options.min_similarity > 100 {
        let text = format!("a similarity is between 0 and 100 percent, not {}", options.min_similarity);
        return Err(Error::Invalid(text));
    }
    let tree = Tree::load(store, name_hash)?;
    let is_candidate =
        |at| is_selected(&tree, &options.roots, at) && tree.folders[at as usize].count() >= options.min_files;
    let similarity = u64::from(options.min_similarity);
    let branching = pairs::branching_folders(&tree);
    let query = PairQuery { tree: &tree, similarity, popular: options.popular, is_selected: &is_candidate };
    let found = pairs::find(&query, &branching);
    let classes = FolderClasses::new(&tree, false, |at| is_selected(&tree, &options.roots, at));
    let mut pairs = select_pairs(&tree, &classes, &found.pairs);
    pairs.retain(|pair| pair.bytes >= options.min_size);
    let order = |pair: &Pair| (u64::MAX - pair.bytes, union(&tree, pair) - pair.files, pair.a, pair.b);
    pairs.sort_unstable_by_key(order);
    let mut result = SimilarFolders {
        pairs: Vec::new(),
        total: pairs.len(),
        proposed: found.proposed,
        compared: found.compared,
    };
    let listing = PairDescriber {
        tree: &tree,
        classes: &classes,
        places: FolderPaths::new(store)?,
        fully_compared: store.scans().is_fully_compared(&[])?,
    };
    for pair in pairs.iter().take(options.limit) {
        let outer =
            [pair.a, pair.b].map(|at| outermost(&tree, at, |at| is_selected(&tree, &options.roots, at)));
        result.pairs.push(listing.pair(pair, outer, options.list)?);
    }
    Ok(result)
}

/// What is needed to describe pairs.
struct PairDescriber<'a> {
    tree: &'a Tree<NameHash>,
    classes: &'a FolderClasses,
    places: FolderPaths<'a>,
    /// Whether every file that can have a copy was read.
    fully_compared: bool,
}

impl PairDescriber<'_> {
    fn pair(&self, pair: &Pair, outer: [u32; 2], list: usize) -> Result<SimilarPair> {
        let tree = self.tree;
        let inner = [pair.a, pair.b];
        let sides = self.places.of(tree, &outer)?;
        let comparison = Comparison::new(tree, inner, outer, self.fully_compared);
        let side = |number: usize, inner: u32| {
            let (at, (_, root, path)) = (outer[number], sides[number].clone());
            let folder = &tree.folders[at as usize];
            let mut below = tree.folders[at as usize..folder.end as usize].iter();
            let known = !tree.files[folder.all()].iter().any(|file| file.content == UNKNOWN);
            let identical =
                self.classes.identical.members(self.classes.identical.of(inner)).len().saturating_sub(1);
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
        let lists = comparison.lists(&self.places, &absolute(0), &absolute(1), list)?;
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
            // What was not read may lie where it is missing.
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

/// Leaves out identical folders, pairs inside a pair that is as much alike, pairs that only put more files around one
/// side of another, and pairs that identical folders make again.
fn select_pairs(tree: &Tree<NameHash>, classes: &FolderClasses, found: &[Pair]) -> Vec<Pair> {
    let by_folders: HashMap<(u32, u32), &Pair> = found.iter().map(|pair| ((pair.a, pair.b), pair)).collect();
    // Pairs whose first, or second, folder has all that matches in one of its own.
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
        // A folder with both in it makes no pair with anything around either.
        let ours = outwards(pair.a).take_while(|&a| tree.folders[a as usize].end <= pair.b);
        let theirs = || outwards(pair.b).take_while(|&b| b > pair.a);
        ours.flat_map(|a| theirs().map(move |b| (a, b))).filter(|&key| key != (pair.a, pair.b)).any(|key| {
            let other = by_folders.get(&key);
            other.is_some_and(|other| other.files * union(tree, pair) >= pair.files * union(tree, other))
        })
    };
    let is_identical = |pair: &Pair| classes.is_identical(&[pair.a, pair.b]);
    let worth = |pair: &&Pair| !is_identical(pair) && !is_diluted(pair) && !is_dominated(pair);
    // Of pairs whose folders are identical by twos, the first one.
    let mut seen = HashSet::new();
    let stands_for =
        |at: u32| classes.identical.members(classes.identical.of(at)).first().copied().unwrap_or(at);
    let is_new = |pair: &&Pair| {
        let (a, b) = (stands_for(pair.a), stands_for(pair.b));
        seen.insert((a.min(b), a.max(b)))
    };
    found.iter().filter(worth).filter(is_new).copied().collect()
}

/// The outermost folder that has no files but those of this one.
fn outermost(tree: &Tree<NameHash>, folder: u32, selected: impl Fn(u32) -> bool) -> u32 {
    let count = tree.folders[folder as usize].count();
    let around =
        tree.above(folder).take_while(|&at| tree.folders[at as usize].count() == count && selected(at));
    around.last().unwrap_or(folder)
}
