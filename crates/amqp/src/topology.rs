//! What there is to be at the broker: exchanges, queues and what binds them. Checked before anything connects,
//! declared on every connection.

use crate::{
    error::Error,
    net::{Channel, Connection},
    wire::{
        method::{Incoming, Outgoing, flag},
        table::Headers,
    },
};
use std::time::Duration;

/// An exchange to be there.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Exchange {
    pub(crate) name: String,
    kind: String,
    flags: u8,
    arguments: Headers,
}

impl Exchange {
    /// Any kind by its name; plugins bring their own.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { name: name.into(), kind: kind.into(), flags: flag::DURABLE, arguments: Headers::new() }
    }

    /// To queues whose binding has the message's routing key.
    pub fn direct(name: impl Into<String>) -> Self {
        Self::new(name, "direct")
    }

    /// To queues whose binding matches the routing key, with `*` for a word and `#` for any.
    pub fn topic(name: impl Into<String>) -> Self {
        Self::new(name, "topic")
    }

    /// To all queues that are bound.
    pub fn fanout(name: impl Into<String>) -> Self {
        Self::new(name, "fanout")
    }

    /// To queues whose binding matches the message's headers.
    pub fn headers(name: impl Into<String>) -> Self {
        Self::new(name, "headers")
    }

    /// One that is there already, whatever it is: only looked for.
    pub fn existing(name: impl Into<String>) -> Self {
        Self { flags: flag::PASSIVE, ..Self::direct(name) }
    }

    /// Goes when the broker restarts.
    pub fn transient(mut self) -> Self {
        self.flags &= !flag::DURABLE;
        self
    }

    /// Goes when its last binding goes.
    pub fn auto_delete(mut self) -> Self {
        self.flags |= flag::EXCHANGE_AUTO_DELETE;
        self
    }

    /// Only other exchanges publish to it.
    pub fn internal(mut self) -> Self {
        self.flags |= flag::INTERNAL;
        self
    }

    /// What the broker knows beyond these.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::Value>) -> Self {
        self.arguments.set(name, value);
        self
    }
}

/// A queue to be there.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Queue {
    pub(crate) name: String,
    flags: u8,
    pub(crate) arguments: Headers,
}

const KIND: &str = "x-queue-type";

impl Queue {
    /// Replicated, on disk, and counts how often it delivered a message: what [`Queue::new`] makes too.
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::of_kind(name, "quorum")
    }

    /// On one node.
    pub fn classic(name: impl Into<String>) -> Self {
        Self::of_kind(name, "classic")
    }

    /// A log that is read, not emptied. A consumer of it begins [where it says](crate::Consumer::offset).
    pub fn stream(name: impl Into<String>) -> Self {
        Self::of_kind(name, "stream")
    }

    /// A quorum queue.
    pub fn new(name: impl Into<String>) -> Self {
        Self::quorum(name)
    }

    /// One that is there already, whatever it is: only looked for.
    pub fn existing(name: impl Into<String>) -> Self {
        Self { name: name.into(), flags: flag::PASSIVE, arguments: Headers::new() }
    }

    fn of_kind(name: impl Into<String>, kind: &str) -> Self {
        Self { name: name.into(), flags: flag::DURABLE, arguments: Headers::new().with(KIND, kind) }
    }

    /// Goes when the broker restarts. Classic queues only.
    pub fn transient(mut self) -> Self {
        self.flags &= !flag::DURABLE;
        self
    }

    /// Only for one connection, and goes with it. Classic queues only.
    pub fn exclusive(mut self) -> Self {
        self.flags |= flag::EXCLUSIVE;
        self
    }

    /// Goes when its last consumer goes. Classic queues only.
    pub fn auto_delete(mut self) -> Self {
        self.flags |= flag::QUEUE_AUTO_DELETE;
        self
    }

    /// At most so many messages. Above it publishers are refused (and told so), rather than messages dropped.
    pub fn at_most(self, messages: u32) -> Self {
        let queue = self.argument("x-max-length", i64::from(messages));
        match queue.kind() {
            Some("stream") => queue,
            _ => queue.argument("x-overflow", "reject-publish"),
        }
    }

    /// What the broker knows beyond these.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::Value>) -> Self {
        self.arguments.set(name, value);
        self
    }

    pub(crate) fn kind(&self) -> Option<&str> {
        self.arguments.get(KIND).and_then(crate::Value::as_str)
    }

    fn check(&self) -> Result<(), String> {
        let special =
            self.flags & (flag::EXCLUSIVE | flag::QUEUE_AUTO_DELETE) != 0 || self.flags & flag::DURABLE == 0;
        match self.kind() {
            Some(kind @ ("quorum" | "stream")) if special => Err(format!(
                "queue {}: a {kind} queue cannot be transient, exclusive or auto-deleted; a classic one can",
                self.name
            )),
            _ => Ok(()),
        }
    }
}

