//! Tests nested roots, adjacent roots, and roots with several paths.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use gristmill_dedup::{ScanHandle, ScanMode, ScanOptions, roots};
use gristmill_store::catalog::{Algorithm, FolderRef, GroupQuery, Listing, Stat};
use gristmill_store::roots::{RemovedRoot, Root};

use crate::fixture::{Fixture, bytes, mode, set, sets, write};

fn paths(fixture: &Fixture, root: &Root) -> std::collections::BTreeSet<PathBuf> {
    fixture.files_of(root.id).into_keys().collect()
}

fn all(fixture: &Fixture) -> Vec<Root> {
    fixture.store.roots().list().expect("roots")
}

const FILES: [(&str, u64, usize); 5] =
    [("a", 1, 50), ("in/b", 1, 50), ("in/deep/c", 1, 50), ("in0", 2, 50), ("in/alone", 3, 51)];
const GROUP: &[&str] = &["a", "in/b", "in/deep/c"];

#[test]
fn root_registered_inside_another_takes_over_its_rows() {
    let fixture = Fixture::of(&FILES);
    fixture.scan();
    let before = fixture.files();
    let inner = fixture.register(&fixture.at("in"));
    // Before any scan, no file is lost and none is listed twice.
    assert_eq!(paths(&fixture, &inner), set(&["alone", "b", "deep/c"]));
    assert_eq!(fixture.present(), set(&["a", "in0"]));
    fixture.assert_groups(&[GROUP]);
    assert_eq!(fixture.files_of(inner.id)[&PathBuf::from("b")].id, before[&PathBuf::from("in/b")].id);
    let summary = fixture.scan_all(&[inner, fixture.root.clone()], &ScanOptions::default());
    assert_eq!(summary.roots.len(), 2);
    assert_eq!((summary.read_files, summary.new_files, summary.removed_files), (0, 0, 0), "{summary:?}");
    assert_eq!(summary.files, 5);
    fixture.assert_groups(&[GROUP]);
    let counts: Vec<_> = all(&fixture).iter().map(|root| root.files).collect();
    assert_eq!(counts, [Some(2), Some(3)]);
}

#[test]
fn outer_root_totals_exclude_a_new_inner_root() {
    let fixture = Fixture::of(&FILES);
    fixture.scan();
    let inner = fixture.register(&fixture.at("in"));
    fixture.assert_sound();
    fixture.scan_all(&[inner], &ScanOptions::default());
}

#[test]
fn outer_root_does_not_take_rows_of_an_inner_root() {
    let fixture = Fixture::of(&FILES);
    let around = fixture.register(&fixture.outside(""));
    let mut fixture = Fixture { root: around, ..fixture };
    let tree = all(&fixture).into_iter().find(|root| root.id != fixture.root.id).expect("the tree");
    fixture.scan_all(std::slice::from_ref(&tree), &ScanOptions::default());
    write(&fixture.at("beside"), &bytes(1, 50));
    // Nested roots are scanned too. The files of the store are excluded.
    let filter = options!(gristmill_dedup::Filter { exclude: vec!["t.db*".into()] });
    let summary = fixture.scan_with(&options!(ScanOptions { filter }));
    assert_eq!(summary.roots, [fixture.root.path.clone(), tree.path.clone()]);
    assert_eq!((summary.files, summary.new_files, summary.read_files), (6, 1, 1), "{summary:?}");
    assert_eq!(fixture.present(), set(&["beside"]));
    assert_eq!(fixture.groups(), sets(&[&["beside", "tree/a", "tree/in/b", "tree/in/deep/c"]]));
    fixture.root = tree;
    assert_eq!(fixture.present().len(), 5);
}

