//! Links: passed over, or followed if the root says so.

use std::fs;
use std::path::PathBuf;

use gristmill_dedup::{Filter, ScanMode, ScanOptions, ScanSummary};

use crate::bed::{Bed, bytes, mode, set, write};

fn following() -> Bed {
    let bed = Bed::new();
    bed.store.roots().follow_links(bed.root.id, true).expect("a setting");
    Bed { root: bed.store.roots().at(&bed.root.path).expect("roots").expect("the root"), ..bed }
}

#[track_caller]
fn complains(summary: &ScanSummary, words: &str) {
    assert!(summary.error_samples.iter().any(|sample| sample.contains(words)), "{words}: {summary:?}");
}

#[track_caller]
fn lists_link(summary: &ScanSummary, words: &str) {
    assert!(summary.link_samples.iter().any(|sample| sample.contains(words)), "{words}: {summary:?}");
}

#[test]
fn links_are_passed_over() {
    let bed = Bed::of(&[("a", 1, 50)]);
    write(&bed.outside("b"), &bytes(1, 50));
    write(&bed.outside("f/c"), &bytes(1, 50));
    bed.symlink(bed.outside("b"), "b");
    bed.symlink(bed.outside("f"), "f");
    bed.symlink("nowhere", "n");
    let summary = bed.scan();
    assert_eq!((summary.links, summary.files, summary.errors), (3, 1, 0));
    assert_eq!(summary.error_samples, [""; 0]);
    bed.has_files(&["a"]);
    bed.has_groups(&[]);
}

#[test]
fn links_to_folders_and_files_outside_are_followed() {
    let bed = following();
    bed.write("a", &bytes(1, 50));
    write(&bed.outside("b"), &bytes(1, 50));
    write(&bed.outside("f/c"), &bytes(1, 50));
    write(&bed.outside("f/g/d"), &bytes(1, 3 << 20));
    write(&bed.outside("e"), &bytes(1, 3 << 20));
    bed.symlink(bed.outside("b"), "to b");
    bed.symlink("../f", "to f");
    bed.symlink(bed.outside("e"), "to e");
    let summary = bed.scan();
    assert_eq!((summary.links, summary.files, summary.errors), (3, 5, 0), "{summary:?}");
    bed.has_groups(&[&["a", "to b", "to f/c"], &["to e", "to f/g/d"]]);
    let again = bed.scan();
    assert_eq!((again.files, again.read_files, again.new_files, again.removed_files), (5, 0, 0, 0));
    // What a link leads to changes, goes, and is followed no more.
    write(&bed.outside("f/g/new"), &bytes(1, 50));
    fs::remove_file(bed.outside("b")).expect("removed");
    let summary = bed.scan();
    assert_eq!((summary.new_files, summary.removed_files), (1, 1));
    lists_link(&summary, "to b: a link that leads nowhere");
    bed.store.roots().follow_links(bed.root.id, false).expect("a setting");
    let roots = bed.store.roots().list().expect("roots");
    assert_eq!(bed.scan_all(&roots, &ScanOptions::default()).removed_files, 4);
    bed.has_files(&["a"]);
}

#[test]
fn broken_link_is_listed_and_counted_and_costs_nothing_else() {
    let bed = following();
    bed.write("a", &bytes(1, 50));
    bed.symlink("nowhere", "n");
    bed.symlink("m", "m");
    let summary = bed.scan();
    lists_link(&summary, "tree/n: a link that leads nowhere");
    assert_eq!((summary.broken_links, summary.repeated_links, summary.errors), (1, 0, 1), "{summary:?}");
    complains(&summary, "tree/m: a link that cannot be followed");
    bed.has_files(&["a"]);
}

#[test]
fn a_circle_is_named_and_walked_once() {
    let bed = following();
    bed.write("f/a", &bytes(1, 50));
    bed.symlink(bed.at("f"), "f/back");
    bed.symlink("..", "f/up");
    bed.symlink(bed.outside(""), "out");
    let summary = bed.scan();
    for path in ["f/back", "f/up", "out"] {
        lists_link(&summary, &format!("tree/{path}: a link back to"));
    }
    assert_eq!((summary.broken_links, summary.repeated_links, summary.errors), (0, 3, 0), "{summary:?}");
    bed.has_files(&["f/a"]);
    // A circle outside.
    let bed = following();
    write(&bed.outside("o/a"), &bytes(1, 50));
    std::os::unix::fs::symlink(bed.outside("o"), bed.outside("o/self")).expect("a link");
    bed.symlink(bed.outside("o"), "o");
    let summary = bed.scan();
    bed.has_files(&["o/a"]);
    lists_link(&summary, "o/self: another link leads to the same folder");
}

