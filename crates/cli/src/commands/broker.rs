//! What the commands that speak to RabbitMQ share.
//!
//! Owns how they are started, and what is said when the broker does not do what was asked: the next step with it.

use std::io::ErrorKind;

use gristmill_amqp::{Builder, Client, Error as Fault};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::context::Context;
use crate::error::Error;
use crate::settings::{Amqp, Raw, keys};
use crate::signals::Listener;

/// How the broker is named on a command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Where RabbitMQ is; may be given for each node of a cluster. Others can see a password in it, with ps: put that
    /// into GRISTMILL_AMQP_URI or the settings file [default: the setting amqp.uri]
    #[arg(long, value_name = "URI", help_heading = "The broker")]
    uri: Vec<String>,
}

impl Place {
    /// What was said goes over variables and the file.
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
    let (tell, told) = unbounded_channel();
    let tell = move || {
        // Nobody waits any more when the work is over.
        let _ = tell.send(());
    };
    Ok((Listener::start(most, tell)?, told))
}

/// A client of the broker that the settings name.
pub(super) fn builder(settings: &Amqp, name: &str) -> Builder {
    let mut uris = settings.uris.iter();
    let first = uris.next().cloned().unwrap_or_default();
    let builder = Client::builder(first).name(name).start_within(settings.connect_within);
    uris.fold(builder, |builder, uri| builder.uri(uri.clone()))
}

/// Why it did not work, whose turn it is, and what to do next.
pub(super) fn failed(fault: Fault) -> Error {
    let text = fault.to_string();
    let elsewhere = "--uri, GRISTMILL_AMQP_URI or amqp.uri in the settings file names another";
    match fault {
        Fault::Store(error) => Error::Store(error),
        Fault::Io { source, .. } if source.kind() == ErrorKind::ConnectionRefused => {
            Error::System(format!("{text}. Is the broker running, and is this its address? {elsewhere}"))
        }
        Fault::Io { .. } | Fault::Silent { .. } => {
            Error::System(format!("{text}. Can the broker be reached from here? {elsewhere}"))
        }
        Fault::Refused { code: 403, .. } => Error::Setting(format!(
            "{}. Are the user and the password in the URI the right ones? What is special in a URL is written with %, as %2f for /",
            text.trim_end_matches('.')
        )),
        Fault::Refused { code: 530, .. } => Error::Setting(format!(
            "{text}. Is the virtual host, the part of the URI behind the host, there?"
        )),
        Fault::Channel { code: 404, .. } if text.contains("no exchange") => {
            Error::Setting(format!("{text}. The exchange has to be there before it is used"))
        }
        Fault::Channel { code: 404, .. } => Error::Setting(format!("{text}. --declare quorum makes it")),
        Fault::Channel { code: 406, .. } => Error::Setting(format!(
            "{text}. It is there, but made otherwise; without --declare it is taken as it is"
        )),
        Fault::Channel { code: 403 | 405, .. } if text.contains("exclusive") => Error::Setting(format!(
            "{text}. Somebody consumes from it already, or has it alone; `gristmill queues` tells how many do"
        )),
        Fault::Channel { code: 403, .. } => Error::Setting(format!(
            "{text}. The user in the URI may not do that; whoever runs the broker can allow it"
        )),
        Fault::Uri { .. } | Fault::Declaration(_) | Fault::Tls(_) | Fault::Channel { .. } => {
            Error::Setting(text)
        }
        Fault::Refused { .. } | Fault::Protocol { .. } => Error::Setting(format!("{text}. {elsewhere}")),
        Fault::Ended => Error::System(format!("no broker answered in time. {elsewhere}")),
        _ => Error::System(text),
    }
}
