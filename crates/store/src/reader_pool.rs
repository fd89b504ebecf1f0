//! A few connections that can only read.
//!
//! Owns who has which. A reader never waits for the writer, and never makes it wait.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rusqlite::Connection;

use crate::db::DbFile;
use crate::error::Result;

/// More would only wait for the disk together.
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

    /// Lends a connection to `body`; it comes back even if that panics.
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
