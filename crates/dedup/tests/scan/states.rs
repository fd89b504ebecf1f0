//! What a scan finds in the state that an earlier one left: stopped, restarted with other options, with roots that come
//! and go.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gristmill_dedup::{Coverage, Filter, ScanMode, ScanOptions};
use gristmill_store::catalog::{HashedFile, ReadResult};
use gristmill_store::roots::Root;

use crate::bed::{Bed, MIB, Mounted, bytes, mode, sets, write};
use crate::stop::{forever, stop_roots_when, stop_when};

fn restart() -> ScanOptions {
    ScanOptions { restart: true, ..ScanOptions::default() }
}

fn with_filter(filter: Filter) -> ScanOptions {
    ScanOptions { filter, ..ScanOptions::default() }
}

/// A finished scan, then two files that a stopped scan has recorded and not read.
fn with_unread_files() -> Bed {
    let bed = Bed::of(&[("1", 1, 50), ("2", 1, 50)]);
    bed.scan();
    bed.write("n1", &bytes(2, 6 * MIB));
    bed.write("n2", &bytes(2, 6 * MIB));
    stop_when(&bed, &forever(), |progress| progress.bytes_read > 0, || ());
    bed
}

#[test]
fn files_left_unread_by_a_stopped_scan_are_compared_by_the_next_one_whatever_its_options() {
    let exclude = Filter { exclude: vec!["*.tmp".into()], ..Filter::default() };
    for options in [
        ScanOptions::default(),
        restart(),
        with_filter(exclude),
        with_filter(Filter { skip_hidden: true, ..Filter::default() }),
        with_filter(Filter { min_size: Some(1), ..Filter::default() }),
        ScanOptions { one_file_system: true, ..ScanOptions::default() },
    ] {
        let bed = with_unread_files();
        bed.scan_with(&options);
        bed.has_groups(&[&["1", "2"], &["n1", "n2"]]);
        assert!(bed.coverage().complete, "{options:?}");
    }
    let bed = with_unread_files();
    bed.store.roots().follow_links(bed.root.id, true).expect("followed");
    bed.scan_all(&bed.store.roots().list().expect("roots"), &ScanOptions::default());
    bed.has_groups(&[&["1", "2"], &["n1", "n2"]]);
}

#[test]
fn incomplete_catalog_says_how_many_files_are_unread() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("alone", 3, 70)]);
    bed.scan_with(&mode(ScanMode::Walk));
    let Coverage { complete, unread_files, .. } = bed.coverage();
    assert_eq!((complete, unread_files), (false, 2), "only files that share their size can be duplicates");
    bed.scan();
    assert_eq!(bed.coverage(), Coverage { complete: true, ..Coverage::default() });
    // A refresh finds a change and reads nothing.
    bed.write("alone", &bytes(1, 50));
    bed.scan_with(&mode(ScanMode::Refresh));
    let Coverage { complete, unread_files, .. } = bed.coverage();
    assert_eq!((complete, unread_files), (false, 1));
    // A rescan that is stopped.
    let bed = with_unread_files();
    let Coverage { complete, unread_files, unfinished_roots, .. } = bed.coverage();
    assert!(!complete && unread_files == 2, "{unread_files}");
    assert_eq!(unfinished_roots, std::slice::from_ref(&bed.root.path));
}

#[test]
fn change_of_hash_that_is_stopped_leaves_an_incomplete_catalog() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    bed.scan();
    let sha256 = gristmill_store::catalog::Algorithm::Sha256;
    // One file is read, the next is waited for.
    let options =
        ScanOptions { algorithm: sha256, io_limit: Some(1), workers: Some(1), ..ScanOptions::default() };
    stop_when(&bed, &options, |progress| progress.bytes_read > 0, || ());
    let coverage = bed.coverage();
    assert!(!coverage.complete, "{coverage:?}");
    bed.scan_with(&ScanOptions { algorithm: sha256, ..ScanOptions::default() });
    bed.has_groups(&[&["a", "b", "c"]]);
    assert!(bed.coverage().complete);
}

fn all(bed: &Bed) -> Vec<Root> {
    bed.store.roots().list().expect("roots")
}

