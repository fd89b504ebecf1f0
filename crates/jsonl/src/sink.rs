//! Objects that come one at a time, such as messages, into a table of SQLite: batch by batch.
//!
//! Owns what a batch is: one transaction, after which its good objects are rows on disk, or none is. Keys become columns
//! as an import has it, by the same parser, names and table. But what comes later is not known: columns have no type, so
//! that every value stays as it is, and a file cannot be read again.

mod bad;
mod once;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub use self::bad::RejectedObject;
use self::once::Once;
pub use self::once::{AppendResult, WithId};
use crate::error::{Error, Result, is_tables};
use crate::fault::ParseErrorKind;
use crate::import::find::table_given;
use crate::import::key::{Plan, Watch};
use crate::import::layout::{Layout, MAX_COLUMNS, Snag};
use crate::import::ledger;
use crate::import::options::ImportOptions;
use crate::import::stock::{self, Widening};
use crate::import::table::Table;
use crate::in_place::FileIdentity;
use crate::parse::{Decimals, Form, Others, parse_each};
use crate::rows::{Line, Rows};

/// How long another program may keep the database to itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often is looked again, where SQLite itself does not wait.
const PAUSE: Duration = Duration::from_millis(5);

/// So many bytes of objects are read at a time, however many a batch has.
const TOGETHER: usize = 64 << 20;

/// Room for objects is kept from batch to batch if it has no more bytes than this.
const SPARE: usize = 4 << 20;

/// After so many pages the log is brought home.
const LOG_PAGES: i64 = 4_096;

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
    in_place: FileIdentity,
    name: String,
    /// What is known of the table; nothing when it has to be looked at.
    shape: Option<Shape>,
    options: ImportOptions,
    spare: Rows,
    /// Which ids are remembered.
    once: Option<Once>,
}

/// Keeps the log of a database that was replaced from being applied to the new one.
impl Drop for Sink {
    fn drop(&mut self) {
        self.in_place.before_close(&self.conn);
    }
}

/// A table as it is when the schema has this version.
struct Shape {
    version: i64,
    table: Table,
    form: Form,
    /// How many keys had found their column when the form was made.
    placed: usize,
    /// Why there are no new columns, if so.
    closed: Option<String>,
}

impl Sink {
    /// Opens the database, or makes it, and keeps the table in mind; the first row makes that. Its folder must be there.
    /// Several may be open on one table. The database gets a write-ahead log, if it can have one.
    pub fn open(database: &Path, table: &str) -> Result<Sink> {
        let name = table_given(table)?;
        if database.is_dir() {
            let text = format!("{} is a folder; name a file for the database", database.display());
            return Err(Error::Invalid(text));
        }
        let failed = |error: rusqlite::Error| Error::sqlite(database, &error);
        let mode = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let conn = Connection::open_with_flags(database, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX);
        let conn = conn.map_err(failed)?;
        conn.busy_timeout(PATIENCE).map_err(failed)?;
        // Before anything in it is changed.
        if let Some(refusal) = stock::refusal(&conn, database).map_err(failed)? {
            return Err(refusal);
        }
        set(&conn).map_err(failed)?;
        let path = database.to_owned();
        let (options, spare) = (ImportOptions::default(), Rows::default());
        let in_place = FileIdentity::of(&path);
        let mut sink = Sink { conn, path, in_place, name, shape: None, options, spare, once: None };
        sink.shape = Some(sink.look()?);
        // The first read has created the log.
        sink.in_place = FileIdentity::of(&sink.path);
        Ok(sink)
    }

    /// What tells whether the database is still under its name. Every batch is refused if it is not.
    pub fn file_identity(&self) -> FileIdentity {
        self.in_place.clone()
    }

    /// Makes rows of objects. One result an object, in their order: a bad one costs itself. When this returns, the rows
    /// are on disk.
    ///
    /// An error means that nothing of the batch was written, and [`Error::may_pass`] whether it is worth trying again.
    /// Only when the disk itself failed in the last moment, a power cut right then may bring the rows back.
    pub fn append(&mut self, objects: &[&[u8]]) -> Result<Vec<Result<(), RejectedObject>>> {
        self.append_with(objects, |object| object, Self::take_all)
    }

