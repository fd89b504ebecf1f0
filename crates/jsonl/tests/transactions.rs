//! Imports that are cancelled or fail within a transaction: a table and its record in `_imports` change together.

#[macro_use]
mod common;

use std::sync::Arc;

use common::Fixture;
use gristmill_jsonl::import::handle::{ImportHandle, ImportPhase};
use gristmill_jsonl::import::import;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, OnError, Target};
use gristmill_jsonl::import::summary::{FileOutcome, ImportSummary};
use gristmill_jsonl::{Error, Result};
use rusqlite::Connection;

#[test]
fn replace_cancelled_during_an_index_rolls_back_table_and_record() {
    let lines = |first: u32| (first..first + 20_000).map(|a| format!("{{\"a\":{a}}}\n")).collect::<String>();
    let fixture = Fixture::with(&[("t.jsonl", &lines(0))]);
    fixture.load(&ImportOptions::default());
    // An index that takes long to create.
    fixture.open().execute_batch("CREATE INDEX slow ON t (length(hex(zeroblob(5000 + a % 100))))").unwrap();
    fixture.write("t.jsonl", lines(100_000).as_bytes());
    let handle = Arc::new(ImportHandle::default());
    let shared = handle.clone();
    let canceller = std::thread::spawn(move || {
        while !matches!(shared.progress().phase, ImportPhase::Indexing | ImportPhase::Finishing) {
            std::thread::yield_now();
        }
        shared.cancel();
    });
    let options = options! { existing: ExistingTable::Replace, ..ImportOptions::default() };
    let summary = import(&[fixture.data()], &Target::Database(fixture.database()), &options, &handle);
    canceller.join().unwrap();
    let first = fixture.one("SELECT min(a) FROM t");
    let records = fixture.one("SELECT count(*) FROM _imports WHERE mode = 'replace'");
    let expected = if first == "0" { "0" } else { "1" };
    assert_eq!(records, expected, "the least value is {first}: {summary:?}");
    assert!(summary.is_ok(), "{summary:?}");
    // The next import loads the file if this one did not.
    fixture.load(&options! { resume: true, ..options });
    assert_eq!(fixture.one("SELECT min(a) FROM t"), "100000");
}

#[test]
fn resume_cancelled_while_a_file_is_compared_is_interrupted() {
    // With the bad line the first import stops, and leaves a draft with the table of the first file.
    for (has_draft, line) in [(false, "{\"b\":1}\n"), (true, "bad\n")] {
        let fixture = Fixture::with(&[("a.jsonl", "{\"a\":1}\n"), ("b.jsonl", line)]);
        let options = options! { resume: true, on_error: OnError::Fail, ..ImportOptions::default() };
        fixture.import(&options).unwrap();
        assert_eq!(fixture.database().exists(), !has_draft);
        fixture.write("b.jsonl", b"{\"b\":1}\n");
        // The file was written just before it was loaded, so its content is compared.
        let handle = Arc::new(ImportHandle::default());
        handle.cancel();
        let stopped = import(&[fixture.data()], &Target::Database(fixture.database()), &options, &handle);
        assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
        assert_eq!(fixture.load(&options).files[0].outcome, FileOutcome::Unchanged);
    }
}

/// Imports into a new table, runs this SQL on it, and replaces it by these lines.
fn replaced(sql: &str, lines: &str) -> (Fixture, Result<ImportSummary>) {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":\"{}\",\"b\":2}\n")]);
    fixture.load(&ImportOptions::default());
    fixture.open().execute_batch(sql).unwrap();
    fixture.write("t.jsonl", lines.as_bytes());
    let summary = fixture.import(&options! { existing: ExistingTable::Replace, ..ImportOptions::default() });
    (fixture, summary)
}

#[test]
fn index_that_does_not_match_the_new_table_is_noted() {
    for (sql, lines, why) in [
        ("CREATE INDEX i ON t (b)", "{\"a\":1}\n", "no such column: b"),
        ("CREATE INDEX i ON t (a + b)", "{\"a\":1}\n", "no such column: b"),
        ("CREATE UNIQUE INDEX i ON t (a)", "{\"a\":1}\n{\"a\":1}\n", "UNIQUE constraint failed"),
        ("CREATE INDEX i ON t (json_extract(a, '$.x'))", "{\"a\":\"text\"}\n", "malformed JSON"),
    ] {
        let (fixture, summary) = replaced(sql, lines);
        let summary = summary.unwrap();
        let notes = summary.files[0].notes.join("\n");
        assert!(notes.contains(sql) && notes.contains(why), "{sql}: {notes}");
        assert_eq!(fixture.one("SELECT count(*) FROM _imports WHERE mode = 'replace'"), "1");
        assert_eq!(fixture.one("SELECT count(*) FROM t"), lines.lines().count().to_string());
        fixture.check_integrity();
    }
}

/// A draft with the table `gone`, of an import that was cancelled.
fn fixture_with_a_draft() -> Fixture {
    let fixture = Fixture::with(&[("t.jsonl", "{\"a\":1}\n"), ("gone.jsonl", "{\"a\":1}\n")]);
    fixture.load(&ImportOptions::default());
    std::fs::rename(fixture.database(), fixture.folder.path().join(".out.db.import")).unwrap();
    std::fs::remove_file(fixture.data().join("gone.jsonl")).unwrap();
    fixture
}

#[test]
fn failed_drop_of_a_draft_table_keeps_table_and_record() {
    let fixture = fixture_with_a_draft();
    let draft = || Connection::open(fixture.folder.path().join(".out.db.import")).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON _imports BEGIN SELECT RAISE(ABORT, 'refused'); END";
    draft().execute_batch(refuse).unwrap();
    let resume = options! { resume: true, ..ImportOptions::default() };
    assert!(fixture.import(&resume).is_err());
    draft().execute_batch("DROP TRIGGER refuse").unwrap();
    fixture.load(&resume);
    assert_eq!(fixture.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"), "_imports\nt");
    assert_eq!(fixture.all("SELECT \"table\" FROM _imports"), "t");
}