fn missing(bed: &Bed, root: i64) -> usize {
    bed.files_of(root).values().filter(|file| file.missing).count()
}

#[test]
fn scan_of_one_root_marks_nothing_missing_in_a_root_that_is_not_reachable() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let place = bed.outside("disk");
        let disk = if mounted { Mounted::new(&place) } else { None };
        if mounted && disk.is_none() {
            continue;
        }
        let other = bed.register(&place);
        write(&place.join("same"), &bytes(1, 50));
        write(&place.join("same too"), &bytes(1, 50));
        write(&place.join("of its size"), &bytes(2, 60));
        bed.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
        match disk {
            // The folder that it was mounted on is there, and empty.
            Some(disk) => drop(disk),
            None => fs::rename(&place, bed.outside("away")).expect("moved"),
        }
        bed.write("copy", &bytes(1, 50));
        bed.write("perhaps", &bytes(2, 60));
        let summary = bed.scan();
        assert_eq!((summary.removed_files, summary.errors), (0, 0), "{summary:?}");
        assert_eq!(missing(&bed, other.id), 0);
        let expected = sets(&[&["disk/same", "disk/same too", "tree/copy"]]);
        assert_eq!(bed.groups_under(&bed.outside("")), expected, "hashes are kept");
        let coverage = bed.coverage();
        assert!(!coverage.complete, "one file has the size of one that cannot be read now");
        assert_eq!((coverage.unread_files, coverage.unreachable_files), (1, 1));
        assert_eq!(coverage.absent_roots, std::slice::from_ref(&other.path));
        if !mounted {
            fs::rename(bed.outside("away"), &place).expect("moved");
            bed.scan();
            let expected =
                sets(&[&["disk/same", "disk/same too", "tree/copy"], &["disk/of its size", "tree/perhaps"]]);
            assert_eq!(bed.groups_under(&bed.outside("")), expected);
            assert!(bed.coverage().complete);
        }
    }
}

/// A scan of every file reads large ones to their end and takes no samples of them.
#[test]
fn copy_of_a_large_file_in_an_unreachable_root_is_found_by_its_hash_alone() {
    let bed = Bed::new();
    let place = bed.outside("disk");
    let other = bed.register(&place);
    write(&place.join("large"), &bytes(1, 90_000));
    let every_file = ScanOptions { every_file: true, ..ScanOptions::default() };
    bed.scan_all(std::slice::from_ref(&other), &every_file);
    fs::rename(&place, bed.outside("away")).expect("moved");
    bed.write("copy", &bytes(1, 90_000));
    bed.write("of its size", &bytes(2, 90_000));
    bed.scan();
    assert_eq!(bed.groups_under(&bed.outside("")), sets(&[&["disk/large", "tree/copy"]]));
    assert!(bed.coverage().complete);
}

#[test]
fn scan_of_an_unmounted_root_marks_nothing_missing_even_if_files_were_unread() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50)]);
    bed.scan_with(&mode(ScanMode::Walk));
    bed.take_away("a");
    bed.take_away("b");
    let summary = bed.try_scan(&all(&bed), &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.failed_roots), (0, 1));
    bed.has_files(&["a", "b"]);
    let coverage = bed.coverage();
    assert!(!coverage.complete && coverage.unreachable_files == 2, "{coverage:?}");
}

#[test]
fn file_of_another_root_that_vanished_or_changed_is_left_to_a_scan_of_its_root() {
    let bed = Bed::new();
    let other = bed.register(&bed.outside("other"));
    for (name, size) in [("gone", 50), ("changed", 60), ("kept", 70)] {
        write(&bed.outside("other").join(name), &bytes(1, size));
    }
    bed.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
    fs::remove_file(bed.outside("other/gone")).expect("removed");
    write(&bed.outside("other/changed"), &bytes(2, 61));
    for (name, size) in [("x", 50), ("y", 60), ("z", 70)] {
        bed.write(name, &bytes(1, size));
    }
    let summary = bed.scan();
    assert_eq!((summary.removed_files, summary.errors, summary.uncompared_files), (0, 0, 2));
    assert_eq!(missing(&bed, other.id), 0);
    assert_eq!(bed.groups_under(&bed.outside("")), sets(&[&["other/kept", "tree/z"]]));
    assert_eq!(bed.coverage().unread_files, 2);
    bed.scan_all(&all(&bed), &ScanOptions::default());
    assert_eq!(missing(&bed, other.id), 1);
    assert!(bed.coverage().complete);
}

