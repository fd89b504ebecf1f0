//! Columns with a second key, besides the one for which they were created.
//!
//! If names collide, a column has another name than its key: next to `A`, the column of the key `a` is `a_2`. A key
//! `a_2`, as in the lines of an export, is stored in that column, too, unless the key `a` is in the same files.

use super::{Layout, Path};
use crate::import::column::Column;

/// A key that is stored in a column created for another key.
#[derive(Clone, Debug)]
pub(crate) struct Alias {
    pub(crate) path: Path,
    /// The column before it had this key.
    before: Box<Column>,
}

impl Layout {
    /// Finds a column with the name of the key whose own key no line has had, and gives it this key as alias.
    pub(super) fn claim_alias(&mut self, path: &Path) -> Option<usize> {
        let [name] = &path[..] else { return None };
        let matches = |column: &Column| column.name.as_bytes() == &**name && column.accepts_alias();
        let index = self.columns.iter().position(matches)?;
        let column = &mut self.columns[index];
        let before = Box::new(column.clone());
        column.alias = Some(Alias { path: path.clone(), before });
        self.by_path.insert(path.clone(), index);
        Some(index)
    }

    /// Removes the alias of a column when its own key is found. Returns whether it had one.
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
    /// Whether a key with the name of the column may become its alias.
    fn accepts_alias(&self) -> bool {
        self.has_own_key() && self.alias.is_none() && self.types.is_empty()
    }

    /// Whether the table has the column and its original key is known.
    pub(super) fn has_own_key(&self) -> bool {
        self.existed_before_import && self.path.as_ref().is_some_and(|path| !path.is_empty())
    }
}
