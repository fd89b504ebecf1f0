//! Numbers, escapes, languages and blocks, each as a table of texts and what becomes of them.

use gristmill_jsonl::__fuzz::{Value, cut, parse};
use proptest::prelude::*;

/// Reads the value of a row with one key; `None` if the line is rejected.
fn read(value: &str) -> Option<Value> {
    let parsed = parse(format!("{{\"a\":{value}}}").as_bytes(), 0, &[]);
    assert_eq!(parsed.rows.len() + parsed.bad.len(), 1, "{value}");
    let (_, mut members) = parsed.rows.into_iter().next()?;
    members.pop().map(|(_, value)| value)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Int(i64),
    Real(f64),
    Decimal,
}

fn number(text: &str) -> Option<Number> {
    read(text).map(|value| match value {
        Value::Int(value) => Number::Int(value),
        Value::Real(value) => Number::Real(value),
        Value::Decimal(written) if written == text => Number::Decimal,
        other => panic!("{text}: {other:?}"),
    })
}

#[test]
fn number_has_the_type_that_holds_it() {
    use Number::{Decimal, Int, Real};
    for (text, expected) in [
        ("0", Some(Int(0))),
        ("-0", Some(Int(0))),
        ("-17", Some(Int(-17))),
        ("9223372036854775807", Some(Int(i64::MAX))),
        ("-9223372036854775808", Some(Int(i64::MIN))),
        ("9223372036854775808", Some(Decimal)),
        ("123456789012345678901234567890", Some(Decimal)),
        ("1.0", Some(Real(1.0))),
        ("-0.0", Some(Real(-0.0))),
        ("0.000", Some(Real(0.0))),
        ("0e999999999999999999999", Some(Real(0.0))),
        ("1e5", Some(Real(1e5))),
        ("1E+5", Some(Real(1e5))),
        ("1.5e-3", Some(Real(1.5e-3))),
        ("0.1", Some(Real(0.1))),
        ("0.30000000000000004", Some(Real(0.30000000000000004))),
        ("2.5000000000000000", Some(Real(2.5))),
        ("1e400", Some(Decimal)),
        ("1e-400", Some(Decimal)),
        ("1.7976931348623157e308", Some(Real(f64::MAX))),
        ("5e-324", Some(Real(5e-324))),
        ("3.14159265358979323846", Some(Decimal)),
        ("0.12345678901234567890", Some(Decimal)),
        ("9007199254740993.0", Some(Decimal)),
        ("01", None),
        ("-", None),
        ("1.", None),
        (".5", None),
        ("1e", None),
        ("1e+", None),
        ("+1", None),
        ("--1", None),
    ] {
        assert_eq!(number(text), expected, "{text}");
    }
    assert!(matches!(number("-0.0"), Some(Real(zero)) if zero.is_sign_negative()));
}

/// Whether a double has the digits of a decimal with this many significant digits.
fn prints_as(value: f64, text: &str, count: usize) -> bool {
    let printed = format!("{:.*e}", count - 1, value.abs());
    let printed = printed.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit);
    value != 0.0 && printed.eq(text.bytes().filter(u8::is_ascii_digit).skip_while(|byte| *byte == b'0'))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn printed_double_is_read_as_the_same_double(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        prop_assume!(value.is_finite());
        for text in [format!("{value:?}"), format!("{value:e}"), format!("{value:.16e}")] {
            if text.contains(['.', 'e']) {
                let Some(Number::Real(read)) = number(&text) else { panic!("{text}") };
                prop_assert_eq!(read.to_bits(), value.to_bits(), "{}", text);
            }
        }
    }

    #[test]
    fn double_is_used_exactly_if_it_prints_as_the_number(
        whole in 0_u64..10_000_000, places in 1_usize..25, digits in any::<u128>(),
    ) {
        let digits = format!("{digits:040}");
        let text = format!("{whole}.{}", &digits[..places]);
        let value: f64 = text.parse().unwrap();
        let count = text.bytes().filter(u8::is_ascii_digit).skip_while(|byte| *byte == b'0').count();
        prop_assume!(count > 0);
        let expected = if prints_as(value, &text, count) { Number::Real(value) } else { Number::Decimal };
        prop_assert_eq!(number(&text), Some(expected), "{}", text);
    }
}

