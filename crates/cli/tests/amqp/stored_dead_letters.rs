//! `gristmill dead retry` of dead letters that `consume --store-dead-letters` stored.

use serde_json::json;

use crate::common::RunOutput;
use crate::fixture::{Fixture, body};

/// Returns a fixture with two messages that are dead letters at the broker and in the store.
fn with_two_dead_letters(what: &str) -> Fixture {
    let fixture = Fixture::new(what);
    fixture.publish(["a", "b"]);
    fixture.drain(&["--store-dead-letters", "--exec", "sh", "-c", "exit 65"]);
    fixture.wait_for_depth(".dead", 2);
    fixture
}

#[test]
fn dead_retry_all_publishes_every_stored_dead_letter_of_a_queue() {
    let fixture = with_two_dead_letters("retry-all");
    let kind = format!("amqp:{}", fixture.queue);
    fixture.run(&["dead", "retry", "--all", "--kind", &kind]).check("all", 0, "published 2 messages again", "");
    let mut found: Vec<_> = fixture.take("", 2).iter().map(body).collect();
    found.sort();
    assert_eq!(found, ["a", "b"]);
    fixture.run(&["dead", "retry", "--all", "--kind", &kind]).check("none", 0, "no dead letter matches", "");
}

#[test]
fn dead_letter_stays_stored_until_its_message_is_confirmed() {
    let fixture = with_two_dead_letters("stays");
    crate::fixture::broker().ctl(["delete_queue", &fixture.queue]).unwrap();
    let output = fixture.run(&["dead", "retry", "1", "2"]);
    output.check("no queue", 1, "", "there is no queue");
    let mut command = fixture.command(&["dead", "retry", "--all", "--json"]);
    let output = RunOutput::of(&command.env("GRISTMILL_AMQP_URI", "amqp://127.0.0.1:1").output().unwrap());
    assert_eq!(output.code, Some(2), "{output:?}");
    let left = fixture.run(&["dead", "list", "--json"]).json();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(2), "{left}");
    assert_eq!(left["items"][0]["queue"], json!(fixture.queue));
}