/// Two disks that are mounted in turns get the same device number, and their first files the same inode numbers.
#[test]
fn disks_that_take_turns_on_one_device_number_are_not_hard_links() {
    let bed = Bed::new();
    let mut inodes = Vec::new();
    for name in ["first", "second"] {
        let place = bed.outside(name);
        let Some(_disk) = Mounted::new(&place) else { return };
        let root = bed.register(&place);
        write(&place.join("file"), &bytes(1, 5_000));
        write(&place.join("linked"), &bytes(2, 6_000));
        fs::hard_link(place.join("linked"), place.join("linked too")).expect("a hard link");
        bed.scan_all(
            std::slice::from_ref(&root),
            &ScanOptions { every_file: true, ..ScanOptions::default() },
        );
        inodes.extend(bed.files_of(root.id).values().map(|file| (file.stat.device, file.stat.inode)));
    }
    let half = inodes.len() / 2;
    if inodes[..half] != inodes[half..] {
        eprintln!("NOT EXERCISED: the two filesystems have other numbers: {inodes:?}");
    }
    let copies: Vec<_> = bed.group_list().into_iter().map(|group| (group.size, group.copies)).collect();
    assert_eq!(copies.len(), 2);
    assert!(copies.iter().all(|(_, copies)| *copies == 2), "{copies:?}");
}

#[test]
fn disk_that_takes_the_place_of_another_is_read_again() {
    let bed = Bed::new();
    let place = bed.outside("disk");
    let times = |path: &Path| {
        let time = std::time::SystemTime::UNIX_EPOCH;
        let file = fs::File::options().write(true).open(path).expect("a file");
        file.set_times(fs::FileTimes::new().set_modified(time)).expect("a time");
    };
    bed.write("copy", &bytes(1, 500));
    let mut read = Vec::new();
    for seed in [1, 2] {
        let Some(_disk) = Mounted::new(&place) else { return };
        let root = bed.register(&place);
        write(&place.join("file"), &bytes(seed, 500));
        times(&place.join("file"));
        read.push(bed.scan_all(&[bed.root.clone(), root], &ScanOptions::default()).read_files);
        let groups = bed.groups_under(&bed.outside(""));
        assert_eq!(groups.len(), usize::from(seed == 1), "{groups:?}");
    }
    assert_eq!(read, [2, 1]);
}

#[test]
fn roots_remember_the_filters_of_their_last_scan() {
    let bed = Bed::of(&[("a", 1, 50)]);
    let filters = || bed.store.roots().list().expect("roots").remove(0).filters;
    bed.scan_with(&with_filter(Filter { min_size: Some(10), ..Filter::default() }));
    assert!(filters().is_some_and(|text| text.contains("\"min_size\":10")), "{:?}", filters());
    bed.scan_with(&mode(ScanMode::Refresh));
    assert!(filters().is_some(), "a refresh looks at what is known");
    bed.scan();
    assert_eq!(filters(), None);
}

#[test]
fn refresh_leaves_excluded_files_excluded() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("f/c", 1, 50)]);
    bed.scan();
    let exclude = Filter { exclude: vec!["b".into(), "f".into()], ..Filter::default() };
    bed.scan_with(&with_filter(exclude));
    bed.has_files(&["a"]);
    bed.scan_with(&mode(ScanMode::Refresh));
    bed.has_files(&["a"]);
    bed.has_groups(&[]);
    let summary = bed.scan();
    assert_eq!((summary.included_files, summary.read_files), (2, 0));
    bed.has_groups(&[&["a", "b", "f/c"]]);
}

