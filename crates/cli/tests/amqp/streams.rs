//! Streams: positions that are kept, and drains that end.

use std::process::Stdio;

use gristmill_amqp::{Message, Queue};
use serde_json::json;

use crate::bed::Bed;
use crate::common::signal;

/// A stream beside the bed's own queue.
fn stream(bed: &Bed) -> String {
    bed.declare(".stream", Queue::stream)
}

fn publish(bed: &Bed, stream: &str, numbers: std::ops::Range<u32>) {
    bed.send(numbers.map(|number| Message::to_queue(stream, format!("{number}\n"))));
}

/// What commands wrote, sorted.
fn seen(bed: &Bed) -> Vec<u32> {
    let text = std::fs::read_to_string(bed.home.path("seen")).unwrap_or_default();
    let mut numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[track_caller]
fn drain(bed: &Bed, stream: &str, words: &[&str]) -> serde_json::Value {
    let fixed = ["consume", stream, "--json", "--drain", "--for", "1m"];
    let said = bed.run(&[&fixed, words, &["--exec", "sh", "-c", "cat >> seen"]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.json()["seconds"].as_f64().unwrap() < 60.0, "it did not end by itself: {said:?}");
    said.json()["consumers"][0].clone()
}

#[test]
fn a_stream_is_drained_to_its_end_and_resumed_there() {
    let bed = Bed::new("drained");
    let stream = stream(&bed);
    assert_eq!(drain(&bed, &stream, &["--offset", "first"])["done"], 0);
    publish(&bed, &stream, 0..100);
    assert_eq!(drain(&bed, &stream, &["--offset", "first"])["done"], 100);
    publish(&bed, &stream, 100..110);
    let stats = drain(&bed, &stream, &["--offset", "first"]);
    assert_eq!((&stats["done"], &stats["position"]), (&json!(10), &json!(110)), "{stats}");
    assert_eq!(seen(&bed), (0..110).collect::<Vec<_>>());
    // Another name is another consumer; --rewind begins again.
    assert_eq!(drain(&bed, &stream, &["--offset", "100", "--name", "other"])["done"], 10);
    assert_eq!(drain(&bed, &stream, &["--offset", "first", "--rewind"])["done"], 110);
    assert_eq!(drain(&bed, &stream, &["--offset", "first"])["done"], 0);
}

#[test]
fn messages_published_while_a_consumer_of_a_stream_is_away_are_handled() {
    let bed = Bed::new("away");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..10);
    // It begins at the end of the stream, and stores a position before the first message.
    assert_eq!(drain(&bed, &stream, &["--offset", "next"])["done"], 0);
    publish(&bed, &stream, 10..20);
    assert_eq!(drain(&bed, &stream, &["--offset", "next"])["done"], 10);
    assert_eq!(seen(&bed), (10..20).collect::<Vec<_>>());
}

#[test]
fn a_killed_consumer_of_a_stream_skips_no_message() {
    let bed = Bed::new("killed-stream");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..400);
    let words =
        ["consume", &stream, "--offset", "first", "--workers", "4", "--exec", "sh", "-c", "cat >> seen"];
    for round in 1..=3 {
        let mut command = bed.command(&words);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        bed.until("some that are done", || seen(&bed).len() >= round * 60);
        process.kill().unwrap();
        process.wait().unwrap();
    }
    drain(&bed, &stream, &["--offset", "first"]);
    let mut found = seen(&bed);
    let all = found.len();
    found.dedup();
    assert_eq!(found, (0..400).collect::<Vec<_>>());
    // It did not begin at the beginning each time.
    assert!(all < 3 * 400, "{all}");
}

#[test]
fn a_message_of_a_stream_that_is_not_finished_holds_the_position() {
    let bed = Bed::new("held-stream");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..20);
    // The fifth waits for a file; those behind it are done.
    let script = "n=$(cat); if test $n = 4; then until test -e go; do sleep 0.02; done; fi; echo $n >> seen";
    let words = ["consume", &stream, "--offset", "first", "--workers", "4", "--shutdown", "100ms"];
    let mut command = bed.command(&[&words[..], &["--exec", "sh", "-c", script]].concat());
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    bed.until("all but one", || seen(&bed).len() == 19);
    signal(&process, "TERM");
    process.wait().unwrap();
    bed.home.write("go", "");
    let stats = drain(&bed, &stream, &["--offset", "first"]);
    assert_eq!((&stats["done"], &stats["position"]), (&json!(16), &json!(20)), "{stats}");
    assert!(seen(&bed).contains(&4));
}

