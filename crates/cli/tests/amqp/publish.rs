//! Tests of `gristmill publish`.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use gristmill_amqp::FieldValue;
use gristmill_broker::Broker;
use serde_json::json;

use crate::common::{Home, RunOutput, assert_shape};
use crate::fixture::{Fixture, body, broker, check_no_password, header};

fn feed(fixture: &Fixture, words: &[&str], input: &[u8]) -> RunOutput {
    let file = fixture.home.path("input");
    std::fs::write(&file, input).unwrap();
    let mut command = fixture.command(words);
    check_no_password(RunOutput::of(&command.stdin(std::fs::File::open(file).unwrap()).output().unwrap()))
}

#[test]
fn publish_sends_lines_of_standard_input() {
    let fixture = Fixture::new("lines");
    let words = [
        "publish",
        "--queue",
        &fixture.queue,
        "--generate-ids",
        "--header",
        "source=test=1",
        "--header",
        "a=",
        "--type",
        "created",
        "--content-type",
        "text/plain",
    ];
    let output = feed(&fixture, &words, b"one\r\n\ntwo\nthr\xc3\xa9e");
    output.check("lines", 0, "3 messages published in ", "");
    let found = fixture.take("", 3);
    assert_eq!(found.iter().map(body).collect::<Vec<_>>(), ["one", "two", "thr\u{e9}e"]);
    let ids: BTreeSet<_> = found.iter().map(|one| one.message_id().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 3);
    let first = &found[0];
    assert_eq!((header(first, "source"), header(first, "a")), ("test=1".to_owned(), String::new()));
    let properties = first.properties();
    assert_eq!(properties.kind.as_deref(), Some("created"));
    assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
    assert_eq!(properties.delivery_mode, Some(2));
}

#[test]
fn publish_sends_files_whole_or_by_line() {
    let fixture = Fixture::new("files");
    fixture.home.write("a.txt", "first\nfile\n");
    fixture.home.write("b.txt", "second\n\nfile");
    let words = ["publish", "--queue", &fixture.queue, "--transient", "a.txt", "none.txt", "b.txt"];
    fixture.run(&words).check("files", 1, "2 messages published in ", "error: none.txt: cannot read: ");
    fixture.run(&["publish", "--queue", &fixture.queue, "--lines", "a.txt", "b.txt"]).check(
        "lines",
        0,
        "4 messages",
        "",
    );
    feed(&fixture, &["publish", "--queue", &fixture.queue, "--whole"], b"all\nof it\n").check(
        "whole",
        0,
        "1 message",
        "",
    );
    let found = fixture.take("", 7);
    let expected = ["first\nfile\n", "second\n\nfile", "first", "file", "second", "file", "all\nof it\n"];
    assert_eq!(found.iter().map(body).collect::<Vec<_>>(), expected);
    assert_eq!(found[0].properties().delivery_mode, Some(1));
}

#[test]
fn unroutable_messages_are_reported_and_the_rest_is_published() {
    let fixture = Fixture::new("unroutable");
    let output =
        feed(&fixture, &["publish", "--exchange", "amq.direct", "--routing-key", "unbound", "--json"], b"a\n\nb\n");
    assert_eq!(output.code, Some(1), "{output:?}");
    let value = output.json();
    assert_shape("publish", &value);
    assert_eq!((&value["published"], &value["failed"]), (&json!(0), &json!(2)));
    for line in ["standard input:1", "standard input:3"] {
        let expected = format!("error: {line}: no queue is bound to exchange `amq.direct` for routing key `unbound`");
        assert!(output.err.contains(&expected), "{output:?}");
    }
    // Only the first 20 are reported one by one.
    let many = "x\n".repeat(500);
    let output = feed(&fixture, &["publish", "--exchange", "amq.direct", "--max-in-flight", "7"], many.as_bytes());
    output.check("many", 1, "0 messages published in ", "and 480 more failed");
    assert_eq!(output.err.lines().count(), 21, "{output:?}");
}

#[test]
fn missing_queue_and_exchange_errors_say_what_to_do() {
    let fixture = Fixture::new("missing");
    let output = feed(&fixture, &["publish", "--queue", "is-not-there"], b"a\n");
    output.check("no queue", 1, "", "Declare it with --declare quorum");
    let output = feed(&fixture, &["publish", "--exchange", "is-not-there"], b"a\n");
    output.check("no exchange", 1, "", "Declare the exchange at the broker first");
    let made = format!("{}-made", fixture.queue);
    feed(&fixture, &["publish", "--queue", &made, "--declare", "classic"], b"a\n").check("made", 0, "1 message", "");
    let output = feed(&fixture, &["publish", "--queue", &made, "--declare", "quorum"], b"a\n");
    output.check("otherwise", 1, "", "exists with x-queue-type = 'classic', but 'quorum' was requested");
}

