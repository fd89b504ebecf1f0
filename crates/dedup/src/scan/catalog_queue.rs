//! Collects the rows of a scan and queues them with the store.
//!
//! Owns the batches. Workers add rows, and the store's writer thread takes all that were added when its next
//! transaction begins. When too many rows wait for that, the workers wait too. A scan that is killed loses the rows
//! that were not committed yet, a fraction of a second of work.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use gristmill_pool::{TaskError, TaskResult};
use gristmill_store::catalog::{Batch, FileHash, FileRef, Listing, NewFileIds, ReadResult, SharedFile, Written};
use gristmill_store::{Store, WriteHandle, process};

use super::groups::SharedContents;
use crate::error::{Error, Result};
use crate::lock;
use crate::progress::{ScanHandle, add};

/// Rows from which workers wait until the batch is taken. Four times as many made a first scan no faster, and took
/// 10 MiB.
const MAX_BATCH_ROWS: usize = 8_192;

/// Rows from which a batch is committed without waiting for more.
const MIN_BATCH_ROWS: usize = 4_096;

/// Time that a smaller batch waits for more rows. One fsync per file would be most of the work.
const BATCH_TIMEOUT: Duration = Duration::from_millis(250);

pub(super) struct CatalogQueue {
    store: Store,
    producer: Mutex<Producer>,
    shared: Arc<Shared>,
    next_listing: AtomicU64,
}

/// State of the threads that add rows. The writer thread does not use it, so it may be locked during a wait for that.
struct Producer {
    contents: SharedContents,
    /// The write that was queued last.
    last_write: Option<WriteHandle<()>>,
    is_closed: bool,
}

struct Shared {
    handle: Arc<ScanHandle>,
    collected: Mutex<Collected>,
    /// Signalled when the writer thread has taken a batch.
    taken: Condvar,
}

#[derive(Default)]
struct Collected {
    batch: Batch,
    /// Approximate number of rows in the batch. A write is queued while it is not 0.
    rows: usize,
    /// Hashes of files whose folder has not been added yet.
    early: Vec<FileHash>,
    /// Row ids of the files that are new in this scan.
    ids: NewFileIds,
    /// The first error. Further rows are refused.
    error: Option<Error>,
}

impl CatalogQueue {
    pub(super) fn new(store: &Store, handle: &Arc<ScanHandle>, every_file: bool) -> Self {
        let shared = Shared { handle: handle.clone(), collected: Mutex::default(), taken: Condvar::new() };
        let producer = Producer { contents: SharedContents::new(every_file), last_write: None, is_closed: false };
        CatalogQueue {
            store: store.clone(),
            producer: Mutex::new(producer),
            shared: Arc::new(shared),
            next_listing: AtomicU64::new(0),
        }
    }

