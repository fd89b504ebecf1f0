//! Queueing, listing, cancelling and retrying tasks: `enqueue`, `jobs` and `dead`.

mod common;

use std::time::Duration;

use common::{Home, assert_shape, becomes_true, end_of, signal};
use gristmill_pool::clock::ManualClock;
use gristmill_store::Store;
use gristmill_store::jobs::JobKind;
use gristmill_store::lease::WorkerId;
use gristmill_store::tasks::{ClaimRequest, Disposition, NewTask, TaskFailure, TaskUpdate};
use serde_json::{Value, json};

/// Claims due tasks of a kind and settles them as failed permanently.
fn dead_letter(store: &Store, kind: &str, reason: &str) {
    let token = WorkerId::new("test").token();
    let request = ClaimRequest {
        queue: "default".into(),
        kind: kind.into(),
        limit: 10,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease: Duration::from_secs(300),
        token,
    };
    let claimed = store.tasks().settle_and_claim(vec![], vec![request]).unwrap().claimed;
    assert!(!claimed.is_empty());
    let disposition = |reason: &str| {
        Disposition::DeadLettered(TaskFailure {
            reason: reason.into(),
            step: None,
            details: Some("complete output".into()),
            output: None,
        })
    };
    let settle = claimed.into_iter().map(|task| TaskUpdate {
        id: task.id,
        token: task.token,
        disposition: disposition(reason),
        checkpointed: false,
    });
    store.tasks().settle_and_claim(settle.collect::<Vec<_>>(), vec![]).unwrap();
}

#[test]
fn enqueue_stores_all_its_options() {
    let home = Home::new();
    let words = ["enqueue", "report", "--payload", "{\"a\": [1, 2]}", "--queue", "slow", "--priority", "-3"];
    let more = ["--max-attempts", "7", "--unique-key", "daily", "--document", "doc-1", "--run-after", "in 2h"];
    let words = [&words[..], &more[..]].concat();
    let queued = home.json(&words);
    assert_eq!(queued, json!({"id": 1, "created": true}));
    assert_eq!(home.json(&words), json!({"id": 1, "created": false}));
    home.check(&words, 0, "nothing queued: task 1 has this key and is not finished", "");
    let task = home.json(&["jobs", "show", "1"]);
    assert_shape("jobs-show-task", &task);
    for (field, expected) in [
        ("type", json!("task")),
        ("kind", json!("report")),
        ("queue", json!("slow")),
        ("status", json!("scheduled")),
        ("priority", json!(-3)),
        ("max_attempts", json!(7)),
        ("unique_key", json!("daily")),
        ("document_id", json!("doc-1")),
        ("payload", json!({"a": [1, 2]})),
    ] {
        assert_eq!(task[field], expected, "{field}");
    }
}

#[test]
#[cfg(unix)]
fn default_data_folder_is_private_to_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.check(&["enqueue", "k", "--payload", "1"], 0, "queued task 1", "");
    let folder = home.database().parent().unwrap().to_path_buf();
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn payload_is_read_from_a_file_or_standard_input() {
    let home = Home::new();
    home.write("p.json", "{\"from\": \"file\"}\n");
    home.check(&["enqueue", "k", "--payload", "@p.json"], 0, "task 1", "");
    home.run_with_input(&["enqueue", "k", "--payload", "-"], b"\"stdin\"").check("stdin", 0, "task 2", "");
    home.check(&["enqueue", "k", "--payload", "-5"], 0, "task 3", "");
    let payload = |id: &str| home.json(&["jobs", "show", id])["payload"].clone();
    assert_eq!((payload("1"), payload("2"), payload("3")), (json!({"from": "file"}), json!("stdin"), json!(-5)));
}

#[test]
fn enqueued_command_keeps_its_folder_environment_and_timeout() {
    let home = Home::new();
    let words = ["enqueue", "exec", "--timeout", "1m30s", "--env", "A=b=c", "--", "echo", "--json", "$HOME"];
    home.check(&words, 0, "queued task 1", "");
    let cwd = std::fs::canonicalize(home.path("")).unwrap();
    let expected = json!({
        "argv": ["echo", "--json", "$HOME"],
        "cwd": cwd.to_str().unwrap(),
        "env": {"A": "b=c"},
        "timeout_seconds": 90.0,
    });
    assert_eq!(home.json(&["jobs", "show", "1"])["payload"], expected);
}

