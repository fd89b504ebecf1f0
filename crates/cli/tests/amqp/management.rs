//! `gristmill queues` with the management API of a real broker.

use std::process::Stdio;

use gristmill_amqp::{Message, Queue};
use serde_json::Value;

use crate::bed::{Bed, broker_with_management};
use crate::common::{RunOutput, signal};

/// Takes no more than two messages.
fn bounded(queue: Queue) -> Queue {
    queue.argument("x-max-length", 2_i64).argument("x-overflow", "reject-publish")
}

/// Runs `gristmill queues` with the URL of the API.
#[track_caller]
fn queues(bed: &Bed, url: &str, words: &[&str]) -> RunOutput {
    let mut command = bed.command(&[&["queues"], words].concat());
    command.env("GRISTMILL_AMQP_MANAGEMENT", url);
    bed.output(command)
}

fn url() -> String {
    broker_with_management().management_url().unwrap()
}

/// The URL of the API with another user.
fn url_of(user: &str) -> String {
    format!("http://{user}:pass@{}", broker_with_management().management_address().unwrap())
}

/// Adds users: one without a tag, one with the right tag, and one with the tag and without permissions. One process of
/// `rabbitmqctl` for all takes a tenth of the time of ten.
fn add_users() {
    let add = |name: &str, tags: &str| {
        format!(
            r#"ok = rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"pass">>, <<"test">>),
               ok = rabbit_auth_backend_internal:set_tags(<<"{name}">>, [{tags}], <<"test">>),"#
        )
    };
    let permit = |name: &str| {
        format!(
            r#"ok = rabbit_auth_backend_internal:set_permissions(
                <<"{name}">>, <<"/">>, <<"^$">>, <<"^$">>, <<"^$">>, <<"test">>),"#
        )
    };
    let steps = [
        add("untagged", ""),
        add("monitor", "management"),
        add("stranger", "management"),
        permit("untagged"),
        permit("monitor"),
    ];
    broker_with_management().ctl(["eval", &format!("{} ok.", steps.concat())]).unwrap();
}

/// The name of each listed queue behind the test's own name, its ready messages and those that are being returned.
fn counts(bed: &Bed, queue: &str) -> Vec<(String, u64, Option<u64>)> {
    let said = queues(bed, &url(), &["--json", queue]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let count = |item: &Value| {
        let name = item["queue"].as_str().unwrap().strip_prefix(queue).unwrap();
        (name.to_owned(), item["messages"].as_u64().unwrap(), item["returning"].as_u64())
    };
    said.json()["items"].as_array().unwrap().iter().map(count).collect()
}

#[test]
fn messages_that_the_broker_could_not_return_to_their_full_queue_are_counted() {
    let bed = Bed::at(broker_with_management(), "returning", bounded);
    // Makes the retry queue and the dead queue.
    bed.publish(["a"]);
    bed.drain(&["--attempts", "2", "--retry-delay", "1ms", "--exec", "false"]);
    bed.depth_is(".dead", 1);
    let ready = bed.fill("block") as u64;
    let retry = format!("{}.retry.125", bed.queue);
    bed.send((0..5).map(|number| Message::to_queue(&retry, number.to_string())));
    // Their wait is over, and the queue is full: AMQP counts them nowhere.
    bed.depth_is(".retry.125", 0);
    let expected = [
        (String::new(), ready, Some(0)),
        (".dead".to_owned(), 1, Some(0)),
        (".retry.125".to_owned(), 0, Some(5)),
    ];
    bed.until("all counts", || counts(&bed, &bed.queue) == expected);
    let said = queues(&bed, &url(), &[&bed.queue]);
    let line = said.out.lines().find(|line| line.starts_with(&retry)).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), [&retry, "0", "0", "5"]);
}

#[test]
fn drain_waits_for_messages_that_an_earlier_run_postponed_and_the_broker_has_not_returned() {
    // The broker tries again after this time, instead of three minutes.
    let again = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 15000).";
    broker_with_management().ctl(["eval", again]).unwrap();
    let bed = Bed::at(broker_with_management(), "earlier", bounded);
    bed.publish(["a"]);
    bed.drain(&["--attempts", "2", "--retry-delay", "1ms", "--exec", "false"]);
    let ready = bed.fill("block") as u64;
    let retry = format!("{}.retry.125", bed.queue);
    bed.send((0..2).map(|number| Message::to_queue(&retry, number.to_string())));
    bed.depth_is(".retry.125", 0);
    let words = ["consume", &bed.queue, "--drain", "--json", "--exec", "true"];
    let mut command = bed.command(&words);
    command.env("GRISTMILL_AMQP_MANAGEMENT", url());
    let said = bed.output(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.json()["consumers"][0]["done"], ready + 2, "{said:?}");
    assert!(!said.err.contains("cannot be counted"), "{said:?}");
    // Without the API it is unknown whether messages are left.
    let said = bed.run(&words);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("cannot be counted") && said.err.contains("amqp.management"), "{said:?}");
}

