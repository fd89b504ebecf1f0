//! `gristmill queues move`, `peek` and `purge`.

use std::collections::BTreeMap;
use std::process::Stdio;

use gristmill_amqp::{Delivery, FieldValue, Headers, Message, Queue, header as ours};
use serde_json::{Value as Json, json};

use crate::bed::{Bed, body, header};
use crate::common::assert_shape;

/// A message with every property that a user can set, and headers of several types.
fn rich(bed: &Bed) -> Message {
    let mut message = Message::new("amq.topic", format!("{}.created", bed.queue), "{\"id\": 17}")
        .id("order-17")
        .event("created")
        // The broker sorts them.
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

/// Has a message of `amq.topic` fail until it is a dead letter.
fn dead(bed: &Bed, words: &[&str]) {
    let bind = format!("amq.topic:{}.*", bed.queue);
    let said = bed.run(&["consume", &bed.queue, "--bind", &bind, "--for", "200ms", "--exec", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    bed.send([rich(bed)]);
    bed.drain(&[words, &["--attempts", "2", "--retry-delay", "1ms", "--exec", "false"]].concat());
    bed.depth_is(".dead", 1);
}

#[track_caller]
fn is_as_it_was(bed: &Bed, found: &Delivery) {
    let wanted = rich(bed).properties;
    let mut properties = found.properties().clone();
    for name in [ours::QUEUE, ours::EXCHANGE, ours::ROUTING_KEY] {
        properties.headers.remove(name);
    }
    assert_eq!(format!("{properties:?}"), format!("{wanted:?}"));
    assert_eq!((found.attempt(), body(found).as_str()), (1, "{\"id\": 17}"));
    let key = format!("{}.created", bed.queue);
    assert_eq!((found.exchange(), found.routing_key()), ("amq.topic", key.as_str()));
}

#[test]
fn a_moved_dead_letter_begins_anew_with_its_properties_and_its_routing_key() {
    let bed = Bed::new("anew");
    dead(&bed, &[]);
    let dead = format!("{}.dead", bed.queue);
    let said = bed.run(&["queues", "move", &dead, &bed.queue, "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_shape("queues-move", &said.json());
    assert_eq!((&said.json()["moved"], &said.json()["matched"]), (&json!(1), &json!(1)));
    bed.depth_is(".dead", 0);
    is_as_it_was(&bed, &bed.take("", 1)[0]);
}

#[test]
fn a_kept_letter_is_published_again_with_its_properties_and_its_routing_key() {
    let bed = Bed::new("kept");
    dead(&bed, &["--keep-letters"]);
    let letters = bed.run(&["dead", "list", "--json"]).json();
    let id = letters["items"][0]["id"].to_string();
    let said = bed.run(&["dead", "retry", &id]);
    said.check("retry", 0, &format!("dead letter {id} is in the queue {} again", bed.queue), "");
    is_as_it_was(&bed, &bed.take("", 1)[0]);
    assert_eq!(bed.run(&["dead", "list", "--json"]).json()["items"], json!([]));
}

fn numbered(bed: &Bed, count: usize) {
    bed.send((0..count).map(|number| {
        let reason = if number % 3 == 0 { "attempts" } else { "permanent" };
        Message::to_queue(&bed.queue, number.to_string())
            .header(ours::REASON, reason)
            .header(ours::ERROR, format!("cannot {number}: connection refused"))
            .header("tenant", (number % 2) as i64)
    }));
    bed.depth_is("", count as u32);
}

fn bodies(found: &[Delivery]) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for delivery in found {
        *counts.entry(body(delivery).parse().unwrap()).or_insert(0) += 1;
    }
    counts
}

#[test]
fn only_matching_messages_are_moved_and_the_others_stay() {
    let bed = Bed::new("where");
    let target = bed.declare(".target", Queue::quorum);
    numbered(&bed, 60);
    let fixed = ["queues", "move", &bed.queue, &target];
    let run = |words: &[&str]| bed.run(&[&fixed, words].concat());
    run(&["--where", "reason=attempts", "--dry-run"]).check("dry run", 0, "20 of 60 messages examined", "");
    bed.depth_is("", 60);
    run(&["--where", "reason=attempts", "--where", "header:tenant=1"]).check(
        "two",
        0,
        "10 of 60 messages",
        "",
    );
    bed.depth_is(".target", 10);
    bed.depth_is("", 50);
    run(&["--limit", "5", "--where", "error=connection refused"]).check("limit", 0, "5 of 5 messages", "");
    bed.depth_is("", 45);
    run(&["--where", "error=cannot 59:"]).check("error", 0, "1 of 45 messages", "");
    let moved = bodies(&bed.take(".target", 16));
    let stayed = bodies(&bed.take("", 44));
    assert!(moved.values().chain(stayed.values()).all(|count| *count == 1), "{moved:?} {stayed:?}");
    assert_eq!(moved.keys().chain(stayed.keys()).collect::<std::collections::BTreeSet<_>>().len(), 60);
}

#[test]
fn a_move_that_makes_no_sense_is_refused() {
    let bed = Bed::new("senseless");
    let queue = bed.queue.as_str();
    let check = |words: &[&str], expected: &str| {
        bed.run(&[&["queues"], words].concat()).check("senseless", 1, "", expected);
    };
    check(&["move", queue, queue], "cannot be moved to itself");
    check(&["move", queue, "is-not-there"], "no queue 'is-not-there'");
    check(&["move", "is-not-there", queue], "no queue 'is-not-there'");
    check(&["move", queue, "x", "--where", "colour=red"], "expected: KEY=VALUE");
    check(&["peek", "is-not-there"], "no queue 'is-not-there'");
    check(&["purge", "is-not-there", "--yes"], "no queue 'is-not-there'");
    let stream = bed.declare(".stream", Queue::stream);
    check(&["peek", &stream], "--offset first");
}

#[test]
fn a_killed_move_loses_no_message() {
    const COUNT: usize = 4_000;
    let bed = Bed::new("killed-move");
    let target = bed.declare(".target", Queue::quorum);
    bed.publish((0..COUNT).map(|number| number.to_string()));
    bed.depth_is("", COUNT as u32);
    for round in 1..=3 {
        let mut command = bed.command(&["queues", "move", &bed.queue, &target]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        bed.until("some that are moved", || bed.depth(".target").unwrap() >= round * 500);
        process.kill().unwrap();
        process.wait().unwrap();
        // What it held comes back.
        bed.until("all in one of the two", || {
            bed.depth("").unwrap() + bed.depth(".target").unwrap() >= COUNT as u32
        });
    }
    // The broker may still return what the last one held: a message that it had confirmed counts in both queues.
    let mut all = Vec::new();
    bed.until("all in the target", || {
        let said = bed.run(&["queues", "move", &bed.queue, &target, "--json"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let found = bed.take(".target", bed.depth(".target").unwrap() as usize);
        all.extend(found);
        bodies(&all).len() == COUNT
    });
    let found = bodies(&all);
    assert_eq!(found.len(), COUNT);
    // Only what was confirmed and not yet removed is there twice, not all that was moved.
    let twice = found.values().filter(|count| **count > 1).count();
    assert!(twice < COUNT / 2, "{twice}");
}

#[test]
fn a_move_ends_though_its_source_is_filled_meanwhile() {
    let bed = Bed::new("refilled");
    bed.publish((0..50).map(|number| number.to_string()));
    let mut command = bed.command(&["consume", &bed.queue, "--exec", "sh", "-c", "exit 65"]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    bed.depth_is(".dead", 50);
    let dead = format!("{}.dead", bed.queue);
    let said = bed.run(&["queues", "move", &dead, &bed.queue, "--json"]);
    crate::common::signal(&process, "TERM");
    process.wait().unwrap();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!((&said.json()["at_start"], &said.json()["moved"]), (&json!(50), &json!(50)));
}

#[test]
fn a_full_target_ends_the_move_and_the_rest_stays() {
    let bed = Bed::new("full");
    let target = bed.declare(".target", |name| Queue::classic(name).max_length(10));
    bed.publish((0..100).map(|number| number.to_string()));
    bed.depth_is("", 100);
    let said = bed.run(&["queues", "move", &bed.queue, &target, "--json"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("TARGET is full"), "{said:?}");
    let moved = said.json()["moved"].as_u64().unwrap();
    assert_eq!(bed.depth(".target").map(u64::from), Some(moved), "{said:?}");
    bed.depth_is("", 100 - moved as u32);
}

#[test]
fn peek_shows_all_of_a_message_and_leaves_it() {
    let bed = Bed::new("peek");
    let mut message = rich(&bed);
    message = Message::to_queue(&bed.queue, vec![0xff, 0x00])
        .header("small", FieldValue::Int32(7))
        .id(message.properties.message_id.take().unwrap());
    bed.send([message, Message::to_queue(&bed.queue, "text")]);
    let said = bed.run(&["queues", "peek", &bed.queue, "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_shape("queues-peek", &said.json());
    let items = &said.json()["items"];
    assert_eq!(items[0]["payload_hex"], "ff00");
    assert_eq!(items[0]["properties"]["message_id"], "order-17");
    assert_eq!(items[0]["headers"][0], json!({"name": "small", "type": "int32", "value": 7}));
    assert_eq!((&items[1]["payload"], &items[2]), (&json!("text"), &Json::Null));
    let said = bed.run(&["queues", "peek", &bed.queue, "--limit", "1"]);
    said.check("peek", 0, "header small (int32)", "");
    assert!(said.out.contains("body (hex), 2 bytes") && !said.out.contains("text"), "{said:?}");
    bed.depth_is("", 2);
    let mut found: Vec<String> = bed.take("", 2).iter().map(|one| header(one, "small")).collect();
    found.sort();
    assert_eq!(found, ["", "7"]);
}

#[test]
fn purge_deletes_only_when_it_is_confirmed() {
    let bed = Bed::new("purge");
    bed.publish(["a", "b"]);
    bed.depth_is("", 2);
    bed.run(&["queues", "purge", &bed.queue]).check("unasked", 1, "", "with --yes they are");
    bed.depth_is("", 2);
    let said = bed.run(&["queues", "purge", &bed.queue, "--yes", "--json"]);
    assert_eq!(said.json(), json!({"queue": bed.queue, "deleted": 2}), "{said:?}");
    bed.depth_is("", 0);
}

#[cfg(target_os = "linux")]
#[test]
fn purge_asks_at_a_terminal_and_deletes_after_yes_only() {
    use crate::common::terminal::Session;
    let bed = Bed::new("asked");
    bed.publish(["a", "b"]);
    bed.depth_is("", 2);
    let ask = |answer: &str| {
        let mut session = Session::start(bed.command(&["queues", "purge", &bed.queue]), 100);
        session.wait_for(&format!("Delete 2 messages of {} for good? [y/N]", bed.queue));
        session.answer(answer);
        session.end()
    };
    let (code, shown) = ask("\n");
    assert!(code == Some(1) && shown.contains("nothing was deleted: 2 messages stay"), "{code:?} {shown}");
    bed.depth_is("", 2);
    let (code, shown) = ask("y\n");
    assert!(code == Some(0) && shown.contains("2 messages of"), "{code:?} {shown}");
    bed.depth_is("", 0);
}
