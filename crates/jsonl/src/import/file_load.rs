//! State of the table and the file that the writer loads.

use std::collections::HashMap;

use jiff::Timestamp;

use super::existing::TableShape;
use super::key::KeyPlan;
use super::key_check::KeyCheck;
use super::pipeline::ReadStop;
use super::rejects::Mark;
use super::table::Table;
use crate::parsed_block::ParsedBlock;
use crate::source::Fingerprint;

/// State of a table, kept between passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableState {
    pub(crate) shape: TableShape,
    /// Recorded minimum number of rows after the last import.
    pub(crate) table_rows: Option<u64>,
    /// Whether the table exists and is replaced.
    pub(crate) is_replaced: bool,
    pub(crate) passes: u32,
    /// Fingerprints of the files in the previous pass.
    pub(crate) fingerprints: HashMap<usize, Fingerprint>,
    /// State before the first file was read, for a table of several files.
    pub(crate) initial: Option<Box<TableState>>,
}

/// What the writer does with the blocks of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadState {
    Writing,
    /// Only inspects them, for a dry run or because the files have to be loaded again.
    Inspecting,
    /// Ignores them: the files have to be loaded again, or cannot be loaded.
    Abandoned,
}

/// Counts of one file of a table.
#[derive(Clone, Debug)]
pub(crate) struct FileCounts {
    pub(crate) index: usize,
    /// Number of its rows that were written.
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    pub(crate) blank: u64,
    pub(crate) lines: u64,
    pub(crate) started: Timestamp,
}

impl FileCounts {
    pub(crate) fn new(index: usize) -> Self {
        FileCounts { index, rows: 0, rejected: 0, blank: 0, lines: 0, started: Timestamp::now() }
    }
}

/// The load of a table.
pub(crate) struct FileLoad {
    /// The current file.
    pub(crate) file: FileCounts,
    /// Files of the table that were read. One that was not read to its end because of a limit has no fingerprint.
    pub(crate) read: Vec<(FileCounts, Option<Fingerprint>)>,
    /// Files of the table that could not be read, and why.
    pub(crate) unread: Vec<(FileCounts, String)>,
    /// Rows that count towards the limit, and the file that reached it.
    pub(crate) counted: u64,
    pub(crate) limit_reached_by: Option<usize>,
    pub(crate) table: Table,
    /// Finds duplicate keys in a dry run.
    pub(crate) keys: Option<KeyCheck>,
    pub(crate) state: LoadState,
    /// Whether values need a conversion that the parser did not apply, so it is unknown which rows are valid.
    pub(crate) needs_conversion: bool,
    /// Whether a line of its files was parsed as an object.
    pub(crate) has_objects: bool,
    /// The first block, held until it is known whether it is the only one.
    pub(crate) held: Option<Box<ParsedBlock>>,
    /// Whether the first block was received, or the table has several files.
    pub(crate) first_block_seen: bool,
    pub(crate) rejects_mark: Mark,
    pub(crate) stop: ReadStop,
    pub(crate) is_replaced: bool,
    /// Note for the summary about the replaced table.
    pub(crate) note: Option<String>,
    pub(crate) failure: Option<String>,
    /// SQL of the replaced table's indexes and triggers, to create them again.
    pub(crate) dependents: Vec<String>,
}

impl FileLoad {
    fn ended(&self) -> impl Iterator<Item = &FileCounts> {
        self.read.iter().map(|(file, _)| file).chain(self.unread.iter().map(|(file, _)| file))
    }

    /// Counts of a file that has ended.
    pub(crate) fn ended_file(&self, index: usize) -> Option<&FileCounts> {
        self.ended().find(|file| file.index == index)
    }

    /// Rows of all files that have ended.
    pub(crate) fn all_rows(&self) -> u64 {
        self.ended().map(|file| file.rows).sum()
    }

    pub(crate) fn all_rejected(&self) -> u64 {
        self.ended().map(|file| file.rejected).sum()
    }

    /// Why a file could not be read, if so.
    pub(crate) fn read_error(&self, index: usize) -> Option<&str> {
        self.unread.iter().find(|(file, _)| file.index == index).map(|(_, why)| why.as_str())
    }

    /// Resets files whose rows are in no table, so that a later import loads them again.
    pub(crate) fn forget_rows(&mut self) {
        for (file, fingerprint) in self.read.iter_mut().filter(|(file, _)| file.rows > 0) {
            (file.rows, *fingerprint) = (0, None);
        }
    }

    pub(crate) fn has_reached_limit(&self) -> bool {
        self.limit_reached_by.is_some()
    }

    /// Stops reading, because the limit of rows is reached.
    pub(crate) fn fill(&mut self) {
        self.stop.limit_reached.cancel();
        self.limit_reached_by = Some(self.file.index);
    }

    pub(crate) fn fail_file(&mut self, why: String) {
        let file = self.take_file();
        self.unread.push((file, why));
    }

    pub(crate) fn end_file(&mut self, fingerprint: Option<Fingerprint>) {
        let file = self.take_file();
        self.read.push((file, fingerprint));
    }

    /// Returns the counts of the current file, which has ended.
    fn take_file(&mut self) -> FileCounts {
        let next = FileCounts { started: self.file.started, ..FileCounts::new(self.file.index) };
        std::mem::replace(&mut self.file, next)
    }

    /// Ignores the rest of the table's files.
    pub(crate) fn abandon(&mut self) {
        self.state = LoadState::Abandoned;
        self.stop.abandoned.cancel();
    }

    pub(crate) fn fail_table(&mut self, why: String) {
        self.failure = Some(why);
        self.abandon();
    }

    /// Whether to hold this block until it is known whether another one follows. True for the first of a new table.
    pub(crate) fn waits_for_more(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.first_block_seen, true);
        is_first && self.state == LoadState::Writing && !self.table.is_old
    }

    /// Fixes the types and the key plan after all rows were inspected.
    pub(crate) fn fix_types(&mut self) {
        let table = &mut self.table;
        table.layout.fix_types();
        if !table.is_old && !matches!(table.plan, KeyPlan::IndexFromStart(_)) {
            table.plan = table.tracker.plan(&table.layout);
        }
    }
}
