//! Precedence of flags, variables, file and defaults, and errors about invalid settings.

mod common;

use common::{Home, RunOutput, assert_shape};
use serde_json::json;

const FILE: &str = ".config/gristmill/config.toml";

/// Returns value and origin of a key with these variables and flags.
#[track_caller]
fn origin(home: &Home, key: &str, variables: &[(&str, &str)], flags: &[&str]) -> (String, String) {
    let mut command = home.command(&[flags, &["config", "show", "--json"]].concat());
    command.envs(variables.iter().copied());
    let shown = RunOutput::of(&command.output().unwrap()).json();
    let items = shown["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["key"] == key).unwrap();
    (item["value"].as_str().unwrap().to_owned(), item["where"].as_str().unwrap_or("default").to_owned())
}

#[test]
fn flags_override_variables_which_override_the_file() {
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
fn relative_path_in_the_file_is_relative_to_its_folder() {
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

/// Checks the error about a settings file with this content.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let home = Home::new();
    home.write(FILE, text);
    home.check(&["config", "show"], 1, "", expected);
    home.check(&["jobs", "list"], 1, "", expected);
    home.check(&["config", "path"], 0, "config.toml", "");
}

#[test]
fn invalid_settings_file_is_named_with_line_and_expected_value() {
    refused("[worker]\n\nlease = 300\n", "config.toml:3), which is not allowed\n\nexpected: a duration from 100ms");
    refused("[worker]\nlease = 300\n", "worker.lease is 300 (");
    refused("[worker]\nleese = '5m'\n", "config.toml:2: there is no setting worker.leese; did you mean worker.lease?");
    refused("synchronous = 'off'\n", "synchronous is \"off\"");
    refused("[worker]\nqueues = []\n", "worker.queues is []");
    refused("[worker]\nqueues = [1]\n", "worker.queues is [1] (");
    refused("[exec]\nworkers = true\n", "exec.workers is true (");
    refused("[exec\n", "config.toml:1: not TOML");
    refused("database = 5\n", "database is 5 (");
    refused("database = ''\n", "database is \"\"");
}

#[test]
fn settings_file_named_by_a_flag_must_exist() {
    let home = Home::new();
    home.check(&["config", "show", "--config", "none.toml"], 1, "", "cannot read the settings file none.toml");
    home.check(&["config", "show"], 0, "default", "");
}

#[test]
fn config_init_does_not_overwrite_a_settings_file() {
    let home = Home::new();
    home.check(&["config", "init"], 0, "config.toml", "");
    home.check(&["config", "show"], 0, "worker.lease", "");
    let written = std::fs::read_to_string(home.path(FILE)).unwrap();
    home.write(FILE, "# mine\n");
    home.check(&["config", "init"], 1, "", "exists and was not changed");
    assert_eq!(std::fs::read_to_string(home.path(FILE)).unwrap(), "# mine\n");
    assert!(written.contains("#keep_finished = \"7d\""), "{written}");
    let path = home.json(&["config", "path"]);
    assert_eq!(path, json!({"path": home.path(FILE).to_str().unwrap(), "exists": true}));
}

#[test]
fn config_show_matches_its_json_shape() {
    assert_shape("config-show", &Home::new().json(&["config", "show"]));
}

#[test]
fn misspelled_variable_is_warned_about() {
    let home = Home::new();
    let mut command = home.command(&["config", "show"]);
    let output = RunOutput::of(&command.env("GRISTMILL_WORKER_LEASES", "1s").output().unwrap());
    output.check("config show", 0, "5m", "did you mean GRISTMILL_WORKER_LEASE?");
    let mut command = home.command(&["config", "show"]);
    let output = RunOutput::of(&command.env("GRISTMILL_SOMETHING_ELSE", "1s").output().unwrap());
    output.check("config show", 0, "5m", "");
}

#[test]
fn missing_home_names_the_flags_to_use() {
    let home = Home::new();
    let run = |words: &[&str]| RunOutput::of(&home.command(words).env_remove("HOME").output().unwrap());
    run(&["jobs", "list"]).check("no home", 1, "", "neither XDG_DATA_HOME nor HOME is set");
    run(&["--db", "x.db", "enqueue", "k", "--payload", "1"]).check("no home but --db", 0, "task 1", "");
}

/// Checks the error about the value of a variable.
#[track_caller]
fn refused_variable(variable: &str, value: &str, expected: &str) {
    let home = Home::new();
    let mut command = home.command(&["config", "show"]);
    RunOutput::of(&command.env(variable, value).output().unwrap()).check(variable, 1, "", expected);
}

#[test]
fn invalid_variables_are_named_with_what_is_expected() {
    let lease = "GRISTMILL_WORKER_LEASE";
    refused_variable(lease, "300", "worker.lease is \"300\" (GRISTMILL_WORKER_LEASE), which is not");
    refused_variable(lease, "0s", "expected: a duration from 100ms to 1d");
    refused_variable("GRISTMILL_SYNCHRONOUS", "off", "expected: full or normal");
    refused_variable("GRISTMILL_WORKER_QUEUES", "a,,b", "worker.queues is \"a,,b\"");
    refused_variable("GRISTMILL_EXEC_ATTEMPTS", "0", "expected: a whole number from 1");
    refused_variable("GRISTMILL_EXEC_WORKERS", "-1", "or cores");
    refused_variable("GRISTMILL_EXEC_MAX_OUTPUT", "5MiB", "from 0B to 4MiB");
    refused_variable("GRISTMILL_EXEC_BACKOFF_CAP", "500ms", "not below exec.backoff_base");
}

#[test]
fn none_and_forever_turn_a_limit_off() {
    let home = Home::new();
    for (key, variable, value) in [
        ("exec.timeout", "GRISTMILL_EXEC_TIMEOUT", "none"),
        ("worker.keep_finished", "GRISTMILL_WORKER_KEEP_FINISHED", "forever"),
    ] {
        assert_eq!(origin(&home, key, &[(variable, value)], &[]), (value.into(), variable.into()));
    }
}

#[test]
fn empty_variables_and_relative_xdg_folders_are_ignored() {
    let home = Home::new();
    let expected = home.path(".local/share/gristmill/gristmill.db").to_str().unwrap().to_owned();
    let variables = [("GRISTMILL_DB", ""), ("XDG_DATA_HOME", "data")];
    assert_eq!(origin(&home, "database", &variables, &[]), (expected, "default".into()));
}

#[test]
fn errors_about_the_file_name_the_line_and_the_closest_key() {
    for (text, expected) in [
        ("\n\nlease = '5m'\n", "config.toml:3: there is no setting lease; did you mean worker.lease?"),
        ("databse = 'x'", "did you mean database?"),
        ("[wroker]\nlease = '5m'", "config.toml:1: there is no setting wroker; "),
        ("zzz = 1", "`gristmill config show` lists"),
        ("[worker]\nlease = \n", "config.toml:2: not TOML: "),
        ("[worker]\nlease = '1s'\nlease = '2s'", "config.toml:3: not TOML: "),
    ] {
        refused(text, expected);
    }
}

/// The commented file has every setting at its default, in the order of `config show`, and a valid consumer.
#[test]
fn written_settings_file_holds_every_setting_at_its_default() {
    let home = Home::new();
    let defaults = home.json(&["config", "show"])["items"].clone();
    home.check(&["config", "init"], 0, "config.toml", "");
    assert_eq!(home.json(&["config", "show"])["items"], defaults, "all lines are comments");
    let text = std::fs::read_to_string(home.path(FILE)).unwrap();
    let bare = |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned();
    let lines: Vec<String> = text.lines().map(bare).collect();
    home.write(FILE, &lines.join("\n"));
    let values = |items: &serde_json::Value| -> Vec<(String, String)> {
        let items = items.as_array().unwrap().iter();
        items.map(|item| (item["key"].to_string(), item["value"].to_string())).collect()
    };
    let all = home.json(&["config", "show"])["items"].clone();
    assert_eq!(values(&all), values(&defaults));
    assert!(all.as_array().unwrap().iter().all(|item| item["origin"] == "file"), "{all}");
    // The example of a consumer has one action, and all options that are not of another one.
    let consumer = lines.iter().skip_while(|line| *line != "[[consumers]]").skip(1);
    let names: Vec<&str> = consumer.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    assert!(names.contains(&"exec") && names.contains(&"batch"), "{names:?}");
    let others = ["# http", "# http_retry_status", "# enqueue", "# task_queue", "# into", "# table"];
    let commented: Vec<&str> = names.iter().copied().filter(|name| name.starts_with('#')).collect();
    assert_eq!(commented, others);
    assert_eq!(names.len(), 30);
}
