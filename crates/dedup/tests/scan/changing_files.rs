//! Tests files that other programs write while they are read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gristmill_dedup::{ScanMode, ScanOptions};

use crate::fixture::{Fixture, KIB, bytes, mode, rewrite_secretly};

/// Slow enough for a file to change while its read waits.
fn slowly(rate: u64) -> ScanOptions {
    options!(ScanOptions { io_limit: Some(rate) })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes to a file, and changes its size within `sizes`, until `body` returns.
fn while_writing<T>(path: &Path, sizes: std::ops::Range<u64>, body: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = File::options().write(true).open(path).expect("a file");
            for number in 0_u64.. {
                file.write_all_at(&number.to_le_bytes(), 0).expect("written");
                file.set_len(sizes.start + number % (sizes.end - sizes.start)).expect("its size");
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
            file.set_len(sizes.start).expect("its size");
        });
        // Also stops the writer if `body` panics.
        let end = SetOnDrop(&done);
        let result = body();
        drop(end);
        writer.join().expect("a writer");
        result
    })
}

/// Number of scans to try, because a writer that is not scheduled during a read lets the file be read.
const MAX_SCANS: usize = 100;

#[track_caller]
fn check(size: usize, sizes: u64, rate: u64) {
    let fixture = Fixture::of(&[
        ("busy", 9, size),
        // Whichever size the walk sees, another file has it too.
        ("same size", 1, size),
        ("same size too", 1, size),
        ("one more", 1, size + 1),
    ]);
    let summary = while_writing(&fixture.at("busy"), size as u64..size as u64 + sizes, || {
        let mut scans = (0..MAX_SCANS).map(|_| fixture.scan_with(&slowly(rate)));
        scans.find(|summary| summary.errors > 0).expect("the file changes during a read")
    });
    assert_eq!((summary.errors, summary.removed_files), (1, 0), "{summary:?}");
    assert!(fixture.row("busy").failed);
    assert_eq!(fixture.row("busy").algorithm, None);
    for path in ["same size", "same size too", "one more"] {
        assert!(!fixture.row(path).failed, "{path}");
    }
    fixture.assert_groups(&[&["same size", "same size too"]]);
    // The file no longer changes.
    let summary = fixture.scan();
    assert_eq!(summary.errors, 0, "{summary:?}");
    assert!(!fixture.row("busy").failed);
    fixture.assert_groups(&[&["same size", "same size too"]]);
    fixture.write("busy", &bytes(1, size));
    fixture.scan();
    fixture.assert_groups(&[&["busy", "same size", "same size too"]]);
}

#[test]
fn file_that_keeps_changing_fails_and_others_do_not() {
    check(2_000, 2, 20_000);
    // The size stays equal; only timestamps and content change.
    check(2_000, 1, 20_000);
}

#[test]
fn large_file_that_keeps_changing_fails_and_others_do_not() {
    check(100 * KIB, 2, 400_000);
}

/// The file changes between the walk and the read.
#[test]
fn file_changed_since_the_walk_is_recorded_as_read() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50), ("grown", 1, 50), ("d", 3, 90)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    rewrite_secretly(&fixture.at("b"), &bytes(2, 50));
    fixture.write("grown", &bytes(3, 90));
    let summary = fixture.scan_with(&mode(ScanMode::Hash));
    assert_eq!((summary.errors, summary.removed_files), (0, 0));
    fixture.assert_groups(&[&["b", "c"]]);
    assert_eq!(fixture.row("grown").stat.size, 90);
}

#[test]
fn file_changed_since_the_walk_is_compared_by_the_next_scan() {
    for size in [90, 90_000] {
        let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 3, size)]);
        fixture.scan_with(&mode(ScanMode::Walk));
        fixture.write("b", &bytes(3, size));
        fixture.scan_with(&mode(ScanMode::Hash));
        // It now has the size of another file, which has not been read yet.
        fixture.scan();
        fixture.assert_groups(&[&["b", "c"]]);
    }
}

#[test]
fn file_replaced_by_a_pipe_is_not_read_and_only_a_walk_marks_it_missing() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, 50)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    fs::remove_file(fixture.at("a")).expect("removed");
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, fixture.at("a"), pipe, rustix::fs::Mode::RWXU, 0).expect("a pipe");
    let summary = fixture.scan_with(&mode(ScanMode::Hash));
    assert_eq!((summary.errors, summary.removed_files), (0, 0));
    fixture.assert_groups(&[&["b", "c"]]);
    assert_eq!(fixture.coverage().unread_files, 1);
    assert_eq!(fixture.scan().removed_files, 1);
    assert!(fixture.coverage().complete);
}

#[test]
fn file_replaced_by_a_symlink_before_reading_is_not_followed() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("f/c", 2, 50)]);
    let outside = fixture.outside("secret");
    crate::fixture::write(&outside.join("c"), &bytes(1, 50));
    fixture.scan_with(&mode(ScanMode::Walk));
    fixture.remove("a");
    fixture.symlink(outside.join("c"), "a");
    fixture.remove("f");
    fixture.symlink(&outside, "f");
    fixture.scan_with(&mode(ScanMode::Hash));
    fixture.assert_groups(&[]);
    fixture.scan();
    fixture.assert_files(&["b"]);
}
