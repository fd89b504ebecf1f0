//! A table of the model, and its comparison with the one in the database.

use std::collections::{BTreeMap, BTreeSet};

use crate::json::{self, Json, Kind, Sql};
use crate::workspace::ObservedTable;

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    /// Columns of the primary key.
    pub(crate) key: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Path of its key; `None` in a table created by the user.
    pub(crate) path: Option<Vec<String>>,
    /// All SQL types that it has had.
    pub(crate) types: Vec<String>,
    /// Whether the user set its type.
    pub(crate) is_fixed: bool,
    /// Kinds of values in accepted lines, and in all lines.
    pub(crate) accepted: BTreeSet<Kind>,
    pub(crate) offered: BTreeSet<Kind>,
}

impl Column {
    pub(crate) fn new(name: String, path: Option<Vec<String>>) -> Self {
        Column { name, path, types: Vec::new(), is_fixed: false, accepted: BTreeSet::new(), offered: BTreeSet::new() }
    }

    /// Whether one import of all lines so far could give the column this type. Whether a rejected line counts is not
    /// documented.
    pub(crate) fn may_have(&self, sql_type: &str) -> bool {
        let of = |kinds: &BTreeSet<Kind>| json::sql_type(kinds) == sql_type;
        let with = |kind: &Kind| self.accepted.iter().chain([kind]).copied().collect();
        // Large whole numbers may have been updated to others since.
        let is_real = sql_type == "REAL" && self.may_have("NUMERIC");
        is_real || of(&self.accepted) || of(&self.offered) || self.offered.iter().any(|kind| of(&with(kind)))
    }
}

/// Values by column.
pub(crate) type Row = BTreeMap<usize, Cell>;

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) json: Json,
    /// Number of types that the column had before this value.
    pub(crate) since: usize,
}

impl Cell {
    /// Whether SQLite's value is this one. After the column's type was changed, both the old and the new form are
    /// right.
    fn is_held(&self, column: &Column, found: &Sql) -> bool {
        let types = &column.types[self.since..];
        types.iter().any(|sql_type| self.json.is_held(sql_type, column.is_fixed, found))
            || matches!(types, [.., before, last] if last == "TEXT" && self.json.is_held_as_text_later(before, found))
    }
}

impl Table {
    pub(crate) fn key_names(&self) -> Vec<&str> {
        self.key.iter().map(|index| self.columns[*index].name.as_str()).collect()
    }

    /// The values of the key, if the row has them all.
    pub(crate) fn key_of(&self, row: &Row) -> Option<Vec<String>> {
        let value = |index: &usize| row.get(index).filter(|cell| cell.json != Json::Null);
        self.key.iter().map(|index| value(index).map(|cell| cell.json.as_text())).collect()
    }

    /// Sorts the columns from `first` on as in the observed table, if both have the same columns.
    pub(crate) fn reorder(&mut self, first: usize, found: &ObservedTable) {
        let position = |name: &String| found.columns.iter().position(|(found, _)| found == name);
        let positions: Option<Vec<usize>> = self.columns.iter().map(|column| position(&column.name)).collect();
        let Some(positions) = positions.filter(|positions| positions.len() == found.columns.len()) else { return };
        if positions[..first].iter().enumerate().any(|(index, position)| index != *position) {
            return;
        }
        let mut columns: Vec<(usize, Column)> = positions.iter().copied().zip(self.columns.drain(..)).collect();
        columns.sort_by_key(|(position, _)| *position);
        self.columns = columns.into_iter().map(|(_, column)| column).collect();
        self.key.iter_mut().for_each(|index| *index = positions[*index]);
        for row in &mut self.rows {
            *row = std::mem::take(row).into_iter().map(|(index, cell)| (positions[index], cell)).collect();
        }
    }

    pub(crate) fn compare(&self, found: &ObservedTable) -> Result<(), String> {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let found_names: Vec<&str> = found.columns.iter().map(|(name, _)| name.as_str()).collect();
        if names != found_names {
            return Err(format!("its columns are {found_names:?}, expected {names:?}"));
        }
        for (column, (_, found)) in self.columns.iter().zip(&found.columns) {
            if column.types.last() != Some(found) {
                let (name, expected) = (&column.name, column.types.last());
                return Err(format!("column {name:?} is of the type {found:?}, expected {expected:?}"));
            }
        }
        if self.key_names() != found.key {
            return Err(format!("its primary key is {:?}, expected {:?}", found.key, self.key_names()));
        }
        self.compare_rows(found)
    }

    /// Compares the rows in order; with a key, in order of the key.
    fn compare_rows(&self, found: &ObservedTable) -> Result<(), String> {
        if self.rows.len() != found.rows.len() {
            return Err(format!("it has {} rows, expected {}", found.rows.len(), self.rows.len()));
        }
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        let mut found_rows: Vec<&Vec<Sql>> = found.rows.iter().collect();
        if !self.key.is_empty() {
            rows.sort_by_key(|row| self.key_of(row));
            found_rows.sort_by_key(|row| self.key.iter().map(|index| formatted(&row[*index])).collect::<Vec<_>>());
        }
        for (row, found) in rows.iter().zip(found_rows) {
            for (index, column) in self.columns.iter().enumerate() {
                let is_held = match row.get(&index) {
                    Some(cell) => cell.is_held(column, &found[index]),
                    None => found[index] == Sql::Null,
                };
                if !is_held {
                    let expected = row.get(&index).map_or("NULL".to_owned(), |cell| cell.json.written());
                    return Err(format!(
                        "column {:?} ({:?}) holds {:?}, expected {expected}; the row is {found:?}",
                        column.name, column.types, found[index]
                    ));
                }
            }
        }
        Ok(())
    }
}

fn formatted(value: &Sql) -> String {
    match value {
        Sql::Null => String::new(),
        Sql::Int(value) => value.to_string(),
        Sql::Real(value) => value.to_string(),
        Sql::Text(text) => text.clone(),
    }
}
