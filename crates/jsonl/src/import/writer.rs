//! The one writer: takes rows in order and brings them into tables, file by file.
//!
//! Owns the passes. A file is loaded with what is known of it. When that turns out to be wrong (a column of
//! numbers has a text in line 400,000), the rest of it is only looked at, and it is loaded once more, knowing all.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode};

use super::base::Base;
use super::control::{Control, Phase, add};
use super::key::Plan;
use super::layout::{Column, MAX_COLUMNS, Snag};
use super::ledger::{self, Record};
use super::loading::{Known, Loading, State};
use super::names::quoted;
use super::options::{Existing, OnError, Options, Target};
use super::rejects::Rejects;
use super::schema::TableSchema;
use super::stream::{Event, Spare};
use super::summary::{FileSummary, Outcome, Rejected};
use super::table::{self, Table, Unfinished, Way};
use crate::error::{Error, Result};
use crate::fault::Reason;
use crate::rows::{Line, Rows};
use crate::source::{self, Print};

/// A file that cannot be settled in so many passes never will be.
const MOST_PASSES: u32 = 64;

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    GoOn,
    /// There were more bad lines than were allowed.
    Stop,
}

/// What is left when all is done.
pub(crate) struct Ended {
    pub(crate) conn: Option<Connection>,
    pub(crate) files: Vec<FileSummary>,
    pub(crate) examples: Vec<Rejected>,
    pub(crate) stopped_by: Option<Rejected>,
}

