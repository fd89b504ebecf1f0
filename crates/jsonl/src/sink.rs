//! Appends objects that arrive one at a time, such as messages, to a SQLite table in batches.
//!
//! A batch is one transaction: after it, all its valid objects are rows on disk, or none is. Keys become columns as in
//! an import, with the same parser, names and table code. But later objects are not known and nothing can be read
//! again, so new columns have no type and every value is stored unchanged.

mod cached_table;
mod dedup;
mod rejected;

use std::fmt;
use std::path::Path;

use gristmill_pool::CancelToken;
use gristmill_store::sqlite::retry_while_busy;
use rusqlite::{Connection, OpenFlags};

use self::cached_table::CachedTable;
use self::dedup::DedupWindow;
pub use self::dedup::{AppendResult, WithId};
pub use self::rejected::RejectedObject;
use crate::database::{BUSY_TIMEOUT, Database, FileIdentity, connect, is_busy};
use crate::error::{Error, Failure, Result, is_table_mismatch};
use crate::import::discover::validate_table_name;
use crate::import::existing;
use crate::import::layout::{LayoutConflict, MAX_COLUMNS};
use crate::import::options::ImportOptions;
use crate::parse::parse_each;
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Line, ParsedBlock};
use crate::sql::{Sql, schema_version};

/// Maximum bytes of objects that are parsed at a time, unless one object is larger.
const MAX_PARSE_BYTES: usize = 64 << 20;

/// Maximum bytes of a text buffer that is reused for the next batch.
const MAX_SPARE_BYTES: usize = 4 << 20;

/// SQLite checkpoints the WAL when it has this many pages.
const WAL_CHECKPOINT_PAGES: i64 = 4_096;

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
    db: Database,
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
        self.db.before_close();
    }
}

/// What ends the transaction of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    /// The batch was only tried.
    Rollback,
}

/// One result per object, in order.
type Results<T = AppendResult> = Vec<Result<T, RejectedObject>>;

impl Sink {
    /// Opens or creates the database. The folder must exist. The first row creates the table. Several sinks may be open
    /// on one table. The database is set to WAL mode if possible.
    pub fn open(database: &Path, table: &str) -> Result<Sink> {
        let name = validate_table_name(table)?;
        if database.is_dir() {
            return Err(Error::path(database, "is a folder; name a file for the database"));
        }
        let stop = CancelToken::new();
        let open = || {
            let mode = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
            let conn = connect(database, mode, &stop)?;
            // Before anything in the database is changed.
            existing::check(&conn, database)?;
            configure(&conn, &stop)?;
            let cached = CachedTable::read(&conn, database, &name)?;
            Ok((conn, cached))
        };
        let (conn, cached) = open().map_err(|failure: Failure| failure.at(database))?;
        // The first read has created the WAL.
        let db = Database::new(conn, database, database, &stop);
        let (options, spare) = (ImportOptions::default(), ParsedBlock::default());
        Ok(Sink { db, name, cached: Some(cached), options, spare, dedup: None })
    }

    /// Identity of the database file. Batches fail if the path no longer leads to this file.
    pub fn file_identity(&self) -> FileIdentity {
        self.db.identity().clone()
    }

    /// Inserts objects as rows in one transaction. Returns one result per object, in order; a rejected object does not
    /// affect the others. When this returns, the rows are on disk.
    ///
    /// After an error the table has no row of the batch; [`Error::is_transient`] returns whether a retry may succeed.
    /// The only exception: if the disk fails during the commit and power is lost right after, the rows may exist.
    pub fn append(&mut self, objects: &[&[u8]]) -> Result<Vec<Result<(), RejectedObject>>> {
        let objects: Vec<WithId<'_>> = objects.iter().map(|object| WithId { id: None, object }).collect();
        let results = self.append_deduplicated(&objects)?;
        Ok(results.into_iter().map(|result| result.map(drop)).collect())
    }

