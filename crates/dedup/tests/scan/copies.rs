//! Tests the search for copies of given files.

use std::fs;
use std::path::{Path, PathBuf};

use gristmill_dedup::copies::{Copies, CopiesOptions, CopyState, FileAnswer, FileCopies, copies};
use gristmill_dedup::{ScanMode, ScanOptions};
use gristmill_store::catalog::{Algorithm, Batch, Digest, FileHash, FileRef, ReadResult};

use crate::fixture::{ALGORITHMS, Fixture, KIB, MIB, bytes, mode, rewrite_secretly, write};

const SIZES: [usize; 4] = [1, 64 * KIB, 64 * KIB + 1, 2 * MIB];

fn ask(fixture: &Fixture, files: &[PathBuf]) -> Copies {
    copies(&fixture.store, files, &CopiesOptions::default()).expect("an answer")
}

#[track_caller]
fn found(fixture: &Fixture, file: &Path) -> FileCopies {
    match ask(fixture, &[file.to_path_buf()]).files.remove(0) {
        FileAnswer::Found(found) => found,
        FileAnswer::Failed(failed) => panic!("{failed:?}"),
    }
}

/// Returns the paths in a state, relative to the folder of the fixture.
fn paths(fixture: &Fixture, found: &FileCopies, state: CopyState) -> Vec<String> {
    let top = fixture.outside("");
    let files = found.files.iter().filter(|file| file.state == state);
    files.map(|file| file.location.path.strip_prefix(&top).expect("inside").to_str().expect("UTF-8").into()).collect()
}

/// Checks the copies of a file, and that nothing else is listed.
#[track_caller]
fn check(fixture: &Fixture, file: &Path, expected: &[&str]) {
    let found = found(fixture, file);
    assert_eq!(paths(fixture, &found, CopyState::Copy), expected, "{found:?}");
    assert!(found.complete && found.files.len() == expected.len(), "{found:?}");
    assert_eq!(found.copies, expected.len() as u64);
}

#[test]
fn copies_of_a_scanned_file_come_from_its_group() {
    for size in SIZES {
        let fixture = Fixture::of(&[("a", 1, size), ("d/b", 1, size), ("c", 2, size), ("e", 2, size + 1)]);
        fixture.scan();
        check(&fixture, &fixture.at("a"), &["tree/d/b"]);
        check(&fixture, &fixture.at("d/b"), &["tree/a"]);
        check(&fixture, &fixture.at("c"), &[]);
        check(&fixture, &fixture.at("e"), &[]);
        assert!(found(&fixture, &fixture.at("a")).in_catalog);
    }
}

#[test]
fn file_outside_the_catalog_is_compared_whatever_the_catalog_knows() {
    for (algorithm, every_file) in [(Algorithm::Blake3, false), (Algorithm::Sha256, false), (Algorithm::Sha3, true)] {
        for size in SIZES {
            // A group, a file with samples or a hash only, and a file of which nothing is known.
            let fixture = Fixture::of(&[("a", 1, size), ("b", 1, size), ("c", 2, size), ("d", 3, size + 7)]);
            fixture.scan_with(&options!(ScanOptions { algorithm, every_file }));
            for (seed, size, expected) in [
                (1, size, &["tree/a", "tree/b"][..]),
                (2, size, &["tree/c"]),
                (3, size + 7, &["tree/d"]),
                (4, size, if size == 1 { &["tree/c"][..0] } else { &[] }),
                (4, size + 7, &[]),
            ] {
                let file = fixture.outside("file");
                write(&file, &bytes(seed, size));
                check(&fixture, &file, expected);
                assert!(!found(&fixture, &file).in_catalog);
            }
        }
    }
}

#[test]
fn file_has_the_root_that_contains_it_whether_or_not_it_was_scanned() {
    let fixture = Fixture::of(&[("a", 1, 500)]);
    fixture.scan();
    fixture.write("new", &bytes(1, 500));
    write(&fixture.outside("file"), &bytes(1, 500));
    let root = Some(fixture.root.path.clone());
    for (file, expected) in [(fixture.at("a"), &root), (fixture.at("new"), &root), (fixture.outside("file"), &None)] {
        assert_eq!(&found(&fixture, &file).location.root, expected, "{}", file.display());
    }
}