#[test]
fn a_link_into_a_root_is_walked_there() {
    let bed = following();
    let other = bed.register(&bed.outside("other"));
    write(&bed.outside("other/f/a"), &bytes(1, 50));
    bed.write("g/b", &bytes(1, 50));
    bed.symlink(bed.outside("other"), "to a root");
    bed.symlink(bed.outside("other/f"), "into a root");
    bed.symlink(bed.outside("other/f/a"), "a file in a root");
    bed.symlink("g", "within");
    bed.symlink("g/b", "a file within");
    let roots = bed.store.roots().list().expect("roots");
    let summary = bed.scan_all(&roots, &ScanOptions::default());
    assert_eq!((summary.files, summary.errors), (2, 0), "{summary:?}");
    bed.has_files(&["g/b"]);
    assert_eq!(bed.files_of(other.id).into_keys().collect::<Vec<_>>(), [PathBuf::from("f/a")]);
}

#[test]
fn a_link_to_a_folder_around_a_root_leaves_the_root_out() {
    let bed = following();
    bed.register(&bed.outside("around/other"));
    write(&bed.outside("around/other/a"), &bytes(1, 50));
    write(&bed.outside("around/b"), &bytes(1, 50));
    bed.symlink(bed.outside("around"), "l");
    let roots = bed.store.roots().list().expect("roots");
    let summary = bed.scan_all(&roots, &ScanOptions::default());
    bed.has_files(&["l/b"]);
    assert_eq!(summary.files, 2);
}

/// The first by path, whoever gets there first.
#[test]
fn of_two_links_to_a_folder_the_first_is_walked() {
    for workers in [1, 16] {
        for _ in 0..5 {
            let bed = following();
            write(&bed.outside("o/a"), &bytes(1, 50));
            write(&bed.outside("o/sub/b"), &bytes(2, 60));
            for name in ["z", "m", "a"] {
                bed.symlink(bed.outside("o"), name);
            }
            // A part of it.
            bed.symlink(bed.outside("o/sub"), "b");
            let summary = bed.scan_with(&ScanOptions { workers: Some(workers), ..ScanOptions::default() });
            bed.has_files(&["a/a", "a/sub/b"]);
            for name in ["b", "m", "z"] {
                lists_link(&summary, &format!("tree/{name}: another link leads to the same folder"));
            }
        }
    }
}

#[test]
fn two_links_to_a_file_are_one_copy() {
    let bed = following();
    write(&bed.outside("o"), &bytes(1, 50));
    bed.symlink(bed.outside("o"), "a");
    bed.symlink(bed.outside("o"), "b");
    bed.scan();
    bed.has_files(&["a", "b"]);
    bed.has_groups(&[]);
    bed.write("c", &bytes(1, 50));
    bed.scan();
    bed.has_groups(&[&["a", "b", "c"]]);
    assert_eq!(bed.group_list()[0].copies, 2);
}

#[test]
fn filters_are_asked_about_what_a_link_leads_to() {
    let bed = following();
    write(&bed.outside("o/a"), &bytes(1, 50));
    write(&bed.outside("o/.hidden"), &bytes(1, 50));
    write(&bed.outside("large"), &bytes(1, 500));
    bed.symlink(bed.outside("o"), "l");
    bed.symlink(bed.outside("o"), "excluded");
    bed.symlink(bed.outside("large"), "large");
    let filter = Filter {
        exclude: vec!["excluded".into()],
        max_size: Some(100),
        skip_hidden: true,
        ..Filter::default()
    };
    bed.scan_with(&ScanOptions { filter, ..ScanOptions::default() });
    bed.has_files(&["l/a"]);
}

#[test]
fn what_is_included_is_found_behind_a_link() {
    let bed = following();
    write(&bed.outside("o/a.jpg"), &bytes(1, 50));
    bed.write("real/b.jpg", &bytes(1, 50));
    bed.symlink(bed.outside("o"), "l");
    let filter = Filter { include: vec!["*.jpg".into()], ..Filter::default() };
    bed.scan_with(&ScanOptions { filter, ..ScanOptions::default() });
    bed.has_files(&["l/a.jpg", "real/b.jpg"]);
}

#[test]
fn a_look_at_what_is_known_follows_no_new_link() {
    let bed = following();
    bed.write("a", &bytes(1, 50));
    bed.scan();
    write(&bed.outside("o/b"), &bytes(1, 50));
    write(&bed.outside("c"), &bytes(1, 50));
    bed.symlink(bed.outside("o"), "l");
    bed.symlink(bed.outside("c"), "m");
    bed.scan_with(&mode(ScanMode::Refresh));
    assert_eq!(bed.present(), set(&["a"]));
}
