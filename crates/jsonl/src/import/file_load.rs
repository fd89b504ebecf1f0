//! A file that is under way: what is known of it, and how far it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;

use super::key::{KeyPlan, Required};
use super::key_check::KeyCheck;
use super::layout::Layout;
use super::pipeline::Demand;
use super::rejects::Mark;
use super::table::Table;
use crate::parsed_block::ParsedBlock;
use crate::source::Fingerprint;

/// What is known of a file's table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableState {
    pub(crate) layout: Layout,
    pub(crate) plan: KeyPlan,
    /// The table is there, and gets more rows.
    pub(crate) is_old: bool,
    /// Columns of its key that a row may not leave out.
    pub(crate) required: Vec<Required>,
    /// Its definition may have a conflict clause.
    pub(crate) has_conflict_clause: bool,
    /// At least so many rows were in it after the last import, if that is known.
    pub(crate) table_rows: Option<u64>,
    /// The table is there, and goes.
    pub(crate) is_replaced: bool,
    pub(crate) passes: u32,
    /// What each file was in the pass that found it out.
    pub(crate) fingerprints: HashMap<usize, Fingerprint>,
    /// What was known before any file was read, of a table of several.
    pub(crate) initial: Option<Box<TableState>>,
}

/// How a file that is under way is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadState {
    Writing,
    /// It is only looked at: for a schema, or because it has to be loaded again.
    Inspecting,
    /// It has to be loaded again, or cannot be, and looking on is no use.
    Abandoned,
}

/// A file that was read to its end, while others of its table are still to come.
pub(crate) struct ReadFile {
    pub(crate) index: usize,
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    pub(crate) blank: u64,
    pub(crate) started: Timestamp,
    /// What it was; nothing when it was not read to its end, because of a limit.
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// A file that could not be read to its end.
pub(crate) struct UnreadFile {
    pub(crate) index: usize,
    /// Rows of it that the table has.
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    pub(crate) why: String,
}

/// A table that is under way. The counts are of the file that is read now.
pub(crate) struct FileLoad {
    pub(crate) index: usize,
    /// Files of the same table that were read before.
    pub(crate) read: Vec<ReadFile>,
    /// Files of the same table that could not be read, and why.
    pub(crate) unread: Vec<UnreadFile>,
    /// Rows that were taken, for the limit, and the file that reached it.
    pub(crate) taken: u64,
    pub(crate) filled_by: Option<usize>,
    pub(crate) table: Table,
    /// Finds keys that are taken, in a dry run.
    pub(crate) keys: Option<KeyCheck>,
    pub(crate) state: LoadState,
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    pub(crate) blank: u64,
    pub(crate) lines: u64,
    /// Values came that have to be made to fit, so which rows the table takes is not known.
    pub(crate) needs_conversion: bool,
    /// Some line of its files was an object, whatever became of it.
    pub(crate) has_objects: bool,
    /// The first block, until it is known whether it is the only one.
    pub(crate) held: Option<Box<ParsedBlock>>,
    /// The first block has come, or there are more files.
    pub(crate) has_begun: bool,
    pub(crate) mark: Mark,
    pub(crate) started: Timestamp,
    pub(crate) demand: Arc<Demand>,
    pub(crate) is_replaced: bool,
    /// What is worth knowing about the table that was replaced.
    pub(crate) note: Option<String>,
    /// Why it cannot be loaded.
    pub(crate) failure: Option<String>,
    /// What the old table had, to be made again.
    pub(crate) dependents: Vec<String>,
}

impl FileLoad {
    /// Rows of all files, when all have ended.
    pub(crate) fn all_rows(&self) -> u64 {
        self.read.iter().map(|file| file.rows).chain(self.unread.iter().map(|file| file.rows)).sum()
    }

    /// Rejected lines of all files, when all have ended.
    pub(crate) fn all_rejected(&self) -> u64 {
        self.read.iter().map(|file| file.rejected).chain(self.unread.iter().map(|file| file.rejected)).sum()
    }

    /// There is no table that has the rows: a later import has to load their files again.
    pub(crate) fn forget_rows(&mut self) {
        for file in self.read.iter_mut().filter(|file| file.rows > 0) {
            (file.rows, file.fingerprint) = (0, None);
        }
    }

    /// The next file of the same table.
    pub(crate) fn next_file(&mut self, index: usize) {
        self.index = index;
        (self.rows, self.rejected, self.blank, self.lines) = (0, 0, 0, 0);
        self.started = Timestamp::now();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.demand.full.load(Ordering::Relaxed)
    }

    /// No more rows are taken: the limit is reached.
    pub(crate) fn fill(&mut self) {
        self.demand.full.store(true, Ordering::Relaxed);
        self.filled_by = Some(self.index);
    }

    /// The file that is read now cannot be read.
    pub(crate) fn fail_file(&mut self, why: String) {
        let (index, rows, rejected) =
            (self.index, std::mem::take(&mut self.rows), std::mem::take(&mut self.rejected));
        self.unread.push(UnreadFile { index, rows, rejected, why });
    }

    /// The file that is read now has ended.
    pub(crate) fn end_file(&mut self, fingerprint: Option<Fingerprint>) {
        self.read.push(ReadFile {
            index: self.index,
            rows: std::mem::take(&mut self.rows),
            rejected: std::mem::take(&mut self.rejected),
            blank: std::mem::take(&mut self.blank),
            started: self.started,
            fingerprint,
        });
    }

    /// Nobody needs the rest of it.
    pub(crate) fn abandon(&mut self) {
        self.state = LoadState::Abandoned;
        self.demand.abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn fail_table(&mut self, why: String) {
        self.failure = Some(why);
        self.abandon();
    }

    /// Whether this block is to wait until it is known whether another one comes: of a new table, the first one.
    pub(crate) fn waits_for_more(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        is_first && self.state == LoadState::Writing && !self.table.is_old
    }

    /// All has been seen: what it is, is known.
    pub(crate) fn fix_types(&mut self) {
        let table = &mut self.table;
        table.layout.fix_types();
        if !table.is_old && !matches!(table.plan, KeyPlan::Enforced(_)) {
            table.plan = table.key_tracker.plan(&table.layout);
        }
    }
}
