//! Decides which files have no copy, from what the catalog knows about contents.
//!
//! Owns the rule: two files are known to differ if their sizes differ, or their samples, or their hashes of one
//! algorithm. They are known to be equal if they are in one group of duplicates. Of all other pairs nothing is known.
//! The files of one size are sorted, so that a file is compared with all others by a few binary searches.

use std::ops::Range;

use gristmill_store::catalog::{Algorithm, KnownContent};

use super::UniqueState;
use super::sides::{ABSENT, COMPARED};

/// A file without a known copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) size: u64,
    pub(super) state: UniqueState,
    /// Whether the compared files include another name of it.
    pub(super) hard_link: bool,
    pub(super) failed: bool,
    /// Whether it is undecided, and the root of the file itself or of every possible copy cannot be reached.
    pub(super) unreachable: bool,
}

/// What is known about the content of a compared file, and the file. Names of one file are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    samples: Option<i64>,
    algorithm: Option<Algorithm>,
    prefix: u64,
    file: i64,
}

/// The compared files of one size.
struct Others {
    all: Contents,
    /// Those in roots that can be reached. `None` if all can be.
    reachable: Option<Contents>,
    /// Group and file, sorted.
    groups: Vec<(u32, i64)>,
}

/// What is known about the contents of some compared files of one size.
struct Contents {
    /// Sorted.
    known: Vec<Known>,
    /// Sorted by algorithm and hash. Empty unless a file that is compared with them has no samples.
    by_hash: Vec<Known>,
    /// Sorted by file.
    by_file: Vec<Known>,
}

/// Adds the files without a known copy to `found`. `alike` has all files of one size.
pub(super) fn decide(alike: &[KnownContent], found: &mut Vec<Found>) {
    let mut listed = alike.iter().filter(|file| file.label & COMPARED == 0).peekable();
    if listed.peek().is_none() {
        return;
    }
    let others = Others::new(alike);
    for file in listed {
        let state = match file.size {
            // All empty files are equal.
            0 if others.all.has_empty_copy(file) => continue,
            0 => UniqueState::Unique,
            _ if others.has_copy(file) => continue,
            _ if others.all.may_have_copy(file) => UniqueState::Undecided,
            _ => UniqueState::Unique,
        };
        let is_reachable = || file.label & ABSENT == 0 && others.may_have_reachable_copy(file);
        let unreachable = state == UniqueState::Undecided && !is_reachable();
        let hard_link = others.all.has_name_of(file);
        found.push(Found { id: file.id, size: file.size, state, hard_link, failed: file.failed, unreachable });
    }
}

impl Others {
    fn new(alike: &[KnownContent]) -> Self {
        let compared = || alike.iter().filter(|file| file.label & COMPARED != 0);
        let mut groups: Vec<(u32, i64)> = compared().filter_map(|file| Some((file.group?, file.file))).collect();
        groups.sort_unstable();
        groups.dedup();
        let needs_hashes = alike.iter().any(|file| file.label & COMPARED == 0 && file.samples.is_none());
        let is_reachable = |file: &&KnownContent| file.label & ABSENT == 0;
        let some_are_absent = !compared().all(|file| is_reachable(&file));
        Others {
            all: Contents::new(compared(), needs_hashes),
            reachable: some_are_absent.then(|| Contents::new(compared().filter(is_reachable), needs_hashes)),
            groups,
        }
    }

    fn has_copy(&self, file: &KnownContent) -> bool {
        let Some(group) = file.group else { return false };
        let same = &self.groups[range(&self.groups, |(other, _)| other.cmp(&group))];
        same.iter().any(|(_, other)| *other != file.file)
    }

    /// Whether another file that can be reached is not known to differ.
    fn may_have_reachable_copy(&self, file: &KnownContent) -> bool {
        self.reachable.as_ref().unwrap_or(&self.all).may_have_copy(file)
    }
}

impl Contents {
    fn new<'a>(files: impl Iterator<Item = &'a KnownContent>, needs_hashes: bool) -> Self {
        let known = |file: &KnownContent| Known {
            samples: file.samples,
            algorithm: file.algorithm,
            prefix: file.prefix,
            file: file.file,
        };
        let mut known: Vec<Known> = files.map(known).collect();
        known.sort_unstable();
        // Other names of a file.
        known.dedup();
        let mut by_file = known.clone();
        by_file.sort_unstable_by_key(|known| known.file);
        let mut by_hash = Vec::new();
        if needs_hashes {
            by_hash.clone_from(&known);
            by_hash.sort_unstable_by_key(hash_of);
        }
        Contents { known, by_hash, by_file }
    }

    /// The entries of a file's own names.
    fn own(&self, file: &KnownContent) -> &[Known] {
        &self.by_file[range(&self.by_file, |known| known.file.cmp(&file.file))]
    }

    fn has_name_of(&self, file: &KnownContent) -> bool {
        !self.own(file).is_empty()
    }

    fn has_empty_copy(&self, file: &KnownContent) -> bool {
        self.known.len() > self.own(file).len()
    }

    /// Whether another file is not known to differ. Not called if one is known to be equal.
    fn may_have_copy(&self, file: &KnownContent) -> bool {
        let count = |sorted: &[Known]| count_possible(sorted, file);
        let possible = match file.samples {
            None => count(&self.by_hash),
            samples => [samples, None]
                .map(|samples| count(&self.known[range(&self.known, |known| known.samples.cmp(&samples))]))
                .iter()
                .sum(),
        };
        let own = self.own(file).iter().filter(|known| {
            (file.samples.is_none() || known.samples.is_none() || known.samples == file.samples)
                && count_possible(std::slice::from_ref(known), file) > 0
        });
        possible > own.count()
    }
}

fn hash_of(known: &Known) -> (Option<Algorithm>, u64) {
    (known.algorithm, known.prefix)
}

/// Number of entries, sorted by hash, whose hash does not exclude that they equal a file. Equal beginnings of hashes
/// exclude nothing.
fn count_possible(sorted: &[Known], file: &KnownContent) -> usize {
    if file.algorithm.is_none() {
        return sorted.len();
    }
    let comparable = range(sorted, |known| known.algorithm.cmp(&file.algorithm));
    let equal = range(sorted, |known| hash_of(known).cmp(&(file.algorithm, file.prefix)));
    sorted.len() - comparable.len() + equal.len()
}

/// The range of sorted elements that compare as equal.
fn range<T>(sorted: &[T], compare: impl Fn(&T) -> std::cmp::Ordering) -> Range<usize> {
    let from = sorted.partition_point(|element| compare(element).is_lt());
    from..from + sorted[from..].partition_point(|element| compare(element).is_eq())
}
