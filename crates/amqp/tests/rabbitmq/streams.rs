//! Consumers of streams.

use crate::fixture::*;
use gristmill_amqp::{Client, Consumer, Offset, Queue};
use gristmill_broker::Proxy;
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_read_from_the_given_offset_repeatedly() {
    let orders = name("stream");
    let queue = Queue::stream(&orders);
    fill(&queue, &orders, 300).await;
    for (offset, first) in [(Offset::First, 0), (Offset::Number(120), 120), (Offset::First, 0)] {
        let log = Log::default();
        let consumer = recording(&orders, &log).workers(1).offset(offset.clone());
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        assert_eq!(log.reaches(300 - first).await, (first..300).collect::<Vec<_>>(), "{offset:?}");
        client.shutdown(SECONDS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_resumes_at_the_position_after_a_cut() {
    let orders = name("stream");
    let queue = Queue::stream(&orders);
    fill(&queue, &orders, 1000).await;
    let (log, proxy) = (Log::default(), Proxy::to(broker().address()).unwrap());
    let consumer = {
        let log = log.clone();
        Consumer::new(&orders, "reads")
            .workers(1)
            .prefetch(20)
            .offset(Offset::First)
            .retry(Retry::exponential(3, Duration::from_millis(10)))
            .handle_blocking(move |delivery| {
                if number(delivery) % 100 == 7 && delivery.attempt() == 1 {
                    return Err(TaskError::transient("not now"));
                }
                log.add(number(delivery));
                Ok(())
            })
    };
    let uri = proxy.uri(&broker().uri());
    let client = Client::builder(uri).queue(queue).consumer(consumer).start().await.unwrap();
    log.reaches(200).await;
    proxy.cut();
    proxy.restore();
    until("its end", async || log.all().last() == Some(&999)).await;
    let seen = log.all();
    // Unacknowledged messages are redelivered; none is skipped, and reading did not start over.
    assert!(seen.len() < 1000 + 100, "{}", seen.len());
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_end_is_the_offset_of_its_last_message() {
    let orders = name("stream-end");
    let queue = Queue::stream(&orders);
    let mut published = 0;
    for count in [0, 1, 1, 7, 3000, 1] {
        fill(&queue, &orders, count).await;
        published += count as u64;
        let consumer = recording(&orders, &Log::default()).offset(Offset::First);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        assert_eq!(client.stream_ends().await.unwrap(), [published.checked_sub(1)]);
        client.shutdown(SECONDS).await;
    }
}

/// Messages after the running one were handled before the cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_after_a_running_one_are_not_handled_again_after_a_cut() {
    let orders = name("stream");
    let queue = Queue::stream(&orders);
    fill(&queue, &orders, 500).await;
    let (log, gate, proxy) = (Log::default(), Gate::default(), Proxy::to(broker().address()).unwrap());
    let consumer = {
        let (log, gate) = (log.clone(), gate.clone());
        Consumer::new(&orders, "reads").workers(4).offset(Offset::First).handle(move |delivery| {
            let (log, gate) = (log.clone(), gate.clone());
            async move {
                log.add(number(&delivery));
                if number(&delivery) == 3 {
                    gate.pass().await;
                }
                Ok(())
            }
        })
    };
    let uri = proxy.uri(&broker().uri());
    let client = Client::builder(uri).queue(queue.clone()).consumer(consumer).start().await.unwrap();
    for cuts in 1..=2 {
        until("all but one done", async || {
            let stats = client.stats().consumers.remove(0);
            stats.handled == 499 && stats.received == 500 + (cuts - 1) * 497
        })
        .await;
        proxy.cut();
        until("the loss noticed", async || client.stats().consumers[0].channel_losses == cuts).await;
        proxy.restore();
    }
    until("all received again", async || client.stats().consumers[0].received == 500 + 2 * 497).await;
    gate.open(1);
    fill(&queue, &orders, 1).await;
    until("the last one", async || client.stats().consumers[0].handled == 501).await;
    let mut seen = log.all();
    seen.sort_unstable();
    // The last message has the number 0.
    assert_eq!(seen, [0].into_iter().chain(0..500).collect::<Vec<_>>());
    assert_eq!(client.shutdown(SECONDS).await.consumers[0].position, Some(501));
}

/// Its offsets start over and are different messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_stream_is_read_from_its_beginning() {
    let (orders, log) = (name("stream"), Log::default());
    let queue = Queue::stream(&orders);
    fill(&queue, &orders, 300).await;
    let consumer = recording(&orders, &log).offset(Offset::First);
    let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
    log.reaches(300).await;
    broker().ctl(["delete_queue", &orders]).unwrap();
    until("the loss noticed", async || client.stats().consumers[0].channel_losses == 1).await;
    until("consuming again", async || client.stats().consumers[0].consuming).await;
    fill(&queue, &orders, 200).await;
    let mut seen = log.reaches(500).await;
    seen.sort_unstable();
    let mut expected: Vec<_> = (0..300).chain(0..200).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    client.shutdown(SECONDS).await;
}
