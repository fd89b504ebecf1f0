//! What may not be read. Root may read everything, so these run as nobody when they are run by root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use gristmill_store::catalog::{Content, Node};

use crate::bed::{Bed, MIB, bytes};

const CHILD: &str = "GRISTMILL_TEST_AS_NOBODY";

/// Runs a test as somebody who is not root: here, or by running itself once more.
#[track_caller]
fn without_rights(name: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        return body();
    }
    assert!(std::env::var_os(CHILD).is_none(), "still root");
    // Where the program lies nobody else may look.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("tests");
    // By another process: a file that we have open for writing while another test starts a process is open there, too,
    // and what is open for writing cannot be run.
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

fn set_mode(bed: &Bed, path: &str, mode: u32) {
    fs::set_permissions(bed.at(path), Permissions::from_mode(mode)).expect("its mode");
}

fn unreadable(bed: &Bed) -> Vec<(String, String)> {
    let found = bed.store.catalog().unreadable(bed.root.id, 10).expect("an answer");
    found.into_iter().map(|(path, why)| (path.to_str().expect("plain").to_owned(), why)).collect()
}

#[test]
fn a_folder_that_may_not_be_read_keeps_its_error_and_loses_nothing() {
    without_rights("errors::a_folder_that_may_not_be_read_keeps_its_error_and_loses_nothing", || {
        let bed = Bed::of(&[("a", 1, 50), ("closed/b", 1, 50), ("closed/deep/c", 1, 50), ("d", 2, 50)]);
        bed.scan();
        set_mode(&bed, "closed", 0);
        bed.remove("d");
        bed.write("open/e", &bytes(1, 50));
        let summary = bed.scan();
        assert_eq!((summary.errors, summary.removed_files, summary.new_files), (1, 1, 1));
        assert!(summary.error_samples[0].contains("tree/closed: Permission denied"), "{summary:?}");
        bed.has_files(&["a", "closed/b", "closed/deep/c", "open/e"]);
        bed.has_groups(&[&["a", "closed/b", "closed/deep/c", "open/e"]]);
        let found = unreadable(&bed);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "closed");
        assert!(found[0].1.contains("Permission denied"), "{found:?}");
        // It is tried each time.
        assert_eq!(bed.scan().errors, 1);
        set_mode(&bed, "closed", 0o755);
        bed.remove("closed/deep");
        let summary = bed.scan();
        assert_eq!((summary.errors, summary.removed_files), (0, 1));
        assert_eq!(unreadable(&bed), []);
        bed.has_groups(&[&["a", "closed/b", "open/e"]]);
    });
}

#[test]
fn a_folder_that_never_could_be_read_is_found_later() {
    without_rights("errors::a_folder_that_never_could_be_read_is_found_later", || {
        let bed = Bed::of(&[("a", 1, 50), ("closed/b", 1, 50)]);
        set_mode(&bed, "closed", 0o300);
        assert_eq!(bed.scan().errors, 1);
        bed.has_files(&["a"]);
        set_mode(&bed, "closed", 0o755);
        assert_eq!(bed.scan().errors, 0);
        bed.has_groups(&[&["a", "closed/b"]]);
    });
}

#[test]
fn a_folder_of_which_only_names_may_be_read_loses_nothing() {
    without_rights("errors::a_folder_of_which_only_names_may_be_read_loses_nothing", || {
        let bed = Bed::of(&[("a", 1, 50), ("names/b", 1, 50), ("names/deep/c", 1, 50)]);
        bed.scan();
        set_mode(&bed, "names", 0o444);
        let summary = bed.scan();
        assert_eq!((summary.errors, summary.removed_files), (2, 0), "{summary:?}");
        bed.has_groups(&[&["a", "names/b", "names/deep/c"]]);
        set_mode(&bed, "names", 0o755);
        assert_eq!((bed.scan().errors, bed.scan().read_files), (0, 0));
    });
}

#[test]
fn a_file_that_may_not_be_read_is_tried_again() {
    without_rights("errors::a_file_that_may_not_be_read_is_tried_again", || {
        for size in [50, 2 * MIB] {
            let bed = Bed::of(&[("a", 1, size), ("b", 1, size), ("c", 1, size), ("alone", 1, 51)]);
            set_mode(&bed, "a", 0);
            // Of its size there is no other, so nobody tries.
            set_mode(&bed, "alone", 0);
            for _ in 0..2 {
                let summary = bed.scan();
                assert_eq!((summary.errors, summary.removed_files), (1, 0), "{summary:?}");
                assert_eq!(bed.store.catalog().count_failed(bed.root.id).expect("a number"), 1);
                assert!(bed.row("a").failed && !bed.row("b").failed);
                bed.has_groups(&[&["b", "c"]]);
            }
            let mut unknown = 0;
            let count = |node: Node<'_>| {
                let Node::File(file) = node else { return };
                unknown += u32::from(file.content == Content::Unknown);
            };
            bed.store.catalog().tree(count).expect("a tree");
            assert_eq!(unknown, 1);
            set_mode(&bed, "a", 0o644);
            let summary = bed.scan();
            assert_eq!((summary.errors, summary.read_files), (0, 1));
            assert!(!bed.row("a").failed);
            bed.has_groups(&[&["a", "b", "c"]]);
        }
    });
}

#[test]
fn a_file_that_may_not_be_read_is_among_the_samples() {
    without_rights("errors::a_file_that_may_not_be_read_is_among_the_samples", || {
        let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50)]);
        set_mode(&bed, "a", 0);
        let summary = bed.scan();
        assert_eq!(summary.errors, 1);
        let sample = summary.error_samples.first().map(String::as_str).unwrap_or_default();
        assert!(sample.contains("tree/a: Permission denied"), "{summary:?}");
    });
}

#[test]
fn a_file_that_may_not_be_read_was_not_probed() {
    without_rights("errors::a_file_that_may_not_be_read_was_not_probed", || {
        let bed = Bed::of(&[("a", 1, 50), ("b", 1, 50)]);
        set_mode(&bed, "a", 0);
        let summary = bed.scan();
        assert_eq!((summary.errors, summary.read_files, summary.sampled_files), (1, 1, 0));
    });
}

/// Another name of the inode can be read no better; but one in a folder that is open can, when the first is not.
#[test]
fn a_name_in_a_closed_folder_does_not_hide_the_other() {
    without_rights("errors::a_name_in_a_closed_folder_does_not_hide_the_other", || {
        let bed = Bed::of(&[("closed/a", 1, 50), ("c", 1, 50)]);
        bed.link("closed/a", "b");
        bed.scan_with(&crate::bed::mode(gristmill_dedup::ScanMode::Walk));
        set_mode(&bed, "closed", 0);
        bed.scan();
        set_mode(&bed, "closed", 0o755);
        bed.scan();
        bed.has_groups(&[&["b", "c", "closed/a"]]);
    });
}
