//! Groups reasons of failures that differ only in numbers, ids and quoted values.
//!
//! Owns the text of a group. The SQL function `reason_group` returns it on every connection. The text is its own group,
//! so a text from a list of groups can be used as a filter.

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use crate::sqlite::SqlResult;

/// Maximum length of a group's text in characters. The rest of a reason is ignored.
const MAX_CHARS: usize = 500;

/// Length in bytes of the part of a reason that is examined.
const MAX_BYTES: usize = 4_096;

const NUMBER: &str = "<number>";
const ID: &str = "<id>";
const TEXT: &str = "<text>";

/// Lengths of the parts of a UUID between its hyphens.
const UUID_PARTS: [usize; 5] = [8, 4, 4, 4, 12];

/// Minimum number of hexadecimal digits of an id.
const MIN_ID_DIGITS: usize = 8;

/// Returns the reason with `<number>`, `<id>` and `<text>` in place of numbers, ids and quoted values. An id is a UUID,
/// or a word of at least 8 hexadecimal digits, one of which is decimal. At most 500 characters.
pub fn reason_group(reason: &str) -> String {
    let end = (0..=reason.len().min(MAX_BYTES)).rev().find(|end| reason.is_char_boundary(*end));
    let mut group = replace(reason.get(..end.unwrap_or(0)).unwrap_or_default());
    // A placeholder or the end may close a quotation that was open. Each round has fewer quotation marks.
    loop {
        let next = replace(&group);
        if next == group {
            return group;
        }
        group = next;
    }
}

/// Replaces numbers, ids and quoted values, and cuts off the end.
fn replace(reason: &str) -> String {
    let mut rest = reason;
    let mut group = String::with_capacity(rest.len());
    // Whether the previous character belongs to a word: an apostrophe in a word does not begin a quotation.
    let mut in_word = false;
    while let Some(first) = rest.chars().next() {
        let (placeholder, length) = if let Some(length) = quotation(rest, in_word) {
            (TEXT, length)
        } else if let Some(length) = id(rest, in_word) {
            (ID, length)
        } else if let Some(length) = number(rest) {
            (NUMBER, length)
        } else {
            ("", first.len_utf8())
        };
        let (taken, after) = rest.split_at(length);
        group.push_str(if placeholder.is_empty() { taken } else { placeholder });
        in_word = placeholder.is_empty() && is_word(first);
        rest = after;
    }
    match group.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => group.get(..end).unwrap_or_default().to_owned(),
        None => group,
    }
}

/// Adds the SQL function `reason_group` to a connection.
pub(crate) fn add_function(conn: &Connection) -> SqlResult<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_DIRECTONLY;
    conn.create_scalar_function("reason_group", 1, flags, |context| {
        Ok(context.get_raw(0).as_str().map(reason_group).unwrap_or_default())
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of a quotation at the beginning, with its quotation marks.
fn quotation(text: &str, in_word: bool) -> Option<usize> {
    let (open, close) = match text.chars().next()? {
        '“' => ('“', '”'),
        '«' => ('«', '»'),
        quote @ ('"' | '`') => (quote, quote),
        '\'' if !in_word => ('\'', '\''),
        _ => return None,
    };
    let mut is_escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        let end = index + c.len_utf8();
        // The apostrophe in `'it's'` does not end the quotation.
        let ends = c == close && (open != '\'' || !text.get(end..)?.chars().next().is_some_and(is_word));
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if ends => return Some(end),
            _ => {}
        }
    }
    None
}

/// Returns the length of an id at the beginning, with a prefix `0x`.
fn id(text: &str, in_word: bool) -> Option<usize> {
    if in_word {
        return None;
    }
    let is_end = |length: usize| !text.get(length..).and_then(|rest| rest.chars().next()).is_some_and(is_word);
    if let Some(length) = uuid(text).filter(|length| is_end(*length)) {
        return Some(length);
    }
    let prefix = if text.starts_with("0x") || text.starts_with("0X") { 2 } else { 0 };
    let digits = text.bytes().skip(prefix).take_while(u8::is_ascii_hexdigit).count();
    let word = text.get(prefix..prefix + digits)?;
    let has_letter = prefix > 0 || word.bytes().any(|c| c.is_ascii_alphabetic());
    let is_id = digits >= MIN_ID_DIGITS && has_letter && word.bytes().any(|c| c.is_ascii_digit());
    (is_id && is_end(prefix + digits)).then_some(prefix + digits)
}

fn uuid(text: &str) -> Option<usize> {
    let mut length = 0;
    for (nth, part) in UUID_PARTS.iter().enumerate() {
        if nth > 0 {
            length += text.get(length..)?.starts_with('-').then_some(1)?;
        }
        let digits = text.as_bytes().get(length..length + part)?;
        length += digits.iter().all(u8::is_ascii_hexdigit).then_some(*part)?;
    }
    Some(length)
}

/// Returns the length of a number at the beginning: digits, also with points or commas between them.
fn number(text: &str) -> Option<usize> {
    let digits = |from: usize| text.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let mut length = digits(0);
    if length == 0 {
        return None;
    }
    while matches!(text.as_bytes().get(length), Some(b'.' | b',')) && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_ids_and_quoted_values_are_replaced() {
        for (reason, group) in [
            ("", ""),
            ("timeout", "timeout"),
            ("exit status 12", "exit status <number>"),
            ("took 1,234.5 ms, -7 of v2", "took <number> ms, -<number> of v<number>"),
            ("host 10.0.0.1:5432 refused", "host <number>:<number> refused"),
            ("order 6f9619ff-8b86-d011-b42d-00cf4fc964ff.", "order <id>."),
            ("blob deadbeef01 at 0x7f3a9c00", "blob <id> at <id>"),
            ("12345678 rows", "<number> rows"),
            ("the facade effaced deadbeef", "the facade effaced deadbeef"),
            ("no file \"a \\\" 1\" in 'b c' or `d`", "no file <text> in <text> or <text>"),
            ("can't open 'it's' (don't)", "can't open <text> (don't)"),
            ("unclosed \"quote 5", "unclosed \"quote <number>"),
            ("“ä” «2» ü", "<text> <text> ü"),
        ] {
            assert_eq!(reason_group(reason), group, "{reason}");
        }
        assert_eq!(reason_group(&"é".repeat(9_000)).chars().count(), MAX_CHARS);
    }

    proptest! {
        #[test]
        fn group_is_its_own_group(reason in "([a-z ]{0,5}|[0-9a-f]{6,12}|[0-9.,]{1,4}|['\"`“”\\\\éx<>-]){0,300}") {
            let group = reason_group(&reason);
            prop_assert_eq!(reason_group(&group), group);
        }
    }
}
