//! The database as the writer sees it: one transaction at a time, and in it one file that may be taken back.
//!
//! Owns when something is committed. After a failure nothing is that was not before: who is told that it failed may do it
//! again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use super::control::Control;
use super::ledger;
use crate::error::{Error, Result};

/// Small files share a transaction up to this size, in a database that is new: each costs two waits for the disk.
const TOGETHER: u64 = 64 << 20;

/// How long another program may keep the database to itself.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Base<'a> {
    pub(crate) conn: Connection,
    path: PathBuf,
    control: &'a Control,
    pub(crate) is_new: bool,
    /// A savepoint is open, whose file is not complete.
    is_file_open: bool,
    uncommitted: u64,
}

impl<'a> Base<'a> {
    pub(crate) fn new(conn: Connection, path: PathBuf, is_new: bool, control: &'a Control) -> Self {
        Base { conn, path, control, is_new, is_file_open: false, uncommitted: 0 }
    }

    pub(crate) fn failed(&self, error: &rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }

    pub(crate) fn batch(&self, sql: &str) -> Result<()> {
        self.conn.execute_batch(sql).map_err(|error| self.failed(&error))
    }

    pub(crate) fn begin_file(&mut self) -> Result<()> {
        if self.conn.is_autocommit() {
            self.patiently("BEGIN IMMEDIATE")?;
            ledger::make(&self.conn).map_err(|error| self.failed(&error))?;
        }
        self.batch("SAVEPOINT file")?;
        self.is_file_open = true;
        Ok(())
    }

    pub(crate) fn take_back_file(&mut self) -> Result<()> {
        self.take_back("ROLLBACK TO file; RELEASE file")
    }

    /// SQLite may have taken all of it back already, after some errors and after an interruption.
    fn take_back(&mut self, sql: &str) -> Result<()> {
        self.is_file_open = false;
        if self.conn.is_autocommit() { Ok(()) } else { self.batch(sql) }
    }

    /// The file is complete. Into a database that people use each is a transaction of its own.
    pub(crate) fn keep_file(&mut self, bytes: u64) -> Result<()> {
        self.batch("RELEASE file")?;
        self.is_file_open = false;
        self.uncommitted += bytes;
        if !self.is_new || self.uncommitted >= TOGETHER { self.commit() } else { Ok(()) }
    }

    pub(crate) fn commit(&mut self) -> Result<()> {
        self.uncommitted = 0;
        if self.conn.is_autocommit() { Ok(()) } else { self.patiently("COMMIT") }
    }

    /// Ends what is under way: complete files stay, the one that is not goes.
    pub(crate) fn end(mut self, failed: bool) -> Result<Connection> {
        let none: Option<fn() -> bool> = None;
        // From here on nothing takes long, and nothing is to be cut off.
        let _ = self.conn.progress_handler(0, none);
        if failed && !self.is_new {
            self.take_back("ROLLBACK")?;
        } else if self.is_file_open {
            self.take_back_file()?;
        }
        self.commit()?;
        Ok(self.conn)
    }

    /// Waits for other programs, but not for ever, and not when it is to stop.
    fn patiently(&self, sql: &str) -> Result<()> {
        let is_busy = |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        let timeout = |time: Duration| self.conn.busy_timeout(time).map_err(|error| self.failed(&error));
        let started = Instant::now();
        timeout(Duration::from_millis(100))?;
        let done = loop {
            match self.conn.execute_batch(sql) {
                Err(error) if is_busy(&error) && started.elapsed() < PATIENCE => {
                    if self.control.is_stopped() {
                        return Err(Error::Stopped);
                    }
                }
                done => break done,
            }
        };
        timeout(PATIENCE)?;
        done.map_err(|error| self.failed(&error))
    }
}