#[test]
fn files_that_differ_outside_the_samples_are_no_copies() {
    for size in [80 * KIB, 2 * MIB] {
        let fixture = Fixture::new();
        let mut content = bytes(1, size);
        fixture.write("a", &content);
        fixture.scan();
        content[size * 2 / 5] ^= 1;
        write(&fixture.outside("file"), &content);
        check(&fixture, &fixture.outside("file"), &[]);
    }
}

#[test]
fn file_is_compared_after_a_walk_without_reading() {
    for size in SIZES {
        let fixture = Fixture::of(&[("a", 1, size), ("b", 1, size), ("c", 2, size)]);
        fixture.scan_with(&mode(ScanMode::Walk));
        check(&fixture, &fixture.at("a"), &["tree/b"]);
        assert!(ask(&fixture, &[fixture.at("a")]).coverage.complete);
    }
}

#[test]
fn file_that_changed_since_its_scan_is_read_again() {
    for size in SIZES {
        let fixture = Fixture::of(&[("a", 1, size), ("b", 1, size), ("c", 2, size)]);
        fixture.scan();
        rewrite_secretly(&fixture.at("a"), &bytes(2, size));
        check(&fixture, &fixture.at("a"), &["tree/c"]);
        assert!(!found(&fixture, &fixture.at("a")).in_catalog);
    }
}

#[test]
fn copy_that_changed_since_its_scan_is_reported_as_changed() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 1, 500), ("c", 1, 500), ("d", 1, 500), ("e", 1, 500)]);
    fixture.scan();
    rewrite_secretly(&fixture.at("b"), &bytes(2, 500));
    fixture.write("c", b"shorter");
    fixture.remove("d");
    let answer = found(&fixture, &fixture.at("a"));
    assert_eq!(paths(&fixture, &answer, CopyState::Copy), ["tree/e"]);
    assert_eq!(paths(&fixture, &answer, CopyState::Changed), ["tree/b", "tree/c", "tree/d"]);
    let reasons: Vec<_> = answer.files.iter().filter_map(|file| file.reason.as_deref()).collect();
    assert_eq!(reasons, ["changed since the last scan", "changed since the last scan", "no longer exists"]);
    // Only the file that may be equal leaves the answer open.
    assert!(!answer.complete);
    let coverage = ask(&fixture, &[fixture.at("a")]).coverage;
    assert_eq!((coverage.complete, coverage.unread_files), (false, 1));
    fixture.remove("b");
    assert!(found(&fixture, &fixture.at("a")).complete);
    assert!(ask(&fixture, &[fixture.at("a")]).coverage.complete);
}

#[test]
fn copies_in_a_root_that_cannot_be_reached_are_possible_copies() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 3, 700)]);
    let other = fixture.register(&fixture.outside("disk"));
    write(&fixture.outside("disk/c"), &bytes(1, 500));
    write(&fixture.outside("disk/d"), &bytes(2, 500));
    write(&fixture.outside("disk/e"), &bytes(2, 600));
    fixture.scan_all(&[fixture.root.clone(), other], &ScanOptions::default());
    fs::rename(fixture.outside("disk"), fixture.outside("unmounted")).expect("renamed");
    // Known to be equal, and known only by size.
    write(&fixture.outside("file"), &bytes(2, 600));
    for (file, expected, reason) in [
        (fixture.at("a"), "disk/c", "its root cannot be reached now; equal when it was last scanned"),
        (fixture.outside("file"), "disk/e", "could not be compared: its root cannot be reached now"),
    ] {
        let found = found(&fixture, &file);
        assert_eq!(paths(&fixture, &found, CopyState::Possible), [expected]);
        assert_eq!((found.files[0].reason.as_deref(), found.complete, found.copies), (Some(reason), false, 0));
        let coverage = ask(&fixture, &[file]).coverage;
        assert_eq!((coverage.complete, coverage.unread_files, coverage.unreachable_files), (false, 1, 1));
    }
    check(&fixture, &fixture.at("b"), &[]);
}

