//! Malformed and unusual input.

#[macro_use]
mod common;

use common::{Fixture, lines, small_blocks};
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, OnError};
use gristmill_jsonl::import::summary::FileOutcome;

/// Loads a bad line between two good ones. Checks its position and reason, and that the good lines are loaded.
#[track_caller]
fn rejected(line: &[u8], column: u64, reason: &str) {
    let fixture = Fixture::new();
    let mut text = b"{\"a\":1}\n".to_vec();
    text.extend_from_slice(line);
    text.extend_from_slice(b"\n{\"a\":2}\n");
    let file = fixture.write("t.jsonl", &text);
    for block in [1, 16, 1 << 16] {
        let options = options! { block, ..ImportOptions::default() };
        let _ = std::fs::remove_file(fixture.database());
        let summary = fixture.load(&options);
        assert_eq!((summary.rows, summary.rejected), (2, 1), "{:?}", String::from_utf8_lossy(line));
        let bad = &summary.examples[0];
        assert_eq!((bad.line, bad.column), (2, column), "{}", bad.reason);
        assert_eq!(bad.file, file.display().to_string());
        assert!(bad.reason.contains(reason), "{}", bad.reason);
        assert_eq!(fixture.all("SELECT a FROM t"), "1\n2");
        // The bad line adds no column.
        assert_eq!(fixture.schema("t"), "CREATE TABLE \"t\" (\n  \"a\" INTEGER\n)");
    }
}

