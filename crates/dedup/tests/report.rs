//! Tests that the page is well-formed, that names add only text, and that its numbers match the catalog.

mod trees;

use std::ffi::OsString;

use gristmill_dedup::report::{self, ReportOptions};
use gristmill_store::catalog::{GroupQuery, LinkKind};
use trees::FileContent::{Empty, Hashed, Unique, Unknown};
use trees::{CatalogFixture, TestFile, file, skipped_entry};

fn page(trees: &CatalogFixture) -> String {
    report::html(&trees.store, &ReportOptions::new(trees.store.now())).expect("a page")
}

/// Parses the page as XML: every tag is closed, every attribute quoted, every entity one of five. Calls `text` with
/// every text.
#[track_caller]
fn check_form(page: &str, mut text: impl FnMut(&str)) {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
    let mut open: Vec<String> = Vec::new();
    while let Some((before, after)) = rest.split_once('<') {
        assert!(!before.contains('>') || open.last().is_some_and(|tag| tag == "style"), "{before}");
        check_entities(before);
        text(before);
        // Quoted values contain no bracket, because brackets are escaped.
        let (tag, after) = after.split_once('>').expect("the end of a tag");
        rest = after;
        assert!(!tag.contains('<'), "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
        while !attributes.trim().is_empty() {
            let (key, after) = attributes.trim_start().split_once("=\"").expect("a quoted value");
            assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{key}");
            let (value, after) = after.split_once('"').expect("the end of a value");
            check_entities(value);
            attributes = after;
        }
        if !closed {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty());
}

#[track_caller]
fn check_entities(text: &str) {
    for part in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
        assert!(known.iter().any(|entity| part.starts_with(entity)), "&{part}");
    }
}

fn sample_tree() -> CatalogFixture {
    let mut trees = CatalogFixture::new();
    let files = [
        file("a/one.jpg", Hashed(100, 1)),
        file("a/two.jpg", Hashed(100, 1)),
        file("b/three.JPG", Hashed(100, 1)),
        TestFile { inode: 5, ..file("b/four.txt", Hashed(70, 2)) },
        TestFile { inode: 5, ..file("c/link.txt", Hashed(70, 2)) },
        file("c/copy.txt", Hashed(70, 2)),
        TestFile { inode: 6, ..file("c/only", Hashed(30, 3)) },
        TestFile { inode: 6, ..file("c/linked", Hashed(30, 3)) },
        file("c/d/alone.bin", Unique(500)),
        file("c/d/broken", Unknown(9)),
        file("empty", Empty),
        file("empty too", Empty),
    ];
    trees.root("/some/place", &files, &[], &[]);
    trees
}

#[test]
fn page_is_well_formed_and_self_contained() {
    for trees in [sample_tree(), CatalogFixture::new()] {
        let page = page(&trees);
        check_form(&page, |_| ());
        assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
        for word in ["<script", "javascript:", "url(", "@import", "src=\"", "href=", "onload", "<link", "<img"] {
            assert!(!page.contains(word), "{word}");
        }
        let elsewhere = page.replace("http://www.w3.org/1999/xhtml", "");
        assert!(!elsewhere.contains("://"));
    }
}

#[test]
fn page_numbers_match_the_catalog() {
    let trees = sample_tree();
    let groups = trees.store.catalog().groups(&GroupQuery::default()).expect("groups");
    assert_eq!((groups.total, groups.files, groups.reclaimable), (2, 6, 270));
    let page = page(&trees);
    for part in [
        // Three pictures, two texts on the disk, one file with two names, 500 B and 9 B.
        "<dt>Reclaimable</dt><dd>270 B <small>28 % of 979 B on disk",
        "<dt>Size</dt><dd>979 B",
        "539 B everything else (55 %)",
        "<dt>Duplicate groups</dt><dd>2 <small>6 files</small>",
        "<dt>Files</dt><dd>12 <small>1 unreadable",
        "<dt>Last scan</dt><dd>2026-03-04 <small>05:06 UTC",
        // Three pictures, two of them reclaimable; three texts, two of which are names of one file.
        "<td>jpg</td><td class=\"n\">3</td><td class=\"n less\">300 B</td><td class=\"n less\">3</td><td class=\"n\">200 B</td>",
        "<td>txt</td><td class=\"n\">3</td><td class=\"n less\">140 B</td><td class=\"n less\">3</td><td class=\"n\">70 B</td>",
        // Two names of one file are not copies.
        "<td>(none)</td><td class=\"n\">5</td><td class=\"n less\">39 B</td><td class=\"n less\">0</td><td class=\"n\">0 B</td>",
        "<b>200 B</b> <span class=\"soft\">of 3 × 100 B</span>",
        "<b>70 B</b> <span class=\"soft\">of 2 × 70 B</span>",
        "/some/place/a · 200 B · 2 files · duplicates: 100 %",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn reclaimable_counts_allocated_bytes_and_matches_the_groups() {
    let planned = |path: &str, allocated, inode, links| TestFile {
        allocated: Some(allocated),
        inode,
        links,
        ..file(path, Hashed(1_000, 1))
    };
    let mut trees = CatalogFixture::new();
    let files = [
        planned("a.img", 100, 0, LinkKind::Single),
        planned("b.img", 300, 0, LinkKind::Single),
        // The target of a link is kept.
        planned("link.raw", 500, 9, LinkKind::ViaSymlink),
        TestFile { allocated: Some(70), ..file("c.txt", Hashed(90, 2)) },
        TestFile { allocated: Some(60), ..file("d.txt", Hashed(90, 2)) },
    ];
    trees.root("/some/place", &files, &[], &[]);
    let groups = trees.store.catalog().groups(&GroupQuery::default()).expect("groups");
    assert_eq!(groups.reclaimable, 460);
    let page = page(&trees);
    for part in [
        "<dt>Reclaimable</dt><dd>460 B <small>45 % of 1.0 KiB on disk",
        "460 B reclaimable (45 %)",
        "570 B copies to keep (55 %)",
        "0 B everything else",
        "<td>img</td><td class=\"n\">2</td><td class=\"n less\">2.0 KiB</td><td class=\"n less\">2</td><td class=\"n\">400 B</td>",
        "<td>txt</td><td class=\"n\">2</td><td class=\"n less\">180 B</td><td class=\"n less\">2</td><td class=\"n\">60 B</td>",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn file_reached_by_two_paths_counts_once() {
    let planned = |path: &str, inode| TestFile {
        allocated: Some(300),
        inode,
        links: LinkKind::Single,
        ..file(path, Hashed(250, 1))
    };
    let mut trees = CatalogFixture::new();
    trees.root("/some/place", &[planned("w/a", 9), planned("bound/a", 9)], &[], &[]);
    let reclaimable =
        |trees: &CatalogFixture| trees.store.catalog().groups(&GroupQuery::default()).expect("groups").reclaimable;
    assert_eq!(reclaimable(&trees), 0);
    assert!(page(&trees).contains("<dt>Reclaimable</dt><dd>0 B <small>0 % of 300 B on disk"));
    trees.root("/other", &[planned("copy", 8)], &[], &[]);
    assert_eq!(reclaimable(&trees), 300);
    assert!(page(&trees).contains("<dt>Reclaimable</dt><dd>300 B <small>50 % of 600 B on disk"));
}

#[test]
fn folders_that_may_differ_are_listed_separately_from_identical_ones() {
    let mut trees = CatalogFixture::new();
    trees.skipped.insert("b".into(), Some(skipped_entry("notes", None)));
    trees.root("/r", &[file("a/1", Hashed(10, 1)), file("b/1", Hashed(10, 1))], &[], &[]);
    let page = page(&trees);
    assert!(!page.contains("<h2>Identical folders</h2>"));
    assert!(page.contains("<h2>Folders identical apart from entries not scanned</h2>"));
    assert!(page.contains("<b>1 entry not scanned</b> <span class=\"soft\">in 2 × 10 B (1 file)</span>"));
    check_form(&page, |_| ());
}

#[test]
fn same_catalog_gives_the_same_page() {
    assert_eq!(page(&sample_tree()), page(&sample_tree()));
}

#[cfg(unix)]
#[test]
fn file_names_are_escaped_as_text() {
    use std::os::unix::ffi::OsStringExt;
    let names: [&[u8]; 8] = [
        b"<script>alert(1)</script>",
        b"\"><svg onload='x'>&amp;",
        b"]]><!-- -->",
        b"line\nbreak\x00zero\x1besc".split(|byte| *byte == 0).next().expect("a part"),
        b"bad\xff\xfeutf.j\xffpg",
        "turned \u{202e}gpj.exe".as_bytes(),
        "\u{feff}\u{200b}hidden\u{e0041}".as_bytes(),
        "עברית".as_bytes(),
    ];
    let mut trees = CatalogFixture::new();
    let mut files = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let name = OsString::from_vec(name.iter().map(|&byte| if byte == b'/' { b'|' } else { byte }).collect());
        for folder in ["a", "b"] {
            let mut path = OsString::from(folder);
            path.push("/");
            path.push(&name);
            path.push("/");
            path.push(&name);
            files.push(file(path, Hashed(1_000 * (n as u64 + 1), 1)));
        }
    }
    trees.root("/r/<b>", &files, &[], &[]);
    let page = page(&trees);
    let mut all = String::new();
    check_form(&page, |text| all.push_str(text));
    assert!(all.contains("&lt;script&gt;alert(1)"));
    assert!(all.contains("line\\x0Abreak"));
    assert!(all.contains("bad\\xFF\\xFEutf"));
    assert!(all.contains("turned \\u{202e}gpj.exe"));
    assert!(all.contains("\\u{feff}\\u{200b}hidden\\u{e0041}"));
    assert!(all.contains("עברית"));
    assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!page.contains(['\u{202e}', '\u{feff}', '\u{200b}']));
}

#[test]
fn long_lists_are_truncated() {
    let mut trees = CatalogFixture::new();
    let group = |n: u64| (0..90).map(move |m| file(format!("{n}/{m}.x{n}"), Hashed(10 + n, 1)));
    trees.root("/r", &(0..30).flat_map(group).collect::<Vec<_>>(), &[], &[]);
    let page = page(&trees);
    assert_eq!(page.matches("Showing 15 of 30.").count(), 2, "groups and types");
    assert!(page.contains("and 39 more"));
}
