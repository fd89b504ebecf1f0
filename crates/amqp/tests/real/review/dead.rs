//! Where dead letters go, and what it is to others when they cannot.

use super::raw::Hand;
use crate::bed::*;
use gristmill_amqp::{Binding, Client, Consumer, Exchange, Message, Queue};
use gristmill_pool::TaskError;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);

fn refusing(queue: &str) -> Consumer {
    Consumer::new(queue, name("refusing"))
        .workers(20)
        .prefetch(200)
        .handle(|_| async { Err(TaskError::permanent("no")) })
}

/// One letter arrives; its queue is deleted; another arrives all the same.
async fn arrives_twice(client: &Client, orders: &str, graves: &str) {
    client.publisher().publish(Message::to_queue(orders, "x")).await.unwrap();
    depth_is(client, graves, 1).await;
    broker().ctl(["delete_queue", graves]).unwrap();
    client.publisher().publish(Message::to_queue(orders, "x")).await.unwrap();
    depth_is(client, graves, 1).await;
    until("acknowledged", async || client.stats().consumers[0].acknowledged == 2).await;
    assert_eq!(client.stats().consumers[0].interrupted, 0);
}

/// What we declare for dead letters was declared whatever its user had: another kind of queue by that name, and nothing
/// started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_ones_own_by_that_name() {
    let orders = name("own-queue");
    let dead = format!("{orders}.dead");
    let client = builder()
        .queue(Queue::quorum(&orders))
        .queue(Queue::classic(&dead).max_length(1000))
        .consumer(refusing(&orders))
        .start()
        .await
        .unwrap();
    arrives_twice(&client, &orders, &dead).await;
    client.shutdown(SECONDS).await;
    // Made again as it was.
    builder().queue(Queue::classic(&dead).max_length(1000)).start().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_of_ones_own_by_that_name() {
    let (orders, graves) = (name("own-exchange"), name("graves"));
    let dead = format!("{orders}.dead");
    let client = builder()
        .exchange(Exchange::topic(&dead))
        .queue(Queue::quorum(&orders))
        .queue(Queue::classic(&graves))
        .bind(Binding::new(&graves, &dead, "#"))
        .consumer(refusing(&orders))
        .start()
        .await
        .unwrap();
    arrives_twice(&client, &orders, &graves).await;
    client.shutdown(SECONDS).await;
}

/// All moves went through one channel, and each letter to an exchange that is not there closed it; all that was under way was
/// sent again, and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_does_not_multiply_the_letters_of_others() {
    const HOMELESS: usize = 100;
    const OTHERS: u32 = 2000;
    let (homeless, others, graves) = (name("homeless"), name("others"), name("graves"));
    let helper = builder().exchange(Exchange::fanout(&graves)).start().await.unwrap();
    let client = builder()
        .queue(Queue::quorum(&homeless))
        .queue(Queue::quorum(&others))
        .consumer(refusing(&homeless).dead_letters(&graves, ""))
        .consumer(refusing(&others))
        .start()
        .await
        .unwrap();
    Hand::new().await.delete_exchange(&graves).await;
    let publisher = client.publisher();
    let to_homeless = (0..HOMELESS).map(|number| Message::to_queue(&homeless, number.to_string()));
    let to_others = (0..OTHERS).map(|number| Message::to_queue(&others, number.to_string()));
    for result in publisher.publish_all(to_homeless.chain(to_others)).await {
        result.unwrap();
    }
    until("all of the others dead", async || client.stats().consumers[1].rejected == u64::from(OTHERS)).await;
    assert_eq!(client.stats().consumers[0].rejected, 0);
    let dead = format!("{others}.dead");
    until("all of them there", async || {
        client.queue_depth(&dead).await.is_ok_and(|(depth, _)| depth >= OTHERS)
    })
    .await;
    assert_eq!(client.queue_depth(&dead).await.unwrap().0, OTHERS);
    // None of the first is lost.
    let _helped = builder()
        .exchange(Exchange::fanout(&graves))
        .queue(Queue::classic(&graves))
        .bind(Binding::new(&graves, &graves, ""))
        .start()
        .await
        .unwrap();
    until("the homeless dead, too", async || client.stats().consumers[0].rejected == HOMELESS as u64).await;
    assert_eq!(client.stats().connections, 1);
    client.shutdown(SECONDS).await;
    helper.shutdown(SECONDS).await;
}
