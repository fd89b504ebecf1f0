//! Tests of `gristmill consume --batch`.

use std::collections::BTreeMap;

use gristmill_amqp::Message;
use serde_json::{Value, json};

use crate::fixture::{Fixture, body, header};
use crate::http::{server, status};

/// Returns the batches that commands appended to the file `runs`, as parsed lines.
fn runs(fixture: &Fixture) -> Vec<Vec<Value>> {
    let text = std::fs::read_to_string(fixture.home.path("runs")).unwrap_or_default();
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.split("--\n").filter(|run| !run.is_empty()).map(|run| run.lines().map(parse).collect()).collect()
}

/// Appends its input to the file `runs`. Fails with exit status 3 if a message contains `bad`.
const SCRIPT: &str = "cat > in-$$; grep -q bad in-$$; bad=$?; \
    test $(wc -l < in-$$) = $GRISTMILL_BATCH || exit 66; test -z \"$GRISTMILL_MESSAGE_ID\" || exit 66; \
    (flock 9; cat in-$$ >> runs; echo -- >> runs) 9> lock; test $bad != 0 || exit 3";

const RUN: &[&str] = &["--exec", "sh", "-c", SCRIPT];

#[test]
fn exec_reads_batch_as_json_lines() {
    let fixture = Fixture::new("batch");
    let mut first = Message::to_queue(&fixture.queue, "{\n  \"id\": 12345678901234567890.10\n}").id("m-1");
    first = first.header("tenant", "acme");
    fixture.send([first, Message::to_queue(&fixture.queue, "no json"), Message::to_queue(&fixture.queue, vec![0xff])]);
    fixture.publish((0..7).map(|number| number.to_string()));
    let words = ["--batch", "5", "--linger", "1h", "--exec", "sh", "-c", SCRIPT];
    let stats = fixture.drain(&words);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(10), &json!(0)), "{stats}");
    let runs = runs(&fixture);
    assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
    let text = std::fs::read_to_string(fixture.home.path("runs")).unwrap();
    assert!(text.contains("\"body\":{  \"id\": 12345678901234567890.10}"), "{text}");
    let lines: Vec<&Value> = runs.iter().flatten().collect();
    let first = lines.iter().find(|line| line["message_id"] == "m-1").unwrap();
    assert_eq!((&first["queue"], &first["attempt"]), (&json!(fixture.queue), &json!(1)));
    assert_eq!(first["headers"]["tenant"], "acme");
    assert!(lines.iter().any(|line| line["text"] == "no json"), "{lines:?}");
    assert!(lines.iter().any(|line| line["hex"] == "ff"), "{lines:?}");
}

