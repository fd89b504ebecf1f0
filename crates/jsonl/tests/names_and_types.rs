//! Names of tables and columns, types of columns, and recognised dates, each as a table of inputs and results.

#[macro_use]
mod common;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use common::Fixture;
use gristmill_jsonl::import::options::{ImportOptions, Target};
use gristmill_jsonl::import::stats::{DateKind, stats};
use gristmill_jsonl::import::{handle::ImportHandle, import};
use proptest::prelude::*;

#[test]
fn table_name_is_derived_from_the_file_name() {
    for (stem, expected) in [
        ("types", "types"),
        ("_sde", "_sde"),
        ("map-solar systems.v2", "map_solar_systems_v2"),
        ("größe", "größe"),
        ("2024", "t_2024"),
        ("sqlite_stat1", "t_sqlite_stat1"),
        ("_Imports", "t__Imports"),
        ("_processed_ids", "t__processed_ids"),
        ("a\"b;--", "a_b___"),
    ] {
        let fixture = Fixture::with(&[(&format!("{stem}.jsonl"), "{\"a\":1}\n")]);
        let summary = fixture.load(&ImportOptions::default());
        assert_eq!(summary.files[0].table, expected, "{stem}");
    }
}

#[test]
fn column_that_differs_only_in_case_gets_a_number() {
    let line = r#"{"ID":1,"id":1,"Id":1,"id_2":1,"":1,"a\u0000b":1,"rowid":1,"OID":1}"#;
    let fixture = Fixture::with(&[("t.jsonl", line)]);
    let summary = fixture.load(&ImportOptions::default());
    let columns: Vec<&str> = summary.files[0].columns.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(columns, ["ID", "id_2", "Id_3", "id_2_2", "empty", "a\u{fffd}b", "rowid_2", "OID_2"]);
}

#[test]
fn type_is_the_narrowest_that_holds_all_values() {
    const BIG: &str = "9007199254740993";
    for (values, expected) in [
        (&["null"][..], ""),
        (&["true", "null"], "BOOLEAN"),
        (&["1"], "INTEGER"),
        (&["1", "true"], "INTEGER"),
        (&[BIG], "INTEGER"),
        (&["1.5", "1"], "REAL"),
        (&["1.5", BIG], "NUMERIC"),
        (&["9223372036854775808"], "TEXT"),
        (&["1", "\"a\""], "TEXT"),
        (&["[1]"], "TEXT"),
    ] {
        let lines: String = values.iter().map(|value| format!("{{\"a\":{value}}}\n")).collect();
        let fixture = Fixture::with(&[("t.jsonl", &lines)]);
        let summary = fixture.load(&ImportOptions::default());
        assert_eq!(summary.files[0].columns, [("a".to_owned(), expected.to_owned())], "{values:?}");
    }
}

#[test]
fn only_the_extended_format_of_dates_is_recognised() {
    let date = Some(DateKind::Date);
    let date_time = Some(DateKind::DateTime);
    let time = Some(DateKind::Time);
    let cases = [
        ("2024-02-29", date),
        ("2023-02-29", None),
        ("2024-13-01", None),
        ("20240229", None),
        ("2024-02", None),
        ("2024", None),
        ("2024-02-29T23:59:59Z", date_time),
        ("2024-02-29 23:59", date_time),
        ("2024-02-29T23:59:60.123456789+05:30", date_time),
        ("2024-02-29T23:59:59-0800", date_time),
        ("2024-02-29T23:59:59+14", date_time),
        ("2024-02-29T24:00:00Z", None),
        ("2024-02-29T", None),
        ("2024-02-29T23", None),
        ("2024-02-29x", None),
        ("2024-02-29T23:59:59.Z", None),
        ("2024-02-29T23:59:59Z ", None),
        ("23:59", time),
        ("23:59:59.5", time),
        ("23:60", None),
        ("12:30 pm", None),
        ("2024-02-3é", None),
        ("", None),
    ];
    let members: Vec<String> = cases.iter().map(|(text, _)| format!("\"c{text}\":\"{text}\"")).collect();
    let fixture = Fixture::with(&[("t.jsonl", &format!("{{{}}}", members.join(",")))]);
    fixture.load(&ImportOptions::default());
    let found = stats(&fixture.database()).unwrap().tables.remove(0).dates;
    for (text, expected) in cases {
        let column = found.iter().find(|date| date.column == format!("c{text}"));
        assert_eq!(column.map(|date| date.kind), expected, "{text:?}");
    }
}

/// Texts of file names in the summary, without the folder.
fn name_texts(names: &[&[u8]]) -> Vec<String> {
    let fixture = Fixture::new();
    let folder = std::fs::canonicalize(fixture.folder.path()).unwrap();
    let paths: Vec<_> = names.iter().map(|name| folder.join(Path::new(OsStr::from_bytes(name)))).collect();
    paths.iter().for_each(|path| std::fs::write(path, "{\"a\":1}\n").unwrap());
    let options = options! { table: Some("t".to_owned()), ..ImportOptions::default() };
    let summary = import(&paths, &Target::ValidateOnly, &options, &ImportHandle::default().into()).unwrap();
    let prefix = format!("{}/", folder.to_str().unwrap());
    summary.files.iter().map(|file| file.source.strip_prefix(&prefix).unwrap().to_owned()).collect()
}

#[test]
fn paths_that_are_not_utf8_are_escaped() {
    for (name, expected) in [
        (&b"plain name\n"[..], "plain name\n"),
        ("Müll日本".as_bytes(), "Müll日本"),
        (b"a\\b", "a\\b"),
        (b"caf\xe9", "caf\\xE9"),
        (b"a\\b\xff\xfe", "a\\\\b\\xFF\\xFE"),
        (b"caf\\xE9", "caf\\\\xE9"),
    ] {
        assert_eq!(name_texts(&[name]), [expected]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn different_paths_have_different_texts(names in proptest::collection::btree_set(
        proptest::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), Just(b'F'), Just(0xff)], 1..9), 2..60,
    )) {
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let texts: BTreeSet<String> = name_texts(&names).into_iter().collect();
        prop_assert_eq!(texts.len(), names.len());
    }
}
