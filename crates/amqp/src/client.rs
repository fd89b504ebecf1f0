//! What users hold: declarations that become consumers at work, and how these are watched and stopped.

use crate::{
    browse,
    consumer::Consumer,
    delivery::Delivery,
    dispatcher::{Dispatcher, Parts},
    error::Error,
    handler_pool::{Deduplicator, HandlerPool},
    net::Channel,
    permissions::{self, MissingPermission, Permission},
    positions::{self, PositionWriter},
    publisher::Publisher,
    reconnect::{ConnectionState, ManagedConnection, StartupErrors},
    republish::Republisher,
    starts::{self, StartStore, Starts},
    stats::{ClientStats, ConsumerView, Counters, StatsHandle},
    topology::{self, Binding, Exchange, Queue, Topology},
    transfer::{self, Transfer, Transferred},
    uri::Endpoint,
    wire::method::{Incoming, Outgoing},
};
use gristmill_store::Store;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinHandle},
};

/// Consumers at work, and a way to publish. Dropped without [`shutdown`](Self::shutdown) it ends at once: what was not
/// acknowledged the broker delivers again.
pub struct Client {
    consuming: ManagedConnection,
    publishing: ManagedConnection,
    publisher: Publisher,
    consumers: Vec<ConsumerHandle>,
    /// Tasks that look after things now and then.
    background: Vec<AbortHandle>,
}

struct ConsumerHandle {
    view: ConsumerView,
    stop: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<()>,
}

/// Settings of a [`Client`].
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    uris: Vec<String>,
    name: String,
    topology: Topology,
    consumers: Vec<Consumer>,
    store: Option<Store>,
    connect_timeout: Duration,
    confirm_timeout: Duration,
    in_flight: usize,
}

/// How many messages one consumer may be moving at a time.
const MAX_REPUBLISHING: usize = 1000;

/// How often the broker is asked how many messages wait.
const LAG_POLL_INTERVAL: Duration = Duration::from_secs(5);

impl ClientBuilder {
    /// Another node of the same cluster, to go to when the others do not answer.
    pub fn uri(mut self, uri: impl Into<String>) -> Self {
        self.uris.push(uri.into());
        self
    }

    /// What the broker's own tools show this program as.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// An exchange to be there.
    pub fn exchange(mut self, exchange: Exchange) -> Self {
        self.topology.exchanges.push(exchange);
        self
    }