    /// Like [`append`](Self::append), but skips objects whose id became a row within the time of
    /// [`dedup_window`](Self::dedup_window). The id of a rejected object is not remembered.
    pub fn append_deduplicated(&mut self, objects: &[WithId<'_>]) -> Result<Vec<Result<AppendResult, RejectedObject>>> {
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(results) = self.write(objects, End::Commit)? {
            return Ok(results);
        }
        // A trigger rolled back the transaction because of one object. Reject that one; the others stay one batch.
        let mut good: Vec<usize> = Vec::with_capacity(objects.len());
        for (index, object) in objects.iter().enumerate() {
            if self.write(&[*object], End::Rollback)?.is_some() {
                good.push(index);
            }
        }
        let written = loop {
            let rest: Vec<WithId<'_>> = good.iter().map(|index| objects[*index]).collect();
            if rest.is_empty() {
                break Vec::new();
            }
            if let Some(results) = self.write(&rest, End::Commit)? {
                break results;
            }
            // Each could be written alone. Find the shortest prefix that fails: its last object is the cause.
            let (mut passes, mut fails) = (0, rest.len());
            while fails - passes > 1 {
                let middle = passes.midpoint(fails);
                match self.write(&rest[..middle], End::Rollback)? {
                    Some(_) => passes = middle,
                    None => fails = middle,
                }
            }
            good.remove(fails - 1);
        };
        let why = ParseErrorKind::Refused(format!("a trigger of the table {:?} rolls back the transaction", self.name));
        let refused = |object: &WithId<'_>| Err(RejectedObject::new(object.object, 0, why.clone()));
        let mut results: Results = objects.iter().map(refused).collect();
        for (index, result) in good.into_iter().zip(written) {
            results[index] = result;
        }
        Ok(results)
    }

    /// Writes a batch in one transaction. `None`: a trigger rolled it back.
    fn write(&mut self, objects: &[WithId<'_>], end: End) -> Result<Option<Results>> {
        let written = self.transaction(objects, end);
        if written.is_err() || end == End::Rollback {
            // The cached columns may have been rolled back.
            self.cached = None;
            if let Err(error) = self.db.rollback() {
                tracing::error!(%error, "cannot roll back a batch");
            }
        }
        match written {
            Ok(results) => Ok(Some(results)),
            Err(Failure::Other(Error::RolledBack(_))) => Ok(None),
            Err(failure) => Err(failure.at(self.db.path())),
        }
    }

    fn transaction(&mut self, objects: &[WithId<'_>], end: End) -> Result<Results, Failure> {
        self.db.begin()?;
        self.create_processed_ids()?;
        let version = schema_version(&self.db.conn)?;
        let mut cached = match self.cached.take() {
            Some(cached) if cached.version == version => cached,
            _ => self.read_table()?,
        };
        let results = match self.dedup.clone() {
            Some(dedup) => self.write_new(&mut cached, &dedup, objects)?,
            None => {
                let bodies: Vec<&[u8]> = objects.iter().map(|one| one.object).collect();
                self.write_all(&mut cached, &bodies)?
            }
        };
        match end {
            End::Commit => self.db.commit()?,
            End::Rollback => self.db.rollback()?,
        }
        self.cached = Some(cached);
        Ok(results)
    }

    /// Writes all objects, at most `MAX_PARSE_BYTES` at a time.
    fn write_all(&mut self, cached: &mut CachedTable, objects: &[&[u8]]) -> Result<Results, Failure> {
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
        results: &mut Results,
    ) -> Result<(), Failure> {
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
                    *cached =
                        self.read_table()?.without_new_columns(format!("SQLite has at most {MAX_COLUMNS} columns"));
                    continue;
                }
                // The layout was changed, so parse again.
                Err(LayoutConflict::NeedsConversion | LayoutConflict::TooManyColumns | LayoutConflict::KeyMoved) => {
                    continue;
                }
            };
            let has_new_columns = cached.table.layout.has_new_columns();
            if has_new_columns {
                self.db.execute("SAVEPOINT new_columns")?;
            }
            match cached.table.write(&self.db.conn, &block, &map) {
                Ok(result) if result.stopped_after.is_some() => {
                    let why = "it has no key, and the table does not exist yet";
                    let all = block.rows.iter().map(|row| (row.line, ParseErrorKind::Refused(why.to_owned())));
                    let all = all.collect();
                    break (block, all);
                }
                Ok(result) => break (block, result.refused),
                // The table rejects a new column. A STRICT table rejects all columns without a type.
                Err(error) if has_new_columns && is_table_mismatch(&error) && cached.columns_closed.is_none() => {
                    self.db.execute("ROLLBACK TO new_columns")?;
                    if objects.len() > 1 {
                        *cached = self.read_table()?;
                        return objects
                            .chunks(objects.len().div_ceil(2))
                            .try_for_each(|half| self.write_objects(cached, half, results));
                    }
                    *cached = self.read_table()?.without_new_columns(error.to_string());
                    retried_without_columns = true;
                }
                Err(error) if is_table_mismatch(&error) => {
                    let message = format!("the table {:?} rejects all rows: {error}", self.name);
                    return Err(Error::table(&self.name, message).into());
                }
                Err(error) => return Err(error.into()),
            }
        };
        if !self.db.is_in_transaction() {
            return Err(Error::RolledBack(self.db.path().to_owned()).into());
        }
        cached.table.layout.mark_existing();
        let first = results.len();
        results.extend(objects.iter().map(|_| Ok(AppendResult::Inserted)));
        let bad = block.bad.iter().map(|bad| (bad.line, bad.at, cached.table_reason(&bad.reason)));
        for (line, at, reason) in bad.chain(refused.into_iter().map(|(line, reason)| (line, 0, reason))) {
            let index = line.number as usize;
            results[first + index] = Err(RejectedObject::new(objects[index], at, reason));
        }
        if block.text.capacity() <= MAX_SPARE_BYTES {
            self.spare = block;
        }
        cached.record_new_columns(&self.db.conn, &self.name, before)?;
        if retried_without_columns {
            *cached = self.read_table()?;
        }
        Ok(())
    }

