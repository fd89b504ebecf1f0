//! Digests of values: equal values have equal digests, however they are written.
//!
//! Owns the definition of equality. True equals 1, 1 equals 1.0, and at the top level of a line a missing value equals
//! null. Nested values have two digests: of their text, byte for byte, which is fast, and of their value, which ignores
//! the order of keys, spaces and escapes.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::value::RawValue;

use crate::random::mix;

/// How nested values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NestedComparison {
    Text,
    Value,
}

pub(super) fn of_integer(number: i64) -> u64 {
    mix(number.cast_unsigned() ^ 0x11)
}

/// A real number without a fraction has the digest of the integer.
pub(super) fn of_real(number: f64) -> u64 {
    // Beyond this range SQLite has no equal integer.
    let is_integer = number.fract() == 0.0 && number.abs() < i64::MAX as f64;
    if is_integer { of_integer(number as i64) } else { mix(number.to_bits() ^ 0x22) }
}

pub(super) fn of_text(text: &str) -> u64 {
    of_bytes(text.as_bytes(), 0x33)
}

/// Returns the digest of a nested value's JSON.
pub(super) fn of_nested(json: &str, comparison: NestedComparison) -> u64 {
    match comparison {
        NestedComparison::Text => of_bytes(json.as_bytes(), 0x44),
        // Text that is not JSON differs from every value in the files.
        NestedComparison::Value => value_digest(json).unwrap_or_else(|_| of_bytes(json.as_bytes(), 0x55)),
    }
}

/// Returns the digest of any JSON value at the top level of a line, or None for null.
pub(super) fn of_json(json: &str, comparison: NestedComparison) -> Result<Option<u64>, serde_json::Error> {
    Ok(match json.as_bytes() {
        b"null" => None,
        b"true" => Some(of_integer(1)),
        b"false" => Some(of_integer(0)),
        [b'{' | b'[', ..] => Some(of_nested(json, comparison)),
        _ => Some(value_digest(json)?),
    })
}

/// Parses one level at a time, and numbers exactly: Rust's parser rounds correctly, that of serde_json does not always.
fn value_digest(json: &str) -> Result<u64, serde_json::Error> {
    Ok(match json.trim_start().as_bytes() {
        [b'{', ..] => {
            let object: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(json)?;
            let mut sum: u64 = 0x66;
            for (key, value) in object {
                // A sum does not depend on the order of the keys.
                sum = sum.wrapping_add(mix(of_text(&key) ^ mix(value_digest(value.get())?)));
            }
            mix(sum)
        }
        [b'[', ..] => {
            let array: Vec<&RawValue> = serde_json::from_str(json)?;
            let mut all = 0x77;
            for value in array {
                all = mix(all ^ value_digest(value.get())?);
            }
            all
        }
        [b'"', ..] => of_text(&serde_json::from_str::<Cow<'_, str>>(json)?),
        [b'-' | b'0'..=b'9', ..] => match (json.parse(), json.parse()) {
            (Ok(integer), _) => of_integer(integer),
            (_, Ok(real)) => of_real(real),
            _ => of_bytes(json.as_bytes(), 0x88),
        },
        // Inside a nested value true, false and null equal only themselves.
        other => of_bytes(other, 0x99),
    })
}

fn of_bytes(bytes: &[u8], tag: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let start = mix(tag ^ (bytes.len() as u64) << 8);
    let all = words.iter().fold(start, |sum, word| mix(sum ^ u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(all ^ u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(a: &str, b: &str, by_text: bool, by_value: bool) {
        let equal = |how| of_json(a, how).unwrap() == of_json(b, how).unwrap();
        assert_eq!(
            (equal(NestedComparison::Text), equal(NestedComparison::Value)),
            (by_text, by_value),
            "{a} and {b}, by text and by value"
        );
    }

    #[test]
    fn digests_are_equal_for_equal_values_only() {
        check("1", "1.0", true, true);
        check("true", "1", true, true);
        check("-0.0", "0", true, true);
        check("1e2", "100", true, true);
        check("0.1", "1e-1", true, true);
        check("0.1", "0.10000000000000002", false, false);
        check("9007199254740993", "9007199254740992", false, false);
        check("null", "0", false, false);
        check(r#""é\n""#, r#""\u00e9\n""#, true, true);
        check(r#""1""#, "1", false, false);
        check(r#"{"a":1,"b":[2,3]}"#, r#"{ "b": [2.0, 3], "a": 1 }"#, false, true);
        check(r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#, false, false);
        check("[1,2]", "[2,1]", false, false);
        check("[true]", "[1]", false, false);
        check("[null]", "[]", false, false);
        check(r#"{"a":null}"#, "{}", false, false);
        check(r#"["\u00e9"]"#, r#"["é"]"#, false, true);
        check("[12345678]", "[123456789]", false, false);
    }

    #[test]
    fn invalid_nested_json_differs_from_every_value() {
        let valid = of_nested("{\"a\":1}", NestedComparison::Value);
        assert_ne!(of_nested("{\"a\":1", NestedComparison::Value), valid);
        assert!(of_json("{\"a\":1} x", NestedComparison::Value).unwrap() != Some(valid));
        assert_eq!(of_json("null", NestedComparison::Value).unwrap(), None);
    }
}