#[test]
fn lines_that_are_not_json_are_rejected() {
    for (line, column, reason) in [
        (r#"{"a":1"#, 7, "ends in the middle"),
        (r#"{"a":"#, 6, "ends in the middle"),
        (r#"{"b":"open"#, 6, "never closed"),
        (r#"{"a":1}{"a":2}"#, 8, "unexpected text after the object"),
        (r#"{"a":1} x"#, 9, "unexpected text after the object"),
        (r#"{"a":1,}"#, 8, "a key in double quotes"),
        (r#"{,}"#, 2, "a key in double quotes"),
        (r#"{a:1}"#, 2, "a key in double quotes"),
        (r#"{"a" 1}"#, 6, "a colon is expected"),
        (r#"{"a":1 "b":2}"#, 8, "a comma or the closing }"),
        (r#"{"b":[1 2]}"#, 9, "a comma or the closing ]"),
        (r#"{"b":[1,]}"#, 9, "a value is expected"),
        (r#"{"b":{"c":[}}"#, 12, "a value is expected"),
        (r#"{"b":nul}"#, 6, "a value is expected"),
        (r#"{"b":True}"#, 6, "a value is expected"),
        (r#"{"b":NaN}"#, 6, "a value is expected"),
        (r#"{"b":01}"#, 6, "not a JSON number"),
        (r#"{"b":1.}"#, 6, "not a JSON number"),
        (r#"{"b":-}"#, 6, "not a JSON number"),
        (r#"{"b":[1e]}"#, 7, "not a JSON number"),
        (r#"{"b":.5}"#, 6, "a value is expected"),
        (r#"{"b":"\x"}"#, 7, "not an escape"),
        (r#"{"b":"\u12g4"}"#, 7, "not an escape"),
        ("{\"b\":\"tab\there\"}", 10, "a control character (byte 9)"),
        ("{\"b\":\"nul\0here\"}", 10, "a NUL byte"),
        ("{\"b\":\0 1}", 6, "a value is expected"),
        ("\0", 1, "a value is expected"),
        ("hello", 1, "a value is expected"),
    ] {
        rejected(line.as_bytes(), column, reason);
    }
}

#[test]
fn lines_that_are_not_objects_are_rejected() {
    for (line, reason) in [
        ("[1,2]", "found an array"),
        ("\"text\"", "found a string"),
        ("17", "found a number"),
        ("-1.5", "found a number"),
        ("null", "found a bare word"),
        ("  true", "found a bare word"),
    ] {
        rejected(line.as_bytes(), line.find(|c| c != ' ').unwrap() as u64 + 1, reason);
    }
}

#[test]
fn lines_with_duplicate_keys_are_rejected() {
    rejected(br#"{"a":1,"b":2,"a":3}"#, 14, "the key \"a\" occurs twice");
    rejected(br#"{"a":1,"\u0061":3}"#, 8, "the key \"a\" occurs twice");
    // Within JSON text they are kept.
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":{\"b\":1,\"b\":2}}\n")]);
    assert_eq!(fixture.load(&ImportOptions::default()).rejected, 0);
    assert_eq!(fixture.all("SELECT a FROM t"), r#"{"b":1,"b":2}"#);
    // In a flattened object they are rejected.
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":{\"b\":1,\"b\":2}}\n{\"c\":1}\n")]);
    let summary = fixture.load(&options! { flatten: 1, ..ImportOptions::default() });
    assert_eq!((summary.rows, summary.examples[0].column), (1, 13));
}

#[test]
fn keys_with_escapes_are_decoded() {
    let text =
        lines(&[r#"{"\\":1,"a\nb":2}"#, r#"{"\"":3,"\\":4}"#, r#"{"\\\"":5,"\u0061\u000ab":6}"#, r#"{"a\nb":7}"#]);
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    assert_eq!(fixture.load(&ImportOptions::default()).rejected, 0);
    assert_eq!(
        fixture.all("SELECT \"\\\", \"a\nb\", \"\"\"\", \"\\\"\"\" FROM t"),
        "1|2|∅|∅\n4|∅|3|∅\n∅|6|∅|5\n∅|7|∅|∅"
    );
}

#[test]
fn lines_that_are_not_utf8_are_rejected() {
    rejected(b"{\"b\":\"\xff\"}", 7, "not UTF-8");
    rejected(b"{\"b\":\"caf\xe9\"}", 10, "not UTF-8");
    rejected(b"{\"\xc3\":1}", 3, "not UTF-8");
    rejected(b"{\"b\":\"\xed\xa0\x80\"}", 7, "not UTF-8");
}

#[test]
fn lines_with_a_lone_surrogate_are_rejected() {
    rejected(br#"{"b":"x\ud83dy"}"#, 8, "half of a surrogate pair");
    rejected(br#"{"b":"\ude80"}"#, 7, "half of a surrogate pair");
    rejected(br#"{"\ud83d":1}"#, 3, "half of a surrogate pair");
    // JSON text is stored without decoding.
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":[\"\\ud83d\"]}\n{\"a\":[\"\\ud83d\\ude80\"]}\n")]);
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.all("SELECT a FROM t"), "[\"\\ud83d\"]\n[\"\\ud83d\\ude80\"]");
}

#[test]
fn lines_nested_deeper_than_the_limit_are_rejected() {
    let deep = |levels: usize| format!("{{\"a\":{}1{}}}\n", "[".repeat(levels), "]".repeat(levels));
    let fixture =
        Fixture::with(&[("t.jsonl", &(deep(999) + &deep(1000) + &deep(1_000_000) + &"{\"a\":".repeat(500_000)))]);
    for flatten in [0, 32] {
        let _ = std::fs::remove_file(fixture.database());
        let summary = fixture.load(&options! { flatten, ..ImportOptions::default() });
        assert_eq!((summary.rows, summary.rejected), (1, 3));
        assert!(summary.examples[0].reason.contains("deeper than 1000 levels"), "{}", summary.examples[0].reason);
        // SQLite's JSON functions accept the same depth.
        assert_eq!(fixture.all("SELECT json_valid(a) FROM t"), "1");
    }
}

#[test]
fn byte_order_mark_crlf_blank_lines_and_missing_last_line_end_are_accepted() {
    let text = "\u{feff}{\"a\":1}\r\n\r\n   \t\n\n  {\"a\" : 2 } \r\n{\"a\":3}";
    for block in [1, 7, 1 << 16] {
        let fixture = Fixture::with(&[("t.jsonl", text)]);
        let summary = fixture.load(&options! { block, ..ImportOptions::default() });
        assert_eq!((summary.rows, summary.rejected, summary.files[0].blank), (3, 0, 3), "{block}");
        assert_eq!(fixture.all("SELECT a FROM t"), "1\n2\n3");
    }
    // It is allowed only at the beginning of the file.
    rejected("\u{feff}{\"a\":1}".as_bytes(), 1, "a value is expected");
}

#[test]
fn file_without_rows_makes_no_table() {
    for text in ["", "\n\n", "\u{feff}"] {
        let fixture = Fixture::with(&[("t.jsonl", text), ("u.jsonl", "{\"a\":1}\n")]);
        let summary = fixture.load(&ImportOptions::default());
        assert_eq!(summary.files[0].outcome, FileOutcome::Loaded);
        assert!(summary.files[0].notes[0].contains("no table was created"), "{:?}", summary.files[0].notes);
        assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"), "_imports\nu");
    }
}

#[test]
fn file_whose_lines_have_no_key_fails() {
    for block in [1, 1 << 16] {
        let options = options! { block, ..ImportOptions::default() };
        for text in ["{}\n", "{}\n{}\n"] {
            let fixture = Fixture::with(&[("t.jsonl", text), ("u.jsonl", "{\"a\":1}\n")]);
            let summary = fixture.load(&options);
            let FileOutcome::Failed(why) = &summary.files[0].outcome else { panic!("{summary:?}") };
            assert!(why.contains("no line has a key that becomes a column"), "{why}");
            assert_eq!((summary.files[0].rows, summary.rows), (0, 1), "{text:?}");
            assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"), "_imports\nu");
            assert_eq!(fixture.all("SELECT rows, error IS NULL FROM _imports ORDER BY source"), "0|0\n1|1");
        }
    }
}

#[test]
fn upsert_fails_when_no_line_has_a_key() {
    for block in [1, 1 << 16] {
        let fixture = Fixture::with(&[("t.jsonl", "{}\n")]);
        let options = options! { block, existing: ExistingTable::Upsert, ..ImportOptions::default() };
        let summary = fixture.import(&options).unwrap();
        let FileOutcome::Failed(why) = &summary.files[0].outcome else { panic!("{summary:?}") };
        assert!(why.contains("--primary-key"), "{why}");
    }
}

#[test]
fn rows_without_keys_are_loaded_with_others() {
    for text in ["{}\n{}\n{\"a\":1}\n{}\n", "{\"a\":1}\n{}\n{}\n{}\n"] {
        for options in [small_blocks(), options! { block: 3, ..ImportOptions::default() }, ImportOptions::default()] {
            let fixture = Fixture::with(&[("t.jsonl", text)]);
            assert_eq!(fixture.load(&options).rows, 4);
            assert_eq!(fixture.all("SELECT count(*), count(a) FROM t"), "4|1");
        }
    }
}

#[test]
fn numbers_that_64_bits_cannot_hold_are_kept_as_text() {
    let text = lines(&[
        r#"{"big":9223372036854775807,"huge":9223372036854775808,"fine":0.1,"pi":3.14159265358979323846,"far":1e400}"#,
        r#"{"big":-9223372036854775808,"huge":1,"fine":1e300,"pi":3,"far":-0.0}"#,
        r#"{"big":9007199254740993,"huge":2.50,"fine":-0.0,"pi":true,"far":null}"#,
    ]);
    let fixture = Fixture::with(&[("t.jsonl", &text)]);
    fixture.load(&options! { exact_numbers: true, ..ImportOptions::default() });
    assert_eq!(
        fixture.schema("t"),
        "CREATE TABLE \"t\" (\n  \"big\" INTEGER,\n  \"huge\" TEXT,\n  \"fine\" REAL,\n  \"pi\" TEXT,\n  \"far\" TEXT\n)"
    );
    assert_eq!(
        fixture.all("SELECT * FROM t"),
        "9223372036854775807|9223372036854775808|0.1r|3.14159265358979323846|1e400\n\
         -9223372036854775808|1|1e300r|3|-0.0\n\
         9007199254740993|2.50|-0.0r|true|∅"
    );
    // Without exact numbers, numbers with a fraction or an exponent are rounded.
    std::fs::remove_file(fixture.database()).unwrap();
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.all("SELECT type FROM pragma_table_info('t')"), "INTEGER\nTEXT\nREAL\nREAL\nTEXT");
    assert_eq!(fixture.all("SELECT pi FROM t"), "3.141592653589793r\n3.0r\n1.0r");
    // A large whole number and one with a fraction in one column are stored unchanged.
    let fixture = Fixture::with(&[("t.jsonl", "{\"n\":9007199254740993}\n{\"n\":0.5}\n{\"n\":7}\n")]);
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.all("SELECT n, typeof(n) FROM t"), "9007199254740993|integer\n0.5r|real\n7|integer");
}

#[test]
fn line_of_a_hundred_megabytes_is_loaded() {
    let fixture = Fixture::new();
    let long = "x".repeat(100_000_000);
    fixture.write("t.jsonl", format!("{{\"a\":1}}\n{{\"a\":\"{long}\"}}\n{{\"a\":2}}\n").as_bytes());
    let summary = fixture.load(&ImportOptions::default());
    assert_eq!((summary.rows, summary.rejected), (3, 0));
    assert_eq!(fixture.all("SELECT length(a) FROM t"), "1\n100000000\n1");
    // A line beyond the limit is rejected.
    std::fs::remove_file(fixture.database()).unwrap();
    let summary = fixture.load(&options! { max_line: 50_000_000, ..ImportOptions::default() });
    assert_eq!((summary.rows, summary.rejected), (2, 1));
    let bad = &summary.examples[0];
    assert_eq!(bad.line, 2);
    assert!(bad.reason.contains("longer than 50000000 bytes"), "{}", bad.reason);
    assert_eq!(fixture.all("SELECT a FROM t"), "1\n2");
}

#[test]
fn nul_character_is_stored_as_text() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":\"x\\u0000y\"}\n")]);
    fixture.load(&ImportOptions::default());
    assert_eq!(fixture.open().query_row("SELECT a FROM t", [], |row| row.get::<_, String>(0)).unwrap(), "x\0y");
}

#[test]
fn utf16_and_wrong_compression_extensions_fail_the_file() {
    for (name, bytes, reason) in [
        ("wide.jsonl", &b"\xff\xfe{\0}\0"[..], "UTF-16LE"),
        ("wide.jsonl", &b"\0{\0}"[..], "UTF-16BE"),
        ("packed.jsonl.gz", &b"{\"a\":1}\n"[..], "it is not gzip data"),
        ("packed.jsonl.zst", &b"{\"a\":1}\n"[..], "it is not zstd data"),
    ] {
        let fixture = Fixture::with(&[("good.jsonl", "{\"a\":1}\n")]);
        fixture.write(name, bytes);
        let summary = fixture.load(&ImportOptions::default());
        let failed = summary.files.iter().find(|file| file.table != "good").unwrap();
        assert!(matches!(&failed.outcome, FileOutcome::Failed(why) if why.contains(reason)), "{:?}", failed.outcome);
        assert!(summary.has_failures());
        assert_eq!(fixture.all("SELECT \"table\", error IS NULL FROM _imports ORDER BY id").lines().count(), 2);
        assert_eq!(fixture.all("SELECT a FROM good"), "1");
    }
}

#[test]
fn unsupported_compression_is_named_in_the_error() {
    // No line within the compressed bytes is loaded.
    let line = b"\n{\"a\":1}\n";
    for (head, name) in [
        (&b"\xfd7zXZ\0"[..], "xz"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"\x02\x21\x4c\x18", "lz4"),
        (b"LZIP\x01", "lzip"),
        (b"PK\x03\x04", "zip"),
        (b"7z\xbc\xaf\x27\x1c", "7z"),
        (b"\x1f\x9d", "compress"),
    ] {
        for block in [8, 1 << 16] {
            let fixture = Fixture::new();
            fixture.write("t.jsonl", &[head, line].concat());
            let summary = fixture.import(&options! { block, ..ImportOptions::default() }).unwrap();
            let expected = format!("it is compressed with {name}, which is not supported; decompress it first: ");
            assert!(
                matches!(&summary.files[0].outcome, FileOutcome::Failed(why) if why.starts_with(&expected)),
                "{name}: {:?}",
                summary.files[0].outcome
            );
            assert_eq!((summary.rejected, fixture.database().exists()), (0, false));
        }
    }
}

#[test]
fn truncated_line_is_marked_in_the_rejects() {
    let fixture = Fixture::new();
    let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(300));
    fixture.write("t.jsonl", format!("{{\"a\":1}}\nbad\n{long}").as_bytes());
    for (block, max_line, kept) in [(16, 100, 100), (16, 250, 200), (1 << 16, 100, 308)] {
        let _ = std::fs::remove_file(fixture.database());
        let rejects = fixture.folder.path().join("data/rejects");
        let _ = std::fs::remove_file(&rejects);
        fixture.load(&options! { block, max_line, rejects: Some(rejects.clone()), ..ImportOptions::default() });
        let written = std::fs::read_to_string(&rejects).unwrap();
        let written: Vec<serde_json::Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(written[0].get("truncated"), None);
        assert_eq!(written[1]["raw"].as_str().unwrap().len(), kept);
        assert_eq!(written[1].get("truncated"), (kept < 308).then_some(&true.into()), "{max_line}");
    }
}

#[test]
fn each_rejected_line_is_written_once_to_the_rejects() {
    let fixture = Fixture::new();
    // The file is read twice: its column of numbers becomes text in the last line.
    let mut text = b"{\"a\":1}\nbad\n{\"a\":\"\xff\"}\n".to_vec();
    text.extend_from_slice("{\"a\":2}\n".repeat(100).as_bytes());
    text.extend_from_slice(b"{\"a\":\"text\"}\n[]\n");
    let file = fixture.write("t.jsonl", &text);
    let rejects = fixture.data().join("rejects.jsonl");
    // The file for rejects in the loaded folder is not an input.
    for _ in 0..2 {
        let _ = std::fs::remove_file(fixture.database());
        let _ = std::fs::remove_file(&rejects);
        let options = options! { rejects: Some(rejects.clone()), ..small_blocks() };
        let summary = fixture.load(&options);
        assert_eq!((summary.files.len(), summary.rows, summary.rejected), (1, 102, 3));
        assert_eq!(summary.examples.len(), 3);
        let written = std::fs::read_to_string(&rejects).unwrap();
        let written: Vec<serde_json::Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(written.len(), 3);
        assert_eq!(written[0]["file"], file.display().to_string());
        assert_eq!((&written[0]["line"], &written[0]["raw"]), (&2.into(), &"bad".into()));
        assert_eq!((&written[1]["line"], &written[1]["raw_hex"]), (&3.into(), &"7b2261223a22ff227d".into()));
        assert_eq!((&written[2]["line"], &written[2]["column"]), (&105.into(), &1.into()));
    }
    assert_eq!(fixture.all("SELECT DISTINCT typeof(a) FROM t"), "text");
    // Another file of the user is not overwritten.
    std::fs::remove_file(fixture.database()).unwrap();
    let own = fixture.write("own.txt", b"{\"a\":1}\n");
    let options = options! { rejects: Some(own.clone()), ..ImportOptions::default() };
    let error = fixture.import(&options).unwrap_err().to_string();
    assert!(error.contains("is not a file of rejects"), "{error}");
    assert_eq!(std::fs::read(own).unwrap(), b"{\"a\":1}\n");
}

#[test]
fn import_stops_at_the_maximum_of_bad_lines() {
    let fixture =
        Fixture::with(&[("t.jsonl", "{\"a\":1}\nbad\n{\"a\":2}\nworse\nworst\n"), ("u.jsonl", "{\"a\":1}\n")]);
    for (on_error, line) in [(OnError::Fail, 2), (OnError::FailAfter(1), 4), (OnError::FailAfter(2), 5)] {
        let summary = fixture.import(&options! { on_error, ..ImportOptions::default() }).unwrap();
        assert_eq!(summary.stopped_by.as_ref().map(|bad| bad.line), Some(line));
        assert!(!summary.is_published);
        assert!(!fixture.database().exists(), "an incomplete database is visible");
        assert_eq!(fixture.leftovers(), Vec::<String>::new());
    }
    let summary = fixture.load(&options! { on_error: OnError::FailAfter(3), ..ImportOptions::default() });
    assert_eq!((summary.rows, summary.rejected), (3, 3));
}
