//! `gristmill consume --drain`: when it ends, and with which exit status.

use std::process::Stdio;

use gristmill_amqp::Queue;

use crate::common::RunOutput;
#[cfg(target_os = "linux")]
use crate::common::{signal, terminal::Session};
use crate::consumer_process::ConsumerProcess;
use crate::fixture::{Fixture, broker};
use crate::proxy::{DepthProxy, Reaction};

/// Makes the broker retry after 15 s to return a message. That is longer than a drain waits if it does not expect one.
const RETURN_AFTER_15_S: &str = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 15000).";

#[test]
fn drain_waits_for_message_that_the_broker_cannot_return_to_its_full_queue() {
    // The default is three minutes.
    broker().ctl(["eval", RETURN_AFTER_15_S]).unwrap();
    let fixture = Fixture::with("bounded", |queue: Queue| {
        queue.argument("x-max-length", 3_i64).argument("x-overflow", "reject-publish")
    });
    fixture.publish(["late"]);
    // The first attempt of `late` fails when the file `fail` exists; the others wait for the file `over`.
    let script = "wait_for() { until test -e $1; do sleep 0.05; done; }
        read name
        if test $name = late && test $GRISTMILL_ATTEMPT = 2; then touch late; exit; fi
        touch begun-$$
        if test $name = late; then wait_for fail; exit 1; fi
        wait_for over";
    let words = [
        "consume",
        &fixture.queue,
        "--drain",
        "--json",
        "--workers",
        "2",
        "--prefetch",
        "2",
        "--retry-delay",
        "8s",
        "--exec",
        "sh",
        "-c",
        script,
    ];
    let mut command = fixture.command(&words);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = |count: usize| {
        let is_begun = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("begun-");
        fixture.wait_until(&format!("{count} commands"), || {
            let files = std::fs::read_dir(fixture.home.path("")).unwrap();
            files.filter(|file| is_begun(&file.as_ref().unwrap().file_name())).count() == count
        });
    };
    begun(1);
    assert!(fixture.fill("block\n") >= 3);
    begun(2);
    fixture.home.write("fail", "");
    // Another message is received in its place. Then the prefetch is used up.
    begun(3);
    fixture.fill("block\n");
    assert_eq!(fixture.depth(".retry.8000"), Some(1), "the delay ended before the queue was full: the test is void");
    // The message is in no queue now, because its queue is full.
    fixture.wait_for_depth(".retry.8000", 0);
    fixture.home.write("over", "");
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(fixture.home.path("late").exists(), "the drain ended before the message came back: {output:?}");
    let stats = &output.json()["consumers"][0];
    assert_eq!((&stats["postponed"], &stats["retried"]), (&0.into(), &1.into()), "{stats}");
}

/// Starts a drain through the proxy.
fn drain_through(proxy: &DepthProxy, fixture: &Fixture, words: &[&str]) -> ConsumerProcess {
    let mut command = fixture.command(&[&["consume", &fixture.queue, "--json", "--drain"], words].concat());
    command.env("GRISTMILL_AMQP_URI", proxy.uri());
    ConsumerProcess::start(fixture, command)
}

#[test]
fn drain_continues_while_depth_of_retry_queue_is_unknown() {
    let fixture = Fixture::new("not-known");
    fixture.publish(["a"]);
    let process = ConsumerProcess::consume(&fixture, &["--retry-delay", "1h", "--exec", "false"]);
    fixture.wait_for_depth(".retry.4096000", 1);
    process.end();
    // The first request finds the queue. Each later one loses its connection.
    let proxy = DepthProxy::about(&format!("{}.retry.4096000", fixture.queue), |before| match before {
        0 => Reaction::Forward,
        _ => Reaction::Close,
    });
    let mut process = drain_through(&proxy, &fixture, &["--exec", "true"]);
    // More requests than fit into the idle period after which an empty queue is drained.
    fixture.wait_until("requests", || proxy.count() > 6 || process.has_ended());
    if !process.has_ended() {
        process.terminate();
    }
    let (output, log) = process.wait();
    assert_eq!(output.code, Some(130), "{output:?} {log}");
    assert_eq!(fixture.depth(".retry.4096000"), Some(1));
}

