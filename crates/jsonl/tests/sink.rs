//! Sinks: values of appended objects, rejected objects, and existing tables.

#[macro_use]
mod common;

use std::path::Path;

use common::{Fixture, rows};
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions};
use gristmill_jsonl::{Error, RejectedObject, Sink};
use rusqlite::Connection;

fn open(fixture: &Fixture) -> Sink {
    Sink::open(&fixture.database(), "t").unwrap()
}

fn append(sink: &mut Sink, objects: &[&str]) -> Vec<Result<(), RejectedObject>> {
    let objects: Vec<&[u8]> = objects.iter().map(|object| object.as_bytes()).collect();
    sink.append(&objects).unwrap()
}

/// Appends objects that must all be accepted.
#[track_caller]
fn append_all(sink: &mut Sink, objects: &[&str]) {
    let results = append(sink, objects);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results.len(), objects.len());
}

/// Appends an object that must be rejected, and returns the message.
#[track_caller]
fn refusal(sink: &mut Sink, object: &str) -> String {
    append(sink, &[object]).remove(0).unwrap_err().to_string()
}

#[test]
fn sink_stores_every_value_unchanged() {
    for (value, found, kind) in [
        ("null", "∅", "null"),
        ("true", "1", "integer"),
        ("false", "0", "integer"),
        ("7", "7", "integer"),
        ("-9223372036854775808", "-9223372036854775808", "integer"),
        ("9223372036854775808", "9223372036854775808", "text"),
        ("0.1", "0.1r", "real"),
        ("1.0", "1.0r", "real"),
        ("1e300", "1e300r", "real"),
        ("3.14159265358979323846", "3.14159265358979323846", "text"),
        ("\"007\"", "007", "text"),
        ("\"1.0\"", "1.0", "text"),
        ("\"\\u00e9\\n\\\"\"", "é\n\"", "text"),
        ("{ \"x\": [1,  2.50] }", "{ \"x\": [1,  2.50] }", "text"),
        ("[]", "[]", "text"),
        ("{\"de\":\"Erz\",\"en\":\"Ore\"}", "{\"de\":\"Erz\",\"en\":\"Ore\"}", "text"),
    ] {
        let fixture = Fixture::new();
        let object = format!("{{\"a\":{value}}}");
        // As the first value of its column, and after a value of each other type.
        let mut sink = open(&fixture);
        append_all(&mut sink, &[&object]);
        append_all(&mut sink, &["{\"a\":1}", "{\"a\":\"x\"}", "{\"a\":0.5}", "{\"a\":[1]}", &object]);
        drop(sink);
        assert_eq!(
            fixture.all("SELECT a, typeof(a) FROM t WHERE rowid IN (1, 6)"),
            format!("{found}|{kind}\n{found}|{kind}")
        );
        fixture.check_integrity();
    }
}

#[test]
fn new_keys_become_columns() {
    let fixture = Fixture::new();
    let mut sink = open(&fixture);
    assert_eq!(fixture.all("SELECT * FROM sqlite_schema"), "", "the table exists before the first row");
    append_all(&mut sink, &["{\"a\":1}", "{\"b\":2,\"a\":3}"]);
    append_all(&mut sink, &["{}", "{\n  \"c\" : \"pretty\",\r\n\t\"a\": 4\n}\n"]);
    append_all(&mut sink, &["{\"d\":5}"]);
    assert_eq!(fixture.schema("t"), "CREATE TABLE \"t\" (\n  \"a\",\n  \"b\"\n, \"c\", \"d\")");
    assert_eq!(fixture.all("SELECT * FROM t"), "1|∅|∅|∅\n3|2|∅|∅\n∅|∅|∅|∅\n4|∅|pretty|∅\n∅|∅|∅|5");
    assert_eq!(sink.append(&[]).unwrap(), []);
}

