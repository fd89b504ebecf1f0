//! Tests filters on a real tree. A file that is excluded later keeps its hash, and is listed again when the filter is
//! removed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;

use gristmill_dedup::{Filter, ScanOptions};
use gristmill_store::catalog::KnownFolder;

use crate::fixture::{Fixture, bytes, day, set_time};

const ALL: [&str; 12] = [
    ".hidden/in it",
    ".profile",
    "a.jpg",
    "a.tmp",
    "build/c.o",
    "build/d.txt",
    "deep/build/e.txt",
    "deep/er/a.jpg",
    "deep/er/b.JPG",
    "deep/er/large.bin",
    "deep/old.txt",
    "new.txt",
];

fn tree() -> Fixture {
    let fixture = Fixture::new();
    for path in ALL {
        let size = if path.ends_with(".bin") { 5_000 } else { 100 };
        fixture.write(path, &bytes(1, size));
        set_time(&fixture.at(path), day(1_000));
    }
    set_time(&fixture.at("new.txt"), day(2_000));
    set_time(&fixture.at("deep/old.txt"), day(500));
    fixture
}

fn with(filter: &Filter) -> ScanOptions {
    options!(ScanOptions { filter: filter.clone() })
}

fn day_ns(number: u64) -> Option<i64> {
    i64::try_from(number * 86_400_000_000_000).ok()
}

/// Checks that only the files `left` are included, and that the others return without being read when the filter is
/// removed.
#[track_caller]
fn check(filter: &Filter, left: &[&str]) {
    let fixture = tree();
    let first = fixture.scan_with(&with(filter));
    fixture.assert_files(left);
    assert_eq!((first.files, first.excluded_files), (left.len() as u64, 0), "{filter:?}");
    assert_eq!(fixture.scan().files, ALL.len() as u64);
    fixture.assert_files(&ALL);
    let all = fixture.groups();
    let narrowed = fixture.scan_with(&with(filter));
    fixture.assert_files(left);
    assert_eq!(narrowed.removed_files, 0, "excluded files are not missing");
    assert_eq!(narrowed.excluded_files, (ALL.len() - left.len()) as u64);
    let again = fixture.scan_with(&with(filter));
    assert_eq!((again.excluded_files, again.read_files), (0, 0));
    let widened = fixture.scan();
    assert_eq!((widened.included_files, widened.new_files, widened.read_files), (narrowed.excluded_files, 0, 0));
    assert_eq!(fixture.groups(), all);
}

fn exclude(patterns: &[&str]) -> Filter {
    options!(Filter { exclude: patterns.iter().map(|&pattern| pattern.into()).collect() })
}

fn include(patterns: &[&str]) -> Filter {
    options!(Filter { include: patterns.iter().map(|&pattern| pattern.into()).collect() })
}

fn all_but(excluded: &[&str]) -> Vec<&'static str> {
    ALL.into_iter().filter(|path| !excluded.contains(path)).collect()
}

#[test]
fn patterns_select_files_by_name_and_path() {
    check(&exclude(&["*.tmp"]), &all_but(&["a.tmp"]));
    check(&exclude(&["deep/er/*.jpg", "new*"]), &all_but(&["deep/er/a.jpg", "new.txt"]));
    check(&include(&["*.jpg"]), &["a.jpg", "deep/er/a.jpg"]);
    check(&include(&["*.[jJ][pP][gG]", "*.bin"]), &["a.jpg", "deep/er/a.jpg", "deep/er/b.JPG", "deep/er/large.bin"]);
}

#[test]
fn excluded_folder_excludes_everything_below() {
    check(&exclude(&["build"]), &all_but(&["build/c.o", "build/d.txt", "deep/build/e.txt"]));
    check(&exclude(&["/build"]), &all_but(&["build/c.o", "build/d.txt"]));
    let both = options!(Filter { exclude: vec!["er".into()]; ..include(&["*.jpg"]) });
    check(&both, &["a.jpg"]);
}

#[test]
fn duplicates_are_recounted_when_a_folder_is_excluded() {
    let fixture = Fixture::of(&[("a", 1, 50), ("f/b", 1, 50)]);
    assert_eq!(fixture.scan().duplicate_groups, 1);
    let options = with(&exclude(&["f"]));
    let summary = fixture.try_scan(std::slice::from_ref(&fixture.root), &options, &std::sync::Arc::default());
    assert_eq!(summary.expect("a scan").duplicate_groups, 0);
    fixture.assert_groups(&[]);
    fixture.assert_sound();
}

#[test]
fn size_and_time_limits_select_files() {
    check(&options!(Filter { min_size: Some(101) }), &["deep/er/large.bin"]);
    check(&options!(Filter { max_size: Some(4_999) }), &all_but(&["deep/er/large.bin"]));
    check(&options!(Filter { min_size: Some(100), max_size: Some(5_000) }), &ALL);
    check(&options!(Filter { newer_than: day_ns(2_000) }), &["new.txt"]);
    check(&options!(Filter { older_than: day_ns(1_000) }), &["deep/old.txt"]);
    let between = options!(Filter { newer_than: day_ns(501), older_than: day_ns(1_999) });
    check(&between, &all_but(&["deep/old.txt", "new.txt"]));
}

