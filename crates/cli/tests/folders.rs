//! Identical and contained folders, and the differences of similar folders.
#![cfg(unix)]

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::process::Command;

use common::{Home, assert_shape};
use serde_json::{Value, json};

/// Creates two folders with one file in common.
fn two_folders() -> Home {
    let home = Home::new();
    for folder in ["f/A", "f/B"] {
        home.files(&[(format!("{folder}/big").as_bytes(), &[7; 5_000])]);
    }
    home
}

/// Returns for each group whether it is identical, its unscanned entries and the names of its folders.
fn groups(found: &Value) -> Vec<(bool, u64, BTreeSet<String>)> {
    let name = |folder: &Value| folder["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let group = |group: &Value| {
        let names = group["folders"].as_array().unwrap().iter().map(name).collect();
        (group["identical"] == json!(true), group["unscanned_entries"].as_u64().unwrap_or(u64::MAX), names)
    };
    found["items"].as_array().unwrap().iter().map(group).collect()
}

#[track_caller]
fn check(scan: &[&str], make: impl Fn(&Home), identical: bool, unscanned: u64) {
    let home = two_folders();
    make(&home);
    home.scan(&[scan, &["f"]].concat());
    for words in [&["folders"][..], &["folders", "--match-names"]] {
        let found = home.json(words);
        let names: BTreeSet<String> = ["A", "B"].map(str::to_owned).into();
        assert_eq!(groups(&found), [(identical, unscanned, names)], "{words:?}: {found}");
        let reclaimable = found["items"][0]["reclaimable_bytes"].as_u64().unwrap();
        assert_eq!(reclaimable > 0, identical, "{found}");
    }
}

#[test]
fn folders_with_files_left_out_by_filters_are_not_identical() {
    let notes = |home: &Home| drop(home.write("f/B/notes.txt", "thesis"));
    check(&["--min-size", "1KiB"], notes, false, 1);
    check(&["--exclude", "*.txt"], notes, false, 1);
    // Not even if both contain a file of that name, because its content is unknown.
    let both = |home: &Home| ["A", "B"].into_iter().for_each(|name| drop(home.write(&format!("f/{name}/n"), name)));
    check(&["--min-size", "1KiB"], both, false, 2);
    check(&["--skip-hidden"], |home| drop(home.write("f/A/.secret", "x")), false, 1);
    check(&["--exclude", "inner"], |home| drop(home.write("f/A/inner/x", "x")), false, 1);
}

#[test]
fn folders_with_the_same_symbolic_links_are_identical() {
    let links = |a: &'static str, b: &'static str| {
        move |home: &Home| {
            symlink(a, home.path("f/A/link")).unwrap();
            symlink(b, home.path("f/B/link")).unwrap();
        }
    };
    check(&[], links("../x", "../x"), true, 2);
    check(&[], links("../x", "../y"), false, 2);
    check(&[], |home| symlink("big", home.path("f/A/link")).unwrap(), false, 1);
}

#[test]
fn folders_with_the_same_pipes_are_identical() {
    let pipe = |home: &Home, name: &str| {
        assert!(Command::new("mkfifo").arg(home.path(name)).status().unwrap().success());
    };
    check(&[], |home| pipe(home, "f/A/pipe"), false, 1);
    check(&[], |home| ["f/A/pipe", "f/B/pipe"].into_iter().for_each(|name| pipe(home, name)), true, 2);
}

#[test]
fn broken_link_counts_as_an_unscanned_entry() {
    let broken = |home: &Home| symlink("nowhere", home.path("f/A/link")).unwrap();
    check(&["--follow-links"], broken, false, 1);
    let back = |home: &Home| symlink("..", home.path("f/A/link")).unwrap();
    check(&["--follow-links"], back, false, 1);
}

#[test]
fn unscanned_entries_are_reported_as_text_and_in_the_report() {
    let home = two_folders();
    home.write("f/B/notes.txt", "thesis");
    home.scan(&["--min-size", "1KiB", "f"]);
    assert_shape("folders-unscanned", &home.json(&["folders", "--match-names"]));
    let output = home.run(&["folders", "--match-names"]);
    for expected in [
        "2 folders of 1 file, 4.9 KiB, identical apart from 1 entry not scanned\n".to_owned(),
        format!("    {}\n", home.real("f/A")),
        format!("    {}  (1 entry not scanned)\n", home.real("f/B")),
        "0 groups of identical folders; 1 group identical apart from entries not scanned\n".to_owned(),
    ] {
        assert!(output.out.contains(&expected), "no {expected:?} in {}", output.out);
    }
    let page = home.run(&["report", "--html", "-"]).out;
    assert!(!page.contains("<h2>Identical folders</h2>"), "{page}");
    assert!(page.contains("<h2>Folders identical apart from entries not scanned</h2>"), "{page}");
    assert!(page.contains("1 entry not scanned"), "{page}");
}

