//! Lists from the catalog in every format: `dupes` and `folders`.
#![cfg(unix)]

mod common;

use std::collections::BTreeSet;

use common::{Home, assert_shape};
use serde_json::{Value, json};

/// Creates two roots with three copies and a hard link of one content, two copies of others, and unusual names.
fn library() -> Home {
    let home = Home::new();
    home.files(&[
        (b"a/one", &[1; 5_000]),
        (b"a/sub/two", &[1; 5_000]),
        (b"b/three", &[1; 5_000]),
        (b"a/caf\xe9", &[2; 300]),
        (b"a/new\nline\x1b[31m", &[2; 300]),
        (b"a/single", b"unique content"),
        (b"b/comma, \"quote\"", &[3; 20]),
        (b"b/plain", &[3; 20]),
    ]);
    std::fs::hard_link(home.path("a/one"), home.path("a/sub/link")).unwrap();
    home.scan(&["a", "b"]);
    home
}

/// Formats a size below 1 MiB as the program does.
fn shown(bytes: u64) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0)
}

/// Returns the file sizes of the listed groups.
fn sizes(home: &Home, words: &[&str]) -> Vec<u64> {
    let found = home.json(&[&["dupes"], words].concat());
    found["items"].as_array().unwrap().iter().map(|group| group["size"].as_u64().unwrap()).collect()
}

#[test]
fn text_lists_groups_with_their_reclaimable_bytes() {
    let home = library();
    let at = |name: &str| home.real(name);
    let (large, small) = (2 * home.allocated("a/one"), home.allocated("b/plain"));
    let all = shown(large + 2 * small);
    let (large, small) = (shown(large), shown(small));
    let expected = format!(
        "3 copies of 4.9 KiB ({large} reclaimable)
    {}
  = {} (hard link)
    {}
    {}

2 copies of 300 B ({small} reclaimable)
    {}
    {}

2 copies of 20 B ({small} reclaimable)
    {}
    {}

3 duplicate groups, 8 files: {all} reclaimable (10.1 KiB of file contents)
",
        at("a/one"),
        at("a/sub/link"),
        at("a/sub/two"),
        at("b/three"),
        at("a/caf\\xE9"),
        at("a/new\\x0Aline\\x1B[31m"),
        at("b/comma, \"quote\""),
        at("b/plain"),
    );
    let output = home.run(&["dupes"]);
    assert_eq!((output.out.as_str(), output.err.as_str()), (expected.as_str(), ""));
}

#[test]
fn json_has_totals_keys_and_path_bytes() {
    let home = library();
    let found = home.json(&["dupes"]);
    assert_shape("dupes", &found);
    for (field, expected) in [
        ("total_groups", json!(3)),
        ("total_files", json!(8)),
        ("reclaimable_bytes", json!(2 * home.allocated("a/one") + 2 * home.allocated("b/plain"))),
        ("redundant_bytes", json!(10_320)),
        ("next_cursor", Value::Null),
    ] {
        assert_eq!(found[field], expected, "{field}");
    }
    let first = &found["items"][0];
    // BLAKE3 of five thousand bytes of one.
    let key = first["group_key"].as_str().unwrap();
    assert!(key.starts_with("blake3:") && key.len() == 7 + 64, "{key}");
    assert_eq!((&first["copies"], &first["redundant_bytes"]), (&json!(3), &json!(10_000)));
    assert_eq!(first["reclaimable_bytes"], json!(2 * home.allocated("a/one")));
    let linked: Vec<&Value> = first["files"].as_array().unwrap().iter().map(|file| &file["hard_link"]).collect();
    assert_eq!(linked, [false, true, false, false]);
    assert_eq!(first["files"][3]["root"], json!(home.real("b")));
    assert_eq!(first["files"][0].get("path_bytes"), None, "a UTF-8 path has no path_bytes");
    let odd = &found["items"][1]["files"];
    assert_eq!(odd[0]["path"], json!(home.real("a/caf\\xE9")));
    assert!(odd[0]["path_bytes"].as_str().unwrap().ends_with("2f636166e9"), "{odd}");
    assert_eq!(odd[1]["path"], json!(home.real("a/new\nline\u{1b}[31m")));
}

