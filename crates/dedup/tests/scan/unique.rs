//! Tests the list of files without a copy elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use gristmill_dedup::unique::{UniqueFiles, UniqueOptions, UniqueState, unique};
use gristmill_dedup::{Error, Filter, Result, ScanMode, ScanOptions};
use gristmill_store::catalog::{
    Algorithm, Batch, Digest, FileHash, FileRef, FolderRef, Listing, ListingStatus, ReadResult,
};

use crate::fixture::{Fixture, MIB, bytes, mode, set, write};

fn ask(fixture: &Fixture, inside: &[&str], not_in: &[&str], min_size: u64) -> Result<UniqueFiles> {
    let paths = |names: &[&str]| names.iter().map(|name| fixture.outside(name)).collect();
    let (inside, not_in) = (paths(inside), paths(not_in));
    unique(&fixture.store, &options!(UniqueOptions { inside, not_in, min_size }))
}

/// Returns the paths in a state, relative to the folder of the fixture.
fn in_state(fixture: &Fixture, found: &UniqueFiles, state: UniqueState) -> BTreeSet<PathBuf> {
    let files = found.page(0, usize::MAX).expect("files").into_iter().filter(|file| file.state == state);
    files.map(|file| file.location.path.strip_prefix(fixture.outside("")).expect("inside").to_path_buf()).collect()
}

#[track_caller]
fn check(fixture: &Fixture, inside: &[&str], not_in: &[&str], files: &[&str], undecided: &[&str]) -> UniqueFiles {
    let found = ask(fixture, inside, not_in, 1).expect("an answer");
    assert_eq!(in_state(fixture, &found, UniqueState::Unique), set(files), "{found:?}");
    assert_eq!(in_state(fixture, &found, UniqueState::Undecided), set(undecided), "{found:?}");
    let summary = found.summary();
    assert_eq!((summary.unique_files, summary.undecided_files), (files.len() as u64, undecided.len() as u64));
    assert_eq!(summary.coverage.complete, undecided.is_empty(), "{summary:?}");
    found
}

/// Two folders, and one that is in neither.
fn library() -> Fixture {
    let fixture = Fixture::of(&[
        ("a/in b", 1, 500),
        ("a/in c", 2, 500),
        ("a/nowhere", 3, 500),
        ("a/own size", 4, 501),
        ("a/twice 1", 5, 70_000),
        ("a/s/twice 2", 5, 70_000),
        ("a/large", 6, 2 * MIB),
        ("a/empty", 0, 0),
        ("b/x", 1, 500),
        ("b/y", 7, 500),
        ("b/large", 6, 2 * MIB),
        ("b/other", 8, 70_000),
        ("c/x", 2, 500),
    ]);
    fixture.scan();
    fixture
}

#[test]
fn files_without_a_copy_in_a_folder_are_listed() {
    let fixture = library();
    let files = ["tree/a/nowhere", "tree/a/own size", "tree/a/twice 1", "tree/a/s/twice 2"];
    check(&fixture, &["tree/a"], &[], &files, &[]);
    let with_c = [&files[..], &["tree/a/in c"]].concat();
    let found = check(&fixture, &["tree/a"], &["tree/b"], &with_c, &[]);
    let summary = found.summary();
    assert_eq!((summary.files, summary.unique_bytes), (7, 500 + 501 + 2 * 70_000 + 500));
    assert_eq!(summary.bytes, summary.unique_bytes + 500 + 2 * MIB as u64);
    check(&fixture, &["tree/a"], &["tree/b", "tree/c"], &files, &[]);
    check(&fixture, &["tree/a/s"], &["tree/a"], &[], &[]);
    check(&fixture, &["tree/b", "tree/c"], &["tree/a"], &["tree/b/y", "tree/b/other"], &[]);
    // A whole root: nothing is outside of it.
    assert_eq!(ask(&fixture, &["tree"], &[], 1).expect("an answer").summary().unique_files, 12);
}

