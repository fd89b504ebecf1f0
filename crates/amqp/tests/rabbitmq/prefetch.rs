//! The prefetch follows handler durations, and the broker's consumer timeout loses no message.

use crate::fixture::*;
use gristmill_amqp::{Client, Message, Queue};
use gristmill_broker::Broker;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefetch_is_near_the_workers_with_slow_handlers() {
    let (orders, started, gate) = (name("slow"), Log::default(), Gate::default());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 200).await;
    let client = builder().queue(queue).consumer(gated(&orders, &started, &gate, None)).start().await.unwrap();
    started.reaches(4).await;
    depth_is(&client, &orders, 195).await;
    assert_eq!(client.stats().consumers[0].received, 5);
    gate.open(200);
    started.reaches(200).await;
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefetch_grows_with_fast_handlers_without_redeliveries() {
    for queue in [Queue::quorum(name("fast")), Queue::classic(name("fast"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        let log = Log::default();
        fill(&queue, &orders, 5000).await;
        let consumer = recording(&orders, &log).workers(4);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        let mut most = 0;
        until("all handled", async || {
            most = most.max(client.stats().consumers[0].prefetch);
            log.len() >= 5000
        })
        .await;
        let mut seen = log.all();
        until("all acknowledged", async || client.stats().consumers[0].acknowledged == 5000).await;
        let stats = client.shutdown(SECONDS).await.consumers.remove(0);
        seen.sort_unstable();
        assert_eq!(seen, (0..5000).collect::<Vec<_>>(), "{queue:?}");
        assert_eq!((most, stats.redelivered), (40, 0), "{queue:?}");
    }
}

/// The broker closes the channel and redelivers the message repeatedly, while its handler runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_longer_than_the_consumer_timeout_runs_once() {
    let broker = Broker::start().unwrap();
    let settings = "application:set_env(rabbit, consumer_timeout, 1000), \
                    application:set_env(rabbit, channel_tick_interval, 200).";
    broker.ctl(["eval", settings]).unwrap();
    let (orders, started, gate) = (name("timeout"), Log::default(), Gate::default());
    let client = Client::builder(broker.uri())
        .queue(Queue::quorum(&orders))
        .consumer(gated(&orders, &started, &gate, None))
        .start()
        .await
        .unwrap();
    client.publisher().publish(Message::to_queue(&orders, "0")).await.unwrap();
    until("three timeouts", async || {
        let stats = client.stats().consumers.remove(0);
        stats.channel_losses >= 3 && stats.received >= 4
    })
    .await;
    gate.open(10);
    until("it is acknowledged", async || client.stats().consumers[0].acknowledged == 1).await;
    assert_eq!(started.all(), [0]);
    client.shutdown(SECONDS).await;
    let observer = client_of(&broker.uri()).await;
    depth_is(&observer, &orders, 0).await;
    depth_is(&observer, &format!("{orders}.dead"), 0).await;
}
