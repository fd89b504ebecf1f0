//! Tests how rows reach the catalog while a scan runs: batches, waiting workers, and errors of writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gristmill_dedup::{Error, ScanHandle, ScanOptions};
use gristmill_store::catalog::Batch;

use crate::fixture::{Fixture, bytes};

/// More rows than one batch holds, added by many workers while the store's writer thread is held up.
#[test]
fn no_row_is_lost_when_workers_wait_for_the_writer() {
    const FOLDERS: u64 = 80;
    const FILES: u64 = 500;
    let fixture = Fixture::new();
    for number in 0..FOLDERS * FILES {
        // Every content is in two folders, so that hashes refer to rows of other batches.
        fixture.write(format!("{}/{number}", number % FOLDERS), &bytes(number / 2, 8));
    }
    let (release, released) = std::sync::mpsc::channel::<()>();
    let handle = Arc::new(ScanHandle::default());
    let (holding, files_when_held) = std::sync::mpsc::channel();
    let progress = handle.clone();
    let hold = move || {
        let _ = holding.send(progress.progress().files);
        let _ = released.recv();
        Batch::default()
    };
    // Few workers, because each one that waits has counted the files of a folder that are in no batch.
    let options = options!(ScanOptions { workers: Some(2) });
    let summary = std::thread::scope(|scope| {
        let scan =
            scope.spawn(|| fixture.try_scan(std::slice::from_ref(&fixture.root), &options, &handle).expect("a scan"));
        let wait_for_files = |files| {
            while handle.progress().files < files && !scan.is_finished() {
                std::thread::yield_now();
            }
        };
        wait_for_files(1);
        let held = fixture.store.catalog().queue(Duration::ZERO, hold, |written| written.map(drop)).expect("queued");
        // The batch is full with 17 folders of 500 files. Then each worker visits one more folder and waits.
        wait_for_files(9_000);
        // Workers that did not wait would find more files within this time.
        let until = Instant::now() + Duration::from_millis(200);
        while handle.progress().files < FOLDERS * FILES && Instant::now() < until {
            std::thread::yield_now();
        }
        let (before, now) = (files_when_held.recv().expect("held"), handle.progress().files);
        // Before the check, because a failed one waits for the scan.
        drop(release);
        assert!(now < before + 10_000, "{now} files were found, {before} before the writer was held up");
        held.wait().expect("written");
        scan.join().expect("no panic")
    });
    assert_eq!((summary.new_files, summary.read_files), (FOLDERS * FILES, FOLDERS * FILES));
    assert_eq!((summary.duplicate_groups, summary.duplicate_files), (FOLDERS * FILES / 2, FOLDERS * FILES));
    fixture.assert_sound();
    assert_eq!(fixture.scan().new_files, 0);
}

#[test]
fn error_of_a_write_cancels_the_scan_and_is_its_result() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("large/a", 2, 100_000), ("large/b", 2, 100_000)]);
    let path = fixture.folder.path().join("t.db");
    let handle = Arc::new(ScanHandle::default());
    // The reads wait, so the file is deleted while rows are collected.
    let options = options!(ScanOptions { io_limit: Some(1) });
    let error = std::thread::scope(|scope| {
        let scan = scope.spawn(|| fixture.try_scan(std::slice::from_ref(&fixture.root), &options, &handle));
        while handle.progress().to_read == 0 {
            std::thread::yield_now();
        }
        std::fs::remove_file(&path).expect("removed");
        scan.join().expect("no panic").expect_err("an error")
    });
    assert!(matches!(&error, Error::Store(gristmill_store::Error::Deleted(deleted)) if *deleted == path), "{error}");
    assert!(handle.is_cancelled());
}
