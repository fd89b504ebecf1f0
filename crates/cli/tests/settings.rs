//! Flags over variables over the file over defaults; and what is said of wrong ones.

mod common;

use common::{Home, Said, shape_is_held};
use serde_json::json;

const FILE: &str = ".config/gristmill/config.toml";

/// Where `key` comes from, with a file and a variable as given.
#[track_caller]
fn origin(home: &Home, key: &str, variables: &[(&str, &str)], flags: &[&str]) -> (String, String) {
    let mut command = home.command(&[flags, &["config", "show", "--json"]].concat());
    command.envs(variables.iter().copied());
    let shown = Said::of(&command.output().unwrap()).json();
    let items = shown["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["key"] == key).unwrap();
    (item["value"].as_str().unwrap().to_owned(), item["where"].as_str().unwrap_or("default").to_owned())
}

#[test]
fn each_layer_goes_over_the_next() {
    let home = Home::new();
    assert_eq!(origin(&home, "worker.lease", &[], &[]), ("5m".into(), "default".into()));
    let file = home.write(FILE, "# mine\n[worker]\nlease = \"60s\"\n");
    let at = format!("{}:3", file.display());
    assert_eq!(origin(&home, "worker.lease", &[], &[]), ("1m".into(), at));
    let variable = [("GRISTMILL_WORKER_LEASE", "90s")];
    let expected = ("90s".into(), "GRISTMILL_WORKER_LEASE".into());
    assert_eq!(origin(&home, "worker.lease", &variable, &[]), expected);

    let variable = [("GRISTMILL_DB", "/from/variable.db")];
    let expected = ("/from/variable.db".into(), "GRISTMILL_DB".into());
    assert_eq!(origin(&home, "database", &variable, &[]), expected);
    let expected = ("/from/flag.db".into(), "--db".into());
    assert_eq!(origin(&home, "database", &variable, &["--db", "/from/flag.db"]), expected);
}

#[test]
fn a_path_in_the_file_is_seen_from_the_file() {
    let home = Home::new();
    let file = home.write("elsewhere/c.toml", "database = \"work.db\"\n");
    let flags = ["--config", file.to_str().unwrap()];
    let (value, at) = origin(&home, "database", &[], &flags);
    assert_eq!(value, home.path("elsewhere/work.db").to_str().unwrap());
    assert_eq!(at, format!("{}:1", file.display()));
    home.write("elsewhere/c.toml", "database = \"~/work.db\"\n");
    assert_eq!(origin(&home, "database", &[], &flags).0, home.path("work.db").to_str().unwrap());
    let variable = [("GRISTMILL_CONFIG", file.to_str().unwrap())];
    assert_eq!(origin(&home, "database", &variable, &[]).0, home.path("work.db").to_str().unwrap());
}

/// What a settings file with this in it is refused with.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let home = Home::new();
    home.write(FILE, text);
    home.check(&["config", "show"], 1, "", expected);
    home.check(&["jobs", "list"], 1, "", expected);
    home.check(&["config", "path"], 0, "config.toml", "");
}

#[test]
fn a_wrong_file_is_named_with_its_line_and_what_is_legal() {
    refused(
        "[worker]\n\nlease = 300\n",
        "config.toml:3), which is not legal\n\nlegal: a duration from 100ms",
    );
    refused("[worker]\nlease = 300\n", "worker.lease is 300 (");
    refused(
        "[worker]\nleese = '5m'\n",
        "config.toml:2: there is no setting worker.leese; did you mean worker.lease?",
    );
    refused("synchronous = 'off'\n", "synchronous is \"off\"");
    refused("[worker]\nqueues = []\n", "worker.queues is []");
    refused("[worker]\nqueues = [1]\n", "worker.queues is [1] (");
    refused("[exec]\nworkers = true\n", "exec.workers is true (");
    refused("[exec\n", "config.toml:1: not TOML");
    refused("database = 5\n", "database is 5 (");
    refused("database = ''\n", "database is \"\"");
}

#[test]
fn a_named_file_must_be_there() {
    let home = Home::new();
    home.check(
        &["config", "show", "--config", "none.toml"],
        1,
        "",
        "cannot read the settings file none.toml",
    );
    home.check(&["config", "show"], 0, "default", "");
}

#[test]
fn the_commented_file_is_written_once() {
    let home = Home::new();
    home.check(&["config", "init"], 0, "config.toml", "");
    home.check(&["config", "show"], 0, "worker.lease", "");
    let written = std::fs::read_to_string(home.path(FILE)).unwrap();
    home.write(FILE, "# mine\n");
    home.check(&["config", "init"], 1, "", "exists already, and was not changed");
    assert_eq!(std::fs::read_to_string(home.path(FILE)).unwrap(), "# mine\n");
    assert!(written.contains("#keep_finished = \"7d\""), "{written}");
    let there = home.json(&["config", "path"]);
    assert_eq!(there, json!({"path": home.path(FILE).to_str().unwrap(), "exists": true}));
}

#[test]
fn the_shape_of_config_show_is_held() {
    shape_is_held("config-show", &Home::new().json(&["config", "show"]));
}

#[test]
fn a_mistyped_variable_is_told() {
    let home = Home::new();
    let mut command = home.command(&["config", "show"]);
    let said = Said::of(&command.env("GRISTMILL_WORKER_LEASES", "1s").output().unwrap());
    said.check("config show", 0, "5m", "did you mean GRISTMILL_WORKER_LEASE?");
}

#[test]
fn without_a_home_the_way_out_is_named() {
    let home = Home::new();
    let run = |words: &[&str]| Said::of(&home.command(words).env_remove("HOME").output().unwrap());
    run(&["jobs", "list"]).check("no home", 1, "", "neither XDG_DATA_HOME nor HOME is set");
    run(&["--db", "x.db", "enqueue", "k", "--payload", "1"]).check("no home but --db", 0, "task 1", "");
}
