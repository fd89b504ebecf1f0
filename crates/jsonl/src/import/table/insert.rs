//! Inserts or upserts the rows of a block.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{CachedStatement, Connection, ErrorCode};

use super::super::key::{KeyPlan, cell_of};
use super::super::key_check::KeyCheck;
use super::super::layout::NO_COLUMN;
use super::super::overflow_merge::{MERGE_FUNCTION, NOT_AN_OBJECT};
use super::{Table, WriteMode, Written};
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{Cell, Line, ParsedBlock};
use crate::sql::{Sql, all_equal, marks, quoted, quoted_names};

impl Table {
    pub(super) fn insert_sql(&self, columns: &[usize]) -> String {
        // OR ABORT overrides conflict clauses of the definition. It is omitted if there are none, because it also
        // overrides those of statements in triggers.
        let insert = if self.has_conflict_clause { "INSERT OR ABORT" } else { "INSERT" };
        if columns.is_empty() {
            return format!("{insert} INTO {} DEFAULT VALUES", quoted(&self.name));
        }
        let (names, marks) = (quoted_names(self.layout.names(columns)), marks(columns.len()));
        format!("{insert} INTO {} ({names}) VALUES ({marks})", quoted(&self.name))
    }

    /// Inserts rows with all columns; missing values are null.
    pub(super) fn insert(&mut self, conn: &Connection, block: &ParsedBlock, map: &[u32]) -> Sql<Written> {
        let mut result = Written::default();
        if !self.is_made {
            // All rows so far are `{}`. They are written when there is a column.
            result.stopped_after = (!block.rows.is_empty()).then_some(0);
            return Ok(result);
        }
        let mut statement = conn.prepare_cached(&self.insert)?;
        // Bindings persist, so only values of the previous row that this row lacks are set to null.
        let mut bound = vec![0_u32; self.layout.columns.len()];
        let mut last: Vec<u32> = Vec::new();
        for ((line, cells), number) in block.each_row().zip(1_u32..) {
            self.tracker.observe(cells, map, &self.layout);
            match &self.plan {
                KeyPlan::Rowid(_) if !self.tracker.is_ascending => {
                    result.stopped_after = Some(number as usize);
                    return Ok(result);
                }
                KeyPlan::IndexFromStart(keys) => {
                    if let Some(missing) = keys.iter().find(|key| is_missing(cells, map, **key)) {
                        result.refused.push((line, self.missing_key_error(*missing)));
                        continue;
                    }
                }
                _ => {}
            }
            for (key, cell) in cells {
                let column = map[*key as usize];
                if column != NO_COLUMN {
                    statement.raw_bind_parameter(column as usize + 1, BoundCell(block, *cell))?;
                    bound[column as usize] = number;
                }
            }
            for column in last.drain(..).filter(|column| bound[*column as usize] != number) {
                statement.raw_bind_parameter(column as usize + 1, rusqlite::types::Null)?;
            }
            last.extend(cells.iter().map(|(key, _)| map[*key as usize]).filter(|column| *column != NO_COLUMN));
            match statement.raw_execute() {
                Ok(count) => result.rows += count.min(1) as u64,
                Err(error) => result.refused.push((line, refusal(error)?)),
            }
        }
        Ok(result)
    }

