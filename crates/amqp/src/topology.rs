//! What there is to be at the broker: exchanges, queues and what binds them. Checked before anything connects,
//! declared on every connection.

use crate::{
    error::Error,
    net::{Channel, Connection},
    permissions::{self, MissingPermission, Permission},
    queue_kind,
    wire::{
        method::{Incoming, Outgoing, flag},
        table::Headers,
    },
};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

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
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::FieldValue>) -> Self {
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
    /// The kind that a queue which is not declared here was found to have.
    found_kind: Option<&'static str>,
}

const QUEUE_TYPE: &str = "x-queue-type";

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
        Self { name: name.into(), flags: flag::PASSIVE, arguments: Headers::new(), found_kind: None }
    }

    fn of_kind(name: impl Into<String>, kind: &str) -> Self {
        let arguments = Headers::new().with(QUEUE_TYPE, kind);
        Self { name: name.into(), flags: flag::DURABLE, arguments, found_kind: None }
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
    pub fn max_length(self, messages: u32) -> Self {
        let queue = self.argument("x-max-length", i64::from(messages));
        match queue.kind() {
            Some("stream") => queue,
            _ => queue.argument("x-overflow", "reject-publish"),
        }
    }

    /// What the broker knows beyond these.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::FieldValue>) -> Self {
        self.arguments.set(name, value);
        self
    }

    /// The kind that it is declared with, or was found to have.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.declared_kind().or(self.found_kind)
    }

    fn declared_kind(&self) -> Option<&str> {
        self.arguments.get(QUEUE_TYPE).and_then(crate::FieldValue::as_str)
    }

    /// Whether the broker gives its messages to one consumer at a time.
    pub(crate) fn has_single_active_consumer(&self) -> bool {
        matches!(self.arguments.get("x-single-active-consumer"), Some(crate::FieldValue::Bool(true)))
    }

    fn check(&self) -> Result<(), String> {
        let special =
            self.flags & (flag::EXCLUSIVE | flag::QUEUE_AUTO_DELETE) != 0 || self.flags & flag::DURABLE == 0;
        match self.declared_kind() {
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
    to: Destination,
    exchange: String,
    key: String,
    arguments: Headers,
}

#[derive(Debug, Clone, PartialEq)]
enum Destination {
    Queue(String),
    Exchange(String),
}

impl Binding {
    /// Messages of the exchange with this key to the queue.
    pub fn new(queue: impl Into<String>, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            to: Destination::Queue(queue.into()),
            exchange: exchange.into(),
            key: key.into(),
            arguments: Headers::new(),
        }
    }

    /// Messages of the exchange with this key to another exchange.
    pub fn to_exchange(to: impl Into<String>, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        Self { to: Destination::Exchange(to.into()), ..Self::new("", exchange, key) }
    }

    /// For exchanges that match headers.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<crate::FieldValue>) -> Self {
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
    /// What the user may not declare, and exists: only looked for from then on. Shared by all parts.
    pub(crate) refused: RefusedDeclarations,
}

/// Declarations that the broker refused for want of a right.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedDeclarations(Arc<Mutex<HashSet<Declaration>>>);

impl RefusedDeclarations {
    fn names(&self) -> MutexGuard<'_, HashSet<Declaration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thing to be declared, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Declaration {
    Exchange(String),
    Queue(String),
    /// From the exchange to the queue or exchange.
    Binding(String, String),
}

impl Topology {
    pub(crate) fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// Asks the broker for the kind of each of these queues that is not declared here.
    pub(crate) async fn find_kinds(
        &mut self,
        connection: &Connection,
        names: &[Arc<str>],
    ) -> Result<(), Error> {
        let is_one = |queue: &&mut Queue| names.iter().any(|name| **name == *queue.name);
        for queue in self.queues.iter_mut().filter(|queue| queue.kind().is_none()).filter(is_one) {
            queue.found_kind = queue_kind::find(connection, &queue.name).await?;
        }
        Ok(())
    }

    /// Adds a queue unless one of that name is there.
    pub(crate) fn add_queue(&mut self, queue: Queue) {
        if self.queue(&queue.name).is_none() {
            self.queues.push(queue);
        }
    }

