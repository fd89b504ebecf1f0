//! Waits for changes of the database file, by this process or by others.
//!
//! Owns the polling for other processes: `PRAGMA data_version` changes with every commit of another connection, and
//! reading it takes a few microseconds and no lock. Writes of this process notify waiting threads.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::Store;
use crate::error::Result;

/// Interval at which commits of other processes are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for changes of the database file.
pub struct ChangeWatcher {
    store: Store,
    conn: Connection,
    version: i64,
    generation: u64,
}

impl ChangeWatcher {
    pub(crate) fn new(store: &Store) -> Result<Self> {
        store.0.opened_files.check_all()?;
        let conn = store.0.file.open_reader()?;
        let mut watcher = ChangeWatcher { store: store.clone(), conn, version: 0, generation: 0 };
        watcher.poll()?;
        Ok(watcher)
    }

    /// Waits until there is a write since the last call, or `limit` has passed. Returns whether there was a write.
    pub fn wait(&mut self, limit: Duration) -> Result<bool> {
        let end = Instant::now().checked_add(limit);
        loop {
            if self.poll()? {
                return Ok(true);
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            self.store.0.notifier.wait(self.generation, left.min(POLL_INTERVAL));
        }
    }

    /// Makes a pending or the next [`wait`](ChangeWatcher::wait) on this store return.
    pub fn wake(store: &Store) {
        store.0.notifier.notify();
    }

    /// Returns whether there was a write since the last call.
    fn poll(&mut self) -> Result<bool> {
        self.store.0.opened_files.check_all()?;
        let version = self.conn.pragma_query_value(None, "data_version", |row| row.get(0));
        let version = version.map_err(|error| self.store.0.file.error(&error))?;
        let generation = self.store.0.notifier.generation();
        let has_changed = (version, generation) != (self.version, self.generation);
        (self.version, self.generation) = (version, generation);
        Ok(has_changed)
    }
}

impl std::fmt::Debug for ChangeWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeWatcher").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Counts notifications, so that one between a check and a wait is not missed.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    generation: Mutex<u64>,
    changed: Condvar,
}

impl Notifier {
    pub(crate) fn notify(&self) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    pub(crate) fn generation(&self) -> u64 {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the generation exceeds `seen` or `limit` has passed.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) {
        let generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(generation, limit, |generation| *generation <= seen));
    }
}
