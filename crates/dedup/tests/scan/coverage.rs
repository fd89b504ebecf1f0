//! Tests the reported coverage of the catalog.

use std::fs;

use gristmill_dedup::{ScanMode, ScanOptions};
use gristmill_store::catalog::{Algorithm, Batch, Digest, FileHash, FileRef, ReadResult};

use crate::fixture::{Fixture, MIB, bytes, mode, sets};
use crate::stop_and_resume::stop_when;

/// The result that a killed scan has written about a file it read.
fn file_hash(fixture: &Fixture, path: &str, result: ReadResult, racy: bool) -> FileHash {
    let row = fixture.row(path);
    FileHash { file: FileRef::Row(row.id), stat: row.stat, result, differs: false, racy }
}

fn record(fixture: &Fixture, hashes: Vec<FileHash>) {
    fixture.store.catalog().write(Batch { hashes, ..Batch::default() }).expect("recorded");
}

fn slow(algorithm: Algorithm) -> ScanOptions {
    options!(ScanOptions { algorithm, io_limit: Some(MIB as u64) })
}

#[test]
fn files_read_but_not_grouped_count_as_unread() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    let content = |seed| blake3::hash(&bytes(seed, 50)).as_bytes().to_vec();
    let hashes = [("a", 1), ("b", 1), ("c", 2)].map(|(path, seed)| {
        file_hash(&fixture, path, ReadResult::Content(Digest::unshared(Algorithm::Blake3, content(seed))), false)
    });
    record(&fixture, hashes.to_vec());
    let coverage = fixture.coverage();
    assert_eq!((coverage.complete, coverage.unread_files), (false, 2), "{coverage:?}");
    fixture.scan_with(&mode(ScanMode::Hash));
    fixture.assert_groups(&[&["a", "b"]]);
    assert!(fixture.coverage().complete);
}

#[test]
fn cancelled_scan_groups_the_files_it_has_read() {
    let fixture = Fixture::of(&[("n1", 0, 12 * MIB), ("n2", 0, 12 * MIB)]);
    for number in 1..=20 {
        fixture.write(format!("{number}"), &bytes(number, 50));
        fixture.write(format!("copy of {number}"), &bytes(number, 50));
    }
    // The small files, and samples of the large ones.
    stop_when(&fixture, &slow(Algorithm::Blake3), |progress| progress.read >= 42, || ());
    assert_eq!(fixture.groups().len(), 20);
    let coverage = fixture.coverage();
    assert_eq!((coverage.complete, coverage.unread_files), (false, 2), "{coverage:?}");
}

#[test]
fn cancelled_change_of_algorithm_keeps_the_groups_of_rehashed_files() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("n1", 2, 12 * MIB), ("n2", 2, 12 * MIB)]);
    fixture.scan();
    stop_when(&fixture, &slow(Algorithm::Sha256), |progress| progress.read >= 2, || ());
    assert_eq!(fixture.groups(), sets(&[&["a", "b"], &["n1", "n2"]]));
    assert_eq!(fixture.row("a").algorithm, Some(Algorithm::Sha256));
}

/// A racy name has lost its samples but has the hash.
#[test]
fn hard_links_share_samples() {
    let fixture = Fixture::of(&[("alone", 1, 70_000), ("q", 2, 70_000), ("r", 2, 70_000)]);
    fixture.link("q", "q too");
    fixture.scan();
    let samples = fixture.row("q").samples.expect("samples");
    record(&fixture, vec![file_hash(&fixture, "q too", ReadResult::Samples(samples), true)]);
    let digest = Digest::shared(Algorithm::Blake3, blake3::hash(&bytes(2, 70_000)).as_bytes().to_vec());
    let content = file_hash(&fixture, "q too", ReadResult::Content(digest), true);
    record(&fixture, vec![FileHash { differs: true, ..content }]);
    let row = fixture.row("q too");
    assert_eq!((row.samples, row.algorithm), (None, Some(Algorithm::Blake3)));
    assert!(fixture.coverage().complete, "{:?}", fixture.coverage());
    let summary = fixture.scan_with(&mode(ScanMode::Hash));
    assert_eq!(summary.read_files, 0, "{summary:?}");
    assert_eq!(fixture.row("alone").algorithm, None);
}

/// The outer root has not walked the folder of the removed root.
#[test]
fn folder_of_a_removed_root_is_unscanned_until_the_outer_root_is_scanned() {
    let fixture = Fixture::of(&[("in/a", 1, 9_000), ("x/b", 1, 9_000)]);
    fixture.scan();
    let inner = fixture.register(&fixture.at("in"));
    fixture.scan_all(&[fixture.root.clone(), inner.clone()], &ScanOptions::default());
    assert!(fixture.coverage().complete);
    fixture.store.roots().remove(inner.id).expect("removed");
    fixture.assert_sound();
    for _ in 0..2 {
        let coverage = fixture.coverage();
        assert!(!coverage.complete, "{coverage:?}");
        assert_eq!(coverage.unscanned_folders, [fixture.at("in")]);
        assert_eq!(coverage.unreadable_folders, 0);
        // A refresh ignores new files.
        fixture.scan_with(&mode(ScanMode::Refresh));
    }
    fixture.scan();
    fixture.assert_groups(&[&["in/a", "x/b"]]);
    assert!(fixture.coverage().complete);
}

#[test]
fn missing_or_excluded_folder_of_a_removed_root_leaves_coverage_complete() {
    let fixture = Fixture::of(&[("in/a", 1, 9_000), ("x/b", 1, 9_000)]);
    let outer = fixture.root.clone();
    fixture.scan();
    let exclude = options!(gristmill_dedup::Filter { exclude: vec!["out".into()] });
    let filtered = options!(ScanOptions { filter: exclude });
    for (path, options) in [("in", &ScanOptions::default()), ("out", &filtered), ("out/in", &filtered)] {
        let inner = fixture.register(&fixture.at(path));
        fixture.scan_all(&[outer.clone(), inner.clone()], options);
        fixture.store.roots().remove(inner.id).expect("removed");
        if path == "in" {
            fs::remove_dir_all(fixture.at(path)).expect("removed");
        }
        fixture.scan_all(std::slice::from_ref(&outer), options);
        assert!(fixture.coverage().complete, "{path}: {:?}", fixture.coverage());
    }
}

/// A refresh ignores new files in a folder that could not be read before.
#[cfg(unix)]
#[test]
fn refresh_leaves_an_unreadable_folder_unreadable() {
    use gristmill_store::catalog::{FolderRef, Listing, ListingStatus};
    let fixture = Fixture::of(&[("f/a", 1, 50), ("b", 1, 50)]);
    fixture.scan_with(&mode(ScanMode::Walk));
    let folder = FolderRef { root: fixture.root.id, id: None, path: "f".into() };
    let mut failed = Listing::new(1, folder);
    failed.status = ListingStatus::Failed("denied".to_owned());
    fixture.store.catalog().record(vec![failed]).expect("recorded");
    fixture.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(fixture.coverage().unreadable_folders, 1);
    fixture.scan();
    assert!(fixture.coverage().complete);
}