#[test]
fn three_nested_roots_each_keep_their_own_files() {
    let fixture = Fixture::of(&FILES);
    fixture.scan();
    // The innermost root is registered first, so the middle one takes over only its own files.
    let innermost = fixture.register(&fixture.at("in/deep"));
    let between = fixture.register(&fixture.at("in"));
    for _ in 0..2 {
        assert_eq!(paths(&fixture, &innermost), set(&["c"]));
        assert_eq!(paths(&fixture, &between), set(&["alone", "b"]));
        assert_eq!(fixture.present(), set(&["a", "in0"]));
        let summary = fixture.scan();
        assert_eq!((summary.files, summary.read_files, summary.new_files), (5, 0, 0), "{summary:?}");
        fixture.assert_groups(&[GROUP]);
    }
}

#[test]
fn folder_is_one_root_whatever_path_names_it() {
    let fixture = Fixture::of(&FILES);
    symlink(&fixture.root.path, fixture.outside("alias")).expect("a link");
    for word in ["alias", "alias/", "alias/in/..", "./tree", "tree/../alias"] {
        let path = roots::resolve(&fixture.outside(word)).expect("a folder");
        assert_eq!(fixture.store.roots().register(&path).expect("a root").id, fixture.root.id, "{word}");
        assert_eq!(roots::named(&fixture.store, &fixture.outside(word)).expect("a root").id, fixture.root.id);
    }
    assert_eq!(roots::named(&fixture.store, "tree".as_ref()).expect("a root").id, fixture.root.id);
    assert_eq!(all(&fixture).len(), 1);
    // A path through a link into the root is a path inside it, so no file is found twice.
    let inner = fixture.register(&fixture.outside("alias/in"));
    assert_eq!(inner.path, fixture.at("in"));
    assert_eq!(fixture.scan().files, 5);
    fixture.assert_groups(&[GROUP]);
}

#[test]
fn path_that_is_not_a_folder_is_refused_with_a_reason() {
    let fixture = Fixture::of(&FILES);
    for (word, reason) in [("nothing", "no such folder"), ("tree/a", "not a folder")] {
        let error = roots::resolve(&fixture.outside(word)).expect_err("no folder");
        assert!(error.is_user_error() && error.to_string().contains(reason), "{error}");
    }
    let error = roots::named(&fixture.store, "nothing".as_ref()).expect_err("no root").to_string();
    assert!(error.contains("not a root") && error.contains("tree"), "{error}");
}

#[test]
fn hard_links_in_two_roots_are_one_copy() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 2, 60)]);
    let other = fixture.register(&fixture.outside("other"));
    for name in ["a", "b"] {
        std::fs::hard_link(fixture.at(name), fixture.outside("other").join(name)).expect("a hard link");
    }
    write(&fixture.outside("other/copy"), &bytes(1, 50));
    let summary = fixture.scan_all(&all(&fixture), &ScanOptions::default());
    assert_eq!((summary.files, summary.read_files), (5, 2), "{summary:?}");
    let parent = fixture.outside("");
    let expected = sets(&[&["other/a", "other/copy", "tree/a"]]);
    assert_eq!(fixture.groups_under(&parent), expected);
    let group = fixture.group_list().remove(0);
    assert_eq!((group.copies, group.redundant), (2, 50));
    let across = GroupQuery::default().across_roots(true);
    assert_eq!(fixture.store.catalog().groups(&across).expect("groups").total, 1);
    let one = GroupQuery::default().roots(vec![fixture.root.id]);
    assert_eq!(fixture.store.catalog().groups(&one).expect("groups").total, 0);
    let one = GroupQuery::default().roots(vec![other.id]);
    assert_eq!(fixture.store.catalog().groups(&one).expect("groups").total, 1);
}

