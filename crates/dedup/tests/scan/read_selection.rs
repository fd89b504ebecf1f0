//! Tests that only possible duplicates are read, and that no file is read twice.

use gristmill_dedup::{ScanMode, ScanOptions, ScanSummary};
use gristmill_store::catalog::Algorithm;

use crate::fixture::{Fixture, KIB, MIB, bytes, mode, rewrite_secretly};

const LARGE: usize = 2 * MIB;
/// Bytes sampled of a large file: five samples of 16 KiB.
const SAMPLED_BYTES: u64 = 5 * 16 * KIB as u64;

/// Checks the number of files read in full, of files sampled, and of bytes read.
#[track_caller]
fn check(summary: &ScanSummary, read: u64, sampled: u64, bytes: u64) {
    let found = (summary.read_files, summary.sampled_files, summary.read_bytes);
    assert_eq!(found, (read, sampled, bytes), "{summary:?}");
}

fn with(algorithm: Algorithm) -> ScanOptions {
    options!(ScanOptions { algorithm })
}

#[test]
fn file_with_a_unique_size_is_never_opened() {
    let sizes: Vec<(String, usize)> = (1..40).map(|n| (format!("{n}"), n * 4_000)).collect();
    let fixture = Fixture::new();
    sizes.iter().for_each(|(name, size)| fixture.write(name, &bytes(1, *size)));
    check(&fixture.scan(), 0, 0, 0);
    // A second file of a size makes both be read, whether small or large.
    fixture.write("small", &bytes(1, 4_000));
    check(&fixture.scan(), 2, 0, 8_000);
    fixture.write("medium", &bytes(1, 100_000));
    check(&fixture.scan(), 2, 2, 200_000 + 4 * 16 * KIB as u64);
    fixture.assert_groups(&[&["1", "small"], &["25", "medium"]]);
}

#[test]
fn empty_files_are_never_opened() {
    let fixture = Fixture::of(&[("a", 0, 0), ("b", 0, 0), ("c", 0, 0)]);
    check(&fixture.scan(), 0, 0, 0);
    check(&fixture.scan_with(&options!(ScanOptions { every_file: true })), 0, 0, 0);
    fixture.assert_groups(&[]);
}

#[test]
fn large_files_that_differ_in_their_samples_are_not_read_whole() {
    let fixture = Fixture::of(&[("a", 1, LARGE), ("b", 2, LARGE), ("c", 3, LARGE)]);
    check(&fixture.scan(), 0, 3, 3 * SAMPLED_BYTES);
    // Files can also differ at the middle and the quarters, as disk images do.
    let (fixture, content) = (Fixture::new(), bytes(1, LARGE));
    for (name, offset) in [("same", 5), ("quarter", LARGE / 4), ("half", LARGE / 2), ("last", LARGE - 1)] {
        let mut content = content.clone();
        content[offset] ^= 1;
        fixture.write(name, &content);
    }
    check(&fixture.scan(), 0, 4, 4 * SAMPLED_BYTES);
    // Two files that agree in all samples and differ elsewhere must be read in full.
    let mut near = content;
    near[5] ^= 1;
    near[LARGE / 3] ^= 1;
    fixture.write("near", &near);
    check(&fixture.scan(), 2, 1, SAMPLED_BYTES + 2 * LARGE as u64);
    fixture.assert_groups(&[]);
}

#[test]
fn unchanged_files_are_not_read_again() {
    let fixture = Fixture::of(&[
        ("a", 1, 50),
        ("b", 1, 50),
        ("c", 2, 50),
        ("large/a", 3, LARGE),
        ("large/b", 3, LARGE),
        ("large/c", 4, LARGE),
    ]);
    check(&fixture.scan(), 5, 3, 150 + 3 * SAMPLED_BYTES + 2 * LARGE as u64);
    for workers in [1, 16] {
        let again = fixture.scan_with(&options!(ScanOptions { workers: Some(workers) }));
        check(&again, 0, 0, 0);
        assert_eq!((again.files, again.new_files, again.changed_files), (6, 0, 0));
        assert_eq!(again.duplicate_groups, 2);
    }
}

#[test]
fn only_changed_files_are_read_again() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50), ("d", 1, LARGE), ("e", 1, LARGE)]);
    fixture.scan();
    fixture.write("b", &bytes(1, 50));
    let summary = fixture.scan();
    check(&summary, 1, 0, 50);
    assert_eq!(summary.changed_files, 1);
    fixture.assert_groups(&[&["a", "b"], &["d", "e"]]);
    // Rewritten with the same size and modification time.
    // Of a file without a duplicate only the samples are stored, so `c` is read again.
    rewrite_secretly(&fixture.at("b"), &bytes(2, 50));
    check(&fixture.scan(), 2, 0, 100);
    fixture.assert_groups(&[&["b", "c"], &["d", "e"]]);
    rewrite_secretly(&fixture.at("e"), &bytes(2, LARGE));
    check(&fixture.scan(), 0, 1, SAMPLED_BYTES);
    fixture.assert_groups(&[&["b", "c"]]);
}

