//! Appends objects that arrive one at a time, such as messages, to a SQLite table in batches.
//!
//! A batch is one transaction: after it, all its valid objects are rows on disk, or none is. Keys become columns as in
//! an import, with the same parser, names and table code. But later objects are not known and nothing can be read
//! again, so new columns have no type and every value is stored unchanged.

mod dedup;
mod rejected;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use self::dedup::DedupWindow;
pub use self::dedup::{AppendResult, WithId};
pub use self::rejected::RejectedObject;
use crate::error::{Error, Result, is_table_mismatch};
use crate::file_identity::FileIdentity;
use crate::import::discover::validate_table_name;
use crate::import::existing::{self, Widening};
use crate::import::import_log;
use crate::import::key::{KeyPlan, KeyTracker};
use crate::import::layout::{Layout, LayoutConflict, MAX_COLUMNS};
use crate::import::options::ImportOptions;
use crate::import::table::Table;
use crate::parse::{Decimals, ParseOptions, UnknownKeys, parse_each};
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Line, ParsedBlock};

/// Maximum wait for another program that has locked the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between retries for locks that SQLite does not wait for.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum bytes of objects that are parsed at a time, unless one object is larger.
const MAX_PARSE_BYTES: usize = 64 << 20;

/// Maximum bytes of a text buffer that is reused for the next batch.
const MAX_SPARE_BYTES: usize = 4 << 20;

/// SQLite checkpoints the WAL when it has this many pages.
const WAL_CHECKPOINT_PAGES: i64 = 4_096;

const COMMIT: &str = "COMMIT";
const ROLLBACK: &str = "ROLLBACK";

/// Appends JSON objects to a table; each batch is one transaction.
///
/// ```
/// use gristmill_jsonl::Sink;
/// # let folder = tempfile::tempdir()?;
/// # let database = folder.path().join("orders.db");
///
/// let mut sink = Sink::open(&database, "orders")?;
/// let results = sink.append(&[br#"{"id":1,"paid":true}"#, b"no JSON", br#"{"id":2,"to":{"city":"Jita"}}"#])?;
/// assert!(results[0].is_ok() && results[2].is_ok());
/// println!("{}", results[1].as_ref().unwrap_err()); // byte 1: a value is expected here: …
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sink {
    conn: Connection,
    path: PathBuf,
    identity: FileIdentity,
    name: String,
    /// Definition of the table; `None` if it has to be read again.
    cached: Option<CachedTable>,
    options: ImportOptions,
    spare: ParsedBlock,
    /// Set if ids are deduplicated.
    dedup: Option<DedupWindow>,
}

/// Prevents SQLite from applying the WAL of a replaced database to the new one.
impl Drop for Sink {
    fn drop(&mut self) {
        self.identity.before_close(&self.conn);
    }
}

/// Definition of the table at this version of the database schema.
struct CachedTable {
    version: i64,
    table: Table,
    parse_options: ParseOptions,
    /// Number of keys with a column when `parse_options` was made.
    key_count: usize,
    /// Why no columns can be added, if so.
    columns_closed: Option<String>,
}

impl Sink {
    /// Opens or creates the database. The folder must exist. The first row creates the table. Several sinks may be open
    /// on one table. The database is set to WAL mode if possible.
    pub fn open(database: &Path, table: &str) -> Result<Sink> {
        let name = validate_table_name(table)?;
        if database.is_dir() {
            let text = format!("{} is a folder; name a file for the database", database.display());
            return Err(Error::Invalid(text));
        }
        let failed = |error: rusqlite::Error| Error::sqlite(database, &error);
        let mode = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let conn = Connection::open_with_flags(database, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX);
        let conn = conn.map_err(failed)?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        // Before anything in the database is changed.
        if let Some(refusal) = existing::refusal(&conn, database).map_err(failed)? {
            return Err(refusal);
        }
        configure(&conn).map_err(failed)?;
        let path = database.to_owned();
        let (options, spare) = (ImportOptions::default(), ParsedBlock::default());
        let identity = FileIdentity::of(&path);
        let mut sink = Sink { conn, path, identity, name, cached: None, options, spare, dedup: None };
        sink.cached = Some(sink.inspect_table()?);
        // The first read has created the WAL.
        sink.identity = FileIdentity::of(&sink.path);
        Ok(sink)
    }