/// The other root's file had a unique size before.
#[test]
fn file_of_another_root_is_read_when_it_becomes_a_candidate() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let other = fixture.register(&fixture.outside("other"));
    write(&fixture.outside("other/b"), &bytes(1, 50));
    assert_eq!(fixture.scan().read_files, 0);
    let summary = fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
    assert_eq!((summary.read_files, summary.files), (2, 1));
    assert_eq!(fixture.row("a").algorithm, Some(Algorithm::Blake3));
    assert_eq!(fixture.group_list().len(), 1);
    // Files of a root that cannot be reached are not read.
    write(&fixture.outside("other/c"), &bytes(4, 70));
    fixture.write("d", &bytes(4, 70));
    fixture.scan_with(&mode(ScanMode::Walk));
    std::fs::rename(&fixture.root.path, fixture.outside("elsewhere")).expect("moved");
    let summary = fixture.scan_all(&[other], &ScanOptions::default());
    assert_eq!((summary.errors, summary.removed_files, summary.read_files), (0, 0, 1));
    assert_eq!(fixture.present(), set(&["a", "d"]));
}

#[test]
fn file_of_an_unreachable_root_is_read_when_the_root_returns() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let other = fixture.register(&fixture.outside("other"));
    write(&fixture.outside("other/b"), &bytes(1, 50));
    fixture.scan();
    std::fs::rename(&fixture.root.path, fixture.outside("elsewhere")).expect("moved");
    assert_eq!(fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default()).errors, 0);
    assert_eq!(fixture.group_list(), []);
    std::fs::rename(fixture.outside("elsewhere"), &fixture.root.path).expect("moved");
    fixture.scan_all(&all(&fixture), &ScanOptions::default());
    assert_eq!(fixture.groups_under(&fixture.outside("")), sets(&[&["other/b", "tree/a"]]));
}

#[test]
fn removing_a_root_deletes_only_its_rows() {
    let fixture = Fixture::of(&FILES);
    let other = fixture.register(&fixture.outside("other"));
    write(&fixture.outside("other/f/x"), &bytes(1, 50));
    write(&fixture.outside("other/y"), &bytes(1, 50));
    fixture.scan_all(&all(&fixture), &ScanOptions::default());
    assert_eq!(fixture.group_list()[0].members.len(), 5);
    let removed = fixture.store.roots().remove(other.id).expect("removed");
    assert_eq!(removed, RemovedRoot { folders: 2, files: 2 });
    assert!(fixture.outside("other/f/x").exists());
    fixture.assert_groups(&[GROUP]);
    assert_eq!(all(&fixture).len(), 1);
    fixture.assert_sound();
    assert!(fixture.store.roots().remove(other.id).is_err());
    // A root that is registered again is new.
    let other = fixture.register(&fixture.outside("other"));
    assert_eq!(fixture.scan_all(&[other], &ScanOptions::default()).new_files, 2);
}

#[test]
fn files_of_a_removed_inner_root_return_to_the_outer_root() {
    let fixture = Fixture::of(&FILES);
    let inner = fixture.register(&fixture.at("in"));
    fixture.scan();
    fixture.store.roots().remove(inner.id).expect("removed");
    assert_eq!(fixture.scan().new_files, 3);
    fixture.assert_groups(&[GROUP]);
    assert_eq!(fixture.present().len(), 5);
}

#[test]
fn missing_inner_root_does_not_stop_the_scan_of_the_outer_root() {
    let fixture = Fixture::of(&FILES);
    let inner = fixture.register(&fixture.at("in"));
    fixture.scan();
    fixture.move_away("in");
    fixture.write("new", &bytes(1, 50));
    let summary = fixture.scan();
    assert_eq!((summary.new_files, summary.removed_files, summary.errors), (1, 0, 1), "{summary:?}");
    assert!(summary.error_samples[0].contains("tree/in: cannot be read"), "{summary:?}");
    assert_eq!(paths(&fixture, &inner), set(&["alone", "b", "deep/c"]));
    fixture.move_back("in");
    let summary = fixture.scan();
    assert_eq!((summary.errors, summary.files, summary.read_files), (0, 6, 0), "{summary:?}");
    fixture.assert_groups(&[&["a", "in/b", "in/deep/c", "new"]]);
}