    fn read_table(&self) -> Result<CachedTable, Failure> {
        CachedTable::read(&self.db.conn, self.db.path(), &self.name)
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("path", &self.db.path()).field("table", &self.name).finish_non_exhaustive()
    }
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

fn configure(conn: &Connection, stop: &CancelToken) -> Sql<()> {
    // Other journal modes are as durable, but call fsync more often. SQLite does not wait here if two sinks open a new
    // database together.
    let use_wal = || conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()));
    retry_while_busy(BUSY_TIMEOUT, stop, is_busy, use_wal)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", WAL_CHECKPOINT_PAGES)?;
    conn.pragma_update(None, "foreign_keys", false)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn count(sink: &Sink, sql: &str) -> i64 {
        sink.db.conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn failed_batch_leaves_nothing_when_the_disk_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = Sink::open(&folder.path().join("x.db"), "t").unwrap();
        let large = format!("{{\"a\":\"{}\",\"late\":1}}", "x".repeat(1 << 20));
        let batch: [&[u8]; 4] = [b"{\"a\":1}", b"bad", large.as_bytes(), b"{\"later\":1}"];
        for tables in [0, 1] {
            let pages = count(&sink, "PRAGMA page_count");
            sink.db.conn.pragma_update(None, "max_page_count", pages + 20).unwrap();
            let error = sink.append(&batch).unwrap_err();
            assert!(error.is_transient() && error.to_string().contains("the disk is full"), "{error}");
            assert_eq!(count(&sink, "SELECT count(*) FROM sqlite_schema WHERE name = 't'"), tables);
            sink.db.conn.pragma_update(None, "max_page_count", 1_000_000).unwrap();
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
        sink.db.busy_timeout = Duration::from_millis(20);
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
        assert_eq!((mode(&sink.db.conn).unwrap().as_str(), count(&sink, "PRAGMA synchronous")), ("wal", 2));
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
}
