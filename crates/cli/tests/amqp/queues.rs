//! `gristmill queues`.

use serde_json::json;

use crate::bed::Bed;
use crate::common::shape_is_held;

#[test]
fn how_many_wait() {
    let bed = Bed::new("depth");
    bed.publish(["a", "b"]);
    bed.depth_is("", 2);
    let said = bed.run(&["queues", &bed.queue, "is-not-there"]);
    said.check("queues", 1, "QUEUE", "");
    let lines: Vec<Vec<&str>> = said.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["QUEUE", "MESSAGES", "CONSUMERS"]);
    assert_eq!(lines[1], [bed.queue.as_str(), "2", "0"]);
    assert_eq!(lines[2], ["is-not-there", "-", "-", "not", "there"]);
    let said = bed.run(&["queues", "--json", &bed.queue]);
    assert_eq!(said.code, Some(0), "{said:?}");
    shape_is_held("queues", &said.json());
    assert_eq!(
        said.json()["items"][0],
        json!({"queue": bed.queue, "exists": true, "messages": 2, "consumers": 0})
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
fn without_a_name_there_must_be_consumers() {
    let bed = Bed::new("none");
    bed.run(&["queues"]).check("queues", 1, "", "`gristmill queues QUEUE` shows one");
}
