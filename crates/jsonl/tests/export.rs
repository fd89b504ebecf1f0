//! Exports a table as JSONL; an import of the export creates the same table.

#[macro_use]
mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Fixture, rows, small_blocks};
use gristmill_jsonl::export::{export, export_to_file};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use proptest::prelude::*;
use rusqlite::Connection;

fn exported(database: &Path, table: &str) -> String {
    let mut lines = Vec::new();
    export(database, table, &mut lines, &Arc::default()).unwrap();
    String::from_utf8(lines).unwrap()
}

/// A database that `sql` creates.
fn database(sql: &str) -> Fixture {
    let fixture = Fixture::new();
    fixture.open().execute_batch(sql).unwrap();
    fixture
}

#[test]
fn exported_values_are_equal_after_import() {
    let lines = "{\"id\":1,\"flag\":true,\"nested\":{\"a\":[1,2.50,\"x\"]},\"text\":\"[1]\",\"real\":1.0}\n\
                 {\"id\":3,\"flag\":false,\"nested\":[],\"text\":\"q\\\"\\n\",\"real\":1e+300}\n\
                 {\"id\":2,\"flag\":null,\"nested\":null,\"text\":null,\"real\":-0.5}\n";
    let fixture = Fixture::with(&[("t.jsonl", lines)]);
    fixture.load(&ImportOptions::default());
    assert_eq!(
        exported(&fixture.database(), "T"),
        lines,
        "the order is that of the file, although the key is not ascending"
    );
}

#[test]
fn column_is_exported_as_text_unless_every_text_is_json() {
    let fixture = database("CREATE TABLE t (a TEXT, b TEXT); INSERT INTO t VALUES ('[1]', '{\"x\": 1}'), ('no', '[]')");
    assert_eq!(exported(&fixture.database(), "t"), "{\"a\":\"[1]\",\"b\":{\"x\": 1}}\n{\"a\":\"no\",\"b\":[]}\n");
}

#[test]
fn json_text_with_line_ends_is_exported_as_text() {
    let text = "{\"a\":\"{\\n \\\"x\\\": 1\\n}\"}\n{\"a\":\"[]\"}\n";
    let fixture = Fixture::with(&[("t.jsonl", text)]);
    fixture.load(&ImportOptions::default());
    assert_eq!(exported(&fixture.database(), "t"), text);
}

#[test]
fn export_can_be_appended_to_its_own_table() {
    let append = options! { existing: ExistingTable::Append, ..small_blocks() };
    let fixture = Fixture::new();
    for text in ["{\"A\":1}\n", "{\"a\":2}\n"] {
        fixture.write("t.jsonl", text.as_bytes());
        fixture.load(&append);
    }
    fixture.write("t.jsonl", exported(&fixture.database(), "t").as_bytes());
    fixture.load(&append);
    assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "A\na_2");
    assert_eq!(fixture.all("SELECT * FROM t"), "1|∅\n∅|2\n1|∅\n∅|2");
}

#[test]
fn booleans_in_a_column_of_numbers_are_exported_as_numbers() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":true}\n{\"a\":5}\n")]);
    fixture.load(&ImportOptions::default());
    assert_eq!(exported(&fixture.database(), "t"), "{\"a\":1}\n{\"a\":5}\n");
}

#[test]
fn rows_are_exported_in_rowid_order() {
    let fixture = database(
        "CREATE TABLE t (rowid TEXT, _rowid_ INT, x INT);
         INSERT INTO t (oid, rowid, x) VALUES (3, 'c', 1), (1, 'a', 3), (2, 'b', 2);
         CREATE TABLE u (k TEXT PRIMARY KEY, x INT) WITHOUT ROWID;
         INSERT INTO u VALUES ('b', 1), ('a', 2)",
    );
    let first = |table: &str| {
        let text = exported(&fixture.database(), table);
        text.lines().map(|line| line.split('"').nth(3).unwrap().to_owned()).collect::<String>()
    };
    assert_eq!((first("t").as_str(), first("u").as_str()), ("abc", "ab"));
}

#[test]
fn export_fails_for_values_that_json_lacks() {
    for (value, expected) in [
        ("x'00ff'", "row 2 holds a BLOB"),
        ("CAST(x'ff' AS TEXT)", "not UTF-8"),
        ("9e999", "row 2 holds an infinite number"),
        ("-9e999", "row 2 holds an infinite number"),
    ] {
        let fixture = database(&format!("CREATE TABLE t (a); INSERT INTO t VALUES ('x'), ({value})"));
        let file = fixture.folder.path().join("data.jsonl");
        let error = export_to_file(&fixture.database(), "t", &file, false, &Arc::default()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("\"a\""), "{error}");
        assert_eq!(fixture.leftovers(), Vec::<String>::new(), "files are left after a failed export");
    }
}

