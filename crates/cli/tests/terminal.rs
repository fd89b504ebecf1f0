//! Commands on a terminal: questions, escaping and the progress line.
#![cfg(target_os = "linux")]

mod common;

use common::terminal::Session;
use common::{Home, signal};

fn library() -> Home {
    let home = Home::new();
    home.files(&[(b"a/one", &[1; 4_096]), (b"a/two", &[1; 4_096]), (b"a/red\x1b[31m", &[1; 4_096])]);
    home
}

const END_OF_INPUT: &str = "\u{4}";

#[test]
fn scan_asks_before_it_registers_a_folder() {
    for (keys, code) in [("\n", 0), ("y\n", 0), ("Yes\n", 0), ("n\n", 1), ("what\n", 1), (END_OF_INPUT, 1)] {
        let home = library();
        let mut session = Session::start(home.command(&["scan", "a"]), 200);
        session.wait_for(&format!("Register {} and scan? No file is changed. [Y/n] ", home.real("a")));
        session.answer(keys);
        let (found, shown) = session.end();
        assert_eq!(found, Some(code), "{keys:?}: {shown}");
        let (text, is_created) =
            if code == 0 { ("1 duplicate group", true) } else { ("nothing was registered or scanned", false) };
        assert!(shown.contains(text), "{keys:?}: {shown}");
        assert_eq!(home.database().exists(), is_created, "{keys:?}: after no, there is no database");
    }
}

#[test]
fn scan_does_not_ask_for_registered_folders() {
    let home = library();
    home.scan(&["a"]);
    for words in [&["scan", "a"][..], &["scan"], &["scan", "--yes", "."]] {
        let (code, shown) = Session::start(home.command(words), 200).end();
        assert_eq!(code, Some(0), "{shown}");
        assert!(!shown.contains("[Y/n]"), "{shown}");
    }
}

#[test]
fn roots_remove_asks_first() {
    for (keys, code) in [("\n", 1), ("n\n", 1), (END_OF_INPUT, 1), ("y\n", 0)] {
        let home = library();
        home.scan(&["a"]);
        let mut session = Session::start(home.command(&["roots", "remove", "a"]), 200);
        session.wait_for("from the catalog? No file is changed. [y/N] ");
        session.answer(keys);
        let (found, shown) = session.end();
        assert_eq!(found, Some(code), "{keys:?}: {shown}");
        assert_eq!(home.json(&["roots"])["items"].as_array().unwrap().len(), usize::from(code == 1), "{keys:?}");
    }
}

#[test]
fn control_characters_in_names_are_escaped_on_a_terminal() {
    let home = library();
    home.scan(&["a"]);
    for words in [&["dupes"][..], &["dupes", "--csv"], &["dupes", "--fdupes"], &["scan"]] {
        let (code, shown) = Session::start(home.command(words), 80).end();
        assert_eq!(code, Some(0), "{shown}");
        assert!(!shown.contains("\u{1b}[31m"), "{words:?}: {shown:?}");
        assert!(words == ["scan"] || shown.contains("red\\x1B[31m"), "{words:?}: {shown:?}");
    }
}

#[test]
fn progress_line_fits_the_terminal_and_is_cleared_at_the_end() {
    for columns in [30, 80, 200] {
        let home = library();
        let mut session = Session::start(home.command(&["scan", "--yes", "--io-limit", "1B/s", "a"]), columns);
        // All segments are shown only on the widest terminal.
        session.wait_for(if columns == 200 { " busy · " } else { "\r\u{1b}[K" });
        signal(&session.process, "INT");
        let (code, shown) = session.end();
        assert_eq!(code, Some(130), "{shown}");
        let lines = shown.split("\r\u{1b}[K").skip(1).collect::<Vec<_>>();
        let (after, drawn) = lines.split_last().unwrap();
        assert!(after.starts_with("stopped; what was found is saved"), "{shown:?}");
        for line in drawn {
            assert!(line.chars().count() < usize::from(columns), "{columns}: {line:?}");
        }
        assert!(columns > 30 || !drawn.iter().any(|line| line.contains("busy")), "{columns}: {drawn:?}");
    }
}
