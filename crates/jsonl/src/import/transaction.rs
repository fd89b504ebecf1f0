//! The transaction of an import, with a savepoint for the current file.
//!
//! Owns the commits. A failed import leaves the database unchanged, so it can be retried. A commit to a database file
//! that was deleted or replaced is an error. SQLite itself rolls back a transaction after some errors; then nothing
//! more is written, because each statement would be committed on its own.

use rusqlite::Connection;

use super::import_log::{self, Record};
use crate::database::Database;
use crate::error::{Error, Result};

/// In a new database, files share a transaction up to this many bytes, because each commit needs two fsyncs.
const MAX_GROUP_BYTES: u64 = 64 << 20;

pub(crate) struct ImportTx {
    pub(crate) db: Database,
    pub(crate) is_new: bool,
    /// Whether this type has begun a transaction and not ended it.
    has_begun: bool,
    /// Whether the savepoint of a file is open.
    in_file: bool,
    uncommitted: u64,
}

impl ImportTx {
    pub(crate) fn new(db: Database, is_new: bool) -> Self {
        ImportTx { db, is_new, has_begun: false, in_file: false, uncommitted: 0 }
    }

    /// Fails if the transaction is no longer open.
    fn check_transaction(&self) -> Result<()> {
        match self.has_begun && self.db.is_in_transaction() {
            true => Ok(()),
            false => Err(Error::RolledBack(self.db.path().to_owned())),
        }
    }

    pub(crate) fn begin_file(&mut self) -> Result<()> {
        self.db.check()?;
        if !self.has_begun {
            self.db.begin()?;
            self.has_begun = true;
            self.db.with(import_log::create)?;
        }
        self.check_transaction()?;
        self.db.execute("SAVEPOINT file")?;
        self.in_file = true;
        Ok(())
    }

    /// Writes the record of a file, in the transaction that has its rows.
    pub(crate) fn write_record(&self, record: &Record<'_>) -> Result<()> {
        self.check_transaction()?;
        self.db.with(|conn| import_log::write(conn, record))
    }

    pub(crate) fn rollback_file(&mut self) -> Result<()> {
        self.check_transaction()?;
        self.in_file = false;
        self.db.execute("ROLLBACK TO file; RELEASE file")
    }

    /// Ends a complete file. In an existing database each file is its own transaction.
    pub(crate) fn commit_file(&mut self, bytes: u64) -> Result<()> {
        self.check_transaction()?;
        self.db.execute("RELEASE file")?;
        self.in_file = false;
        self.uncommitted += bytes;
        if !self.is_new || self.uncommitted >= MAX_GROUP_BYTES { self.commit() } else { Ok(()) }
    }

    pub(crate) fn commit(&mut self) -> Result<()> {
        self.uncommitted = 0;
        if !self.has_begun {
            return self.db.check();
        }
        self.check_transaction()?;
        self.db.commit()?;
        self.has_begun = false;
        Ok(())
    }

    fn rollback(&mut self) -> Result<()> {
        (self.has_begun, self.in_file) = (false, false);
        self.db.rollback()
    }

    /// Ends the transaction: complete files are kept, an incomplete one is rolled back.
    pub(crate) fn end(mut self, failed: bool) -> Result<Connection> {
        let none: Option<fn() -> bool> = None;
        // The rest is short and must not be cancelled.
        let _ = self.db.conn.progress_handler(0, none);
        let ended = self.finish(failed);
        if ended.is_err() {
            // The first error is the one to report.
            let _ = self.rollback();
        }
        self.db.before_close();
        ended.map(|()| self.db.conn)
    }

    fn finish(&mut self, failed: bool) -> Result<()> {
        if failed && (!self.is_new || !self.db.is_in_transaction()) {
            self.rollback()?;
        } else if self.in_file {
            self.rollback_file()?;
        }
        self.commit()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gristmill_pool::CancelToken;

    use super::super::failed_file;
    use super::super::output_db::OutputDb;
    use super::*;

    fn write_record(tx: &mut ImportTx) -> Result<()> {
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
    fn tables_after(is_new: bool, during_file: bool, event: impl FnOnce(ImportTx)) -> i64 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        if !is_new {
            Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (a); DROP TABLE t").unwrap();
        }
        let output = OutputDb::open(&path, false).unwrap();
        let mut tx = ImportTx::new(output.connect(&CancelToken::new()).unwrap(), is_new);
        tx.begin_file().unwrap();
        tx.db.execute("CREATE TABLE t (a)").unwrap();
        match (during_file, is_new) {
            (true, _) => {}
            (false, true) => tx.commit_file(1).unwrap(),
            (false, false) => tx.rollback_file().unwrap(),
        }
        tx.db.execute("ROLLBACK").unwrap();
        event(tx);
        let file = if is_new { folder.path().join(".x.db.import") } else { path };
        let conn = Connection::open(file).unwrap();
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn nothing_is_written_after_sqlite_has_rolled_back_the_transaction() {
        type Event = fn(&mut ImportTx) -> Result<()>;
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
