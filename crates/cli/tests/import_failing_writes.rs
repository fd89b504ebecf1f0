//! Imports whose writes fail at some point: a table and its record in `_imports` change together.
#![cfg(unix)]

mod common;

use std::fs;
use std::ops::Range;
use std::path::Path;

use common::{Home, RunOutput};
use rusqlite::Connection;

const ROWS: u32 = 1_500;
const INDEXES: [&str; 6] = ["--index", "a", "--index", "b", "--index", "c"];

/// Writes a file with a row for each number. Its texts contain the name of the file.
fn write_rows(home: &Home, name: &str, numbers: Range<u32>) {
    let text = |column: &str, number: u32| format!("{name} {column} {number:0>40}");
    let line = |number: u32| {
        let [a, b, c] = ["a", "b", "c"].map(|column| text(column, number));
        format!("{{\"id\":{number},\"a\":\"{a}\",\"b\":\"{b}\",\"c\":\"{c}\"}}\n")
    };
    home.write(&format!("{name}/t.jsonl"), &numbers.map(line).collect::<String>());
}

/// Runs the binary with a limit on the size of files that it writes.
fn run_with_small_files(home: &Home, kibibytes: u64, words: &[&str]) -> RunOutput {
    let blocks = (kibibytes * 2).to_string();
    let shell = ["-c", "trap '' XFSZ; ulimit -S -f $0; exec \"$@\"", &blocks];
    RunOutput::of(&home.started_by("sh", &shell, &home.command(words)).output().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    rows: i64,
    new_rows: i64,
    indexes: i64,
    records: i64,
}

/// Counts rows of the table, its indexes and its records in `_imports`.
fn found(database: &Path) -> Found {
    let conn = Connection::open(database).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get(0)).unwrap();
    Found {
        rows: count("SELECT count(*) FROM t"),
        new_rows: count("SELECT count(*) FROM t WHERE a LIKE 'new %' AND b LIKE 'new %' AND c LIKE 'new %'"),
        indexes: count("SELECT count(*) FROM pragma_index_list('t') WHERE origin = 'c'"),
        records: count("SELECT count(*) FROM _imports WHERE source LIKE '%/new/%' AND error IS NULL"),
    }
}

/// Imports these rows with increasing limits of the file size at which writes fail, until an import succeeds.
fn check_every_limit(mode: &'static str, numbers: Range<u32>) {
    let home = Home::new();
    write_rows(&home, "old", 0..ROWS);
    write_rows(&home, "new", numbers.clone());
    let import = |words: &[&'static str]| [&["import", "--into", "x.db"], words, &INDEXES].concat();
    assert_eq!(home.run(&import(&["old"])).code, Some(0));
    let (path, kept) = (home.path("x.db"), home.path("kept.db"));
    fs::copy(&path, &kept).unwrap();
    let old = found(&path);
    let new = Found { rows: i64::from(numbers.end), new_rows: i64::from(ROWS), records: 1, ..old };
    for journal in ["delete", "wal"] {
        let mut failed = 0;
        for limit in (16..).step_by(32) {
            for ending in ["-wal", "-shm", "-journal"] {
                let _ = fs::remove_file(home.path(&format!("x.db{ending}")));
            }
            fs::copy(&kept, &path).unwrap();
            Connection::open(&path).unwrap().pragma_update(None, "journal_mode", journal).unwrap();
            let output = run_with_small_files(&home, limit, &import(&["new", mode]));
            let after = found(&path);
            let what = format!("{mode}, {journal}, {limit} KiB: {after:?} {output:?}");
            assert_eq!(after, if output.code == Some(0) { new } else { old }, "{what}");
            let resumed = home.run(&import(&["new", mode, "--resume"]));
            assert_eq!((resumed.code, found(&path)), (Some(0), new), "{what}; resumed: {resumed:?}");
            if output.code == Some(0) {
                break;
            }
            failed += 1;
        }
        assert!(failed > 5, "{mode}, {journal}: only {failed} imports failed");
    }
}

#[test]
fn replace_whose_writes_fail_changes_a_table_and_its_record_together() {
    check_every_limit("--replace", 0..ROWS);
}

#[test]
fn upsert_whose_writes_fail_changes_a_table_and_its_record_together() {
    check_every_limit("--upsert", 0..ROWS);
}

#[test]
fn append_whose_writes_fail_changes_a_table_and_its_record_together() {
    check_every_limit("--append", ROWS..2 * ROWS);
}