#[test]
fn files_are_listed_in_pages_with_the_largest_first() {
    let fixture = library();
    let found = ask(&fixture, &["tree/a"], &["tree/c"], 1).expect("an answer");
    let sizes = |offset, limit| -> Vec<u64> {
        found.page(offset, limit).expect("files").iter().map(|file| file.size).collect()
    };
    assert_eq!(sizes(0, 3), [2 * MIB as u64, 70_000, 70_000]);
    assert_eq!(sizes(3, usize::MAX), [501, 500, 500]);
    assert_eq!((sizes(6, 1), sizes(7, 1), found.len()), (vec![], vec![], 6));
}

#[test]
fn empty_files_are_listed_on_request() {
    let fixture = library();
    let empty = |not_in: &str| {
        let found = ask(&fixture, &["tree/a"], &[not_in], 0).expect("an answer");
        in_state(&fixture, &found, UniqueState::Unique).contains(&PathBuf::from("tree/a/empty"))
    };
    assert!(empty("tree/b"));
    fixture.write("b/void", b"");
    fixture.scan();
    assert!(!empty("tree/b"));
    assert_eq!(ask(&fixture, &["tree/a"], &["tree/b"], 501).expect("an answer").summary().unique_files, 3);
}

/// Damage to one name damages all.
#[test]
fn hard_link_is_not_a_copy() {
    let fixture = Fixture::of(&[("a/x", 1, 500), ("a/y", 2, 500), ("a/z", 3, 70_000), ("b/y", 2, 500)]);
    for name in ["x", "y", "z"] {
        fixture.link(&format!("a/{name}"), &format!("b/link to {name}"));
    }
    fixture.scan();
    let found = check(&fixture, &["tree/a"], &["tree/b"], &["tree/a/x", "tree/a/z"], &[]);
    assert!(found.page(0, 9).expect("files").iter().all(|file| file.hard_link));
}

#[test]
fn innermost_folder_decides_the_side_of_a_file() {
    let fixture = Fixture::of(&[("x", 1, 500), ("backup/x", 1, 500), ("backup/new/y", 2, 600), ("z", 3, 700)]);
    fixture.scan();
    check(&fixture, &["tree"], &["tree/backup"], &["tree/z"], &[]);
    check(&fixture, &["tree/backup"], &["tree"], &["tree/backup/new/y"], &[]);
    check(&fixture, &["tree", "tree/backup/new"], &["tree/backup"], &["tree/z", "tree/backup/new/y"], &[]);
    // A nested root belongs to the folder around it.
    let nested = fixture.register(&fixture.at("backup/new"));
    fixture.scan_all(&[fixture.root.clone(), nested], &ScanOptions::default());
    check(&fixture, &["tree/backup"], &["tree"], &["tree/backup/new/y"], &[]);
    let same = ask(&fixture, &["tree"], &["tree"], 1).expect_err("an error");
    assert!(matches!(&same, Error::Root(_, reason) if reason.contains("compared with itself")), "{same:?}");
}

#[test]
fn folders_are_named_by_path_or_as_roots() {
    let fixture = library();
    let find = |name: &str| {
        let inside = vec![PathBuf::from(name)];
        unique(&fixture.store, &options!(UniqueOptions { inside })).map(|found| found.summary().files)
    };
    assert_eq!(find("tree"), Ok(12), "the name of the root");
    let error = |name: PathBuf| find(name.to_str().expect("UTF-8")).expect_err("an error").to_string();
    assert!(error(fixture.at("no")).contains("found no such folder; `gristmill scan`"), "{}", error(fixture.at("no")));
    assert!(error(fixture.at("a/nowhere")).contains("a file; `gristmill copies"));
    assert!(error(fixture.outside("")).contains("not a root, and not inside one (registered: "));
    // The disk was unmounted.
    fs::rename(fixture.at("a"), fixture.outside("away")).expect("renamed");
    assert_eq!(find(fixture.at("a").to_str().expect("UTF-8")), Ok(7));
    let none = unique(&fixture.store, &UniqueOptions::default()).expect_err("an error");
    assert!(none.is_user_error());
}

