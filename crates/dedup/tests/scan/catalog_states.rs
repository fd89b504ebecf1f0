//! Tests scans on the state that an earlier scan left: cancelled, restarted with other options, with roots that were
//! unreachable meanwhile.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gristmill_dedup::{Coverage, Filter, ScanMode, ScanOptions};
use gristmill_store::catalog::{Batch, FileHash, ReadResult};
use gristmill_store::roots::Root;

use crate::fixture::{Fixture, MIB, Mounted, bytes, mode, sets, write};
use crate::stop_and_resume::{stop_roots_when, stop_when, throttled};

fn restart() -> ScanOptions {
    options!(ScanOptions { restart: true })
}

fn with_filter(filter: Filter) -> ScanOptions {
    options!(ScanOptions { filter })
}

/// A finished scan, followed by two files that a cancelled scan has recorded but not read.
fn with_unread_files() -> Fixture {
    let fixture = Fixture::of(&[("1", 1, 50), ("2", 1, 50)]);
    fixture.scan();
    fixture.write("n1", &bytes(2, 6 * MIB));
    fixture.write("n2", &bytes(2, 6 * MIB));
    stop_when(&fixture, &throttled(), |progress| progress.bytes_read > 0, || ());
    fixture
}

#[test]
fn files_left_unread_by_a_cancelled_scan_are_compared_by_the_next_one_with_any_options() {
    let exclude = options!(Filter { exclude: vec!["*.tmp".into()] });
    for options in [
        ScanOptions::default(),
        restart(),
        with_filter(exclude),
        with_filter(options!(Filter { skip_hidden: true })),
        with_filter(options!(Filter { min_size: Some(1) })),
        options!(ScanOptions { one_file_system: true }),
    ] {
        let fixture = with_unread_files();
        fixture.scan_with(&options);
        fixture.assert_groups(&[&["1", "2"], &["n1", "n2"]]);
        assert!(fixture.coverage().complete, "{options:?}");
    }
    let fixture = with_unread_files();
    fixture.store.roots().follow_links(fixture.root.id, true).expect("followed");
    fixture.scan_all(&fixture.store.roots().list().expect("roots"), &ScanOptions::default());
    fixture.assert_groups(&[&["1", "2"], &["n1", "n2"]]);
}

#[test]
fn coverage_counts_unread_files() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("alone", 3, 70)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    let Coverage { complete, unread_files, .. } = fixture.coverage();
    assert_eq!((complete, unread_files), (false, 2), "only files that share their size can be duplicates");
    fixture.scan();
    assert_eq!(fixture.coverage(), Coverage { complete: true, ..Coverage::default() });
    // A refresh detects the change but reads nothing.
    fixture.write("alone", &bytes(1, 50));
    fixture.scan_with(&mode(ScanMode::Refresh));
    let Coverage { complete, unread_files, .. } = fixture.coverage();
    assert_eq!((complete, unread_files), (false, 1));
    // A cancelled rescan.
    let fixture = with_unread_files();
    let Coverage { complete, unread_files, unfinished_roots, .. } = fixture.coverage();
    assert!(!complete && (1..=2).contains(&unread_files), "{unread_files}");
    assert_eq!(unfinished_roots, std::slice::from_ref(&fixture.root.path));
}

#[test]
fn cancelled_change_of_algorithm_leaves_coverage_incomplete() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    fixture.scan();
    let sha256 = gristmill_store::catalog::Algorithm::Sha256;
    // One file is read, the next one waits for the rate limit.
    let options = options!(ScanOptions { algorithm: sha256, io_limit: Some(1), workers: Some(1) });
    stop_when(&fixture, &options, |progress| progress.bytes_read > 0, || ());
    let coverage = fixture.coverage();
    assert!(!coverage.complete, "{coverage:?}");
    fixture.scan_with(&options!(ScanOptions { algorithm: sha256 }));
    fixture.assert_groups(&[&["a", "b", "c"]]);
    assert!(fixture.coverage().complete);
}

fn all(fixture: &Fixture) -> Vec<Root> {
    fixture.store.roots().list().expect("roots")
}

fn missing(fixture: &Fixture, root: i64) -> usize {
    fixture.files_of(root).values().filter(|file| file.missing).count()
}

