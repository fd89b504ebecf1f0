//! Lists state whether they are complete, in every format.
#![cfg(unix)]

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{Home, SlowScan};
use serde_json::{Value, json};

const UNREAD: &str = "2 files that may have duplicates were not compared yet";

fn library() -> Home {
    let home = Home::new();
    home.files(&[(b"a/x/one", b"same"), (b"a/y/two", b"same"), (b"a/three", b"a unique size")]);
    home
}

fn page(home: &Home) -> String {
    assert_eq!(home.run(&["report", "--html", "page.html"]).code, Some(0));
    std::fs::read_to_string(home.path("page.html")).unwrap()
}

fn missing(answer: &Value) -> (&Value, &Value) {
    (&answer["complete"], &answer["unread_files"])
}

#[test]
fn answers_after_a_walk_without_reading_are_not_complete() {
    let home = library();
    let summary = home.json(&["scan", "--mode", "walk", "a"]);
    assert_eq!(missing(&summary), (&json!(false), &json!(2)), "{summary}");
    home.check(&["scan", "--mode", "walk", "a"], 0, UNREAD, "");
    for command in ["dupes", "folders"] {
        home.check(&[command], 0, UNREAD, "");
        let answer = home.json(&[command]);
        assert_eq!(missing(&answer), (&json!(false), &json!(2)), "{command}: {answer}");
    }
    home.check(&["dupes"], 0, "no duplicates so far", "");
    let warning = format!("gristmill: warning: the list is incomplete: {UNREAD}\n");
    for form in ["--csv", "--fdupes"] {
        let output = home.run(&["dupes", form]);
        assert!(output.err == warning && !output.out.contains("complete"), "{output:?}");
    }
    let page = page(&home);
    assert!(page.contains("Not complete") && page.contains(UNREAD), "{page}");
    let report = home.json(&["report", "--html", "page.html"]);
    assert_eq!(missing(&report), (&json!(false), &json!(2)), "{report}");
}

#[test]
fn answers_after_a_scan_are_complete() {
    let home = library();
    let summary = home.json(&["scan", "a"]);
    assert_eq!(missing(&summary), (&json!(true), &json!(0)), "{summary}");
    for command in ["dupes", "folders"] {
        let output = home.run(&[command]);
        assert!(!output.out.contains("complete"), "{output:?}");
        assert_eq!(missing(&home.json(&[command])), (&json!(true), &json!(0)));
    }
    assert_eq!(home.run(&["dupes", "--csv"]).err, "");
    assert!(!page(&home).contains("Not complete"));
}

#[test]
fn answers_after_a_refresh_that_saw_changes_are_not_complete() {
    let home = library();
    home.scan(&["a"]);
    home.files(&[(b"a/x/one", b"diff"), (b"a/y/two", b"diff")]);
    let summary = home.json(&["refresh"]);
    assert_eq!(missing(&summary), (&json!(false), &json!(2)), "{summary}");
    home.check(&["dupes"], 0, UNREAD, "");
    home.scan(&[]);
    assert_eq!(missing(&home.json(&["dupes"])), (&json!(true), &json!(0)));
}

#[test]
fn answers_after_an_interrupted_scan_are_not_complete() {
    let home = Home::new();
    home.files(&[(b"a/one", &[1; 70_000]), (b"a/two", &[1; 70_000])]);
    let output = SlowScan::start(&home, &["a", "--json"]).interrupt();
    assert_eq!((output.code, &output.json()["complete"]), (Some(130), &json!(false)));
    let answer = home.json(&["dupes"]);
    assert_eq!((&answer["complete"], &answer["unfinished_roots"]), (&json!(false), &json!([home.real("a")])));
    home.check(&["dupes"], 0, "a has not been scanned completely", "");
}

#[test]
fn folders_that_cannot_be_read_are_exit_status_1_and_named_later() {
    let home = Home::unprivileged();
    home.files(&[(b"a/one", b"same"), (b"a/two", b"same"), (b"a/closed/three", b"same")]);
    let closed = home.path("a/closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let expected = format!("1 item could not be read:\n  {}: ", home.real("a/closed"));
    home.check(&["scan", "a"], 1, &expected, "registered");
    home.check(&["scan", "-q", "a"], 1, "", &format!("error: {expected}"));
    let output = home.run(&["scan", "a", "--json"]);
    assert_eq!((output.code, missing(&output.json()).0), (Some(1), &json!(false)), "{output:?}");
    let unread = "1 folder could not be read";
    home.check(&["dupes"], 0, unread, "");
    assert!(home.run(&["dupes", "--fdupes"]).err.contains(unread));
    assert_eq!(home.json(&["dupes"])["unreadable_folders"], 1);
    home.check(&["folders"], 0, unread, "");
    assert!(page(&home).contains(unread));
    home.check(&["roots"], 0, &format!("{unread}:\n  {}: ", home.real("a/closed")), "");
    assert_eq!(home.json(&["roots"])["items"][0]["unreadable_folders"], 1);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    home.check(&["scan"], 0, "3 files: ", "");
    home.check(&["dupes"], 0, "3 copies of 4 B", "");
    assert_eq!(missing(&home.json(&["dupes"])), (&json!(true), &json!(0)));
}
