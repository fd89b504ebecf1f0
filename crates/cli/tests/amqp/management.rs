//! `gristmill queues` and `consume --drain` with the management API.

use std::process::Stdio;

use gristmill_amqp::{Message, Queue};
use serde_json::Value;

use crate::common::{RunOutput, signal};
use crate::fixture::{Fixture, broker_with_management};

/// Makes the queue reject messages once it has two.
fn bounded(queue: Queue) -> Queue {
    queue.argument("x-max-length", 2_i64).argument("x-overflow", "reject-publish")
}

/// Runs `gristmill queues` with the URL of the API.
#[track_caller]
fn queues(fixture: &Fixture, url: &str, words: &[&str]) -> RunOutput {
    let mut command = fixture.command(&[&["queues"], words].concat());
    command.env("GRISTMILL_AMQP_MANAGEMENT", url);
    fixture.output(command)
}

fn url() -> String {
    broker_with_management().management_url().unwrap()
}

/// Returns the URL of the API with another user.
fn url_of(user: &str) -> String {
    format!("http://{user}:pass@{}", broker_with_management().management_address().unwrap())
}

/// Adds users: one without a tag, one with the tag, and one with the tag and no permissions. One process of
/// `rabbitmqctl` is ten times as fast as ten.
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
        add("unpermitted", "management"),
        permit("untagged"),
        permit("monitor"),
    ];
    broker_with_management().ctl(["eval", &format!("{} ok.", steps.concat())]).unwrap();
}

/// Returns suffix, ready messages and returning messages of each listed queue.
fn counts(fixture: &Fixture, queue: &str) -> Vec<(String, u64, Option<u64>)> {
    let output = queues(fixture, &url(), &["--json", queue]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let count = |item: &Value| {
        let name = item["queue"].as_str().unwrap().strip_prefix(queue).unwrap();
        (name.to_owned(), item["messages"].as_u64().unwrap(), item["returning"].as_u64())
    };
    output.json()["items"].as_array().unwrap().iter().map(count).collect()
}

#[test]
fn queues_counts_messages_that_broker_cannot_return_to_full_queue() {
    let fixture = Fixture::at(broker_with_management(), "returning", bounded);
    // Declares the retry queue and the dead queue.
    fixture.publish(["a"]);
    fixture.drain(&["--attempts", "2", "--retry-delay", "1ms", "--exec", "false"]);
    fixture.wait_for_depth(".dead", 1);
    let ready = fixture.fill("block") as u64;
    let retry = format!("{}.retry.125", fixture.queue);
    fixture.send((0..5).map(|number| Message::to_queue(&retry, number.to_string())));
    // Their delay is over and the queue is full: AMQP counts them nowhere.
    fixture.wait_for_depth(".retry.125", 0);
    let expected =
        [(String::new(), ready, Some(0)), (".dead".to_owned(), 1, Some(0)), (".retry.125".to_owned(), 0, Some(5))];
    fixture.wait_until("all counts", || counts(&fixture, &fixture.queue) == expected);
    let output = queues(&fixture, &url(), &[&fixture.queue]);
    let line = output.out.lines().find(|line| line.starts_with(&retry)).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), [&retry, "0", "0", "5"]);
}

#[test]
fn drain_waits_for_messages_postponed_by_an_earlier_run() {
    // The broker retries after 15 s instead of three minutes.
    let again = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 15000).";
    broker_with_management().ctl(["eval", again]).unwrap();
    let fixture = Fixture::at(broker_with_management(), "earlier", bounded);
    fixture.publish(["a"]);
    fixture.drain(&["--attempts", "2", "--retry-delay", "1ms", "--exec", "false"]);
    let ready = fixture.fill("block") as u64;
    let retry = format!("{}.retry.125", fixture.queue);
    fixture.send((0..2).map(|number| Message::to_queue(&retry, number.to_string())));
    fixture.wait_for_depth(".retry.125", 0);
    let words = ["consume", &fixture.queue, "--drain", "--json", "--exec", "true"];
    let mut command = fixture.command(&words);
    command.env("GRISTMILL_AMQP_MANAGEMENT", url());
    let output = fixture.output(command);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.json()["consumers"][0]["handled"], ready + 2, "{output:?}");
    assert!(!output.err.contains("cannot be counted"), "{output:?}");
    // Without the API it is unknown whether messages are left.
    let output = fixture.run(&words);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.err.contains("cannot be counted") && output.err.contains("amqp.management"), "{output:?}");
}

