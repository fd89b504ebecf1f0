//! Tests scans of named files: what becomes of each, and that all other rows stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gristmill_dedup::{Coverage, Filter, NamedFiles, ScanMode, ScanOptions, ScanSummary};
use gristmill_store::catalog::{FolderRef, KnownFolder};
use gristmill_store::roots::Root;

use crate::fixture::{Fixture, Mounted, bytes, rewrite_secretly, write};
use crate::stop_and_resume::{stop_roots_when, throttled};

fn named(paths: &[PathBuf]) -> ScanOptions {
    let mut named = NamedFiles::default();
    paths.iter().for_each(|path| named.add(path));
    options!(ScanOptions { named: Some(named) })
}

/// Scans only these files, named by paths in the tree.
#[track_caller]
fn scan_files(fixture: &Fixture, paths: &[&str]) -> ScanSummary {
    fixture.scan_all(&[], &files(fixture, paths))
}

fn files(fixture: &Fixture, paths: &[&str]) -> ScanOptions {
    named(&paths.iter().map(|path| fixture.at(path)).collect::<Vec<_>>())
}

/// What the catalog has of every file and folder of a root.
fn snapshot(fixture: &Fixture, root: &Root) -> BTreeMap<PathBuf, String> {
    let catalog = fixture.store.catalog();
    let mut next = vec![catalog.root_folder(root.id).expect("its root folder")];
    let mut rows = BTreeMap::new();
    while let Some(folder) = next.pop() {
        let known = catalog.known_entries(&folder, true).expect("its entries");
        rows.extend(known.files.into_iter().map(|(name, file)| (folder.path.join(name), format!("{file:?}"))));
        for (name, inner) in known.folders {
            let path = folder.path.join(name);
            // The digest of the last listing is replaced wherever a named file changes a row.
            rows.insert(path.clone(), format!("{:?}", KnownFolder { digest: None, ..inner }));
            next.push(FolderRef { root: root.id, id: Some(inner.id), path });
        }
    }
    rows
}

fn coverage_of(fixture: &Fixture) -> (bool, usize, Vec<u64>) {
    let Coverage { complete, unfinished_roots, partly_scanned, .. } = fixture.coverage();
    (complete, unfinished_roots.len(), partly_scanned.into_iter().map(|(_, files)| files).collect())
}

