//! Makes files with equal contents groups of duplicates, and counts the groups.
//!
//! Owns which files are marked as shared: their content is also that of another file, so that they belong to a group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, Digest, FileRef, GroupQuery, HashUse, LinkKind, SharedFile, Stat, prefix};
use gristmill_store::scans::Duplicates;

use super::early::inode_key;
use super::run::ScanRun;
use crate::error::Result;

/// Files marked as shared by one update.
const SHARED_BATCH: usize = 65_536;

/// Limits for marking shared files after a cancellation: time, and files per update.
const CANCELLED_SHARE_TIMEOUT: Duration = Duration::from_secs(2);
const CANCELLED_BATCH: usize = 4_096;

/// Maximum number of contents remembered in one scan: as many as a hash table with 2^21 places holds, 0.13 GiB.
/// Duplicates among further ones are found at the end of the scan.
const MAX_CONTENTS: usize = (1 << 21) / 8 * 7;

/// The first file of a content, and its hash unless that is stored.
struct FirstFile {
    file: FileRef,
    unstored: Option<UnstoredHash>,
}

/// A first file with several names.
struct Names {
    identity: Identity,
    /// The other names that were read, or that its content was recorded for.
    others: Vec<FileRef>,
}

/// Device, inode and ctime, which all names of a file have in common.
type Identity = (u64, u64, i64);

/// A hash in less memory than a [`Digest`]: there is one for most files of a first scan.
enum UnstoredHash {
    /// The rest of a BLAKE3 hash. Its first eight bytes are the samples of the content, and the key of the map.
    Blake3([u8; 24]),
    Other(Box<Digest>),
}

impl UnstoredHash {
    /// `None` for a digest without samples: its hash is stored.
    fn of(digest: &Digest) -> Option<Self> {
        let samples = digest.samples?;
        let is_prefix = digest.algorithm == Algorithm::Blake3 && samples == prefix(&digest.hash).cast_signed();
        Some(match digest.hash.get(8..).and_then(|rest| rest.try_into().ok()).filter(|_| is_prefix) {
            Some(rest) => UnstoredHash::Blake3(rest),
            None => UnstoredHash::Other(Box::new(digest.clone())),
        })
    }

    fn digest(&self, prefix: u64, used: HashUse) -> Digest {
        match self {
            UnstoredHash::Blake3(rest) => {
                let hash = [prefix.to_le_bytes().as_slice(), rest].concat();
                Digest { algorithm: Algorithm::Blake3, hash, samples: Some(prefix.cast_signed()), used }
            }
            UnstoredHash::Other(digest) => Digest { used, ..Digest::clone(digest) },
        }
    }
}

/// The contents read in this scan.
pub(super) struct SharedContents {
    /// Whether every content counts as shared.
    every_file: bool,
    /// The first file of each content, by the prefix of its hash, until the content is known to be shared. Contents
    /// that share only the prefix count as shared too; a group requires equal hashes.
    first_files: HashMap<u64, Option<FirstFile>>,
    /// Those of them that have several names.
    names: HashMap<u64, Names>,
    newly_shared: Vec<SharedFile>,
    /// Whether more contents were read than `MAX_CONTENTS`.
    has_overflowed: bool,
}

impl SharedContents {
    pub(super) fn new(every_file: bool) -> Self {
        SharedContents {
            every_file,
            first_files: HashMap::new(),
            names: HashMap::new(),
            newly_shared: Vec::new(),
            has_overflowed: false,
        }
    }

