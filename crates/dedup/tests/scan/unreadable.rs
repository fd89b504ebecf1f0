//! Tests files and folders without read permission. Root can read everything, so when run by root these tests run as
//! the user `nobody`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use gristmill_dedup::{ScanHandle, ScanMode, ScanOptions};
use gristmill_store::catalog::{Content, Node};
use gristmill_store::roots::Root;

use crate::fixture::{Fixture, MIB, bytes, mode, write};

const CHILD: &str = "GRISTMILL_TEST_AS_NOBODY";

/// Runs a test without root privileges: directly, or by running this program again.
#[track_caller]
fn without_rights(name: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        return body();
    }
    assert!(std::env::var_os(CHILD).is_none(), "still root");
    // Other users cannot read the folder of the test program.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("tests");
    // Copied by another process: a file that this process has open for writing is inherited by processes that other
    // tests start, and a program that is open for writing cannot be executed.
    let copied = Command::new("cp").arg(std::env::current_exe().expect("a program")).arg(&program).status();
    assert!(copied.expect("cp").success());
    for path in [folder.path(), &program] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("its mode");
    }
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .args(["--exact", name, "--include-ignored"])
        .env(CHILD, "1")
        .current_dir("/")
        .output()
        .expect("setpriv, of util-linux, is needed when tests are run by root");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn set_mode(fixture: &Fixture, path: &str, mode: u32) {
    fs::set_permissions(fixture.at(path), Permissions::from_mode(mode)).expect("its mode");
}

/// Registers a root with two equal files, one of which cannot be read.
fn other_root_with_unreadable_file(fixture: &Fixture) -> Root {
    let root = fixture.register(&fixture.outside("other"));
    for name in ["p", "q"] {
        write(&root.path.join(name), &bytes(2, 50));
    }
    fs::set_permissions(root.path.join("q"), Permissions::from_mode(0o000)).expect("its mode");
    root
}

fn unreadable(fixture: &Fixture) -> Vec<(String, String)> {
    let found = fixture.store.catalog().unreadable(fixture.root.id, 10).expect("an answer");
    found.into_iter().map(|(path, why)| (path.to_str().expect("valid UTF-8").to_owned(), why)).collect()
}

#[test]
fn unreadable_folder_keeps_its_error_and_its_files() {
    without_rights("unreadable::unreadable_folder_keeps_its_error_and_its_files", || {
        let fixture = Fixture::of(&[("a", 1, 50), ("closed/b", 1, 50), ("closed/deep/c", 1, 50), ("d", 2, 50)]);
        fixture.scan();
        set_mode(&fixture, "closed", 0);
        fixture.remove("d");
        fixture.write("open/e", &bytes(1, 50));
        let summary = fixture.scan();
        assert_eq!((summary.errors, summary.removed_files, summary.new_files), (1, 1, 1));
        assert!(summary.error_samples[0].contains("tree/closed: Permission denied"), "{summary:?}");
        fixture.assert_files(&["a", "closed/b", "closed/deep/c", "open/e"]);
        fixture.assert_groups(&[&["a", "closed/b", "closed/deep/c", "open/e"]]);
        let found = unreadable(&fixture);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "closed");
        assert!(found[0].1.contains("Permission denied"), "{found:?}");
        // Each scan tries again.
        assert_eq!(fixture.scan().errors, 1);
        set_mode(&fixture, "closed", 0o755);
        fixture.remove("closed/deep");
        let summary = fixture.scan();
        assert_eq!((summary.errors, summary.removed_files), (0, 1));
        assert_eq!(unreadable(&fixture), []);
        fixture.assert_groups(&[&["a", "closed/b", "open/e"]]);
    });
}

#[test]
fn folder_is_found_once_it_becomes_readable() {
    without_rights("unreadable::folder_is_found_once_it_becomes_readable", || {
        let fixture = Fixture::of(&[("a", 1, 50), ("closed/b", 1, 50)]);
        set_mode(&fixture, "closed", 0o300);
        assert_eq!(fixture.scan().errors, 1);
        fixture.assert_files(&["a"]);
        set_mode(&fixture, "closed", 0o755);
        assert_eq!(fixture.scan().errors, 0);
        fixture.assert_groups(&[&["a", "closed/b"]]);
    });
}

#[test]
fn folder_without_search_permission_keeps_its_files() {
    without_rights("unreadable::folder_without_search_permission_keeps_its_files", || {
        let fixture = Fixture::of(&[("a", 1, 50), ("names/b", 1, 50), ("names/deep/c", 1, 50)]);
        fixture.scan();
        set_mode(&fixture, "names", 0o444);
        let summary = fixture.scan();
        assert_eq!((summary.errors, summary.removed_files), (2, 0), "{summary:?}");
        fixture.assert_groups(&[&["a", "names/b", "names/deep/c"]]);
        set_mode(&fixture, "names", 0o755);
        assert_eq!((fixture.scan().errors, fixture.scan().read_files), (0, 0));
    });
}