/// On ext2 with small inodes times are whole seconds: a change within the second of the last one leaves the same time.
#[test]
fn change_within_a_coarse_timestamp_is_seen_by_the_next_scan() {
    let bed = Bed::new();
    let image = bed.outside("image");
    fs::File::create(&image).expect("a file").set_len(8 * MIB as u64).expect("its size");
    let made = std::process::Command::new("mke2fs")
        .args(["-q", "-t", "ext2", "-I", "128"])
        .arg(&image)
        .stderr(std::process::Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("NOT EXERCISED, because mke2fs cannot be run here");
        return;
    }
    let place = bed.outside("disk");
    let Some(_disk) = Mounted::image(&image, &place) else { return };
    let root = bed.register(&place);
    let scan = || bed.scan_all(std::slice::from_ref(&root), &ScanOptions::default());
    for (name, size) in [("small", 500), ("large", 2 * MIB)] {
        for other in ["", " copy"] {
            write(&place.join(format!("{name}{other}")), &bytes(1, size));
        }
    }
    scan();
    assert_eq!(bed.group_list().len(), 2);
    write(&place.join("small"), &bytes(2, 500));
    write(&place.join("large"), &bytes(2, 2 * MIB));
    scan();
    assert_eq!(bed.group_list().len(), 0, "both have changed");
}

#[test]
fn disk_that_is_unmounted_before_a_scan_is_resumed_loses_no_files() {
    let bed = Bed::new();
    let place = bed.outside("disk");
    let Some(disk) = Mounted::new(&place) else { return };
    let other = bed.register(&place);
    for folder in [place.join("f"), bed.at("f")] {
        write(&folder.join("file"), &bytes(1, 90_000));
    }
    let roots = [bed.root.clone(), other.clone()];
    stop_roots_when(&bed, &roots, &forever(), |progress| progress.bytes_read > 0, || ());
    drop(disk);
    let summary = bed.try_scan(&roots, &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.failed_roots), (0, 1), "{summary:?}");
    assert_eq!(missing(&bed, other.id), 0);
}

#[test]
fn folder_that_another_filesystem_was_mounted_on_loses_no_files_when_it_is_empty() {
    let bed = Bed::of(&[("a", 1, 50)]);
    let place = bed.at("disk");
    let Some(disk) = Mounted::new(&place) else { return };
    write(&place.join("b"), &bytes(1, 50));
    bed.scan();
    drop(disk);
    let summary = bed.try_scan(&all(&bed), &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.errors), (0, 1), "{summary:?}");
    bed.has_files(&["a", "disk/b"]);
    let summary = bed.scan_with(&ScanOptions { allow_empty: true, ..ScanOptions::default() });
    assert_eq!(summary.removed_files, 1);
}

/// Programs write into the folder of a disk that is not mounted, too.
#[test]
fn root_whose_disk_is_not_mounted_loses_no_files_though_its_folder_has_others() {
    let bed = Bed::of(&[("copy", 1, 50)]);
    let place = bed.outside("disk");
    let Some(disk) = Mounted::new(&place) else { return };
    let other = bed.register(&place);
    write(&place.join("file"), &bytes(1, 50));
    write(&place.join("f/file"), &bytes(2, 50));
    bed.scan_all(&all(&bed), &ScanOptions::default());
    drop(disk);
    write(&place.join(".stray"), b"");
    write(&place.join("f/file"), &bytes(1, 50));
    for mode in [ScanMode::Refresh, ScanMode::All] {
        let options = ScanOptions { mode, ..ScanOptions::default() };
        let summary = bed.try_scan(std::slice::from_ref(&other), &options, &Arc::default()).expect("a scan");
        assert_eq!(
            (summary.failed_roots, summary.new_files, summary.removed_files),
            (1, 0, 0),
            "{summary:?}"
        );
        assert!(summary.error_samples[0].contains("Is its disk mounted?"), "{summary:?}");
    }
    assert_eq!(missing(&bed, other.id), 0);
    assert_eq!(bed.groups_under(&bed.outside("")), sets(&[&["disk/file", "tree/copy"]]));
    let coverage = bed.coverage();
    assert!(!coverage.complete, "{coverage:?}");
    assert_eq!((&coverage.unfinished_roots, &coverage.absent_roots), (&vec![place.clone()], &vec![place]));
    let accepted = ScanOptions { allow_empty: true, ..ScanOptions::default() };
    let summary = bed.scan_all(std::slice::from_ref(&other), &accepted);
    assert_eq!((summary.errors, summary.new_files, summary.removed_files), (0, 1, 1), "{summary:?}");
    assert_eq!(bed.groups_under(&bed.outside("")), sets(&[&["disk/f/file", "tree/copy"]]));
    assert!(bed.coverage().complete);
}

