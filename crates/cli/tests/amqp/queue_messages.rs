//! Tests of `gristmill queues move`, `peek` and `purge`, and of `dead retry` of one message.

use std::collections::BTreeMap;
use std::process::Stdio;

use gristmill_amqp::{Delivery, FieldValue, Headers, Message, Queue, header as names};
use serde_json::{Value as Json, json};

use crate::common::assert_shape;
use crate::fixture::{Fixture, body, header};

/// A message with every property that a user can set, and headers of several types.
fn rich(fixture: &Fixture) -> Message {
    let mut message = Message::new("amq.topic", format!("{}.created", fixture.queue), "{\"id\": 17}")
        .id("order-17")
        .event("created")
        // In the order in which the broker returns them.
        .header("count", 3i64)
        .header("list", FieldValue::Array(vec![FieldValue::Int16(1), FieldValue::Void]))
        .header("ratio", 0.5)
        .header("raw", FieldValue::Bytes(vec![0xff, 0x00].into()))
        .header("small", FieldValue::Int32(7))
        .header("table", Headers::new().with("inner", true))
        .header("tenant", "acme");
    let properties = &mut message.properties;
    properties.priority = Some(4);
    properties.correlation_id = Some("c-1".to_owned());
    properties.reply_to = Some("answers".to_owned());
    properties.timestamp = Some(1_700_000_000);
    properties.app_id = Some("shop".to_owned());
    properties.content_type = Some("application/json".to_owned());
    message
}

