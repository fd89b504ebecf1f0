//! Streams: stored positions, offsets and drains.

use std::process::Stdio;

use gristmill_amqp::{Message, Queue};
use serde_json::json;

use crate::common::signal;
use crate::fixture::Fixture;

/// Declares a stream.
fn stream(fixture: &Fixture) -> String {
    fixture.declare(".stream", Queue::stream)
}

fn publish(fixture: &Fixture, stream: &str, numbers: std::ops::Range<u32>) {
    fixture.send(numbers.map(|number| Message::to_queue(stream, format!("{number}\n"))));
}

/// Returns the numbers that commands wrote, sorted.
fn seen(fixture: &Fixture) -> Vec<u32> {
    let text = std::fs::read_to_string(fixture.home.path("seen")).unwrap_or_default();
    let mut numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[track_caller]
fn drain(fixture: &Fixture, stream: &str, words: &[&str]) -> serde_json::Value {
    let fixed = ["consume", stream, "--json", "--drain", "--for", "1m"];
    let output = fixture.run(&[&fixed, words, &["--exec", "sh", "-c", "cat >> seen"]].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.json()["seconds"].as_f64().unwrap() < 60.0, "the drain did not end: {output:?}");
    output.json()["consumers"][0].clone()
}

#[test]
fn stream_is_drained_to_its_end_and_resumed_there() {
    let fixture = Fixture::new("drained");
    let stream = stream(&fixture);
    assert_eq!(drain(&fixture, &stream, &["--offset", "first"])["handled"], 0);
    publish(&fixture, &stream, 0..100);
    assert_eq!(drain(&fixture, &stream, &["--offset", "first"])["handled"], 100);
    publish(&fixture, &stream, 100..110);
    let stats = drain(&fixture, &stream, &["--offset", "first"]);
    assert_eq!((&stats["handled"], &stats["position"]), (&json!(10), &json!(110)), "{stats}");
    assert_eq!(seen(&fixture), (0..110).collect::<Vec<_>>());
    // Another name is another consumer; --rewind starts again.
    assert_eq!(drain(&fixture, &stream, &["--offset", "100", "--name", "other"])["handled"], 10);
    assert_eq!(drain(&fixture, &stream, &["--offset", "first", "--rewind"])["handled"], 110);
    assert_eq!(drain(&fixture, &stream, &["--offset", "first"])["handled"], 0);
}

#[test]
fn messages_published_while_stream_consumer_is_stopped_are_handled() {
    let fixture = Fixture::new("away");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..10);
    // The consumer starts at the end of the stream and stores a position before the first message.
    assert_eq!(drain(&fixture, &stream, &["--offset", "next"])["handled"], 0);
    publish(&fixture, &stream, 10..20);
    assert_eq!(drain(&fixture, &stream, &["--offset", "next"])["handled"], 10);
    assert_eq!(seen(&fixture), (10..20).collect::<Vec<_>>());
}

#[test]
fn killed_stream_consumer_skips_no_message() {
    let fixture = Fixture::new("killed-stream");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..400);
    let words = ["consume", &stream, "--offset", "first", "--workers", "4", "--exec", "sh", "-c", "cat >> seen"];
    for round in 1..=3 {
        let mut command = fixture.command(&words);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        fixture.wait_until("some that are done", || seen(&fixture).len() >= round * 60);
        process.kill().unwrap();
        process.wait().unwrap();
    }
    drain(&fixture, &stream, &["--offset", "first"]);
    let mut found = seen(&fixture);
    let all = found.len();
    found.dedup();
    assert_eq!(found, (0..400).collect::<Vec<_>>());
    // The consumer did not start at the beginning each time.
    assert!(all < 3 * 400, "{all}");
}

#[test]
fn unfinished_stream_message_holds_the_position() {
    let fixture = Fixture::new("held-stream");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..20);
    // The fifth message waits for a file; later ones are done.
    let script = "n=$(cat); if test $n = 4; then until test -e go; do sleep 0.02; done; fi; echo $n >> seen";
    let words = ["consume", &stream, "--offset", "first", "--workers", "4", "--shutdown", "100ms"];
    let mut command = fixture.command(&[&words[..], &["--exec", "sh", "-c", script]].concat());
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    fixture.wait_until("all but one", || seen(&fixture).len() == 19);
    signal(&process, "TERM");
    process.wait().unwrap();
    fixture.home.write("go", "");
    let stats = drain(&fixture, &stream, &["--offset", "first"]);
    assert_eq!((&stats["handled"], &stats["position"]), (&json!(16), &json!(20)), "{stats}");
    assert!(seen(&fixture).contains(&4));
}

