//! The binary from outside: words in, exit code and two streams out. All three are public promises.

mod common;

use std::process::Stdio;

use common::{Home, Said, held};

/// Runs and compares, with a log filter in the environment.
#[track_caller]
fn check(words: &[&str], log: Option<&str>, code: i32, stdout: &str, stderr: &str) {
    let home = Home::new();
    let mut command = home.command(words);
    if let Some(filter) = log {
        command.env("GRISTMILL_LOG", filter);
    }
    let said = Said::of(&command.output().unwrap());
    said.check(&format!("{words:?} with {log:?}"), code, stdout, stderr);
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
    check(&["dea"], None, 1, "", "'dead'");
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
    let home = Home::new();
    for words in [&[][..], &["--help"], &["--version"], &["config", "show"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = home.command(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = Said::of(&output);
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
        assert!(said.err.contains("cannot write to standard output"), "{words:?}: {said:?}");
    }
}

/// Every help text, letter by letter. That there is a manual page for every command, `manual` shows.
#[test]
fn the_help_texts_are_held() {
    let home = Home::new();
    let found = home.run(&["--help"]).out;
    held("help/gristmill.txt", &found);
    assert_eq!(found, home.run(&[]).out, "no words at all mean --help");
    let pages = home.json(&["man", "--out", "pages"]);
    let names = pages["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap());
    let commands = names.filter_map(|name| name.strip_prefix("pages/gristmill-")?.strip_suffix(".1"));
    let mut count = 0;
    for command in commands {
        let words: Vec<&str> = command.split('-').chain(["--help"]).collect();
        let said = home.run(&words);
        held(&format!("help/{command}.txt"), &said.out);
        let leaf = !said.out.contains("\nCommands:\n");
        let examples =
            said.out.lines().filter(|line| line.starts_with("  ") && line.contains("gristmill ")).count();
        assert!(!leaf || examples >= 2, "{command} has fewer than two examples");
        count += 1;
    }
    assert!(count > 25, "{count}");
}
