//! A user's database: opens it, and begins and ends its transactions.
//!
//! Imports and sinks write through it. A commit to a file that was deleted or replaced is an error, because the rows
//! would be lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_pool::CancelToken;
use gristmill_store::sqlite::{FileState, OpenedFiles, retry_while_busy};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{Error, Result};
use crate::sql::Sql;

/// Maximum wait for another program that has locked the database.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between attempts to get a lock; cancellation is noticed between them.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// SQLite checks for cancellation after this many of its virtual machine steps: every few milliseconds.
const CANCEL_CHECK_STEPS: i32 = 100_000;

/// Opens a connection that waits for locks, and whose statements end when `stop` is cancelled.
pub(crate) fn connect(path: &Path, mode: OpenFlags, stop: &CancelToken) -> Sql<Connection> {
    let mut conn = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(64);
    let stop = stop.clone();
    conn.progress_handler(CANCEL_CHECK_STEPS, Some(move || stop.is_cancelled()))?;
    Ok(conn)
}

/// Fails if the file is not a database.
pub(crate) fn check_format(conn: &Connection) -> Sql<()> {
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
}

/// Opens an existing database for reading.
pub(crate) fn read_only(path: &Path, stop: &CancelToken) -> Result<Connection> {
    let found = std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
    if !found.is_file() {
        return Err(Error::path(path, "is not a regular file; name a database"));
    }
    let open = || {
        let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, stop)?;
        check_format(&conn).map(|()| conn)
    };
    open().map_err(|error| Error::sqlite(path, error))
}

/// Whether an attempt failed because another program has locked the database.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Identity of an open database file; detects that its path leads to another file or to none.
#[derive(Clone, Debug)]
pub struct FileIdentity(OpenedFiles);

impl FileIdentity {
    /// Fails with [`Error::Deleted`] or [`Error::Replaced`] if the path no longer leads to the opened file. Makes one
    /// system call.
    pub fn check(&self) -> Result<()> {
        match self.0.state() {
            FileState::Unchanged => Ok(()),
            FileState::Deleted => Err(Error::Deleted(self.0.path().to_owned())),
            FileState::Replaced => Err(Error::Replaced(self.0.path().to_owned())),
        }
    }
}

/// A writable connection.
pub(crate) struct Database {
    pub(crate) conn: Connection,
    /// Path for messages; a new database is built in a file with another name.
    path: PathBuf,
    identity: FileIdentity,
    stop: CancelToken,
    pub(crate) busy_timeout: Duration,
}

impl Database {
    /// `file` is the file that the connection has opened and read.
    pub(crate) fn new(conn: Connection, path: &Path, file: &Path, stop: &CancelToken) -> Self {
        let (path, identity, stop) = (path.to_owned(), FileIdentity(OpenedFiles::record(file, true)), stop.clone());
        Database { conn, path, identity, stop, busy_timeout: BUSY_TIMEOUT }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> &FileIdentity {
        &self.identity
    }

    pub(crate) fn failed(&self, error: rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }

    /// Runs a query or a function on the connection.
    pub(crate) fn with<T>(&self, run: impl FnOnce(&Connection) -> Sql<T>) -> Result<T> {
        run(&self.conn).map_err(|error| self.failed(error))
    }

    pub(crate) fn execute(&self, sql: &str) -> Result<()> {
        self.with(|conn| conn.execute_batch(sql))
    }

    /// Fails if the database file was deleted or replaced. Makes one system call.
    pub(crate) fn check(&self) -> Result<()> {
        self.identity.check()
    }

    /// Whether a transaction is open. SQLite itself ends it after some errors, and a trigger can end it.
    pub(crate) fn is_in_transaction(&self) -> bool {
        !self.conn.is_autocommit()
    }

    pub(crate) fn begin(&self) -> Result<()> {
        self.check()?;
        self.wait_for_lock("BEGIN IMMEDIATE")
    }

    pub(crate) fn commit(&self) -> Result<()> {
        self.check()?;
        self.wait_for_lock("COMMIT")?;
        // The file may have been deleted during the commit.
        self.check()
    }

    /// Rolls back the transaction, unless SQLite has done it already.
    pub(crate) fn rollback(&self) -> Result<()> {
        if self.is_in_transaction() { self.execute("ROLLBACK") } else { Ok(()) }
    }

    /// Runs a statement that needs a lock, up to the busy timeout or until the operation is cancelled.
    fn wait_for_lock(&self, sql: &str) -> Result<()> {
        let timeout = |time: Duration| self.with(|conn| conn.busy_timeout(time));
        timeout(RETRY_INTERVAL.min(self.busy_timeout))?;
        let done = retry_while_busy(self.busy_timeout, &self.stop, is_busy, || self.conn.execute_batch(sql));
        timeout(self.busy_timeout)?;
        match done.map_err(|error| self.failed(error)) {
            Err(Error::Busy(_)) if self.stop.is_cancelled() => Err(Error::Cancelled),
            done => done,
        }
    }

    /// Moves the WAL away if the file was replaced. Called before the connection is closed.
    pub(crate) fn before_close(&self) {
        self.identity.0.before_close(&self.conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, stop: &CancelToken) -> Database {
        let mode = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let conn = connect(path, mode, stop).unwrap();
        conn.execute_batch("CREATE TABLE IF NOT EXISTS t (a)").unwrap();
        Database::new(conn, path, path, stop)
    }

    #[test]
    fn transaction_waits_for_the_lock_until_the_timeout_or_cancellation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        for (locked, cancelled, expected) in
            [(false, false, "begun"), (false, true, "begun"), (true, false, "busy"), (true, true, "cancelled")]
        {
            let stop = CancelToken::new();
            let mut db = open(&path, &stop);
            let other = Connection::open(&path).unwrap();
            other.execute_batch(if locked { "BEGIN IMMEDIATE" } else { "" }).unwrap();
            if cancelled {
                stop.cancel();
            } else {
                db.busy_timeout = Duration::from_millis(20);
            }
            let begun = match db.begin() {
                Ok(()) => "begun",
                Err(Error::Busy(_)) => "busy",
                Err(Error::Cancelled) => "cancelled",
                Err(error) => panic!("{error}"),
            };
            assert_eq!(begun, expected, "locked: {locked}, cancelled: {cancelled}");
            assert_eq!(db.is_in_transaction(), begun == "begun");
            db.rollback().unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn commit_fails_when_the_file_was_deleted_or_replaced_after_the_begin() {
        for replaced in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.db");
            let db = open(&path, &CancelToken::new());
            db.begin().unwrap();
            db.execute("INSERT INTO t VALUES (1)").unwrap();
            std::fs::rename(&path, folder.path().join("moved.db")).unwrap();
            if replaced {
                std::fs::write(&path, "").unwrap();
            }
            match db.commit() {
                Err(Error::Deleted(_)) => assert!(!replaced),
                Err(Error::Replaced(_)) => assert!(replaced),
                other => panic!("{other:?}"),
            }
            assert!(db.is_in_transaction(), "nothing was committed");
        }
    }
}
