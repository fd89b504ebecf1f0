//! Objects that come one at a time, such as messages, into a table of SQLite: batch by batch.
//!
//! Owns what a batch is: one transaction, after which its good objects are rows on disk, or none is. Keys become columns
//! as an import has it, by the same parser, names and table. But what comes later is not known: columns have no type, so
//! that every value stays as it is, and a file cannot be read again.

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

/// How long another program may keep the database to itself.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often is looked again, where SQLite itself does not wait.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// So many bytes of objects are read at a time, however many a batch has.
const MAX_PARSE_BYTES: usize = 64 << 20;

/// Room for objects is kept from batch to batch if it has no more bytes than this.
const MAX_SPARE_BYTES: usize = 4 << 20;

/// After so many pages the log is brought home.
const WAL_CHECKPOINT_PAGES: i64 = 4_096;

/// How a transaction ends.
const COMMIT: &str = "COMMIT";
const ROLLBACK: &str = "ROLLBACK";

/// A table that takes objects as they come.
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
    /// What is known of the table; nothing when it has to be looked at.
    cached: Option<CachedTable>,
    options: ImportOptions,
    spare: ParsedBlock,
    /// Which ids are remembered.
    dedup: Option<DedupWindow>,
}

/// Keeps the log of a database that was replaced from being applied to the new one.
impl Drop for Sink {
    fn drop(&mut self) {
        self.identity.before_close(&self.conn);
    }
}

/// A table as it is when the schema has this version.
struct CachedTable {
    version: i64,
    table: Table,
    parse_options: ParseOptions,
    /// How many keys had found their column when the form was made.
    key_count: usize,
    /// Why there are no new columns, if so.
    columns_closed: Option<String>,
}

