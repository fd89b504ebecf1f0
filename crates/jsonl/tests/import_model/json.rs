//! JSON values as a case writes them, and how a column of each type must hold them.
//!
//! Written from the documentation; it shares no code with the importer.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A value in a line. Numbers and arrays keep their spelling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(String),
    Object(Vec<(String, Json)>),
}

/// Kind of a value, which decides the type of its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Null,
    Bool,
    Int,
    /// A 64-bit whole number that a double does not hold exactly.
    BigInt,
    Real,
    /// A number that makes its column TEXT: a whole one that 64 bits do not hold; where numbers are to be exact, one
    /// with more digits than a double has.
    Huge,
    Text,
    Json,
}

/// A value as SQLite returns it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sql {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
}

/// The largest whole number up to which doubles are exact.
const EXACT: u64 = 1 << 53;

impl Json {
    pub(crate) fn int(value: i64) -> Self {
        Json::Number(value.to_string())
    }

    /// The JSON as it is written in the file.
    pub(crate) fn written(&self) -> String {
        match self {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Number(text) | Json::Array(text) => text.clone(),
            Json::Text(text) => serde_json::to_string(text).unwrap(),
            Json::Object(members) => object(members),
        }
    }

    /// The text that a TEXT column holds.
    pub(crate) fn as_text(&self) -> String {
        match self {
            Json::Text(text) => text.clone(),
            _ => self.written(),
        }
    }

    pub(crate) fn kind(&self, exact: bool) -> Kind {
        match self {
            Json::Null => Kind::Null,
            Json::Bool(_) => Kind::Bool,
            Json::Text(_) => Kind::Text,
            Json::Array(_) | Json::Object(_) => Kind::Json,
            Json::Number(text) if is_whole(text) => match text.parse::<i64>() {
                Ok(value) if value.unsigned_abs() <= EXACT => Kind::Int,
                Ok(_) => Kind::BigInt,
                Err(_) => Kind::Huge,
            },
            Json::Number(text) if exact && is_rounded(text) => Kind::Huge,
            Json::Number(_) => Kind::Real,
        }
    }

    /// Whether SQLite's value equals this one in a column of this type. A type set by the user may round.
    pub(crate) fn is_held(&self, sql_type: &str, may_round: bool, found: &Sql) -> bool {
        let number = match self {
            Json::Null => return *found == Sql::Null,
            Json::Bool(value) => if *value { "1" } else { "0" }.to_owned(),
            Json::Number(text) => text.clone(),
            _ => String::new(),
        };
        match (sql_type, self) {
            ("TEXT", _) => *found == Sql::Text(self.as_text()),
            ("", Json::Text(_) | Json::Array(_) | Json::Object(_)) => *found == Sql::Text(self.as_text()),
            ("", Json::Number(_)) if is_rounded(&number) && *found == Sql::Text(number.clone()) => true,
            (_, Json::Bool(_) | Json::Number(_)) => match (self.kind(false), found) {
                (Kind::Huge, found) => *found == Sql::Text(number),
                (Kind::Real, Sql::Int(found)) => number.parse() == Ok(*found as f64),
                (_, Sql::Int(found)) => number.parse() == Ok(*found),
                (Kind::BigInt, _) if !may_round => false,
                (_, Sql::Real(found)) => number.parse() == Ok(*found),
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether the text is what a number or boolean may become when its column of the type `before` is changed to TEXT.
    /// Whole numbers keep their spelling; that of others is no longer known then, so any that means the same is right.
    pub(crate) fn is_held_as_text_later(&self, before: &str, found: &Sql) -> bool {
        let Sql::Text(text) = found else { return false };
        let number = |value: bool| f64::from(u8::from(value));
        match (self, self.kind(false)) {
            (Json::Bool(value), _) if before == "BOOLEAN" => text == &value.to_string(),
            (Json::Bool(value), _) => text.parse() == Ok(number(*value)) || text == &value.to_string(),
            (Json::Number(number), Kind::Real) => number.parse::<f64>().ok() == text.parse().ok(),
            (Json::Number(number), Kind::Int | Kind::BigInt) => number == text,
            (Json::Number(number), _) => number == text || number.parse::<f64>().ok() == text.parse().ok(),
            _ => false,
        }
    }
}

/// Writes an object with these members.
pub(crate) fn object(members: &[(String, Json)]) -> String {
    let mut text = String::new();
    for (key, value) in members {
        let comma = if text.is_empty() { "" } else { "," };
        write!(text, "{comma}{}:{}", serde_json::to_string(key).unwrap(), value.written()).unwrap();
    }
    format!("{{{text}}}")
}

fn is_whole(number: &str) -> bool {
    !number.contains(['.', 'e', 'E'])
}

/// Whether a double does not hold all digits of a number with a fraction or an exponent. The numbers of the cases have
/// either far more digits than a double or far fewer.
fn is_rounded(number: &str) -> bool {
    !is_whole(number) && number.bytes().filter(u8::is_ascii_digit).count() > 17
}

/// Type of a column with values of these kinds, as documented in the README.
pub(crate) fn sql_type(kinds: &BTreeSet<Kind>) -> &'static str {
    let has = |kind: Kind| kinds.contains(&kind);
    if has(Kind::Text) || has(Kind::Json) || has(Kind::Huge) {
        "TEXT"
    } else if has(Kind::Real) {
        if has(Kind::BigInt) { "NUMERIC" } else { "REAL" }
    } else if has(Kind::Int) || has(Kind::BigInt) {
        "INTEGER"
    } else if has(Kind::Bool) {
        "BOOLEAN"
    } else {
        ""
    }
}

/// Whether a column with a type set by the user accepts a value; `None` if not documented.
pub(crate) fn fits(sql_type: &str, kind: Kind) -> Option<bool> {
    match (sql_type, kind) {
        (_, Kind::Null) | ("TEXT" | "", _) => Some(true),
        (_, Kind::Text | Kind::Json) => Some(false),
        (_, Kind::Huge) => None,
        ("INTEGER", Kind::Int | Kind::BigInt) => Some(true),
        ("REAL", Kind::Int | Kind::BigInt | Kind::Real) => Some(true),
        ("NUMERIC", Kind::Int | Kind::BigInt | Kind::Real) => Some(true),
        ("BOOLEAN", Kind::Bool) => Some(true),
        _ => None,
    }
}

/// Members of a line as columns: path and value of each. Objects are flattened `depth` levels deep.
pub(crate) fn flatten(members: &[(String, Json)], depth: usize) -> Vec<(Vec<String>, Json)> {
    let mut cells = Vec::new();
    for (key, value) in members {
        match value {
            Json::Object(inner) if depth > 0 && !inner.is_empty() => {
                for (mut path, value) in flatten(inner, depth - 1) {
                    path.insert(0, key.clone());
                    cells.push((path, value));
                }
            }
            _ => cells.push((vec![key.clone()], value.clone())),
        }
    }
    cells
}
