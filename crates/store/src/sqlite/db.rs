//! A connection with prepared statements, translated errors and one timestamp.
//!
//! Owns how a connection is opened and configured. `writer` decides when its connection writes.

use std::cell::OnceCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gristmill_pool::{CancelToken, clock::Clock};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Params, Row};

use crate::dead_letters;
use crate::error::{Error, Result};
use crate::paths::with_suffix;
use crate::private;
use crate::rows::{Column, column};
use crate::sqlite::busy::retry_while_busy;
use crate::sqlite::read_only::immutable_uri;
use crate::sqlite::tables;
use crate::tasks::{TaskCounter, TaskStatus};
use crate::time::UtcTime;

/// Earlier versions of SQLite can corrupt the database when two processes checkpoint at the same time.
const MIN_SQLITE_VERSION: i32 = 3_051_003;

/// Whether acknowledged commits survive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Every acknowledged write is on disk (`synchronous = FULL`).
    #[default]
    Full,
    /// A power cut may lose the most recent acknowledged writes, but does not damage the file. A crash of the program
    /// loses nothing (`synchronous = NORMAL`).
    Normal,
}

impl Durability {
    /// Returns the value of `PRAGMA synchronous`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Durability::Full => "full",
            Durability::Normal => "normal",
        }
    }
}

fn check_sqlite_version(number: i32, version: &str) -> Result<()> {
    if number < MIN_SQLITE_VERSION { Err(Error::OldLibrary(version.to_owned())) } else { Ok(()) }
}

/// WAL length in pages, 64 MiB, after which the writer checkpoints. A checkpoint writes each page once, however often
/// it changed: with 64 MiB instead of SQLite's 4 MiB, hot pages of a busy queue or a first scan are written less often.
pub(crate) const CHECKPOINT_PAGES: i32 = 16_384;

/// Path of the database file and the settings of its connections.
#[derive(Clone, Debug)]
pub(crate) struct DbFile {
    pub(crate) path: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) busy_timeout: Duration,
    pub(crate) clock: Clock,
    pub(crate) access: Access,
}

/// Returns the first file that is not empty among the WAL or journal files with these endings.
pub fn nonempty_log(database: &Path, endings: &[&str]) -> Option<PathBuf> {
    let mut logs = endings.iter().map(|ending| with_suffix(database, ending));
    logs.find(|log| std::fs::metadata(log).is_ok_and(|found| found.len() > 0))
}

/// How connections may use the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Connections read and write the file.
    ReadWrite,
    /// Connections only read the file; other processes may write it.
    ReadOnly,
    /// Connections only read the file, and no process writes it.
    Immutable,
}

impl DbFile {
    pub(crate) fn error(&self, error: &rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }

    /// Opens a connection that can write. Creates the file if it does not exist.
    pub(crate) fn open_writer(&self) -> Result<Connection> {
        private::create_if_absent(&self.path);
        let conn = self.open(OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        let configure = || -> rusqlite::Result<()> {
            conn.pragma_update(None, "foreign_keys", true)?;
            conn.pragma_update(None, "synchronous", self.durability.as_str())?;
            // Savepoints of a group are kept in memory, not in a temporary file.
            conn.pragma_update(None, "temp_store", "MEMORY")?;
            // Rows are mostly appended: with 32 MiB a first scan of 110,000 files was not faster.
            conn.pragma_update(None, "cache_size", -8_192)?;
            conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
            conn.pragma_update(None, "journal_size_limit", 64 << 20)?;
            Ok(())
        };
        configure().map_err(|error| self.error(&error))?;
        Ok(conn)
    }

    /// Sets the journal mode to WAL. The file keeps the mode.
    pub(crate) fn use_wal(&self, conn: &Connection) -> Result<()> {
        let mode: rusqlite::Result<String> =
            conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0));
        match mode.map_err(|error| self.error(&error))?.as_str() {
            "wal" => Ok(()),
            mode => Err(Error::CannotOpen(
                self.path.clone(),
                format!("WAL mode is not available, only {mode:?} (is it on a network drive?)"),
            )),
        }
    }

    /// Rolls back the journal of a process that was killed while it created the file, before WAL mode was set. A
    /// read-only connection cannot do that, and would report the file as read-only.
    pub(crate) fn roll_back_journal(&self) -> Result<()> {
        if nonempty_log(&self.path, &["-journal"]).is_none() {
            return Ok(());
        }
        let conn = self.open(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let read = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
        read.map_err(|error| self.error(&error))
    }

    /// Repeats `attempt` while it fails with [`Error::Busy`], for at most the busy timeout.
    pub(crate) fn retry_while_busy<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        retry_while_busy(self.busy_timeout, &CancelToken::new(), Error::is_busy, attempt)
    }

    pub(crate) fn open_reader(&self) -> Result<Connection> {
        self.open(OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    fn open(&self, mode: OpenFlags) -> Result<Connection> {
        check_sqlite_version(rusqlite::version_number(), rusqlite::version())?;
        // Without SQLITE_OPEN_URI, a path that looks like a URI is still a file name. Only `immutable_uri` makes a URI.
        let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || -> rusqlite::Result<Connection> {
            let conn = match self.access {
                Access::Immutable => {
                    let uri = immutable_uri(&self.path);
                    Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?
                }
                Access::ReadWrite | Access::ReadOnly => Connection::open_with_flags(&self.path, flags)?,
            };
            conn.busy_timeout(self.busy_timeout)?;
            conn.set_prepared_statement_cache_capacity(128);
            dead_letters::add_function(&conn)?;
            Ok(conn)
        };
        open().map_err(|error| self.error(&error))
    }

    pub(crate) fn db<'a>(&'a self, conn: &'a Connection) -> Db<'a> {
        Db { conn, file: self, now: self.now(), text: OnceCell::new(), task_counter: None }
    }

    pub(crate) fn now(&self) -> UtcTime {
        UtcTime::from_micros(self.clock.unix_micros())
    }
}

/// Turns the triggers of a connection on or off. Statements are prepared again.
pub(crate) fn enable_triggers(conn: &Connection, enabled: bool) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, enabled).map(drop)
}