#[test]
fn scan_of_one_root_marks_nothing_missing_in_a_root_that_is_not_reachable() {
    for mounted in [false, true] {
        let fixture = Fixture::new();
        let disk_path = fixture.outside("disk");
        let disk = if mounted { Mounted::new(&disk_path) } else { None };
        if mounted && disk.is_none() {
            continue;
        }
        let other = fixture.register(&disk_path);
        write(&disk_path.join("same"), &bytes(1, 50));
        write(&disk_path.join("same too"), &bytes(1, 50));
        write(&disk_path.join("of its size"), &bytes(2, 60));
        fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
        match disk {
            // The mount point still exists and is empty.
            Some(disk) => drop(disk),
            None => fs::rename(&disk_path, fixture.outside("away")).expect("moved"),
        }
        fixture.write("copy", &bytes(1, 50));
        fixture.write("perhaps", &bytes(2, 60));
        let summary = fixture.scan();
        assert_eq!((summary.removed_files, summary.errors), (0, 0), "{summary:?}");
        assert_eq!(missing(&fixture, other.id), 0);
        let expected = sets(&[&["disk/same", "disk/same too", "tree/copy"]]);
        assert_eq!(fixture.groups_under(&fixture.outside("")), expected, "hashes are kept");
        let coverage = fixture.coverage();
        assert!(!coverage.complete, "one file has the size of one that cannot be read now");
        assert_eq!((coverage.unread_files, coverage.unreachable_files), (1, 1));
        assert_eq!(coverage.absent_roots, std::slice::from_ref(&other.path));
        if !mounted {
            fs::rename(fixture.outside("away"), &disk_path).expect("moved");
            fixture.scan();
            let expected = sets(&[&["disk/same", "disk/same too", "tree/copy"], &["disk/of its size", "tree/perhaps"]]);
            assert_eq!(fixture.groups_under(&fixture.outside("")), expected);
            assert!(fixture.coverage().complete);
        }
    }
}

/// A scan of every file reads large ones in full and takes no samples.
#[test]
fn copy_of_a_large_file_in_an_unreachable_root_is_found_by_its_hash_alone() {
    let fixture = Fixture::new();
    let disk_path = fixture.outside("disk");
    let other = fixture.register(&disk_path);
    write(&disk_path.join("large"), &bytes(1, 90_000));
    let every_file = options!(ScanOptions { every_file: true });
    fixture.scan_all(std::slice::from_ref(&other), &every_file);
    fs::rename(&disk_path, fixture.outside("away")).expect("moved");
    fixture.write("copy", &bytes(1, 90_000));
    fixture.write("of its size", &bytes(2, 90_000));
    fixture.scan();
    assert_eq!(fixture.groups_under(&fixture.outside("")), sets(&[&["disk/large", "tree/copy"]]));
    assert!(fixture.coverage().complete);
}

#[test]
fn scan_of_an_unmounted_root_marks_nothing_missing_even_if_files_were_unread() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    fixture.move_away("a");
    fixture.move_away("b");
    let summary = fixture.try_scan(&all(&fixture), &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.failed_roots), (0, 1));
    fixture.assert_files(&["a", "b"]);
    let coverage = fixture.coverage();
    assert!(!coverage.complete && coverage.unreachable_files == 2, "{coverage:?}");
}

#[test]
fn unreachable_root_is_an_error_of_a_scan_that_only_reads() {
    for is_folder_missing in [false, true] {
        let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
        let other = fixture.register(&fixture.outside("other"));
        fixture.scan_with(&mode(ScanMode::Walk));
        fixture.move_away("a");
        fixture.move_away("b");
        if is_folder_missing {
            fs::remove_dir(&fixture.root.path).expect("removed");
        }
        let summary = fixture.scan_with(&mode(ScanMode::Hash));
        assert_eq!((summary.errors, summary.failed_roots, summary.read_files), (1, 1, 0), "{summary:?}");
        assert!(summary.error_samples[0].contains("tree: cannot be reached"), "{summary:?}");
        // It is no error of a scan of another root.
        let summary = fixture.scan_all(&[other], &mode(ScanMode::Hash));
        assert_eq!((summary.errors, summary.failed_roots), (0, 0), "{summary:?}");
    }
}

