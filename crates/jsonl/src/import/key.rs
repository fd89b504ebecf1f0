//! Which columns are the primary key.
//!
//! The rule: the columns the user names; else `_key`, `_id` or `id`, the first of them that the first row has, if every
//! row has it, it is never null, all its values are whole numbers or text, and none is there twice. An upsert cannot do
//! without a key: there the first row that has one of these names decides, and rows without it are rejected.

use super::layout::Layout;
use crate::parsed_block::Cell;
use crate::types::{Type, TypeSet};

/// Names that are looked for.
pub(crate) const DEFAULT_KEY_NAMES: [&str; 3] = ["_key", "_id", "id"];

/// How a table comes to its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyPlan {
    /// To be found out while the first rows come.
    #[default]
    Open,
    /// Whole numbers that rise: SQLite's own row number, which costs nothing.
    Rowid(usize),
    /// An index made when all rows are there.
    After(Vec<usize>),
    /// An index from the start, so that lines can be refused for it.
    Enforced(Vec<usize>),
    /// What the table had before.
    Kept(Vec<usize>),
    None,
}

impl KeyPlan {
    /// The columns of the key, in order.
    pub(crate) fn columns(&self) -> &[usize] {
        match self {
            KeyPlan::Rowid(index) => std::slice::from_ref(index),
            KeyPlan::After(indexes) | KeyPlan::Enforced(indexes) | KeyPlan::Kept(indexes) => indexes,
            KeyPlan::Open | KeyPlan::None => &[],
        }
    }
}

/// The row's value for a column.
#[inline]
pub(crate) fn cell_of(cells: &[(u32, Cell)], map: &[u32], column: usize) -> Option<Cell> {
    cells.iter().find(|(key, _)| map[*key as usize] == column as u32).map(|(_, cell)| *cell)
}

/// Looks at the key of each row.
#[derive(Clone, Debug)]
pub(crate) struct KeyTracker {
    pub(crate) requested: Vec<String>,
    /// Rows with a known key are updated, so there has to be a key.
    pub(crate) upserts: bool,
    /// The columns of the key; none while it is not known.
    pub(crate) columns: Vec<usize>,
    /// Columns that are the key by rule if a row has them, best first.
    candidates: Vec<usize>,
    /// How many keys the layout had when names were looked up.
    placed: usize,
    rows: u64,
    present: u64,
    /// All so far were whole numbers, each larger than the one before.
    pub(crate) is_ascending: bool,
    last: Option<i64>,
}

impl KeyTracker {
    pub(crate) fn new(requested: Vec<String>, upserts: bool) -> Self {
        KeyTracker {
            requested,
            upserts,
            columns: Vec::new(),
            candidates: Vec::new(),
            placed: usize::MAX,
            rows: 0,
            present: 0,
            is_ascending: true,
            last: None,
        }
    }

    /// Whether a table without this key is not what was asked for.
    pub(crate) fn is_needed(&self) -> bool {
        self.upserts || !self.requested.is_empty()
    }

    /// Looks at a row. Whether it has the key.
    #[inline]
    pub(crate) fn observe(&mut self, cells: &[(u32, Cell)], map: &[u32], layout: &Layout) -> bool {
        if self.placed != layout.key_count() {
            self.resolve_columns(layout);
        }
        if self.columns.is_empty() && self.requested.is_empty() && (self.rows == 0 || self.upserts) {
            let is_here = |column: &&usize| cell_of(cells, map, **column).is_some();
            self.columns.extend(self.candidates.iter().find(is_here));
        }
        self.rows += 1;
        match self.columns.as_slice() {
            [] => false,
            [column] => match cell_of(cells, map, *column) {
                Some(Cell::Int(value)) => {
                    self.present += 1;
                    self.is_ascending &=
                        self.last.is_none_or(|last| last < value) && self.present == self.rows;
                    self.last = Some(value);
                    true
                }
                Some(Cell::Null) | None => {
                    self.is_ascending = false;
                    false
                }
                Some(_) => {
                    self.present += 1;
                    self.is_ascending = false;
                    true
                }
            },
            columns => {
                let has =
                    |column: &usize| cell_of(cells, map, *column).is_some_and(|cell| cell != Cell::Null);
                let has = columns.iter().all(has);
                self.present += u64::from(has);
                self.is_ascending = false;
                has
            }
        }
    }

    /// Finds the columns of the names, when there are new columns.
    #[cold]
    fn resolve_columns(&mut self, layout: &Layout) {
        self.placed = layout.key_count();
        if self.requested.is_empty() {
            self.candidates = DEFAULT_KEY_NAMES.iter().filter_map(|name| layout.find_column(name)).collect();
            return;
        }
        let found: Option<Vec<usize>> = self.requested.iter().map(|name| layout.find_column(name)).collect();
        let found = found.unwrap_or_default();
        if found != self.columns {
            // Rows before this one have not been looked at for these columns.
            self.columns = found;
            self.present = 0;
            self.is_ascending &= self.rows == 0;
        }
    }

    /// What to do, with all rows seen.
    pub(crate) fn plan(&self, layout: &Layout) -> KeyPlan {
        let everywhere = self.present == self.rows;
        let fits = |index: &usize| {
            let column = &layout.columns[*index];
            matches!(column.kind(), Type::Integer | Type::Text)
                && !column.types.has(TypeSet::BOOL)
                && !column.types.has(TypeSet::JSON)
        };
        match self.columns.as_slice() {
            [] => KeyPlan::None,
            [index] if everywhere && self.is_ascending && layout.columns[*index].kind() == Type::Integer => {
                KeyPlan::Rowid(*index)
            }
            columns if everywhere && columns.iter().all(fits) => KeyPlan::After(columns.to_vec()),
            columns if self.is_needed() => KeyPlan::Enforced(columns.to_vec()),
            _ => KeyPlan::None,
        }
    }
}

/// Which columns a row may not leave out, because they are the key of a table that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Required {
    pub(crate) column: usize,
    /// The table has a value for rows that leave it out.
    pub(crate) has_default: bool,
}

impl Required {
    /// Whether the row lacks it.
    pub(crate) fn is_missing(self, cells: &[(u32, Cell)], map: &[u32]) -> bool {
        match cell_of(cells, map, self.column) {
            Some(Cell::Null) => true,
            Some(_) => false,
            None => !self.has_default,
        }
    }
}
