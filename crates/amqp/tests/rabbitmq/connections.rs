//! Connections that are lost in several ways, and are restored.

use crate::fixture::*;
use gristmill_amqp::{Binding, Client, Consumer, Exchange, Message, OrderBy, Queue};
use gristmill_broker::{Broker, Proxy, Settings};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

/// Client with a consumer, connected through a proxy.
async fn behind(proxy: &Proxy, queue: &Queue, consumer: Consumer) -> Client {
    let uri = format!("{}?heartbeat=1", proxy.uri(&broker().uri()));
    Client::builder(uri).queue(queue.clone()).consumer(consumer).start().await.unwrap()
}

async fn publish(client: &Client, queue: &str, numbers: std::ops::Range<usize>) {
    let messages = numbers.map(|number| Message::to_queue(queue, number.to_string()));
    for result in client.publisher().publish_all(messages).await {
        result.unwrap();
    }
}

fn contains_all(seen: &[usize], count: usize) -> bool {
    let seen: std::collections::BTreeSet<_> = seen.iter().copied().collect();
    (0..count).all(|number| seen.contains(&number))
}

/// A connection that is cut, and one that goes silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_recovers_from_a_cut_or_silent_network() {
    for silent in [false, true] {
        let orders = name("cut");
        let queue = Queue::new(&orders);
        let (log, proxy) = (Log::default(), Proxy::to(broker().address()).unwrap());
        let consuming = behind(&proxy, &queue, recording(&orders, &log)).await;
        let publishing = client().await;
        for round in 0..3 {
            publish(&publishing, &orders, round * 100..round * 100 + 50).await;
            if silent {
                proxy.stall();
            } else {
                proxy.cut();
            }
            publish(&publishing, &orders, round * 100 + 50..round * 100 + 100).await;
            if silent {
                // Only missed heartbeats show the loss.
                until("the loss noticed", async || client_is_down(&consuming)).await;
                proxy.flow();
                proxy.cut();
            }
            proxy.restore();
            until("all of the round", async || contains_all(&log.all(), (round + 1) * 100)).await;
        }
        assert!(consuming.stats().consumers[0].channel_losses >= 3);
        consuming.shutdown(SECONDS).await;
        depth_is(&publishing, &orders, 0).await;
    }
}

fn client_is_down(client: &Client) -> bool {
    let stats = client.stats();
    !stats.connected || !stats.consumers[0].consuming
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_is_declared_and_bound_again() {
    let (orders, shop) = (name("deleted"), name("shop"));
    let log = Log::default();
    let client = builder()
        .exchange(Exchange::fanout(&shop))
        .queue(Queue::classic(&orders))
        .bind(Binding::new(&orders, &shop, ""))
        .consumer(recording(&orders, &log))
        .start()
        .await
        .unwrap();
    for round in 0..3 {
        let message = || Message::new(&shop, "", round.to_string());
        until("a queue to publish to", async || client.publisher().publish(message()).await.is_ok()).await;
        until("the message", async || log.all().contains(&round)).await;
        broker().ctl(["delete_queue", &orders]).unwrap();
    }
    until("it consumes again", async || client.stats().consumers[0].consuming).await;
    assert_eq!(client.stats().connections, 1);
    client.shutdown(SECONDS).await;
}

/// Each consumer has its own channel: a failure of one does not affect the other, neither at once nor after a
/// reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_one_consumer_does_not_stop_others() {
    let (broken, whole) = (name("broken"), name("whole"));
    let (log, seen) = (Log::default(), Log::default());
    fill(&Queue::classic(&broken), &broken, 1).await;
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = Client::builder(format!("{}?heartbeat=1", proxy.uri(&broker().uri())))
        .queue(Queue::existing(&broken))
        .queue(Queue::new(&whole))
        .consumer(recording(&broken, &seen))
        .consumer(recording(&whole, &log))
        .start()
        .await
        .unwrap();
    seen.reaches(1).await;
    // It is expected to exist, so it is not declared again.
    broker().ctl(["delete_queue", &broken]).unwrap();
    until("the first lost it", async || !client.stats().consumers[0].consuming).await;
    let other = self::client().await;
    publish(&other, &whole, 0..500).await;
    log.reaches(500).await;
    until("acknowledged", async || client.stats().consumers[1].acknowledged == 500).await;
    let stats = client.stats();
    assert!(stats.consumers[1].consuming);
    assert_eq!((stats.consumers[1].channel_losses, stats.connections), (0, 1));
    proxy.cut();
    proxy.restore();
    publish(&other, &whole, 500..1000).await;
    until("the rest", async || contains_all(&log.all(), 1000)).await;
    let stats = client.stats();
    assert_eq!((stats.consumers[0].consuming, stats.consumers[1].consuming), (false, true));
    assert_eq!((stats.consumers[1].channel_losses, stats.connections), (1, 2));
    // The queue is declared again by another client.
    fill(&Queue::classic(&broken), &broken, 1).await;
    seen.reaches(2).await;
    client.shutdown(SECONDS).await;
}