/// Scripts delete unmarked paths, so every other path to the kept file must be marked.
#[test]
fn other_path_to_a_listed_file_is_marked_in_every_form() {
    let home = Home::new();
    home.files(&[(b"a/x", &[1; 5_000]), (b"copies/x", &[1; 5_000]), (b"z/own", b"something")]);
    std::os::unix::fs::symlink("../a", home.path("z/to a")).unwrap();
    home.check(&["scan", "-q", "-y", "--follow-links", "z"], 0, "", "");
    // Registered after the root that leads to it.
    home.scan(&["a", "copies"]);
    let output = home.run(&["dupes"]);
    assert!(output.out.contains(&format!("  = {} (symbolic link)", home.real("z/to a/x"))), "{output:?}");
    let found = home.json(&["dupes"]);
    let first = &found["items"][0];
    let marks: Vec<(&Value, &Value)> =
        first["files"].as_array().unwrap().iter().map(|file| (&file["hard_link"], &file["symbolic_link"])).collect();
    let mark = |linked: bool, via_symlink: bool| (json!(linked), json!(via_symlink));
    let expected = [mark(false, false), mark(true, true), mark(false, false)];
    assert_eq!(marks, expected.each_ref().map(|(linked, via)| (linked, via)), "{first}");
    assert_eq!(first["copies"], json!(2));
    // The same for a root that became a link to another root.
    std::fs::rename(home.path("copies"), home.path("moved")).unwrap();
    std::os::unix::fs::symlink("moved", home.path("copies")).unwrap();
    home.scan(&["moved"]);
    let output = home.run(&["dupes"]);
    assert!(output.out.contains(&format!("  = {} (same file)", home.real("moved/x"))), "{output:?}");
    let found = home.json(&["dupes"]);
    assert_eq!(found["items"][0]["copies"], json!(2));
}

#[test]
fn csv_has_one_row_for_each_file() {
    let home = library();
    let output = home.run(&["dupes", "--csv", "--min-count", "2"]);
    let (header, rows) = output.out.split_once('\n').unwrap();
    assert_eq!(
        header,
        "group,group_key,size,copies,reclaimable_bytes,path,path_bytes,root,hard_link,mtime,reachable,symbolic_link,\
         allocated_bytes,kept"
    );
    let row = |number: &str, name: &str| {
        let quoted = home.real(name).replace('"', "\"\"");
        rows.contains(&format!("{number},{quoted}")) || rows.contains(&format!("{number},\"{quoted}\""))
    };
    assert!(rows.starts_with("1,blake3:"), "{rows}");
    let (large, small) = (2 * home.allocated("a/one"), home.allocated("b/plain"));
    let row = |size: &str, space: u64, name: &str| row(&format!("{size},{space}"), name);
    assert!(row("5000,3", large, "a/one") && row("300,2", small, "a/new\nline\u{1b}[31m"), "{rows}");
    assert!(row("20,2", small, "b/comma, \"quote\"") && row("20,2", small, "b/plain"), "{rows}");
    assert!(rows.contains(&format!("/a/sub/link,,{},true,20", home.real("a"))), "{rows}");
    assert!(rows.contains(&format!("{},", home.real("a/caf\\xE9"))), "{rows}");
    assert!(rows.contains("2f636166e9,"), "bytes of a path that is not UTF-8: {rows}");
    // One row per file; one name contains a line end.
    assert_eq!(rows.lines().count(), 9);
    assert_eq!(rows.lines().filter(|line| line.starts_with("3,")).count(), 2);
}

#[test]
fn every_form_marks_a_followed_link() {
    let home = Home::new();
    home.files(&[(b"o/target", b"hello"), (b"s/copy", b"hello")]);
    std::os::unix::fs::symlink("../o/target", home.path("s/a link")).unwrap();
    home.scan(&["--follow-links", "s"]);
    let (link, copy) = (home.real("s/a link"), home.real("s/copy"));
    let allocated = home.allocated("s/copy");
    let rows = home.run(&["dupes", "--csv"]).out;
    let row = |path: &str| rows.lines().find(|row| row.contains(&format!(",{path},"))).unwrap().to_owned();
    assert!(row(&link).ends_with(&format!(",true,true,{allocated},")), "{rows}");
    assert!(row(&copy).ends_with(&format!(",true,false,{allocated},")), "{rows}");
    let page = home.run(&["report", "--html", "-"]).out;
    assert!(page.contains(&format!("{link}</bdi> <span class=\"soft\">(symbolic link)</span>")), "{page}");
    assert!(page.contains(&format!("{copy}</bdi></li>")), "{page}");
}

