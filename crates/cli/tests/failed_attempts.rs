//! Tasks in `jobs list` and `jobs show`: the command, and the output of each failed attempt.

mod common;

use common::{Home, assert_shape};
use serde_json::json;

/// Runs due tasks. A failed command is retried after an hour.
fn run_due_tasks(home: &Home) {
    let mut command = home.command(&["worker", "--once"]);
    command.env("GRISTMILL_EXEC_BACKOFF_BASE", "1h").env("GRISTMILL_EXEC_BACKOFF_CAP", "1h");
    assert!(command.output().unwrap().status.success());
}

#[test]
fn jobs_show_has_the_output_of_each_failed_attempt() {
    let home = Home::new();
    let script = "echo try $GRISTMILL_ATTEMPT; seq 1000; echo no disk >&2; exit 1";
    home.check(&["enqueue", "exec", "--max-attempts", "2", "--", "sh", "-c", script], 0, "task 1", "");
    run_due_tasks(&home);
    let task = home.json(&["jobs", "show", "1"]);
    assert_shape("jobs-show-failures", &task["failures"]);
    assert_eq!(task["failures"][0]["reason"], "exit status 1");
    let output = task["failures"][0]["output"].as_str().unwrap();
    assert!(output.starts_with("--- stderr\nno disk\n--- stdout\n"), "{output}");
    assert!(output.ends_with("\n999\n1000") && output.lines().count() < 40, "{output}");
    home.check(&["jobs", "retry", "1"], 0, "task 1 is due now", "");
    run_due_tasks(&home);
    let task = home.json(&["jobs", "show", "1"]);
    let attempts: Vec<_> = task["failures"].as_array().unwrap().iter().map(|one| &one["attempt"]).collect();
    assert_eq!((&task["status"], attempts), (&json!("failed"), vec![&json!(1), &json!(2)]), "{task}");
    let output = home.run(&["jobs", "show", "1"]).out;
    assert!(output.contains("attempt 1") && output.contains("attempt 2") && output.contains("no disk\n"), "{output}");
}

#[test]
fn jobs_show_has_the_reason_of_a_task_that_cannot_be_run() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "/no/such/program"], 0, "task 1", "");
    run_due_tasks(&home);
    let failures = &home.json(&["jobs", "show", "1"])["failures"];
    assert_eq!((&failures[0]["attempt"], &failures[0]["output"]), (&json!(1), &json!(null)), "{failures}");
    assert!(failures[0]["reason"].as_str().unwrap().contains("/no/such/program"), "{failures}");
}

#[test]
fn jobs_list_shows_the_command_or_the_payload() {
    let home = Home::new();
    let long = "x".repeat(200);
    home.check(&["enqueue", "exec", "--", "sh", "-c", "echo \"a  b\"\nexit 0"], 0, "task 1", "");
    home.check(&["enqueue", "resize", "--payload", r#"{"width":80}"#], 0, "task 2", "");
    home.check(&["enqueue", "exec", "--", "echo", &long], 0, "task 3", "");
    let output = home.run(&["jobs", "list"]).out;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].contains("WORK"), "{output}");
    assert!(lines[1].contains("echo xxxx") && lines[1].contains('…') && lines[1].len() < 160, "{output}");
    assert!(lines[2].contains(r#"{"width":80}"#), "{output}");
    assert!(lines[3].contains(r#"sh -c $'echo "a  b"\x0Aexit 0'"#), "{output}");
}

#[test]
fn jobs_list_shows_how_often_a_task_has_failed() {
    let home = Home::new();
    home.check(&["enqueue", "exec", "--", "true"], 0, "task 1", "");
    // With a second attempt, it might become due before the worker exits.
    home.check(&["enqueue", "exec", "--max-attempts", "1", "--", "false"], 0, "task 2", "");
    home.run(&["worker", "--once"]);
    let output = home.run(&["jobs", "list"]).out;
    let column = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    let failed: Vec<_> = output.lines().filter_map(column).collect();
    assert_eq!(failed, ["FAILED", "1", "0"], "{output}");
}
