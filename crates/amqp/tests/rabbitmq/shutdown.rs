//! Shutdown: running handlers finish, and other messages are requeued.

use crate::fixture::*;
use gristmill_amqp::{Client, Consumer, Error, Message, Queue};
use gristmill_broker::{Broker, Proxy};
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_handlers_finish_and_the_rest_is_requeued_at_shutdown() {
    for blocking in [false, true] {
        let orders = name("end");
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 100).await;
        let (started, done, gate) = (Log::default(), Log::default(), Gate::default());
        let consumer = Consumer::new(&orders, "ends").workers(4).prefetch(50);
        let consumer = {
            let (started, done, gate) = (started.clone(), done.clone(), gate.clone());
            match blocking {
                false => consumer.handle(move |delivery| {
                    let (started, done, gate) = (started.clone(), done.clone(), gate.clone());
                    async move {
                        started.add(number(&delivery));
                        gate.pass().await;
                        done.add(number(&delivery));
                        Ok(())
                    }
                }),
                true => {
                    let runtime = tokio::runtime::Handle::current();
                    consumer.handle_blocking(move |delivery| {
                        started.add(number(delivery));
                        runtime.block_on(gate.pass());
                        done.add(number(delivery));
                        Ok(())
                    })
                }
            }
        };
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        let watch = client.stats_handle();
        let waiting = || watch.stats().consumers[0].waiting;
        started.reaches(4).await;
        until("some that wait", async || waiting() > 0).await;
        let shutdown = tokio::spawn(client.shutdown(Duration::from_secs(20)));
        // Running handlers may end once waiting messages are discarded.
        until("none that waits", async || waiting() == 0).await;
        gate.open(100);
        let stats = shutdown.await.unwrap();
        let (started, done) = (started.all(), done.all());
        assert_eq!((started.len(), done.len()), (4, 4), "blocking: {blocking}: waiting messages were not started");
        assert_eq!(stats.consumers[0].acknowledged, 4);
        let mut rest: Vec<usize> = take_all(&orders, 100 - done.len()).await.iter().map(number).collect();
        rest.extend(done);
        rest.sort_unstable();
        assert_eq!(rest, (0..100).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_messages_are_requeued_at_the_deadline() {
    let orders = name("deadline");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 10).await;
    let (started, dropped) = (Log::default(), Log::default());
    struct CountOnDrop(Log<usize>);
    impl Drop for CountOnDrop {
        fn drop(&mut self) {
            self.0.add(1);
        }
    }
    let consumer = {
        let (started, dropped) = (started.clone(), dropped.clone());
        Consumer::new(&orders, "hangs").workers(3).handle(move |delivery| {
            let (started, dropped) = (started.clone(), dropped.clone());
            async move {
                let _count = CountOnDrop(dropped);
                started.add(number(&delivery));
                std::future::pending().await
            }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    started.reaches(3).await;
    let stats = client.shutdown(Duration::from_millis(300)).await;
    assert_eq!(stats.consumers[0].acknowledged, 0);
    assert_eq!((started.len(), dropped.len()), (3, 3));
    assert_eq!(take_all(&orders, 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_starts_and_shutdowns_handle_each_message_once() {
    let orders = name("often");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 3000).await;
    let log = Log::default();
    for round in 0..15 {
        let consumer = recording(&orders, &log).workers(1 + round % 4);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        log.reaches((round + 1) * 50).await;
        client.shutdown(Duration::from_secs(5)).await;
    }
    let client = builder().queue(queue).consumer(recording(&orders, &log)).start().await.unwrap();
    let mut seen = log.reaches(3000).await;
    until("all acknowledged", async || client.queue_depth(&orders).await.is_ok_and(|(depth, _)| depth == 0)).await;
    client.shutdown(Duration::from_secs(5)).await;
    seen = if seen.len() == 3000 { seen } else { log.all() };
    seen.sort_unstable();
    // With orderly shutdowns each is handled once.
    assert_eq!(seen, (0..3000).collect::<Vec<_>>());
}

/// The broker redelivers the message while its consumer stops; without settling it, the next consumer would get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_is_not_handled_again_when_its_channel_is_lost_during_shutdown() {
    let broker = Broker::start().unwrap();
    let settings = "application:set_env(rabbit, consumer_timeout, 1000), \
                    application:set_env(rabbit, channel_tick_interval, 200).";
    broker.ctl(["eval", settings]).unwrap();
    for queue in [Queue::quorum(name("stopping")), Queue::classic(name("stopping"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        let (started, gate) = (Log::default(), Gate::default());
        let consumer = gated(&orders, &started, &gate, None);
        let client = Client::builder(broker.uri()).queue(queue.clone()).consumer(consumer).start().await.unwrap();
        client.publisher().publish(Message::to_queue(&orders, "0")).await.unwrap();
        started.reaches(1).await;
        let watch = client.stats_handle();
        let shutdown = tokio::spawn(client.shutdown(Duration::from_secs(60)));
        until("the timeout", async || watch.stats().consumers[0].channel_losses > 0).await;
        let observer = client_of(&broker.uri()).await;
        depth_is(&observer, &orders, 1).await;
        gate.open(10);
        let stats = shutdown.await.unwrap().consumers.remove(0);
        assert_eq!((started.all(), stats.handled, stats.acknowledged), (vec![0], 1, 1), "{queue:?}");
        depth_is(&observer, &orders, 0).await;
    }
}

/// Outcomes of all kinds are used; messages that were not started go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_are_used_after_a_cut_during_shutdown() {
    let orders = name("cut-stopping");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 10).await;
    let (started, gate) = (Log::default(), Gate::default());
    let consumer = gated(&orders, &started, &gate, Some(3));
    let proxy = Proxy::to(broker().address()).unwrap();
    let uri = proxy.uri(&broker().uri());
    let client = Client::builder(uri).queue(queue).consumer(consumer).start().await.unwrap();
    started.reaches(4).await;
    let connections = proxy.connections();
    let watch = client.stats_handle();
    let shutdown = tokio::spawn(client.shutdown(Duration::from_secs(60)));
    until("none that waits", async || watch.stats().consumers[0].waiting == 0).await;
    proxy.cut();
    until("the loss noticed", async || watch.stats().consumers[0].channel_losses > 0).await;
    proxy.restore();
    let observer = client_of(&broker().uri()).await;
    depth_is(&observer, &orders, 10).await;
    // The consumer waits a few seconds for redeliveries after all runs; that time must not include reconnecting.
    until("both connections back", async || proxy.connections() >= 2 * connections).await;
    gate.open(10);
    let stats = shutdown.await.unwrap().consumers.remove(0);
    assert_eq!((started.len(), stats.handled, stats.dead_lettered, stats.acknowledged), (4, 3, 1, 4), "{stats:?}");
    depth_is(&observer, &orders, 6).await;
    depth_is(&observer, &format!("{orders}.dead"), 1).await;
}

/// Regression: an unlimited deadline overflowed and panicked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_accepts_an_unlimited_deadline() {
    let orders = name("unlimited");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 1).await;
    let (log, gate) = (Log::default(), Gate::default());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        Consumer::new(&orders, "unlimited").handle(move |delivery| {
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

/// Regression: shutdown waited for a retry that it would not have made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_does_not_wait_for_a_retry_in_place() {
    const HOUR: Duration = Duration::from_secs(3600);
    let orders = name("delayed");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 1).await;
    let consumer = Consumer::new(&orders, "delayed")
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

/// Regression: a client that was disconnected when it was shut down reconnected, and its publishers continued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_a_disconnected_client() {
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
