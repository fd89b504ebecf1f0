//! Only what can be a duplicate is read, and nothing is read twice.

use gristmill_dedup::{ScanMode, ScanOptions, ScanSummary};
use gristmill_store::catalog::Algorithm;

use crate::bed::{Bed, KIB, MIB, bytes, mode, rewrite_secretly};

const LARGE: usize = 2 * MIB;
/// Blocks of a large file that are looked at: five of 16 KiB.
const EDGES: u64 = 5 * 16 * KIB as u64;

/// Files read through, probed, and bytes of both.
#[track_caller]
fn check(summary: &ScanSummary, read: u64, probed: u64, bytes: u64) {
    let found = (summary.read_files, summary.sampled_files, summary.read_bytes);
    assert_eq!(found, (read, probed, bytes), "{summary:?}");
}

fn with(algorithm: Algorithm) -> ScanOptions {
    ScanOptions { algorithm, ..ScanOptions::default() }
}

#[test]
fn a_file_of_a_size_of_its_own_is_never_opened() {
    let sizes: Vec<(String, usize)> = (1..40).map(|n| (format!("{n}"), n * 4_000)).collect();
    let bed = Bed::new();
    sizes.iter().for_each(|(name, size)| bed.write(name, &bytes(1, *size)));
    check(&bed.scan(), 0, 0, 0);
    // With one more, that one and its double are; whether small or large.
    bed.write("small", &bytes(1, 4_000));
    check(&bed.scan(), 2, 0, 8_000);
    bed.write("medium", &bytes(1, 100_000));
    check(&bed.scan(), 2, 2, 200_000 + 4 * 16 * KIB as u64);
    bed.has_groups(&[&["1", "small"], &["25", "medium"]]);
}

#[test]
fn empty_files_are_never_opened() {
    let bed = Bed::of(&[("a", 0, 0), ("b", 0, 0), ("c", 0, 0)]);
    check(&bed.scan(), 0, 0, 0);
    check(&bed.scan_with(&ScanOptions { every_file: true, ..ScanOptions::default() }), 0, 0, 0);
    bed.has_groups(&[]);
}

#[test]
fn large_files_that_differ_at_their_edges_are_only_probed() {
    let bed = Bed::of(&[("a", 1, LARGE), ("b", 2, LARGE), ("c", 3, LARGE)]);
    check(&bed.scan(), 0, 3, 3 * EDGES);
    // Also in the middle and at the quarters, where disk images differ.
    let (bed, content) = (Bed::new(), bytes(1, LARGE));
    for (name, place) in [("same", 5), ("quarter", LARGE / 4), ("half", LARGE / 2), ("last", LARGE - 1)] {
        let mut content = content.clone();
        content[place] ^= 1;
        bed.write(name, &content);
    }
    check(&bed.scan(), 0, 4, 4 * EDGES);
    // One that is like another there, and differs elsewhere: those two have to be read.
    let mut near = content;
    near[5] ^= 1;
    near[LARGE / 3] ^= 1;
    bed.write("near", &near);
    check(&bed.scan(), 2, 1, EDGES + 2 * LARGE as u64);
    bed.has_groups(&[]);
}

#[test]
fn what_is_as_it_was_is_not_read_again() {
    let bed = Bed::of(&[
        ("a", 1, 50),
        ("b", 1, 50),
        ("c", 2, 50),
        ("large/a", 3, LARGE),
        ("large/b", 3, LARGE),
        ("large/c", 4, LARGE),
    ]);
    check(&bed.scan(), 5, 3, 150 + 3 * EDGES + 2 * LARGE as u64);
    for workers in [1, 16] {
        let again = bed.scan_with(&ScanOptions { workers: Some(workers), ..ScanOptions::default() });
        check(&again, 0, 0, 0);
        assert_eq!((again.files, again.new_files, again.changed_files), (6, 0, 0));
        assert_eq!(again.duplicate_groups, 2);
    }
}

#[test]
fn only_what_was_touched_is_read_again() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 50), ("d", 1, LARGE), ("e", 1, LARGE)]);
    bed.scan();
    bed.write("b", &bytes(1, 50));
    let summary = bed.scan();
    check(&summary, 1, 0, 50);
    assert_eq!(summary.changed_files, 1);
    bed.has_groups(&[&["a", "b"], &["d", "e"]]);
    // Behind our back: the same size, and its time set back.
    rewrite_secretly(&bed.at("b"), &bytes(2, 50));
    check(&bed.scan(), 1, 0, 50);
    bed.has_groups(&[&["b", "c"], &["d", "e"]]);
    rewrite_secretly(&bed.at("e"), &bytes(2, LARGE));
    check(&bed.scan(), 0, 1, EDGES);
    bed.has_groups(&[&["b", "c"]]);
}

