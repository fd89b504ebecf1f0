//! Tables with triggers and conflict clauses: each line is in the table, or is rejected.

mod common;

use common::{Bench, lines};
use gristmill_jsonl::Sink;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::import::summary::ImportSummary;

/// Imports lines into a table that a script has made.
#[track_caller]
fn load(bench: &Bench, sql: &str, text: &[&str], existing: ExistingTable) -> ImportSummary {
    bench.open().execute_batch(sql).unwrap();
    bench.write("t.jsonl", lines(text).as_bytes());
    bench.load(&ImportOptions { existing, ..ImportOptions::default() })
}

const IGNORES_SIX: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, a);
    CREATE TRIGGER g BEFORE INSERT ON t WHEN new.a = 6 BEGIN SELECT raise(IGNORE); END;";

#[test]
fn line_that_a_trigger_ignores_is_rejected() {
    for existing in [ExistingTable::Append, ExistingTable::Upsert] {
        let bench = Bench::new();
        let summary = load(&bench, IGNORES_SIX, &[r#"{"id":2,"a":6}"#, r#"{"id":3,"a":7}"#], existing);
        assert_eq!((summary.rows, summary.rejected), (1, 1), "{existing:?}");
        assert_eq!(summary.examples[0].line, 1);
        assert!(summary.examples[0].reason.contains("a trigger of the table ignores it"), "{summary:?}");
        assert_eq!(bench.all("SELECT id, a FROM t"), "3|7");
    }
}

#[test]
fn line_of_a_key_alone_that_a_trigger_ignores_is_rejected() {
    let bench = Bench::new();
    let sql =
        "CREATE TABLE t (id TEXT COLLATE NOCASE, l INT, PRIMARY KEY (id, l)); INSERT INTO t VALUES ('x', 1);
        CREATE TRIGGER g BEFORE INSERT ON t WHEN new.id = 'y' BEGIN SELECT raise(IGNORE); END;";
    let text = [r#"{"id":"X","l":1}"#, r#"{"id":"y","l":1}"#, r#"{"l":2,"id":"z"}"#];
    let summary = load(&bench, sql, &text, ExistingTable::Upsert);
    assert_eq!((summary.rows, summary.rejected), (2, 1), "a row that is there already is no loss");
    assert_eq!(summary.examples[0].line, 2);
    assert_eq!(bench.all("SELECT id, l FROM t"), "x|1\nz|2");
}

#[test]
fn line_that_a_conflict_clause_would_swallow_is_rejected() {
    for clause in ["IGNORE", "REPLACE", "FAIL", "ROLLBACK", "ABORT"] {
        for existing in [ExistingTable::Append, ExistingTable::Upsert] {
            let bench = Bench::new();
            let sql = format!("CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE on  conflict {clause})");
            let text = [r#"{"id":5,"u":"x"}"#, r#"{"id":6,"u":"x"}"#, r#"{"id":7,"u":"y"}"#];
            let summary = load(&bench, &sql, &text, existing);
            assert_eq!((summary.rows, summary.rejected), (2, 1), "{clause} {existing:?}");
            assert_eq!(summary.examples[0].line, 2);
            assert!(summary.examples[0].reason.contains("UNIQUE"), "{:?}", summary.examples);
            assert_eq!(bench.all("SELECT id FROM t"), "5\n7");
        }
        let bench = Bench::new();
        let sql = format!("CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT {clause}, a)");
        let text = [r#"{"id":5,"a":6}"#, r#"{"id":5,"a":7}"#];
        let summary = load(&bench, &sql, &text, ExistingTable::Append);
        assert_eq!((summary.rows, summary.rejected), (1, 1), "{clause}");
        assert_eq!(bench.all("SELECT a FROM t"), "6");
        let bench = Bench::new();
        let summary = load(&bench, &sql, &text, ExistingTable::Upsert);
        assert_eq!((summary.rows, summary.rejected), (2, 0), "{clause}");
        assert_eq!(bench.all("SELECT a FROM t"), "7");
    }
}

#[test]
fn triggers_keep_their_own_conflict_clauses() {
    let bench = Bench::new();
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, kind); CREATE TABLE kinds (kind UNIQUE);
        CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO kinds VALUES (new.kind); END;";
    let summary =
        load(&bench, sql, &[r#"{"id":1,"kind":"a"}"#, r#"{"id":2,"kind":"a"}"#], ExistingTable::Append);
    assert_eq!((summary.rows, summary.rejected), (2, 0), "{:?}", summary.examples);
    assert_eq!(bench.all("SELECT kind FROM kinds"), "a");
}

#[test]
fn sink_rejects_what_its_table_would_swallow() {
    for sql in [IGNORES_SIX, "CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT REPLACE)"] {
        let bench = Bench::new();
        bench.open().execute_batch(sql).unwrap();
        let mut sink = Sink::open(&bench.database(), "t").unwrap();
        let objects: [&[u8]; 3] = [b"{\"id\":1,\"a\":7}", b"{\"id\":2,\"a\":6}", b"{\"id\":3,\"a\":6}"];
        let taken = sink.append(&objects).unwrap().iter().filter(|result| result.is_ok()).count();
        assert_eq!(bench.all("SELECT count(*) FROM t"), taken.to_string());
    }
}