#[test]
fn recreated_stream_is_read_from_its_beginning() {
    let fixture = Fixture::new("anew-stream");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..30);
    assert_eq!(drain(&fixture, &stream, &["--offset", "first"])["handled"], 30);
    crate::fixture::broker().ctl(["delete_queue", &stream]).unwrap();
    self::stream(&fixture);
    publish(&fixture, &stream, 30..40);
    assert_eq!(drain(&fixture, &stream, &["--offset", "next"])["handled"], 10);
}

#[test]
fn existing_stream_is_recognised_without_offset_or_declare() {
    let fixture = Fixture::new("recognised-stream");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..10);
    // The first run starts at the end of the stream, as with --declare stream.
    let stats = drain(&fixture, &stream, &[]);
    assert_eq!((&stats["handled"], &stats["position"]), (&json!(0), &json!(10)), "{stats}");
    publish(&fixture, &stream, 10..20);
    let stats = drain(&fixture, &stream, &[]);
    assert_eq!((&stats["handled"], &stats["position"]), (&json!(10), &json!(20)), "{stats}");
    assert_eq!(seen(&fixture), (10..20).collect::<Vec<_>>());
}

#[test]
fn offset_beyond_end_of_stream_starts_at_its_end() {
    let fixture = Fixture::new("beyond-stream");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..10);
    let stats = drain(&fixture, &stream, &["--offset", "99999", "--rewind"]);
    assert_eq!((&stats["handled"], &stats["position"]), (&json!(0), &json!(10)), "{stats}");
    publish(&fixture, &stream, 10..12);
    let stats = drain(&fixture, &stream, &[]);
    assert_eq!((&stats["handled"], &stats["position"]), (&json!(2), &json!(12)), "{stats}");
    assert_eq!(seen(&fixture), [10, 11]);
}

#[test]
fn start_offset_of_stream_is_printed() {
    let fixture = Fixture::new("output-stream");
    let stream = stream(&fixture);
    publish(&fixture, &stream, 0..10);
    let err = |words: &[&str]| {
        let fixed = ["consume", &stream, "--drain"];
        let output = fixture.run(&[&fixed, words, &["--exec", "true"]].concat());
        assert_eq!(output.code, Some(0), "{output:?}");
        output.err
    };
    let first = err(&["--offset", "4"]);
    assert!(first.contains("from offset 4 with true"), "{first}");
    let second = err(&["--offset", "first"]);
    assert!(second.contains("from offset 10 (") && second.contains("--rewind"), "{second}");
    let third = err(&[]);
    assert!(third.contains("from offset 10 with true"), "{third}");
    let beyond = err(&["--offset", "99999", "--rewind"]);
    assert!(beyond.contains("past the end of the stream") && beyond.contains("from offset 10"), "{beyond}");
}

#[test]
fn rewind_is_rejected_for_queues() {
    let fixture = Fixture::new("rewind");
    let output = fixture.run(&["consume", &fixture.queue, "--rewind", "--drain", "--exec", "true"]);
    output.check("rewind", 1, "", "--rewind needs a stream");
}

#[test]
fn two_stream_consumers_with_one_name_cause_a_warning() {
    let fixture = Fixture::new("twice-stream");
    let stream = stream(&fixture);
    let words = ["consume", &stream, "--offset", "first", "--exec", "true"];
    let mut processes = ["first", "second"].map(|name| {
        let errors = std::fs::File::create(fixture.home.path(name)).unwrap();
        fixture.command(&words).stdout(Stdio::null()).stderr(errors).spawn().unwrap()
    });
    let is_warned = |name: &str| {
        let errors = std::fs::read_to_string(fixture.home.path(name)).unwrap();
        errors.contains("another consumer with this name") && errors.contains("--name")
    };
    fixture.wait_until("a warning", || {
        publish(&fixture, &stream, 0..1);
        is_warned("first") || is_warned("second")
    });
    for process in &mut processes {
        signal(process, "TERM");
        process.wait().unwrap();
    }
}
