//! Handlers of batches: what a batch has, and how each of its messages is settled.

use crate::fixture::*;
use gristmill_amqp::{Client, Consumer, Delivery, Message, OrderBy, Queue, Retry, TaskError, TaskResult};
use gristmill_broker::Proxy;
use gristmill_store::Store;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(10);
const AN_HOUR: Duration = Duration::from_secs(3600);
const THREE_TIMES: Retry = Retry::exponential(3, Duration::from_millis(10));

type Batch = Vec<usize>;

/// Consumer that records the numbers of each batch before it calls the handler.
fn consumer(
    queue: &str,
    (max, linger): (usize, Duration),
    log: &Log<Batch>,
    handler: impl Fn(&[Delivery]) -> TaskResult<Vec<TaskResult<()>>> + Send + Sync + 'static,
) -> Consumer {
    let log = log.clone();
    Consumer::new(queue, name("batches"))
        .retry(THREE_TIMES)
        .probe_delay(Duration::from_millis(20), Duration::from_millis(100))
        .handle_batch(max, linger, move |batch| {
            log.add(batch.iter().map(number).collect());
            handler(batch)
        })
}

fn all_ok(batch: &[Delivery]) -> TaskResult<Vec<TaskResult<()>>> {
    Ok(batch.iter().map(|_| Ok(())).collect())
}

fn sizes(log: &Log<Batch>) -> Vec<usize> {
    log.all().iter().map(Vec::len).collect()
}

async fn is_acknowledged(client: &Client, count: u64) {
    until("all acknowledged", async || client.stats().consumers[0].acknowledged == count).await;
}

/// Each way in which one batch of five messages ends: how often each runs, and how it is settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_of_a_batch_is_settled_by_its_own_result() {
    type Case = (&'static str, fn(&[Delivery]) -> TaskResult<Vec<TaskResult<()>>>, [usize; 5], (u64, u64, u64, u64));
    let cases: [Case; 8] = [
        ("all handled", all_ok, [1; 5], (5, 0, 0, 0)),
        ("one permanent", |batch| fail(batch, |_| TaskError::permanent("bad")), [1; 5], (4, 0, 0, 1)),
        ("one transient", |batch| fail(batch, |_| TaskError::transient("busy")), [1, 1, 3, 1, 1], (4, 0, 2, 1)),
        ("once transient", fail_once, [1, 1, 2, 1, 1], (5, 0, 1, 0)),
        ("one duplicate", duplicate, [1; 5], (4, 1, 0, 0)),
        ("error of the batch", |_| Err(TaskError::permanent("no batch")), [1; 5], (0, 0, 0, 5)),
        ("too few results", |batch| Ok(batch.iter().skip(1).map(|_| Ok(())).collect()), [1; 5], (0, 0, 0, 5)),
        ("a panic", |_| panic!("no batch"), [1; 5], (0, 0, 0, 5)),
    ];
    for (case, handler, runs, (handled, skipped, retried, dead)) in cases {
        let (orders, log) = (name("settled"), Log::default());
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 5).await;
        let client = builder().queue(queue).consumer(consumer(&orders, (5, AN_HOUR), &log, handler)).start();
        let client = client.await.unwrap();
        until(case, async || {
            let one = client.stats().consumers.remove(0);
            (one.handled, one.skipped, one.retried, one.dead_lettered) == (handled, skipped, retried, dead)
        })
        .await;
        // Retried messages are acknowledged at each attempt.
        is_acknowledged(&client, 5 + retried).await;
        let mut counts = [0; 5];
        log.all().iter().flatten().for_each(|number| counts[*number] += 1);
        assert_eq!(counts, runs, "{case}");
        let all = sizes(&log);
        assert!(all[0] == 5 && all[1..].iter().all(|size| *size == 1), "{case}: {all:?}");
        client.shutdown(SECONDS).await;
    }
}

/// Fails message 2.
fn fail(batch: &[Delivery], error: fn(&Delivery) -> TaskError) -> TaskResult<Vec<TaskResult<()>>> {
    Ok(batch.iter().map(|delivery| if number(delivery) == 2 { Err(error(delivery)) } else { Ok(()) }).collect())
}