#[test]
fn drain_reacts_to_signals_and_limits_while_broker_does_not_answer() {
    let fixture = Fixture::new("no-answer");
    for (words, is_signalled, code, expected) in [
        (&[][..], true, 130, "stopping: waiting up to "),
        (&["--for", "1s"], false, 0, "consuming "),
        (&["--drain-timeout", "1s"], false, 2, "the broker has not answered for 20s"),
    ] {
        let proxy = DepthProxy::about(&format!("{}.retry.125", fixture.queue), |_| Reaction::Hold);
        let words = [words, &["--shutdown", "1s", "--exec", "true"]].concat();
        let mut process = drain_through(&proxy, &fixture, &words);
        fixture.wait_until("a request", || proxy.count() > 0 || process.has_ended());
        if is_signalled {
            process.terminate();
        }
        fixture.wait_until(&format!("the end with {words:?}"), || process.has_ended());
        let (output, log) = process.wait();
        assert_eq!(output.code, Some(code), "{words:?} {output:?} {log}");
        assert!(log.contains(expected), "{words:?} {log}");
    }
}

/// The broker logs an error for each lookup of a queue that does not exist.
#[test]
fn drain_and_queues_look_up_at_most_one_missing_retry_queue() {
    let fixture = Fixture::new("quiet");
    fixture.home.write(
        ".config/gristmill/config.toml",
        &format!("[[consumers]]\nqueue = '{}'\nexec = ['true']\n", fixture.queue),
    );
    fixture.publish(["a"]);
    let stats = fixture.drain(&["--exec", "true"]);
    assert_eq!(stats["handled"], 1, "{stats}");
    fixture.run(&["queues"]).check("queues", 0, "QUEUE", "");
    let log = std::fs::read_to_string(crate::fixture::broker().folder().join("log/broker.log")).unwrap();
    let name = format!("{}.retry.", fixture.queue);
    let asked = log.lines().filter(|line| line.contains("no queue") && line.contains(&name)).count();
    assert!(asked <= 2, "{asked} errors about retry queues");
}

/// With overflow=reject-publish the queue may have been full, and the broker may still hold messages.
#[test]
fn drain_fails_when_returning_messages_of_reject_publish_queue_cannot_be_counted() {
    let fixture = Fixture::with("refusing", |queue: Queue| {
        queue.argument("x-max-length", 3_i64).argument("x-overflow", "reject-publish")
    });
    let arguments = ["--argument", "max-length=3", "--argument", "overflow=reject-publish"];
    let declare = [&["--declare", "quorum"], &arguments[..]].concat();
    let drain = |words: &[&str], action: &str| {
        fixture.publish(["a"]);
        let fixed = ["consume", &fixture.queue, "--drain", "--attempts", "2", "--retry-delay", "1ms"];
        fixture.run(&[&fixed, words, &["--exec", action]].concat())
    };
    // No message was ever postponed, so none can be returning.
    drain(&declare, "true").check("before any retry", 0, "1 message done", "consuming");
    let uncounted = "messages that the broker is returning from retry queues cannot be counted without the setting \
                     amqp.management";
    let failed = format!(
        "error: all counted messages are handled, but {uncounted}, and a queue with overflow=reject-publish accepts none while \
         it is full\n"
    );
    drain(&declare, "false").check("that postpones", 2, "0 messages done", &failed);
    drain(&declare, "true").check("after that", 2, "1 message done", &failed);
    let warned = format!("warning: {uncounted}; no other message is left\n");
    drain(&[], "true").check("not declared", 0, "1 message done", &warned);
}

#[cfg(target_os = "linux")]
#[test]
fn postponed_messages_are_shown_in_progress_and_summary() {
    let fixture = Fixture::new("come-back");
    fixture.publish(["a", "b", "c"]);
    let words = ["consume", &fixture.queue, "--retry-delay", "1h", "--exec", "sh", "-c", "test $(cat) = b"];
    let mut session = Session::start(fixture.command(&words), 200);
    session.wait_for("2 postponed");
    signal(&session.process, "TERM");
    let (code, shown) = session.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("; 2 postponed (they return to their queue after the retry delay)"), "{shown}");
}