#[test]
fn root_path_may_be_invalid_utf8() {
    let fixture = Fixture::new();
    let name = std::ffi::OsStr::from_bytes(b"r\xf6\x1a\n");
    write(&fixture.outside(name).join("f/a"), &bytes(1, 50));
    write(&fixture.outside(name).join("b"), &bytes(1, 50));
    let root = fixture.register(&fixture.outside(name));
    assert_eq!(root.path, fixture.outside(name));
    fixture.scan_all(std::slice::from_ref(&root), &ScanOptions::default());
    assert_eq!(fixture.groups_under(&root.path), sets(&[&["b", "f/a"]]));
    let inner = fixture.register(&fixture.outside(name).join("f"));
    assert_eq!(paths(&fixture, &inner), set(&["a"]));
    let summary = fixture.scan_all(&[root], &ScanOptions::default());
    assert_eq!((summary.new_files, summary.read_files, summary.duplicate_groups), (0, 0, 1));
}

/// Runs `body` while a first scan waits one second for its second file.
fn while_scanning(fixture: &Fixture, body: impl FnOnce()) {
    let handle = Arc::new(ScanHandle::default());
    let slowly = options!(ScanOptions { io_limit: Some(100), workers: Some(1) });
    std::thread::scope(|scope| {
        let roots = std::slice::from_ref(&fixture.root);
        let scan = scope.spawn(|| fixture.try_scan(roots, &slowly, &handle).expect("a scan"));
        while handle.progress().bytes_read == 0 {
            assert!(!scan.is_finished(), "the scan ended before it read anything");
            std::thread::yield_now();
        }
        body();
        scan.join().expect("a scan");
    });
}

/// Two concurrent first scans: each finds a file once, together they find it twice.
#[test]
fn root_scanned_at_the_same_time_is_compared() {
    let fixture = Fixture::of(&[("slow", 1, 100), ("slow too", 1, 100), ("here", 2, 70)]);
    write(&fixture.outside("other/there"), &bytes(2, 70));
    let other = fixture.register(&fixture.outside("other"));
    while_scanning(&fixture, || {
        drop(fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default()));
    });
    let groups = sets(&[&["tree/slow", "tree/slow too"], &["tree/here", "other/there"]]);
    assert_eq!(fixture.groups_under(&fixture.outside("")), groups);
}

/// The first scan has chosen the files to read when the other one adds its files.
#[test]
fn files_recorded_by_another_scan_meanwhile_are_compared_by_the_next_scan() {
    for is_registered_before in [true, false] {
        let fixture = Fixture::of(&[("slow", 1, 100), ("slow too", 1, 100)]);
        for name in ["other/x", "other/y"] {
            write(&fixture.outside(name), &bytes(2, 70));
        }
        fixture.scan_with(&mode(ScanMode::Walk));
        if is_registered_before {
            fixture.register(&fixture.outside("other"));
        }
        while_scanning(&fixture, || {
            let other = fixture.register(&fixture.outside("other"));
            drop(fixture.scan_all(&[other], &mode(ScanMode::Walk)));
        });
        assert!(!fixture.coverage().complete);
        fixture.scan();
        let groups = sets(&[&["tree/slow", "tree/slow too"], &["other/x", "other/y"]]);
        assert_eq!(fixture.groups_under(&fixture.outside("")), groups);
        assert!(fixture.coverage().complete);
    }
}

/// The result for a file whose row another program has written meanwhile is kept.
#[test]
fn file_recorded_meanwhile_by_another_program_is_read() {
    let fixture = Fixture::of(&[("slow", 1, 100), ("slow too", 1, 100)]);
    while_scanning(&fixture, || {
        let top = FolderRef { root: fixture.root.id, id: None, path: PathBuf::new() };
        let stat = Stat { size: 100, mtime_ns: 1, ctime_ns: 1, inode: 1, device: 1, ..Stat::default() };
        let listing = Listing { new_files: vec![("slow".into(), stat)], ..Listing::new(1, top) };
        fixture.store.catalog().record(vec![listing]).expect("recorded");
    });
    fixture.assert_groups(&[&["slow", "slow too"]]);
}
