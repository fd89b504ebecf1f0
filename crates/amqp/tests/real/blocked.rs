//! A broker that is short of memory and takes no messages. It is one of their own, and one test at a time has it.

use crate::bed::*;
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

/// While it is there, the broker takes nothing.
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

/// What was not confirmed in time was moved again, each time, and all of it arrived when the broker took messages again: one
/// message was tried ten times over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_is_moved_once() {
    let broker = own_broker().await;
    let (orders, spare) = (name("moved"), name("spare"));
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        // 4,096 s: what waits stays where it can be counted.
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
    // The first makes the queue where it waits.
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
    // Time in which it could have been given up, and moved again, four times.
    for _ in 0..4 {
        assert!(matches!(publish(&spare).await, Err(Error::Unconfirmed(_))));
    }
    assert_eq!(client.stats().consumers[0].in_flight, 1);
    drop(alarm);
    until("it was moved", async || client.stats().consumers[0].acknowledged == 2).await;
    // Behind all that went out before.
    until("it is no more blocked", async || publish(&spare).await.is_ok()).await;
    until("it waits", async || client.queue_depth(&waiting).await.is_ok_and(|(depth, _)| depth >= 2)).await;
    assert_eq!(client.queue_depth(&waiting).await.unwrap().0, 2);
    assert_eq!(log.all(), [1, 1]);
    client.shutdown(SECONDS).await;
}

/// A broker that takes nothing does not read, and so nothing could be written: that was taken for a dead connection after two
/// heartbeats, and all that was under way was sent again on the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_outlives_its_heartbeats() {
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
    // More than sockets hold.
    let publishing = tokio::spawn(async move {
        publisher.publish_all((0..MESSAGES).map(|_| Message::to_queue(&to, vec![b'y'; 20_000]))).await
    });
    until("it is blocked", async || client.stats().blocked.is_some()).await;
    // Six heartbeats in which nothing is to happen.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let stats = client.stats();
    assert_eq!((stats.connected, stats.connections), (true, 1));
    assert!(!publishing.is_finished());
    drop(alarm);
    for result in publishing.await.unwrap() {
        result.unwrap();
    }
    assert_eq!(client.stats().connections, 1);
    until("all there", async || client.queue_depth(&orders).await.is_ok_and(|(depth, _)| depth >= MESSAGES))
        .await;
    assert_eq!(client.queue_depth(&orders).await.unwrap().0, MESSAGES);
    client.shutdown(SECONDS).await;
}

/// With more to send than there was room for, it waited for the room and for nothing else: who published was told nothing, for
/// as long as the broker blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_publishes_is_told_in_time() {
    let broker = own_broker().await;
    let orders = name("told");
    let client = Client::builder(broker.uri())
        .queue(Queue::classic(&orders))
        .confirm_timeout(Duration::from_secs(1))
        .start()
        .await
        .unwrap();
    let alarm = Alarm::raise(&broker);
    let (publisher, to) = (client.publisher(), orders.clone());
    // More than sockets and our own buffer hold.
    let publishing = tokio::spawn(async move {
        publisher.publish_all((0..900).map(|_| Message::to_queue(&to, vec![b'y'; 30_000]))).await
    });
    until("it is blocked", async || client.stats().blocked.is_some()).await;
    until("all are told", async || publishing.is_finished()).await;
    let results = publishing.await.unwrap();
    let late = |result: &Result<(), Error>| matches!(result, Err(Error::Unconfirmed(_)));
    assert!(results.iter().all(|result| result.is_ok() || late(result)), "{results:?}");
    // Those that the broker had read before it said so may be there.
    assert!(results.iter().filter(|result| late(result)).count() > 100, "{results:?}");
    // And whoever comes now is told, too.
    let late_too = client.publisher().publish(Message::to_queue(&orders, "x")).await;
    assert!(late(&late_too), "{late_too:?}");
    let stats = client.stats();
    assert_eq!((stats.blocked.is_some(), stats.connections), (true, 1));
    drop(alarm);
    until("it goes on", async || client.publisher().publish(Message::to_queue(&orders, "x")).await.is_ok())
        .await;
    client.shutdown(SECONDS).await;
}