impl Sink {
    /// Opens the database, or makes it, and keeps the table in mind; the first row makes that. Its folder must be there.
    /// Several may be open on one table. The database gets a write-ahead log, if it can have one.
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
        // Before anything in it is changed.
        if let Some(refusal) = existing::database_refusal(&conn, database).map_err(failed)? {
            return Err(refusal);
        }
        configure(&conn).map_err(failed)?;
        let path = database.to_owned();
        let (options, spare) = (ImportOptions::default(), ParsedBlock::default());
        let identity = FileIdentity::of(&path);
        let mut sink = Sink { conn, path, identity, name, cached: None, options, spare, dedup: None };
        sink.cached = Some(sink.inspect_table()?);
        // The first read has created the log.
        sink.identity = FileIdentity::of(&sink.path);
        Ok(sink)
    }

    /// What tells whether the database is still under its name. Every batch is refused if it is not.
    pub fn file_identity(&self) -> FileIdentity {
        self.identity.clone()
    }

    /// Makes rows of objects. One result an object, in their order: a bad one costs itself. When this returns, the rows
    /// are on disk.
    ///
    /// An error means that nothing of the batch was written, and [`Error::may_pass`] whether it is worth trying again.
    /// Only when the disk itself failed in the last moment, a power cut right then may bring the rows back.
    pub fn append(&mut self, objects: &[&[u8]]) -> Result<Vec<Result<(), RejectedObject>>> {
        self.append_with(objects, |object| object, Self::write_all)
    }

    /// Makes rows of what `bytes_of` finds in items, by `take`, in one transaction.
    fn append_with<T: Copy, R>(
        &mut self,
        items: &[T],
        bytes_of: impl for<'b> Fn(&'b T) -> &'b [u8],
        take: impl Fn(&mut Self, &mut CachedTable, &[T]) -> Result<Vec<Result<R, RejectedObject>>, BatchError>,
    ) -> Result<Vec<Result<R, RejectedObject>>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(results) = self.write(items, COMMIT, &take)? {
            return Ok(results);
        }
        // One of them makes a trigger roll back the whole transaction. That costs it alone; the others are still one batch.
        let mut good: Vec<usize> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if self.write(&[*item], ROLLBACK, &take)?.is_some() {
                good.push(index);
            }
        }
        let written = loop {
            let rest: Vec<T> = good.iter().map(|index| items[*index]).collect();
            if rest.is_empty() {
                break Vec::new();
            }
            if let Some(results) = self.write(&rest, COMMIT, &take)? {
                break results;
            }
            // Each could be written alone: the last one of the shortest beginning that could not is at fault.
            let (mut could, mut could_not) = (0, rest.len());
            while could_not - could > 1 {
                let middle = could.midpoint(could_not);
                match self.write(&rest[..middle], ROLLBACK, &take)? {
                    Some(_) => could = middle,
                    None => could_not = middle,
                }
            }
            good.remove(could_not - 1);
        };
        let why = format!("a trigger of the table {:?} rolls back its transaction", self.name);
        let refused =
            |item: &T| Err(RejectedObject::new(bytes_of(item), 0, ParseErrorKind::Refused(why.clone())));
        let mut results: Vec<Result<R, RejectedObject>> = items.iter().map(refused).collect();
        for (index, result) in good.into_iter().zip(written) {
            results[index] = result;
        }
        Ok(results)
    }

    /// Writes a batch in one transaction, which leaves nothing behind when it fails or its `end` is to roll it back. None: a
    /// trigger of the table rolled it back.
    fn write<T, R>(
        &mut self,
        items: &[T],
        end: &str,
        take: impl Fn(&mut Self, &mut CachedTable, &[T]) -> Result<R, BatchError>,
    ) -> Result<Option<R>> {
        let written = self.transaction(items, end, take);
        if written.is_err() || end == ROLLBACK {
            // The known columns may be ones that were rolled back.
            self.cached = None;
            if !self.conn.is_autocommit()
                && let Err(error) = self.run(ROLLBACK)
            {
                tracing::error!(%error, "a batch could not be rolled back");
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
        take: impl Fn(&mut Self, &mut CachedTable, &[T]) -> Result<R, BatchError>,
    ) -> Result<R, BatchError> {
        self.identity.check()?;
        self.run("BEGIN IMMEDIATE")?;
        self.make_processed_ids()?;
        let known = self.cached.take();
        let version = self.version()?;
        let mut cached = match known {
            Some(cached) if cached.version == version => cached,
            _ => self.inspect_table()?,
        };
        let results = take(self, &mut cached, items)?;
        self.run(end)?;
        // It may have been deleted since the first check: then these rows are in no file.
        self.identity.check()?;
        self.cached = Some(cached);
        Ok(results)
    }

    /// Writes all objects, as many at a time as are read together.
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

    /// Writes some of a batch's objects. A key for which the table gets no column costs the objects that have it.
    fn write_objects(
        &mut self,
        cached: &mut CachedTable,
        objects: &[&[u8]],
        results: &mut Vec<Result<(), RejectedObject>>,
    ) -> Result<(), BatchError> {
        let before = cached.key_count;
        let mut retried_without_columns = false;
        let (parsed, refused): (ParsedBlock, Vec<(Line, ParseErrorKind)>) = loop {
            let parsed = parse_each(objects, &cached.parse_options, std::mem::take(&mut self.spare));
            let key_count = cached.table.layout.assign_columns(&parsed, &self.options, None);
            if cached.table.layout.key_count() != cached.key_count || key_count.is_err() {
                cached.apply_layout(&self.options);
            }
            let map = match key_count {
                Ok(map) => map,
                // The layout knows better now.
                Err(
                    LayoutConflict::NeedsConversion
                    | LayoutConflict::TooManyColumns
                    | LayoutConflict::KeyMoved,
                ) => continue,
                Err(LayoutConflict::NoRoom(_)) => {
                    *cached = self.without_new_columns(format!("SQLite has {MAX_COLUMNS} at most"))?;
                    continue;
                }
            };
            let has_new_columns = cached.table.layout.has_new_columns();
            if has_new_columns {
                self.run("SAVEPOINT new_columns")?;
            }
            match cached.table.write(&self.conn, &parsed, &map) {
                Ok(insert_result) if insert_result.plan_failed_after.is_some() => {
                    let why = "it has no key to make a column of, and there is no table yet";
                    let all =
                        parsed.rows.iter().map(|row| (row.line, ParseErrorKind::Refused(why.to_owned())));
                    let all = all.collect();
                    break (parsed, all);
                }
                Ok(insert_result) => break (parsed, insert_result.refused),
                // The table does not get all of the new columns: a strict one gets none without a type.
                Err(error)
                    if has_new_columns && is_table_mismatch(&error) && cached.columns_closed.is_none() =>
                {
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
                    let text = format!("the table {:?} takes no rows: {error}", self.name);
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
        let bad = parsed.bad.iter().map(|bad| (bad.line, bad.at, cached.table_reason(&bad.reason)));
        for (line, at, reason) in bad.chain(refused.into_iter().map(|(line, reason)| (line, 0, reason))) {
            let index = line.number as usize;
            results[first + index] = Err(RejectedObject::new(objects[index], at, reason));
        }
        if parsed.text.capacity() <= MAX_SPARE_BYTES {
            self.spare = parsed;
        }
        self.record_new_columns(cached, before)?;
        if retried_without_columns {
            *cached = self.inspect_table()?;
        }
        Ok(())
    }

    /// Records columns that are new since `before` keys had one, so that the table can be looked at again.
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

    /// Looks at the table as it is.
    fn inspect_table(&self) -> Result<CachedTable> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let version = self.version()?;
        let found = existing::find_object(&self.conn, &self.name).map_err(failed)?;
        let object = found.as_ref().map(|found| found.as_table(&self.path)).transpose()?;
        let (layout, required, has_conflict_clause) = match object {
            Some(object) => {
                let found = existing::table_shape(&self.conn, object, Widening::Refused).map_err(failed)?;
                (found.layout, found.required, found.has_conflict_clause)
            }
            None => (Layout::default(), Vec::new(), false),
        };
        let (is_old, name) = (object.is_some(), object.map_or(&self.name, |object| &object.name).clone());
        let (plan, key_tracker) = (KeyPlan::Kept(Vec::new()), KeyTracker::new(Vec::new(), false));
        let mut table = Table::new(name, layout, plan, key_tracker, is_old);
        table.is_typed = true;
        table.required = required;
        table.has_conflict_clause = has_conflict_clause;
        let parse_options = parse_options(&table.layout, &self.options);
        Ok(CachedTable {
            version,
            key_count: table.layout.key_count(),
            table,
            parse_options,
            columns_closed: None,
        })
    }

    /// The table as it is, which gets no more columns: objects with other keys cost themselves.
    fn without_new_columns(&self, why: String) -> Result<CachedTable> {
        let mut cached = self.inspect_table()?;
        cached.parse_options.unknown_keys = UnknownKeys::Refused;
        cached.columns_closed = Some(why);
        Ok(cached)
    }

    /// Whether it is noted which key has which column.
    fn are_columns_recorded(&self, cached: &CachedTable) -> Result<bool> {
        let recorded = import_log::columns(&self.conn, &self.name).map_err(|error| self.failed(&error))?;
        let recorded = recorded.unwrap_or_default();
        Ok(cached.table.layout.keys_of_columns().iter().all(|(_, column)| recorded.contains_key(column)))
    }

    /// Notes what cannot be seen from the columns, for those who open the table next: that the column `ID` is for `ID`, and
    /// not for `id`, and which columns of doubles have whole numbers.
    fn record_columns(&self, cached: &CachedTable) -> Result<()> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let layout = &cached.table.layout;
        let (keys, whole_numbers) = (layout.keys_of_columns(), layout.columns_with_whole_numbers());
        import_log::record_columns(&self.conn, &self.name, &keys, &whole_numbers).map_err(failed)?;
        // So that others who have the table open look at it again.
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

/// Why nothing of a batch was written.
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
    /// Makes use of what was found out about keys.
    fn apply_layout(&mut self, options: &ImportOptions) {
        self.table.layout.fix_as_untyped();
        self.key_count = self.table.layout.key_count();
        self.parse_options = parse_options(&self.table.layout, options);
        if self.columns_closed.is_some() {
            self.parse_options.unknown_keys = UnknownKeys::Refused;
        }
    }

    /// A key that has no column is a matter of the table, here.
    fn table_reason(&self, reason: &ParseErrorKind) -> ParseErrorKind {
        match (reason, &self.columns_closed) {
            (ParseErrorKind::UnknownKey(key), Some(why)) => {
                ParseErrorKind::Refused(format!("its table gets no column for the key {key:?}: {why}"))
            }
            (reason, _) => reason.clone(),
        }
    }
}

/// How objects are read for the table: what has no type stays as it is.
fn parse_options(layout: &Layout, options: &ImportOptions) -> ParseOptions {
    ParseOptions { decimals: Decimals::Written, ..layout.parse_options(options, None) }
}

/// How many of the objects are read together: at least one.
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
    // Other journals keep what is acknowledged as well, but wait for the disk more often.
    retry_while_busy(|| conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", WAL_CHECKPOINT_PAGES)?;
    conn.pragma_update(None, "foreign_keys", false)
}

/// Two that open a new database at one moment meet locks that SQLite does not wait for by itself.
fn retry_while_busy<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && started.elapsed() < BUSY_TIMEOUT =>
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
    fn of_a_batch_for_which_the_disk_has_no_room_nothing_is_left() {
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
            // What fits goes in, as if nothing had been.
            let results = sink.append(&[&b"{\"a\":2}"[..]]).unwrap();
            assert_eq!(results, [Ok(())]);
            assert_eq!(
                count(&sink, "SELECT count(*) FROM pragma_table_info('t')"),
                1,
                "no column is left either"
            );
        }
        let results = sink.append(&batch).unwrap();
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
        assert_eq!(count(&sink, "SELECT count(*) FROM t"), 5);
    }

    #[test]
    fn a_lock_that_is_held_too_long_is_told_and_then_over() {
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
    fn what_is_acknowledged_is_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let sink = Sink::open(&folder.path().join("x.db"), "t").unwrap();
        let mode =
            |conn: &Connection| conn.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0));
        assert_eq!((mode(&sink.conn).unwrap().as_str(), count(&sink, "PRAGMA synchronous")), ("wal", 2));
    }

    #[test]
    fn a_batch_is_read_in_parts_and_is_one_all_the_same() {
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
    fn rows_that_are_committed_to_a_file_deleted_meanwhile_are_not_reported() {
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
