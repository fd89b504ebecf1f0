//! What a line of JSONL is, in serde_json's opinion: the second opinion that the targets compare with.
//!
//! It shares no code with the parser that is fuzzed.

use std::fmt;

use gristmill_jsonl::__fuzz::{Member, Value};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object as they are written, twins included.
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

/// A line as a row; nothing when it is none. Objects are spread so many levels deep.
pub fn row(line: &str, flatten: usize) -> Option<Vec<Member>> {
    let mut row = Vec::new();
    spread(line, &[], flatten, &mut row)?;
    Some(row)
}

fn spread(object: &str, path: &[String], flatten: usize, row: &mut Vec<Member>) -> Option<()> {
    let Members(members) = serde_json::from_str(object).ok()?;
    let mut known = Vec::new();
    for (key, raw) in members {
        if known.contains(&key) {
            return None;
        }
        let mut path = path.to_vec();
        path.push(key.clone());
        known.push(key);
        let raw = raw.get();
        let is_empty = || raw[1..].trim_start_matches([' ', '\t', '\r', '\n']).starts_with('}');
        if raw.starts_with('{') && flatten > 0 && !is_empty() {
            spread(raw, &path, flatten - 1, row)?;
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

/// Whole numbers that 64 bits hold; doubles that give the digits back which were written; else the digits.
fn number(raw: &str) -> Value {
    let digits = || Value::Decimal(raw.to_owned());
    if !raw.contains(['.', 'e', 'E']) {
        return raw.parse().map_or_else(|_| digits(), Value::Int);
    }
    let Ok(double) = raw.parse::<f64>() else { return digits() };
    let written = significant(raw);
    if written.is_empty() {
        return Value::Real(double);
    }
    if !double.is_finite() || double == 0.0 || written.len() > MOST {
        return digits();
    }
    if printed(double, written.len()) == written { Value::Real(double) } else { digits() }
}

/// A double has not many more digits that are not zero.
const MOST: usize = 800;

/// Whether the number lies halfway between its double and the next that has as many digits: 922331234580067.3 is the
/// double 922331234580067.25, of which some programs print a 2 at the end and some a 3. It may be taken for either.
pub fn is_halfway(raw: &str) -> bool {
    let written = significant(raw);
    let Ok(double) = raw.parse::<f64>() else { return false };
    if !double.is_finite() || double == 0.0 || written.is_empty() || written.len() > MOST {
        return false;
    }
    let exact = printed(double, MOST + 100);
    let (kept, beyond) = exact.split_at(written.len());
    let up = |digits: &str| {
        let mut digits: Vec<u8> = digits.bytes().collect();
        let last = digits.iter().rposition(|digit| *digit != b'9')?;
        digits[last] += 1;
        digits[last + 1..].fill(b'0');
        String::from_utf8(digits).ok()
    };
    let half = beyond.trim_end_matches('0') == "5";
    half && (kept == written || up(kept).as_deref() == Some(&written))
}

/// The digits of a number, from the first that is not zero.
fn significant(raw: &str) -> String {
    let mantissa = raw.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').to_owned()
}

fn printed(double: f64, digits: usize) -> String {
    let text = format!("{:.*e}", digits - 1, double.abs());
    text.chars().take_while(|c| *c != 'e').filter(char::is_ascii_digit).collect()
}

/// How many brackets are open at most in a line that is JSON.
pub fn depth(line: &str) -> usize {
    let (mut depth, mut most, mut in_string) = (0_usize, 0, false);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (byte, in_string) {
            (b'"', _) => in_string = !in_string,
            (b'\\', true) => drop(bytes.next()),
            (b'{' | b'[', false) => depth += 1,
            (b'}' | b']', false) => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}