#[test]
fn other_names_of_the_file_are_named_as_such() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 1, 500)]);
    fixture.link("a", "link");
    fixture.scan();
    fs::hard_link(fixture.at("a"), fixture.outside("outside")).expect("a link");
    fs::hard_link(fixture.at("a"), fixture.at("new link")).expect("a link");
    for (file, names) in [
        (fixture.at("a"), &["tree/link"][..]),
        (fixture.outside("outside"), &["tree/a", "tree/link"]),
        (fixture.at("new link"), &["tree/a", "tree/link"]),
    ] {
        let found = found(&fixture, &file);
        assert_eq!(paths(&fixture, &found, CopyState::SameFile), names, "{found:?}");
        assert_eq!(paths(&fixture, &found, CopyState::Copy), ["tree/b"]);
    }
    // The rows of both names have another size.
    fs::write(fixture.at("a"), bytes(1, 600)).expect("written");
    let found = found(&fixture, &fixture.at("a"));
    assert_eq!(paths(&fixture, &found, CopyState::SameFile), ["tree/link"], "{found:?}");
    assert_eq!(found.copies, 0);
}

#[test]
fn symbolic_link_means_its_target() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 1, 500)]);
    fixture.scan();
    fixture.symlink("a", "link");
    let answer = found(&fixture, &fixture.at("link"));
    assert_eq!((answer.location.path.clone(), answer.target.clone()), (fixture.at("link"), Some(fixture.at("a"))));
    assert_eq!(paths(&fixture, &answer, CopyState::Copy), ["tree/b"]);
    assert_eq!(answer.files.len(), 1, "{answer:?}");
    assert_eq!(found(&fixture, &fixture.at("a")).target, None);
}

#[test]
fn folder_that_became_a_symbolic_link_is_not_followed() {
    for size in SIZES {
        let fixture = Fixture::of(&[("a", 1, size), ("d/b", 1, size), ("e/c", 2, size + 1)]);
        fixture.scan();
        for folder in ["d", "e"] {
            fixture.move_away(folder);
            fixture.symlink(fixture.outside("away").join(folder), folder);
        }
        let answer = found(&fixture, &fixture.at("a"));
        assert_eq!(paths(&fixture, &answer, CopyState::Copy), [""; 0]);
        assert_eq!(paths(&fixture, &answer, CopyState::Changed), ["tree/d/b"]);
        write(&fixture.outside("file"), &bytes(2, size + 1));
        check(&fixture, &fixture.outside("file"), &[]);
    }
}

#[test]
fn file_reached_through_a_followed_link_is_a_copy() {
    let fixture = Fixture::of(&[("a", 1, 500)]);
    write(&fixture.outside("elsewhere/b"), &bytes(1, 500));
    fixture.symlink(fixture.outside("elsewhere"), "link");
    fixture.store.roots().follow_links(fixture.root.id, true).expect("changed");
    let roots = fixture.store.roots().list().expect("roots");
    fixture.scan_all(&roots, &ScanOptions::default());
    check(&fixture, &fixture.at("a"), &["tree/link/b"]);
    let found = found(&fixture, &fixture.outside("elsewhere/b"));
    assert_eq!(paths(&fixture, &found, CopyState::SameFile), ["tree/link/b"]);
    // The path as it is in the catalog.
    check(&fixture, &fixture.at("link/b"), &["tree/a"]);
}

#[test]
fn empty_files_are_copies_of_each_other() {
    let fixture = Fixture::of(&[("a", 1, 0), ("b", 1, 0), ("c", 1, 1)]);
    fixture.scan();
    check(&fixture, &fixture.at("a"), &["tree/b"]);
    write(&fixture.outside("file"), b"");
    check(&fixture, &fixture.outside("file"), &["tree/a", "tree/b"]);
}

#[test]
fn error_of_one_file_does_not_affect_the_others() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 1, 500)]);
    fixture.scan();
    fixture.symlink("nowhere", "broken");
    let _socket = std::os::unix::net::UnixListener::bind(fixture.at("socket")).expect("a socket");
    let files = ["no", "", "broken", "socket", "a"].map(|name| fixture.at(name));
    let answer = ask(&fixture, &files);
    let errors: Vec<_> = answer
        .files
        .iter()
        .filter_map(|answer| match answer {
            FileAnswer::Failed(failed) => Some(failed.error.as_str()),
            FileAnswer::Found(_) => None,
        })
        .collect();
    let expected = [
        "no such file",
        "a folder; `gristmill folders` compares folders",
        "a symbolic link whose target does not exist",
        "not a regular file",
    ];
    assert_eq!(errors, expected);
    assert!(matches!(&answer.files[4], FileAnswer::Found(found) if found.copies == 1));
    assert!(!answer.coverage.complete);
}

