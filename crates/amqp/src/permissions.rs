//! Rights of the user at the broker: what is missing for a consumer, found before it starts.
//!
//! Owns how a right is found missing without a side effect, and the command that grants it. Queues and exchanges that
//! exist need no right to be declared: they are looked for instead. Rights to write are only looked at for a user who
//! was refused something, because each look is an error in the broker's log.

use crate::{
    consumer::ConsumerConfig,
    error::Error,
    net::{Channel, Connection},
    republish::retry_queues,
    topology::Topology,
    wire::properties::Properties,
};
use std::{collections::BTreeSet, fmt, time::Duration};

/// A kind of right, in RabbitMQ's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // They are RabbitMQ's own words.
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

/// A right that the user does not have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPermission {
    /// Which.
    pub permission: Permission,
    /// `queue` or `exchange`.
    pub kind: &'static str,
    /// The name of the queue or exchange. RabbitMQ calls the exchange without a name `amq.default`.
    pub name: String,
}

/// Rights that a user does not have, and the command that grants them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingPermissions {
    /// The user that is connected.
    pub user: String,
    /// The virtual host.
    pub vhost: String,
    /// The rights, each once.
    pub missing: Vec<MissingPermission>,
    /// Names that the program needs: to configure, to write and to read.
    needed: [BTreeSet<String>; 3],
}

/// How long the broker may take to refuse a publication.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The exchange without a name, as RabbitMQ calls it where it checks rights.
const DEFAULT_EXCHANGE: &str = "amq.default";

impl MissingPermission {
    pub(crate) fn new(right: Permission, kind: &'static str, name: &str) -> Self {
        let name = if name.is_empty() { DEFAULT_EXCHANGE } else { name };
        Self { permission: right, kind, name: name.to_owned() }
    }
}

impl fmt::Display for MissingPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} of virtual host {} lacks rights: ", self.user, self.vhost)?;
        for (at, MissingPermission { permission: right, kind, name }) in self.missing.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let why = if *right == Permission::Configure { ", which does not exist" } else { "" };
            write!(f, "{comma}{right} on {kind} {name}{why}")?;
        }
        let [configure, write, read] = self.needed.each_ref().map(pattern);
        write!(
            f,
            ". The rights that are needed are granted by: rabbitmqctl set_permissions -p '{}' '{}' '{configure}' '{write}' \
             '{read}' (it replaces those that `rabbitmqctl list_user_permissions '{}'` shows)",
            self.vhost, self.user, self.user
        )?;
        if self.missing.iter().any(|one| one.permission == Permission::Configure) {
            f.write_str(". A queue that exists needs no right to configure")?;
        }
        Ok(())
    }
}

/// A regular expression for exactly these names.
fn pattern(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "^$".to_owned();
    }
    let escaped = |name: &String| {
        let special = |character: char| {
            !character.is_alphanumeric() && !matches!(character, '-' | '_' | ' ' | '/' | ':')
        };
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

/// Declares everything, and finds what the user lacks for it and for these consumers.
pub(crate) async fn declare(
    topology: &Topology,
    consumers: &[ConsumerConfig],
    connection: &Connection,
) -> Result<(), Error> {
    let mut missing = match topology.declare(connection).await {
        Ok(()) => Vec::new(),
        Err(Error::MissingPermissions(rights)) => rights.missing,
        Err(error) => return Err(error),
    };
    for config in consumers {
        let unknown = topology.declares_nothing() && !may_declare_retry_queues(config, connection).await?;
        if unknown || topology.is_restricted() {
            missing.extend(missing_for_consumer(config, connection).await?);
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(error(connection, missing, consumers)),
    }
}

/// An error that names these rights, and all that the consumers need.
pub(crate) fn error(
    connection: &Connection,
    mut missing: Vec<MissingPermission>,
    consumers: &[ConsumerConfig],
) -> Error {
    missing.sort();
    missing.dedup();
    let of = |right| missing.iter().filter(move |one| one.permission == right).map(|one| one.name.clone());
    let mut needed = [Permission::Configure, Permission::Write, Permission::Read]
        .map(|right| of(right).collect::<BTreeSet<_>>());
    // A binding is read from its exchange, and the broker reads a queue with dead letters in the user's name.
    needed[2].extend(of(Permission::Configure));
    for config in consumers {
        let dead = MissingPermission::new(Permission::Write, "exchange", &config.dead_letter_target.0).name;
        needed[1].extend([DEFAULT_EXCHANGE.to_owned(), dead]);
        needed[2].insert(config.queue.to_string());
    }
    let (user, vhost) = connection.user();
    Error::MissingPermissions(Box::new(MissingPermissions {
        user: user.to_owned(),
        vhost: vhost.to_owned(),
        missing,
        needed,
    }))
}

/// What a consumer needs beside its queue: queues for retries, and rights to publish to them and to the dead letters.
async fn missing_for_consumer(
    config: &ConsumerConfig,
    connection: &Connection,
) -> Result<Vec<MissingPermission>, Error> {
    let mut missing = Vec::new();
    if !config.in_place {
        let topology = Topology { queues: retry_queues(config), ..Topology::default() };
        match topology.declare(connection).await {
            Err(Error::MissingPermissions(rights)) => missing.extend(rights.missing),
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

/// Whether the user may declare a consumer's retry queues. Asked by a declaration that the broker never carries out: it
/// looks at the right first, and then at the arguments.
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

/// Whether the user may publish to an exchange. Asked by a message that the broker never takes: it looks at the right
/// first, and then at the expiration, which is no number.
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

/// Whether an error is about a right of the user. The broker has the same code for a queue that another has alone.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Channel { code: 403, text } if text.contains("refused for user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_names_as_they_are() {
        let names = |names: &[&str]| pattern(&names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(names(&[]), "^$");
        assert_eq!(names(&["b", "a.dead"]), "^(a\\.dead|b)$");
        assert_eq!(names(&["a+(b)"]), "^(a\\+\\(b\\))$");
    }
}