/// A connection inside one transaction or statement, with one timestamp.
pub(crate) struct Db<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) file: &'a DbFile,
    pub(crate) now: UtcTime,
    text: OnceCell<String>,
    /// On the writer's connection: counts tasks while triggers are off.
    task_counter: Option<&'a TaskCounter>,
}

impl<'a> Db<'a> {
    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    pub(crate) fn with_task_counter(self, counter: &'a TaskCounter) -> Self {
        Db { task_counter: Some(counter), ..self }
    }

    /// Counts tasks that change from one status to another; `None` for inserted and deleted ones.
    pub(crate) fn count_tasks(
        &self,
        (queue, kind): (&str, &str),
        from: Option<TaskStatus>,
        to: Option<TaskStatus>,
        tasks: usize,
    ) {
        if let Some(counter) = self.task_counter {
            counter.move_tasks(queue, kind, from, to, tasks);
        }
    }

    /// Returns the timestamp as the database stores it.
    pub(crate) fn now(&self) -> &str {
        self.text.get_or_init(|| self.now.to_string())
    }

    /// Returns the timestamp in seconds, for rows of which there are many.
    pub(crate) fn now_in_seconds(&self) -> &str {
        self.now().get(..19).unwrap_or_default()
    }

    /// Runs `body` with the connection and translates its error.
    pub(crate) fn with_conn<T>(&self, body: impl FnOnce(&'a Connection) -> rusqlite::Result<T>) -> Result<T> {
        body(self.conn).map_err(|error| self.file.error(&error))
    }

    /// Runs statements in a savepoint: if one fails, they are all rolled back, and the transaction continues. After an
    /// error that ends the transaction, the whole write must fail.
    pub(crate) fn savepoint<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.execute("SAVEPOINT part", [])?;
        let counted = self.task_counter.map(TaskCounter::save);
        let result = body();
        match &result {
            Err(error) if error.breaks_transaction() || self.conn.is_autocommit() => return result,
            Err(_) => {
                self.execute("ROLLBACK TO part", [])?;
                if let (Some(counter), Some(counted)) = (self.task_counter, counted) {
                    counter.restore(counted);
                }
            }
            Ok(_) => {}
        }
        self.execute("RELEASE part", [])?;
        result
    }

    /// Runs a statement and returns the number of changed rows.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.with_conn(|conn| conn.prepare_cached(sql)?.execute(params))
    }

    pub(crate) fn batch(&self, sql: &str) -> Result<()> {
        self.with_conn(|conn| conn.execute_batch(sql))
    }

    /// Returns all rows of a query, or of a statement with RETURNING.
    pub(crate) fn rows<T>(
        &self,
        sql: &str,
        params: impl Params,
        map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        self.with_conn(|conn| conn.prepare_cached(sql)?.query_map(params, map)?.collect())
    }

    pub(crate) fn first<T>(
        &self,
        sql: &str,
        params: impl Params,
        map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.rows(sql, params, map)?.into_iter().next())
    }

    /// Calls `visit` with each row until it breaks, and returns the value with which it broke.
    pub(crate) fn visit<B>(
        &self,
        sql: &str,
        params: impl Params,
        mut visit: impl FnMut(&Row<'_>) -> rusqlite::Result<ControlFlow<B>>,
    ) -> Result<Option<B>> {
        self.with_conn(|conn| {
            let mut statement = conn.prepare_cached(sql)?;
            let mut rows = statement.query(params)?;
            while let Some(row) = rows.next()? {
                if let ControlFlow::Break(value) = visit(row)? {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        })
    }

    pub(crate) fn has_table(&self, name: &str) -> Result<bool> {
        self.with_conn(|conn| tables::table_exists(conn, name))
    }

    /// Returns one number, such as a count; 0 for no row or NULL.
    pub(crate) fn number(&self, sql: &str, params: impl Params) -> Result<i64> {
        Ok(self.first(sql, params, |row| row.get::<_, Option<i64>>(0))?.flatten().unwrap_or(0))
    }

    /// Like [`number`](Self::number), for a number that is not negative.
    pub(crate) fn count(&self, sql: &str, params: impl Params) -> Result<u64> {
        Ok(self.number(sql, params)?.unsigned_abs())
    }

    /// Returns the number of rows of a table in each status, ordered by the text of the status.
    pub(crate) fn count_by_status<S: Column>(&self, table: &str) -> Result<Vec<(S, u64)>> {
        let sql = format!("SELECT status, count(*) AS n FROM {table} GROUP BY status ORDER BY status");
        self.rows(&sql, [], |row| Ok((column(row, "status")?, column::<i64>(row, "n")?.unsigned_abs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_versions_before_3_51_3_are_refused() {
        for (number, version) in [(3_040_001, "3.40.1"), (3_051_002, "3.51.2")] {
            assert_eq!(check_sqlite_version(number, version), Err(Error::OldLibrary(version.to_owned())));
        }
        assert_eq!(check_sqlite_version(3_051_003, "3.51.3"), Ok(()));
        assert_eq!(
            check_sqlite_version(rusqlite::version_number(), rusqlite::version()),
            Ok(()),
            "the bundled version"
        );
    }
}
