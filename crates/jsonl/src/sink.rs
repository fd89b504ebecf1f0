//! Objects that come one at a time, such as messages, into a table of SQLite: batch by batch.
//!
//! Owns what a batch is: one transaction, after which its good objects are rows on disk, or none is. Keys become columns
//! as an import has it, by the same parser, names and table. But what comes later is not known: columns have no type, so
//! that every value stays as it is, and a file cannot be read again.

mod bad;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub use self::bad::BadObject;
use crate::error::{Error, Result};
use crate::fault::Reason;
use crate::import::find::table_given;
use crate::import::key::{Plan, Watch};
use crate::import::layout::{Layout, MAX_COLUMNS, Snag};
use crate::import::ledger;
use crate::import::options::Options;
use crate::import::stock::{self, Widening};
use crate::import::table::Table;
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
    name: String,
    /// What is known of the table; nothing when it has to be looked at.
    shape: Option<Shape>,
    options: Options,
    spare: Rows,
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
        let (options, spare) = (Options::default(), Rows::default());
        let mut sink = Sink { conn, path, name, shape: None, options, spare };
        sink.shape = Some(sink.look()?);
        Ok(sink)
    }

    /// Makes rows of objects. One result an object, in their order: a bad one costs itself. When this returns, the rows
    /// are on disk.
    ///
    /// An error means that nothing of the batch was written, and [`Error::may_pass`] whether it is worth trying again.
    /// Only when the disk itself failed in the last moment, a power cut right then may bring the rows back.
    pub fn append(&mut self, objects: &[&[u8]]) -> Result<Vec<Result<(), BadObject>>> {
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let results = self.transaction(objects);
        if results.is_err() {
            // What was learnt may be about columns that are taken back.
            self.shape = None;
            if !self.conn.is_autocommit()
                && let Err(error) = self.run("ROLLBACK")
            {
                tracing::error!(%error, "a batch could not be rolled back");
            }
        }
        results
    }

    fn transaction(&mut self, objects: &[&[u8]]) -> Result<Vec<Result<(), BadObject>>> {
        self.run("BEGIN IMMEDIATE")?;
        let known = self.shape.take();
        let version = self.version()?;
        let mut shape = match known {
            Some(shape) if shape.version == version => shape,
            _ => self.look()?,
        };
        let before = shape.placed;
        let mut results = Vec::with_capacity(objects.len());
        let mut rest = objects;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(as_many_as_fit(rest));
            self.take(&mut shape, now, &mut results)?;
            rest = later;
        }
        let has_new_whole_numbers = shape.table.layout.keep_whole_numbers();
        if has_new_whole_numbers || (shape.placed != before && !self.are_names_noted(&shape)?) {
            self.note_columns(&shape)?;
        }
        if has_new_whole_numbers || shape.placed != before {
            shape.version = self.version()?;
        }
        self.run("COMMIT")?;
        self.shape = Some(shape);
        Ok(results)
    }

    /// Writes some of a batch's objects.
    fn take(
        &mut self,
        shape: &mut Shape,
        objects: &[&[u8]],
        results: &mut Vec<Result<(), BadObject>>,
    ) -> Result<()> {
        let (rows, refused): (Rows, Vec<(Line, Reason)>) = loop {
            let rows = parse_each(objects, &shape.form, std::mem::take(&mut self.spare));
            let placed = shape.table.layout.place(&rows, &self.options, None);
            let is_new = shape.table.layout.placed() != shape.placed;
            if is_new || placed.is_err() {
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
            match shape.table.write(&self.conn, &rows, &map) {
                Ok(inserted) if inserted.broken_after.is_some() => {
                    let why = "it has no key to make a column of, and there is no table yet";
                    let all = rows.rows.iter().map(|row| (row.line, Reason::Refused(why.to_owned())));
                    let all = all.collect();
                    break (rows, all);
                }
                Ok(inserted) => break (rows, inserted.refused),
                // Some tables cannot have a column without a type.
                Err(error) if is_new && is_tables(&error) && shape.closed.is_none() => {
                    *shape = self.close(error.to_string())?;
                }
                Err(error) if is_tables(&error) => {
                    return Err(Error::Invalid(format!("the table {:?} takes no rows: {error}", self.name)));
                }
                Err(error) => return Err(self.failed(&error)),
            }
        };
        if self.conn.is_autocommit() {
            return Err(Error::Invalid(format!(
                "the table {:?} has a trigger that takes back whole transactions; nothing of the \
                 batch was written",
                self.name
            )));
        }
        shape.table.layout.keep();
        let first = results.len();
        results.extend(objects.iter().map(|_| Ok(())));
        let bad = rows.bad.iter().map(|bad| (bad.line, bad.at, shape.reworded(&bad.reason)));
        for (line, at, reason) in bad.chain(refused.into_iter().map(|(line, reason)| (line, 0, reason))) {
            let index = line.number as usize;
            results[first + index] = Err(BadObject::new(objects[index], at, reason));
        }
        if rows.text.capacity() <= SPARE {
            self.spare = rows;
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

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("path", &self.path).field("table", &self.name).finish_non_exhaustive()
    }
}

impl Shape {
    /// Makes use of what was found out about keys.
    fn settle(&mut self, options: &Options) {
        self.table.layout.take_anything();
        self.placed = self.table.layout.placed();
        self.form = form(&self.table.layout, options);
        if self.closed.is_some() {
            self.form.others = Others::Refused;
        }
    }

    /// A key that has no column is a matter of the table, here.
    fn reworded(&self, reason: &Reason) -> Reason {
        match (reason, &self.closed) {
            (Reason::UnknownKey(key), Some(why)) => {
                Reason::Refused(format!("its table gets no column for the key {key:?}: {why}"))
            }
            (reason, _) => reason.clone(),
        }
    }
}

/// How objects are read for the table: what has no type stays as it is.
fn form(layout: &Layout, options: &Options) -> Form {
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

/// Whether it is the table that does not go with what is to be done with it, rather than the system that failed.
fn is_tables(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::Unknown)
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
            assert!(error.may_pass() && error.to_string().contains("the disk is full"), "{error}");
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
            assert!(matches!(error, Error::Busy(_)) && error.may_pass(), "{error}");
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
}
