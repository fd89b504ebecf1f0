//! What is worth reading.
//!
//! Owns the one rule: a file is read only if it can be a duplicate. First all that share their size with another
//! file of the catalog (small ones are hashed at once, of large ones a few blocks), then large ones that share
//! those blocks, too. Names of one inode are one file: read once, and no reason to read another.
//!
//! A plan is sorted numbers, not rows: 32 bytes a file while it is made, 8 for each that is read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use gristmill_store::catalog::{Algorithm, FileRow, LinkKind, Stat};
use gristmill_store::{Store, UtcTime};

use crate::error::Result;
use crate::progress::ScanHandle;
use crate::read::{HashScope, MAX_SMALL_SIZE};

/// What a scan asks for.
#[derive(Debug)]
pub(crate) struct HashRequest {
    pub(crate) algorithm: Algorithm,
    /// Read all files.
    pub(crate) every_file: bool,
    /// The roots that are scanned.
    pub(crate) roots: HashSet<i64>,
    /// Since when the scan is under way: what could not be read since then is not tried again when it goes on.
    pub(crate) resumed_from: Option<UtcTime>,
    /// The roots that can be read.
    pub(crate) open_roots: HashSet<i64>,
}

impl HashRequest {
    /// Files of other roots are read, too, when they can be duplicates of what is here; not again if they could not be
    /// read: that is for a scan of their root.
    fn is_eligible(&self, row: &FileRow) -> bool {
        let tried = self.resumed_from.is_some_and(|since| row.failed_at.is_some_and(|at| at >= since));
        !row.failed || (self.roots.contains(&row.root) && !tried)
    }
}

/// Which files to read.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Rows, ascending: the order in which folders were walked, and so about that on the disk.
    pub(crate) ids: Vec<i64>,
    /// Other names of a file that is read, by its row.
    pub(crate) links: HashMap<i64, Vec<i64>>,
    pub(crate) bytes: u64,
    /// How many of them were hashed with another algorithm before.
    pub(crate) rehashed: u64,
    /// How many large files there are.
    pub(crate) large_files: u64,
    /// What every root holds.
    pub(crate) roots: HashMap<i64, RootTotals>,
    /// What files were hashed with.
    pub(crate) algorithms: BTreeSet<Algorithm>,
}

/// Files of a root.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RootTotals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// A file, as far as a plan is concerned. Sorted, equal contents can only be among neighbours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Its size; with its edges, when these are compared.
    key: (u64, i64),
    /// Which inode it is, and when that last changed: names of one file have all of it in common, files of two disks
    /// that had the same number have not.
    inode: (u64, u64, i64),
    id: i64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Its content is known, or cannot be had: its root is not there.
    Hashed,
    /// It is known, by another algorithm.
    OtherAlgorithm,
    Unread,
}

/// The first reading: small files, and edges of large ones.
pub(crate) fn plan_sampling(store: &Store, request: &HashRequest, handle: &ScanHandle) -> Result<Plan> {
    let HashRequest { algorithm, every_file, .. } = *request;
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    // Inodes with several names: their bytes count once for a root.
    let mut counted = HashSet::new();
    store.catalog().for_each_file(|row| {
        plan.algorithms.extend(row.algorithm);
        let root = plan.roots.entry(row.root).or_default();
        root.files += 1;
        let Stat { links, device, inode, .. } = row.stat;
        let is_known = matches!(links, LinkKind::Single | LinkKind::Unknown);
        if is_known || counted.insert((row.root, device, inode)) {
            root.bytes += row.stat.size;
        }
        if row.stat.size == 0 || !request.is_eligible(row) {
            return continue_unless_cancelled(handle);
        }
        let is_large = row.stat.size > MAX_SMALL_SIZE;
        plan.large_files += u64::from(is_large);
        // When everything is read through, edges tell nothing.
        if !(every_file && is_large) {
            let mut candidate = candidate(row, (row.stat.size, 0), request);
            if is_large && request.open_roots.contains(&row.root) {
                // Edges are needed even of a file that is hashed: others are compared by them.
                candidate.state = if row.samples.is_some() { State::Hashed } else { State::Unread };
            }
            candidates.push(candidate);
        }
        continue_unless_cancelled(handle)
    })?;
    plan.select(&mut candidates, every_file, |size| {
        if size > MAX_SMALL_SIZE { HashScope::Samples } else { HashScope::Content(algorithm) }
    });
    Ok(plan)
}

