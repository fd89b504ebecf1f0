//! The columns of a table, and the parse options for its rows.
//!
//! Assigns keys to columns. `overflow` handles too many keys.

mod alias;
mod overflow;

use std::collections::HashMap;

pub(crate) use self::alias::Alias;
use super::column::Column;
use super::names::NameSet;
use super::options::ImportOptions;
use super::schema::{OtherKeys, TableSchema};
use crate::keys::{ColumnRule, Keys, OVERFLOW, ROOT};
use crate::parse::{Decimals, MAX_FLATTEN_DEPTH, ParseOptions, UnknownKeys};
use crate::parsed_block::ParsedBlock;
use crate::sql::TableColumn;
use crate::types::{Type, TypeSet};

/// Maximum number of columns of a SQLite table.
pub(crate) const MAX_COLUMNS: usize = 2_000;

/// Name of the overflow column, for keys without a column.
const OVERFLOW_NAME: &str = "_more";

pub(crate) const NO_COLUMN: u32 = u32::MAX;

/// Path of keys from the row to a value.
pub(crate) type Path = Vec<Box<[u8]>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LayoutConflict {
    /// More columns than SQLite allows. The layout was changed and the file has to be read again.
    TooManyColumns,
    /// The existing table has no room for this column.
    NoRoom(String),
    /// A value was parsed without the conversion that its column needs. The layout has the type now.
    NeedsConversion,
    /// A key got the column with its exact name from another key. The layout was changed; read the file again.
    KeyMoved,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<Column>,
    by_path: HashMap<Path, usize>,
    names: NameSet,
    /// Keys whose objects are not flattened.
    whole: Vec<Box<[u8]>>,
    /// Whether no object is flattened.
    is_flat: bool,
    overflow: Option<usize>,
    pub(crate) notes: Vec<String>,
}

impl Layout {
    /// Layout of an existing table. `hidden` are names that no new column can have.
    pub(crate) fn of_existing(mut columns: Vec<Column>, hidden: &[TableColumn]) -> Self {
        // The overflow column of an earlier import.
        let is_overflow =
            |column: &&mut Column| column.name == OVERFLOW_NAME && column.rule == ColumnRule::Fixed(Type::Text);
        let overflow = columns.get_mut(MAX_COLUMNS - 1).filter(is_overflow).map(|column| {
            column.path.get_or_insert_default();
            MAX_COLUMNS - 1
        });
        let mut layout = Layout { columns, is_flat: overflow.is_some(), overflow, ..Layout::default() };
        layout.rebuild();
        hidden.iter().for_each(|column| layout.names.add(&column.name));
        layout
    }

    /// Applies a schema to existing columns: values must match the types of the schema, and a column that has this type
    /// is not widened.
    pub(crate) fn apply_schema(&mut self, schema: &TableSchema, options: &ImportOptions) {
        for (name, fixed) in &schema.columns {
            let Some(kind) = fixed.kind else { continue };
            let preferred = fixed.name.as_deref().unwrap_or(name);
            let index = self.by_path.get(&path_of(name, options)).copied().or_else(|| self.by_name(preferred));
            if let Some(column) = index.map(|index| &mut self.columns[index])
                && column.widened_type.is_some()
            {
                column.rule = ColumnRule::Fixed(kind);
                if column.widened_type == Some(kind) {
                    (column.widened_type, column.current_type) = (None, None);
                }
            }
        }
    }

    /// Returns the names of these columns.
    pub(crate) fn names(&self, columns: &[usize]) -> impl Iterator<Item = &str> {
        columns.iter().map(|index| self.columns[*index].name.as_str())
    }

    pub(crate) fn overflow_column(&self) -> Option<usize> {
        self.overflow
    }

    /// Number of keys that have a column.
    pub(crate) fn key_count(&self) -> usize {
        self.by_path.len()
    }

