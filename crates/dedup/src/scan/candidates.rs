//! Decides which files are read, and which part of each.
//!
//! Owns the rule that a file is read only if it can equal another one: first the files that share their size, small
//! ones in full and samples of large ones, then in full the large files that share their samples too. Names of one
//! inode are one file, which is read once, and only if another file can equal it. `by_size` and `contents` apply the
//! rule to the catalog, `early` to new files during the walk.
//!
//! A plan holds sorted row ids, not rows: 56 bytes per file while it is computed, 8 for each file that is read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gristmill_store::UtcTime;
use gristmill_store::catalog::{Algorithm, FileRow, LinkKind, Stat};

use super::planned::OpenRoots;
use crate::read::{HashScope, MAX_SMALL_SIZE};

/// How files are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashRule {
    pub(crate) algorithm: Algorithm,
    /// Whether all files are hashed, not only possible duplicates.
    pub(crate) every_file: bool,
}

impl HashRule {
    /// The part of a file that is compared with files of the same size. `None` for an empty file, and for a large one
    /// if every file is read in full anyway.
    pub(crate) fn first_scope(self, size: u64) -> Option<HashScope> {
        match size {
            0 => None,
            1..=MAX_SMALL_SIZE => Some(self.full_scope()),
            _ => (!self.every_file).then_some(HashScope::Samples),
        }
    }

    pub(crate) fn full_scope(self) -> HashScope {
        HashScope::Content(self.algorithm)
    }
}

/// Selects the rows of the catalog that a scan may read.
pub(super) struct PlanRequest {
    pub(crate) rule: HashRule,
    /// Roots of the scan.
    pub(crate) roots: HashSet<i64>,
    /// Files that could not be read and are named, for each root of which only named files are scanned.
    pub(crate) named_failed: HashMap<i64, HashSet<i64>>,
    /// Start of each scan that is resumed, by its root. Files of the root that could not be read since then are not
    /// tried again.
    pub(crate) resumed_from: HashMap<i64, UtcTime>,
    pub(super) open_roots: Arc<OpenRoots>,
}

impl PlanRequest {
    /// Whether a file may be read. Files of other roots are read too if they can be duplicates of files of this scan,
    /// but not if they failed before: they are retried by a scan of their root.
    pub(crate) fn is_eligible(&self, row: &FileRow) -> bool {
        row.stat.size > 0 && (!row.failed || (self.covers_failed(row) && !self.was_tried(row)))
    }

    /// Whether a file could not be read since the start of the scan that is resumed.
    pub(crate) fn was_tried(&self, row: &FileRow) -> bool {
        let failed_since = |start: &UtcTime| row.failed_at.is_some_and(|at| at >= *start);
        row.failed && self.covers_failed(row) && self.resumed_from.get(&row.root).is_some_and(failed_since)
    }

    /// Whether a file that could not be read is part of the scan.
    fn covers_failed(&self, row: &FileRow) -> bool {
        let is_named = || self.named_failed.get(&row.root).is_none_or(|ids| ids.contains(&row.id));
        self.roots.contains(&row.root) && is_named()
    }

    pub(crate) fn candidate(&self, row: &FileRow, key: (u64, i64)) -> Candidate {
        let state = match row.algorithm {
            Some(known) if known == self.rule.algorithm => State::Hashed,
            _ if !self.open_roots.contains_key(&row.root) => State::Hashed,
            Some(_) => State::OtherAlgorithm,
            None => State::Unread,
        };
        Candidate { key, inode: inode_of(row), id: row.id, state }
    }
}

/// The samples of a file. Those of a small file are also the start of its BLAKE3 hash.
pub(crate) fn samples_of(row: &FileRow) -> Option<i64> {
    let is_known = row.stat.size <= MAX_SMALL_SIZE && row.algorithm == Some(Algorithm::Blake3);
    row.samples.or_else(|| row.hash_prefix.filter(|_| is_known).map(u64::cast_signed))
}

/// The files that a stage reads.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Row ids, ascending: the order in which folders were walked, which is close to the order on the disk.
    pub(crate) ids: Arc<Vec<i64>>,
    /// Row ids of files that need not be read, but whose hash must be stored, ascending.
    pub(crate) remembered: Vec<i64>,
    /// Other names of each file that is read, by its row id.
    pub(crate) links: HashMap<i64, Vec<i64>>,
    pub(crate) bytes: u64,
    /// Number of planned files that were hashed with another algorithm before.
    pub(crate) rehashed: u64,
}

/// A file that may have to be read. In sorted order, only adjacent files can have equal contents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Size of the file, and its samples when they are compared.
    pub(crate) key: (u64, i64),
    /// Device, inode and change time. Names of one file agree in all three. Files of two disks that had the same device
    /// number do not.
    pub(crate) inode: (u64, u64, i64),
    id: i64,
    pub(crate) state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// The content is known, or cannot be read because its root cannot be reached.
    Hashed,
    /// The content is known in this scan, but its hash is not stored.
    Remembered,
    /// The content is known by a hash of another algorithm.
    OtherAlgorithm,
    Unread,
}

impl Plan {
    /// Selects the candidates that can be duplicates and are not hashed yet. `scope` is the part that is read by size.
    pub(crate) fn select(
        mut candidates: Vec<Candidate>,
        rule: HashRule,
        scope: impl Fn(u64) -> Option<HashScope>,
    ) -> Self {
        let (mut plan, mut ids) = (Plan::default(), Vec::new());
        candidates.sort_unstable();
        for alike in candidates.chunk_by(|a, b| a.key == b.key) {
            let is_one_inode = alike.first().map(|file| file.inode) == alike.last().map(|file| file.inode);
            if is_one_inode && !rule.every_file {
                continue;
            }
            for names in alike.chunk_by(|a, b| a.inode == b.inode) {
                let remembered = names.iter().filter(|file| file.state == State::Remembered);
                plan.remembered.extend(remembered.map(|file| file.id));
                let mut unread = names.iter().filter(|file| file.state > State::Remembered);
                let Some(first) = unread.next() else { continue };
                let size = first.key.0;
                ids.push(first.id);
                plan.rehashed += u64::from(first.state == State::OtherAlgorithm);
                plan.bytes += scope(size).map_or(0, |scope| scope.bytes(size));
                let others: Vec<i64> = unread.map(|file| file.id).collect();
                if !others.is_empty() {
                    plan.links.insert(first.id, others);
                }
            }
        }
        ids.sort_unstable();
        plan.remembered.sort_unstable();
        Plan { ids: Arc::new(ids), ..plan }
    }
}

/// Identifies an inode: equal for names of one inode. A file with one name, or that another program recorded without an
/// inode number, is identified by its row id.
pub(crate) fn inode_of(row: &FileRow) -> (u64, u64, i64) {
    match row.stat {
        Stat { links: LinkKind::Single, .. } | Stat { inode: 0, .. } => (0, row.id.cast_unsigned(), 0),
        Stat { device, inode, ctime_ns, .. } => (device, inode, ctime_ns),
    }
}
