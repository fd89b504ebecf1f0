//! Shutting down.

use crate::bed::*;
use gristmill_amqp::{Client, Consumer, Error, Message, Queue};
use gristmill_broker::Proxy;
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

/// As long as it takes: it was added to the time of day, and that panicked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_without_end_is_one() {
    let orders = name("patient");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 1).await;
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        Consumer::new(&orders, "patient").handle(move |delivery| {
            let (log, gate) = (log.clone(), gate.clone());
            async move {
                log.add(number(&delivery));
                gate.pass().await;
                Ok(())
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    log.reaches(1).await;
    let ending = tokio::spawn(client.shutdown(Duration::MAX));
    gate.open(1);
    assert_eq!(ending.await.unwrap().consumers[0].acknowledged, 1);
}

/// It waited for the hour of an attempt that it would then not have made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_waits_in_its_place_is_not_waited_for() {
    const HOUR: Duration = Duration::from_secs(3600);
    let orders = name("nap");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 1).await;
    let consumer = Consumer::new(&orders, "nap")
        .workers(1)
        .retry(Retry::exponential(5, HOUR))
        .handle(|_| async { Err(TaskError::transient("not now")) });
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    until("it failed", async || client.stats().consumers[0].retried == 1).await;
    let ending = tokio::spawn(client.shutdown(HOUR));
    until("the end", async || ending.is_finished()).await;
    assert_eq!(ending.await.unwrap().consumers[0].acknowledged, 0);
    assert_eq!(take_all(&orders, 1).await.len(), 1);
}

/// What was down when it was told to end connected again, and published on for whoever still held a publisher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_ended_too() {
    let orders = name("down");
    let proxy = Proxy::to(broker().address()).unwrap();
    let uri = proxy.uri(&broker().uri());
    let client = Client::builder(uri).queue(Queue::classic(&orders)).start().await.unwrap();
    let (publisher, watch) = (client.publisher(), client.stats_handle());
    publisher.publish(Message::to_queue(&orders, "before")).await.unwrap();
    proxy.cut();
    until("the loss noticed", async || !watch.stats().connected).await;
    client.shutdown(Duration::from_secs(1)).await;
    proxy.restore();
    let error = publisher.publish(Message::to_queue(&orders, "after")).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    let stats = watch.stats();
    assert_eq!((stats.connected, stats.connections), (false, 1));
    depth_is(&self::client().await, &orders, 1).await;
}
