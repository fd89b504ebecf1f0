//! Tests symbolic links: skipped by default, followed if the root is set to.

use std::fs;
use std::path::PathBuf;

use gristmill_dedup::{Filter, ScanMode, ScanOptions, ScanSummary};

use crate::fixture::{Fixture, bytes, mode, set, write};

fn following() -> Fixture {
    let fixture = Fixture::new();
    fixture.store.roots().follow_links(fixture.root.id, true).expect("a setting");
    Fixture { root: fixture.store.roots().find(&fixture.root.path).expect("roots").expect("the root"), ..fixture }
}

#[track_caller]
fn has_error(summary: &ScanSummary, text: &str) {
    assert!(summary.error_samples.iter().any(|sample| sample.contains(text)), "{text}: {summary:?}");
}

#[track_caller]
fn lists_link(summary: &ScanSummary, text: &str) {
    assert!(summary.link_samples.iter().any(|sample| sample.contains(text)), "{text}: {summary:?}");
}

#[test]
fn symlinks_are_not_followed_by_default() {
    let fixture = Fixture::of(&[("a", 1, 50)]);
    write(&fixture.outside("b"), &bytes(1, 50));
    write(&fixture.outside("f/c"), &bytes(1, 50));
    fixture.symlink(fixture.outside("b"), "b");
    fixture.symlink(fixture.outside("f"), "f");
    fixture.symlink("nowhere", "n");
    let summary = fixture.scan();
    assert_eq!((summary.links, summary.files, summary.errors), (3, 1, 0));
    assert_eq!(summary.error_samples, [""; 0]);
    fixture.assert_files(&["a"]);
    fixture.assert_groups(&[]);
}

#[test]
fn symlinks_to_outside_files_and_folders_are_followed_on_request() {
    let fixture = following();
    fixture.write("a", &bytes(1, 50));
    write(&fixture.outside("b"), &bytes(1, 50));
    write(&fixture.outside("f/c"), &bytes(1, 50));
    write(&fixture.outside("f/g/d"), &bytes(1, 3 << 20));
    write(&fixture.outside("e"), &bytes(1, 3 << 20));
    fixture.symlink(fixture.outside("b"), "to b");
    fixture.symlink("../f", "to f");
    fixture.symlink(fixture.outside("e"), "to e");
    let summary = fixture.scan();
    assert_eq!((summary.links, summary.files, summary.errors), (3, 5, 0), "{summary:?}");
    fixture.assert_groups(&[&["a", "to b", "to f/c"], &["to e", "to f/g/d"]]);
    let again = fixture.scan();
    assert_eq!((again.files, again.read_files, again.new_files, again.removed_files), (5, 0, 0, 0));
    // Targets change or disappear, then links are no longer followed.
    write(&fixture.outside("f/g/new"), &bytes(1, 50));
    fs::remove_file(fixture.outside("b")).expect("removed");
    let summary = fixture.scan();
    assert_eq!((summary.new_files, summary.removed_files), (1, 1));
    lists_link(&summary, "to b: broken symbolic link");
    fixture.store.roots().follow_links(fixture.root.id, false).expect("a setting");
    let roots = fixture.store.roots().list().expect("roots");
    assert_eq!(fixture.scan_all(&roots, &ScanOptions::default()).removed_files, 4);
    fixture.assert_files(&["a"]);
}

#[test]
fn broken_symlink_is_listed_and_counted() {
    let fixture = following();
    fixture.write("a", &bytes(1, 50));
    fixture.symlink("nowhere", "n");
    fixture.symlink("m", "m");
    let summary = fixture.scan();
    lists_link(&summary, "tree/n: broken symbolic link");
    assert_eq!((summary.broken_links, summary.repeated_links, summary.errors), (1, 0, 1), "{summary:?}");
    has_error(&summary, "tree/m: cannot follow symbolic link");
    fixture.assert_files(&["a"]);
}

#[test]
fn symlink_cycle_is_listed_and_walked_once() {
    let fixture = following();
    fixture.write("f/a", &bytes(1, 50));
    fixture.symlink(fixture.at("f"), "f/back");
    fixture.symlink("..", "f/up");
    fixture.symlink(fixture.outside(""), "out");
    let summary = fixture.scan();
    for path in ["f/back", "f/up", "out"] {
        lists_link(&summary, &format!("tree/{path}: symbolic link back to"));
    }
    assert_eq!((summary.broken_links, summary.repeated_links, summary.errors), (0, 3, 0), "{summary:?}");
    fixture.assert_files(&["f/a"]);
    // A cycle outside of the root.
    let fixture = following();
    write(&fixture.outside("o/a"), &bytes(1, 50));
    std::os::unix::fs::symlink(fixture.outside("o"), fixture.outside("o/self")).expect("a link");
    fixture.symlink(fixture.outside("o"), "o");
    let summary = fixture.scan();
    fixture.assert_files(&["o/a"]);
    lists_link(&summary, "o/self: another symbolic link leads to the same folder");
}

