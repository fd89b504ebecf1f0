//! What users hold: declarations that become consumers at work, and how these are watched and stopped.

use crate::{
    browse,
    consumer::Consumer,
    crew::{Crew, Once},
    delivery::Delivery,
    dispatcher::{Dispatcher, Parts},
    error::Error,
    link::{AtStart, Link, State},
    moves::Mover,
    net::Channel,
    permissions::{self, MissingPermission, Permission},
    positions::{self, Keeper},
    publisher::Publisher,
    starts::{self, StartStore, Starts},
    stats::{ClientStats, Counters, Seen, StatsHandle},
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
    consuming: Link,
    publishing: Link,
    publisher: Publisher,
    consumers: Vec<Running>,
    /// Tasks that look after things now and then.
    chores: Vec<AbortHandle>,
}

struct Running {
    seen: Seen,
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
    start_within: Duration,
    confirm_within: Duration,
    in_flight: usize,
}

/// How many messages one consumer may be moving at a time.
const MOVES: usize = 1000;

/// How often the broker is asked how many messages wait.
const ASK_FOR_LAG: Duration = Duration::from_secs(5);

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
        self.start_within = limit;
        self
    }

    /// How long a message may be on its way before its publisher is told that it is not confirmed; 30 s, unless set.
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_within = limit;
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

    fn resolve(&self) -> Result<(Vec<Endpoint>, Topology, Vec<crate::consumer::Set>), Error> {
        let endpoints = self.uris.iter().map(|uri| uri.parse()).collect::<Result<Vec<_>, _>>()?;
        let mut topology = self.topology.clone();
        topology.check()?;
        if self.in_flight == 0 {
            return Err(Error::Declaration("in_flight is 0; 1 is the least".to_owned()));
        }
        let mut sets = Vec::with_capacity(self.consumers.len());
        for consumer in &self.consumers {
            let set = consumer.resolve(&mut topology, self.store.is_some()).map_err(Error::Declaration)?;
            if sets.iter().any(|other: &crate::consumer::Set| other.name == set.name) {
                return Err(Error::Declaration(format!("two consumers are called {}", set.name)));
            }
            sets.push(set);
        }
        topology.check()?;
        Ok((endpoints, topology, sets))
    }

    /// Checks everything, connects, declares, and consumes. Returns when every consumer does.
    pub async fn start(mut self) -> Result<Client, Error> {
        let (endpoints, _, sets) = self.resolve()?;
        let nodes = endpoints.len();
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        // Two connections: a broker that is short of memory stops reading from those that publish, and
        // acknowledgements must get through all the same.
        let publishing =
            Link::start(Arc::clone(&endpoints), format!("{} (publishing)", self.name), AtStart::Return);
        let consuming = match sets.is_empty() {
            true => publishing.clone(),
            false => Link::start(endpoints, self.name.clone(), AtStart::Warn),
        };
        consuming.first(nodes, self.start_within).await?;
        publishing.first(nodes, self.start_within).await?;
        let (connection, _) = consuming.up().await?;
        let queues: Vec<Arc<str>> = sets.iter().map(|set| Arc::clone(&set.queue)).collect();
        self.topology.find_kinds(&connection, &queues).await?;
        let (_, topology, sets) = self.resolve()?;
        permissions::declare(&topology, &sets, &connection).await?;
        self.consumers.iter().zip(&sets).for_each(|(consumer, set)| consumer.warn(set));
        let publisher = Publisher::start(publishing.clone(), self.in_flight, self.confirm_within);
        let mut client =
            Client { consuming, publishing, publisher, consumers: Vec::new(), chores: Vec::new() };
        let mut firsts = Vec::new();
        for set in sets {
            let needed = Arc::new(topology.around(&set.queue).and(&set.dead_topology));
            let set = Arc::new(set);
            let position = match self.store.as_ref().filter(|_| set.keep_position) {
                Some(store) => Some(Keeper::start(&set, store.clone(), &connection).await?),
                None => None,
            };
            firsts.push(client.employ(set, &needed, self.store.as_ref(), position)?);
        }
        for (first, queue) in firsts.into_iter().zip(queues) {
            first.await.unwrap_or(Err(Error::Closed)).map_err(|error| {
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
        let again = tokio::spawn(declare_again(client.consuming.clone(), topology));
        client.chores.push(again.abort_handle());
        if !client.consumers.is_empty() {
            let seen: Vec<Seen> = client.consumers.iter().map(|running| running.seen.clone()).collect();
            client.chores.push(tokio::spawn(watch_lag(client.consuming.clone(), seen)).abort_handle());
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
            start_within: Duration::from_secs(30),
            confirm_within: Duration::from_secs(30),
            in_flight: 1000,
        }
    }

    fn employ(
        &mut self,
        set: Arc<crate::consumer::Set>,
        topology: &Arc<Topology>,
        store: Option<&Store>,
        position: Option<(Keeper, Option<u64>)>,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let (crew, results) = Crew::start(&set)?;
        let counters = Arc::new(Counters::default());
        if let Some((_, Some(first))) = &position {
            counters.began_at.store(first.saturating_add(1), Relaxed);
        }
        let once = match (set.once_within, store) {
            (Some(window), Some(store)) => {
                Some(Arc::new(Once::new(store.clone(), format!("amqp:{}", set.queue), window)))
            }
            _ => None,
        };
        if let Some(once) = &once {
            self.chores.push(tokio::spawn(forget(Arc::clone(once))).abort_handle());
        }
        let starts = store.map(|store| StartStore::new(store.clone(), &set.queue, set.max_starts));
        if let Some(starts) = &starts {
            self.chores.push(tokio::spawn(starts::prune(starts.clone())).abort_handle());
        }
        let mover = Mover {
            set: Arc::clone(&set),
            patient: Publisher::start(self.publishing.clone(), MOVES, Duration::MAX),
            link: self.publishing.clone(),
            store: store.cloned(),
            missing: Arc::default(),
            rooms: Arc::default(),
            postponed: Arc::clone(&counters.postponed),
        };
        let dispatcher = Dispatcher::new(Parts {
            set: Arc::clone(&set),
            link: self.consuming.clone(),
            topology: Arc::clone(topology),
            mover,
            once,
            starts: Starts::new(starts),
            counters: Arc::clone(&counters),
            crew: crew.clone(),
            results,
            position,
        });
        let (stop, stopped) = oneshot::channel();
        let (first, at_first) = oneshot::channel();
        let task = tokio::spawn(dispatcher.run(Some(first), stopped));
        self.consumers.push(Running { seen: Seen { set, counters, crew }, stop: Some(stop), task });
        Ok(at_first)
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
            consumers: self.consumers.iter().map(|running| running.seen.clone()).collect(),
        }
    }

    /// How many messages wait in a queue, and how many consumers it has.
    pub async fn queue_depth(&self, queue: &str) -> Result<(u32, u32), Error> {
        let mut channel = Channel::open(&self.publishing.up().await?.0).await?;
        topology::depth(&mut channel, queue).await
    }

    /// For each consumer the offset of the last message that its stream has now; none for a stream that is empty, and for
    /// queues of other kinds.
    pub async fn stream_ends(&self) -> Result<Vec<Option<u64>>, Error> {
        let (connection, _) = self.consuming.up().await?;
        let mut ends = Vec::with_capacity(self.consumers.len());
        for running in &self.consumers {
            ends.push(match running.seen.set.is_stream {
                true => positions::end(&connection, &running.seen.set.queue).await?,
                false => None,
            });
        }
        Ok(ends)
    }

    /// The first messages of a queue, which stay in it. The broker counts this as a delivery of each.
    pub async fn peek(&self, queue: &str, limit: usize) -> Result<Vec<Delivery>, Error> {
        browse::peek(&self.publishing.up().await?.0, queue, limit).await
    }

    /// Deletes the messages of a queue that are ready, and returns their number.
    pub async fn purge(&self, queue: &str) -> Result<u32, Error> {
        let mut channel = Channel::open(&self.publishing.up().await?.0).await?;
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
        let mut mover = transfer::Mover::new(&self.publishing, &self.publisher, transfer);
        let result = mover.run(cancelled).await;
        (mover.progress, result)
    }

    /// Fails when a consumer has ended by itself, which only a defect brings about: its messages wait for ever.
    pub fn check_running(&self) -> Result<(), Error> {
        match self.consumers.iter().find(|running| running.task.is_finished()) {
            Some(running) => Err(Error::ConsumerPanicked { consumer: running.seen.set.name.clone() }),
            None => Ok(()),
        }
    }

    /// Stops consuming, finishes what runs within the deadline, acknowledges it, and gives the rest back to the queues.
    /// How it went, in the end.
    pub async fn shutdown(mut self, deadline: Duration) -> ClientStats {
        for running in &mut self.consumers {
            if let Some(stop) = running.stop.take() {
                let _ = stop.send(deadline);
            }
        }
        for running in &mut self.consumers {
            let _ = (&mut running.task).await;
        }
        let stats = self.stats();
        for link in [&self.consuming, &self.publishing] {
            if let State::Up(connection, _) = link.state() {
                connection.close(Duration::from_secs(2)).await;
            }
            link.end();
        }
        stats
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for running in &self.consumers {
            running.task.abort();
        }
        self.chores.iter().for_each(AbortHandle::abort);
    }
}

/// Declares everything on every connection but the first, on which it is declared before anything begins.
async fn declare_again(link: Link, topology: Topology) {
    let mut declared = 1;
    while let Ok((connection, count)) = link.up().await {
        if count != declared {
            topology.declare_what_can_be(&connection).await;
            declared = count;
        }
        connection.ended().await;
    }
}

/// Forgets, now and then, ids that were seen too long ago to matter.
async fn forget(once: Arc<Once>) {
    const AT_A_TIME: usize = 5000;
    let wait = (once.window / 4).clamp(Duration::from_secs(1), Duration::from_secs(600));
    loop {
        tokio::time::sleep(wait).await;
        loop {
            let once = Arc::clone(&once);
            let pruned = move || {
                once.release_left()?;
                once.store.processed_ids().prune(&once.scope, once.window, AT_A_TIME)
            };
            match tokio::task::spawn_blocking(pruned).await {
                Ok(Ok(count)) if count == AT_A_TIME => {}
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
async fn watch_lag(link: Link, consumers: Vec<Seen>) {
    let mut warned: Vec<String> = Vec::new();
    loop {
        for seen in &consumers {
            // A channel for each: the broker closes it over a queue that is not there.
            let asked = async {
                let mut channel = Channel::open(&link.up().await?.0).await?;
                topology::depth(&mut channel, &seen.set.queue).await
            };
            match asked.await {
                Ok((messages, consumers)) => {
                    seen.counters.lag.store(u64::from(messages) + 1, Relaxed);
                    let is_alone = consumers <= 1 || !seen.set.waits_for_old_consumer();
                    if !is_alone && !warned.contains(&seen.set.name) {
                        warned.push(seen.set.name.clone());
                        tracing::warn!(
                            consumer = seen.set.name,
                            queue = &*seen.set.queue,
                            consumers,
                            "several consumers take messages from a queue whose order is to be kept: each keeps the order \
                             of its own messages only. A queue with the argument x-single-active-consumer has one at a time"
                        );
                    } else if is_alone {
                        warned.retain(|name| *name != seen.set.name);
                    }
                }
                Err(Error::Closed) => return,
                Err(_) => seen.counters.lag.store(0, Relaxed),
            }
        }
        tokio::time::sleep(ASK_FOR_LAG).await;
    }
}