/// What brings messages of an exchange to a queue, or to another exchange.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Binding {
    to: Bound,
    exchange: String,
    key: String,
    arguments: Headers,
}

#[derive(Debug, Clone, PartialEq)]
enum Bound {
    Queue(String),
    Exchange(String),
}

impl Binding {
    /// Messages of the exchange with this key to the queue.
    pub fn new(queue: impl Into<String>, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            to: Bound::Queue(queue.into()),
            exchange: exchange.into(),
            key: key.into(),
            arguments: Headers::new(),
        }
    }

    /// Messages of the exchange with this key to another exchange.
    pub fn to_exchange(to: impl Into<String>, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        Self { to: Bound::Exchange(to.into()), ..Self::new("", exchange, key) }
    }

    /// For exchanges that match headers.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::Value>) -> Self {
        self.arguments.set(name, value);
        self
    }
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Topology {
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) bindings: Vec<Binding>,
}

impl Topology {
    pub(crate) fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// Adds a queue unless one of that name is there.
    pub(crate) fn add_queue(&mut self, queue: Queue) {
        if self.queue(&queue.name).is_none() {
            self.queues.push(queue);
        }
    }

    /// The part that a consumer of this queue needs: the queue, what is bound to it, and what those exchanges are bound
    /// to. What another consumer needs may be broken without being this one's trouble.
    pub(crate) fn around(&self, queue: &str) -> Self {
        let mut part = Self { queues: self.queue(queue).cloned().into_iter().collect(), ..Self::default() };
        let mut wanted = vec![Bound::Queue(queue.to_owned())];
        while let Some(to) = wanted.pop() {
            for binding in self.bindings.iter().filter(|binding| binding.to == to) {
                if part.bindings.contains(binding) {
                    continue;
                }
                part.bindings.push(binding.clone());
                wanted.push(Bound::Exchange(binding.exchange.clone()));
                let known = part.exchanges.iter().any(|exchange| exchange.name == binding.exchange);
                let exchange = self.exchanges.iter().find(|exchange| exchange.name == binding.exchange);
                part.exchanges.extend(exchange.filter(|_| !known).cloned());
            }
        }
        part
    }

    /// The exchange, and the queues that it brings messages to.
    pub(crate) fn behind(&self, exchange: &str) -> Self {
        let bindings: Vec<Binding> =
            self.bindings.iter().filter(|binding| binding.exchange == exchange).cloned().collect();
        let bound =
            |queue: &&Queue| bindings.iter().any(|binding| binding.to == Bound::Queue(queue.name.clone()));
        let to_queue = |binding: &Binding| matches!(binding.to, Bound::Queue(_));
        Self {
            exchanges: self.exchanges.iter().filter(|known| known.name == exchange).cloned().collect(),
            queues: self.queues.iter().filter(bound).cloned().collect(),
            bindings: bindings.iter().filter(|binding| to_queue(binding)).cloned().collect(),
        }
    }