#[test]
fn hard_links_are_read_once() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 2, 50), ("c", 1, LARGE), ("d", 1, LARGE)]);
    for (from, to) in [("a", "a2"), ("a", "a3"), ("c", "c2")] {
        fixture.link(from, to);
    }
    check(&fixture.scan(), 4, 2, 100 + 2 * SAMPLED_BYTES + 2 * LARGE as u64);
    fixture.assert_groups(&[&["c", "c2", "d"]]);
    check(&fixture.scan(), 0, 0, 0);
    // The names of one inode are no reason to read it.
    let fixture = Fixture::of(&[("a", 1, 50)]);
    fixture.link("a", "b");
    check(&fixture.scan(), 0, 0, 0);
}

#[test]
fn every_file_option_hashes_files_with_unique_sizes() {
    let fixture = Fixture::of(&[("a", 1, 1), ("b", 2, 2), ("c", 3, LARGE), ("d", 4, LARGE), ("e", 0, 0)]);
    fixture.scan();
    let every = options!(ScanOptions { every_file: true });
    check(&fixture.scan_with(&every), 4, 0, 3 + 2 * LARGE as u64);
    check(&fixture.scan_with(&every), 0, 0, 0);
    for path in ["a", "b", "c", "d"] {
        assert_eq!(fixture.row(path).algorithm, Some(Algorithm::Blake3), "{path}");
    }
    // Also in a single scan.
    let fixture = Fixture::of(&[("a", 1, 1), ("b", 2, 2), ("c", 3, LARGE), ("d", 3, LARGE)]);
    check(&fixture.scan_with(&every), 4, 0, 3 + 2 * LARGE as u64);
    fixture.assert_groups(&[&["c", "d"]]);
}

#[test]
fn change_of_algorithm_rehashes_and_counts_files() {
    let fixture =
        Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50), ("alone", 1, 51), ("d", 1, LARGE), ("e", 1, LARGE)]);
    assert_eq!(fixture.scan().rehashed_files, 0);
    let again = fixture.scan_with(&with(Algorithm::Sha512));
    assert_eq!(again.rehashed_files, 4);
    check(&again, 4, 0, 100 + 2 * LARGE as u64);
    fixture.assert_groups(&[&["a", "b"], &["d", "e"]]);
    assert!(fixture.group_list().iter().all(|group| group.key.algorithm == Algorithm::Sha512));
    let third = fixture.scan_with(&with(Algorithm::Sha512));
    check(&third, 0, 0, 0);
    assert_eq!(third.rehashed_files, 0);
}

#[test]
fn files_hashed_with_the_requested_algorithm_are_not_read_again() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    fixture.scan_with(&options!(ScanOptions { every_file: true }));
    let again = fixture.scan_with(&with(Algorithm::Sha256));
    assert_eq!((again.read_files, again.rehashed_files), (2, 2));
    // A change that concerns neither of the two.
    fixture.write("alone", &bytes(3, 51));
    let third = fixture.scan_with(&with(Algorithm::Sha256));
    assert_eq!((third.read_files, third.rehashed_files), (0, 0));
}

#[test]
fn new_file_is_compared_with_files_read_earlier() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 2, 50)]);
    check(&fixture.scan(), 2, 0, 100);
    fixture.assert_groups(&[]);
    fixture.write("c", &bytes(1, 50));
    // Of a file without a duplicate only the samples are stored, so `a` is read again.
    check(&fixture.scan(), 2, 0, 100);
    fixture.assert_groups(&[&["a", "c"]]);
    // Another file of an existing group.
    fixture.write("d", &bytes(1, 50));
    check(&fixture.scan(), 1, 0, 50);
    fixture.assert_groups(&[&["a", "c", "d"]]);
    // Two new files that equal a file without a group.
    fixture.write("e", &bytes(2, 50));
    fixture.write("f", &bytes(2, 50));
    check(&fixture.scan(), 3, 0, 150);
    fixture.assert_groups(&[&["a", "c", "d"], &["b", "e", "f"]]);
}