#[test]
fn bad_objects_are_rejected_and_the_others_written() {
    let fixture = Fixture::new();
    let mut sink = open(&fixture);
    let bad: [(&[u8], &str); 12] = [
        (b"", "expected an object such as {\"id\":1}; found nothing"),
        (b" \n", "found nothing"),
        (b"[1]", "found an array"),
        (b"null", "found a bare word"),
        (b"nonsense", "byte 1: a value is expected here"),
        (b"{\"a\":", "byte 6: it ends in the middle of a value; is it cut off?"),
        (b"{\"a\":\"x", "byte 6: a string begins here and is never closed; is it cut off?"),
        (b"{\"a\":1} {\"a\":2}", "byte 9: unexpected text after the object; expected one object: {\"a\":2}"),
        (b"{\"a\":1}\n{\"a\":2}", "unexpected text after the object"),
        (b"{\"a\":1,\"a\":2}", "the key \"a\" occurs twice"),
        (b"{\"a\":\"\xff\"}", "byte 7: these bytes are not UTF-8"),
        (b"{\"new\":1,\"a\":01}", "byte 14: not a JSON number"),
    ];
    let good: &[u8] = b"{\"a\":\"good\"}";
    let batch: Vec<&[u8]> = bad.iter().flat_map(|(object, _)| [good, *object]).collect();
    for round in 1..=2 {
        let results = sink.append(&batch).unwrap();
        assert_eq!(results.len(), 24);
        for (pair, (object, words)) in results.chunks(2).zip(&bad) {
            assert_eq!(pair[0], Ok(()));
            let error = pair[1].as_ref().unwrap_err().to_string();
            assert!(error.contains(words), "{:?}: {error}", String::from_utf8_lossy(object));
            assert!(!error.contains("line"), "{error}");
        }
        assert_eq!(fixture.all("SELECT count(*), count(a) FROM t"), format!("{0}|{0}", 12 * round));
    }
    assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "a", "a rejected object added a column");
    // A batch of bad objects only.
    assert!(append(&mut sink, &["x", "y"]).iter().all(Result::is_err));
}

#[test]
fn object_without_a_key_is_rejected_when_there_is_no_table() {
    let fixture = Fixture::new();
    let mut sink = open(&fixture);
    assert!(refusal(&mut sink, "{}").contains("it has no key, and the table does not exist yet"));
    append_all(&mut sink, &["{}", "{\"a\":1}", "{}"]);
    assert_eq!(fixture.all("SELECT a FROM t"), "∅\n1\n∅");
}

#[test]
fn table_names_are_used_unchanged() {
    let fixture = Fixture::new();
    for name in ["select", "a\"b; DROP TABLE x; --", "'", "größe 🌾", " ", "t.u", "[x]"] {
        let mut sink = Sink::open(&fixture.database(), name).unwrap();
        append_all(&mut sink, &["{\"order\":1,\"we\\\"ird; --\":2,\"\":3}"]);
        drop(sink);
        append_all(
            &mut Sink::open(&fixture.database(), name).unwrap(),
            &["{\"order\":4,\"we\\\"ird; --\":5,\"new\":6,\"\":7}"],
        );
        let quoted = name.replace('"', "\"\"");
        assert_eq!(fixture.all(&format!("SELECT * FROM \"{quoted}\"")), "1|2|3|∅\n4|5|7|6", "{name}");
    }
    for name in ["", "sqlite_x", "SQLITE_x", "_imports", "_Imports", "a\0b"] {
        let error = Sink::open(&fixture.database(), name).unwrap_err();
        assert!(error.is_user_error() && error.to_string().contains("cannot be a table name"), "{error}");
    }
}

