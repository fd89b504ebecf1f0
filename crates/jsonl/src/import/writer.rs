//! The one writer: takes rows in order and brings them into tables, file by file.
//!
//! Owns the passes. A file is loaded with what is known of it. When that turns out to be wrong (a column of
//! numbers has a text in line 400,000), the rest of it is only looked at, and it is loaded once more, knowing all.

mod dry_run;
mod ending;
mod lacks;
mod limit;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::Connection;

use super::base::Base;
use super::control::{ImportHandle, add};
use super::key::{Plan, Watch};
use super::layout::{MAX_COLUMNS, Snag};
use super::ledger;
use super::loading::{Known, Loading, State};
use super::names::quoted;
use super::options::{ExistingTable, ImportOptions, OnError, Target};
use super::rejects::Rejects;
use super::retype;
use super::schema::TableSchema;
use super::stream::{Demand, Event, Spare};
use super::summary::{FileOutcome, FileSummary, RejectedLine};
use super::table::{self, Table};
use crate::error::{Error, Result, is_tables};
use crate::fault::ParseErrorKind;
use crate::rows::{Line, Rows};
use crate::source::{self, Print};

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
    pub(crate) examples: Vec<RejectedLine>,
    pub(crate) stopped_by: Option<RejectedLine>,
}

pub(crate) struct Writer<'a> {
    options: &'a ImportOptions,
    control: &'a ImportHandle,
    target: &'a Target,
    base: Option<Base<'a>>,
    rejects: Rejects,
    pub(crate) files: Vec<FileSummary>,
    /// What the files' names make of them, by which a schema knows them.
    stems: Vec<String>,
    /// The first file of each file's table.
    leaders: Vec<usize>,
    /// Files of a table that are read in this pass, by its first file.
    expected: HashMap<usize, Vec<usize>>,
    /// What is known of a table, by its first file.
    pub(crate) known: HashMap<usize, Known>,
    /// Files that have to be loaded again.
    pub(crate) again: Vec<usize>,
    pub(crate) stopped_by: Option<RejectedLine>,
    loading: Option<Loading>,
    /// Columns that were asked for, and found in some table.
    pub(crate) matched: HashSet<String>,
    pub(crate) spare: Arc<Spare>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        options: &'a ImportOptions,
        control: &'a ImportHandle,
        target: &'a Target,
        base: Option<Base<'a>>,
        (files, stems, leaders): (Vec<FileSummary>, Vec<String>, Vec<usize>),
    ) -> Result<Self> {
        Ok(Writer {
            options,
            control,
            target,
            base,
            rejects: Rejects::open(options.rejects.as_deref())?,
            files,
            stems,
            leaders,
            expected: HashMap::new(),
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

    /// A file that is read in this pass. The first file of its table.
    pub(crate) fn expect(&mut self, index: usize) -> usize {
        let leader = self.leaders[index];
        self.expected.entry(leader).or_default().push(index);
        leader
    }

    /// The files of a table that are read in this pass.
    fn group(&self, index: usize) -> &[usize] {
        self.expected.get(&self.leaders[index]).map_or(&[], Vec::as_slice)
    }

    /// What is known of a file's table.
    fn known(&mut self, index: usize) -> &mut Known {
        self.known.entry(self.leaders[index]).or_default()
    }

    /// Takes what comes next of a file.
    pub(crate) fn take(&mut self, index: usize, event: Event, demand: &Arc<Demand>) -> Result<Next> {
        match &mut self.loading {
            None => self.begin(index, demand)?,
            Some(loading) if loading.index != index => loading.next_file(index),
            Some(_) => {}
        }
        match event {
            Event::Rows(rows, permit) => {
                if let Some(loading) = &mut self.loading
                    && loading.waits_for_more()
                {
                    // Without its permit, for the next block may be so large that it has to wait for all of them.
                    loading.held = Some(rows);
                    return Ok(Next::GoOn);
                }
                if self.held_rows(false)? == Next::Stop {
                    return Ok(Next::Stop);
                }
                let next = self.rows(rows);
                drop(permit);
                next
            }
            Event::End(end) => match self.held_rows(end.is_ok())? {
                Next::GoOn => self.end(end),
                Next::Stop => Ok(Next::Stop),
            },
        }
    }

    /// Takes the first block, when it is known whether it is the only one.
    fn held_rows(&mut self, is_whole: bool) -> Result<Next> {
        let Some(loading) = &mut self.loading else { return Ok(Next::GoOn) };
        let Some(rows) = loading.held.take() else { return Ok(Next::GoOn) };
        loading.table.is_whole = is_whole;
        self.rows(rows)
    }

    fn begin(&mut self, index: usize, demand: &Arc<Demand>) -> Result<()> {
        let is_one_of_many = self.group(index).len() > 1;
        let known = self.known(index);
        if is_one_of_many && known.before.is_none() {
            known.before = Some(Box::new(known.clone()));
        }
        known.passes += 1;
        let (known, passes) = (known.clone(), known.passes);
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
        let wanted = self.options.key_of(&self.stems[index]).to_vec();
        let watch = Watch::new(wanted, self.options.existing == ExistingTable::Upsert);
        let mut table = Table::new(name, known.layout, known.plan, watch, known.is_old);
        table.required = known.required;
        table.has_conflict_clause = known.has_conflict_clause;
        self.loading = Some(Loading {
            index,
            read: Vec::new(),
            unread: Vec::new(),
            taken: 0,
            filled_by: None,
            keys: self.key_check(&table, passes)?,
            table,
            state: if self.base.is_some() { State::Writing } else { State::Watching },
            rows: 0,
            rejected: 0,
            blank: 0,
            lines: 0,
            has_objects: false,
            is_unfitted: false,
            held: None,
            has_begun: is_one_of_many,
            mark: self.rejects.mark()?,
            started: Timestamp::now(),
            demand: demand.clone(),
            is_replaced: known.is_replaced && self.base.as_ref().is_none_or(|base| !base.is_new),
            note,
            failure: None,
            belongings,
        });
        Ok(())
    }

    fn rows(&mut self, mut rows: Box<Rows>) -> Result<Next> {
        let Some(mut loading) = self.loading.take() else { return Ok(Next::GoOn) };
        let next = self.rows_of(&mut loading, &mut rows);
        self.loading = Some(loading);
        self.spare.give(*rows, self.options.block);
        next
    }

    fn rows_of(&mut self, loading: &mut Loading, rows: &mut Rows) -> Result<Next> {
        if let Some(base) = &self.base {
            base.check()?;
        }
        if loading.state == State::Abandoned || loading.is_full() {
            return Ok(Next::GoOn);
        }
        let next = match self.options.limit {
            Some(limit) => self.limited_rows(loading, rows, limit)?,
            None => self.all_rows(loading, rows)?,
        };
        loading.blank += u64::from(rows.blank);
        loading.lines += u64::from(rows.lines);
        Ok(next)
    }

    fn all_rows(&mut self, loading: &mut Loading, rows: &mut Rows) -> Result<Next> {
        loading.has_objects |= !rows.rows.is_empty();
        let mut bad: Vec<(Line, usize, ParseErrorKind)> =
            std::mem::take(&mut rows.bad).into_iter().map(|bad| (bad.line, bad.at, bad.reason)).collect();
        let mut written = rows.rows.len() as u64;
        if *self.target != Target::ValidateOnly {
            match loading.table.layout.place(rows, self.options, self.schema(loading.index)) {
                Ok(map) => {
                    let table = &mut loading.table;
                    if widened(table, self.base.as_ref())?
                        | (loading.state == State::Writing && is_wrong(table))
                    {
                        loading.state = State::Watching;
                    }
                    match (&self.base, loading.state) {
                        (Some(base), State::Writing) => {
                            if table.is_whole && !table.is_old && self.options.columns.is_empty() {
                                let stem = &self.stems[loading.index];
                                table.layout.complete(self.options, self.options.schema.tables.get(stem));
                            }
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
                                    "the table {:?} has a trigger that takes back whole \
                                     transactions; nothing was loaded into it",
                                    table.name
                                )));
                            }
                            written = inserted.rows;
                            let refused = inserted.refused.len() as u64;
                            bad.extend(inserted.refused.into_iter().map(|(line, reason)| (line, 0, reason)));
                            if let Some(seen) = inserted.broken_after {
                                // From here on rows are counted without being written.
                                written = (rows.rows.len() as u64).saturating_sub(refused);
                                loading.state = State::Watching;
                                table.watch(rows, &map, seen);
                            }
                        }
                        (None, _) if table.is_old || matches!(table.plan, Plan::Enforced(_)) => {
                            table.watch(rows, &map, 0);
                            let refused = table.refused(rows, &map, loading.keys.as_ref());
                            let refused = refused.map_err(|error| self.failed_check(&error))?;
                            written -= refused.len() as u64;
                            bad.extend(refused.into_iter().map(|(line, reason)| (line, 0, reason)));
                        }
                        _ => table.watch(rows, &map, 0),
                    }
                }
                Err(Snag::TooMany | Snag::Moved) => {
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
                Err(Snag::Unfitted) => {
                    loading.state = State::Watching;
                    loading.is_unfitted = true;
                }
            }
        }
        loading.rows += written;
        add(&self.control.rows, written);
        bad.sort_by_key(|(line, _, _)| line.span.start);
        self.bad(loading, rows, bad)
    }

    fn bad(
        &mut self,
        loading: &mut Loading,
        rows: &Rows,
        bad: Vec<(Line, usize, ParseErrorKind)>,
    ) -> Result<Next> {
        for (line, at, reason) in bad {
            loading.rejected += 1;
            add(&self.control.rejected, 1);
            let rejected = RejectedLine {
                file: self.files[loading.index].source.clone(),
                line: loading.lines + u64::from(line.number) + 1,
                column: u64::from(line.column) + at as u64 + 1,
                reason: reason.to_string(),
            };
            let bytes = rows.line(line);
            let is_cut = matches!(reason, ParseErrorKind::TooLong(limit) if bytes.len() <= limit);
            self.rejects.add(rejected.clone(), bytes, is_cut)?;
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
        let index = loading.index;
        match end {
            _ if loading.state == State::Abandoned => loading.end_file(None),
            _ if loading.is_full() => {
                // Files behind it were not read.
                if loading.filled_by == Some(index) {
                    loading.end_file(None);
                }
            }
            Err(error) => loading.fail_file(error.to_string()),
            Ok(print) if self.was_another(index, &print) => {
                let why = source::changed(Path::new(&self.files[index].source));
                loading.fail_file(why.to_string());
            }
            Ok(print) => loading.end_file(Some(print)),
        }
        if self.group(index).last().is_some_and(|last| *last != index) {
            self.loading = Some(loading);
            return Ok(Next::GoOn);
        }
        self.end_table(loading)?;
        self.expected.remove(&self.leaders[index]);
        Ok(Next::GoOn)
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
                let why = match self.options.on_error {
                    OnError::FailAfter(most) => {
                        let lines = if most == 1 { "line" } else { "lines" };
                        format!(
                            "more than {most} bad {lines} (--max-errors {most}); stopped at line {}",
                            bad.line
                        )
                    }
                    _ => format!("line {} is bad (--on-error fail): {}", bad.line, bad.reason),
                };
                file.outcome = FileOutcome::Failed(why);
            }
        }
        self.rejects.flush()?;
        let conn = self.base.map(|base| base.end(failed)).transpose()?;
        Ok(Ended { conn, files: self.files, examples: self.rejects.examples, stopped_by: self.stopped_by })
    }
}

/// Whether columns that the table has were made wider.
fn widened(table: &mut Table, base: Option<&Base<'_>>) -> Result<bool> {
    let name = &table.name;
    table.layout.widen(|column, what| match base {
        Some(base) => retype::holds(&base.conn, name, column, what).map_err(|error| base.failed(&error)),
        None => Ok(false),
    })
}

/// Names of columns, for people.
pub(crate) fn shown(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Whether what was written is not what should be: numbers in a column that turned out to be text, or a column that an
/// old table has not.
fn is_wrong(table: &Table) -> bool {
    let columns = &table.layout.columns;
    let inferred = || columns.iter().filter(|column| column.fate == crate::keys::Fate::Inferred);
    inferred().any(|column| !column.kinds.are_stored_well())
        || (table.is_old && inferred().any(|column| !column.is_made))
}
