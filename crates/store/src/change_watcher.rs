//! Waiting until there may be work, whoever brings it.
//!
//! Owns the polling for other processes: SQLite keeps a number that changes with every commit of another
//! connection, and asking for it costs a few microseconds and no lock. Writes of this process ring a bell.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::Store;
use crate::error::Result;

/// How often the file is asked. Work that another process brings waits at most this long, and some.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Sees when the file changes.
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
        let mut watch = ChangeWatcher { store: store.clone(), conn, version: 0, generation: 0 };
        watch.poll()?;
        Ok(watch)
    }

    /// Waits until something was written since the last look, or `limit` is over. Says which.
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

    /// Makes a [`wait`](Watch::wait) of this store return: somebody has something to say to whoever waits.
    pub fn wake(store: &Store) {
        store.0.notifier.notify();
    }

    /// Whether something happened since the last look.
    fn poll(&mut self) -> Result<bool> {
        self.store.0.opened_files.check_all()?;
        let version = self.conn.pragma_query_value(None, "data_version", |row| row.get(0));
        let version = version.map_err(|error| self.store.0.file.error(&error))?;
        let generation = self.store.0.notifier.generation();
        let seen = (version, generation) != (self.version, self.generation);
        (self.version, self.generation) = (version, generation);
        Ok(seen)
    }
}

impl std::fmt::Debug for ChangeWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("store", &self.store).finish_non_exhaustive()
    }
}