#[test]
fn failed_batch_costs_an_attempt_only_for_the_message_that_fails_alone() {
    let fixture = Fixture::new("batch-fails");
    fixture.publish(["a", "b", "bad", "c", "d"]);
    let words =
        ["--batch", "5", "--linger", "1h", "--attempts", "3", "--retry-delay", "1ms", "--exec", "sh", "-c", SCRIPT];
    let stats = fixture.drain(&words);
    assert_eq!(
        (&stats["handled"], &stats["dead_lettered"], &stats["retried"]),
        (&json!(4), &json!(1), &json!(2)),
        "{stats}"
    );
    let dead = fixture.take(".dead", 1);
    assert_eq!((body(&dead[0]).as_str(), header(&dead[0], "x-gristmill-failed").as_str()), ("bad", "3"));
    // The batch, each of its messages alone, and the bad one alone twice more.
    let sizes: Vec<usize> = runs(&fixture).iter().map(Vec::len).collect();
    assert_eq!(sizes, [5, 1, 1, 1, 1, 1, 1, 1]);
    let mut counts = BTreeMap::new();
    for line in runs(&fixture).iter().flatten() {
        *counts.entry(line["text"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(counts.get("bad"), Some(&4), "{counts:?}");
    assert!(["a", "b", "c", "d"].iter().all(|name| counts.get(*name) == Some(&2)), "{counts:?}");
}

#[test]
fn http_posts_batch_as_json_lines() {
    let (url, requests) = server(|body, _| match body.contains("bad") {
        true => status("422 Unprocessable Entity", "", "bad"),
        false => status("204 No Content", "", ""),
    });
    let fixture = Fixture::new("batch-post");
    fixture.publish(["1", "2", "\"bad\"", "3"]);
    let stats = fixture.drain(&["--batch", "4", "--linger", "1h", "--http", &url]);
    assert_eq!((&stats["handled"], &stats["dead_lettered"]), (&json!(3), &json!(1)), "{stats}");
    let requests = requests.lock().unwrap();
    let (head, lines) = &requests[0];
    let head = head.to_lowercase();
    assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");
    assert!(head.contains("x-gristmill-batch: 4\r\n"), "{head}");
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert_eq!(requests.iter().map(|(_, body)| body.lines().count()).collect::<Vec<_>>(), [4, 1, 1, 1, 1]);
    assert_eq!(body(&fixture.take(".dead", 1)[0]), "\"bad\"");
}

#[test]
fn killed_consumer_of_batches_loses_no_message() {
    let fixture = Fixture::new("batch-killed");
    fixture.publish((0..20).map(|number| number.to_string()));
    let script = "cat > /dev/null; : > started; until test -e go; do sleep 0.02; done";
    let words = ["consume", &fixture.queue, "--batch", "20", "--linger", "1h", "--exec", "sh", "-c", script];
    let mut process = fixture.command(&words).spawn().unwrap();
    fixture.wait_until("a batch that runs", || fixture.home.path("started").exists());
    process.kill().unwrap();
    process.wait().unwrap();
    fixture.home.write("go", "");
    fixture.wait_for_depth("", 20);
    let stats = fixture.drain(&["--batch", "20", "--exec", "true"]);
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(20), &json!(0)), "{stats}");
}

#[test]
fn collected_messages_have_no_start_before_their_batch_runs() {
    let fixture = Fixture::new("batch-waits");
    fixture.publish((0..10).map(|number| number.to_string()));
    let words = [&["consume", &fixture.queue, "--batch", "50", "--linger", "1h", "--max-starts", "2"], RUN].concat();
    for _ in 0..6 {
        let mut process = fixture.command(&words).spawn().unwrap();
        fixture.wait_for_depth("", 0);
        process.kill().unwrap();
        process.wait().unwrap();
        fixture.wait_for_depth("", 10);
    }
    assert_eq!(runs(&fixture), Vec::<Vec<Value>>::new());
    let stats = fixture.drain(&[&["--batch", "10", "--linger", "1h", "--max-starts", "2"], RUN].concat());
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(10), &json!(0)), "{stats}");
    // All fit into one batch.
    assert_eq!(runs(&fixture).iter().map(Vec::len).collect::<Vec<_>>(), [10]);
}

#[test]
fn messages_that_may_have_killed_the_process_run_alone_without_linger() {
    let fixture = Fixture::new("batch-alone");
    fixture.publish((0..3).map(|number| number.to_string()));
    let script = "cat > /dev/null; : > started; until test -e go; do sleep 0.02; done";
    let words = ["consume", &fixture.queue, "--batch", "3", "--linger", "1h", "--exec", "sh", "-c", script];
    for _ in 0..2 {
        let mut process = fixture.command(&words).spawn().unwrap();
        fixture.wait_until("a batch that runs", || fixture.home.path("started").exists());
        process.kill().unwrap();
        process.wait().unwrap();
        std::fs::remove_file(fixture.home.path("started")).unwrap();
        fixture.wait_for_depth("", 3);
    }
    fixture.home.write("go", "");
    let stats = fixture.drain(&[&["--batch", "3", "--linger", "1h"], RUN].concat());
    assert_eq!((&stats["acknowledged"], &stats["dead_lettered"]), (&json!(3), &json!(0)), "{stats}");
    assert_eq!(runs(&fixture).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
}
