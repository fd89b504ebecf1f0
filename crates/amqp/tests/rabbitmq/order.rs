//! Order of messages with one worker, and by key.

use crate::fixture::*;
use gristmill_amqp::{Client, Consumer, Message, OrderBy, Queue};
use gristmill_broker::Proxy;
use gristmill_pool::{Retry, TaskError};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(10);
const QUICK: Retry = Retry::exponential(5, Duration::from_millis(10));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_keeps_the_queues_order() {
    let orders = name("one");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 2000).await;
    let log = Log::default();
    let client = builder().queue(queue).consumer(recording(&orders, &log).workers(1)).start().await.unwrap();
    assert_eq!(log.reaches(2000).await, (0..2000).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_keeps_the_order_when_messages_fail() {
    let orders = name("one");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 20).await;
    let (tries, done) = (Log::default(), Log::default());
    let consumer = {
        let (tries, done) = (tries.clone(), done.clone());
        Consumer::new(&orders, "retries").workers(1).retry(QUICK).handle_blocking(move |delivery| {
            let number = number(delivery);
            tries.add((number, delivery.attempt()));
            match delivery.attempt() {
                1 if number.is_multiple_of(5) => Err(TaskError::transient("not now")),
                2 if number == 10 => Err(TaskError::transient("not now either")),
                _ => {
                    done.add(number);
                    Ok(())
                }
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    assert_eq!(done.reaches(20).await, (0..20).collect::<Vec<_>>());
    let tries = tries.all();
    assert_eq!(
        tries.iter().filter(|(number, _)| *number == 10).map(|(_, attempt)| *attempt).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(client.shutdown(SECONDS).await.consumers[0].retried, 5);
}

/// Message with a key in a header, or as the routing key.
fn keyed(queue: &str, exchange: &str, key: usize, number: usize) -> Message {
    Message::new(
        exchange,
        if exchange.is_empty() { queue.to_owned() } else { format!("key.{key}") },
        number.to_string(),
    )
    .header("account", format!("account-{key}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_is_in_order_while_keys_run_in_parallel() {
    for order in [OrderBy::Header("account".into()), OrderBy::RoutingKey] {
        let (orders, exchange) = (name("keys"), name("keys"));
        let queue = Queue::new(&orders);
        let shop = gristmill_amqp::Exchange::topic(&exchange);
        let log = Log::default();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let consumer = {
            let (log, now, most) = (log.clone(), Arc::clone(&now), Arc::clone(&most));
            Consumer::new(&orders, "keys").workers(8).prefetch(100).retry(QUICK).order_by(order.clone()).handle(
                move |delivery| {
                    let (log, now, most) = (log.clone(), Arc::clone(&now), Arc::clone(&most));
                    async move {
                        most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                        // Some take longer than others.
                        for _ in 0..number(&delivery) % 7 {
                            tokio::task::yield_now().await;
                        }
                        now.fetch_sub(1, Relaxed);
                        // Some fail at first, and those behind them wait.
                        if number(&delivery).is_multiple_of(11) && delivery.attempt() == 1 {
                            return Err(TaskError::transient("not now"));
                        }
                        let account = delivery.headers().get("account").unwrap().to_string();
                        log.add((account, number(&delivery)));
                        Ok(())
                    }
                },
            )
        };
        let client = builder()
            .exchange(shop)
            .queue(queue)
            .bind(gristmill_amqp::Binding::new(&orders, &exchange, "key.*"))
            .consumer(consumer)
            .start()
            .await
            .unwrap();
        let messages = (0..400).map(|number| keyed(&orders, &exchange, number % 5, number));
        for result in client.publisher().publish_all(messages).await {
            result.unwrap();
        }
        let mut by_key: HashMap<String, Vec<usize>> = HashMap::new();
        for (account, number) in log.reaches(400).await {
            by_key.entry(account).or_default().push(number);
        }
        assert_eq!(by_key.len(), 5);
        for (account, numbers) in by_key {
            assert!(numbers.is_sorted(), "{order:?} {account}: {numbers:?}");
        }
        assert!((2..=5).contains(&most.load(Relaxed)), "{order:?}: {} at a time", most.load(Relaxed));
        client.shutdown(SECONDS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_key_does_not_block_other_keys() {
    let orders = name("waits");
    let queue = Queue::new(&orders);
    let messages = (0..100).map(|number| keyed(&orders, "", usize::from(number != 0 && number != 1), number));
    fill_with(&queue, messages.collect()).await;
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        Consumer::new(&orders, "waits").workers(2).order_by(OrderBy::Header("account".into())).handle(move |delivery| {
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
    assert_eq!(log.reaches(98).await, (2..100).collect::<Vec<_>>());
    gate.open(1);
    assert_eq!(log.reaches(100).await[98..], [0, 1]);
    client.shutdown(SECONDS).await;
}

/// Consumer with one worker that waits at a gate.
fn one_at_a_time(queue: &str, started: &Log<usize>, done: &Log<usize>, gate: &Gate) -> Consumer {
    let (started, done, gate) = (started.clone(), done.clone(), gate.clone());
    Consumer::new(queue, "half").workers(1).prefetch(3).handle(move |delivery| {
        let (started, done, gate) = (started.clone(), done.clone(), gate.clone());
        async move {
            started.add(number(&delivery));
            gate.pass().await;
            done.add(number(&delivery));
            Ok(())
        }
    })
}

/// The broker keeps the messages that it sent on the old connection, and has others for the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_keeps_the_order_when_the_broker_misses_a_lost_connection() {
    for queue in [Queue::quorum(name("half")), Queue::classic(name("half"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        fill(&queue, &orders, 10).await;
        let (started, done, gate) = (Log::default(), Log::default(), Gate::default());
        let consumer = one_at_a_time(&orders, &started, &done, &gate);
        let proxy = Proxy::to(broker().address()).unwrap();
        let uri = format!("{}?heartbeat=1", proxy.uri(&broker().uri()));
        let client = Client::builder(uri).queue(queue.clone()).consumer(consumer).start().await.unwrap();
        until("three here", async || client.stats().consumers[0].received == 3).await;
        proxy.cut_unnoticed();
        until("the loss noticed", async || client.stats().consumers[0].channel_losses == 1).await;
        gate.open(100);
        assert_eq!(done.reaches(10).await, (0..10).collect::<Vec<_>>(), "{queue:?}");
        assert_eq!(started.all(), (0..10).collect::<Vec<_>>(), "{queue:?}");
        client.shutdown(SECONDS).await;
    }
}

/// The consumer waits for its old connection to end, not for a number of consumers that included the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_keeps_the_order_after_another_consumer_has_left() {
    let orders = name("half");
    let queue = Queue::quorum(&orders);
    let other = recording(&orders, &Log::default());
    let other = builder().queue(queue.clone()).consumer(other).start().await.unwrap();
    let (started, done, gate) = (Log::default(), Log::default(), Gate::default());
    let consumer = one_at_a_time(&orders, &started, &done, &gate);
    let proxy = Proxy::to(broker().address()).unwrap();
    let uri = format!("{}?heartbeat=1", proxy.uri(&broker().uri()));
    let client = Client::builder(uri).queue(queue.clone()).consumer(consumer).start().await.unwrap();
    other.shutdown(SECONDS).await;
    let lose = async |cut: fn(&Proxy)| {
        let before = client.stats().consumers[0].channel_losses;
        cut(&proxy);
        until("the loss noticed", async || client.stats().consumers[0].channel_losses > before).await;
        proxy.restore();
    };
    lose(Proxy::cut).await;
    until("consuming again", async || client.stats().consumers[0].consuming).await;
    fill(&queue, &orders, 10).await;
    until("three here", async || client.stats().consumers[0].received == 3).await;
    lose(Proxy::cut_unnoticed).await;
    gate.open(100);
    assert_eq!(done.reaches(10).await, (0..10).collect::<Vec<_>>());
    assert_eq!(started.all(), (0..10).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
}
