//! Tests skipped entries: two folders are identical only if these are equal in both.

use std::fs;

use gristmill_dedup::folders::{self, FolderGroup};
use gristmill_dedup::{ScanMode, ScanOptions};

use crate::fixture::{Fixture, Mounted, bytes, mode, write};

/// Folders A and B with one file in common.
fn two_folders() -> Fixture {
    Fixture::of(&[("A/big", 1, 5_000), ("B/big", 1, 5_000)])
}

fn groups(fixture: &Fixture) -> Vec<FolderGroup> {
    let options = options!(folders::FolderOptions { match_names: true });
    folders::find_identical(&fixture.store, &options).expect("groups of folders")
}

/// Checks that A and B are the only group. Returns whether they are identical, and the number of entries not scanned.
#[track_caller]
fn only_group(fixture: &Fixture) -> (bool, Option<u64>) {
    let found = groups(fixture);
    assert_eq!(found.len(), 1, "{found:?}");
    let paths: Vec<_> = found[0].folders.iter().map(|folder| folder.path.to_str()).collect();
    assert_eq!(paths, [Some("A"), Some("B")]);
    (found[0].identical, found[0].unscanned())
}

/// Folders with these links (name and target) are identical with and without names, or only without, or not at all.
#[test]
fn skipped_symlinks_are_compared_by_target_and_name() {
    type Links<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Links<'_>, Links<'_>, bool, bool); 5] = [
        (&[("a", "x"), ("b", "y")], &[("b", "y"), ("a", "x")], true, true),
        (&[("a", "x"), ("b", "y")], &[("a", "y"), ("b", "x")], false, true),
        (&[("a", "xb")], &[("ba", "x")], false, false),
        (&[("a", "x"), ("b", "x")], &[("a", "y"), ("b", "y")], false, false),
        (&[("a", "x")], &[("b", "x")], false, true),
    ];
    for (in_a, in_b, is_identical, is_identical_unnamed) in cases {
        let fixture = two_folders();
        for (folder, links) in [("A", in_a), ("B", in_b)] {
            links.iter().for_each(|(name, target)| fixture.symlink(target, &format!("{folder}/{name}")));
        }
        fixture.scan();
        assert_eq!(only_group(&fixture), (is_identical, Some(2 * in_a.len() as u64)), "{in_a:?} {in_b:?}");
        let unnamed = folders::find_identical(&fixture.store, &folders::FolderOptions::default()).expect("groups");
        assert_eq!(unnamed[0].identical, is_identical_unnamed, "{in_a:?} {in_b:?}");
    }
}

#[test]
fn excluded_files_are_unknown_entries_and_special_files_are_known() {
    let fixture = two_folders();
    for folder in ["A", "B"] {
        let _socket = std::os::unix::net::UnixListener::bind(fixture.at(folder).join("pipe")).expect("a socket");
    }
    fixture.scan();
    assert_eq!(only_group(&fixture), (true, Some(2)));
    ["A/notes", "B/notes"].iter().for_each(|path| fixture.write(path, b"words"));
    let filter = options!(gristmill_dedup::Filter { exclude: vec!["notes".into()] });
    fixture.scan_with(&options!(ScanOptions { filter }));
    assert_eq!(only_group(&fixture), (false, Some(4)));
}

#[test]
fn folder_on_another_filesystem_counts_as_unscanned() {
    let fixture = two_folders();
    let Some(_mounted) = Mounted::new(&fixture.at("A/other")) else { return };
    fixture.write("A/other/file", b"elsewhere");
    fs::create_dir(fixture.at("B/other")).expect("a folder");
    fixture.scan_with(&options!(ScanOptions { one_file_system: true }));
    assert!(groups(&fixture).is_empty(), "B/other is a folder that was scanned");
    fs::remove_dir(fixture.at("B/other")).expect("removed");
    fixture.scan_with(&options!(ScanOptions { one_file_system: true }));
    assert_eq!(only_group(&fixture), (false, Some(1)));
}

#[test]
fn followed_symlinks_are_compared_by_their_targets() {
    let fixture = two_folders();
    fixture.store.roots().follow_links(fixture.root.id, true).expect("followed");
    let roots = fixture.store.roots().list().expect("roots");
    for name in ["one", "two"] {
        write(&fixture.outside(name), &bytes(2, 3_000));
    }
    fixture.symlink(fixture.outside("one"), "A/link");
    fixture.symlink(fixture.outside("two"), "B/link");
    fixture.scan_all(&roots, &ScanOptions::default());
    assert_eq!(only_group(&fixture), (true, Some(0)));
    // Links that are not followed, because their target is scanned anyway, are compared by target.
    fixture.symlink("big", "A/again");
    fixture.symlink("big", "B/again");
    fixture.scan_all(&roots, &ScanOptions::default());
    assert_eq!(only_group(&fixture), (true, Some(2)));
    fixture.symlink("nowhere", "A/broken");
    for _ in 0..2 {
        fixture.scan_all(&roots, &ScanOptions::default());
        assert_eq!(only_group(&fixture), (false, Some(3)), "counted again by each scan");
    }
}

#[test]
fn nested_root_is_compared_by_its_own_scan() {
    let fixture = two_folders();
    fixture.write("A/in/file", &bytes(3, 100));
    fixture.write("B/in/file", &bytes(3, 100));
    fixture.store.roots().register(&fixture.at("A/in")).expect("a root");
    let roots = fixture.store.roots().list().expect("roots");
    fixture.scan_all(&roots, &ScanOptions::default());
    assert_eq!(only_group(&fixture), (true, Some(0)));
}

#[test]
fn folders_with_unread_files_are_not_identical() {
    let fixture = two_folders();
    fixture.scan_with(&mode(ScanMode::Walk));
    assert_eq!(groups(&fixture), []);
    fixture.scan_with(&mode(ScanMode::Hash));
    assert_eq!(only_group(&fixture), (true, Some(0)));
}

#[test]
fn refresh_counts_new_files_as_not_scanned() {
    let fixture = two_folders();
    fixture.scan();
    assert_eq!(only_group(&fixture), (true, Some(0)));
    fixture.write("B/notes", b"thesis");
    fixture.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(only_group(&fixture), (false, Some(1)));
}