#[test]
fn escapes_are_decoded_and_lone_surrogates_rejected() {
    for (raw, expected) in [
        (r"", Some("")),
        (r"plain", Some("plain")),
        (r#"\"\\\/\b\f\n\r\t"#, Some("\"\\/\u{8}\u{c}\n\r\t")),
        (r"a\u00e9z", Some("aéz")),
        (r"\u0000", Some("\0")),
        (r"\ud83d\ude80!", Some("🚀!")),
        (r"\uD83D", None),
        (r"\ude80", None),
        (r"\ud83dx", None),
        (r"\ud83d\u0041", None),
        (r"\ud83d\ud83d\ude80", None),
    ] {
        let expected = expected.map(|text| Value::Text(text.to_owned()));
        assert_eq!(read(&format!("\"{raw}\"")), expected, "{raw}");
    }
}

#[test]
fn only_selected_languages_of_localised_objects_are_kept() {
    for (line, key, expected) in [
        (r#"{"_key":1,"name":{"de":"a","en":"b"}}"#, "name", r#"{"en":"b"}"#),
        (r#"{"name" : { "de" : "a" , "en" : "b\"}{" } , "x":1}"#, "name", r#"{"en" : "b\"}{"}"#),
        (r#"{"a":[{"n":{"fr":"x","en":null}}]}"#, "a", r#"[{"n":{"en":null}}]"#),
        (r#"{"a":[{"id":3,"text":{"fr":"x","en":null}}]}"#, "a", r#"[{"id":3,"text":{"en":null}}]"#),
        (r#"{"name":{"de":"a"}}"#, "name", r#"{"de":"a"}"#),
        (r#"{"position":{"x":1,"y":2}}"#, "position", r#"{"x":1,"y":2}"#),
        (r#"{"id":"a","en":"b"}"#, "id", "a"),
        (r#"{"name":{"pt-BR":"a","en":"b"}}"#, "name", r#"{"en":"b"}"#),
        (r#"{"name":{}}"#, "name", "{}"),
    ] {
        let parsed = parse(line.as_bytes(), 0, &["en"]);
        let (_, members) = &parsed.rows[0];
        let member = members.iter().find(|(path, _)| *path == [key]);
        let Some((_, Value::Json(found) | Value::Text(found))) = member else { panic!("{line}") };
        assert_eq!(found, expected, "{line}");
    }
    let broken = parse(br#"{"name":{"en""#, 0, &["en"]);
    assert_eq!((broken.rows.len(), broken.bad.len()), (0, 1), "a line that is not JSON stays as it is");
}

fn blocks(text: &str, size: usize, max_line: usize) -> Vec<(String, bool)> {
    let pieces = cut(text.as_bytes(), size, max_line).unwrap();
    pieces.into_iter().map(|(bytes, too_long)| (String::from_utf8(bytes).unwrap(), too_long)).collect()
}

#[test]
fn blocks_have_whole_lines_for_every_block_size() {
    let text = "a\nbb\nccc\n\ndddd\neeeee";
    for size in 1..30 {
        let blocks = blocks(text, size, 100);
        assert_eq!(blocks.iter().map(|(bytes, _)| bytes.as_str()).collect::<String>(), text, "{size}");
        for (bytes, _) in &blocks[..blocks.len() - 1] {
            assert!(bytes.ends_with('\n'), "{size}: {blocks:?}");
        }
    }
    assert_eq!(blocks("", 8, 100), []);
    assert_eq!(blocks("\n", 8, 100), [("\n".to_owned(), false)]);
}

#[test]
fn only_the_line_that_is_too_long_is_skipped() {
    for size in 1..30 {
        let blocks = blocks("a\nbb\ncccccccccccccccc\ndd\n", size, 8);
        let long: Vec<_> = blocks.iter().filter(|(_, too_long)| *too_long).collect();
        let rest: String = blocks.iter().filter(|(_, long)| !long).map(|(bytes, _)| bytes.as_str()).collect();
        if size <= 8 {
            assert_eq!(long.len(), 1, "{size}: {blocks:?}");
            assert!(rest.starts_with("a\nbb\n") && rest.ends_with("dd\n"), "{size}: {blocks:?}");
        }
    }
}