#[test]
fn unreachable_broker_error_says_what_to_do() {
    let home = Home::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let uri = format!("amqp://alice:s3cr3t@{free}/shop");
    for words in [&["publish", "--queue", "q"][..], &["queues", "q"], &["consume", "q", "--exec", "true"]] {
        let mut command = home.command(words);
        command
            .env("GRISTMILL_AMQP_URI", &uri)
            .env("GRISTMILL_AMQP_CONNECT_WITHIN", "300ms")
            .env("GRISTMILL_LOG", "trace");
        let output = RunOutput::of(&command.output().unwrap());
        output.check(
            &format!("{words:?}"),
            2,
            "",
            "Check that the broker is running at this address, or choose another with --uri",
        );
        assert!(!output.err.contains("s3cr3t") && output.err.contains("alice@127.0.0.1"), "{output:?}");
    }
}

#[test]
fn access_errors_name_user_and_virtual_host() {
    let fixture = Fixture::new("not-let-in");
    let uri = broker().uri().replace(broker().password(), "wr0ng");
    let mut command = fixture.home.command(&["publish", "--queue", "q", "--uri", &uri]);
    let output = check_no_password(RunOutput::of(&command.output().unwrap()));
    output.check("wrong password", 1, "", "Check the user and the password in the URI");
    assert!(!output.err.contains("wr0ng"), "{output:?}");
    let uri = broker().uri().replace("%2f", "nowhere");
    let output =
        check_no_password(RunOutput::of(&fixture.home.command(&["queues", "q", "--uri", &uri]).output().unwrap()));
    output.check("no vhost", 1, "", "Check the virtual host, which is the part of the URI after the host");
}

