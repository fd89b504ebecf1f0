//! Filters, on a real tree. What is left out later keeps its hash, and comes back when the filter goes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;

use gristmill_dedup::{Filter, ScanOptions};
use gristmill_store::catalog::KnownFolder;

use crate::bed::{Bed, bytes, day, set_time};

const ALL: [&str; 12] = [
    ".hidden/in it",
    ".profile",
    "a.jpg",
    "a.tmp",
    "build/c.o",
    "build/d.txt",
    "deep/build/e.txt",
    "deep/er/a.jpg",
    "deep/er/b.JPG",
    "deep/er/large.bin",
    "deep/old.txt",
    "new.txt",
];

fn tree() -> Bed {
    let bed = Bed::new();
    for path in ALL {
        let size = if path.ends_with(".bin") { 5_000 } else { 100 };
        bed.write(path, &bytes(1, size));
        set_time(&bed.at(path), day(1_000));
    }
    set_time(&bed.at("new.txt"), day(2_000));
    set_time(&bed.at("deep/old.txt"), day(500));
    bed
}

fn with(filter: &Filter) -> ScanOptions {
    ScanOptions { filter: filter.clone(), ..ScanOptions::default() }
}

fn moment(number: u64) -> Option<i64> {
    i64::try_from(number * 86_400_000_000_000).ok()
}

/// Only these are left; the rest is excluded, and comes back with the filter gone, without being read again.
#[track_caller]
fn check(filter: &Filter, left: &[&str]) {
    let bed = tree();
    let first = bed.scan_with(&with(filter));
    bed.has_files(left);
    assert_eq!((first.files, first.excluded_files), (left.len() as u64, 0), "{filter:?}");
    assert_eq!(bed.scan().files, ALL.len() as u64);
    bed.has_files(&ALL);
    let all = bed.groups();
    let narrowed = bed.scan_with(&with(filter));
    bed.has_files(left);
    assert_eq!(narrowed.removed_files, 0, "excluded is not gone");
    assert_eq!(narrowed.excluded_files, (ALL.len() - left.len()) as u64);
    let again = bed.scan_with(&with(filter));
    assert_eq!((again.excluded_files, again.read_files), (0, 0));
    let widened = bed.scan();
    assert_eq!(
        (widened.included_files, widened.new_files, widened.read_files),
        (narrowed.excluded_files, 0, 0)
    );
    assert_eq!(bed.groups(), all);
}

fn exclude(patterns: &[&str]) -> Filter {
    Filter { exclude: patterns.iter().map(|&pattern| pattern.into()).collect(), ..Filter::default() }
}

fn include(patterns: &[&str]) -> Filter {
    Filter { include: patterns.iter().map(|&pattern| pattern.into()).collect(), ..Filter::default() }
}

fn all_but(left_out: &[&str]) -> Vec<&'static str> {
    ALL.into_iter().filter(|path| !left_out.contains(path)).collect()
}

#[test]
fn patterns() {
    check(&exclude(&["*.tmp"]), &all_but(&["a.tmp"]));
    check(&exclude(&["deep/er/*.jpg", "new*"]), &all_but(&["deep/er/a.jpg", "new.txt"]));
    check(&include(&["*.jpg"]), &["a.jpg", "deep/er/a.jpg"]);
    check(
        &include(&["*.[jJ][pP][gG]", "*.bin"]),
        &["a.jpg", "deep/er/a.jpg", "deep/er/b.JPG", "deep/er/large.bin"],
    );
}

/// A folder that is left out takes all below it along.
#[test]
fn patterns_for_folders() {
    check(&exclude(&["build"]), &all_but(&["build/c.o", "build/d.txt", "deep/build/e.txt"]));
    check(&exclude(&["/build"]), &all_but(&["build/c.o", "build/d.txt"]));
    let both = Filter { exclude: vec!["er".into()], ..include(&["*.jpg"]) };
    check(&both, &["a.jpg"]);
}

#[test]
fn duplicates_are_counted_anew_when_a_folder_is_left_out() {
    let bed = Bed::of(&[("a", 1, 50), ("f/b", 1, 50)]);
    assert_eq!(bed.scan().duplicate_groups, 1);
    let options = with(&exclude(&["f"]));
    let summary = bed.try_scan(std::slice::from_ref(&bed.root), &options, &std::sync::Arc::default());
    assert_eq!(summary.expect("a scan").duplicate_groups, 0);
    bed.has_groups(&[]);
    bed.is_sound();
}

