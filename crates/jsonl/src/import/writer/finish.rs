//! Ends a table: completes it, reads its files again, or fails it. Logs each of its files.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use rusqlite::ErrorCode;

use super::super::column::Column;
use super::super::file_load::{FileCounts, FileLoad, LoadState, TableState};
use super::super::handle::{ImportPhase, add};
use super::super::import_log::Record;
use super::super::key::KeyPlan;
use super::super::layout::Layout;
use super::super::options::{ExistingTable, Target};
use super::super::selection;
use super::super::summary::FileOutcome;
use super::super::table::{self, Finish, WriteMode};
use super::super::transaction::ImportTx;
use super::Writer;
use super::checks::{no_columns_message, no_key_message, no_valid_line_message};
use crate::error::{Result, is_table_mismatch};
use crate::source::Fingerprint;
use crate::sql::{Sql, count_rows};
use crate::types::Type;

/// Note about what a dry run into an existing table does not check.
const UNCHECKED: &str = "constraints other than the primary key, and triggers, are checked when the file is loaded";

/// Maximum number of passes over the files of a table.
const MAX_PASSES: u32 = 64;

impl Writer<'_> {
    /// Ends a table after all its files were read.
    pub(super) fn end_table(&mut self, mut load: FileLoad) -> Result<()> {
        let (rows, rejected) = (load.all_rows(), load.all_rejected());
        if load.state == LoadState::Inspecting {
            // Rows without any column count as soon as the schema adds a column.
            self.add_schema_columns(&mut load);
        }
        match load.state {
            LoadState::Abandoned => match load.failure.take() {
                Some(why) => self.fail_table(&load, &why),
                None => self.reload_table(load),
            },
            _ if load.read.is_empty() => self.fail_table(&load, ""),
            _ if load.unread.iter().any(|(file, _)| file.rows > 0) => self.restart_without_unread(&load),
            // Rows that an existing table rejects are known only after they are parsed for its types.
            LoadState::Inspecting
                if load.table.is_old && self.tx.is_none() && self.table_state(load.file.index).passes == 1 =>
            {
                load.fix_types();
                self.reload_table(load)
            }
            LoadState::Inspecting if self.tx.is_none() && load.needs_conversion => {
                load.fix_types();
                self.reload_table(load)
            }
            LoadState::Inspecting if self.is_key_unchecked(&load) => {
                load.fix_types();
                load.table.plan = KeyPlan::IndexFromStart(load.table.tracker.columns.clone());
                self.reload_table(load)
            }
            LoadState::Inspecting if self.tx.is_some() && !load.table.layout.columns.is_empty() => {
                load.fix_types();
                self.reload_table(load)
            }
            _ if self.lacks_columns(&load) => {
                let why = no_columns_message(&self.options.columns);
                self.fail_table(&load, &why)
            }
            _ if rows == 0 && rejected > 0 && self.tx.is_some() => {
                self.fail_table(&load, &no_valid_line_message(rejected))
            }
            _ if load.is_replaced && rows == 0 => {
                self.fail_table(&load, "it has no rows, so the existing table was not replaced")
            }
            _ if self.lacks_key(&load, rows) => {
                let why = no_key_message(&load.table.tracker.requested);
                self.fail_table(&load, &why)
            }
            _ if self.lacks_table(&load, rows) => {
                self.fail_table(&load, "no line has a key that becomes a column, so no table can be created")
            }
            _ => self.finish_table(load),
        }
    }

    fn add_schema_columns(&self, load: &mut FileLoad) {
        if self.options.columns.is_empty() {
            load.table.layout.add_schema_columns(self.options, self.schema(load.file.index));
        }
    }

    fn finish_table(&mut self, mut load: FileLoad) -> Result<()> {
        self.add_schema_columns(&mut load);
        match self.finish_schema(&mut load) {
            Ok(Finish::Done) => {
                if load.table.layout.columns.is_empty() && *self.target != Target::ValidateOnly {
                    self.handle.rows.fetch_sub(load.all_rows(), Ordering::Relaxed);
                    load.forget_rows();
                }
                self.complete_table(&load)
            }
            Ok(Finish::KeyBroken) => {
                load.fix_types();
                load.table.plan = KeyPlan::IndexFromStart(load.table.tracker.columns.clone());
                self.reload_table(load)
            }
            Err(error) if is_table_mismatch(&error) => {
                self.fail_table(&load, &format!("its table cannot be finished: {error}"))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Whether the file has changed since an earlier pass.
    pub(super) fn has_changed(&mut self, index: usize, fingerprint: &Fingerprint) -> bool {
        self.table_state(index).fingerprints.get(&index).is_some_and(|before| before.hash != fingerprint.hash)
    }

    /// Rolls back the rows of a table and their count.
    fn rollback(&mut self, load: &FileLoad) -> Result<()> {
        self.tx.as_mut().map_or(Ok(()), ImportTx::rollback_file)?;
        self.handle.rows.fetch_sub(load.all_rows(), Ordering::Relaxed);
        Ok(())
    }

    /// Reads the files of a table again with the types and the key found so far.
    fn reload_table(&mut self, mut load: FileLoad) -> Result<()> {
        let index = load.file.index;
        self.rollback(&load)?;
        self.rejects.rollback(load.rejects_mark)?;
        self.handle.rejected.fetch_sub(load.all_rejected(), Ordering::Relaxed);
        let table_state = self.table_state(index);
        if table_state.passes >= MAX_PASSES {
            let why = format!("its column types still change after {MAX_PASSES} passes");
            return self.fail_all(&load, &why);
        }
        for column in &mut load.table.layout.columns {
            column.exists_in_table = column.existed_before_import;
        }
        tracing::info!(table = %load.table.name, pass = table_state.passes, "reading the files of the table again");
        let fingerprints = load.read.iter().filter_map(|(file, found)| Some((file.index, found.clone()?)));
        table_state.fingerprints.extend(fingerprints);
        table_state.shape.layout = std::mem::take(&mut load.table.layout);
        table_state.shape.plan = load.table.plan.clone();
        self.requeue_files(&load)
    }

    /// Reads the files of a table again, without those that could not be read.
    fn restart_without_unread(&mut self, load: &FileLoad) -> Result<()> {
        self.rollback(load)?;
        self.rejects.rollback(load.rejects_mark)?;
        self.handle.rejected.fetch_sub(load.all_rejected(), Ordering::Relaxed);
        let table_state = self.table_state(load.file.index);
        if let Some(initial) = table_state.initial.clone() {
            let (passes, initial) = (table_state.passes, *initial);
            *table_state = TableState { passes, initial: Some(Box::new(initial.clone())), ..initial };
        }
        self.requeue_files(load)
    }

    fn requeue_files(&mut self, load: &FileLoad) -> Result<()> {
        let mut reload = self.group(load.file.index).to_vec();
        reload.retain(|index| load.read_error(*index).is_none());
        self.reload.extend(reload);
        self.fail_unread(load)?;
        match &mut self.tx {
            Some(tx) if !load.unread.is_empty() => tx.commit(),
            _ => Ok(()),
        }
    }

    /// Rolls back a table and fails all its files.
    fn fail_table(&mut self, load: &FileLoad, why: &str) -> Result<()> {
        self.rollback(load)?;
        self.fail_all(load, why)
    }

    fn fail_all(&mut self, load: &FileLoad, why: &str) -> Result<()> {
        for index in self.group(load.file.index).to_vec() {
            let rejected = load.ended_file(index).map_or(0, |file| file.rejected);
            self.fail_file(load, index, rejected, load.read_error(index).unwrap_or(why))?;
        }
        self.tx.as_mut().map_or(Ok(()), ImportTx::commit)
    }

    fn fail_unread(&mut self, load: &FileLoad) -> Result<()> {
        load.unread.iter().try_for_each(|(file, why)| self.fail_file(load, file.index, file.rejected, why))
    }

    fn fail_file(&mut self, load: &FileLoad, index: usize, rejected: u64, why: &str) -> Result<()> {
        add(&self.handle.files_done, 1);
        let file = &mut self.files[index];
        file.outcome = FileOutcome::Failed(why.to_owned());
        file.rejected = rejected;
        self.log_import(load, index, load.file.started, None, true)
    }

    /// Adds types, key and indexes of a table after its rows.
    fn finish_schema(&mut self, load: &mut FileLoad) -> Sql<Finish> {
        let Some(conn) = self.tx.as_ref().map(|tx| &tx.db.conn) else {
            let table = &mut load.table;
            if table.is_old {
                table.layout.notes.extend(changes(&table.layout));
                table.layout.notes.push(UNCHECKED.to_owned());
                return Ok(Finish::Done);
            }
            if let KeyPlan::IndexFromStart(_) = table.plan {
                return Ok(Finish::Done);
            }
            table.plan = table.tracker.plan(&table.layout);
            if let KeyPlan::IndexAtEnd(_) = table.plan {
                table
                    .layout
                    .notes
                    .push("duplicate values of the primary key are detected when the file is loaded".to_owned());
            }
            return Ok(Finish::Done);
        };
        self.handle.enter(ImportPhase::Indexing);
        let (table, dependents) = (&mut load.table, &load.dependents);
        if table.finish(conn)? == Finish::KeyBroken {
            return Ok(Finish::KeyBroken);
        }
        for sql in dependents {
            match conn.execute_batch(sql) {
                Err(error) if is_definition_mismatch(&error) => {
                    let note = format!("cannot create this index or trigger of the old table again: {sql}: {error}");
                    table.layout.notes.push(note);
                }
                made => made?,
            }
        }
        let schema = self.options.schema.tables.get(&self.stems[load.file.index]);
        let of_schema = schema.into_iter().flat_map(|schema| &schema.indexes);
        for column in self.options.indexes.iter().chain(of_schema) {
            let Some(index) = table.layout.find_column(column) else { continue };
            table::make_index(conn, &table.name, &table.layout.columns[index].name)?;
        }
        self.handle.enter(ImportPhase::Loading);
        Ok(Finish::Done)
    }

    /// Completes a table: summarizes and logs each of its files, and commits.
    fn complete_table(&mut self, load: &FileLoad) -> Result<()> {
        let mut is_first = true;
        for (read, fingerprint) in &load.read {
            if read.rows == 0 && read.rejected > 0 && self.tx.is_some() {
                self.fail_file(load, read.index, read.rejected, &no_valid_line_message(read.rejected))?;
                continue;
            }
            self.summarize_file(load, read, fingerprint.as_ref(), is_first);
            add(&self.handle.files_done, 1);
            self.log_import(load, read.index, read.started, fingerprint.as_ref(), is_first)?;
            is_first = false;
        }
        self.fail_unread(load)?;
        for index in self.group(load.file.index).to_vec() {
            let file = &mut self.files[index];
            if file.outcome == FileOutcome::Waiting {
                file.notes.push(format!("{} was not read: the limit was reached before it", file.source));
            }
        }
        self.rejects.flush()?;
        let fingerprints = load.read.iter().filter_map(|(_, fingerprint)| fingerprint.as_ref());
        match &mut self.tx {
            Some(tx) => tx.commit_file(fingerprints.map(|fingerprint| fingerprint.bytes).sum()),
            None => Ok(()),
        }
    }

    /// Fills in the summary of a file. Notes about its table are in the summary of the table's first file.
    fn summarize_file(
        &mut self,
        load: &FileLoad,
        read: &FileCounts,
        fingerprint: Option<&Fingerprint>,
        is_first: bool,
    ) {
        let (table, options) = (&load.table, self.options);
        let schema = self.schema(read.index);
        let action = self.action(load, is_first).name();
        let file = &mut self.files[read.index];
        file.outcome = FileOutcome::Loaded;
        file.action = (*self.target != Target::ValidateOnly).then_some(action);
        file.rows = read.rows;
        file.rejected = read.rejected;
        file.blank = read.blank;
        file.bytes = fingerprint.map_or(file.bytes, |fingerprint| fingerprint.bytes);
        file.columns = table
            .layout
            .columns
            .iter()
            .map(|column| (column.name.clone(), column.column_type().sql().to_owned()))
            .collect();
        file.primary_key = table.key();
        let has_table = !table.layout.columns.is_empty();
        if !has_table && *self.target != Target::ValidateOnly {
            file.notes.push("no line has a key that becomes a column, so no table was created".to_owned());
        }
        if !is_first {
            return;
        }
        file.notes.extend(table.layout.notes.iter().cloned());
        file.sql = (has_table && !table.is_old).then(|| table.sql(true));
        let found = options.columns.iter().filter(|name| selection::has(&table.layout, name, options, schema));
        self.matched.extend(found.cloned());
        let indexes = schema.into_iter().flat_map(|schema| &schema.indexes);
        for name in table.tracker.requested.iter().chain(&options.indexes).chain(indexes) {
            if table.layout.find_column(name).is_some() {
                self.matched.insert(name.clone());
            } else if has_table && !options.indexes.contains(name) {
                let is_key = table.tracker.requested.contains(name);
                let what = if is_key { "the primary key" } else { "an index" };
                file.notes.push(format!("there is no column {name:?} for {what}"));
                file.unmatched.extend((!is_key).then(|| name.clone()));
            }
        }
        file.notes.extend(table.layout.columns.iter().filter_map(Column::decimal_note));
        file.notes.extend(load.note.clone());
    }

    /// How the table of a file is written.
    fn action(&self, load: &FileLoad, is_first: bool) -> ExistingTable {
        match self.options.existing {
            existing if load.table.is_old => existing,
            ExistingTable::Upsert if !is_first => ExistingTable::Upsert,
            // The first file has created the table.
            _ if !is_first => ExistingTable::Append,
            existing if load.is_replaced => existing,
            _ => ExistingTable::Refuse,
        }
    }

    fn log_import(
        &self,
        load: &FileLoad,
        index: usize,
        started: Timestamp,
        fingerprint: Option<&Fingerprint>,
        is_first: bool,
    ) -> Result<()> {
        let Some(tx) = &self.tx else { return Ok(()) };
        let mode = self.action(load, is_first);
        let is_loaded = self.files[index].outcome == FileOutcome::Loaded;
        let record = Record {
            file: &self.files[index],
            fingerprint,
            mode: mode.name(),
            options: &self.options.layout_key(),
            columns: is_loaded.then(|| load.table.layout.keys_of_columns()),
            whole_numbers: is_loaded.then(|| load.table.layout.columns_with_whole_numbers()),
            table_rows: if is_loaded { self.table_rows(load, tx)? } else { None },
            started,
        };
        tx.write_record(&record)
    }

    /// Minimum number of rows of the table, if known without counting the rows of an existing table.
    fn table_rows(&self, load: &FileLoad, tx: &ImportTx) -> Result<Option<u64>> {
        let table = &load.table;
        let table_state = self.tables.get(&self.first_files[load.file.index]);
        let before = table_state.and_then(|table_state| table_state.table_rows);
        Ok(match (table.mode, table.is_old) {
            (WriteMode::Insert, _) => Some(before.unwrap_or(0) + load.all_rows()),
            (WriteMode::Upsert, true) => before,
            (WriteMode::Upsert, false) => Some(tx.db.with(|conn| count_rows(conn, &table.name))?),
        })
    }
}

/// Whether an index or a trigger does not match the new table or its rows, as opposed to a failure of the system.
fn is_definition_mismatch(error: &rusqlite::Error) -> bool {
    let of_rows = [ErrorCode::ConstraintViolation, ErrorCode::TypeMismatch, ErrorCode::TooBig];
    is_table_mismatch(error) || error.sqlite_error_code().is_some_and(|code| of_rows.contains(&code))
}

/// Describes the changes that an import would make to an existing table.
fn changes(layout: &Layout) -> Vec<String> {
    let names = |columns: Vec<&Column>| {
        columns.iter().map(|column| format!("{:?}", column.name)).collect::<Vec<_>>().join(", ")
    };
    let new: Vec<&Column> = layout.columns.iter().filter(|column| !column.existed_before_import).collect();
    let mut changes = Vec::new();
    if !new.is_empty() {
        changes.push(format!("gets new columns: {}", names(new)));
    }
    let wider = layout.columns.iter().filter_map(|column| {
        let (before, now) = (column.current_type?, column.widened_type?);
        let word = |kind: Type| if kind == Type::Any { "untyped" } else { kind.sql() };
        (before != now).then(|| format!("the column {:?} is {}, becomes {}", column.name, word(before), word(now)))
    });
    changes.extend(wider);
    changes
}