    /// This and that.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        let new = |exchange: &&Exchange| !self.exchanges.contains(exchange);
        let exchanges: Vec<_> = other.exchanges.iter().filter(new).cloned().collect();
        self.exchanges.extend(exchanges);
        other.queues.iter().for_each(|queue| self.add_queue(queue.clone()));
        self.bindings.extend_from_slice(&other.bindings);
        self
    }

    /// Each thing by itself: what cannot be declared does not keep the others from it. For connections after the first;
    /// at the first, somebody waits who can put it right.
    pub(crate) async fn declare_what_can_be(&self, connection: &Connection) {
        let mut alone: Vec<Self> = Vec::new();
        let exchange = |exchange: &Exchange| Self { exchanges: vec![exchange.clone()], ..Self::default() };
        let queue = |queue: &Queue| Self { queues: vec![queue.clone()], ..Self::default() };
        let binding = |binding: &Binding| Self { bindings: vec![binding.clone()], ..Self::default() };
        alone.extend(self.exchanges.iter().map(exchange));
        alone.extend(self.queues.iter().map(queue));
        alone.extend(self.bindings.iter().map(binding));
        for one in alone {
            if let Err(error) = one.declare(connection).await {
                tracing::warn!(%error, "cannot be declared again");
            }
        }
    }

    /// What makes no sense, said before anything connects.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.faults().map_err(Error::Declaration)
    }

    fn faults(&self) -> Result<(), String> {
        for exchange in &self.exchanges {
            name_is_good("exchange", &exchange.name)?;
            if exchange.name.starts_with("amq.") && exchange.flags & flag::PASSIVE == 0 {
                return Err(format!("exchange {}: names with amq. are the broker's own", exchange.name));
            }
        }
        for queue in &self.queues {
            name_is_good("queue", &queue.name)?;
            queue.check()?;
        }
        once("exchange", self.exchanges.iter().map(|exchange| exchange.name.as_str()))?;
        once("queue", self.queues.iter().map(|queue| queue.name.as_str()))?;
        let has_exchange = |name: &str| {
            name.starts_with("amq.") || self.exchanges.iter().any(|exchange| exchange.name == name)
        };
        for binding in &self.bindings {
            if binding.key.len() > 255 {
                return Err(format!(
                    "a binding of exchange {}: its key is longer than 255 bytes",
                    binding.exchange
                ));
            }
            let (what, name, there) = match &binding.to {
                Bound::Queue(name) => ("queue", name, self.queue(name).is_some()),
                Bound::Exchange(name) => ("exchange", name, has_exchange(name)),
            };
            if !there {
                return Err(format!(
                    "a binding names {what} {name}, which is not declared; declare it, or \
                                    as existing"
                ));
            }
            if !has_exchange(&binding.exchange) {
                return Err(format!(
                    "a binding of {what} {name} names exchange {}, which is not declared; \
                                    declare it, or as existing",
                    binding.exchange
                ));
            }
        }
        Ok(())
    }

    /// Makes it so. What is there already, and the same, is left alone.
    pub(crate) async fn declare(&self, connection: &Connection) -> Result<(), Error> {
        if self.exchanges.is_empty() && self.queues.is_empty() && self.bindings.is_empty() {
            return Ok(());
        }
        // A channel of its own: the broker closes it over a declaration that does not fit.
        let mut channel = Channel::open(connection).await?;
        for Exchange { name, kind, flags, arguments } in &self.exchanges {
            channel.call(&Outgoing::ExchangeDeclare { name, kind, flags: *flags, arguments }).await?;
        }
        for Queue { name, flags, arguments } in &self.queues {
            channel.call(&Outgoing::QueueDeclare { name, flags: *flags, arguments }).await?;
        }
        for Binding { to, exchange, key, arguments } in &self.bindings {
            let bind = match to {
                Bound::Queue(queue) => Outgoing::QueueBind { queue, exchange, key, arguments },
                Bound::Exchange(to) => {
                    Outgoing::ExchangeBind { destination: to, source: exchange, key, arguments }
                }
            };
            channel.call(&bind).await?;
        }
        channel.close(Duration::from_secs(5)).await;
        Ok(())
    }
}

/// How many messages are ready in a queue, and how many consumers it has.
pub(crate) async fn depth(channel: &mut Channel, name: &str) -> Result<(u32, u32), Error> {
    let arguments = &Headers::new();
    match channel.call(&Outgoing::QueueDeclare { name, flags: flag::PASSIVE, arguments }).await? {
        Incoming::DeclareOk { messages, consumers, .. } => Ok((messages, consumers)),
        _ => Err(Error::Message("the broker gave an answer to another question".to_owned())),
    }
}

pub(crate) fn name_is_good(what: &str, name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err(format!("a{} {what} has no name", if what.starts_with('e') { "n" } else { "" })),
        1..=255 if name.contains('\0') => Err(format!("{what} {name:?}: a name has no NUL in it")),
        1..=255 => Ok(()),
        long => Err(format!("{what} {name}: its name has {long} bytes; 255 is the most")),
    }
}

fn once<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("{what} {name} is declared twice"));
        }
    }
    Ok(())
}
