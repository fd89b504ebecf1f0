//! What outlives a killed process besides the database under test: logs of lines, and the effects of tasks.
//!
//! A line is one write(2) to a file opened for appending: what the system has taken, no kill takes back, and
//! lines of several processes do not mix. Nothing here survives a power cut, and nothing here has to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};

/// A file of lines that several processes append to.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Log)
    }

    pub(crate) fn line(&self, line: &str) -> io::Result<()> {
        (&self.0).write_all(format!("{line}\n").as_bytes())
    }
}

/// The world outside, which a task changes: a table with one row per key, as a careful user would keep it.
pub(crate) struct Effects(Mutex<Connection>);

impl Effects {
    /// Makes the file: once, because SQLite does not wait for others when it changes how a file is written.
    pub(crate) fn create(path: &Path) -> rusqlite::Result<()> {
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.execute_batch(
            "CREATE TABLE effects (key TEXT PRIMARY KEY, task INTEGER NOT NULL, worker TEXT NOT NULL)",
        )
    }

    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let conn = Connection::open(path)?;
        conn.busy_timeout(Duration::from_secs(30))?;
        conn.pragma_update(None, "synchronous", "OFF")?;
        Ok(Effects(Mutex::new(conn)))
    }

    /// Has the effect, unless it was had before.
    pub(crate) fn have(&self, key: &str, task: i64, worker: &str) -> rusqlite::Result<()> {
        let conn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sql = "INSERT OR IGNORE INTO effects (key, task, worker) VALUES (?1, ?2, ?3)";
        conn.prepare_cached(sql)?.execute(params![key, task, worker]).map(drop)
    }

    /// Every effect, with the task that had it.
    pub(crate) fn all(&self) -> rusqlite::Result<Vec<(String, i64)>> {
        let conn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut statement = conn.prepare("SELECT key, task FROM effects ORDER BY key")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }
}
