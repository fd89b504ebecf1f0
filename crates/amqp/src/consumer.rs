//! What a user declares about a consumer, and the one place where that becomes what it works with.

use crate::{
    delivery::Delivery,
    republish::longest_retry_queue_name,
    sizing::{Sizing, cores},
    topology::{Binding, Exchange, Queue, Topology, check_name},
};
use gristmill_pool::{Retry, TaskResult};
use serde::de::DeserializeOwned;
use std::{fmt, pin::Pin, sync::Arc, time::Duration};

/// A consumer: a queue, a handler for its messages, and how many of them at a time.
///
/// The handler's result decides. `Ok`: done, and acknowledged. An error that is
/// [transient](gristmill_pool::Class::Transient): tried again later, while others are handled. An error of a
/// [dependency](gristmill_pool::Dependency): consuming is paused until that works again. Any other error, a panic or the last
/// attempt: to the dead letters, with the reason.
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

/// What keeps messages in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderBy {
    /// The value of this header. Messages without it are in nobody's way.
    Header(String),
    /// The routing key.
    RoutingKey,
}

/// Where in a stream to begin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Offset {
    /// With its oldest message.
    First,
    /// With its newest part.
    Last,
    /// With what comes from now on.
    #[default]
    Next,
    /// With the message of this number.
    Number(u64),
}

type Future = Pin<Box<dyn std::future::Future<Output = TaskResult<()>> + Send>>;

type AsyncHandler = dyn Fn(Delivery) -> Future + Send + Sync;
type BlockingHandler = dyn Fn(&Delivery) -> TaskResult<()> + Send + Sync;

/// What is done with a message.
#[derive(Clone)]
pub(crate) enum Handler {
    Async(Arc<AsyncHandler>),
    Blocking(Arc<BlockingHandler>),
}

/// How a message is tried again unless its consumer says otherwise: twelve times in all, after 1, 2, 4 minutes and so on,
/// then every hour.
pub const DEFAULT_RETRY: Retry =
    Retry::exponential(12, Duration::from_secs(60)).max_delay(Duration::from_secs(60 * 60));
