//! Dry runs: the rows, rejected lines and keys are those of the import.

#[macro_use]
mod common;

use common::{Fixture, lines};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, Target};
use gristmill_jsonl::import::summary::ImportSummary;

/// Rows, rejected lines and reasons of a summary.
fn counts(summary: &ImportSummary) -> (u64, u64, Vec<(u64, String)>) {
    let rejected = summary.examples.iter().map(|bad| (bad.line, bad.reason.clone())).collect();
    (summary.rows, summary.rejected, rejected)
}

#[track_caller]
fn dry_run(fixture: &Fixture, target: &Target, options: &ImportOptions) -> ImportSummary {
    import(&[fixture.data()], target, options, &ImportHandle::default().into()).unwrap()
}

fn keyed(existing: ExistingTable, keys: &[&str], block: usize) -> ImportOptions {
    let primary_key = keys.iter().map(|key| (*key).to_owned()).collect();
    options! { existing, primary_key, block, ..ImportOptions::default() }
}

#[test]
fn dry_run_rejects_the_lines_that_an_import_into_a_new_table_rejects() {
    for (text, keys) in [
        (&[r#"{"id":1}"#, r#"{"a":1}"#, r#"{"id":1}"#][..], &["id"][..]),
        (&[r#"{"id":2}"#, r#"{"id":1}"#, r#"{"id":2}"#], &["id"]),
        (&[r#"{"id":1}"#, r#"{"id":2}"#], &["id"]),
        (&[r#"{"id":1}"#, r#"{"id":1.0}"#, r#"{"id":null}"#], &["id"]),
        (&[r#"{"id":1}"#, r#"{"id":"1"}"#, r#"{"id":"x"}"#], &["id"]),
        (&[r#"{"k":1,"l":"a"}"#, r#"{"k":1,"l":"b"}"#, r#"{"l":"a","k":1}"#, r#"{"k":1}"#], &["k", "l"]),
    ] {
        for block in [8, 1 << 16] {
            for existing in [ExistingTable::Refuse, ExistingTable::Upsert] {
                let fixture = Fixture::with(&[("t.jsonl", &lines(text))]);
                let options = keyed(existing, keys, block);
                let found = dry_run(&fixture, &Target::Schema, &options);
                let preview = dry_run(&fixture, &Target::Preview(fixture.database()), &options);
                assert!(!fixture.database().exists());
                let loaded = fixture.load(&options);
                assert_eq!(counts(&found), counts(&loaded), "{text:?} {existing:?}");
                assert_eq!(counts(&preview), counts(&loaded), "{text:?} {existing:?}");
                assert_eq!(found.files[0].sql, loaded.files[0].sql, "{text:?}");
            }
        }
    }
}

#[test]
fn types_come_from_rows_that_replace_rejected_ones_within_a_limit() {
    let text = [r#"{"id":1,"v":1}"#, r#"{"id":1,"v":2}"#, r#"{"id":2,"v":"x","w":1}"#, r#"{"id":3,"v":4}"#];
    for block in [8, 1 << 16] {
        let fixture = Fixture::with(&[("t.jsonl", &lines(&text))]);
        let options = options! { limit: Some(2), ..keyed(ExistingTable::Refuse, &["id"], block) };
        let found = dry_run(&fixture, &Target::Schema, &options);
        let loaded = fixture.load(&options);
        assert_eq!(fixture.all("SELECT id, v, typeof(v), w FROM t"), "1|1|text|∅\n2|x|text|1");
        assert!(fixture.schema("t").contains("\"v\" TEXT"), "{}", fixture.schema("t"));
        assert_eq!(counts(&found), counts(&loaded));
        assert_eq!(found.files[0].sql, loaded.files[0].sql);
    }
}

#[test]
fn dry_run_rejects_the_lines_that_an_import_into_an_existing_table_rejects() {
    for sql in [
        None,
        Some("CREATE TABLE t (id INTEGER PRIMARY KEY, a); INSERT INTO t VALUES (1, 1)"),
        Some("CREATE TABLE t (id PRIMARY KEY, a) WITHOUT ROWID; INSERT INTO t VALUES (1, 1)"),
    ] {
        for existing in [ExistingTable::Append, ExistingTable::Upsert, ExistingTable::Replace] {
            let fixture = Fixture::with(&[("t.jsonl", "{\"id\":1,\"a\":1}\n")]);
            match sql {
                Some(sql) => fixture.open().execute_batch(sql).unwrap(),
                None => drop(fixture.load(&ImportOptions::default())),
            }
            let text = [r#"{"id":2}"#, r#"{"a":1}"#, r#"{"id":1,"a":7}"#, r#"{"id":2}"#, r#"{"id":3}"#];
            fixture.write("t.jsonl", lines(&text).as_bytes());
            let options = keyed(existing, &["id"], 16);
            let before = std::fs::read(fixture.database()).unwrap();
            let preview = dry_run(&fixture, &Target::Preview(fixture.database()), &options);
            assert_eq!(std::fs::read(fixture.database()).unwrap(), before);
            assert_eq!(fixture.leftovers(), Vec::<String>::new());
            let loaded = fixture.load(&options);
            assert_eq!(counts(&preview), counts(&loaded), "{sql:?} {existing:?}");
        }
    }
}
