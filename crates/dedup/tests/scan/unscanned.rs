//! Entries that a walk passes over: two folders are identical only if they are the same in both.

use std::fs;

use gristmill_dedup::folders::{self, FolderGroup};
use gristmill_dedup::{ScanMode, ScanOptions};

use crate::bed::{Bed, Mounted, bytes, mode, write};

/// Folders A and B with one file in common.
fn two_folders() -> Bed {
    Bed::of(&[("A/big", 1, 5_000), ("B/big", 1, 5_000)])
}

fn groups(bed: &Bed) -> Vec<FolderGroup> {
    let options = folders::FolderOptions { match_names: true, ..folders::FolderOptions::default() };
    folders::find_identical(&bed.store, &options).expect("groups of folders")
}

/// Whether the only group, A and B, is identical, and how many entries were not scanned.
#[track_caller]
fn only_group(bed: &Bed) -> (bool, Option<u64>) {
    let found = groups(bed);
    assert_eq!(found.len(), 1, "{found:?}");
    let paths: Vec<_> = found[0].folders.iter().map(|folder| folder.path.to_str()).collect();
    assert_eq!(paths, [Some("A"), Some("B")]);
    (found[0].identical, found[0].unscanned())
}

#[test]
fn folder_on_another_filesystem_is_not_known() {
    let bed = two_folders();
    let Some(_mounted) = Mounted::new(&bed.at("A/other")) else { return };
    bed.write("A/other/file", b"elsewhere");
    fs::create_dir(bed.at("B/other")).expect("a folder");
    bed.scan_with(&ScanOptions { one_file_system: true, ..ScanOptions::default() });
    assert!(groups(&bed).is_empty(), "B/other is a folder that was scanned");
    fs::remove_dir(bed.at("B/other")).expect("removed");
    bed.scan_with(&ScanOptions { one_file_system: true, ..ScanOptions::default() });
    assert_eq!(only_group(&bed), (false, Some(1)));
}

#[test]
fn followed_links_are_compared_by_what_they_lead_to() {
    let bed = two_folders();
    bed.store.roots().follow_links(bed.root.id, true).expect("followed");
    let roots = bed.store.roots().list().expect("roots");
    for name in ["one", "two"] {
        write(&bed.outside(name), &bytes(2, 3_000));
    }
    bed.symlink(bed.outside("one"), "A/link");
    bed.symlink(bed.outside("two"), "B/link");
    bed.scan_all(&roots, &ScanOptions::default());
    assert_eq!(only_group(&bed), (true, Some(0)));
    // Links that are not followed, because their target is scanned anyway, are known by it.
    bed.symlink("big", "A/again");
    bed.symlink("big", "B/again");
    bed.scan_all(&roots, &ScanOptions::default());
    assert_eq!(only_group(&bed), (true, Some(2)));
    bed.symlink("nowhere", "A/broken");
    for _ in 0..2 {
        bed.scan_all(&roots, &ScanOptions::default());
        assert_eq!(only_group(&bed), (false, Some(3)), "counted anew by each scan");
    }
}

#[test]
fn root_in_a_folder_is_compared_by_its_own_scan() {
    let bed = two_folders();
    bed.write("A/in/file", &bytes(3, 100));
    bed.write("B/in/file", &bytes(3, 100));
    bed.store.roots().register(&bed.at("A/in")).expect("a root");
    let roots = bed.store.roots().list().expect("roots");
    bed.scan_all(&roots, &ScanOptions::default());
    assert_eq!(only_group(&bed), (true, Some(0)));
}

#[test]
fn folders_with_unread_files_are_not_identical() {
    let bed = two_folders();
    bed.scan_with(&mode(ScanMode::Walk));
    assert_eq!(groups(&bed), []);
    bed.scan_with(&mode(ScanMode::Hash));
    assert_eq!(only_group(&bed), (true, Some(0)));
}

#[test]
fn refresh_counts_new_files_as_not_scanned() {
    let bed = two_folders();
    bed.scan();
    assert_eq!(only_group(&bed), (true, Some(0)));
    bed.write("B/notes", b"thesis");
    bed.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(only_group(&bed), (false, Some(1)));
}
