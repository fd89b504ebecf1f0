//! The one who writes the catalog while a scan runs.
//!
//! Owns the thread between workers and the store. What workers find comes through a bounded channel, which makes
//! them wait when the disk is slower than they are; what has gathered is committed together. A scan that is killed
//! loses what was not committed yet, a fraction of a second of work.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gristmill_store::Store;
use gristmill_store::catalog::{Hashed, Listing};

use crate::error::{Error, Result};
use crate::progress::Control;

/// So many notes may wait.
const ROOM: usize = 64;

/// So many rows are committed together. More took no less time, and memory.
const BATCH: usize = 8_192;

/// A batch that is not full waits so long for more: a sync of the disk for each file would be most of the work.
const PATIENCE: Duration = Duration::from_millis(100);

/// How often the scan says that it is alive.
const BEAT: Duration = Duration::from_secs(10);

/// Something to be written.
pub(crate) enum Note {
    Listing(Listing),
    Hashed(Vec<Hashed>),
    /// Told when all before is on disk.
    Flush(mpsc::Sender<()>),
}

/// Takes notes for the scribe. Clones share the channel.
pub(crate) type Notes = SyncSender<Note>;

pub(crate) struct Scribe {
    pub(crate) notes: Notes,
    thread: JoinHandle<Result<u64>>,
}

impl Scribe {
    /// Begins to write. When that fails, the scan is told to stop.
    pub(crate) fn start(
        store: &Store,
        control: &Arc<Control>,
        scans: Vec<i64>,
        holder: String,
    ) -> Result<Self> {
        let (notes, inbox) = mpsc::sync_channel(ROOM);
        let desk = Desk { store: store.clone(), scans, holder, inbox, beaten: Instant::now(), missing: 0 };
        let control = control.clone();
        let thread = std::thread::Builder::new()
            .name("scribe".to_owned())
            .spawn(move || desk.serve().inspect_err(|_| control.stop()));
        let thread = thread.map_err(|error| Error::System(format!("cannot start a thread: {error}")))?;
        Ok(Scribe { notes, thread })
    }

    /// Waits until everything noted so far is on disk. False when writing has failed; `end` says why.
    pub(crate) fn flush(&self) -> bool {
        let (done, is_done) = mpsc::channel();
        self.notes.send(Note::Flush(done)).is_ok() && is_done.recv().is_ok()
    }

    /// Writes what is left. Says how many files were found to be gone.
    pub(crate) fn end(self) -> Result<u64> {
        drop(self.notes);
        self.thread.join().unwrap_or_else(|_| Err(Error::System("the scribe panicked".to_owned())))
    }
}

struct Desk {
    store: Store,
    scans: Vec<i64>,
    holder: String,
    inbox: Receiver<Note>,
    beaten: Instant,
    missing: u64,
}

/// What is committed together.
#[derive(Default)]
struct Batch {
    listings: Vec<Listing>,
    hashed: Vec<Hashed>,
    weight: usize,
    flushes: Vec<mpsc::Sender<()>>,
}

impl Desk {
    fn serve(mut self) -> Result<u64> {
        loop {
            let mut batch = Batch::default();
            let ended = self.gather(&mut batch);
            self.commit(batch)?;
            if ended {
                return Ok(self.missing);
            }
            if self.beaten.elapsed() >= BEAT {
                self.store.scans().beat(self.scans.clone(), &self.holder)?;
                self.beaten = Instant::now();
            }
        }
    }

    /// Waits for something, and a moment for more. True when nobody has anything more to note.
    fn gather(&self, batch: &mut Batch) -> bool {
        let mut until = Instant::now() + BEAT;
        loop {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(note) => {
                    if batch.weight == 0 {
                        until = Instant::now() + PATIENCE;
                    }
                    if batch.add(note) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    fn commit(&mut self, batch: Batch) -> Result<()> {
        if !batch.listings.is_empty() {
            self.missing += self.store.catalog().record(batch.listings)? as u64;
        }
        if !batch.hashed.is_empty() {
            self.missing += self.store.catalog().settle(batch.hashed)? as u64;
        }
        for flush in batch.flushes {
            // Whoever waited may have gone.
            let _ = flush.send(());
        }
        Ok(())
    }
}

impl Batch {
    /// True when it is to be committed now.
    fn add(&mut self, note: Note) -> bool {
        match note {
            Note::Listing(listing) => {
                self.weight += listing.weight();
                self.listings.push(listing);
            }
            Note::Hashed(hashed) => {
                self.weight += hashed.len();
                self.hashed.extend(hashed);
            }
            Note::Flush(done) => {
                self.flushes.push(done);
                return true;
            }
        }
        self.weight >= BATCH
    }
}
