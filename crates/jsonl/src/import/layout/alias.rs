//! Columns that have a key besides the one that they were made for.
//!
//! A column of an import has the key that it was made for. Where names were taken, its name is another: the column of the
//! key `a` is `a_2` beside `A`. A key that is spelt like the column means the column as well, as in the lines of an export,
//! unless the column's own key is in the same files: then the two are different.

use super::{Layout, Path};
use crate::import::column::Column;

/// A key that has a column made for another.
#[derive(Clone, Debug)]
pub(crate) struct Alias {
    pub(crate) path: Path,
    /// The column as it was before it had this key.
    before: Box<Column>,
}

impl Layout {
    /// The column that is spelt like a key and that the key may have, if there is one: no line has had the column's own key.
    pub(super) fn claim_alias(&mut self, path: &Path) -> Option<usize> {
        let [name] = &path[..] else { return None };
        let is_it = |column: &Column| column.name.as_bytes() == &**name && column.accepts_alias();
        let index = self.columns.iter().position(is_it)?;
        let column = &mut self.columns[index];
        let before = Box::new(column.clone());
        column.alias = Some(Alias { path: path.clone(), before });
        self.by_path.insert(path.clone(), index);
        Some(index)
    }

    /// Gives a column back to its own key, as it was before another had it. Whether another had it.
    pub(super) fn release_alias(&mut self, index: usize, path: &Path) -> bool {
        let column = &mut self.columns[index];
        match column.alias.take_if(|alias| alias.path != *path) {
            Some(alias) => {
                *column = *alias.before;
                self.by_path.remove(&alias.path);
                true
            }
            None => false,
        }
    }
}

impl Column {
    /// Whether a key that is spelt like the column, and not its own, may have it.
    fn accepts_alias(&self) -> bool {
        self.has_own_key() && self.alias.is_none() && self.types.is_empty()
    }

    /// Whether the table has the column, and which key it was made for is known.
    pub(super) fn has_own_key(&self) -> bool {
        self.is_old && self.path.as_ref().is_some_and(|path| !path.is_empty())
    }
}