    /// Writes rows with the columns they have. Other columns of an existing row stay; those of a new row get defaults.
    pub(super) fn add(&mut self, conn: &Connection, block: &ParsedBlock, map: &[u32]) -> Sql<Written> {
        let mut result = Written::default();
        let keys = if self.mode == WriteMode::Upsert { self.plan.columns().to_vec() } else { Vec::new() };
        let mut statements: HashMap<Vec<u32>, CachedStatement<'_>> = HashMap::new();
        for (line, cells) in block.each_row() {
            if let Some(reason) = self.missing_key(cells, map) {
                result.refused.push((line, reason));
                continue;
            }
            let columns: Vec<u32> = cells.iter().map(|(key, _)| map[*key as usize]).collect();
            let statement = match statements.entry(columns) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let columns: Vec<usize> = new.key().iter().map(|column| *column as usize).collect();
                    let sql = match keys.is_empty() {
                        true => self.insert_sql(&columns),
                        false => self.upsert_sql(&columns, &keys),
                    };
                    new.insert(conn.prepare_cached(&sql)?)
                }
            };
            for (index, (_, cell)) in cells.iter().enumerate() {
                statement.raw_bind_parameter(index + 1, BoundCell(block, *cell))?;
            }
            match statement.raw_execute() {
                // An update counts even if it changes nothing, but DO NOTHING for a row with only the key returns 0.
                Ok(0) if !self.has_row_of_key(conn, block, cells, map, &keys)? => {
                    let why = "a trigger of the table ignores it".to_owned();
                    result.refused.push((line, ParseErrorKind::Refused(why)));
                }
                Ok(_) => result.rows += 1,
                Err(error) => result.refused.push((line, refusal(error)?)),
            }
            if conn.is_autocommit() {
                break;
            }
        }
        Ok(result)
    }

    /// Whether the row of an upsert has only the key, and the table has that key.
    #[cold]
    fn has_row_of_key(
        &self,
        conn: &Connection,
        block: &ParsedBlock,
        cells: &[(u32, Cell)],
        map: &[u32],
        keys: &[usize],
    ) -> Sql<bool> {
        if keys.is_empty() || cells.len() > keys.len() {
            return Ok(false);
        }
        let sql = format!("SELECT 1 FROM {} WHERE {}", quoted(&self.name), all_equal(self.layout.names(keys)));
        let values = keys.iter().filter_map(|key| Some(BoundCell(block, cell_of(cells, map, *key)?)));
        conn.prepare_cached(&sql)?.exists(rusqlite::params_from_iter(values))
    }

    /// Returns an error if a row lacks a required column of the key.
    fn missing_key(&self, cells: &[(u32, Cell)], map: &[u32]) -> Option<ParseErrorKind> {
        let missing = match self.mode {
            WriteMode::Upsert => self.plan.columns().iter().copied().find(|key| is_missing(cells, map, *key)),
            WriteMode::Insert if !self.is_old => {
                let keys = if let KeyPlan::IndexFromStart(keys) = &self.plan { &keys[..] } else { &[] };
                keys.iter().copied().find(|key| is_missing(cells, map, *key))
            }
            WriteMode::Insert => {
                let required = self.required.iter().find(|required| required.is_missing(cells, map));
                required.map(|required| required.column)
            }
        };
        missing.map(|missing| self.missing_key_error(missing))
    }

    /// Returns the rows of a block that are rejected because of their key. Without `keys`, only rows without a key.
    pub(crate) fn refused(
        &self,
        block: &ParsedBlock,
        map: &[u32],
        keys: Option<&KeyCheck>,
    ) -> Sql<Vec<(Line, ParseErrorKind)>> {
        let mut refused = Vec::new();
        for (line, cells) in block.each_row() {
            let reason = match (self.missing_key(cells, map), keys) {
                (None, Some(keys)) => keys.add(block, cells, map)?,
                (missing, _) => missing,
            };
            refused.extend(reason.map(|reason| (line, reason)));
        }
        Ok(refused)
    }

    fn missing_key_error(&self, index: usize) -> ParseErrorKind {
        ParseErrorKind::NoPrimaryKey(self.layout.columns[index].name.clone())
    }

    fn upsert_sql(&self, columns: &[usize], keys: &[usize]) -> String {
        let name = |index: &usize| quoted(&self.layout.columns[*index].name);
        let set: Vec<String> = columns
            .iter()
            .filter(|column| !keys.contains(column))
            .map(|column| match self.layout.overflow_column() {
                Some(overflow) if overflow == *column => {
                    format!("{0}={MERGE_FUNCTION}({0},excluded.{0})", name(column))
                }
                _ => format!("{0}=excluded.{0}", name(column)),
            })
            .collect();
        let then = if set.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", set.join(",")) };
        format!("{} ON CONFLICT ({}) DO {then}", self.insert_sql(columns), quoted_names(self.layout.names(keys)))
    }
}

fn is_missing(cells: &[(u32, Cell)], map: &[u32], key: usize) -> bool {
    cell_of(cells, map, key).is_none_or(|cell| cell == Cell::Null)
}

/// Whether rows of the block have duplicate values in a column of whole numbers or text.
pub(super) fn has_duplicates(block: &ParsedBlock, map: &[u32], column: usize) -> bool {
    let (mut numbers, mut texts) = (HashSet::new(), HashSet::<Cow<'_, [u8]>>::new());
    block.each_row().any(|(_, cells)| match cell_of(cells, map, column) {
        // In a text column the number 5 and the text "5" are equal. Numbers beyond 64 bits make a column text.
        Some(Cell::Int(value)) => {
            let is_duplicate = !numbers.insert(value);
            is_duplicate || !texts.insert(Cow::Owned(value.to_string().into_bytes()))
        }
        Some(Cell::Real(value)) => !texts.insert(Cow::Owned(value.to_string().into_bytes())),
        Some(Cell::Decimal(span)) => !texts.insert(Cow::Borrowed(block.bytes(span, false))),
        Some(Cell::Text { span, scratch, .. }) => !texts.insert(Cow::Borrowed(block.bytes(span, scratch))),
        _ => false,
    })
}

/// Converts a database error that one row caused; returns other errors unchanged.
fn refusal(error: rusqlite::Error) -> Sql<ParseErrorKind> {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) => {
            let why = error.to_string();
            Ok(if why.starts_with("UNIQUE") { ParseErrorKind::key_exists(&why) } else { ParseErrorKind::Refused(why) })
        }
        Some(ErrorCode::Unknown) if error.to_string().contains(NOT_AN_OBJECT) => {
            Ok(ParseErrorKind::Refused(NOT_AN_OBJECT.to_owned()))
        }
        _ => Err(error),
    }
}

/// A value to bind. Text is bound without a check, because the parser has checked that it is UTF-8.
pub(crate) struct BoundCell<'a>(pub(crate) &'a ParsedBlock, pub(crate) Cell);

impl ToSql for BoundCell<'_> {
    #[inline(always)] // Called for every value: not inlining costs the writer 6 %.
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.1 {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Bool(value) => ToSqlOutput::Owned(Value::Integer(i64::from(value))),
            Cell::Int(value) => ToSqlOutput::Owned(Value::Integer(value)),
            Cell::Real(value) => ToSqlOutput::Owned(Value::Real(value)),
            Cell::Decimal(span) => ToSqlOutput::Borrowed(ValueRef::Text(self.0.bytes(span, false))),
            Cell::Text { span, scratch, .. } => ToSqlOutput::Borrowed(ValueRef::Text(self.0.bytes(span, scratch))),
        })
    }
}