/// Fails message 2 in its first attempt.
fn fail_once(batch: &[Delivery]) -> TaskResult<Vec<TaskResult<()>>> {
    let result = |delivery: &Delivery| match (number(delivery), delivery.attempt()) {
        (2, 1) => Err(TaskError::transient("busy")),
        _ => Ok(()),
    };
    Ok(batch.iter().map(result).collect())
}

/// Reports message 2 as handled before.
fn duplicate(batch: &[Delivery]) -> TaskResult<Vec<TaskResult<()>>> {
    batch.iter().filter(|delivery| number(delivery) == 2).for_each(Delivery::set_duplicate);
    all_ok(batch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_runs_when_it_is_full_or_has_lingered() {
    // Messages, maximum, linger and sizes of the batches; none where they depend on time.
    for (count, max, linger, expected) in [
        (10, 5, AN_HOUR, Some(vec![5, 5])),
        (3, 5, Duration::from_secs(1), Some(vec![3])),
        (40, 7, Duration::ZERO, None),
    ] {
        let (orders, log) = (name("gathered"), Log::default());
        let queue = Queue::new(&orders);
        fill(&queue, &orders, count).await;
        let client = builder().queue(queue).consumer(consumer(&orders, (max, linger), &log, all_ok)).start();
        let client = client.await.unwrap();
        is_acknowledged(&client, count as u64).await;
        let mut seen = log.all().concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..count).collect::<Vec<_>>());
        let sizes = sizes(&log);
        assert!(sizes.iter().all(|size| *size <= max), "{sizes:?}");
        assert!(expected.is_none_or(|expected| expected == sizes), "{sizes:?}");
        assert_eq!(client.stats().consumers[0].workers, max);
        client.shutdown(SECONDS).await;
    }
}

