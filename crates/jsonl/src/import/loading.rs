//! A file that is under way: what is known of it, and how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;

use super::key::Plan;
use super::layout::Layout;
use super::rejects::Mark;
use super::table::{Table, Way};
use crate::source::Print;

/// What is known of a file's table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) layout: Layout,
    pub(crate) plan: Plan,
    /// The table is there, and gets more rows.
    pub(crate) is_old: bool,
    pub(crate) way: Option<Way>,
    /// The table is there, and goes.
    pub(crate) is_replaced: bool,
    pub(crate) passes: u32,
    /// What the file was in the pass that found it out.
    pub(crate) print: Option<Print>,
}

/// How a file that is under way is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Writing,
    /// It is only looked at: for a schema, or because it has to be loaded again.
    Watching,
    /// It has to be loaded again, or cannot be, and looking on is no use.
    Abandoned,
}

pub(crate) struct Loading {
    pub(crate) index: usize,
    pub(crate) table: Table,
    pub(crate) state: State,
    pub(crate) rows: u64,
    pub(crate) rejected: u64,
    pub(crate) blank: u64,
    pub(crate) lines: u64,
    pub(crate) mark: Mark,
    pub(crate) started: Timestamp,
    pub(crate) abandoned: Arc<AtomicBool>,
    pub(crate) is_replaced: bool,
    /// What is worth knowing about the table that was replaced.
    pub(crate) note: Option<String>,
    /// Why it cannot be loaded.
    pub(crate) failure: Option<String>,
    /// What the old table had, to be made again.
    pub(crate) belongings: Vec<String>,
}

impl Loading {
    /// Nobody needs the rest of it.
    pub(crate) fn abandon(&mut self) {
        self.state = State::Abandoned;
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.failure = Some(why);
        self.abandon();
    }

    /// All has been seen: what it is, is known.
    pub(crate) fn settle(&mut self) {
        let table = &mut self.table;
        table.layout.settle();
        if !table.is_old && !matches!(table.plan, Plan::Enforced(_)) {
            table.plan = table.watch.plan(&table.layout);
        }
    }
}
