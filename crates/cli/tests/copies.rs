//! `copies`: where else the content of given files is.
#![cfg(unix)]

mod common;

use std::os::unix::fs::symlink;

use common::{Home, assert_shape};
use serde_json::{Value, json};

/// Creates two roots with copies, a hard link, and empty files.
fn library() -> Home {
    let home = Home::new();
    home.files(&[
        (b"a/one", &[1; 5_000]),
        (b"a/sub/two", &[1; 5_000]),
        (b"b/three", &[1; 5_000]),
        (b"a/single", b"unique content"),
        (b"a/void", b""),
        (b"b/void", b""),
    ]);
    std::fs::hard_link(home.path("a/one"), home.path("a/link")).unwrap();
    home.scan(&["a", "b"]);
    home
}

#[test]
fn text_lists_copies_and_other_names() {
    let home = library();
    home.write("new", "unique content");
    symlink("a/sub/two", home.path("to two")).unwrap();
    let output = home.run(&["copies", "a/one", "new", "to two", "a/single", "a/void"]);
    let expected = format!(
        "a/one (4.9 KiB): 2 copies
    {two}
    {three}
  = {link} (the same file)

new (14 B): 1 copy
    {single}

to two -> {two} (4.9 KiB): 3 copies
    {link}
    {one}
    {three}

a/single (14 B): no copy

a/void (empty): 1 copy
    {void}
",
        one = home.real("a/one"),
        two = home.real("a/sub/two"),
        three = home.real("b/three"),
        link = home.real("a/link"),
        single = home.real("a/single"),
        void = home.real("b/void"),
    );
    assert_eq!((output.out, output.err, output.code), (expected, String::new(), Some(0)));
}

#[test]
fn json_has_an_item_for_each_file() {
    let home = library();
    std::fs::rename(home.path("b"), home.path("gone")).unwrap();
    let output = home.run(&["copies", "a/one", "a", "no", "--json"]);
    let found = output.json();
    assert_shape("copies", &found);
    let states: Vec<&Value> =
        found["items"][0]["files"].as_array().unwrap().iter().map(|file| &file["state"]).collect();
    assert_eq!(states, ["copy", "same_file", "possible"]);
    assert_eq!((&found["items"][0]["copies"], &found["items"][0]["in_catalog"]), (&json!(1), &json!(true)));
    assert_eq!((&found["complete"], &found["unreachable_files"]), (&json!(false), &json!(1)));
    assert_eq!((&found["items"][2]["error"], &found["failed_files"]), (&json!("no such file"), &json!(2)));
    assert_eq!(output.code, Some(1));
}

#[test]
fn refused_file_is_exit_status_1_and_the_others_are_answered() {
    let home = library();
    let output = home.run(&["--db", ".local/share/gristmill/gristmill.db", "copies", "a", "a/single", "no"]);
    output.check("copies", 1, "a/single (14 B): no copy\n", "error: no: no such file\n");
    let advice = "error: a: a folder; `gristmill --db .local/share/gristmill/gristmill.db folders` compares folders\n";
    assert!(output.err.contains(advice), "{output:?}");
    home.check(&["copies", "no"], 1, "", "no such file");
    home.check(&["copies"], 1, "", "<FILE>...");
    // A scan cannot complete what is missing.
    let output = home.run(&["copies", "a/single", "no"]);
    assert_eq!(output.out, "a/single (14 B): no copy\n");
    let found = home.run(&["copies", "a/single", "no", "--json"]).json();
    assert_eq!((&found["complete"], &found["failed_files"]), (&json!(false), &json!(1)), "{found}");
    home.write("c/one", "x");
    home.scan(&["c/one"]);
    home.check(&["copies", "a/single", "no"], 1, "Complete it with `gristmill scan`\n", "no such file");
}

#[test]
fn file_created_after_the_scan_has_its_root() {
    let home = library();
    home.write("a/later", "unique content");
    let found = home.json(&["copies", "a/later"]);
    let item = &found["items"][0];
    assert_eq!((&item["root"], &item["in_catalog"]), (&json!(home.real("a")), &json!(false)), "{found}");
}

#[test]
fn changed_and_unreachable_files_are_no_copies() {
    let home = library();
    std::fs::rename(home.path("b"), home.path("gone")).unwrap();
    home.write("a/sub/two", &"x".repeat(5_000));
    let output = home.run(&["copies", "a/one"]);
    for expected in [
        "a/one (4.9 KiB): no copy so far\n".to_owned(),
        format!("  ? {} (no longer known to be a copy: changed since the last scan)\n", home.real("a/sub/two")),
        format!(
            "  ? {} (possible copy: its root cannot be reached now; equal when it was last scanned)\n",
            home.real("b/three")
        ),
        "incomplete: 1 file that may have duplicates was not compared yet\n".to_owned(),
        "incomplete: 1 file of roots that cannot be reached now was not compared\n".to_owned(),
    ] {
        assert!(output.out.contains(&expected), "no {expected:?} in {}", output.out);
    }
    assert_eq!(output.code, Some(0));
}

#[test]
fn filters_of_roots_are_named() {
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"a/two.tmp", b"same")]);
    home.scan(&["a", "--exclude", "*.tmp"]);
    home.check(&["copies", "a/one"], 0, "no copy\n\nfiles that the filters of ", "");
    assert_eq!(home.json(&["copies", "a/one"])["filtered_roots"], json!([home.real("a")]));
}