#[test]
fn keys_that_differ_in_case_keep_their_columns_after_reopening() {
    let fixture = Fixture::new();
    let mut one = open(&fixture);
    let mut two = open(&fixture);
    append_all(&mut one, &["{\"ID\":1,\"id\":2,\"\":3,\"empty\":4}"]);
    append_all(&mut two, &["{\"id\":5,\"empty\":6,\"ID\":7,\"\":8}"]);
    append_all(&mut two, &["{\"Id\":9}"]);
    append_all(&mut one, &["{\"iD\":10}", "{\"Id\":11}"]);
    drop((one, two));
    append_all(&mut open(&fixture), &["{\"iD\":12,\"id\":13,\"\":14,\"Id\":15,\"ID\":16}"]);
    assert_eq!(fixture.all("SELECT name FROM pragma_table_info('t')"), "ID\nid_2\nempty\nempty_2\nId_3\niD_4");
    assert_eq!(
        fixture.all("SELECT * FROM t"),
        "1|2|3|4|∅|∅\n7|5|8|6|∅|∅\n∅|∅|∅|∅|9|∅\n∅|∅|∅|∅|∅|10\n∅|∅|∅|∅|11|∅\n16|13|14|∅|15|12"
    );
    fixture.check_integrity();
}

/// The types that an import inferred stay; objects with other values are rejected.
#[test]
fn sink_appends_to_an_imported_table_and_keeps_its_types() {
    let fixture = Fixture::with(&[(
        "t.jsonl",
        "{\"_key\":1,\"i\":1,\"r\":0.5,\"b\":true,\"t\":\"x\",\"n\":null,\"K\":1,\"k\":2}\n",
    )]);
    fixture.load(&ImportOptions::default());
    let mut sink = open(&fixture);
    append_all(
        &mut sink,
        &[
            "{\"_key\":2,\"i\":2,\"r\":2,\"b\":false,\"t\":3.50,\"n\":[1],\"k\":4,\"K\":3,\"new\":\"1\"}",
            "{\"_key\":3,\"t\":{\"a\":1}}",
        ],
    );
    assert_eq!(
        fixture.all("SELECT * FROM t"),
        "1|1|0.5r|1|x|∅|1|2|∅\n2|2|2.0r|0|3.50|[1]|3|4|1\n3|∅|∅|∅|{\"a\":1}|∅|∅|∅|∅"
    );
    for (object, words) in [
        (
            "{\"i\":\"abc\",\"t\":1}",
            "byte 6: the column \"i\" is INTEGER (whole numbers of 64 bits); found text: \"abc\"",
        ),
        ("{\"i\":1.5}", "is INTEGER (whole numbers of 64 bits); found a number with a fraction or an exponent: 1.5"),
        ("{\"i\":9223372036854775808}", "found a number that needs more than 64 bits: 9223372036854775808"),
        ("{\"r\":1e400}", "the column \"r\" is REAL (numbers in the range of a double); found a number that"),
        ("{\"b\": 2}", "byte 7: the column \"b\" is BOOLEAN (true and false); found a whole number: 2"),
        ("{\"i\":[1, \"]\"]}", "found an object or an array: [1, \"]\"]"),
        ("{\"_key\":1}", "a row with this key already exists: UNIQUE constraint failed: t._key"),
    ] {
        let error = refusal(&mut sink, object);
        assert!(error.contains(words), "{object}: {error}");
    }
    assert_eq!(fixture.all("SELECT count(*) FROM t"), "3");
    drop(sink);
    // An import into the table of a sink.
    fixture.write("t.jsonl", b"{\"_key\":4,\"new\":2,\"newer\":1}\n");
    fixture.load(&options! { existing: ExistingTable::Append, ..ImportOptions::default() });
    append_all(&mut open(&fixture), &["{\"_key\":5,\"newer\":2,\"new\":3,\"r\":9007199254740993}"]);
    assert_eq!(
        fixture.all("SELECT new, newer, r FROM t WHERE rowid > 3"),
        "2|1|∅\n3|2|9007199254740992.0r",
        "a column of doubles rounds the number"
    );
}

