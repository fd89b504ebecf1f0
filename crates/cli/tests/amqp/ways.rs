//! How messages are handled, whatever the action.

use gristmill_amqp::{Message, Queue};
use serde_json::json;

use crate::bed::{Bed, body, header};
use crate::common::RunOutput;

#[test]
fn one_worker_keeps_the_order_also_of_what_is_tried_again() {
    let bed = Bed::new("order");
    bed.publish((0..6).map(|number| number.to_string()));
    let script = "n=$(cat); echo $n >> seen; test $n != 2 || test $GRISTMILL_ATTEMPT = 2";
    let stats = bed.drain(&["--workers", "1", "--retry-delay", "1ms", "--exec", "sh", "-c", script]);
    assert_eq!((&stats["workers"], &stats["retried"]), (&json!(1), &json!(1)), "{stats}");
    let seen = std::fs::read_to_string(bed.home.path("seen")).unwrap();
    assert_eq!(seen.lines().collect::<Vec<_>>(), ["0", "1", "2", "2", "3", "4", "5"]);
}

#[test]
fn messages_with_the_same_header_keep_their_order() {
    let bed = Bed::new("lanes");
    let customer = |number: usize| if number.is_multiple_of(2) { "even" } else { "odd" };
    bed.send((0..40).map(|number| {
        Message::to_queue(&bed.queue, number.to_string()).header("customer", customer(number))
    }));
    let script = "cat >> $GRISTMILL_HEADER_CUSTOMER; echo >> $GRISTMILL_HEADER_CUSTOMER";
    let stats = bed.drain(&["--workers", "8", "--order-by", "header:customer", "--exec", "sh", "-c", script]);
    assert_eq!(stats["acknowledged"], 40, "{stats}");
    for (file, first) in [("even", 0), ("odd", 1)] {
        let seen = std::fs::read_to_string(bed.home.path(file)).unwrap();
        let expected: Vec<String> = (first..40).step_by(2).map(|number: usize| number.to_string()).collect();
        assert_eq!(seen.lines().collect::<Vec<_>>(), expected, "{file}");
    }
}

#[test]
fn dead_letters_go_where_they_are_sent() {
    let bed = Bed::new("elsewhere");
    let letters = Bed::new("letters");
    bed.publish(["x"]);
    let place = format!(":{}", letters.queue);
    let stats = bed.drain(&["--attempts", "1", "--dead-letters", &place, "--exec", "false"]);
    assert_eq!(stats["rejected"], 1, "{stats}");
    let found = letters.take("", 1);
    assert_eq!(
        (body(&found[0]), header(&found[0], "x-gristmill-queue")),
        ("x".to_owned(), bed.queue.clone())
    );
    assert_eq!(bed.depth(".dead"), None);
}

#[test]
fn a_queue_that_is_not_there_is_told_with_the_next_step() {
    let bed = Bed::new("absent");
    let said: RunOutput = bed.run(&["consume", "is-not-there", "--exec", "true"]);
    said.check("absent", 1, "", "--declare quorum makes it");
    let said = bed.run(&["consume", &bed.queue, "--declare", "classic", "--exec", "true"]);
    said.check("otherwise", 1, "", "leave out --declare to take it as it is");
    let said = bed.run(&["consume", &bed.queue, "--bind", "is-not-there:k", "--exec", "true"]);
    said.check("no exchange", 1, "", "The exchange has to exist before it is used");
    let said = bed.run(&["consume", &bed.queue, "--dead-letters", ":is-not-there", "--exec", "true"]);
    said.check("no queue for dead letters", 1, "", "no queue 'is-not-there'");
}

#[test]
fn dead_letters_can_go_to_a_dead_queue_that_exists_with_arguments_of_its_own() {
    let bed = Bed::new("own-dead");
    let dead = bed.declare(".dead", |name| Queue::quorum(name).argument("x-max-length", 10_i64));
    let said = bed.run(&["consume", &bed.queue, "--drain", "--exec", "true"]);
    let flags = format!("--dead-letters :{dead}");
    said.check("own arguments", 1, "", &flags);
    assert!(!said.err.contains("--declare"), "{said:?}");
    bed.publish(["a"]);
    bed.drain(&["--dead-letters", &format!(":{dead}"), "--exec", "sh", "-c", "exit 64"]);
    bed.depth_is(".dead", 1);
}
