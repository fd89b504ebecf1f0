//! `gristmill consume --enqueue`.

use gristmill_amqp::Message;
use serde_json::json;

use crate::bed::{Bed, header};

#[test]
fn a_message_becomes_a_task() {
    let bed = Bed::new("task");
    bed.publish([r#"{"argv": ["sh", "-c", "echo done > here"]}"#]);
    let stats = bed.drain(&["--enqueue", "exec"]);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(1), &json!(0)), "{stats}");
    bed.home.check(&["worker", "--once"], 0, "1 task done", "serves");
    assert_eq!(std::fs::read_to_string(bed.home.path("here")).unwrap(), "done\n");
}

#[test]
fn the_same_message_makes_one_task_while_that_is_unfinished() {
    let bed = Bed::new("once");
    let message = || Message::to_queue(&bed.queue, "{\"a\": 1}").id("order-17");
    bed.send([
        message(),
        message(),
        Message::to_queue(&bed.queue, "{}"),
        Message::to_queue(&bed.queue, "{}"),
    ]);
    bed.drain(&["--enqueue", "thumbnail", "--task-queue", "pictures"]);
    bed.send([message()]);
    bed.drain(&["--enqueue", "thumbnail", "--task-queue", "pictures"]);
    let tasks = bed.home.json(&["jobs", "list"]);
    let tasks = tasks["items"].as_array().unwrap();
    assert_eq!(tasks.len(), 3, "{tasks:?}");
    assert!(tasks.iter().all(|task| task["queue"] == "pictures"), "{tasks:?}");
}

#[test]
fn what_is_no_payload_is_given_up() {
    let bed = Bed::new("no-payload");
    bed.publish([
        "no JSON",
        "{\"argv\": []}",
        "{\"argv\": [\"true\"]}",
        "{\"argv\": [\"true\"], \"argw\": 1}",
    ]);
    let stats = bed.drain(&["--enqueue", "exec"]);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(4), &json!(3)), "{stats}");
    let dead = bed.take(".dead", 3);
    for letter in &dead {
        let error = header(letter, "x-gristmill-error");
        assert!(error.starts_with("the message is not "), "{error}");
    }
    assert_eq!(bed.home.json(&["jobs", "list"])["items"].as_array().unwrap().len(), 1);
}

#[test]
fn what_was_done_within_a_time_is_skipped() {
    let bed = Bed::new("within");
    let message = || Message::to_queue(&bed.queue, "{}").id("order-18");
    bed.send([message()]);
    bed.drain(&["--once-within", "1h", "--enqueue", "x"]);
    bed.send([message()]);
    let stats = bed.drain(&["--once-within", "1h", "--enqueue", "x"]);
    assert_eq!((&stats["acknowledged"], &stats["skipped"]), (&json!(1), &json!(1)), "{stats}");
}
