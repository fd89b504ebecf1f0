//! Parsing: no bytes cause a panic, and a line is a row if serde_json parses it as an object, with the same values.
//!
//! Intended differences: an object with a duplicate key is rejected, a thousand levels of nesting are accepted, and
//! values that stay JSON are not checked for lone surrogates.

#![no_main]

use std::collections::BTreeMap;

use gristmill_fuzz::{depth, is_halfway, row};
use gristmill_jsonl::__fuzz::{Member, Value, parse};
use gristmill_jsonl::ParseErrorKind;
use libfuzzer_sys::fuzz_target;

/// Depth above which a line may be rejected, because the two parsers count levels differently.
const DEPTH_MARGIN: usize = 990;

fuzz_target!(|data: &[u8]| {
    let [form, bytes @ ..] = data else { return };
    let flatten = usize::from(form % 4);
    let parsed = parse(bytes, flatten, &[]);
    let rows: BTreeMap<usize, &Vec<Member>> = parsed.rows.iter().map(|(number, row)| (*number, row)).collect();
    let bad: BTreeMap<usize, (usize, &ParseErrorKind)> =
        parsed.bad.iter().map(|(number, at, reason)| (*number, (*at, reason))).collect();
    assert_eq!(rows.len() + bad.len() + parsed.blank, parsed.lines, "each line is a row, an error or blank");

    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    assert_eq!(lines.clone().count(), parsed.lines);
    for (number, line) in lines.enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let error = bad.get(&number);
        assert!(error.is_none_or(|(at, _)| *at <= line.len()), "a position after the end of the line");
        let Ok(line) = str::from_utf8(line) else {
            assert!(matches!(error, Some((_, ParseErrorKind::NotUtf8))), "invalid UTF-8: {error:?}");
            continue;
        };
        if line.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            assert!(error.is_none() && !rows.contains_key(&number), "a blank line");
            continue;
        }
        match (row(line, flatten), rows.get(&number)) {
            (None, None) => {}
            (Some(expected), Some(found)) => {
                assert!(same(&expected, found), "{expected:?} is read as {found:?}")
            }
            (Some(_), None) if depth(line) > DEPTH_MARGIN => {}
            (expected, found) => panic!("{line:?}: serde_json {expected:?}, parser {found:?} {error:?}"),
        }
    }

    // A selection of languages makes no valid line invalid.
    if form & 4 != 0 {
        let localised = parse(bytes, flatten, &["en", "de"]);
        assert_eq!((localised.lines, localised.blank), (parsed.lines, parsed.blank));
        let kept = |number: &usize| localised.rows.iter().any(|(other, _)| other == number);
        assert!(rows.keys().all(kept), "a line is lost with its languages: {:?}", localised.bad);
    }
});

/// Whether two rows are equal; doubles are compared bit by bit, so 0.0 and -0.0 differ.
fn same(expected: &[Member], found: &[Member]) -> bool {
    let is = |(a, b): (&Member, &Member)| match (&a.1, &b.1) {
        (Value::Real(x), Value::Real(y)) => a.0 == b.0 && x.to_bits() == y.to_bits(),
        (Value::Decimal(raw), Value::Real(y)) => a.0 == b.0 && raw.parse() == Ok(*y) && is_halfway(raw),
        _ => a == b,
    };
    expected.len() == found.len() && expected.iter().zip(found).all(is)
}
