//! Attempt counts of dead letters that are read or published again.

use crate::fixture::*;
use gristmill_amqp::{Consumer, FieldValue, Message, Queue, header};
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);
const QUICK: Retry = Retry::exponential(3, Duration::from_millis(10));

/// Consumer that always fails and records the attempt.
fn failing(queue: &str, log: &Log<u32>) -> Consumer {
    let log = log.clone();
    Consumer::new(queue, name("failing")).workers(2).retry(QUICK).handle(move |delivery| {
        log.add(delivery.attempt());
        async { Err(TaskError::transient("not now")) }
    })
}

/// Regression: attempts made for another queue counted, so a consumer of dead letters started with the last attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_starts_at_attempt_one_where_it_is_consumed() {
    let orders = name("orders");
    let dead = format!("{orders}.dead");
    let (first, second) = (Log::default(), Log::default());
    let client = builder()
        .queue(Queue::quorum(&orders))
        .queue(Queue::quorum(&dead))
        .consumer(failing(&orders, &first))
        .consumer(failing(&dead, &second))
        .start()
        .await
        .unwrap();
    client.publisher().publish(Message::to_queue(&orders, "x")).await.unwrap();
    depth_is(&client, &format!("{dead}.dead"), 1).await;
    client.shutdown(SECONDS).await;
    assert_eq!((first.all(), second.all()), (vec![1, 2, 3], vec![1, 2, 3]));
}

/// Regression: a dead letter published again with all its headers became a dead letter at its first failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn republished_dead_letter_starts_at_attempt_one() {
    let orders = name("back");
    let dead = format!("{orders}.dead");
    let log = Log::default();
    let client = builder().queue(Queue::quorum(&orders)).consumer(failing(&orders, &log)).start().await.unwrap();
    let mut message = Message::to_queue(&orders, "x");
    for round in 1..=3 {
        client.publisher().publish(message.clone()).await.unwrap();
        depth_is(&client, &dead, 1).await;
        assert_eq!(log.all(), [1, 2, 3].repeat(round));
        let dead_letter = take_all(&dead, 1).await.remove(0);
        assert_eq!(dead_letter.headers().get(header::FAILED), Some(&FieldValue::from(3i64)));
        // Unchanged, as a shovel would publish it.
        message.properties = dead_letter.properties().clone();
    }
    client.shutdown(SECONDS).await;
}
