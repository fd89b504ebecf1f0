//! Messages that are handled and acknowledged.

use crate::fixture::*;
use gristmill_amqp::{Binding, Client, Consumer, Delivery, Exchange, Message, OrderBy, Queue};
use gristmill_store::Store;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_reaches_a_typed_handler_through_an_exchange() {
    #[derive(serde::Deserialize, Clone)]
    struct Order {
        id: u64,
    }
    let (shop, orders, log) = (name("shop"), name("orders"), Log::default());
    let seen = log.clone();
    let client = builder()
        .exchange(Exchange::topic(&shop))
        .queue(Queue::new(&orders))
        .bind(Binding::new(&orders, &shop, "order.*"))
        .consumer(Consumer::new(&orders, "shipping").event("order.created").handle_json(
            move |order: Order, delivery| {
                seen.add((order.id, delivery.routing_key().to_owned(), delivery.exchange().to_owned()));
                async { Ok(()) }
            },
        ))
        .start()
        .await
        .unwrap();
    let message = Message::json(&shop, "order.created", &serde_json::json!({ "id": 17 })).unwrap();
    client.publisher().publish(message).await.unwrap();
    assert_eq!(log.reaches(1).await, [(17, "order.created".to_owned(), shop)]);
    let stats = client.shutdown(SECONDS).await;
    let stats = &stats.consumers[0];
    assert_eq!((stats.received, stats.acknowledged, stats.event.as_deref()), (1, 1, Some("order.created")));
    depth_is(&self::client().await, &orders, 0).await;
}