    /// Makes rows of what `bytes_of` finds in items, by `take`, in one transaction.
    fn append_with<T: Copy, R>(
        &mut self,
        items: &[T],
        bytes_of: impl for<'b> Fn(&'b T) -> &'b [u8],
        take: impl Fn(&mut Self, &mut Shape, &[T]) -> Result<Vec<Result<R, RejectedObject>>, Unwritten>,
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
        take: impl Fn(&mut Self, &mut Shape, &[T]) -> Result<R, Unwritten>,
    ) -> Result<Option<R>> {
        let written = self.transaction(items, end, take);
        if written.is_err() || end == ROLLBACK {
            // The known columns may be ones that were rolled back.
            self.shape = None;
            if !self.conn.is_autocommit()
                && let Err(error) = self.run(ROLLBACK)
            {
                tracing::error!(%error, "a batch could not be rolled back");
            }
        }
        match written {
            Ok(results) => Ok(Some(results)),
            Err(Unwritten::RolledBack) => Ok(None),
            Err(Unwritten::Failed(error)) => Err(error),
        }
    }

    fn transaction<T, R>(
        &mut self,
        items: &[T],
        end: &str,
        take: impl Fn(&mut Self, &mut Shape, &[T]) -> Result<R, Unwritten>,
    ) -> Result<R, Unwritten> {
        self.in_place.check()?;
        self.run("BEGIN IMMEDIATE")?;
        self.make_processed_ids()?;
        let known = self.shape.take();
        let version = self.version()?;
        let mut shape = match known {
            Some(shape) if shape.version == version => shape,
            _ => self.look()?,
        };
        let results = take(self, &mut shape, items)?;
        self.run(end)?;
        // It may have been deleted since the first check: then these rows are in no file.
        self.in_place.check()?;
        self.shape = Some(shape);
        Ok(results)
    }

    /// Writes all objects, as many at a time as are read together.
    fn take_all(
        &mut self,
        shape: &mut Shape,
        objects: &[&[u8]],
    ) -> Result<Vec<Result<(), RejectedObject>>, Unwritten> {
        let mut results = Vec::with_capacity(objects.len());
        let mut rest = objects;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(as_many_as_fit(rest));
            self.take(shape, now, &mut results)?;
            rest = later;
        }
        Ok(results)
    }

    /// Writes some of a batch's objects. A key for which the table gets no column costs the objects that have it.
    fn take(
        &mut self,
        shape: &mut Shape,
        objects: &[&[u8]],
        results: &mut Vec<Result<(), RejectedObject>>,
    ) -> Result<(), Unwritten> {
        let before = shape.placed;
        let mut is_closed_for_one = false;
        let (rows, refused): (Rows, Vec<(Line, ParseErrorKind)>) = loop {
            let rows = parse_each(objects, &shape.form, std::mem::take(&mut self.spare));
            let placed = shape.table.layout.place(&rows, &self.options, None);
            if shape.table.layout.placed() != shape.placed || placed.is_err() {
                shape.settle(&self.options);
            }
            let map = match placed {
                Ok(map) => map,
                // The layout knows better now.
                Err(Snag::Unfitted | Snag::TooMany | Snag::Moved) => continue,
                Err(Snag::NoRoom(_)) => {
                    *shape = self.close(format!("SQLite has {MAX_COLUMNS} at most"))?;
                    continue;
                }
            };
            let has_new_columns = shape.table.layout.has_new_columns();
            if has_new_columns {
                self.run("SAVEPOINT new_columns")?;
            }
            match shape.table.write(&self.conn, &rows, &map) {
                Ok(inserted) if inserted.broken_after.is_some() => {
                    let why = "it has no key to make a column of, and there is no table yet";
                    let all = rows.rows.iter().map(|row| (row.line, ParseErrorKind::Refused(why.to_owned())));
                    let all = all.collect();
                    break (rows, all);
                }
                Ok(inserted) => break (rows, inserted.refused),
                // The table does not get all of the new columns: a strict one gets none without a type.
                Err(error) if has_new_columns && is_tables(&error) && shape.closed.is_none() => {
                    self.run("ROLLBACK TO new_columns")?;
                    if objects.len() > 1 {
                        *shape = self.look()?;
                        return objects
                            .chunks(objects.len().div_ceil(2))
                            .try_for_each(|half| self.take(shape, half, results));
                    }
                    *shape = self.close(error.to_string())?;
                    is_closed_for_one = true;
                }
                Err(error) if is_tables(&error) => {
                    let text = format!("the table {:?} takes no rows: {error}", self.name);
                    return Err(Error::Invalid(text).into());
                }
                Err(error) => return Err(self.failed(&error).into()),
            }
        };
        if self.conn.is_autocommit() {
            return Err(Unwritten::RolledBack);
        }
        shape.table.layout.keep();
        let first = results.len();
        results.extend(objects.iter().map(|_| Ok(())));
        let bad = rows.bad.iter().map(|bad| (bad.line, bad.at, shape.reworded(&bad.reason)));
        for (line, at, reason) in bad.chain(refused.into_iter().map(|(line, reason)| (line, 0, reason))) {
            let index = line.number as usize;
            results[first + index] = Err(RejectedObject::new(objects[index], at, reason));
        }
        if rows.text.capacity() <= SPARE {
            self.spare = rows;
        }
        self.note_what_is_new(shape, before)?;
        if is_closed_for_one {
            *shape = self.look()?;
        }
        Ok(())
    }

    /// Records columns that are new since `before` keys had one, so that the table can be looked at again.
    fn note_what_is_new(&self, shape: &mut Shape, before: usize) -> Result<()> {
        let has_new_whole_numbers = shape.table.layout.keep_whole_numbers();
        let has_new_columns = shape.placed != before;
        if has_new_whole_numbers || (has_new_columns && !self.are_names_noted(shape)?) {
            self.note_columns(shape)?;
        }
        if has_new_whole_numbers || has_new_columns {
            shape.version = self.version()?;
        }
        Ok(())
    }

    /// Looks at the table as it is.
    fn look(&self) -> Result<Shape> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let version = self.version()?;
        let found = stock::find(&self.conn, &self.name).map_err(failed)?;
        let there = found.as_ref().map(|found| found.table(&self.path)).transpose()?;
        let (layout, required, has_conflict_clause) = match there {
            Some(there) => {
                let shape = stock::shape(&self.conn, there, Widening::Refused).map_err(failed)?;
                (shape.layout, shape.required, shape.has_conflict_clause)
            }
            None => (Layout::default(), Vec::new(), false),
        };
        let (is_old, name) = (there.is_some(), there.map_or(&self.name, |there| &there.name).clone());
        let (plan, watch) = (Plan::Kept(Vec::new()), Watch::new(Vec::new(), false));
        let mut table = Table::new(name, layout, plan, watch, is_old);
        table.is_typed = true;
        table.required = required;
        table.has_conflict_clause = has_conflict_clause;
        let form = form(&table.layout, &self.options);
        Ok(Shape { version, placed: table.layout.placed(), table, form, closed: None })
    }

    /// The table as it is, which gets no more columns: objects with other keys cost themselves.
    fn close(&self, why: String) -> Result<Shape> {
        let mut shape = self.look()?;
        shape.form.others = Others::Refused;
        shape.closed = Some(why);
        Ok(shape)
    }

    /// Whether it is noted which key has which column.
    fn are_names_noted(&self, shape: &Shape) -> Result<bool> {
        let noted = ledger::columns(&self.conn, &self.name).map_err(|error| self.failed(&error))?;
        let noted = noted.unwrap_or_default();
        Ok(shape.table.layout.keys_of_columns().iter().all(|(_, column)| noted.contains_key(column)))
    }

    /// Notes what cannot be seen from the columns, for those who open the table next: that the column `ID` is for `ID`, and
    /// not for `id`, and which columns of doubles have whole numbers.
    fn note_columns(&self, shape: &Shape) -> Result<()> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let layout = &shape.table.layout;
        let (keys, whole_numbers) = (layout.keys_of_columns(), layout.columns_with_whole_numbers());
        ledger::note_columns(&self.conn, &self.name, &keys, &whole_numbers).map_err(failed)?;
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
enum Unwritten {
    Failed(Error),
    /// A trigger of the table rolled back the transaction.
    RolledBack,
}

