//! `gristmill consume --batch`.

use std::collections::BTreeMap;

use gristmill_amqp::Message;
use serde_json::{Value, json};

use crate::bed::{Bed, body, header};
use crate::http::{server, status};

/// Lines that commands wrote into a file, each a batch: the number of lines and the bodies.
fn runs(bed: &Bed) -> Vec<Vec<Value>> {
    let text = std::fs::read_to_string(bed.home.path("runs")).unwrap_or_default();
    let parse =
        |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.split("--\n").filter(|run| !run.is_empty()).map(|run| run.lines().map(parse).collect()).collect()
}

/// Keeps what it reads. Fails with 3 if a message says `bad`.
const SCRIPT: &str = "cat > in-$$; grep -q bad in-$$; bad=$?; \
    test $(wc -l < in-$$) = $GRISTMILL_BATCH || exit 66; test -z \"$GRISTMILL_MESSAGE_ID\" || exit 66; \
    (flock 9; cat in-$$ >> runs; echo -- >> runs) 9> lock; test $bad != 0 || exit 3";

const RUN: &[&str] = &["--exec", "sh", "-c", SCRIPT];

#[test]
fn a_command_reads_a_batch_as_json_lines() {
    let bed = Bed::new("batch");
    let mut first = Message::to_queue(&bed.queue, "{\n  \"id\": 12345678901234567890.10\n}").id("m-1");
    first = first.header("tenant", "acme");
    bed.send([first, Message::to_queue(&bed.queue, "no json"), Message::to_queue(&bed.queue, vec![0xff])]);
    bed.publish((0..7).map(|number| number.to_string()));
    let words = ["--batch", "5", "--linger", "1h", "--exec", "sh", "-c", SCRIPT];
    let stats = bed.drain(&words);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(10), &json!(0)), "{stats}");
    let runs = runs(&bed);
    assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
    let text = std::fs::read_to_string(bed.home.path("runs")).unwrap();
    assert!(text.contains("\"body\":{  \"id\": 12345678901234567890.10}"), "{text}");
    let lines: Vec<&Value> = runs.iter().flatten().collect();
    let first = lines.iter().find(|line| line["message_id"] == "m-1").unwrap();
    assert_eq!((&first["queue"], &first["attempt"]), (&json!(bed.queue), &json!(1)));
    assert_eq!(first["headers"]["tenant"], "acme");
    assert!(lines.iter().any(|line| line["text"] == "no json"), "{lines:?}");
    assert!(lines.iter().any(|line| line["hex"] == "ff"), "{lines:?}");
}

