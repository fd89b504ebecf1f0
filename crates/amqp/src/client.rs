//! The client: starts and stops consumers, publishes, and reports statistics.

use crate::{
    browse,
    consumer::Consumer,
    dedup::{self, Deduplicator},
    delivery::Delivery,
    dispatcher::{Dispatcher, Parts},
    error::Error,
    handler_pool::HandlerPool,
    permissions::{self, MissingPermission, Permission},
    positions::{self, PositionWriter},
    publisher::Publisher,
    reconnect::{ConnectionState, ManagedConnection},
    republish::Republisher,
    starts::{self, StartStore, Starts},
    stats::{ClientStats, ConsumerView, Counters, StatsHandle},
    store::MessageStore,
    topology::{self, Binding, Exchange, Queue, Topology},
    transfer::{Transfer, TransferRun, Transferred},
    uri::Endpoint,
    wire::method::{Incoming, Outgoing},
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinHandle},
};

/// Running consumers and a publisher. Dropped without [`shutdown`](Self::shutdown) it stops at once, and the broker
/// redelivers unacknowledged messages.
pub struct Client {
    consuming: ManagedConnection,
    publishing: ManagedConnection,
    publisher: Publisher,
    consumers: Vec<ConsumerHandle>,
    /// Periodic tasks: redeclaring, pruning, querying the lag.
    background: Vec<AbortHandle>,
}

struct ConsumerHandle {
    view: ConsumerView,
    stop: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<()>,
}

/// Settings and declarations of a [`Client`].
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    uris: Vec<String>,
    name: String,
    topology: Topology,
    consumers: Vec<Consumer>,
    store: Option<Arc<dyn MessageStore>>,
    connect_timeout: Duration,
    confirm_timeout: Duration,
    max_in_flight: usize,
}

/// Maximum number of messages that one consumer republishes at a time.
const MAX_REPUBLISHING: usize = 1000;

/// Interval between queries for the number of ready messages.
const LAG_POLL_INTERVAL: Duration = Duration::from_secs(5);

impl ClientBuilder {
    /// Adds another node of the same cluster, tried when the others do not answer.
    pub fn uri(mut self, uri: impl Into<String>) -> Self {
        self.uris.push(uri.into());
        self
    }

    /// Sets the connection name that the broker's tools show.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Declares an exchange that bindings can name.
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.topology.exchanges.push(exchange);
        self
    }

    /// Declares a queue that consumers and bindings can name.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.topology.queues.push(queue);
        self
    }

    /// Declares a binding of an exchange to a queue.
    pub fn bind(mut self, binding: Binding) -> Self {
        self.topology.bindings.push(binding);
        self
    }

    /// Adds a consumer of a declared queue.
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Sets the store for ids of handled messages, dead letters, stream positions and unfinished starts. Without a
    /// store, a message that crashes its process is redelivered without limit.
    pub fn store(mut self, store: impl MessageStore + 'static) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets how long to wait for the first connection; 30 s by default. Later ones are waited for without limit.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long [`Publisher`] waits for a confirmation; 30 s by default.
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// Sets how many published messages may be unconfirmed at a time; 1,000 by default.
    pub fn max_in_flight(mut self, count: usize) -> Self {
        self.max_in_flight = count;
        self
    }

    /// Checks the declarations without connecting.
    pub fn check(&self) -> Result<(), Error> {
        self.resolve().map(|_| ())
    }

    fn resolve(&self) -> Result<(Vec<Endpoint>, Topology, Vec<crate::consumer::ConsumerConfig>), Error> {
        let endpoints = self.uris.iter().map(|uri| uri.parse()).collect::<Result<Vec<_>, _>>()?;
        let mut topology = self.topology.clone();
        topology.check().map_err(Error::Declaration)?;
        if self.max_in_flight == 0 {
            return Err(Error::Declaration("max_in_flight is 0; expected: at least 1".to_owned()));
        }
        let mut configs = Vec::with_capacity(self.consumers.len());
        for consumer in &self.consumers {
            let config = consumer.resolve(&mut topology, self.store.is_some()).map_err(Error::Declaration)?;
            if configs.iter().any(|other: &crate::consumer::ConsumerConfig| other.name == config.name) {
                return Err(Error::Declaration(format!("two consumers have the name {}", config.name)));
            }
            configs.push(config);
        }
        topology.check().map_err(Error::Declaration)?;
        Ok((endpoints, topology, configs))
    }

    /// Checks the declarations, connects, declares, and starts the consumers. Returns when every consumer consumes.
    pub async fn start(mut self) -> Result<Client, Error> {
        let (endpoints, _, configs) = self.resolve()?;
        let nodes = endpoints.len();
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        // Two connections: a broker short of memory stops reading from publishers, and acknowledgements must reach it.
        let publishing = ManagedConnection::start(Arc::clone(&endpoints), format!("{} (publishing)", self.name));
        let consuming = match configs.is_empty() {
            true => publishing.clone(),
            false => ManagedConnection::start(endpoints, self.name.clone()),
        };
        consuming.wait_for_first(nodes, self.connect_timeout).await?;
        publishing.wait_for_first(nodes, self.connect_timeout).await?;
        let (connection, _) = consuming.connected().await?;
        let queues: Vec<Arc<str>> = configs.iter().map(|config| Arc::clone(&config.queue)).collect();
        self.topology.find_kinds(&connection, &queues).await?;
        let (_, topology, configs) = self.resolve()?;
        permissions::declare(&topology, &configs, &connection).await?;
        self.consumers.iter().zip(&configs).for_each(|(consumer, config)| consumer.warn(config));
        let publisher = Publisher::start(publishing.clone(), self.max_in_flight, self.confirm_timeout);
        let mut client = Client { consuming, publishing, publisher, consumers: Vec::new(), background: Vec::new() };
        let mut ready_signals = Vec::new();
        for config in configs {
            let needed = Arc::new(topology.for_queue(&config.queue).merge(&config.dead_letter_topology));
            let config = Arc::new(config);
            let position = match self.store.as_ref().filter(|_| config.store_position) {
                Some(store) => Some(PositionWriter::start(&config, Arc::clone(store), &connection).await?),
                None => None,
            };
            ready_signals.push(client.spawn_consumer(config, &needed, self.store.as_ref(), position)?);
        }
        for (ready, queue) in ready_signals.into_iter().zip(queues) {
            ready.await.unwrap_or(Err(Error::Closed)).map_err(|error| {
                match permissions::is_refusal(&error) {
                    // Everything is declared, so the permission to read is missing.
                    true => permissions::error(
                        &connection,
                        vec![MissingPermission::new(Permission::Read, "queue", &queue)],
                        &[],
                    ),
                    false => error,
                }
            })?;
        }
        let redeclaring = tokio::spawn(redeclare(client.consuming.clone(), topology));
        client.background.push(redeclaring.abort_handle());
        if !client.consumers.is_empty() {
            let views: Vec<ConsumerView> = client.consumers.iter().map(|consumer| consumer.view.clone()).collect();
            client.background.push(tokio::spawn(watch_lag(client.consuming.clone(), views)).abort_handle());
        }
        Ok(client)
    }
}

