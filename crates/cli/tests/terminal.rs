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
fn scan_asks_before_it_registers_the_folder_of_a_named_file() {
    let home = library();
    home.write("b/x", "x");
    let (a, b) = (home.real("a"), home.real("b"));
    for (words, question) in [
        (&["scan", "b/x"][..], format!("Register {b} and scan only the named files now? ")),
        (&["scan", "b/x", "a"], format!("Register {a} and scan, and {b} and scan only the named files now? ")),
    ] {
        let mut session = Session::start(home.command(words), 400);
        session.wait_for(&(question + "No file is changed. [Y/n] "));
        session.answer("n\n");
        assert_eq!(session.end().0, Some(1));
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
        session.wait_for(if columns == 200 { " busy · " } else { "\r\n\r\u{1b}[K" });
        signal(&session.process, "INT");
        let (code, shown) = session.end();
        assert_eq!(code, Some(130), "{shown}");
        let lines = shown.split("\r\u{1b}[K").skip(1);
        // The note about the folder ends its line.
        let lines = lines.filter(|line| !line.starts_with("registered ")).collect::<Vec<_>>();
        let (after, drawn) = lines.split_last().unwrap();
        assert!(after.starts_with("stopped; what was found is saved"), "{shown:?}");
        for line in drawn {
            assert!(line.chars().count() < usize::from(columns), "{columns}: {line:?}");
        }
        assert!(columns > 30 || !drawn.iter().any(|line| line.contains("busy")), "{columns}: {drawn:?}");
    }
}

#[test]
fn notes_clear_the_progress_line() {
    let home = Home::new();
    home.write("lines", "1\nx\n");
    let (code, shown) = Session::start(home.command(&["enqueue", "k", "--lines", "lines"]), 80).end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.starts_with("\r\u{1b}[Kerror: line 2 is not JSON"), "{shown:?}");
}

#[test]
fn export_to_a_terminal_shows_only_rows() {
    const ROWS: u32 = 200_000;
    let home = Home::new();
    let database = rusqlite::Connection::open(home.path("x.db")).unwrap();
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?1) \
                INSERT INTO t SELECT i, 'some text of this row' FROM n";
    database.execute_batch("CREATE TABLE t (i INTEGER, text TEXT)").unwrap();
    database.execute(rows, [ROWS]).unwrap();
    drop(database);
    let (code, shown) = Session::start(home.command(&["export", "t", "--from", "x.db"]), 80).end();
    assert_eq!(code, Some(0));
    let other = shown.lines().find(|line| !line.starts_with("{\"i\":"));
    assert_eq!((shown.lines().count(), other), (ROWS as usize, None));
}