    /// Identity of the database file. Batches fail if the path no longer leads to this file.
    pub fn file_identity(&self) -> FileIdentity {
        self.identity.clone()
    }

    /// Inserts objects as rows in one transaction. Returns one result per object, in order; a rejected object does not
    /// affect the others. When this returns, the rows are on disk.
    ///
    /// After an error the table has no row of the batch; [`Error::is_transient`] returns whether a retry may succeed.
    /// The only exception: if the disk fails during the commit and power is lost right after, the rows may exist.
    pub fn append(&mut self, objects: &[&[u8]]) -> Result<Vec<Result<(), RejectedObject>>> {
        self.append_with(objects, |object| object, Self::write_all)
    }

    /// Writes items with `write_items` in one transaction; `bytes_of` returns the object of an item.
    fn append_with<T: Copy, R>(
        &mut self,
        items: &[T],
        bytes_of: impl for<'b> Fn(&'b T) -> &'b [u8],
        write_items: impl Fn(&mut Self, &mut CachedTable, &[T]) -> Result<Vec<Result<R, RejectedObject>>, BatchError>,
    ) -> Result<Vec<Result<R, RejectedObject>>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(results) = self.write(items, COMMIT, &write_items)? {
            return Ok(results);
        }
        // A trigger rolled back the transaction because of one item. Reject that item; the others stay one batch.
        let mut good: Vec<usize> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if self.write(&[*item], ROLLBACK, &write_items)?.is_some() {
                good.push(index);
            }
        }
        let written = loop {
            let rest: Vec<T> = good.iter().map(|index| items[*index]).collect();
            if rest.is_empty() {
                break Vec::new();
            }
            if let Some(results) = self.write(&rest, COMMIT, &write_items)? {
                break results;
            }
            // Each could be written alone. Find the shortest prefix that fails: its last item is the cause.
            let (mut passes, mut fails) = (0, rest.len());
            while fails - passes > 1 {
                let middle = passes.midpoint(fails);
                match self.write(&rest[..middle], ROLLBACK, &write_items)? {
                    Some(_) => passes = middle,
                    None => fails = middle,
                }
            }
            good.remove(fails - 1);
        };
        let why = format!("a trigger of the table {:?} rolls back the transaction", self.name);
        let refused = |item: &T| Err(RejectedObject::new(bytes_of(item), 0, ParseErrorKind::Refused(why.clone())));
        let mut results: Vec<Result<R, RejectedObject>> = items.iter().map(refused).collect();
        for (index, result) in good.into_iter().zip(written) {
            results[index] = result;
        }
        Ok(results)
    }

    /// Writes a batch in one transaction that ends with the statement `end`. `None`: a trigger rolled it back.
    fn write<T, R>(
        &mut self,
        items: &[T],
        end: &str,
        write_items: impl Fn(&mut Self, &mut CachedTable, &[T]) -> Result<R, BatchError>,
    ) -> Result<Option<R>> {
        let written = self.transaction(items, end, write_items);
        if written.is_err() || end == ROLLBACK {
            // The cached columns may have been rolled back.
            self.cached = None;
            if !self.conn.is_autocommit()
                && let Err(error) = self.run(ROLLBACK)
            {
                tracing::error!(%error, "cannot roll back a batch");
            }
        }
        match written {
            Ok(results) => Ok(Some(results)),
            Err(BatchError::RolledBack) => Ok(None),
            Err(BatchError::Failed(error)) => Err(error),
        }
    }

    fn transaction<T, R>(
        &mut self,
        items: &[T],
        end: &str,
        write_items: impl Fn(&mut Self, &mut CachedTable, &[T]) -> Result<R, BatchError>,
    ) -> Result<R, BatchError> {
        self.identity.check()?;
        self.run("BEGIN IMMEDIATE")?;
        self.create_processed_ids()?;
        let before = self.cached.take();
        let version = self.version()?;
        let mut cached = match before {
            Some(cached) if cached.version == version => cached,
            _ => self.inspect_table()?,
        };
        let results = write_items(self, &mut cached, items)?;
        self.run(end)?;
        // If the file was deleted since the first check, the rows are lost.
        self.identity.check()?;
        self.cached = Some(cached);
        Ok(results)
    }

    /// Writes all objects, at most `MAX_PARSE_BYTES` at a time.
    fn write_all(
        &mut self,
        cached: &mut CachedTable,
        objects: &[&[u8]],
    ) -> Result<Vec<Result<(), RejectedObject>>, BatchError> {
        let mut results = Vec::with_capacity(objects.len());
        let mut rest = objects;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(count_within_limit(rest));
            self.write_objects(cached, now, &mut results)?;
            rest = later;
        }
        Ok(results)
    }

    /// Writes some objects of a batch. An object with a key for which no column can be added is rejected.
    fn write_objects(
        &mut self,
        cached: &mut CachedTable,
        objects: &[&[u8]],
        results: &mut Vec<Result<(), RejectedObject>>,
    ) -> Result<(), BatchError> {
        let before = cached.key_count;
        let mut retried_without_columns = false;
        let (block, refused): (ParsedBlock, Vec<(Line, ParseErrorKind)>) = loop {
            let block = parse_each(objects, &cached.parse_options, std::mem::take(&mut self.spare));
            let assigned = cached.table.layout.assign_columns(&block, &self.options, None);
            if cached.table.layout.key_count() != cached.key_count || assigned.is_err() {
                cached.apply_layout(&self.options);
            }
            let map = match assigned {
                Ok(map) => map,
                Err(LayoutConflict::NoRoom(_)) => {
                    *cached = self.without_new_columns(format!("SQLite has at most {MAX_COLUMNS} columns"))?;
                    continue;
                }
                // The layout was changed, so parse again.
                Err(LayoutConflict::NeedsConversion | LayoutConflict::TooManyColumns | LayoutConflict::KeyMoved) => {
                    continue;
                }
            };
            let has_new_columns = cached.table.layout.has_new_columns();
            if has_new_columns {
                self.run("SAVEPOINT new_columns")?;
            }
            match cached.table.write(&self.conn, &block, &map) {
                Ok(result) if result.stopped_after.is_some() => {
                    let why = "it has no key, and the table does not exist yet";
                    let all = block.rows.iter().map(|row| (row.line, ParseErrorKind::Refused(why.to_owned())));
                    let all = all.collect();
                    break (block, all);
                }
                Ok(result) => break (block, result.refused),
                // The table rejects a new column. A STRICT table rejects all columns without a type.
                Err(error) if has_new_columns && is_table_mismatch(&error) && cached.columns_closed.is_none() => {
                    self.run("ROLLBACK TO new_columns")?;
                    if objects.len() > 1 {
                        *cached = self.inspect_table()?;
                        return objects
                            .chunks(objects.len().div_ceil(2))
                            .try_for_each(|half| self.write_objects(cached, half, results));
                    }
                    *cached = self.without_new_columns(error.to_string())?;
                    retried_without_columns = true;
                }
                Err(error) if is_table_mismatch(&error) => {
                    let text = format!("the table {:?} rejects all rows: {error}", self.name);
                    return Err(Error::Invalid(text).into());
                }
                Err(error) => return Err(self.failed(&error).into()),
            }
        };
        if self.conn.is_autocommit() {
            return Err(BatchError::RolledBack);
        }
        cached.table.layout.mark_existing();
        let first = results.len();
        results.extend(objects.iter().map(|_| Ok(())));
        let bad = block.bad.iter().map(|bad| (bad.line, bad.at, cached.table_reason(&bad.reason)));
        for (line, at, reason) in bad.chain(refused.into_iter().map(|(line, reason)| (line, 0, reason))) {
            let index = line.number as usize;
            results[first + index] = Err(RejectedObject::new(objects[index], at, reason));
        }
        if block.text.capacity() <= MAX_SPARE_BYTES {
            self.spare = block;
        }
        self.record_new_columns(cached, before)?;
        if retried_without_columns {
            *cached = self.inspect_table()?;
        }
        Ok(())
    }

    /// Records new columns in the import log; `before` is the earlier number of keys with a column.
    fn record_new_columns(&self, cached: &mut CachedTable, before: usize) -> Result<()> {
        let has_new_whole_numbers = cached.table.layout.mark_whole_numbers();
        let has_new_columns = cached.key_count != before;
        if has_new_whole_numbers || (has_new_columns && !self.are_columns_recorded(cached)?) {
            self.record_columns(cached)?;
        }
        if has_new_whole_numbers || has_new_columns {
            cached.version = self.version()?;
        }
        Ok(())
    }

    fn inspect_table(&self) -> Result<CachedTable> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let version = self.version()?;
        let found = existing::find_object(&self.conn, &self.name).map_err(failed)?;
        let object = found.as_ref().map(|found| found.as_table(&self.path)).transpose()?;
        let (layout, required, has_conflict_clause) = match object {
            Some(object) => {
                let shape = existing::table_shape(&self.conn, object, Widening::Refused).map_err(failed)?;
                (shape.layout, shape.required, shape.has_conflict_clause)
            }
            None => (Layout::default(), Vec::new(), false),
        };
        let (is_old, name) = (object.is_some(), object.map_or(&self.name, |object| &object.name).clone());
        let (plan, tracker) = (KeyPlan::Existing(Vec::new()), KeyTracker::new(Vec::new(), false));
        let mut table = Table::new(name, layout, plan, tracker, is_old);
        table.is_typed = true;
        table.required = required;
        table.has_conflict_clause = has_conflict_clause;
        let parse_options = parse_options(&table.layout, &self.options);
        let key_count = table.layout.key_count();
        Ok(CachedTable { version, table, parse_options, key_count, columns_closed: None })
    }

    /// Reads the definition of the table and sets it to reject objects with unknown keys.
    fn without_new_columns(&self, why: String) -> Result<CachedTable> {
        let mut cached = self.inspect_table()?;
        cached.parse_options.unknown_keys = UnknownKeys::Rejected;
        cached.columns_closed = Some(why);
        Ok(cached)
    }

    /// Whether the import log has the key of every column.
    fn are_columns_recorded(&self, cached: &CachedTable) -> Result<bool> {
        let recorded = import_log::columns(&self.conn, &self.name).map_err(|error| self.failed(&error))?;
        let recorded = recorded.unwrap_or_default();
        Ok(cached.table.layout.keys_of_columns().iter().all(|(_, column)| recorded.contains_key(column)))
    }

    /// Records in the import log what the table does not show: that the column `ID` is for the key `ID` and not for
    /// `id`, and which columns of doubles have whole numbers.
    fn record_columns(&self, cached: &CachedTable) -> Result<()> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let layout = &cached.table.layout;
        let (keys, whole_numbers) = (layout.keys_of_columns(), layout.columns_with_whole_numbers());
        import_log::record_columns(&self.conn, &self.name, &keys, &whole_numbers).map_err(failed)?;
        // Other sinks on this table read its definition again.
        let version = self.version()?;
        self.conn.pragma_update(None, "schema_version", version + 1).map_err(failed)
    }

    fn version(&self) -> Result<i64> {
        let read = || self.conn.prepare_cached("PRAGMA schema_version")?.query_row([], |row| row.get(0));
        read().map_err(|error| self.failed(&error))
    }

    fn run(&self, sql: &str) -> Result<()> {
        let run = || self.conn.prepare_cached(sql)?.execute([]);
        run().map(drop).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &rusqlite::Error) -> Error {
        Error::sqlite(&self.path, error)
    }
}