impl From<Error> for Unwritten {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("path", &self.path).field("table", &self.name).finish_non_exhaustive()
    }
}

impl Shape {
    /// Makes use of what was found out about keys.
    fn settle(&mut self, options: &ImportOptions) {
        self.table.layout.take_anything();
        self.placed = self.table.layout.placed();
        self.form = form(&self.table.layout, options);
        if self.closed.is_some() {
            self.form.others = Others::Refused;
        }
    }

    /// A key that has no column is a matter of the table, here.
    fn reworded(&self, reason: &ParseErrorKind) -> ParseErrorKind {
        match (reason, &self.closed) {
            (ParseErrorKind::UnknownKey(key), Some(why)) => {
                ParseErrorKind::Refused(format!("its table gets no column for the key {key:?}: {why}"))
            }
            (reason, _) => reason.clone(),
        }
    }
}

/// How objects are read for the table: what has no type stays as it is.
fn form(layout: &Layout, options: &ImportOptions) -> Form {
    Form { decimals: Decimals::Written, ..layout.form(options, None) }
}

/// How many of the objects are read together: at least one.
fn as_many_as_fit(objects: &[&[u8]]) -> usize {
    let mut bytes = 0_usize;
    let fit = objects.iter().take_while(|object| {
        bytes = bytes.saturating_add(object.len());
        bytes <= TOGETHER
    });
    fit.count().max(1)
}

fn set(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(64);
    // Other journals keep what is acknowledged as well, but wait for the disk more often.
    patiently(|| conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    conn.pragma_update(None, "foreign_keys", false)
}

/// Two that open a new database at one moment meet locks that SQLite does not wait for by itself.
fn patiently<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && started.elapsed() < PATIENCE =>
            {
                std::thread::park_timeout(PAUSE);
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
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(TOGETHER / 2));
        let large = large.as_bytes();
        let batch: [&[u8]; 5] = [large, b"bad", large, b"[]", large];
        assert_eq!(as_many_as_fit(&batch), 2);
        assert_eq!(as_many_as_fit(&[&vec![0; TOGETHER + 1], large]), 1);
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
        let delete_and_write = |sink: &mut Sink, shape: &mut Shape, objects: &[&[u8]]| {
            std::fs::remove_file(&path).unwrap();
            sink.take_all(shape, objects)
        };
        let written = sink.append_with(&[&b"{\"n\":1}"[..]], |object| object, delete_and_write);
        assert!(matches!(written, Err(Error::Replaced(_))), "{written:?}");
    }
}
