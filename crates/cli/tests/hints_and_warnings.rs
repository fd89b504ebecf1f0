//! Warnings, suggested commands, --quiet, and formats of paths, times and sizes.
#![cfg(unix)]

mod common;

use common::Home;
use serde_json::{Value, json};

fn library() -> Home {
    let home = Home::new();
    home.files(&[(b"a/one", b"same"), (b"a/two", b"same"), (b"a/sub/three", b"other")]);
    home
}

#[test]
fn quiet_prints_no_summary() {
    let home = library();
    home.check(&["scan", "-q", "a"], 0, "", "");
    home.check(&["refresh", "-q"], 0, "", "");
    home.check(&["report", "-q", "--html", "page.html"], 0, "", "");
    home.check(&["backup", "-q", "copy.db"], 0, "", "");
    home.check(&["purge", "-q", "all", "--before", "1d"], 0, "", "");
    home.check(&["worker", "-q", "--once"], 0, "", "");
    home.check(&["config", "-q", "init"], 0, "", "");
    home.check(&["man", "-q", "--out", "man"], 0, "", "");
    home.write("rows.jsonl", "{\"a\": 1}\n");
    home.check(&["import", "-q", "rows.jsonl", "--into", "rows.db"], 0, "", "");
    home.check(&["roots", "-q", "remove", "a", "--yes"], 0, "", "");
}

#[test]
fn quiet_prints_data_and_errors() {
    let home = library();
    assert_eq!(home.json(&["scan", "-q", "a"])["duplicate_groups"], 1);
    home.check(&["dupes", "-q"], 0, "2 copies of 4 B", "");
    home.check(&["roots", "-q"], 0, "a", "");
    home.check(&["scan", "-q", "nowhere"], 1, "", "nowhere: no such file or folder");
    home.write("bad.jsonl", "no JSON\n");
    home.check(&["import", "-q", "bad.jsonl", "--into", "rows.db"], 1, "", "bad.jsonl");
}

#[test]
fn warnings_are_plain_lines_and_come_once() {
    let home = library();
    let mut command = home.command(&["scan", "a", "-y"]);
    let output = common::RunOutput::of(&command.env("GRISTMILL_SCAN_WORKER", "3").output().unwrap());
    let warned: Vec<&str> = output.err.lines().filter(|line| line.contains("GRISTMILL_SCAN_WORKER")).collect();
    let expected = "gristmill: warning: unknown environment variable GRISTMILL_SCAN_WORKER; did you mean \
                    GRISTMILL_SCAN_WORKERS?";
    assert_eq!(warned, [expected], "{output:?}");
    let mut command = home.command(&["jobs", "recover"]);
    let output = common::RunOutput::of(&command.env("GRISTMILL_SCAN_WORKER", "3").output().unwrap());
    assert_eq!(output.err.lines().collect::<Vec<_>>(), [expected], "{output:?}");
}

#[test]
fn log_has_times_only_on_request() {
    let home = library();
    let output = home.run(&["scan", "a", "--exclude", "a//b"]);
    assert!(!output.err.contains("WARN") && output.err.contains("gristmill: warning: "), "{output:?}");
    let output = home.run(&["scan", "a", "-v", "--exclude", "a//b"]);
    assert!(output.err.contains(" WARN ") && !output.err.contains("gristmill: warning: "), "{output:?}");
}