#[test]
fn fdupes_form_lists_one_path_per_line_and_an_empty_line_between_groups() {
    let home = library();
    let run = |words: &[&str]| home.command(&[&["dupes", "--fdupes"], words].concat()).output().unwrap().stdout;
    let real = |name: &[u8]| [home.real("").as_bytes(), name].concat();
    let expected = |groups: &[&[&[u8]]], end: &[u8]| {
        let group = |names: &&[&[u8]]| names.iter().flat_map(|name| [&real(name), end].concat()).collect::<Vec<u8>>();
        groups.iter().map(group).collect::<Vec<_>>().join(end)
    };
    let odd: &[&[u8]] = &[b"a/caf\xe9", b"a/new\nline\x1b[31m"];
    let small: &[&[u8]] = &[b"b/comma, \"quote\"", b"b/plain"];
    let groups: &[&[&[u8]]] = &[&[b"a/one", b"a/sub/two", b"b/three"], odd, small];
    assert_eq!(run(&[]), expected(groups, b"\n"));
    assert_eq!(run(&["--print0"]), expected(groups, b"\0"));
    let all: &[&[&[u8]]] = &[&[b"a/one", b"a/sub/link", b"a/sub/two", b"b/three"], odd, small];
    assert_eq!(run(&["-0", "--hard-links"]), expected(all, b"\0"));
    assert_eq!(run(&["--limit", "1", "--after", "1"]), expected(&[odd], b"\n"));
    assert_eq!(run(&["--after", "2"]), expected(&[small], b"\n"));
    home.check(&["dupes", "--print0"], 1, "", "--fdupes");
    home.check(&["dupes", "--fdupes", "--json"], 1, "", "cannot be used with");
    home.check(&["dupes", "--csv", "--fdupes"], 1, "", "cannot be used with");
}

#[test]
fn copies_in_an_unreachable_root_are_marked() {
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"b/two", b"same"), (b"b/alone", b"of this size")]);
    home.scan(&["a", "b"]);
    std::fs::rename(home.path("b"), home.path("away")).unwrap();
    let note = format!("{} (possible copy: its root cannot be reached now)\n", home.real("b/two"));
    home.check(&["dupes"], 0, &note, "");
    let found = home.json(&["dupes"]);
    let reachable: Vec<&Value> =
        found["items"][0]["files"].as_array().unwrap().iter().map(|file| &file["reachable"]).collect();
    assert_eq!(reachable, [true, false]);
    home.files(&[(b"a/perhaps", b"of this size")]);
    home.run(&["scan", "a"]);
    let text = "incomplete: 1 file of roots that cannot be reached now was not compared";
    home.check(&["dupes"], 0, text, "");
    home.check(&["dupes"], 0, "`gristmill scan --every-file` also hashes files of unique size", "");
}