    /// Returns the number of a new listing, by which hashes refer to its files.
    pub(super) fn next_listing(&self) -> u64 {
        self.next_listing.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn add_listing(&self, number: u64, mut listing: Listing) -> TaskResult<()> {
        let mut producer = lock(&self.producer);
        for (position, digest) in &mut listing.contents {
            let stat = listing.new_files.get(*position as usize).map(|(_, stat)| *stat).unwrap_or_default();
            producer.contents.compare(FileRef::New(number, *position), &stat, digest);
        }
        self.add(&mut producer, listing.weight(), |batch| batch.listings.push((number, listing)))
    }

    pub(super) fn add_hashes(&self, mut hashes: Vec<FileHash>) -> TaskResult<()> {
        if hashes.is_empty() {
            return Ok(());
        }
        let mut producer = lock(&self.producer);
        for hash in &mut hashes {
            if let ReadResult::Content(digest) = &mut hash.result {
                producer.contents.compare(hash.file, &hash.stat, digest);
            }
        }
        self.add(&mut producer, hashes.len(), |batch| batch.hashes.append(&mut hashes))
    }

    /// Marks files that were read earlier and have a duplicate.
    pub(super) fn add_shared(&self, ids: &[i64]) -> TaskResult<()> {
        let files = ids.iter().map(|id| SharedFile { file: FileRef::Row(*id), digest: None });
        self.add(&mut lock(&self.producer), ids.len(), |batch| batch.shared.extend(files))
    }

    /// Marks the first file of each content that turned out to be shared. Called after the walk and at the end, not per
    /// file, because each of these rows is on a different page.
    pub(super) fn share_first_files(&self) {
        let mut producer = lock(&self.producer);
        let mut files = producer.contents.take_newly_shared();
        // An error is returned by `close`.
        let _ = self.add(&mut producer, files.len(), |batch| batch.shared.append(&mut files));
    }

    /// Returns the row ids of files whose hash is known but not stored, sorted.
    pub(super) fn remembered_rows(&self) -> Vec<i64> {
        let producer = lock(&self.producer);
        let collected = lock(&self.shared.collected);
        let rows = producer.contents.remembered().filter_map(|file| file.row(&collected.ids));
        let mut ids: Vec<i64> = rows.collect();
        ids.sort_unstable();
        ids
    }

    /// Stores the hashes of files in `rows`, sorted ids among those of `remembered_rows`.
    pub(super) fn keep_hashes(&self, rows: &[i64]) {
        if rows.is_empty() {
            return;
        }
        let mut producer = lock(&self.producer);
        let collected = lock(&self.shared.collected);
        let wanted = |file: FileRef| file.row(&collected.ids).filter(|id| rows.binary_search(id).is_ok());
        let mut kept = producer.contents.kept(wanted);
        drop(collected);
        // An error is returned by `close`.
        let _ = self.add(&mut producer, kept.len(), |batch| batch.shared.append(&mut kept));
    }

    /// Whether all contents read in this scan are compared with each other.
    pub(super) fn compares_all(&self) -> bool {
        lock(&self.producer).contents.compares_all()
    }

    /// Waits until all rows added so far are on disk. Returns false if a write has failed; `close` returns that error.
    pub(super) fn flush(&self) -> bool {
        self.wait(&mut lock(&self.producer));
        lock(&self.shared.collected).error.is_none()
    }

    /// Cancels the scan, whose result is then this error.
    pub(super) fn fail(&self, error: Error) {
        self.shared.fail(error);
    }

    /// Writes the remaining rows and refuses further ones, such as those of a worker that did not stop in time. Returns
    /// the first error.
    pub(super) fn close(&self) -> Result<()> {
        let mut producer = lock(&self.producer);
        producer.is_closed = true;
        self.wait(&mut producer);
        lock(&self.shared.collected).error.take().map_or(Ok(()), Err)
    }

    fn wait(&self, producer: &mut Producer) {
        // The error of a write is recorded by `Shared::record`; a panic of the writer thread is returned here.
        if let Some(Err(error)) = producer.last_write.take().map(WriteHandle::wait) {
            self.shared.fail(error.into());
        }
    }

    fn add(&self, producer: &mut Producer, rows: usize, add: impl FnOnce(&mut Batch)) -> TaskResult<()> {
        let mut collected = lock(&self.shared.collected);
        while collected.rows >= MAX_BATCH_ROWS && collected.error.is_none() {
            collected = self.shared.taken.wait(collected).unwrap_or_else(PoisonError::into_inner);
        }
        if collected.error.is_some() || producer.is_closed {
            return Err(TaskError::cancelled());
        }
        let before = collected.rows;
        collected.rows += rows;
        add(&mut collected.batch);
        let after = collected.rows;
        // Queueing may wait for the writer thread, which locks `collected`.
        drop(collected);
        if before == 0 && after > 0 {
            let (source, result) = (self.shared.clone(), self.shared.clone());
            let queued =
                self.store.catalog().queue(BATCH_TIMEOUT, move || source.take(), move |written| result.record(written));
            producer.last_write = Some(queued.inspect_err(|error| self.shared.fail(error.clone().into()))?);
        }
        if before < MIN_BATCH_ROWS
            && after >= MIN_BATCH_ROWS
            && let Some(write) = &producer.last_write
        {
            write.start();
        }
        Ok(())
    }
}

impl Shared {
    /// Takes the batch, on the writer thread. Hashes of files whose folder was not added yet are left for the next one.
    fn take(&self) -> Batch {
        let mut collected = lock(&self.collected);
        let Collected { batch, rows, early, ids, .. } = &mut *collected;
        *rows = 0;
        let mut batch = Batch { holder: Some(process::tag()), ..std::mem::take(batch) };
        // Hashes that were left are older than those of this batch.
        batch.hashes.splice(0..0, early.drain(..));
        for hash in &mut batch.hashes {
            hash.file = hash.file.row(ids).map_or(hash.file, FileRef::Row);
        }
        let listed: HashSet<u64> = batch.listings.iter().map(|(number, _)| *number).collect();
        let is_early = |hash: &mut FileHash| match hash.file {
            FileRef::Row(_) => false,
            FileRef::New(listing, _) => !listed.contains(&listing),
        };
        *early = batch.hashes.extract_if(.., is_early).collect();
        for SharedFile { file, .. } in &mut batch.shared {
            *file = file.row(ids).map_or(*file, FileRef::Row);
        }
        self.taken.notify_all();
        batch
    }

    /// Records the result of a write, on the writer thread.
    fn record(&self, written: gristmill_store::Result<Written>) -> gristmill_store::Result<()> {
        match written {
            Ok(written) => {
                add(&self.handle.changed_during_scan, written.conflicts as u64);
                add(&self.handle.counters.missing, written.missing as u64);
                add(&self.handle.counters.excluded, written.excluded as u64);
                let ids = written.ids.into_iter().filter(|(_, ids)| !ids.is_empty());
                lock(&self.collected).ids.extend(ids);
            }
            Err(error) => self.fail(error.into()),
        }
        Ok(())
    }

    fn fail(&self, error: Error) {
        lock(&self.collected).error.get_or_insert(error);
        self.taken.notify_all();
        self.handle.cancel();
    }
}