#[test]
fn several_files_are_answered_in_their_order() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 1, 500), ("c", 2, 600), ("d", 2, 600), ("e", 3, 600)]);
    for algorithm in ALGORITHMS {
        fixture.scan_with(&options!(ScanOptions { algorithm }));
        let answer = ask(&fixture, &["c", "a", "e", "a"].map(|name| fixture.at(name)));
        let copies = answer.files.iter().map(|answer| match answer {
            FileAnswer::Found(found) => paths(&fixture, found, CopyState::Copy).join(" "),
            FileAnswer::Failed(failed) => panic!("{failed:?}"),
        });
        assert_eq!(copies.collect::<Vec<_>>(), ["tree/d", "tree/b", "", "tree/b"]);
    }
}

#[test]
fn cancelled_search_reports_possible_copies() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 2, 600)]);
    fixture.scan();
    write(&fixture.outside("file"), &bytes(1, 500));
    let options = CopiesOptions::default();
    options.cancel.cancel();
    let answer = copies(&fixture.store, &[fixture.outside("file")], &options).expect("an answer").files.remove(0);
    let FileAnswer::Found(found) = answer else { panic!("{answer:?}") };
    assert_eq!(paths(&fixture, &found, CopyState::Possible), ["tree/a"]);
    assert!(!found.complete);
}

#[test]
fn file_that_must_be_read_after_cancellation_has_no_answer() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 2, 500)]);
    fixture.scan();
    write(&fixture.outside("file"), &bytes(1, 500));
    let options = CopiesOptions::default();
    options.cancel.cancel();
    let answer = copies(&fixture.store, &[fixture.outside("file")], &options).expect("an answer");
    let [FileAnswer::Failed(failed)] = &answer.files[..] else { panic!("{answer:?}") };
    assert_eq!(failed.error, "reading was cancelled");
    assert!(!answer.coverage.complete);
}

#[test]
fn answer_is_serialised_with_names_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let name = Path::new(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    let fixture = Fixture::of(&[("a", 1, 500)]);
    fixture.write(name, &bytes(1, 500));
    fixture.scan();
    let answer = serde_json::to_value(ask(&fixture, &[fixture.at("a")])).expect("JSON");
    let copy = &answer["items"][0]["files"][0];
    assert!(copy["path"].as_str().expect("text").ends_with("caf\\xE9"), "{answer}");
    assert!(copy["path_bytes"].as_str().expect("text").ends_with("2f636166e9"), "{answer}");
    assert_eq!((&copy["state"], &answer["complete"]), (&"copy".into(), &true.into()));
}

#[test]
fn roots_with_filters_or_without_a_finished_scan_are_named() {
    let fixture = Fixture::of(&[("a", 1, 500)]);
    let filter = options!(gristmill_dedup::Filter { min_size: Some(10) });
    fixture.scan_with(&options!(ScanOptions { filter }));
    let new = fixture.register(&fixture.outside("new"));
    let answer = ask(&fixture, &[fixture.at("a")]);
    assert_eq!(answer.filtered_roots, std::slice::from_ref(&fixture.root.path));
    assert_eq!((answer.coverage.complete, answer.coverage.unfinished_roots), (false, vec![new.path]));
}

/// It changed so shortly before it was read that a later change may have left the same times.
#[test]
fn file_with_a_racy_hash_is_read() {
    let fixture = Fixture::of(&[("a", 1, 500), ("b", 2, 500), ("c", 3, 600)]);
    fixture.scan();
    let hash = blake3::hash(&bytes(1, 500)).as_bytes().to_vec();
    let record = |path: &str| {
        let row = fixture.row(path);
        let result = ReadResult::Content(Digest::shared(Algorithm::Blake3, hash.clone()));
        let hashes = vec![FileHash { file: FileRef::Row(row.id), stat: row.stat, result, differs: false, racy: true }];
        fixture.store.catalog().write(Batch { hashes, ..Batch::default() }).expect("recorded");
    };
    record("b");
    check(&fixture, &fixture.at("a"), &[]);
    // What is known about the given file is not trusted either.
    check(&fixture, &fixture.at("b"), &[]);
    write(&fixture.outside("file"), &bytes(2, 500));
    check(&fixture, &fixture.outside("file"), &["tree/b"]);
}
