//! Help, version, log and exit status of the binary: a public interface.

mod common;

use std::process::Stdio;

use common::{Home, RunOutput, assert_snapshot};

/// Runs a command with a log filter in the environment, and checks its exit status and streams.
#[track_caller]
fn check(words: &[&str], log: Option<&str>, code: i32, stdout: &str, stderr: &str) {
    let home = Home::new();
    let mut command = home.command(words);
    if let Some(filter) = log {
        command.env("GRISTMILL_LOG", filter);
    }
    let output = RunOutput::of(&command.output().unwrap());
    output.check(&format!("{words:?} with {log:?}"), code, stdout, stderr);
}

#[test]
fn help_and_version_go_to_standard_output() {
    check(&["--help"], None, 0, "Usage: gristmill", "");
    check(&["-h"], None, 0, "Exit status:", "");
    check(&["--version"], None, 0, concat!("gristmill ", env!("CARGO_PKG_VERSION"), "\n"), "");
    check(&[], None, 0, "Usage: gristmill", "");
}

#[test]
fn unknown_command_or_flag_is_exit_status_1_with_a_suggestion() {
    check(&["scna"], None, 1, "", "'scna'");
    check(&["dea"], None, 1, "", "'dead'");
    check(&["--verbos"], None, 1, "", "'--verbose'");
    check(&["--quiet", "--verbose"], None, 1, "", "cannot be used with");
}

#[test]
fn invalid_log_filter_is_named_with_expected_values() {
    check(&[], Some("gristmill=loud"), 1, "", "GRISTMILL_LOG is \"gristmill=loud\"");
    check(&[], Some("debgu"), 1, "", "expected: off, error, warn, info, debug or trace");
    for value in ["warn,gristmill", "["] {
        check(&[], Some(value), 1, "", &format!("{value:?}, which is not a log filter"));
    }
    for value in ["OFF", "info,", "warn,gristmill=info", "[task{id=3}]=debug", ""] {
        check(&[], Some(value), 0, "Usage: gristmill", "");
    }
}

#[test]
fn log_level_follows_flags_and_variable_on_standard_error() {
    check(&["-vv"], None, 0, "Usage: gristmill", "DEBUG gristmill::run: started");
    check(&["-v"], None, 0, "Usage: gristmill", "");
    check(&[], Some("debug"), 0, "Usage: gristmill", "DEBUG gristmill::run: started");
    check(&[], Some("gristmill=trace"), 0, "Usage: gristmill", "DEBUG gristmill::run: started");
    check(&["-v"], Some("error"), 0, "Usage: gristmill", "");
    check(&["-vvvv"], None, 0, "Usage: gristmill", "DEBUG gristmill::run: started");
    check(&["--quiet"], Some("debug"), 0, "Usage: gristmill", "");
}

#[test]
#[cfg(target_os = "linux")]
fn full_disk_at_standard_output_is_exit_status_2() {
    let home = Home::new();
    for words in [&[][..], &["--help"], &["--version"], &["config", "show"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = home.command(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let output = RunOutput::of(&output);
        assert_eq!(output.code, Some(2), "{words:?}: {output:?}");
        assert!(output.err.contains("cannot write to standard output"), "{words:?}: {output:?}");
    }
}

/// Compares every help text with its snapshot. The test of `completions` checks the manual pages.
#[test]
fn help_texts_match_their_snapshots() {
    let home = Home::new();
    let found = home.run(&["--help"]).out;
    assert_snapshot("help/gristmill.txt", &found);
    assert_eq!(found, home.run(&[]).out, "no arguments mean --help");
    let pages = home.json(&["man", "--out", "pages"]);
    let names = pages["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap());
    let commands = names.filter_map(|name| name.strip_prefix("pages/gristmill-")?.strip_suffix(".1"));
    let mut count = 0;
    for command in commands {
        let words: Vec<&str> = command.split('-').chain(["--help"]).collect();
        let output = home.run(&words);
        assert_snapshot(&format!("help/{command}.txt"), &output.out);
        let examples = output.out.lines().filter(|line| line.starts_with("  ") && line.contains("gristmill ")).count();
        assert!(examples >= 2, "{command} has fewer than two examples");
        count += 1;
    }
    assert!(count > 25, "{count}");
}

#[test]
fn help_lists_every_command_in_exactly_one_group() {
    let home = Home::new();
    let help = home.run(&["--help"]).out;
    let pages = home.json(&["man", "--out", "pages"]);
    let names = pages["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap());
    let names = names.filter_map(|name| name.strip_prefix("pages/gristmill-")?.strip_suffix(".1"));
    for name in names.filter(|name| !name.contains('-')) {
        let listed = help.lines().filter(|line| line.starts_with(&format!("  {name} "))).count();
        assert_eq!(listed, 1, "{name}");
    }
}
