//! Formats of inputs: lines, arrays, objects over several lines; plain or compressed.

#[macro_use]
mod common;

use std::io::Write;

use common::{Fixture, small_blocks};
use gristmill_jsonl::import::options::{ImportOptions, Target};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};
use gristmill_jsonl::{ReadError, Reader, Value};
use proptest::prelude::*;

/// Loads one file with several block sizes; each must have the same rows.
#[track_caller]
fn load(name: &str, text: &[u8], select: &str, expected: &str) -> ImportSummary {
    let mut last = None;
    for block in [1, 7, 64, 1 << 16] {
        let fixture = Fixture::new();
        fixture.write(name, text);
        let summary = fixture.load(&options! { block, ..ImportOptions::default() });
        assert_eq!(fixture.all(select), expected, "block {block}: {summary:?}");
        last = Some(summary);
    }
    last.unwrap()
}

/// Loads a file that must fail, and returns the reason.
#[track_caller]
fn failure(text: &[u8], options: &ImportOptions) -> String {
    let fixture = Fixture::with(&[("good.jsonl", "{\"a\":1}\n")]);
    fixture.write("t.json.jsonl", text);
    let summary = fixture.load(options);
    let failed = summary.files.iter().find(|file| file.table != "good").unwrap();
    match &failed.outcome {
        FileOutcome::Failed(why) => why.clone(),
        other => panic!("{other:?}: {summary:?}"),
    }
}

#[test]
fn array_over_several_lines_is_loaded() {
    let text = "[\n{\"id\":1,\"a\":\"x\"},\n{\"id\":2,\"a\":\"[]{}\\\"\"},\n{\"id\":3}\n]\n";
    let summary = load("t.jsonl", text.as_bytes(), "SELECT id, a FROM t", "1|x\n2|[]{}\"\n3|∅");
    assert_eq!((summary.rows, summary.rejected), (3, 0));
}

#[test]
fn array_on_one_line_is_loaded() {
    load("t.jsonl", b"[{\"a\":1},{\"a\":2}]", "SELECT a FROM t", "1\n2");
    load("t.jsonl", b"\xef\xbb\xbf  \n\n [ {\"a\":1} , {\"a\":2} ] \n\n", "SELECT a FROM t", "1\n2");
    load("t.jsonl", b"[{\"a\":1}]\n[{\"a\":2}]\n", "SELECT a FROM t", "1\n2");
}

#[test]
fn pretty_printed_array_keeps_nested_values_on_one_line() {
    let text = "[\n  {\n    \"a\": 1,\n    \"b\": {\n      \"c\": [1,\n 2, \"x \\\" y\"]\n    }\n  },\n  {\n    \"a\": 2\n  }\n]\n";
    load("t.jsonl", text.as_bytes(), "SELECT a, b FROM t", "1|{\"c\":[1,2,\"x \\\" y\"]}\n2|∅");
}

#[test]
fn pretty_printed_objects_are_loaded() {
    let text = "{\n  \"a\": 1\n}\n{\n  \"a\": 2,\n  \"b\": [\n    true\n  ]\n}\n";
    load("t.jsonl", text.as_bytes(), "SELECT a, b FROM t", "1|∅\n2|[true]");
    load("t.jsonl", b"{\"a\":1,\n \"b\":2}\n{\"a\":3,\n\"b\":4}", "SELECT a, b FROM t", "1|2\n3|4");
    load("t.jsonl", b"{\"a\": [\n{\"b\":1},\n{\"b\":2}]}\n{\"a\":[]}", "SELECT a FROM t", "[{\"b\":1},{\"b\":2}]\n[]");
}

#[test]
fn lines_that_begin_like_a_document_are_read_as_lines() {
    // These begin like a document, but are lines.
    for (text, rows, rejected) in [
        ("{\"a\":1\n{\"a\":2}\n{\"a\":3}\n", 2, 1),
        ("{\"a\":[\n{\"a\":2}\n{\"a\":3}\n", 2, 1),
        ("{\"a\":\n{\"a\":2}\n{\"a\":3}\n", 2, 1),
        ("{\"a\":1,\n{\"a\":2}\n", 1, 1),
        ("[1,2]\n{\"a\":2}\n", 1, 1),
        ("[]\n{\"a\":2}\n", 1, 1),
        ("[{\"a\":1}]\n{\"a\":2}\n", 1, 1),
        ("{\"a\":\"x\n{\"a\":2}\n", 1, 1),
    ] {
        let fixture = Fixture::with(&[("t.jsonl", text)]);
        let summary = fixture.load(&small_blocks());
        assert_eq!((summary.rows, summary.rejected), (rows, rejected), "{text:?}: {summary:?}");
    }
}

