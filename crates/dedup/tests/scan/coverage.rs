//! What the catalog says of its own completeness.

use std::fs;

use gristmill_dedup::{ScanMode, ScanOptions};
use gristmill_store::catalog::{Algorithm, Batch, FileHash, FileRef, ReadResult};

use crate::bed::{Bed, MIB, bytes, mode, sets};
use crate::stop::stop_when;

/// What a scan that was killed has written about a file that it read.
fn reading(bed: &Bed, path: &str, finding: ReadResult, racy: bool) -> FileHash {
    let row = bed.row(path);
    FileHash {
        file: FileRef::Row(row.id),
        stat: row.stat,
        result: finding,
        shared: false,
        differs: false,
        racy,
    }
}

fn record(bed: &Bed, readings: Vec<FileHash>) {
    bed.store.catalog().write(Batch { hashes: readings, ..Batch::default() }).expect("recorded");
}

fn slow(algorithm: Algorithm) -> ScanOptions {
    ScanOptions { algorithm, io_limit: Some(MIB as u64), ..ScanOptions::default() }
}

#[test]
fn files_that_were_read_and_are_in_no_group_yet_are_not_compared() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50)]);
    bed.scan_with(&mode(ScanMode::Walk));
    let content = |seed| blake3::hash(&bytes(seed, 50)).as_bytes().to_vec();
    let readings = [("a", 1), ("b", 1), ("c", 2)].map(|(path, seed)| {
        reading(&bed, path, ReadResult::Content(Algorithm::Blake3, content(seed)), false)
    });
    record(&bed, readings.to_vec());
    let coverage = bed.coverage();
    assert_eq!((coverage.complete, coverage.unread_files), (false, 2), "{coverage:?}");
    bed.scan_with(&mode(ScanMode::Hash));
    bed.has_groups(&[&["a", "b"]]);
    assert!(bed.coverage().complete);
}

#[test]
fn scan_that_is_stopped_groups_the_files_that_it_has_read() {
    let bed = Bed::of(&[("n1", 0, 12 * MIB), ("n2", 0, 12 * MIB)]);
    for number in 1..=20 {
        bed.write(format!("{number}"), &bytes(number, 50));
        bed.write(format!("copy of {number}"), &bytes(number, 50));
    }
    // The small ones, and blocks of the large ones.
    stop_when(&bed, &slow(Algorithm::Blake3), |progress| progress.read >= 42, || ());
    assert_eq!(bed.groups().len(), 20);
    let coverage = bed.coverage();
    assert_eq!((coverage.complete, coverage.unread_files), (false, 2), "{coverage:?}");
}

#[test]
fn stopped_change_of_hash_keeps_the_groups_of_files_that_were_read_again() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("n1", 2, 12 * MIB), ("n2", 2, 12 * MIB)]);
    bed.scan();
    stop_when(&bed, &slow(Algorithm::Sha256), |progress| progress.read >= 2, || ());
    assert_eq!(bed.groups(), sets(&[&["a", "b"], &["n1", "n2"]]));
    assert_eq!(bed.row("a").algorithm, Some(Algorithm::Sha256));
}

/// A name that was read shortly after a change has lost its samples, and has the hash.
#[test]
fn names_of_one_file_share_its_samples() {
    let bed = Bed::of(&[("alone", 1, 70_000), ("q", 2, 70_000), ("r", 2, 70_000)]);
    bed.link("q", "q too");
    bed.scan();
    let samples = bed.row("q").samples.expect("samples");
    record(&bed, vec![reading(&bed, "q too", ReadResult::Samples(samples), true)]);
    let content = ReadResult::Content(Algorithm::Blake3, blake3::hash(&bytes(2, 70_000)).as_bytes().to_vec());
    let content = reading(&bed, "q too", content, true);
    record(&bed, vec![FileHash { differs: true, shared: true, ..content }]);
    let row = bed.row("q too");
    assert_eq!((row.samples, row.algorithm), (None, Some(Algorithm::Blake3)));
    assert!(bed.coverage().complete, "{:?}", bed.coverage());
    let summary = bed.scan_with(&mode(ScanMode::Hash));
    assert_eq!(summary.read_files, 0, "{summary:?}");
    assert_eq!(bed.row("alone").algorithm, None);
}

/// The root around one that is removed has not looked at what was in it.
#[test]
fn folder_of_a_removed_root_is_not_known_until_the_root_around_it_is_scanned() {
    let bed = Bed::of(&[("in/a", 1, 9_000), ("x/b", 1, 9_000)]);
    bed.scan();
    let inner = bed.register(&bed.at("in"));
    bed.scan_all(&[bed.root.clone(), inner.clone()], &ScanOptions::default());
    assert!(bed.coverage().complete);
    bed.store.roots().remove(inner.id).expect("removed");
    bed.is_sound();
    for _ in 0..2 {
        let coverage = bed.coverage();
        assert!(!coverage.complete, "{coverage:?}");
        assert_eq!(coverage.unscanned_folders, [bed.at("in")]);
        assert_eq!(coverage.unreadable_folders, 0);
        // It looks for nothing new.
        bed.scan_with(&mode(ScanMode::Refresh));
    }
    bed.scan();
    bed.has_groups(&[&["in/a", "x/b"]]);
    assert!(bed.coverage().complete);
}

#[test]
fn folder_of_a_removed_root_that_is_gone_or_excluded_is_not_waited_for() {
    let bed = Bed::of(&[("in/a", 1, 9_000), ("x/b", 1, 9_000)]);
    let around = bed.root.clone();
    bed.scan();
    let exclude = gristmill_dedup::Filter { exclude: vec!["out".into()], ..Default::default() };
    let filtered = ScanOptions { filter: exclude, ..ScanOptions::default() };
    for (path, options) in [("in", &ScanOptions::default()), ("out", &filtered), ("out/in", &filtered)] {
        let inner = bed.register(&bed.at(path));
        bed.scan_all(&[around.clone(), inner.clone()], options);
        bed.store.roots().remove(inner.id).expect("removed");
        if path == "in" {
            fs::remove_dir_all(bed.at(path)).expect("removed");
        }
        bed.scan_all(std::slice::from_ref(&around), options);
        assert!(bed.coverage().complete, "{path}: {:?}", bed.coverage());
    }
}

/// A refresh passes over what is new in a folder that could not be read before.
#[cfg(unix)]
#[test]
fn refresh_does_not_make_an_unreadable_folder_known() {
    use gristmill_store::catalog::{FolderRef, Listing, ListingStatus};
    let bed = Bed::of(&[("f/a", 1, 50), ("b", 1, 50)]);
    bed.scan_with(&mode(ScanMode::Walk));
    let place = FolderRef { root: bed.root.id, id: None, path: "f".into() };
    let mut failed = Listing::new(1, place);
    failed.status = ListingStatus::Failed("denied".to_owned());
    bed.store.catalog().record(vec![failed]).expect("recorded");
    bed.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(bed.coverage().unreadable_folders, 1);
    bed.scan();
    assert!(bed.coverage().complete);
}