/// What becomes of a named entry of a root that was scanned completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unchanged,
    New,
    Changed,
    Missing,
    Returned,
    Skipped(&'static str),
    Error(&'static str),
    /// Marked missing, and an error.
    MissingError(&'static str),
    /// Marked missing, and skipped.
    MissingSkipped(&'static str),
}

use Outcome::{Changed, Error, Missing, MissingError, MissingSkipped, New, Returned, Skipped, Unchanged};

const TREE: [(&str, u64, usize); 7] = [
    ("a", 1, 50),
    ("b", 2, 50),
    ("f/a", 1, 50),
    ("f/c", 3, 60),
    ("f/g/d", 4, 70),
    ("gone", 5, 80),
    ("gone folder/x", 6, 90),
];

type Edit = fn(&Fixture);

#[test]
fn each_state_of_a_named_file_has_one_outcome_and_leaves_other_rows() {
    let cases: [(&str, Edit, &str, Outcome); 25] = [
        ("unchanged", |_| (), "a", Unchanged),
        ("unchanged in a folder", |_| (), "f/g/d", Unchanged),
        ("changed", |fixture| fixture.write("f/c", &bytes(9, 61)), "f/c", Changed),
        ("changed in secret", |fixture| rewrite_secretly(&fixture.at("b"), &bytes(1, 50)), "b", Changed),
        ("new", |fixture| fixture.write("n", &bytes(1, 50)), "n", New),
        ("new in a new folder", |fixture| fixture.write("new/er/n", &bytes(1, 50)), "new/er/n", New),
        ("removed", |fixture| fixture.remove("f/c"), "f/c", Missing),
        ("missing already", |_| (), "gone", Unchanged),
        ("returned", |fixture| fixture.write("gone", &bytes(5, 80)), "gone", Returned),
        ("returned in a removed folder", |f| f.write("gone folder/x", &bytes(6, 90)), "gone folder/x", Returned),
        ("new in a removed folder", |f| f.write("gone folder/y", &bytes(6, 90)), "gone folder/y", New),
        ("new below a removed folder", |f| f.write("gone folder/z/y", &bytes(6, 90)), "gone folder/z/y", New),
        ("unknown", |_| (), "no", Error("tree/no: no such file")),
        ("in a removed folder", |_| (), "gone folder/x", Error("gone folder/x: no such file: its folder does not")),
        ("in a file", |_| (), "a/x", Error("tree/a/x: no such file")),
        ("a folder", |_| (), "f", Error("tree/f: is a folder; pass it as an argument")),
        ("its parent", |_| (), "f/..", Error("f/..: is a folder")),
        (
            "a folder instead of a file",
            |fixture| {
                fixture.remove("a");
                fixture.write("a/x", b"x");
            },
            "a",
            MissingError("tree/a: is a folder"),
        ),
        ("a link", |fixture| fixture.symlink("b", "l"), "l", Skipped("tree/l: a symbolic link; --follow-links")),
        ("a broken link", |fixture| fixture.symlink("nothing", "l"), "l", Skipped("tree/l: a symbolic link")),
        (
            "a file through a link",
            |fixture| {
                fixture.symlink("f", "l");
                fixture.write("f/c", &bytes(9, 61));
            },
            "l/c",
            Changed,
        ),
        (
            "a socket",
            |fixture| drop(std::os::unix::net::UnixListener::bind(fixture.at("s")).expect("a socket")),
            "s",
            Skipped("tree/s: a pipe, socket or device"),
        ),
        (
            "a socket instead of a file",
            |fixture| {
                fixture.remove("b");
                drop(std::os::unix::net::UnixListener::bind(fixture.at("b")).expect("a socket"));
            },
            "b",
            MissingSkipped("tree/b: a pipe, socket or device"),
        ),
        (
            "a link instead of a file",
            |fixture| {
                fixture.remove("b");
                fixture.symlink("a", "b");
            },
            "b",
            MissingSkipped("tree/b: a symbolic link; --follow-links"),
        ),
        ("by another way", |fixture| fixture.write("f/c", &bytes(9, 61)), "f/g/../c", Changed),
    ];
    for (what, edit, name, outcome) in cases {
        let fixture = Fixture::of(&TREE);
        fixture.scan();
        fixture.remove("gone");
        fixture.remove("gone folder");
        fixture.scan();
        edit(&fixture);
        // None of these is named, so none of it may be noticed.
        fixture.write("f/new", &bytes(1, 50));
        fixture.remove("f/a");
        fixture.write("f/g/other", &bytes(8, 50));
        let before = snapshot(&fixture, &fixture.root);
        let summary = scan_files(&fixture, &[name, name]);
        let after = snapshot(&fixture, &fixture.root);

        let count = |is_one: bool| u64::from(is_one);
        let found = (summary.new_files, summary.changed_files, summary.removed_files, summary.returned_files);
        let is_missing = matches!(outcome, Missing | MissingError(_) | MissingSkipped(_));
        let expected = [outcome == New, outcome == Changed, is_missing, outcome == Returned].map(count);
        assert_eq!(found, expected.into(), "{what}: {summary:?}");
        let error = if let Error(text) | MissingError(text) = outcome { Some(text) } else { None };
        let skipped = if let Skipped(text) | MissingSkipped(text) = outcome { Some(text) } else { None };
        for (number, samples, text) in [
            (summary.errors, &summary.error_samples, error),
            (summary.skipped_files, &summary.skipped_samples, skipped),
        ] {
            assert_eq!(number, count(text.is_some()), "{what}: {summary:?}");
            assert!(text.is_none_or(|text| samples.iter().any(|sample| sample.contains(text))), "{what}: {samples:?}");
        }
        assert_eq!((summary.named_files, summary.interrupted), (1, false), "{what}: {summary:?}");

        let real = fs::canonicalize(fixture.at(name).parent().expect("a folder"));
        let real = real.map(|folder| folder.join(fixture.at(name).file_name().unwrap_or_default()));
        let real = real.unwrap_or_else(|_| fixture.at(name));
        let is_above = |path: &Path| real.starts_with(fixture.at(path));
        let changed = before.iter().filter(|(path, row)| after.get(*path) != Some(row));
        let changed: Vec<_> = changed.filter(|(path, _)| !is_above(path)).collect();
        assert_eq!(changed, [], "{what}: rows of other entries changed");
        let is_added = |path: &&PathBuf| !before.contains_key(*path) && !is_above(path);
        assert_eq!(after.keys().find(is_added), None, "{what}");
        // Everything that the catalog has is compared, and the root is as complete as it was.
        assert_eq!(coverage_of(&fixture), (true, 0, vec![]), "{what}: {:?}", fixture.coverage());

        fixture.scan();
        assert_eq!(fixture.present(), on_disk(&fixture), "{what}: a complete scan finds everything");
    }
}

#[test]
fn folder_that_a_named_file_brought_back_is_missing_after_its_next_removal() {
    let fixture = Fixture::of(&[("f/x", 1, 50), ("other", 2, 50)]);
    fixture.scan();
    fixture.remove("f");
    fixture.scan();
    fixture.write("f/x", &bytes(1, 50));
    assert_eq!(scan_files(&fixture, &["f/x"]).returned_files, 1);
    fixture.remove("f");
    assert_eq!(fixture.scan().removed_files, 1);
    fixture.assert_files(&["other"]);
}

/// The regular files of the tree.
fn on_disk(fixture: &Fixture) -> BTreeSet<PathBuf> {
    let mut next = vec![PathBuf::new()];
    let mut files = BTreeSet::new();
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(fixture.at(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            match entry.file_type().expect("its type") {
                kind if kind.is_dir() => next.push(path),
                kind if kind.is_file() => drop(files.insert(path)),
                _ => {}
            }
        }
    }
    files
}

#[test]
fn named_files_are_compared_with_all_files_of_the_catalog() {
    let fixture = Fixture::of(&[("a", 1, 50), ("large", 2, 300_000)]);
    fixture.scan();
    let other = fixture.register(&fixture.outside("other"));
    for (name, seed, size) in [("x", 1, 50), ("y", 1, 50), ("large", 2, 300_000), ("large too", 2, 300_000)] {
        write(&other.path.join(name), &bytes(seed, size));
    }
    let summary = fixture.scan_all(&[], &named(&[other.path.join("x"), other.path.join("large")]));
    assert_eq!((summary.new_files, summary.duplicate_groups), (2, 2), "{summary:?}");
    let groups = [&["other/x", "tree/a"][..], &["other/large", "tree/large"]];
    assert_eq!(fixture.groups_under(&fixture.outside("")), crate::fixture::sets(&groups));
    assert_eq!(coverage_of(&fixture), (false, 1, vec![2]));
    let reasons = fixture.coverage().reasons();
    assert_eq!(reasons, [format!("only 2 named files of {} have been scanned", other.path.display())]);
    // The other root stays settled, so a rescan reads nothing.
    assert_eq!(fixture.scan().read_files, 0);
}

#[test]
fn root_of_named_files_is_complete_only_after_a_complete_scan() {
    let fixture = Fixture::of(&[("a", 1, 50), ("f/b", 1, 50), ("f/c", 1, 50)]);
    let root = || fixture.store.roots().list().expect("roots").remove(0);
    scan_files(&fixture, &["f/b"]);
    fixture.assert_files(&["f/b"]);
    for mode in [ScanMode::Refresh, ScanMode::Hash] {
        fixture.scan_with(&options!(ScanOptions { mode }));
        assert_eq!(coverage_of(&fixture), (false, 1, vec![1]), "{mode:?}");
        assert_eq!((root().last_scanned_at, root().files), (None, Some(1)));
    }
    scan_files(&fixture, &["a"]);
    assert_eq!(coverage_of(&fixture), (false, 1, vec![2]));
    fixture.assert_groups(&[&["a", "f/b"]]);
    fixture.scan();
    assert_eq!(coverage_of(&fixture), (true, 0, vec![]));
    let scanned_at = root().last_scanned_at;
    fixture.write("f/b", &bytes(2, 50));
    let summary = scan_files(&fixture, &["f/b"]);
    assert_eq!((summary.files, summary.folders, summary.changed_files), (1, 1, 1), "{summary:?}");
    assert_eq!((root().last_scanned_at, root().files), (scanned_at, Some(3)));
    fixture.assert_groups(&[&["a", "f/c"]]);
}

#[test]
fn interrupted_scan_of_a_root_stays_unfinished_after_a_scan_of_named_files() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    let root = [fixture.root.clone()];
    stop_roots_when(&fixture, &root, &throttled(), |progress| progress.files >= 2, || ());
    scan_files(&fixture, &["a"]);
    assert_eq!(coverage_of(&fixture), (false, 1, vec![]));
    let summary = fixture.scan_with(&throttled_off());
    assert!(summary.resumed, "{summary:?}");
    assert!(fixture.coverage().complete);
}

fn throttled_off() -> ScanOptions {
    options!(ScanOptions { workers: Some(2) })
}

/// Only a scan of the same names resumes one that was stopped; another one replaces it.
#[test]
fn stopped_scan_of_named_files_is_resumed_by_the_same_names() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    let stop = |paths: &[&str]| {
        let options = options!(ScanOptions { io_limit: Some(1); ..files(&fixture, paths) });
        stop_roots_when(&fixture, &[], &options, |progress| progress.files >= 2, || ())
    };
    stop(&["a", "b"]);
    assert_eq!(coverage_of(&fixture), (false, 1, vec![]));
    assert!(scan_files(&fixture, &["b", "a", "b"]).resumed);
    fixture.assert_groups(&[&["a", "b"]]);
    stop(&["a", "c"]);
    assert!(!scan_files(&fixture, &["a", "b"]).resumed);
    assert!(!scan_files(&fixture, &["a", "c"]).resumed);
    stop(&["a", "b"]);
    assert!(!fixture.scan_all(&[], &options!(ScanOptions { restart: true; ..files(&fixture, &["a", "b"]) })).resumed);
    assert!(!fixture.scan().resumed);
    assert!(fixture.coverage().complete);
}

#[test]
fn filters_apply_to_named_files_and_change_no_row() {
    let fixture =
        Fixture::of(&[("a.x", 1, 50), ("b.y", 1, 50), ("f/c.x", 1, 50), ("f/g/d.x", 1, 5_000), (".h/e.x", 1, 50)]);
    fixture.write(".gitignore", b"a.*\n");
    fixture.write("f/.gitignore", b"!a.*\nc.*\n");
    const ALL: [&str; 5] = ["a.x", "b.y", "f/c.x", "f/g/d.x", ".h/e.x"];
    let cases: [(Filter, &[&str]); 9] = [
        (options!(Filter { exclude: vec!["f".into()] }), &["a.x", "b.y", ".h/e.x"]),
        (options!(Filter { exclude: vec!["/g".into(), "f/g".into()] }), &["a.x", "b.y", "f/c.x", ".h/e.x"]),
        (options!(Filter { include: vec!["*.y".into()] }), &["b.y"]),
        (options!(Filter { include: vec!["*.Y".into()], ignore_case: true }), &["b.y"]),
        (options!(Filter { min_size: Some(100) }), &["f/g/d.x"]),
        (options!(Filter { skip_hidden: true }), &["a.x", "b.y", "f/c.x", "f/g/d.x"]),
        (options!(Filter { gitignore: true }), &["b.y", "f/g/d.x", ".h/e.x"]),
        (options!(Filter { max_depth: Some(1) }), &["a.x", "b.y"]),
        (options!(Filter { max_depth: Some(2) }), &["a.x", "b.y", "f/c.x", ".h/e.x"]),
    ];
    for (filter, included) in cases {
        let fixture_options = options!(ScanOptions { filter: filter.clone(); ..files(&fixture, &ALL) });
        let summary = fixture.scan_all(&[], &fixture_options);
        let left = (ALL.len() - included.len()) as u64;
        assert_eq!(
            (summary.files, summary.skipped_files, summary.errors),
            (included.len() as u64, left, 0),
            "{filter:?}"
        );
        assert!(summary.skipped_samples.iter().all(|sample| sample.ends_with(": excluded by the filters")));
        fixture.assert_files(included);
        // Known files that the filters exclude are not marked as excluded.
        scan_files(&fixture, &ALL);
        let before = snapshot(&fixture, &fixture.root);
        let again = fixture.scan_all(&[], &fixture_options);
        assert_eq!((again.excluded_files, again.skipped_files), (0, left), "{filter:?}");
        assert_eq!(snapshot(&fixture, &fixture.root), before, "{filter:?}");
        fixture.store.catalog().record(forget(&fixture)).expect("recorded");
        let year_2100 = gristmill_store::UtcTime::from_micros(4_102_444_800_000_000);
        fixture.store.catalog().purge(true, true, year_2100).expect("purged");
    }
}

/// A listing that marks all files of the tree as missing.
fn forget(fixture: &Fixture) -> Vec<gristmill_store::catalog::Listing> {
    let folder = fixture.store.catalog().root_folder(fixture.root.id).expect("a folder");
    let mut listing = gristmill_store::catalog::Listing::new(1, folder);
    listing.missing_files = fixture.files().values().map(|file| file.id).collect();
    listing.missing_folders = vec!["f".into(), ".h".into()];
    vec![listing]
}

/// The filters of the last complete scan are still those of the root.
#[test]
fn named_file_that_filters_excluded_is_included_again() {
    let fixture = Fixture::of(&[("a", 1, 50), ("out/b", 1, 50), ("out/c", 1, 50)]);
    fixture.scan();
    let filter = options!(Filter { exclude: vec!["out".into()] });
    fixture.scan_with(&options!(ScanOptions { filter: filter }));
    let summary = scan_files(&fixture, &["out/b"]);
    assert_eq!((summary.included_files, summary.read_files), (1, 0), "{summary:?}");
    fixture.assert_files(&["a", "out/b"]);
    fixture.assert_groups(&[&["a", "out/b"]]);
    let root = fixture.store.roots().find(&fixture.root.path).expect("roots").expect("the root");
    assert!(root.filters.is_some_and(|filters| filters.contains("out")));
}

#[test]
fn links_are_followed_on_request() {
    let fixture = Fixture::of(&[("a", 1, 50), ("f/b", 1, 50)]);
    fixture.store.roots().follow_links(fixture.root.id, true).expect("a setting");
    write(&fixture.outside("o/c"), &bytes(1, 50));
    for (target, name) in [("f/b", "to b"), ("../o/c", "to c"), ("../o", "to o"), ("nothing", "n"), ("loop", "loop")] {
        fixture.symlink(target, name);
    }
    let summary = scan_files(&fixture, &["to b", "to c", "to o", "n", "loop"]);
    fixture.assert_files(&["f/b", "to c"]);
    fixture.assert_groups(&[&["f/b", "to c"]]);
    assert_eq!((summary.files, summary.errors, summary.skipped_files), (2, 3, 0), "{summary:?}");
    for text in ["to o: a symbolic link to a folder", "n: broken symbolic link", "loop: cannot follow symbolic link"] {
        assert!(summary.error_samples.iter().any(|sample| sample.contains(text)), "{text}: {summary:?}");
    }
    // The target and its link are one file.
    assert_eq!(scan_files(&fixture, &["to b", "f/b"]).files, 1);
    let again = fixture.scan();
    assert_eq!(again.files, 4, "{again:?}");
    fixture.assert_files(&["a", "f/b", "to c", "to o/c"]);
}

#[test]
fn named_files_of_nested_roots_belong_to_the_innermost_one() {
    let fixture = Fixture::of(&[("a", 1, 50), ("in/b", 1, 50), ("in/er/c", 1, 50), ("d", 2, 50)]);
    let inner = fixture.register(&fixture.at("in"));
    let innermost = fixture.register(&fixture.at("in/er"));
    let summary = scan_files(&fixture, &["a", "in/b", "in/er/c", "in/er/no"]);
    assert_eq!((summary.roots.len(), summary.files, summary.errors), (3, 3, 1), "{summary:?}");
    fixture.assert_files(&["a"]);
    for (root, file) in [(&inner, "b"), (&innermost, "c")] {
        assert_eq!(fixture.files_of(root.id).into_keys().collect::<Vec<_>>(), [PathBuf::from(file)]);
    }
    fixture.assert_groups(&[&["a", "in/b", "in/er/c"]]);
    // A name in a root that is scanned completely is part of that scan.
    let options = files(&fixture, &["a", "in/b", "in/no"]);
    let summary = fixture.scan_all(std::slice::from_ref(&inner), &options);
    assert_eq!((summary.errors, summary.named_files), (1, 3), "{summary:?}");
    assert!(summary.error_samples[0].ends_with("in/no: no such file"), "{summary:?}");
    assert_eq!(coverage_of(&fixture), (false, 1, vec![1]));
}

#[test]
fn names_of_any_bytes_and_long_lists_are_scanned() {
    let fixture = Fixture::new();
    let strange = [&b"caf\xe9"[..], b"a\nb", b"\x1b[2J", b" "].map(|name| PathBuf::from(OsStr::from_bytes(name)));
    strange.iter().for_each(|name| fixture.write(name, &bytes(1, 50)));
    let mut names: Vec<PathBuf> = strange.iter().map(|name| fixture.at(name)).collect();
    for number in 0..3_000 {
        let name = format!("d{}/{number}", number % 7);
        fixture.write(&name, &bytes(number % 50, 60));
        names.push(fixture.at(&name));
    }
    fixture.write("unnamed", &bytes(1, 50));
    names.push(fixture.at("no"));
    for workers in [1, 16] {
        let summary = fixture.scan_all(&[], &options!(ScanOptions { workers: Some(workers); ..named(&names) }));
        assert_eq!((summary.files, summary.named_files, summary.errors), (3_004, 3_005, 1), "{summary:?}");
        assert_eq!(summary.duplicate_groups, 51);
    }
    assert!(!fixture.present().contains(Path::new("unnamed")));
}

#[test]
fn nothing_is_scanned_without_names_or_roots() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let summary = fixture.scan_all(&[], &named(&[]));
    assert_eq!((summary.roots.len(), summary.errors, summary.named_files), (0, 0, 0));
    let summary = fixture.scan_all(&[], &named(&["/".into(), fixture.outside("x"), fixture.outside("no/x")]));
    assert_eq!((summary.roots.len(), summary.errors, summary.named_files), (0, 3, 3), "{summary:?}");
    for text in ["/: is a folder", "x: no root contains it", "no/x: no such file: its folder does not exist"] {
        assert!(
            summary.error_samples.iter().any(|sample| sample.ends_with(text) || sample.starts_with(text)),
            "{text}"
        );
    }
    for mode in [ScanMode::Hash, ScanMode::Refresh] {
        let options = options!(ScanOptions { mode; ..files(&fixture, &["a"]) });
        let error = fixture.try_scan(&[], &options, &Arc::default()).expect_err("refused");
        assert!(error.is_user_error() && error.to_string().contains("cannot be named"), "{error}");
    }
}

