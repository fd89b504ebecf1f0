//! One file that is found by several paths is one copy, whatever its link count.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use gristmill_dedup::{ScanOptions, folders};
use gristmill_store::roots::Root;

use crate::bed::{Bed, MIB, Mounted, bytes, write};

fn every_file() -> ScanOptions {
    ScanOptions { every_file: true, ..ScanOptions::default() }
}

fn scan(bed: &Bed, root: &Root) {
    bed.scan_all(std::slice::from_ref(root), &every_file());
}

/// Each group: how many copies, how many members, how many of these are other names.
fn groups(bed: &Bed) -> Vec<(u64, usize, usize)> {
    let linked = |members: &[gristmill_store::catalog::Member]| members.iter().filter(|m| m.linked).count();
    bed.group_list().iter().map(|group| (group.copies, group.members.len(), linked(&group.members))).collect()
}

/// Paths of all folders that are listed as identical, and the bytes that removing copies frees.
fn identical_folders(bed: &Bed) -> (Vec<String>, u64) {
    let found = folders::find_identical(&bed.store, &folders::FolderOptions::default()).expect("folders");
    let paths = |group: &folders::FolderGroup| -> Vec<String> {
        group.folders.iter().map(|folder| folder.path.display().to_string()).collect()
    };
    (found.iter().flat_map(paths).collect(), found.iter().map(|group| group.reclaimable).sum())
}

/// No duplicates; with a real copy of `file` there are two copies, and the names of the file stand together.
#[track_caller]
fn is_one_file(bed: &Bed, file: &Path, names: usize) {
    assert_eq!(groups(bed), [], "names of one file are no copies");
    assert_eq!(identical_folders(bed).1, 0);
    let other = bed.register(&bed.outside("copy of it"));
    fs::copy(file, bed.outside("copy of it/copy")).expect("a copy");
    scan(bed, &other);
    assert_eq!(groups(bed), [(2, names + 1, names - 1)]);
    let group = bed.group_list().remove(0);
    assert!(group.reclaimable <= group.members[0].stat.allocated, "{group:?}");
}

#[test]
fn file_in_two_roots_by_a_bind_mount_is_one_copy() {
    let bed = Bed::of(&[("in/a", 1, 10_000), ("b", 2, 10_000)]);
    let place = bed.outside("bound");
    let Some(_bound) = Mounted::bind(&bed.root.path, &place) else { return };
    let root = bed.register(&place);
    bed.scan_all(&[bed.root.clone(), root], &ScanOptions::default());
    assert_eq!(identical_folders(&bed), (vec![], 0), "a folder is no copy of itself");
    is_one_file(&bed, &bed.at("in/a"), 2);
}

#[test]
fn file_in_one_root_twice_by_a_bind_mount_is_one_copy() {
    let bed = Bed::of(&[("in/a", 1, 10_000), ("in/b", 2, 2 * MIB)]);
    let Some(_bound) = Mounted::bind(&bed.at("in"), &bed.at("bound")) else { return };
    bed.scan();
    assert_eq!(identical_folders(&bed), (vec![], 0), "a folder is no copy of itself");
    is_one_file(&bed, &bed.at("in/a"), 2);
}

#[test]
fn copies_in_a_folder_that_is_mounted_twice_are_listed_once() {
    let bed = Bed::of(&[("p/a", 1, 10_000), ("q/a", 1, 10_000)]);
    let place = bed.outside("bound");
    let Some(_bound) = Mounted::bind(&bed.root.path, &place) else { return };
    let root = bed.register(&place);
    bed.scan_all(&[bed.root.clone(), root], &ScanOptions::default());
    assert_eq!(groups(&bed), [(2, 4, 2)]);
    let allocated = bed.group_list()[0].members[0].stat.allocated;
    let found = folders::find_identical(&bed.store, &folders::FolderOptions::default()).expect("folders");
    assert_eq!(found.len(), 1, "{found:?}");
    let group = &found[0];
    assert_eq!((group.folders.len(), group.files, group.reclaimable), (2, 1, allocated), "{found:?}");
}

#[test]
fn file_of_a_root_that_became_a_link_to_a_root_is_one_copy() {
    let bed = Bed::of(&[("a", 1, 10_000)]);
    bed.scan_with(&every_file());
    fs::rename(&bed.root.path, bed.outside("moved")).expect("moved");
    symlink("moved", &bed.root.path).expect("a link");
    let moved = bed.register(&bed.outside("moved"));
    scan(&bed, &moved);
    is_one_file(&bed, &bed.outside("moved/a"), 2);
}