/// How a message is tried again in its place, where those behind it wait: five times in all, after 1, 2, 4 and 8 seconds.
pub const DEFAULT_RETRY_IN_PLACE: Retry = Retry::exponential(5, Duration::from_secs(1));
/// When a sink that fails is tried again: after a second, then later and later, at last every minute.
const PROBE_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Below the 20 after which RabbitMQ 4 throws a message of a quorum queue away by itself: ours goes to the dead letters.
const MAX_STARTS: u32 = 15;
/// How long RabbitMQ waits for an acknowledgement, unless it is set up otherwise.
const BROKER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Consumer {
    /// Takes messages from this queue, by this name in logs and statistics, and at the broker.
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
            probe_delay: PROBE_DELAY,
            dead_letter_target: None,
            max_starts: MAX_STARTS,
            dedup_window: None,
            store_dead_letters: false,
            offset: None,
            store_position: false,
            rewind: false,
            exclusive: false,
            consumer_timeout: Some(BROKER_TIMEOUT),
            handler_timeout: None,
            handler_records_starts: false,
        }
    }

    /// What its messages are about: a label in logs and statistics.
    pub fn event(mut self, kind: impl Into<String>) -> Self {
        self.event = Some(kind.into());
        self
    }

    /// Does this with each message, on tokio's threads: for work that awaits.
    pub fn handle<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: std::future::Future<Output = TaskResult<()>> + Send + 'static,
    {
        self.handler = Some(Handler::Async(Arc::new(move |delivery| Box::pin(handler(delivery)))));
        self
    }

    /// [`handle`](Self::handle), with the payload decoded from JSON. One that cannot be is a dead letter at once.
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

    /// Does this with each message, on threads of its own: for work that blocks or computes.
    pub fn handle_blocking<F>(mut self, handler: F) -> Self
    where
        F: Fn(&Delivery) -> TaskResult<()> + Send + Sync + 'static,
    {
        self.handler = Some(Handler::Blocking(Arc::new(handler)));
        self
    }

    /// [`handle_blocking`](Self::handle_blocking), with the payload decoded from JSON.
    pub fn handle_blocking_json<T, F>(self, handler: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, &Delivery) -> TaskResult<()> + Send + Sync + 'static,
    {
        self.handle_blocking(move |delivery| handler(delivery.json()?, delivery))
    }

    /// How many messages at a time: 0, the default, is four a core; at most 200. 1 keeps the queue's order: a message that
    /// is tried again is tried again in its place, and the next waits.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// At most how many messages the broker sends ahead: 0, the default, is ten a worker, at most 500; at most 1,000. It
    /// begins with this number where one is given, else with hardly more than the workers, and follows how long handlers
    /// take: with handlers that take seconds hardly more messages than workers are ahead. Bodies of messages in hand take
    /// some 64 MiB at most, or one message. Where order is kept it changes only with the channel.
    pub fn prefetch(mut self, count: usize) -> Self {
        self.prefetch = count;
        self
    }

    /// Keeps the order of messages with the same key, while those with other keys run beside them. One that is
    /// tried again is tried again in its place, and those behind it wait.
    pub fn order_by(mut self, order: OrderBy) -> Self {
        self.order = Some(order);
        self
    }

    /// How long one attempt may take; then it has failed, and is tried again.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How long an attempt may take of a handler that keeps a limit of its own, for comparison with the
    /// [broker's](Self::broker_timeout).
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = Some(limit);
        self
    }

    /// How long the broker waits for an acknowledgement: its `consumer_timeout`, or that of the queue, 30 minutes unless it
    /// is set up otherwise; `None` if it waits without limit. It cannot be asked for that. A [timeout](Self::timeout) that is
    /// longer is warned of, and so is, once, a message that is not acknowledged after two thirds of it.
    pub fn consumer_timeout(mut self, limit: Option<Duration>) -> Self {
        self.consumer_timeout = limit;
        self
    }

    /// How often and when a message is tried again: [`DEFAULT_RETRY`], or [`DEFAULT_RETRY_IN_PLACE`] where order is kept,
    /// unless this says otherwise. (Delays are rounded up to ⅛, ¼, ½, 1, 2, 4 … seconds: each is a queue
    /// of its own at the broker. Jitter is not needed: they hold no worker.)
    pub fn retry(mut self, policy: Retry) -> Self {
        self.retry = Some(policy);
        self
    }

    /// The same for messages that are tried again in their place: where order is kept, and in streams.
    pub fn retry_in_place(mut self, policy: Retry) -> Self {
        self.retry_in_place = Some(policy);
        self
    }

    /// When a message is tried as a probe while the sink fails: after `first`, then after twice as long each time, at most
    /// `longest`. 1 second and 1 minute, unless this says otherwise.
    ///
    /// Consuming is paused when handlers fail with [`TaskError::unavailable`](gristmill_pool::TaskError::unavailable), or
    /// several in a row with [`TaskError::dependency_failed`](gristmill_pool::TaskError::dependency_failed): messages keep
    /// their places and their attempts, and one at a time is tried until one is handled. A message that alone makes the
    /// sink fail, while others are handled, uses its attempts. When a pause has lasted for `longest`, messages that wait go back
    /// to the queue for other consumers, and one is kept for probes; where order is kept, all stay.
    pub fn probe_delay(mut self, first: Duration, longest: Duration) -> Self {
        self.probe_delay = (first.max(Duration::from_millis(1)), longest.max(first));
        self
    }

    /// Where dead letters go. Unless this says otherwise, a fanout exchange and a queue, both named like the queue
    /// with `.dead` behind, are declared for them.
    pub fn dead_letters(mut self, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        self.dead_letter_target = Some((exchange.into(), key.into()));
        self
    }

    /// How often a message may be started again without getting to its end, before it is taken for one that ends its
    /// process and becomes a dead letter: 15, unless this says otherwise. Deliveries that were not started do not count.
    /// Needs a [store](crate::Builder::store), where the starts are counted; without one there is no limit. (RabbitMQ 4 has
    /// one of its own for quorum queues: it throws away, or dead-letters, what it has delivered 20 times, unless the queue
    /// has another `delivery-limit`.)
    pub fn max_starts(mut self, count: u32) -> Self {
        self.max_starts = count;
        self
    }

    /// Says that the handler calls [`Delivery::record_starts`] when the work on a message begins, as where it collects
    /// messages before. Otherwise a message is started when its handler is called.
    pub fn handler_records_starts(mut self) -> Self {
        self.handler_records_starts = true;
        self
    }

    /// Skips a message whose id was done within this time. Needs a [store](crate::Builder::store).
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.dedup_window = Some(window);
        self
    }

    /// Also puts dead letters into the [store](crate::Builder::store)'s.
    pub fn store_dead_letters(mut self) -> Self {
        self.store_dead_letters = true;
        self
    }

    /// Where to begin in a stream: [`Offset::Next`], unless this says otherwise. After a lost connection it continues where it
    /// was. Whether a queue that exists is a stream is asked of the broker; where that does not tell, this says so.
    pub fn offset(mut self, offset: Offset) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Keeps the position in a stream in the [store](crate::Builder::store), by the consumer's name: after a restart it
    /// continues with the first message that was not finished, and [`offset`](Self::offset) is where it begins the first
    /// time. Queues of other kinds have no position.
    pub fn store_position(mut self) -> Self {
        self.store_position = true;
        self
    }

    /// Begins where [`offset`](Self::offset) says though a position is stored.
    pub fn rewind(mut self) -> Self {
        self.rewind = true;
        self
    }

    /// Nobody else may consume from the queue. Classic queues only: the broker looks away with others, whose argument
    /// `x-single-active-consumer` does it.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Checks it, fills in what was left open, and adds what it needs to be at the broker.
    pub(crate) fn resolve(&self, topology: &mut Topology, has_store: bool) -> Result<ConsumerConfig, String> {
        check_name("queue", &self.queue)?;
        check_name("queue", &longest_retry_queue_name(&self.queue))?;
        check_name("consumer", &self.name)?;
        let invalid = |what: &str| Err(format!("consumer {}: {what}", self.name));
        let Some(handler) = self.handler.clone() else {
            return invalid("it has no handler; give it one with handle or handle_blocking");
        };
        if (self.dedup_window.is_some() || self.store_dead_letters) && !has_store {
            return invalid("once_within and keep_letters need a store; give the builder one");
        }
        if self.timeout.is_some_and(|limit| limit.is_zero()) {
            return invalid("its timeout is 0; leave it out for none");
        }
        if self.dedup_window.is_some_and(|window| window.is_zero()) {
            return invalid("once_within is 0: nothing can have been seen before");
        }
        if self.exclusive
            && topology.queue(&self.queue).and_then(Queue::kind).is_some_and(|kind| kind != "classic")
        {
            return invalid(
                "only a classic queue can be consumed exclusively; others have x-single-active-consumer",
            );
        }
        if self.max_starts == 0 {
            return invalid("max_starts is 0; 1 is the least");
        }
        let Some(queue) = topology.queue(&self.queue) else {
            return invalid(&format!("queue {} is not declared; declare it, or as existing", self.queue));
        };
        if let Some(kind) = queue.kind().filter(|kind| self.rewind && *kind != "stream") {
            return invalid(&format!("--rewind is for streams, and queue {} is a {kind} one", self.queue));
        }
        let is_stream = match (queue.kind(), &self.offset) {
            (Some("stream"), _) => true,
            (Some(kind), Some(_)) => {
                return invalid(&format!(
                    "an offset is for streams, and queue {} is a {kind} one",
                    self.queue
                ));
            }
            (Some(_), None) => false,
            (None, offset) => offset.is_some(),
        };
        if self.store_position && is_stream && !has_store {
            return invalid(&format!(
                "queue {} is a stream, and its position is kept in a store; give the builder one",
                self.queue
            ));
        }
        let kind = queue.kind().map(str::to_owned);
        let sizing = Sizing::of(self.workers, self.prefetch, cores(), |_, _, _| {});
        let dead = match &self.dead_letter_target {
            Some(dead) => dead.clone(),
            None => (format!("{}.dead", self.queue), String::new()),
        };
        check_name("queue", &format!("{}.dead", self.queue))?;
        let declared = topology.exchanges.iter().any(|exchange| exchange.name == dead.0);
        match (&self.dead_letter_target, declared) {
            (_, true) => {}
            (Some(_), false) if dead.0.is_empty() => {}
            // It must be there. Found missing only by publishing to it, it would cost the channel each time.
            (Some(_), false) => topology.exchanges.push(Exchange::existing(&dead.0)),
            (None, false) => {
                topology.exchanges.push(Exchange::fanout(&dead.0));
                topology.add_queue(Queue::quorum(&dead.0));
                topology.bindings.push(Binding::new(&dead.0, &dead.0, ""));
            }
        }
        let dead_letter_topology = topology.for_exchange(&dead.0);
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
            dead_letter_target: dead,
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

    /// Warns of what may not be meant, once: as it starts.
    pub(crate) fn warn(&self, config: &ConsumerConfig) {
        Sizing::of(self.workers, self.prefetch, cores(), |what, asked, given| {
            tracing::warn!(consumer = self.name, what, asked, given, "more than is allowed; clamped");
        });
        if config.kind.is_none() && !config.is_stream {
            tracing::warn!(
                consumer = self.name,
                queue = self.queue,
                "the broker does not tell what kind the queue has. If it is a stream, its position is not kept and it is never \
                 drained: then give the offset where it begins the first time"
            );
        }
        self.warn_if_handler_outlasts_broker();
    }

    /// Warns where the broker takes a message back before its handler must be done.
    fn warn_if_handler_outlasts_broker(&self) {
        let (Some(limit), Some(broker)) = (self.timeout.or(self.handler_timeout), self.consumer_timeout)
        else {
            return;
        };
        if limit >= broker {
            tracing::warn!(
                consumer = self.name,
                timeout = ?limit,
                consumer_timeout = ?broker,
                "a handler may take longer than the broker waits for an acknowledgement (its consumer_timeout): it then takes \
                 the messages of this consumer back and delivers them again. Raise consumer_timeout at the broker, or lower the \
                 handler's timeout"
            );
        }
    }
}

