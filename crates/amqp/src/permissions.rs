//! Finds permissions that the user lacks at the broker, before a consumer starts.
//!
//! Tests for a permission without a side effect, and prints the command that grants it. Existing queues and exchanges
//! need no permission to be declared: they are looked up instead. Permissions to write are tested only for a user who
//! was refused something, because each test is an error in the broker's log.

use crate::{
    consumer::ConsumerConfig,
    error::Error,
    net::{Channel, Connection},
    republish::retry_queues,
    topology::Topology,
    wire::properties::Properties,
};
use std::{collections::BTreeSet, fmt, time::Duration};

/// A kind of permission, in RabbitMQ's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // Defined by RabbitMQ.
pub enum Permission {
    Configure,
    Write,
    Read,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// A permission that the user does not have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPermission {
    /// Kind of the permission.
    pub permission: Permission,
    /// Kind of the item: `queue` or `exchange`.
    pub kind: &'static str,
    /// Name of the queue or exchange. RabbitMQ calls the default exchange `amq.default`.
    pub name: String,
}

/// Permissions that a user does not have, and the command that grants them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingPermissions {
    /// Name of the connected user.
    pub user: String,
    /// Name of the virtual host.
    pub vhost: String,
    /// Missing permissions, each once.
    pub missing: Vec<MissingPermission>,
    /// Names that the program needs to configure, to write and to read.
    needed: [BTreeSet<String>; 3],
}

/// Maximum wait for the broker to refuse a publication.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the default exchange where RabbitMQ checks permissions.
const DEFAULT_EXCHANGE: &str = "amq.default";

impl MissingPermission {
    pub(crate) fn new(permission: Permission, kind: &'static str, name: &str) -> Self {
        let name = if name.is_empty() { DEFAULT_EXCHANGE } else { name };
        Self { permission, kind, name: name.to_owned() }
    }
}

impl fmt::Display for MissingPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} of virtual host {} lacks permissions: ", self.user, self.vhost)?;
        for (at, MissingPermission { permission, kind, name }) in self.missing.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let why = if *permission == Permission::Configure { ", which does not exist" } else { "" };
            write!(f, "{comma}{permission} on {kind} {name}{why}")?;
        }
        let [configure, write, read] = self.needed.each_ref().map(pattern);
        write!(
            f,
            ". Grant them with: rabbitmqctl set_permissions -p '{}' '{}' '{configure}' '{write}' '{read}' \
             (it replaces those that `rabbitmqctl list_user_permissions '{}'` shows)",
            self.vhost, self.user, self.user
        )?;
        if self.missing.iter().any(|one| one.permission == Permission::Configure) {
            f.write_str(". An existing queue needs no permission to configure")?;
        }
        Ok(())
    }
}

/// Builds a regular expression that matches exactly these names.
fn pattern(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "^$".to_owned();
    }
    let escaped = |name: &String| {
        let special =
            |character: char| !character.is_alphanumeric() && !matches!(character, '-' | '_' | ' ' | '/' | ':');
        name.chars().fold(String::new(), |mut text, character| {
            if special(character) {
                text.push('\\');
            }
            text.push(character);
            text
        })
    };
    format!("^({})$", names.iter().map(escaped).collect::<Vec<_>>().join("|"))
}

/// Declares everything. The error names the permissions that the user lacks for that and for these consumers.
pub(crate) async fn declare(
    topology: &Topology,
    consumers: &[ConsumerConfig],
    connection: &Connection,
) -> Result<(), Error> {
    let mut missing = match topology.declare(connection).await {
        Ok(()) => Vec::new(),
        Err(Error::MissingPermissions(error)) => error.missing,
        Err(error) => return Err(error),
    };
    for config in consumers {
        let unknown = topology.declares_nothing() && !may_declare_retry_queues(config, connection).await?;
        if unknown || topology.is_restricted() {
            missing.extend(missing_for(config, connection).await?);
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(error(connection, missing, consumers)),
    }
}

/// Builds an error that names these permissions and all that the consumers need.
pub(crate) fn error(
    connection: &Connection,
    mut missing: Vec<MissingPermission>,
    consumers: &[ConsumerConfig],
) -> Error {
    missing.sort();
    missing.dedup();
    let names = |permission| missing.iter().filter(move |one| one.permission == permission).map(|one| one.name.clone());
    let mut needed =
        [Permission::Configure, Permission::Write, Permission::Read].map(|kind| names(kind).collect::<BTreeSet<_>>());
    // Binding needs read access to the exchange, and the broker reads a queue with dead letters in the user's name.
    needed[2].extend(names(Permission::Configure));
    for config in consumers {
        let dead = MissingPermission::new(Permission::Write, "exchange", &config.dead_letter_target.0).name;
        needed[1].extend([DEFAULT_EXCHANGE.to_owned(), dead]);
        needed[2].insert(config.queue.to_string());
    }
    let (user, vhost) = connection.user();
    let (user, vhost) = (user.to_owned(), vhost.to_owned());
    Error::MissingPermissions(Box::new(MissingPermissions { user, vhost, missing, needed }))
}

/// Finds the permissions that a consumer lacks for its retry queues and to publish to its exchanges.
async fn missing_for(config: &ConsumerConfig, connection: &Connection) -> Result<Vec<MissingPermission>, Error> {
    let mut missing = Vec::new();
    if !config.in_place {
        let topology = Topology { queues: retry_queues(config), ..Topology::default() };
        match topology.declare(connection).await {
            Err(Error::MissingPermissions(error)) => missing.extend(error.missing),
            other => other?,
        }
    }
    for exchange in ["", &config.dead_letter_target.0] {
        if !may_write(connection, exchange).await? {
            missing.push(MissingPermission::new(Permission::Write, "exchange", exchange));
        }
    }
    Ok(missing)
}

/// Whether the user may declare retry queues. Tested with an invalid argument, which is checked after the permission.
async fn may_declare_retry_queues(config: &ConsumerConfig, connection: &Connection) -> Result<bool, Error> {
    let Some(queue) = retry_queues(config).into_iter().next().filter(|_| !config.in_place) else {
        return Ok(true);
    };
    let impossible = queue.argument("x-message-ttl", -1i64);
    match (Topology { queues: vec![impossible], ..Topology::default() }).declare(connection).await {
        Err(Error::MissingPermissions(_)) => Ok(false),
        Ok(()) | Err(Error::Channel { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether the user may publish to an exchange. Tested with an invalid expiration, checked after the permission.
async fn may_write(connection: &Connection, exchange: &str) -> Result<bool, Error> {
    let mut channel = Channel::open(connection).await?;
    let refused = Properties { expiration: Some("-".to_owned()), ..Properties::default() };
    channel.publish(exchange, "", false, &refused, b"")?;
    let closed = async {
        loop {
            if let Err(error) = channel.next().await {
                return error;
            }
        }
    };
    match tokio::time::timeout(REFUSAL_TIMEOUT, closed).await {
        Ok(Error::Channel { code: 403, .. }) => Ok(false),
        Ok(Error::Channel { .. }) | Err(_) => Ok(true),
        Ok(error) => Err(error),
    }
}

/// Whether an error is about a permission. The broker uses the same code for another connection's exclusive queue.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Channel { code: 403, text } if text.contains("refused for user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_names_literally() {
        let names = |names: &[&str]| pattern(&names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(names(&[]), "^$");
        assert_eq!(names(&["b", "a.dead"]), "^(a\\.dead|b)$");
        assert_eq!(names(&["a+(b)"]), "^(a\\+\\(b\\))$");
    }
}