#[test]
fn target_of_a_followed_link_that_came_into_a_root_is_one_copy() {
    target_of_a_followed_link_is_one_copy(&Bed::new());
}

#[test]
fn target_of_a_link_to_another_disk_is_one_copy() {
    let bed = Bed::new();
    let Some(_disk) = Mounted::new(&bed.outside("o")) else { return };
    target_of_a_followed_link_is_one_copy(&bed);
}

/// A root has a link to a file in the folder `o`, which becomes a root.
fn target_of_a_followed_link_is_one_copy(bed: &Bed) {
    bed.store.roots().follow_links(bed.root.id, true).expect("a setting");
    let root = bed.store.roots().at(&bed.root.path).expect("roots").expect("the root");
    write(&bed.outside("o/x"), &bytes(1, 10_000));
    bed.symlink("../o/x", "link");
    scan(bed, &root);
    let other = bed.register(&bed.outside("o"));
    scan(bed, &other);
    is_one_file(bed, &bed.outside("o/x"), 2);
}

#[test]
fn hard_link_made_in_a_root_that_is_scanned_later_is_one_copy() {
    let bed = Bed::of(&[("x", 1, 9_000)]);
    bed.scan_with(&every_file());
    let other = bed.register(&bed.outside("other"));
    fs::hard_link(bed.at("x"), bed.outside("other/x")).expect("a hard link");
    scan(&bed, &other);
    is_one_file(&bed, &bed.at("x"), 2);
}

#[test]
fn files_of_a_disk_and_its_clone_are_two_copies() {
    let bed = Bed::new();
    let (image, clone) = (bed.outside("image"), bed.outside("clone"));
    fs::File::create(&image).expect("a file").set_len(8 * MIB as u64).expect("its size");
    let made = Command::new("mke2fs").args(["-q", "-t", "ext2"]).arg(&image).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("NOT EXERCISED, because mke2fs cannot be run here");
        return;
    }
    {
        let Some(_disk) = Mounted::image(&image, &bed.outside("one")) else { return };
        write(&bed.outside("one/in/x"), &bytes(1, 9_000));
        fs::hard_link(bed.outside("one/in/x"), bed.outside("one/in/y")).expect("a hard link");
        write(&bed.outside("one/in/single"), &bytes(2, 8_000));
    }
    fs::copy(&image, &clone).expect("a clone");
    let Some(disk) = Mounted::image(&image, &bed.outside("one")) else { return };
    let one = bed.register(&bed.outside("one/in"));
    scan(&bed, &one);
    {
        let Some(_two) = Mounted::image(&clone, &bed.outside("two")) else { return };
        let two = bed.register(&bed.outside("two/in"));
        scan(&bed, &two);
        let mut found = groups(&bed);
        found.sort_unstable();
        assert_eq!(found, [(2, 2, 0), (2, 4, 2)]);
        let again = bed.scan_all(&[one.clone(), two], &every_file());
        assert_eq!(again.read_files, 0, "a clone beside it is no other disk");
        assert_eq!(groups(&bed).len(), 2);
    }
    drop(disk);
    // The clone alone is the disk that it was.
    let Some(_alone) = Mounted::image(&clone, &bed.outside("two")) else { return };
    assert_eq!(bed.coverage().absent_roots, [one.path]);
    let two = bed.register(&bed.outside("two/in"));
    let again = bed.scan_all(&[two], &every_file());
    assert_eq!((again.failed_roots, again.read_files), (0, 0), "{again:?}");
}

/// Each layer has inode numbers of its own, and a device number for its files.
#[test]
fn files_of_two_layers_of_an_overlay_are_two_copies() {
    let bed = Bed::new();
    let (lower, upper) = (bed.outside("lower"), bed.outside("upper"));
    let (Some(_lower), Some(_upper)) = (Mounted::new(&lower), Mounted::new(&upper)) else { return };
    let inode = |path: &Path| fs::metadata(path).expect("a file").ino();
    (0..20).for_each(|name| write(&lower.join(format!("lower {name}")), &bytes(1, 9_000)));
    let place = bed.outside("overlay");
    let Some(_overlay) = Mounted::overlay(&lower, &upper, &place) else { return };
    write(&place.join("upper"), &bytes(1, 9_000));
    let alike = (0..20).map(|name| format!("lower {name}"));
    let alike = alike.filter(|name| inode(&place.join(name)) == inode(&place.join("upper"))).count();
    if alike == 0 {
        eprintln!("NOT EXERCISED: no file of the lower layer has the inode number of one in the upper layer");
    }
    let root = bed.register(&place);
    scan(&bed, &root);
    assert_eq!(groups(&bed), [(21, 21, 0)]);
}