#[test]
fn sink_respects_types_triggers_and_constraints_of_user_tables() {
    let fixture = Fixture::new();
    let table = |sql: &str| {
        fixture.open().execute_batch(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t {sql}")).unwrap();
        open(&fixture)
    };
    let mut sink = table("(Id INT UNIQUE NOT NULL, n DEFAULT 5, up AS (n || 'x'), CHECK (n < 9))");
    let results =
        append(&mut sink, &["{\"id\":1}", "{\"id\":1}", "{\"n\":1}", "{\"id\":2,\"n\":9}", "{\"id\":3,\"up\":1}"]);
    let accepted: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, false, false, false, true], "{results:?}");
    assert_eq!(fixture.all("SELECT * FROM t"), "1|5|5x|∅\n3|5|5x|1");
    // Types with numeric affinity.
    let mut sink = table("(code STRING, day DATETIME)");
    assert!(refusal(&mut sink, "{\"code\":\"007\"}").contains("text that is not a number"));
    append_all(&mut sink, &["{\"code\":7,\"day\":\"2024-01-02\"}"]);
    // A STRICT table rejects columns without a type.
    let mut sink = table("(a INT) STRICT");
    let results = append(&mut sink, &["{\"a\":1}", "{\"a\":2,\"new\":true}", "{\"a\":\"x\"}", "{\"a\":3}"]);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true]);
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("cannot add a column for the key \"new\"") && error.contains("datatype"), "{error}");
    assert_eq!(fixture.all("SELECT * FROM t"), "1\n3");
    // A trigger that rolls back the transaction.
    let mut sink =
        table("(id INT); CREATE TRIGGER g BEFORE INSERT ON t WHEN new.id = 2 BEGIN SELECT raise(ROLLBACK, 'no'); END");
    let results = append(&mut sink, &["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"]);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("rolls back the transaction"), "{error}");
    assert_eq!(fixture.all("SELECT id FROM t"), "1\n3");
    // A table that is dropped while the sink is open, and a view.
    fixture.open().execute_batch("DROP TABLE t").unwrap();
    append_all(&mut sink, &["{\"a\":\"again\"}"]);
    assert_eq!(fixture.all("SELECT * FROM t"), "again");
    fixture.open().execute_batch("DROP TABLE t; CREATE VIEW t AS SELECT 1").unwrap();
    assert!(sink.append(&[b"{\"a\":1}"]).unwrap_err().to_string().contains("\"t\" is a view"));
    assert!(Sink::open(&fixture.database(), "T").unwrap_err().is_user_error());
}

#[test]
fn objects_with_too_many_keys_are_rejected() {
    let fixture = Fixture::new();
    let object = |from: usize, to: usize| {
        let members: Vec<String> = (from..to).map(|n| format!("\"k{n}\":{n}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let mut sink = open(&fixture);
    append_all(&mut sink, &[&object(0, 1_500), &object(1_400, 1_990)]);
    append_all(&mut sink, &[&object(1_980, 2_100)]);
    drop(sink);
    append_all(&mut open(&fixture), &[&object(1_998, 2_000), "{\"k3000\":[1]}"]);
    assert_eq!(fixture.all("SELECT count(*) FROM pragma_table_info('t')"), "2000");
    assert_eq!(
        fixture.all("SELECT k1998, json_extract(_more, '$.k1999') FROM t WHERE rowid > 2"),
        "1998|1999\n1998|1999\n∅|∅"
    );
    assert_eq!(fixture.all("SELECT _more FROM t WHERE rowid = 5"), "{\"k3000\":[1]}");
    // A table that already has the maximum of columns.
    let fixture = Fixture::new();
    let columns: Vec<String> = (0..2_000).map(|n| format!("k{n}")).collect();
    fixture.open().execute_batch(&format!("CREATE TABLE t ({})", columns.join(","))).unwrap();
    let mut sink = open(&fixture);
    for _ in 0..2 {
        let results = append(&mut sink, &["{\"k7\":1}", "{\"k7\":2,\"one\":1}", "{\"k8\":3}"]);
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        let error = results[1].as_ref().unwrap_err().to_string();
        assert!(error.contains("\"one\"") && error.contains("2000"), "{error}");
    }
    assert_eq!(fixture.all("SELECT k7, k8 FROM t"), "1|∅\n∅|3\n1|∅\n∅|3");
}

#[test]
fn two_sinks_can_append_to_one_table_concurrently() {
    const BATCHES: usize = 40;
    let fixture = Fixture::new();
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (fixture, start) = (&fixture, &start);
            scope.spawn(move || {
                start.wait();
                let mut sink = open(fixture);
                for batch in 0..BATCHES {
                    // Columns that both sinks add, and columns that only one adds.
                    let objects: Vec<String> = (0..5)
                        .map(|n| {
                            format!("{{\"w\":{writer},\"n\":{n},\"both{batch}\":1,\"own{writer}_{}\":1}}", batch % 7)
                        })
                        .collect();
                    append_all(&mut sink, &objects.iter().map(String::as_str).collect::<Vec<_>>());
                }
            });
        }
    });
    assert_eq!(
        fixture.all("SELECT w, count(*), sum(n) FROM t GROUP BY w"),
        "0|200|400\n1|200|400\n2|200|400\n3|200|400"
    );
    assert_eq!(fixture.all("SELECT count(*) FROM pragma_table_info('t')"), (2 + BATCHES + 4 * 7).to_string());
    assert_eq!(fixture.all("SELECT sum(both3), sum(own2_6) FROM t"), "20|25");
    fixture.check_integrity();
}

