//! The transaction of an import, with a savepoint for the current file.
//!
//! Owns the commits. A failed import leaves the database unchanged, so it can be retried. A commit to a database file
//! that was deleted or replaced is an error. SQLite itself rolls back a transaction after some errors; then nothing
//! more is written, because each statement would be committed on its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use super::handle::ImportHandle;
use super::import_log::{self, Record};
use super::output_db::OutputDb;
use crate::error::{Error, Result};
use crate::file_identity::FileIdentity;

/// In a new database, files share a transaction up to this many bytes, because each commit needs two fsyncs.
const MAX_GROUP_BYTES: u64 = 64 << 20;

/// Maximum wait for another program that has locked the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct ImportTx<'a> {
    pub(crate) conn: Connection,
    path: PathBuf,
    identity: FileIdentity,
    handle: &'a ImportHandle,
    pub(crate) is_new: bool,
    /// Whether this type has begun a transaction and not ended it.
    has_begun: bool,
    /// Whether the savepoint of a file is open.
    in_file: bool,
    uncommitted: u64,
}

impl<'a> ImportTx<'a> {
    pub(crate) fn new(conn: Connection, output: &OutputDb, handle: &'a ImportHandle) -> Self {
        let (path, identity, is_new) = (output.target().to_owned(), output.identity(), output.is_new());
        ImportTx { conn, path, identity, handle, is_new, has_begun: false, in_file: false, uncommitted: 0 }
    }

    /// Fails if the database file was deleted or replaced. Makes one system call.
    pub(crate) fn check(&self) -> Result<()> {
        self.identity.check()
    }

    pub(crate) fn failed(&self, error: &rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }

    pub(crate) fn execute(&self, sql: &str) -> Result<()> {
        self.conn.execute_batch(sql).map_err(|error| self.failed(&error))
    }

    /// Fails if the transaction is no longer open.
    fn check_transaction(&self) -> Result<()> {
        if self.has_begun && !self.conn.is_autocommit() {
            return Ok(());
        }
        let path = self.path.display();
        Err(Error::System(format!("{path}: SQLite rolled back the transaction; none of its rows were kept")))
    }

    pub(crate) fn begin_file(&mut self) -> Result<()> {
        self.check()?;
        if !self.has_begun {
            self.retry_while_busy("BEGIN IMMEDIATE")?;
            self.has_begun = true;
            import_log::create(&self.conn).map_err(|error| self.failed(&error))?;
        }
        self.check_transaction()?;
        self.execute("SAVEPOINT file")?;
        self.in_file = true;
        Ok(())
    }

    /// Writes the record of a file, in the transaction that has its rows.
    pub(crate) fn write_record(&self, record: &Record<'_>) -> Result<()> {
        self.check_transaction()?;
        import_log::write(&self.conn, record).map_err(|error| self.failed(&error))
    }

    pub(crate) fn rollback_file(&mut self) -> Result<()> {
        self.check_transaction()?;
        self.in_file = false;
        self.execute("ROLLBACK TO file; RELEASE file")
    }

    /// Ends a complete file. In an existing database each file is its own transaction.
    pub(crate) fn commit_file(&mut self, bytes: u64) -> Result<()> {
        self.check_transaction()?;
        self.execute("RELEASE file")?;
        self.in_file = false;
        self.uncommitted += bytes;
        if !self.is_new || self.uncommitted >= MAX_GROUP_BYTES { self.commit() } else { Ok(()) }
    }

    pub(crate) fn commit(&mut self) -> Result<()> {
        self.uncommitted = 0;
        if self.has_begun {
            self.check_transaction()?;
            self.check()?;
            self.retry_while_busy("COMMIT")?;
            self.has_begun = false;
        }
        // The database file may have been deleted during the commit.
        self.check()
    }

    /// Rolls back the transaction, unless SQLite has done it already.
    fn rollback(&mut self) -> Result<()> {
        (self.has_begun, self.in_file) = (false, false);
        if self.conn.is_autocommit() { Ok(()) } else { self.execute("ROLLBACK") }
    }

