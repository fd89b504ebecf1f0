//! Order, dead letters and declarations of `gristmill consume`, independent of the action.

use gristmill_amqp::{Message, Queue};
use serde_json::json;

use crate::common::RunOutput;
use crate::fixture::{Fixture, body, header};

#[test]
fn retry_keeps_order_with_one_worker() {
    let fixture = Fixture::new("order");
    fixture.publish((0..6).map(|number| number.to_string()));
    let script = "n=$(cat); echo $n >> seen; test $n != 2 || test $GRISTMILL_ATTEMPT = 2";
    let stats = fixture.drain(&["--workers", "1", "--retry-delay", "1ms", "--exec", "sh", "-c", script]);
    assert_eq!((&stats["workers"], &stats["retried"]), (&json!(1), &json!(1)), "{stats}");
    let seen = std::fs::read_to_string(fixture.home.path("seen")).unwrap();
    assert_eq!(seen.lines().collect::<Vec<_>>(), ["0", "1", "2", "2", "3", "4", "5"]);
}

#[test]
fn order_by_header_keeps_order_of_equal_keys() {
    let fixture = Fixture::new("lanes");
    let customer = |number: usize| if number.is_multiple_of(2) { "even" } else { "odd" };
    fixture.send(
        (0..40)
            .map(|number| Message::to_queue(&fixture.queue, number.to_string()).header("customer", customer(number))),
    );
    let script = "cat >> $GRISTMILL_HEADER_CUSTOMER; echo >> $GRISTMILL_HEADER_CUSTOMER";
    let stats = fixture.drain(&["--workers", "8", "--order-by", "header:customer", "--exec", "sh", "-c", script]);
    assert_eq!(stats["acknowledged"], 40, "{stats}");
    for (file, first) in [("even", 0), ("odd", 1)] {
        let seen = std::fs::read_to_string(fixture.home.path(file)).unwrap();
        let expected: Vec<String> = (first..40).step_by(2).map(|number: usize| number.to_string()).collect();
        assert_eq!(seen.lines().collect::<Vec<_>>(), expected, "{file}");
    }
}

#[test]
fn dead_letters_flag_redirects_dead_letters() {
    let fixture = Fixture::new("elsewhere");
    let target = Fixture::new("dead-letters");
    fixture.publish(["x"]);
    let place = format!(":{}", target.queue);
    let stats = fixture.drain(&["--attempts", "1", "--dead-letters", &place, "--exec", "false"]);
    assert_eq!(stats["dead_lettered"], 1, "{stats}");
    let found = target.take("", 1);
    assert_eq!((body(&found[0]), header(&found[0], "x-gristmill-queue")), ("x".to_owned(), fixture.queue.clone()));
    assert_eq!(fixture.depth(".dead"), None);
}

#[test]
fn missing_queue_errors_say_what_to_do() {
    let fixture = Fixture::new("absent");
    let output: RunOutput = fixture.run(&["consume", "is-not-there", "--exec", "true"]);
    output.check("absent", 1, "", "Declare it with --declare quorum");
    let output = fixture.run(&["consume", &fixture.queue, "--declare", "classic", "--exec", "true"]);
    output.check("otherwise", 1, "", "omit --declare to use it unchanged");
    let output = fixture.run(&["consume", &fixture.queue, "--bind", "is-not-there:k", "--exec", "true"]);
    output.check("no exchange", 1, "", "Declare the exchange at the broker first");
    let output = fixture.run(&["consume", &fixture.queue, "--dead-letters", ":is-not-there", "--exec", "true"]);
    output.check("no queue for dead letters", 1, "", "no queue 'is-not-there'");
}

#[test]
fn existing_dead_queue_with_other_arguments_can_be_used() {
    let fixture = Fixture::new("own-dead");
    let dead = fixture.declare(".dead", |name| Queue::quorum(name).argument("x-max-length", 10_i64));
    let output = fixture.run(&["consume", &fixture.queue, "--drain", "--exec", "true"]);
    let flags = format!("--dead-letters :{dead}");
    output.check("own arguments", 1, "", &flags);
    assert!(!output.err.contains("--declare"), "{output:?}");
    fixture.publish(["a"]);
    fixture.drain(&["--dead-letters", &format!(":{dead}"), "--exec", "sh", "-c", "exit 64"]);
    fixture.wait_for_depth(".dead", 1);
}