/// A handler that waits at a gate on its thread.
#[expect(clippy::type_complexity)]
fn at_gate() -> (mpsc::Sender<()>, impl Fn(&[Delivery]) -> TaskResult<Vec<TaskResult<()>>> + Send + Sync) {
    let (open, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    (open, move |batch: &[Delivery]| {
        let _ = gate.lock().unwrap().recv();
        all_ok(batch)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_has_what_arrived_while_the_workers_were_busy() {
    let (orders, log, (open, handler)) = (name("busy"), Log::default(), at_gate());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 1).await;
    let consumer = consumer(&orders, (50, Duration::ZERO), &log, handler);
    let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
    log.reaches(1).await;
    fill(&queue, &orders, 20).await;
    until("twenty waiting", async || client.stats().consumers[0].waiting == 20).await;
    open.send(()).unwrap();
    open.send(()).unwrap();
    is_acknowledged(&client, 21).await;
    assert_eq!(sizes(&log), [1, 20]);
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gathered_messages_return_to_the_queue_when_the_consumer_stops() {
    let (orders, log) = (name("stops"), Log::default());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 4).await;
    let consumer = consumer(&orders, (5, AN_HOUR), &log, all_ok);
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    until("four gathered", async || client.stats().consumers[0].waiting == 4).await;
    let stats = client.shutdown(SECONDS).await;
    assert_eq!((stats.consumers[0].acknowledged, log.len()), (0, 0));
    depth_is(&self::client().await, &orders, 4).await;
}

/// The batch continues while its channel is lost. Its outcome is used for the redeliveries, and nothing runs twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_that_runs_while_the_connection_is_lost_runs_once() {
    let (orders, log, (open, handler)) = (name("lost"), Log::default(), at_gate());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 8).await;
    let proxy = Proxy::to(broker().address()).unwrap();
    let uri = format!("{}?heartbeat=1", proxy.uri(&broker().uri()));
    let consumer = consumer(&orders, (5, Duration::from_millis(200)), &log, handler).prefetch(20);
    let client = Client::builder(uri).queue(queue).consumer(consumer).start().await.unwrap();
    log.reaches(1).await;
    proxy.cut();
    proxy.restore();
    until("redelivered", async || client.stats().consumers[0].redelivered == 8).await;
    (0..2).for_each(|_| open.send(()).unwrap());
    is_acknowledged(&client, 8).await;
    let mut seen = log.all().concat();
    seen.sort_unstable();
    assert_eq!(seen, (0..8).collect::<Vec<_>>());
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_has_one_message_of_each_key_in_order() {
    let (orders, log) = (name("keys"), Log::default());
    let queue = Queue::new(&orders);
    // Message n has the key n % 3.
    let message =
        |number: usize| Message::to_queue(&orders, number.to_string()).header("key", (number % 3).to_string().as_str());
    fill_with(&queue, (0..30).map(message).collect()).await;
    let consumer = consumer(&orders, (10, Duration::ZERO), &log, all_ok).order_by(OrderBy::Header("key".to_owned()));
    let client = builder().queue(queue).consumer(consumer.workers(2)).start().await.unwrap();
    is_acknowledged(&client, 30).await;
    let mut last = BTreeMap::new();
    for batch in log.all() {
        let mut keys: Vec<usize> = batch.iter().map(|number| number % 3).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), batch.len(), "{batch:?}");
        for number in batch {
            let before = last.insert(number % 3, number);
            assert!(before.is_none_or(|before| before < number), "{before:?} before {number}");
        }
    }
    client.shutdown(SECONDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_with_known_ids_are_left_out_of_the_batch() {
    let (orders, log, folder) = (name("ids"), Log::default(), tempfile::tempdir().unwrap());
    let queue = Queue::new(&orders);
    let store = Store::open(folder.path().join("x.db")).unwrap();
    store.processed_ids().record(&format!("amqp:{orders}"), vec!["0".to_owned()]).unwrap();
    let message = |number: usize| Message::to_queue(&orders, number.to_string()).id((number % 4).to_string());
    fill_with(&queue, (0..5).map(message).chain([Message::to_queue(&orders, "5")]).collect()).await;
    // Message 2 fails for good, so its id is released.
    let handler = |batch: &[Delivery]| fail(batch, |_| TaskError::permanent("bad"));
    let consumer = consumer(&orders, (5, Duration::from_millis(200)), &log, handler).dedup_window(SECONDS * 100);
    let client = builder().queue(queue).store(store.clone()).consumer(consumer).start().await.unwrap();
    until("all settled", async || client.stats().consumers[0].acknowledged == 6).await;
    let stats = client.shutdown(SECONDS).await.consumers.remove(0);
    // 0 and 4 have the id that was recorded before.
    assert_eq!((stats.handled, stats.skipped, stats.dead_lettered), (3, 2, 1));
    let mut seen = log.all().concat();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 5]);
    let ids: Vec<String> = (0..4).map(|number| number.to_string()).collect();
    let recorded = store.processed_ids().contains(&format!("amqp:{orders}"), &ids, SECONDS * 100).unwrap();
    assert_eq!(recorded, [true, true, false, true]);
}