#[test]
fn bad_element_of_an_array_is_rejected_with_line_and_column() {
    let text = "[\n  {\"a\": 1},\n  17, {\"a\":\n      tru},\n  {\"a\": 2},\n  [3], \"x\", {\"a\":1,\"a\":2}\n]\n";
    let summary = load("t.jsonl", text.as_bytes(), "SELECT a FROM t", "1\n2");
    let found: Vec<_> = summary.examples.iter().map(|bad| (bad.line, bad.column)).collect();
    assert_eq!(found, [(3, 3), (4, 7), (6, 3), (6, 8), (6, 20)], "{:?}", summary.examples);
    let reasons: Vec<_> = summary.examples.iter().map(|bad| bad.reason.as_str()).collect();
    assert!(reasons[0].contains("found a number") && reasons[4].contains("twice"), "{reasons:?}");
}

#[test]
fn array_that_is_not_json_fails_its_file() {
    for (text, expected) in [
        ("[\n{\"a\":1},\n{\"a\":2}", "line 1, column 1: the array is never closed"),
        ("[\n{\"a\":1},\n{\"a\":2\n", "line 3, column 1: an element begins here and is never closed"),
        ("[{\"a\":1}\n {\"a\":2}]", "line 2, column 2: a comma or the closing ] is expected here"),
        ("[{\"a\":1},\n]", "line 2, column 1: a value is expected here"),
        ("[\n{\"a\":1]}\n]", "line 2, column 7: a comma or the closing } is expected here"),
        ("{\n\"a\":1\n},\n{\n\"a\":1\n}", "line 3, column 2: a value is expected here"),
    ] {
        for block in [1, 64, 1 << 16] {
            let why = failure(text.as_bytes(), &options! { block, ..ImportOptions::default() });
            assert!(why.contains(expected), "{text:?}: {why}");
        }
    }
}

#[test]
fn only_the_element_longer_than_the_limit_is_rejected() {
    let long = "x\n".repeat(500);
    let text = format!("[{{\"a\":1}},\n{{\"a\":[\"{long}\"]}},\n{{\"a\":2}}, 3]");
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    let summary = fixture.load(&options! { max_line: 100, ..small_blocks() });
    assert_eq!(fixture.all("SELECT a FROM t"), "1\n2");
    let found: Vec<_> = summary.examples.iter().map(|bad| (bad.line, bad.reason.contains("100 bytes"))).collect();
    assert_eq!(found, [(2, true), (503, false)], "{:?}", summary.examples);
}

#[test]
fn array_with_languages_and_flattened_objects_is_loaded() {
    let text = "[\n{\"n\":\n{\"de\":\"a\",\n\"en\":\"b\"}},\n{\"n\":{\"en\":\"c\"}}, 5\n]";
    let fixture = Fixture::with(&[("t.jsonl", text)]);
    let summary = fixture.load(&options! { flatten: 1, languages: vec!["en".to_owned()], ..small_blocks() });
    assert_eq!(fixture.all("SELECT * FROM t"), "b\nc");
    assert_eq!((summary.examples[0].line, summary.examples[0].column), (5, 19));
}

#[test]
fn rejected_element_is_written_completely_to_the_rejects() {
    let fixture = Fixture::with(&[("t.jsonl", "[{\"a\":1},\n{\"a\":\n1,,}]")]);
    let rejects = fixture.data().join("bad.txt");
    fixture.load(&options! { rejects: Some(rejects.clone()), ..ImportOptions::default() });
    let written: serde_json::Value = serde_json::from_str(std::fs::read_to_string(rejects).unwrap().trim()).unwrap();
    assert_eq!((&written["line"], &written["raw"]), (&3.into(), &"{\"a\":\n1,,}".into()));
}

