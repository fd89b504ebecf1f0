//! Parsing: any bytes, and no panic; and a line is a row when serde_json takes it for an object, with the same values.
//!
//! Where the two differ on purpose: of keys that are there twice we take none, we read a thousand levels deep, and what
//! stays JSON is not looked into for halves of surrogate pairs.

#![no_main]

use std::collections::BTreeMap;

use gristmill_fuzz::{depth, is_halfway, row};
use gristmill_jsonl::Reason;
use gristmill_jsonl::__fuzz::{Member, Value, parse};
use libfuzzer_sys::fuzz_target;

/// Near the limit each of the two counts in its own way.
const DEEP: usize = 990;

fuzz_target!(|data: &[u8]| {
    let [form, bytes @ ..] = data else { return };
    let flatten = usize::from(form % 4);
    let parsed = parse(bytes, flatten, &[]);
    let rows: BTreeMap<usize, &Vec<Member>> =
        parsed.rows.iter().map(|(number, row)| (*number, row)).collect();
    let bad: BTreeMap<usize, (usize, &Reason)> =
        parsed.bad.iter().map(|(number, at, reason)| (*number, (*at, reason))).collect();
    assert_eq!(rows.len() + bad.len() + parsed.blank, parsed.lines, "each line is one thing");

    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    assert_eq!(lines.clone().count(), parsed.lines);
    for (number, line) in lines.enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let told = bad.get(&number);
        assert!(told.is_none_or(|(at, _)| *at <= line.len()), "a place behind the line");
        let Ok(line) = str::from_utf8(line) else {
            assert!(matches!(told, Some((_, Reason::NotUtf8))), "bytes that are no text: {told:?}");
            continue;
        };
        if line.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            assert!(told.is_none() && !rows.contains_key(&number), "a blank line");
            continue;
        }
        match (row(line, flatten), rows.get(&number)) {
            (None, None) => {}
            (Some(expected), Some(found)) => {
                assert!(same(&expected, found), "{expected:?} is read as {found:?}")
            }
            (Some(_), None) if depth(line) > DEEP => {}
            (expected, found) => panic!("{line:?}: serde_json {expected:?}, we {found:?} {told:?}"),
        }
    }

    // Leaving languages out makes no good line a bad one.
    if form & 4 != 0 {
        let localised = parse(bytes, flatten, &["en", "de"]);
        assert_eq!((localised.lines, localised.blank), (parsed.lines, parsed.blank));
        let kept = |number: &usize| localised.rows.iter().any(|(other, _)| other == number);
        assert!(rows.keys().all(kept), "a line is lost with its languages: {:?}", localised.bad);
    }
});

/// The same to the bit: no zero is another.
fn same(expected: &[Member], found: &[Member]) -> bool {
    let is = |(a, b): (&Member, &Member)| match (&a.1, &b.1) {
        (Value::Real(x), Value::Real(y)) => a.0 == b.0 && x.to_bits() == y.to_bits(),
        (Value::Decimal(raw), Value::Real(y)) => a.0 == b.0 && raw.parse() == Ok(*y) && is_halfway(raw),
        _ => a == b,
    };
    expected.len() == found.len() && expected.iter().zip(found).all(is)
}
