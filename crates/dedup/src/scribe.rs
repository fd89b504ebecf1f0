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
const ROOM: usize = 1_024;

/// So many rows are committed together. Each commit writes every page it touched once, and rows of a few hundred
/// folders touch pages all over the index of paths: with a quarter of this, twice as much was written.
const BATCH: usize = 32_768;

/// With so many it is not waited for more.
const ENOUGH: usize = 2_048;

/// A batch that is small waits so long for more: a sync of the disk for each file would be most of the work.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often the scan says that it is alive.
const BEAT: Duration = Duration::from_secs(10);

/// Something to be written.
pub(crate) enum Note {
    /// With the number by which readings of its new files refer to it.
    Listing(u64, Box<Listing>),
    Readings(Vec<FileHash>),
    /// Files that were read before and have a duplicate.
    Shared(Vec<i64>),
    /// The first files of contents that turned out to be shared: at the end and together, because each is on a page
    /// of its own.
    ShareFirsts,
    /// Told when all before is on disk.
    Flush(mpsc::Sender<()>),
    /// Nothing more is taken. A worker that hangs may hold on to the channel for ever.
    End,
}

/// Takes notes for the scribe. Clones share the channel.
pub(crate) type Notes = SyncSender<Note>;

pub(crate) struct Scribe {
    pub(crate) notes: Notes,
    thread: JoinHandle<Result<u64>>,
    /// Not all contents could be remembered.
    overflowed: Arc<AtomicBool>,
    /// How many files were found to be gone.
    pub(crate) missing: Arc<AtomicU64>,
    /// How many are left out by this scan's filters, and were known.
    pub(crate) excluded: Arc<AtomicU64>,
}

impl Scribe {
    /// Begins to write. When that fails, the scan is told to stop.
    pub(crate) fn start(
        store: &Store,
        control: &Arc<ScanHandle>,
        scans: Vec<i64>,
        holder: String,
        every: bool,
    ) -> Result<Self> {
        let (notes, inbox) = mpsc::sync_channel(ROOM);
        let overflowed = Arc::<AtomicBool>::default();
        let missing = Arc::<AtomicU64>::default();
        let excluded = Arc::<AtomicU64>::default();
        let desk = Desk {
            store: store.clone(),
            control: control.clone(),
            scans,
            holder,
            inbox,
            every,
            beaten: Instant::now(),
            missing: missing.clone(),
            excluded: excluded.clone(),
            ids: Ids::new(),
            contents: HashMap::new(),
            firsts: Vec::new(),
            waiting: Vec::new(),
            overflowed: overflowed.clone(),
        };
        let control = control.clone();
        let thread = std::thread::Builder::new()
            .name("scribe".to_owned())
            .spawn(move || desk.serve().inspect_err(|_| control.cancel()));
        let thread = thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
        Ok(Scribe { notes, thread, overflowed, missing, excluded })
    }

    /// Waits until everything noted so far is on disk. False when writing has failed; `end` says why.
    pub(crate) fn flush(&self) -> bool {
        let (done, is_done) = mpsc::channel();
        self.notes.send(Note::Flush(done)).is_ok() && is_done.recv().is_ok()
    }

    /// Whether all contents that were read in this scan are compared with each other.
    pub(crate) fn compares_all(&self) -> bool {
        !self.overflowed.load(Ordering::Relaxed)
    }

    /// Writes what is left. Says how many files were found to be gone.
    pub(crate) fn end(self) -> Result<u64> {
        // It may have ended by itself.
        let _ = self.notes.send(Note::End);
        self.thread.join().unwrap_or_else(|_| Err(Error::System("the scribe panicked".to_owned())))
    }
}

struct Desk {
    store: Store,
    control: Arc<ScanHandle>,
    scans: Vec<i64>,
    holder: String,
    inbox: Receiver<Note>,
    /// Every content counts as shared.
    every: bool,
    beaten: Instant,
    missing: Arc<AtomicU64>,
    excluded: Arc<AtomicU64>,
    /// Rows of files that are new in this scan.
    ids: Ids,
    /// The first file of each content that was read in this scan, by the beginning of its hash, until it is known to
    /// be shared. Two that only begin alike count as shared, too; a group needs the same hash.
    contents: HashMap<u64, Option<FileRef>>,
    firsts: Vec<FileRef>,
    /// Readings of files whose folder is still being looked at.
    waiting: Vec<FileHash>,
    overflowed: Arc<AtomicBool>,
}

