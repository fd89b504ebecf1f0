//! Tables with triggers and conflict clauses: each line is in the table, or is rejected.

#[macro_use]
mod common;

use common::{Fixture, lines};
use gristmill_jsonl::Sink;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::summary::ImportSummary;

/// Imports lines into a table that `sql` creates.
#[track_caller]
fn load(fixture: &Fixture, sql: &str, text: &[&str], existing: ExistingTable) -> ImportSummary {
    fixture.open().execute_batch(sql).unwrap();
    fixture.write("t.jsonl", lines(text).as_bytes());
    fixture.load(&options! { existing, ..ImportOptions::default() })
}

const IGNORES_SIX: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, a);
    CREATE TRIGGER g BEFORE INSERT ON t WHEN new.a = 6 BEGIN SELECT raise(IGNORE); END;";

#[test]
fn line_is_rejected_when_a_trigger_ignores_it() {
    for existing in [ExistingTable::Append, ExistingTable::Upsert] {
        let fixture = Fixture::new();
        let summary = load(&fixture, IGNORES_SIX, &[r#"{"id":2,"a":6}"#, r#"{"id":3,"a":7}"#], existing);
        assert_eq!((summary.rows, summary.rejected), (1, 1), "{existing:?}");
        assert_eq!(summary.examples[0].line, 1);
        assert!(summary.examples[0].reason.contains("a trigger of the table ignores it"), "{summary:?}");
        assert_eq!(fixture.all("SELECT id, a FROM t"), "3|7");
    }
}

#[test]
fn line_with_only_a_key_is_rejected_when_a_trigger_ignores_it() {
    let fixture = Fixture::new();
    let sql = "CREATE TABLE t (id TEXT COLLATE NOCASE, l INT, PRIMARY KEY (id, l)); INSERT INTO t VALUES ('x', 1);
        CREATE TRIGGER g BEFORE INSERT ON t WHEN new.id = 'y' BEGIN SELECT raise(IGNORE); END;";
    let text = [r#"{"id":"X","l":1}"#, r#"{"id":"y","l":1}"#, r#"{"l":2,"id":"z"}"#];
    let summary = load(&fixture, sql, &text, ExistingTable::Upsert);
    assert_eq!((summary.rows, summary.rejected), (2, 1), "an existing row with the same key is not rejected");
    assert_eq!(summary.examples[0].line, 2);
    assert_eq!(fixture.all("SELECT id, l FROM t"), "x|1\nz|2");
}

#[test]
fn line_is_rejected_when_a_conflict_clause_would_ignore_it() {
    for clause in ["IGNORE", "REPLACE", "FAIL", "ROLLBACK", "ABORT"] {
        for existing in [ExistingTable::Append, ExistingTable::Upsert] {
            let fixture = Fixture::new();
            let sql = format!("CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE on  conflict {clause})");
            let text = [r#"{"id":5,"u":"x"}"#, r#"{"id":6,"u":"x"}"#, r#"{"id":7,"u":"y"}"#];
            let summary = load(&fixture, &sql, &text, existing);
            assert_eq!((summary.rows, summary.rejected), (2, 1), "{clause} {existing:?}");
            assert_eq!(summary.examples[0].line, 2);
            assert!(summary.examples[0].reason.contains("UNIQUE"), "{:?}", summary.examples);
            assert_eq!(fixture.all("SELECT id FROM t"), "5\n7");
        }
        let fixture = Fixture::new();
        let sql = format!("CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT {clause}, a)");
        let text = [r#"{"id":5,"a":6}"#, r#"{"id":5,"a":7}"#];
        let summary = load(&fixture, &sql, &text, ExistingTable::Append);
        assert_eq!((summary.rows, summary.rejected), (1, 1), "{clause}");
        assert_eq!(fixture.all("SELECT a FROM t"), "6");
        let fixture = Fixture::new();
        let summary = load(&fixture, &sql, &text, ExistingTable::Upsert);
        assert_eq!((summary.rows, summary.rejected), (2, 0), "{clause}");
        assert_eq!(fixture.all("SELECT a FROM t"), "7");
    }
}

#[test]
fn triggers_keep_their_own_conflict_clauses() {
    let fixture = Fixture::new();
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, kind); CREATE TABLE kinds (kind UNIQUE);
        CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO kinds VALUES (new.kind); END;";
    let summary = load(&fixture, sql, &[r#"{"id":1,"kind":"a"}"#, r#"{"id":2,"kind":"a"}"#], ExistingTable::Append);
    assert_eq!((summary.rows, summary.rejected), (2, 0), "{:?}", summary.examples);
    assert_eq!(fixture.all("SELECT kind FROM kinds"), "a");
}

#[test]
fn sink_rejects_objects_that_its_table_would_ignore() {
    for sql in [IGNORES_SIX, "CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT REPLACE)"] {
        let fixture = Fixture::new();
        fixture.open().execute_batch(sql).unwrap();
        let mut sink = Sink::open(&fixture.database(), "t").unwrap();
        let objects: [&[u8]; 3] = [b"{\"id\":1,\"a\":7}", b"{\"id\":2,\"a\":6}", b"{\"id\":3,\"a\":6}"];
        let accepted = sink.append(&objects).unwrap().iter().filter(|result| result.is_ok()).count();
        assert_eq!(fixture.all("SELECT count(*) FROM t"), accepted.to_string());
    }
}