enum BatchError {
    Failed(Error),
    /// A trigger of the table rolled back the transaction.
    RolledBack,
}

impl From<Error> for BatchError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("path", &self.path).field("table", &self.name).finish_non_exhaustive()
    }
}

impl CachedTable {
    /// Updates the parse options after the layout has changed.
    fn apply_layout(&mut self, options: &ImportOptions) {
        self.table.layout.fix_as_untyped();
        self.key_count = self.table.layout.key_count();
        self.parse_options = parse_options(&self.table.layout, options);
        if self.columns_closed.is_some() {
            self.parse_options.unknown_keys = UnknownKeys::Rejected;
        }
    }

    /// Rewords the error for an unknown key: here the table is the cause, not a schema.
    fn table_reason(&self, reason: &ParseErrorKind) -> ParseErrorKind {
        match (reason, &self.columns_closed) {
            (ParseErrorKind::UnknownKey(key), Some(why)) => {
                ParseErrorKind::Refused(format!("cannot add a column for the key {key:?}: {why}"))
            }
            (reason, _) => reason.clone(),
        }
    }
}

/// Returns the parse options of the table. Numbers in columns without a type keep their spelling.
fn parse_options(layout: &Layout, options: &ImportOptions) -> ParseOptions {
    ParseOptions { decimals: Decimals::Written, ..layout.parse_options(options, None) }
}