    /// Decides what the hash of a file is stored for. The second file of a content adds the first one to the newly
    /// shared ones. Names of one file do not make its content shared, unless the hash is stored for each of them.
    pub(super) fn compare(&mut self, file: FileRef, stat: &Stat, digest: &mut Digest) {
        if self.every_file {
            digest.used = HashUse::Group;
            return;
        }
        let is_full = self.first_files.len() >= MAX_CONTENTS;
        let key = prefix(&digest.hash);
        let may_have_names = stat.links != LinkKind::Single && digest.samples.is_some();
        let identity = may_have_names.then(|| inode_key(stat));
        match self.first_files.entry(key) {
            Entry::Occupied(mut first) => {
                if let Some(names) = self.names.get_mut(&key).filter(|names| Some(names.identity) == identity) {
                    names.others.push(file);
                    digest.used = HashUse::Samples;
                    return;
                }
                if let Some(FirstFile { file, unstored }) = first.get_mut().take() {
                    let digest = unstored.map(|hash| hash.digest(key, HashUse::Group));
                    let others = self.names.remove(&key).map_or_else(Vec::new, |names| names.others);
                    let shared = std::iter::once(file).chain(others);
                    self.newly_shared.extend(shared.map(|file| SharedFile { file, digest: digest.clone() }));
                }
                digest.used = HashUse::Group;
            }
            Entry::Vacant(vacant) if !is_full => {
                let unstored = UnstoredHash::of(digest);
                if unstored.is_some() {
                    digest.used = HashUse::Samples;
                }
                if let Some(identity) = identity {
                    self.names.insert(key, Names { identity, others: Vec::new() });
                }
                vacant.insert(Some(FirstFile { file, unstored }));
            }
            Entry::Vacant(_) => self.has_overflowed = true,
        }
    }

    pub(super) fn take_newly_shared(&mut self) -> Vec<SharedFile> {
        std::mem::take(&mut self.newly_shared)
    }

    /// The files whose hash is known here but not stored.
    pub(super) fn remembered(&self) -> impl Iterator<Item = FileRef> {
        let firsts = self.first_files.values().flatten();
        let firsts = firsts.filter(|first| first.unstored.is_some()).map(|first| first.file);
        firsts.chain(self.names.values().flat_map(|names| names.others.iter().copied()))
    }

    /// The hashes of the files for which `is_wanted`, to be kept.
    pub(super) fn kept(&self, is_wanted: impl Fn(FileRef) -> Option<i64>) -> Vec<SharedFile> {
        let mut kept = Vec::new();
        for (key, first) in &self.first_files {
            let Some(FirstFile { file, unstored: Some(hash) }) = first else { continue };
            let others = self.names.get(key).map_or(&[][..], |names| &names.others);
            let wanted = std::iter::once(file).chain(others).filter_map(|file| is_wanted(*file));
            let digest = |id| SharedFile { file: FileRef::Row(id), digest: Some(hash.digest(*key, HashUse::Kept)) };
            kept.extend(wanted.map(digest));
        }
        kept
    }

    pub(super) fn compares_all(&self) -> bool {
        !self.has_overflowed
    }
}

/// Marks files whose content other files have too. Runs at the end and in row order: marking each file as it is found
/// would write the same index pages with every commit.
pub(super) fn mark(run: &mut ScanRun<'_>) -> Result<()> {
    if run.handle.is_cancelled() {
        return Ok(());
    }
    let begun = Instant::now();
    run.queue.share_first_files();
    run.queue.flush();
    // Files read by this scan were compared as they were written.
    if !(run.queue.compares_all() && run.holds_only_own_files()?) {
        mark_hashes(run, run.options.algorithm)?;
    }
    run.summary.seconds.groups = begun.elapsed().as_secs_f64();
    Ok(())
}

/// Compares all hashes of an algorithm, and marks the shared ones.
pub(super) fn mark_hashes(run: &ScanRun<'_>, algorithm: Algorithm) -> Result<()> {
    mark_until(run, algorithm, SHARED_BATCH, || run.proceed().is_break())
}