#[test]
fn folder_that_another_filesystem_was_mounted_on_loses_no_files_though_it_has_others() {
    let bed = Bed::of(&[("a", 1, 50)]);
    let place = bed.at("disk");
    let Some(disk) = Mounted::new(&place) else { return };
    write(&place.join("b"), &bytes(1, 50));
    bed.scan();
    drop(disk);
    write(&place.join(".stray"), b"");
    let summary = bed.try_scan(&all(&bed), &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.errors), (0, 1), "{summary:?}");
    bed.has_files(&["a", "disk/b"]);
    assert!(!bed.coverage().complete);
    let summary = bed.scan_with(&ScanOptions { allow_empty: true, ..ScanOptions::default() });
    assert_eq!(summary.removed_files, 1);
    bed.has_files(&["a", "disk/.stray"]);
}

/// The stopped scan has recorded the new filesystem of some folders, and not of those in them.
#[test]
fn folders_of_a_disk_that_took_anothers_place_are_no_mount_points_after_a_stop() {
    let bed = Bed::new();
    let place = bed.outside("disk");
    let root = bed.register(&place);
    let roots = std::slice::from_ref(&root);
    for seed in [1, 2] {
        let Some(_disk) = Mounted::new(&place) else { return };
        for name in ["x", "y", "f/x", "f/y"] {
            write(&place.join(name), &bytes(seed, 500));
        }
        if seed == 2 {
            stop_roots_when(&bed, roots, &forever(), |progress| progress.bytes_read > 0, || ());
        }
        let summary = bed.scan_all(roots, &ScanOptions { restart: true, ..ScanOptions::default() });
        assert_eq!((summary.files, summary.errors), (4, 0), "{summary:?}");
    }
}

#[test]
fn files_that_match_the_filters_again_are_grouped_by_a_scan_that_reads_nothing() {
    let bed = Bed::of(&[("f/x", 1, 50), ("y", 1, 50)]);
    bed.scan();
    bed.scan_with(&with_filter(Filter { exclude: vec!["f".into()], ..Filter::default() }));
    bed.has_groups(&[]);
    bed.scan_with(&mode(ScanMode::Walk));
    bed.has_groups(&[&["f/x", "y"]]);
    assert!(bed.coverage().complete);
}

#[test]
fn empty_folder_of_a_disk_that_took_anothers_place_is_empty() {
    let bed = Bed::new();
    let place = bed.outside("disk");
    let root = bed.register(&place);
    for files in [1, 0] {
        let Some(_disk) = Mounted::new(&place) else { return };
        fs::create_dir(place.join("in")).expect("a folder");
        if files > 0 {
            write(&place.join("in/file"), &bytes(1, 50));
        }
        let summary = bed.scan_all(std::slice::from_ref(&root), &ScanOptions::default());
        assert_eq!((summary.files, summary.errors), (files, 0), "{summary:?}");
    }
    assert_eq!(missing(&bed, root.id), 1);
}

/// A file that could not be read before the stop is not tried again, and is unread all the same.
#[test]
fn resumed_scan_that_skips_unreadable_files_is_not_complete() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50)]);
    bed.scan_with(&mode(ScanMode::Walk));
    let unreadable = |id: std::path::PathBuf| {
        let (stat, finding) = (bed.files()[&id].stat, ReadResult::Failed("no".into()));
        HashedFile { id: bed.files()[&id].id, stat, result: finding }
    };
    let control = Arc::new(gristmill_dedup::ScanHandle::default());
    control.cancel();
    bed.try_scan(&all(&bed), &ScanOptions::default(), &control).expect("a scan");
    bed.store.catalog().record_shared(vec![unreadable("a".into())]).expect("recorded");
    assert!(bed.scan().resumed);
    let coverage = bed.coverage();
    assert_eq!((coverage.complete, coverage.unreadable_files), (false, 1), "{coverage:?}");
}