#[test]
fn messages_that_the_broker_could_not_hand_over_to_a_full_dead_queue_are_counted() {
    let bed = Bed::at(broker_with_management(), "handed-over", |queue| queue);
    let queue = bed.declare(".expiring", |name| {
        let dead = format!("{name}.dead");
        Queue::quorum(name)
            .argument("x-message-ttl", 1_i64)
            .argument("x-dead-letter-exchange", "")
            .argument("x-dead-letter-routing-key", dead)
            .argument("x-dead-letter-strategy", "at-least-once")
            .argument("x-overflow", "reject-publish")
    });
    let dead = bed.declare(".expiring.dead", |name| bounded(Queue::quorum(name)));
    let in_dead = bed.fill_queue(&dead, "block") as u64;
    bed.send((0..4).map(|number| Message::to_queue(&queue, number.to_string())));
    bed.depth_is(".expiring", 0);
    let expected = [(String::new(), 0, Some(4)), (".dead".to_owned(), in_dead, Some(0))];
    bed.until("all counts", || counts(&bed, &queue) == expected);
}

#[test]
fn messages_that_a_consumer_holds_are_not_counted_as_returning() {
    let bed = Bed::at(broker_with_management(), "held", |queue| queue);
    bed.publish(["a", "b"]);
    let script = "touch begun-$$; while ! test -e over; do sleep 0.05; done";
    let mut command = bed.command(&["consume", &bed.queue, "--workers", "2", "--exec", "sh", "-c", script]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let holds = || {
        let messages = ["list_queues", "name", "messages_unacknowledged"];
        let found = broker_with_management().ctl(messages).unwrap();
        found.lines().any(|line| line.split_whitespace().eq([bed.queue.as_str(), "2"]))
    };
    bed.until("both messages held", holds);
    bed.until("counts", || counts(&bed, &bed.queue)[0] == (String::new(), 0, Some(0)));
    bed.home.write("over", "");
    signal(&process, "TERM");
    let said = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_queue_that_has_not_reported_its_counts_yet_is_listed() {
    let bed = Bed::at(broker_with_management(), "new", |queue| queue);
    for (suffix, kind) in
        [(".1", Queue::quorum as fn(String) -> Queue), (".2", Queue::classic), (".3", Queue::stream)]
    {
        let queue = bed.declare(suffix, kind);
        let said = queues(&bed, &url(), &["--json", &queue]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let returning = &said.json()["items"][0]["returning"];
        assert!(returning.is_null() || *returning == 0, "{said:?}");
        bed.send(["a", "b"].map(|body| Message::to_queue(&queue, body)));
        bed.until("its counts", || counts(&bed, &queue) == [(String::new(), 2, Some(0))]);
    }
}

/// The counts of AMQP are listed, and one error says what to do.
#[track_caller]
fn is_unknown(bed: &Bed, url: &str, code: i32, expected: &str) {
    let said = queues(bed, url, &["--json", &bed.queue]);
    assert_eq!(said.code, Some(code), "{said:?}");
    let item = &said.json()["items"][0];
    assert_eq!((&item["messages"], &item["returning"]), (&1.into(), &Value::Null), "{said:?}");
    assert!(said.err.starts_with("error: ") && said.err.lines().count() == 1, "{said:?}");
    assert!(said.err.contains("amqp.management") && said.err.contains(expected), "{said:?}");
    assert!(!said.err.contains("pass@"), "{said:?}");
}

#[test]
fn a_user_whom_the_management_api_refuses_is_named_with_the_next_step() {
    let bed = Bed::at(broker_with_management(), "refused", |queue| queue);
    bed.publish(["a"]);
    bed.depth_is("", 1);
    let address = broker_with_management().management_address().unwrap();
    let wrong = format!("http://{}:wrong@{address}", broker_with_management().user());
    is_unknown(&bed, &wrong, 1, "Are the user and the password in its URL the right ones?");
    is_unknown(
        &bed,
        &format!("http://{address}"),
        1,
        "Are the user and the password in its URL the right ones?",
    );
    add_users();
    is_unknown(&bed, &url_of("untagged"), 1, "`rabbitmqctl set_user_tags untagged management`");
    is_unknown(&bed, &url_of("stranger"), 1, "`rabbitmqctl set_permissions -p / stranger '^$' '^$' '^$'`");
    // With what these two messages name, it works.
    bed.until("counts", || {
        queues(&bed, &url_of("monitor"), &["--json", &bed.queue]).json()["items"][0]["returning"] == 0
    });
}

#[test]
fn a_management_api_that_cannot_be_asked_leaves_counts_unknown_and_is_an_error() {
    let bed = Bed::at(broker_with_management(), "away", |queue| queue);
    bed.publish(["a"]);
    bed.depth_is("", 1);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    is_unknown(&bed, &format!("http://me:pass@{free}"), 2, "Is the plugin rabbitmq_management enabled");
    // The port of AMQP does not speak HTTP.
    let amqp = broker_with_management().address();
    is_unknown(&bed, &format!("http://me:pass@{amqp}"), 2, "Is the plugin rabbitmq_management enabled");
}
