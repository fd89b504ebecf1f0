//! A broker that is short of memory and blocks publishing. These tests share their own broker, one at a time.

use crate::fixture::*;
use gristmill_amqp::{Client, Consumer, Error, Message, Queue};
use gristmill_broker::Broker;
use gristmill_pool::{Retry, TaskError};
use std::{sync::OnceLock, time::Duration};
use tokio::sync::{Mutex, MutexGuard};

const SECONDS: Duration = Duration::from_secs(10);

async fn own_broker() -> MutexGuard<'static, Broker> {
    static BROKER: OnceLock<Mutex<Broker>> = OnceLock::new();
    let start = || Mutex::new(Broker::start().unwrap_or_else(|fault| panic!("{fault}")));
    BROKER.get_or_init(start).lock().await
}

/// Blocks publishing at the broker until dropped.
struct Alarm<'a>(&'a Broker);

impl<'a> Alarm<'a> {
    fn raise(broker: &'a Broker) -> Self {
        broker.ctl(["set_vm_memory_high_watermark", "0.0000001"]).unwrap();
        Self(broker)
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.ctl(["set_vm_memory_high_watermark", "0.6"]).unwrap();
    }
}

/// Regression: unconfirmed messages were republished repeatedly, and all copies arrived when the broker unblocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_is_republished_once_while_the_broker_blocks() {
    let broker = own_broker().await;
    let (orders, spare) = (name("moved"), name("spare"));
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        // 4,096 s, so that the message stays in a queue where it can be counted.
        let retry = Retry::exponential(5, Duration::from_secs(4096));
        Consumer::new(&orders, "moved").workers(2).retry(retry).handle(move |delivery| {
            let (log, gate) = (log.clone(), gate.clone());
            async move {
                log.add(delivery.attempt());
                gate.pass().await;
                Err(TaskError::transient("not now"))
            }
        })
    };
    let client = Client::builder(broker.uri())
        .queue(Queue::quorum(&orders))
        .queue(Queue::classic(&spare))
        .consumer(consumer)
        .confirm_timeout(Duration::from_secs(1))
        .start()
        .await
        .unwrap();
    let waiting = format!("{orders}.retry.4096000");
    let publish = async |queue: &str| client.publisher().publish(Message::to_queue(queue, "x")).await;
    // The first message declares the retry queue.
    until("a queue with a leader", async || publish(&orders).await.is_ok()).await;
    gate.open(1);
    depth_is(&client, &waiting, 1).await;
    publish(&orders).await.unwrap();
    log.reaches(2).await;
    let alarm = Alarm::raise(&broker);
    until("it is blocked", async || {
        let _ = publish(&spare).await;
        client.stats().blocked.is_some()
    })
    .await;
    gate.open(1);
    until("it failed", async || client.stats().consumers[0].retried == 2).await;
    // Time in which it could have been republished four times.
    for _ in 0..4 {
        assert!(matches!(publish(&spare).await, Err(Error::Unconfirmed(_))));
    }
    assert_eq!(client.stats().consumers[0].in_flight, 1);
    drop(alarm);
    until("it was moved", async || client.stats().consumers[0].acknowledged == 2).await;
    // After everything sent before.
    until("publishing to be unblocked", async || publish(&spare).await.is_ok()).await;
    until("it waits", async || client.queue_depth(&waiting).await.is_ok_and(|(depth, _)| depth >= 2)).await;
    assert_eq!(client.queue_depth(&waiting).await.unwrap().0, 2);
    assert_eq!(log.all(), [1, 1]);
    client.shutdown(SECONDS).await;
}

/// Regression: a blocked broker does not read, and the failed writes counted as a dead connection after two
/// heartbeats; everything in flight was sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_connection_outlives_its_heartbeats() {
    const MESSAGES: u32 = 600;
    let broker = own_broker().await;
    let orders = name("long");
    let client = Client::builder(format!("{}?heartbeat=1", broker.uri()))
        .queue(Queue::classic(&orders))
        .confirm_timeout(Duration::from_secs(60))
        .start()
        .await
        .unwrap();
    let alarm = Alarm::raise(&broker);
    let (publisher, to) = (client.publisher(), orders.clone());
    // More than socket buffers hold.
    let publishing = tokio::spawn(async move {
        publisher.publish_all((0..MESSAGES).map(|_| Message::to_queue(&to, vec![b'y'; 20_000]))).await
    });
    until("it is blocked", async || client.stats().blocked.is_some()).await;
    // Six heartbeats in which nothing may happen.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let stats = client.stats();
    assert_eq!((stats.connected, stats.connections), (true, 1));
    assert!(!publishing.is_finished());
    drop(alarm);
    for result in publishing.await.unwrap() {
        result.unwrap();
    }
    assert_eq!(client.stats().connections, 1);
    until("all there", async || client.queue_depth(&orders).await.is_ok_and(|(depth, _)| depth >= MESSAGES)).await;
    assert_eq!(client.queue_depth(&orders).await.unwrap().0, MESSAGES);
    client.shutdown(SECONDS).await;
}

/// Regression: with more to send than the buffer holds, publishers got no error while the broker was blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_time_out_while_the_broker_blocks() {
    let broker = own_broker().await;
    let orders = name("timeouts");
    let client = Client::builder(broker.uri())
        .queue(Queue::classic(&orders))
        .confirm_timeout(Duration::from_secs(1))
        .start()
        .await
        .unwrap();
    let alarm = Alarm::raise(&broker);
    let (publisher, to) = (client.publisher(), orders.clone());
    // More than socket buffers and the output buffer hold.
    let publishing = tokio::spawn(async move {
        publisher.publish_all((0..900).map(|_| Message::to_queue(&to, vec![b'y'; 30_000]))).await
    });
    until("it is blocked", async || client.stats().blocked.is_some()).await;
    until("all results", async || publishing.is_finished()).await;
    let results = publishing.await.unwrap();
    let late = |result: &Result<(), Error>| matches!(result, Err(Error::Unconfirmed(_)));
    assert!(results.iter().all(|result| result.is_ok() || late(result)), "{results:?}");
    // Messages that the broker read before it blocked may be confirmed.
    assert!(results.iter().filter(|result| late(result)).count() > 100, "{results:?}");
    // A later publisher gets the error too.
    let late_too = client.publisher().publish(Message::to_queue(&orders, "x")).await;
    assert!(late(&late_too), "{late_too:?}");
    let stats = client.stats();
    assert_eq!((stats.blocked.is_some(), stats.connections), (true, 1));
    drop(alarm);
    until("publishing to resume", async || client.publisher().publish(Message::to_queue(&orders, "x")).await.is_ok())
        .await;
    client.shutdown(SECONDS).await;
}
