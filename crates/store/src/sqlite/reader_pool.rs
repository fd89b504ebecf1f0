//! A pool of read-only connections.
//!
//! Owns which caller uses which connection. In WAL mode readers and the writer do not block each other.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rusqlite::Connection;

use crate::error::Result;
use crate::sqlite::db::DbFile;

/// Maximum number of connections; more would only compete for the disk.
const MAX_READERS: usize = 4;

pub(crate) struct ReaderPool {
    file: Arc<DbFile>,
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<Connection>,
    open: usize,
}

impl ReaderPool {
    pub(crate) fn new(file: Arc<DbFile>) -> Self {
        ReaderPool { file, state: Mutex::default(), returned: Condvar::new() }
    }

    /// Runs `body` with a connection, which returns to the pool even if `body` panics.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let guard = ReaderGuard { conn: Some(self.checkout()?), pool: self };
        guard.conn.as_ref().map_or_else(|| Err(crate::Error::Closed), body)
    }

    fn checkout(&self) -> Result<Connection> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(conn) = state.idle.pop() {
                return Ok(conn);
            }
            if state.open < MAX_READERS {
                state.open += 1;
                drop(state);
                return self.file.open_reader().inspect_err(|_| self.release_slot());
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn release_slot(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open -= 1;
        self.returned.notify_one();
    }
}

struct ReaderGuard<'a> {
    conn: Option<Connection>,
    pool: &'a ReaderPool,
}

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.pool.state.lock().unwrap_or_else(PoisonError::into_inner).idle.push(conn);
            self.pool.returned.notify_one();
        }
    }
}