pub(crate) struct Writer<'a> {
    options: &'a Options,
    control: &'a Control,
    target: &'a Target,
    base: Option<Base<'a>>,
    rejects: Rejects,
    pub(crate) files: Vec<FileSummary>,
    /// What the files' names make of them, by which a schema knows them.
    stems: Vec<String>,
    pub(crate) known: HashMap<usize, Known>,
    /// Files that have to be loaded again.
    pub(crate) again: Vec<usize>,
    pub(crate) stopped_by: Option<Rejected>,
    loading: Option<Loading>,
    /// Columns that were asked for, and found in some table.
    pub(crate) matched: HashSet<String>,
    pub(crate) spare: Arc<Spare>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        options: &'a Options,
        control: &'a Control,
        target: &'a Target,
        base: Option<Base<'a>>,
        (files, stems): (Vec<FileSummary>, Vec<String>),
    ) -> Result<Self> {
        Ok(Writer {
            options,
            control,
            target,
            base,
            rejects: Rejects::open(options.rejects.as_deref())?,
            files,
            stems,
            known: HashMap::new(),
            again: Vec::new(),
            stopped_by: None,
            loading: None,
            matched: HashSet::new(),
            spare: Arc::default(),
        })
    }

    fn schema(&self, index: usize) -> Option<&'a TableSchema> {
        let options = self.options;
        options.schema.tables.get(&self.stems[index])
    }

    /// Takes what comes next of a file.
    pub(crate) fn take(&mut self, index: usize, event: Event, abandoned: &Arc<AtomicBool>) -> Result<Next> {
        if self.loading.is_none() {
            self.begin(index, abandoned)?;
        }
        match event {
            Event::Rows(mut rows, permit) => {
                let next = self.rows(&mut rows);
                self.spare.give(*rows, self.options.block);
                drop(permit);
                next
            }
            Event::End(end) => self.end(end),
        }
    }

    fn begin(&mut self, index: usize, abandoned: &Arc<AtomicBool>) -> Result<()> {
        let known = self.known.entry(index).or_default();
        known.passes += 1;
        let known = known.clone();
        let name = self.files[index].table.clone();
        let (mut belongings, mut note) = (Vec::new(), None);
        if let Some(base) = &mut self.base {
            base.begin_file()?;
            if known.is_replaced {
                belongings = table::belongings(&base.conn, &name).map_err(|error| base.failed(&error))?;
                let is_ours = ledger::is_ours(&base.conn, &name).map_err(|error| base.failed(&error))?;
                note = (!is_ours).then(|| {
                    "the old table was not made by an import; its own constraints are gone".to_owned()
                });
                base.batch(&format!("DROP TABLE IF EXISTS {}", quoted(&name)))?;
            }
        }
        let schema = self.schema(index);
        let wanted =
            schema.and_then(|schema| schema.primary_key.clone()).or_else(|| self.options.primary_key.clone());
        let way = known.way.unwrap_or(Way::Insert);
        let mut table = Table::new(name, known.layout, known.plan, wanted, known.is_old, way);
        table.upserts = self.options.existing == Existing::Upsert;
        self.loading = Some(Loading {
            index,
            table,
            state: if self.base.is_some() { State::Writing } else { State::Watching },
            rows: 0,
            rejected: 0,
            blank: 0,
            lines: 0,
            mark: self.rejects.mark()?,
            started: Timestamp::now(),
            abandoned: abandoned.clone(),
            is_replaced: known.is_replaced && self.base.as_ref().is_some_and(|base| !base.is_new),
            note,
            failure: None,
            belongings,
        });
        Ok(())
    }

    fn rows(&mut self, rows: &mut Rows) -> Result<Next> {
        let Some(mut loading) = self.loading.take() else { return Ok(Next::GoOn) };
        let next = self.rows_of(&mut loading, rows);
        self.loading = Some(loading);
        next
    }

    fn rows_of(&mut self, loading: &mut Loading, rows: &mut Rows) -> Result<Next> {
        if loading.state == State::Abandoned {
            return Ok(Next::GoOn);
        }
        let mut bad: Vec<(Line, usize, Reason)> =
            std::mem::take(&mut rows.bad).into_iter().map(|bad| (bad.line, bad.at, bad.reason)).collect();
        let mut written = rows.rows.len() as u64;
        if *self.target != Target::Nothing {
            match loading.table.layout.place(rows, self.schema(loading.index)) {
                Ok(map) => {
                    let table = &mut loading.table;
                    if table.layout.widen() | (loading.state == State::Writing && is_wrong(table)) {
                        loading.state = State::Watching;
                    }
                    match (&self.base, loading.state) {
                        (Some(base), State::Writing) => {
                            let inserted = match table.write(&base.conn, rows, &map) {
                                Ok(inserted) => inserted,
                                Err(error) if is_tables(&error) => {
                                    loading.fail(format!("its table does not take it: {error}"));
                                    return Ok(Next::GoOn);
                                }
                                Err(error) => return Err(base.failed(&error)),
                            };
                            if base.conn.is_autocommit() {
                                return Err(Error::Invalid(format!(
                                    "the table {:?} has a conflict clause or a trigger that takes back whole \
                                     transactions; nothing was loaded into it",
                                    table.name
                                )));
                            }
                            written = inserted.rows;
                            bad.extend(inserted.refused.into_iter().map(|(line, reason)| (line, 0, reason)));
                            if let Some(seen) = inserted.broken_after {
                                loading.state = State::Watching;
                                table.watch(rows, &map, seen);
                            }
                        }
                        _ => table.watch(rows, &map, 0),
                    }
                }
                Err(Snag::TooMany) => {
                    // Columns have moved, and the key with them.
                    if !matches!(loading.table.plan, Plan::Kept(_)) {
                        loading.table.plan = Plan::Open;
                    }
                    loading.abandon();
                    return Ok(Next::GoOn);
                }
                Err(Snag::NoRoom(key)) => {
                    loading.fail(format!(
                        "its table has no room for a column {key:?}: SQLite has {MAX_COLUMNS} at most"
                    ));
                    return Ok(Next::GoOn);
                }
                Err(Snag::Unfitted) => loading.state = State::Watching,
            }
        }
        loading.rows += written;
        loading.blank += u64::from(rows.blank);
        add(&self.control.rows, written);
        bad.sort_by_key(|(line, _, _)| line.span.start);
        let next = self.bad(loading, rows, bad)?;
        loading.lines += u64::from(rows.lines);
        Ok(next)
    }

    fn bad(&mut self, loading: &mut Loading, rows: &Rows, bad: Vec<(Line, usize, Reason)>) -> Result<Next> {
        for (line, at, reason) in bad {
            loading.rejected += 1;
            add(&self.control.rejected, 1);
            let rejected = Rejected {
                file: self.files[loading.index].source.clone(),
                line: loading.lines + u64::from(line.number) + 1,
                column: u64::from(line.column) + at as u64 + 1,
                reason: reason.to_string(),
            };
            self.rejects.add(rejected.clone(), rows.line(line))?;
            let most = match self.options.on_error {
                OnError::Skip => u64::MAX,
                OnError::Fail => 0,
                OnError::FailAfter(most) => most,
            };
            if self.rejects.count > most {
                self.stopped_by = Some(rejected);
                return Ok(Next::Stop);
            }
        }
        Ok(Next::GoOn)
    }

    fn end(&mut self, end: io::Result<Print>) -> Result<Next> {
        let Some(mut loading) = self.loading.take() else { return Ok(Next::GoOn) };
        match (end, loading.state) {
            (_, State::Abandoned) => match loading.failure.take() {
                Some(why) => self.give_up(&loading, &why)?,
                None => self.load_again(loading)?,
            },
            (Err(error), _) => self.give_up(&loading, &error.to_string())?,
            (Ok(print), State::Watching)
                if self.base.is_some() && !loading.table.layout.columns.is_empty() =>
            {
                self.known.entry(loading.index).or_default().print = Some(print);
                loading.settle();
                self.load_again(loading)?;
            }
            (Ok(print), _) if self.was_another(&loading, &print) => {
                let why = source::changed(Path::new(&self.files[loading.index].source));
                self.give_up(&loading, &why.to_string())?;
            }
            (Ok(_), _) if loading.rows == 0 && loading.rejected > 0 && self.base.is_some() => {
                self.give_up(&loading, "none of its lines could be taken; the first ones are told below")?;
            }
            (Ok(_), _) if loading.is_replaced && loading.rows == 0 => {
                self.give_up(&loading, "it has no rows, so the table that it was to replace was kept")?;
            }
            (Ok(print), _) => {
                loading.table.layout.complete(self.options, self.schema(loading.index));
                match self.finish(&mut loading) {
                    Ok(()) => self.done(&loading, &print)?,
                    Err(Unfinished::KeyBroken) => {
                        self.known.entry(loading.index).or_default().print = Some(print);
                        loading.settle();
                        if let Some(index) = loading.table.watch.column {
                            loading.table.plan = Plan::Enforced(index);
                            if loading.table.upserts {
                                self.known.entry(loading.index).or_default().way = Some(Way::Upsert);
                            }
                        }
                        self.load_again(loading)?;
                    }
                    Err(Unfinished::Sqlite(error)) if is_tables(&error) => {
                        self.give_up(&loading, &format!("its table cannot be finished: {error}"))?;
                    }
                    Err(Unfinished::Sqlite(error)) => {
                        return Err(self.base.as_ref().map_or(Error::Stopped, |base| base.failed(&error)));
                    }
                }
            }
        }
        Ok(Next::GoOn)
    }

    /// Whether an earlier pass read another file under this name.
    fn was_another(&self, loading: &Loading, print: &Print) -> bool {
        let before = self.known.get(&loading.index).and_then(|known| known.print.as_ref());
        before.is_some_and(|before| before.hash != print.hash)
    }

    fn load_again(&mut self, mut loading: Loading) -> Result<()> {
        let index = loading.index;
        self.base.as_mut().map_or(Ok(()), Base::take_back_file)?;
        self.rejects.take_back(loading.mark)?;
        self.control.rows.fetch_sub(loading.rows, Ordering::Relaxed);
        self.control.rejected.fetch_sub(loading.rejected, Ordering::Relaxed);
        let known = self.known.entry(index).or_default();
        if known.passes >= MOST_PASSES {
            return self.give_up_noted(&loading, "its columns are still not settled after so many passes");
        }
        for column in &mut loading.table.layout.columns {
            column.is_made = column.is_old;
        }
        tracing::info!(file = %self.files[index].source, pass = known.passes, "is read again");
        known.layout = loading.table.layout;
        known.plan = loading.table.plan;
        self.again.push(index);
        Ok(())
    }

    /// A file that cannot be read costs itself.
    fn give_up(&mut self, loading: &Loading, why: &str) -> Result<()> {
        self.base.as_mut().map_or(Ok(()), Base::take_back_file)?;
        self.control.rows.fetch_sub(loading.rows, Ordering::Relaxed);
        self.give_up_noted(loading, why)
    }

    fn give_up_noted(&mut self, loading: &Loading, why: &str) -> Result<()> {
        add(&self.control.files_done, 1);
        let file = &mut self.files[loading.index];
        file.outcome = Outcome::Failed(why.to_owned());
        file.rejected = loading.rejected;
        self.note_down(loading, None)?;
        self.base.as_mut().map_or(Ok(()), Base::commit)
    }

    /// Makes what a table gets when its rows are there.
    fn finish(&mut self, loading: &mut Loading) -> std::result::Result<(), Unfinished> {
        let Some(Base { conn, .. }) = &self.base else {
            let table = &mut loading.table;
            table.plan = table.watch.plan(&table.layout);
            if let Plan::After(_) = table.plan {
                table.layout.notes.push(
                    "whether the primary key has no value twice is found out when it is loaded".to_owned(),
                );
            }
            return Ok(());
        };
        self.control.enter(Phase::Indexing);
        let (table, belongings) = (&mut loading.table, &loading.belongings);
        table.finish(conn)?;
        for sql in belongings {
            if let Err(error) = conn.execute_batch(sql) {
                table
                    .layout
                    .notes
                    .push(format!("what the old table had could not be made again: {sql}: {error}"));
            }
        }
        let schema = self.options.schema.tables.get(&self.stems[loading.index]);
        let of_schema = schema.into_iter().flat_map(|schema| &schema.indexes);
        for column in self.options.indexes.iter().chain(of_schema) {
            let Some(index) = table.layout.named(column) else { continue };
            table::make_index(conn, &table.name, &table.layout.columns[index].name)?;
        }
        self.control.enter(Phase::Loading);
        Ok(())
    }

    fn done(&mut self, loading: &Loading, print: &Print) -> Result<()> {
        let table = &loading.table;
        let file = &mut self.files[loading.index];
        file.outcome = Outcome::Loaded;
        file.rows = loading.rows;
        file.rejected = loading.rejected;
        file.blank = loading.blank;
        file.bytes = print.bytes;
        file.columns = table
            .layout
            .columns
            .iter()
            .map(|column| (column.name.clone(), column.kind().sql().to_owned()))
            .collect();
        file.primary_key = table.key();
        file.notes.clone_from(&table.layout.notes);
        let has_table = !table.layout.columns.is_empty();
        file.sql = (has_table && !table.is_old).then(|| table.sql(true));
        if !has_table && *self.target != Target::Nothing {
            file.notes.push("no line has a key to make a column of: there is no table".to_owned());
        }
        let of_schema = self.options.schema.tables.get(&self.stems[loading.index]);
        let indexes = of_schema.into_iter().flat_map(|schema| &schema.indexes);
        for name in table.watch.wanted.iter().chain(&self.options.indexes).chain(indexes) {
            if table.layout.named(name).is_some() {
                self.matched.insert(name.clone());
            } else if has_table && !self.options.indexes.contains(name) {
                let what =
                    if table.watch.wanted.as_ref() == Some(name) { "the primary key" } else { "an index" };
                file.notes.push(format!("there is no column {name:?} for {what}"));
            }
        }
        file.notes.extend(table.layout.columns.iter().filter_map(Column::of_decimals));
        file.notes.extend(loading.note.clone());
        add(&self.control.files_done, 1);
        self.note_down(loading, Some(print))?;
        self.rejects.flush()?;
        match &mut self.base {
            Some(base) => base.keep_file(print.bytes),
            None => Ok(()),
        }
    }

    fn note_down(&self, loading: &Loading, print: Option<&Print>) -> Result<()> {
        let Some(base) = &self.base else { return Ok(()) };
        let mode = if loading.table.is_old || loading.is_replaced {
            self.options.existing
        } else {
            Existing::Refuse
        };
        let record = Record {
            file: &self.files[loading.index],
            print,
            mode: mode.word(),
            options: &self.options.shape(),
            renamed: &loading.table.layout.renamed(),
            started: loading.started,
        };
        ledger::write(&base.conn, &record).map_err(|error| base.failed(&error))
    }

    /// Ends what is under way.
    pub(crate) fn end_all(mut self, failed: bool) -> Result<Ended> {
        let loading = self.loading.take();
        if failed {
            // Rows that are not kept have no rejects either.
            let is_lost = self.base.as_ref().is_some_and(|base| base.is_new) && !self.options.resume;
            match &loading {
                _ if is_lost => self.rejects.discard(None)?,
                Some(loading) => self.rejects.discard(Some(loading.mark))?,
                None => {}
            }
        }
        if let Some(loading) = loading {
            let file = &mut self.files[loading.index];
            file.rejected = loading.rejected;
            if let Some(bad) = &self.stopped_by {
                file.outcome = Outcome::Failed(format!("its line {} is bad: {}", bad.line, bad.reason));
            }
        }
        self.rejects.flush()?;
        let conn = self.base.map(|base| base.end(failed)).transpose()?;
        Ok(Ended { conn, files: self.files, examples: self.rejects.examples, stopped_by: self.stopped_by })
    }
}

/// Whether it is the table that does not go with what is to be done with it, rather than the system that failed.
fn is_tables(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::Unknown)
}

/// Whether what was written is not what should be: numbers in a column that turned out to be text, or a column that an
/// old table has not.
fn is_wrong(table: &Table) -> bool {
    let columns = &table.layout.columns;
    let inferred = || columns.iter().filter(|column| column.fate == crate::keys::Fate::Inferred);
    inferred().any(|column| !column.kinds.are_stored_well())
        || (table.is_old && inferred().any(|column| !column.is_made))
}
