//! The writer: inserts parsed rows into tables in order, file by file.
//!
//! Owns the passes. A file is loaded with the types known so far. If they turn out to be wrong (a column of numbers has
//! a text in line 400,000), the rest of the file is only inspected, and the file is loaded again with the final types.

mod checks;
mod finish;
mod limit;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::file_load::{FileCounts, FileLoad, LoadState, TableState};
use super::handle::{ImportHandle, add};
use super::import_log;
use super::key::{KeyPlan, KeyTracker};
use super::layout::{LayoutConflict, MAX_COLUMNS};
use super::options::{ExistingTable, ImportOptions, OnError, Target};
use super::pipeline::{BufferPool, PipelineEvent, ReadStop};
use super::rejects::Rejects;
use super::retype;
use super::schema::TableSchema;
use super::summary::{FileOutcome, FileSummary, ImportSummary, RejectedLine};
use super::table::{self, Table};
use super::transaction::ImportTx;
use crate::error::{Error, Result, is_table_mismatch};
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Line, ParsedBlock};
use crate::source::{self, Fingerprint};
use crate::sql::quoted;

pub(crate) struct Writer<'a> {
    options: &'a ImportOptions,
    handle: &'a ImportHandle,
    target: &'a Target,
    tx: Option<ImportTx>,
    rejects: Rejects,
    pub(crate) files: Vec<FileSummary>,
    /// Table name of each file, derived from its file name. A schema uses these names.
    stems: Vec<String>,
    /// For each file, the first file of the same table, which identifies the table.
    first_files: Vec<usize>,
    /// Files to read in this pass, by the first file of their table.
    files_in_pass: HashMap<usize, Vec<usize>>,
    /// States of the tables, by their first file.
    pub(crate) tables: HashMap<usize, TableState>,
    /// Files to load again in the next pass.
    pub(crate) reload: Vec<usize>,
    pub(crate) stopped_by: Option<RejectedLine>,
    load: Option<FileLoad>,
    /// Requested columns that some table has.
    pub(crate) matched: HashSet<String>,
    pub(crate) buffers: Arc<BufferPool>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        options: &'a ImportOptions,
        handle: &'a ImportHandle,
        target: &'a Target,
        tx: Option<ImportTx>,
        (files, stems, leaders): (Vec<FileSummary>, Vec<String>, Vec<usize>),
    ) -> Result<Self> {
        Ok(Writer {
            options,
            handle,
            target,
            tx,
            rejects: Rejects::open(options.rejects.as_deref())?,
            files,
            stems,
            first_files: leaders,
            files_in_pass: HashMap::new(),
            tables: HashMap::new(),
            reload: Vec::new(),
            stopped_by: None,
            load: None,
            matched: HashSet::new(),
            buffers: Arc::default(),
        })
    }

    fn schema(&self, index: usize) -> Option<&'a TableSchema> {
        let options = self.options;
        options.schema.tables.get(&self.stems[index])
    }

    /// Adds a file to this pass. Returns the first file of its table.
    pub(crate) fn add_to_pass(&mut self, index: usize) -> usize {
        let leader = self.first_files[index];
        self.files_in_pass.entry(leader).or_default().push(index);
        leader
    }

    /// Files of a table in this pass.
    fn group(&self, index: usize) -> &[usize] {
        self.files_in_pass.get(&self.first_files[index]).map_or(&[], Vec::as_slice)
    }

    fn table_state(&mut self, index: usize) -> &mut TableState {
        self.tables.entry(self.first_files[index]).or_default()
    }

    /// Handles the next block or the end of a file. Sets `stopped_by` if there are too many bad lines.
    pub(crate) fn on_event(&mut self, index: usize, event: PipelineEvent, stop: &ReadStop) -> Result<()> {
        match &mut self.load {
            None => self.begin(index, stop)?,
            Some(load) if load.file.index != index => load.file = FileCounts::new(index),
            Some(_) => {}
        }
        match event {
            PipelineEvent::Block(block, budget) => {
                if let Some(load) = &mut self.load
                    && load.waits_for_more()
                {
                    // A large next block may need the whole memory budget.
                    drop(budget);
                    load.held = Some(block);
                    return Ok(());
                }
                self.write_held_block(false)?;
                let written = self.write_block(block);
                drop(budget);
                written
            }
            PipelineEvent::End(end) => {
                self.write_held_block(end.is_ok())?;
                if self.stopped_by.is_none() { self.end_file(end) } else { Ok(()) }
            }
        }
    }

    /// Writes the first block once it is known whether it is the only one.
    fn write_held_block(&mut self, is_whole: bool) -> Result<()> {
        let Some(load) = &mut self.load else { return Ok(()) };
        let Some(block) = load.held.take() else { return Ok(()) };
        load.table.is_whole = is_whole;
        self.write_block(block)
    }

    fn begin(&mut self, index: usize, stop: &ReadStop) -> Result<()> {
        let is_one_of_many = self.group(index).len() > 1;
        let table_state = self.table_state(index);
        if is_one_of_many && table_state.initial.is_none() {
            table_state.initial = Some(Box::new(table_state.clone()));
        }
        table_state.passes += 1;
        let (table_state, passes) = (table_state.clone(), table_state.passes);
        let name = self.files[index].table.clone();
        let (mut dependents, mut note) = (Vec::new(), None);
        if let Some(tx) = &mut self.tx {
            tx.begin_file()?;
            if table_state.is_replaced {
                dependents = tx.db.with(|conn| table::dependents(conn, &name))?;
                let is_imported = tx.db.with(|conn| import_log::is_imported(conn, &name))?;
                note = (!is_imported)
                    .then(|| "the old table was not created by an import; its constraints are lost".to_owned());
                tx.db.execute(&format!("DROP TABLE IF EXISTS {}", quoted(&name)))?;
            }
        }
        let requested = self.options.key_of(&self.stems[index]).to_vec();
        let tracker = KeyTracker::new(requested, self.options.existing == ExistingTable::Upsert);
        let table = Table::new(name, table_state.shape, tracker);
        self.load = Some(FileLoad {
            file: FileCounts::new(index),
            read: Vec::new(),
            unread: Vec::new(),
            counted: 0,
            limit_reached_by: None,
            keys: self.key_check(&table, passes)?,
            table,
            state: if self.tx.is_some() { LoadState::Writing } else { LoadState::Inspecting },
            has_objects: false,
            needs_conversion: false,
            held: None,
            // The first of several files is never held.
            first_block_seen: is_one_of_many,
            rejects_mark: self.rejects.mark()?,
            stop: stop.clone(),
            is_replaced: table_state.is_replaced && self.tx.as_ref().is_none_or(|tx| !tx.is_new),
            note,
            failure: None,
            dependents,
        });
        Ok(())
    }

    fn write_block(&mut self, mut block: Box<ParsedBlock>) -> Result<()> {
        let Some(mut load) = self.load.take() else { return Ok(()) };
        let written = self.process_block(&mut load, &mut block);
        self.load = Some(load);
        self.buffers.recycle(*block, self.options.block);
        written
    }

    fn process_block(&mut self, load: &mut FileLoad, block: &mut ParsedBlock) -> Result<()> {
        if let Some(tx) = &self.tx {
            tx.db.check()?;
        }
        if load.state == LoadState::Abandoned || load.has_reached_limit() || self.stopped_by.is_some() {
            return Ok(());
        }
        match self.options.limit {
            Some(limit) => self.write_rows_up_to_limit(load, block, limit)?,
            None => self.write_rows(load, block)?,
        }
        load.file.blank += u64::from(block.blank);
        load.file.lines += u64::from(block.lines);
        Ok(())
    }

    fn write_rows(&mut self, load: &mut FileLoad, block: &mut ParsedBlock) -> Result<()> {
        load.has_objects |= !block.rows.is_empty();
        let mut bad: Vec<(Line, usize, ParseErrorKind)> =
            std::mem::take(&mut block.bad).into_iter().map(|bad| (bad.line, bad.at, bad.reason)).collect();
        let mut written = block.rows.len() as u64;
        if *self.target != Target::ValidateOnly {
            match load.table.layout.assign_columns(block, self.options, self.schema(load.file.index)) {
                Ok(map) => {
                    let table = &mut load.table;
                    let conn = self.tx.as_ref().map(|tx| &tx.db.conn);
                    let widened = retype::choose_types(conn, &table.name, &mut table.layout.columns);
                    if widened.map_err(|error| self.failed(error))?
                        | (load.state == LoadState::Writing && needs_reload(table))
                    {
                        load.state = LoadState::Inspecting;
                    }
                    match (&self.tx, load.state) {
                        (Some(tx), LoadState::Writing) => {
                            if table.is_whole && !table.is_old && self.options.columns.is_empty() {
                                table.layout.add_schema_columns(self.options, self.schema(load.file.index));
                            }
                            let result = match table.write(&tx.db.conn, block, &map) {
                                Ok(result) => result,
                                Err(error) if is_table_mismatch(&error) => {
                                    load.fail_table(format!("its table rejects its rows: {error}"));
                                    return Ok(());
                                }
                                Err(error) => return Err(tx.db.failed(error)),
                            };
                            if !tx.db.is_in_transaction() {
                                let message = format!(
                                    "the table {:?} has a trigger that rolls back transactions; nothing was loaded \
                                     into it",
                                    table.name
                                );
                                return Err(Error::table(&table.name, message));
                            }
                            written = result.rows;
                            let refused = result.refused.len() as u64;
                            bad.extend(result.refused.into_iter().map(|(line, reason)| (line, 0, reason)));
                            if let Some(seen) = result.stopped_after {
                                // The remaining rows are only counted.
                                written = (block.rows.len() as u64).saturating_sub(refused);
                                load.state = LoadState::Inspecting;
                                table.observe_keys(block, &map, seen);
                            }
                        }
                        (None, _) if table.is_old || matches!(table.plan, KeyPlan::IndexFromStart(_)) => {
                            table.observe_keys(block, &map, 0);
                            let refused = table.refused(block, &map, load.keys.as_ref());
                            let refused = refused.map_err(|error| self.failed(error))?;
                            written -= refused.len() as u64;
                            bad.extend(refused.into_iter().map(|(line, reason)| (line, 0, reason)));
                        }
                        _ => table.observe_keys(block, &map, 0),
                    }
                }
                Err(LayoutConflict::TooManyColumns | LayoutConflict::KeyMoved) => {
                    // The columns have new indexes, so the key has to be found again.
                    if !matches!(load.table.plan, KeyPlan::Existing(_)) {
                        load.table.plan = KeyPlan::Undecided;
                    }
                    load.abandon();
                    return Ok(());
                }
                Err(LayoutConflict::NoRoom(key)) => {
                    load.fail_table(format!(
                        "its table has no room for a column {key:?}: SQLite has at most {MAX_COLUMNS} columns"
                    ));
                    return Ok(());
                }
                Err(LayoutConflict::NeedsConversion) => {
                    load.state = LoadState::Inspecting;
                    load.needs_conversion = true;
                }
            }
        }
        load.file.rows += written;
        add(&self.handle.rows, written);
        bad.sort_by_key(|(line, _, _)| line.span.start);
        self.reject_lines(load, block, bad)
    }

    fn reject_lines(
        &mut self,
        load: &mut FileLoad,
        block: &ParsedBlock,
        bad: Vec<(Line, usize, ParseErrorKind)>,
    ) -> Result<()> {
        for (line, at, reason) in bad {
            load.file.rejected += 1;
            add(&self.handle.rejected, 1);
            let rejected = RejectedLine {
                file: self.files[load.file.index].source.clone(),
                line: load.file.lines + u64::from(line.number) + 1,
                column: u64::from(line.column) + at as u64 + 1,
                reason: reason.to_string(),
            };
            let bytes = block.line(line);
            // The reader keeps only the start of a line that is too long.
            let is_cut = matches!(reason, ParseErrorKind::TooLong(limit) if bytes.len() <= limit);
            self.rejects.add(rejected.clone(), bytes, is_cut)?;
            let max_errors = match self.options.on_error {
                OnError::Skip => u64::MAX,
                OnError::Fail => 0,
                OnError::FailAfter(max_errors) => max_errors,
            };
            if self.rejects.count > max_errors {
                self.stopped_by = Some(rejected);
                return Ok(());
            }
        }
        Ok(())
    }

    fn end_file(&mut self, end: io::Result<Fingerprint>) -> Result<()> {
        let Some(mut load) = self.load.take() else { return Ok(()) };
        let index = load.file.index;
        match end {
            _ if load.state == LoadState::Abandoned => load.end_file(None),
            _ if load.has_reached_limit() => {
                // Later files were not read.
                if load.limit_reached_by == Some(index) {
                    load.end_file(None);
                }
            }
            Err(error) => load.fail_file(error.to_string()),
            Ok(fingerprint) if self.has_changed(index, &fingerprint) => {
                let why = source::changed_while_read(Path::new(&self.files[index].source));
                load.fail_file(why.to_string());
            }
            Ok(fingerprint) => load.end_file(Some(fingerprint)),
        }
        if self.group(index).last().is_some_and(|last| *last != index) {
            self.load = Some(load);
            return Ok(());
        }
        self.end_table(load)?;
        self.files_in_pass.remove(&self.first_files[index]);
        Ok(())
    }

    /// Ends the current file and the transaction. Returns the connection and the results of the files.
    pub(crate) fn finish(mut self, failed: bool) -> Result<(Option<Connection>, ImportSummary)> {
        let load = self.load.take();
        if failed {
            // The rejects of rows that are rolled back are removed.
            let discards_database = self.tx.as_ref().is_some_and(|tx| tx.is_new) && !self.options.resume;
            match &load {
                _ if discards_database => self.rejects.discard(None)?,
                Some(load) => self.rejects.discard(Some(load.rejects_mark))?,
                None => {}
            }
        }
        if let Some(load) = load {
            let file = &mut self.files[load.file.index];
            file.rejected = load.file.rejected;
            if let Some(bad) = &self.stopped_by {
                let why = match self.options.on_error {
                    OnError::FailAfter(max_errors) => {
                        let lines = if max_errors == 1 { "line" } else { "lines" };
                        format!(
                            "more than {max_errors} bad {lines} (--max-errors {max_errors}); stopped at line {}",
                            bad.line
                        )
                    }
                    _ => format!("line {} is bad (--on-error fail): {}", bad.line, bad.reason),
                };
                file.outcome = FileOutcome::Failed(why);
            }
        }
        self.rejects.flush()?;
        let conn = self.tx.map(|tx| tx.end(failed)).transpose()?;
        let (files, examples, stopped_by) = (self.files, self.rejects.examples, self.stopped_by);
        Ok((conn, ImportSummary { files, examples, stopped_by, ..ImportSummary::default() }))
    }
}

/// Names in quotation marks, separated by commas, for messages.
pub(crate) fn quoted_list(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Whether the rows written so far are wrong: numbers in a column that turned out to be text, or a column that an
/// existing table does not have.
fn needs_reload(table: &Table) -> bool {
    let columns = &table.layout.columns;
    let inferred = || columns.iter().filter(|column| column.rule == crate::keys::ColumnRule::Inferred);
    inferred().any(|column| !column.types.is_lossless())
        || (table.is_old && inferred().any(|column| !column.exists_in_table))
}
