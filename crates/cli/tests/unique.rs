//! `unique`: files without a copy elsewhere.
#![cfg(unix)]

mod common;

use common::{Home, assert_shape};
use serde_json::{Value, json};

fn library() -> Home {
    let home = Home::new();
    home.files(&[
        (b"pictures/saved", &[1; 5_000]),
        (b"pictures/new", &[2; 3_000]),
        (b"pictures/caf\xe9", &[3; 300]),
        (b"pictures/new\nline", &[4; 200]),
        (b"nas/backup/saved", &[1; 5_000]),
        (b"nas/other", &[5; 3_000]),
    ]);
    std::fs::hard_link(home.path("pictures/new\nline"), home.path("nas/link")).unwrap();
    home.scan(&["pictures", "nas"]);
    home
}

#[test]
fn text_lists_files_with_totals() {
    let home = library();
    let output = home.run(&["unique", "--in", "pictures", "--not-in", "nas"]);
    let expected = format!(
        "SIZE     PATH
2.9 KiB  {}
300 B    {}
200 B    {} (only hard links of it elsewhere)

3 files without a copy in nas, 3.4 KiB (of 4 files, 8.3 KiB)
",
        home.real("pictures/new"),
        home.real("pictures/caf\\xE9"),
        home.real("pictures/new\\x0Aline"),
    );
    assert_eq!((output.out, output.err), (expected, String::new()));
    home.check(&["unique", "--in", "nas/backup"], 0, "the only file (4.9 KiB) has a copy elsewhere\n", "");
    let none = ["unique", "--in", "pictures", "--min-size", "1MiB"];
    home.check(&none, 0, "no file of at least 1.0 MiB in pictures\n", "");
    let twice = ["unique", "--in", "pictures", "--not-in", "nas", "--not-in", "nas/"];
    home.check(&twice, 0, "\n3 files without a copy in nas, 3.4 KiB", "");
    home.files(&[(b"nas/backup/again", &[1; 5_000])]);
    home.scan(&["nas"]);
    home.check(&["unique", "--in", "nas/backup"], 0, "all 2 files (9.8 KiB) have a copy elsewhere\n", "");
}

#[test]
fn json_has_totals_and_pages() {
    let home = library();
    let found = home.json(&["unique", "--in", "pictures", "--not-in", "nas"]);
    assert_shape("unique", &found);
    for (field, expected) in [
        ("unique_files", json!(3)),
        ("unique_bytes", json!(3_500)),
        ("undecided_files", json!(0)),
        ("files", json!(4)),
        ("complete", json!(true)),
        ("next_cursor", Value::Null),
    ] {
        assert_eq!(found[field], expected, "{field}");
    }
    assert!(found["items"][1]["path_bytes"].as_str().unwrap().ends_with("2f636166e9"), "{found}");
    assert_eq!((&found["items"][2]["hard_link"], &found["items"][2]["state"]), (&json!(true), &json!("unique")));
    let page = home.json(&["unique", "--in", "pictures", "--limit", "2"]);
    assert_eq!((&page["next_cursor"], page["items"].as_array().unwrap().len()), (&json!("2"), 2));
    let rest = home.json(&["unique", "--in", "pictures", "--limit", "2", "--after", "2"]);
    assert_eq!((&rest["next_cursor"], &rest["items"][0]["size"]), (&Value::Null, &json!(200)));
    let text = home.run(&["unique", "--in", "pictures", "--limit", "2"]);
    assert!(text.out.contains("files 1 to 2 of 3; next: --after 2\n"), "{text:?}");
}

#[test]
fn print0_prints_paths_unchanged() {
    let home = library();
    let output = home.command(&["unique", "--in", "pictures", "--not-in", "nas", "-0"]).output().unwrap();
    let paths: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    let names: Vec<&[u8]> = paths.iter().filter_map(|path| path.rsplit(|byte| *byte == b'/').next()).collect();
    assert_eq!(names, [&b"new"[..], b"caf\xe9", b"new\nline", b""]);
    assert!(paths[0].starts_with(home.real("pictures").as_bytes()));
    home.check(&["unique", "--in", "pictures", "-0", "--json"], 1, "", "cannot be used with");
}

#[test]
fn undecided_files_are_listed_apart_and_leave_the_list_incomplete() {
    let home = library();
    home.files(&[(b"nas/unread", &[2; 3_000])]);
    home.scan(&["--mode", "walk", "nas"]);
    let words = ["unique", "--in", "pictures", "--not-in", "nas"];
    let output = home.run(&words);
    for expected in [
        format!("2.9 KiB  {} (undecided)\n", home.real("pictures/new")),
        "2 files without a copy in nas, 500 B (of 4 files, 8.3 KiB)\n1 file undecided, 2.9 KiB\n".to_owned(),
        "incomplete: 1 file that may have duplicates was not compared yet\n".to_owned(),
    ] {
        assert!(output.out.contains(&expected), "no {expected:?} in {}", output.out);
    }
    let found = home.json(&words);
    assert_eq!((&found["complete"], &found["undecided_bytes"]), (&json!(false), &json!(3_000)));
    assert_eq!(found["items"][2]["state"], "undecided");
    let output = home.command(&["unique", "--in", "pictures", "--not-in", "nas", "-0"]).output().unwrap();
    assert_eq!(output.stdout.iter().filter(|byte| **byte == 0).count(), 2, "no undecided file");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the list is incomplete: 1 file"), "{output:?}");
    home.scan(&[]);
    assert_eq!(home.json(&words)["complete"], json!(true));
}

#[test]
fn folders_that_are_not_in_the_catalog_are_refused() {
    let home = library();
    home.write("elsewhere/x", "x");
    home.check(&["unique", "--in", "elsewhere"], 1, "", "elsewhere: not a root, and not inside one (registered: ");
    home.check(&["unique", "--in", "nas/no"], 1, "", "found no such folder; `gristmill scan` updates the catalog");
    home.check(&["unique", "--in", "nas/other"], 1, "", "a file; `gristmill copies FILE` lists the copies of a file");
    home.check(&["unique", "--in", "nas", "--not-in", "nas"], 1, "", "cannot be listed and compared with itself");
    home.check(&["unique"], 1, "", "--in <FOLDER>");
}
