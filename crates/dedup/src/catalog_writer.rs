//! Writes the catalog while a scan runs.
//!
//! Owns the thread between the workers and the store. Workers send updates through a bounded channel, which blocks them
//! when the disk is slower than they are. Updates that have accumulated are committed together. A scan that is killed
//! loses the updates that were not committed yet, a fraction of a second of work.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_store::Store;
use gristmill_store::catalog::{Batch, FileHash, FileRef, Listing, NewFileIds, ReadResult, prefix};

use crate::error::{Error, Result};
use crate::progress::ScanHandle;

/// Updates that can wait in the queue: enough to keep the workers busy during a commit.
const QUEUE_CAPACITY: usize = 1_024;

/// Rows after which a batch is committed. A commit writes each page it touched once, and rows of a few hundred folders
/// touch pages all over the index of paths: with a quarter of this limit, twice as much was written.
const MAX_BATCH_ROWS: usize = 32_768;

/// Rows from which a batch is committed without waiting for more updates.
const MIN_BATCH_ROWS: usize = 2_048;

/// Time that a smaller batch waits for more updates. One fsync per file would be most of the work.
const BATCH_TIMEOUT: Duration = Duration::from_millis(250);

/// Interval at which the heartbeat of the scan is written.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) enum Update {
    /// A listing, and the number by which hashes of its new files refer to it.
    Listing(u64, Box<Listing>),
    Hashes(Vec<FileHash>),
    /// Marks files that were read earlier and have a duplicate.
    Shared(Vec<i64>),
    /// Marks the first file of each content that turned out to be shared. Sent after the walk and at the end, not per
    /// file, because each of these rows is on a different page.
    ShareFirstFiles,
    /// Signals the sender when all earlier updates are on disk.
    Flush(mpsc::Sender<()>),
    /// Ends the thread. Closing the channel would not be enough: a worker that hangs can keep a sender for ever.
    Finish,
}

/// Sends updates to the catalog writer. Clones share the channel.
pub(crate) type UpdateSender = SyncSender<Update>;

pub(crate) struct CatalogWriter {
    pub(crate) updates: UpdateSender,
    thread: JoinHandle<Result<u64>>,
    /// Whether more contents were read than `MAX_CONTENTS`.
    overflowed: Arc<AtomicBool>,
    /// Number of files that were marked missing.
    pub(crate) missing: Arc<AtomicU64>,
    /// Number of known files that the filters of this scan exclude.
    pub(crate) excluded: Arc<AtomicU64>,
}

impl CatalogWriter {
    /// Starts the thread. It cancels the scan when a write fails.
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
            ids: NewFileIds::new(),
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

    /// Waits until all updates sent so far are on disk. Returns false if a write has failed; `finish` returns that
    /// error.
    pub(crate) fn flush(&self) -> bool {
        let (done, is_done) = mpsc::channel();
        self.updates.send(Update::Flush(done)).is_ok() && is_done.recv().is_ok()
    }

    /// Whether all contents read in this scan are compared with each other.
    pub(crate) fn compares_all(&self) -> bool {
        !self.overflowed.load(Ordering::Relaxed)
    }

    /// Writes the remaining updates. Returns the number of files that were marked missing.
    pub(crate) fn finish(self) -> Result<u64> {
        // Sending fails if the thread has ended because of an error.
        let _ = self.updates.send(Update::Finish);
        self.thread.join().unwrap_or_else(|_| Err(Error::System("the catalog writer panicked".to_owned())))
    }
}

struct WriterThread {
    store: Store,
    handle: Arc<ScanHandle>,
    scans: Vec<i64>,
    process_tag: String,
    queue: Receiver<Update>,
    every_file: bool,
    last_heartbeat: Instant,
    missing: Arc<AtomicU64>,
    excluded: Arc<AtomicU64>,
    /// Row ids of the files that are new in this scan.
    ids: NewFileIds,
    /// The first file of each content read in this scan, by the prefix of its hash, until the content is known to be
    /// shared. Contents that share only the prefix count as shared too; a group requires equal hashes.
    first_files: HashMap<u64, Option<FileRef>>,
    newly_shared: Vec<FileRef>,
    /// Hashes of files whose folder has not been written yet.
    deferred: Vec<FileHash>,
    overflowed: Arc<AtomicBool>,
}

/// Maximum number of contents remembered in one scan. Duplicates among further ones are found at the end of the scan.
const MAX_CONTENTS: usize = 4_000_000;

#[derive(Default)]
struct PendingBatch {
    batch: Batch,
    weight: usize,
    flush_waiters: Vec<mpsc::Sender<()>>,
    /// Whether `Update::Finish` was received.
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

    /// Waits for an update, takes all that are queued, and waits up to `BATCH_TIMEOUT` for more if they are few.
    /// Returns true after the last update.
    fn collect_batch(&mut self, pending: &mut PendingBatch) -> bool {
        let mut until = Instant::now() + HEARTBEAT_INTERVAL;
        loop {
            // A batch of this size is committed at once. The next one accumulates meanwhile.
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

    /// Adds an update to the batch. Returns true if the batch must be committed now.
    fn add(&mut self, pending: &mut PendingBatch, update: Update) -> bool {
        match update {
            Update::Listing(number, mut listing) => {
                pending.weight += listing.weight();
                for (position, digest) in &mut listing.contents {
                    digest.shared = self.is_shared(FileRef::New(number, *position), &digest.hash);
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

    /// Whether a content was seen before, or every content counts as shared. The second file of a content adds the
    /// first one to `newly_shared`.
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

    /// Defers hashes of files whose folder is not written yet to the next batch.
    fn defer(&mut self, batch: &mut Batch) {
        // Deferred hashes are older than those of this batch.
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
        let PendingBatch { mut batch, weight, flush_waiters, .. } = pending;
        if weight > 0 {
            self.defer(&mut batch);
            let written = self.store.catalog().write(batch)?;
            self.handle.changed_during_scan.fetch_add(written.conflicts as u64, Ordering::Relaxed);
            self.missing.fetch_add(written.missing as u64, Ordering::Relaxed);
            self.excluded.fetch_add(written.excluded as u64, Ordering::Relaxed);
            self.ids.extend(written.ids.into_iter().filter(|(_, ids)| !ids.is_empty()));
        }
        for waiter in flush_waiters {
            // The receiver may have been dropped.
            let _ = waiter.send(());
        }
        Ok(())
    }
}