#[test]
fn sizes_and_times() {
    check(&Filter { min_size: Some(101), ..Filter::default() }, &["deep/er/large.bin"]);
    check(&Filter { max_size: Some(4_999), ..Filter::default() }, &all_but(&["deep/er/large.bin"]));
    check(&Filter { min_size: Some(100), max_size: Some(5_000), ..Filter::default() }, &ALL);
    check(&Filter { newer_than: moment(2_000), ..Filter::default() }, &["new.txt"]);
    check(&Filter { older_than: moment(1_000), ..Filter::default() }, &["deep/old.txt"]);
    let between = Filter { newer_than: moment(501), older_than: moment(1_999), ..Filter::default() };
    check(&between, &all_but(&["deep/old.txt", "new.txt"]));
}

#[test]
fn hidden_names() {
    let filter = Filter { skip_hidden: true, ..Filter::default() };
    check(&filter, &all_but(&[".hidden/in it", ".profile"]));
}

#[test]
fn what_git_ignores() {
    let bed = Bed::of(&[
        (".git/config", 1, 10),
        ("a.o", 1, 10),
        ("keep.o", 1, 10),
        ("sub/b.o", 1, 10),
        ("sub/c.o", 1, 10),
        ("sub/local", 1, 10),
        ("sub/deep/local", 1, 10),
        ("target/x", 1, 10),
        ("other/target/y", 1, 10),
    ]);
    bed.write(".gitignore", b"*.o\n!keep.o\n/target/\n");
    bed.write("sub/.gitignore", b"!b.o\n/local\n");
    let filter = Filter { gitignore: true, ..Filter::default() };
    let left = [".gitignore", "keep.o", "other/target/y", "sub/.gitignore", "sub/b.o", "sub/deep/local"];
    for workers in [1, 16] {
        bed.scan_with(&ScanOptions { workers: Some(workers), ..with(&filter) });
        bed.has_files(&left);
        assert_eq!(bed.scan().files, 11);
    }
}

#[test]
fn what_is_left_out_is_counted_and_is_in_no_group() {
    let bed = Bed::of(&[("a.x", 1, 50), ("b.y", 1, 50), ("c.y", 1, 50), ("f/d.y", 1, 50)]);
    bed.scan();
    let summary = bed.scan_with(&with(&exclude(&["*.y"])));
    assert_eq!((summary.excluded_files, summary.removed_files, summary.files), (3, 0, 1));
    bed.has_groups(&[]);
    let summary = bed.scan();
    assert_eq!((summary.included_files, summary.new_files, summary.returned_files), (3, 0, 0));
    assert_eq!(summary.read_files, 0, "their hashes were kept");
    bed.has_groups(&[&["a.x", "b.y", "c.y", "f/d.y"]]);
}

#[test]
fn files_of_a_folder_that_is_left_out_are_counted() {
    let bed = Bed::of(&[("a", 1, 50), ("f/b", 1, 50), ("f/g/c", 1, 50)]);
    bed.scan();
    assert_eq!(bed.scan_with(&with(&exclude(&["f"]))).excluded_files, 2);
}

/// What is gone stays gone, whatever is filtered.
#[test]
fn what_was_removed_is_not_forgotten_with_a_filter() {
    let bed = Bed::of(&[("a.x", 1, 50), ("b.y", 1, 50)]);
    bed.scan();
    bed.remove("b.y");
    let summary = bed.scan_with(&with(&exclude(&["*.y"])));
    assert_eq!((summary.removed_files, summary.excluded_files), (1, 0));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_done() {
    let bed = tree();
    for filter in [
        exclude(&["a["]),
        Filter { min_size: Some(2), max_size: Some(1), ..Filter::default() },
        Filter { newer_than: Some(2), older_than: Some(2), ..Filter::default() },
    ] {
        let roots = [bed.root.clone()];
        let error = bed.try_scan(&roots, &with(&filter), &std::sync::Arc::default()).expect_err("no sense");
        assert!(error.is_user_error(), "{error}");
    }
    assert!(!bed.scan().resumed);
}

/// Another file system, where there is one in sight: what is mounted in `/dev` is.
#[test]
fn a_scan_stays_on_its_file_system_if_told_to() {
    let device = |path: &str| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let Some(own) = device("/dev") else { return };
    let mounted =
        ["shm"].iter().find(|name| device(&format!("/dev/{name}")).is_some_and(|other| other != own));
    let Some(mounted) = mounted else { return };
    let bed = Bed::new();
    let root = bed.register(std::path::Path::new("/dev"));
    for (one_file_system, is_there) in [(false, true), (true, false), (false, true)] {
        let options =
            ScanOptions { one_file_system, mode: gristmill_dedup::ScanMode::Walk, ..ScanOptions::default() };
        bed.scan_all(std::slice::from_ref(&root), &options);
        let catalog = bed.store.catalog();
        let known = catalog
            .known_entries(&catalog.root_folder(root.id).expect("its top"), true)
            .expect("its folders");
        let is_in = |(name, folder): &(OsString, KnownFolder)| name == mounted && !folder.excluded;
        assert_eq!(known.folders.iter().any(is_in), is_there, "{mounted}");
    }
}
