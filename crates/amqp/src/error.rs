//! Errors of this crate: what failed, where, and what is expected.

use std::{fmt, io, time::Duration};

/// An error of a connection, a declaration or a publication.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Invalid broker URI. (The URI is not in the error: it may have a password.)
    Uri {
        /// Why the URI is invalid.
        why: String,
    },
    /// Invalid declarations; no connection was made.
    Declaration(String),
    /// Invalid or unreadable certificates or keys.
    Tls(String),
    /// A network operation failed.
    Io {
        /// URI of the broker without the password.
        to: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Nothing was received within two heartbeat intervals.
    HeartbeatTimeout {
        /// URI of the broker without the password.
        to: String,
        /// Time without data.
        after: Duration,
    },
    /// The broker closed the connection or refused it.
    ConnectionRefused {
        /// URI of the broker without the password.
        to: String,
        /// AMQP reply code: 403 is access refused, 530 a missing virtual host.
        code: u16,
        /// Reply text of the broker.
        text: String,
    },
    /// The broker closed a channel because of an invalid request.
    Channel {
        /// AMQP reply code: 404 is not found, 406 exists with other properties.
        code: u16,
        /// Reply text of the broker.
        text: String,
    },
    /// The broker cancelled the consumer: its queue was deleted, or its node stopped.
    Cancelled {
        /// Name of the queue.
        queue: String,
    },
    /// The server does not speak AMQP 0-9-1.
    Protocol {
        /// URI of the broker without the password.
        to: String,
        /// Description of the invalid data.
        what: String,
    },
    /// No queue is bound for the message.
    Unroutable {
        /// Exchange of the message.
        exchange: String,
        /// Routing key of the message.
        key: String,
        /// Reply text of the broker.
        text: String,
    },
    /// The broker refused the message: a queue is full, or its node fails.
    Nacked,
    /// The broker did not confirm within this time. The message may have arrived or not.
    Unconfirmed(Duration),
    /// The protocol cannot carry the message, or a reply was unexpected.
    Message(String),
    /// The client has been shut down.
    Closed,
    /// The task of a consumer panicked. The broker redelivers its messages.
    ConsumerPanicked {
        /// Name of the consumer.
        consumer: String,
    },
    /// The user lacks permissions at the broker.
    MissingPermissions(Box<crate::permissions::MissingPermissions>),
    /// An operation of the store failed.
    Store(crate::store::StoreError),
    /// The pool could not be built.
    Pool(gristmill_pool::error::BuildError),
}

impl Error {
    /// Whether a later attempt may succeed: a network error, a broker that restarts. The user must fix other errors.
    pub fn is_transient(&self) -> bool {
        match self {
            // An untrusted certificate stays untrusted.
            Self::Io { source, .. } => source.kind() != io::ErrorKind::InvalidData,
            Self::HeartbeatTimeout { .. } | Self::Cancelled { .. } => true,
            Self::Nacked | Self::Unconfirmed(_) => true,
            // 320: closed by an operator; 541: internal error of the broker; 405, 506: a resource is in use or short.
            Self::ConnectionRefused { code, .. } => matches!(code, 320 | 541 | 506),
            Self::Channel { code, .. } => matches!(code, 405 | 506 | 541 | 311),
            _ => false,
        }
    }

    /// Copies the error: a connection ends once, and all its users get the reason.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Io { to, source } => {
                let source = io::Error::new(source.kind(), source.to_string());
                Self::Io { to: to.clone(), source }
            }
            Self::HeartbeatTimeout { to, after } => Self::HeartbeatTimeout { to: to.clone(), after: *after },
            Self::ConnectionRefused { to, code, text } => {
                Self::ConnectionRefused { to: to.clone(), code: *code, text: text.clone() }
            }
            Self::Protocol { to, what } => Self::Protocol { to: to.clone(), what: what.clone() },
            Self::Channel { code, text } => Self::Channel { code: *code, text: text.clone() },
            Self::Cancelled { queue } => Self::Cancelled { queue: queue.clone() },
            Self::Closed => Self::Closed,
            other => Self::Message(other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri { why } => {
                write!(f, "invalid broker URI: {why}; expected: amqp://user:password@host:5672/vhost")
            }
            Self::Declaration(what) => f.write_str(what),
            Self::Tls(what) => write!(f, "TLS: {what}"),
            Self::Io { to, source } => write!(f, "{to}: {source}"),
            Self::HeartbeatTimeout { to, after } => {
                write!(f, "{to}: no data and no heartbeat for {} s", after.as_secs())
            }
            Self::ConnectionRefused { to, code, text } => {
                write!(f, "{to}: {text}")?;
                if !text.starts_with(char::is_uppercase) {
                    write!(f, " ({code})")?;
                }
                Ok(())
            }
            Self::Channel { text, .. } => f.write_str(text),
            Self::Cancelled { queue } => write!(f, "the broker cancelled the consumer of queue {queue}"),
            Self::Protocol { to, what } => write!(f, "{to}: {what}; is this an AMQP 0-9-1 broker?"),
            Self::Unroutable { exchange, key, text } => {
                write!(f, "no queue is bound to exchange `{exchange}` for routing key `{key}` ({text})")
            }
            Self::Nacked => f.write_str("the broker refused the message; a queue may be full"),
            Self::Unconfirmed(after) => {
                write!(f, "the broker did not confirm the message within {} s", after.as_secs())
            }
            Self::Message(what) => f.write_str(what),
            Self::Closed => f.write_str("the client has been shut down"),
            Self::ConsumerPanicked { consumer } => write!(
                f,
                "consumer {consumer} panicked, and its messages go back to the queue. This is a defect; please report it with the log"
            ),
            Self::MissingPermissions(missing) => missing.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Store(error) => Some(&**error),
            Self::Pool(error) => Some(error),
            _ => None,
        }
    }
}