#[test]
fn interrupted_publish_waits_for_messages_in_flight() {
    let fixture = Fixture::new("interrupted");
    let mut command = fixture.command(&["publish", "--queue", &fixture.queue, "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"a\nb\nc\n").unwrap();
    fixture.wait_for_depth("", 3);
    crate::common::signal(&process, "INT");
    let output = check_no_password(RunOutput::of(&process.wait_with_output().unwrap()));
    assert_eq!(output.code, Some(130), "{output:?}");
    assert_eq!((&output.json()["published"], &output.json()["interrupted"]), (&json!(3), &json!(true)));
    drop(input);
}

#[test]
fn publish_stops_when_broker_does_not_confirm() {
    let mut own = Broker::start().unwrap_or_else(|error| panic!("{error}"));
    let home = Home::new();
    let words = ["publish", "--queue", "q", "--declare", "quorum", "--json", "--confirm-timeout", "5s"];
    let mut command = home.command(&words);
    command.env("GRISTMILL_AMQP_URI", own.uri()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"a\n").unwrap();
    let depth = || {
        let asked = home.command(&["queues", "q", "--json"]).env("GRISTMILL_AMQP_URI", own.uri()).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&asked.stdout).map(|value| value["items"][0]["messages"].clone())
    };
    while depth().ok() != Some(json!(1)) {}
    own.kill();
    input.write_all(b"b\n").unwrap();
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(output.code, Some(2), "{output:?}");
    let value = output.json();
    assert_eq!(
        (&value["published"], &value["failed"], &value["confirm_timed_out"]),
        (&json!(1), &json!(1), &json!(true))
    );
    assert!(output.err.contains("error: standard input:2: the broker did not confirm"), "{output:?}");
    drop(input);
}

#[test]
fn publish_survives_broker_restart() {
    let mut own = Broker::start().unwrap_or_else(|error| panic!("{error}"));
    let home = Home::new();
    let mut command = home.command(&["publish", "--queue", "q", "--declare", "quorum", "--json"]);
    command.env("GRISTMILL_AMQP_URI", own.uri()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let lines = |from: usize| (from..from + 2_000).map(|number| format!("{number}\n")).collect::<String>();
    input.write_all(lines(0).as_bytes()).unwrap();
    own.kill();
    own.restart().unwrap_or_else(|error| panic!("{error}"));
    input.write_all(lines(2_000).as_bytes()).unwrap();
    drop(input);
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.json()["published"], 4_000, "{output:?}");
    let mut command =
        home.command(&["consume", "q", "--json", "--drain", "--for", "2m", "--into", "q.db", "--table", "t"]);
    // Numbers are not objects and become dead letters; the test counts those.
    let output = RunOutput::of(&command.env("GRISTMILL_AMQP_URI", own.uri()).output().unwrap());
    let stats = &output.json()["consumers"][0];
    assert!(stats["dead_lettered"].as_u64().unwrap() >= 4_000, "{stats}");
}

#[test]
fn publish_sets_every_property_and_typed_headers() {
    let fixture = Fixture::new("properties");
    let words = [
        "publish",
        "--queue",
        &fixture.queue,
        "--id",
        "m-1",
        "--priority",
        "5",
        "--expiration",
        "1h",
        "--correlation-id",
        "c-1",
        "--reply-to",
        "answers",
        "--type",
        "created",
        "--timestamp",
        "2026-01-31T12:00:00Z",
        "--header",
        "retries:int=3",
        "--header",
        "small:int32=-7",
        "--header",
        "ratio:double=0.5",
        "--header",
        "on:bool=true",
        "--header",
        "raw:bytes=ff00",
        "--header",
        "plain=3",
    ];
    let more = ["a:or=c", "c=b=c", "a:b:int32=3", "at:time=1970-01-01T00:01:00Z", "then:time=61", "no:void="];
    let words: Vec<&str> = words.into_iter().chain(more.iter().flat_map(|header| ["--header", header])).collect();
    feed(&fixture, &words, b"x\n").check("properties", 0, "1 message published", "");
    let found = fixture.take("", 1).remove(0);
    let properties = found.properties();
    assert_eq!(found.message_id(), Some("m-1"));
    assert_eq!((properties.priority, properties.expiration.as_deref()), (Some(5), Some("3600000")));
    assert_eq!(properties.correlation_id.as_deref(), Some("c-1"));
    assert_eq!((properties.reply_to.as_deref(), properties.kind.as_deref()), (Some("answers"), Some("created")));
    assert_eq!(properties.timestamp, Some(1_769_860_800));
    for (name, value) in [
        ("retries", FieldValue::Int(3)),
        ("small", FieldValue::Int32(-7)),
        ("ratio", FieldValue::Double(0.5)),
        ("on", FieldValue::Bool(true)),
        ("raw", FieldValue::Bytes(vec![0xff, 0].into())),
        ("plain", FieldValue::Text("3".to_owned())),
        ("a:b", FieldValue::Int32(3)),
        ("a:or", FieldValue::Text("c".to_owned())),
        ("c", FieldValue::Text("b=c".to_owned())),
        ("at", FieldValue::Time(60)),
        ("then", FieldValue::Time(61)),
        ("no", FieldValue::Void),
    ] {
        assert_eq!(found.headers().get(name), Some(&value), "{name}");
    }
    for (flag, wrong) in
        [("--header", "a:int=x"), ("--timestamp", "soon"), ("--priority", "256"), ("--expiration", "5")]
    {
        let output = fixture.run(&["publish", "--queue", &fixture.queue, flag, wrong]);
        assert_eq!(output.code, Some(1), "{output:?}");
    }
}

#[test]
fn declare_sets_arguments_and_reports_differences() {
    let fixture = Fixture::new("arguments");
    let queue = format!("{}.new", fixture.queue);
    let publish = |kind: &str, arguments: &[&str]| {
        let mut words = vec!["publish", "--queue", queue.as_str(), "--declare", kind];
        arguments.iter().for_each(|argument| words.extend(["--argument", *argument]));
        feed(&fixture, &words, b"x\n")
    };
    let arguments = ["max-length=2", "overflow=reject-publish", "single-active-consumer=true", "max-priority=5"];
    publish("classic", &arguments).check("made", 0, "1 message published", "");
    publish("classic", &arguments).check("the same", 0, "1 message published", "");
    // The queue is full at the declared length.
    publish("classic", &arguments).check("full", 1, "0 messages published", "a queue may be full");
    let output = publish("classic", &["max-length=3", arguments[1], arguments[2], arguments[3]]);
    output.check("different", 1, "", "exists with x-max-length = '2'");
    publish("classic", &[]).check("without", 1, "", "but none was requested");
    let other = format!("{queue}.other");
    let output =
        feed(&fixture, &["publish", "--queue", &other, "--declare", "quorum", "--argument", "max-priority=5"], b"x");
    output.check("not for quorum queues", 1, "", "invalid arg 'x-max-priority'");
    let output =
        fixture.run(&["consume", &queue, "--declare", "classic", "--argument", "max-length=9", "--exec", "true"]);
    output.check("consume", 1, "", "exists with x-max-length");
}
