//! Reduces the columns of a table whose lines have more keys than SQLite allows columns.
//!
//! Chooses the keys that lose their column. Keys of the primary key, of indexes and of a schema always keep theirs.

use std::collections::{HashMap, HashSet};

use super::super::key::DEFAULT_KEY_NAMES;
use super::super::names::{NameSet, folded};
use super::{
    Column, ColumnRule, ImportOptions, Layout, MAX_COLUMNS, OVERFLOW_NAME, Path, TableSchema, Type, TypeSet, joined,
};

/// Keys that always keep their column.
pub(super) struct Reserved {
    names: Vec<String>,
    /// The names in the form in which SQLite compares them.
    folded: HashSet<String>,
}

impl Reserved {
    /// Whether the key is reserved, by its path or by the name of its column.
    pub(super) fn has(&self, path: &Path) -> bool {
        !path.is_empty() && [".", "_"].iter().any(|joint| self.folded.contains(&folded(&joined(path, joint))))
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

impl Layout {
    /// Returns the keys that always keep their column. The default key names count only for a new table.
    pub(super) fn reserved(&self, options: &ImportOptions, schema: Option<&TableSchema>) -> Reserved {
        let key = schema.filter(|schema| schema.has_key()).map_or(&options.primary_key, |schema| &schema.primary_key);
        let of_schema = schema.into_iter().flat_map(|schema| {
            let columns = schema.columns.iter().filter(|(_, column)| !column.skip).map(|(key, _)| key);
            columns.chain(&schema.indexes)
        });
        let named = key.iter().chain(&options.indexes).chain(&options.filename_column).chain(of_schema);
        let mut names: Vec<String> = named.cloned().collect();
        if key.is_empty() && !self.columns.iter().any(|column| column.existed_before_import) {
            names.extend(DEFAULT_KEY_NAMES.map(str::to_owned));
        }
        let folded = names.iter().map(|name| folded(name)).collect();
        Reserved { names, folded }
    }

    /// Removes columns. First the flattened key with the most columns is kept as JSON, then all flattened keys, then
    /// the last keys move to the overflow column. Returns false if the reserved columns leave no room for that.
    pub(super) fn shrink(&mut self, reserved: &Reserved) -> bool {
        let mut flattened: HashMap<&[u8], usize> = HashMap::new();
        let paths = self
            .columns
            .iter()
            .filter(|column| !column.existed_before_import)
            .filter_map(|column| column.path.as_ref());
        for path in paths.filter(|path| path.len() > 1) {
            *flattened.entry(&path[0]).or_default() += 1;
        }
        let is_flattened = !flattened.is_empty();
        let widest = flattened.into_iter().filter(|(_, count)| *count > 1).max_by_key(|(key, count)| (*count, *key));
        if let Some((key, _)) = widest {
            let key: Box<[u8]> = key.into();
            self.notes.push(format!(
                "the objects of {:?} have too many keys for columns ({MAX_COLUMNS} is SQLite's limit): kept as JSON",
                String::from_utf8_lossy(&key)
            ));
            let is_kept = |column: &Column| {
                column.existed_before_import
                    || column.path.as_ref().is_none_or(|path| path.len() == 1 || path[0] != key)
            };
            self.columns.retain(is_kept);
            self.whole.push(key);
        } else if is_flattened {
            self.is_flat = true;
            self.notes.push("there are too many keys for columns: objects are not flattened".to_owned());
            self.columns.retain(|column| column.existed_before_import);
        } else if !self.move_to_overflow(reserved) {
            return false;
        }
        self.rebuild();
        true
    }

    /// Moves keys to the overflow column. Keeps the reserved columns and the first of the others.
    fn move_to_overflow(&mut self, reserved: &Reserved) -> bool {
        let is_reserved = |column: &Column| {
            column.existed_before_import || column.path.as_ref().is_some_and(|path| reserved.has(path))
        };
        let reserved_count = self.columns.iter().filter(|column| is_reserved(column)).count();
        let Some(mut room) = (MAX_COLUMNS - 1).checked_sub(reserved_count) else { return false };
        let had_overflow = self.overflow.take().map(|index| self.columns.remove(index)).is_some();
        self.columns.retain(|column| {
            let is_kept = is_reserved(column) || room > 0;
            room -= usize::from(is_kept && !is_reserved(column));
            is_kept
        });
        self.rebuild();
        let name = self.names.reserve(OVERFLOW_NAME);
        if !had_overflow {
            self.notes.push(format!(
                "there are more keys than SQLite has columns: {} are columns, the others are in {name:?}",
                MAX_COLUMNS - 1
            ));
        }
        self.columns.push(Column {
            path: Some(Path::new()),
            types: TypeSet::JSON,
            name,
            rule: ColumnRule::Fixed(Type::Text),
            ..Column::default()
        });
        self.overflow = Some(self.columns.len() - 1);
        true
    }

    /// Collects the names and the paths of all columns again.
    pub(super) fn rebuild(&mut self) {
        self.by_path.clear();
        self.names = NameSet::default();
        for (index, column) in self.columns.iter().enumerate() {
            self.names.add(&column.name);
            let alias = column.alias.as_ref().map(|alias| &alias.path);
            for path in column.path.iter().chain(alias) {
                self.by_path.insert(path.clone(), index);
            }
        }
    }
}
