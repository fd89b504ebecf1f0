//! Decides the type of a column from the types of its values.
//!
//! Owns the widening rules, which `docs/guide/import.md` shows as a table.

use serde::{Deserialize, Serialize};

/// The set of value types that a column has, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeSet(u8);

impl TypeSet {
    pub(crate) const NULL: TypeSet = TypeSet(1);
    pub(crate) const BOOL: TypeSet = TypeSet(2);
    pub(crate) const INT: TypeSet = TypeSet(4);
    /// An integer that a double does not represent exactly.
    pub(crate) const BIG: TypeSet = TypeSet(8);
    pub(crate) const REAL: TypeSet = TypeSet(16);
    /// A number that neither a 64-bit integer nor a double represents exactly.
    pub(crate) const DECIMAL: TypeSet = TypeSet(32);
    pub(crate) const TEXT: TypeSet = TypeSet(64);
    pub(crate) const JSON: TypeSet = TypeSet(128);

    /// Values that are whole numbers in a column of doubles.
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

    /// Whether it has only numbers, of which some can be kept only as text.
    pub(crate) fn is_decimal(self) -> bool {
        self.has(TypeSet::DECIMAL) && !self.has(TypeSet(TypeSet::TEXT.0 | TypeSet::JSON.0))
    }

    /// The value types that a declared column type implies.
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

    /// The narrowest column type that holds all values of the set.
    pub(crate) fn column_type(self) -> Type {
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

    /// Whether rows written before the type was known are correct. They are not if numbers were written to a column that
    /// becomes text, because text keeps their spelling.
    pub(crate) fn is_lossless(self) -> bool {
        let others = TypeSet(TypeSet::BOOL.0 | TypeSet::INT.0 | TypeSet::BIG.0 | TypeSet::REAL.0);
        self.column_type() != Type::Text || !self.has(others)
    }
}

/// Declared type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    /// Whole numbers that fit 64 bits.
    Integer,
    /// Double-precision floating-point numbers.
    Real,
    /// Whole numbers and doubles, each stored unchanged.
    Numeric,
    /// Booleans, stored as 0 and 1.
    Boolean,
    /// Text. Numbers keep their spelling; objects and arrays are stored as JSON.
    Text,
    /// No type: only null was found, or the schema sets `any`.
    Any,
}

impl Type {
    /// Type name in SQL; empty for [`Type::Any`].
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

    /// The type of an existing column by SQLite's affinity rules. `None` for a type that imports do not use, such as
    /// DATETIME: SQLite converts text that looks like a number there. ANY is such a type too, unless the table is
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

    /// The type and the values that it accepts, for error messages.
    pub(crate) fn accepts(self) -> &'static str {
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
