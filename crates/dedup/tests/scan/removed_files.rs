//! Tests files that are removed and files that return.

use std::fs;
use std::path::Path;

use gristmill_dedup::{ScanMode, ScanOptions, ScanSummary};
use gristmill_store::catalog::{Algorithm, Purged};

use crate::fixture::{Fixture, bytes, mode};

/// Checks the numbers of new, changed, removed and returned files.
#[track_caller]
fn check(summary: &ScanSummary, expected: [u64; 4]) {
    let found = [summary.new_files, summary.changed_files, summary.removed_files, summary.returned_files];
    assert_eq!(found, expected, "{summary:?}");
}

#[test]
fn removed_file_keeps_its_row_and_hash() {
    let fixture = Fixture::of(&[("f/a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    fixture.scan();
    let row = fixture.files()[Path::new("f/a")].id;
    fixture.move_away("f");
    check(&fixture.scan(), [0, 0, 1, 0]);
    fixture.assert_groups(&[&["b", "c"]]);
    assert!(fixture.files()[Path::new("f/a")].missing);
    assert_eq!(fixture.scan().removed_files, 0, "only once");
    // Unchanged files are known without being read.
    fixture.move_back("f");
    let summary = fixture.scan();
    check(&summary, [0, 0, 0, 1]);
    assert_eq!((summary.read_files, summary.read_bytes), (0, 0));
    assert_eq!(fixture.row("f/a").algorithm, Some(Algorithm::Blake3));
    fixture.assert_groups(&[&["b", "c", "f/a"]]);
    assert_eq!(fixture.files()[Path::new("f/a")].id, row);
}

#[test]
fn returned_file_is_read_if_it_changed() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50)]);
    fixture.scan();
    fixture.remove("a");
    check(&fixture.scan(), [0, 0, 1, 0]);
    fixture.write("a", &bytes(2, 50));
    let summary = fixture.scan();
    check(&summary, [0, 0, 0, 1]);
    assert_eq!(summary.read_files, 2, "of `c` only the samples were known");
    fixture.assert_groups(&[&["a", "c"]]);
}

#[test]
fn removed_folder_removes_everything_below() {
    let fixture = Fixture::of(&[("f/a", 1, 50), ("f/g/b", 1, 50), ("f/g/h/c", 2, 50), ("f0", 2, 50), ("f-", 3, 3)]);
    let before = fixture.scan();
    assert_eq!((before.folders, before.files), (4, 5));
    fixture.move_away("f");
    let summary = fixture.scan();
    check(&summary, [0, 0, 3, 0]);
    assert_eq!((summary.folders, summary.files), (1, 2));
    fixture.assert_files(&["f-", "f0"]);
    let root = fixture.store.roots().list().expect("roots").remove(0);
    assert_eq!((root.folders, root.files, root.bytes), (Some(1), Some(2), Some(53)));
    fixture.move_back("f");
    let summary = fixture.scan();
    check(&summary, [0, 0, 0, 3]);
    assert_eq!((summary.folders, summary.read_files), (4, 0));
    fixture.assert_groups(&[&["f/a", "f/g/b"], &["f/g/h/c", "f0"]]);
}

#[test]
fn part_of_a_removed_folder_can_return() {
    let fixture = Fixture::of(&[("f/a", 1, 50), ("f/g/b", 2, 60), ("c", 3, 70)]);
    fixture.scan();
    fixture.remove("f");
    check(&fixture.scan(), [0, 0, 2, 0]);
    fixture.write("f/new", &bytes(4, 80));
    check(&fixture.scan(), [1, 0, 0, 0]);
    fixture.assert_files(&["c", "f/new"]);
    fixture.write("f/g/b", &bytes(2, 60));
    check(&fixture.scan(), [0, 0, 0, 1]);
    fixture.assert_files(&["c", "f/g/b", "f/new"]);
}

#[test]
fn file_and_folder_can_replace_each_other() {
    let fixture = Fixture::of(&[("x/a", 1, 50), ("x/y/b", 1, 50), ("c", 1, 50), ("d", 1, 50)]);
    fixture.scan();
    fixture.remove("x");
    fixture.write("x", &bytes(1, 50));
    fixture.remove("c");
    fixture.write("c/e", &bytes(1, 50));
    check(&fixture.scan(), [2, 0, 3, 0]);
    fixture.assert_groups(&[&["c/e", "d", "x"]]);
    // And the reverse.
    fixture.remove("x");
    fixture.write("x/a", &bytes(1, 50));
    fixture.remove("c");
    fixture.write("c", &bytes(1, 50));
    check(&fixture.scan(), [0, 0, 2, 2]);
    fixture.assert_groups(&[&["c", "d", "x/a"]]);
    assert_eq!(fixture.scan().read_files, 0);
}