#[test]
fn batch_is_visible_to_readers_after_append_returns() {
    let fixture = Fixture::new();
    let mut sink = open(&fixture);
    append_all(&mut sink, &["{\"a\":1}"]);
    let reader = fixture.open();
    assert_eq!(rows(&reader, "SELECT a FROM t"), "1");
    // A reader does not block the sink.
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    append_all(&mut sink, &["{\"a\":2}", "{\"b\":3}"]);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(rows(&reader, "SELECT a, b FROM t"), "1|∅\n2|∅\n∅|3");
}

#[test]
fn sink_refuses_folders_other_files_and_foreign_databases() {
    let fixture = Fixture::new();
    let refused = |path: &Path, words: &str| {
        let error = Sink::open(path, "t").unwrap_err();
        assert!(error.is_user_error() && !error.is_transient() && error.to_string().contains(words), "{error}");
    };
    refused(fixture.folder.path(), "is a folder");
    refused(&fixture.folder.path().join("no/such.db"), "cannot be opened");
    let other = fixture.write("other.txt", &b"something else entirely\n".repeat(100));
    refused(&other, "is not an SQLite database");
    let own = fixture.folder.path().join("work.db");
    let conn = Connection::open(&own).unwrap();
    conn.execute_batch("CREATE TABLE job_locks (a); CREATE TABLE wal_maintenance_jobs (a)").unwrap();
    let before = std::fs::read(&own).unwrap();
    refused(&own, "is Gristmill's own database");
    assert_eq!(std::fs::read(&own).unwrap(), before);
    let import_log = fixture.folder.path().join("import_log.db");
    Connection::open(&import_log).unwrap().execute_batch("CREATE TABLE _imports (a)").unwrap();
    refused(&import_log, "has a table _imports that no import created");
}

#[test]
fn keys_named_like_the_rowid_get_other_column_names() {
    for key in ["rowid", "oid", "_rowid_", "ROWID", "Oid"] {
        for first in [true, false] {
            let fixture = Fixture::new();
            let mut sink = open(&fixture);
            if !first {
                append_all(&mut sink, &["{\"a\":0}"]);
            }
            let text = format!("{{\"a\":1,\"{key}\":\"x\"}}");
            let number = format!("{{\"a\":2,\"{key}\":7}}");
            append_all(&mut sink, &[&text, &number]);
            append_all(&mut sink, &["{\"a\":3}", &number]);
            let mut again = open(&fixture);
            append_all(&mut again, &[&text]);
            let column = fixture.all("SELECT name FROM pragma_table_info('t') WHERE name <> 'a'");
            assert_eq!(fixture.all(&format!("SELECT \"{column}\" FROM t WHERE a > 0")), "x\n7\n∅\n7\nx", "{key}");
        }
    }
}

