//! `gristmill consume --drain`: when it ends.

use std::process::Stdio;

use gristmill_amqp::Queue;

use crate::bed::{Bed, broker};
use crate::common::RunOutput;
#[cfg(target_os = "linux")]
use crate::common::{signal, terminal::Session};
use crate::questions::{Questions, Reaction};
use crate::sinks::Process;

/// Longer than any consumer waits for a message that is nowhere to be seen without knowing that it is to come.
const HANDED_OVER_AGAIN: &str =
    "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 15000).";

#[test]
fn drain_waits_for_a_message_that_its_full_queue_did_not_take_back() {
    // The broker tries again after this time, instead of three minutes.
    broker().ctl(["eval", HANDED_OVER_AGAIN]).unwrap();
    let bed = Bed::with("bounded", |queue: Queue| {
        queue.argument("x-max-length", 3_i64).argument("x-overflow", "reject-publish")
    });
    bed.publish(["late"]);
    // The first attempt of one fails when it may; the others wait until all of them may end.
    let script = "wait_for() { until test -e $1; do sleep 0.05; done; }
        read name
        if test $name = late && test $GRISTMILL_ATTEMPT = 2; then touch late; exit; fi
        touch begun-$$
        if test $name = late; then wait_for fail; exit 1; fi
        wait_for over";
    let words = [
        "consume",
        &bed.queue,
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
    let mut command = bed.command(&words);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = |count: usize| {
        let is_begun = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("begun-");
        bed.until(&format!("{count} commands"), || {
            let files = std::fs::read_dir(bed.home.path("")).unwrap();
            files.filter(|file| is_begun(&file.as_ref().unwrap().file_name())).count() == count
        });
    };
    begun(1);
    assert!(bed.fill("block\n") >= 3);
    begun(2);
    bed.home.write("fail", "");
    // Another message is taken in its place. After that the consumer takes no more.
    begun(3);
    bed.fill("block\n");
    assert_eq!(bed.depth(".retry.8000"), Some(1), "it left before its queue was full: this tests nothing");
    // It is in no queue any more: its own is full.
    bed.depth_is(".retry.8000", 0);
    bed.home.write("over", "");
    let said = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(bed.home.path("late").exists(), "it ended before the message came back: {said:?}");
    let stats = &said.json()["consumers"][0];
    assert_eq!((&stats["postponed"], &stats["retried"]), (&0.into(), &1.into()), "{stats}");
}

/// A consumer that drains, on this way to the broker.
fn drain_by(questions: &Questions, bed: &Bed, words: &[&str]) -> Process {
    let mut command = bed.command(&[&["consume", &bed.queue, "--json", "--drain"], words].concat());
    command.env("GRISTMILL_AMQP_URI", questions.uri());
    Process::start(bed, command)
}

#[test]
fn drain_does_not_end_while_it_is_not_known_whether_messages_wait_for_another_attempt() {
    let bed = Bed::new("not-known");
    bed.publish(["a"]);
    let process = Process::consume(&bed, &["--retry-delay", "1h", "--exec", "false"]);
    bed.depth_is(".retry.4096000", 1);
    process.end();
    // The first finds the queue. After that the connection is lost with each question.
    let questions = Questions::about(&format!("{}.retry.4096000", bed.queue), |before| match before {
        0 => Reaction::Forward,
        _ => Reaction::Close,
    });
    let mut process = drain_by(&questions, &bed, &["--exec", "true"]);
    // More than fit into the time after which a queue without messages is drained.
    bed.until("questions", || questions.count() > 6 || process.has_ended());
    if !process.has_ended() {
        process.terminate();
    }
    let (said, log) = process.wait();
    assert_eq!(said.code, Some(130), "{said:?} {log}");
    assert_eq!(bed.depth(".retry.4096000"), Some(1));
}

#[test]
fn drain_reacts_to_signals_and_time_limits_while_the_broker_does_not_answer() {
    let bed = Bed::new("no-answer");
    for (words, is_signalled, code, expected) in [
        (&[][..], true, 130, "stopping: what runs has "),
        (&["--for", "1s"], false, 0, "consuming "),
        (&["--drain-timeout", "1s"], false, 2, "the broker has not answered for 20s"),
    ] {
        let questions = Questions::about(&format!("{}.retry.125", bed.queue), |_| Reaction::Hold);
        let words = [words, &["--shutdown", "1s", "--exec", "true"]].concat();
        let mut process = drain_by(&questions, &bed, &words);
        bed.until("a question", || questions.count() > 0 || process.has_ended());
        if is_signalled {
            process.terminate();
        }
        bed.until(&format!("the end with {words:?}"), || process.has_ended());
        let (said, log) = process.wait();
        assert_eq!(said.code, Some(code), "{words:?} {said:?} {log}");
        assert!(log.contains(expected), "{words:?} {log}");
    }
}

/// Each question about a queue that does not exist is an error in the broker's log.
#[test]
fn drain_and_queues_ask_about_one_queue_that_does_not_exist() {
    let bed = Bed::new("quiet");
    bed.home.write(
        ".config/gristmill/config.toml",
        &format!("[[consumers]]\nqueue = '{}'\nexec = ['true']\n", bed.queue),
    );
    bed.publish(["a"]);
    let stats = bed.drain(&["--exec", "true"]);
    assert_eq!(stats["done"], 1, "{stats}");
    bed.run(&["queues"]).check("queues", 0, "QUEUE", "");
    let log = std::fs::read_to_string(crate::bed::broker().folder().join("log/broker.log")).unwrap();
    let name = format!("{}.retry.", bed.queue);
    let asked = log.lines().filter(|line| line.contains("no queue") && line.contains(&name)).count();
    assert!(asked <= 2, "{asked} errors about retry queues");
}

/// The argument is in the command line: then the queue may have been full, and the broker may still have messages of it.
#[test]
fn drain_of_a_queue_declared_to_refuse_messages_fails_where_those_to_return_cannot_be_counted() {
    let bed = Bed::with("refusing", |queue: Queue| {
        queue.argument("x-max-length", 3_i64).argument("x-overflow", "reject-publish")
    });
    let arguments = ["--argument", "max-length=3", "--argument", "overflow=reject-publish"];
    let declare = [&["--declare", "quorum"], &arguments[..]].concat();
    let drain = |words: &[&str], action: &str| {
        bed.publish(["a"]);
        let fixed = ["consume", &bed.queue, "--drain", "--attempts", "2", "--retry-delay", "1ms"];
        bed.run(&[&fixed, words, &["--exec", action]].concat())
    };
    // No message was ever postponed, so none can be on its way back.
    drain(&declare, "true").check("before any retry", 0, "1 message done", "consuming");
    let uncounted = "messages that the broker returns to their queue after a wait for another attempt cannot be counted \
                     without the setting amqp.management";
    let failed = format!(
        "error: nothing is left that is counted, but {uncounted}, and a queue with overflow=reject-publish takes none while \
         it is full\n"
    );
    drain(&declare, "false").check("that postpones", 2, "0 messages done", &failed);
    drain(&declare, "true").check("after that", 2, "1 message done", &failed);
    let warned = format!("warning: {uncounted}; nothing else is left\n");
    drain(&[], "true").check("not declared", 0, "1 message done", &warned);
}

#[cfg(target_os = "linux")]
#[test]
fn messages_that_are_to_come_back_are_counted_while_it_runs_and_in_the_end() {
    let bed = Bed::new("come-back");
    bed.publish(["a", "b", "c"]);
    let words = ["consume", &bed.queue, "--retry-delay", "1h", "--exec", "sh", "-c", "test $(cat) = b"];
    let mut session = Session::start(bed.command(&words), 200);
    session.wait_for("2 to come back");
    signal(&session.process, "TERM");
    let (code, shown) = session.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("; 2 postponed, which come back to their queue for another attempt"), "{shown}");
}
