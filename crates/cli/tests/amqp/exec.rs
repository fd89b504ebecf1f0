//! Tests of `gristmill consume --exec`.

use gristmill_amqp::{FieldValue, Message};
use serde_json::json;

use crate::common::assert_shape;
use crate::consumer_process::ConsumerProcess;
use crate::fixture::{Fixture, body, header};

/// Returns the contents of the files of a folder, sorted by name.
fn files(fixture: &Fixture, folder: &str) -> Vec<String> {
    let Ok(listed) = std::fs::read_dir(fixture.home.path(folder)) else { return Vec::new() };
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

fn script(fixture: &Fixture, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = fixture.home.write("handler", &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn exec_gets_body_on_stdin_and_properties_in_environment() {
    let fixture = Fixture::new("environment");
    let mut message = Message::to_queue(&fixture.queue, "the payload")
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
    fixture.send([message]);
    let handler = script(&fixture, "cat > payload; env > variables");
    let mut command =
        fixture.command(&["consume", &fixture.queue, "--json", "--drain", "--for", "2m", "--exec", &handler]);
    // Variables of another message are not inherited.
    command.env("GRISTMILL_APP_ID", "stale").env("GRISTMILL_HEADER_STALE", "stale").env("OTHER", "stays");
    let output = crate::fixture::check_no_password(crate::common::RunOutput::of(&command.output().unwrap()));
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_shape("consume", &output.json());
    let stats = &output.json()["consumers"][0];
    assert_eq!((&stats["received"], &stats["acknowledged"]), (&json!(1), &json!(1)), "{stats}");
    assert_eq!(std::fs::read_to_string(fixture.home.path("payload")).unwrap(), "the payload");
    let variables = std::fs::read_to_string(fixture.home.path("variables")).unwrap();
    let queue = format!("GRISTMILL_QUEUE={}", fixture.queue);
    let key = format!("GRISTMILL_ROUTING_KEY={}", fixture.queue);
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
    assert_eq!(fixture.depth(".dead"), Some(0));
}

#[test]
fn exit_code_decides_between_done_retry_and_dead_letter() {
    let fixture = Fixture::new("exit-codes");
    fixture.publish(["0", "65", "75", "1"]);
    // Retried messages succeed at the second attempt.
    let handler = script(&fixture, "read code; test $GRISTMILL_ATTEMPT = 2 && exit 0; echo bad $code >&2; exit $code");
    let stats = fixture.drain(&["--retry-delay", "125ms", "--exec", &handler]);
    assert_eq!((&stats["retried"], &stats["dead_lettered"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!(fixture.depth(""), Some(0));
    let dead = fixture.take(".dead", 1);
    assert_eq!(dead.len(), 1);
    assert_eq!(body(&dead[0]), "65");
    assert_eq!(header(&dead[0], "x-gristmill-reason"), "permanent");
    assert_eq!(header(&dead[0], "x-gristmill-error"), "exit status 65\n--- stderr\nbad 65");
}

#[test]
fn message_is_dead_lettered_after_its_attempts() {
    let fixture = Fixture::new("attempts");
    fixture.publish(["never"]);
    let handler = script(&fixture, "mkdir -p tries; echo $GRISTMILL_ATTEMPT > tries/$GRISTMILL_ATTEMPT; kill -9 $$");
    let stats = fixture.drain(&["--attempts", "3", "--retry-delay", "1ms", "--store-dead-letters", "--exec", &handler]);
    assert_eq!((&stats["retried"], &stats["dead_lettered"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!(files(&fixture, "tries"), ["1\n", "2\n", "3\n"]);
    let dead = fixture.take(".dead", 1);
    assert_eq!(header(&dead[0], "x-gristmill-reason"), "attempts");
    assert_eq!(header(&dead[0], "x-gristmill-failed"), "3");
    assert!(header(&dead[0], "x-gristmill-error").starts_with("killed by signal: 9 (SIGKILL)"));
    let dead_letters = fixture.home.json(&["dead", "list"]);
    assert_eq!(dead_letters["items"].as_array().unwrap().len(), 1, "{dead_letters}");
}

#[test]
fn invalid_and_oversized_headers_are_omitted_from_environment() {
    let fixture = Fixture::new("hostile");
    let strange = Message::to_queue(&fixture.queue, "strange")
        .id("with\0nul")
        .header("nul", "a\0b")
        .header("large", "x".repeat((32 << 10) + 1))
        .header("", "no name")
        .header("a=b\nc", "line one\nline two")
        .header("bytes", FieldValue::Bytes(vec![0xff, 0xfe].into()))
        .header("good", "is here");
    let mut much = Message::to_queue(&fixture.queue, "much").header("good", "is here");
    for number in 0..48 {
        much = much.header(format!("much-{number}"), "y".repeat(2_500));
    }
    fixture.send([strange, much]);
    let handler = script(&fixture, "env > $(cat)");
    let stats = fixture.drain(&["--exec", &handler]);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(2), &json!(0)), "{stats}");
    let read = |file| String::from_utf8_lossy(&std::fs::read(fixture.home.path(file)).unwrap()).into_owned();
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
fn message_is_done_when_command_does_not_read_stdin() {
    let fixture = Fixture::new("deaf");
    // More than a pipe holds.
    fixture.publish((0..10).map(|_| "x".repeat(1 << 20)));
    let stats = fixture.drain(&["--exec", "true"]);
    assert_eq!((&stats["acknowledged"], &stats["retried"]), (&json!(10), &json!(0)), "{stats}");
}

#[test]
fn arguments_after_exec_belong_to_the_command() {
    let fixture = Fixture::new("words");
    fixture.publish(["x"]);
    fixture.drain(&["--exec", "sh", "-c", "echo \"$@\" > words", "--", "--json", "-v", "--drain"]);
    assert_eq!(std::fs::read_to_string(fixture.home.path("words")).unwrap(), "--json -v --drain\n");
}

#[test]
fn timeout_kills_command_and_its_children() {
    let fixture = Fixture::new("slow");
    assert!(std::process::Command::new("mkfifo").arg(fixture.home.path("pipe")).status().unwrap().success());
    fixture.publish(["x"]);
    // The child of the command keeps the pipe open until it ends.
    let handler = script(&fixture, "echo begun >&2; sleep 1000 > pipe & wait");
    let child = {
        let words = [
            "consume",
            &fixture.queue,
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
        let mut command = fixture.command(&words);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut read = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::open(fixture.home.path("pipe")).unwrap(), &mut read).unwrap();
    let output = crate::fixture::check_no_password(crate::common::RunOutput::of(&child.wait_with_output().unwrap()));
    assert_eq!(output.code, Some(0), "{output:?}");
    let dead = fixture.take(".dead", 1);
    assert_eq!(header(&dead[0], "x-gristmill-error"), "killed after the timeout of 5s\n--- stderr\nbegun");
}

#[test]
fn message_is_done_while_child_of_command_still_runs() {
    let fixture = Fixture::new("left-behind");
    assert!(std::process::Command::new("mkfifo").arg(fixture.home.path("pipe")).status().unwrap().success());
    fixture.publish(["x"]);
    // Keeps the output of the command open until the test writes to the pipe.
    let handler = script(&fixture, "cat pipe & exit 0");
    let stats = fixture.drain(&["--exec", &handler]);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(1), &json!(0)), "{stats}");
    // The child still runs, and reads this.
    std::fs::write(fixture.home.path("pipe"), "").unwrap();
}

/// The command kills its consumer each time it is started.
#[test]
fn message_that_kills_its_consumer_is_dead_lettered_after_max_starts() {
    for kind in ["quorum", "classic"] {
        let fixture = Fixture::new("kills");
        let queue = format!("{}-{kind}", fixture.queue);
        fixture.send_to(&queue, kind, ["first", "killer", "third", "fourth"]);
        let handler = script(
            &fixture,
            "read text; if [ \"$text\" = killer ]; then echo x >> kills; kill -9 $PPID; exit; fi; echo $text >> done",
        );
        let mut ends = Vec::new();
        while ends.last() != Some(&Some(0)) {
            assert!(ends.len() < 10, "{kind}: {ends:?}");
            let words = ["consume", &queue, "--drain", "--for", "2m", "--workers", "2", "--max-starts", "2"];
            ends.push(fixture.run(&[&words[..], &["--exec", &handler]].concat()).code);
        }
        let lines = |file: &str| {
            let text = std::fs::read_to_string(fixture.home.path(file)).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines.dedup();
            (text.lines().count(), lines)
        };
        // The first start is not committed; the two restarts are.
        assert_eq!((lines("kills").0, ends.len()), (3, 4), "{kind}");
        assert_eq!(lines("done").1, ["first", "fourth", "third"], "{kind}");
        let suffix = format!("-{kind}.dead");
        fixture.wait_for_depth(&suffix, 1);
        let dead_letter = fixture.take(&suffix, 1).remove(0);
        assert_eq!(
            (body(&dead_letter), header(&dead_letter, "x-gristmill-reason")),
            ("killer".to_owned(), "starts".to_owned())
        );
        for file in ["kills", "done"] {
            std::fs::remove_file(fixture.home.path(file)).unwrap();
        }
    }
}

#[test]
fn command_close_to_consumer_timeout_is_reported_once() {
    let fixture = Fixture::new("nears");
    fixture.publish(["a", "b"]);
    let script = "until test -e go; do sleep 0.02; done";
    // The default of exec.timeout is longer than this and causes no warning at the start.
    let words = ["--consumer-timeout", "3s", "--workers", "2", "--exec", "sh", "-c", script];
    let process = ConsumerProcess::consume(&fixture, &words);
    let text = "after two thirds of the broker's consumer_timeout";
    process.logs(&fixture, text);
    let reported = |log: &str| log.matches(text).count();
    assert_eq!(reported(&process.log()), 1, "{}", process.log());
    fixture.home.write("go", "");
    let (output, log) = process.end();
    assert_eq!(output.json()["consumers"][0]["handled"], 2, "{log}");
    assert_eq!(reported(&log), 1, "{log}");
    assert!(log.contains("Raise consumer_timeout at the broker"), "{log}");
}