#[test]
fn symlink_into_a_root_is_not_followed() {
    let fixture = following();
    let other = fixture.register(&fixture.outside("other"));
    write(&fixture.outside("other/f/a"), &bytes(1, 50));
    fixture.write("g/b", &bytes(1, 50));
    fixture.symlink(fixture.outside("other"), "to a root");
    fixture.symlink(fixture.outside("other/f"), "into a root");
    fixture.symlink(fixture.outside("other/f/a"), "a file in a root");
    fixture.symlink("g", "within");
    fixture.symlink("g/b", "a file within");
    let roots = fixture.store.roots().list().expect("roots");
    let summary = fixture.scan_all(&roots, &ScanOptions::default());
    assert_eq!((summary.files, summary.errors), (2, 0), "{summary:?}");
    fixture.assert_files(&["g/b"]);
    assert_eq!(fixture.files_of(other.id).into_keys().collect::<Vec<_>>(), [PathBuf::from("f/a")]);
}

#[test]
fn symlink_to_the_parent_of_a_root_skips_the_root() {
    let fixture = following();
    fixture.register(&fixture.outside("around/other"));
    write(&fixture.outside("around/other/a"), &bytes(1, 50));
    write(&fixture.outside("around/b"), &bytes(1, 50));
    fixture.symlink(fixture.outside("around"), "l");
    let roots = fixture.store.roots().list().expect("roots");
    let summary = fixture.scan_all(&roots, &ScanOptions::default());
    fixture.assert_files(&["l/b"]);
    assert_eq!(summary.files, 2);
}

/// The first by path, whatever the timing of workers.
#[test]
fn first_of_several_symlinks_to_a_folder_is_walked() {
    for workers in [1, 16] {
        for _ in 0..5 {
            let fixture = following();
            write(&fixture.outside("o/a"), &bytes(1, 50));
            write(&fixture.outside("o/sub/b"), &bytes(2, 60));
            for name in ["z", "m", "a"] {
                fixture.symlink(fixture.outside("o"), name);
            }
            // A link to a subfolder of it.
            fixture.symlink(fixture.outside("o/sub"), "b");
            let summary = fixture.scan_with(&options!(ScanOptions { workers: Some(workers) }));
            fixture.assert_files(&["a/a", "a/sub/b"]);
            for name in ["b", "m", "z"] {
                lists_link(&summary, &format!("tree/{name}: another symbolic link leads to the same folder"));
            }
        }
    }
}

#[test]
fn two_symlinks_to_a_file_are_one_copy() {
    let fixture = following();
    write(&fixture.outside("o"), &bytes(1, 50));
    fixture.symlink(fixture.outside("o"), "a");
    fixture.symlink(fixture.outside("o"), "b");
    fixture.scan();
    fixture.assert_files(&["a", "b"]);
    fixture.assert_groups(&[]);
    fixture.write("c", &bytes(1, 50));
    fixture.scan();
    fixture.assert_groups(&[&["a", "b", "c"]]);
    assert_eq!(fixture.group_list()[0].copies, 2);
}

#[test]
fn filters_apply_to_symlink_targets() {
    let fixture = following();
    write(&fixture.outside("o/a"), &bytes(1, 50));
    write(&fixture.outside("o/.hidden"), &bytes(1, 50));
    write(&fixture.outside("large"), &bytes(1, 500));
    fixture.symlink(fixture.outside("o"), "l");
    fixture.symlink(fixture.outside("o"), "excluded");
    fixture.symlink(fixture.outside("large"), "large");
    let filter = options!(Filter { exclude: vec!["excluded".into()], max_size: Some(100), skip_hidden: true });
    fixture.scan_with(&options!(ScanOptions { filter }));
    fixture.assert_files(&["l/a"]);
}

#[test]
fn include_pattern_matches_files_behind_a_symlink() {
    let fixture = following();
    write(&fixture.outside("o/a.jpg"), &bytes(1, 50));
    fixture.write("real/b.jpg", &bytes(1, 50));
    fixture.symlink(fixture.outside("o"), "l");
    let filter = options!(Filter { include: vec!["*.jpg".into()] });
    fixture.scan_with(&options!(ScanOptions { filter }));
    fixture.assert_files(&["l/a.jpg", "real/b.jpg"]);
}

#[test]
fn refresh_follows_no_new_symlinks() {
    let fixture = following();
    fixture.write("a", &bytes(1, 50));
    fixture.scan();
    write(&fixture.outside("o/b"), &bytes(1, 50));
    write(&fixture.outside("c"), &bytes(1, 50));
    fixture.symlink(fixture.outside("o"), "l");
    fixture.symlink(fixture.outside("c"), "m");
    fixture.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(fixture.present(), set(&["a"]));
}
