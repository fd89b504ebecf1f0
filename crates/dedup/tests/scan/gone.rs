//! What is removed, and what comes back.

use std::fs;
use std::path::Path;

use gristmill_dedup::{ScanMode, ScanOptions, ScanSummary};
use gristmill_store::catalog::{Algorithm, Purged};

use crate::bed::{Bed, bytes, mode};

/// New, changed, removed and returned files.
#[track_caller]
fn check(summary: &ScanSummary, expected: [u64; 4]) {
    let found = [summary.new_files, summary.changed_files, summary.removed_files, summary.returned_files];
    assert_eq!(found, expected, "{summary:?}");
}

#[test]
fn a_file_that_is_removed_keeps_its_row_and_its_hash() {
    let bed = Bed::of(&[("f/a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    bed.scan();
    let row = bed.files()[Path::new("f/a")].id;
    bed.take_away("f");
    check(&bed.scan(), [0, 0, 1, 0]);
    bed.has_groups(&[&["b", "c"]]);
    assert!(bed.files()[Path::new("f/a")].missing);
    assert_eq!(bed.scan().removed_files, 0, "only once");
    // Back as it was: known without being read.
    bed.bring_back("f");
    let summary = bed.scan();
    check(&summary, [0, 0, 0, 1]);
    assert_eq!((summary.read_files, summary.read_bytes), (0, 0));
    assert_eq!(bed.row("f/a").algorithm, Some(Algorithm::Blake3));
    bed.has_groups(&[&["b", "c", "f/a"]]);
    assert_eq!(bed.files()[Path::new("f/a")].id, row);
}

#[test]
fn a_file_that_comes_back_changed_is_read() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50)]);
    bed.scan();
    bed.remove("a");
    check(&bed.scan(), [0, 0, 1, 0]);
    bed.write("a", &bytes(2, 50));
    let summary = bed.scan();
    check(&summary, [0, 0, 0, 1]);
    assert_eq!(summary.read_files, 1);
    bed.has_groups(&[&["a", "c"]]);
}

#[test]
fn a_folder_is_removed_with_all_below_it() {
    let bed = Bed::of(&[("f/a", 1, 50), ("f/g/b", 1, 50), ("f/g/h/c", 2, 50), ("f0", 2, 50), ("f-", 3, 3)]);
    let before = bed.scan();
    assert_eq!((before.folders, before.files), (4, 5));
    bed.take_away("f");
    let summary = bed.scan();
    check(&summary, [0, 0, 3, 0]);
    assert_eq!((summary.folders, summary.files), (1, 2));
    bed.has_files(&["f-", "f0"]);
    let root = bed.store.roots().list().expect("roots").remove(0);
    assert_eq!((root.folders, root.files, root.bytes), (Some(1), Some(2), Some(53)));
    bed.bring_back("f");
    let summary = bed.scan();
    check(&summary, [0, 0, 0, 3]);
    assert_eq!((summary.folders, summary.read_files), (4, 0));
    bed.has_groups(&[&["f/a", "f/g/b"], &["f/g/h/c", "f0"]]);
}

#[test]
fn a_part_of_a_folder_comes_back() {
    let bed = Bed::of(&[("f/a", 1, 50), ("f/g/b", 2, 60), ("c", 3, 70)]);
    bed.scan();
    bed.remove("f");
    check(&bed.scan(), [0, 0, 2, 0]);
    bed.write("f/new", &bytes(4, 80));
    check(&bed.scan(), [1, 0, 0, 0]);
    bed.has_files(&["c", "f/new"]);
    bed.write("f/g/b", &bytes(2, 60));
    check(&bed.scan(), [0, 0, 0, 1]);
    bed.has_files(&["c", "f/g/b", "f/new"]);
}

#[test]
fn a_file_and_a_folder_take_each_others_place() {
    let bed = Bed::of(&[("x/a", 1, 50), ("x/y/b", 1, 50), ("c", 1, 50), ("d", 1, 50)]);
    bed.scan();
    bed.remove("x");
    bed.write("x", &bytes(1, 50));
    bed.remove("c");
    bed.write("c/e", &bytes(1, 50));
    check(&bed.scan(), [2, 0, 3, 0]);
    bed.has_groups(&[&["c/e", "d", "x"]]);
    // And back.
    bed.remove("x");
    bed.write("x/a", &bytes(1, 50));
    bed.remove("c");
    bed.write("c", &bytes(1, 50));
    check(&bed.scan(), [0, 0, 2, 2]);
    bed.has_groups(&[&["c", "d", "x/a"]]);
    assert_eq!(bed.scan().read_files, 0);
}

