//! `gristmill queues`.

use gristmill_amqp::Queue;
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::common::assert_shape;

#[test]
fn how_many_wait() {
    let bed = Bed::new("depth");
    bed.publish(["a", "b"]);
    bed.depth_is("", 2);
    let said = bed.run(&["queues", &bed.queue, "is-not-there"]);
    said.check("queues", 1, "QUEUE", "");
    let lines: Vec<Vec<&str>> = said.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["QUEUE", "MESSAGES", "CONSUMERS", "RETURNING"]);
    assert_eq!(lines[1], [bed.queue.as_str(), "2", "0", "unknown"]);
    assert_eq!(lines[2], ["is-not-there", "-", "-", "-", "not", "there"]);
    let said = bed.run(&["queues", "--json", &bed.queue]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_shape("queues", &said.json());
    assert_eq!(
        said.json()["items"][0],
        json!({"queue": bed.queue, "exists": true, "messages": 2, "consumers": 0, "returning": null})
    );
}

#[test]
fn those_of_the_settings_file_with_what_is_beside_them() {
    let bed = Bed::new("beside");
    bed.home.write(
        ".config/gristmill/config.toml",
        &format!("[[consumers]]\nqueue = '{}'\nexec = ['false']\n", bed.queue),
    );
    bed.publish(["a"]);
    bed.run(&["consume", "--drain", "--for", "2m", "--attempts", "2", "--retry-delay", "1ms"]).check(
        "consume",
        0,
        "0 messages done",
        "given up",
    );
    bed.depth_is(".dead", 1);
    let said = bed.run(&["queues", "--json"]);
    let names: Vec<String> = said.json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["queue"].as_str().unwrap().to_owned())
        .collect();
    let queue = &bed.queue;
    assert_eq!(names, [queue.clone(), format!("{queue}.dead"), format!("{queue}.retry.125")]);
}

#[test]
fn a_named_queue_is_listed_with_its_dead_queue_and_its_retry_queues() {
    let bed = Bed::new("named");
    let queue = bed.queue.as_str();
    let dead = bed.declare(".dead", Queue::quorum);
    bed.publish(["a", "b"]);
    bed.depth_is("", 2);
    let listed = |names: &[&str]| {
        let said = bed.run(&[&["queues", "--json"], names].concat());
        let items = said.json()["items"].as_array().unwrap().clone();
        let item = |item: &Value| {
            (item["queue"].as_str().unwrap().to_owned(), item["messages"].as_u64(), item["exists"] == true)
        };
        (said.code, items.iter().map(item).collect::<Vec<_>>())
    };
    let name = |suffix: &str| format!("{queue}{suffix}");
    // Only its dead queue exists.
    assert_eq!(listed(&[queue]), (Some(0), vec![(name(""), Some(2), true), (name(".dead"), Some(0), true)]));
    // Messages wait in a retry queue and in the dead queue.
    bed.send_to(&name(".retry.125"), "quorum", []);
    bed.send_to(&name(".retry.2000"), "quorum", ["c", "d", "e"]);
    bed.send_to(&dead, "quorum", ["f"]);
    let all = vec![
        (name(""), Some(2), true),
        (name(".dead"), Some(1), true),
        (name(".retry.125"), Some(0), true),
        (name(".retry.2000"), Some(3), true),
    ];
    bed.until("the counts of all queues", || listed(&[queue]) == (Some(0), all.clone()));
    // A queue that is named twice, or named and beside another, is listed once.
    assert_eq!(listed(&[queue, &dead, queue]), (Some(0), all));
    // A queue that is named must exist; one that is only beside it need not.
    assert_eq!(
        listed(&["is-not-there", "is-not-there.dead"]),
        (
            Some(1),
            vec![("is-not-there".to_owned(), None, false), ("is-not-there.dead".to_owned(), None, false)]
        )
    );
}

#[test]
fn dead_letters_of_a_queue_that_was_deleted_are_listed() {
    let bed = Bed::new("orphan");
    let queue = format!("{}.deleted", bed.queue);
    bed.send_to(&format!("{queue}.dead"), "classic", ["a"]);
    let said = bed.run(&["queues", "--json", &queue]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let items = &said.json()["items"];
    assert_eq!((&items[0]["queue"], &items[0]["exists"]), (&json!(queue), &json!(false)));
    assert_eq!((&items[1]["queue"], &items[1]["messages"]), (&json!(format!("{queue}.dead")), &json!(1)));
}

#[test]
fn without_a_name_there_must_be_consumers() {
    let bed = Bed::new("none");
    bed.run(&["queues"]).check("queues", 1, "", "`gristmill queues QUEUE` shows one");
}
