//! Makes files with equal contents groups of duplicates, and counts the groups.
//!
//! Owns which files are marked as shared: their content is also that of another file, so that they belong to a group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gristmill_store::Store;
use gristmill_store::catalog::{Algorithm, FileRef, GroupQuery, prefix};
use gristmill_store::scans::Duplicates;

use super::run::ScanRun;
use crate::error::Result;

/// Files marked as shared by one update.
const SHARED_BATCH: usize = 65_536;

/// Limits for marking shared files after a cancellation: time, and files per update.
const CANCELLED_SHARE_TIMEOUT: Duration = Duration::from_secs(2);
const CANCELLED_BATCH: usize = 4_096;

/// Maximum number of contents remembered in one scan. Duplicates among further ones are found at the end of the scan.
const MAX_CONTENTS: usize = 4_000_000;

/// The contents read in this scan.
pub(super) struct SharedContents {
    /// Whether every content counts as shared.
    every_file: bool,
    /// The first file of each content, by the prefix of its hash, until the content is known to be shared. Contents
    /// that share only the prefix count as shared too; a group requires equal hashes.
    first_files: HashMap<u64, Option<FileRef>>,
    newly_shared: Vec<FileRef>,
    /// Whether more contents were read than `MAX_CONTENTS`.
    has_overflowed: bool,
}

impl SharedContents {
    pub(super) fn new(every_file: bool) -> Self {
        SharedContents { every_file, first_files: HashMap::new(), newly_shared: Vec::new(), has_overflowed: false }
    }

    /// Whether a content was seen before. The second file of a content adds the first one to the newly shared ones.
    pub(super) fn is_shared(&mut self, file: FileRef, hash: &[u8]) -> bool {
        if self.every_file {
            return true;
        }
        let is_full = self.first_files.len() >= MAX_CONTENTS;
        match self.first_files.entry(prefix(hash)) {
            Entry::Occupied(mut first) => {
                self.newly_shared.extend(first.get_mut().take());
                true
            }
            Entry::Vacant(vacant) if !is_full => {
                vacant.insert(Some(file));
                false
            }
            Entry::Vacant(_) => {
                self.has_overflowed = true;
                false
            }
        }
    }

    pub(super) fn take_newly_shared(&mut self) -> Vec<FileRef> {
        std::mem::take(&mut self.newly_shared)
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

/// Counts the duplicates of the catalog, unless they are known to be unchanged. `None` if the scan reads no files.
pub(super) fn count(run: &mut ScanRun<'_>) -> Result<Option<Duplicates>> {
    if !run.options.mode.reads() {
        return Ok(None);
    }
    let begun = Instant::now();
    run.renew_heartbeat();
    let (store, summary) = (run.store, &mut run.summary);
    let duplicates = match run.unchanged.take() {
        Some(unchanged) if run.options.top == 0 => unchanged,
        _ => {
            let query = GroupQuery::default().limit(run.options.top);
            let groups = std::thread::scope(|scope| {
                // Checkpoints the WAL in parallel with the search. If this fails, closing the store does it later.
                scope.spawn(|| store.wal().checkpoint_passive());
                store.catalog().groups(&query)
            })?;
            summary.top = groups.groups;
            Duplicates { groups: groups.total, files: groups.files, reclaimable: groups.reclaimable }
        }
    };
    summary.duplicate_groups = duplicates.groups;
    summary.duplicate_files = duplicates.files;
    summary.reclaimable_bytes = duplicates.reclaimable;
    summary.seconds.groups += begun.elapsed().as_secs_f64();
    Ok(Some(duplicates))
}