#[test]
fn only_objects_with_the_refused_key_are_rejected() {
    let fixture = Fixture::new();
    fixture.open().execute_batch("CREATE TABLE t (a INT) STRICT").unwrap();
    let mut sink = open(&fixture);
    let results = append(&mut sink, &["{\"a\":1}", "{\"a\":2,\"new\":1}", "{\"a\":3}", "{\"b\":1}", "{\"a\":5}"]);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false, true]);
    assert_eq!(fixture.all("SELECT a FROM t"), "1\n3\n5");
    // The failure is not cached: the next object with a new key uses the current definition of the table.
    fixture.open().execute_batch("DROP TABLE t; CREATE TABLE t (a INT)").unwrap();
    append_all(&mut sink, &["{\"a\":6,\"new\":1}"]);
}

#[test]
fn object_with_a_processed_id_is_a_duplicate() {
    use gristmill_jsonl::{AppendResult, WithId};
    use std::time::Duration;
    let fixture = Fixture::new();
    let once = |scope: &str, window| open(&fixture).dedup_window(scope, window);
    let hour = Duration::from_secs(3_600);
    let with = |id, object: &'static str| WithId { id, object: object.as_bytes() };
    let mut sink = once("q", hour);
    let batch = [
        with(Some("a"), "{\"n\":1}"),
        with(Some("a"), "{\"n\":2}"),
        with(None, "{\"n\":3}"),
        with(None, "{\"n\":3}"),
        // The id of a rejected object is not remembered.
        with(Some("b"), "bad"),
        with(Some("b"), "{\"n\":4}"),
        with(Some("b"), "{\"n\":5}"),
    ];
    let outcome = |result: &Result<AppendResult, RejectedObject>| result.as_ref().ok().copied();
    let results: Vec<_> = sink.append_deduplicated(&batch).unwrap().iter().map(outcome).collect();
    let (new, known) = (Some(AppendResult::Inserted), Some(AppendResult::Duplicate));
    assert_eq!(results, [new, known, new, new, None, new, known]);
    assert_eq!(fixture.all("SELECT n FROM t"), "1\n3\n3\n4");
    // Another sink, and another scope.
    let again = [with(Some("a"), "{\"n\":6}"), with(Some("b"), "{\"n\":7}")];
    let results: Vec<_> = once("q", hour).append_deduplicated(&again).unwrap().iter().map(outcome).collect();
    assert_eq!(results, [known, known]);
    let results: Vec<_> = once("other", hour).append_deduplicated(&again).unwrap().iter().map(outcome).collect();
    assert_eq!(results, [new, new]);
    // Ids are forgotten after the window.
    fixture.open().execute_batch("UPDATE _processed_ids SET processed_at = 1").unwrap();
    let results: Vec<_> = once("q", hour).append_deduplicated(&again[..1]).unwrap().iter().map(outcome).collect();
    assert_eq!(results, [new]);
    let left = "SELECT scope, id FROM _processed_ids ORDER BY scope, id";
    assert_eq!(fixture.all(left), "other|a\nother|b\nq|a");
}

#[test]
fn id_is_remembered_only_if_its_row_was_written() {
    use gristmill_jsonl::WithId;
    let fixture = Fixture::new();
    fixture
        .open()
        .execute_batch(
            "CREATE TABLE t (n); CREATE TRIGGER g BEFORE INSERT ON t WHEN new.n = 2
             BEGIN SELECT raise(ROLLBACK, 'no'); END",
        )
        .unwrap();
    let mut sink = open(&fixture).dedup_window("q", std::time::Duration::from_secs(3_600));
    let with = |id, object: &'static str| WithId { id: Some(id), object: object.as_bytes() };
    let results = sink.append_deduplicated(&[with("a", "{\"n\":1}"), with("b", "{\"n\":2}")]).unwrap();
    assert!(results[0].is_ok() && results[1].is_err(), "{results:?}");
    assert_eq!(fixture.all("SELECT id FROM _processed_ids"), "a");
}