#[test]
fn removed_or_changed_file_of_another_root_is_left_to_a_scan_of_that_root() {
    let fixture = Fixture::new();
    let other = fixture.register(&fixture.outside("other"));
    for (name, size) in [("gone", 50), ("changed", 60), ("kept", 70)] {
        write(&fixture.outside("other").join(name), &bytes(1, size));
    }
    fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
    fs::remove_file(fixture.outside("other/gone")).expect("removed");
    write(&fixture.outside("other/changed"), &bytes(2, 61));
    for (name, size) in [("x", 50), ("y", 60), ("z", 70)] {
        fixture.write(name, &bytes(1, size));
    }
    let summary = fixture.scan();
    assert_eq!((summary.removed_files, summary.errors, summary.uncompared_files), (0, 0, 2));
    assert_eq!(missing(&fixture, other.id), 0);
    assert_eq!(fixture.groups_under(&fixture.outside("")), sets(&[&["other/kept", "tree/z"]]));
    assert_eq!(fixture.coverage().unread_files, 2);
    fixture.scan_all(&all(&fixture), &ScanOptions::default());
    assert_eq!(missing(&fixture, other.id), 1);
    assert!(fixture.coverage().complete);
}

/// Two disks mounted in turn get the same device number, and their first files the same inode numbers.
#[test]
fn files_of_disks_mounted_in_turn_on_one_device_number_are_not_hard_links() {
    let fixture = Fixture::new();
    let mut inodes = Vec::new();
    for name in ["first", "second"] {
        let disk_path = fixture.outside(name);
        let Some(_disk) = Mounted::new(&disk_path) else { return };
        let root = fixture.register(&disk_path);
        write(&disk_path.join("file"), &bytes(1, 5_000));
        write(&disk_path.join("linked"), &bytes(2, 6_000));
        fs::hard_link(disk_path.join("linked"), disk_path.join("linked too")).expect("a hard link");
        fixture.scan_all(std::slice::from_ref(&root), &options!(ScanOptions { every_file: true }));
        inodes.extend(fixture.files_of(root.id).values().map(|file| (file.stat.device, file.stat.inode)));
    }
    let half = inodes.len() / 2;
    if inodes[..half] != inodes[half..] {
        eprintln!("NOT EXERCISED: the two filesystems have other numbers: {inodes:?}");
    }
    let copies: Vec<_> = fixture.group_list().into_iter().map(|group| (group.size, group.copies)).collect();
    assert_eq!(copies.len(), 2);
    assert!(copies.iter().all(|(_, copies)| *copies == 2), "{copies:?}");
}

#[test]
fn disk_mounted_in_place_of_another_is_read_again() {
    let fixture = Fixture::new();
    let disk_path = fixture.outside("disk");
    let reset_mtime = |path: &Path| {
        let time = std::time::SystemTime::UNIX_EPOCH;
        let file = fs::File::options().write(true).open(path).expect("a file");
        file.set_times(fs::FileTimes::new().set_modified(time)).expect("a time");
    };
    fixture.write("copy", &bytes(1, 500));
    let mut read = Vec::new();
    for seed in [1, 2] {
        let Some(_disk) = Mounted::new(&disk_path) else { return };
        let root = fixture.register(&disk_path);
        write(&disk_path.join("file"), &bytes(seed, 500));
        reset_mtime(&disk_path.join("file"));
        read.push(fixture.scan_all(&[fixture.root.clone(), root], &ScanOptions::default()).read_files);
        let groups = fixture.groups_under(&fixture.outside(""));
        assert_eq!(groups.len(), usize::from(seed == 1), "{groups:?}");
    }
    assert_eq!(read, [2, 1]);
}

#[test]
fn roots_remember_the_filters_of_their_last_scan() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let filters = || fixture.store.roots().list().expect("roots").remove(0).filters;
    fixture.scan_with(&with_filter(options!(Filter { min_size: Some(10) })));
    assert!(filters().is_some_and(|text| text.contains("\"min_size\":10")), "{:?}", filters());
    fixture.scan_with(&mode(ScanMode::Refresh));
    assert!(filters().is_some(), "a refresh keeps the filters");
    fixture.scan();
    assert_eq!(filters(), None);
}

#[test]
fn refresh_leaves_excluded_files_excluded() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("f/c", 1, 50)]);
    fixture.scan();
    let exclude = options!(Filter { exclude: vec!["b".into(), "f".into()] });
    fixture.scan_with(&with_filter(exclude));
    fixture.assert_files(&["a"]);
    fixture.scan_with(&mode(ScanMode::Refresh));
    fixture.assert_files(&["a"]);
    fixture.assert_groups(&[]);
    let summary = fixture.scan();
    assert_eq!((summary.included_files, summary.read_files), (2, 0));
    fixture.assert_groups(&[&["a", "b", "f/c"]]);
}

