//! What the commands that speak to RabbitMQ share.
//!
//! Owns how they are started, and the errors of the broker with the next step.

use std::io::ErrorKind;
use std::time::Duration;

use gristmill_amqp::{Client, ClientBuilder, Error as Fault, Queue};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::context::Context;
use crate::error::Error;
use crate::settings::consumers::Kind;
use crate::settings::typed::Typed;
use crate::settings::{Amqp, Raw, keys};
use crate::signals::Listener;

/// How the broker is named on a command line.
#[derive(Debug, clap::Args)]
pub(crate) struct BrokerArgs {
    /// Where RabbitMQ is; may be given for each node of a cluster. Others can see a password in it, with ps: put that
    /// into GRISTMILL_AMQP_URI or the settings file [default: the setting amqp.uri]
    #[arg(long, value_name = "URI", help_heading = "The broker")]
    uri: Vec<String>,
}

impl BrokerArgs {
    /// Sets the URIs of the command line, which override variables and the settings file.
    pub(crate) fn note(&self, context: &mut Context) {
        if !self.uri.is_empty() {
            context.flags.values.insert(keys::AMQP_URI.name, ("--uri", Raw::Many(self.uri.clone())));
        }
    }
}

/// Where tasks run.
pub(super) fn runtime(threads: usize) -> Result<Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(threads).enable_all().build();
    built.map_err(|error| Error::System(format!("cannot start threads: {error}")))
}

/// Signals, one message each. The one after the first `most` ends the process.
pub(super) fn signals(most: u32) -> Result<(Listener, UnboundedReceiver<()>), Error> {
    let (sender, receiver) = unbounded_channel();
    let notify = move || {
        // The receiver is gone when the work is over.
        let _ = sender.send(());
    };
    Ok((Listener::start(most, notify)?, receiver))
}

/// A client of the broker that the settings name.
pub(super) fn builder(settings: &Amqp, name: &str) -> ClientBuilder {
    let mut uris = settings.uris.iter();
    let first = uris.next().cloned().unwrap_or_default();
    let builder = Client::builder(first).name(name).connect_timeout(settings.connect_within);
    uris.fold(builder, |builder, uri| builder.uri(uri.clone()))
}

/// A queue that must exist, or that is made if it does not.
pub(super) fn queue(name: &str, kind: Option<Kind>, arguments: &[Typed]) -> Queue {
    let queue = match kind {
        None => Queue::existing(name),
        Some(Kind::Quorum) => Queue::quorum(name),
        Some(Kind::Classic) => Queue::classic(name),
        Some(Kind::Stream) => Queue::stream(name),
    };
    arguments.iter().fold(queue, |queue, (name, value)| queue.argument(name, value.clone()))
}

/// What differs, from the broker's text about a queue or an exchange that exists and is not as declared.
pub(super) fn difference(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("inequivalent arg '")?;
    let (argument, rest) = rest.split_once("' for ")?;
    let (what, rest) = rest.split_once(" in vhost ")?;
    let (_, rest) = rest.split_once("received ")?;
    let (received, current) = rest.split_once(" but current is ")?;
    Some(format!("{what} exists with {argument} = {current}, and {received} was asked for"))
}

/// Closes the connections in order; nothing depends on that.
pub(super) async fn close(client: Client) {
    let _ = tokio::time::timeout(Duration::from_secs(2), client.shutdown(Duration::ZERO)).await;
}

/// An error of the broker with the next step; whether the user can fix it decides the exit code.
pub(super) fn failed(fault: Fault) -> Error {
    let text = fault.to_string();
    let elsewhere = "--uri, GRISTMILL_AMQP_URI or amqp.uri in the settings file names another";
    match fault {
        Fault::Store(error) => Error::Store(error),
        Fault::Io { source, .. } if source.kind() == ErrorKind::ConnectionRefused => {
            Error::System(format!("{text}. Is the broker running, and is this its address? {elsewhere}"))
        }
        Fault::Io { .. } | Fault::HeartbeatTimeout { .. } => {
            Error::System(format!("{text}. Can the broker be reached from here? {elsewhere}"))
        }
        Fault::ConnectionRefused { code: 403, .. } => Error::Setting(format!(
            "{}. Are the user and the password in the URI the right ones? What is special in a URL is written with %, as %2f for /",
            text.trim_end_matches('.')
        )),
        Fault::ConnectionRefused { code: 530, .. } => Error::Setting(format!(
            "{text}. Does the virtual host, the part of the URI behind the host, exist?"
        )),
        Fault::Channel { code: 404, .. } if text.contains("no exchange") => {
            Error::Setting(format!("{text}. The exchange has to exist before it is used"))
        }
        Fault::Channel { code: 404, .. } => Error::Setting(format!("{text}. --declare quorum makes it")),
        Fault::Channel { code: 406, .. } => Error::Setting(match difference(&text) {
            Some(difference) => format!(
                "{difference}. Declare it with the arguments that it has, or leave out --declare to take it as it is"
            ),
            None => text,
        }),
        Fault::Channel { code: 403 | 405, .. } if text.contains("exclusive") => Error::Setting(format!(
            "{text}. It has a consumer already, or belongs to one connection; `gristmill queues` shows the number of consumers"
        )),
        Fault::Channel { code: 403, .. } => Error::Setting(format!(
            "{text}. The user in the URI has no right to that; an administrator of the broker can grant it"
        )),
        Fault::Unroutable { .. } => Error::Setting(format!("{text}. The queue has to exist")),
        Fault::MissingPermissions(_)
        | Fault::Uri { .. }
        | Fault::Declaration(_)
        | Fault::Tls(_)
        | Fault::Channel { .. } => Error::Setting(text),
        Fault::ConnectionRefused { .. } | Fault::Protocol { .. } => {
            Error::Setting(format!("{text}. {elsewhere}"))
        }
        Fault::Closed => Error::System(format!("no broker answered in time. {elsewhere}")),
        _ => Error::System(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_to_an_existing_queue_is_named() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': \
                    received the value '10' of type 'long' but current is none";
        let expected =
            "queue 'q' exists with x-max-length = none, and the value '10' of type 'long' was asked for";
        assert_eq!(difference(text).as_deref(), Some(expected));
        assert_eq!(difference("PRECONDITION_FAILED - invalid arg 'x-max-priority'"), None);
    }
}