    /// The part that a consumer of this queue needs: the queue, what is bound to it, and what those exchanges are bound
    /// to. What another consumer needs may be broken without being this one's trouble.
    pub(crate) fn for_queue(&self, queue: &str) -> Self {
        let queues = self.queue(queue).cloned().into_iter().collect();
        let mut part = Self { queues, refused: self.refused.clone(), ..Self::default() };
        let mut wanted = vec![Destination::Queue(queue.to_owned())];
        while let Some(to) = wanted.pop() {
            for binding in self.bindings.iter().filter(|binding| binding.to == to) {
                if part.bindings.contains(binding) {
                    continue;
                }
                part.bindings.push(binding.clone());
                wanted.push(Destination::Exchange(binding.exchange.clone()));
                let known = part.exchanges.iter().any(|exchange| exchange.name == binding.exchange);
                let exchange = self.exchanges.iter().find(|exchange| exchange.name == binding.exchange);
                part.exchanges.extend(exchange.filter(|_| !known).cloned());
            }
        }
        part
    }

    /// The exchange, and the queues that it brings messages to.
    pub(crate) fn for_exchange(&self, exchange: &str) -> Self {
        let bindings: Vec<Binding> =
            self.bindings.iter().filter(|binding| binding.exchange == exchange).cloned().collect();
        let bound = |queue: &&Queue| {
            bindings.iter().any(|binding| binding.to == Destination::Queue(queue.name.clone()))
        };
        let to_queue = |binding: &Binding| matches!(binding.to, Destination::Queue(_));
        Self {
            exchanges: self.exchanges.iter().filter(|known| known.name == exchange).cloned().collect(),
            queues: self.queues.iter().filter(bound).cloned().collect(),
            bindings: bindings.iter().filter(|binding| to_queue(binding)).cloned().collect(),
            refused: self.refused.clone(),
        }
    }

    /// This and that.
    pub(crate) fn merge(mut self, other: &Self) -> Self {
        let new = |exchange: &&Exchange| !self.exchanges.contains(exchange);
        let exchanges: Vec<_> = other.exchanges.iter().filter(new).cloned().collect();
        self.exchanges.extend(exchanges);
        other.queues.iter().for_each(|queue| self.add_queue(queue.clone()));
        self.bindings.extend_from_slice(&other.bindings);
        self
    }

    /// Each thing by itself: what cannot be declared does not keep the others from it. For connections after the first;
    /// at the first, somebody waits who can put it right.
    pub(crate) async fn declare_each(&self, connection: &Connection) {
        let mut alone: Vec<Self> = Vec::new();
        let empty = || Self { refused: self.refused.clone(), ..Self::default() };
        let exchange = |exchange: &Exchange| Self { exchanges: vec![exchange.clone()], ..empty() };
        let queue = |queue: &Queue| Self { queues: vec![queue.clone()], ..empty() };
        let binding = |binding: &Binding| Self { bindings: vec![binding.clone()], ..empty() };
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
        self.validate().map_err(Error::Declaration)
    }

