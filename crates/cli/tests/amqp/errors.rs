//! Errors of commands that connect to RabbitMQ: the cause and what to do.

use std::net::TcpListener;

use crate::common::{Home, RunOutput};
use crate::fixture::{Fixture, broker};

#[track_caller]
fn fails(words: &[&str], expected: &str) {
    Home::new().check(words, 1, "", expected);
}

#[test]
fn invalid_consume_arguments_are_rejected() {
    fails(&["consume"], "no queue given, and the settings file has no [[consumers]]");
    fails(&["consume", "q"], "no action for the messages of q; choose one with --exec, --http");
    fails(&["consume", "--exec", "true"], "QUEUE is missing (the command line)");
    fails(&["consume", "q", "--exec", "./is-not-there"], "no program \"./is-not-there\"");
    fails(&["consume", "q", "--exec", "true --fast"], "without quotes around all of them");
    fails(&["consume", "q", "--exec"], "a value is required for '--exec <COMMAND>...'");
    fails(&["consume", "q", "--http", "http://x", "--enqueue", "k"], "a consumer has --http and --enqueue");
    fails(&["consume", "q", "--http", "ftp://me:secret@x"], "--http is not a URL with http:// or https://");
    fails(&["consume", "q", "--into", "x.db"], "--table is missing");
    fails(&["consume", "q", "--http", "http://x", "--table", "t"], "--table requires --into");
    fails(&["consume", "q", "--workers", "201", "--exec", "true"], "expected: a whole number from 0 to 200");
    fails(&["consume", "q", "--workers", "-1", "--exec", "true"], "--workers is \"-1\", which is not allowed");
    fails(&["consume", "q", "--prefetch", "x", "--exec", "true"], "expected: a whole number from 0 to 1000");
    fails(&["consume", "q", "--order-by", "customer", "--exec", "true"], "expected: header:NAME or routing-key");
    fails(&["consume", "q", "--timeout", "5", "--exec", "true"], "--timeout is \"5\"");
    fails(&["consume", "q", "--attempts", "0", "--exec", "true"], "from 1 to 1000");
    fails(&["consume", "q", "--declare", "lazy", "--exec", "true"], "expected: quorum, classic or stream");
    fails(&["consume", "q", "--bind", "shop", "--exec", "true"], "expected: a list of EXCHANGE:KEY");
    fails(&["consume", "q", "--offset", "-3", "--exec", "true"], "expected: first, last, next or the offset");
    fails(
        &["consume", "q", "--for", "0s", "--exec", "true"],
        "invalid value '0s' for '--for <DURATION>': expected: more than 0s",
    );
    fails(&["consume", "q", "--shutdown", "long", "--exec", "true"], "amqp.shutdown is \"long\" (--shutdown)");
    fails(&["consume", "q", "--metrics", "here", "--exec", "true"], "amqp.metrics is \"here\" (--metrics)");
    fails(&["consume", "q", "--into", "/", "--table", "t"], "is a folder");
    fails(&["consume", "q", "--uri", "amqp://a:s3cr3t@h:x", "--exec", "true"], "amqp.uri (--uri) is not allowed: ");
}

#[test]
fn invalid_publish_arguments_are_rejected() {
    fails(&["publish"], "--queue <QUEUE>|--exchange <EXCHANGE>");
    fails(&["publish", "--queue", "q", "--exchange", "e"], "cannot be used with");
    fails(&["publish", "--queue", "q", "--routing-key", "k"], "cannot be used with");
    fails(&["publish", "--queue", "q", "--header", "novalue"], "expected: NAME=VALUE");
    fails(&["publish", "--queue", "q", "--max-in-flight", "0"], "0 is not in 1..=100000");
    fails(&["publish", "--queue", "q", "--whole", "file"], "--whole applies to standard input only");
    fails(&["publish", "--queue", "q", "--declare", "lazy"], "expected: quorum, classic or stream");
    fails(&["publish", "--queue", ""], "a queue has no name");
}

#[test]
fn password_in_uri_is_never_printed() {
    let home = Home::new();
    for words in [
        &["consume", "q", "--uri", "amqp://a:s3cr3t@h:x", "--exec", "true"][..],
        &["consume", "q", "--uri", "s3cr3t", "--exec", "true"],
        &["publish", "--queue", "q", "--uri", "http://a:s3cr3t@h"],
        &["queues", "q", "--uri", "amqp://a:s3cr3t@h?verify=s3cr3t"],
        &["consume", "q", "--http", "ftp://a:s3cr3t@h"],
    ] {
        let output = home.run(words);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(!output.err.contains("s3cr3t") && !output.out.contains("s3cr3t"), "{output:?}");
    }
}

#[test]
fn purge_without_yes_fails_before_connecting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("amqp://{}", listener.local_addr().unwrap());
    fails(&["queues", "purge", "orders", "--uri", &uri], "--yes");
    listener.set_nonblocking(true).unwrap();
    let accepted = listener.accept();
    assert_eq!(accepted.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the command connected");
}

/// Every command that connects once and ends; `dead retry` has a stored dead letter to publish.
fn one_shot_commands(fixture: &Fixture) -> Vec<Vec<String>> {
    fixture.publish(["a"]);
    fixture.drain(&["--store-dead-letters", "--exec", "sh", "-c", "exit 65"]);
    let dead_letters = fixture.run(&["dead", "list", "--json"]).json();
    let id = dead_letters["items"][0]["id"].to_string();
    let queue = fixture.queue.as_str();
    let commands: [&[&str]; 6] = [
        &["publish", "--queue", queue],
        &["queues", queue],
        &["queues", "move", queue, "other"],
        &["queues", "peek", queue],
        &["queues", "purge", queue, "--yes"],
        &["dead", "retry", &id],
    ];
    commands.iter().map(|words| words.iter().map(|word| (*word).to_owned()).collect()).collect()
}

#[track_caller]
fn prints_one_error(fixture: &Fixture, words: &[String], uri: &str, code: i32, expected: &str) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = fixture.command(&words);
    command.env("GRISTMILL_AMQP_URI", uri).env("GRISTMILL_AMQP_CONNECT_WITHIN", "500ms");
    let output = RunOutput::of(&command.output().unwrap());
    assert_eq!(output.code, Some(code), "{words:?}: {output:?}");
    assert!(output.err.starts_with("error: ") && output.err.lines().count() == 1, "{words:?}: {output:?}");
    assert!(output.err.contains(expected), "{words:?}: {output:?}");
}

#[test]
fn one_shot_commands_print_one_error_that_says_what_to_do() {
    let fixture = Fixture::new("one-shot");
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let wrong = broker().uri().replace(broker().password(), "wrong");
    let mut commands = one_shot_commands(&fixture);
    for words in &commands {
        prints_one_error(&fixture, words, &format!("amqp://{away}"), 2, "Check that the broker is running");
    }
    commands.push(["consume", &fixture.queue, "--exec", "true"].map(str::to_owned).to_vec());
    for words in &commands {
        prints_one_error(&fixture, words, &wrong, 1, "Check the user and the password in the URI");
    }
}