/// On every kind of queue, with async and blocking handlers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_handled_once_and_the_queue_is_empty() {
    for (kind, blocking) in [("quorum", false), ("classic", false), ("quorum", true), ("classic", true)] {
        let orders = name(kind);
        let queue = if kind == "quorum" { Queue::quorum(&orders) } else { Queue::classic(&orders) };
        fill(&queue, &orders, 2000).await;
        let log = Log::default();
        let consumer = match blocking {
            false => recording(&orders, &log),
            true => {
                let log = log.clone();
                Consumer::new(&orders, "threads").handle_blocking(move |delivery| {
                    log.add(number(delivery));
                    Ok(())
                })
            }
        };
        let client = builder().queue(queue).consumer(consumer.workers(4)).start().await.unwrap();
        let seen = log.reaches(2000).await;
        let stats = client.shutdown(SECONDS).await;
        assert_eq!(seen.len(), 2000, "{kind}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (0..2000).collect(), "{kind}");
        assert_eq!(stats.consumers[0].acknowledged, 2000, "{kind}");
        let observer = self::client().await;
        assert_eq!(observer.queue_depth(&orders).await.unwrap(), (0, 0), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_is_acknowledged_only_after_its_handler_finished() {
    let orders = name("unfinished");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 39).await;
    let gate = Gate::default();
    // 3 and the last 19 never finish.
    let is_finished = |number: usize| number < 20 && number != 3;
    let consumer = {
        let gate = gate.clone();
        // An order fixes the prefetch; no message has the header.
        let order = OrderBy::Header("none".to_owned());
        Consumer::new(&orders, "dies").workers(4).prefetch(20).order_by(order).handle(move |delivery| {
            let gate = gate.clone();
            async move {
                if !is_finished(number(&delivery)) {
                    gate.pass().await;
                }
                Ok(())
            }
        })
    };
    let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
    // Acknowledgements that the broker has not processed are lost with the connection. It has processed 19 when it has
    // delivered 19 messages more than the prefetch.
    until("all received", async || client.stats().consumers[0].received == 39).await;
    assert_eq!(client.stats().consumers[0].acknowledged, 19);
    // Ends abruptly, like a crash.
    drop(client);
    let left = take_all(&orders, 20).await;
    assert!(left.iter().all(Delivery::is_redelivered));
    let left: BTreeSet<usize> = left.iter().map(number).collect();
    assert_eq!(left, (0..39).filter(|number| !is_finished(*number)).collect());
    depth_is(&self::client().await, &orders, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_message_does_not_block_the_others() {
    let orders = name("slow");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 500).await;
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        Consumer::new(&orders, "slow").workers(2).prefetch(5).handle(move |delivery| {
            let (log, gate) = (log.clone(), gate.clone());
            async move {
                if number(&delivery) == 0 {
                    gate.pass().await;
                }
                log.add(number(&delivery));
                Ok(())
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    // A hundred times the prefetch, past one unfinished message.
    assert!(!log.reaches(499).await.contains(&0));
    gate.open(1);
    log.reaches(500).await;
    assert_eq!(client.shutdown(SECONDS).await.consumers[0].acknowledged, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_as_many_messages_as_workers_run_at_a_time() {
    let orders = name("crowd");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 200).await;
    let (now, most, log) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Log::default());
    // The first three wait for each other.
    let (started_count, together) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Barrier::new(3)));
    let consumer = {
        let (now, most, log) = (Arc::clone(&now), Arc::clone(&most), log.clone());
        Consumer::new(&orders, "crowd").workers(3).handle(move |delivery| {
            let (now, most, log) = (Arc::clone(&now), Arc::clone(&most), log.clone());
            let (started_count, together) = (Arc::clone(&started_count), Arc::clone(&together));
            async move {
                most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                if started_count.fetch_add(1, Relaxed) < 3 {
                    together.wait().await;
                }
                tokio::task::yield_now().await;
                now.fetch_sub(1, Relaxed);
                log.add(number(&delivery));
                Ok(())
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    log.reaches(200).await;
    assert_eq!(most.load(Relaxed), 3);
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_with_a_handled_id_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let (orders, log) = (name("dedup"), Log::default());
    let queue = Queue::new(&orders);
    let with_ids = |ids: &[usize]| {
        let one = |id: &usize| Message::to_queue(&orders, id.to_string()).id(format!("id-{id}"));
        ids.iter().map(one).collect::<Vec<_>>()
    };
    // Some repeated, within one run and across runs; one without an id, twice.
    let runs = [with_ids(&[1, 2, 1, 1, 3]), with_ids(&[2, 4, 3]), vec![Message::to_queue(&orders, "9"); 2]];
    let mut skipped = 0;
    for messages in runs {
        let store = Store::open(folder.path().join("ids.db")).unwrap();
        let total = messages.len();
        fill_with(&queue, messages).await;
        let consumer = recording(&orders, &log).dedup_window(Duration::from_secs(3600));
        let client = builder().queue(queue.clone()).consumer(consumer).store(store).start().await.unwrap();
        until("all acknowledged", async || client.stats().consumers[0].acknowledged == total as u64).await;
        skipped += client.shutdown(SECONDS).await.consumers[0].skipped;
    }
    let mut seen = log.all();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4, 9, 9]);
    assert_eq!(skipped, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_handler_skips_handled_ids() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("ids.db")).unwrap();
    let (orders, log) = (name("dedup"), Log::default());
    let queue = Queue::new(&orders);
    let message = Message::to_queue(&orders, "7").id("seven");
    fill_with(&queue, vec![message; 3]).await;
    let seen = log.clone();
    let consumer = Consumer::new(&orders, "dedup").dedup_window(SECONDS).handle_blocking(move |delivery| {
        seen.add(number(delivery));
        Ok(())
    });
    let client = builder().queue(queue).consumer(consumer).store(store).start().await.unwrap();
    until("all acknowledged", async || client.stats().consumers[0].acknowledged == 3).await;
    assert_eq!((log.all(), client.stats().consumers[0].skipped), (vec![7], 2));
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_and_metrics_report_progress() {
    let orders = name("stats");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 30).await;
    let gate = Gate::default();
    let consumer = {
        let gate = gate.clone();
        Consumer::new(&orders, "watched").workers(2).prefetch(10).handle(move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let stats = || client.stats().consumers.remove(0);
    until("all ten here", async || stats().received == 10).await;
    until("the lag known", async || stats().lag == Some(20)).await;
    let now = stats();
    assert!(now.consuming && client.stats().connected);
    assert_eq!((now.workers, now.prefetch, now.acknowledged), (2, 10, 0));
    assert_eq!(now.in_flight + now.waiting, 10);
    gate.open(30);
    until("all done", async || stats().acknowledged == 30).await;
    let text = client.stats().prometheus();
    let line = format!("gristmill_amqp_acks_total{{consumer=\"watched\",queue=\"{orders}\"}} 30");
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(text.contains("gristmill_amqp_handler_seconds_p99"), "{text}");
    let json = serde_json::to_value(client.stats()).unwrap();
    assert_eq!(json["consumers"][0]["acknowledged"], 30);
    assert_eq!(json["consumers"][0]["handler"]["count"], 30);
    client.shutdown(SECONDS).await;
}

#[tokio::test]
async fn invalid_declarations_are_refused_without_connecting() {
    // No broker listens there, and none is contacted.
    let nowhere = || Client::builder("amqp://127.0.0.1:1");
    let handled = |consumer: Consumer| consumer.handle(|_| async { Ok(()) });
    let check = |builder: gristmill_amqp::ClientBuilder, expected: &str| {
        let error = builder.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(nowhere().queue(Queue::new("")), "no name");
    check(nowhere().queue(Queue::new("q".repeat(256))), "255");
    check(nowhere().queue(Queue::new("a")).queue(Queue::classic("a")), "twice");
    check(nowhere().queue(Queue::new("a").exclusive()), "classic");
    check(nowhere().exchange(Exchange::direct("amq.mine")), "amq.");
    check(nowhere().queue(Queue::new("a")).bind(Binding::new("a", "x", "")), "exchange x");
    check(nowhere().exchange(Exchange::fanout("x")).bind(Binding::new("a", "x", "")), "queue a");
    check(nowhere().consumer(handled(Consumer::new("a", "c"))), "queue a is not declared");
    check(nowhere().queue(Queue::new("a")).consumer(Consumer::new("a", "c")), "no handler");
    check(nowhere().queue(Queue::new("a")).consumer(handled(Consumer::new("a", ""))), "no name");
    let dedup = handled(Consumer::new("a", "c")).dedup_window(SECONDS);
    check(nowhere().queue(Queue::new("a")).consumer(dedup), "store");
    let twice = nowhere().queue(Queue::new("a")).consumer(handled(Consumer::new("a", "c")));
    check(twice.consumer(handled(Consumer::new("a", "c"))), "two consumers");
    check(Client::builder("http://somewhere"), "amqp://");
    check(nowhere().max_in_flight(0), "in_flight");
}

#[tokio::test]
async fn mismatch_with_the_broker_is_reported() {
    let orders = name("other");
    fill(&Queue::classic(&orders), &orders, 0).await;
    let error = builder().queue(Queue::quorum(&orders)).start().await.err().unwrap();
    assert!(error.to_string().contains("inequivalent arg"), "{error}");
    let error = builder().queue(Queue::existing("is-not-there")).start().await.err().unwrap();
    assert!(error.to_string().contains("is-not-there"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_with_an_id_in_progress_elsewhere_waits() {
    let orders = name("in-progress");
    let queue = Queue::new(&orders);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let (gate, starts) = (Gate::default(), Log::default());
    let mut clients = Vec::new();
    for _ in 0..2 {
        let (gate, starts) = (gate.clone(), starts.clone());
        // One message for each consumer, handled at the same time.
        let consumer =
            Consumer::new(&orders, name("shares")).dedup_window(SECONDS * 100).prefetch(1).workers(2).handle(
                move |delivery| {
                    let (gate, starts) = (gate.clone(), starts.clone());
                    starts.add(number(&delivery));
                    async move {
                        gate.pass().await;
                        Ok(())
                    }
                },
            );
        let store = gristmill_store::Store::open(&path).unwrap();
        let builder = builder().store(store).queue(queue.clone()).consumer(consumer);
        clients.push(builder.start().await.unwrap());
    }
    let messages = (0..2).map(|number| Message::to_queue(&orders, number.to_string()).id("the same"));
    for result in clients[0].publisher().publish_all(messages).await {
        result.unwrap();
    }
    until("both messages", async || clients.iter().all(|client| client.stats().consumers[0].received == 1)).await;
    // One waits for the other without a start.
    until("one that waits", async || {
        clients.iter().any(|client| client.stats().consumers[0].handler.as_ref().is_some_and(|of| of.count >= 1))
    })
    .await;
    assert_eq!(starts.len(), 1);
    gate.open(2);
    let sum = |pick: fn(&gristmill_amqp::stats::ConsumerStats) -> u64| {
        clients.iter().map(|client| pick(&client.stats().consumers[0])).sum::<u64>()
    };
    until("both", async || sum(|one| one.acknowledged) == 2).await;
    assert_eq!((sum(|one| one.handled), sum(|one| one.skipped), starts.len()), (1, 1, 1));
    for client in clients {
        client.shutdown(SECONDS).await;
    }
}