/// A message that waited for a worker when the channel was lost is not started; its redelivery is. A running one is not
/// started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_lost_channel_are_started_once() {
    let orders = name("stale");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 40).await;
    let (started, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (started, gate) = (started.clone(), gate.clone());
        Consumer::new(&orders, "stale").workers(2).prefetch(40).handle(move |delivery| {
            let (started, gate) = (started.clone(), gate.clone());
            async move {
                started.add((number(&delivery), delivery.deliveries_before()));
                gate.pass().await;
                Ok(())
            }
        })
    };
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = behind(&proxy, &queue, consumer).await;
    until("all forty here", async || client.stats().consumers[0].received == 40).await;
    started.reaches(2).await;
    proxy.cut();
    proxy.restore();
    until("all forty here again", async || client.stats().consumers[0].received == 80).await;
    gate.open(1000);
    until("forty acknowledged", async || client.stats().consumers[0].acknowledged == 40).await;
    let started = started.all();
    // The two that were running, and the redeliveries of the others.
    assert_eq!(started.iter().filter(|(_, before)| *before == 0).count(), 2, "{started:?}");
    assert_eq!(started.iter().filter(|(_, before)| *before == 1).count(), 38, "{started:?}");
    client.shutdown(SECONDS).await;
    depth_is(&self::client().await, &orders, 0).await;
}

/// A message that is running when its channel is lost does not run twice at once: the outcome is used for its
/// redelivery, whether that comes before the run ends or after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcome_of_a_run_is_used_for_the_redelivery_of_its_message() {
    for ends_first in [false, true] {
        let orders = name("taken");
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 4).await;
        let (started, gate) = (Log::default(), Gate::default());
        let consumer = gated(&orders, &started, &gate, Some(3)).workers(8).prefetch(4);
        let proxy = Proxy::to(broker().address()).unwrap();
        let client = behind(&proxy, &queue, consumer).await;
        started.reaches(4).await;
        proxy.cut();
        until("the loss noticed", async || !client.stats().consumers[0].consuming).await;
        if ends_first {
            gate.open(4);
            until("the runs over", async || client.stats().consumers[0].in_flight == 0).await;
        }
        proxy.restore();
        until("all here again", async || client.stats().consumers[0].received == 8).await;
        gate.open(4);
        until("all acknowledged", async || client.stats().consumers[0].acknowledged == 4).await;
        let stats = client.shutdown(SECONDS).await.consumers.remove(0);
        assert_eq!((started.len(), stats.handled, stats.dead_lettered), (4, 3, 1));
        let observer = self::client().await;
        depth_is(&observer, &orders, 0).await;
        depth_is(&observer, &format!("{orders}.dead"), 1).await;
    }
}

/// A key stays in use by a message of a lost channel, and redeliveries of that key wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_by_key_is_kept_after_a_lost_channel() {
    let orders = name("keys");
    let queue = Queue::new(&orders);
    let messages = (0..10).map(|number| Message::to_queue(&orders, number.to_string()).header("account", "one"));
    fill_with(&queue, messages.collect()).await;
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        Consumer::new(&orders, "keys").workers(4).prefetch(10).order_by(OrderBy::Header("account".into())).handle(
            move |delivery| {
                let (log, gate) = (log.clone(), gate.clone());
                async move {
                    log.add(("begin", number(&delivery)));
                    if number(&delivery) == 0 {
                        gate.pass().await;
                    }
                    log.add(("end", number(&delivery)));
                    Ok(())
                }
            },
        )
    };
    let proxy = Proxy::to(broker().address()).unwrap();
    let client = behind(&proxy, &queue, consumer).await;
    log.reaches(1).await;
    proxy.cut();
    proxy.restore();
    until("all here again", async || client.stats().consumers[0].received == 20).await;
    assert_eq!(log.all(), [("begin", 0)]);
    gate.open(1);
    let expected: Vec<_> = (0..10).flat_map(|number| [("begin", number), ("end", number)]).collect();
    assert_eq!(log.reaches(20).await, expected);
    client.shutdown(SECONDS).await;
}

