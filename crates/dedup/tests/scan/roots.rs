//! Roots inside each other, beside each other, and by other names.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use gristmill_dedup::{ScanHandle, ScanOptions, roots};
use gristmill_store::catalog::{Algorithm, FolderRef, GroupQuery, Listing, Stat};
use gristmill_store::roots::{RemovedRoot, Root};

use crate::bed::{Bed, bytes, set, sets, write};

fn paths(bed: &Bed, root: &Root) -> std::collections::BTreeSet<PathBuf> {
    bed.files_of(root.id).into_keys().collect()
}

fn all(bed: &Bed) -> Vec<Root> {
    bed.store.roots().list().expect("roots")
}

const FILES: [(&str, u64, usize); 5] =
    [("a", 1, 50), ("in/b", 1, 50), ("in/deep/c", 1, 50), ("in0", 2, 50), ("in/alone", 3, 51)];
const GROUP: &[&str] = &["a", "in/b", "in/deep/c"];

#[test]
fn a_root_registered_inside_another_takes_its_rows_along() {
    let bed = Bed::of(&FILES);
    bed.scan();
    let before = bed.files();
    let inner = bed.register(&bed.at("in"));
    // At once, before anybody scans: nothing was lost, nothing is there twice.
    assert_eq!(paths(&bed, &inner), set(&["alone", "b", "deep/c"]));
    assert_eq!(bed.present(), set(&["a", "in0"]));
    bed.has_groups(&[GROUP]);
    assert_eq!(bed.files_of(inner.id)[&PathBuf::from("b")].id, before[&PathBuf::from("in/b")].id);
    let summary = bed.scan_all(&[inner, bed.root.clone()], &ScanOptions::default());
    assert_eq!(summary.roots.len(), 2);
    assert_eq!((summary.read_files, summary.new_files, summary.removed_files), (0, 0, 0), "{summary:?}");
    assert_eq!(summary.files, 5);
    bed.has_groups(&[GROUP]);
    let counts: Vec<_> = all(&bed).iter().map(|root| root.files).collect();
    assert_eq!(counts, [Some(2), Some(3)]);
}

#[test]
fn the_root_around_a_new_one_has_the_numbers_that_are_left_to_it() {
    let bed = Bed::of(&FILES);
    bed.scan();
    let inner = bed.register(&bed.at("in"));
    bed.is_sound();
    bed.scan_all(&[inner], &ScanOptions::default());
}

#[test]
fn a_root_registered_around_another_leaves_it_its_own() {
    let bed = Bed::of(&FILES);
    let around = bed.register(&bed.outside(""));
    let mut bed = Bed { root: around, ..bed };
    let tree = all(&bed).into_iter().find(|root| root.id != bed.root.id).expect("the tree");
    bed.scan_all(std::slice::from_ref(&tree), &ScanOptions::default());
    write(&bed.at("beside"), &bytes(1, 50));
    // What is inside is scanned, too; the store's own files are not what this is about.
    let filter = gristmill_dedup::Filter { exclude: vec!["t.db*".into()], ..Default::default() };
    let summary = bed.scan_with(&ScanOptions { filter, ..ScanOptions::default() });
    assert_eq!(summary.roots, [bed.root.path.clone(), tree.path.clone()]);
    assert_eq!((summary.files, summary.new_files, summary.read_files), (6, 1, 1), "{summary:?}");
    assert_eq!(bed.present(), set(&["beside"]));
    assert_eq!(bed.groups(), sets(&[&["beside", "tree/a", "tree/in/b", "tree/in/deep/c"]]));
    bed.root = tree;
    assert_eq!(bed.present().len(), 5);
}

#[test]
fn three_roots_inside_each_other() {
    let bed = Bed::of(&FILES);
    bed.scan();
    // The innermost first: then the one between takes only what is its own.
    let innermost = bed.register(&bed.at("in/deep"));
    let between = bed.register(&bed.at("in"));
    for _ in 0..2 {
        assert_eq!(paths(&bed, &innermost), set(&["c"]));
        assert_eq!(paths(&bed, &between), set(&["alone", "b"]));
        assert_eq!(bed.present(), set(&["a", "in0"]));
        let summary = bed.scan();
        assert_eq!((summary.files, summary.read_files, summary.new_files), (5, 0, 0), "{summary:?}");
        bed.has_groups(&[GROUP]);
    }
}

#[test]
fn one_folder_is_one_root_however_it_is_called() {
    let bed = Bed::of(&FILES);
    symlink(&bed.root.path, bed.outside("alias")).expect("a link");
    for word in ["alias", "alias/", "alias/in/..", "./tree", "tree/../alias"] {
        let path = roots::resolve(&bed.outside(word)).expect("a folder");
        assert_eq!(bed.store.roots().register(&path).expect("a root").id, bed.root.id, "{word}");
        assert_eq!(roots::named(&bed.store, &bed.outside(word)).expect("a root").id, bed.root.id);
    }
    assert_eq!(roots::named(&bed.store, "tree".as_ref()).expect("a root").id, bed.root.id);
    assert_eq!(all(&bed).len(), 1);
    // By a link into it: inside it, and so found twice by nobody.
    let inner = bed.register(&bed.outside("alias/in"));
    assert_eq!(inner.path, bed.at("in"));
    assert_eq!(bed.scan().files, 5);
    bed.has_groups(&[GROUP]);
}

