//! A column of a table: its key and its type.

use super::layout::{Alias, Path};
use crate::keys::ColumnRule;
use crate::types::{Type, TypeSet};

#[derive(Clone, Debug, Default)]
pub(crate) struct Column {
    /// Path of its key. `None` for a column of an existing table until a key with its name is found.
    pub(crate) path: Option<Path>,
    /// Another key that is stored in the column, because it has the exact name of the column.
    pub(crate) alias: Option<Alias>,
    /// The path has the column only until a key with the exact name of the column is found.
    pub(crate) is_tentative: bool,
    /// Created by the user, so a key that differs only in case may have it.
    pub(crate) any_case: bool,
    pub(crate) name: String,
    pub(crate) rule: ColumnRule,
    pub(crate) types: TypeSet,
    /// Whether the table had it before this import.
    pub(crate) existed_before_import: bool,
    /// Target type of an existing column that may be widened, because an import created it.
    pub(crate) widened_type: Option<Type>,
    /// Type of such a column in the current definition of the table.
    pub(crate) current_type: Option<Type>,
    pub(crate) exists_in_table: bool,
    /// Whether earlier imports may have stored numbers without a fraction in it.
    pub(crate) has_whole_numbers: bool,
}

impl Column {
    pub(crate) fn column_type(&self) -> Type {
        match (self.widened_type, self.rule) {
            (Some(declared), _) => declared,
            (_, ColumnRule::Fixed(kind) | ColumnRule::Detected(kind)) => kind,
            _ => self.types.column_type(),
        }
    }

    /// Note for the summary about a column that is text only because of its large numbers.
    pub(crate) fn decimal_note(&self) -> Option<String> {
        let is_decimal = self.rule == ColumnRule::Inferred && self.types.is_decimal();
        let name = &self.name;
        is_decimal.then(|| format!("the column {name:?} is TEXT, because some of its numbers need more than 64 bits"))
    }

    /// The wider type that the column needs for the values found so far, if its type does not hold them.
    pub(super) fn wider(&self) -> Option<Type> {
        let declared = self.widened_type?;
        let mut types = self.types;
        types.insert(TypeSet::of(declared));
        Some(types.column_type()).filter(|wide| *wide != declared)
    }

    /// Whether it is a column of doubles of which some were written without a fraction.
    pub(super) fn mixes_whole_numbers(&self) -> bool {
        self.column_type() == Type::Real && (self.has_whole_numbers || self.types.has(TypeSet::WHOLE))
    }

    /// Whether a key may have the column although its name differs in case.
    pub(super) fn matches_any_case(&self, name: &str) -> bool {
        self.path.is_none() && self.any_case && self.name.eq_ignore_ascii_case(name)
    }
}
