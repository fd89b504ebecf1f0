//! Lists of empty files, empty folders and broken links.
#![cfg(unix)]

mod common;

use common::{Home, assert_shape};
use serde_json::{Value, json};

fn library() -> Home {
    let home = Home::new();
    home.files(&[(b"a/empty", b""), (b"a/caf\xe9", b""), (b"a/full", b"x"), (b"b/empty", b"")]);
    for folder in ["a/e/f", "a/e/g", "b/h"] {
        std::fs::create_dir_all(home.path(folder)).unwrap();
    }
    std::os::unix::fs::symlink("no\nwhere", home.path("a/l")).unwrap();
    std::os::unix::fs::symlink("full", home.path("a/good")).unwrap();
    home.scan(&["a", "b"]);
    home
}

fn paths(answer: &Value) -> Vec<&str> {
    answer["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect()
}

#[test]
fn each_kind_is_listed_as_text_json_and_paths() {
    let home = library();
    for (kind, expected, text) in [
        ("empty-files", &["a/caf\\xE9", "a/empty", "b/empty"][..], "\n3 empty files\n"),
        ("empty-folders", &["a/e", "b/h"], "\n2 empty folders\n"),
        ("broken-links", &["a/l"], "\n1 broken link\n"),
    ] {
        let expected: Vec<String> = expected.iter().map(|path| home.real(path)).collect();
        let answer = home.json(&["list", kind]);
        assert_shape(&format!("list-{kind}"), &answer);
        assert_eq!(paths(&answer), expected, "{kind}");
        assert_eq!((&answer["complete"], &answer["total"]), (&json!(true), &json!(expected.len())), "{answer}");
        let output = home.run(&["list", kind]);
        output.check(kind, 0, text, "");
        assert!(expected.iter().all(|path| output.out.contains(path)), "{output:?}");
        assert!(!output.out.contains("complete"), "{output:?}");
        let names = |option: &str| home.command(&["list", kind, option]).output().unwrap().stdout;
        let (lines, nul) = (names("--paths"), names("--print0"));
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), expected.len());
        let changed: Vec<u8> = lines.iter().map(|byte| if *byte == b'\n' { 0 } else { *byte }).collect();
        assert_eq!(nul, changed, "{kind}");
    }
    let answer = home.json(&["list", "empty-files"]);
    assert!(answer["items"][0]["path_bytes"].as_str().unwrap().ends_with("636166e9"), "{answer}");
    assert_eq!(home.json(&["list", "empty-folders"])["items"][0]["folders"], 3);
    assert_eq!(home.json(&["list", "broken-links"])["items"][0]["target"], "no\nwhere");
    home.check(&["list", "broken-links"], 0, "a/l  no\\x0Awhere\n", "");
}

#[test]
fn lists_are_paged_and_limited_to_roots() {
    let home = library();
    let page = home.json(&["list", "empty-files", "--limit", "2"]);
    assert_eq!((paths(&page).len(), &page["next_cursor"]), (2, &json!("2")), "{page}");
    let rest = home.json(&["list", "empty-files", "--limit", "2", "--after", "2"]);
    assert_eq!((paths(&rest), &rest["next_cursor"]), (vec![home.real("b/empty").as_str()], &Value::Null), "{rest}");
    home.check(&["list", "empty-files", "--limit", "2"], 0, "empty files 1 to 2 of 3; next: --after 2\n", "");
    home.check(&["list", "empty-files", "--after", "9"], 0, "no empty files after 9: there are 3\n", "");
    assert_eq!(paths(&home.json(&["list", "empty-folders", "--root", "b"])), [home.real("b/h")]);
    home.check(&["list", "broken-links", "--root", "b"], 0, "no broken links in these roots\n", "");
    home.check(&["list", "empty-files", "--root", "c"], 1, "", "c: not a root (registered: ");
    home.check(&["list"], 1, "", "<KIND>");
    home.check(&["list", "files"], 1, "", "possible values: empty-files, empty-folders, broken-links");
    assert_eq!(home.run(&["list", "empty-files", "--json", "--paths"]).code, Some(1));
}

#[test]
fn lists_state_what_they_lack() {
    let home = library();
    home.write("c/one", "x");
    home.write("c/two", "");
    home.scan(&["c/one"]);
    let answer = home.json(&["list", "empty-files"]);
    assert_eq!((&answer["complete"], &answer["unlisted_folders"]), (&json!(false), &json!(1)), "{answer}");
    assert_eq!(answer["unfinished_roots"], json!([home.real("c")]));
    let reason = format!("incomplete: only 1 named file of {} has been scanned\n", home.real("c"));
    let text = "incomplete: 1 folder not listed completely by the last scan\n".to_owned() + &reason;
    home.check(&["list", "empty-files"], 0, &(text + "Complete it with `gristmill scan`\n"), "");
    let output = home.run(&["list", "empty-files", "--paths", "--root", "c"]);
    assert!(output.code == Some(0) && output.err.contains(reason.trim_end()), "{output:?}");
    assert_eq!(home.json(&["list", "empty-files", "--root", "a"])["complete"], true);
    // Files that are not compared yet do not matter here, filters do.
    home.scan(&["--mode", "walk", "--min-size", "1"]);
    let answer = home.json(&["list", "empty-files"]);
    assert_eq!((&answer["complete"], &answer["total"]), (&json!(true), &json!(0)), "{answer}");
    assert_eq!(answer["filtered_roots"].as_array().unwrap().len(), 3);
    let text = "no empty files\nentries that the filters of the last scan excluded are not listed; `gristmill roots`";
    home.check(&["list", "empty-files"], 0, text, "");
    drop(home.run(&["--db", "empty.db", "enqueue", "k", "--payload", "1"]));
    home.check(&["--db", "empty.db", "list", "empty-files"], 0, "no folder has been scanned yet", "");
}
