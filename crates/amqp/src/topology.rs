//! Exchanges, queues and bindings: checked before connecting; `declare` declares them on every connection.

mod declare;

use crate::{
    error::Error,
    net::{Channel, Connection},
    queue_kind,
    wire::{
        method::{Incoming, Outgoing, flag},
        table::Headers,
    },
};
use declare::Declaration;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

/// Declaration of an exchange.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Exchange {
    pub(crate) name: String,
    kind: String,
    flags: u8,
    arguments: Headers,
}

impl Exchange {
    /// Declares an exchange of any kind, including those of plugins.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { name: name.into(), kind: kind.into(), flags: flag::DURABLE, arguments: Headers::new() }
    }

    /// Direct exchange: routes to queues bound with exactly the routing key.
    pub fn direct(name: impl Into<String>) -> Self {
        Self::new(name, "direct")
    }

    /// Topic exchange: routes by patterns of the routing key, with `*` for one word and `#` for any number.
    pub fn topic(name: impl Into<String>) -> Self {
        Self::new(name, "topic")
    }

    /// Fanout exchange: routes to all bound queues.
    pub fn fanout(name: impl Into<String>) -> Self {
        Self::new(name, "fanout")
    }

    /// Headers exchange: routes to queues whose binding matches the headers.
    pub fn headers(name: impl Into<String>) -> Self {
        Self::new(name, "headers")
    }

    /// Expects an existing exchange of any kind, and checks only that it exists.
    pub fn existing(name: impl Into<String>) -> Self {
        Self { flags: flag::PASSIVE, ..Self::direct(name) }
    }

    /// Deleted when the broker restarts.
    pub fn transient(mut self) -> Self {
        self.flags &= !flag::DURABLE;
        self
    }

    /// Sets a broker-specific argument.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::FieldValue>) -> Self {
        self.arguments.set(name, value);
        self
    }
}

/// Declaration of a queue.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Queue {
    pub(crate) name: String,
    flags: u8,
    pub(crate) arguments: Headers,
    /// Kind that an existing queue was found to have.
    found_kind: Option<&'static str>,
}

const QUEUE_TYPE: &str = "x-queue-type";

impl Queue {
    /// Quorum queue: replicated, on disk, and counts deliveries of each message. [`Queue::new`] makes one too.
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::of_kind(name, "quorum")
    }

    /// Classic queue: on one node.
    pub fn classic(name: impl Into<String>) -> Self {
        Self::of_kind(name, "classic")
    }

    /// Stream: a log that is read and not emptied. A consumer begins at its [offset](crate::Consumer::offset).
    pub fn stream(name: impl Into<String>) -> Self {
        Self::of_kind(name, "stream")
    }

    /// Declares a quorum queue, like [`Queue::quorum`].
    pub fn new(name: impl Into<String>) -> Self {
        Self::quorum(name)
    }

    /// Expects an existing queue of any kind, and checks only that it exists.
    pub fn existing(name: impl Into<String>) -> Self {
        Self { name: name.into(), flags: flag::PASSIVE, arguments: Headers::new(), found_kind: None }
    }

    fn of_kind(name: impl Into<String>, kind: &str) -> Self {
        let arguments = Headers::new().with(QUEUE_TYPE, kind);
        Self { name: name.into(), flags: flag::DURABLE, arguments, found_kind: None }
    }

    /// Deleted when the broker restarts. Classic queues only.
    pub fn transient(mut self) -> Self {
        self.flags &= !flag::DURABLE;
        self
    }

    /// Used by one connection and deleted with it. Classic queues only.
    pub fn exclusive(mut self) -> Self {
        self.flags |= flag::EXCLUSIVE;
        self
    }

    /// Deleted with its last consumer. Classic queues only.
    pub fn auto_delete(mut self) -> Self {
        self.flags |= flag::QUEUE_AUTO_DELETE;
        self
    }

    /// Limits the number of messages. At the limit publications are refused, so that no message is dropped.
    pub fn max_length(self, messages: u32) -> Self {
        let queue = self.argument("x-max-length", i64::from(messages));
        match queue.kind() {
            Some("stream") => queue,
            _ => queue.argument("x-overflow", "reject-publish"),
        }
    }

    /// Sets a broker-specific argument.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::FieldValue>) -> Self {
        self.arguments.set(name, value);
        self
    }

    /// Kind as declared or found.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.declared_kind().or(self.found_kind)
    }

    fn declared_kind(&self) -> Option<&str> {
        self.arguments.get(QUEUE_TYPE).and_then(crate::FieldValue::as_str)
    }

    /// Whether the broker delivers to one consumer at a time.
    pub(crate) fn has_single_active_consumer(&self) -> bool {
        matches!(self.arguments.get("x-single-active-consumer"), Some(crate::FieldValue::Bool(true)))
    }

    fn check(&self) -> Result<(), String> {
        let special = self.flags & (flag::EXCLUSIVE | flag::QUEUE_AUTO_DELETE) != 0 || self.flags & flag::DURABLE == 0;
        match self.declared_kind() {
            Some(kind @ ("quorum" | "stream")) if special => Err(format!(
                "queue {}: a {kind} queue cannot be transient, exclusive or auto-deleted; use a classic queue",
                self.name
            )),
            _ => Ok(()),
        }
    }
}

/// Binding of an exchange to a queue.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Binding {
    queue: String,
    exchange: String,
    key: String,
    arguments: Headers,
}

impl Binding {
    /// Binds an exchange to a queue for this routing key.
    pub fn new(queue: impl Into<String>, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        Self { queue: queue.into(), exchange: exchange.into(), key: key.into(), arguments: Headers::new() }
    }