#[test]
fn dupes_are_sorted_and_filtered_by_flags() {
    let home = Home::new();
    let large = [1; 100_000];
    home.files(&[(b"a/z1", &large), (b"a/z2", &large)]);
    for name in ["a/m1", "a/m2", "b/m3", "b/m4"] {
        home.files(&[(name.as_bytes(), &[2; 40_000])]);
    }
    home.files(&[
        (b"a/b1", &[3; 5_000]),
        (b"a/b2", &[3; 5_000]),
        (b"b/b3", &[3; 5_000]),
        (b"b/c1", b"c"),
        (b"b/c2", b"c"),
    ]);
    home.scan(&["a", "b"]);
    assert_eq!(sizes(&home, &[]), [40_000, 100_000, 5_000, 1]);
    assert_eq!(sizes(&home, &["--sort", "reclaimable"]), [40_000, 100_000, 5_000, 1]);
    assert_eq!(sizes(&home, &["--sort", "count"]), [40_000, 5_000, 100_000, 1]);
    assert_eq!(sizes(&home, &["--sort", "size"]), [100_000, 40_000, 5_000, 1]);
    assert_eq!(sizes(&home, &["--sort", "path", "--root", "a"]), [5_000, 40_000, 100_000]);
    assert_eq!(sizes(&home, &["--min-count", "3"]), [40_000, 5_000]);
    assert_eq!(sizes(&home, &["--min-count", "4"]), [40_000]);
    assert_eq!(sizes(&home, &["--min-size", "40000"]), [40_000, 100_000]);
    assert_eq!(sizes(&home, &["--min-size", "1MiB"]), [0; 0]);
    assert_eq!(sizes(&home, &["--across-roots"]), [40_000, 5_000]);
    assert_eq!(sizes(&home, &["--root", "b"]), [40_000, 1]);
    assert_eq!(sizes(&home, &["--root", &home.real("b")]), [40_000, 1]);
    assert_eq!(sizes(&home, &["--root", "a", "--root", "b", "--across-roots"]), [40_000, 5_000]);
    assert_eq!(sizes(&home, &["--root", "a", "--across-roots"]), [0; 0]);
    home.check(&["dupes", "--min-size", "1MiB"], 0, "no duplicates match the filters; `gristmill dupes` lists all", "");
    let expected = format!("c: not a root (registered: {}, {})", home.real("a"), home.real("b"));
    home.check(&["dupes", "--root", "c"], 1, "", &expected);
    home.check(&["dupes", "--min-count", "1"], 1, "", "expected: a whole number of at least 2");
    home.check(&["dupes", "--sort", "age"], 1, "", "possible values: reclaimable, count, size, path");
}

#[test]
fn root_filter_includes_nested_roots() {
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"a/inner/two", b"same"), (b"b/three", b"same")]);
    home.scan(&["a", "a/inner", "b"]);
    let copies = |words: &[&str]| home.json(&[&["dupes"], words].concat())["items"][0]["copies"].clone();
    assert_eq!(copies(&[]), 3);
    assert_eq!(copies(&["--root", "a"]), 2);
    assert_eq!(copies(&["--root", "inner"]), Value::Null);
    assert_eq!(copies(&["--root", "inner", "--root", "b"]), 2);
}

#[test]
fn pages_neither_repeat_nor_skip() {
    let home = Home::new();
    for number in 0..7_u8 {
        // All have the same size, so only the hash distinguishes them.
        let content = [number; 100];
        home.files(&[(format!("a/{number}").as_bytes(), &content), (format!("a/{number}x").as_bytes(), &content)]);
    }
    home.scan(&["a"]);
    let (mut keys, mut cursor, mut pages) = (BTreeSet::new(), Some("0".to_owned()), 0);
    while let Some(after) = cursor {
        let found = home.json(&["dupes", "--limit", "3", "--after", &after]);
        assert_eq!(found["total_groups"], 7);
        for group in found["items"].as_array().unwrap() {
            assert!(keys.insert(group["group_key"].as_str().unwrap().to_owned()), "{group} is listed twice");
        }
        cursor = found["next_cursor"].as_str().map(str::to_owned);
        pages += 1;
    }
    assert_eq!((keys.len(), pages), (7, 3));
    home.check(&["dupes", "--limit", "3"], 0, "\ngroups 1 to 3 of 7; next: --after 3\n", "");
    home.check(&["dupes", "--limit", "3", "--after", "6"], 0, "\ngroups 7 to 7 of 7\n7 duplicate groups", "");
    home.check(&["dupes", "--limit", "all", "--after", "5"], 0, "\ngroups 6 to 7 of 7\n7 duplicate groups", "");
    assert!(!home.run(&["dupes", "--limit", "7"]).out.contains("groups 1 to"), "all are shown");
    home.check(&["dupes", "--limit", "3", "--after", "9"], 0, "no groups after 9: there are 7\n", "");
    assert_eq!(home.json(&["dupes", "--limit", "all"])["items"].as_array().unwrap().len(), 7);
    assert_eq!(home.run(&["dupes", "--csv", "--limit", "2", "--after", "2"]).out.lines().count(), 5);
    home.check(&["dupes", "--limit", "0"], 1, "", "expected: a whole number of at least 1, or all");
    home.check(&["dupes", "--after", "x"], 1, "", "expected: next_cursor of the previous page, unchanged");
}