impl Client {
    /// Creates settings for a broker URI: `amqp://user:password@host:port/vhost`.
    pub fn builder(uri: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            uris: vec![uri.into()],
            name: "gristmill".to_owned(),
            topology: Topology::default(),
            consumers: Vec::new(),
            store: None,
            connect_timeout: Duration::from_secs(30),
            confirm_timeout: Duration::from_secs(30),
            max_in_flight: 1000,
        }
    }

    fn spawn_consumer(
        &mut self,
        config: Arc<crate::consumer::ConsumerConfig>,
        topology: &Arc<Topology>,
        store: Option<&Arc<dyn MessageStore>>,
        position: Option<(PositionWriter, Option<u64>)>,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let (pool, results) = HandlerPool::start(&config)?;
        let counters = Arc::new(Counters::default());
        if let Some((_, Some(first))) = &position {
            counters.began_at.store(first.saturating_add(1), Relaxed);
        }
        let dedup = match (config.declared.dedup_window, store) {
            (Some(window), Some(store)) => Some(Arc::new(Deduplicator::new(Arc::clone(store), &config.queue, window))),
            _ => None,
        };
        if let Some(dedup) = &dedup {
            self.background.push(tokio::spawn(dedup::prune(Arc::clone(dedup))).abort_handle());
        }
        let starts = store.map(|store| StartStore::new(Arc::clone(store), &config.queue, config.declared.max_starts));
        if let Some(starts) = &starts {
            self.background.push(tokio::spawn(starts::prune(starts.clone())).abort_handle());
        }
        let republisher = Republisher {
            config: Arc::clone(&config),
            publisher: Publisher::start(self.publishing.clone(), MAX_REPUBLISHING, Duration::MAX),
            broker: self.publishing.clone(),
            store: store.cloned(),
            target_missing: Arc::default(),
            declared_retry_queues: Arc::default(),
            postponed: Arc::clone(&counters.postponed),
        };
        let dispatcher = Dispatcher::new(Parts {
            config: Arc::clone(&config),
            broker: self.consuming.clone(),
            topology: Arc::clone(topology),
            republisher,
            dedup,
            starts: Starts::new(starts),
            counters: Arc::clone(&counters),
            pool: pool.clone(),
            results,
            position,
        });
        let (stop, stop_requested) = oneshot::channel();
        let (report_ready, ready) = oneshot::channel();
        let task = tokio::spawn(dispatcher.run(Some(report_ready), stop_requested));
        self.consumers.push(ConsumerHandle { view: ConsumerView { config, counters, pool }, stop: Some(stop), task });
        Ok(ready)
    }

    /// Returns a handle for publishing. Clones share one channel.
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// Takes a snapshot of the statistics.
    pub fn stats(&self) -> ClientStats {
        self.stats_handle().stats()
    }

    /// Returns a handle that reads the statistics, also during [`shutdown`](Self::shutdown).
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle {
            consuming: self.consuming.watch(),
            publishing: self.publishing.watch(),
            consumers: self.consumers.iter().map(|consumer| consumer.view.clone()).collect(),
        }
    }

    /// Returns the number of ready messages and of consumers of a queue.
    pub async fn queue_depth(&self, queue: &str) -> Result<(u32, u32), Error> {
        topology::depth(&mut self.publishing.channel().await?, queue).await
    }

    /// Returns for each consumer the offset of the last message in its stream; none if empty or not a stream.
    pub async fn stream_ends(&self) -> Result<Vec<Option<u64>>, Error> {
        let (connection, _) = self.consuming.connected().await?;
        let mut ends = Vec::with_capacity(self.consumers.len());
        for consumer in &self.consumers {
            ends.push(match consumer.view.config.is_stream {
                true => positions::end(&connection, &consumer.view.config.queue).await?,
                false => None,
            });
        }
        Ok(ends)
    }

    /// Returns the first messages of a queue without removing them. The broker counts this as a delivery of each.
    pub async fn peek(&self, queue: &str, limit: usize) -> Result<Vec<Delivery>, Error> {
        browse::peek(&self.publishing.connected().await?.0, queue, limit).await
    }

    /// Deletes the ready messages of a queue and returns their number.
    pub async fn purge(&self, queue: &str) -> Result<u32, Error> {
        match self.publishing.channel().await?.call(&Outgoing::QueuePurge { queue }).await? {
            Incoming::PurgeOk { messages } => Ok(messages),
            _ => Err(Error::Message("the broker sent an unexpected reply".to_owned())),
        }
    }

    /// Moves messages from one queue to another until `cancelled` completes: each is confirmed in its new queue before
    /// it is removed from the old one. Returns the progress, also after a failure.
    pub async fn transfer(
        &self,
        transfer: &Transfer,
        cancelled: impl Future<Output = ()>,
    ) -> (Transferred, Result<(), Error>) {
        let (broker, publisher, progress) = (&self.publishing, &self.publisher, Transferred::default());
        let mut run = TransferRun { broker, publisher, transfer, progress, fault: None };
        let result = run.run(cancelled).await;
        (run.progress, result)
    }

    /// Returns an error if the task of a consumer has panicked: its queue is no longer consumed.
    pub fn check_running(&self) -> Result<(), Error> {
        match self.consumers.iter().find(|consumer| consumer.task.is_finished()) {
            Some(consumer) => Err(Error::ConsumerPanicked { consumer: consumer.view.config.name.clone() }),
            None => Ok(()),
        }
    }

    /// Stops consuming, finishes running handlers until the deadline, and requeues the rest. Returns the statistics.
    pub async fn shutdown(mut self, deadline: Duration) -> ClientStats {
        for consumer in &mut self.consumers {
            if let Some(stop) = consumer.stop.take() {
                let _ = stop.send(deadline);
            }
        }
        for consumer in &mut self.consumers {
            let _ = (&mut consumer.task).await;
        }
        let stats = self.stats();
        for broker in [&self.consuming, &self.publishing] {
            if let ConnectionState::Connected(connection, _) = broker.state() {
                connection.close(Duration::from_secs(2)).await;
            }
            broker.stop();
        }
        stats
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for consumer in &self.consumers {
            consumer.task.abort();
        }
        self.background.iter().for_each(AbortHandle::abort);
    }
}

