//! Which kinds of values a column has seen, and the type that takes them all.
//!
//! Owns the widening: this is the table in the README, as code.

use serde::{Deserialize, Serialize};

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const NULL: Kinds = Kinds(1);
    pub(crate) const BOOL: Kinds = Kinds(2);
    pub(crate) const INT: Kinds = Kinds(4);
    /// An integer that is no double.
    pub(crate) const BIG: Kinds = Kinds(8);
    pub(crate) const REAL: Kinds = Kinds(16);
    /// A number that neither an integer nor a double holds undamaged.
    pub(crate) const DECIMAL: Kinds = Kinds(32);
    pub(crate) const TEXT: Kinds = Kinds(64);
    pub(crate) const JSON: Kinds = Kinds(128);

    /// Values that a column of doubles holds as whole numbers.
    pub(crate) const WHOLE: Kinds = Kinds(Kinds::BOOL.0 | Kinds::INT.0 | Kinds::BIG.0);

    pub(crate) fn insert(&mut self, other: Kinds) {
        self.0 |= other.0;
    }

    pub(crate) fn has(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Numbers, and some that only text holds.
    pub(crate) fn is_decimal(self) -> bool {
        self.has(Kinds::DECIMAL) && !self.has(Kinds(Kinds::TEXT.0 | Kinds::JSON.0))
    }

    /// The kinds that a column of this type has, as far as its type says.
    pub(crate) fn of(kind: Type) -> Kinds {
        match kind {
            Type::Integer => Kinds::INT,
            Type::Real => Kinds::REAL,
            Type::Numeric => Kinds(Kinds::REAL.0 | Kinds::BIG.0),
            Type::Boolean => Kinds::BOOL,
            Type::Text => Kinds::TEXT,
            Type::Any => Kinds::NULL,
        }
    }

    /// The narrowest type that takes all of them.
    pub(crate) fn widest(self) -> Type {
        let text = Kinds(Kinds::TEXT.0 | Kinds::JSON.0 | Kinds::DECIMAL.0);
        if self.has(text) {
            Type::Text
        } else if self.has(Kinds::REAL) {
            if self.has(Kinds::BIG) { Type::Numeric } else { Type::Real }
        } else if self.has(Kinds(Kinds::INT.0 | Kinds::BIG.0)) {
            Type::Integer
        } else if self.has(Kinds::BOOL) {
            Type::Boolean
        } else {
            Type::Any
        }
    }

    /// Whether what was stored as it came is what the widest type stores. Text is not: it takes numbers by their
    /// spelling.
    pub(crate) fn are_stored_well(self) -> bool {
        let others = Kinds(Kinds::BOOL.0 | Kinds::INT.0 | Kinds::BIG.0 | Kinds::REAL.0);
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
        for (kinds, expected) in [
            (&[Kinds::NULL][..], Type::Any),
            (&[Kinds::BOOL, Kinds::NULL], Type::Boolean),
            (&[Kinds::INT], Type::Integer),
            (&[Kinds::INT, Kinds::BOOL], Type::Integer),
            (&[Kinds::BIG], Type::Integer),
            (&[Kinds::REAL, Kinds::INT], Type::Real),
            (&[Kinds::REAL, Kinds::BIG], Type::Numeric),
            (&[Kinds::DECIMAL], Type::Text),
            (&[Kinds::INT, Kinds::TEXT], Type::Text),
            (&[Kinds::JSON], Type::Text),
        ] {
            let mut set = Kinds::default();
            kinds.iter().for_each(|kind| set.insert(*kind));
            assert_eq!(set.widest(), expected, "{kinds:?}");
        }
    }
}