#[test]
fn files_that_were_not_compared_are_undecided() {
    let fixture = Fixture::of(&[("a/x", 1, 500), ("a/y", 2, 500), ("a/z", 3, 501), ("b/x", 1, 500)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    let found = check(&fixture, &["tree/a"], &["tree/b"], &["tree/a/z"], &["tree/a/x", "tree/a/y"]);
    let coverage = &found.summary().coverage;
    assert_eq!((coverage.unread_files, coverage.unreadable_files, coverage.unreachable_files), (2, 0, 0));
    fixture.scan();
    check(&fixture, &["tree/a"], &["tree/b"], &["tree/a/y", "tree/a/z"], &[]);
    // New files are known by their size only.
    fixture.write("b/new", &bytes(2, 500));
    fixture.scan_with(&mode(ScanMode::Walk));
    check(&fixture, &["tree/a"], &["tree/b"], &["tree/a/z"], &["tree/a/y"]);
    check(&fixture, &["tree/b"], &["tree/a"], &[], &["tree/b/new"]);
}

#[test]
fn unreadable_file_is_undecided_if_its_size_occurs_elsewhere() {
    let fixture = Fixture::of(&[("a/x", 1, 500), ("a/y", 2, 600), ("b/x", 1, 500)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    let hashes = ["a/x", "a/y"].map(|path| {
        let row = fixture.row(path);
        let result = ReadResult::Failed("denied".to_owned());
        FileHash { file: FileRef::Row(row.id), stat: row.stat, result, differs: true, racy: false }
    });
    fixture.store.catalog().write(Batch { hashes: hashes.into(), ..Batch::default() }).expect("recorded");
    let found = check(&fixture, &["tree/a"], &["tree/b"], &["tree/a/y"], &["tree/a/x"]);
    assert_eq!(found.summary().coverage.unreadable_files, 1);
}

#[test]
fn unreachable_root_is_compared_as_far_as_it_is_known() {
    let fixture = Fixture::of(&[("x", 1, 500), ("y", 2, 600), ("z", 3, 700)]);
    let disk = fixture.register(&fixture.outside("disk"));
    write(&fixture.outside("disk/x"), &bytes(1, 500));
    write(&fixture.outside("disk/own"), &bytes(8, 800));
    fixture.scan_all(&[fixture.root.clone(), disk], &ScanOptions::default());
    fs::rename(fixture.outside("disk"), fixture.outside("unmounted")).expect("renamed");
    let found = check(&fixture, &["tree"], &["disk"], &["tree/y", "tree/z"], &[]);
    assert_eq!(found.summary().coverage.absent_roots, [fixture.outside("disk")]);
    // The disk was never connected together with this file.
    fixture.write("new", &bytes(8, 800));
    fixture.scan();
    let found = check(&fixture, &["tree"], &["disk"], &["tree/y", "tree/z"], &["tree/new"]);
    assert_eq!(found.summary().coverage.unreachable_files, 1);
}

#[test]
fn undecided_file_is_unreachable_if_all_its_possible_copies_are() {
    let fixture = Fixture::of(&[("z", 9, 700)]);
    let [disk, near] = ["disk", "near"].map(|name| fixture.register(&fixture.outside(name)));
    write(&fixture.outside("disk/x"), &bytes(1, 500));
    write(&fixture.outside("near/z"), &bytes(9, 700));
    fixture.scan_all(&[fixture.root.clone(), disk, near.clone()], &ScanOptions::default());
    fs::rename(fixture.outside("disk"), fixture.outside("unmounted")).expect("renamed");
    fixture.write("x", &bytes(1, 500));
    // A file that can be reached and is known to differ.
    write(&fixture.outside("near/other"), &bytes(2, 500));
    fixture.scan_all(&[fixture.root.clone(), near.clone()], &ScanOptions::default());
    let unreachable = || {
        let found = check(&fixture, &["tree"], &["disk", "near"], &[], &["tree/x"]);
        found.summary().coverage.unreachable_files
    };
    assert_eq!(unreachable(), 1);
    write(&fixture.outside("near/unread"), &bytes(3, 500));
    fixture.scan_all(&[near], &mode(ScanMode::Walk));
    assert_eq!(unreachable(), 0);
}

#[test]
fn answer_names_what_was_not_scanned_in_the_compared_folders() {
    let fixture = library();
    let filter = options!(Filter { exclude: vec!["*.tmp".into()] });
    fixture.scan_with(&options!(ScanOptions { filter }));
    let new = fixture.register(&fixture.outside("new"));
    let summary = |not_in: &[&str]| ask(&fixture, &["tree/a"], not_in, 1).expect("an answer").summary().clone();
    let everywhere = summary(&[]);
    assert_eq!((everywhere.coverage.complete, everywhere.coverage.unfinished_roots), (false, vec![new.path]));
    assert_eq!(everywhere.filtered_roots, std::slice::from_ref(&fixture.root.path));
    assert!(summary(&["tree/b"]).coverage.complete);
}

/// Records the result of reading a file so shortly after a change that a later change may have left the same times.
fn record_racy(fixture: &Fixture, path: &str, result: ReadResult, differs: bool) {
    let row = fixture.row(path);
    let hashes = vec![FileHash { file: FileRef::Row(row.id), stat: row.stat, result, differs, racy: true }];
    fixture.store.catalog().write(Batch { hashes, ..Batch::default() }).expect("recorded");
}

fn blake3_of(seed: u64, size: usize) -> ReadResult {
    let hash = blake3::hash(&bytes(seed, size)).as_bytes().to_vec();
    ReadResult::Content(Digest::shared(Algorithm::Blake3, hash))
}

#[test]
fn file_with_a_racy_hash_is_undecided() {
    let fixture = Fixture::of(&[
        ("a/x", 1, 500),
        ("b/x", 2, 500),
        ("c/x", 1, 500),
        ("a/large", 3, 70_000),
        ("b/large", 4, 70_000),
        ("a/same", 5, 600),
        ("b/same", 5, 600),
    ]);
    fixture.scan();
    let compared = |files: &[&str], undecided: &[&str]| {
        check(&fixture, &["tree/a"], &["tree/b"], files, undecided);
    };
    compared(&["tree/a/x", "tree/a/large"], &[]);
    // The recorded hash equals that of a/x; those of the other two differ from the files in a.
    record_racy(&fixture, "b/x", blake3_of(1, 500), false);
    record_racy(&fixture, "b/large", ReadResult::Samples(1), false);
    record_racy(&fixture, "b/same", blake3_of(6, 600), false);
    compared(&[], &["tree/a/x", "tree/a/large", "tree/a/same"]);
    // A listed file that is racy.
    check(&fixture, &["tree/b"], &["tree/a"], &[], &["tree/b/x", "tree/b/large", "tree/b/same"]);
    fixture.scan();
    compared(&["tree/a/x", "tree/a/large"], &[]);
}

/// One name is racy, so that nothing is known about it itself.
#[test]
fn hard_links_share_what_is_known() {
    let fixture = Fixture::of(&[("a/alone", 1, 70_000), ("b/q", 2, 70_000), ("b/r", 2, 70_000)]);
    fixture.link("b/q", "b/q too");
    fixture.scan();
    record_racy(&fixture, "b/q too", ReadResult::Samples(1), false);
    record_racy(&fixture, "b/q too", blake3_of(2, 70_000), true);
    assert_eq!(fixture.row("b/q too").samples, None);
    check(&fixture, &["tree/a"], &["tree/b"], &["tree/a/alone"], &[]);
}

#[test]
fn unreadable_folder_matters_only_on_one_of_the_sides() {
    let fixture = library();
    let folder = FolderRef { root: fixture.root.id, id: None, path: "c".into() };
    let mut failed = Listing::new(1, folder);
    failed.status = ListingStatus::Failed("denied".to_owned());
    fixture.store.catalog().record(vec![failed]).expect("recorded");
    let unreadable = |not_in: &[&str]| {
        let found = ask(&fixture, &["tree/a"], not_in, 1).expect("an answer");
        (found.summary().coverage.complete, found.summary().coverage.unreadable_folders)
    };
    assert_eq!(unreadable(&["tree/b"]), (true, 0));
    assert_eq!(unreadable(&["tree/b", "tree/c"]), (false, 1));
    assert_eq!(unreadable(&[]), (false, 1));
}
