//! The one who writes the catalog while a scan runs.
//!
//! Owns the thread between workers and the store. What workers find comes through a bounded channel, which makes
//! them wait when the disk is slower than they are; what has gathered is committed together. A scan that is killed
//! loses what was not committed yet, a fraction of a second of work.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_store::Store;
use gristmill_store::catalog::{Batch, FileHash, FileRef, Ids, Listing, ReadResult, prefix};

use crate::error::{Error, Result};
use crate::progress::ScanHandle;

/// So many notes may wait: enough for the workers to go on while a batch is on its way to the disk.
const QUEUE_CAPACITY: usize = 1_024;

/// So many rows are committed together. Each commit writes every page it touched once, and rows of a few hundred
/// folders touch pages all over the index of paths: with a quarter of this, twice as much was written.
const MAX_BATCH_ROWS: usize = 32_768;

/// With so many it is not waited for more.
const MIN_BATCH_ROWS: usize = 2_048;

/// A batch that is small waits so long for more: a sync of the disk for each file would be most of the work.
const BATCH_TIMEOUT: Duration = Duration::from_millis(250);

/// How often the scan says that it is alive.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Something to be written.
pub(crate) enum Update {
    /// With the number by which readings of its new files refer to it.
    Listing(u64, Box<Listing>),
    Hashes(Vec<FileHash>),
    /// Files that were read before and have a duplicate.
    Shared(Vec<i64>),
    /// The first files of contents that turned out to be shared: at the end and together, because each is on a page
    /// of its own.
    ShareFirstFiles,
    /// Told when all before is on disk.
    Flush(mpsc::Sender<()>),
    /// Nothing more is taken. A worker that hangs may hold on to the channel for ever.
    Finish,
}

/// Takes notes for the scribe. Clones share the channel.
pub(crate) type UpdateSender = SyncSender<Update>;

pub(crate) struct CatalogWriter {
    pub(crate) updates: UpdateSender,
    thread: JoinHandle<Result<u64>>,
    /// Not all contents could be remembered.
    overflowed: Arc<AtomicBool>,
    /// How many files were found to be gone.
    pub(crate) missing: Arc<AtomicU64>,
    /// How many are left out by this scan's filters, and were known.
    pub(crate) excluded: Arc<AtomicU64>,
}

impl CatalogWriter {
    /// Begins to write. When that fails, the scan is told to stop.
    pub(crate) fn start(
        store: &Store,
        handle: &Arc<ScanHandle>,
        scans: Vec<i64>,
        process_tag: String,
        every_file: bool,
    ) -> Result<Self> {
        let (updates, queue) = mpsc::sync_channel(QUEUE_CAPACITY);
        let overflowed = Arc::<AtomicBool>::default();
        let missing = Arc::<AtomicU64>::default();
        let excluded = Arc::<AtomicU64>::default();
        let writer = WriterThread {
            store: store.clone(),
            handle: handle.clone(),
            scans,
            process_tag,
            queue,
            every_file,
            last_heartbeat: Instant::now(),
            missing: missing.clone(),
            excluded: excluded.clone(),
            ids: Ids::new(),
            first_files: HashMap::new(),
            newly_shared: Vec::new(),
            deferred: Vec::new(),
            overflowed: overflowed.clone(),
        };
        let handle = handle.clone();
        let thread = std::thread::Builder::new()
            .name("catalog-writer".to_owned())
            .spawn(move || writer.run().inspect_err(|_| handle.cancel()));
        let thread = thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
        Ok(CatalogWriter { updates, thread, overflowed, missing, excluded })
    }

    /// Waits until everything noted so far is on disk. False when writing has failed; `end` says why.
    pub(crate) fn flush(&self) -> bool {
        let (done, is_done) = mpsc::channel();
        self.updates.send(Update::Flush(done)).is_ok() && is_done.recv().is_ok()
    }

    /// Whether all contents that were read in this scan are compared with each other.
    pub(crate) fn compares_all(&self) -> bool {
        !self.overflowed.load(Ordering::Relaxed)
    }

    /// Writes what is left. Says how many files were found to be gone.
    pub(crate) fn finish(self) -> Result<u64> {
        // It may have ended by itself.
        let _ = self.updates.send(Update::Finish);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(Error::System("the thread that writes the catalog panicked".to_owned())))
    }
}

struct WriterThread {
    store: Store,
    handle: Arc<ScanHandle>,
    scans: Vec<i64>,
    process_tag: String,
    queue: Receiver<Update>,
    /// Every content counts as shared.
    every_file: bool,
    last_heartbeat: Instant,
    missing: Arc<AtomicU64>,
    excluded: Arc<AtomicU64>,
    /// Rows of files that are new in this scan.
    ids: Ids,
    /// The first file of each content that was read in this scan, by the beginning of its hash, until it is known to
    /// be shared. Two that only begin alike count as shared, too; a group needs the same hash.
    first_files: HashMap<u64, Option<FileRef>>,
    newly_shared: Vec<FileRef>,
    /// Readings of files whose folder is still being looked at.
    deferred: Vec<FileHash>,
    overflowed: Arc<AtomicBool>,
}

