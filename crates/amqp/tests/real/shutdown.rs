//! The end: what runs is finished, the rest is given back.

use crate::bed::*;
use gristmill_amqp::{Client, Consumer, Message, Queue};
use gristmill_broker::{Broker, Proxy};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_finished_and_the_rest_given_back() {
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
        // What runs may end when what waits is not wanted any more.
        until("none that waits", async || waiting() == 0).await;
        gate.open(100);
        let stats = shutdown.await.unwrap();
        let (started, done) = (started.all(), done.all());
        assert_eq!((started.len(), done.len()), (4, 4), "blocking: {blocking}: what waited was not started");
        assert_eq!(stats.consumers[0].acknowledged, 4);
        let mut rest: Vec<usize> = take_all(&orders, 100 - done.len()).await.iter().map(number).collect();
        rest.extend(done);
        rest.sort_unstable();
        assert_eq!(rest, (0..100).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_finish_in_time_is_given_back() {
    let orders = name("deadline");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 10).await;
    let (started, dropped) = (Log::default(), Log::default());
    struct Noted(Log<usize>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.add(1);
        }
    }
    let consumer = {
        let (started, dropped) = (started.clone(), dropped.clone());
        Consumer::new(&orders, "hangs").workers(3).handle(move |delivery| {
            let (started, dropped) = (started.clone(), dropped.clone());
            async move {
                let _noted = Noted(dropped);
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
async fn begun_and_ended_again_and_again() {
    let orders = name("often");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 3000).await;
    let log = Log::default();
    for round in 0..15 {
        let consumer = noting(&orders, &log).workers(1 + round % 4);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        log.reaches((round + 1) * 50).await;
        client.shutdown(Duration::from_secs(5)).await;
    }
    let client = builder().queue(queue).consumer(noting(&orders, &log)).start().await.unwrap();
    let mut seen = log.reaches(3000).await;
    until("all acknowledged", async || client.queue_depth(&orders).await.is_ok_and(|(depth, _)| depth == 0))
        .await;
    client.shutdown(Duration::from_secs(5)).await;
    seen = if seen.len() == 3000 { seen } else { log.all() };
    seen.sort_unstable();
    // In order ended, each is done once.
    assert_eq!(seen, (0..3000).collect::<Vec<_>>());
}

/// The broker takes the message back while its consumer stops; it would be delivered to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_whose_channel_is_lost_while_its_consumer_stops_is_not_handled_again() {
    let broker = Broker::start().unwrap();
    let settings = "application:set_env(rabbit, consumer_timeout, 1000), \
                    application:set_env(rabbit, channel_tick_interval, 200).";
    broker.ctl(["eval", settings]).unwrap();
    for queue in [Queue::quorum(name("stopping")), Queue::classic(name("stopping"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        let (started, gate) = (Log::default(), Gate::default());
        let consumer = gated(&orders, &started, &gate, None);
        let client =
            Client::builder(broker.uri()).queue(queue.clone()).consumer(consumer).start().await.unwrap();
        client.publisher().publish(Message::to_queue(&orders, "0")).await.unwrap();
        started.reaches(1).await;
        let watch = client.stats_handle();
        let shutdown = tokio::spawn(client.shutdown(Duration::from_secs(60)));
        until("the timeout", async || watch.stats().consumers[0].interrupted > 0).await;
        let asking = client_of(&broker.uri()).await;
        depth_is(&asking, &orders, 1).await;
        gate.open(10);
        let stats = shutdown.await.unwrap().consumers.remove(0);
        assert_eq!((started.all(), stats.done, stats.acknowledged), (vec![0], 1, 1), "{queue:?}");
        depth_is(&asking, &orders, 0).await;
    }
}

/// The outcomes of runs are used, whatever they are; messages that were not started go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_of_runs_are_used_after_a_cut_while_the_consumer_stops() {
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
    until("the loss noticed", async || watch.stats().consumers[0].interrupted > 0).await;
    proxy.restore();
    let asking = client_of(&broker().uri()).await;
    depth_is(&asking, &orders, 10).await;
    // The consumer waits a few seconds for its messages when all has ended: not for the connections, too.
    until("both connections back", async || proxy.connections() >= 2 * connections).await;
    gate.open(10);
    let stats = shutdown.await.unwrap().consumers.remove(0);
    assert_eq!((started.len(), stats.done, stats.rejected, stats.acknowledged), (4, 3, 1, 4), "{stats:?}");
    depth_is(&asking, &orders, 6).await;
    depth_is(&asking, &format!("{orders}.dead"), 1).await;
}
