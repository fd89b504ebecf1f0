//! Consumers whose sink fails: the service that their handlers need.

use crate::fixture::*;
use gristmill_amqp::{Client, Consumer, Message, Queue, header};
use gristmill_broker::Broker;
use gristmill_pool::{Retry, TaskError, TaskResult};
use gristmill_store::Store;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(10);
const TWICE: Retry = Retry::exponential(2, Duration::from_millis(10));

/// A service that handlers need, which can be down.
#[derive(Clone, Default)]
struct Service(Arc<AtomicBool>);

impl Service {
    fn set_down(&self, is_down: bool) {
        self.0.store(is_down, Relaxed);
    }

    fn is_down(&self) -> bool {
        self.0.load(Relaxed)
    }
}

fn consumer(queue: &str, handler: impl Fn(usize, u32) -> TaskResult<()> + Send + Sync + 'static) -> Consumer {
    let handler = Arc::new(handler);
    Consumer::new(queue, name("sink"))
        .workers(4)
        .retry(TWICE)
        .probe_delay(Duration::from_millis(20), Duration::from_millis(100))
        .handle(move |delivery| {
            let handler = Arc::clone(&handler);
            async move { handler(number(&delivery), delivery.attempt()) }
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_keep_their_attempts_while_the_sink_is_unavailable() {
    for is_certain in [true, false] {
        let orders = name("outage");
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 100).await;
        let (service, starts, done) = (Service::default(), Log::default(), Log::default());
        service.set_down(true);
        let handler = {
            let (service, starts, done) = (service.clone(), starts.clone(), done.clone());
            move |number, attempt| {
                starts.add(number);
                match service.is_down() {
                    true if is_certain => Err(TaskError::unavailable("connection refused")),
                    true => Err(TaskError::dependency_failed("503")),
                    false => {
                        done.add((number, attempt));
                        Ok(())
                    }
                }
            }
        };
        let client = builder().queue(queue).consumer(consumer(&orders, handler)).start().await.unwrap();
        until("a pause", async || client.stats().consumers[0].paused.is_some()).await;
        // More probes than a message has attempts, one at a time.
        starts.reaches(starts.len() + 8).await;
        let stats = client.stats();
        let one = &stats.consumers[0];
        // A message that is postponed after three probes keeps its attempts.
        assert_eq!((one.handled, one.retried, one.dead_lettered), (0, 0, 0), "{one:?}");
        let why = if is_certain { "connection refused" } else { "503" };
        assert_eq!(one.paused.as_deref(), Some(why));
        assert!(stats.prometheus().contains("gristmill_amqp_paused{"), "{}", stats.prometheus());
        service.set_down(false);
        let mut done = done.reaches(100).await;
        done.sort_unstable();
        assert_eq!(done, (0..100).map(|number| (number, 1)).collect::<Vec<_>>());
        let stats = client.shutdown(SECONDS).await;
        let one = &stats.consumers[0];
        assert_eq!((one.handled, one.dead_lettered, one.pauses, &one.paused), (100, 0, 1, &None), "{one:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_for_which_alone_the_sink_fails_uses_its_attempts() {
    for is_ordered in [false, true] {
        let orders = name("poison");
        let queue = Queue::new(&orders);
        let (starts, done) = (Log::default(), Log::default());
        let handler = {
            let (starts, done) = (starts.clone(), done.clone());
            move |number: usize, attempt| {
                starts.add((number, attempt));
                // Every tenth message times out, independent of the others.
                match number % 10 == 3 {
                    true => Err(TaskError::dependency_failed("timeout")),
                    false => {
                        done.add(number);
                        Ok(())
                    }
                }
            }
        };
        let mut consumer = consumer(&orders, handler);
        if is_ordered {
            consumer = consumer.order_by(gristmill_amqp::OrderBy::Header("account".to_owned()));
        }
        let message = |number: usize| {
            gristmill_amqp::Message::to_queue(&orders, number.to_string()).header("account", (number % 7).to_string())
        };
        fill_with(&queue, (0..50).map(message).collect()).await;
        let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
        let mut done = done.reaches(45).await;
        done.sort_unstable();
        assert_eq!(done, (0..50).filter(|number| number % 10 != 3).collect::<Vec<_>>());
        // Failed messages wait until a message is handled that started after the failures.
        until("5 dead letters", async || {
            client.publisher().publish(message(50)).await.unwrap();
            client.queue_depth(&format!("{orders}.dead")).await.is_ok_and(|(depth, _)| depth == 5)
        })
        .await;
        client.shutdown(SECONDS).await;
        for dead_letter in take_all(&format!("{orders}.dead"), 5).await {
            assert_eq!(number(&dead_letter) % 10, 3);
            let of = |name| dead_letter.headers().get(name).map(ToString::to_string).unwrap_or_default();
            assert_eq!((of(header::REASON), of(header::FAILED)), ("attempts".to_owned(), "2".to_owned()));
        }
        // A dead letter was started at least as often as it had attempts.
        for number in [3, 13, 23, 33, 43] {
            assert!(starts.all().iter().filter(|(started, _)| *started == number).count() >= 2);
        }
    }
}

/// Messages behind it were submitted before it failed and started after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_is_at_fault_when_messages_behind_it_in_the_pool_are_handled() {
    const COUNT: usize = 6;
    let orders = name("behind");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, COUNT).await;
    let (done, all_submitted, end) = (Log::default(), Gate::default(), Gate::default());
    let handler = {
        let (done, all_submitted, end) = (done.clone(), all_submitted.clone(), end.clone());
        move |delivery: gristmill_amqp::Delivery| {
            let (done, all_submitted, end) = (done.clone(), all_submitted.clone(), end.clone());
            async move {
                match (number(&delivery), delivery.attempt()) {
                    // It keeps one of two workers busy: the others run one after another.
                    (0, _) => end.pass().await,
                    (1, attempt) => {
                        if attempt == 1 && done.len() == 0 {
                            all_submitted.pass().await;
                        }
                        return Err(TaskError::dependency_failed("500"));
                    }
                    (number, _) => done.add(number),
                }
                Ok(())
            }
        }
    };
    let consumer = Consumer::new(&orders, name("sink"))
        .workers(2)
        .prefetch(COUNT)
        .retry(TWICE)
        .probe_delay(Duration::from_millis(20), Duration::from_millis(100))
        .handle(handler);
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    until("all in the pool", async || client.stats().consumers[0].in_flight == COUNT as u64).await;
    all_submitted.open(1);
    done.reaches(COUNT - 2).await;
    depth_is(&client, &format!("{orders}.dead"), 1).await;
    assert_eq!(client.stats().consumers[0].pauses, 0);
    end.open(1);
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_behind_a_failing_prefetch_are_handled() {
    let orders = name("all-poison");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 12).await;
    let done = Log::default();
    let handler = {
        let done = done.clone();
        move |number: usize, _| match number < 8 {
            true => Err(TaskError::dependency_failed("500")),
            false => {
                done.add(number);
                Ok(())
            }
        }
    };
    // The prefetch equals the number of failing messages.
    let consumer = consumer(&orders, handler).prefetch(8);
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let mut done = done.reaches(4).await;
    done.sort_unstable();
    assert_eq!(done, [8, 9, 10, 11]);
    client.shutdown(SECONDS).await;
}

/// A postponed message returns as a new delivery: a header has the time since which it fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_that_fails_for_a_day_is_at_fault_although_postponed() {
    let orders = name("day");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 1).await;
    let since = Log::default();
    let handler = {
        let since = since.clone();
        move |delivery: gristmill_amqp::Delivery| {
            since.add(delivery.headers().get(header::SINK_FAILED_SINCE).and_then(gristmill_amqp::FieldValue::as_int));
            async { Err(TaskError::dependency_failed("500")) }
        }
    };
    let consumer = Consumer::new(&orders, name("sink"))
        .workers(2)
        .retry(TWICE)
        .probe_delay(Duration::from_millis(20), Duration::from_millis(40))
        .handle(handler);
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    let postponed = || since.all().into_iter().flatten().collect::<Vec<_>>();
    // It is postponed after every third failure.
    until("a message that was postponed twice", async || postponed().len() > 3).await;
    let first = postponed()[0];
    assert!(postponed().iter().all(|since| *since == first), "{:?}", postponed());
    assert_eq!(client.stats().consumers[0].retried, 0);
    // The same message a day later.
    let day_before = first - 24 * 60 * 60 * 1000;
    let message = gristmill_amqp::Message::to_queue(&orders, "1")
        .header(header::QUEUE, orders.as_str())
        .header(header::SINK_FAILED_SINCE, day_before);
    client.publisher().publish(message).await.unwrap();
    depth_is(&client, &format!("{orders}.dead"), 1).await;
    client.shutdown(SECONDS).await;
    let dead_letters = take_all(&format!("{orders}.dead"), 1).await;
    assert_eq!(number(&dead_letters[0]), 1);
    assert!(dead_letters[0].headers().get(header::SINK_FAILED_SINCE).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_kept_across_a_pause() {
    let orders = name("pause-order");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 20).await;
    let (service, probes, done) = (Service::default(), Log::default(), Log::default());
    let handler = {
        let (service, probes, done) = (service.clone(), probes.clone(), done.clone());
        move |number, _| {
            // The service goes down at the tenth message.
            if number == 10 && probes.len() < 5 {
                service.set_down(true);
            }
            match service.is_down() {
                true => {
                    probes.add(number);
                    Err(TaskError::unavailable("the disk is full"))
                }
                false => {
                    done.add(number);
                    Ok(())
                }
            }
        }
    };
    let consumer = consumer(&orders, handler).workers(1);
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    assert_eq!(probes.reaches(5).await[..5], [10; 5]);
    service.set_down(false);
    assert_eq!(done.reaches(20).await, (0..20).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_consumer_requeues_its_messages_when_it_stops() {
    let orders = name("pause-stop");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 30).await;
    let handler = |_, _| Err(TaskError::unavailable("connection refused"));
    let consumer = consumer(&orders, handler).probe_delay(Duration::from_secs(600), Duration::from_secs(600));
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    until("a pause", async || client.stats().consumers[0].paused.is_some()).await;
    let stats = client.shutdown(Duration::from_secs(600)).await;
    assert_eq!(stats.consumers[0].acknowledged, 0);
    depth_is(&self::client().await, &orders, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_messages_are_requeued_in_a_long_pause() {
    let orders = name("long-pause");
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 20).await;
    let (service, done) = (Service::default(), Log::default());
    service.set_down(true);
    let handler = {
        let (service, done) = (service.clone(), done.clone());
        move |number, attempt| match service.is_down() {
            true => Err(TaskError::unavailable("connection refused")),
            false => {
                done.add((number, attempt));
                Ok(())
            }
        }
    };
    let paused = consumer(&orders, handler).prefetch(20);
    let client = builder().queue(queue.clone()).consumer(paused).start().await.unwrap();
    // Only the probe is held.
    depth_is(&client, &orders, 19).await;
    let others = Log::default();
    let other = builder().queue(queue).consumer(recording(&orders, &others)).start().await.unwrap();
    let mut all = others.reaches(19).await;
    other.shutdown(SECONDS).await;
    service.set_down(false);
    let probe = done.reaches(1).await;
    all.extend(probe.iter().map(|(number, _)| *number));
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    assert!(probe.iter().all(|(_, attempt)| *attempt == 1), "{probe:?}");
    // Later messages are handled with a larger prefetch again.
    fill(&Queue::new(&orders), &orders, 100).await;
    done.reaches(101).await;
    let stats = client.shutdown(SECONDS).await;
    let one = &stats.consumers[0];
    assert_eq!((one.handled, one.dead_lettered, one.channel_losses), (101, 0, 0), "{one:?}");
    assert!(one.prefetch > 1, "{one:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_longer_than_the_consumer_timeout_uses_no_attempt_or_start() {
    let broker = Broker::start().unwrap();
    let settings = "application:set_env(rabbit, consumer_timeout, 1000), \
                    application:set_env(rabbit, channel_tick_interval, 200).";
    broker.ctl(["eval", settings]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for is_ordered in [false, true] {
        let orders = name("pause-timeout");
        let (service, done) = (Service::default(), Log::default());
        service.set_down(true);
        let handler = {
            let (service, done) = (service.clone(), done.clone());
            move |number, attempt| match service.is_down() {
                true => Err(TaskError::unavailable("connection refused")),
                false => {
                    done.add((number, attempt));
                    Ok(())
                }
            }
        };
        let consumer = consumer(&orders, handler).workers(if is_ordered { 1 } else { 4 }).max_starts(2);
        let store = Store::open(folder.path().join("starts.db")).unwrap();
        let builder = Client::builder(broker.uri()).queue(Queue::quorum(&orders)).consumer(consumer);
        let client = builder.store(store).start().await.unwrap();
        let messages = (0..5).map(|number| Message::to_queue(&orders, number.to_string()));
        for result in client.publisher().publish_all(messages).await {
            result.unwrap();
        }
        until("three timeouts", async || client.stats().consumers[0].channel_losses >= 3).await;
        service.set_down(false);
        let mut done = done.reaches(5).await;
        if !is_ordered {
            done.sort_unstable();
        }
        assert_eq!(done, (0..5).map(|number| (number, 1)).collect::<Vec<_>>(), "ordered: {is_ordered}");
        assert_eq!(client.shutdown(SECONDS).await.consumers[0].dead_lettered, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_failed_before_keep_their_attempts_while_the_sink_fails() {
    for is_ordered in [false, true] {
        let orders = name("failed-before");
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 8).await;
        let (service, failures, done) = (Service::default(), Log::default(), Log::default());
        service.set_down(true);
        let handler = {
            let (service, failures, done) = (service.clone(), failures.clone(), done.clone());
            move |number, attempt| {
                if attempt == 1 {
                    return Err(TaskError::transient("the order is not complete yet"));
                }
                if service.is_down() {
                    failures.add(number);
                    return Err(TaskError::dependency_failed("503"));
                }
                done.add((number, attempt));
                Ok(())
            }
        };
        let mut consumer = consumer(&orders, handler);
        if is_ordered {
            consumer = consumer.order_by(gristmill_amqp::OrderBy::RoutingKey);
        }
        let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
        until("a pause", async || client.stats().consumers[0].paused.is_some()).await;
        // More failures than all messages together have attempts.
        failures.reaches(2 * 8 + 1).await;
        service.set_down(false);
        let mut done = done.reaches(8).await;
        done.sort_unstable();
        assert_eq!(done, (0..8).map(|number| (number, 2)).collect::<Vec<_>>());
        let stats = client.shutdown(SECONDS).await;
        let one = &stats.consumers[0];
        assert_eq!((one.handled, one.retried, one.dead_lettered, &one.paused), (8, 8, 0, &None), "{one:?}");
    }
}

/// A handler that finds a duplicate has used the sink.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_found_by_a_handler_ends_a_pause() {
    let (orders, service) = (name("duplicates"), Service::default());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 50).await;
    service.set_down(true);
    let consumer = {
        let service = service.clone();
        Consumer::new(&orders, name("sink"))
            .workers(4)
            .probe_delay(Duration::from_millis(20), Duration::from_millis(100))
            .handle_blocking(move |delivery| {
                if service.is_down() {
                    return Err(TaskError::unavailable("connection refused"));
                }
                delivery.set_duplicate();
                Ok(())
            })
    };
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    until("a pause", async || client.stats().consumers[0].paused.is_some()).await;
    service.set_down(false);
    until("all acknowledged", async || client.stats().consumers[0].acknowledged == 50).await;
    let one = client.shutdown(SECONDS).await.consumers.remove(0);
    assert_eq!((one.skipped, one.handled, &one.paused), (50, 0, &None), "{one:?}");
}