/// So many contents are remembered; what they miss is found at the end.
const MAX_CONTENTS: usize = 4_000_000;

/// What is committed together.
#[derive(Default)]
struct PendingBatch {
    batch: Batch,
    weight: usize,
    flush_waiters: Vec<mpsc::Sender<()>>,
    /// That was all.
    is_last: bool,
}

impl WriterThread {
    fn run(mut self) -> Result<u64> {
        loop {
            let mut pending = PendingBatch::default();
            let ended = self.collect_batch(&mut pending);
            self.commit(pending)?;
            if ended {
                return Ok(self.missing.load(Ordering::Relaxed));
            }
            if self.last_heartbeat.elapsed() >= HEARTBEAT_INTERVAL {
                self.store.scans().heartbeat(self.scans.clone(), &self.process_tag)?;
                self.last_heartbeat = Instant::now();
            }
        }
    }

    /// Waits for something, takes what there is, and waits a moment for more when that is little. True when nobody has
    /// anything more to note.
    fn collect_batch(&mut self, pending: &mut PendingBatch) -> bool {
        let mut until = Instant::now() + HEARTBEAT_INTERVAL;
        loop {
            // Enough to be worth a commit: while that is on its way the next gathers by itself.
            let wait = match pending.weight {
                MIN_BATCH_ROWS.. => Duration::ZERO,
                _ => until.saturating_duration_since(Instant::now()),
            };
            match self.queue.recv_timeout(wait) {
                Ok(update) => {
                    if pending.weight == 0 {
                        until = Instant::now() + BATCH_TIMEOUT;
                    }
                    if self.add(pending, update) {
                        return pending.is_last;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// True when all is to be committed now.
    fn add(&mut self, pending: &mut PendingBatch, update: Update) -> bool {
        match update {
            Update::Listing(number, mut listing) => {
                pending.weight += listing.weight();
                for (position, digest) in &mut listing.contents {
                    let shared = self.is_shared(FileRef::New(number, *position), &digest.hash);
                    digest.shared = shared;
                }
                pending.batch.listings.push((number, *listing));
            }
            Update::Hashes(hashes) => {
                pending.weight += hashes.len();
                for mut hash in hashes {
                    if let ReadResult::Content(_, digest) = &hash.result {
                        hash.shared = self.is_shared(hash.file, digest);
                    }
                    pending.batch.hashes.push(hash);
                }
            }
            Update::Shared(ids) => {
                pending.weight += ids.len();
                pending.batch.shared.extend(ids.into_iter().map(FileRef::Row));
            }
            Update::ShareFirstFiles => {
                pending.weight += self.newly_shared.len();
                pending.batch.shared.append(&mut self.newly_shared);
            }
            Update::Flush(done) => {
                pending.flush_waiters.push(done);
                return true;
            }
            Update::Finish => {
                pending.is_last = true;
                return true;
            }
        }
        pending.weight >= MAX_BATCH_ROWS
    }

    /// Whether a content was seen before, or counts as shared anyway. Its first file is noted for the end.
    fn is_shared(&mut self, file: FileRef, hash: &[u8]) -> bool {
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
                self.overflowed.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    /// Leaves out readings of files whose folder is not written yet; they come with the next batch.
    fn defer(&mut self, batch: &mut Batch) {
        // Those that waited came first.
        batch.hashes.splice(0..0, self.deferred.drain(..));
        for hash in &mut batch.hashes {
            hash.file = hash.file.row(&self.ids).map_or(hash.file, FileRef::Row);
        }
        let written: HashSet<u64> = batch.listings.iter().map(|(number, _)| *number).collect();
        let is_early = |hash: &mut FileHash| match hash.file {
            FileRef::Row(_) => false,
            FileRef::New(listing, _) => !written.contains(&listing),
        };
        self.deferred = batch.hashes.extract_if(.., is_early).collect();
        for file in &mut batch.shared {
            *file = file.row(&self.ids).map_or(*file, FileRef::Row);
        }
    }

    fn commit(&mut self, pending: PendingBatch) -> Result<()> {
        let PendingBatch { mut batch, weight, flush_waiters: flushes, .. } = pending;
        if weight > 0 {
            self.defer(&mut batch);
            let written = self.store.catalog().write(batch)?;
            self.handle.changed_during_scan.fetch_add(written.conflicts as u64, Ordering::Relaxed);
            self.missing.fetch_add(written.missing as u64, Ordering::Relaxed);
            self.excluded.fetch_add(written.excluded as u64, Ordering::Relaxed);
            self.ids.extend(written.ids.into_iter().filter(|(_, ids)| !ids.is_empty()));
        }
        for flush in flushes {
            // Whoever waited may have gone.
            let _ = flush.send(());
        }
        Ok(())
    }
}