/// On ext2 with small inodes, timestamps are whole seconds: a change within the second of the last one leaves the same
/// timestamp.
#[test]
fn change_within_a_coarse_timestamp_is_seen_by_the_next_scan() {
    let fixture = Fixture::new();
    let image = fixture.outside("image");
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
    let disk_path = fixture.outside("disk");
    let Some(_disk) = Mounted::image(&image, &disk_path) else { return };
    let root = fixture.register(&disk_path);
    let scan = || fixture.scan_all(std::slice::from_ref(&root), &ScanOptions::default());
    for (name, size) in [("small", 500), ("large", 2 * MIB)] {
        for other in ["", " copy"] {
            write(&disk_path.join(format!("{name}{other}")), &bytes(1, size));
        }
    }
    scan();
    assert_eq!(fixture.group_list().len(), 2);
    write(&disk_path.join("small"), &bytes(2, 500));
    write(&disk_path.join("large"), &bytes(2, 2 * MIB));
    scan();
    assert_eq!(fixture.group_list().len(), 0, "both have changed");
}

#[test]
fn disk_unmounted_before_a_scan_is_resumed_loses_no_files() {
    let fixture = Fixture::new();
    let disk_path = fixture.outside("disk");
    let Some(disk) = Mounted::new(&disk_path) else { return };
    let other = fixture.register(&disk_path);
    for folder in [disk_path.join("f"), fixture.at("f")] {
        write(&folder.join("file"), &bytes(1, 90_000));
    }
    let roots = [fixture.root.clone(), other.clone()];
    stop_roots_when(&fixture, &roots, &throttled(), |progress| progress.bytes_read > 0, || ());
    drop(disk);
    let summary = fixture.try_scan(&roots, &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.failed_roots), (0, 1), "{summary:?}");
    assert_eq!(missing(&fixture, other.id), 0);
}

#[test]
fn unmounted_mount_point_that_is_empty_loses_no_files() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let disk_path = fixture.at("disk");
    let Some(disk) = Mounted::new(&disk_path) else { return };
    write(&disk_path.join("b"), &bytes(1, 50));
    fixture.scan();
    drop(disk);
    let summary = fixture.try_scan(&all(&fixture), &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.errors), (0, 1), "{summary:?}");
    fixture.assert_files(&["a", "disk/b"]);
    let summary = fixture.scan_with(&options!(ScanOptions { allow_empty: true }));
    assert_eq!(summary.removed_files, 1);
}

/// Programs may write into the mount point of an unmounted disk.
#[test]
fn unmounted_root_that_contains_other_files_loses_no_files() {
    let fixture = Fixture::of(&[("copy", 1, 50)]);
    let disk_path = fixture.outside("disk");
    let Some(disk) = Mounted::new(&disk_path) else { return };
    let other = fixture.register(&disk_path);
    write(&disk_path.join("file"), &bytes(1, 50));
    write(&disk_path.join("f/file"), &bytes(2, 50));
    fixture.scan_all(&all(&fixture), &ScanOptions::default());
    drop(disk);
    write(&disk_path.join(".stray"), b"");
    write(&disk_path.join("f/file"), &bytes(1, 50));
    for mode in [ScanMode::Refresh, ScanMode::All] {
        let options = options!(ScanOptions { mode });
        let summary = fixture.try_scan(std::slice::from_ref(&other), &options, &Arc::default()).expect("a scan");
        assert_eq!((summary.failed_roots, summary.new_files, summary.removed_files), (1, 0, 0), "{summary:?}");
        assert!(summary.error_samples[0].contains("Is its disk mounted?"), "{summary:?}");
    }
    assert_eq!(missing(&fixture, other.id), 0);
    assert_eq!(fixture.groups_under(&fixture.outside("")), sets(&[&["disk/file", "tree/copy"]]));
    let coverage = fixture.coverage();
    assert!(!coverage.complete, "{coverage:?}");
    assert_eq!((&coverage.unfinished_roots, &coverage.absent_roots), (&vec![disk_path.clone()], &vec![disk_path]));
    let accepted = options!(ScanOptions { allow_empty: true });
    let summary = fixture.scan_all(std::slice::from_ref(&other), &accepted);
    assert_eq!((summary.errors, summary.new_files, summary.removed_files), (0, 1, 1), "{summary:?}");
    assert_eq!(fixture.groups_under(&fixture.outside("")), sets(&[&["disk/f/file", "tree/copy"]]));
    assert!(fixture.coverage().complete);
}

