//! Tests that a file found by several paths is one copy, whatever its link count.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use gristmill_dedup::{ScanOptions, folders};
use gristmill_store::roots::Root;

use crate::fixture::{Fixture, MIB, Mounted, bytes, write};

fn every_file() -> ScanOptions {
    options!(ScanOptions { every_file: true })
}

fn scan(fixture: &Fixture, root: &Root) {
    fixture.scan_all(std::slice::from_ref(root), &every_file());
}

/// Number of copies, of members, and of members that are further names, for each group.
fn groups(fixture: &Fixture) -> Vec<(u64, usize, usize)> {
    let linked = |members: &[gristmill_store::catalog::Member]| members.iter().filter(|m| m.linked).count();
    fixture.group_list().iter().map(|group| (group.copies, group.members.len(), linked(&group.members))).collect()
}

/// Paths of all folders listed as identical, and the bytes that removing copies frees.
fn identical_folders(fixture: &Fixture) -> (Vec<String>, u64) {
    let found = folders::find_identical(&fixture.store, &folders::FolderOptions::default()).expect("folders");
    let paths = |group: &folders::FolderGroup| -> Vec<String> {
        group.folders.iter().map(|folder| folder.path.display().to_string()).collect()
    };
    (found.iter().flat_map(paths).collect(), found.iter().map(|group| group.reclaimable).sum())
}

/// Checks that there are no duplicates, and that a real copy of `file` makes two copies, with the names of the file
/// next to each other.
#[track_caller]
fn check_is_one_file(fixture: &Fixture, file: &Path, names: usize) {
    assert_eq!(groups(fixture), [], "names of one file are not copies");
    assert_eq!(identical_folders(fixture).1, 0);
    let other = fixture.register(&fixture.outside("copy of it"));
    fs::copy(file, fixture.outside("copy of it/copy")).expect("a copy");
    scan(fixture, &other);
    assert_eq!(groups(fixture), [(2, names + 1, names - 1)]);
    let group = fixture.group_list().remove(0);
    assert!(group.reclaimable <= group.members[0].stat.allocated, "{group:?}");
}

#[test]
fn file_in_two_roots_by_a_bind_mount_is_one_copy() {
    let fixture = Fixture::of(&[("in/a", 1, 10_000), ("b", 2, 10_000)]);
    let mount_point = fixture.outside("bound");
    let Some(_bound) = Mounted::bind(&fixture.root.path, &mount_point) else { return };
    let root = fixture.register(&mount_point);
    fixture.scan_all(&[fixture.root.clone(), root], &ScanOptions::default());
    assert_eq!(identical_folders(&fixture), (vec![], 0), "a folder is not a copy of itself");
    check_is_one_file(&fixture, &fixture.at("in/a"), 2);
}

#[test]
fn file_in_one_root_twice_by_a_bind_mount_is_one_copy() {
    let fixture = Fixture::of(&[("in/a", 1, 10_000), ("in/b", 2, 2 * MIB)]);
    let Some(_bound) = Mounted::bind(&fixture.at("in"), &fixture.at("bound")) else { return };
    fixture.scan();
    assert_eq!(identical_folders(&fixture), (vec![], 0), "a folder is not a copy of itself");
    check_is_one_file(&fixture, &fixture.at("in/a"), 2);
}

#[test]
fn copies_in_a_folder_that_is_mounted_twice_are_listed_once() {
    let fixture = Fixture::of(&[("p/a", 1, 10_000), ("q/a", 1, 10_000)]);
    let mount_point = fixture.outside("bound");
    let Some(_bound) = Mounted::bind(&fixture.root.path, &mount_point) else { return };
    let root = fixture.register(&mount_point);
    fixture.scan_all(&[fixture.root.clone(), root], &ScanOptions::default());
    assert_eq!(groups(&fixture), [(2, 4, 2)]);
    let allocated = fixture.group_list()[0].members[0].stat.allocated;
    let found = folders::find_identical(&fixture.store, &folders::FolderOptions::default()).expect("folders");
    assert_eq!(found.len(), 1, "{found:?}");
    let group = &found[0];
    assert_eq!((group.folders.len(), group.files, group.reclaimable), (2, 1, allocated), "{found:?}");
}

#[test]
fn file_of_a_root_replaced_by_a_symlink_to_a_root_is_one_copy() {
    let fixture = Fixture::of(&[("a", 1, 10_000)]);
    fixture.scan_with(&every_file());
    fs::rename(&fixture.root.path, fixture.outside("moved")).expect("moved");
    symlink("moved", &fixture.root.path).expect("a link");
    let moved = fixture.register(&fixture.outside("moved"));
    scan(&fixture, &moved);
    check_is_one_file(&fixture, &fixture.outside("moved/a"), 2);
}

