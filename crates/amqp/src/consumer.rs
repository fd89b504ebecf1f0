//! Declares consumers.

mod config;

pub(crate) use config::ConsumerConfig;

use crate::delivery::Delivery;
use gristmill_pool::{Retry, TaskResult};
use serde::de::DeserializeOwned;
use std::{fmt, pin::Pin, sync::Arc, time::Duration};

/// Declaration of a consumer: a queue, a handler for its messages, and how they are handled.
///
/// The handler's result decides. `Ok`: the message is acknowledged. A
/// [transient](gristmill_pool::ErrorClass::Transient) error: it is retried later, while others are handled. An error of
/// a [dependency](gristmill_pool::Dependency): consuming pauses until the dependency works again. Any other error, a
/// panic or the last attempt: it becomes a dead letter with the reason.
///
/// ```
/// use gristmill_amqp::Consumer;
/// # #[derive(serde::Deserialize)] struct Order { id: u64 }
///
/// let consumer = Consumer::new("orders", "shipping")
///     .workers(8)
///     .handle_json(|order: Order, _delivery| async move {
///         println!("shipping {}", order.id);
///         Ok(())
///     });
/// # let _ = consumer;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Consumer {
    queue: String,
    name: String,
    pub(crate) event: Option<String>,
    handler: Option<Handler>,
    workers: usize,
    batch: usize,
    /// How long the first message of a batch waits for others.
    pub(crate) linger: Duration,
    prefetch: usize,
    pub(crate) order: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    /// How long a message waits while all workers are busy, and the error with which consuming then pauses.
    pub(crate) start_timeout: Option<(Duration, String)>,
    retry: Option<Retry>,
    retry_in_place: Option<Retry>,
    pub(crate) probe_delay: (Duration, Duration),
    dead_letter_target: Option<(String, String)>,
    pub(crate) max_starts: u32,
    pub(crate) dedup_window: Option<Duration>,
    pub(crate) store_dead_letters: bool,
    offset: Option<Offset>,
    store_position: bool,
    pub(crate) rewind: bool,
    pub(crate) exclusive: bool,
    /// How long the broker waits for an acknowledgement.
    pub(crate) consumer_timeout: Option<Duration>,
    handler_timeout: Option<Duration>,
}

/// Key by which messages are kept in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderBy {
    /// Value of this header. Messages without it are not ordered.
    Header(String),
    /// Routing key of the message.
    RoutingKey,
}

/// Where a consumer begins in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Offset {
    /// Oldest message of the stream.
    First,
    /// Last chunk of the stream.
    Last,
    /// Messages published from now on.
    #[default]
    Next,
    /// Message with this offset.
    Number(u64),
}

type Future = Pin<Box<dyn std::future::Future<Output = TaskResult<()>> + Send>>;

pub(crate) type AsyncHandler = dyn Fn(Delivery) -> Future + Send + Sync;
pub(crate) type BatchHandler = dyn Fn(&[Delivery]) -> TaskResult<Vec<TaskResult<()>>> + Send + Sync;

#[derive(Clone)]
pub(crate) enum Handler {
    Async(Arc<AsyncHandler>),
    /// Runs on threads. A blocking handler of single messages has batches of one.
    Batch(Arc<BatchHandler>),
}

/// Default retry policy: twelve attempts, after 1, 2, 4 minutes and so on, up to an hour.
pub const DEFAULT_RETRY: Retry =
    Retry::exponential(12, Duration::from_secs(60)).max_delay(Duration::from_secs(60 * 60));
