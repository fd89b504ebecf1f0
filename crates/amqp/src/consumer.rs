//! What a user declares about a consumer, and the one place where that becomes what it works with.

use crate::{
    delivery::Delivery,
    moves::longest_waiting_room,
    sizing::{Sizing, cores},
    topology::{Binding, Exchange, Queue, Topology, name_is_good},
};
use gristmill_pool::{Retry, TaskResult};
use serde::de::DeserializeOwned;
use std::{fmt, pin::Pin, sync::Arc, time::Duration};

/// A consumer: a queue, a handler for its messages, and how many of them at a time.
///
/// The handler's result decides. `Ok`: done, and acknowledged. An error that is
/// [transient](gristmill_pool::Class::Transient): tried again later, while others go on. Any other error, a panic or the last
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
    work: Option<Work>,
    workers: usize,
    prefetch: usize,
    order: Option<OrderBy>,
    timeout: Option<Duration>,
    retry: Retry,
    dead: Option<(String, String)>,
    max_deliveries: u32,
    once_within: Option<Duration>,
    keep_letters: bool,
    offset: Option<Offset>,
    exclusive: bool,
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

type Awaits = dyn Fn(Delivery) -> Future + Send + Sync;
type Blocks = dyn Fn(&Delivery) -> TaskResult<()> + Send + Sync;

/// What is done with a message.
#[derive(Clone)]
pub(crate) enum Work {
    Async(Arc<Awaits>),
    Blocking(Arc<Blocks>),
}

/// How a message is tried again: five times in all, after 1, 2, 4 and 8 seconds.
const RETRY: Retry = Retry::exponential(5, Duration::from_secs(1)).cap(Duration::from_secs(300));
/// Below the 20 after which RabbitMQ 4 throws a message of a quorum queue away by itself: ours goes to the dead letters.
const MAX_DELIVERIES: u32 = 15;