    /// Leaves new columns without a type, because later values are unknown.
    pub(crate) fn fix_as_untyped(&mut self) {
        for column in self.columns.iter_mut().filter(|column| column.rule == ColumnRule::Inferred) {
            column.rule = ColumnRule::Fixed(Type::Any);
        }
    }

    pub(crate) fn has_new_columns(&self) -> bool {
        self.columns.iter().any(|column| !column.exists_in_table)
    }

    pub(crate) fn mark_existing(&mut self) {
        self.columns.iter_mut().for_each(|column| column.existed_before_import |= column.exists_in_table);
    }

    /// Finds a column by its exact name, then by the path of its key, then by its name without regard to case.
    pub(crate) fn find_column(&self, name: &str) -> Option<usize> {
        let is_key = |path: &Path| joined(path, ".") == name;
        let by_key = || self.columns.iter().position(|column| column.path.as_ref().is_some_and(is_key));
        let exact = self.columns.iter().position(|column| column.name == name);
        exact.or_else(by_key).or_else(|| self.by_name(name))
    }

    /// Finds a column by its exact name, then without regard to case, as SQLite compares names.
    pub(crate) fn by_name(&self, name: &str) -> Option<usize> {
        let exact = self.columns.iter().position(|column| column.name == name);
        exact.or_else(|| self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name)))
    }

    /// Returns the column of each key of a block. Adds columns for new keys and records the types of the values.
    pub(crate) fn assign_columns(
        &mut self,
        block: &ParsedBlock,
        options: &ImportOptions,
        schema: Option<&TableSchema>,
    ) -> Result<Vec<u32>, LayoutConflict> {
        let mut map = vec![NO_COLUMN; block.keys.len()];
        let mut conflict = None;
        for &number in block.keys.order() {
            let key = block.keys.get(number);
            let index = if key.parent == OVERFLOW {
                self.overflow.unwrap_or_default()
            } else {
                let path = block.keys.path(number).into_iter().map(Into::into).collect();
                let (index, has_moved) = self.column_of_key(path, schema);
                if has_moved {
                    conflict = Some(LayoutConflict::KeyMoved);
                }
                index
            };
            let column = &mut self.columns[index];
            column.types.insert(key.types);
            if let (ColumnRule::Fixed(kind) | ColumnRule::Detected(kind), ColumnRule::Inferred) =
                (column.rule, key.rule)
                && kind != Type::Any
            {
                conflict.get_or_insert(LayoutConflict::NeedsConversion);
            }
            // With a limit, a later pass may read rows that did not count when the type was inferred.
            if options.limit.is_some()
                && let ColumnRule::Detected(kind) = column.rule
                && column.types.column_type() != kind
            {
                column.rule = ColumnRule::Detected(column.types.column_type());
                conflict.get_or_insert(LayoutConflict::NeedsConversion);
            }
            map[number as usize] = index as u32;
            // Checked for each key, because a line may have a million keys.
            if self.columns.len() > MAX_COLUMNS {
                let last = self.columns[index].name.clone();
                let reserved = self.reserved(options, schema);
                // Add the columns of the reserved keys that follow.
                for &number in block.keys.order() {
                    let path = block.keys.path(number).into_iter().map(Into::into).collect();
                    if reserved.has(&path) {
                        self.column_of_key(path, schema);
                    }
                }
                return Err(if self.shrink(&reserved) {
                    LayoutConflict::TooManyColumns
                } else {
                    LayoutConflict::NoRoom(last)
                });
            }
        }
        conflict.map_or(Ok(map), Err)
    }

    /// Returns the column of a key, a new one if necessary, and whether another key lost it.
    ///
    /// A column created by an import has its own key, or the key with its exact name. A column created by the user has
    /// the key with its exact name; until there is one, a key whose name differs only in case.
    fn column_of_key(&mut self, path: Path, schema: Option<&TableSchema>) -> (usize, bool) {
        if let Some(index) = self.by_path.get(&path).copied() {
            return (index, self.release_alias(index, &path));
        }
        let key = joined(&path, ".");
        let fixed = schema.and_then(|schema| schema.columns.get(&key));
        let preferred = fixed.and_then(|fixed| fixed.name.clone()).unwrap_or_else(|| joined(&path, "_"));
        let is_free = |column: &Column| column.name == preferred && (column.path.is_none() || column.is_tentative);
        let exact = self.columns.iter().position(is_free);
        if exact.is_none()
            && fixed.is_none_or(|fixed| fixed.name.is_none())
            && let Some(index) = self.claim_alias(&path)
        {
            return (index, false);
        }
        let in_any_case = || self.columns.iter().position(|column| column.matches_any_case(&preferred));
        let index = exact.or_else(in_any_case).unwrap_or_else(|| {
            let name = self.names.reserve(&preferred);
            if name != preferred {
                self.notes.push(format!("the key {key:?} is the column {name:?}"));
            }
            let rule = fixed.and_then(|fixed| fixed.kind).map_or(ColumnRule::Inferred, ColumnRule::Fixed);
            self.columns.push(Column { name, rule, ..Column::default() });
            self.columns.len() - 1
        });
        let column = &mut self.columns[index];
        // The path of a flattened key may have the name as well, but a key with the exact name takes precedence.
        column.is_tentative = column.any_case && (column.name != preferred || path.len() > 1);
        let other = column.path.replace(path.clone());
        let has_moved = other.is_some_and(|other| self.by_path.remove(&other).is_some());
        self.by_path.insert(path, index);
        (index, has_moved)
    }

    /// Adds the columns of the schema that no row had.
    pub(crate) fn add_schema_columns(&mut self, options: &ImportOptions, schema: Option<&TableSchema>) {
        let columns = schema.into_iter().flat_map(|schema| &schema.columns);
        for (name, _) in columns.filter(|(_, column)| !column.skip && column.kind.is_some()) {
            let path = path_of(name, options);
            if !self.by_path.contains_key(&path) {
                self.column_of_key(path, schema);
            }
        }
    }

    /// Fixes the inferred types of new columns.
    pub(crate) fn fix_types(&mut self) {
        self.notes.extend(self.columns.iter().filter_map(Column::decimal_note));
        let is_new = |column: &&mut Column| column.rule == ColumnRule::Inferred && column.widened_type.is_none();
        for column in self.columns.iter_mut().filter(is_new) {
            column.rule = ColumnRule::Detected(column.types.column_type());
        }
    }

    pub(crate) fn parse_options(&self, options: &ImportOptions, schema: Option<&TableSchema>) -> ParseOptions {
        let mut keys = Keys::default();
        let mut names = HashMap::new();
        for column in &self.columns {
            match &column.path {
                Some(path) if path.is_empty() => {}
                Some(path) => {
                    names.insert(set_rule(&mut keys, path, column.rule), column.name.clone());
                }
                None => {
                    set_rule(&mut keys, &[column.name.as_bytes().into()], column.rule);
                }
            }
            if let Some(alias) = &column.alias {
                names.insert(set_rule(&mut keys, &alias.path, column.rule), column.name.clone());
            }
        }
        for (name, column) in schema.into_iter().flat_map(|schema| &schema.columns) {
            let path = path_of(name, options);
            if column.skip {
                set_rule(&mut keys, &path, ColumnRule::Skipped);
            } else if !self.by_path.contains_key(&path) {
                let number = set_rule(&mut keys, &path, column.kind.map_or(ColumnRule::Inferred, ColumnRule::Fixed));
                names.extend(column.name.clone().map(|name| (number, name)));
            }
        }
        // For a schema, a key with the name of a column is known, although the column may have another key.
        for column in self.columns.iter().filter(|column| column.has_own_key()) {
            find_or_add(&mut keys, ROOT, column.name.as_bytes());
        }
        // Keys of the primary key and of indexes are known, too.
        if let Some(schema) = schema {
            for name in schema.primary_key.iter().chain(&schema.indexes) {
                let is_renamed = schema.columns.values().any(|column| column.name.as_ref() == Some(name));
                let path = path_of(name, options);
                if !is_renamed && !self.by_path.contains_key(&path) && !schema.columns.contains_key(name) {
                    set_rule(&mut keys, &path, ColumnRule::Inferred);
                }
            }
        }
        // A key without a column is in the overflow column with the others.
        for key in &self.whole {
            if self.overflow.is_none() || keys.find(ROOT, key).is_some() {
                let number = find_or_add(&mut keys, ROOT, key);
                keys.get_mut(number).whole = true;
            }
        }
        if self.overflow.is_some() && schema.is_none_or(|schema| schema.others == OtherKeys::Infer) {
            for name in self.reserved(options, schema).names() {
                find_or_add(&mut keys, ROOT, name.as_bytes());
            }
        }
        let unknown_keys = match (self.overflow, schema.map(|schema| schema.others).unwrap_or_default()) {
            (_, OtherKeys::Skip) => UnknownKeys::Skipped,
            (_, OtherKeys::Reject) => UnknownKeys::Rejected,
            (Some(_), OtherKeys::Infer) => {
                UnknownKeys::Overflow(keys.add(OVERFLOW, b"", ColumnRule::Fixed(Type::Text)))
            }
            (None, OtherKeys::Infer) => UnknownKeys::Inferred,
        };
        ParseOptions {
            flatten: if self.is_flat { 0 } else { options.flatten.min(MAX_FLATTEN_DEPTH) },
            languages: options.languages.iter().map(|language| language.as_bytes().into()).collect(),
            keys,
            names,
            unknown_keys,
            decimals: if options.exact_numbers { Decimals::Exact } else { Decimals::Rounded },
            max_line: options.max_line,
            filename: None,
        }
    }

    /// Returns the columns with the paths of their keys, for the import log, because the name does not show the key.
    /// Columns created by the user are not included: each import assigns them anew.
    pub(crate) fn keys_of_columns(&self) -> Vec<(Vec<String>, String)> {
        let of_key = |column: &Column| {
            let path = column.path.as_ref().filter(|_| !column.any_case)?;
            let words: Vec<String> = path.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            (!words.is_empty()).then(|| (words, column.name.clone()))
        };
        self.columns.iter().filter_map(of_key).collect()
    }

    /// Returns the columns of doubles that have numbers written without a fraction, for the import log, because the
    /// values do not show it.
    pub(crate) fn columns_with_whole_numbers(&self) -> Vec<&str> {
        let mixed = self.columns.iter().filter(|column| column.mixes_whole_numbers());
        mixed.map(|column| column.name.as_str()).collect()
    }

    /// Marks these columns. Returns whether any was not marked before.
    pub(crate) fn mark_whole_numbers(&mut self) -> bool {
        let mut any = false;
        for column in self.columns.iter_mut().filter(|column| column.mixes_whole_numbers()) {
            any |= !std::mem::replace(&mut column.has_whole_numbers, true);
        }
        any
    }
}

/// Returns the keys of a path as one text.
fn joined(path: &[Box<[u8]>], separator: &str) -> String {
    path.iter().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>().join(separator)
}

/// Returns the path for a key of a schema. With flattening, dots separate the keys.
pub(super) fn path_of(name: &str, options: &ImportOptions) -> Path {
    match options.flatten {
        0 => vec![name.as_bytes().into()],
        _ => name.split('.').map(|part| part.as_bytes().into()).collect(),
    }
}

pub(super) fn find_or_add(keys: &mut Keys, parent: u32, name: &[u8]) -> u32 {
    keys.find(parent, name).unwrap_or_else(|| keys.add(parent, name, ColumnRule::Inferred))
}

fn set_rule(keys: &mut Keys, path: &[Box<[u8]>], rule: ColumnRule) -> u32 {
    let number = path.iter().fold(ROOT, |parent, name| find_or_add(keys, parent, name));
    if number != ROOT {
        keys.get_mut(number).rule = rule;
    }
    number
}
