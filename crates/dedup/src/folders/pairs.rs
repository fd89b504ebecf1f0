//! Finds pairs of similar folders without comparing every pair.
//!
//! Owns the search. Each content that is in few folders proposes pairs of these folders. The proposals are summed up
//! along the parent folders and give an upper bound for the number of matching files. Only pairs whose bound reaches
//! the requested similarity are compared exactly. The number of pairs that a file proposes per level of the tree is
//! limited, so the work grows linearly with the tree, not quadratically.

use super::tree::{NameHash, Tree, UNIQUE, UNKNOWN};

/// Two folders, neither inside the other, with the number and size of their matching files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Selects the folders to compare and the required similarity.
pub(super) struct PairQuery<'a> {
    pub(super) tree: &'a Tree<NameHash>,
    /// Required similarity in percent.
    pub(super) similarity: u64,
    /// A content in more folders than this proposes no pairs.
    pub(super) popular: usize,
    pub(super) is_selected: &'a dyn Fn(u32) -> bool,
}

/// The pairs found, and the number of pairs proposed and compared.
#[derive(Default)]
pub(super) struct FoundPairs {
    pub(super) pairs: Vec<Pair>,
    pub(super) proposed: u64,
    pub(super) compared: u64,
}

/// Whether `matching` common files are enough for two folders with `a` and `b` files.
pub(super) fn is_similar(similarity: u64, matching: u64, a: u64, b: u64) -> bool {
    matching > 0 && 100 * matching >= similarity * (a + b - matching)
}

struct Index {
    /// Folders that directly contain a content, and how often; sorted by content, then folder.
    entries: Vec<(u32, u32)>,
    /// Start of each content's entries. Popular contents have no entries.
    starts: Vec<u32>,
    popular: Vec<bool>,
    sizes: Vec<u64>,
}

impl Index {
    fn new(tree: &Tree<NameHash>, popular: usize) -> Self {
        let is_shared = |content: u32| content != UNIQUE && content != UNKNOWN;
        let mut locations: Vec<(u32, u32)> = Vec::new();
        locations.extend(tree.files.iter().filter(|f| is_shared(f.content)).map(|f| (f.content, f.folder)));
        locations.sort_unstable();
        let contents = locations.last().map_or(0, |(content, _)| *content as usize + 1);
        let mut index = Index {
            entries: Vec::new(),
            starts: vec![0; contents + 1],
            popular: vec![false; contents],
            sizes: vec![0; contents],
        };
        for file in tree.files.iter().filter(|file| is_shared(file.content)) {
            index.sizes[file.content as usize] = file.size;
        }
        let mut done = 0;
        for same in locations.chunk_by(|a, b| a.0 == b.0) {
            let content = same[0].0 as usize;
            index.starts[done..=content].fill(index.entries.len() as u32);
            done = content + 1;
            let before = index.entries.len();
            index.entries.extend(same.chunk_by(|a, b| a.1 == b.1).map(|equal| (equal[0].1, equal.len() as u32)));
            if index.entries.len() - before > popular {
                index.popular[content] = true;
                index.entries.truncate(before);
            }
        }
        index.starts[done..].fill(index.entries.len() as u32);
        index
    }

    /// Folders that contain a content, from index `from` on.
    fn folders_with(&self, content: u32, from: u32) -> &[(u32, u32)] {
        let range = self.starts[content as usize] as usize..self.starts[content as usize + 1] as usize;
        let locations = &self.entries[range];
        &locations[locations.partition_point(|(folder, _)| *folder < from)..]
    }

    fn is_popular(&self, content: u32) -> bool {
        self.popular[content as usize]
    }
}

/// Marks folders that directly contain files, or several subfolders with files. A folder whose files are all in one
/// subfolder is represented by that subfolder.
pub(super) fn branching_folders(tree: &Tree<NameHash>) -> Vec<bool> {
    let is_branching = |at: u32| {
        let folder = &tree.folders[at as usize];
        let count = folder.count();
        count > 0 && !tree.children(at).any(|child| tree.folders[child as usize].count() == count)
    };
    (0..tree.folders.len() as u32).map(is_branching).collect()
}

