//! Files with users' data are private to their owner, whatever the umask; the modes of existing files are kept.
#![cfg(unix)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::Home;
use gristmill_store::Store;

fn mode(path: &Path) -> u32 {
    let found = std::fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a command with umask 000.
#[track_caller]
fn run(home: &Home, words: &[&str], code: i32) {
    let plain = home.command(words);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(plain.get_program()).args(plain.get_args());
    command.env_clear().current_dir(plain.get_current_dir().unwrap());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn files_with_users_data_are_created_for_their_owner_alone_whatever_the_umask() {
    let home = Home::new();
    run(&home, &["enqueue", "k", "--payload", "1"], 0);
    let database = home.database();
    assert_eq!(mode(database.parent().unwrap()), 0o700);
    assert_eq!(mode(&database), 0o600);
    let store = Store::open(&database).unwrap();
    for ending in ["-wal", "-shm"] {
        assert_eq!(mode(&home.path(&format!(".local/share/gristmill/gristmill.db{ending}"))), 0o600, "{ending}");
    }
    drop(store);
    run(&home, &["backup", "copy.db"], 0);
    assert_eq!(mode(&home.path("copy.db")), 0o600);
    run(&home, &["--db", "named.db", "enqueue", "k", "--payload", "1"], 0);
    assert_eq!(mode(&home.path("named.db")), 0o600);
    std::os::unix::fs::symlink("later.db", home.path("link.db")).unwrap();
    run(&home, &["--db", "link.db", "enqueue", "k", "--payload", "1"], 0);
    assert_eq!(mode(&home.path("later.db")), 0o600);
    // The database of an import follows the umask; the file of rejected lines is private.
    home.write("rows.jsonl", "{\"a\": 1}\nno json\n");
    run(&home, &["import", "rows.jsonl", "--into", "rows.db", "--rejects", "rejects.jsonl"], 1);
    assert_eq!(mode(&home.path("rejects.jsonl")), 0o600);
    assert_ne!(mode(&home.path("rows.db")) & 0o077, 0);
}

#[test]
fn config_init_creates_the_settings_file_for_its_owner_alone() {
    let home = Home::new();
    run(&home, &["config", "init"], 0);
    assert_eq!(mode(&home.path(".config/gristmill/config.toml")), 0o600);
    assert_eq!(mode(&home.path(".config/gristmill")), 0o700);
    run(&home, &["config", "init", "--config", "here.toml"], 0);
    assert_eq!(mode(&home.path("here.toml")), 0o600);
}

#[test]
fn existing_database_keeps_its_mode() {
    let home = Home::new();
    run(&home, &["--db", "work.db", "enqueue", "k", "--payload", "1"], 0);
    set_mode(&home.path("work.db"), 0o660);
    run(&home, &["--db", "work.db", "enqueue", "k", "--payload", "1"], 0);
    assert_eq!(mode(&home.path("work.db")), 0o660);
}

#[test]
fn doctor_names_older_files_that_others_may_open_and_the_command_that_changes_it() {
    let home = Home::new();
    run(&home, &["enqueue", "k", "--payload", "1"], 0);
    home.check(&["doctor"], 0, "healthy: no problems found", "");
    let database = home.database();
    set_mode(&database, 0o644);
    set_mode(database.parent().unwrap(), 0o755);
    let output = home.run(&["doctor"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    let folder = database.parent().unwrap().display().to_string();
    let start = format!("chmod 700 {folder} && chmod 600 {folder}/gristmill.db");
    assert!(output.out.contains("warning: other users of this machine can read "), "{output:?}");
    let command = output.out.lines().find_map(|line| line.trim().strip_prefix("next: ")).unwrap();
    assert!(command.starts_with(&start), "{command}");
    // The suggested command fixes it.
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
    home.check(&["doctor"], 0, "healthy: no problems found", "");
    // The folder of a database that the user named is not checked.
    run(&home, &["--db", "my work.db", "enqueue", "k", "--payload", "1"], 0);
    set_mode(&home.path("my work.db"), 0o640);
    let output = home.run(&["--db", "my work.db", "doctor"]);
    let start = format!("next: chmod 600 '{}'", home.path("my work.db").display());
    assert!(output.out.contains(&start), "{output:?}");
}

#[test]
fn doctor_names_a_settings_file_with_a_password_that_others_may_open() {
    let home = Home::new();
    run(&home, &["enqueue", "k", "--payload", "1"], 0);
    let check = |text: &str, is_named: bool| {
        let file = home.write(".config/gristmill/config.toml", text);
        set_mode(&file, 0o644);
        let output = home.run(&["doctor"]);
        assert_eq!(output.code, Some(i32::from(is_named)), "{text}: {output:?}");
        let next = format!("next: chmod 600 {}\n", file.display());
        assert_eq!(output.out.contains(&next), is_named, "{text}: {output:?}");
        assert!(!output.out.contains("s3cr3t"), "{output:?}");
        set_mode(&file, 0o600);
        home.check(&["doctor"], 0, "healthy: no problems found", "");
    };
    check("[amqp]\nuri = 'amqp://me:s3cr3t@localhost'\n", true);
    check("[amqp]\nuri = ['amqp://a', 'amqp://me:s3cr3t@localhost']\n", true);
    check("[amqp]\nmanagement = 'http://me:s3cr3t@localhost:15672'\n", true);
    check("[[consumers]]\nqueue = 'q'\nhttp = 'https://me:s3cr3t@localhost/x'\n", true);
    check("[amqp]\nuri = 'amqp://me@localhost:5672/a:b@c'\n", false);
    check("[worker]\nlease = '5m'\n", false);
}