/// So many contents are remembered; what they miss is found at the end.
const MOST_CONTENTS: usize = 4_000_000;

/// What is committed together.
#[derive(Default)]
struct Gathered {
    batch: Batch,
    weight: usize,
    flushes: Vec<mpsc::Sender<()>>,
    /// That was all.
    ends: bool,
}

impl Desk {
    fn serve(mut self) -> Result<u64> {
        loop {
            let mut gathered = Gathered::default();
            let ended = self.gather(&mut gathered);
            self.commit(gathered)?;
            if ended {
                return Ok(self.missing.load(Ordering::Relaxed));
            }
            if self.beaten.elapsed() >= BEAT {
                self.store.scans().heartbeat(self.scans.clone(), &self.holder)?;
                self.beaten = Instant::now();
            }
        }
    }

    /// Waits for something, takes what there is, and waits a moment for more when that is little. True when nobody has
    /// anything more to note.
    fn gather(&mut self, gathered: &mut Gathered) -> bool {
        let mut until = Instant::now() + BEAT;
        loop {
            // Enough to be worth a commit: while that is on its way the next gathers by itself.
            let wait = match gathered.weight {
                ENOUGH.. => Duration::ZERO,
                _ => until.saturating_duration_since(Instant::now()),
            };
            match self.inbox.recv_timeout(wait) {
                Ok(note) => {
                    if gathered.weight == 0 {
                        until = Instant::now() + PATIENCE;
                    }
                    if self.add(gathered, note) {
                        return gathered.ends;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// True when all is to be committed now.
    fn add(&mut self, gathered: &mut Gathered, note: Note) -> bool {
        match note {
            Note::Listing(number, mut listing) => {
                gathered.weight += listing.weight();
                for (place, digest) in &mut listing.contents {
                    let shared = self.shares(FileRef::New(number, *place), &digest.hash);
                    digest.shared = shared;
                }
                gathered.batch.listings.push((number, *listing));
            }
            Note::Readings(readings) => {
                gathered.weight += readings.len();
                for mut reading in readings {
                    if let ReadResult::Content(_, hash) = &reading.result {
                        reading.shared = self.shares(reading.file, hash);
                    }
                    gathered.batch.hashes.push(reading);
                }
            }
            Note::Shared(ids) => {
                gathered.weight += ids.len();
                gathered.batch.shared.extend(ids.into_iter().map(FileRef::Row));
            }
            Note::ShareFirsts => {
                gathered.weight += self.firsts.len();
                gathered.batch.shared.append(&mut self.firsts);
            }
            Note::Flush(done) => {
                gathered.flushes.push(done);
                return true;
            }
            Note::End => {
                gathered.ends = true;
                return true;
            }
        }
        gathered.weight >= BATCH
    }

    /// Whether a content was seen before, or counts as shared anyway. Its first file is noted for the end.
    fn shares(&mut self, file: FileRef, hash: &[u8]) -> bool {
        if self.every {
            return true;
        }
        let is_full = self.contents.len() >= MOST_CONTENTS;
        match self.contents.entry(prefix(hash)) {
            Entry::Occupied(mut first) => {
                self.firsts.extend(first.get_mut().take());
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
    fn set_aside(&mut self, batch: &mut Batch) {
        // Those that waited came first.
        batch.hashes.splice(0..0, self.waiting.drain(..));
        for reading in &mut batch.hashes {
            reading.file = reading.file.row(&self.ids).map_or(reading.file, FileRef::Row);
        }
        let written: HashSet<u64> = batch.listings.iter().map(|(number, _)| *number).collect();
        let is_early = |reading: &mut FileHash| match reading.file {
            FileRef::Row(_) => false,
            FileRef::New(listing, _) => !written.contains(&listing),
        };
        self.waiting = batch.hashes.extract_if(.., is_early).collect();
        for file in &mut batch.shared {
            *file = file.row(&self.ids).map_or(*file, FileRef::Row);
        }
    }

    fn commit(&mut self, gathered: Gathered) -> Result<()> {
        let Gathered { mut batch, weight, flushes, .. } = gathered;
        if weight > 0 {
            self.set_aside(&mut batch);
            let written = self.store.catalog().write(batch)?;
            self.control.surprises.fetch_add(written.conflicts as u64, Ordering::Relaxed);
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