#[test]
fn depth_limits_select_files() {
    check(&options!(Filter { max_depth: Some(1) }), &[".profile", "a.jpg", "a.tmp", "new.txt"]);
    let two = all_but(&["deep/build/e.txt", "deep/er/a.jpg", "deep/er/b.JPG", "deep/er/large.bin"]);
    check(&options!(Filter { max_depth: Some(2) }), &two);
    check(&options!(Filter { max_depth: Some(3) }), &ALL);
    let jpg = options!(Filter { max_depth: Some(2); ..include(&["*.jpg"]) });
    check(&jpg, &["a.jpg"]);
    let error = options!(Filter { max_depth: Some(0) }).check().expect_err("an error");
    assert!(error.to_string().contains("depth 1"), "{error}");
}

/// A link to a file has the depth of a file, a link to a folder that of a folder.
#[test]
fn depth_limit_applies_to_followed_links() {
    let fixture = Fixture::of(&[("f/in", 1, 50)]);
    fixture.store.roots().follow_links(fixture.root.id, true).expect("a setting");
    let roots = fixture.store.roots().list().expect("roots");
    crate::fixture::write(&fixture.outside("o/p/x"), b"x");
    crate::fixture::write(&fixture.outside("o/y"), b"y");
    fixture.symlink(fixture.outside("o"), "folder");
    fixture.symlink(fixture.outside("o/y"), "file");
    fixture.symlink(fixture.outside("o/y"), "f/file");
    let all = ["f/file", "f/in", "file", "folder/p/x", "folder/y"];
    for (max_depth, left) in [
        (None, &all[..]),
        (Some(1), &["file"]),
        (Some(2), &["f/file", "f/in", "file", "folder/y"]),
        (Some(3), &all),
        (Some(1), &["file"]),
        (None, &all),
    ] {
        fixture.scan_all(&roots, &with(&options!(Filter { max_depth: max_depth })));
        fixture.assert_files(left);
    }
}

#[test]
fn scan_with_another_depth_limit_is_not_resumed() {
    let fixture = Fixture::of(&[("a", 1, 50), ("f/b", 1, 50)]);
    let depth = |max_depth| with(&options!(Filter { max_depth: Some(max_depth) }));
    let stop = || {
        let options = options!(ScanOptions { io_limit: Some(1); ..depth(2) });
        crate::stop_and_resume::stop_when(&fixture, &options, |progress| progress.files >= 2, || ());
    };
    stop();
    assert!(!fixture.scan_with(&depth(1)).resumed);
    stop();
    assert!(fixture.scan_with(&depth(2)).resumed);
    let root = fixture.store.roots().find(&fixture.root.path).expect("roots").expect("the root");
    assert!(root.filters.is_some_and(|filters| filters.contains("\"max_depth\":2")));
}

#[test]
fn hidden_files_and_folders_are_skipped_on_request() {
    let filter = options!(Filter { skip_hidden: true });
    check(&filter, &all_but(&[".hidden/in it", ".profile"]));
}

#[test]
fn gitignore_rules_apply_with_any_number_of_workers() {
    let fixture = Fixture::of(&[
        (".git/config", 1, 10),
        ("a.o", 1, 10),
        ("keep.o", 1, 10),
        ("sub/b.o", 1, 10),
        ("sub/c.o", 1, 10),
        ("sub/local", 1, 10),
        ("sub/deep/local", 1, 10),
        ("target/x", 1, 10),
        ("other/target/y", 1, 10),
    ]);
    fixture.write(".gitignore", b"*.o\n!keep.o\n/target/\n");
    fixture.write("sub/.gitignore", b"!b.o\n/local\n");
    let filter = options!(Filter { gitignore: true });
    let left = [".gitignore", "keep.o", "other/target/y", "sub/.gitignore", "sub/b.o", "sub/deep/local"];
    for workers in [1, 16] {
        fixture.scan_with(&options!(ScanOptions { workers: Some(workers); ..with(&filter) }));
        fixture.assert_files(&left);
        assert_eq!(fixture.scan().files, 11);
    }
}