#[test]
fn what_is_no_folder_is_refused_by_name() {
    let bed = Bed::of(&FILES);
    for (word, why) in [("nothing", "no such folder"), ("tree/a", "it is a file")] {
        let error = roots::resolve(&bed.outside(word)).expect_err("no folder");
        assert!(error.is_user_error() && error.to_string().contains(why), "{error}");
    }
    let error = roots::named(&bed.store, "nothing".as_ref()).expect_err("no root").to_string();
    assert!(error.contains("it is no root") && error.contains("tree"), "{error}");
}

#[test]
fn two_roots_with_names_of_one_inode() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 2, 60)]);
    let other = bed.register(&bed.outside("other"));
    for name in ["a", "b"] {
        std::fs::hard_link(bed.at(name), bed.outside("other").join(name)).expect("a hard link");
    }
    write(&bed.outside("other/copy"), &bytes(1, 50));
    let summary = bed.scan_all(&all(&bed), &ScanOptions::default());
    assert_eq!((summary.files, summary.read_files), (5, 2), "{summary:?}");
    let parent = bed.outside("");
    let expected = sets(&[&["other/a", "other/copy", "tree/a"]]);
    assert_eq!(bed.groups_under(&parent), expected);
    let group = bed.group_list().remove(0);
    assert_eq!((group.copies, group.redundant), (2, 50));
    let across = GroupQuery { across_roots: true, ..GroupQuery::default() };
    assert_eq!(bed.store.catalog().groups(&across).expect("groups").total, 1);
    let one = GroupQuery { roots: vec![bed.root.id], ..GroupQuery::default() };
    assert_eq!(bed.store.catalog().groups(&one).expect("groups").total, 0);
    let one = GroupQuery { roots: vec![other.id], ..GroupQuery::default() };
    assert_eq!(bed.store.catalog().groups(&one).expect("groups").total, 1);
}

/// The other root's file was not worth reading before.
#[test]
fn a_file_of_another_root_is_read_when_it_becomes_a_candidate() {
    let bed = Bed::of(&[("a", 1, 50)]);
    let other = bed.register(&bed.outside("other"));
    write(&bed.outside("other/b"), &bytes(1, 50));
    assert_eq!(bed.scan().read_files, 0);
    let summary = bed.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
    assert_eq!((summary.read_files, summary.files), (2, 1));
    assert_eq!(bed.row("a").algorithm, Some(Algorithm::Blake3));
    assert_eq!(bed.group_list().len(), 1);
    // One whose folder is gone, with its disk, is left alone.
    write(&bed.outside("other/c"), &bytes(4, 70));
    bed.write("d", &bytes(4, 70));
    bed.scan_with(&crate::bed::mode(gristmill_dedup::ScanMode::Walk));
    std::fs::rename(&bed.root.path, bed.outside("elsewhere")).expect("moved");
    let summary = bed.scan_all(&[other], &ScanOptions::default());
    assert_eq!((summary.errors, summary.removed_files, summary.read_files), (0, 0, 1));
    assert_eq!(bed.present(), set(&["a", "d"]));
}

#[test]
fn a_file_of_a_root_that_was_not_there_is_read_when_it_is_back() {
    let bed = Bed::of(&[("a", 1, 50)]);
    let other = bed.register(&bed.outside("other"));
    write(&bed.outside("other/b"), &bytes(1, 50));
    bed.scan();
    std::fs::rename(&bed.root.path, bed.outside("elsewhere")).expect("moved");
    assert_eq!(bed.scan_all(std::slice::from_ref(&other), &ScanOptions::default()).errors, 0);
    assert_eq!(bed.group_list(), []);
    std::fs::rename(bed.outside("elsewhere"), &bed.root.path).expect("moved");
    bed.scan_all(&all(&bed), &ScanOptions::default());
    assert_eq!(bed.groups_under(&bed.outside("")), sets(&[&["other/b", "tree/a"]]));
}

#[test]
fn a_root_that_is_removed_is_forgotten_and_nothing_else() {
    let bed = Bed::of(&FILES);
    let other = bed.register(&bed.outside("other"));
    write(&bed.outside("other/f/x"), &bytes(1, 50));
    write(&bed.outside("other/y"), &bytes(1, 50));
    bed.scan_all(&all(&bed), &ScanOptions::default());
    assert_eq!(bed.group_list()[0].members.len(), 5);
    let forgotten = bed.store.roots().remove(other.id).expect("removed");
    assert_eq!(forgotten, RemovedRoot { folders: 2, files: 2 });
    assert!(bed.outside("other/f/x").exists());
    bed.has_groups(&[GROUP]);
    assert_eq!(all(&bed).len(), 1);
    bed.is_sound();
    assert!(bed.store.roots().remove(other.id).is_err());
    // Registered again, it is new.
    let other = bed.register(&bed.outside("other"));
    assert_eq!(bed.scan_all(&[other], &ScanOptions::default()).new_files, 2);
}