/// Number of objects to parse together: at least one.
fn count_within_limit(objects: &[&[u8]]) -> usize {
    let mut bytes = 0_usize;
    let fit = objects.iter().take_while(|object| {
        bytes = bytes.saturating_add(object.len());
        bytes <= MAX_PARSE_BYTES
    });
    fit.count().max(1)
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(64);
    // Other journal modes are as durable, but call fsync more often.
    retry_while_busy(|| conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", WAL_CHECKPOINT_PAGES)?;
    conn.pragma_update(None, "foreign_keys", false)
}

/// Retries while the database is locked. SQLite does not wait if two sinks open a new database together.
fn retry_while_busy<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && started.elapsed() < BUSY_TIMEOUT =>
            {
                std::thread::park_timeout(RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(sink: &Sink, sql: &str) -> i64 {
        sink.conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn failed_batch_leaves_nothing_when_the_disk_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = Sink::open(&folder.path().join("x.db"), "t").unwrap();
        let large = format!("{{\"a\":\"{}\",\"late\":1}}", "x".repeat(1 << 20));
        let batch: [&[u8]; 4] = [b"{\"a\":1}", b"bad", large.as_bytes(), b"{\"later\":1}"];
        for tables in [0, 1] {
            let pages = count(&sink, "PRAGMA page_count");
            sink.conn.pragma_update(None, "max_page_count", pages + 20).unwrap();
            let error = sink.append(&batch).unwrap_err();
            assert!(error.is_transient() && error.to_string().contains("the disk is full"), "{error}");
            assert_eq!(count(&sink, "SELECT count(*) FROM sqlite_schema WHERE name = 't'"), tables);
            sink.conn.pragma_update(None, "max_page_count", 1_000_000).unwrap();
            // A batch that fits is written as if the failed one had not been tried.
            let results = sink.append(&[&b"{\"a\":2}"[..]]).unwrap();
            assert_eq!(results, [Ok(())]);
            assert_eq!(
                count(&sink, "SELECT count(*) FROM pragma_table_info('t')"),
                1,
                "a column of the failed batch is left"
            );
        }
        let results = sink.append(&batch).unwrap();
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
        assert_eq!(count(&sink, "SELECT count(*) FROM t"), 5);
    }

    #[test]
    fn append_fails_as_busy_while_the_database_is_locked_and_succeeds_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let mut sink = Sink::open(&path, "t").unwrap();
        sink.conn.busy_timeout(Duration::from_millis(20)).unwrap();
        for before in 0..2 {
            let other = Connection::open(&path).unwrap();
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            let error = sink.append(&[b"{\"a\":1}"]).unwrap_err();
            assert!(matches!(error, Error::Busy(_)) && error.is_transient(), "{error}");
            other.execute_batch("ROLLBACK").unwrap();
            assert_eq!(sink.append(&[b"{\"a\":1}"]).unwrap(), [Ok(())]);
            assert_eq!(count(&sink, "SELECT count(*) FROM t"), before + 1);
        }
    }

    #[test]
    fn sink_uses_wal_with_synchronous_full() {
        let folder = tempfile::tempdir().unwrap();
        let sink = Sink::open(&folder.path().join("x.db"), "t").unwrap();
        let mode = |conn: &Connection| conn.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0));
        assert_eq!((mode(&sink.conn).unwrap().as_str(), count(&sink, "PRAGMA synchronous")), ("wal", 2));
    }

    #[test]
    fn large_batch_is_parsed_in_parts_and_written_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = Sink::open(&folder.path().join("x.db"), "t").unwrap();
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_PARSE_BYTES / 2));
        let large = large.as_bytes();
        let batch: [&[u8]; 5] = [large, b"bad", large, b"[]", large];
        assert_eq!(count_within_limit(&batch), 2);
        assert_eq!(count_within_limit(&[&vec![0; MAX_PARSE_BYTES + 1], large]), 1);
        let results = sink.append(&batch).unwrap();
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false, true]);
        assert_eq!(count(&sink, "SELECT count(*) FROM t"), 3);
    }

    #[cfg(unix)]
    #[test]
    fn append_fails_when_the_file_is_deleted_before_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let mut sink = Sink::open(&path, "t").unwrap();
        let delete_and_write = |sink: &mut Sink, cached: &mut CachedTable, objects: &[&[u8]]| {
            std::fs::remove_file(&path).unwrap();
            sink.write_all(cached, objects)
        };
        let written = sink.append_with(&[&b"{\"n\":1}"[..]], |object| object, delete_and_write);
        assert!(matches!(written, Err(Error::Replaced(_))), "{written:?}");
    }
}
