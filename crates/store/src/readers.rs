//! A few connections that can only read.
//!
//! Owns who has which. A reader never waits for the writer, and never makes it wait.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rusqlite::Connection;

use crate::db::File;
use crate::error::Result;

/// More would only wait for the disk together.
const MOST: usize = 4;

pub(crate) struct Readers {
    file: Arc<File>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    open: usize,
}

impl Readers {
    pub(crate) fn new(file: Arc<File>) -> Self {
        Readers { file, state: Mutex::default(), returned: Condvar::new() }
    }

    /// Lends a connection to `body`; it comes back even if that panics.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let lent = Lent { conn: Some(self.take()?), readers: self };
        lent.conn.as_ref().map_or_else(|| Err(crate::Error::Closed), body)
    }

    fn take(&self) -> Result<Connection> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(conn) = state.idle.pop() {
                return Ok(conn);
            }
            if state.open < MOST {
                state.open += 1;
                drop(state);
                return self.file.open_reader().inspect_err(|_| self.gone());
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn gone(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open -= 1;
        self.returned.notify_one();
    }
}

struct Lent<'a> {
    conn: Option<Connection>,
    readers: &'a Readers,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.readers.state.lock().unwrap_or_else(PoisonError::into_inner).idle.push(conn);
            self.readers.returned.notify_one();
        }
    }
}