#[test]
fn named_files_are_walked_without_being_read() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    let summary =
        fixture.scan_all(&[], &options!(ScanOptions { mode: ScanMode::Walk; ..files(&fixture, &["a", "b"]) }));
    assert_eq!((summary.new_files, summary.read_files), (2, 0), "{summary:?}");
    assert_eq!(fixture.coverage().unread_files, 2);
    fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Hash }));
    fixture.assert_groups(&[&["a", "b"]]);
}

/// A file that is not named is read only for comparison: its row is unchanged if it has changed.
#[test]
fn changed_file_that_is_not_named_is_left_to_a_complete_scan() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 2, 51)]);
    fixture.scan();
    fixture.write("b", &bytes(3, 50));
    fixture.write("c", &bytes(4, 51));
    let before = fixture.row("b").stat;
    let summary = scan_files(&fixture, &["c"]);
    assert_eq!((summary.uncompared_files, summary.changed_files), (1, 0), "{summary:?}");
    assert_eq!(fixture.row("b").stat, before);
    assert!(!fixture.coverage().complete, "b was not compared");
    fixture.scan();
    assert!(fixture.coverage().complete);
}

/// A file that could not be read is tried again if it is named.
#[test]
fn unreadable_file_is_tried_again_only_if_it_is_named() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 60)]);
    fs::set_permissions(fixture.at("b"), fs::Permissions::from_mode(0o000)).expect("changed");
    if fs::read(fixture.at("b")).is_ok() {
        eprintln!("NOT EXERCISED, because this user can read every file");
        return;
    }
    assert_eq!(fixture.scan().errors, 1);
    assert_eq!(scan_files(&fixture, &["c"]).errors, 0);
    assert_eq!(scan_files(&fixture, &["b"]).errors, 1);
    fs::set_permissions(fixture.at("b"), fs::Permissions::from_mode(0o600)).expect("changed");
    scan_files(&fixture, &["b"]);
    fixture.assert_groups(&[&["a", "b"]]);
}