pub(super) fn find(query: &PairQuery<'_>, branching: &[bool]) -> FoundPairs {
    let tree = query.tree;
    let index = Index::new(tree, query.popular);
    let mut found = FoundPairs::default();
    let mut bounds = Bounds::new(tree.folders.len());
    let popular = popular_counts(tree, &index);
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for a in 0..tree.folders.len() as u32 {
        let folder = &tree.folders[a as usize];
        // The other folder comes later, so each pair is visited once.
        if !branching[a as usize] || !(query.is_selected)(a) || folder.end as usize == tree.folders.len() {
            continue;
        }
        contents(tree, a, &mut of_a);
        bounds.propose(query, branching, &index, a, &of_a);
        found.proposed += bounds.touched.len() as u64;
        bounds.touched.sort_unstable();
        for &b in &bounds.touched {
            let (ours, theirs) = (folder.count(), tree.folders[b as usize].count());
            let both_popular = popular[a as usize].min(popular[b as usize]);
            let bound = (u64::from(bounds.totals[b as usize]) + u64::from(both_popular)).min(ours).min(theirs);
            if !is_similar(query.similarity, bound, ours, theirs) {
                continue;
            }
            found.compared += 1;
            contents(tree, b, &mut of_b);
            let (files, bytes) = in_common(&of_a, &of_b, &index.sizes);
            if is_similar(query.similarity, files, ours, theirs) {
                found.pairs.push(Pair { a, b, files, bytes });
            }
        }
        bounds.clear();
    }
    found
}

/// Collects the contents in and below a folder that other files can have, sorted.
fn contents(tree: &Tree<NameHash>, folder: u32, into: &mut Vec<u32>) {
    into.clear();
    let files = &tree.files[tree.folders[folder as usize].all()];
    into.extend(files.iter().map(|file| file.content).filter(|&c| c != UNIQUE && c != UNKNOWN));
    into.sort_unstable();
}

/// Number of files with popular contents in and below each folder.
fn popular_counts(tree: &Tree<NameHash>, index: &Index) -> Vec<u32> {
    let mut counts = vec![0; tree.folders.len()];
    for at in (0..tree.folders.len()).rev() {
        let own = &tree.files[tree.folders[at].own()];
        let is_popular = |content: u32| content != UNIQUE && content != UNKNOWN && index.is_popular(content);
        counts[at] += own.iter().filter(|file| is_popular(file.content)).count() as u32;
        if let Some(parent) = tree.folders[at].parent {
            counts[parent as usize] += counts[at];
        }
    }
    counts
}

/// Number and size of the files that two sorted lists of contents have in common. Repeated contents count as often as
/// in both lists.
fn in_common(a: &[u32], b: &[u32], sizes: &[u64]) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(&&x), Some(&&y)) = (a.peek(), b.peek()) {
        if x <= y {
            a.next();
        }
        if y <= x {
            b.next();
        }
        if x == y {
            files += 1;
            bytes += sizes[x as usize];
        }
    }
    (files, bytes)
}

/// Upper bounds for the number of files that a folder shares with each other folder, without popular contents.
struct Bounds {
    /// Counts of files directly in a folder.
    counts: Vec<u32>,
    seen: Vec<u32>,
    /// Counts including all files below.
    totals: Vec<u32>,
    touched: Vec<u32>,
}

impl Bounds {
    fn new(folders: usize) -> Self {
        Bounds { counts: vec![0; folders], seen: Vec::new(), totals: vec![0; folders], touched: Vec::new() }
    }

    fn propose(&mut self, query: &PairQuery<'_>, branching: &[bool], index: &Index, a: u32, of_a: &[u32]) {
        let tree = query.tree;
        let Bounds { counts, seen, totals, touched } = self;
        let (count, end) = (tree.folders[a as usize].count(), tree.folders[a as usize].end);
        for same in of_a.chunk_by(|x, y| x == y) {
            for &(folder, often) in index.folders_with(same[0], end) {
                let count = &mut counts[folder as usize];
                if *count == 0 {
                    seen.push(folder);
                }
                *count += often.min(same.len() as u32);
            }
        }
        for &folder in seen.iter() {
            // Ascends until one folder contains the other, or the larger one is too large to be similar.
            for at in std::iter::once(folder).chain(tree.above(folder)) {
                let theirs = tree.folders[at as usize].count();
                if at < end || !is_similar(query.similarity, count.min(theirs), count, theirs) && theirs > count {
                    break;
                }
                if branching[at as usize] && (query.is_selected)(at) {
                    let sum = &mut totals[at as usize];
                    if *sum == 0 {
                        touched.push(at);
                    }
                    *sum += counts[folder as usize];
                }
            }
        }
    }

    fn clear(&mut self) {
        self.seen.drain(..).for_each(|at| self.counts[at as usize] = 0);
        self.touched.drain(..).for_each(|at| self.totals[at as usize] = 0);
    }
}
