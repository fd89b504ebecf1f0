//! Tests of `gristmill consume --enqueue`.

use gristmill_amqp::Message;
use serde_json::json;

use crate::fixture::{Fixture, header};

#[test]
fn enqueue_makes_a_task_of_each_message() {
    let fixture = Fixture::new("task");
    fixture.publish([r#"{"argv": ["sh", "-c", "echo done > here"]}"#]);
    let stats = fixture.drain(&["--enqueue", "exec"]);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(1), &json!(0)), "{stats}");
    fixture.home.check(&["worker", "--once"], 0, "1 task completed", "serves");
    assert_eq!(std::fs::read_to_string(fixture.home.path("here")).unwrap(), "done\n");
}

#[test]
fn repeated_message_makes_one_task_while_that_is_unfinished() {
    let fixture = Fixture::new("once");
    let message = || Message::to_queue(&fixture.queue, "{\"a\": 1}").id("order-17");
    fixture.send([
        message(),
        message(),
        Message::to_queue(&fixture.queue, "{}"),
        Message::to_queue(&fixture.queue, "{}"),
    ]);
    fixture.drain(&["--enqueue", "thumbnail", "--task-queue", "pictures"]);
    fixture.send([message()]);
    fixture.drain(&["--enqueue", "thumbnail", "--task-queue", "pictures"]);
    let tasks = fixture.home.json(&["jobs", "list"]);
    let tasks = tasks["items"].as_array().unwrap();
    assert_eq!(tasks.len(), 3, "{tasks:?}");
    assert!(tasks.iter().all(|task| task["queue"] == "pictures"), "{tasks:?}");
}

#[test]
fn enqueue_dead_letters_invalid_payloads() {
    let fixture = Fixture::new("no-payload");
    fixture.publish(["no JSON", "{\"argv\": []}", "{\"argv\": [\"true\"]}", "{\"argv\": [\"true\"], \"argw\": 1}"]);
    let stats = fixture.drain(&["--enqueue", "exec"]);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(4), &json!(3)), "{stats}");
    let dead = fixture.take(".dead", 3);
    for dead_letter in &dead {
        let error = header(dead_letter, "x-gristmill-error");
        assert!(error.starts_with("the message is not "), "{error}");
    }
    assert_eq!(fixture.home.json(&["jobs", "list"])["items"].as_array().unwrap().len(), 1);
}

#[test]
fn message_repeated_within_dedup_window_is_skipped() {
    let fixture = Fixture::new("within");
    let message = || Message::to_queue(&fixture.queue, "{}").id("order-18");
    fixture.send([message()]);
    fixture.drain(&["--dedup-window", "1h", "--enqueue", "x"]);
    fixture.send([message()]);
    let stats = fixture.drain(&["--dedup-window", "1h", "--enqueue", "x"]);
    assert_eq!((&stats["acknowledged"], &stats["skipped"]), (&json!(1), &json!(1)), "{stats}");
}