#[test]
fn a_folder_that_becomes_a_link_is_gone() {
    let bed = Bed::of(&[("x/a", 1, 50), ("y/b", 1, 50)]);
    bed.scan();
    bed.take_away("x");
    bed.symlink("y", "x");
    check(&bed.scan(), [0, 0, 1, 0]);
    bed.has_files(&["y/b"]);
    bed.has_groups(&[]);
}

#[test]
fn a_moved_file_is_a_new_one_and_a_removed_one() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50)]);
    bed.scan();
    fs::rename(bed.at("a"), bed.at("z")).expect("moved");
    check(&bed.scan(), [1, 0, 1, 0]);
    bed.has_groups(&[&["b", "z"]]);
}

#[test]
fn what_is_gone_can_be_thrown_away() {
    let bed = Bed::of(&[("f/g/a", 1, 50), ("f/b", 1, 50), ("c", 1, 50)]);
    bed.scan();
    bed.remove("f");
    bed.scan();
    let later = bed.store.now().plus(std::time::Duration::from_secs(1));
    let purged = bed.store.catalog().purge(true, true, later).expect("purged");
    assert_eq!(purged, Purged { files: 2, folders: 2 });
    bed.has_files(&["c"]);
    assert_eq!(bed.files().len(), 1);
    bed.write("f/g/a", &bytes(1, 50));
    check(&bed.scan(), [1, 0, 0, 0]);
    bed.has_groups(&[&["c", "f/g/a"]]);
}

/// The walk has seen it, and it is gone when it is to be read.
#[test]
fn file_that_vanishes_before_it_is_read_is_unread_until_a_walk_finds_it_gone() {
    let bed = Bed::of(&[
        ("a", 1, 50),
        ("b", 1, 50),
        ("c", 1, 50),
        ("f/d", 1, 50),
        ("f/e", 1, 3 << 20),
        ("g", 1, 3 << 20),
    ]);
    bed.scan_with(&mode(ScanMode::Walk));
    bed.remove("a");
    bed.remove("f");
    let summary = bed.scan_with(&mode(ScanMode::Hash));
    assert_eq!((summary.removed_files, summary.errors), (0, 0));
    bed.has_groups(&[&["b", "c"]]);
    assert_eq!(bed.coverage().unread_files, 4, "a, d, e, and g, whose samples tell nothing alone");
    assert_eq!(bed.scan().removed_files, 3);
    bed.has_files(&["b", "c", "g"]);
    bed.has_groups(&[&["b", "c"]]);
    assert!(bed.coverage().complete);
    let root = bed.store.roots().list().expect("roots").remove(0);
    assert_eq!(root.files, Some(3));
}

#[test]
fn a_root_that_is_suddenly_empty_loses_nothing() {
    let bed = Bed::of(&[("a", 1, 50), ("f/b", 1, 50)]);
    bed.scan();
    // As when a disk is not mounted: the folder it was mounted on is there.
    bed.take_away("a");
    bed.take_away("f");
    let summary = bed.scan();
    assert_eq!((summary.errors, summary.removed_files), (1, 0));
    assert!(summary.error_samples[0].contains("--allow-empty"), "{summary:?}");
    assert_eq!(bed.present().len(), 2);
    let unreadable = bed.store.catalog().unreadable(bed.root.id, 10).expect("an answer");
    assert_eq!(unreadable.len(), 1);
    assert_eq!(unreadable[0].0.as_os_str(), "");
    // It is back.
    bed.bring_back("f");
    fs::rename(bed.outside("away/a"), bed.at("a")).expect("moved");
    let summary = bed.scan();
    assert_eq!((summary.errors, summary.removed_files), (0, 0));
    assert_eq!(bed.store.catalog().unreadable(bed.root.id, 10).expect("an answer"), []);
    // It really is empty.
    bed.remove("a");
    bed.remove("f");
    let summary = bed.scan_with(&ScanOptions { allow_empty: true, ..ScanOptions::default() });
    assert_eq!((summary.errors, summary.removed_files), (0, 2));
    // From now on nothing is missed.
    assert_eq!(bed.scan().errors, 0);
}

#[test]
fn a_root_that_is_gone_is_an_error_that_names_it() {
    let bed = Bed::of(&[("a", 1, 50)]);
    bed.scan();
    fs::rename(&bed.root.path, bed.outside("elsewhere")).expect("moved");
    let roots = [bed.root.clone()];
    let error =
        bed.try_scan(&roots, &ScanOptions::default(), &std::sync::Arc::default()).expect_err("no root");
    assert!(error.is_user_error() && error.to_string().contains("tree: cannot be read"), "{error}");
    bed.has_files(&["a"]);
    // Nobody holds it.
    fs::rename(bed.outside("elsewhere"), &bed.root.path).expect("moved");
    assert_eq!(bed.scan().removed_files, 0);
}
