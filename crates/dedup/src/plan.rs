//! Plans which files to read.
//!
//! Owns the rule that a file is read only if it can be a duplicate. The first plan has all files that share their size
//! with another file of the catalog: small ones are hashed, large ones are sampled. The second plan has the large files
//! that share their samples too. Names of one inode are one file, which is read once, and only if another
//! file can equal it.
//!
//! A plan holds sorted row ids, not rows: 56 bytes per file while it is computed, 8 for each file that is read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use gristmill_store::catalog::{Algorithm, FileRow, LinkKind, Stat};
use gristmill_store::{Store, UtcTime};

use crate::error::Result;
use crate::progress::ScanHandle;
use crate::read::{HashScope, MAX_SMALL_SIZE};

#[derive(Debug)]
pub(crate) struct HashRequest {
    pub(crate) algorithm: Algorithm,
    /// Whether all files are hashed, not only possible duplicates.
    pub(crate) every_file: bool,
    pub(crate) roots: HashSet<i64>,
    /// Start of the scan that is resumed. Files that could not be read since then are not tried again.
    pub(crate) resumed_from: Option<UtcTime>,
    pub(crate) open_roots: HashSet<i64>,
}

impl HashRequest {
    /// Whether a file may be read. Files of other roots are read too if they can be duplicates of files of this scan,
    /// but not if they failed before: they are retried by a scan of their root.
    fn is_eligible(&self, row: &FileRow) -> bool {
        let was_tried = self.resumed_from.is_some_and(|since| row.failed_at.is_some_and(|at| at >= since));
        !row.failed || (self.roots.contains(&row.root) && !was_tried)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Row ids, ascending: the order in which folders were walked, which is close to the order on the disk.
    pub(crate) ids: Vec<i64>,
    /// Other names of each file that is read, by its row id.
    pub(crate) links: HashMap<i64, Vec<i64>>,
    pub(crate) bytes: u64,
    /// Number of planned files that were hashed with another algorithm before.
    pub(crate) rehashed: u64,
    /// Number of large files in the catalog that may be read.
    pub(crate) large_files: u64,
    pub(crate) roots: HashMap<i64, RootTotals>,
    /// Algorithms that files of the catalog were hashed with.
    pub(crate) algorithms: BTreeSet<Algorithm>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RootTotals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// A file that may have to be read. In sorted order, only adjacent files can have equal contents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Size of the file, and its samples when they are compared.
    key: (u64, i64),
    /// Device, inode and change time. Names of one file agree in all three. Files of two disks that had the same device
    /// number do not.
    inode: (u64, u64, i64),
    id: i64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// The content is known, or cannot be read because its root cannot be reached.
    Hashed,
    /// The content is known by a hash of another algorithm.
    OtherAlgorithm,
    Unread,
}

/// Plans the first stage: small files, and samples of large ones.
pub(crate) fn plan_sampling(store: &Store, request: &HashRequest, handle: &ScanHandle) -> Result<Plan> {
    let HashRequest { algorithm, every_file, .. } = *request;
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    // Inodes with several names, whose bytes count once per root.
    let mut counted = HashSet::new();
    store.catalog().for_each_file(|row| {
        plan.algorithms.extend(row.algorithm);
        let root = plan.roots.entry(row.root).or_default();
        root.files += 1;
        let Stat { links, device, inode, .. } = row.stat;
        let has_one_name = matches!(links, LinkKind::Single | LinkKind::Unknown);
        if has_one_name || counted.insert((row.root, device, inode)) {
            root.bytes += row.stat.size;
        }
        if row.stat.size == 0 || !request.is_eligible(row) {
            return continue_unless_cancelled(handle);
        }
        let is_large = row.stat.size > MAX_SMALL_SIZE;
        plan.large_files += u64::from(is_large);
        // Samples are not needed if every file is read in full.
        if !(every_file && is_large) {
            let mut candidate = candidate(row, (row.stat.size, 0), request);
            if is_large && request.open_roots.contains(&row.root) {
                // Samples are needed even of a file that is hashed, because others are compared with them.
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

/// Plans the second stage: large files that have equal samples.
pub(crate) fn plan_full(store: &Store, request: &HashRequest, handle: &ScanHandle) -> Result<Plan> {
    let HashRequest { algorithm, every_file, .. } = *request;
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    // Files whose content is known but not their samples.
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
    // Names of one file have the same samples. A file without samples can equal any other file of its size.
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

/// Returns the row ids of files whose content other files have too, and that are not marked as shared yet.
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

/// Identifies an inode: equal for names of one inode. A file with one name, or that another program recorded without an
/// inode number, is identified by its row id.
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
    /// Selects the candidates that can be duplicates and are not hashed yet.
    fn select(&mut self, candidates: &mut [Candidate], every_file: bool, scope: impl Fn(u64) -> HashScope) {
        candidates.sort_unstable();
        for alike in candidates.chunk_by(|a, b| a.key == b.key) {
            let is_one_inode = alike.first().map(|file| file.inode) == alike.last().map(|file| file.inode);
            if is_one_inode && !every_file {
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