/// All are redelivered in the second run, and have a start without an end in the third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_may_have_crashed_the_process_run_alone() {
    let (orders, folder) = (name("crashed"), tempfile::tempdir().unwrap());
    let queue = Queue::quorum(&orders);
    fill(&queue, &orders, 3).await;
    let store = || Store::open(folder.path().join("x.db")).unwrap();
    let rows = || store().message_runs().list(&format!("amqp:{orders}"), 10).unwrap();
    for run in 0..3 {
        let (log, (open, handler)) = (Log::default(), at_gate());
        let consumer = consumer(&orders, (3, AN_HOUR), &log, handler);
        let client = builder().queue(queue.clone()).store(store()).consumer(consumer).start().await.unwrap();
        log.reaches(1).await;
        if run < 2 {
            assert_eq!(sizes(&log), [3]);
            // Like a crash: nothing is settled or undone.
            drop(client);
            drop(open);
            assert_eq!(rows().iter().map(|row| row.starts).collect::<Vec<_>>(), vec![1; 3 * run]);
            depth_is(&self::client().await, &orders, 3).await;
            continue;
        }
        (0..3).for_each(|_| open.send(()).unwrap());
        is_acknowledged(&client, 3).await;
        assert_eq!(sizes(&log), [1, 1, 1]);
        client.shutdown(SECONDS).await;
        assert_eq!(rows(), []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_sink_pauses_and_messages_keep_their_attempts() {
    let (orders, log, is_down) = (name("down"), Log::default(), Arc::new(AtomicBool::new(true)));
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 20).await;
    let down = Arc::clone(&is_down);
    let handler = move |batch: &[Delivery]| match down.load(Relaxed) {
        true => Err(TaskError::unavailable("connection refused")),
        false => all_ok(batch),
    };
    let consumer = consumer(&orders, (10, Duration::from_millis(10)), &log, handler);
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    until("a pause", async || client.stats().consumers[0].paused.is_some()).await;
    // Probes are single messages, more than a message has attempts.
    log.reaches(log.len() + 4).await;
    is_down.store(false, Relaxed);
    is_acknowledged(&client, 20).await;
    let stats = client.shutdown(SECONDS).await.consumers.remove(0);
    assert_eq!((stats.handled, stats.retried, stats.dead_lettered, stats.paused), (20, 0, 0, None));
    assert!(sizes(&log)[1..].contains(&1), "{:?}", sizes(&log));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_that_waits_for_the_start_timeout_pauses_consuming() {
    // Maximum of a batch, and order. Batches of one keep the order of the queue. With an order all messages have the
    // same key, so none is ready while the first is handled.
    for (max, order) in [(10, None), (10, Some(OrderBy::RoutingKey)), (1, None)] {
        let (orders, log, (open, handler)) = (name("hangs"), Log::default(), at_gate());
        let queue = Queue::new(&orders);
        fill(&queue, &orders, 1).await;
        let consumer = consumer(&orders, (max, Duration::ZERO), &log, handler).workers(1);
        let consumer = consumer.start_timeout(Duration::from_millis(50), "no transaction began");
        let is_ordered = max == 1 || order.is_some();
        let consumer = order.into_iter().fold(consumer, Consumer::order_by);
        let client = builder().queue(queue.clone()).consumer(consumer).start().await.unwrap();
        log.reaches(1).await;
        fill(&queue, &orders, 5).await;
        is_paused(&client).await;
        (0..6).for_each(|_| open.send(()).unwrap());
        is_acknowledged(&client, 6).await;
        let stats = client.shutdown(SECONDS).await.consumers.remove(0);
        assert_eq!((stats.handled, stats.retried, stats.dead_lettered), (6, 0, 0));
        let seen = log.all().concat();
        assert!(!is_ordered || seen == [0, 0, 1, 2, 3, 4], "{seen:?}");
    }
}

async fn is_paused(client: &Client) {
    until("a pause", async || {
        client.stats().consumers[0].paused.as_deref().is_some_and(|why| why.contains("no transaction began"))
    })
    .await;
}

/// One worker has a full batch, the other a message that failed before, and message 4 is gathered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gathered_message_that_waits_for_the_start_timeout_pauses_consuming() {
    let (orders, log, (open, at_gate)) = (name("gathered-hangs"), Log::default(), at_gate());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 5).await;
    let handler = move |batch: &[Delivery]| match (number(&batch[0]), batch[0].attempt()) {
        (2, 1) => fail_once(batch),
        _ => at_gate(batch),
    };
    let consumer = consumer(&orders, (2, AN_HOUR), &log, handler).workers(2).prefetch(5);
    let consumer = consumer.start_timeout(Duration::from_millis(50), "no transaction began");
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    is_paused(&client).await;
    (0..5).for_each(|_| open.send(()).unwrap());
    until("all handled", async || client.stats().consumers[0].handled == 5).await;
    client.shutdown(SECONDS).await;
}

/// The backlog takes longer than the start timeout, and each batch is shorter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlog_longer_than_the_start_timeout_does_not_pause_consuming() {
    let (orders, log) = (name("backlog"), Log::default());
    let queue = Queue::new(&orders);
    fill(&queue, &orders, 50).await;
    let handler = |batch: &[Delivery]| {
        block_for(Duration::from_millis(100));
        all_ok(batch)
    };
    let consumer = consumer(&orders, (2, Duration::ZERO), &log, handler);
    let consumer = consumer.prefetch(50).start_timeout(Duration::from_secs(2), "no transaction began");
    let client = builder().queue(queue).consumer(consumer).start().await.unwrap();
    is_acknowledged(&client, 50).await;
    let stats = client.shutdown(SECONDS).await.consumers.remove(0);
    assert_eq!((stats.handled, stats.pauses), (50, 0));
}
