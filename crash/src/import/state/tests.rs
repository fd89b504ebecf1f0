//! Old, new and intermediate states are distinguished.

use rusqlite::Connection;

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

fn state(sql: &str) -> DatabaseState {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let (state, damage) = DatabaseState::read(&path).unwrap();
    assert!(damage.is_empty(), "{damage:?}");
    state
}

/// Checks which tables are loaded, and which violations are reported, after these statements.
#[track_caller]
fn check(then: &str, loaded: &[&str], violations: &[&str]) {
    let (old, new) = (state(BEFORE), state(&format!("{BEFORE}{AFTER}")));
    let comparison = state(&format!("{BEFORE}{then}")).compare(&old, &new);
    assert_eq!(comparison.loaded.iter().collect::<Vec<_>>(), loaded, "{then}");
    assert_eq!(comparison.violations.len(), violations.len(), "{then}: {:?}", comparison.violations);
    for (found, expected) in comparison.violations.iter().zip(violations) {
        assert!(found.contains(expected), "{then}: {found}");
    }
}

#[test]
fn old_and_new_tables_in_any_combination_are_valid() {
    check("", &[], &[]);
    check(AFTER, &["a", "b"], &[]);
    let (a, b) = AFTER.split_once("CREATE").unwrap();
    check(a, &["a"], &[]);
    check(&format!("CREATE{b}"), &["b"], &[]);
}

#[test]
fn tables_between_old_and_new_are_violations() {
    let loaded = "_imports lists a as loaded, but it is not";
    check("INSERT INTO a VALUES (3, NULL);", &[], &["_imports does not list a as loaded, but it is"]);
    check("INSERT INTO a VALUES (4, NULL);", &[], &["table a is 3 rows", "does not list a as loaded, but it is"]);
    let between = "the old state is";
    check(&format!("{AFTER} UPDATE a SET x = 'two' WHERE id = 2;"), &["a", "b"], &[between, loaded]);
    check(&format!("{AFTER} UPDATE a SET x = 3 WHERE id = 3;"), &["a", "b"], &[between, loaded]);
    check(&format!("{AFTER} DROP INDEX i;"), &["a", "b"], &[between, "lists b as loaded, but it is not"]);
    let twice = "INSERT INTO _imports (\"table\", source, rows) VALUES ('a', 'new/a', 1);";
    check(&format!("{AFTER}{twice}"), &["b"], &["for a; undisturbed"]);
    check("DROP TABLE kept;", &[], &[between, "lists kept as loaded, but it is not"]);
    check("CREATE TABLE other (x);", &[], &["table other", "lists other as loaded, but it is not"]);
}

#[test]
fn loaded_tables_are_those_with_new_rows_in_imports() {
    let (old, new) = (state(BEFORE), state(&format!("{BEFORE}{AFTER}")));
    assert_eq!(new.loaded_since(&old), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    assert_eq!(old.loaded_since(&DatabaseState::default()), BTreeSet::from(["a".to_owned()]));
}