    /// Ends the transaction: complete files are kept, an incomplete one is rolled back.
    pub(crate) fn end(mut self, failed: bool) -> Result<Connection> {
        let none: Option<fn() -> bool> = None;
        // The rest is short and must not be cancelled.
        let _ = self.conn.progress_handler(0, none);
        let ended = self.finish(failed);
        if ended.is_err() {
            // The first error is the one to report.
            let _ = self.rollback();
        }
        self.identity.before_close(&self.conn);
        ended.map(|()| self.conn)
    }

    fn finish(&mut self, failed: bool) -> Result<()> {
        if failed && (!self.is_new || self.conn.is_autocommit()) {
            self.rollback()?;
        } else if self.in_file {
            self.rollback_file()?;
        }
        self.commit()
    }

    /// Retries while the database is locked, up to `BUSY_TIMEOUT` or until the import is cancelled.
    fn retry_while_busy(&self, sql: &str) -> Result<()> {
        let is_busy = |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        let timeout = |time: Duration| self.conn.busy_timeout(time).map_err(|error| self.failed(&error));
        let started = Instant::now();
        timeout(Duration::from_millis(100))?;
        let done = loop {
            match self.conn.execute_batch(sql) {
                Err(error) if is_busy(&error) && started.elapsed() < BUSY_TIMEOUT => {
                    if self.handle.is_cancelled() {
                        return Err(Error::Cancelled);
                    }
                }
                done => break done,
            }
        };
        timeout(BUSY_TIMEOUT)?;
        done.map_err(|error| self.failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::failed_file;
    use super::*;

    fn write_record(tx: &mut ImportTx<'_>) -> Result<()> {
        tx.write_record(&Record {
            file: &failed_file(Path::new("t.jsonl"), "why"),
            fingerprint: None,
            mode: "create",
            options: "",
            columns: None,
            whole_numbers: None,
            table_rows: None,
            started: jiff::Timestamp::UNIX_EPOCH,
        })
    }

    /// Number of tables after an event that follows a rollback by SQLite, during or after a file that created a table.
    fn tables_after(is_new: bool, during_file: bool, event: impl FnOnce(ImportTx<'_>)) -> i64 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        if !is_new {
            Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (a); DROP TABLE t").unwrap();
        }
        let handle = Arc::new(ImportHandle::default());
        let output = OutputDb::open(&path, false).unwrap();
        let mut tx = ImportTx::new(output.connect(&handle).unwrap(), &output, &handle);
        tx.begin_file().unwrap();
        tx.execute("CREATE TABLE t (a)").unwrap();
        match (during_file, is_new) {
            (true, _) => {}
            (false, true) => tx.commit_file(1).unwrap(),
            (false, false) => tx.rollback_file().unwrap(),
        }
        tx.execute("ROLLBACK").unwrap();
        event(tx);
        let file = if is_new { folder.path().join(".x.db.import") } else { path };
        let conn = Connection::open(file).unwrap();
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn nothing_is_written_after_sqlite_has_rolled_back_the_transaction() {
        type Event = fn(&mut ImportTx<'_>) -> Result<()>;
        let events: [(&str, Event); 5] = [
            ("begin_file", |tx| tx.begin_file()),
            ("write_record", write_record),
            ("rollback_file", |tx| tx.rollback_file()),
            ("commit_file", |tx| tx.commit_file(1)),
            ("commit", |tx| tx.commit()),
        ];
        for (is_new, in_file) in [(false, false), (false, true), (true, false), (true, true)] {
            for (name, event) in events {
                let what = format!("{name}, is_new: {is_new}, in_file: {in_file}");
                let tables = tables_after(is_new, in_file, |mut tx| {
                    let error = event(&mut tx).unwrap_err().to_string();
                    assert!(error.contains("SQLite rolled back the transaction"), "{what}: {error}");
                    tx.end(true).unwrap();
                });
                assert_eq!(tables, 0, "{what}");
            }
            // Files that were counted as loaded are lost, so the import has failed.
            let tables = tables_after(is_new, in_file, |tx| assert!(tx.end(false).is_err()));
            assert_eq!(tables, 0, "is_new: {is_new}, in_file: {in_file}");
        }
    }
}