    /// A queue to be there.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.topology.queues.push(queue);
        self
    }

    /// A binding to be there.
    pub fn bind(mut self, binding: Binding) -> Self {
        self.topology.bindings.push(binding);
        self
    }

    /// A consumer of a queue that is declared here.
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Where ids of messages that are done are kept, dead letters, and starts of messages that came to no end. Without a store
    /// a message that ends its process is delivered again without limit.
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// How long to wait for the first connection; 30 s, unless set. Later ones are waited for as long as it takes.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long a message may be on its way before its publisher is told that it is not confirmed; 30 s, unless set.
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// How many messages may be on their way at a time; 1,000, unless set.
    pub fn max_in_flight(mut self, count: usize) -> Self {
        self.in_flight = count;
        self
    }

    /// Looks for what makes no sense, without connecting to anything.
    pub fn check(&self) -> Result<(), Error> {
        self.resolve().map(|_| ())
    }

    fn resolve(&self) -> Result<(Vec<Endpoint>, Topology, Vec<crate::consumer::ConsumerConfig>), Error> {
        let endpoints = self.uris.iter().map(|uri| uri.parse()).collect::<Result<Vec<_>, _>>()?;
        let mut topology = self.topology.clone();
        topology.check()?;
        if self.in_flight == 0 {
            return Err(Error::Declaration("in_flight is 0; 1 is the least".to_owned()));
        }
        let mut configs = Vec::with_capacity(self.consumers.len());
        for consumer in &self.consumers {
            let config = consumer.resolve(&mut topology, self.store.is_some()).map_err(Error::Declaration)?;
            if configs.iter().any(|other: &crate::consumer::ConsumerConfig| other.name == config.name) {
                return Err(Error::Declaration(format!("two consumers are called {}", config.name)));
            }
            configs.push(config);
        }
        topology.check()?;
        Ok((endpoints, topology, configs))
    }

    /// Checks everything, connects, declares, and consumes. Returns when every consumer does.
    pub async fn start(mut self) -> Result<Client, Error> {
        let (endpoints, _, configs) = self.resolve()?;
        let nodes = endpoints.len();
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        // Two connections: a broker that is short of memory stops reading from those that publish, and
        // acknowledgements must get through all the same.
        let publishing = ManagedConnection::start(
            Arc::clone(&endpoints),
            format!("{} (publishing)", self.name),
            StartupErrors::Return,
        );
        let consuming = match configs.is_empty() {
            true => publishing.clone(),
            false => ManagedConnection::start(endpoints, self.name.clone(), StartupErrors::Warn),
        };
        consuming.wait_for_first(nodes, self.connect_timeout).await?;
        publishing.wait_for_first(nodes, self.connect_timeout).await?;
        let (connection, _) = consuming.connected().await?;
        let queues: Vec<Arc<str>> = configs.iter().map(|config| Arc::clone(&config.queue)).collect();
        self.topology.find_kinds(&connection, &queues).await?;
        let (_, topology, configs) = self.resolve()?;
        permissions::declare(&topology, &configs, &connection).await?;
        self.consumers.iter().zip(&configs).for_each(|(consumer, config)| consumer.warn(config));
        let publisher = Publisher::start(publishing.clone(), self.in_flight, self.confirm_timeout);
        let mut client =
            Client { consuming, publishing, publisher, consumers: Vec::new(), background: Vec::new() };
        let mut ready_signals = Vec::new();
        for config in configs {
            let needed = Arc::new(topology.for_queue(&config.queue).merge(&config.dead_letter_topology));
            let config = Arc::new(config);
            let position = match self.store.as_ref().filter(|_| config.store_position) {
                Some(store) => Some(PositionWriter::start(&config, store.clone(), &connection).await?),
                None => None,
            };
            ready_signals.push(client.spawn_consumer(config, &needed, self.store.as_ref(), position)?);
        }
        for (ready, queue) in ready_signals.into_iter().zip(queues) {
            ready.await.unwrap_or(Err(Error::Closed)).map_err(|error| {
                match permissions::is_refusal(&error) {
                    // Everything is declared: it may not consume.
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
            let views: Vec<ConsumerView> =
                client.consumers.iter().map(|consumer| consumer.view.clone()).collect();
            client.background.push(tokio::spawn(watch_lag(client.consuming.clone(), views)).abort_handle());
        }
        Ok(client)
    }
}

impl Client {
    /// Settings of a client of the broker that this URI names: `amqp://user:password@host:port/vhost`.
    pub fn builder(uri: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            uris: vec![uri.into()],
            name: "gristmill".to_owned(),
            topology: Topology::default(),
            consumers: Vec::new(),
            store: None,
            connect_timeout: Duration::from_secs(30),
            confirm_timeout: Duration::from_secs(30),
            in_flight: 1000,
        }
    }

    fn spawn_consumer(
        &mut self,
        config: Arc<crate::consumer::ConsumerConfig>,
        topology: &Arc<Topology>,
        store: Option<&Store>,
        position: Option<(PositionWriter, Option<u64>)>,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let (pool, results) = HandlerPool::start(&config)?;
        let counters = Arc::new(Counters::default());
        if let Some((_, Some(first))) = &position {
            counters.began_at.store(first.saturating_add(1), Relaxed);
        }
        let dedup = match (config.dedup_window, store) {
            (Some(window), Some(store)) => {
                Some(Arc::new(Deduplicator::new(store.clone(), format!("amqp:{}", config.queue), window)))
            }
            _ => None,
        };
        if let Some(dedup) = &dedup {
            self.background.push(tokio::spawn(prune_processed_ids(Arc::clone(dedup))).abort_handle());
        }
        let starts = store.map(|store| StartStore::new(store.clone(), &config.queue, config.max_starts));
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
        self.consumers.push(ConsumerHandle {
            view: ConsumerView { config, counters, pool },
            stop: Some(stop),
            task,
        });
        Ok(ready)
    }

    /// A way to publish.
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// How it goes.
    pub fn stats(&self) -> ClientStats {
        self.stats_handle().stats()
    }

    /// Somebody who can say how it goes, also while it is being shut down.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle {
            consuming: self.consuming.watch(),
            publishing: self.publishing.watch(),
            consumers: self.consumers.iter().map(|consumer| consumer.view.clone()).collect(),
        }
    }

    /// How many messages wait in a queue, and how many consumers it has.
    pub async fn queue_depth(&self, queue: &str) -> Result<(u32, u32), Error> {
        let mut channel = Channel::open(&self.publishing.connected().await?.0).await?;
        topology::depth(&mut channel, queue).await
    }

    /// For each consumer the offset of the last message that its stream has now; none for a stream that is empty, and for
    /// queues of other kinds.
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

    /// The first messages of a queue, which stay in it. The broker counts this as a delivery of each.
    pub async fn peek(&self, queue: &str, limit: usize) -> Result<Vec<Delivery>, Error> {
        browse::peek(&self.publishing.connected().await?.0, queue, limit).await
    }

    /// Deletes the messages of a queue that are ready, and returns their number.
    pub async fn purge(&self, queue: &str) -> Result<u32, Error> {
        let mut channel = Channel::open(&self.publishing.connected().await?.0).await?;
        match channel.call(&Outgoing::QueuePurge { queue }).await? {
            Incoming::PurgeOk { messages } => Ok(messages),
            _ => Err(Error::Message("the broker gave an answer to another question".to_owned())),
        }
    }

    /// Moves messages from one queue to another until `cancelled` is done: each is confirmed in its new queue before it is
    /// removed from the old one. Returns how far it has come, also where it failed.
    pub async fn transfer(
        &self,
        transfer: &Transfer,
        cancelled: impl Future<Output = ()>,
    ) -> (Transferred, Result<(), Error>) {
        let mut run = transfer::TransferRun::new(&self.publishing, &self.publisher, transfer);
        let result = run.run(cancelled).await;
        (run.progress, result)
    }

    /// Fails when a consumer has ended by itself, which only a defect brings about: its messages wait for ever.
    pub fn check_running(&self) -> Result<(), Error> {
        match self.consumers.iter().find(|consumer| consumer.task.is_finished()) {
            Some(consumer) => Err(Error::ConsumerPanicked { consumer: consumer.view.config.name.clone() }),
            None => Ok(()),
        }
    }

    /// Stops consuming, finishes what runs within the deadline, acknowledges it, and gives the rest back to the queues.
    /// How it went, in the end.
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

