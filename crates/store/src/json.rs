//! JSON texts: their limits, and rows in which they are nested.
//!
//! Refuses an invalid text with a reason before anything is written. A stored text is passed on byte for byte: parsing
//! and printing it again would change numbers and the order of keys.

use serde::de::IgnoredAny;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// A row as JSON in which columns with JSON are nested, byte for byte as they are stored. The row's own `Serialize`
/// writes them as strings. A text that is not JSON, which only another program can have written, stays a string.
#[derive(Clone, Debug, PartialEq)]
pub struct NestedJson<T>(pub T);

/// A row that can be written with nested JSON. Implemented for all rows of tables.
pub trait JsonRow {
    /// Serializes the row with nested JSON.
    fn serialize_nested<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>;
}

impl<T: JsonRow> Serialize for NestedJson<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize_nested(serializer)
    }
}

/// The text of a column with JSON.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Nested<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Null,
}

/// Returns the text of a column to be nested.
pub(crate) fn nested<'a>(text: &'a impl JsonColumn) -> Nested<'a> {
    match text.text() {
        Some(text) => serde_json::from_str(text).map_or(Nested::Text(text), Nested::Json),
        None => Nested::Null,
    }
}

/// A column that contains JSON.
pub(crate) trait JsonColumn {
    fn text(&self) -> Option<&str>;
}

impl JsonColumn for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl JsonColumn for Option<String> {
    fn text(&self) -> Option<&str> {
        self.as_deref()
    }
}

/// Maximum length of a text in bytes.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// Maximum nesting. SQLite's limit is 1,000, and a dead letter adds levels around a checkpoint.
const MAX_DEPTH: usize = 500;

/// Checks that a text is JSON of at most [`MAX_BYTES`]; errors call it `what`.
pub(crate) fn check(what: &str, text: &str) -> Result<()> {
    check_up_to(what, text, MAX_BYTES)
}

/// Like [`check`], with another maximum length.
pub(crate) fn check_up_to(what: &str, text: &str, max_bytes: usize) -> Result<()> {
    if text.len() > max_bytes {
        let len = text.len();
        return Err(Error::Invalid(format!("{what} has {len} bytes; expected at most {max_bytes}")));
    }
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return Err(Error::Invalid(format!("{what} is not JSON: {error}")));
    }
    if depth(text) > MAX_DEPTH {
        return Err(Error::Invalid(format!("{what} is nested too deeply; expected at most {MAX_DEPTH} levels")));
    }
    Ok(())
}

/// Returns the nesting depth of valid JSON.
fn depth(text: &str) -> usize {
    let (mut depth, mut max_depth, mut quoted, mut escaped) = (0usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                max_depth = max_depth.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    max_depth
}
