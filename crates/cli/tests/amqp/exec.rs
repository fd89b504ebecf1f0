//! `gristmill consume --exec`.

use gristmill_amqp::{FieldValue, Message};
use serde_json::json;

use crate::bed::{Bed, body, header};
use crate::common::assert_shape;
use crate::sinks::Process;

/// What files of a folder say, in the order of their names.
fn files(bed: &Bed, folder: &str) -> Vec<String> {
    let Ok(listed) = std::fs::read_dir(bed.home.path(folder)) else { return Vec::new() };
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

fn script(bed: &Bed, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = bed.home.write("handler", &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_payload_is_read_and_the_message_is_in_the_environment() {
    let bed = Bed::new("environment");
    let mut message = Message::to_queue(&bed.queue, "the payload")
        .id("id-1")
        .event("order.created")
        .header("tenant-id", "acme")
        .header("tenant_id", "another")
        .header("größe", 3_i64)
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    message.properties.content_type = Some("text/plain".to_owned());
    message.properties.correlation_id = Some("c-1".to_owned());
    message.properties.reply_to = Some("answers".to_owned());
    message.properties.timestamp = Some(1_700_000_000);
    bed.send([message]);
    let handler = script(&bed, "cat > payload; env > variables");
    let mut command =
        bed.command(&["consume", &bed.queue, "--json", "--drain", "--for", "2m", "--exec", &handler]);
    // What is about another message does not shine through.
    command.env("GRISTMILL_APP_ID", "stale").env("GRISTMILL_HEADER_STALE", "stale").env("OTHER", "stays");
    let said = crate::bed::clean(crate::common::RunOutput::of(&command.output().unwrap()));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_shape("consume", &said.json());
    let stats = &said.json()["consumers"][0];
    assert_eq!((&stats["received"], &stats["acknowledged"]), (&json!(1), &json!(1)), "{stats}");
    assert_eq!(std::fs::read_to_string(bed.home.path("payload")).unwrap(), "the payload");
    let variables = std::fs::read_to_string(bed.home.path("variables")).unwrap();
    let queue = format!("GRISTMILL_QUEUE={}", bed.queue);
    let key = format!("GRISTMILL_ROUTING_KEY={}", bed.queue);
    for expected in [
        queue.as_str(),
        key.as_str(),
        "GRISTMILL_EXCHANGE=",
        "GRISTMILL_MESSAGE_ID=id-1",
        "GRISTMILL_TYPE=order.created",
        "GRISTMILL_ATTEMPT=1",
        "GRISTMILL_REDELIVERED=0",
        "GRISTMILL_CONTENT_TYPE=text/plain",
        "GRISTMILL_CORRELATION_ID=c-1",
        "GRISTMILL_REPLY_TO=answers",
        "GRISTMILL_TIMESTAMP=1700000000",
        "GRISTMILL_HEADER_TENANT_ID=acme",
        "GRISTMILL_HEADER_GR__E=3",
        "TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "OTHER=stays",
    ] {
        assert!(variables.lines().any(|line| line == expected), "no {expected} in\n{variables}");
    }
    assert!(!variables.contains("stale") && !variables.contains("another"), "{variables}");
    assert_eq!(bed.depth(".dead"), Some(0));
}

#[test]
fn the_exit_code_decides() {
    let bed = Bed::new("exit-codes");
    bed.publish(["0", "65", "75", "1"]);
    // Those that are tried again are done the second time.
    let handler =
        script(&bed, "read code; test $GRISTMILL_ATTEMPT = 2 && exit 0; echo bad $code >&2; exit $code");
    let stats = bed.drain(&["--retry-delay", "125ms", "--exec", &handler]);
    assert_eq!((&stats["retried"], &stats["rejected"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!(bed.depth(""), Some(0));
    let dead = bed.take(".dead", 1);
    assert_eq!(dead.len(), 1);
    assert_eq!(body(&dead[0]), "65");
    assert_eq!(header(&dead[0], "x-gristmill-reason"), "permanent");
    assert_eq!(header(&dead[0], "x-gristmill-error"), "exit code 65\n--- stderr\nbad 65");
}

#[test]
fn after_its_attempts_a_message_is_a_dead_letter() {
    let bed = Bed::new("attempts");
    bed.publish(["never"]);
    let handler =
        script(&bed, "mkdir -p tries; echo $GRISTMILL_ATTEMPT > tries/$GRISTMILL_ATTEMPT; kill -9 $$");
    let stats = bed.drain(&["--attempts", "3", "--retry-delay", "1ms", "--keep-letters", "--exec", &handler]);
    assert_eq!((&stats["retried"], &stats["rejected"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!(files(&bed, "tries"), ["1\n", "2\n", "3\n"]);
    let dead = bed.take(".dead", 1);
    assert_eq!(header(&dead[0], "x-gristmill-reason"), "attempts");
    assert_eq!(header(&dead[0], "x-gristmill-failed"), "3");
    assert!(header(&dead[0], "x-gristmill-error").starts_with("ended by a signal: 9 (SIGKILL)"));
    let letters = bed.home.json(&["dead", "list"]);
    assert_eq!(letters["items"].as_array().unwrap().len(), 1, "{letters}");
}

#[test]
fn hostile_headers_cost_themselves_only() {
    let bed = Bed::new("hostile");
    let strange = Message::to_queue(&bed.queue, "strange")
        .id("with\0nul")
        .header("nul", "a\0b")
        .header("large", "x".repeat((32 << 10) + 1))
        .header("", "no name")
        .header("a=b\nc", "line one\nline two")
        .header("bytes", FieldValue::Bytes(vec![0xff, 0xfe].into()))
        .header("good", "is here");
    let mut much = Message::to_queue(&bed.queue, "much").header("good", "is here");
    for number in 0..48 {
        much = much.header(format!("much-{number}"), "y".repeat(2_500));
    }
    bed.send([strange, much]);
    let handler = script(&bed, "env > $(cat)");
    let stats = bed.drain(&["--exec", &handler]);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(2), &json!(0)), "{stats}");
    let read = |file| String::from_utf8_lossy(&std::fs::read(bed.home.path(file)).unwrap()).into_owned();
    let (strange, much) = (read("strange"), read("much"));
    assert!(strange.contains("GRISTMILL_HEADER_GOOD=is here"), "{strange}");
    assert!(strange.contains("GRISTMILL_HEADER_A_B_C=line one\nline two"), "{strange}");
    for left_out in ["MESSAGE_ID", "HEADER_NUL", "HEADER_LARGE", "no name"] {
        assert!(!strange.contains(left_out), "{left_out} in {strange}");
    }
    assert!(much.contains("GRISTMILL_HEADER_GOOD=is here") && much.contains("GRISTMILL_HEADER_MUCH_0=yyy"));
    assert!(much.len() < 100 << 10, "{}", much.len());
}

#[test]
fn a_command_need_not_read() {
    let bed = Bed::new("deaf");
    // More than a pipe holds.
    bed.publish((0..10).map(|_| "x".repeat(1 << 20)));
    let stats = bed.drain(&["--exec", "true"]);
    assert_eq!((&stats["acknowledged"], &stats["retried"]), (&json!(10), &json!(0)), "{stats}");
}

#[test]
fn what_follows_exec_is_the_command_whatever_it_looks_like() {
    let bed = Bed::new("words");
    bed.publish(["x"]);
    bed.drain(&["--exec", "sh", "-c", "echo \"$@\" > words", "--", "--json", "-v", "--drain"]);
    assert_eq!(std::fs::read_to_string(bed.home.path("words")).unwrap(), "--json -v --drain\n");
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_its_children() {
    let bed = Bed::new("slow");
    assert!(std::process::Command::new("mkfifo").arg(bed.home.path("pipe")).status().unwrap().success());
    bed.publish(["x"]);
    // The child of the command holds the pipe open for as long as it lives.
    let handler = script(&bed, "echo begun >&2; sleep 1000 > pipe & wait");
    let child = {
        let words = [
            "consume",
            &bed.queue,
            "--json",
            "--drain",
            "--for",
            "2m",
            "--timeout",
            "5s",
            "--attempts",
            "1",
            "--exec",
            &handler,
        ];
        let mut command = bed.command(&words);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut read = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::open(bed.home.path("pipe")).unwrap(), &mut read)
        .unwrap();
    let said = crate::bed::clean(crate::common::RunOutput::of(&child.wait_with_output().unwrap()));
    assert_eq!(said.code, Some(0), "{said:?}");
    let dead = bed.take(".dead", 1);
    assert_eq!(header(&dead[0], "x-gristmill-error"), "took longer than 5s and was ended\n--- stderr\nbegun");
}

#[test]
fn what_a_command_leaves_behind_holds_nobody_up() {
    let bed = Bed::new("left-behind");
    assert!(std::process::Command::new("mkfifo").arg(bed.home.path("pipe")).status().unwrap().success());
    bed.publish(["x"]);
    // Holds the command's output open until somebody writes to the pipe.
    let handler = script(&bed, "cat pipe & exit 0");
    let stats = bed.drain(&["--exec", &handler]);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(1), &json!(0)), "{stats}");
    // It was there all the time.
    std::fs::write(bed.home.path("pipe"), "").unwrap();
}

/// It ends the consumer that runs it, each time it is started.
#[test]
fn a_command_that_kills_its_consumer_is_given_up_and_the_other_messages_are_done() {
    for kind in ["quorum", "classic"] {
        let bed = Bed::new("kills");
        let queue = format!("{}-{kind}", bed.queue);
        bed.send_to(&queue, kind, ["first", "killer", "third", "fourth"]);
        let handler = script(
            &bed,
            "read text; if [ \"$text\" = killer ]; then echo x >> kills; kill -9 $PPID; exit; fi; echo $text >> done",
        );
        let mut ends = Vec::new();
        while ends.last() != Some(&Some(0)) {
            assert!(ends.len() < 10, "{kind}: {ends:?}");
            let words = ["consume", &queue, "--drain", "--for", "2m", "--workers", "2", "--max-starts", "2"];
            ends.push(bed.run(&[&words[..], &["--exec", &handler]].concat()).code);
        }
        let lines = |file: &str| {
            let text = std::fs::read_to_string(bed.home.path(file)).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines.dedup();
            (text.lines().count(), lines)
        };
        // The first start is not committed; two more are.
        assert_eq!((lines("kills").0, ends.len()), (3, 4), "{kind}");
        assert_eq!(lines("done").1, ["first", "fourth", "third"], "{kind}");
        let suffix = format!("-{kind}.dead");
        bed.depth_is(&suffix, 1);
        let letter = bed.take(&suffix, 1).remove(0);
        assert_eq!(
            (body(&letter), header(&letter, "x-gristmill-reason")),
            ("killer".to_owned(), "starts".to_owned())
        );
        for file in ["kills", "done"] {
            std::fs::remove_file(bed.home.path(file)).unwrap();
        }
    }
}

#[test]
fn command_that_nears_the_brokers_timeout_is_reported_once() {
    let bed = Bed::new("nears");
    bed.publish(["a", "b"]);
    let script = "until test -e go; do sleep 0.02; done";
    // The default of exec.timeout is longer than this, and not warned of at the start.
    let words = ["--consumer-timeout", "3s", "--workers", "2", "--exec", "sh", "-c", script];
    let process = Process::consume(&bed, &words);
    let text = "after two thirds of the broker's consumer_timeout";
    process.logs(&bed, text);
    let reported = |log: &str| log.matches(text).count();
    assert_eq!(reported(&process.log()), 1, "{}", process.log());
    bed.home.write("go", "");
    let (said, log) = process.end();
    assert_eq!(said.json()["consumers"][0]["done"], 2, "{log}");
    assert_eq!(reported(&log), 1, "{log}");
    assert!(log.contains("Raise consumer_timeout at the broker"), "{log}");
}
