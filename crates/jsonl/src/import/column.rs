//! One column of a table: which key it has, and which type it is to have.

use super::layout::{Alias, Path};
use crate::keys::ColumnRule;
use crate::types::{Type, TypeSet};

#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Unknown for a column that was there before, until a key is found that makes its name.
    pub(crate) path: Option<Path>,
    /// Another key that has the column, because it is spelt like it.
    pub(crate) alias: Option<Alias>,
    /// The path has this column only until a key comes that is spelt like it.
    pub(super) is_tentative: bool,
    /// It is the user's own: a key that differs in case may have it.
    pub(super) takes_any_case: bool,
    pub(crate) name: String,
    pub(crate) rule: ColumnRule,
    pub(crate) types: TypeSet,
    /// The table had it before us.
    pub(crate) is_old: bool,
    /// What it is to be, if the table has it and it may become wider: a column that we made ourselves.
    pub(crate) declared: Option<Type>,
    /// What the table's definition says that it is, in that case.
    pub(crate) before: Option<Type>,
    /// The table has it.
    pub(crate) is_made: bool,
    /// Numbers in it, of earlier imports, may have been written without a fraction.
    pub(super) has_whole_numbers: bool,
}

impl Column {
    pub(crate) fn kind(&self) -> Type {
        match (self.declared, self.rule) {
            (Some(declared), _) => declared,
            (_, ColumnRule::Fixed(kind) | ColumnRule::Detected(kind)) => kind,
            _ => self.types.widest(),
        }
    }

    /// What is worth knowing about a column that nothing but its numbers makes text.
    pub(crate) fn decimal_note(&self) -> Option<String> {
        let is = self.rule == ColumnRule::Inferred && self.types.is_decimal();
        let name = &self.name;
        is.then(|| format!("the column {name:?} is TEXT, because some of its numbers need more than 64 bits"))
    }

    /// The type that takes what the table has and what has been seen, if its type does not.
    pub(super) fn wider(&self) -> Option<Type> {
        let declared = self.declared?;
        let mut types = self.types;
        types.insert(TypeSet::of(declared));
        Some(types.widest()).filter(|wide| *wide != declared)
    }

    /// Whether it is a column of doubles of which some were written without a fraction: their type does not say so.
    pub(super) fn mixes_whole_numbers(&self) -> bool {
        self.kind() == Type::Real && (self.has_whole_numbers || self.types.has(TypeSet::WHOLE))
    }

    pub(super) fn new(name: String, rule: ColumnRule) -> Self {
        Column {
            path: None,
            alias: None,
            is_tentative: false,
            takes_any_case: false,
            name,
            rule,
            types: TypeSet::default(),
            is_old: false,
            declared: None,
            before: None,
            is_made: false,
            has_whole_numbers: false,
        }
    }

    /// Whether a key that makes this name may have the column.
    pub(super) fn matches_any_case(&self, name: &str) -> bool {
        self.path.is_none() && self.takes_any_case && self.name.eq_ignore_ascii_case(name)
    }
}

/// A column that the table had before us.
pub(crate) struct ExistingColumn {
    pub(crate) name: String,
    /// The key that it was made for, if that was noted.
    pub(crate) path: Option<Path>,
    pub(crate) rule: ColumnRule,
    pub(crate) kind: Type,
    pub(crate) can_widen: bool,
    pub(crate) takes_any_case: bool,
    pub(crate) has_whole_numbers: bool,
}

/// What a column of a table may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Anything but null.
    Anything,
    /// Whole numbers that a double would round.
    LargeIntegers,
}