    /// Sets an argument, for headers exchanges.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::FieldValue>) -> Self {
        self.arguments.set(name, value);
        self
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Topology {
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) bindings: Vec<Binding>,
    /// Existing items that the user may not declare: from then on only looked up. Shared by all parts.
    pub(crate) refused: Arc<Mutex<HashSet<Declaration>>>,
}

impl Topology {
    pub(crate) fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// Asks the broker for the kind of each of these queues that is not declared here.
    pub(crate) async fn find_kinds(&mut self, connection: &Connection, names: &[Arc<str>]) -> Result<(), Error> {
        let is_named = |queue: &&mut Queue| names.iter().any(|name| **name == *queue.name);
        for queue in self.queues.iter_mut().filter(|queue| queue.kind().is_none()).filter(is_named) {
            queue.found_kind = queue_kind::find(connection, &queue.name).await?;
        }
        Ok(())
    }

    /// Adds a queue unless one of that name is declared.
    pub(crate) fn add_queue(&mut self, queue: Queue) {
        if self.queue(&queue.name).is_none() {
            self.queues.push(queue);
        }
    }

    /// Declarations that a consumer of this queue needs: the queue and everything bound to it. Broken declarations of
    /// other consumers do not affect it.
    pub(crate) fn for_queue(&self, queue: &str) -> Self {
        let queues = self.queue(queue).cloned().into_iter().collect();
        let mut part = Self { queues, refused: Arc::clone(&self.refused), ..Self::default() };
        for binding in self.bindings.iter().filter(|binding| binding.queue == queue) {
            part.bindings.push(binding.clone());
            let known = part.exchanges.iter().any(|exchange| exchange.name == binding.exchange);
            let exchange = self.exchanges.iter().find(|exchange| exchange.name == binding.exchange);
            part.exchanges.extend(exchange.filter(|_| !known).cloned());
        }
        part
    }

    /// Declarations of an exchange and the queues bound to it.
    pub(crate) fn for_exchange(&self, exchange: &str) -> Self {
        let bindings: Vec<Binding> =
            self.bindings.iter().filter(|binding| binding.exchange == exchange).cloned().collect();
        let bound = |queue: &&Queue| bindings.iter().any(|binding| binding.queue == queue.name);
        Self {
            exchanges: self.exchanges.iter().filter(|known| known.name == exchange).cloned().collect(),
            queues: self.queues.iter().filter(bound).cloned().collect(),
            bindings,
            refused: Arc::clone(&self.refused),
        }
    }

    pub(crate) fn merge(mut self, other: &Self) -> Self {
        let new = |exchange: &&Exchange| !self.exchanges.contains(exchange);
        let exchanges: Vec<_> = other.exchanges.iter().filter(new).cloned().collect();
        self.exchanges.extend(exchanges);
        other.queues.iter().for_each(|queue| self.add_queue(queue.clone()));
        self.bindings.extend_from_slice(&other.bindings);
        self
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        for exchange in &self.exchanges {
            check_name("exchange", &exchange.name)?;
            if exchange.name.starts_with("amq.") && exchange.flags & flag::PASSIVE == 0 {
                return Err(format!("exchange {}: the prefix amq. is reserved", exchange.name));
            }
        }
        for queue in &self.queues {
            check_name("queue", &queue.name)?;
            queue.check()?;
        }
        check_unique("exchange", self.exchanges.iter().map(|exchange| exchange.name.as_str()))?;
        check_unique("queue", self.queues.iter().map(|queue| queue.name.as_str()))?;
        let has_exchange =
            |name: &str| name.starts_with("amq.") || self.exchanges.iter().any(|exchange| exchange.name == name);
        for binding in &self.bindings {
            if binding.key.len() > 255 {
                return Err(format!("a binding of exchange {}: its key is longer than 255 bytes", binding.exchange));
            }
            let undeclared =
                |what: &str| Err(format!("{what}, which is not declared; declare it, or add it as existing"));
            let Binding { queue, exchange, .. } = binding;
            if self.queue(queue).is_none() {
                return undeclared(&format!("a binding names queue {queue}"));
            }
            if !has_exchange(exchange) {
                return undeclared(&format!("a binding of queue {queue} names exchange {exchange}"));
            }
        }
        Ok(())
    }

    /// Whether every item must exist already, so that no declaration shows the user's permissions.
    pub(crate) fn declares_nothing(&self) -> bool {
        let exchanges = self.exchanges.iter().map(|exchange| exchange.flags);
        exchanges.chain(self.queues.iter().map(|queue| queue.flags)).all(|flags| flags & flag::PASSIVE != 0)
    }
}

/// Returns the number of ready messages and of consumers of a queue.
pub(crate) async fn depth(channel: &mut Channel, name: &str) -> Result<(u32, u32), Error> {
    let arguments = &Headers::new();
    match channel.call(&Outgoing::QueueDeclare { name, flags: flag::PASSIVE, arguments }).await? {
        Incoming::DeclareOk { messages, consumers, .. } => Ok((messages, consumers)),
        _ => Err(Error::Message("the broker sent an unexpected reply".to_owned())),
    }
}

pub(crate) fn check_name(what: &str, name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err(format!("a{} {what} has no name", if what.starts_with('e') { "n" } else { "" })),
        1..=255 if name.contains('\0') => Err(format!("{what} {name:?}: the name contains NUL")),
        1..=255 => Ok(()),
        long => Err(format!("{what} {name}: the name has {long} bytes; expected: at most 255")),
    }
}

fn check_unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("{what} {name} is declared twice"));
        }
    }
    Ok(())
}
