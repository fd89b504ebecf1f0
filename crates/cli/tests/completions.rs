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
        assert!(page.contains(".SH SYNOPSIS"), "{file}");
    }
    home.write("file", "");
    home.check(&["man", "--out", "file"], 1, "", "cannot write file: ");
}
