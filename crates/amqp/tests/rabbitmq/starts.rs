//! Unfinished starts are counted, deliveries are not.

use crate::{fixture::*, raw_amqp::RawClient};
use gristmill_amqp::{Client, Consumer, Delivery, FieldValue, Message, OrderBy, Queue, header};
use gristmill_broker::Proxy;
use gristmill_pool::clock::ManualClock;
use gristmill_pool::{Retry, TaskError};
use gristmill_store::Store;
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(10);
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Database that each run of a consumer opens again.
struct Database(tempfile::TempDir);

impl Database {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn store(&self) -> Store {
        Store::open(self.0.path().join("starts.db")).unwrap()
    }

    /// Opens the database with another clock.
    fn store_at(&self, clock: &ManualClock) -> Store {
        Store::options().clock(clock.clone()).open(self.0.path().join("starts.db")).unwrap()
    }
}

fn dead(queue: &str) -> String {
    format!("{queue}.dead")
}

async fn dead_letters(client: &Client, queue: &str) -> u32 {
    client.queue_depth(&dead(queue)).await.map_or(0, |(depth, _)| depth)
}

/// Runs a consumer repeatedly, each time ending it abruptly while message 0 runs, until message 0 is a dead
/// letter. Then the others finish. Returns how often message 0 was started.
async fn crash_until_dead_lettered(queue: &Queue, orders: &str, configure: impl Fn(Consumer) -> Consumer) -> usize {
    let database = Database::new();
    let (crashes, done) = (Log::default(), Log::default());
    let others = client().await.queue_depth(orders).await.unwrap().0 as usize - 1;
    loop {
        let gate = Gate::default();
        let consumer = {
            let (crashes, done, gate) = (crashes.clone(), done.clone(), gate.clone());
            Consumer::new(orders, "crashes").workers(4).prefetch(8).max_starts(3).handle(move |delivery| {
                let (crashes, done, gate) = (crashes.clone(), done.clone(), gate.clone());
                async move {
                    if number(&delivery) == 0 {
                        crashes.add(());
                        std::future::pending::<()>().await;
                    }
                    gate.pass().await;
                    done.add(number(&delivery));
                    Ok(())
                }
            })
        };
        let crashes_before = crashes.len();
        let builder = builder().queue(queue.clone()).consumer(configure(consumer)).store(database.store());
        let client = builder.start().await.unwrap();
        until("message 0 started or dead-lettered", async || {
            crashes.len() > crashes_before || dead_letters(&client, orders).await > 0
        })
        .await;
        if crashes.len() > crashes_before {
            assert!(crashes.len() < 10, "{queue:?}: it is redelivered without limit");
            // Looks like a crash to the broker.
            drop(client);
            continue;
        }
        gate.open(others);
        let mut all = done.reaches(others).await;
        all.sort_unstable();
        assert_eq!(all, (1..=others).collect::<Vec<_>>(), "{queue:?}");
        client.shutdown(SECONDS).await;
        let dead_letters = take_all(&dead(orders), 1).await;
        assert_eq!(number(&dead_letters[0]), 0);
        assert_eq!(dead_letters[0].headers().get(header::REASON), Some(&FieldValue::from("starts")), "{queue:?}");
        assert_eq!(self::client().await.queue_depth(&dead(orders)).await.unwrap().0, 0, "{queue:?}");
        return crashes.len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_that_crashes_its_process_is_dead_lettered_and_others_are_handled() {
    for queue in [Queue::quorum(name("crash")), Queue::classic(name("crash"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        fill(&queue, &orders, 12).await;
        // The first start is not committed, three more are.
        assert_eq!(crash_until_dead_lettered(&queue, &orders, |consumer| consumer).await, 4, "{queue:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_limit_applies_to_an_existing_ordered_classic_queue() {
    let orders = name("crash");
    fill(&Queue::classic(&orders), &orders, 6).await;
    let queue = Queue::existing(&orders);
    let ordered = |consumer: Consumer| consumer.workers(1).order_by(OrderBy::RoutingKey);
    assert_eq!(crash_until_dead_lettered(&queue, &orders, ordered).await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cuts_do_not_count_as_starts() {
    for queue in [Queue::quorum(name("cuts")), Queue::classic(name("cuts"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        fill(&queue, &orders, 60).await;
        let (started, gate, database) = (Log::default(), Gate::default(), Database::new());
        let consumer = {
            let (started, gate) = (started.clone(), gate.clone());
            Consumer::new(&orders, "slow").workers(8).prefetch(60).handle(move |delivery| {
                started.add(number(&delivery));
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok(())
                }
            })
        };
        let proxy = Proxy::to(broker().address()).unwrap();
        let uri = format!("{}?heartbeat=1", proxy.uri(&broker().uri()));
        let consuming = Client::builder(uri).queue(queue.clone()).consumer(consumer).store(database.store());
        let consuming = consuming.start().await.unwrap();
        let observer = client().await;
        let all_here = async |times: u64| {
            until("all sixty here", async || {
                consuming.stats().consumers[0].received >= 60 * times || dead_letters(&observer, &orders).await > 0
            })
            .await;
        };
        for times in 1..=17 {
            all_here(times).await;
            proxy.cut();
            proxy.restore();
        }
        all_here(18).await;
        gate.open(10_000);
        until("all handled or dead-lettered", async || {
            let stats = consuming.stats().consumers.remove(0);
            stats.consuming && stats.handled + stats.dead_lettered >= 60 && stats.in_flight + stats.waiting == 0
        })
        .await;
        assert_eq!(dead_letters(&observer, &orders).await, 0, "{queue:?}");
        consuming.shutdown(SECONDS).await;
        depth_is(&observer, &orders, 0).await;
        // A message running at a cut did not run twice at once.
        let mut started = started.all();
        started.sort_unstable();
        assert_eq!(started, (0..60).collect::<Vec<_>>(), "{queue:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peeking_at_a_message_does_not_count_as_a_start() {
    let (orders, log) = (name("looks"), Log::default());
    let queue = Queue::quorum(&orders);
    fill(&queue, &orders, 1).await;
    let mut raw = RawClient::new().await;
    for _ in 0..16 {
        depth_is(&client().await, &orders, 1).await;
        raw.peek(&orders).await;
    }
    depth_is(&client().await, &orders, 1).await;
    let consuming = builder().queue(queue).consumer(recording(&orders, &log)).store(Database::new().store());
    let consuming = consuming.start().await.unwrap();
    until("handled or dead-lettered", async || {
        let stats = consuming.stats().consumers.remove(0);
        stats.acknowledged == 1
    })
    .await;
    assert_eq!(log.all(), [0]);
    consuming.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_count_set_by_a_publisher_does_not_count() {
    for queue in [Queue::quorum(name("foreign")), Queue::classic(name("foreign"))] {
        let orders = format!("{queue:?}").split('"').nth(1).unwrap().to_owned();
        let (log, database) = (Log::default(), Database::new());
        fill_with(&queue, vec![Message::to_queue(&orders, "0").header("x-delivery-count", 1000i64)]).await;
        let consuming = builder().queue(queue.clone()).consumer(recording(&orders, &log)).store(database.store());
        let consuming = consuming.start().await.unwrap();
        until("handled or dead-lettered", async || consuming.stats().consumers[0].acknowledged == 1).await;
        assert_eq!(log.all(), [0], "{queue:?}");
        consuming.shutdown(SECONDS).await;
    }
}

/// Equal messages have separate counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_messages_do_not_share_their_starts() {
    let (orders, database, log) = (name("alike"), Database::new(), Log::default());
    let queue = Queue::classic(&orders);
    fill_with(&queue, vec![Message::to_queue(&orders, "7"); 20]).await;
    for _ in 0..2 {
        let started = Log::default();
        let seen = started.clone();
        let consumer = Consumer::new(&orders, "crashes").workers(20).max_starts(3).handle(move |_| {
            seen.add(());
            std::future::pending()
        });
        let client = builder().queue(queue.clone()).consumer(consumer).store(database.store()).start().await.unwrap();
        started.reaches(20).await;
        drop(client);
    }
    let client =
        builder().queue(queue).consumer(recording(&orders, &log)).store(database.store()).start().await.unwrap();
    until("all acknowledged", async || client.stats().consumers[0].acknowledged == 20).await;
    assert_eq!(log.len(), 20);
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_right_after_the_start_leave_one_copy_on_a_classic_queue() {
    let (orders, database) = (name("copies"), Database::new());
    let queue = Queue::classic(&orders);
    fill(&queue, &orders, 1).await;
    let observer = client().await;
    for _ in 0..7 {
        let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
        let consumer = Consumer::new(&orders, "crashes").workers(2).handle(move |_| {
            started.send(()).unwrap();
            std::future::pending()
        });
        let client = builder().queue(queue.clone()).consumer(consumer).store(database.store()).start().await.unwrap();
        has_started.recv().await.unwrap();
        drop(client);
        until("the consumer gone", async || observer.queue_depth(&orders).await.is_ok_and(|(_, count)| count == 0))
            .await;
    }
    depth_is(&observer, &orders, 1).await;
}

fn attempts(orders: &str, log: &Log<u32>) -> Consumer {
    let log = log.clone();
    let retry = Retry::exponential(3, AN_HOUR).max_delay(AN_HOUR);
    Consumer::new(orders, "fails").workers(1).retry(retry).handle(move |delivery: Delivery| {
        log.add(delivery.attempt());
        async { Err(TaskError::transient("not now")) }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_in_place_survive_restarts() {
    let (orders, database, log) = (name("place"), Database::new(), Log::default());
    let clock = ManualClock::at(0);
    let queue = Queue::classic(&orders);
    fill(&queue, &orders, 1).await;
    for life in 1..=3 {
        let store = database.store_at(&clock);
        let client = builder().queue(queue.clone()).consumer(attempts(&orders, &log)).store(store);
        let client = client.start().await.unwrap();
        log.reaches(life).await;
        until("the attempt over", async || {
            let stats = client.stats().consumers.remove(0);
            stats.retried + stats.dead_lettered == 1
        })
        .await;
        client.shutdown(SECONDS).await;
        clock.advance(AN_HOUR);
    }
    assert_eq!(log.all(), [1, 2, 3]);
    let dead_letters = take_all(&dead(&orders), 1).await;
    assert_eq!(dead_letters[0].headers().get(header::FAILED), Some(&FieldValue::from(3i64)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_in_place_keeps_its_due_time_after_restarts() {
    let (orders, database, log) = (name("due"), Database::new(), Log::default());
    let clock = ManualClock::at(0);
    let queue = Queue::classic(&orders);
    fill(&queue, &orders, 1).await;
    let half = AN_HOUR / 2;
    // Start times after the first run, and the attempts made by then.
    for (later, attempted) in [(Duration::ZERO, 1), (half, 1), (half - Duration::from_secs(1), 1), (half, 2)] {
        clock.advance(later);
        let store = database.store_at(&clock);
        let client = builder().queue(queue.clone()).consumer(attempts(&orders, &log)).store(store);
        let client = client.start().await.unwrap();
        log.reaches(attempted).await;
        // It waits in place.
        until("the wait for its next attempt", async || {
            let stats = client.stats().consumers.remove(0);
            let handled = stats.handler.map_or(0, |handler| handler.count);
            (stats.received, stats.in_flight, handled) == (1, 1, stats.retried)
        })
        .await;
        client.shutdown(SECONDS).await;
    }
    assert_eq!(log.all(), [1, 2]);
}

/// Each run ends with an error of the sink, and then the process is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_failed_with_the_sink_do_not_count_as_unfinished() {
    let (orders, database, log) = (name("sink"), Database::new(), Log::default());
    let queue = Queue::quorum(&orders);
    fill(&queue, &orders, 1).await;
    let observer = client().await;
    for _ in 0..6 {
        let consumer = Consumer::new(&orders, "fails")
            .max_starts(2)
            .probe_delay(AN_HOUR, AN_HOUR)
            .handle(async |_| Err(TaskError::unavailable("connection refused")));
        let client = builder().queue(queue.clone()).consumer(consumer).store(database.store());
        let client = client.start().await.unwrap();
        until("a pause or a dead letter", async || {
            let stats = client.stats().consumers.remove(0);
            stats.paused.is_some() || stats.dead_lettered > 0
        })
        .await;
        assert_eq!(client.stats().consumers[0].dead_lettered, 0, "it was dead-lettered");
        drop(client);
        until("the consumer gone", async || observer.queue_depth(&orders).await.is_ok_and(|(_, count)| count == 0))
            .await;
    }
    let consumer = recording(&orders, &log).max_starts(2);
    let client = builder().queue(queue).consumer(consumer).store(database.store()).start().await.unwrap();
    until("it ended", async || client.stats().consumers[0].acknowledged == 1).await;
    assert_eq!((log.len(), dead_letters(&observer, &orders).await), (1, 0));
    client.shutdown(SECONDS).await;
}

/// Rows are deleted together after the messages finished; messages that arrive meanwhile have their own rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_messages_are_all_handled_after_a_peek() {
    let (orders, database, log) = (name("equal"), Database::new(), Log::default());
    let queue = Queue::quorum(&orders);
    fill_with(&queue, vec![Message::to_queue(&orders, "7"); 300]).await;
    let observer = client().await;
    depth_is(&observer, &orders, 300).await;
    assert_eq!(observer.peek(&orders, 300).await.unwrap().len(), 300);
    depth_is(&observer, &orders, 300).await;
    let client =
        builder().queue(queue).consumer(recording(&orders, &log)).store(database.store()).start().await.unwrap();
    until("all acknowledged", async || client.stats().consumers[0].acknowledged == 300).await;
    let stats = client.shutdown(SECONDS).await.consumers.remove(0);
    assert_eq!((log.len(), stats.dead_lettered), (300, 0));
}

/// The message waits for a worker when its consumer is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_is_not_undone_by_a_run_that_recorded_none() {
    let (orders, database) = (name("queued"), Database::new());
    let queue = Queue::classic(&orders);
    fill(&queue, &orders, 1).await;
    let start = async |prefetch| {
        let started = Log::default();
        let recorded = started.clone();
        let consumer = Consumer::new(&orders, name("hangs")).workers(2).prefetch(prefetch).handle(move |delivery| {
            recorded.add(number(&delivery));
            std::future::pending()
        });
        let builder = builder().queue(queue.clone()).consumer(consumer).store(database.store());
        (builder.start().await.unwrap(), started)
    };
    // The first start is not committed, the second is.
    let (first, started) = start(1).await;
    started.reaches(1).await;
    drop(first);
    let (second, started) = start(1).await;
    started.reaches(1).await;
    let (third, started) = start(8).await;
    for number in 1..=2 {
        third.publisher().publish(Message::to_queue(&orders, number.to_string())).await.unwrap();
    }
    started.reaches(2).await;
    drop(second);
    until("all delivered", async || third.stats().consumers[0].in_flight == 3).await;
    third.shutdown(Duration::from_millis(100)).await;
    let rows = database.store().message_runs().list(&format!("amqp:{orders}"), 10).unwrap();
    let starts: Vec<_> = rows.iter().map(|row| row.starts).collect();
    assert_eq!((started.len(), starts), (2, vec![1]));
}
