//! Imports that are stopped or fail within a transaction: a table and its record in `_imports` change together.

mod common;

use std::sync::Arc;

use common::Bench;
use gristmill_jsonl::Result;
use gristmill_jsonl::import::handle::{ImportHandle, ImportPhase};
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, Target};
use gristmill_jsonl::import::summary::ImportSummary;
use rusqlite::Connection;

#[test]
fn replace_stopped_while_it_makes_an_index_again_changes_a_table_and_its_record_together() {
    let lines = |first: u32| (first..first + 20_000).map(|a| format!("{{\"a\":{a}}}\n")).collect::<String>();
    let bench = Bench::with(&[("t.jsonl", &lines(0))]);
    bench.load(&ImportOptions::default());
    // An index that takes long to make.
    bench.open().execute_batch("CREATE INDEX slow ON t (length(hex(zeroblob(5000 + a % 100))))").unwrap();
    bench.write("t.jsonl", lines(100_000).as_bytes());
    let control = Arc::new(ImportHandle::default());
    let stopper = control.clone();
    let stopper = std::thread::spawn(move || {
        while !matches!(stopper.progress().phase, ImportPhase::Indexing | ImportPhase::Finishing) {
            std::thread::yield_now();
        }
        stopper.cancel();
    });
    let options = ImportOptions { existing: ExistingTable::Replace, ..ImportOptions::default() };
    let summary = import(&[bench.data()], &Target::Database(bench.database()), &options, &control);
    stopper.join().unwrap();
    let first = bench.one("SELECT min(a) FROM t");
    let records = bench.one("SELECT count(*) FROM _imports WHERE mode = 'replace'");
    let expected = if first == "0" { "0" } else { "1" };
    assert_eq!(records, expected, "the least value is {first}: {summary:?}");
    assert!(summary.is_ok(), "{summary:?}");
    // What was not loaded is loaded by the next import.
    bench.load(&ImportOptions { resume: true, ..options });
    assert_eq!(bench.one("SELECT min(a) FROM t"), "100000");
}

/// Imports into a new table, runs this SQL on it, and replaces it by these lines.
fn replaced(sql: &str, lines: &str) -> (Bench, Result<ImportSummary>) {
    let bench = Bench::with(&[("t.jsonl", "{\"a\":\"{}\",\"b\":2}\n")]);
    bench.load(&ImportOptions::default());
    bench.open().execute_batch(sql).unwrap();
    bench.write("t.jsonl", lines.as_bytes());
    let summary =
        bench.import(&ImportOptions { existing: ExistingTable::Replace, ..ImportOptions::default() });
    (bench, summary)
}

#[test]
fn index_that_does_not_fit_the_new_table_costs_a_note() {
    for (sql, lines, why) in [
        ("CREATE INDEX i ON t (b)", "{\"a\":1}\n", "no such column: b"),
        ("CREATE INDEX i ON t (a + b)", "{\"a\":1}\n", "no such column: b"),
        ("CREATE UNIQUE INDEX i ON t (a)", "{\"a\":1}\n{\"a\":1}\n", "UNIQUE constraint failed"),
        ("CREATE INDEX i ON t (json_extract(a, '$.x'))", "{\"a\":\"text\"}\n", "malformed JSON"),
    ] {
        let (bench, summary) = replaced(sql, lines);
        let summary = summary.unwrap();
        let notes = summary.files[0].notes.join("\n");
        assert!(notes.contains(sql) && notes.contains(why), "{sql}: {notes}");
        assert_eq!(bench.one("SELECT count(*) FROM _imports WHERE mode = 'replace'"), "1");
        assert_eq!(bench.one("SELECT count(*) FROM t"), lines.lines().count().to_string());
        bench.is_sound();
    }
}

/// A draft with the table `gone`, of an import that was stopped before it was complete.
fn bench_with_a_draft() -> Bench {
    let bench = Bench::with(&[("t.jsonl", "{\"a\":1}\n"), ("gone.jsonl", "{\"a\":1}\n")]);
    bench.load(&ImportOptions::default());
    std::fs::rename(bench.database(), bench.folder.path().join(".out.db.import")).unwrap();
    std::fs::remove_file(bench.data().join("gone.jsonl")).unwrap();
    bench
}

#[test]
fn resume_that_fails_while_it_drops_a_table_of_the_draft_keeps_table_and_record() {
    let bench = bench_with_a_draft();
    let draft = || Connection::open(bench.folder.path().join(".out.db.import")).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON _imports BEGIN SELECT RAISE(ABORT, 'refused'); END";
    draft().execute_batch(refuse).unwrap();
    let resume = ImportOptions { resume: true, ..ImportOptions::default() };
    assert!(bench.import(&resume).is_err());
    draft().execute_batch("DROP TRIGGER refuse").unwrap();
    bench.load(&resume);
    assert_eq!(bench.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"), "_imports\nt");
    assert_eq!(bench.all("SELECT \"table\" FROM _imports"), "t");
}
