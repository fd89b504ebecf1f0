//! `gristmill publish`.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use gristmill_amqp::FieldValue;
use gristmill_broker::Broker;
use serde_json::json;

use crate::bed::{Bed, body, broker, clean, header};
use crate::common::{Home, RunOutput, assert_shape};

fn feed(bed: &Bed, words: &[&str], input: &[u8]) -> RunOutput {
    let file = bed.home.path("input");
    std::fs::write(&file, input).unwrap();
    let mut command = bed.command(words);
    clean(RunOutput::of(&command.stdin(std::fs::File::open(file).unwrap()).output().unwrap()))
}

#[test]
fn lines_of_standard_input() {
    let bed = Bed::new("lines");
    let words = [
        "publish",
        "--queue",
        &bed.queue,
        "--ids",
        "--header",
        "source=test=1",
        "--header",
        "a=",
        "--type",
        "created",
        "--content-type",
        "text/plain",
    ];
    let said = feed(&bed, &words, b"one\r\n\ntwo\nthr\xc3\xa9e");
    said.check("lines", 0, "3 messages published in ", "");
    let found = bed.take("", 3);
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
fn files_are_messages_or_their_lines_are() {
    let bed = Bed::new("files");
    bed.home.write("a.txt", "first\nfile\n");
    bed.home.write("b.txt", "second\n\nfile");
    let words = ["publish", "--queue", &bed.queue, "--transient", "a.txt", "none.txt", "b.txt"];
    bed.run(&words).check("files", 1, "2 messages published in ", "error: none.txt: cannot be read: ");
    bed.run(&["publish", "--queue", &bed.queue, "--lines", "a.txt", "b.txt"]).check(
        "lines",
        0,
        "4 messages",
        "",
    );
    feed(&bed, &["publish", "--queue", &bed.queue, "--whole"], b"all\nof it\n").check(
        "whole",
        0,
        "1 message",
        "",
    );
    let found = bed.take("", 7);
    let expected = ["first\nfile\n", "second\n\nfile", "first", "file", "second", "file", "all\nof it\n"];
    assert_eq!(found.iter().map(body).collect::<Vec<_>>(), expected);
    assert_eq!(found[0].properties().delivery_mode, Some(1));
}

#[test]
fn what_no_queue_takes_is_named_and_the_rest_goes_on() {
    let bed = Bed::new("unroutable");
    let said = feed(
        &bed,
        &["publish", "--exchange", "amq.direct", "--routing-key", "nobody", "--json"],
        b"a\n\nb\n",
    );
    assert_eq!(said.code, Some(1), "{said:?}");
    let value = said.json();
    assert_shape("publish", &value);
    assert_eq!((&value["published"], &value["failed"]), (&json!(0), &json!(2)));
    for line in ["standard input:1", "standard input:3"] {
        let expected = format!(
            "error: {line}: no queue takes messages of exchange `amq.direct` with routing key `nobody`"
        );
        assert!(said.err.contains(&expected), "{said:?}");
    }
    // Among many the first are named.
    let many = "x\n".repeat(500);
    let said = feed(&bed, &["publish", "--exchange", "amq.direct", "--in-flight", "7"], many.as_bytes());
    said.check("many", 1, "0 messages published in ", "and 480 more that did not arrive");
    assert_eq!(said.err.lines().count(), 21, "{said:?}");
}

#[test]
fn what_is_not_there_is_told_with_the_next_step() {
    let bed = Bed::new("missing");
    let said = feed(&bed, &["publish", "--queue", "is-not-there"], b"a\n");
    said.check("no queue", 1, "", "--declare quorum makes it");
    let said = feed(&bed, &["publish", "--exchange", "is-not-there"], b"a\n");
    said.check("no exchange", 1, "", "The exchange has to exist before it is used");
    let made = format!("{}-made", bed.queue);
    feed(&bed, &["publish", "--queue", &made, "--declare", "classic"], b"a\n").check(
        "made",
        0,
        "1 message",
        "",
    );
    let said = feed(&bed, &["publish", "--queue", &made, "--declare", "quorum"], b"a\n");
    said.check("otherwise", 1, "", "exists with x-queue-type = 'classic', and 'quorum' was asked for");
}

#[test]
fn without_a_broker_the_next_step_is_told() {
    let home = Home::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let uri = format!("amqp://miller:s3cr3t@{free}/grain");
    for words in [&["publish", "--queue", "q"][..], &["queues", "q"], &["consume", "q", "--exec", "true"]] {
        let mut command = home.command(words);
        command
            .env("GRISTMILL_AMQP_URI", &uri)
            .env("GRISTMILL_AMQP_CONNECT_WITHIN", "300ms")
            .env("GRISTMILL_LOG", "trace");
        let said = RunOutput::of(&command.output().unwrap());
        said.check(&format!("{words:?}"), 2, "", "Is the broker running, and is this its address? --uri");
        assert!(!said.err.contains("s3cr3t") && said.err.contains("miller@127.0.0.1"), "{said:?}");
    }
}

#[test]
fn who_is_not_let_in_is_told_so() {
    let bed = Bed::new("not-let-in");
    let uri = broker().uri().replace(broker().password(), "wr0ng");
    let mut command = bed.home.command(&["publish", "--queue", "q", "--uri", &uri]);
    let said = clean(RunOutput::of(&command.output().unwrap()));
    said.check("wrong password", 1, "", "Are the user and the password in the URI the right ones?");
    assert!(!said.err.contains("wr0ng"), "{said:?}");
    let uri = broker().uri().replace("%2f", "nowhere");
    let said = clean(RunOutput::of(&bed.home.command(&["queues", "q", "--uri", &uri]).output().unwrap()));
    said.check("no vhost", 1, "", "Does the virtual host, the part of the URI behind the host, exist?");
}

#[test]
fn ctrl_c_ends_it_after_what_is_on_its_way() {
    let bed = Bed::new("interrupted");
    let mut command = bed.command(&["publish", "--queue", &bed.queue, "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"a\nb\nc\n").unwrap();
    bed.depth_is("", 3);
    crate::common::signal(&process, "INT");
    let said = clean(RunOutput::of(&process.wait_with_output().unwrap()));
    assert_eq!(said.code, Some(130), "{said:?}");
    assert_eq!((&said.json()["published"], &said.json()["interrupted"]), (&json!(3), &json!(true)));
    drop(input);
}

#[test]
fn a_broker_that_does_not_confirm_ends_it() {
    let mut own = Broker::start().unwrap_or_else(|fault| panic!("{fault}"));
    let home = Home::new();
    let words = ["publish", "--queue", "q", "--declare", "quorum", "--json", "--confirm-within", "5s"];
    let mut command = home.command(&words);
    command.env("GRISTMILL_AMQP_URI", own.uri()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"a\n").unwrap();
    let depth = || {
        let asked =
            home.command(&["queues", "q", "--json"]).env("GRISTMILL_AMQP_URI", own.uri()).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&asked.stdout)
            .map(|value| value["items"][0]["messages"].clone())
    };
    while depth().ok() != Some(json!(1)) {}
    own.kill();
    input.write_all(b"b\n").unwrap();
    let said = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(said.code, Some(2), "{said:?}");
    let value = said.json();
    assert_eq!(
        (&value["published"], &value["failed"], &value["stuck"]),
        (&json!(1), &json!(1), &json!(true))
    );
    assert!(said.err.contains("error: standard input:2: the broker did not confirm"), "{said:?}");
    drop(input);
}

#[test]
fn a_broker_that_restarts_loses_none() {
    let mut own = Broker::start().unwrap_or_else(|fault| panic!("{fault}"));
    let home = Home::new();
    let mut command = home.command(&["publish", "--queue", "q", "--declare", "quorum", "--json"]);
    command
        .env("GRISTMILL_AMQP_URI", own.uri())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let lines = |from: usize| (from..from + 2_000).map(|number| format!("{number}\n")).collect::<String>();
    input.write_all(lines(0).as_bytes()).unwrap();
    own.kill();
    own.restart().unwrap_or_else(|fault| panic!("{fault}"));
    input.write_all(lines(2_000).as_bytes()).unwrap();
    drop(input);
    let said = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.json()["published"], 4_000, "{said:?}");
    let mut command =
        home.command(&["consume", "q", "--json", "--drain", "--for", "2m", "--into", "q.db", "--table", "t"]);
    // A number is no object; what is read is what counts here.
    let said = RunOutput::of(&command.env("GRISTMILL_AMQP_URI", own.uri()).output().unwrap());
    let stats = &said.json()["consumers"][0];
    assert!(stats["rejected"].as_u64().unwrap() >= 4_000, "{stats}");
}

#[test]
fn messages_carry_every_property_and_typed_headers() {
    let bed = Bed::new("properties");
    let words = [
        "publish",
        "--queue",
        &bed.queue,
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
    feed(&bed, &words, b"x\n").check("properties", 0, "1 message published", "");
    let found = bed.take("", 1).remove(0);
    let properties = found.properties();
    assert_eq!(found.message_id(), Some("m-1"));
    assert_eq!((properties.priority, properties.expiration.as_deref()), (Some(5), Some("3600000")));
    assert_eq!(properties.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(
        (properties.reply_to.as_deref(), properties.kind.as_deref()),
        (Some("answers"), Some("created"))
    );
    assert_eq!(properties.timestamp, Some(1_769_860_800));
    for (name, value) in [
        ("retries", FieldValue::Int(3)),
        ("small", FieldValue::Int32(-7)),
        ("ratio", FieldValue::Double(0.5)),
        ("on", FieldValue::Bool(true)),
        ("raw", FieldValue::Bytes(vec![0xff, 0].into())),
        ("plain", FieldValue::Text("3".to_owned())),
    ] {
        assert_eq!(found.headers().get(name), Some(&value), "{name}");
    }
    for (flag, wrong) in
        [("--header", "a:int=x"), ("--timestamp", "soon"), ("--priority", "256"), ("--expiration", "5")]
    {
        let said = bed.run(&["publish", "--queue", &bed.queue, flag, wrong]);
        assert_eq!(said.code, Some(1), "{said:?}");
    }
}

#[test]
fn a_queue_is_declared_with_arguments_and_a_difference_is_named() {
    let bed = Bed::new("arguments");
    let queue = format!("{}.new", bed.queue);
    let publish = |kind: &str, arguments: &[&str]| {
        let mut words = vec!["publish", "--queue", queue.as_str(), "--declare", kind];
        arguments.iter().for_each(|argument| words.extend(["--argument", *argument]));
        feed(&bed, &words, b"x\n")
    };
    let arguments =
        ["max-length=2", "overflow=reject-publish", "single-active-consumer=true", "max-priority=5"];
    publish("classic", &arguments).check("made", 0, "1 message published", "");
    publish("classic", &arguments).check("the same", 0, "1 message published", "");
    // It has the length that it was declared with.
    publish("classic", &arguments).check("full", 1, "0 messages published", "is a queue full?");
    let said = publish("classic", &["max-length=3", arguments[1], arguments[2], arguments[3]]);
    said.check("different", 1, "", "exists with x-max-length = '2'");
    publish("classic", &[]).check("without", 1, "", "and none was asked for");
    let other = format!("{queue}.other");
    let said = feed(
        &bed,
        &["publish", "--queue", &other, "--declare", "quorum", "--argument", "max-priority=5"],
        b"x",
    );
    said.check("not for quorum queues", 1, "", "invalid arg 'x-max-priority'");
    let said =
        bed.run(&["consume", &queue, "--declare", "classic", "--argument", "max-length=9", "--exec", "true"]);
    said.check("consume", 1, "", "exists with x-max-length");
}
