//! Tests the lists of empty files, empty folders and broken links.

use std::fs;
use std::path::{Path, PathBuf};

use gristmill_dedup::{Filter, NamedFiles, ScanMode, ScanOptions, lists};
use gristmill_store::catalog::{FolderRef, Listing, ListingStatus};

use crate::fixture::{Fixture, mode, write};

fn empty_folders(fixture: &Fixture) -> Vec<(String, u64)> {
    let folders = lists::empty_folders(&fixture.store, &[]).expect("folders");
    folders.into_iter().map(|folder| (folder.path.display().to_string(), folder.folders)).collect()
}

fn empty_files(fixture: &Fixture) -> Vec<PathBuf> {
    lists::empty_files(&fixture.store, &[]).expect("files").into_iter().map(|file| file.path).collect()
}

fn broken_links(fixture: &Fixture) -> Vec<(String, String)> {
    let links = lists::broken_links(&fixture.store, &[]).expect("links");
    links.into_iter().map(|link| (link.path.display().to_string(), link.target.display().to_string())).collect()
}

fn link(path: &str, target: &str) -> (String, String) {
    (path.to_owned(), target.to_owned())
}

fn make_folders(fixture: &Fixture, paths: &[&str]) {
    paths.iter().for_each(|path| fs::create_dir_all(fixture.at(path)).expect("a folder"));
}

#[test]
fn empty_files_are_present_files_without_content() {
    let fixture = Fixture::of(&[("b/empty", 1, 0), ("a", 1, 0), ("c", 1, 1), ("gone", 1, 0), ("out/d", 1, 0)]);
    fixture.scan();
    assert_eq!(empty_files(&fixture), ["a", "b/empty", "gone", "out/d"].map(PathBuf::from));
    fixture.remove("gone");
    fixture.write("a", b"x");
    let filter = options!(Filter { exclude: vec!["out".into()] });
    fixture.scan_with(&options!(ScanOptions { filter }));
    assert_eq!(empty_files(&fixture), [PathBuf::from("b/empty")]);
    let filtered = lists::list_coverage(&fixture.store, &[]).expect("coverage").filtered_roots;
    assert_eq!(filtered, std::slice::from_ref(&fixture.root.path));
    assert_eq!(lists::empty_files(&fixture.store, &[fixture.root.id + 1]).expect("files"), []);
}

/// Each folder has one property, and is listed or not.
#[test]
fn empty_folders_contain_nothing_but_empty_folders() {
    let fixture =
        Fixture::of(&[("file/f", 1, 5), ("empty file/f", 1, 0), ("excluded/f.tmp", 1, 5), ("mixed/g/f", 1, 5)]);
    make_folders(&fixture, &["empty", "deep/a/b", "deep/c", "mixed/a/b", "link", "socket", "follow", "hidden"]);
    make_folders(&fixture, &["around/in", "around/other", "excluded folder/out", "unreadable/a"]);
    fixture.symlink("nowhere", "link/l");
    drop(std::os::unix::net::UnixListener::bind(fixture.at("socket/s")).expect("a socket"));
    fixture.register(&fixture.at("around/in"));
    let roots = fixture.store.roots().list().expect("roots");
    let filter = options!(Filter { exclude: vec!["*.tmp".into(), "out".into()] });
    fixture.scan_all(&roots, &options!(ScanOptions { filter }));
    let failed = FolderRef { root: fixture.root.id, id: None, path: "unreadable".into() };
    let listing = Listing { status: ListingStatus::Failed("denied".into()), ..Listing::new(1, failed) };
    fixture.store.catalog().record(vec![listing]).expect("recorded");
    let expected = [("around/other", 1), ("deep", 4), ("empty", 1), ("follow", 1), ("hidden", 1), ("mixed/a", 2)];
    let mut expected: Vec<_> = expected.map(|(path, folders)| (path.to_owned(), folders)).into();
    expected.push(("unreadable/a".into(), 1));
    assert_eq!(empty_folders(&fixture), expected);
    let coverage = lists::list_coverage(&fixture.store, &[]).expect("coverage");
    assert_eq!((coverage.complete, coverage.coverage.unreadable_folders, coverage.unlisted_folders), (false, 1, 0));

    // Contents come and go.
    fixture.write("deep/a/b/f", b"x");
    fixture.remove("mixed/g/f");
    fixture.remove("link/l");
    fixture.remove("empty");
    fixture.scan_all(&roots, &ScanOptions::default());
    let expected = ["around/other", "deep/c", "excluded folder", "follow", "hidden", "link", "mixed", "unreadable"];
    assert_eq!(empty_folders(&fixture).into_iter().map(|(path, _)| path).collect::<Vec<_>>(), expected);
    assert!(lists::list_coverage(&fixture.store, &[]).expect("coverage").complete);
}