impl Consumer {
    /// Takes messages from this queue, by this name in logs and statistics, and at the broker.
    pub fn new(queue: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            name: name.into(),
            event: None,
            work: None,
            workers: 0,
            prefetch: 0,
            order: None,
            timeout: None,
            retry: RETRY,
            dead: None,
            max_deliveries: MAX_DELIVERIES,
            once_within: None,
            keep_letters: false,
            offset: None,
            exclusive: false,
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
        self.work = Some(Work::Async(Arc::new(move |delivery| Box::pin(handler(delivery)))));
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
        self.work = Some(Work::Blocking(Arc::new(handler)));
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

    /// How many messages the broker sends ahead: 0, the default, is ten a worker, at most 500; at most 1,000. (The broker
    /// takes them back when they are not done within its `consumer_timeout`, half an hour unless it is set: with
    /// handlers that take minutes, fewer ahead.)
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

    /// How often and when a message is tried again. (Delays are rounded up to ⅛, ¼, ½, 1, 2, 4 … seconds: each is a queue
    /// of its own at the broker. Jitter is not needed: they hold no worker.)
    pub fn retry(mut self, policy: Retry) -> Self {
        self.retry = policy;
        self
    }

    /// Where dead letters go. Unless this says otherwise, a fanout exchange and a queue, both named like the queue
    /// with `.dead` behind, are declared for them.
    pub fn dead_letters(mut self, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        self.dead = Some((exchange.into(), key.into()));
        self
    }

    /// How often a message may be delivered without getting to its end, before it is taken for one that kills its
    /// workers: 15, unless this says otherwise.
    pub fn max_deliveries(mut self, count: u32) -> Self {
        self.max_deliveries = count;
        self
    }

    /// Skips a message whose id was done within this time. Needs a [store](crate::Builder::store).
    pub fn once_within(mut self, window: Duration) -> Self {
        self.once_within = Some(window);
        self
    }

    /// Also puts dead letters into the [store](crate::Builder::store)'s.
    pub fn keep_letters(mut self) -> Self {
        self.keep_letters = true;
        self
    }

    /// Where to begin in a stream; says, too, that a queue that is there already is one. After a lost connection it goes
    /// on where it was.
    pub fn offset(mut self, offset: Offset) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Nobody else may consume from the queue. Classic queues only: the broker looks away with others, whose argument
    /// `x-single-active-consumer` does it.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Checks it, fills in what was left open, and adds what it needs to be at the broker.
    pub(crate) fn resolve(&self, topology: &mut Topology, has_store: bool) -> Result<Set, String> {
        name_is_good("queue", &self.queue)?;
        name_is_good("queue", &longest_waiting_room(&self.queue))?;
        name_is_good("consumer", &self.name)?;
        let wrong = |what: &str| Err(format!("consumer {}: {what}", self.name));
        let Some(work) = self.work.clone() else {
            return wrong("it has no handler; give it one with handle or handle_blocking");
        };
        if (self.once_within.is_some() || self.keep_letters) && !has_store {
            return wrong("once_within and keep_letters need a store; give the builder one");
        }
        if self.timeout.is_some_and(|limit| limit.is_zero()) {
            return wrong("its timeout is 0; leave it out for none");
        }
        if self.once_within.is_some_and(|window| window.is_zero()) {
            return wrong("once_within is 0: nothing can have been seen before");
        }
        if self.exclusive
            && topology.queue(&self.queue).and_then(Queue::kind).is_some_and(|kind| kind != "classic")
        {
            return wrong(
                "only a classic queue can be consumed exclusively; others have x-single-active-consumer",
            );
        }
        if self.max_deliveries == 0 {
            return wrong("max_deliveries is 0; 1 is the least");
        }
        let Some(queue) = topology.queue(&self.queue) else {
            return wrong(&format!("queue {} is not declared; declare it, or as existing", self.queue));
        };
        let is_stream = match (queue.kind(), &self.offset) {
            (Some("stream"), _) => true,
            (Some(kind), Some(_)) => {
                return wrong(&format!("an offset is for streams, and queue {} is a {kind} one", self.queue));
            }
            (Some(_), None) => false,
            (None, offset) => offset.is_some(),
        };
        let kind = queue.kind().map(str::to_owned);
        let sizing = Sizing::of(self.workers, self.prefetch, cores(), |what, asked, given| {
            tracing::warn!(consumer = self.name, what, asked, given, "more than is allowed; clamped");
        });
        let dead = match &self.dead {
            Some(dead) => dead.clone(),
            None => (format!("{}.dead", self.queue), String::new()),
        };
        name_is_good("queue", &format!("{}.dead", self.queue))?;
        let declared = topology.exchanges.iter().any(|exchange| exchange.name == dead.0);
        match (&self.dead, declared) {
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
        let dead_topology = topology.behind(&dead.0);
        let in_place = self.order.is_some() || sizing.workers == 1 || is_stream;
        if in_place && kind.as_deref() == Some("classic") {
            tracing::warn!(
                consumer = self.name,
                queue = self.queue,
                "a classic queue does not count deliveries, and where order is kept nobody does: a message that ends its \
                 process comes again for ever; a quorum queue counts"
            );
        }
        Ok(Set {
            queue: self.queue.as_str().into(),
            name: self.name.clone(),
            event: self.event.clone(),
            work,
            sizing,
            in_place,
            kind,
            is_stream,
            order: self.order.clone(),
            timeout: self.timeout,
            retry: self.retry.without_jitter(),
            dead,
            dead_topology,
            max_deliveries: self.max_deliveries,
            once_within: self.once_within,
            keep_letters: self.keep_letters,
            offset: self.offset.clone().unwrap_or_default(),
            exclusive: self.exclusive,
        })
    }
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
pub(crate) struct Set {
    pub(crate) queue: Arc<str>,
    pub(crate) name: String,
    pub(crate) event: Option<String>,
    pub(crate) work: Work,
    pub(crate) sizing: Sizing,
    /// Messages are tried again in their place: the order of those behind must stay.
    pub(crate) in_place: bool,
    pub(crate) is_stream: bool,
    /// Of a queue that is declared here.
    pub(crate) kind: Option<String>,
    pub(crate) order: Option<OrderBy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) dead: (String, String),
    /// What is declared again when dead letters find no queue.
    pub(crate) dead_topology: Topology,
    pub(crate) max_deliveries: u32,
    pub(crate) once_within: Option<Duration>,
    pub(crate) keep_letters: bool,
    pub(crate) offset: Offset,
    pub(crate) exclusive: bool,
}