#[test]
fn names_of_one_inode_are_read_once() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 2, 50), ("c", 1, LARGE), ("d", 1, LARGE)]);
    for (from, to) in [("a", "a2"), ("a", "a3"), ("c", "c2")] {
        bed.link(from, to);
    }
    check(&bed.scan(), 4, 2, 100 + 2 * EDGES + 2 * LARGE as u64);
    bed.has_groups(&[&["c", "c2", "d"]]);
    check(&bed.scan(), 0, 0, 0);
    // Alone with its names: no reason to read it.
    let bed = Bed::of(&[("a", 1, 50)]);
    bed.link("a", "b");
    check(&bed.scan(), 0, 0, 0);
}

#[test]
fn every_file_is_hashed_if_that_is_asked_for() {
    let bed = Bed::of(&[("a", 1, 1), ("b", 2, 2), ("c", 3, LARGE), ("d", 4, LARGE), ("e", 0, 0)]);
    bed.scan();
    let every = ScanOptions { every_file: true, ..ScanOptions::default() };
    check(&bed.scan_with(&every), 4, 0, 3 + 2 * LARGE as u64);
    check(&bed.scan_with(&every), 0, 0, 0);
    for path in ["a", "b", "c", "d"] {
        assert_eq!(bed.row(path).algorithm, Some(Algorithm::Blake3), "{path}");
    }
    // In one go, too.
    let bed = Bed::of(&[("a", 1, 1), ("b", 2, 2), ("c", 3, LARGE), ("d", 3, LARGE)]);
    check(&bed.scan_with(&every), 4, 0, 3 + 2 * LARGE as u64);
    bed.has_groups(&[&["c", "d"]]);
}

#[test]
fn another_algorithm_hashes_again_and_says_so() {
    let bed = Bed::of(&[
        ("a", 1, 50),
        ("b", 1, 50),
        ("c", 2, 50),
        ("alone", 1, 51),
        ("d", 1, LARGE),
        ("e", 1, LARGE),
    ]);
    assert_eq!(bed.scan().rehashed_files, 0);
    let again = bed.scan_with(&with(Algorithm::Sha512));
    assert_eq!(again.rehashed_files, 5);
    check(&again, 5, 0, 150 + 2 * LARGE as u64);
    bed.has_groups(&[&["a", "b"], &["d", "e"]]);
    assert!(bed.group_list().iter().all(|group| group.algorithm == Algorithm::Sha512));
    let third = bed.scan_with(&with(Algorithm::Sha512));
    check(&third, 0, 0, 0);
    assert_eq!(third.rehashed_files, 0);
}

#[test]
fn what_has_a_hash_of_both_algorithms_is_not_read_again() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 2, 50)]);
    bed.scan_with(&ScanOptions { every_file: true, ..ScanOptions::default() });
    let again = bed.scan_with(&with(Algorithm::Sha256));
    assert_eq!((again.read_files, again.rehashed_files), (2, 2));
    // Something has changed, and it is neither of them.
    bed.write("alone", &bytes(3, 51));
    let third = bed.scan_with(&with(Algorithm::Sha256));
    assert_eq!((third.read_files, third.rehashed_files), (0, 0));
}

#[test]
fn a_new_file_is_compared_with_one_that_was_read_before() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 2, 50)]);
    check(&bed.scan(), 2, 0, 100);
    bed.has_groups(&[]);
    bed.write("c", &bytes(1, 50));
    check(&bed.scan(), 1, 0, 50);
    bed.has_groups(&[&["a", "c"]]);
    // One more of a group that is there.
    bed.write("d", &bytes(1, 50));
    check(&bed.scan(), 1, 0, 50);
    bed.has_groups(&[&["a", "c", "d"]]);
    // Two at once, like one that was alone.
    bed.write("e", &bytes(2, 50));
    bed.write("f", &bytes(2, 50));
    check(&bed.scan(), 2, 0, 100);
    bed.has_groups(&[&["a", "c", "d"], &["b", "e", "f"]]);
}

