//! Settings of the broker and of consumers in the settings file.

use serde_json::json;

use crate::common::{Home, RunOutput};
use crate::fixture::{Fixture, broker, check_no_password};

const FILE: &str = ".config/gristmill/config.toml";

/// Checks that every command rejects a settings file with this text.
#[track_caller]
fn rejects(text: &str, expected: &str) {
    let home = Home::new();
    home.write(FILE, text);
    for words in [&["config", "show"][..], &["consume"], &["jobs", "list"]] {
        home.check(words, 1, "", expected);
        assert!(!home.run(words).err.contains("s3cr3t"));
    }
}

#[test]
fn invalid_consumer_error_names_line_and_expected_value() {
    let consumer = "[[consumers]]\nqueue = 'q'\nexec = ['true']\n";
    rejects(
        &format!("{consumer}workers = 201\n"),
        "config.toml:4), which is not allowed\n\nexpected: a whole number from 0",
    );
    rejects(
        &format!("{consumer}worker = 2\n"),
        "config.toml:4: consumers have no setting worker; did you mean workers?",
    );
    rejects(&format!("{consumer}store_dead_letters = 'maybe'\n"), "consumers.store_dead_letters is \"maybe\" (");
    rejects(&format!("{consumer}http = 'http://x'\n"), "a consumer has exec and http (");
    rejects("[[consumers]]\nqueue = 'q'\n", "config.toml:1); expected: one of exec, http, enqueue, into");
    rejects("[[consumers]]\nexec = ['true']\n", "queue is missing (");
    rejects("[[consumers]]\nqueue = 'q'\nexec = 'true'\n", "expected: a list: the program and its arguments");
    rejects("[consumers]\nqueue = 'q'\n", "config.toml:1: consumers are tables, each under [[consumers]]");
    rejects("consumers = [1]\n", "consumers are tables, each under [[consumers]]");
    rejects("[amqp]\nuri = 'amqp://a:s3cr3t@h:x'\n", "config.toml:2) is not allowed: ");
    rejects("[amqp]\nuri = 5\n", "amqp.uri (");
    rejects("[amqp]\nuri = []\n", "is not allowed: it is empty");
}

#[test]
fn password_in_settings_file_is_never_printed() {
    let home = Home::new();
    home.write(FILE, "[amqp]\nuri = ['amqp://alice:s3cr3t@a/shop', 'amqps://alice:s3cr3t@b']\n");
    for words in [&["config", "show"][..], &["config", "show", "--json"], &["config", "show", "-vvv"]] {
        let output = home.run(words);
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.out.contains("amqp://alice@a:5672/shop, amqps://alice@b:5671/%2f"), "{output:?}");
        assert!(!output.out.contains("s3cr3t") && !output.err.contains("s3cr3t"), "{output:?}");
    }
}

#[test]
fn consumers_of_settings_file_run_together_or_by_name() {
    let fixture = Fixture::new("both");
    let other = Fixture::new("other");
    let text = format!(
        "[amqp]\nuri = '{}'\n[[consumers]]\nqueue = '{}'\nexec = ['true']\n[[consumers]]\nqueue = '{}'\nname = 'named'\n\
         exec = ['false']\nattempts = 1\nevent = 'x'\n",
        broker().uri(),
        fixture.queue,
        other.queue
    );
    fixture.home.write(FILE, &text);
    fixture.publish(["a"]);
    other.publish(["b"]);
    let run = |words: &[&str]| {
        let fixed = ["consume", "--json", "--drain", "--for", "2m"];
        let output =
            check_no_password(RunOutput::of(&fixture.home.command(&[&fixed, words].concat()).output().unwrap()));
        assert_eq!(output.code, Some(0), "{output:?}");
        output.json()["consumers"].clone()
    };
    let stats = run(&["named"]);
    assert_eq!(stats.as_array().unwrap().len(), 1, "{stats}");
    assert_eq!((&stats[0]["dead_lettered"], &stats[0]["event"]), (&json!(1), &json!("x")), "{stats}");
    let stats = run(&[]);
    assert_eq!(stats.as_array().unwrap().len(), 2, "{stats}");
    assert_eq!(stats[0]["acknowledged"], 1, "{stats}");
    let output = check_no_password(fixture.run(&["consume", "unknown"]));
    output.check("unknown", 1, "", "the settings file has no consumer with the queue or name \"unknown\"");
}

#[test]
fn stream_is_declared_bound_and_read() {
    let fixture = Fixture::new("made");
    let stream = format!("{}-stream", fixture.queue);
    let fixed = ["consume", &stream, "--declare", "stream", "--bind", "amq.topic:made.#", "--for", "100ms"];
    let output = fixture.run(&[&fixed, &["--exec", "true"][..]].concat());
    assert!(output.code == Some(0) && output.out.contains("0 messages"), "{output:?}");
    let lines = fixture.home.write("lines", "one\ntwo\n");
    let words =
        ["publish", "--exchange", "amq.topic", "--routing-key", "made.here", "--lines", lines.to_str().unwrap()];
    fixture.run(&words).check("publish", 0, "2 messages published", "");
    let script = "echo $(cat) >> seen; test $GRISTMILL_ROUTING_KEY = made.here";
    let mut command = fixture.command(&[
        "consume",
        &stream,
        "--declare",
        "stream",
        "--offset",
        "first",
        "--exec",
        "sh",
        "-c",
        script,
    ]);
    let process = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let seen = || std::fs::read_to_string(fixture.home.path("seen")).unwrap_or_default();
    fixture.wait_until("two lines", || seen().lines().count() == 2);
    crate::common::signal(&process, "TERM");
    assert_eq!({ process }.wait().unwrap().code(), Some(0));
    let seen = seen();
    let mut lines: Vec<&str> = seen.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "two"]);
}
