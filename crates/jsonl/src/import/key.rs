//! Which column is the primary key.
//!
//! The rule: the column the user names; else `_key`, `_id` or `id`, the first of them that the first row has, if every
//! row has it, it is never null, all its values are whole numbers or text, and none is there twice.

use super::layout::{Layout, NOWHERE};
use crate::kinds::{Kinds, Type};
use crate::rows::Cell;

/// Names that are looked for.
const NAMES: [&str; 3] = ["_key", "_id", "id"];

/// How a table comes to its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Plan {
    /// To be found out while the first rows come.
    #[default]
    Open,
    /// Whole numbers that rise: SQLite's own row number, which costs nothing.
    Rowid(usize),
    /// An index made when all rows are there.
    After(usize),
    /// An index from the start, so that lines can be refused for it.
    Enforced(usize),
    /// What the table had before.
    Kept(Vec<usize>),
    None,
}

/// Looks at the key of each row.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) wanted: Option<String>,
    pub(crate) column: Option<usize>,
    rows: u64,
    present: u64,
    /// All so far were whole numbers, each larger than the one before.
    pub(crate) rises: bool,
    last: Option<i64>,
}

impl Watch {
    pub(crate) fn new(wanted: Option<String>) -> Self {
        Watch { wanted, column: None, rows: 0, present: 0, rises: true, last: None }
    }

    /// A row. Its key, if it has one.
    #[inline]
    pub(crate) fn see(&mut self, cells: &[(u32, Cell)], map: &[u32], layout: &Layout) -> Option<Cell> {
        if self.column.is_none() && (self.rows == 0 || self.wanted.is_some()) {
            self.column = self.choose(cells, map, layout);
        }
        self.rows += 1;
        let column = self.column? as u32;
        let cell = cells.iter().find(|(key, _)| map[*key as usize] == column).map(|(_, cell)| *cell);
        match cell {
            Some(Cell::Int(value)) => {
                self.present += 1;
                self.rises &= self.last.is_none_or(|last| last < value) && self.present == self.rows;
                self.last = Some(value);
            }
            Some(Cell::Null) | None => self.rises = false,
            Some(_) => {
                self.present += 1;
                self.rises = false;
            }
        }
        cell.filter(|cell| *cell != Cell::Null)
    }

    fn choose(&self, cells: &[(u32, Cell)], map: &[u32], layout: &Layout) -> Option<usize> {
        let column = |name: &str| {
            let index = layout.named(name)?;
            let is_here =
                |(key, _): &(u32, Cell)| map[*key as usize] != NOWHERE && map[*key as usize] == index as u32;
            cells.iter().any(is_here).then_some(index)
        };
        match &self.wanted {
            Some(name) => column(name),
            None => NAMES.iter().find_map(|name| column(name)),
        }
    }

    /// What to do, with all rows seen.
    pub(crate) fn plan(&self, layout: &Layout) -> Plan {
        let Some(index) = self.column else { return Plan::None };
        let column = &layout.columns[index];
        let everywhere = self.present == self.rows;
        let fits = matches!(column.kind(), Type::Integer | Type::Text)
            && !column.kinds.has(Kinds::BOOL)
            && !column.kinds.has(Kinds::JSON);
        if everywhere && self.rises && column.kind() == Type::Integer {
            Plan::Rowid(index)
        } else if everywhere && fits {
            Plan::After(index)
        } else if self.wanted.is_some() {
            Plan::Enforced(index)
        } else {
            Plan::None
        }
    }
}