#[test]
fn invalid_enqueue_arguments_are_refused_with_expected_values() {
    let home = Home::new();
    let enqueue = |words: &[&str], expected: &str| {
        home.check(&[&["enqueue"], words].concat(), 1, "", expected);
    };
    enqueue(&["k"], "--payload");
    enqueue(&["k", "--payload", "{\"a\": }"], "--payload is not JSON: expected value at line 1 column 7");
    enqueue(&["k", "--payload", "@none.json"], "cannot read the payload from none.json");
    enqueue(&["k", "--payload", "1", "--run-after", "soon"], "expected: a UTC time such as");
    for number in ["0", "-1", "x"] {
        enqueue(&["k", "--payload", "1", "--max-attempts", number], "expected: a whole number from 1 to");
    }
    enqueue(&["k", "--payload", "1", "--priority", "x"], "expected: a whole number from -2147483648 to");
    enqueue(&["k", "--payload", "1", "--queue", ""], "invalid queue \"\"; expected");
    enqueue(&["k", "--", "echo"], "a command after -- is for the kind exec only");
    for time in ["5", "0s", "-5s", "99999999999999999999s"] {
        enqueue(
            &["exec", "--timeout", time, "--", "echo"],
            "expected: more than 0s, written as a whole number and its unit, such as 500ms, 30s",
        );
    }
    enqueue(&["exec", "--env", "=x", "--", "echo"], "expected: NAME=VALUE");
    enqueue(&["exec", "--cwd", "none", "--", "echo"], "none is not a folder");
    enqueue(&["exec", "--payload", "{\"argv\": []}"], "argv is empty");
    enqueue(&["exec", "--payload", "{\"argv\": [\"a\\u0000b\"]}"], "argv[0] has a NUL character");
    enqueue(&["exec", "--payload", "{\"argv\": [\"a\"], \"timeout_seconds\": 0}"], "timeout_seconds is 0;");
    enqueue(&["exec", "--payload", "{\"argv\": [\"a\"], \"timeout_seconds\": -5}"], "timeout_seconds is -5;");
    enqueue(&["exec", "--timeout", "0s", "--", "true"], "more than 0s");
    enqueue(&["exec", "--timeout", "-5s", "--", "true"], "more than 0s");
    enqueue(&["exec", "--payload", "{\"cmd\": 1}"], "unknown field `cmd`");
    home.check(&["--db", "none/x.db", "enqueue", "k", "--payload", "1"], 1, "", "The folder must exist");
    assert!(!home.database().exists() || home.json(&["jobs", "list"])["items"] == json!([]));
}

#[test]
fn exec_flags_are_refused_without_a_command() {
    let home = Home::new();
    home.write("lines", "1\n");
    let cases = [(["--timeout", "3s"], "timeout_seconds"), (["--cwd", "."], "cwd"), (["--env", "A=b"], "env")];
    for (flag, field) in cases {
        let only = format!("{} is for `exec -- COMMAND` only; ", flag[0]);
        let check = |words: &[&str], right: &str| {
            home.check(&[&["enqueue"], words, &flag].concat(), 1, "", &format!("{only}{right}"));
        };
        let a_field = format!("in a payload of exec, set the field \"{field}\"");
        check(&["exec", "--payload", "{\"argv\": [\"x\"]}"], &a_field);
        let each_line = format!("in each line, which is a payload of exec, set the field \"{field}\"");
        check(&["exec", "--lines", "lines"], &each_line);
        check(&["square", "--payload", "1"], "for the kind \"square\", put it into the payload");
        check(&["square", "--lines", "lines"], "for the kind \"square\"");
    }
    assert!(!home.database().exists());
}

#[test]
fn bad_lines_are_reported_and_the_others_are_queued() {
    let home = Home::new();
    let input = b"{\"n\": 1}\n\n{\"n\": }\r\n\xff\n{\"n\": 2}";
    let output = home.run_with_input(&["enqueue", "k", "--lines", "-", "--json"], input);
    assert_eq!((output.code, output.json()), (Some(1), json!({"queued": 2, "refused": 2, "lines": 5})), "{output:?}");
    assert!(output.err.contains("error: line 3 is not JSON: expected value at column 7\n"), "{output:?}");
    assert!(output.err.contains("error: line 4 is not UTF-8"), "{output:?}");
    let many: String = (0..2_500).map(|n| format!("{n}\n")).collect();
    home.write("many", &many);
    home.check(&["enqueue", "k", "--lines", "many"], 0, "queued 2500 tasks", "");
    assert_eq!(home.json(&["jobs", "show", "2502"])["payload"], json!(2499));
}

