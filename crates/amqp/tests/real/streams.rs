//! Streams: read, not emptied.

use crate::bed::*;
use gristmill_amqp::{Client, Consumer, Offset, Queue};
use gristmill_broker::Proxy;
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_where_it_says_as_often_as_one_likes() {
    let orders = name("stream");
    let queue = Queue::stream(&orders);
    fill(&queue, &orders, 300).await;
    for (offset, first) in [(Offset::First, 0), (Offset::Number(120), 120), (Offset::First, 0)] {
        let log = Log::default();
        let consumer = noting(&orders, &log).workers(1).offset(offset.clone());
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        assert_eq!(log.reaches(300 - first).await, (first..300).collect::<Vec<_>>(), "{offset:?}");
        client.shutdown(SECONDS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goes_on_where_it_was_after_a_cut() {
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
    proxy.mend();
    until("its end", async || log.all().last() == Some(&999)).await;
    let seen = log.all();
    // What was not acknowledged comes again; nothing is left out, and it did not begin at the beginning.
    assert!(seen.len() < 1000 + 100, "{}", seen.len());
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_stream_is_the_offset_of_its_last_message() {
    let orders = name("stream-end");
    let queue = Queue::stream(&orders);
    let mut published = 0;
    for count in [0, 1, 1, 7, 3000, 1] {
        fill(&queue, &orders, count).await;
        published += count as u64;
        let consumer = noting(&orders, &Log::default()).offset(Offset::First);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        assert_eq!(client.stream_ends().await.unwrap(), [published.checked_sub(1)]);
        client.shutdown(SECONDS).await;
    }
}
