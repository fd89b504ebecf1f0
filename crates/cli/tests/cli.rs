//! The binary from outside: words in, exit code and two streams out. All three are public promises.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary in surroundings that do not depend on who runs the test.
fn gristmill(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(words).env_remove("GRISTMILL_LOG").env("NO_COLOR", "1").env("COLUMNS", "100");
    // The help is as wide as the terminal, and standard input may be one.
    command.stdin(Stdio::null());
    command
}

/// Runs and compares. A stream that should hold nothing is given as "", any other as a part of it.
#[track_caller]
fn check(words: &[&str], log: Option<&str>, code: i32, stdout: &str, stderr: &str) {
    let mut command = gristmill(words);
    if let Some(filter) = log {
        command.env("GRISTMILL_LOG", filter);
    }
    let Output { status, stdout: out, stderr: err } = command.output().unwrap();
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    let said = format!("gristmill {words:?} with {log:?}: {status}\n{out}\n{err}");
    assert_eq!(status.code(), Some(code), "{said}");
    for (stream, expected) in [(&out, stdout), (&err, stderr)] {
        assert_eq!(stream.is_empty(), expected.is_empty(), "{said}");
        assert!(stream.contains(expected), "no {expected:?} in {said}");
    }
}

#[test]
fn what_is_asked_for_goes_to_standard_output() {
    check(&["--help"], None, 0, "Usage: gristmill", "");
    check(&["-h"], None, 0, "Exit codes:", "");
    check(&["--version"], None, 0, concat!("gristmill ", env!("CARGO_PKG_VERSION"), "\n"), "");
    check(&[], None, 0, "Usage: gristmill", "");
}

#[test]
fn a_wrong_word_is_for_the_user_to_put_right() {
    check(&["scna"], None, 1, "", "'scna'");
    check(&["--verbos"], None, 1, "", "'--verbose'");
    check(&["--quiet", "--verbose"], None, 1, "", "cannot be used with");
}

#[test]
fn a_wrong_filter_is_named_with_what_is_legal() {
    check(&[], Some("gristmill=loud"), 1, "", "GRISTMILL_LOG is \"gristmill=loud\"");
    check(&[], Some("debgu"), 1, "", "legal: off, error, warn, info, debug or trace");
}

#[test]
fn the_log_goes_to_standard_error_as_loud_as_wanted() {
    check(&["-vv"], None, 0, "Usage: gristmill", "DEBUG gristmill::run: started");
    check(&["-v"], None, 0, "Usage: gristmill", "");
    check(&[], Some("debug"), 0, "Usage: gristmill", "DEBUG gristmill::run: started");
    check(&["--quiet"], Some("debug"), 0, "Usage: gristmill", "");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_failure_of_the_system() {
    for words in [&[][..], &["--help"], &["--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = gristmill(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("cannot write to standard output"), "{words:?}: {said}");
    }
}

/// The whole help, letter by letter. After a wanted change: `GRISTMILL_BLESS=1 cargo test -p gristmill`.
#[test]
fn the_help_text_is_held() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    let found = String::from_utf8(gristmill(&["--help"]).output().unwrap().stdout).unwrap();
    if std::env::var_os("GRISTMILL_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let held = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, held, "the help changed; if it was meant to, run with GRISTMILL_BLESS=1");
    assert_eq!(found.as_bytes(), gristmill(&[]).output().unwrap().stdout, "no words at all mean --help");
}