#[test]
fn hints_name_the_database_that_was_given() {
    let home = library();
    home.check(&["--db", "my x.db", "scan", "a"], 0, ": gristmill --db 'my x.db' dupes\n", "registered");
    let db = ["--db", "my x.db"];
    let with = |words: &[&'static str]| [&db[..], words].concat();
    home.check(&with(&["dupes", "--min-size", "1G"]), 0, "`gristmill --db 'my x.db' dupes` lists all", "");
    home.check(&with(&["folders", "--min-size", "1G"]), 0, "`gristmill --db 'my x.db' folders` lists all", "");
    home.check(&with(&["jobs", "list"]), 0, "`gristmill --db 'my x.db' enqueue exec", "");
    home.check(&with(&["dead", "list"]), 0, "`gristmill --db 'my x.db' jobs list`", "");
    home.check(&["--db", "no.db", "dupes"], 1, "", "`gristmill --db no.db scan FOLDER` creates it");
    home.check(&["--db", "no.db", "scan"], 1, "", "name one: `gristmill --db no.db scan FOLDER`");
    let with_settings = ["--config", "c.toml", "--db", "no.db", "dupes"];
    home.write("c.toml", "");
    home.check(&with_settings, 1, "", "`gristmill --db no.db --config c.toml scan FOLDER` creates it");
    home.check(&with(&["roots", "remove", "a", "--yes"]), 0, "removed ", "");
    home.check(&with(&["roots"]), 0, "gristmill --db 'my x.db' scan FOLDER", "");
    home.check(&with(&["dupes"]), 0, "gristmill --db 'my x.db' scan FOLDER", "");
    home.check(&with(&["folders"]), 0, "gristmill --db 'my x.db' scan FOLDER", "");
    home.check(&with(&["dupes", "--root", "a"]), 1, "", "`gristmill --db 'my x.db' scan FOLDER` registers");
}

#[test]
fn patterns_are_for_paths_inside_the_scanned_folder() {
    let home = library();
    let sub = home.real("a/sub");
    let two = format!("{}/tw*", home.real("a"));
    for (words, files) in [
        (&["--exclude", "./one"][..], 2),
        (&["--exclude", "./three"], 3),
        (&["--exclude", &sub], 2),
        (&["--exclude", &two], 2),
        (&["--include", &two], 1),
        (&["--include", "./sub/*"], 1),
        (&["--exclude", "TWO"], 3),
        (&["--exclude", "TWO", "--ignore-case"], 2),
    ] {
        let summary = home.scan(&[&["a"], words].concat());
        assert_eq!(summary["files"], files, "{words:?}: {summary}");
    }
}

#[test]
fn pattern_that_cannot_match_is_warned_about() {
    let home = library();
    for (pattern, reason) in [
        ("/nowhere/x", "it is outside of every scanned folder"),
        ("../x", "it leads out of the scanned folder"),
        ("sub//three", "no path contains \"//\""),
        ("~/x", "is not replaced by your home folder"),
    ] {
        let expected = format!("gristmill: warning: the pattern {pattern:?} matches nothing: ");
        let output = home.run(&["scan", "a", "--exclude", pattern]);
        assert!(output.err.contains(&expected) && output.err.contains(reason), "{output:?}");
        home.check(&["scan", "-q", "a", "--exclude", pattern], 0, "", "");
    }
    home.check(&["scan", "a", "--exclude", "*.tmp", "--exclude", "./sub"], 0, "2 files", "");
}

#[test]
fn broken_links_are_counted_and_sampled() {
    let home = library();
    for name in ["a/x", "a/y"] {
        std::os::unix::fs::symlink("nowhere", home.path(name)).unwrap();
    }
    std::os::unix::fs::symlink(".", home.path("a/self")).unwrap();
    let listed = format!(
        "\n2 broken links, 1 link not followed:\n  {}: symbolic link back to {}; not followed\n  {}: broken symbolic \
         link\n",
        home.real("a/self"),
        home.real("a"),
        home.real("a/x")
    );
    home.check(&["scan", "--follow-links", "a"], 0, &listed, "registered");
    let summary = home.scan(&["a"]);
    assert_eq!((&summary["broken_links"], &summary["repeated_links"]), (&json!(2), &json!(1)), "{summary}");
    assert_eq!(summary["link_samples"].as_array().map(Vec::len), Some(3));
    // Control characters in names do not reach the terminal.
    home.files(&[(b"b/file", b"")]);
    std::os::unix::fs::symlink("nowhere", home.path("b/c\u{1b}[2J\nd")).unwrap();
    home.check(&["scan", "--follow-links", "b"], 0, "/b/c\\x1B[2J\\x0Ad: broken symbolic link\n", "registered");
}

#[test]
fn paths_that_are_not_utf8_are_escaped_unambiguously() {
    let home = Home::new();
    home.files(&[
        (b"a/caf\xe9", b"same"),
        (b"a/caf\xe8", b"same"),
        (b"a/caf\\xE9", b"same"),
        (b"a/two  spaces", b"same"),
    ]);
    home.scan(&["a"]);
    let output = home.run(&["dupes"]);
    for name in ["caf\\xE9", "caf\\xE8", "caf\\\\xE9", "two  spaces"] {
        assert!(output.out.contains(&format!("/a/{name}\n")), "{name}: {output:?}");
    }
    let found = home.json(&["dupes"]);
    let files = found["items"][0]["files"].as_array().unwrap();
    // A UTF-8 path is unchanged; any other also has its bytes.
    let ends = |file: &Value| {
        let path = file["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (path, file["path_bytes"].as_str().map(|bytes| bytes[bytes.len() - 8..].to_owned()))
    };
    let bytes = |bytes: &str| Some(bytes.to_owned());
    let expected = [
        ("caf\\xE8".to_owned(), bytes("636166e8")),
        ("caf\\xE9".to_owned(), bytes("636166e9")),
        ("caf\\xE9".to_owned(), None),
        ("two  spaces".to_owned(), None),
    ];
    assert_eq!(files.iter().map(ends).collect::<Vec<_>>(), expected);
}

#[test]
fn root_with_two_spaces_keeps_them_in_tables() {
    let home = Home::new();
    home.files(&[(b"two  spaces/x", b"same")]);
    home.scan(&["two  spaces"]);
    home.check(&["roots"], 0, &home.real("two  spaces"), "");
}

#[test]
fn json_and_csv_times_have_a_zone() {
    let home = library();
    home.scan(&["a"]);
    let is_utc = |time: &Value| {
        let time = time.as_str().unwrap();
        time.parse::<jiff::Timestamp>().is_ok() && time.contains('T') && time.ends_with('Z')
    };
    let root = &home.json(&["roots"])["items"][0];
    assert!(is_utc(&root["created_at"]) && is_utc(&root["last_scanned_at"]), "{root}");
    assert!(is_utc(&home.json(&["dupes"])["items"][0]["files"][0]["mtime"]));
    home.check(&["enqueue", "exec", "--", "true"], 0, "task 1", "");
    let task = home.json(&["jobs", "show", "1"]);
    assert!(is_utc(&task["created_at"]), "{task}");
    let csv = home.run(&["dupes", "--csv"]).out;
    let columns: Vec<_> = csv.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect();
    let mtime = columns[0].iter().position(|name| *name == "mtime").unwrap();
    assert!(is_utc(&json!(columns[1][mtime])), "{csv}");
}

#[test]
fn sizes_accept_binary_and_decimal_units() {
    let home = library();
    home.files(&[(b"a/k1", &[1; 1_024]), (b"a/k2", &[2; 1_000])]);
    for (size, files) in [("1K", 1), ("1k", 1), ("1kb", 2), ("1 KB", 2), ("1KiB", 1), ("0.5K", 2), ("1.5MiB", 0)] {
        let summary = home.scan(&["a", "--min-size", size]);
        assert_eq!(summary["files"], files, "{size}: {summary}");
    }
    home.check(&["dupes", "--min-size", "1.5B"], 1, "", "such as 10MiB, 1.5G or 200kB");
    home.json(&["scan", "a", "--io-limit", "200MB/s"]);
    home.json(&["scan", "a", "--io-limit", "0.5G"]);
}