#[test]
fn reader_returns_the_elements_of_an_array() {
    let text = "[\n{\"id\":1},\n{\"id\":}, {\"id\":2}\n";
    let mut reader = Reader::new(text.as_bytes());
    let mut found = Vec::new();
    while let Some(row) = reader.next_row() {
        found.push(match row {
            Ok(row) => format!("{} {:?}", row.line(), row.get("id")),
            Err(ReadError::Line(bad)) => format!("{}:{} {}", bad.line, bad.column, bad.reason),
            Err(error) => panic!("{error}"),
        });
    }
    assert_eq!(found[0], format!("2 {:?}", Some(Value::Int(1))));
    assert!(found[1].starts_with("3:7 a value is expected"), "{found:?}");
    assert_eq!(found[2], format!("3 {:?}", Some(Value::Int(2))));
    assert!(found[3].starts_with("1:1 the array is never closed"), "{found:?}");
    assert_eq!(found.len(), 4);
    #[derive(serde::Deserialize)]
    struct Id {
        id: u32,
    }
    let ids: Vec<u32> = Reader::new(&b"[{\"id\":3},{\"id\":4}]"[..]).typed::<Id>().map(|row| row.unwrap().id).collect();
    assert_eq!(ids, [3, 4]);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_arrays_are_loaded() {
    let text = b"[\n{\"a\":1},\n{\"a\":2}\n]";
    load("t.jsonl.gz", &gzip(text), "SELECT a FROM t", "1\n2");
    load("t.jsonl.zst", &zstd::encode_all(&text[..], 1).unwrap(), "SELECT a FROM t", "1\n2");
}

#[test]
fn compression_is_detected_from_the_first_bytes() {
    let text = b"{\"a\":1}\n{\"a\":2}\n";
    load("t.jsonl", &gzip(text), "SELECT a FROM t", "1\n2");
    load("t.jsonl", &zstd::encode_all(&text[..], 1).unwrap(), "SELECT a FROM t", "1\n2");
    let mut skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec();
    skippable.extend(zstd::encode_all(&text[..], 1).unwrap());
    load("t.jsonl", &skippable, "SELECT a FROM t", "1\n2");
    let rows = Reader::new(gzip(text).as_slice()).typed::<serde_json::Value>().count();
    assert_eq!(rows, 1, "a reader of bytes does not decompress");
}

/// Compresses like `zstd --long=LOG`.
fn long_window(log: u32, text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(log).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn zstd_with_a_long_window_is_loaded() {
    for log in [27, 28, 31] {
        let fixture = Fixture::new();
        fixture.write("t.jsonl.zst", &long_window(log, b"{\"a\":1}\n"));
        let summary = fixture.load(&ImportOptions::default());
        assert_eq!(summary.rows, 1, "window of 2^{log}: {summary:?}");
    }
}

#[test]
fn truncated_and_damaged_compressed_files_have_different_errors() {
    let text = "{\"a\":1}\n".repeat(10_000);
    for (name, whole) in
        [("t.jsonl.gz", gzip(text.as_bytes())), ("t.jsonl.zst", zstd::encode_all(text.as_bytes(), 1).unwrap())]
    {
        let why = |bytes: &[u8]| {
            let fixture = Fixture::with(&[("good.jsonl", "{\"a\":1}\n")]);
            fixture.write(name, bytes);
            let summary = fixture.load(&ImportOptions::default());
            match &summary.files.iter().find(|file| file.table == "t").unwrap().outcome {
                FileOutcome::Failed(why) => why.clone(),
                other => panic!("{other:?}"),
            }
        };
        let cut = why(&whole[..whole.len() - 9]);
        assert!(cut.contains("ends too early"), "{name}: {cut}");
        let mut damaged = whole.clone();
        damaged[4..16].copy_from_slice(b"[[[[[[[[[[[[");
        let damaged = why(&damaged);
        assert!(damaged.contains("is not valid") && !damaged.contains("cut off"), "{name}: {damaged}");
    }
}

#[test]
fn dry_run_infers_the_columns_of_an_array() {
    let fixture = Fixture::with(&[("t.jsonl", "[{\"a\":1},{\"b\":\"x\"}]")]);
    let handle = gristmill_jsonl::import::handle::ImportHandle::default().into();
    let summary =
        gristmill_jsonl::import::import(&[fixture.data()], &Target::Schema, &ImportOptions::default(), &handle)
            .unwrap();
    assert_eq!(summary.files[0].columns.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_format_of_the_same_rows_has_the_same_result(
        rows in prop::collection::vec(prop::collection::btree_map("[a-c\"\\\\\\[{]", "[x\"\\\\\n{}\\[\\],:]{0,6}", 1..4), 1..6)
    ) {
        let rows: Vec<serde_json::Value> = rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect();
        let pretty = |value: &serde_json::Value| serde_json::to_string_pretty(value).unwrap();
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let pretty_lines: String = rows.iter().map(|row| format!("{}\n", pretty(row))).collect();
        let array = serde_json::Value::Array(rows.clone());
        for text in [lines, pretty_lines, array.to_string(), pretty(&array), format!("[\n{array}\n]")] {
            let found = read_if_rows(&text);
            prop_assert_eq!(&found, if text.starts_with("[\n[") { &[][..] } else { &rows[..] }, "{}", text);
        }
    }

    #[test]
    fn reader_terminates_on_any_document(bytes in "[\\[{][\\[\\]{}\",:\\\\a1 \n]{0,40}") {
        let mut reader = Reader::new(bytes.as_bytes());
        let mut count = 0;
        while reader.next_row().is_some() {
            count += 1;
        }
        prop_assert!(count <= bytes.len() + 1);
    }
}

/// Returns the rows of a text; none if any row is bad.
fn read_if_rows(text: &str) -> Vec<serde_json::Value> {
    let rows: Result<Vec<_>, _> = Reader::new(text.as_bytes()).typed().collect();
    rows.unwrap_or_default()
}
