//! Dead letters of messages in the store, published again.

use serde_json::json;

use crate::bed::{Bed, body};
use crate::common::RunOutput;

/// Two messages that are dead letters in the store, too.
fn two(what: &str) -> Bed {
    let bed = Bed::new(what);
    bed.publish(["a", "b"]);
    bed.drain(&["--keep-letters", "--exec", "sh", "-c", "exit 65"]);
    bed.depth_is(".dead", 2);
    bed
}

#[test]
fn all_kept_letters_of_a_queue_are_published_again() {
    let bed = two("retry-all");
    let kind = format!("amqp:{}", bed.queue);
    bed.run(&["dead", "retry", "--all", "--kind", &kind]).check("all", 0, "published 2 messages again", "");
    let mut found: Vec<_> = bed.take("", 2).iter().map(body).collect();
    found.sort();
    assert_eq!(found, ["a", "b"]);
    bed.run(&["dead", "retry", "--all", "--kind", &kind]).check("none", 0, "no dead letter matches", "");
}

#[test]
fn a_letter_stays_until_its_message_is_confirmed() {
    let bed = two("stays");
    crate::bed::broker().ctl(["delete_queue", &bed.queue]).unwrap();
    let said = bed.run(&["dead", "retry", "1", "2"]);
    said.check("no queue", 1, "", "there is no queue");
    let mut command = bed.command(&["dead", "retry", "--all", "--json"]);
    let said = RunOutput::of(&command.env("GRISTMILL_AMQP_URI", "amqp://127.0.0.1:1").output().unwrap());
    assert_eq!(said.code, Some(2), "{said:?}");
    let left = bed.run(&["dead", "list", "--json"]).json();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(2), "{left}");
    assert_eq!(left["items"][0]["queue"], json!(bed.queue));
}