#[test]
fn default_limit_is_20_groups_as_text_and_all_groups_for_programs() {
    let home = Home::new();
    for number in 0..25_u8 {
        let content = [number; 100];
        home.files(&[(format!("a/{number}").as_bytes(), &content), (format!("a/{number}x").as_bytes(), &content)]);
    }
    home.scan(&["a"]);
    let found = home.json(&["dupes"]);
    assert_eq!((found["items"].as_array().unwrap().len(), &found["next_cursor"]), (25, &Value::Null));
    home.check(&["dupes"], 0, "groups 1 to 20 of 25; next: --after 20\n25 duplicate groups", "");
    assert_eq!(home.run(&["dupes", "--csv"]).out.lines().count(), 51);
    assert_eq!(home.run(&["dupes", "--fdupes"]).out.lines().count(), 74);
}

#[test]
fn empty_lists_name_the_next_command() {
    let home = Home::new();
    for words in [
        &["dupes"][..],
        &["folders"],
        &["copies", "x"],
        &["unique", "--in", "x"],
        &["roots"],
        &["refresh"],
        &["verify"],
        &["roots", "remove", "x"],
    ] {
        home.check(words, 1, "", "; `gristmill scan FOLDER` creates it, or choose another with --db");
    }
    home.check(&["purge", "all", "--before", "1d"], 1, "", "`gristmill scan FOLDER` creates it");
    assert!(!home.database().exists());
    drop(home.store());
    home.write("x", "");
    for words in
        [&["dupes"][..], &["folders"], &["folders", "--partial"], &["folders", "--contained"], &["copies", "x"]]
    {
        home.check(words, 0, "no folder has been scanned yet; scan one: `gristmill scan FOLDER`", "");
    }
    home.check(&["unique", "--in", "x"], 1, "", "no root is registered; `gristmill scan FOLDER` registers one");
    assert_eq!(home.run(&["dupes", "--fdupes"]).out, "");
    assert_eq!(home.run(&["dupes", "--csv"]).out.lines().count(), 1);
}

