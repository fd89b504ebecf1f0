//! `--columns` with existing tables: a name that no line has is reported and adds no empty rows.

#[macro_use]
mod common;

use common::{Fixture, lines};
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};

fn selecting(existing: ExistingTable, columns: &[&str]) -> ImportOptions {
    let columns = columns.iter().map(|name| (*name).to_owned()).collect();
    options! { existing, columns, ..ImportOptions::default() }
}

#[track_caller]
fn failure(summary: &ImportSummary) -> String {
    match &summary.files[0].outcome {
        FileOutcome::Failed(why) => why.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn selected_columns_that_no_line_has_load_no_rows() {
    for names in [&["Name"][..], &["nope"], &["Name", "nope"]] {
        for block in [1, 1 << 16] {
            let fixture = Fixture::with(&[("t.jsonl", &lines(&[r#"{"name":"x"}"#, r#"{"name":"y"}"#]))]);
            fixture.load(&ImportOptions::default());
            for existing in [ExistingTable::Append, ExistingTable::Replace] {
                let options = options! { block, ..selecting(existing, names) };
                let why = failure(&fixture.load(&options));
                assert!(why.contains("no line has a key that --columns names"), "{why}");
                assert!(why.contains(&format!("{:?}", names[0])), "{why}");
                assert_eq!(fixture.all("SELECT name FROM t"), "x\ny", "{names:?} {existing:?}");
            }
        }
    }
}

#[test]
fn selected_columns_that_no_line_has_make_no_table() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"name\":1}\n")]);
    let why = failure(&fixture.import(&selecting(ExistingTable::Refuse, &["Name"])).unwrap());
    assert!(why.contains("no line has a key that --columns names: \"Name\""), "{why}");
    assert!(!fixture.database().exists());
}

#[test]
fn selected_column_in_another_case_is_unmatched() {
    let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1,\"name\":\"a\"}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.write("t.jsonl", b"{\"id\":1,\"name\":\"b\"}\n");
    let summary = fixture.load(&selecting(ExistingTable::Upsert, &["id", "NAME"]));
    assert_eq!(summary.unmatched, ["NAME"]);
    // The name is matched although no line has the key, because the table has its column.
    fixture.write("t.jsonl", b"{\"id\":2}\n");
    let summary = fixture.load(&selecting(ExistingTable::Upsert, &["id", "name"]));
    assert_eq!((summary.unmatched.len(), summary.rows), (0, 1));
    // A column created by the user accepts a key in another case.
    fixture.open().execute_batch("DROP TABLE t; DROP TABLE _imports; CREATE TABLE t (name)").unwrap();
    fixture.write("t.jsonl", b"{\"Name\":1}\n");
    let summary = fixture.load(&selecting(ExistingTable::Append, &["Name"]));
    assert_eq!((summary.unmatched.len(), fixture.all("SELECT name FROM t")), (0, "1".to_owned()));
}

#[test]
fn file_without_a_selected_column_has_no_rows() {
    for block in [1, 1 << 16] {
        let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n"), ("u.jsonl", "{\"b\":1}\n{\"b\":2}\n")]);
        let summary = fixture.load(&options! { block, ..selecting(ExistingTable::Refuse, &["a"]) });
        let rows: Vec<u64> = summary.files.iter().map(|file| file.rows).collect();
        assert_eq!(
            (rows, summary.rows, summary.unmatched.len()),
            (vec![1, 0], 1, 0),
            "rows, total and unmatched columns"
        );
        assert!(summary.files[1].notes[0].contains("no table was created"), "{summary:?}");
        assert_eq!(fixture.all("SELECT \"table\", \"rows\" FROM _imports"), "t|1\nu|0");
    }
}