#[test]
#[cfg(unix)]
fn interrupted_enqueue_reports_the_number_of_queued_lines() {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    for signal in ["INT", "TERM"] {
        let home = Home::new();
        let mut command = home.command(&["enqueue", "k", "--lines", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A rejected line is reported at once, so its number shows how many lines have been read.
        input.write_all("1\n".repeat(1_500).as_bytes()).unwrap();
        input.write_all(b"\nx\n").unwrap();
        let mut error = [0; 16];
        child.stderr.as_mut().unwrap().read_exact(&mut error).unwrap();
        assert_eq!(&error, b"error: line 1502");
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, "queued 1500 tasks, refused 1 line; interrupted after line 1502\n");
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(home.store().tasks().count_due().unwrap(), [("default".into(), "k".into(), 1_500)]);
        drop(input);
    }
}

#[test]
#[cfg(unix)]
fn interrupted_enqueue_ends_when_the_database_fails_and_lines_wait() {
    use std::io::Seek;
    use std::process::Stdio;
    // The size of a read buffer: the position in the file shows how many lines have been read.
    const LINE: u64 = 8 << 10;
    // 512 lines are a batch of 4 MiB, 1,000 wait in the channel, and one waits for a place.
    const READ: u64 = 512 + 1_000 + 1;
    let home = Home::new();
    drop(home.store());
    let line = format!("\"{}\"\n", "x".repeat(LINE as usize - 3));
    let lines = home.write("lines", &line.repeat(READ as usize + 100));
    let mut position = std::fs::File::open(lines).unwrap();
    let other = rusqlite::Connection::open(home.database()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut command = home.command(&["enqueue", "k", "--lines", "-"]);
    command.stdin(position.try_clone().unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    assert!(becomes_true(|| position.stream_position().unwrap() >= READ * LINE), "the lines were not read");
    signal(&child, "INT");
    // The batch fails, as it would after 10 s of a locked database.
    other.execute_batch("DROP TABLE tasks; COMMIT").unwrap();
    let output = end_of(child);
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.err.contains("queued 0 tasks before this"), "{output:?}");
}

#[test]
fn jobs_list_merges_tasks_and_jobs_and_pages_through_both() {
    let home = Home::new();
    home.check(&["jobs", "list"], 1, "", "there is no database");
    assert!(!home.database().exists());
    let clock = ManualClock::at(0);
    drop(home.store());
    home.check(&["jobs", "list"], 0, "`gristmill enqueue exec -- echo hello` queues a command", "");
    let store = Store::options().clock(clock.clone()).open(home.database()).unwrap();
    let mut expected = Vec::new();
    for second in 1..=5 {
        clock.set_unix_micros(second * 1_000_000);
        if second % 2 == 0 {
            expected.push(json!(store.jobs().create(JobKind::Delete, "{}", true).unwrap().id));
        } else {
            expected.push(json!(store.tasks().enqueue(NewTask::new("k", "{}")).unwrap().id));
        }
    }
    drop(store);
    expected.reverse();
    let ids = |page: &Value| page["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
    let all = home.json(&["jobs", "list"]);
    assert_shape("jobs-list", &all);
    assert_eq!(ids(&all), expected);
    assert_eq!(all["next_cursor"], Value::Null);

    let (mut found, mut after): (Vec<Value>, _) = (Vec::new(), None::<String>);
    loop {
        let mut words = vec!["jobs", "list", "--limit", "2"];
        words.extend(after.iter().flat_map(|cursor| ["--after", cursor]));
        let page = home.json(&words);
        found.extend::<Vec<Value>>(ids(&page));
        match page["next_cursor"].as_str() {
            Some(cursor) => after = Some(cursor.to_owned()),
            None => break,
        }
    }
    assert_eq!(found, expected);
    assert_eq!(ids(&home.json(&["jobs", "list", "--limit", "all"])), expected);
    home.check(&["jobs", "list", "--limit", "2"], 0, "\nnext: --after ", "");

    let count = |words: &[&str]| home.json(&[&["jobs", "list"], words].concat())["items"].as_array().unwrap().len();
    assert_eq!(count(&["--kind", "k"]), 3);
    assert_eq!(count(&["--kind", "delete"]), 2);
    assert_eq!(count(&["--queue", "default"]), 3);
    assert_eq!(count(&["--status", "pending"]), 5);
    assert_eq!(count(&["--status", "retryable"]), 0);
    home.check(&["jobs", "list", "--status", "retryable"], 0, "`gristmill jobs list`", "");
    home.check(&["jobs", "list", "--status", "lost"], 1, "", "expected: pending, scheduled");
    home.check(&["jobs", "list", "--limit", "0"], 1, "", "expected: a whole number of at least 1, or all");
    home.check(&["jobs", "list", "--after", "x"], 1, "", "expected: next_cursor");
    let job = expected[1].as_str().unwrap();
    assert_shape("jobs-show-job", &home.json(&["jobs", "show", job]));
    home.check(&["jobs", "show", job], 0, "dry run   yes", "");
}

#[test]
fn scheduled_tasks_are_cancelled_or_made_due() {
    let home = Home::new();
    for _ in 0..2 {
        home.check(&["enqueue", "k", "--payload", "1", "--run-after", "1h"], 0, "queued", "");
    }
    home.check(&["jobs", "retry", "1"], 0, "task 1 is due now", "");
    home.check(&["jobs", "retry", "1"], 1, "", "task 1 is pending; only scheduled and failed tasks can be retried");
    let output = home.run(&["jobs", "cancel", "2", "99", "--json"]);
    assert_eq!(output.code, Some(1));
    assert!(output.err.contains("there is no task 99"), "{output:?}");
    assert_shape("jobs-cancel", &output.json());
    assert_eq!(output.json()["items"][1]["id"], 99);
    assert_eq!(home.json(&["jobs", "show", "2"])["status"], "cancelled");
    home.check(&["jobs", "show", "99"], 1, "", "there is no task 99");
    home.check(&["jobs", "show", "x"], 1, "", "expected: the number of a task");
    let uuid = "0b7a3c52-52fb-4a55-9d5e-6d6f0a3f5c11";
    home.check(&["jobs", "retry", uuid], 1, "", &format!("there is no job {uuid}"));
}

#[test]
fn dead_letters_are_listed_and_retried() {
    let home = Home::new();
    let store = home.store();
    home.check(&["dead", "list"], 0, "no dead letters; `gristmill jobs list` lists all tasks", "");
    store.tasks().enqueue(NewTask::new("a", "{\"n\": 1}")).unwrap();
    dead_letter(&store, "a", "exit status 3");
    store.tasks().enqueue(NewTask::new("b", "2")).unwrap();
    dead_letter(&store, "b", "no such host");
    store.close();
    drop(store);

    let list = home.json(&["dead", "list"]);
    assert_shape("dead-list", &list);
    assert_eq!(list["items"][0]["failure_reason"], "no such host");
    home.check(&["dead", "list", "--reason", "status 3"], 0, "exit status 3", "");
    home.check(&["dead", "list", "--kind", "c"], 0, "no dead letter matches", "");
    home.check(&["jobs", "show", "2"], 0, "next          gristmill dead show 2 shows the dead letter", "");
    assert_eq!(home.json(&["jobs", "show", "1"])["dead_letter"], 1);
    let dead_letter = home.json(&["dead", "show", "1"]);
    assert_shape("dead-show", &dead_letter);
    assert_eq!(dead_letter["payload"], json!({"n": 1}));
    home.check(&["dead", "show", "7"], 1, "", "there is no dead letter 7");
    home.check(&["dead", "show", "abc"], 1, "", "expected: a number such as 12");
    home.check(&["dead", "list", "--after", "abc"], 1, "", "expected: next_cursor");

    home.check(&["dead", "retry"], 1, "", "<ID|--all>");
    home.check(&["jobs", "retry", "1"], 0, "task 1: queued dead letter 1 again as task 3", "");
    home.check(&["jobs", "retry", "1"], 1, "", "its dead letter was retried or discarded");
    assert_eq!(home.json(&["jobs", "show", "1"])["dead_letter"], Value::Null);
    assert_shape("dead-retry", &home.json(&["dead", "retry", "2"]));
    home.check(&["dead", "retry", "--all"], 0, "no dead letter matches", "");
}

#[test]
fn dead_letters_that_match_a_filter_are_retried_or_discarded() {
    let home = Home::new();
    let store = home.store();
    for kind in ["a", "a", "b", "c"] {
        store.tasks().enqueue(NewTask::new(kind, "1")).unwrap();
    }
    for kind in ["a", "b", "c"] {
        dead_letter(&store, kind, "no");
    }
    home.check(&["dead", "retry", "--all", "--kind", "a"], 0, "queued 2 tasks again", "");
    home.check(&["dead", "retry", "--kind", "a"], 1, "", "--all");
    for (command, flag) in [("retry", "--kind"), ("discard", "--document"), ("retry", "--reason")] {
        let expected = format!("{flag} filters the dead letters of --all");
        home.check(&["dead", command, "3", flag, "b"], 1, "", &expected);
    }
    home.check(&["dead", "discard", "--all"], 1, "", "this deletes 2 dead letters; confirm with --yes");
    assert_eq!(store.dead_letters().count().unwrap(), 2);
    home.check(&["dead", "discard", "3", "9"], 1, "discarded dead letter 3", "there is no dead letter 9");
    assert_eq!(home.json(&["dead", "discard", "--all", "--yes"]), json!({"discarded": 1}));
    assert_eq!(store.dead_letters().count().unwrap(), 0);
}

#[test]
fn recover_releases_expired_leases_of_tasks_and_jobs() {
    let home = Home::new();
    let past = ManualClock::at(0);
    drop(home.store());
    let store = Store::options().clock(past).open(home.database()).unwrap();
    let token = WorkerId::new("gone").token();
    store.tasks().enqueue(NewTask::new("k", "1")).unwrap();
    let request = ClaimRequest {
        queue: "default".into(),
        kind: "k".into(),
        limit: 1,
        max_running: None,
        max_crashed_once: usize::MAX,
        max_crashed_often: usize::MAX,
        lease: Duration::from_secs(1),
        token: token.clone(),
    };
    store.tasks().settle_and_claim(vec![], vec![request]).unwrap();
    let job = store.jobs().create(JobKind::Scan, "{}", true).unwrap().id;
    store.jobs().claim(&token, Duration::from_secs(1)).unwrap().unwrap();
    drop(store);
    home.check(
        &["doctor"],
        1,
        "warning: 1 row of tasks is held by a worker that has exited or stopped renewing its lease",
        "",
    );
    let freed = home.json(&["jobs", "recover"]);
    assert_shape("jobs-recover", &freed);
    assert_eq!((&freed["tasks"], &freed["jobs"]), (&json!(1), &json!(1)));
    home.check(&["jobs", "recover"], 0, "nothing to release", "");
    home.check(&["jobs", "retry", &job], 0, &format!("job {job} is pending"), "");
    home.check(&["jobs", "cancel", &job], 0, &format!("cancelled job {job}"), "");
}

#[test]
fn dead_letter_of_a_message_is_not_retried_as_a_task() {
    let home = Home::new();
    let store = home.store();
    let now = store.now();
    let new_dead_letter = gristmill_store::dead_letters::NewDeadLetter {
        message_id: "m-1".to_owned(),
        kind: "amqp:orders".to_owned(),
        queue: "orders".to_owned(),
        reason: "no such order".to_owned(),
        attempts: 3,
        first_failure: now,
        last_failure: now,
        details: None,
        checkpoint: Some(r#"{"payload": {"id": 7}, "headers": {}}"#.to_owned()),
    };
    store.dead_letters().insert(new_dead_letter).unwrap();
    store.tasks().enqueue(NewTask::new("a", "1")).unwrap();
    dead_letter(&store, "a", "x");
    store.close();
    drop(store);
    home.check(&["dead", "list", "--kind", "amqp:orders"], 0, "m-1", "");
    let shown = home.json(&["dead", "show", "1"]);
    assert_eq!((&shown["queue"], &shown["checkpoint"]["payload"]), (&json!("orders"), &json!({"id": 7})));
    home.check(&["dead", "show", "1"], 0, "gristmill dead retry 1, or gristmill dead discard 1", "");
    let words =
        "cannot retry dead letter 1: its message cannot be published: neither payload nor payload_hex is present";
    home.check(&["dead", "retry", "1"], 1, "", words);
    home.check(&["dead", "retry", "--all"], 1, "queued 1 task again", words);
    home.check(&["dead", "discard", "1"], 0, "discarded dead letter 1", "");
}
