//! Declares consumers, and resolves a declaration into the configuration that a consumer runs with.

use crate::{
    delivery::Delivery,
    republish::longest_retry_queue_name,
    sizing::{Sizing, cores},
    topology::{Binding, Exchange, Queue, Topology, check_name},
};
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
    event: Option<String>,
    handler: Option<Handler>,
    workers: usize,
    prefetch: usize,
    order: Option<OrderBy>,
    timeout: Option<Duration>,
    retry: Option<Retry>,
    retry_in_place: Option<Retry>,
    probe_delay: (Duration, Duration),
    dead_letter_target: Option<(String, String)>,
    max_starts: u32,
    dedup_window: Option<Duration>,
    store_dead_letters: bool,
    offset: Option<Offset>,
    store_position: bool,
    rewind: bool,
    exclusive: bool,
    consumer_timeout: Option<Duration>,
    handler_timeout: Option<Duration>,
    handler_records_starts: bool,
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

type AsyncHandler = dyn Fn(Delivery) -> Future + Send + Sync;
type BlockingHandler = dyn Fn(&Delivery) -> TaskResult<()> + Send + Sync;

#[derive(Clone)]
pub(crate) enum Handler {
    Async(Arc<AsyncHandler>),
    Blocking(Arc<BlockingHandler>),
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
            prefetch: 0,
            order: None,
            timeout: None,
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
            handler_records_starts: false,
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
    pub fn handle_blocking<F>(mut self, handler: F) -> Self
    where
        F: Fn(&Delivery) -> TaskResult<()> + Send + Sync + 'static,
    {
        self.handler = Some(Handler::Blocking(Arc::new(handler)));
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
    /// order: a failed message is retried in place, and the next waits.
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

    /// Declares that the handler calls [`Delivery::record_starts`] when it begins to work on a message, for example
    /// after collecting a batch. Otherwise a message is started when its handler is called.
    pub fn handler_records_starts(mut self) -> Self {
        self.handler_records_starts = true;
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

    /// Checks the declaration, applies defaults, and adds its dead-letter exchange and queue to the topology.
    pub(crate) fn resolve(&self, topology: &mut Topology, has_store: bool) -> Result<ConsumerConfig, String> {
        check_name("queue", &self.queue)?;
        check_name("queue", &longest_retry_queue_name(&self.queue))?;
        check_name("consumer", &self.name)?;
        let invalid = |what: &str| Err(format!("consumer {}: {what}", self.name));
        let Some(handler) = self.handler.clone() else {
            return invalid("no handler; set one with handle or handle_blocking");
        };
        if (self.dedup_window.is_some() || self.store_dead_letters) && !has_store {
            return invalid("dedup_window and store_dead_letters need a store (ClientBuilder::store)");
        }
        if self.timeout.is_some_and(|limit| limit.is_zero()) {
            return invalid("timeout is 0; omit it for no timeout");
        }
        if self.dedup_window.is_some_and(|window| window.is_zero()) {
            return invalid("dedup_window is 0; expected: more than 0");
        }
        if self.exclusive && topology.queue(&self.queue).and_then(Queue::kind).is_some_and(|kind| kind != "classic") {
            return invalid(
                "only a classic queue can be consumed exclusively; use x-single-active-consumer for others",
            );
        }
        if self.max_starts == 0 {
            return invalid("max_starts is 0; expected: at least 1");
        }
        let Some(queue) = topology.queue(&self.queue) else {
            return invalid(&format!("queue {} is not declared; declare it or use Queue::existing", self.queue));
        };
        if let Some(kind) = queue.kind().filter(|kind| self.rewind && *kind != "stream") {
            return invalid(&format!("--rewind needs a stream; queue {} is a {kind} queue", self.queue));
        }
        let is_stream = match (queue.kind(), &self.offset) {
            (Some("stream"), _) => true,
            (Some(kind), Some(_)) => {
                return invalid(&format!("an offset needs a stream; queue {} is a {kind} queue", self.queue));
            }
            (Some(_), None) => false,
            (None, offset) => offset.is_some(),
        };
        if self.store_position && is_stream && !has_store {
            return invalid(&format!(
                "queue {} is a stream, whose position needs a store; set one with ClientBuilder::store",
                self.queue
            ));
        }
        let kind = queue.kind().map(str::to_owned);
        let sizing = Sizing::of(self.workers, self.prefetch, cores(), |_, _, _| {});
        let target = match &self.dead_letter_target {
            Some(target) => target.clone(),
            None => (format!("{}.dead", self.queue), String::new()),
        };
        check_name("queue", &format!("{}.dead", self.queue))?;
        let declared = topology.exchanges.iter().any(|exchange| exchange.name == target.0);
        match (&self.dead_letter_target, declared) {
            (_, true) => {}
            (Some(_), false) if target.0.is_empty() => {}
            // It must exist: publishing to a missing exchange would close the channel each time.
            (Some(_), false) => topology.exchanges.push(Exchange::existing(&target.0)),
            (None, false) => {
                topology.exchanges.push(Exchange::fanout(&target.0));
                topology.add_queue(Queue::quorum(&target.0));
                topology.bindings.push(Binding::new(&target.0, &target.0, ""));
            }
        }
        let dead_letter_topology = topology.for_exchange(&target.0);
        let in_place = self.order.is_some() || sizing.workers == 1 || is_stream;
        let single_active = queue_is_single_active(topology, &self.queue);
        let consumer_timeout = self.consumer_timeout;
        let retry = match in_place {
            true => self.retry_in_place.or(self.retry).unwrap_or(DEFAULT_RETRY_IN_PLACE),
            false => self.retry.unwrap_or(DEFAULT_RETRY),
        };
        Ok(ConsumerConfig {
            queue: self.queue.as_str().into(),
            name: self.name.clone(),
            event: self.event.clone(),
            handler,
            sizing,
            in_place,
            kind,
            is_stream,
            order: self.order.clone(),
            timeout: self.timeout,
            retry: retry.without_jitter(),
            probe_delay: self.probe_delay,
            consumer_timeout,
            dead_letter_target: target,
            dead_letter_topology,
            max_starts: self.max_starts,
            handler_records_starts: self.handler_records_starts,
            dedup_window: self.dedup_window,
            store_dead_letters: self.store_dead_letters,
            offset: self.offset.clone().unwrap_or_default(),
            store_position: self.store_position && is_stream,
            rewind: self.rewind,
            exclusive: self.exclusive,
            single_active,
        })
    }

    /// Logs warnings about doubtful settings, at the start.
    pub(crate) fn warn(&self, config: &ConsumerConfig) {
        Sizing::of(self.workers, self.prefetch, cores(), |what, requested, used| {
            tracing::warn!(consumer = self.name, what, requested, used, "above the maximum; clamped");
        });
        if config.kind.is_none() && !config.is_stream {
            tracing::warn!(
                consumer = self.name,
                queue = self.queue,
                "the broker does not report the kind of the queue. If it is a stream, its position is not stored and it never counts \
                 as drained; in that case set the offset where it begins the first time"
            );
        }
        self.warn_if_handler_outlasts_broker();
    }

    /// Warns if the broker redelivers a message before its handler must have finished.
    fn warn_if_handler_outlasts_broker(&self) {
        let (Some(limit), Some(broker)) = (self.timeout.or(self.handler_timeout), self.consumer_timeout) else {
            return;
        };
        if limit >= broker {
            tracing::warn!(
                consumer = self.name,
                timeout = ?limit,
                consumer_timeout = ?broker,
                "a handler may take longer than the broker waits for an acknowledgement (its consumer_timeout); the broker then \
                 redelivers the messages of this consumer. Raise consumer_timeout at the broker, or lower the handler's timeout"
            );
        }
    }
}

fn queue_is_single_active(topology: &Topology, queue: &str) -> bool {
    topology.queue(queue).is_some_and(|queue| queue.has_single_active_consumer())
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("queue", &self.queue).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Configuration of a consumer, checked and complete.
pub(crate) struct ConsumerConfig {
    pub(crate) queue: Arc<str>,
    pub(crate) name: String,
    pub(crate) event: Option<String>,
    pub(crate) handler: Handler,
    pub(crate) sizing: Sizing,
    /// Messages are retried in place, because the order of those behind must stay.
    pub(crate) in_place: bool,
    pub(crate) is_stream: bool,
    /// Kind of the queue, as declared or found.
    pub(crate) kind: Option<String>,
    pub(crate) order: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) probe_delay: (Duration, Duration),
    /// How long the broker waits for an acknowledgement.
    pub(crate) consumer_timeout: Option<Duration>,
    pub(crate) dead_letter_target: (String, String),
    /// Declared again when a dead letter cannot be routed.
    pub(crate) dead_letter_topology: Topology,
    pub(crate) max_starts: u32,
    pub(crate) handler_records_starts: bool,
    pub(crate) dedup_window: Option<Duration>,
    pub(crate) store_dead_letters: bool,
    pub(crate) offset: Offset,
    pub(crate) store_position: bool,
    pub(crate) rewind: bool,
    pub(crate) exclusive: bool,
    /// The queue is declared with a single active consumer.
    pub(crate) single_active: bool,
}

impl ConsumerConfig {
    /// Whether order depends on this consumer alone, so that two must not consume at once. The broker ensures that
    /// itself for exclusive consumers and for queues with a single active consumer.
    pub(crate) fn waits_for_old_consumer(&self) -> bool {
        let is_ordered = self.order.is_some() || self.sizing.workers == 1;
        is_ordered && !self.is_stream && !self.exclusive && !self.single_active
    }

    /// Whether the prefetch is fixed for a channel: a change could make another consumer the active or exclusive one.
    pub(crate) fn has_fixed_prefetch(&self) -> bool {
        self.order.is_some() || self.sizing.workers == 1 || self.is_stream || self.exclusive || self.single_active
    }
}
