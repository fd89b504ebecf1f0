//! Merges the JSON objects of the overflow column `_more` when a row is updated.
//!
//! As with columns, an update changes the keys of its line and keeps the others. A value is replaced as a whole, also
//! by null or by an object.

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};

use crate::lexer::Cursor;
use crate::text::unescaped;

/// Name of the SQL function that merges the objects of the row and of the line.
pub(crate) const MERGE_FUNCTION: &str = "gristmill_import_merge";

/// Why a line cannot be merged into its row.
pub(crate) const NOT_AN_OBJECT: &str = "the row with this key has a value other than a JSON object in \"_more\"";

pub(crate) fn define_merge_function(conn: &Connection) -> rusqlite::Result<()> {
    conn.create_scalar_function(MERGE_FUNCTION, 2, FunctionFlags::SQLITE_DETERMINISTIC, |context| {
        let (old, new) = match (context.get_raw(0), context.get_raw(1)) {
            (ValueRef::Null, new) => return Ok(Value::try_from(new)?),
            (ValueRef::Text(old), ValueRef::Text(new)) => (old, new),
            _ => return Err(not_an_object()),
        };
        let merged = merged(old, new).and_then(|merged| String::from_utf8(merged).ok());
        merged.map(Value::Text).ok_or_else(not_an_object)
    })
}

fn not_an_object() -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(NOT_AN_OBJECT.into())
}

/// Returns an object with the members of both; a new member replaces an old one. `None` unless both are objects.
fn merged(old: &[u8], new: &[u8]) -> Option<Vec<u8>> {
    let (mut members, mut positions) = (Vec::new(), HashMap::new());
    for (key, member) in self::members(old)?.into_iter().chain(self::members(new)?) {
        let position = *positions.entry(key).or_insert(members.len());
        if position == members.len() {
            members.push(member);
        } else {
            members[position] = member;
        }
    }
    Some([b"{", members.join(&b","[..]).as_slice(), b"}"].concat())
}

type Member<'a> = (Cow<'a, [u8]>, &'a [u8]);

/// The decoded keys of an object, each with the text of its member.
fn members(object: &[u8]) -> Option<Vec<Member<'_>>> {
    let mut cursor = Cursor::new(object);
    let mut members = Vec::new();
    cursor.skip_space();
    if !cursor.take(b'{') {
        return None;
    }
    cursor.skip_space();
    let mut has_ended = cursor.take(b'}');
    while !has_ended {
        let start = cursor.at();
        let (key, has_escapes) = cursor.key().ok()?;
        cursor.value(1).ok()?;
        members.push((unescaped(key, has_escapes).ok()?, &object[start..cursor.at()]));
        cursor.skip_space();
        has_ended = cursor.take(b'}');
        if !has_ended && !cursor.take(b',') {
            return None;
        }
        cursor.skip_space();
    }
    cursor.skip_space();
    cursor.peek().is_none().then_some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_merged_by_top_level_keys() {
        for (old, new, expected) in [
            ("{}", "{}", Some("{}")),
            ("{}", "{\"a\":1}", Some("{\"a\":1}")),
            (" { \"a\" : 1 , \"b\":[2, 3] } ", "{\"c\":4}", Some("{\"a\" : 1,\"b\":[2, 3],\"c\":4}")),
            ("{\"a\":{\"x\":1},\"b\":2}", "{\"a\":{\"y\":null}}", Some("{\"a\":{\"y\":null},\"b\":2}")),
            ("{\"a\":1,\"b\":2}", "{\"a\":null}", Some("{\"a\":null,\"b\":2}")),
            ("{\"\\u0061\":1}", "{\"a\":2}", Some("{\"a\":2}")),
            ("[1]", "{}", None),
            ("{\"a\":1", "{}", None),
            ("{\"a\":1}}", "{}", None),
            ("{\"a\":1,}", "{}", None),
            ("", "{}", None),
        ] {
            let merged = merged(old.as_bytes(), new.as_bytes());
            assert_eq!(merged.as_deref(), expected.map(str::as_bytes), "{old} {new}");
        }
    }
}
