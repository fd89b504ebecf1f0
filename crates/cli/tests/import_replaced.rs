//! Imports whose database is deleted, moved or replaced while they run: they stop with an error and report no rows.
#![cfg(unix)]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Home, RunOutput};

/// Creates a database with one table, in this journal mode.
fn database(path: &Path, journal: &str) {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.pragma_update(None, "journal_mode", journal).unwrap();
    conn.execute_batch("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')").unwrap();
}

/// Returns the tables of a database and the number of rows of `notes`.
fn tables(path: &Path) -> (String, i64) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok", "{}", path.display());
    let names = "SELECT group_concat(name) FROM sqlite_schema WHERE type = 'table'";
    let names = conn.query_row(names, [], |row| row.get(0)).unwrap();
    (names, conn.query_row("SELECT count(*) FROM notes", [], |row| row.get(0)).unwrap())
}

/// Starts an import that reads from a pipe. It opens its database before the pipe.
fn start(home: &Home, words: &[&str]) -> (Child, File) {
    let pipe = home.path("rows.jsonl");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = home.command(&[&["import", "rows.jsonl", "--into", "x.db"], words].concat());
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    (process, File::options().write(true).open(pipe).unwrap())
}

#[track_caller]
fn is_refused(process: Child, expected: &str) {
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.err.contains(expected) && output.err.contains("x.db"), "{output:?}");
    assert!(!output.out.contains("rows"), "rows are reported: {output:?}");
}

#[test]
fn import_fails_and_reports_no_rows_when_its_database_is_deleted_moved_or_replaced() {
    for journal in ["delete", "wal"] {
        for (event, expected) in [
            ("deleted", "was deleted or moved away"),
            ("moved", "was deleted or moved away"),
            ("replaced", "was replaced by another file"),
        ] {
            let home = Home::new();
            let path = home.path("x.db");
            database(&path, journal);
            let (process, mut pipe) = start(&home, &[]);
            match event {
                "deleted" => fs::remove_file(&path).unwrap(),
                "moved" => fs::rename(&path, home.path("away.db")).unwrap(),
                _ => {
                    database(&home.path("other.db"), journal);
                    fs::rename(home.path("other.db"), &path).unwrap();
                }
            }
            pipe.write_all(b"{\"a\": 1}\n").unwrap();
            drop(pipe);
            is_refused(process, expected);
            match event {
                "deleted" => assert!(!path.exists(), "{journal}"),
                "moved" => assert_eq!(tables(&home.path("away.db")), ("notes".to_owned(), 1), "{journal}"),
                // The new file contains nothing of the import or of the old file's WAL.
                _ => assert_eq!(tables(&path), ("notes".to_owned(), 1), "{journal}"),
            }
        }
    }
}

#[test]
fn import_detects_a_deleted_database_while_reading_a_file() {
    let home = Home::new();
    database(&home.path("x.db"), "delete");
    let (process, mut pipe) = start(&home, &[]);
    fs::remove_file(home.path("x.db")).unwrap();
    let lines = "{\"a\": 1}\n".repeat(100_000);
    // The import ends before the end of its input.
    let written = (0..1_000).take_while(|_| pipe.write_all(lines.as_bytes()).is_ok()).count();
    assert!(written < 1_000, "it read all");
    drop(pipe);
    is_refused(process, "was deleted or moved away");
}

#[test]
fn import_fails_when_the_draft_of_its_new_database_is_deleted() {
    let home = Home::new();
    let (process, mut pipe) = start(&home, &[]);
    fs::remove_file(home.path(".x.db.import")).unwrap();
    pipe.write_all(b"{\"a\": 1}\n").unwrap();
    drop(pipe);
    is_refused(process, "was deleted or moved away");
    assert!(!home.path("x.db").exists());
}

/// Starts an import of a file and then of a pipe into a database in WAL mode. When the pipe is read, the rows of the file
/// are committed to the WAL.
fn start_second_file(home: &Home) -> (Child, File) {
    database(&home.path("x.db"), "wal");
    home.write("first.jsonl", "{\"a\": 1}\n");
    let pipe = home.path("second.jsonl");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = home.command(&["import", "first.jsonl", "second.jsonl", "--into", "x.db", "--json"]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pipe = File::options().write(true).open(pipe).unwrap();
    let is_committed = || {
        let conn = rusqlite::Connection::open(home.path("x.db")).unwrap();
        conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'first'", [], |row| row.get(0))
            .is_ok_and(|count: i64| count == 1)
    };
    while !is_committed() {
        std::thread::yield_now();
    }
    (process, pipe)
}

#[test]
fn rows_of_earlier_files_are_not_reported_when_the_database_is_deleted_at_a_later_one() {
    let home = Home::new();
    let (process, mut pipe) = start_second_file(&home);
    fs::remove_file(home.path("x.db")).unwrap();
    pipe.write_all(b"{\"a\": 1}\n").unwrap();
    drop(pipe);
    is_refused(process, "was deleted or moved away");
}

#[test]
fn rows_of_earlier_files_stay_in_a_database_that_is_moved_away() {
    let home = Home::new();
    let (process, mut pipe) = start_second_file(&home);
    fs::rename(home.path("x.db"), home.path("away.db")).unwrap();
    pipe.write_all(b"{\"a\": 1}\n").unwrap();
    drop(pipe);
    is_refused(process, "was deleted or moved away");
    assert_eq!(tables(&home.path("away.db")), ("notes,_imports,first".to_owned(), 1));
}

#[test]
fn the_log_of_a_replaced_database_is_not_applied_to_the_new_one() {
    let home = Home::new();
    let (process, mut pipe) = start_second_file(&home);
    database(&home.path("other.db"), "wal");
    fs::rename(home.path("other.db"), home.path("x.db")).unwrap();
    pipe.write_all(b"{\"a\": 1}\n").unwrap();
    drop(pipe);
    is_refused(process, "was replaced by another file");
    assert_eq!(tables(&home.path("x.db")), ("notes".to_owned(), 1));
}
