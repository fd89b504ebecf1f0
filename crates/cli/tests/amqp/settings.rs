//! What the settings file says about the broker and its consumers.

use serde_json::json;

use crate::bed::{Bed, broker, clean};
use crate::common::{Home, RunOutput};

const FILE: &str = ".config/gristmill/config.toml";

/// What a settings file with this in it is refused with, by every command.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let home = Home::new();
    home.write(FILE, text);
    for words in [&["config", "show"][..], &["consume"], &["jobs", "list"]] {
        home.check(words, 1, "", expected);
        assert!(!home.run(words).err.contains("s3cr3t"));
    }
}

#[test]
fn a_wrong_consumer_is_named_with_its_line_and_what_is_legal() {
    let consumer = "[[consumers]]\nqueue = 'q'\nexec = ['true']\n";
    refused(
        &format!("{consumer}workers = 201\n"),
        "config.toml:4), which is not legal\n\nlegal: a whole number from 0",
    );
    refused(
        &format!("{consumer}worker = 2\n"),
        "config.toml:4: consumers have no setting worker; did you mean workers?",
    );
    refused(&format!("{consumer}keep_letters = 'maybe'\n"), "consumers.keep_letters is \"maybe\" (");
    refused(&format!("{consumer}http = 'http://x'\n"), "a consumer has exec and http (");
    refused("[[consumers]]\nqueue = 'q'\n", "config.toml:1); one of exec, http, enqueue, into is legal");
    refused("[[consumers]]\nexec = ['true']\n", "queue is missing (");
    refused("[[consumers]]\nqueue = 'q'\nexec = 'true'\n", "legal: a list: the program and its words");
    refused("[consumers]\nqueue = 'q'\n", "config.toml:1: consumers are tables, each under [[consumers]]");
    refused("consumers = [1]\n", "consumers are tables, each under [[consumers]]");
    refused("[amqp]\nuri = 'amqp://a:s3cr3t@h:x'\n", "config.toml:2) is not legal: ");
    refused("[amqp]\nuri = 5\n", "amqp.uri (");
    refused("[amqp]\nuri = []\n", "there is none");
}

#[test]
fn a_password_in_the_file_is_shown_by_nothing() {
    let home = Home::new();
    home.write(FILE, "[amqp]\nuri = ['amqp://miller:s3cr3t@a/grain', 'amqps://miller:s3cr3t@b']\n");
    for words in [&["config", "show"][..], &["config", "show", "--json"], &["config", "show", "-vvv"]] {
        let said = home.run(words);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains("amqp://miller@a:5672/grain, amqps://miller@b:5671/%2f"), "{said:?}");
        assert!(!said.out.contains("s3cr3t") && !said.err.contains("s3cr3t"), "{said:?}");
    }
}

#[test]
fn consumers_of_the_file_run_together_or_by_name() {
    let bed = Bed::new("both");
    let other = Bed::new("other");
    let text = format!(
        "[amqp]\nuri = '{}'\n[[consumers]]\nqueue = '{}'\nexec = ['true']\n[[consumers]]\nqueue = '{}'\nname = 'named'\n\
         exec = ['false']\nattempts = 1\nevent = 'x'\n",
        broker().uri(),
        bed.queue,
        other.queue
    );
    bed.home.write(FILE, &text);
    bed.publish(["a"]);
    other.publish(["b"]);
    let run = |words: &[&str]| {
        let fixed = ["consume", "--json", "--drain", "--for", "2m"];
        let said = clean(RunOutput::of(&bed.home.command(&[&fixed, words].concat()).output().unwrap()));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.json()["consumers"].clone()
    };
    let stats = run(&["named"]);
    assert_eq!(stats.as_array().unwrap().len(), 1, "{stats}");
    assert_eq!((&stats[0]["rejected"], &stats[0]["event"]), (&json!(1), &json!("x")), "{stats}");
    let stats = run(&[]);
    assert_eq!(stats.as_array().unwrap().len(), 2, "{stats}");
    assert_eq!(stats[0]["acknowledged"], 1, "{stats}");
    let said = clean(bed.run(&["consume", "unknown"]));
    said.check("unknown", 1, "", "the settings file has no consumer of the queue \"unknown\"");
}

#[test]
fn a_queue_is_made_bound_and_read_as_a_stream() {
    let bed = Bed::new("made");
    let stream = format!("{}-stream", bed.queue);
    let fixed = ["consume", &stream, "--declare", "stream", "--bind", "amq.topic:made.#", "--for", "100ms"];
    let said = bed.run(&[&fixed, &["--exec", "true"][..]].concat());
    assert!(said.code == Some(0) && said.out.contains("0 messages"), "{said:?}");
    let lines = bed.home.write("lines", "one\ntwo\n");
    let words = [
        "publish",
        "--exchange",
        "amq.topic",
        "--routing-key",
        "made.here",
        "--lines",
        lines.to_str().unwrap(),
    ];
    bed.run(&words).check("publish", 0, "2 messages published", "");
    let script = "echo $(cat) >> seen; test $GRISTMILL_ROUTING_KEY = made.here";
    let mut command = bed.command(&[
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
    let process =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let seen = || std::fs::read_to_string(bed.home.path("seen")).unwrap_or_default();
    bed.until("two lines", || seen().lines().count() == 2);
    crate::common::signal(&process, "TERM");
    assert_eq!({ process }.wait().unwrap().code(), Some(0));
    let seen = seen();
    let mut lines: Vec<&str> = seen.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "two"]);
}