/// Declares everything on every connection but the first, on which it is declared before anything begins.
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

/// Forgets, now and then, ids that were seen too long ago to matter.
async fn prune_processed_ids(dedup: Arc<Deduplicator>) {
    const PRUNE_BATCH: usize = 5000;
    let wait = (dedup.window / 4).clamp(Duration::from_secs(1), Duration::from_secs(600));
    loop {
        tokio::time::sleep(wait).await;
        loop {
            let dedup = Arc::clone(&dedup);
            let pruned = move || {
                dedup.release_pending()?;
                dedup.store.processed_ids().prune(&dedup.scope, dedup.window, PRUNE_BATCH)
            };
            match tokio::task::spawn_blocking(pruned).await {
                Ok(Ok(count)) if count == PRUNE_BATCH => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "ids of old messages cannot be forgotten; tried again later");
                    break;
                }
                _ => break,
            }
        }
    }
}

/// Asks the broker now and then how many messages wait.
async fn watch_lag(broker: ManagedConnection, consumers: Vec<ConsumerView>) {
    let mut warned: Vec<String> = Vec::new();
    loop {
        for view in &consumers {
            // A channel for each: the broker closes it over a queue that is not there.
            let asked = async {
                let mut channel = Channel::open(&broker.connected().await?.0).await?;
                topology::depth(&mut channel, &view.config.queue).await
            };
            match asked.await {
                Ok((messages, consumers)) => {
                    view.counters.lag.store(u64::from(messages) + 1, Relaxed);
                    let is_alone = consumers <= 1 || !view.config.waits_for_old_consumer();
                    if !is_alone && !warned.contains(&view.config.name) {
                        warned.push(view.config.name.clone());
                        tracing::warn!(
                            consumer = view.config.name,
                            queue = &*view.config.queue,
                            consumers,
                            "several consumers take messages from a queue whose order is to be kept: each keeps the order \
                             of its own messages only. A queue with the argument x-single-active-consumer has one at a time"
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