#[test]
fn target_of_a_followed_symlink_in_a_new_root_is_one_copy() {
    check_symlink_target_is_one_copy(&Fixture::new());
}

#[test]
fn target_of_a_symlink_to_another_disk_is_one_copy() {
    let fixture = Fixture::new();
    let Some(_disk) = Mounted::new(&fixture.outside("o")) else { return };
    check_symlink_target_is_one_copy(&fixture);
}

/// Checks a root with a link to a file in the folder `o`, which then becomes a root.
fn check_symlink_target_is_one_copy(fixture: &Fixture) {
    fixture.store.roots().follow_links(fixture.root.id, true).expect("a setting");
    let root = fixture.store.roots().find(&fixture.root.path).expect("roots").expect("the root");
    write(&fixture.outside("o/x"), &bytes(1, 10_000));
    fixture.symlink("../o/x", "link");
    scan(fixture, &root);
    let other = fixture.register(&fixture.outside("o"));
    scan(fixture, &other);
    check_is_one_file(fixture, &fixture.outside("o/x"), 2);
}

#[test]
fn hard_link_made_in_a_root_that_is_scanned_later_is_one_copy() {
    let fixture = Fixture::of(&[("x", 1, 9_000)]);
    fixture.scan_with(&every_file());
    let other = fixture.register(&fixture.outside("other"));
    fs::hard_link(fixture.at("x"), fixture.outside("other/x")).expect("a hard link");
    scan(&fixture, &other);
    check_is_one_file(&fixture, &fixture.at("x"), 2);
}

#[test]
fn files_of_a_disk_and_its_clone_are_two_copies() {
    let fixture = Fixture::new();
    let (image, clone) = (fixture.outside("image"), fixture.outside("clone"));
    fs::File::create(&image).expect("a file").set_len(8 * MIB as u64).expect("its size");
    let made = Command::new("mke2fs").args(["-q", "-t", "ext2"]).arg(&image).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("NOT EXERCISED, because mke2fs cannot be run here");
        return;
    }
    {
        let Some(_disk) = Mounted::image(&image, &fixture.outside("one")) else { return };
        write(&fixture.outside("one/in/x"), &bytes(1, 9_000));
        fs::hard_link(fixture.outside("one/in/x"), fixture.outside("one/in/y")).expect("a hard link");
        write(&fixture.outside("one/in/single"), &bytes(2, 8_000));
    }
    fs::copy(&image, &clone).expect("a clone");
    let Some(disk) = Mounted::image(&image, &fixture.outside("one")) else { return };
    let one = fixture.register(&fixture.outside("one/in"));
    scan(&fixture, &one);
    {
        let Some(_two) = Mounted::image(&clone, &fixture.outside("two")) else { return };
        let two = fixture.register(&fixture.outside("two/in"));
        scan(&fixture, &two);
        let mut found = groups(&fixture);
        found.sort_unstable();
        assert_eq!(found, [(2, 2, 0), (2, 4, 2)]);
        let again = fixture.scan_all(&[one.clone(), two], &every_file());
        assert_eq!(again.read_files, 0, "the mounted clone does not change the identity of the disk");
        assert_eq!(groups(&fixture).len(), 2);
    }
    drop(disk);
    // Without its original, the clone still counts as the same disk.
    let Some(_alone) = Mounted::image(&clone, &fixture.outside("two")) else { return };
    assert_eq!(fixture.coverage().absent_roots, [one.path]);
    let two = fixture.register(&fixture.outside("two/in"));
    let again = fixture.scan_all(&[two], &every_file());
    assert_eq!((again.failed_roots, again.read_files), (0, 0), "{again:?}");
}

/// Each layer has its own inode numbers, and a device number for its files.
#[test]
fn files_of_two_layers_of_an_overlay_are_two_copies() {
    let fixture = Fixture::new();
    let (lower, upper) = (fixture.outside("lower"), fixture.outside("upper"));
    let (Some(_lower), Some(_upper)) = (Mounted::new(&lower), Mounted::new(&upper)) else { return };
    let inode = |path: &Path| fs::metadata(path).expect("a file").ino();
    (0..20).for_each(|name| write(&lower.join(format!("lower {name}")), &bytes(1, 9_000)));
    let mount_point = fixture.outside("overlay");
    let Some(_overlay) = Mounted::overlay(&lower, &upper, &mount_point) else { return };
    write(&mount_point.join("upper"), &bytes(1, 9_000));
    let alike = (0..20).map(|name| format!("lower {name}"));
    let alike = alike.filter(|name| inode(&mount_point.join(name)) == inode(&mount_point.join("upper"))).count();
    if alike == 0 {
        eprintln!("NOT EXERCISED: no file of the lower layer has the inode number of one in the upper layer");
    }
    let root = fixture.register(&mount_point);
    scan(&fixture, &root);
    assert_eq!(groups(&fixture), [(21, 21, 0)]);
}