/// Publishes a message to `amq.topic` and consumes it with failures until it is a dead letter.
fn dead(fixture: &Fixture, words: &[&str]) {
    let bind = format!("amq.topic:{}.*", fixture.queue);
    let output = fixture.run(&["consume", &fixture.queue, "--bind", &bind, "--for", "200ms", "--exec", "true"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    fixture.send([rich(fixture)]);
    fixture.drain(&[words, &["--attempts", "2", "--retry-delay", "1ms", "--exec", "false"]].concat());
    fixture.wait_for_depth(".dead", 1);
}

#[track_caller]
fn check_unchanged(fixture: &Fixture, found: &Delivery) {
    let expected = rich(fixture).properties;
    let mut properties = found.properties().clone();
    for name in [names::QUEUE, names::EXCHANGE, names::ROUTING_KEY] {
        properties.headers.remove(name);
    }
    assert_eq!(format!("{properties:?}"), format!("{expected:?}"));
    assert_eq!((found.attempt(), body(found).as_str()), (1, "{\"id\": 17}"));
    let key = format!("{}.created", fixture.queue);
    assert_eq!((found.exchange(), found.routing_key()), ("amq.topic", key.as_str()));
}

#[test]
fn moved_dead_letter_keeps_properties_and_restarts_attempts() {
    let fixture = Fixture::new("anew");
    dead(&fixture, &[]);
    let dead = format!("{}.dead", fixture.queue);
    let output = fixture.run(&["queues", "move", &dead, &fixture.queue, "--json"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_shape("queues-move", &output.json());
    assert_eq!((&output.json()["moved"], &output.json()["matched"]), (&json!(1), &json!(1)));
    fixture.wait_for_depth(".dead", 0);
    check_unchanged(&fixture, &fixture.take("", 1)[0]);
}

#[test]
fn retried_dead_letter_keeps_properties_and_routing_key() {
    let fixture = Fixture::new("kept");
    dead(&fixture, &["--store-dead-letters"]);
    let dead_letters = fixture.run(&["dead", "list", "--json"]).json();
    let id = dead_letters["items"][0]["id"].to_string();
    let output = fixture.run(&["dead", "retry", &id]);
    output.check("retry", 0, &format!("published dead letter {id} to the queue {} again", fixture.queue), "");
    check_unchanged(&fixture, &fixture.take("", 1)[0]);
    assert_eq!(fixture.run(&["dead", "list", "--json"]).json()["items"], json!([]));
}

fn numbered(fixture: &Fixture, count: usize) {
    fixture.send((0..count).map(|number| {
        let reason = if number % 3 == 0 { "attempts" } else { "permanent" };
        Message::to_queue(&fixture.queue, number.to_string())
            .header(names::REASON, reason)
            .header(names::ERROR, format!("cannot {number}: connection refused"))
            .header("tenant", (number % 2) as i64)
    }));
    fixture.wait_for_depth("", count as u32);
}

fn bodies(found: &[Delivery]) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for delivery in found {
        *counts.entry(body(delivery).parse().unwrap()).or_insert(0) += 1;
    }
    counts
}

#[test]
fn move_with_where_moves_only_matching_messages() {
    let fixture = Fixture::new("where");
    let target = fixture.declare(".target", Queue::quorum);
    numbered(&fixture, 60);
    let fixed = ["queues", "move", &fixture.queue, &target];
    let run = |words: &[&str]| fixture.run(&[&fixed, words].concat());
    run(&["--where", "reason=attempts", "--dry-run"]).check("dry run", 0, "would move 20 of 60 messages from", "");
    fixture.wait_for_depth("", 60);
    run(&["--where", "reason=attempts", "--where", "header:tenant=1"]).check("two", 0, "10 of 60 messages", "");
    fixture.wait_for_depth(".target", 10);
    fixture.wait_for_depth("", 50);
    run(&["--limit", "5", "--where", "error=connection refused"]).check("limit", 0, "5 of 5 messages", "");
    fixture.wait_for_depth("", 45);
    run(&["--where", "error=cannot 59:"]).check("error", 0, "1 of 45 messages", "");
    let moved = bodies(&fixture.take(".target", 16));
    let stayed = bodies(&fixture.take("", 44));
    assert!(moved.values().chain(stayed.values()).all(|count| *count == 1), "{moved:?} {stayed:?}");
    assert_eq!(moved.keys().chain(stayed.keys()).collect::<std::collections::BTreeSet<_>>().len(), 60);
}

#[test]
fn queue_commands_reject_invalid_queues() {
    let fixture = Fixture::new("senseless");
    let queue = fixture.queue.as_str();
    let check = |words: &[&str], expected: &str| {
        fixture.run(&[&["queues"], words].concat()).check("senseless", 1, "", expected);
    };
    check(&["move", queue, queue], "cannot be moved to itself");
    check(&["move", queue, "is-not-there"], "no queue 'is-not-there'");
    check(&["move", "is-not-there", queue], "no queue 'is-not-there'");
    check(&["move", queue, "x", "--where", "colour=red"], "expected: KEY=VALUE");
    check(&["peek", "is-not-there"], "no queue 'is-not-there'");
    check(&["purge", "is-not-there", "--yes"], "no queue 'is-not-there'");
    let stream = fixture.declare(".stream", Queue::stream);
    check(&["peek", &stream], "--offset first");
}

#[test]
fn killed_move_loses_no_message() {
    const COUNT: usize = 4_000;
    let fixture = Fixture::new("killed-move");
    let target = fixture.declare(".target", Queue::quorum);
    fixture.publish((0..COUNT).map(|number| number.to_string()));
    fixture.wait_for_depth("", COUNT as u32);
    for round in 1..=3 {
        let mut command = fixture.command(&["queues", "move", &fixture.queue, &target]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        fixture.wait_until("some that are moved", || fixture.depth(".target").unwrap() >= round * 500);
        process.kill().unwrap();
        process.wait().unwrap();
        // Messages held by the killed process return.
        fixture.wait_until("all in one of the two", || {
            fixture.depth("").unwrap() + fixture.depth(".target").unwrap() >= COUNT as u32
        });
    }
    // The broker may still return messages that the last process held; a confirmed message is in both queues.
    let mut all = Vec::new();
    fixture.wait_until("all in the target", || {
        let output = fixture.run(&["queues", "move", &fixture.queue, &target, "--json"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        let found = fixture.take(".target", fixture.depth(".target").unwrap() as usize);
        all.extend(found);
        bodies(&all).len() == COUNT
    });
    let found = bodies(&all);
    assert_eq!(found.len(), COUNT);
    // Only messages that were confirmed and not yet removed are duplicated.
    let twice = found.values().filter(|count| **count > 1).count();
    assert!(twice < COUNT / 2, "{twice}");
}

#[test]
fn move_ends_while_its_source_is_refilled() {
    let fixture = Fixture::new("refilled");
    fixture.publish((0..50).map(|number| number.to_string()));
    let mut command = fixture.command(&["consume", &fixture.queue, "--exec", "sh", "-c", "exit 65"]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    fixture.wait_for_depth(".dead", 50);
    let dead = format!("{}.dead", fixture.queue);
    let output = fixture.run(&["queues", "move", &dead, &fixture.queue, "--json"]);
    crate::common::signal(&process, "TERM");
    process.wait().unwrap();
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!((&output.json()["total_at_start"], &output.json()["moved"]), (&json!(50), &json!(50)));
}

#[test]
fn move_stops_when_target_is_full() {
    let fixture = Fixture::new("full");
    let target = fixture.declare(".target", |name| Queue::classic(name).max_length(10));
    fixture.publish((0..100).map(|number| number.to_string()));
    fixture.wait_for_depth("", 100);
    let output = fixture.run(&["queues", "move", &fixture.queue, &target, "--json"]);
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.err.contains("TARGET is full"), "{output:?}");
    let moved = output.json()["moved"].as_u64().unwrap();
    assert_eq!(fixture.depth(".target").map(u64::from), Some(moved), "{output:?}");
    fixture.wait_for_depth("", 100 - moved as u32);
}

#[test]
fn peek_shows_properties_and_leaves_messages_in_queue() {
    let fixture = Fixture::new("peek");
    let mut message = rich(&fixture);
    message = Message::to_queue(&fixture.queue, vec![0xff, 0x00]).header("small", FieldValue::Int32(7)).id(message
        .properties
        .message_id
        .take()
        .unwrap());
    fixture.send([message, Message::to_queue(&fixture.queue, "text")]);
    let output = fixture.run(&["queues", "peek", &fixture.queue, "--json"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_shape("queues-peek", &output.json());
    let items = &output.json()["items"];
    assert_eq!(items[0]["payload_hex"], "ff00");
    assert_eq!(items[0]["properties"]["message_id"], "order-17");
    assert_eq!(items[0]["headers"][0], json!({"name": "small", "type": "int32", "value": 7}));
    assert_eq!((&items[1]["payload"], &items[2]), (&json!("text"), &Json::Null));
    let output = fixture.run(&["queues", "peek", &fixture.queue, "--limit", "1"]);
    output.check("peek", 0, "header small (int32)", "");
    assert!(output.out.contains("body (hex), 2 bytes") && !output.out.contains("text"), "{output:?}");
    fixture.wait_for_depth("", 2);
    let mut found: Vec<String> = fixture.take("", 2).iter().map(|one| header(one, "small")).collect();
    found.sort();
    assert_eq!(found, ["", "7"]);
}

#[test]
fn purge_deletes_only_with_yes() {
    let fixture = Fixture::new("purge");
    fixture.publish(["a", "b"]);
    fixture.wait_for_depth("", 2);
    fixture.run(&["queues", "purge", &fixture.queue]).check("unasked", 1, "", "give --yes");
    fixture.wait_for_depth("", 2);
    let output = fixture.run(&["queues", "purge", &fixture.queue, "--yes", "--json"]);
    assert_eq!(output.json(), json!({"queue": fixture.queue, "deleted": 2}), "{output:?}");
    fixture.wait_for_depth("", 0);
}

#[cfg(target_os = "linux")]
#[test]
fn purge_asks_on_a_terminal_and_deletes_after_yes() {
    use crate::common::terminal::Session;
    let fixture = Fixture::new("asked");
    fixture.publish(["a", "b"]);
    fixture.wait_for_depth("", 2);
    let ask = |answer: &str| {
        let mut session = Session::start(fixture.command(&["queues", "purge", &fixture.queue]), 100);
        session.wait_for(&format!("Delete 2 messages of {} for good? [y/N]", fixture.queue));
        session.answer(answer);
        session.end()
    };
    let (code, shown) = ask("\n");
    assert!(
        code == Some(1) && shown.contains("nothing was deleted: not confirmed; 2 messages left"),
        "{code:?} {shown}"
    );
    fixture.wait_for_depth("", 2);
    let (code, shown) = ask("y\n");
    assert!(code == Some(0) && shown.contains("deleted 2 messages of"), "{code:?} {shown}");
    fixture.wait_for_depth("", 0);
}