#[test]
fn every_similar_pair_states_its_difference() {
    let home = two_folders();
    home.write("f/B/notes.txt", "thesis");
    home.files(&[(b"f/C/in/big", &[7; 5_000]), (b"f/C/second", &[8; 5_000])]);
    home.files(&[(b"f/D/big", &[7; 5_000]), (b"f/D/second", &[8; 5_000])]);
    home.scan(&["--min-size", "1KiB", "f"]);
    let found = home.json(&["folders", "--partial", "--min-similarity", "100"]);
    let pair = |pair: &Value| {
        let name = |side: &str| pair[side]["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (name("a"), name("b"), pair["differences"].clone())
    };
    let mut pairs: Vec<_> = found["items"].as_array().unwrap().iter().map(pair).collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [("A", "B", json!(["unscanned_entries"])), ("C", "D", json!(["layout"]))];
    assert_eq!(pairs, expected.map(|(a, b, why)| (a.to_owned(), b.to_owned(), why)), "{found}");
    let output = home.run(&["folders", "--partial", "--min-similarity", "100"]);
    for expected in ["not scanned: 0 entries of A, 1 entry of B\n", "the same files are in different folders\n"] {
        assert!(output.out.contains(expected), "no {expected:?} in {}", output.out);
    }
}

#[test]
fn similar_pairs_do_not_repeat_identical_folders() {
    let home = Home::new();
    for folder in ["A", "B", "C"] {
        home.files(&[(format!("f/{folder}/1").as_bytes(), &[1; 50]), (format!("f/{folder}/2").as_bytes(), &[2; 60])]);
    }
    home.write("f/C/more", "only here");
    let file = std::fs::File::options().write(true).open(home.path("f/C/more")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    home.scan(&["f"]);
    let found = home.json(&["folders", "--partial"]);
    assert_eq!(found["total_pairs"], 1, "{found}");
    assert_eq!(found["items"][0]["a"]["identical_folders"], 1, "{found}");
    let output = home.run(&["folders", "--partial"]);
    assert!(output.out.contains("1 identical folder elsewhere"), "{}", output.out);
    assert!(output.out.contains("more  (9 B, 2001-09-09 01:46:40 UTC)"), "{}", output.out);
}

#[test]
fn contained_folders_are_listed_with_what_contains_them() {
    let home = two_folders();
    home.write("f/B/notes.txt", "thesis");
    home.files(&[(b"f/C/deep/big", &[7; 5_000]), (b"f/C/deep/more", b"only here, and longer")]);
    home.scan(&["f"]);
    let found = home.json(&["folders", "--contained"]);
    assert_shape("folders-contained", &found);
    let item = &found["items"][0];
    assert_eq!((&item["path"], &item["wholly_contained"]), (&json!(home.real("f/A")), &json!(true)));
    assert_eq!(item["reclaimable_bytes"], home.allocated("f/A/big"));
    assert_eq!((&found["total_folders"], &found["complete"]), (&json!(1), &json!(true)));
    let text = home.run(&["folders", "--contained"]).out;
    let expected = format!(
        "{}\n    1 file, 4.9 KiB ({:.1} KiB reclaimable)\n    in {}  (2 files, 4.9 KiB)\n    in {}  (2 files, 4.9 KiB)\n\n\
         1 folder contained in another one\n",
        home.real("f/A"),
        home.allocated("f/A/big") as f64 / 1024.0,
        home.real("f/B"),
        home.real("f/C/deep")
    );
    assert_eq!(text.trim_end(), expected.trim_end());
    home.check(&["folders", "--contained", "--list", "1"], 0, "    and in 1 more (--list 2)\n", "");
    let named = home.json(&["folders", "--contained", "--match-names", "--limit", "1"]);
    assert_eq!(named["items"][0]["containers"]["total"], 2, "{named}");
    home.check(&["folders", "--contained", "--min-files", "2"], 0, "no contained folders match the filters", "");
    home.check(&["folders", "--contained", "--partial"], 1, "", "cannot be used with");
    home.check(&["folders", "--contained", "--min-similarity", "60"], 1, "", "cannot be used with '--min-similarity");
    home.check(&["folders", "--list", "3"], 1, "", "required");
}

#[test]
fn folder_with_excluded_files_is_contained_apart_from_them() {
    let home = two_folders();
    home.write("f/A/notes.txt", "thesis");
    home.files(&[(b"f/B/more", b"only here")]);
    home.scan(&["--exclude", "*.txt", "f"]);
    let found = home.json(&["folders", "--contained"]);
    let item = &found["items"][0];
    assert_eq!((&item["wholly_contained"], &item["unscanned_entries"]), (&json!(false), &json!(1)), "{found}");
    assert_eq!((&item["reclaimable_bytes"], &found["wholly_contained_folders"]), (&json!(0), &json!(0)));
    let text = home.run(&["folders", "--contained"]).out;
    assert!(text.contains("1 file, 4.9 KiB, contained apart from 1 entry not scanned\n"), "{text}");
    assert!(text.contains("\n1 folder contained in another one, apart from entries not scanned\n"), "{text}");
    home.files(&[(b"f/C/two", &[8; 600]), (b"f/D/two", &[8; 600]), (b"f/D/more", b"only here too")]);
    home.scan(&["--exclude", "*.txt", "f"]);
    let expected = "\n2 folders contained in another one, 1 of them apart from entries not scanned\n";
    home.check(&["folders", "--contained"], 0, expected, "");
}