#[test]
fn empty_folders_of_a_root_of_named_files_are_unknown() {
    let fixture = Fixture::of(&[("f/a", 1, 5), ("f/g/b", 1, 5)]);
    let scan = |name: &str| {
        let mut named = NamedFiles::default();
        named.add(&fixture.at(name));
        fixture.scan_all(&[], &options!(ScanOptions { named: Some(named) }));
    };
    scan("f/a");
    scan("f/g/b");
    for name in ["f/a", "f/g/b"] {
        fixture.remove(name);
        scan(name);
    }
    assert_eq!(empty_folders(&fixture), []);
    let coverage = lists::list_coverage(&fixture.store, &[]).expect("coverage");
    assert_eq!((coverage.complete, coverage.unlisted_folders), (false, 3), "{coverage:?}");
    fixture.scan();
    assert_eq!(empty_folders(&fixture), [("f".to_owned(), 2)]);
    // A named file in a folder that was removed: its other contents are unknown.
    fixture.remove("f");
    fixture.scan_with(&options!(ScanOptions { allow_empty: true }));
    fixture.write("f/a", b"x");
    scan("f/a");
    fixture.remove("f/a");
    fixture.write("x", b"x");
    scan("f/a");
    assert_eq!(empty_folders(&fixture), []);
    assert_eq!(lists::list_coverage(&fixture.store, &[]).expect("coverage").unlisted_folders, 1);
}

/// A followed link to an empty folder is not a folder.
#[test]
fn followed_link_is_no_empty_folder() {
    let fixture = Fixture::new();
    fixture.store.roots().follow_links(fixture.root.id, true).expect("a setting");
    fs::create_dir_all(fixture.outside("o/p")).expect("a folder");
    make_folders(&fixture, &["f/empty"]);
    fixture.symlink(fixture.outside("o"), "f/l");
    let roots = fixture.store.roots().list().expect("roots");
    for _ in 0..2 {
        fixture.scan_all(&roots, &ScanOptions::default());
        assert_eq!(empty_folders(&fixture), [("f/empty".to_owned(), 1)]);
        assert!(lists::list_coverage(&fixture.store, &[]).expect("coverage").complete);
    }
}

#[test]
fn broken_links_follow_the_changes_of_their_folders() {
    let fixture = Fixture::of(&[("a", 1, 5), ("f/b", 1, 5)]);
    for (target, name) in
        [("a", "good"), ("nothing", "n"), ("../nothing/at all", "f/n"), ("loop", "f/loop"), ("a/x", "x")]
    {
        fixture.symlink(target, name);
    }
    let all = [link("f/loop", "loop"), link("f/n", "../nothing/at all"), link("n", "nothing"), link("x", "a/x")];
    for _ in 0..2 {
        fixture.scan();
        assert_eq!(broken_links(&fixture), all);
    }
    // Refresh looks for no new links.
    fixture.symlink("new", "f/new");
    fixture.remove_link("n");
    fixture.write("nothing/at all", b"x");
    fixture.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(broken_links(&fixture), [link("f/loop", "loop"), link("x", "a/x")]);
    fixture.scan();
    assert_eq!(broken_links(&fixture), [link("f/loop", "loop"), link("f/new", "new"), link("x", "a/x")]);
    let filter = options!(Filter { exclude: vec!["x".into()] });
    fixture.scan_with(&options!(ScanOptions { filter }));
    assert_eq!(broken_links(&fixture), [link("f/loop", "loop"), link("f/new", "new")]);
    for filter in [options!(Filter { exclude: vec!["f".into()] }), options!(Filter { max_depth: Some(1) })] {
        fixture.scan_with(&options!(ScanOptions { filter }));
        assert_eq!(broken_links(&fixture), [link("x", "a/x")]);
    }
    // Rows of a new root inside move to it, and are deleted with it.
    fixture.scan();
    let inner = fixture.register(&fixture.at("f"));
    assert_eq!(broken_links(&fixture), [link("loop", "loop"), link("new", "new"), link("x", "a/x")]);
    fixture.store.roots().remove(inner.id).expect("removed");
    assert_eq!(broken_links(&fixture), [link("x", "a/x")]);
    fixture.scan();
    assert_eq!(broken_links(&fixture).len(), 3);
    fixture.remove("f");
    fixture.scan();
    assert_eq!(broken_links(&fixture), [link("x", "a/x")]);
}

#[test]
fn broken_links_are_found_in_large_folders_and_with_any_name() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::new();
    for number in 0..2_000 {
        fixture.symlink("nowhere", &format!("{number}"));
    }
    let strange = Path::new(std::ffi::OsStr::from_bytes(b"caf\xe9\x1a/x"));
    fs::create_dir(fixture.at(strange).parent().expect("a folder")).expect("a folder");
    std::os::unix::fs::symlink(strange, fixture.at(strange)).expect("a link");
    write(&fixture.at("file"), b"x");
    for _ in 0..2 {
        fixture.scan();
        let links = lists::broken_links(&fixture.store, &[]).expect("links");
        assert_eq!(links.len(), 2_001);
        assert!(links.iter().any(|link| link.path == strange && link.target == strange));
    }
}

#[test]
fn broken_links_are_listed_in_roots_that_follow_links() {
    let fixture = Fixture::of(&[("a", 1, 5)]);
    fixture.store.roots().follow_links(fixture.root.id, true).expect("a setting");
    write(&fixture.outside("o/b"), b"x");
    std::os::unix::fs::symlink("nowhere", fixture.outside("o/l")).expect("a link");
    fixture.symlink(fixture.outside("o"), "o");
    fixture.symlink("nothing", "n");
    let roots = fixture.store.roots().list().expect("roots");
    for _ in 0..2 {
        fixture.scan_all(&roots, &ScanOptions::default());
        assert_eq!(broken_links(&fixture), [link("n", "nothing"), link("o/l", "nowhere")]);
    }
}
