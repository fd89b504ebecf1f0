//! Backups, damaged databases and files that are not databases.

mod common;

use std::path::Path;

use common::{Home, assert_shape};
use gristmill_store::Store;
use gristmill_store::tasks::NewTask;
use serde_json::json;

fn fill(path: &Path, count: usize) {
    let store = Store::open(path).unwrap();
    let tasks = (0..count).map(|n| NewTask::new("k", format!("\"{n:0>200}\""))).collect();
    store.tasks().enqueue_many(tasks).unwrap();
}

#[test]
fn backup_is_a_complete_database() {
    let home = Home::new();
    fill(&home.path("x.db"), 50);
    let report = home.json(&["--db", "x.db", "backup", "copy.db"]);
    assert_shape("backup", &report);
    assert_eq!(report["bytes"], std::fs::metadata(home.path("copy.db")).unwrap().len());
    assert_eq!(home.json(&["--db", "copy.db", "jobs", "show", "50"])["id"], 50);
    home.check(&["--db", "x.db", "backup", "copy.db"], 1, "", "replace it with --force");
    home.check(&["--db", "x.db", "backup", "--force", "copy.db"], 0, "wrote ", "");
    home.check(&["--db", "x.db", "backup", "none/copy.db"], 1, "", "cannot open");
    home.check(&["--db", "x.db", "backup", "--force", "x.db"], 1, "", "is the database itself");
    home.check(&["--db", "x.db", "backup", "--force", "."], 1, "", "is a folder");
    home.check(&["--db", "y.db", "backup", "copy2.db"], 1, "", "there is no database");
    assert!(!home.path("y.db").exists() && !home.path("copy2.db").exists());
}

#[test]
fn doctor_reports_a_healthy_database() {
    let home = Home::new();
    fill(&home.path("x.db"), 3);
    let checkup = home.json(&["--db", "x.db", "doctor"]);
    assert_shape("doctor", &checkup);
    assert_eq!((&checkup["health"], &checkup["counts"]["tasks"]), (&json!("healthy"), &json!({"pending": 3})));
    home.check(&["--db", "x.db", "doctor"], 0, "healthy: no problems found", "");
    assert_shape("doctor-repair", &home.json(&["--db", "x.db", "doctor", "--repair"]));
}

/// Checks that every command refuses the file with the same error.
#[track_caller]
fn refused(home: &Home, code: i32, expected: &str) {
    let before = std::fs::read(home.path("x.db")).unwrap();
    for words in [&["jobs", "list"][..], &["enqueue", "k", "--payload", "1"], &["worker", "--once"], &["doctor"]] {
        home.check(&[&["--db", "x.db"], words].concat(), code, "", expected);
    }
    assert_eq!(std::fs::read(home.path("x.db")).unwrap(), before, "the file was changed");
}

#[test]
fn text_file_as_database_is_refused_and_unchanged() {
    let home = Home::new();
    home.write("x.db", &"Dear diary, ".repeat(100));
    refused(&home, 1, "x.db is not a database");
}

#[test]
fn folder_as_database_is_refused() {
    let home = Home::new();
    std::fs::create_dir(home.path("x.db")).unwrap();
    home.check(&["--db", "x.db", "jobs", "list"], 1, "", "the path must not be a folder");
    home.check(&["--db", "x.db", "doctor"], 1, "", "the path must not be a folder");
}

#[test]
fn truncated_database_is_reported_as_damaged_and_not_repaired() {
    let home = Home::new();
    let path = home.path("x.db");
    fill(&path, 2_000);
    let sound = std::fs::read(&path).unwrap();
    std::fs::write(&path, &sound[..sound.len() / 2]).unwrap();
    home.check(&["--db", "x.db", "doctor"], 2, "damage: ", "");
    let torn = std::fs::read(&path).unwrap();
    home.check(&["--db", "x.db", "doctor", "--repair"], 2, "nothing was repaired", "");
    assert_eq!(std::fs::read(&path).unwrap(), torn);

    // Two pages of zeros in the middle, with unchanged length.
    let mut holed = sound;
    let middle = holed.len() / 8192 * 4096;
    holed[middle..middle + 8192].fill(0);
    std::fs::write(&path, &holed).unwrap();
    home.check(&["--db", "x.db", "doctor"], 2, "restore the latest backup", "");
}

/// Fills the first page of a table with zeros.
fn damage(path: &Path, table: &str) {
    let conn = rusqlite::Connection::open(path).unwrap();
    // Checkpoints the WAL and removes it.
    conn.pragma_update(None, "journal_mode", "DELETE").unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: u32 = conn.query_row(sql, [table], |row| row.get(0)).unwrap();
    let page = page as usize;
    drop(conn);
    let mut bytes = std::fs::read(path).unwrap();
    bytes[(page - 1) * 4_096..page * 4_096].fill(0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_catalog_names_delete_and_rescan_as_the_remedy() {
    let home = Home::new();
    home.write("a/one", "same");
    home.write("a/two", "same");
    let db = ["--db", "x.db"];
    home.json(&[&db[..], &["scan", "a"]].concat());
    damage(&home.path("x.db"), "library_files");
    let advice = "it contains only results of scans: delete it, with its -wal and -shm files if they exist, and scan \
                  again (`gristmill --db x.db scan FOLDER`)";
    for words in [&["dupes"][..], &["scan"]] {
        let output = home.run(&[&db[..], words].concat());
        assert!(output.err.contains(advice) && !output.err.contains("backup"), "{words:?}: {output:?}");
        assert_eq!(output.code, Some(2), "{words:?}: {output:?}");
    }
    let output = home.run(&["--db", "x.db", "doctor"]);
    assert!(output.code == Some(2) && output.out.contains(advice) && !output.out.contains("backup"), "{output:?}");
}

#[test]
fn damaged_catalog_with_tasks_names_backup_and_rescan() {
    let home = Home::new();
    home.write("a/one", "same");
    home.write("a/two", "same");
    let db = ["--db", "x.db"];
    home.json(&[&db[..], &["scan", "a"]].concat());
    fill(&home.path("x.db"), 3);
    damage(&home.path("x.db"), "library_files");
    let output = home.run(&["--db", "x.db", "dupes"]);
    let both = ["restore the latest backup", "tasks (3)", "delete it"];
    assert!(output.code == Some(2) && both.iter().all(|part| output.err.contains(part)), "{output:?}");
    let output = home.run(&["--db", "x.db", "doctor"]);
    assert!(output.code == Some(2) && both.iter().all(|part| output.out.contains(part)), "{output:?}");
}

#[test]
fn database_cut_to_its_header_is_damaged() {
    let home = Home::new();
    let path = home.path("x.db");
    fill(&path, 10);
    let sound = std::fs::read(&path).unwrap();
    std::fs::write(&path, &sound[..100]).unwrap();
    home.check(&["--db", "x.db", "doctor"], 2, "", "begins like a database but cannot be read: it is truncated");
    assert_eq!(std::fs::read(&path).unwrap(), sound[..100]);
}

#[test]
fn empty_file_becomes_a_database() {
    let home = Home::new();
    home.write("x.db", "");
    home.check(&["--db", "x.db", "doctor"], 0, "note: this program has never opened the file", "");
    home.check(&["--db", "x.db", "enqueue", "k", "--payload", "1"], 0, "task 1", "");
}
