//! Chooses the columns of the primary key.
//!
//! The rule: the columns that the user names. Otherwise the first of `_key`, `_id` and `id` that the first row has, if
//! every row has it, it is never null, all its values are whole numbers or text, and no value occurs twice. An upsert
//! needs a key: there the first row that has one of these names decides, and rows without it are rejected.

use super::layout::Layout;
use crate::parsed_block::Cell;
use crate::types::{Type, TypeSet};

/// Names of the key if the user names none, in order of preference.
pub(crate) const DEFAULT_KEY_NAMES: [&str; 3] = ["_key", "_id", "id"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyPlan {
    /// Not decided yet; the first rows decide.
    #[default]
    Undecided,
    /// Ascending whole numbers: the column is the rowid, which needs no index.
    Rowid(usize),
    /// An index that is created after all rows.
    IndexAtEnd(Vec<usize>),
    /// An index from the start, so that lines with a duplicate key are rejected.
    IndexFromStart(Vec<usize>),
    /// The key of an existing table.
    Existing(Vec<usize>),
    None,
}

impl KeyPlan {
    pub(crate) fn columns(&self) -> &[usize] {
        match self {
            KeyPlan::Rowid(index) => std::slice::from_ref(index),
            KeyPlan::IndexAtEnd(indexes) | KeyPlan::IndexFromStart(indexes) | KeyPlan::Existing(indexes) => indexes,
            KeyPlan::Undecided | KeyPlan::None => &[],
        }
    }
}

#[inline]
pub(crate) fn cell_of(cells: &[(u32, Cell)], map: &[u32], column: usize) -> Option<Cell> {
    cells.iter().find(|(key, _)| map[*key as usize] == column as u32).map(|(_, cell)| *cell)
}

/// Observes the key of each row, to choose the plan.
#[derive(Clone, Debug)]
pub(crate) struct KeyTracker {
    pub(crate) requested: Vec<String>,
    /// Whether rows are upserted, which needs a key.
    pub(crate) upserts: bool,
    /// Columns of the key; empty while it is unknown.
    pub(crate) columns: Vec<usize>,
    /// Columns with the default key names, in order of preference.
    candidates: Vec<usize>,
    /// Number of keys in the layout when the names were resolved.
    key_count: usize,
    rows: u64,
    present: u64,
    /// Whether all keys so far are whole numbers in ascending order.
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
            key_count: usize::MAX,
            rows: 0,
            present: 0,
            is_ascending: true,
            last: None,
        }
    }

    /// Whether the import requires a key.
    pub(crate) fn is_needed(&self) -> bool {
        self.upserts || !self.requested.is_empty()
    }

    /// Returns whether the row has the key.
    #[inline]
    pub(crate) fn observe(&mut self, cells: &[(u32, Cell)], map: &[u32], layout: &Layout) -> bool {
        if self.key_count != layout.key_count() {
            self.resolve_columns(layout);
        }
        if self.columns.is_empty() && self.requested.is_empty() && (self.rows == 0 || self.upserts) {
            let is_present = |column: &&usize| cell_of(cells, map, **column).is_some();
            self.columns.extend(self.candidates.iter().find(is_present));
        }
        self.rows += 1;
        match self.columns.as_slice() {
            [] => false,
            [column] => match cell_of(cells, map, *column) {
                Some(Cell::Int(value)) => {
                    self.present += 1;
                    self.is_ascending &= self.last.is_none_or(|last| last < value) && self.present == self.rows;
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
                let has = |column: &usize| cell_of(cells, map, *column).is_some_and(|cell| cell != Cell::Null);
                let has = columns.iter().all(has);
                self.present += u64::from(has);
                self.is_ascending = false;
                has
            }
        }
    }

    /// Finds the columns of the names again, after columns were added.
    #[cold]
    fn resolve_columns(&mut self, layout: &Layout) {
        self.key_count = layout.key_count();
        if self.requested.is_empty() {
            self.candidates = DEFAULT_KEY_NAMES.iter().filter_map(|name| layout.find_column(name)).collect();
            return;
        }
        let found: Option<Vec<usize>> = self.requested.iter().map(|name| layout.find_column(name)).collect();
        let found = found.unwrap_or_default();
        if found != self.columns {
            // Earlier rows were not checked for these columns.
            self.columns = found;
            self.present = 0;
            self.is_ascending &= self.rows == 0;
        }
    }

    /// Chooses the plan after all rows were observed.
    pub(crate) fn plan(&self, layout: &Layout) -> KeyPlan {
        let everywhere = self.present == self.rows;
        let fits = |index: &usize| {
            let column = &layout.columns[*index];
            matches!(column.column_type(), Type::Integer | Type::Text)
                && !column.types.has(TypeSet::BOOL)
                && !column.types.has(TypeSet::JSON)
        };
        match self.columns.as_slice() {
            [] => KeyPlan::None,
            [index] if everywhere && self.is_ascending && layout.columns[*index].column_type() == Type::Integer => {
                KeyPlan::Rowid(*index)
            }
            columns if everywhere && columns.iter().all(fits) => KeyPlan::IndexAtEnd(columns.to_vec()),
            columns if self.is_needed() => KeyPlan::IndexFromStart(columns.to_vec()),
            _ => KeyPlan::None,
        }
    }
}

/// A column of an existing table's key that a row may not leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Required {
    pub(crate) column: usize,
    /// Whether the table has a default for rows that leave it out.
    pub(crate) has_default: bool,
}

impl Required {
    pub(crate) fn is_missing(self, cells: &[(u32, Cell)], map: &[u32]) -> bool {
        match cell_of(cells, map, self.column) {
            Some(Cell::Null) => true,
            Some(_) => false,
            None => !self.has_default,
        }
    }
}
