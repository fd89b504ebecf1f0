//! A reference parser for lines of JSONL, based on serde_json, which the targets compare with.
//!
//! It shares no code with the fuzzed parser.

use std::fmt;

use gristmill_jsonl::__fuzz::{Member, Value};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object as they are written, duplicate keys included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Parses a line into a row; `None` if it is not valid. Nested objects are flattened up to `flatten` levels.
pub fn row(line: &str, flatten: usize) -> Option<Vec<Member>> {
    let mut row = Vec::new();
    flatten_into(line, &[], flatten, &mut row)?;
    Some(row)
}

fn flatten_into(object: &str, path: &[String], flatten: usize, row: &mut Vec<Member>) -> Option<()> {
    let Members(members) = serde_json::from_str(object).ok()?;
    let mut keys = Vec::new();
    for (key, raw) in members {
        if keys.contains(&key) {
            return None;
        }
        let mut path = path.to_vec();
        path.push(key.clone());
        keys.push(key);
        let raw = raw.get();
        let is_empty = || raw[1..].trim_start_matches([' ', '\t', '\r', '\n']).starts_with('}');
        if raw.starts_with('{') && flatten > 0 && !is_empty() {
            flatten_into(raw, &path, flatten - 1, row)?;
        } else {
            row.push((path, value(raw)?));
        }
    }
    Some(())
}

fn value(raw: &str) -> Option<Value> {
    Some(match raw.as_bytes().first()? {
        b'n' => Value::Null,
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'"' => Value::Text(serde_json::from_str(raw).ok()?),
        b'{' | b'[' => Value::Json(raw.to_owned()),
        _ => number(raw),
    })
}

/// An integer of 64 bits, a double if it has exactly the written digits, otherwise the written digits.
fn number(raw: &str) -> Value {
    let digits = || Value::Decimal(raw.to_owned());
    if !raw.contains(['.', 'e', 'E']) {
        return raw.parse().map_or_else(|_| digits(), Value::Int);
    }
    let Ok(double) = raw.parse::<f64>() else { return digits() };
    let written = digits_of(raw);
    if written.is_empty() {
        return Value::Real(double);
    }
    if !double.is_finite() || double == 0.0 || written.len() > MAX_DIGITS {
        return digits();
    }
    if significant_digits(double, written.len()) == written { Value::Real(double) } else { digits() }
}

/// Maximum number of digits compared: a double has fewer significant ones.
const MAX_DIGITS: usize = 800;

/// Whether the number is rounded from a double that is exactly halfway between two numbers of as many digits:
/// 922331234580067.3 is the double 922331234580067.25, which may be printed with a 2 or a 3 at the end. Both are
/// accepted.
pub fn is_halfway(raw: &str) -> bool {
    let written = digits_of(raw);
    let Ok(double) = raw.parse::<f64>() else { return false };
    if !double.is_finite() || double == 0.0 || written.is_empty() || written.len() > MAX_DIGITS {
        return false;
    }
    let exact = significant_digits(double, MAX_DIGITS + 100);
    let (kept, beyond) = exact.split_at(written.len());
    let round_up = |digits: &str| {
        let mut digits: Vec<u8> = digits.bytes().collect();
        let last = digits.iter().rposition(|digit| *digit != b'9')?;
        digits[last] += 1;
        digits[last + 1..].fill(b'0');
        String::from_utf8(digits).ok()
    };
    let half = beyond.trim_end_matches('0') == "5";
    half && (kept == written || round_up(kept).as_deref() == Some(&written))
}

/// The digits of a number without leading zeros.
fn digits_of(raw: &str) -> String {
    let mantissa = raw.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').to_owned()
}

fn significant_digits(double: f64, digits: usize) -> String {
    let text = format!("{:.*e}", digits - 1, double.abs());
    text.chars().take_while(|c| *c != 'e').filter(char::is_ascii_digit).collect()
}

/// Maximum nesting depth of a line of JSON.
pub fn depth(line: &str) -> usize {
    let (mut depth, mut max, mut in_string) = (0_usize, 0, false);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (byte, in_string) {
            (b'"', _) => in_string = !in_string,
            (b'\\', true) => drop(bytes.next()),
            (b'{' | b'[', false) => depth += 1,
            (b'}' | b']', false) => depth = depth.saturating_sub(1),
            _ => {}
        }
        max = max.max(depth);
    }
    max
}
