//! Tests of `gristmill queues`.

use gristmill_amqp::Queue;
use serde_json::{Value, json};

use crate::common::assert_shape;
use crate::fixture::Fixture;

#[test]
fn queues_lists_message_and_consumer_counts() {
    let fixture = Fixture::new("depth");
    fixture.publish(["a", "b"]);
    fixture.wait_for_depth("", 2);
    let output = fixture.run(&["queues", &fixture.queue, "is-not-there"]);
    output.check("queues", 1, "QUEUE", "");
    let lines: Vec<Vec<&str>> = output.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["QUEUE", "MESSAGES", "CONSUMERS", "RETURNING"]);
    assert_eq!(lines[1], [fixture.queue.as_str(), "2", "0", "unknown"]);
    assert_eq!(lines[2], ["is-not-there", "-", "-", "-", "does", "not", "exist"]);
    let output = fixture.run(&["queues", "--json", &fixture.queue]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_shape("queues", &output.json());
    assert_eq!(
        output.json()["items"][0],
        json!({"queue": fixture.queue, "exists": true, "messages": 2, "consumers": 0, "returning": null})
    );
}

#[test]
fn queues_lists_queues_of_settings_file_with_derived_queues() {
    let fixture = Fixture::new("beside");
    fixture.home.write(
        ".config/gristmill/config.toml",
        &format!("[[consumers]]\nqueue = '{}'\nexec = ['false']\n", fixture.queue),
    );
    fixture.publish(["a"]);
    fixture.run(&["consume", "--drain", "--for", "2m", "--attempts", "2", "--retry-delay", "1ms"]).check(
        "consume",
        0,
        "; 1 dead-lettered",
        "consuming",
    );
    fixture.wait_for_depth(".dead", 1);
    let output = fixture.run(&["queues", "--json"]);
    let names: Vec<String> = output.json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["queue"].as_str().unwrap().to_owned())
        .collect();
    let queue = &fixture.queue;
    assert_eq!(names, [queue.clone(), format!("{queue}.dead"), format!("{queue}.retry.125")]);
}

#[test]
fn queues_lists_named_queue_with_derived_queues() {
    let fixture = Fixture::new("named");
    let queue = fixture.queue.as_str();
    let dead = fixture.declare(".dead", Queue::quorum);
    fixture.publish(["a", "b"]);
    fixture.wait_for_depth("", 2);
    let listed = |names: &[&str]| {
        let output = fixture.run(&[&["queues", "--json"], names].concat());
        let items = output.json()["items"].as_array().unwrap().clone();
        let item = |item: &Value| {
            (item["queue"].as_str().unwrap().to_owned(), item["messages"].as_u64(), item["exists"] == true)
        };
        (output.code, items.iter().map(item).collect::<Vec<_>>())
    };
    let name = |suffix: &str| format!("{queue}{suffix}");
    // Only the dead queue exists.
    assert_eq!(listed(&[queue]), (Some(0), vec![(name(""), Some(2), true), (name(".dead"), Some(0), true)]));
    // Messages wait in a retry queue and in the dead queue.
    fixture.send_to(&name(".retry.125"), "quorum", []);
    fixture.send_to(&name(".retry.2000"), "quorum", ["c", "d", "e"]);
    fixture.send_to(&dead, "quorum", ["f"]);
    let all = vec![
        (name(""), Some(2), true),
        (name(".dead"), Some(1), true),
        (name(".retry.125"), Some(0), true),
        (name(".retry.2000"), Some(3), true),
    ];
    fixture.wait_until("the counts of all queues", || listed(&[queue]) == (Some(0), all.clone()));
    // A queue that is named twice, or named and derived from another, is listed once.
    assert_eq!(listed(&[queue, &dead, queue]), (Some(0), all));
    // A named queue must exist; a derived one need not.
    assert_eq!(
        listed(&["is-not-there", "is-not-there.dead"]),
        (Some(1), vec![("is-not-there".to_owned(), None, false), ("is-not-there.dead".to_owned(), None, false)])
    );
}

#[test]
fn queues_lists_dead_queue_of_deleted_queue() {
    let fixture = Fixture::new("orphan");
    let queue = format!("{}.deleted", fixture.queue);
    fixture.send_to(&format!("{queue}.dead"), "classic", ["a"]);
    let output = fixture.run(&["queues", "--json", &queue]);
    assert_eq!(output.code, Some(1), "{output:?}");
    let items = &output.json()["items"];
    assert_eq!((&items[0]["queue"], &items[0]["exists"]), (&json!(queue), &json!(false)));
    assert_eq!((&items[1]["queue"], &items[1]["messages"]), (&json!(format!("{queue}.dead")), &json!(1)));
}

#[test]
fn queues_without_names_requires_consumers_in_settings() {
    let fixture = Fixture::new("none");
    fixture.run(&["queues"]).check("queues", 1, "", "name one with `gristmill queues QUEUE`");
}
