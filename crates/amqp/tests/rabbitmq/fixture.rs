//! Shared by the tests: a broker, unique names, consumers that record, and waiting for conditions.

use gristmill_amqp::{Client, ClientBuilder, Consumer, Delivery, Message, Queue};
use gristmill_broker::Broker;
use gristmill_pool::TaskError;
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Broker for all tests that do not change it. It ends with the process.
pub(crate) fn broker() -> &'static Broker {
    static BROKER: OnceLock<Broker> = OnceLock::new();
    BROKER.get_or_init(|| Broker::start().unwrap_or_else(|fault| panic!("{fault}")))
}

/// Returns a name that no other test uses.
pub(crate) fn name(what: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{what}-{}", COUNT.fetch_add(1, Relaxed))
}

pub(crate) fn builder() -> ClientBuilder {
    Client::builder(broker().uri())
}

/// Client without consumers.
pub(crate) async fn client_of(uri: &str) -> Client {
    Client::builder(uri).start().await.unwrap()
}

pub(crate) async fn client() -> Client {
    client_of(&broker().uri()).await
}

/// Declares a queue and publishes messages `0` to `count - 1` to it.
pub(crate) async fn fill(queue: &Queue, name: &str, count: usize) {
    fill_with(queue, (0..count).map(|number| Message::to_queue(name, number.to_string())).collect()).await;
}

pub(crate) async fn fill_with(queue: &Queue, messages: Vec<Message>) {
    let client = builder().queue(queue.clone()).start().await.unwrap();
    for result in client.publisher().publish_all(messages).await {
        result.unwrap();
    }
    client.shutdown(Duration::ZERO).await;
}

pub(crate) fn number(delivery: &Delivery) -> usize {
    std::str::from_utf8(delivery.body()).unwrap().parse().unwrap()
}

/// Entries recorded by handlers, in order.
#[derive(Clone)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Log<T> {
    pub(crate) fn add(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits until there are at least `count` entries.
    pub(crate) async fn reaches(&self, count: usize) -> Vec<T> {
        until(&format!("{count} entries"), async || self.len() >= count).await;
        self.all()
    }
}

/// Consumer that records the numbers in its messages.
pub(crate) fn recording(queue: &str, log: &Log<usize>) -> Consumer {
    let log = log.clone();
    Consumer::new(queue, name("recording")).handle(move |delivery| {
        log.add(number(&delivery));
        async { Ok(()) }
    })
}

/// Consumer that records numbers when they start and waits at a gate. It rejects the number `rejected`.
pub(crate) fn gated(queue: &str, started: &Log<usize>, gate: &Gate, rejected: Option<usize>) -> Consumer {
    let (started, gate) = (started.clone(), gate.clone());
    Consumer::new(queue, name("gated")).workers(4).handle(move |delivery| {
        let (started, gate) = (started.clone(), gate.clone());
        async move {
            started.add(number(&delivery));
            gate.pass().await;
            match Some(number(&delivery)) == rejected {
                true => Err(TaskError::permanent("no")),
                false => Ok(()),
            }
        }
    })
}

/// Limit for conditions that never become true.
const MAX_WAIT: Duration = Duration::from_secs(90);

/// Waits until a condition is true, at most [`MAX_WAIT`].
#[track_caller]
pub(crate) fn until<F>(what: &str, mut is: F) -> impl Future<Output = ()>
where
    F: AsyncFnMut() -> bool,
{
    let (what, place) = (what.to_owned(), std::panic::Location::caller());
    async move {
        let since = Instant::now();
        while !is().await {
            assert!(since.elapsed() < MAX_WAIT, "{place}: timed out waiting for: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits until this number of messages is ready in the queue.
#[track_caller]
pub(crate) fn depth_is(client: &Client, queue: &str, messages: u32) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let since = Instant::now();
        loop {
            let seen = client.queue_depth(queue).await.map(|(depth, _)| depth);
            if matches!(seen, Ok(depth) if depth == messages) {
                return;
            }
            let consumers = client.stats().consumers;
            assert!(
                since.elapsed() < MAX_WAIT,
                "{place}: timed out waiting for {messages} messages in {queue}; last: {seen:?}; {consumers:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Consumes `count` messages of a queue.
pub(crate) async fn take_all(queue: &str, count: usize) -> Vec<Delivery> {
    let log = Log::default();
    let taken = log.clone();
    let consumer = Consumer::new(queue, name("taking")).dead_letters("amq.fanout", "").handle(move |delivery| {
        taken.add(delivery);
        async { Ok(()) }
    });
    let client = builder().queue(Queue::existing(queue)).consumer(consumer).start().await.unwrap();
    let all = log.reaches(count).await;
    client.shutdown(Duration::from_secs(5)).await;
    all
}

/// Gate at which handlers wait.
#[derive(Clone)]
pub(crate) struct Gate(Arc<tokio::sync::Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(tokio::sync::Semaphore::new(0)))
    }
}

impl Gate {
    pub(crate) async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }

    pub(crate) fn open(&self, times: usize) {
        self.0.add_permits(times);
    }
}

/// Blocks the thread for this time.
pub(crate) fn block_for(time: Duration) {
    let (_never, nothing) = std::sync::mpsc::channel::<()>();
    let _ = nothing.recv_timeout(time);
}