/// The second reading: large files that are alike at their edges.
pub(crate) fn plan_full(store: &Store, request: &HashRequest, handle: &ScanHandle) -> Result<Plan> {
    let HashRequest { algorithm, every_file, .. } = *request;
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    // Files whose content is known and whose edges are not.
    let mut without_samples = Vec::new();
    store.catalog().for_each_file(|row| {
        let size = row.stat.size;
        if size > MAX_SMALL_SIZE && request.is_eligible(row) {
            match row.samples.or(every_file.then_some(0)) {
                Some(samples) => candidates.push(candidate(row, (size, samples), request)),
                None if row.algorithm == Some(algorithm) => {
                    without_samples.push(candidate(row, (size, 0), request));
                }
                None => {}
            }
        }
        continue_unless_cancelled(handle)
    })?;
    // Names of one file have the same edges. Any other file of the size can be equal to one without.
    let mut sizes = HashSet::new();
    if !without_samples.is_empty() {
        let known: HashMap<_, _> = candidates.iter().map(|file| (file.inode, file.key)).collect();
        for file in &mut without_samples {
            match known.get(&file.inode).filter(|(size, _)| *size == file.key.0) {
                Some(key) => file.key = *key,
                None => drop(sizes.insert(file.key.0)),
            }
        }
        candidates.append(&mut without_samples);
    }
    for Candidate { key: (size, samples), .. } in &mut candidates {
        if sizes.contains(size) {
            *samples = 0;
        }
    }
    plan.select(&mut candidates, every_file, |_| HashScope::Content(algorithm));
    Ok(plan)
}

/// Files that were read and have a content that others have, too, and do not count as shared yet.
pub(crate) fn newly_shared(
    store: &Store,
    (algorithm, every_file): (Algorithm, bool),
    is_stopped: impl Fn() -> bool,
) -> Result<Vec<i64>> {
    let mut hashes = Vec::new();
    store.catalog().for_each_hash(algorithm, |id, prefix, shared| {
        hashes.push((prefix, shared, id));
        if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    hashes.sort_unstable();
    let mut ids: Vec<i64> = hashes
        .chunk_by(|(a, ..), (b, ..)| a == b)
        .filter(|alike| every_file || alike.len() > 1)
        .flat_map(|alike| alike.iter().filter(|(_, shared, _)| !shared).map(|(.., id)| *id))
        .collect();
    ids.sort_unstable();
    Ok(ids)
}

fn candidate(row: &FileRow, key: (u64, i64), request: &HashRequest) -> Candidate {
    let state = match row.algorithm {
        Some(known) if known == request.algorithm => State::Hashed,
        _ if !request.open_roots.contains(&row.root) => State::Hashed,
        Some(_) => State::OtherAlgorithm,
        None => State::Unread,
    };
    Candidate { key, inode: inode_of(row), id: row.id, state }
}

/// Equal for names of one inode. A file with one name is a file of its own, and so is one that another program recorded
/// without an inode.
pub(crate) fn inode_of(row: &FileRow) -> (u64, u64, i64) {
    match row.stat {
        Stat { links: LinkKind::Single, .. } | Stat { inode: 0, .. } => (0, row.id.cast_unsigned(), 0),
        Stat { device, inode, ctime_ns, .. } => (device, inode, ctime_ns),
    }
}

fn continue_unless_cancelled(handle: &ScanHandle) -> ControlFlow<()> {
    if handle.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

impl Plan {
    /// Chooses among candidates those that can be duplicates and are not known yet.
    fn select(&mut self, candidates: &mut [Candidate], every_file: bool, scope: impl Fn(u64) -> HashScope) {
        candidates.sort_unstable();
        for alike in candidates.chunk_by(|a, b| a.key == b.key) {
            let alone = alike.first().map(|file| file.inode) == alike.last().map(|file| file.inode);
            if alone && !every_file {
                continue;
            }
            for names in alike.chunk_by(|a, b| a.inode == b.inode) {
                let mut unread = names.iter().filter(|file| file.state != State::Hashed);
                let Some(first) = unread.next() else { continue };
                self.ids.push(first.id);
                self.rehashed += u64::from(first.state == State::OtherAlgorithm);
                self.bytes += scope(first.key.0).bytes(first.key.0);
                let others: Vec<i64> = unread.map(|file| file.id).collect();
                if !others.is_empty() {
                    self.links.insert(first.id, others);
                }
            }
        }
        self.ids.sort_unstable();
    }
}
