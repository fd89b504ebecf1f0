//! Completion scripts and manual pages, generated from the declared arguments.
#![cfg(unix)]

mod common;

use std::process::{Command, Stdio};

use common::{Home, assert_shape};

#[test]
fn completion_scripts_are_valid_for_each_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = home.run(&["completions", shell]);
        output.check(shell, 0, "gristmill", "");
        assert_eq!(home.json(&["completions", shell])["script"], output.out);
        // Installed shells check the syntax.
        let path = home.write(&format!("script.{shell}"), &output.out);
        if matches!(shell, "bash" | "zsh" | "fish") {
            let read = Command::new(shell).arg("-n").arg(&path).stdin(Stdio::null()).output();
            match read {
                Ok(read) => assert!(read.status.success(), "{shell}: {read:?}"),
                Err(error) => assert_ne!(shell, "bash", "bash is everywhere: {error}"),
            }
        }
    }
    assert_shape("completions", &home.json(&["completions", "bash"]));
    home.check(&["completions", "tcsh"], 1, "", "possible values: bash, elvish, fish, powershell, zsh");
    assert!(!home.database().exists());
}

/// Returns what bash completes after these words.
fn bash_completions(home: &Home, script: &std::path::Path, words: &[&str]) -> String {
    let line = format!(
        "source {}; COMP_WORDS=({} ''); COMP_CWORD={}; _gristmill gristmill '' {}; echo \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.join(" "),
        words.len(),
        words.last().unwrap()
    );
    let output = Command::new("bash").args(["-c", &line]).current_dir(home.path("")).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let home = Home::new();
    let script = home.write("script", &home.run(&["completions", "bash"]).out);
    let commands = bash_completions(&home, &script, &["gristmill"]);
    for command in ["scan", "dupes", "folders", "roots", "worker", "completions"] {
        assert!(commands.split_whitespace().any(|word| word == command), "{commands}");
    }
    let flags = bash_completions(&home, &script, &["gristmill", "dupes"]);
    assert!(flags.contains("--across-roots") && flags.contains("--json"), "{flags}");
    let orders = bash_completions(&home, &script, &["gristmill", "dupes", "--sort"]);
    assert_eq!(orders.trim(), "reclaimable count size path");
}

#[test]
fn man_writes_a_page_for_every_command() {
    let home = Home::new();
    let output = home.run(&["man"]);
    output.check("man", 0, ".SH NAME\ngristmill", "");
    assert_eq!(home.json(&["man"])["page"], output.out);
    home.check(&["man", "--out", "pages"], 0, "pages to pages\n", "");
    let written = home.json(&["man", "--out", "pages"]);
    let files = written["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file == "pages/gristmill-roots-remove.1"), "{written}");
    for file in files {
        let page = std::fs::read_to_string(home.path(file.as_str().unwrap())).unwrap();
        assert!(page.starts_with(".ie ") && page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{file}");
        assert!(page.contains("\nExample") || page.contains("SUBCOMMANDS"), "{file} has no example: {page}");
    }
    home.write("file", "");
    home.check(&["man", "--out", "file"], 1, "", "cannot write file: ");
}

#[test]
fn every_shell_completes_every_command_and_flag() {
    let home = Home::new();
    let pages = home.json(&["man", "--out", "pages"]);
    let names = pages["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap());
    let names: Vec<&str> = names.filter_map(|name| name.strip_prefix("pages/gristmill-")?.strip_suffix(".1")).collect();
    let scripts = ["bash", "zsh", "fish", "elvish", "powershell"].map(|shell| home.run(&["completions", shell]).out);
    for name in names {
        let words: Vec<&str> = name.split('-').chain(["--help"]).collect();
        let help = home.run(&words).out;
        let is_option =
            |line: &&str| line.starts_with("      --") || (line.starts_with("  -") && line.contains(", --"));
        let options = help.lines().filter(is_option).filter_map(|line| line.split_once("--"));
        let flags: Vec<&str> = options.filter_map(|(_, flag)| flag.split([' ', '=', '[', '.']).next()).collect();
        assert!(flags.contains(&"help") && flags.contains(&"json"), "{name}: {flags:?}");
        for script in &scripts {
            assert!(name.split('-').all(|word| script.contains(word)), "{name}");
            assert!(flags.iter().all(|flag| script.contains(flag)), "{name}: {flags:?}");
        }
    }
}
