//! Dry runs: the rows, rejected lines and keys are those of the import.

mod common;

use common::{Bench, lines};
use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, Target};
use gristmill_jsonl::import::summary::ImportSummary;

/// What matters of a summary: the rows, and the lines that were rejected, with the reasons.
fn counts(summary: &ImportSummary) -> (u64, u64, Vec<(u64, String)>) {
    let rejected = summary.examples.iter().map(|bad| (bad.line, bad.reason.clone())).collect();
    (summary.rows, summary.rejected, rejected)
}

#[track_caller]
fn dry_run(bench: &Bench, target: &Target, options: &ImportOptions) -> ImportSummary {
    import(&[bench.data()], target, options, &ImportHandle::default().into()).unwrap()
}

fn keyed(existing: ExistingTable, keys: &[&str], block: usize) -> ImportOptions {
    let primary_key = keys.iter().map(|key| (*key).to_owned()).collect();
    ImportOptions { existing, primary_key, block, ..ImportOptions::default() }
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
                let bench = Bench::with(&[("t.jsonl", &lines(text))]);
                let options = keyed(existing, keys, block);
                let found = dry_run(&bench, &Target::Schema, &options);
                let preview = dry_run(&bench, &Target::Preview(bench.database()), &options);
                assert!(!bench.database().exists());
                let loaded = bench.load(&options);
                assert_eq!(counts(&found), counts(&loaded), "{text:?} {existing:?}");
                assert_eq!(counts(&preview), counts(&loaded), "{text:?} {existing:?}");
                assert_eq!(found.files[0].sql, loaded.files[0].sql, "{text:?}");
            }
        }
    }
}

#[test]
fn rows_that_a_limit_takes_instead_of_rejected_ones_decide_on_types() {
    let text = [r#"{"id":1,"v":1}"#, r#"{"id":1,"v":2}"#, r#"{"id":2,"v":"x","w":1}"#, r#"{"id":3,"v":4}"#];
    for block in [8, 1 << 16] {
        let bench = Bench::with(&[("t.jsonl", &lines(&text))]);
        let options = ImportOptions { limit: Some(2), ..keyed(ExistingTable::Refuse, &["id"], block) };
        let found = dry_run(&bench, &Target::Schema, &options);
        let loaded = bench.load(&options);
        assert_eq!(bench.all("SELECT id, v, typeof(v), w FROM t"), "1|1|text|∅\n2|x|text|1");
        assert!(bench.schema("t").contains("\"v\" TEXT"), "{}", bench.schema("t"));
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
            let bench = Bench::with(&[("t.jsonl", "{\"id\":1,\"a\":1}\n")]);
            match sql {
                Some(sql) => bench.open().execute_batch(sql).unwrap(),
                None => drop(bench.load(&ImportOptions::default())),
            }
            let text = [r#"{"id":2}"#, r#"{"a":1}"#, r#"{"id":1,"a":7}"#, r#"{"id":2}"#, r#"{"id":3}"#];
            bench.write("t.jsonl", lines(&text).as_bytes());
            let options = keyed(existing, &["id"], 16);
            let before = std::fs::read(bench.database()).unwrap();
            let preview = dry_run(&bench, &Target::Preview(bench.database()), &options);
            assert_eq!(std::fs::read(bench.database()).unwrap(), before);
            assert_eq!(bench.strays(), Vec::<String>::new());
            let loaded = bench.load(&options);
            assert_eq!(counts(&preview), counts(&loaded), "{sql:?} {existing:?}");
        }
    }
}