    fn validate(&self) -> Result<(), String> {
        for exchange in &self.exchanges {
            check_name("exchange", &exchange.name)?;
            if exchange.name.starts_with("amq.") && exchange.flags & flag::PASSIVE == 0 {
                return Err(format!("exchange {}: names with amq. are the broker's own", exchange.name));
            }
        }
        for queue in &self.queues {
            check_name("queue", &queue.name)?;
            queue.check()?;
        }
        check_unique("exchange", self.exchanges.iter().map(|exchange| exchange.name.as_str()))?;
        check_unique("queue", self.queues.iter().map(|queue| queue.name.as_str()))?;
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
            let (what, name, is_declared) = match &binding.to {
                Destination::Queue(name) => ("queue", name, self.queue(name).is_some()),
                Destination::Exchange(name) => ("exchange", name, has_exchange(name)),
            };
            if !is_declared {
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

    /// Whether all of it must exist: nothing tells whether the user may declare.
    pub(crate) fn declares_nothing(&self) -> bool {
        let exchanges = self.exchanges.iter().map(|exchange| exchange.flags);
        exchanges.chain(self.queues.iter().map(|queue| queue.flags)).all(|flags| flags & flag::PASSIVE != 0)
    }

    /// Whether the user was refused a declaration.
    pub(crate) fn is_restricted(&self) -> bool {
        !self.refused.names().is_empty()
    }

    /// Makes it so. What exists, and is the same, is left alone. What the user has no right to declare must exist; if it
    /// does not, the error names every right that is missing.
    pub(crate) async fn declare(&self, connection: &Connection) -> Result<(), Error> {
        // A channel for all of them; the broker closes it over a declaration that does not fit.
        let mut channel = None;
        let mut missing = Vec::new();
        for step in self.declarations() {
            let known = self.refused.names().contains(&step.declaration);
            if !known {
                match step.call(&mut channel, connection, false).await {
                    Err(error) if permissions::is_refusal(&error) => {
                        missing.extend(step.missing_for_binding(&error, &self.refused));
                    }
                    // What it binds may not be made.
                    Err(Error::Channel { code: 404, .. }) if step.depends_on(&missing) => continue,
                    other => {
                        other?;
                        continue;
                    }
                }
            }
            match step.call(&mut channel, connection, true).await {
                Err(Error::Channel { code: 404, .. }) => missing.extend(step.missing_configure()),
                other => other?,
            }
            if self.refused.names().insert(step.declaration.clone()) {
                tracing::info!(what = ?step.declaration, "may not be declared, and exists; it is taken as it is");
            }
        }
        if let Some(channel) = channel {
            channel.close(Duration::from_secs(5)).await;
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(permissions::error(connection, missing, &[])),
        }
    }

    fn declarations(&self) -> impl Iterator<Item = DeclareStep<'_>> {
        let exchanges = self.exchanges.iter().map(|exchange| {
            let Exchange { name, kind, flags, arguments } = exchange;
            let method = |flags| Outgoing::ExchangeDeclare { name, kind, flags, arguments };
            DeclareStep {
                declaration: Declaration::Exchange(name.clone()),
                method: method(*flags),
                passive: Some(method(flag::PASSIVE)),
            }
        });
        let queues = self.queues.iter().map(|queue| {
            let Queue { name, flags, arguments, .. } = queue;
            let method = |flags| Outgoing::QueueDeclare { name, flags, arguments };
            DeclareStep {
                declaration: Declaration::Queue(name.clone()),
                method: method(*flags),
                passive: Some(method(flag::PASSIVE)),
            }
        });
        let bindings = self.bindings.iter().map(|binding| {
            let Binding { to, exchange, key, arguments } = binding;
            let (name, method) = match to {
                Destination::Queue(queue) => (queue, Outgoing::QueueBind { queue, exchange, key, arguments }),
                Destination::Exchange(to) => {
                    (to, Outgoing::ExchangeBind { destination: to, source: exchange, key, arguments })
                }
            };
            let declaration = Declaration::Binding(exchange.clone(), name.clone());
            DeclareStep { declaration, method, passive: None }
        });
        exchanges.chain(queues).chain(bindings)
    }
}

/// One declaration.
struct DeclareStep<'a> {
    declaration: Declaration,
    method: Outgoing<'a>,
    /// How it is looked for, if it can be.
    passive: Option<Outgoing<'a>>,
}

impl DeclareStep<'_> {
    /// Declares it, or looks for it, on the channel there is. The channel is gone after an error.
    async fn call(
        &self,
        channel: &mut Option<Channel>,
        connection: &Connection,
        passive: bool,
    ) -> Result<(), Error> {
        let method = if passive { self.passive.as_ref() } else { Some(&self.method) };
        let Some(method) = method else { return Ok(()) };
        let mut open = match channel.take() {
            Some(open) => open,
            None => Channel::open(connection).await?,
        };
        open.call(method).await?;
        *channel = Some(open);
        Ok(())
    }

    fn missing_configure(&self) -> Option<MissingPermission> {
        match &self.declaration {
            Declaration::Exchange(name) => {
                Some(MissingPermission::new(Permission::Configure, "exchange", name))
            }
            Declaration::Queue(name) => Some(MissingPermission::new(Permission::Configure, "queue", name)),
            Declaration::Binding(..) => None,
        }
    }

    /// Whether it binds what does not exist and may not be declared.
    fn depends_on(&self, missing: &[MissingPermission]) -> bool {
        let Declaration::Binding(exchange, to) = &self.declaration else { return false };
        missing
            .iter()
            .any(|one| one.permission == Permission::Configure && (one.name == *exchange || one.name == *to))
    }

    /// What is missing for a binding, which cannot be looked for. That of dead letters is taken to exist where their queue
    /// does, and may not be declared.
    fn missing_for_binding(&self, error: &Error, refused: &RefusedDeclarations) -> Option<MissingPermission> {
        let exists = |queue: &str| refused.names().contains(&Declaration::Queue(queue.to_owned()));
        match &self.declaration {
            Declaration::Binding(exchange, to) if exchange != to || !exists(to) => {
                Some(match error.to_string().contains(&format!("exchange '{exchange}'")) {
                    true => MissingPermission::new(Permission::Read, "exchange", exchange),
                    false => MissingPermission::new(Permission::Write, "queue", to),
                })
            }
            _ => None,
        }
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

pub(crate) fn check_name(what: &str, name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err(format!("a{} {what} has no name", if what.starts_with('e') { "n" } else { "" })),
        1..=255 if name.contains('\0') => Err(format!("{what} {name:?}: a name has no NUL in it")),
        1..=255 => Ok(()),
        long => Err(format!("{what} {name}: its name has {long} bytes; 255 is the most")),
    }
}

fn check_unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("{what} {name} is declared twice"));
        }
    }
    Ok(())
}