/// Default retry policy in place, where messages behind wait: five attempts, after 1, 2, 4 and 8 seconds.
pub const DEFAULT_RETRY_IN_PLACE: Retry = Retry::exponential(5, Duration::from_secs(1));
/// Default delays between probes of a failing sink, first and longest.
const DEFAULT_PROBE_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Default limit of starts, below the 20 deliveries after which RabbitMQ 4 itself drops a message of a quorum queue;
/// here it becomes a dead letter.
const DEFAULT_MAX_STARTS: u32 = 15;
/// Default `consumer_timeout` of RabbitMQ.
const DEFAULT_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Consumer {
    /// Declares a consumer of `queue`. `name` identifies it in logs, statistics and at the broker.
    pub fn new(queue: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            name: name.into(),
            event: None,
            handler: None,
            workers: 0,
            batch: 1,
            linger: Duration::ZERO,
            prefetch: 0,
            order: None,
            timeout: None,
            start_timeout: None,
            retry: None,
            retry_in_place: None,
            probe_delay: DEFAULT_PROBE_DELAY,
            dead_letter_target: None,
            max_starts: DEFAULT_MAX_STARTS,
            dedup_window: None,
            store_dead_letters: false,
            offset: None,
            store_position: false,
            rewind: false,
            exclusive: false,
            consumer_timeout: Some(DEFAULT_CONSUMER_TIMEOUT),
            handler_timeout: None,
        }
    }

    /// Sets the type of its messages, a label in statistics.
    pub fn event(mut self, kind: impl Into<String>) -> Self {
        self.event = Some(kind.into());
        self
    }

    /// Sets an async handler, which runs on tokio's threads.
    pub fn handle<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: std::future::Future<Output = TaskResult<()>> + Send + 'static,
    {
        (self.batch, self.linger) = (1, Duration::ZERO);
        self.handler = Some(Handler::Async(Arc::new(move |delivery| Box::pin(handler(delivery)))));
        self
    }

    /// Like [`handle`](Self::handle), with the payload decoded from JSON. If that fails, it is dead-lettered at once.
    pub fn handle_json<T, F, Fut>(self, handler: F) -> Self
    where
        T: DeserializeOwned + Send,
        F: Fn(T, Delivery) -> Fut + Send + Sync + 'static,
        Fut: std::future::Future<Output = TaskResult<()>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.handle(move |delivery| {
            let decoded = delivery.json().map(|payload| handler(payload, delivery));
            async move { decoded?.await }
        })
    }

    /// Sets a blocking handler, which runs on its own threads.
    pub fn handle_blocking<F>(self, handler: F) -> Self
    where
        F: Fn(&Delivery) -> TaskResult<()> + Send + Sync + 'static,
    {
        self.handle_batch(1, Duration::ZERO, move |batch| Ok(batch.iter().map(&handler).collect()))
    }

    /// Sets a blocking handler of batches, which runs on its own threads. It gets up to `max` messages, at most 1,000,
    /// and returns a result for each, in order; an error of the whole batch applies to each.
    ///
    /// A batch runs when a [worker](Self::workers) is free and the batch is full, or its first message has waited for
    /// `linger`. With a `linger` of zero a batch has what arrived while the workers were busy. `workers` is the number
    /// of batches that run at a time, one by default.
    ///
    /// Each message is settled by its own result, as by a handler of single messages. A panic or a wrong number of
    /// results is an error of each message of the batch, and a [timeout](Self::timeout) applies to the batch. A message
    /// that failed before, or may have crashed its process, is a batch of its own. With [`order_by`](Self::order_by) a
    /// batch has at most one message of a key.
    ///
    /// ```
    /// use gristmill_amqp::{Consumer, TaskError, TaskResult};
    /// use std::time::Duration;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Click {
    ///     page: String,
    /// }
    /// # fn insert<'a>(_: impl Iterator<Item = &'a Click>) -> Result<(), std::io::Error> { Ok(()) }
    ///
    /// let consumer = Consumer::new("clicks", "archive").handle_batch(500, Duration::from_millis(100), |batch| {
    ///     let clicks: Vec<TaskResult<Click>> = batch.iter().map(|delivery| delivery.json()).collect();
    ///     insert(clicks.iter().flatten()).map_err(TaskError::unavailable)?; // one transaction for all
    ///     Ok(clicks.into_iter().map(|click| click.map(drop)).collect()) // invalid JSON is dead-lettered
    /// });
    /// # let _ = consumer;
    /// ```
    pub fn handle_batch<F>(mut self, max: usize, linger: Duration, handler: F) -> Self
    where
        F: Fn(&[Delivery]) -> TaskResult<Vec<TaskResult<()>>> + Send + Sync + 'static,
    {
        (self.batch, self.linger) = (max, linger);
        self.handler = Some(Handler::Batch(Arc::new(handler)));
        self
    }

    /// Like [`handle_blocking`](Self::handle_blocking), with the payload decoded from JSON.
    pub fn handle_blocking_json<T, F>(self, handler: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, &Delivery) -> TaskResult<()> + Send + Sync + 'static,
    {
        self.handle_blocking(move |delivery| handler(delivery.json()?, delivery))
    }

    /// Sets how many messages are handled at a time, at most 200. The default, 0, is four per core. 1 keeps the queue's
    /// order: a failed message is retried in place, and the next waits. Of a [batch](Self::handle_batch) handler it is
    /// the number of batches, which does not keep the order.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// Sets the maximum prefetch, at most 1,000. The default, 0, is ten per worker, at most 500. The prefetch starts at
    /// a given number, else hardly above the number of workers, and follows how long handlers take: with handlers that
    /// take seconds it stays near the number of workers. Prefetched bodies take at most about 64 MiB, or one message.
    /// Where order is kept it changes only with the channel.
    pub fn prefetch(mut self, count: usize) -> Self {
        self.prefetch = count;
        self
    }

    /// Keeps the order of messages with the same key, while other keys are handled in parallel. A failed message is
    /// retried in place, and those behind it wait.
    pub fn order_by(mut self, order: OrderBy) -> Self {
        self.order = Some(order);
        self
    }

    /// Sets the maximum duration of an attempt; one that takes longer has failed and is retried.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets how long a message waits while all workers are busy and none becomes free. After that the sink counts as
    /// unavailable: consuming pauses with the error `why`. Applies to [batch](Self::handle_batch) and
    /// [blocking](Self::handle_blocking) handlers.
    pub fn start_timeout(mut self, limit: Duration, why: impl Into<String>) -> Self {
        self.start_timeout = Some((limit, why.into()));
        self
    }

    /// States the timeout that the handler enforces itself, to be compared with the [broker's](Self::consumer_timeout).
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = Some(limit);
        self
    }

    /// States the broker's `consumer_timeout`, or that of the queue: how long it waits for an acknowledgement, 30
    /// minutes by default; `None` for no limit. It cannot be queried. A longer [timeout](Self::timeout) causes a
    /// warning, and so does, once, a message that is unacknowledged after two thirds of it.
    pub fn consumer_timeout(mut self, limit: Option<Duration>) -> Self {
        self.consumer_timeout = limit;
        self
    }

    /// Sets the retry policy: [`DEFAULT_RETRY`] by default, or [`DEFAULT_RETRY_IN_PLACE`] where order is kept. Delays
    /// are rounded up to ⅛, ¼, ½, 1, 2, 4 … seconds, each a queue at the broker, and have no jitter.
    pub fn retry(mut self, policy: Retry) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Sets the retry policy for messages that are retried in place: where order is kept, and in streams.
    pub fn retry_in_place(mut self, policy: Retry) -> Self {
        self.retry_in_place = Some(policy);
        self
    }

    /// Sets the delays between probes of a failing sink: `first`, doubled up to `longest`; 1 s and 1 min by default.
    ///
    /// Consuming pauses when a handler fails with [`TaskError::unavailable`](gristmill_pool::TaskError::unavailable),
    /// or several in a row with [`TaskError::dependency_failed`](gristmill_pool::TaskError::dependency_failed):
    /// messages keep their places and attempts, and one at a time is tried until one is handled. A message for which
    /// the sink fails while others are handled uses its attempts. After a pause of `longest`, waiting messages
    /// go back to the queue for other consumers, and one is kept for probes; where order is kept, all stay.
    pub fn probe_delay(mut self, first: Duration, longest: Duration) -> Self {
        self.probe_delay = (first.max(Duration::from_millis(1)), longest.max(first));
        self
    }

    /// Sets where dead letters are published. The default is a fanout exchange and a queue, both named `QUEUE.dead`.
    pub fn dead_letters(mut self, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        self.dead_letter_target = Some((exchange.into(), key.into()));
        self
    }

    /// Sets how often a message may be started without finishing before it becomes a dead letter, because it may crash
    /// its process; 15 by default. Deliveries that were not started do not count. The starts are counted in the
    /// [store](crate::ClientBuilder::store); without one there is no limit. (RabbitMQ 4 has its own limit for quorum
    /// queues: it drops or dead-letters what it has delivered 20 times, unless the queue has another `delivery-limit`.)
    pub fn max_starts(mut self, count: u32) -> Self {
        self.max_starts = count;
        self
    }

    /// Skips a message whose id was handled within this time. Needs a [store](crate::ClientBuilder::store).
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.dedup_window = Some(window);
        self
    }

    /// Also inserts dead letters into the [store](crate::ClientBuilder::store).
    pub fn store_dead_letters(mut self) -> Self {
        self.store_dead_letters = true;
        self
    }

    /// Sets where to begin in a stream; [`Offset::Next`] by default. After a lost connection the consumer resumes where
    /// it was. The kind of an existing queue is queried; if the broker does not report it, an offset declares a stream.
    pub fn offset(mut self, offset: Offset) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Stores the position in a stream in the [store](crate::ClientBuilder::store), by the consumer's name: after a
    /// restart it resumes at the first unfinished message, and [`offset`](Self::offset) applies only the first time.
    /// Other queues have no position.
    pub fn store_position(mut self) -> Self {
        self.store_position = true;
        self
    }

    /// Begins at [`offset`](Self::offset) although a position is stored.
    pub fn rewind(mut self) -> Self {
        self.rewind = true;
        self
    }

    /// Excludes other consumers of a classic queue. The broker ignores it for others; use `x-single-active-consumer`.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("queue", &self.queue).field("name", &self.name).finish_non_exhaustive()
    }
}
