//! On a terminal: questions and their answers, and the line that shows how far a scan has come.
#![cfg(target_os = "linux")]

mod common;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};

use common::{Home, signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A command on a terminal of its own.
struct Session {
    screen: File,
    process: Child,
    shown: String,
}

impl Session {
    fn start(home: &Home, words: &[&str], columns: u16) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen, size).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags);
        let end = || Stdio::from(options.open(OsStr::from_bytes(name.to_bytes())).unwrap());
        let process = home.command(words).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Session { screen: File::from(screen), process, shown: String::new() }
    }

    /// Reads until some words are shown.
    fn wait_for(&mut self, words: &str) {
        while !self.shown.contains(words) {
            assert!(self.read(), "it never showed {words:?}: {:?}", self.shown);
        }
    }

    /// False when everybody has left the terminal.
    fn read(&mut self) -> bool {
        let mut part = [0; 4_096];
        let count = self.screen.read(&mut part).unwrap_or(0);
        self.shown.push_str(&String::from_utf8_lossy(&part[..count]));
        count > 0
    }

    fn answer(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// How it ended, and all that was shown.
    fn end(mut self) -> (Option<i32>, String) {
        while self.read() {}
        (self.process.wait().unwrap().code(), self.shown)
    }
}

fn library() -> Home {
    let home = Home::new();
    home.files(&[(b"a/one", &[1; 4_096]), (b"a/two", &[1; 4_096]), (b"a/red\x1b[31m", &[1; 4_096])]);
    home
}

const END_OF_INPUT: &str = "\u{4}";

#[test]
fn a_new_folder_is_asked_for() {
    for (keys, code) in [("\n", 0), ("y\n", 0), ("Yes\n", 0), ("n\n", 1), ("what\n", 1), (END_OF_INPUT, 1)] {
        let home = library();
        let mut session = Session::start(&home, &["scan", "a"], 200);
        session.wait_for(&format!("Register {} and scan? No file is changed. [Y/n] ", home.real("a")));
        session.answer(keys);
        let (found, shown) = session.end();
        assert_eq!(found, Some(code), "{keys:?}: {shown}");
        let (told, made) =
            if code == 0 { ("1 group of duplicates", true) } else { ("nothing was registered", false) };
        assert!(shown.contains(told), "{keys:?}: {shown}");
        assert_eq!(home.database().exists(), made, "{keys:?}: a no leaves nothing behind");
    }
}

#[test]
fn a_known_folder_is_not_asked_for() {
    let home = library();
    home.scan(&["a"]);
    for words in [&["scan", "a"][..], &["scan"], &["scan", "--yes", "."]] {
        let (code, shown) = Session::start(&home, words, 200).end();
        assert_eq!(code, Some(0), "{shown}");
        assert!(!shown.contains("[Y/n]"), "{shown}");
    }
}

#[test]
fn forgetting_a_root_is_asked_for() {
    for (keys, code) in [("\n", 1), ("n\n", 1), (END_OF_INPUT, 1), ("y\n", 0)] {
        let home = library();
        home.scan(&["a"]);
        let mut session = Session::start(&home, &["root", "remove", "a"], 200);
        session.wait_for("and what was found in it? No file is touched. [y/N] ");
        session.answer(keys);
        let (found, shown) = session.end();
        assert_eq!(found, Some(code), "{keys:?}: {shown}");
        assert_eq!(
            home.json(&["roots"])["items"].as_array().unwrap().len(),
            usize::from(code == 1),
            "{keys:?}"
        );
    }
}

#[test]
fn names_do_not_steer_the_terminal() {
    let home = library();
    home.scan(&["a"]);
    for words in [&["dupes"][..], &["dupes", "--csv"], &["dupes", "--fdupes"], &["scan"]] {
        let (code, shown) = Session::start(&home, words, 80).end();
        assert_eq!(code, Some(0), "{shown}");
        assert!(!shown.contains("\u{1b}[31m"), "{words:?}: {shown:?}");
        assert!(words == ["scan"] || shown.contains("red\\x1B[31m"), "{words:?}: {shown:?}");
    }
}

#[test]
fn the_line_fits_the_terminal_and_is_taken_away() {
    for columns in [30, 80, 200] {
        let home = library();
        let mut session = Session::start(&home, &["scan", "--yes", "--io-limit", "1B/s", "a"], columns);
        // Where there is room for all of it.
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