#[test]
fn a_walk_reads_nothing_and_a_reading_walks_nothing() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("c", 1, LARGE), ("d/e", 1, LARGE)]);
    let walked = bed.scan_with(&mode(ScanMode::Walk));
    check(&walked, 0, 0, 0);
    assert_eq!((walked.files, walked.folders), (4, 2));
    bed.has_groups(&[]);
    bed.write("new", &bytes(1, 50));
    let read = bed.scan_with(&mode(ScanMode::Hash));
    check(&read, 4, 2, 100 + 2 * EDGES + 2 * LARGE as u64);
    assert_eq!((read.files, read.folders), (0, 0));
    bed.has_groups(&[&["a", "b"], &["c", "d/e"]]);
    // Looks at what is known, and at nothing else.
    bed.remove("a");
    bed.write("b", &bytes(2, 51));
    let looked = bed.scan_with(&mode(ScanMode::Refresh));
    check(&looked, 0, 0, 0);
    assert_eq!((looked.new_files, looked.changed_files, looked.removed_files), (0, 1, 1));
    bed.has_files(&["b", "c", "d/e"]);
    bed.has_groups(&[&["c", "d/e"]]);
    assert_eq!(bed.scan().new_files, 1);
}

/// A scan that finds nothing new reads all the same what one that only walked has found.
#[test]
fn what_was_only_walked_is_read_by_the_next_scan() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 2, 60)]);
    bed.scan();
    bed.write("c", &bytes(1, 50));
    bed.scan_with(&mode(ScanMode::Walk));
    let summary = bed.scan();
    assert_eq!((summary.new_files, summary.read_files, summary.duplicate_groups), (0, 2, 1));
    // The same for one that only looked at what was known.
    bed.write("b", &bytes(1, 50));
    bed.scan_with(&mode(ScanMode::Refresh));
    assert_eq!((bed.scan().changed_files, bed.scan().duplicate_files), (0, 3));
    bed.has_groups(&[&["a", "b", "c"]]);
}

#[test]
fn the_first_groups_come_with_the_summary() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50), ("c", 2, 60), ("d", 2, 60)]);
    for top in [1, 2, 0, 9] {
        let summary = bed.scan_with(&ScanOptions { top, ..ScanOptions::default() });
        let sizes: Vec<u64> = summary.top.iter().map(|group| group.size).collect();
        assert_eq!(sizes, [60, 50][..top.min(2)]);
        assert_eq!((summary.duplicate_groups, summary.duplicate_files), (2, 4));
    }
}

#[test]
fn what_comes_back_is_compared_with_what_came_meanwhile() {
    let bed = Bed::of(&[("f/a", 1, 50), ("b", 2, 50)]);
    bed.scan();
    bed.take_away("f");
    bed.write("c", &bytes(1, 50));
    check(&bed.scan(), 1, 0, 50);
    bed.bring_back("f");
    let summary = bed.scan();
    assert_eq!(summary.returned_files, 1);
    check(&summary, 0, 0, 0);
    bed.has_groups(&[&["c", "f/a"]]);
}

/// What reading finds is written for the file as it is then. What was known of it before is not.
#[test]
fn a_file_that_changed_unseen_loses_its_hash_by_another_algorithm() {
    let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50)]);
    bed.scan();
    bed.has_groups(&[&["a", "b"]]);
    rewrite_secretly(&bed.at("a"), &bytes(2, 50));
    // Walks nothing: it learns that the file has changed only by reading it.
    bed.scan_with(&ScanOptions { mode: ScanMode::Hash, ..with(Algorithm::Sha256) });
    bed.has_groups(&[]);
    bed.scan_with(&with(Algorithm::Sha256));
    bed.has_groups(&[]);
}

#[test]
fn a_large_file_that_changed_unseen_loses_its_hash() {
    let bed = Bed::of(&[("a", 1, LARGE), ("b", 1, LARGE)]);
    bed.scan_with(&ScanOptions { every_file: true, ..ScanOptions::default() });
    rewrite_secretly(&bed.at("a"), &bytes(2, LARGE));
    bed.scan_with(&mode(ScanMode::Hash));
    bed.has_groups(&[]);
    bed.scan();
    bed.has_groups(&[]);
}

#[test]
fn a_name_that_was_given_to_another_file_says_nothing_of_its_old_inode() {
    let bed = Bed::of(&[("a", 1, 50), ("c", 2, 50)]);
    bed.link("a", "b");
    bed.scan_with(&mode(ScanMode::Walk));
    bed.remove("a");
    bed.write("a", &bytes(2, 50));
    bed.scan_with(&mode(ScanMode::Hash));
    bed.has_groups(&[&["a", "c"]]);
    bed.scan();
    bed.has_groups(&[&["a", "c"]]);
}