#[test]
fn queues_counts_messages_that_broker_cannot_move_to_full_dead_queue() {
    let fixture = Fixture::at(broker_with_management(), "handed-over", |queue| queue);
    let queue = fixture.declare(".expiring", |name| {
        let dead = format!("{name}.dead");
        Queue::quorum(name)
            .argument("x-message-ttl", 1_i64)
            .argument("x-dead-letter-exchange", "")
            .argument("x-dead-letter-routing-key", dead)
            .argument("x-dead-letter-strategy", "at-least-once")
            .argument("x-overflow", "reject-publish")
    });
    let dead = fixture.declare(".expiring.dead", |name| bounded(Queue::quorum(name)));
    let in_dead = fixture.fill_queue(&dead, "block") as u64;
    fixture.send((0..4).map(|number| Message::to_queue(&queue, number.to_string())));
    fixture.wait_for_depth(".expiring", 0);
    let expected = [(String::new(), 0, Some(4)), (".dead".to_owned(), in_dead, Some(0))];
    fixture.wait_until("all counts", || counts(&fixture, &queue) == expected);
}

#[test]
fn unacknowledged_messages_are_not_counted_as_returning() {
    let fixture = Fixture::at(broker_with_management(), "held", |queue| queue);
    fixture.publish(["a", "b"]);
    let script = "touch begun-$$; while ! test -e over; do sleep 0.05; done";
    let mut command = fixture.command(&["consume", &fixture.queue, "--workers", "2", "--exec", "sh", "-c", script]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let holds = || {
        let messages = ["list_queues", "name", "messages_unacknowledged"];
        let found = broker_with_management().ctl(messages).unwrap();
        found.lines().any(|line| line.split_whitespace().eq([fixture.queue.as_str(), "2"]))
    };
    fixture.wait_until("both messages held", holds);
    fixture.wait_until("counts", || counts(&fixture, &fixture.queue)[0] == (String::new(), 0, Some(0)));
    fixture.home.write("over", "");
    signal(&process, "TERM");
    let output = RunOutput::of(&process.wait_with_output().unwrap());
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn queue_without_reported_counts_is_listed() {
    let fixture = Fixture::at(broker_with_management(), "new", |queue| queue);
    for (suffix, kind) in [(".1", Queue::quorum as fn(String) -> Queue), (".2", Queue::classic), (".3", Queue::stream)]
    {
        let queue = fixture.declare(suffix, kind);
        let output = queues(&fixture, &url(), &["--json", &queue]);
        assert_eq!(output.code, Some(0), "{output:?}");
        let returning = &output.json()["items"][0]["returning"];
        assert!(returning.is_null() || *returning == 0, "{output:?}");
        fixture.send(["a", "b"].map(|body| Message::to_queue(&queue, body)));
        fixture.wait_until("its counts", || counts(&fixture, &queue) == [(String::new(), 2, Some(0))]);
    }
}

/// Checks that the counts of AMQP are listed, and that one error says what to do.
#[track_caller]
fn is_unknown(fixture: &Fixture, url: &str, code: i32, expected: &str) {
    let output = queues(fixture, url, &["--json", &fixture.queue]);
    assert_eq!(output.code, Some(code), "{output:?}");
    let item = &output.json()["items"][0];
    assert_eq!((&item["messages"], &item["returning"]), (&1.into(), &Value::Null), "{output:?}");
    assert!(output.err.starts_with("error: ") && output.err.lines().count() == 1, "{output:?}");
    assert!(output.err.contains("amqp.management") && output.err.contains(expected), "{output:?}");
    assert!(!output.err.contains("pass@"), "{output:?}");
}

#[test]
fn management_api_access_errors_name_the_missing_permission() {
    let fixture = Fixture::at(broker_with_management(), "refused", |queue| queue);
    fixture.publish(["a"]);
    fixture.wait_for_depth("", 1);
    let address = broker_with_management().management_address().unwrap();
    let wrong = format!("http://{}:wrong@{address}", broker_with_management().user());
    is_unknown(&fixture, &wrong, 1, "Check the user and the password in its URL");
    is_unknown(&fixture, &format!("http://{address}"), 1, "Check the user and the password in its URL");
    add_users();
    is_unknown(&fixture, &url_of("untagged"), 1, "`rabbitmqctl set_user_tags untagged management`");
    is_unknown(&fixture, &url_of("unpermitted"), 1, "`rabbitmqctl set_permissions -p / unpermitted '^$' '^$' '^$'`");
    // With both permissions, the counts are available.
    fixture.wait_until("counts", || {
        queues(&fixture, &url_of("monitor"), &["--json", &fixture.queue]).json()["items"][0]["returning"] == 0
    });
}

#[test]
fn unreachable_management_api_is_an_error_and_leaves_counts_unknown() {
    let fixture = Fixture::at(broker_with_management(), "away", |queue| queue);
    fixture.publish(["a"]);
    fixture.wait_for_depth("", 1);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    is_unknown(&fixture, &format!("http://me:pass@{free}"), 2, "the plugin rabbitmq_management");
    // The AMQP port does not speak HTTP.
    let amqp = broker_with_management().address();
    is_unknown(&fixture, &format!("http://me:pass@{amqp}"), 2, "the plugin rabbitmq_management");
}