#[test]
fn a_stream_that_was_made_anew_is_read_from_its_beginning() {
    let bed = Bed::new("anew-stream");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..30);
    assert_eq!(drain(&bed, &stream, &["--offset", "first"])["done"], 30);
    crate::bed::broker().ctl(["delete_queue", &stream]).unwrap();
    self::stream(&bed);
    publish(&bed, &stream, 30..40);
    assert_eq!(drain(&bed, &stream, &["--offset", "next"])["done"], 10);
}

#[test]
fn an_existing_stream_is_recognised_without_an_offset_or_a_declaration() {
    let bed = Bed::new("recognised-stream");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..10);
    // The first time it begins at the end of the stream, as with --declare stream.
    let stats = drain(&bed, &stream, &[]);
    assert_eq!((&stats["done"], &stats["position"]), (&json!(0), &json!(10)), "{stats}");
    publish(&bed, &stream, 10..20);
    let stats = drain(&bed, &stream, &[]);
    assert_eq!((&stats["done"], &stats["position"]), (&json!(10), &json!(20)), "{stats}");
    assert_eq!(seen(&bed), (10..20).collect::<Vec<_>>());
}

#[test]
fn an_offset_beyond_the_end_of_a_stream_begins_at_its_end() {
    let bed = Bed::new("beyond-stream");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..10);
    let stats = drain(&bed, &stream, &["--offset", "99999", "--rewind"]);
    assert_eq!((&stats["done"], &stats["position"]), (&json!(0), &json!(10)), "{stats}");
    publish(&bed, &stream, 10..12);
    let stats = drain(&bed, &stream, &[]);
    assert_eq!((&stats["done"], &stats["position"]), (&json!(2), &json!(12)), "{stats}");
    assert_eq!(seen(&bed), [10, 11]);
}

#[test]
fn the_offset_where_a_stream_is_read_from_is_said() {
    let bed = Bed::new("said-stream");
    let stream = stream(&bed);
    publish(&bed, &stream, 0..10);
    let err = |words: &[&str]| {
        let fixed = ["consume", &stream, "--drain"];
        let said = bed.run(&[&fixed, words, &["--exec", "true"]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        said.err
    };
    let first = err(&["--offset", "4"]);
    assert!(first.contains("from offset 4 to true"), "{first}");
    let second = err(&["--offset", "first"]);
    assert!(second.contains("from offset 10 (") && second.contains("--rewind"), "{second}");
    let third = err(&[]);
    assert!(third.contains("from offset 10 to true"), "{third}");
    let beyond = err(&["--offset", "99999", "--rewind"]);
    assert!(beyond.contains("beyond the end of the stream") && beyond.contains("from offset 10"), "{beyond}");
}

#[test]
fn rewind_is_for_streams_only() {
    let bed = Bed::new("rewind");
    let said = bed.run(&["consume", &bed.queue, "--rewind", "--drain", "--exec", "true"]);
    said.check("rewind", 1, "", "--rewind is for streams");
}

#[test]
fn two_consumers_of_a_stream_with_one_name_are_warned_of() {
    let bed = Bed::new("twice-stream");
    let stream = stream(&bed);
    let words = ["consume", &stream, "--offset", "first", "--exec", "true"];
    let mut processes = ["first", "second"].map(|name| {
        let errors = std::fs::File::create(bed.home.path(name)).unwrap();
        bed.command(&words).stdout(Stdio::null()).stderr(errors).spawn().unwrap()
    });
    let is_said = |name: &str| {
        let errors = std::fs::read_to_string(bed.home.path(name)).unwrap();
        errors.contains("another consumer with this name") && errors.contains("--name")
    };
    bed.until("a warning", || {
        publish(&bed, &stream, 0..1);
        is_said("first") || is_said("second")
    });
    for process in &mut processes {
        signal(process, "TERM");
        process.wait().unwrap();
    }
}