#[test]
fn an_inner_root_that_is_removed_goes_back_to_the_one_around_it() {
    let bed = Bed::of(&FILES);
    let inner = bed.register(&bed.at("in"));
    bed.scan();
    bed.store.roots().remove(inner.id).expect("removed");
    assert_eq!(bed.scan().new_files, 3);
    bed.has_groups(&[GROUP]);
    assert_eq!(bed.present().len(), 5);
}

#[test]
fn an_inner_root_whose_folder_is_gone_does_not_hold_up_the_one_around_it() {
    let bed = Bed::of(&FILES);
    let inner = bed.register(&bed.at("in"));
    bed.scan();
    bed.take_away("in");
    bed.write("new", &bytes(1, 50));
    let summary = bed.scan();
    assert_eq!((summary.new_files, summary.removed_files, summary.errors), (1, 0, 1), "{summary:?}");
    assert!(summary.error_samples[0].contains("tree/in: cannot be read"), "{summary:?}");
    assert_eq!(paths(&bed, &inner), set(&["alone", "b", "deep/c"]));
    bed.bring_back("in");
    let summary = bed.scan();
    assert_eq!((summary.errors, summary.files, summary.read_files), (0, 6, 0), "{summary:?}");
    bed.has_groups(&[&["a", "in/b", "in/deep/c", "new"]]);
}

#[test]
fn a_root_with_a_name_that_is_no_text() {
    let bed = Bed::new();
    let name = std::ffi::OsStr::from_bytes(b"r\xf6\x1a\n");
    write(&bed.outside(name).join("f/a"), &bytes(1, 50));
    write(&bed.outside(name).join("b"), &bytes(1, 50));
    let root = bed.register(&bed.outside(name));
    assert_eq!(root.path, bed.outside(name));
    bed.scan_all(std::slice::from_ref(&root), &ScanOptions::default());
    assert_eq!(bed.groups_under(&root.path), sets(&[&["b", "f/a"]]));
    let inner = bed.register(&bed.outside(name).join("f"));
    assert_eq!(paths(&bed, &inner), set(&["a"]));
    let summary = bed.scan_all(&[root], &ScanOptions::default());
    assert_eq!((summary.new_files, summary.read_files, summary.duplicate_groups), (0, 0, 1));
}

/// Does something while a first scan waits a second for its second file.
fn while_scanning(bed: &Bed, body: impl FnOnce()) {
    let control = Arc::new(ScanHandle::default());
    let slowly = ScanOptions { io_limit: Some(100), workers: Some(1), ..ScanOptions::default() };
    std::thread::scope(|scope| {
        let roots = std::slice::from_ref(&bed.root);
        let scan = scope.spawn(|| bed.try_scan(roots, &slowly, &control).expect("a scan"));
        while control.progress().bytes_read == 0 {
            assert!(!scan.is_finished(), "it was over before it came so far");
            std::thread::yield_now();
        }
        body();
        scan.join().expect("a scan");
    });
}

/// Two first scans at one time: what each has only once, both together have twice.
#[test]
fn a_root_that_is_scanned_meanwhile_is_compared_too() {
    let bed = Bed::of(&[("slow", 1, 100), ("slow too", 1, 100), ("here", 2, 70)]);
    write(&bed.outside("other/there"), &bytes(2, 70));
    let other = bed.register(&bed.outside("other"));
    while_scanning(&bed, || drop(bed.scan_all(std::slice::from_ref(&other), &ScanOptions::default())));
    let groups = sets(&[&["tree/slow", "tree/slow too"], &["tree/here", "other/there"]]);
    assert_eq!(bed.groups_under(&bed.outside("")), groups);
}

/// What was read of a file whose row somebody else has written meanwhile is not lost on the way.
#[test]
fn a_file_that_another_program_records_meanwhile_is_read() {
    let bed = Bed::of(&[("slow", 1, 100), ("slow too", 1, 100)]);
    while_scanning(&bed, || {
        let top = FolderRef { root: bed.root.id, id: None, path: PathBuf::new() };
        let stat = Stat { size: 100, mtime_ns: 1, ctime_ns: 1, inode: 1, device: 1, ..Stat::default() };
        let listing = Listing { new_files: vec![("slow".into(), stat)], ..Listing::new(1, top) };
        bed.store.catalog().record(vec![listing]).expect("recorded");
    });
    bed.has_groups(&[&["slow", "slow too"]]);
}