#[test]
fn ignore_case_applies_to_all_patterns() {
    let fixture = Fixture::of(&[
        (".GIT/config", 1, 10),
        ("a.O", 1, 10),
        ("Keep.o", 1, 10),
        ("sub/LOCAL", 1, 10),
        ("Target/x", 1, 10),
        ("photo.JPG", 1, 10),
        ("Music/song", 1, 10),
    ]);
    fixture.write(".gitignore", b"*.o\n!keep.O\n/target/\n");
    fixture.write("sub/.gitignore", b"/local\n");
    let here = fixture.root.path.to_str().expect("text").to_uppercase();
    let cases: [(Filter, &[&str]); 4] = [
        (options!(Filter { gitignore: true }), &[".gitignore", "Keep.o", "Music/song", "photo.JPG", "sub/.gitignore"]),
        (include(&["*.jpg", "music/*"]), &["photo.JPG", "Music/song"]),
        (exclude(&["*.jpg", "/MUSIC", "SUB", ".gitIGNORE", ".git"]), &["Keep.o", "Target/x", "a.O"]),
        (include(&[&format!("{here}/mus*/song")]), &["Music/song"]),
    ];
    for (filter, left) in cases {
        let filter = options!(Filter { ignore_case: true; ..filter });
        fixture.scan_with(&with(&filter));
        fixture.assert_files(left);
        assert_eq!(filter.unmatchable(std::slice::from_ref(&fixture.root.path)), []);
    }
}

#[test]
fn absolute_pattern_that_ignores_case_belongs_to_the_root_with_its_case() {
    let fixture = Fixture::new();
    let mut roots = ["Data", "data"].map(|name| fixture.register(&fixture.outside(name)));
    let files = ["Data/tmp/x", "data/tmp/x"].map(|path| fixture.outside(path));
    files.iter().for_each(|path| crate::fixture::write(path, b"x"));
    for _ in 0..2 {
        for (excluded, left) in [(0, 1), (1, 0)] {
            let pattern = files[excluded].parent().expect("a folder").to_str().expect("text");
            fixture.scan_all(&roots, &with(&options!(Filter { ignore_case: true; ..exclude(&[pattern]) })));
            assert_eq!(fixture.rows().into_keys().collect::<Vec<_>>(), [files[left].clone()], "{pattern} in {roots:?}");
        }
        roots.reverse();
    }
}

#[test]
fn excluded_files_are_counted_and_leave_their_groups() {
    let fixture = Fixture::of(&[("a.x", 1, 50), ("b.y", 1, 50), ("c.y", 1, 50), ("f/d.y", 1, 50)]);
    fixture.scan();
    let summary = fixture.scan_with(&with(&exclude(&["*.y"])));
    assert_eq!((summary.excluded_files, summary.removed_files, summary.files), (3, 0, 1));
    fixture.assert_groups(&[]);
    let summary = fixture.scan();
    assert_eq!((summary.included_files, summary.new_files, summary.returned_files), (3, 0, 0));
    assert_eq!(summary.read_files, 0, "their hashes were kept");
    fixture.assert_groups(&[&["a.x", "b.y", "c.y", "f/d.y"]]);
}

#[test]
fn files_of_an_excluded_folder_are_counted() {
    let fixture = Fixture::of(&[("a", 1, 50), ("f/b", 1, 50), ("f/g/c", 1, 50)]);
    fixture.scan();
    assert_eq!(fixture.scan_with(&with(&exclude(&["f"]))).excluded_files, 2);
}

#[test]
fn removed_file_counts_as_removed_despite_a_filter() {
    let fixture = Fixture::of(&[("a.x", 1, 50), ("b.y", 1, 50)]);
    fixture.scan();
    fixture.remove("b.y");
    let summary = fixture.scan_with(&with(&exclude(&["*.y"])));
    assert_eq!((summary.removed_files, summary.excluded_files), (1, 0));
}

#[test]
fn invalid_filter_is_refused_before_the_scan_starts() {
    let fixture = tree();
    for filter in [
        exclude(&["a["]),
        options!(Filter { min_size: Some(2), max_size: Some(1) }),
        options!(Filter { newer_than: Some(2), older_than: Some(2) }),
    ] {
        let roots = [fixture.root.clone()];
        let error = fixture.try_scan(&roots, &with(&filter), &std::sync::Arc::default()).expect_err("an error");
        assert!(error.is_user_error(), "{error}");
    }
    assert!(!fixture.scan().resumed);
}

/// Uses a filesystem mounted in `/dev`, if there is one.
#[test]
fn one_file_system_skips_mounted_filesystems() {
    let device = |path: &str| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let Some(own) = device("/dev") else { return };
    let mounted = ["shm"].iter().find(|name| device(&format!("/dev/{name}")).is_some_and(|other| other != own));
    let Some(mounted) = mounted else { return };
    let fixture = Fixture::new();
    let root = fixture.register(std::path::Path::new("/dev"));
    for (one_file_system, is_there) in [(false, true), (true, false), (false, true)] {
        let options = options!(ScanOptions { one_file_system, mode: gristmill_dedup::ScanMode::Walk });
        fixture.scan_all(std::slice::from_ref(&root), &options);
        let catalog = fixture.store.catalog();
        let known =
            catalog.known_entries(&catalog.root_folder(root.id).expect("its root folder"), true).expect("its folders");
        let is_in = |(name, folder): &(OsString, KnownFolder)| name == mounted && !folder.excluded;
        assert_eq!(known.folders.iter().any(is_in), is_there, "{mounted}");
    }
}