#[test]
fn identical_folders_are_grouped_and_match_names_compares_names() {
    let home = Home::new();
    for top in ["a/x", "a/deep/y", "b/z"] {
        for name in ["1", "2", "in/3"] {
            home.write(&format!("{top}/{name}"), &format!("the content of {name}"));
        }
    }
    std::fs::rename(home.path("b/z/1"), home.path("b/z/other")).unwrap();
    // Makes the enclosing folders differ.
    home.write("a/alone/1", "unique content");
    home.write("b/alone", "also unique");
    home.scan(&["a", "b"]);
    let found = home.json(&["folders"]);
    assert_shape("folders", &found);
    let paths = |found: &Value| -> Vec<String> {
        let folders = found["items"][0]["folders"].as_array().unwrap().iter();
        folders.map(|folder| folder["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(found["total_groups"], 1, "{found}");
    assert_eq!(paths(&found), ["a/deep/y", "a/x", "b/z"].map(|name| home.real(name)));
    let named = home.json(&["folders", "--match-names"]);
    assert_eq!(paths(&named), ["a/deep/y", "a/x"].map(|name| home.real(name)), "{named}");
    let text = format!("reclaimable)\n    {}\n", home.real("a/deep/y"));
    home.check(&["folders"], 0, &text, "");
    home.check(&["folders", "--root", "b"], 0, "no identical folders match the filters", "");
    home.check(&["folders", "--min-size", "1KiB"], 0, "no identical folders match the filters", "");
}

#[test]
fn similar_folders_list_their_differences() {
    let home = Home::new();
    for name in ["1", "2", "3", "4"] {
        home.write(&format!("a/x/{name}"), &format!("the content of {name}"));
        home.write(&format!("a/y/{name}"), &format!("the content of {name}"));
    }
    home.write("a/x/4", "another content");
    home.write("a/x/more\u{1b}[2J", "only here");
    home.write("a/y/other", "only there, and that twice");
    home.scan(&["a"]);
    let found = home.json(&["folders", "--partial", "--min-similarity", "40%"]);
    assert_shape("folders-partial", &found);
    let pair = &found["items"][0];
    assert_eq!((&pair["matching_files"], &pair["similarity"]), (&json!(3), &json!(42.9)), "{pair}");
    assert_eq!(pair["only_in_a"]["items"][0]["path"], "more\u{1b}[2J");
    assert_eq!(pair["only_in_b"]["items"][0]["path"], "other");
    assert_eq!(pair["differing"]["items"][0]["a"]["path"], "4");
    let output = home.run(&["folders", "--partial", "--min-similarity", "40"]);
    for expected in [
        "42.9 % similar: 3 files in common, 48 B\n".to_owned(),
        format!("  A {}  (5 files, ", home.real("a/x")),
        "    only in A: 1 file\n      more\\x1B[2J  (9 B, 20".to_owned(),
        "    different in A and B: 1 file\n      4  (A 15 B, 20".to_owned(),
        "1 pair of similar folders\n".to_owned(),
    ] {
        assert!(output.out.contains(&expected), "no {expected:?} in {}", output.out);
    }
    home.check(&["folders", "--partial"], 0, "no similar folders", "");
    home.check(&["folders", "--partial", "--min-similarity", "0"], 1, "", "expected: a whole number from 1 to 100");
    home.check(&["folders", "--min-similarity", "60"], 1, "", "--partial");
}

/// Returns the names of the listed files of each group.
fn names(home: &Home, words: &[&str]) -> Vec<Vec<String>> {
    let found = home.json(&[&["dupes", "--sort", "path"], words].concat());
    let name = |file: &Value| file["path"].as_str().unwrap().rsplit_once('/').unwrap().1.to_owned();
    let group = |group: &Value| group["files"].as_array().unwrap().iter().map(name).collect();
    found["items"].as_array().unwrap().iter().map(group).collect()
}

#[test]
fn groups_are_filtered_by_their_files() {
    let home = Home::new();
    home.files(&[
        (b"a/Photos/One.JPG", &[1; 500]),
        (b"a/Photos/two.jpg", &[1; 500]),
        (b"b/archive/one.jpg", &[1; 500]),
        (b"a/notes.txt", &[2; 400]),
        (b"a/old/notes.txt", &[2; 400]),
        (b"a/old/other.txt", &[2; 400]),
        (b"b/clip.mp4", &[3; 300]),
        (b"b/clip copy.mp4", &[3; 300]),
    ]);
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    for name in ["b/clip.mp4", "b/clip copy.mp4"] {
        std::fs::File::options().append(true).open(home.path(name)).unwrap().set_modified(old).unwrap();
    }
    home.scan(&["a", "b"]);
    let (photos, notes) = (vec!["One.JPG", "two.jpg", "one.jpg"], vec!["notes.txt", "notes.txt", "other.txt"]);
    let clips = vec!["clip copy.mp4", "clip.mp4"];
    let archive = home.real("b/archive");
    for (words, expected) in [
        (&[][..], vec![photos.clone(), notes.clone(), clips.clone()]),
        (&["--contains", "photos/"], vec![photos.clone()]),
        (&["--glob", "*.jpg"], vec![photos.clone()]),
        (&["--glob", "*.txt", "--glob", "clip*"], vec![notes.clone(), clips.clone()]),
        (&["--glob", "Photos/*.jpeg"], vec![]),
        (&["--glob", "photos/*.JPG", "--ignore-case"], vec![photos.clone()]),
        (&["--ext", "jpg"], vec![photos.clone()]),
        (&["--ext", ".TXT,mp4"], vec![notes.clone(), clips.clone()]),
        (&["--type", "image,video"], vec![photos.clone(), clips.clone()]),
        (&["--type", "video", "--newer-than", "1d"], vec![]),
        (&["--newer-than", "1d"], vec![photos.clone(), notes.clone()]),
        (&["--older-than", "2021-01-01"], vec![clips.clone()]),
        (&["--match-names"], vec![vec!["notes.txt", "notes.txt"]]),
        (&["--reference", &archive], vec![vec!["One.JPG", "two.jpg"]]),
        (&["--reference", "b"], vec![vec!["One.JPG", "two.jpg"]]),
        (&["--reference", "b", "--contains", "notes"], vec![]),
    ] {
        assert_eq!(names(&home, words), expected, "{words:?}");
    }
    let found = home.json(&["dupes", "--reference", "b"]);
    // A copy stays in the reference folder, so all of the listed ones can go.
    assert_eq!(found["reclaimable_bytes"], json!(2 * home.allocated("a/notes.txt")));
    home.check(&["dupes", "--reference", "c"], 1, "", "not a root");
    home.check(&["dupes", "--ext", "a/b"], 1, "", "expected: an extension such as jpg");
    home.check(&["dupes", "--type", "photo"], 1, "", "possible values: image, video, audio, document, archive");
    home.check(&["dupes", "--glob", "["], 1, "", "invalid pattern");
}

#[test]
fn filters_that_can_match_nothing_are_refused_or_warned_about() {
    let home = library();
    home.check(&["dupes", "--contains", ""], 1, "", "--contains <TEXT>");
    let years = ["--newer-than", "2030-01-01", "--older-than", "2020-01-01"];
    home.check(&[&["dupes"][..], &years].concat(), 1, "", "--newer-than is not before --older-than");
    for (pattern, reason) in [("/nowhere/x", "it is outside of every scanned folder"), ("../x", "it leads out of")] {
        let expected = format!("gristmill: warning: the pattern {pattern:?} matches nothing: {reason}");
        home.check(&["dupes", "--glob", pattern], 0, "no duplicates match the filters", &expected);
    }
    home.check(&["dupes", "--glob", "/plain", "--glob", "on?"], 0, "2 duplicate groups", "");
    // A root that cannot be reached may have had such a folder.
    std::fs::rename(home.path("b"), home.path("away")).unwrap();
    home.check(&["dupes", "--glob", "/nowhere/x"], 0, "no duplicates match the filters", "");
}

#[test]
fn kept_reference_copies_are_named_in_text_json_and_csv() {
    let home = library();
    std::fs::hard_link(home.path("b/three"), home.path("b/four")).unwrap();
    home.scan(&["b"]);
    let words = |more: &[&'static str]| [&["dupes", "--reference", "b", "--min-size", "1000"], more].concat();
    let (four, three) = (home.real("b/four"), home.real("b/three"));
    let text = format!("    {}\n    kept: {four}\n  = kept: {three} (hard link)\n", home.real("a/sub/two"));
    home.check(&words(&[]), 0, &text, "");
    let found = home.json(&words(&[]));
    let paths = |field: &str| -> Vec<String> {
        let files = found["items"][0][field].as_array().unwrap().iter();
        files.map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths("kept"), [four.clone(), three]);
    assert_eq!(paths("files"), ["a/one", "a/sub/link", "a/sub/two"].map(|name| home.real(name)));
    let rows = home.run(&words(&["--csv"])).out;
    assert_eq!(rows.lines().filter(|row| row.ends_with(&format!(",{four}"))).count(), 3, "{rows}");
    assert!(!home.run(&words(&["--fdupes"])).out.contains(&four));
    // Files in a reference folder count, although they are in another root.
    assert_eq!(sizes(&home, &["--root", "a", "--reference", "b", "--min-count", "3"]), [5_000]);
    std::fs::rename(home.path("b"), home.path("away")).unwrap();
    home.check(&words(&[]), 0, &format!("kept: {four} (possible copy: its root cannot be reached now)\n"), "");
    let absent = home.json(&words(&["--root", "a"]))["absent_roots"].clone();
    assert!(absent.to_string().contains("/b\""), "the reference is missing: {absent}");
}

#[test]
fn lists_and_scans_state_how_many_groups_are_ignored() {
    let home = library();
    let count = |words: &[&str]| home.json(&[&["dupes"], words].concat())["ignored_groups"].clone();
    home.check(&["dupes", "--ignored"], 0, "no ignored groups\n", "");
    home.check(&["ignore", "a/one"], 0, "1 group", "");
    let one = "1 ignored group is not listed; show it with `gristmill dupes --ignored`\n";
    home.check(&["dupes"], 0, &format!("of file contents)\n{one}"), "");
    home.check(&["scan"], 0, &format!("\nList all copies: gristmill dupes\n{one}"), "");
    let none = "no duplicates match the filters; `gristmill dupes` lists all that are not ignored\n";
    home.check(&["dupes", "--contains", "a/one"], 0, &format!("{none}{one}"), "");
    let none = "no ignored groups match the filters; `gristmill dupes --ignored` lists all\n";
    home.check(&["dupes", "--ignored", "--contains", "plain"], 0, none, "");
    assert!(!home.run(&["scan", "--mode", "walk"]).out.contains("ignored"));
    home.check(&["ignore", "b/plain", "a/new\nline\u{1b}[31m"], 0, "2 groups", "");
    let all = "no duplicates\n3 ignored groups are not listed; show them with `gristmill dupes --ignored`\n";
    home.check(&["dupes"], 0, all, "");
    home.check(&["scan"], 0, all, "");
    assert_eq!([count(&[]), count(&["--ext", "jpg"]), count(&["--ignored"])], [3, 3, 0]);
}

#[test]
fn names_without_a_group_are_not_ignored() {
    let home = library();
    let unknown = format!("blake3:{}", "0".repeat(64));
    let missing = "error: blake3:00";
    let output = home.run(&["--db", ".local/share/gristmill/gristmill.db", "ignore", &unknown, "b/plain", "a/no"]);
    output.check("unknown", 1, "1 group ignored from now on, 2 failed\n", missing);
    let advice = "no scanned file is known to have this content; `gristmill --db \
                  .local/share/gristmill/gristmill.db dupes --json` prints the group_key of each group\n";
    assert!(output.err.contains(advice) && output.err.contains("error: a/no: no duplicates of this"), "{output:?}");
    home.check(&["ignore", "--undo", &unknown], 0, "0 groups shown again, 1 unchanged\n", "");
    for key in ["blake3:12", "md5:1234", "SHA-512:"] {
        let expected = format!("error: {key}: the group key {key:?} is invalid: expected ALGORITHM:HASH");
        home.check(&["ignore", key], 1, "0 groups ignored from now on, 1 failed\n", &expected);
    }
    home.write("blake3:12", "x");
    home.check(&["ignore", "blake3:12"], 1, "1 failed", "error: blake3:12: no duplicates of this file are known");
}

#[test]
fn ignored_groups_are_hidden_until_that_is_undone() {
    let home = library();
    home.check(&["ignore", "a/one"], 0, "1 group ignored from now on\n", "");
    home.check(&["ignore", "a/sub/link"], 0, "0 groups ignored from now on, 1 unchanged\n", "");
    assert_eq!(sizes(&home, &[]), [300, 20]);
    assert_eq!(sizes(&home, &["--ignored"]), [5_000]);
    home.check(&["dupes", "--ignored"], 0, "reclaimable), ignored\n", "");
    assert_eq!(home.json(&["dupes"])["total_groups"], 2);
    assert!(!home.run(&["dupes", "--csv"]).out.contains("/a/one"));
    // A new copy of an ignored content does not bring it back.
    home.files(&[(b"b/another", &[1; 5_000])]);
    home.scan(&["b"]);
    assert_eq!(sizes(&home, &[]), [300, 20]);
    let found = home.json(&["dupes", "--ignored"]);
    let key = found["items"][0]["group_key"].as_str().unwrap().to_owned();
    assert_eq!(found["items"][0]["copies"], 4);
    assert_shape("ignore", &home.json(&["ignore", "--undo", &key]));
    assert_eq!(sizes(&home, &[]), [5_000, 300, 20]);
    let none =
        "a/single: no duplicates of this file are known; give a file that `gristmill dupes` lists, or a group_key";
    let output = home.run(&["ignore", "a/single", "b/plain"]);
    assert!(output.code == Some(1) && output.err.contains(none), "{output:?}");
    assert_eq!(sizes(&home, &[]), [5_000, 300], "the other one is ignored");
}
