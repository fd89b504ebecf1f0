//! Which kinds of values a column has seen, and the type that takes them all.
//!
//! Owns the widening: this is the table in the README, as code.

use serde::{Deserialize, Serialize};

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeSet(u8);

impl TypeSet {
    pub(crate) const NULL: TypeSet = TypeSet(1);
    pub(crate) const BOOL: TypeSet = TypeSet(2);
    pub(crate) const INT: TypeSet = TypeSet(4);
    /// An integer that is no double.
    pub(crate) const BIG: TypeSet = TypeSet(8);
    pub(crate) const REAL: TypeSet = TypeSet(16);
    /// A number that neither an integer nor a double holds undamaged.
    pub(crate) const DECIMAL: TypeSet = TypeSet(32);
    pub(crate) const TEXT: TypeSet = TypeSet(64);
    pub(crate) const JSON: TypeSet = TypeSet(128);

    /// Values that a column of doubles holds as whole numbers.
    pub(crate) const WHOLE: TypeSet = TypeSet(TypeSet::BOOL.0 | TypeSet::INT.0 | TypeSet::BIG.0);

    pub(crate) fn insert(&mut self, other: TypeSet) {
        self.0 |= other.0;
    }

    pub(crate) fn has(self, other: TypeSet) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Numbers, and some that only text holds.
    pub(crate) fn is_decimal(self) -> bool {
        self.has(TypeSet::DECIMAL) && !self.has(TypeSet(TypeSet::TEXT.0 | TypeSet::JSON.0))
    }

    /// The kinds that a column of this type has, as far as its type says.
    pub(crate) fn of(kind: Type) -> TypeSet {
        match kind {
            Type::Integer => TypeSet::INT,
            Type::Real => TypeSet::REAL,
            Type::Numeric => TypeSet(TypeSet::REAL.0 | TypeSet::BIG.0),
            Type::Boolean => TypeSet::BOOL,
            Type::Text => TypeSet::TEXT,
            Type::Any => TypeSet::NULL,
        }
    }

    /// The narrowest type that takes all of them.
    pub(crate) fn widest(self) -> Type {
        let text = TypeSet(TypeSet::TEXT.0 | TypeSet::JSON.0 | TypeSet::DECIMAL.0);
        if self.has(text) {
            Type::Text
        } else if self.has(TypeSet::REAL) {
            if self.has(TypeSet::BIG) { Type::Numeric } else { Type::Real }
        } else if self.has(TypeSet(TypeSet::INT.0 | TypeSet::BIG.0)) {
            Type::Integer
        } else if self.has(TypeSet::BOOL) {
            Type::Boolean
        } else {
            Type::Any
        }
    }

    /// Whether what was stored as it came is what the widest type stores. Text is not: it takes numbers by their
    /// spelling.
    pub(crate) fn is_lossless(self) -> bool {
        let others = TypeSet(TypeSet::BOOL.0 | TypeSet::INT.0 | TypeSet::BIG.0 | TypeSet::REAL.0);
        self.widest() != Type::Text || !self.has(others)
    }
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    /// Whole numbers of 64 bits.
    Integer,
    /// Doubles.
    Real,
    /// Whole numbers and doubles, each as it is.
    Numeric,
    /// 0 and 1.
    Boolean,
    /// Text; numbers as they were written, objects and arrays as JSON.
    Text,
    /// Whatever comes: nothing but null was seen, or the user asked for it.
    Any,
}

impl Type {
    /// As SQLite is told.
    pub fn sql(self) -> &'static str {
        match self {
            Type::Integer => "INTEGER",
            Type::Real => "REAL",
            Type::Numeric => "NUMERIC",
            Type::Boolean => "BOOLEAN",
            Type::Text => "TEXT",
            Type::Any => "",
        }
    }

    /// What a column of a table that is there already takes, by SQLite's own rules. Nothing for a type that is none of ours,
    /// such as DATETIME: SQLite makes numbers there of what looks like one. ANY is such a type too, unless the table is
    /// STRICT.
    pub(crate) fn declared(sql: &str) -> Option<Type> {
        let sql = sql.to_ascii_uppercase();
        let has = |part: &str| sql.contains(part);
        Some(if has("INT") {
            Type::Integer
        } else if has("CHAR") || has("CLOB") || has("TEXT") {
            Type::Text
        } else if has("BLOB") || sql.is_empty() {
            Type::Any
        } else if has("REAL") || has("FLOA") || has("DOUB") {
            Type::Real
        } else if has("BOOL") {
            Type::Boolean
        } else if has("NUMERIC") || has("DECIMAL") {
            Type::Numeric
        } else {
            return None;
        })
    }

    /// The type and what it takes, for messages about other values.
    pub(crate) fn takes(self) -> &'static str {
        match self {
            Type::Integer => "INTEGER (whole numbers of 64 bits)",
            Type::Real => "REAL (numbers in the range of a double)",
            Type::Numeric => "NUMERIC (numbers that 64 bits hold)",
            Type::Boolean => "BOOLEAN (true and false)",
            Type::Text => "TEXT",
            Type::Any => "untyped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening() {
        for (types, expected) in [
            (&[TypeSet::NULL][..], Type::Any),
            (&[TypeSet::BOOL, TypeSet::NULL], Type::Boolean),
            (&[TypeSet::INT], Type::Integer),
            (&[TypeSet::INT, TypeSet::BOOL], Type::Integer),
            (&[TypeSet::BIG], Type::Integer),
            (&[TypeSet::REAL, TypeSet::INT], Type::Real),
            (&[TypeSet::REAL, TypeSet::BIG], Type::Numeric),
            (&[TypeSet::DECIMAL], Type::Text),
            (&[TypeSet::INT, TypeSet::TEXT], Type::Text),
            (&[TypeSet::JSON], Type::Text),
        ] {
            let mut set = TypeSet::default();
            types.iter().for_each(|kind| set.insert(*kind));
            assert_eq!(set.widest(), expected, "{types:?}");
        }
    }
}
