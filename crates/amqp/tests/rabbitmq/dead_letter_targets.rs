//! Targets of dead letters, and the effect of missing ones on others.

use crate::fixture::*;
use crate::raw_amqp::RawClient;
use gristmill_amqp::{Binding, Client, Consumer, Exchange, Message, Queue};
use gristmill_pool::TaskError;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

fn rejecting(queue: &str) -> Consumer {
    Consumer::new(queue, name("rejecting"))
        .workers(20)
        .prefetch(200)
        .handle(|_| async { Err(TaskError::permanent("no")) })
}

/// Checks that dead letters arrive, also after their queue was deleted.
async fn check_recreated_queue(client: &Client, orders: &str, dead_queue: &str) {
    client.publisher().publish(Message::to_queue(orders, "x")).await.unwrap();
    depth_is(client, dead_queue, 1).await;
    broker().ctl(["delete_queue", dead_queue]).unwrap();
    client.publisher().publish(Message::to_queue(orders, "x")).await.unwrap();
    depth_is(client, dead_queue, 1).await;
    until("acknowledged", async || client.stats().consumers[0].acknowledged == 2).await;
    assert_eq!(client.stats().consumers[0].channel_losses, 0);
}

/// Regression: the default queue for dead letters was declared although the user declared one of that name, so nothing
/// started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_queue_with_the_default_name_is_used() {
    let orders = name("own-queue");
    let dead = format!("{orders}.dead");
    let client = builder()
        .queue(Queue::quorum(&orders))
        .queue(Queue::classic(&dead).max_length(1000))
        .consumer(rejecting(&orders))
        .start()
        .await
        .unwrap();
    check_recreated_queue(&client, &orders, &dead).await;
    client.shutdown(SECONDS).await;
    // Declared again as it was.
    builder().queue(Queue::classic(&dead).max_length(1000)).start().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_exchange_with_the_default_name_is_used() {
    let (orders, dead_queue) = (name("own-exchange"), name("dead-queue"));
    let dead = format!("{orders}.dead");
    let client = builder()
        .exchange(Exchange::topic(&dead))
        .queue(Queue::quorum(&orders))
        .queue(Queue::classic(&dead_queue))
        .bind(Binding::new(&dead_queue, &dead, "#"))
        .consumer(rejecting(&orders))
        .start()
        .await
        .unwrap();
    check_recreated_queue(&client, &orders, &dead_queue).await;
    client.shutdown(SECONDS).await;
}

/// Regression: each dead letter to a missing exchange closed the shared channel, and everything in flight was sent
/// again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_exchange_does_not_duplicate_dead_letters_of_others() {
    const UNROUTABLE: usize = 100;
    const OTHERS: u32 = 2000;
    let (unroutable, others, dead_queue) = (name("unroutable"), name("others"), name("dead-queue"));
    let helper = builder().exchange(Exchange::fanout(&dead_queue)).start().await.unwrap();
    let client = builder()
        .queue(Queue::quorum(&unroutable))
        .queue(Queue::quorum(&others))
        .consumer(rejecting(&unroutable).dead_letters(&dead_queue, ""))
        .consumer(rejecting(&others))
        .start()
        .await
        .unwrap();
    RawClient::new().await.delete_exchange(&dead_queue).await;
    let publisher = client.publisher();
    let to_unroutable = (0..UNROUTABLE).map(|number| Message::to_queue(&unroutable, number.to_string()));
    let to_others = (0..OTHERS).map(|number| Message::to_queue(&others, number.to_string()));
    for result in publisher.publish_all(to_unroutable.chain(to_others)).await {
        result.unwrap();
    }
    until("all others dead-lettered", async || client.stats().consumers[1].dead_lettered == u64::from(OTHERS)).await;
    assert_eq!(client.stats().consumers[0].dead_lettered, 0);
    let dead = format!("{others}.dead");
    until("all in the queue", async || client.queue_depth(&dead).await.is_ok_and(|(depth, _)| depth >= OTHERS)).await;
    assert_eq!(client.queue_depth(&dead).await.unwrap().0, OTHERS);
    // No dead letter is lost.
    let _helped = builder()
        .exchange(Exchange::fanout(&dead_queue))
        .queue(Queue::classic(&dead_queue))
        .bind(Binding::new(&dead_queue, &dead_queue, ""))
        .start()
        .await
        .unwrap();
    until("the unroutable ones dead-lettered", async || client.stats().consumers[0].dead_lettered == UNROUTABLE as u64)
        .await;
    assert_eq!(client.stats().connections, 1);
    client.shutdown(SECONDS).await;
    helper.shutdown(SECONDS).await;
}