#[test]
fn batch_that_fails_after_an_object_was_rolled_back_leaves_no_row() {
    let fixture = Fixture::new();
    // Object 2 rolls back, and 8 does after 7; at 3 the database is full.
    fixture
        .open()
        .execute_batch(
            "CREATE TABLE t (n); CREATE TRIGGER g BEFORE INSERT ON t WHEN new.n = 2
                 OR new.n = 8 AND EXISTS (SELECT 1 FROM t WHERE n = 7) BEGIN SELECT raise(ROLLBACK, 'no'); END;
             CREATE TABLE last (n INTEGER PRIMARY KEY AUTOINCREMENT);
             INSERT INTO last VALUES (9223372036854775807);
             CREATE TRIGGER f AFTER INSERT ON t WHEN new.n = 3 BEGIN INSERT INTO last VALUES (NULL); END",
        )
        .unwrap();
    let mut sink = open(&fixture);
    let object = |n: u32| format!("{{\"n\":{n}}}");
    let mut append = |numbers: &[u32]| {
        let objects: Vec<String> = numbers.iter().copied().map(object).collect();
        let objects: Vec<&[u8]> = objects.iter().map(|object| object.as_bytes()).collect();
        let results = sink.append(&objects)?;
        Ok::<_, gristmill_jsonl::Error>(results.iter().map(Result::is_ok).collect::<Vec<_>>())
    };
    assert!(append(&[1, 2, 3, 4]).is_err());
    assert_eq!(fixture.all("SELECT count(*) FROM t"), "0");
    assert_eq!(append(&[1, 2, 4]).unwrap(), [true, false, true]);
    // Each of these can be written alone.
    assert_eq!(append(&[5, 2, 7, 6, 8, 9]).unwrap(), [true, false, true, true, false, true]);
    assert_eq!(fixture.all("SELECT n FROM t"), "1\n4\n5\n7\n6\n9");
}

#[cfg(unix)]
#[test]
fn sink_refuses_batches_when_its_database_was_deleted_or_replaced() {
    for replaced in [false, true] {
        let fixture = Fixture::new();
        let mut sink = open(&fixture);
        sink.append(&[b"{\"n\":1}"]).unwrap();
        let path = fixture.database();
        if replaced {
            std::fs::write(path.with_extension("other"), "").unwrap();
            std::fs::rename(path.with_extension("other"), &path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let error = sink.append(&[b"{\"n\":2}"]).unwrap_err();
        let (is_deleted, is_replaced) = (matches!(error, Error::Deleted(_)), matches!(error, Error::Replaced(_)));
        assert_eq!((is_deleted, is_replaced), (!replaced, replaced), "{error}");
        assert!(error.to_string().contains("start again"), "{error}");
        assert!(!error.is_transient() && !error.is_user_error());
    }
}

#[cfg(unix)]
#[test]
fn wal_of_a_replaced_database_is_not_applied_to_the_new_one() {
    let fixture = Fixture::new();
    let mut sink = open(&fixture);
    sink.append(&[b"{\"n\":1}"]).unwrap();
    let other = fixture.database().with_extension("other");
    let new = Connection::open(&other).unwrap();
    new.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE notes (text)").unwrap();
    drop(new);
    std::fs::rename(&other, fixture.database()).unwrap();
    assert!(matches!(sink.append(&[b"{\"n\":2}"]), Err(Error::Replaced(_))));
    drop(sink);
    assert_eq!(fixture.all("SELECT group_concat(name) FROM sqlite_schema"), "notes");
}
