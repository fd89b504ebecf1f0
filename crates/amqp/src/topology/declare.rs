//! Declares exchanges, queues and bindings at the broker, as far as the user may.

use super::{Binding, Exchange, Queue, Topology};
use crate::{
    error::Error,
    net::{Channel, Connection},
    permissions::{self, MissingPermission, Permission},
    wire::method::{Outgoing, flag},
};
use std::{
    collections::HashSet,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

/// Item to be declared, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Declaration {
    Exchange(String),
    Queue(String),
    /// Exchange and queue.
    Binding(String, String),
}

impl Topology {
    /// Declares each item separately: a failure does not prevent the others. For reconnects, where no caller waits.
    pub(crate) async fn declare_each(&self, connection: &Connection) {
        for step in self.declarations() {
            if let Err(error) = self.declare_steps(vec![step], connection).await {
                tracing::warn!(%error, "cannot declare again");
            }
        }
    }

    /// Declarations that the broker refused for a missing permission.
    fn refused(&self) -> MutexGuard<'_, HashSet<Declaration>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_restricted(&self) -> bool {
        !self.refused().is_empty()
    }

    /// Declares everything. Equal items that exist are unchanged. Items that the user may not declare must exist;
    /// otherwise the error names every missing permission.
    pub(crate) async fn declare(&self, connection: &Connection) -> Result<(), Error> {
        self.declare_steps(self.declarations(), connection).await
    }

    async fn declare_steps(&self, steps: Vec<DeclareStep<'_>>, connection: &Connection) -> Result<(), Error> {
        // One channel for all declarations; the broker closes it when a declaration does not match.
        let mut channel = None;
        let mut missing = Vec::new();
        for step in steps {
            let known = self.refused().contains(&step.declaration);
            if !known {
                match step.call(&mut channel, connection, false).await {
                    Err(error) if permissions::is_refusal(&error) => {
                        missing.extend(step.missing_for_binding(&error, self));
                    }
                    // Its queue or exchange is missing for a permission.
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
            if self.refused().insert(step.declaration.clone()) {
                tracing::info!(what = ?step.declaration, "no permission to declare an existing item; it is used as it is");
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

    fn declarations(&self) -> Vec<DeclareStep<'_>> {
        let exchanges = self.exchanges.iter().map(|exchange| {
            let Exchange { name, kind, flags, arguments } = exchange;
            let method = |flags| Outgoing::ExchangeDeclare { name, kind, flags, arguments };
            let declaration = Declaration::Exchange(name.clone());
            DeclareStep { declaration, method: method(*flags), passive: Some(method(flag::PASSIVE)) }
        });
        let queues = self.queues.iter().map(|queue| {
            let Queue { name, flags, arguments, .. } = queue;
            let method = |flags| Outgoing::QueueDeclare { name, flags, arguments };
            let declaration = Declaration::Queue(name.clone());
            DeclareStep { declaration, method: method(*flags), passive: Some(method(flag::PASSIVE)) }
        });
        let bindings = self.bindings.iter().map(|binding| {
            let Binding { queue, exchange, key, arguments } = binding;
            let declaration = Declaration::Binding(exchange.clone(), queue.clone());
            let method = Outgoing::QueueBind { queue, exchange, key, arguments };
            DeclareStep { declaration, method, passive: None }
        });
        exchanges.chain(queues).chain(bindings).collect()
    }
}

/// One declaration, as a method call.
struct DeclareStep<'a> {
    declaration: Declaration,
    method: Outgoing<'a>,
    /// Passive form of the method, if there is one.
    passive: Option<Outgoing<'a>>,
}

impl DeclareStep<'_> {
    /// Declares the item or looks it up, on the open channel. An error closes the channel.
    async fn call(&self, channel: &mut Option<Channel>, connection: &Connection, passive: bool) -> Result<(), Error> {
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
            Declaration::Exchange(name) => Some(MissingPermission::new(Permission::Configure, "exchange", name)),
            Declaration::Queue(name) => Some(MissingPermission::new(Permission::Configure, "queue", name)),
            Declaration::Binding(..) => None,
        }
    }

    /// Whether it binds an item that is missing and may not be declared.
    fn depends_on(&self, missing: &[MissingPermission]) -> bool {
        let Declaration::Binding(exchange, to) = &self.declaration else { return false };
        missing.iter().any(|one| one.permission == Permission::Configure && (one.name == *exchange || one.name == *to))
    }

    /// Permission that a binding lacks. A binding cannot be looked up; that of the dead letters is assumed to exist
    /// where their queue exists and may not be declared.
    fn missing_for_binding(&self, error: &Error, topology: &Topology) -> Option<MissingPermission> {
        let exists = |queue: &str| topology.refused().contains(&Declaration::Queue(queue.to_owned()));
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