/// Marks shared files that were read before the scan was cancelled, within `CANCELLED_SHARE_TIMEOUT`.
pub(super) fn mark_after_cancel(run: &ScanRun<'_>) -> Result<()> {
    let is_any_read = run.handle.read.load(Ordering::Relaxed) > 0;
    let until = run.cancelled_at.get().copied().unwrap_or_else(Instant::now) + CANCELLED_SHARE_TIMEOUT;
    let is_over = || Instant::now() >= until;
    run.queue.share_first_files();
    if !is_any_read || is_over() || !run.queue.flush() {
        return Ok(());
    }
    mark_until(run, run.options.algorithm, CANCELLED_BATCH, is_over)
}

fn mark_until(run: &ScanRun<'_>, algorithm: Algorithm, batch: usize, is_over: impl Fn() -> bool) -> Result<()> {
    for ids in newly_shared(run.store, (algorithm, run.options.every_file), &is_over)?.chunks(batch) {
        run.renew_heartbeat();
        if is_over() || run.queue.add_shared(ids).is_err() || !run.queue.flush() {
            break;
        }
    }
    Ok(())
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

/// Counts the duplicates of the catalog: evaluates the groups whose files have changed. `None` if the scan reads no
/// files.
pub(super) fn count(run: &mut ScanRun<'_>) -> Result<Option<Duplicates>> {
    if !run.options.mode.reads() {
        return Ok(None);
    }
    let begun = Instant::now();
    run.renew_heartbeat();
    let (store, summary) = (run.store, &mut run.summary);
    let query = GroupQuery::default().limit(run.options.top);
    let groups = std::thread::scope(|scope| {
        if !run.unchanged {
            // In parallel with the evaluation. If this fails, closing the store does it later.
            scope.spawn(|| store.wal().checkpoint_passive());
        }
        store.catalog().groups(&query)
    })?;
    summary.top = groups.groups;
    summary.duplicate_groups = groups.total;
    summary.duplicate_files = groups.files;
    summary.reclaimable_bytes = groups.reclaimable;
    summary.seconds.groups += begun.elapsed().as_secs_f64();
    Ok(Some(Duplicates { groups: groups.total, files: groups.files, reclaimable: groups.reclaimable }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(inode: u64) -> Stat {
        Stat { inode, links: LinkKind::HardLinked, ..Stat::default() }
    }

    fn digest(content: u8) -> Digest {
        let hash = vec![content; 32];
        Digest { samples: Some(prefix(&hash).cast_signed()), ..Digest::unshared(Algorithm::Blake3, hash) }
    }

    /// Compares files, each with its row id, inode and content. Returns the rows that are part of a group.
    fn shared(files: &[(i64, u64, u8)]) -> Vec<i64> {
        let mut contents = SharedContents::new(false);
        let mut shared = Vec::new();
        for (row, inode, content) in files {
            let mut digest = digest(*content);
            contents.compare(FileRef::Row(*row), &stat(*inode), &mut digest);
            shared.extend((digest.used == HashUse::Group).then_some(*row));
        }
        let first = contents.take_newly_shared();
        assert!(first.iter().all(|shared| shared.digest.as_ref().is_some_and(|digest| digest.used == HashUse::Group)));
        shared.extend(first.into_iter().filter_map(|shared| shared.file.row(&Default::default())));
        shared.sort_unstable();
        shared
    }

    #[test]
    fn names_of_one_file_are_shared_only_with_another_file() {
        assert!(shared(&[(1, 7, 1), (2, 7, 1)]).is_empty());
        assert_eq!(shared(&[(1, 7, 1), (2, 8, 1)]), [1, 2]);
        assert!(shared(&[(1, 7, 1), (2, 8, 2)]).is_empty());
        // In every order, all names of both files are.
        for order in [[1, 2, 3, 4], [3, 1, 4, 2], [1, 3, 2, 4], [4, 3, 2, 1]] {
            let files = order.map(|row| (row, if row < 3 { 7 } else { 8 }, 1));
            assert_eq!(shared(&files), [1, 2, 3, 4], "{order:?}");
        }
    }
}
