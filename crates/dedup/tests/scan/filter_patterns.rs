//! Tests the syntax of patterns and `.gitignore` rules, each with the files that a scan lists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gristmill_dedup::{Filter, ScanMode, ScanOptions};
use gristmill_store::roots::Root;

use crate::fixture::Fixture;

fn exclude(pattern: &str) -> Filter {
    options!(Filter { exclude: vec![pattern.to_owned()] })
}

fn include(pattern: &str) -> Filter {
    options!(Filter { include: vec![pattern.to_owned()] })
}

/// Absolute paths of the files that a walk of `roots` lists.
#[track_caller]
fn listed(fixture: &Fixture, roots: &[Root], filter: &Filter) -> BTreeSet<PathBuf> {
    let options = options!(ScanOptions { filter: filter.clone(), mode: ScanMode::Walk, restart: true });
    fixture.scan_all(roots, &options);
    fixture.rows().into_keys().collect()
}

#[test]
fn patterns_match_names_and_paths() {
    let cases = [
        (exclude("*.tmp"), "a/b.tmp", false),
        (exclude("*.tmp"), "b.tmp", false),
        (exclude("*.tmp"), "a/b.txt", true),
        (exclude("node_modules"), "x/node_modules", false),
        (exclude("node_modules/"), "x/node_modules", false),
        (exclude("/top"), "top", false),
        (exclude("/top"), "a/top", true),
        (exclude("a/*.c"), "a/x.c", false),
        (exclude("a/*.c"), "a/b/x.c", true),
        (exclude("a/**/*.c"), "a/b/c/x.c", false),
        (exclude("{x,y}?"), "d/x1", false),
        (include("*.jpg"), "d/x.jpg", true),
        (include("*.jpg"), "d/x.png", false),
        (include("[ab]"), "e/a", true),
        (options!(Filter { skip_hidden: true }), "a/.b", false),
        (options!(Filter { skip_hidden: true }), "a/top", true),
        (exclude("*.JPG"), "d/x.jpg", true),
        (options!(Filter { exclude: vec!["*.JPG".into()], ignore_case: true }), "d/x.jpg", false),
        (options!(Filter { exclude: vec!["*.JPG".into()], ignore_case: true }), "d/y.JpG", false),
    ];
    let fixture = Fixture::new();
    cases.iter().for_each(|(_, path, _)| fixture.write(path, b"x"));
    for (filter, path, expected) in cases {
        let listed = listed(&fixture, std::slice::from_ref(&fixture.root), &filter);
        assert_eq!(listed.contains(&fixture.at(path)), expected, "{filter:?} {path}");
    }
}

#[test]
fn pattern_that_matches_nothing_is_invalid() {
    let error = exclude("a[").check().unwrap_err().to_string();
    assert!(error.contains("a[") && error.contains("*.tmp"), "{error}");
    for pattern in ["", "/", ".", "./", "././"] {
        assert!(exclude(pattern).check().is_err(), "{pattern:?}");
    }
}

#[test]
fn absolute_and_dot_slash_patterns_match_from_the_root() {
    let fixture = Fixture::new();
    let roots = [fixture.root.clone(), fixture.register(&fixture.at("inner")), fixture.register(&fixture.outside("o"))];
    let [top, inner, other] = roots.each_ref().map(|root| root.path.as_path());
    let below_top = |path: &str| top.join(path).to_str().expect("text").to_owned();
    let (in_top, in_inner) = (below_top("a/*.c"), below_top("inner/x"));
    // A path below another root than the one that its pattern names.
    let repeated = top.strip_prefix("/").expect("absolute").join("a/x.c");
    let cases: [(&str, &Path, &Path, bool); 11] = [
        ("./top", top, "top".as_ref(), true),
        ("./top", top, "a/top".as_ref(), false),
        ("././a/*.c", top, "a/x.c".as_ref(), true),
        ("./*.c", top, "a/x.c".as_ref(), false),
        (&in_top, top, "a/x.c".as_ref(), true),
        (&in_top, other, &repeated, false),
        (&in_top, other, "a/x.c".as_ref(), false),
        // Only the innermost root that contains the path matches.
        (&in_inner, inner, "x".as_ref(), true),
        (&in_inner, top, "a/inner/x".as_ref(), false),
        ("/top", top, "top".as_ref(), true),
        ("/top", inner, "a/top".as_ref(), false),
    ];
    cases.iter().for_each(|(_, root, path, _)| crate::fixture::write(&root.join(path), b"x"));
    for (pattern, root, path, matched) in cases {
        for (filter, expected) in [(exclude(pattern), !matched), (include(pattern), matched)] {
            let listed = listed(&fixture, &roots, &filter);
            assert_eq!(listed.contains(&root.join(path)), expected, "{filter:?} {root:?} {path:?}");
        }
    }
}

#[test]
fn absolute_pattern_through_a_link_is_inside_the_root() {
    let fixture = Fixture::new();
    fixture.write("sub/x.c", b"x");
    let link = fixture.outside("link");
    std::os::unix::fs::symlink(&fixture.root.path, &link).expect("a link");
    let filter = exclude(&format!("{}/sub/*.c", link.display()));
    assert_eq!(listed(&fixture, std::slice::from_ref(&fixture.root), &filter), BTreeSet::new());
    assert_eq!(filter.unmatchable(std::slice::from_ref(&fixture.root.path)), []);
}

#[test]
fn pattern_that_cannot_match_has_a_reason() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.at("there")).expect("a folder");
    let root = &fixture.root.path;
    let (inside, root_path) = (format!("{}/a*", root.display()), root.display().to_string());
    for (pattern, reason) in [
        ("*.tmp", None),
        ("./a/b", None),
        ("/there/x", None),
        ("/*/x", None),
        ("a..b/..c", None),
        (inside.as_str(), None),
        (root_path.as_str(), Some("names the scanned folder")),
        ("/no-such-folder/x", Some("outside of every scanned folder")),
        ("../x", Some("leads out of the scanned folder")),
        ("a/../b", Some("leads out of the scanned folder")),
        ("a//b", Some("single slash")),
        ("a/./b", Some("remove the dot")),
        ("~/x", Some("home folder")),
    ] {
        let found = include(pattern).unmatchable(std::slice::from_ref(root));
        let found = found.first().map(|(_, reason)| reason.as_str());
        match reason {
            None => assert_eq!(found, None, "{pattern}"),
            Some(reason) => assert!(found.is_some_and(|found| found.contains(reason)), "{pattern}: {found:?}"),
        }
    }
}

#[test]
fn innermost_gitignore_with_a_match_decides() {
    let fixture = Fixture::new();
    fixture.write(".gitignore", b"*.o\nbuild/\n!keep.o\n[\n");
    fixture.write("a/.gitignore", b"!*.o\n/local\n");
    let cases = [
        ("x.o", true),
        ("d/x.o", true),
        ("keep.o", false),
        ("build/x", true),
        ("d/build", false),
        ("a/x.o", false),
        ("a/local", true),
        ("a/b/local", false),
        ("a/build/x", true),
    ];
    cases.iter().for_each(|(path, _)| fixture.write(path, b"x"));
    let filter = options!(Filter { gitignore: true });
    let listed = listed(&fixture, std::slice::from_ref(&fixture.root), &filter);
    for (path, is_ignored) in cases {
        assert_eq!(listed.contains(&fixture.at(path)), !is_ignored, "{path}");
    }
}
