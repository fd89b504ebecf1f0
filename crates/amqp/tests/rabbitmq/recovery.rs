//! Recovery of several consumers after a lost connection.

use crate::fixture::*;
use gristmill_amqp::{Client, ClientBuilder, Consumer, Message, Queue};
use gristmill_broker::Proxy;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

fn behind(proxy: &Proxy) -> ClientBuilder {
    Client::builder(format!("{}?heartbeat=1", proxy.uri(&broker().uri())))
}

/// Regression: after a cut each consumer declared everything, and one failing declaration stopped all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_redeclaration_affects_only_its_consumer() {
    let (broken, whole) = (name("broken"), name("whole"));
    let (log, none) = (Log::default(), Log::default());
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = behind(&proxy)
        .queue(Queue::classic(&broken))
        .queue(Queue::quorum(&whole))
        .consumer(recording(&broken, &none))
        .consumer(recording(&whole, &log))
        .start()
        .await
        .unwrap();
    proxy.cut();
    // A queue of another kind with that name: it can never be declared as before.
    broker().ctl(["delete_queue", &broken]).unwrap();
    fill(&Queue::quorum(&broken), &broken, 1).await;
    fill(&Queue::quorum(&whole), &whole, 10).await;
    proxy.restore();
    let mut seen = log.reaches(10).await;
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    until("acknowledged", async || client.stats().consumers[1].acknowledged == 10).await;
    let stats = client.shutdown(SECONDS).await;
    assert_eq!((none.len(), stats.consumers[0].consuming), (0, false));
}

/// Regression: redeliveries were counted by republishing them to their queue, which deadlocked when it was full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivery_from_a_full_queue_is_handled() {
    let orders = name("full");
    let queue = Queue::classic(&orders).max_length(20);
    let (log, started, gate) = (Log::default(), Log::default(), Gate::default());
    let consumer = {
        let (log, started, gate) = (log.clone(), started.clone(), gate.clone());
        Consumer::new(&orders, "full").workers(2).prefetch(10).handle(move |delivery| {
            let (log, started, gate) = (log.clone(), started.clone(), gate.clone());
            async move {
                started.add(number(&delivery));
                gate.pass().await;
                log.add(number(&delivery));
                Ok(())
            }
        })
    };
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = behind(&proxy).queue(queue.clone()).consumer(consumer).start().await.unwrap();
    fill(&queue, &orders, 10).await;
    until("ten here", async || client.stats().consumers[0].received == 10).await;
    started.reaches(2).await;
    let publishing = self::client().await;
    let mut count = 10;
    while publishing.publisher().publish(Message::to_queue(&orders, count.to_string())).await.is_ok() {
        count += 1;
    }
    assert!(count >= 30, "{count}");
    proxy.cut();
    proxy.restore();
    until("ten here again", async || client.stats().consumers[0].redelivered >= 10).await;
    gate.open(1000);
    until("all done", async || (0..count).all(|number| log.all().contains(&number))).await;
    until("all acknowledged", async || {
        publishing.queue_depth(&orders).await.is_ok_and(|(depth, _)| depth == 0)
            && client.stats().consumers[0].in_flight == 0
    })
    .await;
    client.shutdown(SECONDS).await;
    depth_is(&publishing, &orders, 0).await;
}

/// Regression: a stream consumer that had received nothing began at the end after a reconnect, and skipped messages
/// published meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_stream_consumer_misses_no_message_after_a_cut() {
    let orders = name("idle");
    let queue = Queue::stream(&orders);
    let (log, proxy) = (Log::default(), Proxy::to(broker().address()).unwrap());
    let client =
        behind(&proxy).queue(queue.clone()).consumer(recording(&orders, &log).workers(1)).start().await.unwrap();
    proxy.cut();
    until("the loss noticed", async || !client.stats().consumers[0].consuming).await;
    fill_with(&queue, vec![Message::to_queue(&orders, "0")]).await;
    proxy.restore();
    until("it reads again", async || client.stats().consumers[0].consuming).await;
    fill_with(&queue, vec![Message::to_queue(&orders, "1")]).await;
    assert_eq!(log.reaches(2).await, [0, 1]);
    client.shutdown(SECONDS).await;
}

/// Regression: a closed channel was closed again when dropped, after its number was reused: of forty starts with twelve
/// consumers, one succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_consumers_of_one_client_start_and_reconnect() {
    let queues: Vec<String> = (0..12).map(|_| name("many")).collect();
    let logs: Vec<Log<usize>> = queues.iter().map(|_| Log::default()).collect();
    let all = |mut builder: ClientBuilder| {
        for (queue, log) in queues.iter().zip(&logs) {
            let consumer = recording(queue, log).dead_letters("amq.fanout", "");
            builder = builder.queue(Queue::classic(queue)).consumer(consumer);
        }
        builder
    };
    for round in 0..10 {
        let client = all(builder()).start().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        client.shutdown(SECONDS).await;
    }
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = all(behind(&proxy)).start().await.unwrap();
    let publishing = self::client().await;
    for round in 0..4 {
        until("all consume", async || client.stats().consumers.iter().all(|consumer| consumer.consuming)).await;
        for (queue, log) in queues.iter().zip(&logs) {
            // Exactly one consumer each.
            until(&format!("one consumer of {queue}"), async || {
                publishing.queue_depth(queue).await.is_ok_and(|(_, consumers)| consumers == 1)
            })
            .await;
            publishing.publisher().publish(Message::to_queue(queue, round.to_string())).await.unwrap();
            until("the message", async || log.all().contains(&round)).await;
        }
        proxy.cut();
        until("the loss noticed", async || !client.stats().connected).await;
        proxy.restore();
    }
    client.shutdown(SECONDS).await;
}
