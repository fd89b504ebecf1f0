//! Messages that are retried.

use crate::fixture::*;
use gristmill_amqp::{Binding, Consumer, Exchange, FieldValue, Headers, Message, Queue, header};
use gristmill_pool::{Retry, TaskError};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);
const QUICK: Retry = Retry::exponential(4, Duration::from_millis(10));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_message_waits_at_the_broker_without_blocking_others() {
    let (orders, shop) = (name("again"), name("shop"));
    let (log, done) = (Log::default(), Log::default());
    let consumer = {
        let (log, done) = (log.clone(), done.clone());
        // As many failures as workers and prefetched messages: if they were held, nothing else could run.
        Consumer::new(&orders, "retries").workers(2).prefetch(2).retry(QUICK).handle(move |delivery| {
            let (log, done) = (log.clone(), done.clone());
            async move {
                let text = std::str::from_utf8(delivery.body())?.to_owned();
                let received = (text.clone(), delivery.attempt(), delivery.exchange().to_owned());
                log.add((received, delivery.routing_key().to_owned(), delivery.headers().get("mine").cloned()));
                match text.starts_with("bad") && delivery.attempt() < 3 {
                    true => Err(TaskError::transient("not now").with_retry_after(Duration::from_millis(200))),
                    false => {
                        done.add(text);
                        Ok(())
                    }
                }
            }
        })
    };
    let client = builder()
        .exchange(Exchange::direct(&shop))
        .queue(Queue::new(&orders))
        .bind(Binding::new(&orders, &shop, "key"))
        .consumer(consumer)
        .start()
        .await
        .unwrap();
    let bad = (0..4).map(|number| format!("bad {number}"));
    let good = (0..50).map(|number| format!("good {number}"));
    let all = bad.chain(good).map(|text| Message::new(&shop, "key", text).header("mine", "kept"));
    for result in client.publisher().publish_all(all).await {
        result.unwrap();
    }
    let done = done.reaches(54).await;
    assert!(done[50..].iter().all(|text| text.starts_with("bad")), "{done:?}");
    // Each attempt has the route and headers of the first.
    for ((text, attempt, exchange), key, mine) in log.all() {
        assert_eq!((exchange.as_str(), key.as_str()), (shop.as_str(), "key"), "{text} {attempt}");
        assert_eq!(mine, Some("kept".into()), "{text} {attempt}");
    }
    assert_eq!(log.len(), 50 + 4 * 3);
    let stats = client.shutdown(SECONDS).await;
    assert_eq!((stats.consumers[0].retried, stats.consumers[0].dead_lettered), (8, 0));
    assert_eq!(stats.consumers[0].acknowledged, 50 + 4 * 3);
}