#[test]
fn export_fails_for_missing_tables_and_views() {
    let fixture = database("CREATE TABLE t (a); CREATE VIEW v AS SELECT a FROM t");
    for (table, expected) in [("nope", "there is no table \"nope\"; tables: t"), ("v", "is a view")] {
        let error = export(&fixture.database(), table, &mut Vec::new(), &Arc::default()).unwrap_err();
        assert!(error.is_user_error() && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn file_is_replaced_only_with_force_and_when_complete() {
    let fixture = database("CREATE TABLE t (a); INSERT INTO t VALUES (1)");
    let file = fixture.write("t.jsonl", b"mine");
    let write = |file: &Path, force: bool| export_to_file(&fixture.database(), "t", file, force, &Arc::default());
    let error = write(&file, false).unwrap_err().to_string();
    assert!(error.contains("exists; --force replaces it"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let error = write(&fixture.database(), true).unwrap_err().to_string();
    assert!(error.contains("the database itself"), "{error}");
    assert_eq!(write(&file, true).unwrap().rows, 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"a\":1}\n");
    // A cancelled export does not change the file.
    let handle = Arc::new(ImportHandle::default());
    handle.cancel();
    assert!(export_to_file(&fixture.database(), "t", &file, true, &handle).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"a\":1}\n");
    assert_eq!(std::fs::read_dir(fixture.data()).unwrap().count(), 1);
}

#[test]
fn export_is_compressed_according_to_the_file_name() {
    let fixture = database("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)");
    for (name, magic) in [("x.jsonl.gz", &[0x1f, 0x8b][..]), ("x.jsonl.zst", &[0x28, 0xb5, 0x2f, 0xfd])] {
        std::fs::create_dir_all(fixture.data()).unwrap();
        let file = fixture.data().join(name);
        export_to_file(&fixture.database(), "t", &file, false, &Arc::default()).unwrap();
        assert!(std::fs::read(&file).unwrap().starts_with(magic));
        let again = Fixture::new();
        again.import_of(&[file], &ImportOptions::default()).unwrap();
        assert_eq!(again.all("SELECT a FROM x"), "1\n2");
    }
}

/// Loads lines, exports the table and loads the export. Definition and rows must be the same.
fn round_trip(lines: &str) -> Result<(), TestCaseError> {
    let first = Fixture::with(&[("t.jsonl", lines)]);
    let loaded = first.load(&small_blocks());
    prop_assert_eq!(loaded.rejected, 0);
    if loaded.files[0].columns.is_empty() {
        return Ok(());
    }
    let second = Fixture::with(&[("t.jsonl", &exported(&first.database(), "t"))]);
    let again = second.load(&small_blocks());
    prop_assert_eq!((again.rows, again.rejected), (loaded.rows, 0));
    let all = |conn: &Connection| rows(conn, "SELECT * FROM t ORDER BY rowid");
    prop_assert_eq!(first.schema("t"), second.schema("t"));
    prop_assert_eq!(all(&first.open()), all(&second.open()));
    Ok(())
}

fn value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        (-9_i64..9).prop_map(|value| value.to_string()),
        any::<f64>()
            .prop_filter("JSON numbers are finite", |value| value.is_finite())
            .prop_map(|value| { serde_json::to_string(&value).unwrap() }),
        (-9_i32..9).prop_map(|value| format!("{value}.50")),
        ".{0,6}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        "[0-9.e-]{1,4}|\\[\\]|\\{\\}|true|null".prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    scalar.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|all| format!("[{}]", all.join(" , "))),
            inner.prop_map(|value| format!("{{\"k\": {value}}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn export_of_an_import_imports_to_the_same_table(
        table in prop::collection::vec(prop::collection::btree_map("[abAB]|id|a b|", value(), 0..4), 1..6)
    ) {
        let line = |row: &std::collections::BTreeMap<String, String>| {
            // Booleans and JSON prevent a column from becoming the key. The table does not distinguish them from
            // numbers and text, so an import of the export would make the column the key.
            let is_kept = |(key, value): &(&String, &String)| *key != "id" || !value.starts_with(['t', 'f', '[', '{']);
            let members: Vec<String> =
                row.iter().filter(is_kept).map(|(key, value)| format!("{}:{value}", serde_json::to_string(key).unwrap())).collect();
            format!("{{{}}}\n", members.join(","))
        };
        round_trip(&table.iter().map(line).collect::<String>())?;
    }
}
