//! The end of a table: finished, read again, or given up; and the record of each of its files.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use rusqlite::ErrorCode;

use super::super::base::Base;
use super::super::column::Column;
use super::super::control::{ImportPhase, add};
use super::super::key::Plan;
use super::super::layout::Layout;
use super::super::ledger::Record;
use super::super::loading::{Known, Loading, ReadFile, State};
use super::super::names::quoted;
use super::super::options::{ExistingTable, Target};
use super::super::selection;
use super::super::summary::FileOutcome;
use super::super::table::{self, Unfinished, Way};
use super::Writer;
use super::lacks::{no_columns, no_key, no_valid_line};
use crate::error::{Error, Result, is_tables};
use crate::kinds::Type;
use crate::source::Print;

/// What a dry run into a table that exists does not know.
const UNCHECKED: &str = "constraints other than the primary key, and triggers, are checked when it is loaded";

/// A table that cannot be settled in so many passes never will be.
const MAX_PASSES: u32 = 64;

impl Writer<'_> {
    /// All files of a table have been read.
    pub(super) fn end_table(&mut self, mut loading: Loading) -> Result<()> {
        let (rows, rejected) = (loading.all_rows(), loading.all_rejected());
        if loading.state == State::Watching {
            // Rows that have none of the columns are rows as soon as there is one.
            self.complete(&mut loading);
        }
        match loading.state {
            State::Abandoned => match loading.failure.take() {
                Some(why) => self.give_up(&loading, &why),
                None => self.load_again(loading),
            },
            _ if loading.read.is_empty() => self.give_up(&loading, ""),
            _ if loading.unread.iter().any(|file| file.rows > 0) => self.start_over(&loading),
            // What an old table does not take is known when its rows are read for its types.
            State::Watching
                if loading.table.is_old && self.base.is_none() && self.known(loading.index).passes == 1 =>
            {
                loading.settle();
                self.load_again(loading)
            }
            State::Watching if self.base.is_none() && loading.is_unfitted => {
                loading.settle();
                self.load_again(loading)
            }
            State::Watching if self.is_key_unchecked(&loading) => {
                loading.settle();
                loading.table.plan = Plan::Enforced(loading.table.watch.columns.clone());
                self.load_again(loading)
            }
            State::Watching if self.base.is_some() && !loading.table.layout.columns.is_empty() => {
                loading.settle();
                self.load_again(loading)
            }
            _ if self.lacks_columns(&loading) => {
                let why = no_columns(&self.options.columns);
                self.give_up(&loading, &why)
            }
            _ if rows == 0 && rejected > 0 && self.base.is_some() => {
                self.give_up(&loading, &no_valid_line(rejected))
            }
            _ if loading.is_replaced && rows == 0 => {
                self.give_up(&loading, "it has no rows, so the table that it was to replace was kept")
            }
            _ if self.lacks_key(&loading, rows) => {
                let why = no_key(&loading.table.watch.wanted);
                self.give_up(&loading, &why)
            }
            _ if self.lacks_table(&loading, rows) => {
                self.give_up(&loading, "no line has a key to make a column of, so no table can be made of it")
            }
            _ => self.finish_table(loading),
        }
    }

    /// Adds the columns that a schema names and no row had.
    fn complete(&self, loading: &mut Loading) {
        if self.options.columns.is_empty() {
            loading.table.layout.complete(self.options, self.schema(loading.index));
        }
    }

    fn finish_table(&mut self, mut loading: Loading) -> Result<()> {
        self.complete(&mut loading);
        match self.finish(&mut loading) {
            Ok(()) => {
                if loading.table.layout.columns.is_empty() && *self.target != Target::ValidateOnly {
                    self.control.rows.fetch_sub(loading.all_rows(), Ordering::Relaxed);
                    loading.forget_rows();
                }
                self.done(&loading)
            }
            Err(Unfinished::KeyBroken) => {
                loading.settle();
                loading.table.plan = Plan::Enforced(loading.table.watch.columns.clone());
                self.load_again(loading)
            }
            Err(Unfinished::Sqlite(error)) if is_tables(&error) => {
                self.give_up(&loading, &format!("its table cannot be finished: {error}"))
            }
            Err(Unfinished::Sqlite(error)) => {
                Err(self.base.as_ref().map_or(Error::Cancelled, |base| base.failed(&error)))
            }
        }
    }

    /// Whether an earlier pass read another file under this name.
    pub(super) fn was_another(&mut self, index: usize, print: &Print) -> bool {
        self.known(index).prints.get(&index).is_some_and(|before| before.hash != print.hash)
    }

    /// Takes back what was written of a table, and what was counted.
    fn take_back(&mut self, loading: &Loading) -> Result<()> {
        self.base.as_mut().map_or(Ok(()), Base::take_back_file)?;
        self.control.rows.fetch_sub(loading.all_rows(), Ordering::Relaxed);
        Ok(())
    }

    /// Reads the files of a table once more, with what is known now.
    fn load_again(&mut self, mut loading: Loading) -> Result<()> {
        let index = loading.index;
        self.take_back(&loading)?;
        self.rejects.take_back(loading.mark)?;
        self.control.rejected.fetch_sub(loading.all_rejected(), Ordering::Relaxed);
        let known = self.known(index);
        if known.passes >= MAX_PASSES {
            let why = format!("its columns are still not settled after {MAX_PASSES} passes");
            return self.fail_all(&loading, &why);
        }
        for column in &mut loading.table.layout.columns {
            column.is_made = column.is_old;
        }
        tracing::info!(table = %loading.table.name, pass = known.passes, "is read again");
        known.prints.extend(loading.read.iter().filter_map(|file| Some((file.index, file.print.clone()?))));
        known.layout = std::mem::take(&mut loading.table.layout);
        known.plan = loading.table.plan.clone();
        self.read_again(&loading)
    }

    /// Reads the files of a table once more, as if those that could not be read were not there.
    fn start_over(&mut self, loading: &Loading) -> Result<()> {
        self.take_back(loading)?;
        self.rejects.take_back(loading.mark)?;
        self.control.rejected.fetch_sub(loading.all_rejected(), Ordering::Relaxed);
        let known = self.known(loading.index);
        if let Some(before) = known.before.clone() {
            let (passes, before) = (known.passes, *before);
            *known = Known { passes, before: Some(Box::new(before.clone())), ..before };
        }
        self.read_again(loading)
    }

    fn read_again(&mut self, loading: &Loading) -> Result<()> {
        let is_unread = |index: &usize| loading.unread.iter().any(|file| file.index == *index);
        let again: Vec<usize> =
            self.group(loading.index).iter().copied().filter(|index| !is_unread(index)).collect();
        self.again.extend(again);
        for file in &loading.unread {
            self.fail_file(loading, file.index, file.rejected, &file.why)?;
        }
        match &mut self.base {
            Some(base) if !loading.unread.is_empty() => base.commit(),
            _ => Ok(()),
        }
    }

    /// A table that cannot be made costs its files.
    fn give_up(&mut self, loading: &Loading, why: &str) -> Result<()> {
        self.take_back(loading)?;
        self.fail_all(loading, why)
    }

    fn fail_all(&mut self, loading: &Loading, why: &str) -> Result<()> {
        for index in self.group(loading.index).to_vec() {
            let unread = loading.unread.iter().find(|file| file.index == index);
            let read = loading.read.iter().find(|file| file.index == index);
            let rejected = read.map_or(0, |file| file.rejected).max(unread.map_or(0, |file| file.rejected));
            self.fail_file(loading, index, rejected, unread.map_or(why, |file| &file.why))?;
        }
        self.base.as_mut().map_or(Ok(()), Base::commit)
    }

    fn fail_file(&mut self, loading: &Loading, index: usize, rejected: u64, why: &str) -> Result<()> {
        add(&self.control.files_done, 1);
        let file = &mut self.files[index];
        file.outcome = FileOutcome::Failed(why.to_owned());
        file.rejected = rejected;
        self.note_down(loading, index, loading.started, None, true)
    }

    /// Makes what a table gets when its rows are there.
    fn finish(&mut self, loading: &mut Loading) -> std::result::Result<(), Unfinished> {
        let Some(Base { conn, .. }) = &self.base else {
            let table = &mut loading.table;
            if table.is_old {
                table.layout.notes.extend(changes(&table.layout));
                table.layout.notes.push(UNCHECKED.to_owned());
                return Ok(());
            }
            if let Plan::Enforced(_) = table.plan {
                return Ok(());
            }
            table.plan = table.watch.plan(&table.layout);
            if let Plan::After(_) = table.plan {
                table.layout.notes.push(
                    "whether the primary key has no value twice is found out when it is loaded".to_owned(),
                );
            }
            return Ok(());
        };
        self.control.enter(ImportPhase::Indexing);
        let (table, belongings) = (&mut loading.table, &loading.belongings);
        table.finish(conn)?;
        for sql in belongings {
            match conn.execute_batch(sql) {
                Err(error) if is_definitions(&error) => {
                    let note = format!("what the old table had could not be made again: {sql}: {error}");
                    table.layout.notes.push(note);
                }
                made => made?,
            }
        }
        let schema = self.options.schema.tables.get(&self.stems[loading.index]);
        let of_schema = schema.into_iter().flat_map(|schema| &schema.indexes);
        for column in self.options.indexes.iter().chain(of_schema) {
            let Some(index) = table.layout.named(column) else { continue };
            table::make_index(conn, &table.name, &table.layout.columns[index].name)?;
        }
        self.control.enter(ImportPhase::Loading);
        Ok(())
    }

    /// The table is complete: each of its files gets its record.
    fn done(&mut self, loading: &Loading) -> Result<()> {
        let mut is_first = true;
        for read in &loading.read {
            if read.rows == 0 && read.rejected > 0 && self.base.is_some() {
                self.fail_file(loading, read.index, read.rejected, &no_valid_line(read.rejected))?;
                continue;
            }
            self.tell(loading, read, is_first);
            add(&self.control.files_done, 1);
            self.note_down(loading, read.index, read.started, read.print.as_ref(), is_first)?;
            is_first = false;
        }
        for file in &loading.unread {
            self.fail_file(loading, file.index, file.rejected, &file.why)?;
        }
        for index in self.group(loading.index).to_vec() {
            let file = &mut self.files[index];
            if file.outcome == FileOutcome::Waiting {
                file.notes.push(format!("{} was not read: the limit was reached before it", file.source));
            }
        }
        self.rejects.flush()?;
        let bytes = |file: &ReadFile| file.print.as_ref().map_or(0, |print| print.bytes);
        match &mut self.base {
            Some(base) => base.keep_file(loading.read.iter().map(bytes).sum()),
            None => Ok(()),
        }
    }

    /// What became of a file. What concerns its table is told with the first file of that.
    fn tell(&mut self, loading: &Loading, read: &ReadFile, is_first: bool) {
        let (table, options) = (&loading.table, self.options);
        let schema = self.schema(read.index);
        let action = self.action(loading, is_first).word();
        let file = &mut self.files[read.index];
        file.outcome = FileOutcome::Loaded;
        file.action = (*self.target != Target::ValidateOnly).then_some(action);
        file.rows = read.rows;
        file.rejected = read.rejected;
        file.blank = read.blank;
        file.bytes = read.print.as_ref().map_or(file.bytes, |print| print.bytes);
        file.columns = table
            .layout
            .columns
            .iter()
            .map(|column| (column.name.clone(), column.kind().sql().to_owned()))
            .collect();
        file.primary_key = table.key();
        let has_table = !table.layout.columns.is_empty();
        if !has_table && *self.target != Target::ValidateOnly {
            file.notes.push("no line has a key to make a column of: there is no table".to_owned());
        }
        if !is_first {
            return;
        }
        file.notes.extend(table.layout.notes.iter().cloned());
        file.sql = (has_table && !table.is_old).then(|| table.sql(true));
        let found =
            options.columns.iter().filter(|name| selection::has(&table.layout, name, options, schema));
        self.matched.extend(found.cloned());
        let indexes = schema.into_iter().flat_map(|schema| &schema.indexes);
        for name in table.watch.wanted.iter().chain(&options.indexes).chain(indexes) {
            if table.layout.named(name).is_some() {
                self.matched.insert(name.clone());
            } else if has_table && !options.indexes.contains(name) {
                let is_key = table.watch.wanted.contains(name);
                let what = if is_key { "the primary key" } else { "an index" };
                file.notes.push(format!("there is no column {name:?} for {what}"));
                file.unmatched.extend((!is_key).then(|| name.clone()));
            }
        }
        file.notes.extend(table.layout.columns.iter().filter_map(Column::of_decimals));
        file.notes.extend(loading.note.clone());
    }

    /// What is done to the table of a file.
    fn action(&self, loading: &Loading, is_first: bool) -> ExistingTable {
        match self.options.existing {
            existing if loading.table.is_old => existing,
            ExistingTable::Upsert if !is_first => ExistingTable::Upsert,
            // The first file has made the table.
            _ if !is_first => ExistingTable::Append,
            existing if loading.is_replaced => existing,
            _ => ExistingTable::Refuse,
        }
    }

    fn note_down(
        &self,
        loading: &Loading,
        index: usize,
        started: Timestamp,
        print: Option<&Print>,
        is_first: bool,
    ) -> Result<()> {
        let Some(base) = &self.base else { return Ok(()) };
        let mode = self.action(loading, is_first);
        let is_loaded = self.files[index].outcome == FileOutcome::Loaded;
        let record = Record {
            file: &self.files[index],
            print,
            mode: mode.word(),
            options: &self.options.shape(),
            columns: is_loaded.then(|| loading.table.layout.keys_of_columns()),
            whole_numbers: is_loaded.then(|| loading.table.layout.columns_with_whole_numbers()),
            table_rows: if is_loaded { self.table_rows(loading, base)? } else { None },
            started,
        };
        base.write_record(&record)
    }

    /// How many rows the table has at least, if that can be known without counting those that were there before.
    fn table_rows(&self, loading: &Loading, base: &Base<'_>) -> Result<Option<u64>> {
        let table = &loading.table;
        let known = self.known.get(&self.leaders[loading.index]);
        let before = known.and_then(|known| known.table_rows);
        Ok(match (table.way, table.is_old) {
            (Way::Insert, _) => Some(before.unwrap_or(0) + loading.all_rows()),
            (Way::Upsert, true) => before,
            (Way::Upsert, false) => {
                let count = format!("SELECT count(*) FROM {}", quoted(&table.name));
                let count = base.conn.query_row(&count, [], |row| row.get::<_, i64>(0));
                Some(count.map_err(|error| base.failed(&error))?.unsigned_abs())
            }
        })
    }
}

/// Whether the definition of an index or a trigger does not go with the new table or its rows, rather than the system that
/// failed.
fn is_definitions(error: &rusqlite::Error) -> bool {
    let of_rows = [ErrorCode::ConstraintViolation, ErrorCode::TypeMismatch, ErrorCode::TooBig];
    is_tables(error) || error.sqlite_error_code().is_some_and(|code| of_rows.contains(&code))
}

/// What would be changed in a table that exists.
fn changes(layout: &Layout) -> Vec<String> {
    let names = |columns: Vec<&Column>| {
        columns.iter().map(|column| format!("{:?}", column.name)).collect::<Vec<_>>().join(", ")
    };
    let new: Vec<&Column> = layout.columns.iter().filter(|column| !column.is_old).collect();
    let mut changes = Vec::new();
    if !new.is_empty() {
        changes.push(format!("gets new columns: {}", names(new)));
    }
    let wider = layout.columns.iter().filter_map(|column| {
        let (before, now) = (column.before?, column.declared?);
        let word = |kind: Type| if kind == Type::Any { "untyped" } else { kind.sql() };
        (before != now)
            .then(|| format!("the column {:?} is {}, becomes {}", column.name, word(before), word(now)))
    });
    changes.extend(wider);
    changes
}