/// Declares everything again on each connection after the first.
async fn redeclare(broker: ManagedConnection, topology: Topology) {
    let mut declared = 1;
    while let Ok((connection, count)) = broker.connected().await {
        if count != declared {
            topology.declare_each(&connection).await;
            declared = count;
        }
        connection.ended().await;
    }
}

/// Queries the number of ready messages periodically. Warns about other consumers of a queue that is read in order.
async fn watch_lag(broker: ManagedConnection, consumers: Vec<ConsumerView>) {
    let mut warned: Vec<String> = Vec::new();
    loop {
        for view in &consumers {
            // Own channel for each query, because the broker closes it if the queue is missing.
            let depth = async { topology::depth(&mut broker.channel().await?, &view.config.queue).await };
            match depth.await {
                Ok((messages, consumers)) => {
                    view.counters.lag.store(u64::from(messages) + 1, Relaxed);
                    let is_alone = consumers <= 1 || !view.config.waits_for_old_consumer();
                    if !is_alone && !warned.contains(&view.config.name) {
                        warned.push(view.config.name.clone());
                        tracing::warn!(
                            consumer = view.config.name,
                            queue = &*view.config.queue,
                            consumers,
                            "several consumers receive messages from a queue that this consumer reads in order: each keeps only \
                             the order of its own messages. Declare the queue with x-single-active-consumer to have one at a time"
                        );
                    } else if is_alone {
                        warned.retain(|name| *name != view.config.name);
                    }
                }
                Err(Error::Closed) => return,
                Err(_) => view.counters.lag.store(0, Relaxed),
            }
        }
        tokio::time::sleep(LAG_POLL_INTERVAL).await;
    }
}