#[test]
fn unmounted_mount_point_that_contains_other_files_loses_no_files() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    let disk_path = fixture.at("disk");
    let Some(disk) = Mounted::new(&disk_path) else { return };
    write(&disk_path.join("b"), &bytes(1, 50));
    fixture.scan();
    drop(disk);
    write(&disk_path.join(".stray"), b"");
    let summary = fixture.try_scan(&all(&fixture), &ScanOptions::default(), &Arc::default()).expect("a scan");
    assert_eq!((summary.removed_files, summary.errors), (0, 1), "{summary:?}");
    fixture.assert_files(&["a", "disk/b"]);
    assert!(!fixture.coverage().complete);
    let summary = fixture.scan_with(&options!(ScanOptions { allow_empty: true }));
    assert_eq!(summary.removed_files, 1);
    fixture.assert_files(&["a", "disk/.stray"]);
}

/// The cancelled scan has recorded the new filesystem of some folders, but not of their subfolders.
#[test]
fn folders_of_a_replacement_disk_are_not_mount_points_after_a_cancelled_scan() {
    let fixture = Fixture::new();
    let disk_path = fixture.outside("disk");
    let root = fixture.register(&disk_path);
    let roots = std::slice::from_ref(&root);
    for seed in [1, 2] {
        let Some(_disk) = Mounted::new(&disk_path) else { return };
        for name in ["x", "y", "f/x", "f/y"] {
            write(&disk_path.join(name), &bytes(seed, 500));
        }
        if seed == 2 {
            stop_roots_when(&fixture, roots, &throttled(), |progress| progress.bytes_read > 0, || ());
        }
        let summary = fixture.scan_all(roots, &options!(ScanOptions { restart: true }));
        assert_eq!((summary.files, summary.errors), (4, 0), "{summary:?}");
    }
}

#[test]
fn files_that_match_the_filters_again_are_grouped_by_a_scan_that_reads_nothing() {
    let fixture = Fixture::of(&[("f/x", 1, 50), ("y", 1, 50)]);
    fixture.scan();
    fixture.scan_with(&with_filter(options!(Filter { exclude: vec!["f".into()] })));
    fixture.assert_groups(&[]);
    fixture.scan_with(&mode(ScanMode::Walk));
    fixture.assert_groups(&[&["f/x", "y"]]);
    assert!(fixture.coverage().complete);
}

#[test]
fn empty_folder_of_a_replacement_disk_is_accepted() {
    let fixture = Fixture::new();
    let disk_path = fixture.outside("disk");
    let root = fixture.register(&disk_path);
    for files in [1, 0] {
        let Some(_disk) = Mounted::new(&disk_path) else { return };
        fs::create_dir(disk_path.join("in")).expect("a folder");
        if files > 0 {
            write(&disk_path.join("in/file"), &bytes(1, 50));
        }
        let summary = fixture.scan_all(std::slice::from_ref(&root), &ScanOptions::default());
        assert_eq!((summary.files, summary.errors), (files, 0), "{summary:?}");
    }
    assert_eq!(missing(&fixture, root.id), 1);
}

/// A file that failed before the cancellation is not retried, but still counts as unread and as an error.
#[test]
fn resumed_scan_that_skips_unreadable_files_is_not_complete() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    let unreadable = |id: std::path::PathBuf| {
        let (stat, result) = (fixture.files()[&id].stat, ReadResult::Failed("no".into()));
        FileHash::of_row(fixture.files()[&id].id, stat, result)
    };
    let handle = Arc::new(gristmill_dedup::ScanHandle::default());
    handle.cancel();
    fixture.try_scan(&all(&fixture), &ScanOptions::default(), &handle).expect("a scan");
    fixture
        .store
        .catalog()
        .write(Batch { hashes: vec![unreadable("a".into())], ..Batch::default() })
        .expect("recorded");
    let summary = fixture.scan();
    assert_eq!((summary.resumed, summary.errors), (true, 1), "{summary:?}");
    assert!(summary.error_samples[0].contains("tree/a: could not be read"), "{summary:?}");
    let coverage = fixture.coverage();
    assert_eq!((coverage.complete, coverage.unreadable_files), (false, 1), "{coverage:?}");
}
