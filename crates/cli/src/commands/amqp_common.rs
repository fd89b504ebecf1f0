//! Shared by the commands that connect to RabbitMQ: `--uri`, the runtime, the client, and advice for errors.

use std::io::ErrorKind;
use std::time::Duration;

use gristmill_amqp::{Client, ClientBuilder, Error as AmqpError, Queue};
use gristmill_pool::CancelToken;
use tokio::runtime::Runtime;

use crate::context::Context;
use crate::error::Error;
use crate::settings::consumers::QueueKind;
use crate::settings::typed::Typed;
use crate::settings::{Amqp, Settings, keys};
use crate::supervisor::Supervisor;

#[derive(Debug, clap::Args)]
pub(crate) struct BrokerArgs {
    /// Connect to this broker; repeatable, for the nodes of a cluster. Other users can read a password in it with ps:
    /// set it in GRISTMILL_AMQP_URI or in the settings file instead [default: setting amqp.uri, amqp://localhost]
    #[arg(long, value_name = "URI", help_heading = "Broker options")]
    uri: Vec<String>,
}

impl BrokerArgs {
    /// Applies the URIs of the command line, which override variables and the settings file.
    pub(crate) fn apply(&self, context: &mut Context) {
        context.flags.add(&keys::AMQP_URI, "--uri", Some(&self.uri).filter(|uris| !uris.is_empty()));
    }
}

pub(super) fn runtime(threads: usize) -> Result<Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(threads).enable_all().build();
    built.map_err(|error| Error::System(format!("cannot start threads: {error}")))
}

/// Connects and runs `operate`, which ends when its token is cancelled by a signal. Returns none if a signal came before
/// there was a connection.
pub(super) fn with_client<T>(
    settings: &Settings,
    name: &str,
    operate: impl AsyncFnOnce(&Client, &CancelToken) -> T,
) -> Result<Option<T>, Error> {
    let supervisor = Supervisor::with_stop(true)?;
    let runtime = runtime(2)?;
    let ended = runtime.block_on(async {
        let Some(client) = unless_cancelled(&supervisor.stop, builder(&settings.amqp, name).start()).await else {
            return Ok(None);
        };
        let client = client.map_err(failed)?;
        let ended = operate(&client, &supervisor.stop).await;
        close(client).await;
        Ok(Some(ended))
    });
    runtime.shutdown_background();
    ended
}

/// Returns the output of `work`, or none if the token is cancelled before.
pub(super) async fn unless_cancelled<T>(token: &CancelToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        output = work => Some(output),
        () = token.cancelled() => None,
    }
}

/// Returns a client builder with the URIs and the timeout of the settings.
pub(super) fn builder(settings: &Amqp, name: &str) -> ClientBuilder {
    let mut uris = settings.uris.iter();
    let first = uris.next().cloned().unwrap_or_default();
    let builder = Client::builder(first).name(name).connect_timeout(settings.connect_within);
    uris.fold(builder, |builder, uri| builder.uri(uri.clone()))
}

/// Returns a queue that must exist, or with a kind one that is declared if it does not.
pub(super) fn queue(name: &str, kind: Option<QueueKind>, arguments: &[Typed]) -> Queue {
    let queue = match kind {
        None => Queue::existing(name),
        Some(QueueKind::Quorum) => Queue::quorum(name),
        Some(QueueKind::Classic) => Queue::classic(name),
        Some(QueueKind::Stream) => Queue::stream(name),
    };
    arguments.iter().fold(queue, |queue, (name, value)| queue.argument(name, value.clone()))
}

/// Extracts the difference from the broker's error about a queue or an exchange that exists with other arguments.
pub(super) fn difference(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("inequivalent arg '")?;
    let (argument, rest) = rest.split_once("' for ")?;
    let (what, rest) = rest.split_once(" in vhost ")?;
    let (_, rest) = rest.split_once("received ")?;
    let (received, current) = rest.split_once(" but current is ")?;
    Some(format!("{what} exists with {argument} = {current}, but {received} was requested"))
}

/// Extracts virtual host and user from the broker's reply `NOT_ALLOWED - access to vhost 'V' refused for user 'U'`.
fn refused_access(reply: &str) -> Option<(&str, &str)> {
    let (_, rest) = reply.split_once("access to vhost '")?;
    let (vhost, rest) = rest.split_once("' refused for user '")?;
    Some((vhost, rest.split_once('\'')?.0))
}

