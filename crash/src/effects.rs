//! Files that survive a killed process besides the database under test: logs, and the effects of tasks.
//!
//! A line is one write(2) to a file opened for appending, so a kill after the call does not lose it, and lines of
//! several processes do not mix. A power cut may lose them; no run simulates one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};

/// A log file that several processes append lines to.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Log)
    }

    pub(crate) fn append(&self, line: &str) -> io::Result<()> {
        (&self.0).write_all(format!("{line}\n").as_bytes())
    }
}

/// The external state that tasks change: a table with one row per key, as an idempotent handler would keep it.
pub(crate) struct Effects(Mutex<Connection>);

impl Effects {
    /// Creates the file. Called once, because SQLite does not wait for locks when it changes the journal mode.
    pub(crate) fn create(path: &Path) -> rusqlite::Result<()> {
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.execute_batch("CREATE TABLE effects (key TEXT PRIMARY KEY, task INTEGER NOT NULL, worker TEXT NOT NULL)")
    }

    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let conn = Connection::open(path)?;
        conn.busy_timeout(Duration::from_secs(30))?;
        conn.pragma_update(None, "synchronous", "OFF")?;
        Ok(Effects(Mutex::new(conn)))
    }

    /// Inserts the effect unless it exists.
    pub(crate) fn apply(&self, key: &str, task: i64, worker: &str) -> rusqlite::Result<()> {
        let conn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sql = "INSERT OR IGNORE INTO effects (key, task, worker) VALUES (?1, ?2, ?3)";
        conn.prepare_cached(sql)?.execute(params![key, task, worker]).map(drop)
    }

    /// Returns all effects, each with the task that applied it first.
    pub(crate) fn all(&self) -> rusqlite::Result<Vec<(String, i64)>> {
        let conn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut statement = conn.prepare("SELECT key, task FROM effects ORDER BY key")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }
}