#[test]
fn unreadable_file_is_tried_again_by_each_scan() {
    without_rights("unreadable::unreadable_file_is_tried_again_by_each_scan", || {
        for size in [50, 2 * MIB] {
            let fixture = Fixture::of(&[("a", 1, size), ("b", 1, size), ("c", 1, size), ("alone", 1, 51)]);
            set_mode(&fixture, "a", 0);
            // Its size is unique, so it is never read.
            set_mode(&fixture, "alone", 0);
            for _ in 0..2 {
                let summary = fixture.scan();
                assert_eq!((summary.errors, summary.removed_files), (1, 0), "{summary:?}");
                assert_eq!(fixture.store.catalog().count_failed(fixture.root.id).expect("a number"), 1);
                assert!(fixture.row("a").failed && !fixture.row("b").failed);
                fixture.assert_groups(&[&["b", "c"]]);
            }
            let mut unknown = 0;
            let count = |node: Node<'_>| {
                let Node::File(file) = node else { return };
                unknown += u32::from(file.content == Content::Unknown);
            };
            fixture.store.catalog().tree(count).expect("a tree");
            assert_eq!(unknown, 1);
            set_mode(&fixture, "a", 0o644);
            let summary = fixture.scan();
            assert_eq!((summary.errors, summary.read_files), (0, 1));
            assert!(!fixture.row("a").failed);
            fixture.assert_groups(&[&["a", "b", "c"]]);
        }
    });
}

#[test]
fn unreadable_file_is_in_the_error_samples() {
    without_rights("unreadable::unreadable_file_is_in_the_error_samples", || {
        let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
        set_mode(&fixture, "a", 0);
        let summary = fixture.scan();
        assert_eq!(summary.errors, 1);
        let sample = summary.error_samples.first().map(String::as_str).unwrap_or_default();
        assert!(sample.contains("tree/a: Permission denied"), "{summary:?}");
    });
}

#[test]
fn unreadable_file_is_not_counted_as_sampled() {
    without_rights("unreadable::unreadable_file_is_not_counted_as_sampled", || {
        let fixture = Fixture::of(&[("a", 1, 50), ("b", 1, 50)]);
        set_mode(&fixture, "a", 0);
        let summary = fixture.scan();
        assert_eq!((summary.errors, summary.read_files, summary.sampled_files), (1, 1, 0));
    });
}

/// A scan without errors does not read the files of another root that failed, so it has not compared all files.
#[test]
fn unreadable_file_of_another_root_is_tried_again_by_a_scan_of_that_root() {
    without_rights("unreadable::unreadable_file_of_another_root_is_tried_again_by_a_scan_of_that_root", || {
        let fixture = Fixture::of(&[("a", 1, 70), ("b", 1, 70)]);
        let other = other_root_with_unreadable_file(&fixture);
        for _ in 0..2 {
            let summary = fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default());
            assert_eq!(summary.errors, 1, "{summary:?}");
            assert_eq!(fixture.scan().errors, 0);
            let coverage = fixture.coverage();
            assert_eq!((coverage.complete, coverage.unreadable_files), (false, 1), "{coverage:?}");
        }
    });
}

/// Only the files of the resumed root were tried already.
#[test]
fn unreadable_file_is_tried_by_a_new_scan_that_runs_with_a_resumed_one() {
    without_rights("unreadable::unreadable_file_is_tried_by_a_new_scan_that_runs_with_a_resumed_one", || {
        let fixture = Fixture::of(&[("a", 1, 70), ("b", 1, 70)]);
        let handle = Arc::new(ScanHandle::default());
        handle.cancel();
        let roots = std::slice::from_ref(&fixture.root);
        fixture.try_scan(roots, &ScanOptions::default(), &handle).expect("a scan");
        let other = other_root_with_unreadable_file(&fixture);
        assert_eq!(fixture.scan_all(std::slice::from_ref(&other), &ScanOptions::default()).errors, 1);
        let summary = fixture.scan_all(&[fixture.root.clone(), other], &ScanOptions::default());
        assert_eq!((summary.resumed, summary.errors), (true, 1), "{summary:?}");
    });
}

/// Another name of the inode has the same permissions, but one in a readable folder can be read when the first cannot.
#[test]
fn hard_link_in_an_unreadable_folder_does_not_hide_the_other_name() {
    without_rights("unreadable::hard_link_in_an_unreadable_folder_does_not_hide_the_other_name", || {
        let fixture = Fixture::of(&[("closed/a", 1, 50), ("c", 1, 50)]);
        fixture.link("closed/a", "b");
        fixture.scan_with(&mode(ScanMode::Walk));
        set_mode(&fixture, "closed", 0);
        fixture.scan();
        set_mode(&fixture, "closed", 0o755);
        fixture.scan();
        fixture.assert_groups(&[&["b", "c", "closed/a"]]);
    });
}