#[test]
fn each_scan_mode_does_only_its_part() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, LARGE), ("d/e", 1, LARGE)]);
    let walked = fixture.scan_with(&mode(ScanMode::Walk));
    check(&walked, 0, 0, 0);
    assert_eq!((walked.files, walked.folders), (4, 2));
    fixture.assert_groups(&[]);
    fixture.write("new", &bytes(1, 50));
    let read = fixture.scan_with(&mode(ScanMode::Hash));
    check(&read, 4, 2, 100 + 2 * SAMPLED_BYTES + 2 * LARGE as u64);
    assert_eq!((read.files, read.folders), (0, 0));
    fixture.assert_groups(&[&["a", "b"], &["c", "d/e"]]);
    // A refresh examines only known files.
    fixture.remove("a");
    fixture.write("b", &bytes(2, 51));
    let refreshed = fixture.scan_with(&mode(ScanMode::Refresh));
    check(&refreshed, 0, 0, 0);
    assert_eq!((refreshed.new_files, refreshed.changed_files, refreshed.removed_files), (0, 1, 1));
    fixture.assert_files(&["b", "c", "d/e"]);
    fixture.assert_groups(&[&["c", "d/e"]]);
    assert_eq!(fixture.scan().new_files, 1);
}

/// Applies even if the next scan finds no new files.
#[test]
fn files_recorded_by_a_walk_are_read_by_the_next_scan() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 2, 60)]);
    fixture.scan();
    fixture.write("c", &bytes(1, 50));
    fixture.scan_with(&mode(ScanMode::Walk));
    let summary = fixture.scan();
    assert_eq!((summary.new_files, summary.read_files, summary.duplicate_groups), (0, 2, 1));
    // The same after a refresh.
    fixture.write("b", &bytes(1, 50));
    fixture.scan_with(&mode(ScanMode::Refresh));
    assert_eq!((fixture.scan().changed_files, fixture.scan().duplicate_files), (0, 3));
    fixture.assert_groups(&[&["a", "b", "c"]]);
}

#[test]
fn summary_contains_the_requested_number_of_groups() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 60), ("d", 2, 60)]);
    for top in [1, 2, 0, 9] {
        let summary = fixture.scan_with(&options!(ScanOptions { top }));
        let sizes: Vec<u64> = summary.top.iter().map(|group| group.size).collect();
        assert_eq!(sizes, [60, 50][..top.min(2)]);
        assert_eq!((summary.duplicate_groups, summary.duplicate_files), (2, 4));
    }
}

#[test]
fn returned_file_is_compared_with_files_added_meanwhile() {
    let fixture = Fixture::of(&[("f/a", 1, 50), ("b", 2, 50)]);
    fixture.scan();
    fixture.move_away("f");
    fixture.write("c", &bytes(1, 50));
    check(&fixture.scan(), 1, 0, 50);
    fixture.move_back("f");
    let summary = fixture.scan();
    assert_eq!(summary.returned_files, 1);
    check(&summary, 2, 0, 100);
    fixture.assert_groups(&[&["c", "f/a"]]);
}

/// A result is recorded for the file as it was read, and replaces what was known before.
#[test]
fn file_changed_since_the_walk_loses_its_hash_of_another_algorithm() {
    let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
    fixture.scan();
    fixture.assert_groups(&[&["a", "b"]]);
    rewrite_secretly(&fixture.at("a"), &bytes(2, 50));
    // Does not walk, so it notices the change only by reading the file.
    fixture.scan_with(&options!(ScanOptions { mode: ScanMode::Hash; ..with(Algorithm::Sha256) }));
    fixture.assert_groups(&[]);
    fixture.scan_with(&with(Algorithm::Sha256));
    fixture.assert_groups(&[]);
}

#[test]
fn large_file_changed_since_the_walk_loses_its_hash() {
    let fixture = Fixture::of(&[("a", 1, LARGE), ("b", 1, LARGE)]);
    fixture.scan_with(&options!(ScanOptions { every_file: true }));
    rewrite_secretly(&fixture.at("a"), &bytes(2, LARGE));
    fixture.scan_with(&mode(ScanMode::Hash));
    fixture.assert_groups(&[]);
    fixture.scan();
    fixture.assert_groups(&[]);
}

#[test]
fn name_reused_by_another_file_does_not_get_the_hash_of_its_old_inode() {
    let fixture = Fixture::of(&[("a", 1, 50), ("c", 2, 50)]);
    fixture.link("a", "b");
    fixture.scan_with(&mode(ScanMode::Walk));
    fixture.remove("a");
    fixture.write("a", &bytes(2, 50));
    fixture.scan_with(&mode(ScanMode::Hash));
    fixture.assert_groups(&[&["a", "c"]]);
    fixture.scan();
    fixture.assert_groups(&[&["a", "c"]]);
}