#[test]
fn no_named_file_of_an_unmounted_disk_is_marked_missing() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let Some(mounted) = Mounted::new(&fixture.at("disk")) else { return };
    fixture.write("disk/b", &bytes(1, 50));
    fixture.write("disk/f/c", &bytes(1, 50));
    let other = fixture.outside("other");
    let Some(other_mounted) = Mounted::new(&other) else { return };
    write(&other.join("d"), &bytes(1, 50));
    let root = fixture.register(&other);
    fixture.scan_all(&[fixture.root.clone(), root.clone()], &ScanOptions::default());
    drop((mounted, other_mounted));
    let files_before = (fixture.files(), fixture.files_of(root.id));
    let summary = scan_files(&fixture, &["disk/b", "disk/f/c", "a"]);
    assert_eq!((summary.errors, summary.removed_files, summary.files), (2, 0, 1), "{summary:?}");
    assert!(summary.error_samples.iter().any(|sample| sample.contains("disk/b: not on the disk")), "{summary:?}");
    // A stray file on the disk below.
    fixture.write("disk/b", &bytes(2, 50));
    assert_eq!(scan_files(&fixture, &["disk/b"]).errors, 1);
    let error = fixture.try_scan(&[], &named(&[other.join("d")]), &Arc::default()).expect_err("refused");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    let is_same =
        |before: &BTreeMap<PathBuf, _>, after: &BTreeMap<PathBuf, _>| format!("{before:?}") == format!("{after:?}");
    assert!(is_same(&files_before.0, &fixture.files()) && is_same(&files_before.1, &fixture.files_of(root.id)));
}

/// Hard links in a root of which only files were named are still names of one file.
#[test]
fn hard_link_in_a_root_of_named_files_is_no_copy() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    fixture.scan();
    let other = fixture.register(&fixture.outside("other"));
    fs::hard_link(fixture.at("a"), other.path.join("link")).expect("a link");
    fixture.scan_all(&[], &named(&[other.path.join("link")]));
    assert_eq!(fixture.groups(), crate::fixture::sets(&[]));
}