/// A broker that is short of memory blocks publishing; consuming and acknowledging continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_connection_delays_publishing_only() {
    let broker = Broker::start().unwrap();
    let (orders, log) = (name("blocked"), Log::default());
    let queue = Queue::classic(&orders);
    let publishing = Client::builder(broker.uri()).queue(queue.clone()).start().await.unwrap();
    publish(&publishing, &orders, 0..100).await;
    broker.ctl(["set_vm_memory_high_watermark", "0.0000001"]).unwrap();
    let consuming =
        Client::builder(broker.uri()).queue(queue).consumer(recording(&orders, &log)).start().await.unwrap();
    log.reaches(100).await;
    until("acknowledged", async || consuming.stats().consumers[0].acknowledged == 100).await;
    let publisher = publishing.publisher();
    let waiting = tokio::spawn(async move { publisher.publish(Message::to_queue("", "x")).await.is_ok() });
    let (publisher, to) = (publishing.publisher(), orders.clone());
    let waiting_too = tokio::spawn(async move { publisher.publish(Message::to_queue(to, "100")).await.is_ok() });
    until("the blocked notification", async || publishing.stats().blocked.is_some()).await;
    assert!(!waiting_too.is_finished());
    broker.ctl(["set_vm_memory_high_watermark", "0.4"]).unwrap();
    assert!(!waiting.await.unwrap());
    assert!(waiting_too.await.unwrap());
    log.reaches(101).await;
    until("the unblocked notification", async || publishing.stats().blocked.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_is_used_when_one_does_not_answer() {
    let (orders, log) = (name("cluster"), Log::default());
    // The first two are no brokers: a closed port, and a peer that closes the connection.
    let proxy = Proxy::to("127.0.0.1:1".parse().unwrap()).unwrap();
    let client = Client::builder("amqp://127.0.0.1:1")
        .uri(proxy.uri(&broker().uri()))
        .uri(broker().uri())
        .queue(Queue::new(&orders))
        .consumer(recording(&orders, &log))
        .start()
        .await
        .unwrap();
    publish(&client, &orders, 0..10).await;
    log.reaches(10).await;
    client.shutdown(SECONDS).await;
}

#[tokio::test]
async fn permanent_errors_are_returned_at_once() {
    let wrong = broker().uri().replace(broker().password(), "wrong");
    let error = Client::builder(wrong).start().await.err().unwrap();
    assert!(error.to_string().contains("ACCESS_REFUSED"), "{error}");
    let elsewhere = broker().uri().replace("%2f", "nowhere");
    let error = Client::builder(elsewhere).start().await.err().unwrap();
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = Client::builder("amqp://127.0.0.1:1").connect_timeout(Duration::from_millis(300)).start().await;
    assert!(error.err().unwrap().to_string().contains("refused"));
    let unknown = Consumer::new("is-not-there", "missing").handle(|_| async { Ok(()) });
    let error = builder().queue(Queue::existing("is-not-there")).consumer(unknown).start().await.err().unwrap();
    assert!(error.to_string().contains("NOT_FOUND"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_connects_to_trusted_brokers_only() {
    let broker = Broker::start_with(&Settings::new().tls()).unwrap();
    let (orders, log) = (name("tls"), Log::default());
    let trusting = format!("{}?cacertfile={}", broker.tls_uri().unwrap(), broker.ca().unwrap().display());
    let client =
        Client::builder(&trusting).queue(Queue::new(&orders)).consumer(recording(&orders, &log)).start().await.unwrap();
    publish(&client, &orders, 0..100).await;
    log.reaches(100).await;
    client.shutdown(SECONDS).await;
    let refused = async |uri: &str, expected: &str| {
        let error = Client::builder(uri).connect_timeout(Duration::from_secs(5)).start().await.err().unwrap();
        assert!(error.to_string().to_lowercase().contains(expected), "{error}");
    };
    refused(&broker.tls_uri().unwrap(), "certificate").await;
    refused(&format!("{trusting}&server_name_indication=other.example"), "certificate").await;
    refused(&format!("{}?cacertfile=/nowhere.pem", broker.tls_uri().unwrap()), "nowhere.pem").await;
    // TLS to a plain port.
    refused(
        &trusting.replace(&broker.tls_address().unwrap().port().to_string(), &broker.address().port().to_string()),
        "",
    )
    .await;
}
