//! Errors of commands that speak to RabbitMQ: what is wrong, and the next step.

use std::net::TcpListener;

use crate::bed::{Bed, broker};
use crate::common::{Home, RunOutput};

#[track_caller]
fn wrong(words: &[&str], expected: &str) {
    Home::new().check(words, 1, "", expected);
}

#[test]
fn words_that_make_no_consumer() {
    wrong(&["consume"], "the settings file has no [[consumers]], and no queue is named");
    wrong(&["consume", "q"], "nothing is said about what to do with the messages of q; --exec, --http");
    wrong(&["consume", "--exec", "true"], "QUEUE is missing (the command line)");
    wrong(&["consume", "q", "--exec", "./is-not-there"], "there is no program \"./is-not-there\"");
    wrong(&["consume", "q", "--exec", "true --fast"], "leave off the quotes");
    wrong(&["consume", "q", "--exec"], "a value is required for '--exec <COMMAND>...'");
    wrong(&["consume", "q", "--http", "http://x", "--enqueue", "k"], "a consumer has --http and --enqueue");
    wrong(&["consume", "q", "--http", "ftp://me:secret@x"], "consumers.http (--http) is not legal");
    wrong(&["consume", "q", "--into", "x.db"], "--table is missing");
    wrong(&["consume", "q", "--http", "http://x", "--table", "t"], "--table goes with --into only");
    wrong(&["consume", "q", "--workers", "201", "--exec", "true"], "legal: a whole number from 0 to 200");
    wrong(&["consume", "q", "--workers", "-1", "--exec", "true"], "consumers.workers is \"-1\" (--workers)");
    wrong(&["consume", "q", "--prefetch", "x", "--exec", "true"], "legal: a whole number from 0 to 1000");
    wrong(&["consume", "q", "--order-by", "customer", "--exec", "true"], "legal: header:NAME or routing-key");
    wrong(&["consume", "q", "--timeout", "5", "--exec", "true"], "consumers.timeout is \"5\"");
    wrong(&["consume", "q", "--attempts", "0", "--exec", "true"], "from 1 to 1000");
    wrong(&["consume", "q", "--declare", "lazy", "--exec", "true"], "legal: quorum, classic or stream");
    wrong(&["consume", "q", "--bind", "shop", "--exec", "true"], "legal: a list of EXCHANGE:KEY");
    wrong(&["consume", "q", "--offset", "-3", "--exec", "true"], "legal: first, last, next or the number");
    wrong(&["consume", "q", "--for", "0s", "--exec", "true"], "--for is \"0s\"");
    wrong(
        &["consume", "q", "--shutdown", "long", "--exec", "true"],
        "amqp.shutdown is \"long\" (--shutdown)",
    );
    wrong(&["consume", "q", "--metrics", "here", "--exec", "true"], "amqp.metrics is \"here\" (--metrics)");
    wrong(&["consume", "q", "--into", "/", "--table", "t"], "is a folder");
    wrong(
        &["consume", "q", "--uri", "amqp://a:s3cr3t@h:x", "--exec", "true"],
        "amqp.uri (--uri) is not legal: ",
    );
}

#[test]
fn words_that_publish_nothing() {
    wrong(&["publish"], "--queue <QUEUE>|--exchange <EXCHANGE>");
    wrong(&["publish", "--queue", "q", "--exchange", "e"], "cannot be used with");
    wrong(&["publish", "--queue", "q", "--routing-key", "k"], "cannot be used with");
    wrong(&["publish", "--queue", "q", "--header", "novalue"], "expected: NAME=VALUE");
    wrong(&["publish", "--queue", "q", "--in-flight", "0"], "0 is not in 1..=100000");
    wrong(&["publish", "--queue", "q", "--whole", "file"], "--whole is about standard input");
    wrong(&["publish", "--queue", "q", "--declare", "lazy"], "legal: quorum, classic or stream");
    wrong(&["publish", "--queue", ""], "a queue has no name");
}

#[test]
fn a_password_is_told_by_nothing() {
    let home = Home::new();
    for words in [
        &["consume", "q", "--uri", "amqp://a:s3cr3t@h:x", "--exec", "true"][..],
        &["consume", "q", "--uri", "s3cr3t", "--exec", "true"],
        &["publish", "--queue", "q", "--uri", "http://a:s3cr3t@h"],
        &["queues", "q", "--uri", "amqp://a:s3cr3t@h?verify=s3cr3t"],
        &["consume", "q", "--http", "ftp://a:s3cr3t@h"],
    ] {
        let said = home.run(words);
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(!said.err.contains("s3cr3t") && !said.out.contains("s3cr3t"), "{said:?}");
    }
}

#[test]
fn purge_without_a_confirmation_is_refused_before_it_connects() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("amqp://{}", listener.local_addr().unwrap());
    wrong(&["queues", "purge", "orders", "--uri", &uri], "--yes");
    listener.set_nonblocking(true).unwrap();
    let accepted = listener.accept();
    assert_eq!(accepted.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it connected");
}

/// Every command that connects once and ends, with a dead letter of a message to be published again.
fn one_shot_commands(bed: &Bed) -> Vec<Vec<String>> {
    bed.publish(["a"]);
    bed.drain(&["--keep-letters", "--exec", "sh", "-c", "exit 65"]);
    let letters = bed.run(&["dead", "list", "--json"]).json();
    let letter = letters["items"][0]["id"].to_string();
    let queue = bed.queue.as_str();
    let commands: [&[&str]; 6] = [
        &["publish", "--queue", queue],
        &["queues", queue],
        &["queues", "move", queue, "other"],
        &["queues", "peek", queue],
        &["queues", "purge", queue, "--yes"],
        &["dead", "retry", &letter],
    ];
    commands.iter().map(|words| words.iter().map(|word| (*word).to_owned()).collect()).collect()
}

#[track_caller]
fn prints_one_error(bed: &Bed, words: &[String], uri: &str, code: i32, expected: &str) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = bed.command(&words);
    command.env("GRISTMILL_AMQP_URI", uri).env("GRISTMILL_AMQP_CONNECT_WITHIN", "500ms");
    let said = RunOutput::of(&command.output().unwrap());
    assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
    assert!(said.err.starts_with("error: ") && said.err.lines().count() == 1, "{words:?}: {said:?}");
    assert!(said.err.contains(expected), "{words:?}: {said:?}");
}

#[test]
fn one_shot_commands_print_one_error_with_the_next_step() {
    let bed = Bed::new("one-shot");
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let wrong = broker().uri().replace(broker().password(), "wrong");
    let mut commands = one_shot_commands(&bed);
    for words in &commands {
        prints_one_error(&bed, words, &format!("amqp://{away}"), 2, "Is the broker running");
    }
    commands.push(["consume", &bed.queue, "--exec", "true"].map(str::to_owned).to_vec());
    for words in &commands {
        prints_one_error(&bed, words, &wrong, 1, "Are the user and the password in the URI the right ones?");
    }
}