/// The broker drops a message that it would return to a queue in which the message has expired before, by its
/// `x-death`, unless a consumer rejected it since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_that_expired_in_its_queue_before_is_retried() {
    for classic in [false, true] {
        let orders = name("expired");
        let queue = if classic { Queue::classic(&orders) } else { Queue::quorum(&orders) };
        let log = Log::default();
        let consumer = {
            let log = log.clone();
            Consumer::new(&orders, "again").retry(QUICK).handle(move |delivery| {
                let log = log.clone();
                async move {
                    log.add((delivery.attempt(), delivery.headers().get(header::DEATH).cloned()));
                    match delivery.attempt() {
                        1 | 2 => Err(TaskError::transient("not now")),
                        _ => Ok(()),
                    }
                }
            })
        };
        let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
        let death = Headers::new()
            .with("count", 1)
            .with("reason", "expired")
            .with("queue", orders.as_str())
            .with("exchange", "")
            .with("time", FieldValue::Time(1_700_000_000))
            .with("routing-keys", FieldValue::Array(vec![orders.as_str().into()]));
        let deaths = FieldValue::Array(vec![FieldValue::Table(death)]);
        let message = Message::to_queue(&orders, "1").header("x-death", deaths.clone());
        client.publisher().publish(message).await.unwrap();
        let received = log.reaches(3).await;
        // The original `x-death` is kept under another name.
        assert_eq!(received, [(1, None), (2, Some(deaths.clone())), (3, Some(deaths))]);
        client.shutdown(SECONDS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_handler_is_retried() {
    for blocking in [false, true] {
        let orders = name("late");
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 3).await;
        let log = Log::default();
        let consumer = Consumer::new(&orders, "late").workers(2).retry(QUICK).timeout(Duration::from_millis(100));
        let consumer = match blocking {
            false => {
                let log = log.clone();
                consumer.handle(move |delivery| {
                    let log = log.clone();
                    async move {
                        if number(&delivery) == 1 && delivery.attempt() == 1 {
                            std::future::pending::<()>().await;
                        }
                        log.add(number(&delivery));
                        Ok(())
                    }
                })
            }
            true => {
                let log = log.clone();
                consumer.handle_blocking(move |delivery| {
                    if number(delivery) == 1 && delivery.attempt() == 1 {
                        block_for(Duration::from_millis(300));
                        // The handler has noticed its timeout itself.
                        return Err(TaskError::transient("too late"));
                    }
                    log.add(number(delivery));
                    Ok(())
                })
            }
        };
        let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
        let mut seen = log.reaches(3).await;
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        let stats = client.shutdown(SECONDS).await;
        assert_eq!((stats.consumers[0].timed_out, stats.consumers[0].retried), (1, 1), "blocking: {blocking}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_is_retried_despite_properties_the_broker_would_refuse() {
    let (orders, other) = (name("restricted"), name("other"));
    let queue = Queue::new(&orders);
    let user = broker().user().to_owned();
    let mut message = Message::to_queue(&orders, "restricted");
    message.properties.user_id = Some(user.clone());
    message.properties.expiration = Some("60000".into());
    message.properties.headers.set("CC", gristmill_amqp::FieldValue::Array(vec![other.as_str().into()]));
    let client = builder().queue(queue.clone()).queue(Queue::new(&other)).start().await.unwrap();
    client.publisher().publish(message).await.unwrap();
    depth_is(&client, &other, 1).await;
    // As another user, whom the broker does not accept as publisher of this user id.
    broker().ctl(["add_user", "retrier", "retrier"]).unwrap();
    broker().ctl(["set_permissions", "retrier", ".*", ".*", ".*"]).unwrap();
    let uri = broker().uri().replace(&format!("{}:{}", broker().user(), broker().password()), "retrier:retrier");
    let log = Log::default();
    let consumer = {
        let log = log.clone();
        Consumer::new(&orders, "retrier").workers(2).retry(QUICK).handle(move |delivery| {
            let log = log.clone();
            async move {
                if delivery.attempt() < 3 {
                    return Err(TaskError::transient("not now"));
                }
                log.add(delivery.headers().get(header::USER).map(ToString::to_string));
                Ok(())
            }
        })
    };
    let retrier = gristmill_amqp::Client::builder(uri).queue(queue).consumer(consumer).start().await.unwrap();
    assert_eq!(log.reaches(1).await, [Some(user)]);
    retrier.shutdown(SECONDS).await;
    // The retry sent no second copy to the CC queue.
    assert_eq!(client.queue_depth(&other).await.unwrap().0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_that_expires_before_its_retry_is_dead_lettered_by_the_broker() {
    for workers in [1, 2] {
        let (orders, expired, log) = (name("short"), name("expired"), Log::default());
        let queue = Queue::quorum(&orders)
            .argument("x-dead-letter-exchange", "")
            .argument("x-dead-letter-routing-key", expired.as_str());
        fill_with(&Queue::classic(&expired), Vec::new()).await;
        let mut message = Message::to_queue(&orders, "x");
        message.properties.expiration = Some("60000".to_owned());
        fill_with(&queue, vec![message, Message::to_queue(&orders, "lasts")]).await;
        let consumer = {
            let log = log.clone();
            let an_hour = Retry::exponential(3, Duration::from_secs(3600));
            Consumer::new(&orders, "fails").workers(workers).retry(an_hour).handle(move |delivery| {
                log.add((delivery.body().clone(), delivery.attempt()));
                async { Err(TaskError::transient("not now")) }
            })
        };
        let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
        depth_is(&client, &expired, 1).await;
        until("the other one waits", async || client.stats().consumers[0].retried == 1).await;
        let stats = client.shutdown(SECONDS).await.consumers.remove(0);
        assert_eq!((stats.expired, stats.dead_lettered, log.len()), (1, 0, 2), "{workers} workers");
        assert_eq!(take_all(&expired, 1).await[0].body(), "x");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_keeps_the_deadline_of_a_message() {
    let (orders, log) = (name("lasts"), Log::default());
    let queue = Queue::quorum(&orders);
    let mut message = Message::to_queue(&orders, "x");
    message.properties.expiration = Some("600000".to_owned());
    fill_with(&queue, vec![message]).await;
    let consumer = {
        let log = log.clone();
        Consumer::new(&orders, "fails").workers(2).retry(QUICK).handle(move |delivery| {
            log.add(delivery.headers().get(header::EXPIRES_AT).and_then(gristmill_amqp::FieldValue::as_int));
            async { Err(TaskError::transient("not now")) }
        })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let deadlines = log.reaches(3).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    assert_eq!(deadlines[0], None);
    assert!(deadlines[1].is_some_and(|at| (now..now + 600_000).contains(&at)), "{deadlines:?} at {now}");
    assert_eq!(deadlines[1], deadlines[2]);
    client.shutdown(SECONDS).await;
}

/// The broker delivers such a message to a consumer with free prefetch, and otherwise drops it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_with_zero_expiration_is_handled_when_delivered() {
    for queue in [Queue::quorum(name("at-once")), Queue::classic(name("at-once"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        let log = Log::default();
        let client = builder().queue(queue).consumer(recording(&orders, &log)).start().await.unwrap();
        for number in 0..20 {
            let mut message = Message::to_queue(&orders, number.to_string());
            message.properties.expiration = Some("0".to_owned());
            client.publisher().publish(message).await.unwrap();
        }
        client.publisher().publish(Message::to_queue(&orders, "20")).await.unwrap();
        until("the last one", async || log.all().contains(&20)).await;
        let stats = client.shutdown(SECONDS).await.consumers.remove(0);
        assert!(log.len() > 1, "{orders}: {stats:?}");
        assert_eq!((stats.expired, stats.handled, stats.received), (0, log.len() as u64, log.len() as u64), "{orders}");
    }
}
