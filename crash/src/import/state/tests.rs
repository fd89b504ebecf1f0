//! What is old, new or between is told apart.

use super::*;

const BEFORE: &str = "CREATE TABLE a (id INTEGER PRIMARY KEY, x);
    INSERT INTO a VALUES (1, 'one'), (2, 2.5);
    CREATE TABLE kept (x);
    CREATE TABLE _imports (id INTEGER PRIMARY KEY, \"table\", source, bytes, modified_ns, blake3, mode, options, rows, errors,
        error, renamed);
    INSERT INTO _imports (\"table\", source, rows) VALUES ('a', 'old/a', 2);";

const AFTER: &str =
    "INSERT INTO a VALUES (3, NULL); INSERT INTO _imports (\"table\", source, rows) VALUES ('a', 'new/a', 1);
    CREATE TABLE b (x); CREATE INDEX i ON b (x); INSERT INTO b VALUES (x'00');
    INSERT INTO _imports (\"table\", source, rows) VALUES ('b', 'new/b', 1);";

fn state(sql: &str) -> State {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let (state, damage) = State::read(&path).unwrap();
    assert!(damage.is_empty(), "{damage:?}");
    state
}

/// What was found after these statements: which tables are loaded, and what is said.
#[track_caller]
fn check(then: &str, loaded: &[&str], findings: &[&str]) {
    let (old, new) = (state(BEFORE), state(&format!("{BEFORE}{AFTER}")));
    let judgement = state(&format!("{BEFORE}{then}")).between(&old, &new);
    assert_eq!(judgement.loaded.iter().collect::<Vec<_>>(), loaded, "{then}");
    assert_eq!(judgement.findings.len(), findings.len(), "{then}: {:?}", judgement.findings);
    for (found, expected) in judgement.findings.iter().zip(findings) {
        assert!(found.contains(expected), "{then}: {found}");
    }
}

#[test]
fn old_and_new_and_some_of_each_are_well() {
    check("", &[], &[]);
    check(AFTER, &["a", "b"], &[]);
    let (a, b) = AFTER.split_once("CREATE").unwrap();
    check(a, &["a"], &[]);
    check(&format!("CREATE{b}"), &["b"], &[]);
}

#[test]
fn what_is_between_is_found() {
    let loaded = "_imports says that a is loaded, and it is not";
    check("INSERT INTO a VALUES (3, NULL);", &[], &["_imports says that a is not loaded, and it is"]);
    check("INSERT INTO a VALUES (4, NULL);", &[], &["the table a is 3 rows", "a is not loaded, and it is"]);
    let between = "the table";
    check(&format!("{AFTER} UPDATE a SET x = 'two' WHERE id = 2;"), &["a", "b"], &[between, loaded]);
    check(&format!("{AFTER} UPDATE a SET x = 3 WHERE id = 3;"), &["a", "b"], &[between, loaded]);
    check(&format!("{AFTER} DROP INDEX i;"), &["a", "b"], &[between, "b is loaded, and it is not"]);
    let twice = "INSERT INTO _imports (\"table\", source, rows) VALUES ('a', 'new/a', 1);";
    check(&format!("{AFTER}{twice}"), &["b"], &["_imports says of a"]);
    check("DROP TABLE kept;", &[], &[between, "says that kept is loaded, and it is not"]);
    check("CREATE TABLE other (x);", &[], &["the table other", "other is loaded, and it is not"]);
}

#[test]
fn what_an_import_loads_is_told_by_the_ledger() {
    let (old, new) = (state(BEFORE), state(&format!("{BEFORE}{AFTER}")));
    assert_eq!(new.since(&old), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert_eq!(old.since(&State::default()), BTreeSet::from(["a".to_owned()]));
}