/// Closes the connections; a failure has no consequences.
pub(super) async fn close(client: Client) {
    let _ = tokio::time::timeout(Duration::from_secs(2), client.shutdown(Duration::ZERO)).await;
}

/// Adds advice to an error of the broker. Errors that the user can fix have exit status 1.
pub(super) fn failed(error: AmqpError) -> Error {
    let text = error.to_string();
    let elsewhere = "choose another with --uri, GRISTMILL_AMQP_URI or amqp.uri in the settings file";
    match error {
        AmqpError::Store(error) => match error.downcast() {
            Ok(error) => Error::Store(*error),
            Err(_) => Error::System(text),
        },
        AmqpError::Io { source, .. } if source.kind() == ErrorKind::ConnectionRefused => {
            Error::System(format!("{text}. Check that the broker is running at this address, or {elsewhere}"))
        }
        AmqpError::Io { to, .. } if text.contains("UnknownIssuer") => Error::System(format!(
            "{to}: no trusted authority has signed the certificate of the broker; name its authority with ?cacertfile=FILE in \
             the URI"
        )),
        AmqpError::Io { .. } | AmqpError::HeartbeatTimeout { .. } => {
            Error::System(format!("{text}. Check that the broker can be reached, or {elsewhere}"))
        }
        AmqpError::ConnectionRefused { code: 403, .. } => Error::Setting(format!(
            "{}. Check the user and the password in the URI; percent-encode special characters, such as %2f for /",
            text.trim_end_matches('.')
        )),
        AmqpError::ConnectionRefused { code: 530, to, text: reply } => Error::Setting(match refused_access(&reply) {
            Some((vhost, user)) => format!(
                "{to}: user {user} has no access to virtual host {vhost}; an administrator can grant it with `rabbitmqctl \
                 set_permissions -p '{vhost}' '{user}' '.*' '.*' '.*'`"
            ),
            None => {
                format!("{text}. Check the virtual host, which is the part of the URI after the host")
            }
        }),
        AmqpError::Channel { code: 404, .. } if text.contains("no exchange") => {
            Error::Setting(format!("{text}. Declare the exchange at the broker first"))
        }
        AmqpError::Channel { code: 404, .. } => Error::Setting(format!("{text}. Declare it with --declare quorum")),
        AmqpError::Channel { code: 406, .. } => Error::Setting(match difference(&text) {
            Some(difference) => {
                format!("{difference}. Give the arguments that it has, or omit --declare to use it unchanged")
            }
            None => text,
        }),
        AmqpError::Channel { code: 403 | 405, .. } if text.contains("exclusive") => Error::Setting(format!(
            "{text}. It already has a consumer, or belongs to another connection; `gristmill queues` lists the consumers"
        )),
        AmqpError::Channel { code: 403, .. } => Error::Setting(format!(
            "{text}. An administrator of the broker can grant the permission to the user of the URI"
        )),
        AmqpError::Unroutable { .. } => Error::Setting(format!("{text}. Declare the queue first")),
        AmqpError::MissingPermissions(_)
        | AmqpError::Uri { .. }
        | AmqpError::Declaration(_)
        | AmqpError::Tls(_)
        | AmqpError::Channel { .. } => Error::Setting(text),
        AmqpError::ConnectionRefused { .. } | AmqpError::Protocol { .. } => {
            Error::Setting(format!("{text}; {elsewhere}"))
        }
        AmqpError::Closed => Error::System(format!("no broker answered within amqp.connect_within; {elsewhere}")),
        _ => Error::System(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_to_existing_queue_is_extracted() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
                    received the value '10' of type 'long' but current is none";
        let expected = "queue 'q' exists with x-max-length = none, but the value '10' of type 'long' was requested";
        assert_eq!(difference(text).as_deref(), Some(expected));
        assert_eq!(difference("PRECONDITION_FAILED - invalid arg 'x-max-priority'"), None);
    }

    #[test]
    fn unknown_issuer_and_refused_virtual_host_have_their_own_advice() {
        let to = "amqps://a@mq:5671/%2f".to_owned();
        let source = std::io::Error::new(ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer");
        let error = failed(AmqpError::Io { to: to.clone(), source }).to_string();
        assert!(error.contains("?cacertfile=FILE") && !error.contains("reached"), "{error}");
        let text = "NOT_ALLOWED - access to vhost '/' refused for user 'a'".to_owned();
        let error = failed(AmqpError::ConnectionRefused { to, code: 530, text }).to_string();
        assert!(error.contains("user a has no access to virtual host /"), "{error}");
    }
}