#[test]
fn folder_replaced_by_a_symlink_is_removed() {
    let fixture = Fixture::of(&[("x/a", 1, 50), ("y/b", 1, 50)]);
    fixture.scan();
    fixture.move_away("x");
    fixture.symlink("y", "x");
    check(&fixture.scan(), [0, 0, 1, 0]);
    fixture.assert_files(&["y/b"]);
    fixture.assert_groups(&[]);
}

#[test]
fn moved_file_counts_as_new_and_removed() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    fixture.scan();
    fs::rename(fixture.at("a"), fixture.at("z")).expect("moved");
    check(&fixture.scan(), [1, 0, 1, 0]);
    fixture.assert_groups(&[&["b", "z"]]);
}

#[test]
fn purge_deletes_rows_of_missing_files() {
    let fixture = Fixture::of(&[("f/g/a", 1, 50), ("f/b", 1, 50), ("c", 1, 50)]);
    fixture.scan();
    fixture.remove("f");
    fixture.scan();
    let later = fixture.store.now().plus(std::time::Duration::from_secs(1));
    let purged = fixture.store.catalog().purge(true, true, later).expect("purged");
    assert_eq!(purged, Purged { files: 2, folders: 2 });
    fixture.assert_files(&["c"]);
    assert_eq!(fixture.files().len(), 1);
    fixture.write("f/g/a", &bytes(1, 50));
    check(&fixture.scan(), [1, 0, 0, 0]);
    fixture.assert_groups(&[&["c", "f/g/a"]]);
}

/// The walk has found the file, and it is removed before it is read.
#[test]
fn file_removed_before_reading_is_unread_until_the_next_walk() {
    let fixture = Fixture::of(&[
        ("a", 1, 50),
        ("b", 1, 50),
        ("c", 1, 50),
        ("f/d", 1, 50),
        ("f/e", 1, 3 << 20),
        ("g", 1, 3 << 20),
    ]);
    fixture.scan_with(&mode(ScanMode::Walk));
    fixture.remove("a");
    fixture.remove("f");
    let summary = fixture.scan_with(&mode(ScanMode::Hash));
    assert_eq!((summary.removed_files, summary.errors), (0, 0));
    fixture.assert_groups(&[&["b", "c"]]);
    assert_eq!(fixture.coverage().unread_files, 3, "a, d and e");
    assert_eq!(fixture.scan().removed_files, 3);
    fixture.assert_files(&["b", "c", "g"]);
    fixture.assert_groups(&[&["b", "c"]]);
    assert!(fixture.coverage().complete);
    let root = fixture.store.roots().list().expect("roots").remove(0);
    assert_eq!(root.files, Some(3));
}

#[test]
fn root_that_becomes_empty_keeps_its_files_unless_allowed() {
    let fixture = Fixture::of(&[("a", 1, 50), ("f/b", 1, 50)]);
    fixture.scan();
    // Like an unmounted disk, whose mount point still exists.
    fixture.move_away("a");
    fixture.move_away("f");
    let summary = fixture.scan();
    assert_eq!((summary.errors, summary.removed_files), (1, 0));
    assert!(summary.error_samples[0].contains("--allow-empty"), "{summary:?}");
    assert_eq!(fixture.present().len(), 2);
    let unreadable = fixture.store.catalog().unreadable(fixture.root.id, 10).expect("an answer");
    assert_eq!(unreadable.len(), 1);
    assert_eq!(unreadable[0].0.as_os_str(), "");
    // The files return.
    fixture.move_back("f");
    fs::rename(fixture.outside("away/a"), fixture.at("a")).expect("moved");
    let summary = fixture.scan();
    assert_eq!((summary.errors, summary.removed_files), (0, 0));
    assert_eq!(fixture.store.catalog().unreadable(fixture.root.id, 10).expect("an answer"), []);
    // The root is really empty.
    fixture.remove("a");
    fixture.remove("f");
    let summary = fixture.scan_with(&options!(ScanOptions { allow_empty: true }));
    assert_eq!((summary.errors, summary.removed_files), (0, 2));
    // From now on no file is missing.
    assert_eq!(fixture.scan().errors, 0);
}

#[test]
fn missing_root_is_an_error_with_its_path() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    fixture.scan();
    fs::rename(&fixture.root.path, fixture.outside("elsewhere")).expect("moved");
    let roots = [fixture.root.clone()];
    let error = fixture.try_scan(&roots, &ScanOptions::default(), &std::sync::Arc::default()).expect_err("no root");
    assert!(error.is_user_error() && error.to_string().contains("tree: cannot be read"), "{error}");
    fixture.assert_files(&["a"]);
    // No scan holds the root.
    fs::rename(fixture.outside("elsewhere"), &fixture.root.path).expect("moved");
    assert_eq!(fixture.scan().removed_files, 0);
}