fn queue_is_single_active(topology: &Topology, queue: &str) -> bool {
    topology.queue(queue).is_some_and(|queue| queue.has_single_active_consumer())
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A consumer, checked and complete.
pub(crate) struct ConsumerConfig {
    pub(crate) queue: Arc<str>,
    pub(crate) name: String,
    pub(crate) event: Option<String>,
    pub(crate) handler: Handler,
    pub(crate) sizing: Sizing,
    /// Messages are tried again in their place: the order of those behind must stay.
    pub(crate) in_place: bool,
    pub(crate) is_stream: bool,
    /// Of a queue that is declared here.
    pub(crate) kind: Option<String>,
    pub(crate) order: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) probe_delay: (Duration, Duration),
    /// How long the broker waits for an acknowledgement.
    pub(crate) consumer_timeout: Option<Duration>,
    pub(crate) dead_letter_target: (String, String),
    /// What is declared again when dead letters find no queue.
    pub(crate) dead_letter_topology: Topology,
    pub(crate) max_starts: u32,
    /// Starts are recorded by the handler.
    pub(crate) handler_records_starts: bool,
    pub(crate) dedup_window: Option<Duration>,
    pub(crate) store_dead_letters: bool,
    pub(crate) offset: Offset,
    pub(crate) store_position: bool,
    pub(crate) rewind: bool,
    pub(crate) exclusive: bool,
    /// The queue is declared here to give messages to one consumer at a time.
    pub(crate) single_active: bool,
}

impl ConsumerConfig {
    /// Whether order is kept by this consumer alone, so that two must not consume at once. The broker sees to that itself for
    /// exclusive consumers, and for queues with a single active consumer.
    pub(crate) fn waits_for_old_consumer(&self) -> bool {
        let is_ordered = self.order.is_some() || self.sizing.workers == 1;
        is_ordered && !self.is_stream && !self.exclusive && !self.single_active
    }

    /// Whether the prefetch stays as it is as long as the channel lasts: while it is changed, another consumer could become the
    /// active or the exclusive one.
    pub(crate) fn has_fixed_prefetch(&self) -> bool {
        self.order.is_some()
            || self.sizing.workers == 1
            || self.is_stream
            || self.exclusive
            || self.single_active
    }
}