#[test]
fn only_the_message_that_fails_alone_pays_for_its_batch() {
    let bed = Bed::new("batch-fails");
    bed.publish(["a", "b", "bad", "c", "d"]);
    let words = [
        "--batch",
        "5",
        "--linger",
        "1h",
        "--attempts",
        "3",
        "--retry-delay",
        "1ms",
        "--exec",
        "sh",
        "-c",
        SCRIPT,
    ];
    let stats = bed.drain(&words);
    assert_eq!(
        (&stats["done"], &stats["rejected"], &stats["retried"]),
        (&json!(4), &json!(1), &json!(2)),
        "{stats}"
    );
    let dead = bed.take(".dead", 1);
    assert_eq!((body(&dead[0]).as_str(), header(&dead[0], "x-gristmill-failed").as_str()), ("bad", "3"));
    // The batch, each of its messages alone, and the bad one twice more, always alone.
    let sizes: Vec<usize> = runs(&bed).iter().map(Vec::len).collect();
    assert_eq!(sizes, [5, 1, 1, 1, 1, 1, 1, 1]);
    let mut counts = BTreeMap::new();
    for line in runs(&bed).iter().flatten() {
        *counts.entry(line["text"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(counts.get("bad"), Some(&4), "{counts:?}");
    assert!(["a", "b", "c", "d"].iter().all(|name| counts.get(*name) == Some(&2)), "{counts:?}");
}

#[test]
fn a_batch_is_posted_as_json_lines() {
    let (url, requests) = server(|body, _| match body.contains("bad") {
        true => status("422 Unprocessable Entity", "", "bad"),
        false => status("204 No Content", "", ""),
    });
    let bed = Bed::new("batch-post");
    bed.publish(["1", "2", "\"bad\"", "3"]);
    let stats = bed.drain(&["--batch", "4", "--linger", "1h", "--http", &url]);
    assert_eq!((&stats["done"], &stats["rejected"]), (&json!(3), &json!(1)), "{stats}");
    let requests = requests.lock().unwrap();
    let (head, lines) = &requests[0];
    let head = head.to_lowercase();
    assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");
    assert!(head.contains("x-gristmill-batch: 4\r\n"), "{head}");
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert_eq!(requests.iter().map(|(_, body)| body.lines().count()).collect::<Vec<_>>(), [4, 1, 1, 1, 1]);
    assert_eq!(body(&bed.take(".dead", 1)[0]), "\"bad\"");
}

#[test]
fn a_killed_consumer_of_batches_loses_no_message() {
    let bed = Bed::new("batch-killed");
    bed.publish((0..20).map(|number| number.to_string()));
    let script = "cat > /dev/null; : > started; until test -e go; do sleep 0.02; done";
    let words = ["consume", &bed.queue, "--batch", "20", "--linger", "1h", "--exec", "sh", "-c", script];
    let mut process = bed.command(&words).spawn().unwrap();
    bed.until("a batch that runs", || bed.home.path("started").exists());
    process.kill().unwrap();
    process.wait().unwrap();
    bed.home.write("go", "");
    bed.depth_is("", 20);
    let stats = bed.drain(&["--batch", "20", "--exec", "true"]);
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(20), &json!(0)), "{stats}");
}

#[test]
fn messages_of_a_batch_that_was_never_handed_out_have_no_start() {
    let bed = Bed::new("batch-waits");
    bed.publish((0..10).map(|number| number.to_string()));
    let words =
        [&["consume", &bed.queue, "--batch", "50", "--linger", "1h", "--max-starts", "2"], RUN].concat();
    for _ in 0..6 {
        let mut process = bed.command(&words).spawn().unwrap();
        bed.depth_is("", 0);
        process.kill().unwrap();
        process.wait().unwrap();
        bed.depth_is("", 10);
    }
    assert_eq!(runs(&bed), Vec::<Vec<Value>>::new());
    let stats = bed.drain(&[&["--batch", "10", "--linger", "1h", "--max-starts", "2"], RUN].concat());
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(10), &json!(0)), "{stats}");
    // Nothing speaks against one batch of them all.
    assert_eq!(runs(&bed).iter().map(Vec::len).collect::<Vec<_>>(), [10]);
}

#[test]
fn messages_that_may_have_ended_the_process_run_alone_and_at_once() {
    let bed = Bed::new("batch-alone");
    bed.publish((0..3).map(|number| number.to_string()));
    let script = "cat > /dev/null; : > started; until test -e go; do sleep 0.02; done";
    let words = ["consume", &bed.queue, "--batch", "3", "--linger", "1h", "--exec", "sh", "-c", script];
    for _ in 0..2 {
        let mut process = bed.command(&words).spawn().unwrap();
        bed.until("a batch that runs", || bed.home.path("started").exists());
        process.kill().unwrap();
        process.wait().unwrap();
        std::fs::remove_file(bed.home.path("started")).unwrap();
        bed.depth_is("", 3);
    }
    bed.home.write("go", "");
    let stats = bed.drain(&[&["--batch", "3", "--linger", "1h"], RUN].concat());
    assert_eq!((&stats["acknowledged"], &stats["rejected"]), (&json!(3), &json!(0)), "{stats}");
    assert_eq!(runs(&bed).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
}
